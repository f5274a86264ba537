"""Problems in the forms that other projects give them, and solutions of them; written for these tests."""

from __future__ import annotations

import json
import textwrap
from dataclasses import dataclass
from pathlib import Path

LINEAR = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, inner, outer):
        super().__init__()
        self.linear = nn.Linear(inner, outer)

    def forward(self, x):
        return torch.relu(self.linear(x))


def get_inputs():
    return [torch.randn(6, 24)]


def get_init_inputs():
    return [24, 10]
"""

NEW = """
import torch
from torch import nn
from torch.nn import functional


class ModelNew(nn.Module):
    def __init__(self, inner, outer):
        super().__init__()
        self.linear = nn.Linear(inner, outer)

    def forward(self, x):
        weight, bias = self.linear.weight, self.linear.bias
"""


def solution(body: str, before: str = "") -> str:
    """Returns a solution of LINEAR with this body of `forward`, and statements before the class."""
    return textwrap.dedent(before) + NEW + textwrap.indent(textwrap.dedent(body).strip("\n"), " " * 8) + "\n"


def written(folder: Path, **texts: str) -> dict[str, Path]:
    """Writes files NAME.py, and returns their paths by name."""
    found = {}
    for name, text in texts.items():
        found[name] = folder / f"{name}.py"
        found[name].write_text(text)
    return found


@dataclass(frozen=True)
class Form:
    """A problem in one format, with a right and a wrong solution. `problems` are as many as it has."""

    name: str
    files: dict[str, str]
    problem: str  # the path in the folder that is judged; empty for the folder
    right: str
    wrong: str
    problems: int
    suffix: str = "py"

    def write(self, folder: Path) -> Path:
        """Writes the problem, and returns its path."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in self.files.items():
            (folder / name).write_text(textwrap.dedent(text))
        return folder / self.problem if self.problem else folder


SOFTMAX = """
import torch
from torch import nn


class Model(nn.Module):
    def __init__(self, batch, vocab):
        super().__init__()
        self.batch, self.vocab = batch, vocab

    def forward(self, x):
        wide = x.double()
        e = torch.exp(wide - wide.amax(-1, keepdim=True))
        return (e / e.sum(-1, keepdim=True)).float()


BATCH, VOCAB = 8, 64


def get_inputs():
    return [torch.randn(BATCH, VOCAB) * 4]


def get_init_inputs():
    return [BATCH, VOCAB]
"""
_SOFTMAX_SOLUTION = """
import torch


class Model(torch.nn.Module):
    def __init__(self, batch, vocab):
        super().__init__()

    def forward(self, x):
        return {}
"""
SHAPES = Form(
    name="shapes",
    files={"reference.py": SOFTMAX, "shapes.py": 'SHAPES = [{"batch": 2, "vocab": 9}, {"batch": 1, "vocab": 17}]\n'},
    problem="",
    right=_SOFTMAX_SOLUTION.format("torch.softmax(x, -1)"),
    wrong=_SOFTMAX_SOLUTION.format("x.exp() / x.exp().sum(-1, keepdim=True)"),  # without the maximum
    problems=2,
)
TASK = Form(
    name="task",
    files={
        "task.yml": """\
            # name: matmul-py
            files:
              - {"name": "submission.py", "source": "@SUBMISSION@"}
              - {"name": "task.py", "source": "task.py"}
              - {"name": "utils.py", "source": "../utils.py"}
              - {"name": "reference.py", "source": "reference.py"}

            lang: "py"

            description: |
              A product of two matrices.

            tests:
              - {"m": 4, "n": 5, "k": 6, "seed": 53124}
              - {m: 3, n: 2, k: 8, seed: 3321}

            benchmarks:
              - {"m": 1024, "n": 1536, "k": 1024, "seed": 321}
            """,
        "../utils.py": "def product(a, b):\n    return a @ b\n",
        "task.py": "import torch\ninput_t = tuple\noutput_t = torch.Tensor\n",
        "reference.py": """\
            import torch
            from task import input_t, output_t
            from utils import product


            def generate_input(m: int, n: int, k: int, seed: int) -> input_t:
                made = torch.Generator().manual_seed(seed)
                return torch.randn(m, k, generator=made), torch.randn(k, n, generator=made)


            def ref_kernel(data: input_t) -> output_t:
                return product(*data)


            def check_implementation(data, output):
                return torch.allclose(output, ref_kernel(data), atol=1e-2)
            """,
    },
    problem="",
    right="from task import input_t\ndef custom_kernel(data: input_t):\n    return data[0] @ data[1]\n",
    wrong="def custom_kernel(data):\n    return data[0][:, 1:] @ data[1][1:]\n",
    problems=1,
)


