"""`verify init`: a workflow, and declarations of somebody else's functions, filled in where running them shows how."""

from __future__ import annotations

import ast
import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

from tests.cli.here import said
from tests.docs.commands import check_commands
from verify import backends
from verify.cases import Case
from verify.cli import main
from verify.declare.discovery import load
from verify.declare.guess import Guess, GuessDefinition, Parameter
from verify.declare.target import Target
from verify.errors import InternalError
from verify.measure.call import run_kernel
from verify.workers import pool
from verify.workers.process import START_SECONDS

KERNELS = """
import torch
import triton
import triton.language as tl


@triton.jit
def silu_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + at, mask=at < n).to(tl.float32)
    tl.store(y_ptr + at, x * tl.sigmoid(x), mask=at < n)


def fused_silu(x, scale=1.0):
    y = torch.empty_like(x)
    silu_kernel[(triton.cdiv(max(x.numel(), 1), 1024),)](x, y, x.numel(), BLOCK=1024)
    return y * scale


def blend(a, b, amount: float, *, mode="linear"):
    return fused_silu(a) * amount + b


def softmax(x):
    y = fused_silu(x)
    return y


def relu_(x):
    silu_kernel[(0,)](x, x, 0, BLOCK=16)
    return x.clamp_(min=0)


class Halved(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return halved_forward(x)

    @staticmethod
    def backward(ctx, dy):
        return dy / 2


def halved_forward(x):
    fused_silu(x)
    return x / 2


def naive_blend_all(a, b):
    return a * b + b


def blend_all(a, b):
    fused_silu(a)
    return a * b + b


def _hidden(x):
    return fused_silu(x)


def plain(x):
    return x


def nothing():
    return 1
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    package = tmp_path / "toykernels"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "act.py").write_text(KERNELS)
    (package / "plain.py").write_text("def helper(x):\n    return x\n")
    (package / "template.py").write_text("import triton\n{{ not Python }}\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    yield tmp_path
    for name in [name for name in sys.modules if name.split(".")[0] in ("toykernels", "accuracy")]:
        del sys.modules[name]


def test_every_public_function_that_launches_a_kernel_has_a_declaration(project: Path) -> None:
    (project / "pyproject.toml").write_text('[project]\nname = "toykernels"\n')
    done = said("init", cwd=project)
    assert done.returncode == 0, done.stderr
    assert done.stdout == (
        "filled toykernels.act.fused_silu\nfound  toykernels.act.blend\nfound  toykernels.act.softmax\n"
        "filled toykernels.act.relu_\nfilled toykernels.act.blend_all\nfound  toykernels.act.Halved.apply\n"
        "wrote  accuracy.py\nwrote  .github/workflows/accuracy.yml\n"
        "functions to declare: 6, of these filled in: 3\nnext: verify run accuracy.py\n"
    )
    text = (project / "accuracy.py").read_text()
    compile(text, "accuracy.py", "exec")
    assert "its numbers differ from those of lambda x: torch.softmax(x, -1)" in text
    [gate] = [words for words in check_commands(project / ".github/workflows/accuracy.yml") if words[0] == "gate"]
    assert gate[1] == "run.json" and "-e ." in (project / ".github/workflows/accuracy.yml").read_text()


def test_what_is_filled_in_runs_without_an_edit(project: Path) -> None:
    said("init", "toykernels/act.py", cwd=project)
    kernels = {kernel.name: kernel for kernel in load(Target("accuracy.py"))}
    assert list(kernels) == ["fused_silu", "relu_", "blend_all"]
    assert all(each.requires == ("toykernels",) for each in kernels.values())
    wanted = {
        "fused_silu": functional.silu,
        "relu_": torch.relu,  # it writes into its operand, so the declaration gives it a copy
        "blend_all": lambda a, b: a * b + b,  # the reference in plain PyTorch beside it
    }
    for name, define in wanted.items():
        measured = run_kernel(kernels[name], Case(dtype="float32", dims=(2, 3), fill="randn"), backends.select().device)
        torch.testing.assert_close(measured.results["y"], define(*measured.inputs.values()))


def test_a_function_that_cannot_be_imported_is_guessed_by_its_name(project: Path) -> None:
    (project / "toykernels" / "act.py").write_text("import a_package_that_is_not_there\n" + KERNELS)
    done = said("init", "--json", "-", cwd=project)
    assert json.loads(done.stdout)["filled"] == [
        f"toykernels.act.{name}" for name in ("fused_silu", "softmax", "relu_")
    ]
    text = (project / "accuracy.py").read_text()
    assert "guessed by its name, toykernels.act cannot be imported here: No module named 'a_package_that" in text
    assert [each.backends for each in load(Target("accuracy.py"))] == [("cuda",)] * 3


def test_a_launcher_that_others_call_is_left_out_where_a_package_exports_its_functions(project: Path) -> None:
    (project / "toykernels" / "__init__.py").write_text("from .act import blend, blend_all\n")
    found = json.loads(said("init", "--json", "-", cwd=project).stdout)["functions"]
    assert found == [f"toykernels.act.{name}" for name in ("blend", "softmax", "relu_", "blend_all", "Halved.apply")]


def test_a_definition_that_needs_even_sizes_is_declared_with_them(project: Path) -> None:
    # a declaration that fails would stop all others of its file
    text = KERNELS + "\n\ndef glu(x):\n    fused_silu(x)\n    return torch.nn.functional.glu(x)\n"
    (project / "toykernels" / "act.py").write_text(text)
    done = said("init", "--json", "-", cwd=project)
    assert "toykernels.act.glu" in json.loads(done.stdout)["filled"]
    assert 'shapes={"x": "n 2*d"}' in (project / "accuracy.py").read_text()
    assert "fused_silu" in [each.name for each in load(Target("accuracy.py"))]


def test_files_of_other_devices_and_tests_are_left_out(project: Path) -> None:
    for place in ("backends/_ascend/act.py", "tests/act.py", "act_npu.py", "backends/nvidia/act.py"):
        path = project / "toykernels" / place
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(KERNELS.replace("blend", "blended"))
    found = json.loads(said("init", "--json", "-", cwd=project).stdout)["functions"]
    assert {name.rpartition(".")[0].removesuffix(".Halved") for name in found} == {
        "toykernels.act",
        "toykernels.backends.nvidia.act",
    }


def test_names_and_messages_of_a_package_cannot_end_a_comment_or_a_string(project: Path) -> None:
    text = 'raise RuntimeError("one\\nimport os\\r\\x0c two")\n' + KERNELS.replace("softmax", "torch")
    (project / "toykernels" / "act.py").write_text(text)
    assert said("init", cwd=project).returncode == 0
    tree = ast.parse((project / "accuracy.py").read_text())
    assert not any(isinstance(node, ast.Import) and node.names[0].name == "os" for node in ast.walk(tree))
    assert "def act_torch(x)" in (project / "accuracy.py").read_text()


def test_a_file_that_exists_is_never_changed(project: Path) -> None:
    (project / "accuracy.py").write_text("mine = 1\n")
    done = said("init", "--json", "-", cwd=project)
    assert json.loads(done.stdout)["written"] == [".github/workflows/accuracy.yml"]
    assert (project / "accuracy.py").read_text() == "mine = 1\n"
    done = said("init", cwd=project)
    assert done.returncode == 2 and "nothing was written: accuracy.py" in done.stderr


def test_without_functions_nothing_is_written(project: Path) -> None:
    done = said("init", "toykernels/__init__.py", cwd=project)
    assert done.returncode == 2
    assert "no public function in toykernels/__init__.py launches a Triton kernel" in done.stderr
    assert "PATH is a folder or a Python file; there is none at nowhere" in said("init", "nowhere", cwd=project).stderr
    assert not (project / "accuracy.py").exists()


RECURRENCES = '''
import torch
from toykernels.act import fused_silu


def naive_decay(q, k, v, decay, power=1.0):
    """A reference with the heads before the steps, which returns its state too."""
    state, out = v.new_zeros(*v.shape[:2], v.shape[-1]), []
    for step in range(q.shape[2]):
        state = state * decay[:, :, step, None].exp() + v[:, :, step] * (q * k)[:, :, step].sum(-1, keepdim=True)
        out.append(state)
    return torch.stack(out, 2), state


def chunk_decay(q, k, v, g=None, decay: torch.Tensor = None, normalise=True):
    """
    q (torch.Tensor):
        queries of shape `[B, T, H, K]`.
    k (torch.Tensor):
        keys of shape `[B, T, H, K]`.
    v (torch.Tensor):
        values of shape `[B, T, H, V]`.
    decay (torch.Tensor):
        (forget) decays of shape `[B, T, H]`.
    """
    fused_silu(q)
    q = torch.nn.functional.normalize(q, dim=-1) if normalise else q
    return naive_decay(*(each.transpose(1, 2) for each in (q, k, v, decay)))[0].transpose(1, 2), None


def naive_peak(x):
    return 3.0 * x - 1.0


def peak_out(x, out=None):
    fused_silu(x)
    return out.copy_(naive_peak(x))


def silu_out(x, out):
    return out.copy_(fused_silu(x))


def swiglu_linear(x, y, weight, bias):
    return torch.nn.functional.linear(fused_silu(x) * y, weight, bias)


def rms_norm_gated(x, g, weight):
    return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, 1e-5) * fused_silu(g)


def fast_rms_layernorm(layernorm, X):
    fused_silu(X)
    return torch.nn.functional.rms_norm(X, X.shape[-1:], layernorm.weight, layernorm.variance_epsilon)


def apply_rope(q, k, cos, sin):
    fused_silu(q)
    half = q.shape[-1] // 2
    c, s = cos[..., :half], sin[..., :half]
    turn = lambda x: torch.cat([x[..., :half] * c - x[..., half:] * s, x[..., half:] * c + x[..., :half] * s], -1)
    return turn(q), turn(k)


def forward_of_a_layer(self, x):
    return fused_silu(x)


def tune(rows: int):
    return fused_silu(torch.ones(rows))
'''


def test_references_docstrings_and_parts_of_names_say_what_a_function_computes(project: Path) -> None:
    (project / "toykernels" / "more.py").write_text("import triton\n" + RECURRENCES)
    done = said("init", "toykernels/more.py", "--json", "-", cwd=project)
    found = json.loads(done.stdout)
    names = ["chunk_decay", "peak_out", "silu_out", "swiglu_linear", "rms_norm_gated"]
    names += ["fast_rms_layernorm", "apply_rope"]
    assert found["functions"] == found["filled"] == [f"toykernels.more.{name}" for name in names]
    assert not found["by_name"]
    kernels = {kernel.name: kernel for kernel in load(Target("accuracy.py"))}
    text = (project / "accuracy.py").read_text()
    # the decay is an optional parameter that the reference requires, and its default would normalise the queries
    assert "return kernel(q, k, v, decay=decay, normalise=False)[0]" in text
    assert '"decay": "b t h"' in text and "naive_decay(q=q.transpose(1, 2), k=k.transpose(1, 2)" in text
    more = import_module("toykernels.more")
    wanted: dict[str, tuple[tuple[int, ...], Any]] = {
        "chunk_decay": ((2, 5, 2, 3, 4), lambda q, k, v, decay: more.chunk_decay(q, k, v, None, decay, False)[0]),
        "apply_rope": ((2, 2, 5, 4), more.apply_rope),
        "fast_rms_layernorm": ((3, 5), lambda x, weight: functional.rms_norm(x, x.shape[-1:], weight, 1e-5)),
    }
    for name, (dims, define) in wanted.items():
        measured = run_kernel(kernels[name], Case(dtype="float32", dims=dims, fill="randn"), backends.select().device)
        expected = define(*measured.inputs.values())
        torch.testing.assert_close(
            list(measured.results.values()), list(expected) if isinstance(expected, tuple) else [expected]
        )


WRITING = """
import torch
from torch.nn import functional


