"""What `torch.testing.assert_close` sees of a mutant, measured: contiguous randn inputs, against PyTorch's own kernel.

The tolerances (atol, rtol) are those that kernel projects use today for a family, see README.md; where a family has
none of its own, those of the bfloat16 suite that was surveyed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from verify.backends import Backend
from verify.cases.case import case_of, inputs_of
from verify.declare.declaration import Kernel
from verify.errors import KernelError
from verify.measure.call import run_tensors
from verify.ops.geometry import ByGeometry, Shape
from verify.ops.graph.shapes import sizes_within
from verify.truth.formats import named, torch_dtype

PROJECTS = {
    "geglu": (1.0, 2e-6),
    "geglu_split": (1.0, 2e-6),
    "layer_norm": (5e-2, 5e-2),
    "layer_norm_residual": (5e-2, 5e-2),
    "rms_norm": (5e-2, 5e-2),
    "linear": (1e-1, 1e-2),
}
BFLOAT16_SUITE = (4.8e-1, 3.2e-2)
SHAPES: ByGeometry[Shape] = ByGeometry((32, 512), (32, 512), (32, 256, 64))


Verdict = Literal["caught", "missed", "rejects the twin too"]


@dataclass(frozen=True)
class Seen:
    """What assert_close says with PyTorch's default tolerances and with those of the family."""

    by_default: Verdict
    by_project: Verdict


@dataclass(frozen=True)
class _Fails:
    by_default: bool
    by_project: bool


def projects_tolerance(op: str) -> tuple[float, float]:
    return PROJECTS.get(op, BFLOAT16_SUITE)


def seen_by_assert_close(mutant: Kernel, twin: Kernel, backend: Backend) -> Seen:
    """Compare outputs and gradients with PyTorch's, for the mutant and for its twin, in each dtype.

    A tolerance that the correct twin fails as well tells nothing about the bug.
    """
    fails = [(_fails(mutant, dtype, backend.device), _fails(twin, dtype, backend.device)) for dtype in mutant.dtypes]
    return Seen(
        _verdict([(bad.by_default, good.by_default) for bad, good in fails]),
        _verdict([(bad.by_project, good.by_project) for bad, good in fails]),
    )


def _verdict(fails: Sequence[tuple[bool, bool]]) -> Verdict:
    if any(bad and not good for bad, good in fails):
        return "caught"
    return "rejects the twin too" if any(good for _, good in fails) else "missed"


def _fails(kernel: Kernel, dtype: str, device: str) -> _Fails:
    params = dict(kernel.op.resolve(kernel.params))
    generator = torch.Generator().manual_seed(0)

    def randn(shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=generator).to(torch_dtype(named(dtype))).to(device)

    op = kernel.op
    inputs: dict[str, Tensor | None]
    if op.geometry.named:  # operands of shapes, and of whole numbers, that the declaration allows
        dims = next(iter(sizes_within(op.geometry, 64)))
        inputs = inputs_of(op, case_of(kernel, dtype, dims=dims, fill="randn"), device)
    else:
        shapes = op.shapes(op.geometry.of(SHAPES), params)
        inputs = {name: randn(shapes[name]) for name in kernel.operands}
    leaves = [value.clone().requires_grad_(value.is_floating_point()) for value in inputs.values() if value is not None]
    returned = kernel.op.baseline(*leaves, **params)
    wanted = returned[0] if isinstance(returned, tuple) else returned
    dy = randn(tuple(wanted.shape))
    smooth = [leaf for leaf in leaves if leaf.requires_grad and wanted.requires_grad]
    expected = [wanted.detach(), *(torch.autograd.grad(wanted, smooth, dy) if smooth else ())]
    try:
        results = run_tensors(kernel, inputs, params, {"y": dy.clone()})
    except KernelError:
        return _Fails(True, True)
    names = [
        "y",
        *("d" + name for name in kernel.operands if (held := inputs[name]) is None or held.is_floating_point()),
    ]
    atol, rtol = projects_tolerance(kernel.op.name)
    # a kernel without gradients is compared by its output alone
    pairs = [(results[name], value) for name, value in zip(names, expected, strict=False) if name in results]
    return _Fails(
        by_default=not all(_close(got, value) for got, value in pairs),
        by_project=not all(_close(got, value, atol=atol, rtol=rtol) for got, value in pairs),
    )


def _close(got: Tensor, expected: Tensor, **tolerance: float) -> bool:
    try:
        torch.testing.assert_close(got, expected, **tolerance)
    except AssertionError:
        return False
    return True
