"""Honest solutions, which `verify judge` must accept: python -m mutants.zoo --honest 400

honest.toml has problems with solutions that people write, some in Triton. techniques.toml has what honest programs do
around any computation; each technique meets each problem of the zoo. The zoo has honest twins. Programs of
benchmarks/breakages are written out as the steps of a kernel, with sums in five orders and in three formats that take
turns. Every solution is a file alone.
"""

from __future__ import annotations

import itertools
import random
import re
import shutil
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.breakages.programs import Program, programs
from benchmarks.breakages.steps import outputs_of, traced
from mutants.zoo import PROBLEMS as OF_ZOO
from mutants.zoo import TRICKS, model, solution

UNJUDGED = ("cache", "mean")  # problems that are undecided for each solution
ORDERS = ("native", "sequential", "reversed", "blocks", "tree")
FORMATS = ("model", "functional", "task")

PROBLEM = """
import torch
from benchmarks.breakages.programs import programs

PROGRAM = programs()[{name!r}]


def drawn(seed):
    return [x.to(torch.{dtype}) if x.is_floating_point() else x for x in PROGRAM.drawn(seed)]
"""
PROBLEMS = {
    "model": {
        "problem.py": """
class Model(torch.nn.Module):
    def forward(self, *operands):
        return PROGRAM.function(*operands)


def get_inputs():
    return drawn(0)


def get_init_inputs():
    return []
"""
    },
    "functional": {
        "func_forward.py": """
def forward_fn(*operands):
    return PROGRAM.function(*operands)


class Model(torch.nn.Module):
    def forward(self, *operands, fn=forward_fn):
        return fn(*operands)


def get_inputs():
    return drawn(0)
"""
    },
    "task": {
        "reference.py": """
def generate_input(seed):
    return tuple(drawn(seed))


def ref_kernel(data):
    return PROGRAM.function(*data)
""",
        "task.yml": 'files:\n  - {"name": "submission.py", "source": "@SUBMISSION@"}\ntests:\n  - {"seed": 3}\n',
    },
}
CALLED = {
    "model": "class ModelNew(torch.nn.Module):\n    def forward(self, *operands):\n        return compute(*operands)\n",
    "functional": "forward = compute\n",
    "task": "def custom_kernel(data):\n    return compute(*data)\n",
}
SOLUTION = """
import torch
from math import inf, nan
{sums}

class Steps:
{constants}
{steps}

def device(type):
    return torch.device(HERE)


def compute(*given):
    global HERE
    HERE = given[0].device
    for name, each in list(vars(Steps).items()):
        if isinstance(each, torch.Tensor):
            setattr(Steps, name, each.to(HERE))
    kinds = [x.dtype for x in given if x.is_floating_point()]
    found = Steps().forward(*(x.float() if x.is_floating_point() else x for x in given))
    found = [y.to(kinds[0]) if y.is_floating_point() else y for y in found]
    return found[0] if len(found) == 1 else tuple(found)


{called}"""
TOTALS = {
    "sequential": """
kept = terms[0]
for term in terms[1:]:
    kept = kept + term
return kept
""",
    "reversed": """
kept = terms[-1]
for term in terms[:-1].flip(0):
    kept = kept + term
return kept
""",
    "blocks": "return torch.stack([part.sum(0) for part in terms.split(32)]).sum(0)",
    "tree": """
while len(terms) > 1:
    half = (len(terms) + 1) // 2
    terms = torch.cat([terms[: len(terms) - half] + terms[half:], terms[len(terms) - half : half]])
return terms[0]
""",
}
SUMS = """

def total(terms):
{total}


def product(a, b):
    return total(a.movedim(-1, 0).unsqueeze(-1) * b.movedim(-2, 0).unsqueeze(-2))


def added(x, dims=None, keepdim=False):
    dims = sorted(d % x.ndim for d in dims) if dims else list(range(x.ndim))
    if not x.is_floating_point() or 0 in x.shape:
        return torch.sum(x, dims, keepdim)
    rest = [d for d in range(x.ndim) if d not in dims]
    found = total(x.permute(*dims, *rest).reshape(-1, *(x.shape[d] for d in rest)))
    return found.reshape([1 if d in dims else x.shape[d] for d in range(x.ndim)]) if keepdim else found
"""
OWN = {"mm.default": "product", "bmm.default": "product", "sum.dim_IntList": "added", "sum.default": "added"}