def turn(x, cos, sin):
    half = x.shape[-1] // 2
    one, two = x[..., :half], x[..., half:]
    c, s = cos[..., :half], sin[..., :half]
    return torch.cat([one * c - two * s, two * c + one * s], -1)


def gated_backward(unit, DW, e, g):
    with torch.enable_grad():
        x = e.clone().requires_grad_()
        y = unit(x)
        (slope,) = torch.autograd.grad(y.sum(), x)
    DW.copy_(y.detach() * g), g.copy_(upstream * g * slope), e.copy_(upstream * y.detach())
    return DW, e, g
"""


def test_functions_that_write_gradients_over_their_operands_and_pairs_of_rotations_are_known(tmp_path: Path) -> None:
    (tmp_path / "inplace.py").write_text(
        WRITING.replace("    with torch", "    upstream = DW.clone()\n    with torch", 1)
        + """
tanh = lambda x: functional.gelu(x, approximate="tanh")
swiglu_DWf_DW_dfg_kernel = lambda DW, e, g: gated_backward(functional.silu, DW, e, g)
geglu_exact_backward_kernel = lambda DW, e, g: gated_backward(functional.gelu, DW, e, g)
geglu_approx_backward_kernel = lambda DW, e, g: gated_backward(tanh, DW, e, g)
matmul_lora = lambda X, W, W_quant, A, B, s: (X @ W.T).addmm(X @ A.T, B.T, alpha=s)
fast_rope_embedding_qk_positions = lambda Q, K, cos, sin: (turn(Q, cos, sin), turn(K, cos, sin))