def _packed(body: str) -> str:
    content = f"import torch\n\n\ndef run(hidden, weight, eps, output):\n    {body}\n"
    spec = {"language": "python", "target_hardware": ["LOCAL"], "entry_point": "kernel.py::run"}
    sources = [{"path": "kernel.py", "content": content}]
    return json.dumps({"name": "one", "definition": "rmsnorm_h12", "author": "test", "spec": spec, "sources": sources})


_NORM = "hidden * torch.rsqrt((hidden * hidden).mean(-1, keepdim=True) + eps)"
TRACE = Form(
    name="trace",
    files={
        "rmsnorm.json": json.dumps(
            {
                "name": "rmsnorm_h12",
                "op_type": "rmsnorm",
                "axes": {"batch": {"type": "var"}, "width": {"type": "const", "value": 12}},
                "inputs": {
                    "hidden": {"shape": ["batch", "width"], "dtype": "float32"},
                    "weight": {"shape": ["width"], "dtype": "float32"},
                    "eps": {"shape": None, "dtype": "float32"},
                },
                "outputs": {"output": {"shape": ["batch", "width"], "dtype": "float32"}},
                "reference": f"import torch\n\n\ndef run(hidden, weight, eps):\n    return {_NORM} * weight\n",
            }
        ),
        "rmsnorm.jsonl": "".join(
            json.dumps(
                {
                    "workload": {
                        "uuid": str(batch),
                        "axes": {"batch": batch},
                        "inputs": {
                            "hidden": {"type": "random"},
                            "weight": {"type": "random"},
                            "eps": {"type": "scalar", "value": 1e-6},
                        },
                    }
                }
            )
            + "\n"
            for batch in (1, 3)
        ),
    },
    problem="rmsnorm.json",
    right=_packed(f"output.copy_({_NORM} * weight)"),
    wrong=_packed(f"output[:-1] = ({_NORM} * weight)[:-1]"),  # the last row is never written
    problems=2,
    suffix="json",
)
_CAST = """
def add_kernel_impl(x, y, *, alpha=1):
    return (x.float() + alpha * y.float()).to(x.dtype)
"""
OPERATOR = Form(
    name="operator",
    files={
        "ops.txt": """\
            Operator: aten.add.Tensor
            cnt: 3, ((T([4, 6], bf16), T([6], bf16, stride=(1,))), {'alpha': 2})
            cnt: 1, ((T([3, 2], bf16), T([3, 2], bf16)), {'alpha': 2})
            cnt: 2, ((T([5], i64), 1), {})
            Operator: aten.relu.default
            cnt: 1, ((T([4], f32),), {})
            """
    },
    problem="ops.txt::add.Tensor",
    right=_CAST,
    wrong=_CAST.replace("alpha * y", "y"),
    problems=2,
)
FUNCTIONAL = Form(
    name="functional",
    files={
        "func_forward.py": """\
            import torch
            from torch import nn


            def forward_fn(x, weight, eps=1e-6):
                return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * weight


            class Model(nn.Module):
                def __init__(self, width, eps=1e-6):
                    super().__init__()
                    self.weight = nn.Parameter(torch.randn(width))
                    self.eps = eps

                def forward(self, x, fn=forward_fn):
                    return fn(x, self.weight, self.eps)


            def get_inputs(rows=4, width=8):
                return [torch.randn(rows, width)]
            """,
        "config_forward.json": json.dumps(
            {
                "single_init_configs": [{"eps": 1e-5}],
                "single_input_configs": [{"rows": 3}],
                "single_shared_configs": [{"width": 12}],
                "multi_input_configs": [{"rows": 2}, {"rows": 5}],
            }
        ),
    },
    problem="",
    right="def forward(x, weight, eps):\n    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight\n",
    wrong="def forward(x, weight, eps):\n    return x / (x.square().mean(-1, keepdim=True) + eps).sqrt() * weight[0]\n",
    problems=1,
)
_SCALED = """
def scaled_mean(input, factor=1.0, dim=None):
    return {}
"""
TESTED = Form(
    name="tested",
    files={
        "scaled_mean.py": """\
            import torch


            def scaled_mean(input, factor=1.0, dim=None):
                return (input * factor).mean(dim=dim)

            ##########################################


            def test_scaled_mean():
                results = {}
                results["test_case_1"] = scaled_mean(torch.randn(4, 5, device='cuda'), 2.5, dim=1)
                input2 = torch.tensor([[1.0, -2.0, 3.0], [4.0, 0.5, 6.0]], device="cuda")
                results["test_case_2"] = scaled_mean(input2, dim=0)
                results["test_case_3"] = scaled_mean(torch.randn(3, 9).cuda(), 2.5, 1)
                return results

            test_results = test_scaled_mean()
            """
    },
    problem="scaled_mean.py",
    right=_SCALED.format("input.mean(dim) * factor"),
    wrong=_SCALED.format("input.mean(dim) * 2.5"),
    problems=2,
)
