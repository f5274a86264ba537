"""Functions that people write kernels for, followed with their gradients: what tests of programs go through."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from benchmarks.like_suite import cases
from verify.errors import UsageError
from verify.ops.graph.program import Program, trace
from verify.ops.graph.steps import Run

S = (3, 5)
FEW = torch.tensor([0, 1, 4, 2])


def _fixed(value: Tensor) -> Callable[[torch.Generator], Tensor]:
    return lambda generator: value


MORE: dict[str, tuple[Callable[..., Any], Sequence[Any]]] = {
    "fake quantisation": (lambda x: torch.round(x * 8).clamp(-9, 9) / 8, [S]),
    "bags": (lambda w, i: functional.embedding_bag(i, w, torch.tensor([0, 2, 2])), [(7, 3), _fixed(FEW)]),
    "medians": (lambda x: (x.median(0)[0], x.median()), [(4, 5)]),
    "quantiles": (lambda x: (x.quantile(0.3, 1), x.quantile(0.5)), [S]),
    "running maxima": (lambda x: (x.cummax(-1)[0], x.cummin(0)[0]), [S]),
    "scattered means": (
        lambda x, y, i: y.scatter_reduce(0, i, x, "mean") - y.scatter_reduce(0, i, x, "mean", include_self=False),
        [(4,), (6,), _fixed(FEW)],
    ),
    "angles": (lambda x, y: torch.atan2(x, y * 10) - torch.atan2(x * 10, y), [(8, 5), (8, 5)]),
    "rrelu": (lambda x: functional.rrelu(x), [S]),
    "squared margins": (lambda x, i: functional.multi_margin_loss(x, i, 2, reduction="none"), [(4, 5), _fixed(FEW)]),
    "distance": (lambda x, y: torch.dist(x, y, 3), [S, S]),
    "determinants": (lambda x: (torch.linalg.det(x), x.slogdet()[1]), [(3, 3)]),
    "solved": (lambda a, b: (torch.linalg.solve(a, b[:, 0]), torch.linalg.solve(a, b, left=False)), [(2, 2), (2, 2)]),
    "symmetric factors": (
        lambda x, b: torch.cholesky_solve(b, torch.linalg.cholesky(x / 9 + 3 * torch.eye(2))),
        [(2, 2), (2, 1)],
    ),
    "triangles": (
        lambda a, b: torch.linalg.solve_triangular(a, b.mT, upper=False, left=False, unitriangular=True),
        [(3, 3), (3, 2)],
    ),
    "zeta, decimals": (lambda x: torch.special.zeta(3, x.abs()) + torch.round(x, decimals=1), [S]),
}
SUITE = {f"{group}: {name}": case for group, some in cases().items() for name, case in some.items()} | MORE


class Followed(NamedTuple):
    """A function with operands of its own, its program, and the program's leaves."""

    function: Callable[..., Any]
    operands: dict[str, Tensor]
    smooth: list[str]
    program: Program
    leaves: dict[str, Tensor]

    def run(self) -> Run:
        return Run(self.leaves, torch.device("cpu"))

    def by_pytorch(self) -> dict[str, Tensor]:
        """Returns each result, as PyTorch's float64 has it."""
        values = {n: v.clone().requires_grad_() if n in self.smooth else v for n, v in self.operands.items()}
        made = self.function(*values.values())
        names = [name for name in self.program.results if name.removeprefix("d") not in self.operands]
        found = dict(zip(names, made if isinstance(made, tuple | list) else [made], strict=True))
        ends = [(value, self.leaves[f"grad {name}"]) for name, value in found.items() if value.requires_grad]
        wanted = [name for name in self.smooth if f"d{name}" in self.program.results]
        if ends and wanted:
            outputs, upstream = zip(*ends, strict=True)
            made = torch.autograd.grad(outputs, [values[name] for name in wanted], upstream, allow_unused=True)
            for name, gradient in zip(wanted, made, strict=True):
                found[f"d{name}"] = torch.zeros_like(self.operands[name]) if gradient is None else gradient
        return {name: value.detach() for name, value in found.items()}


@functools.cache
def followed(name: str) -> Followed:
    """Follows a function of SUITE; forward alone if it has no gradient."""
    function, shapes = SUITE[name]
    generator = torch.Generator().manual_seed(1)
    given = [each(generator) if callable(each) else torch.randn(each, generator=generator) for each in shapes]
    operands = {f"x{place}": v.double() if v.is_floating_point() else v for place, v in enumerate(given)}
    smooth = [name for name, value in operands.items() if value.is_floating_point()]
    try:
        program = trace(function, operands, differentiable=smooth)
    except UsageError:  # it has none
        program = trace(function, operands)
    leaves = dict(operands)
    for leaf in program.leaves:
        if leaf.startswith("grad "):
            shape = program.results[leaf.removeprefix("grad ")].shape
            leaves[leaf] = torch.randn(shape, generator=generator).double()
    return Followed(function, operands, smooth, program, leaves)
