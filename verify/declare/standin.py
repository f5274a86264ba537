"""Puts PyTorch in the place of a kernel: the same op, parameters, operands and outputs, computed by the op's baseline.

    accuracy.py::my_gelu@eager      PyTorch eager, as most users run it today
    accuracy.py::my_gelu@compile    the same, through torch.compile

A stand-in is an ordinary kernel that is measured and never judged. Every command accepts it as a target. So a stand-in
that `verify bench` shows beside a kernel can be run and replayed by itself.
"""

import dataclasses
import functools
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from verify.declare.declaration import Kernel
from verify.declare.promises import DEFAULT_LIMIT
from verify.errors import UsageError
from verify.truth.formats import named, torch_dtype

RECOMPILATIONS = 64  # a row-wise op gets many widths; beyond torch's own limit of 8 it would silently run eagerly


def label(device: str) -> str:
    """Returns the version of PyTorch and, on a CPU, the instruction set for which it chose its code."""
    picked = "" if device != "cpu" else f" ({torch.backends.cpu.get_cpu_capability()})"
    return f"torch {torch.__version__}{picked}"


def stand_in(kernel: Kernel, form: str) -> Kernel:
    """Returns the PyTorch baseline of a kernel's op as a separate kernel."""
    if form not in _FORMS:
        text = f"a stand-in is KERNEL@{' or KERNEL@'.join(_FORMS)}; received {kernel.name}@{form}"
        raise UsageError(text, hint=f"verify run {kernel.file or kernel.module}::{kernel.name}@eager")
    make, summary, backends = _FORMS[form]
    baseline = baseline_of(kernel)
    return dataclasses.replace(
        baseline,
        name=f"{kernel.name}@{form}",
        function=make(baseline.function),
        summary=summary,
        contiguous=(),
        max_ulp=dict.fromkeys(kernel.dtypes, DEFAULT_LIMIT),
        class_limits={},
        backends=backends,
        peer=True,
        requires=(),
    )


def baseline_of(kernel: Kernel) -> Kernel:
    """Returns PyTorch's implementation of the kernel's op, for comparison: same operands, same outputs."""
    op = kernel.op
    return dataclasses.replace(
        kernel, name=f"{op.label} baseline", function=_baseline(kernel), gradients="auto", accepted=frozenset(op.params)
    )


def _baseline(kernel: Kernel) -> Callable[..., Any]:
    """Returns the op's baseline with the kernel's signature. It receives None for absent operands."""
    op, known = kernel.op, kernel.op.all_outputs
    places = [kernel.operands.index(o.name) if o.name in kernel.operands else None for o in op.operands]
    wanted = [known.index(name) for name in kernel.outputs]

    def baseline(*arguments: Tensor, **keywords: Any) -> Any:
        given, kinds = _in_one_dtype(kernel, arguments)
        # a definition may call torch.arange(n): on a GPU, beside its operands
        device = next((each.device for each in given if each is not None and not each.is_cpu), nullcontext())
        with device:
            returned = op.baseline(*[None if place is None else given[place] for place in places], **keywords)
        items = tuple(returned) if isinstance(returned, tuple | list) else (returned,)
        chosen = [items[index] for index in wanted]
        chosen = [item if kind is None else item.to(kind) for item, kind in zip(chosen, kinds, strict=True)]
        return chosen[0] if len(chosen) == 1 else tuple(chosen)

    return baseline


def _in_one_dtype(kernel: Kernel, arguments: Sequence[Tensor | None]) -> tuple[Sequence[Tensor | None], list[Any]]:
    """Returns the arguments in one dtype, and the dtypes to which the outputs are rounded.

    PyTorch's own operations take one dtype. A declaration with several gets the widest of them. PyTorch has no
    arithmetic in 8 bits, so float8 becomes float32. Numbers that follow from codes alone are float32 too. Each result
    is rounded once, as well as PyTorch can do it.
    """
    present = {name: value for name, value in zip(kernel.operands, arguments, strict=True) if value is not None}
    floating = {name: value.dtype for name, value in present.items() if value.is_floating_point()}
    for dtype in kernel.dtypes:
        mixed = kernel.mixed(dtype) or named(dtype).bits == 8 or kernel.encoded is not None
        if mixed and all(
            kind == torch_dtype(named(kernel.operand_dtype(dtype, name))) for name, kind in floating.items()
        ):
            kinds = [None if name in kernel.op.integers else kernel.torch_dtype(dtype, name) for name in kernel.outputs]
            computed = [kind for kind in (*floating.values(), *filter(None, kinds)) if kind.itemsize > 1]
            widest = functools.reduce(torch.promote_types, computed, computed[0] if computed else torch.float32)
            named_arguments = zip(kernel.operands, arguments, strict=True)
            return [present[name].to(widest) if name in floating else value for name, value in named_arguments], kinds
    return arguments, [None] * len(kernel.outputs)


def _compiled(baseline: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the compiled baseline. It compiles at the first call, so that declaring it costs nothing.

    With fullgraph, code that cannot be compiled raises. It is never measured eagerly under the wrong name.
    """
    compiled: list[Callable[..., Any]] = []

    def call(*arguments: Tensor, **keywords: Any) -> Any:
        if not compiled:
            import torch._dynamo.config
            import torch._functorch.config

            torch._dynamo.config.recompile_limit = max(torch._dynamo.config.recompile_limit, RECOMPILATIONS)
            # A timed backward pass runs many times on one graph.
            torch._functorch.config.donated_buffer = False
            compiled.append(torch.compile(baseline, fullgraph=True))
        return compiled[0](*arguments, **keywords)

    return call


# Not on the interpreter: there torch.compile makes C++ code, by another compiler than Triton.
_FORMS: dict[str, tuple[Callable[..., Any], str, tuple[str, ...]]] = {
    "eager": (lambda baseline: baseline, "PyTorch eager, for comparison.", ()),
    "compile": (_compiled, "torch.compile of PyTorch's formula, for comparison.", ("cuda", "cpu")),
}