def fast_qk_norm_rope(q_norm, k_norm, Q, K, cos, sin):
    normed = (functional.rms_norm(x, x.shape[-1:], norm.weight, norm.eps) for x, norm in ((Q, q_norm), (K, k_norm)))
    return tuple(turn(x.transpose(1, 2), cos, sin) for x in normed)
"""
    )
    of: dict[str, list[str]] = {
        "swiglu_DWf_DW_dfg_kernel": ["DW", "e", "g"],
        "geglu_exact_backward_kernel": ["DW", "e", "g"],
        "geglu_approx_backward_kernel": ["DW", "e", "g"],
        "matmul_lora": ["X", "W", "W_quant", "A", "B", "s"],
        "fast_rope_embedding_qk_positions": ["Q", "K", "cos", "sin"],
        "fast_qk_norm_rope": ["q_norm", "k_norm", "Q", "K", "cos", "sin"],
    }
    for name, parameters in of.items():
        listed = [Parameter(each) for each in parameters]
        ran = GuessDefinition(str(tmp_path), "inplace", name, listed).answer("cpu")
        assert ran.ran and ran.like, (name, ran.why)
        by_name = GuessDefinition(str(tmp_path), "package_that_is_missing", name, listed).answer("cpu")
        assert not by_name.ran and by_name.like == ran.like, (name, by_name.like)
        if "backward" in name or "DW" in name:
            assert ran.call == by_name.call == ["DW.clone()", "e.clone()", "g.clone()"]


def test_functions_that_the_budget_does_not_reach_are_comments(project: Path) -> None:
    done = said("init", "--budget", "0.000001s", "--json", "-", cwd=project)
    assert json.loads(done.stdout)["filled"] == []
    assert (project / "accuracy.py").read_text().count("not tried: the budget of time ended") == 6


def test_the_start_of_a_process_and_its_imports_are_not_the_time_of_a_function(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[tuple[str, float]] = []

    class Recorded:
        def ask(self, request: GuessDefinition, *, timeout: float) -> Guess:
            asked.append((request.name, timeout))
            return request.answer(backends.select().device) if not request.name else Guess("not tried")

    monkeypatch.setattr(pool, "spread", lambda items, jobs, backend, do: (do(each, Recorded()) for each in items))
    assert main(["init", "toykernels/act.py", "--timeout", "7s"]) == 0
    assert asked[::2] == [("", START_SECONDS)] * 6 and {seconds for _, seconds in asked[1::2]} == {7.0}
    assert "toykernels.act" in sys.modules


def test_a_function_whose_guess_fails_is_a_comment_and_the_others_are_declared(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Failing:
        def ask(self, request: GuessDefinition, *, timeout: float) -> Guess:
            if request.name == "blend_all":
                raise InternalError("verify itself failed: ValueError: zip() argument 2 is longer than argument 1")
            return request.answer(backends.select().device)

    monkeypatch.setattr(pool, "spread", lambda items, jobs, backend, do: (do(each, Failing()) for each in items))
    assert main(["init", "toykernels/act.py"]) == 0
    text = (project / "accuracy.py").read_text()
    assert text.count("verify itself failed: ValueError: zip() argument 2 is longer") == 1
    assert "# def blend_all" in text and "\ndef fused_silu" in text