@dataclass(frozen=True)
class Honest:
    """A solution in one format, with the files of its problem. A problem is its folder, or a file in it."""

    name: str
    problem: str
    text: str
    files: dict[str, str] = field(default_factory=dict)

    def write(self, folder: Path, number: int) -> tuple[str, str]:
        """Writes both, and returns their paths."""
        place = folder / re.sub(r"\W+", "_", self.problem)
        place.mkdir(parents=True, exist_ok=True)
        for name, text in self.files.items():
            (place / name).write_text(text)
        path = folder / f"{number}.py"
        path.write_text(self.text)
        return str(place / "problem.py" if "problem.py" in self.files else place), str(path)


@cache
def _steps(name: str) -> tuple[str, str]:
    """Returns the constants and the steps of a program as source."""
    program = programs()[name]
    graph = traced(lambda *given: outputs_of(program.function(*given)), program.drawn(0))
    constants = [
        f"    {node.target} = torch.tensor({value.tolist()}, dtype={value.dtype})"
        for node in graph.graph.nodes
        if node.op == "get_attr" and (value := getattr(graph, str(node.target))) is not None
    ]
    return "\n".join(constants), textwrap.indent(graph.code.strip(), " " * 4)


def _of_program(program: Program, order: str, form: str) -> Honest:
    constants, steps = _steps(program.name)
    sums = ""
    if order != "native":
        sums = SUMS.format(total=textwrap.indent(TOTALS[order].strip(), " " * 4))
        for operator, own in OWN.items():
            steps = steps.replace(f"torch.ops.aten.{operator}(", f"{own}(")
    head = PROBLEM.format(name=program.name, dtype=program.dtype)
    files = {name: text if name.endswith(".yml") else head + text for name, text in PROBLEMS[form].items()}
    text = SOLUTION.format(sums=sums, constants=constants, steps=steps, called=CALLED[form])
    return Honest(f"{program.name}, {order}, {form}", f"{program.name} {form}", text, files)


def written() -> Iterator[Honest]:
    """Yields the solutions of honest.toml."""
    for name, given in tomllib.loads((Path(__file__).parent / "honest.toml").read_text()).items():
        init, state = given.get("init", "pass"), given.get("state", given.get("init", "pass"))
        problem = model(given["forward"], init, given.get("inputs", "torch.randn(6, 24)"))
        for place, body in enumerate(given["solutions"]):
            before, _, inner = body.rpartition("---\n")
            if "load_inline" in before and not shutil.which("c++"):
                continue
            text = (
                f"import math\nimport torch\nfrom torch import nn\nfrom torch.nn import functional\n{before}\n\n"
                f"class ModelNew(nn.Module):\n    def __init__(self):\n        super().__init__()\n        {state}\n\n"
                f"    def forward(self, x):\n{textwrap.indent(inner.strip(), ' ' * 8)}\n"
            )
            yield Honest(f"{name}, written {place}", name, text, {"problem.py": problem})


def twins() -> Iterator[Honest]:
    """Yields the honest twins of the tricks. Tricks may share one."""
    found = {(trick.problem, text): trick for trick in TRICKS for kind, text in trick.texts if kind == "twin"}
    for (problem, text), trick in found.items():
        if not trick.compiled:
            yield Honest(f"{trick.name}, twin", f"zoo {problem}", text, {"problem.py": OF_ZOO[problem]})


def crossed() -> Iterator[Honest]:
    """Yields each technique with each problem of the zoo that can be judged."""
    techniques = tomllib.loads((Path(__file__).parent / "techniques.toml").read_text())
    for (name, given), (problem, text) in itertools.product(techniques.items(), OF_ZOO.items()):
        if problem in (*UNJUDGED, *given.get("without", ())):
            continue
        arguments, forward = re.search(r"def forward\(self, (.*)\):\n\s+return (.*)", text).groups()  # type: ignore[union-attr]
        before, body = (
            given.get(part, "").replace("$A", arguments).replace("$F", forward) for part in ("before", "body")
        )
        yield Honest(f"{problem}, {name}", f"zoo {problem}", solution(problem, body, before), {"problem.py": text})


def honest(count: int, seed: int = 0) -> list[Honest]:
    """Returns so many honest solutions by chance; all that were written by hand come first if there is room."""
    chance = random.Random(seed)
    hand = list(written())
    taken = hand if count >= len(hand) * 2 else chance.sample(hand, min(len(hand), count // 4))
    pairs = [(program, order) for program in programs().values() for order in ORDERS]
    kinds: list[list[Any]] = [list(crossed()), list(twins()), list(enumerate(pairs))]
    for each in kinds:
        chance.shuffle(each)
    rest = [each for three in itertools.zip_longest(*kinds) for each in three if each is not None]
    made = (
        each if isinstance(each, Honest) else _of_program(*each[1], FORMATS[each[0] % len(FORMATS)])
        for each in rest[: count - len(taken)]
    )
    return [*taken, *made]
