"""Composition: the kernel also works with other parts of PyTorch.

`compiled` uses the backend "aot_eager", which traces the kernel and changes nothing else. `autocast` tries float16
and bfloat16. A kernel may cast its operands to float32 instead, or be about as accurate as PyTorch's function under
autocast.

Details:

* compiled: under `torch.compile`, outputs and gradients have the bits of the plain call. The law does not apply to a
  kernel that fails there and reads a number on the host.
* autocast: inside `torch.autocast`, to float16 and to bfloat16, a call gives one of three results, including gradients,
  to the bit: the result outside autocast, the result for operands cast to the autocast dtype, or the result for
  operands cast to float32. PyTorch's own functions need not: autocast casts operators one by one, so the products of
  an attention are in bfloat16 and its softmax is in float32. So results may also be about as close to PyTorch's in
  float64 as PyTorch's own function under autocast comes.
"""

from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import replace
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from verify.backends.interpreter.install import untraced
from verify.cases import Case, inputs_of, upstream_of
from verify.cases.sizes import another, shapes_for
from verify.cases.strategies import CaseSpace
from verify.declare.declaration import Kernel
from verify.declare.standin import baseline_of
from verify.errors import KernelError
from verify.laws.law import Broken, NotApplicable, Subject, demand_same, law, plain_case, plain_cases, plain_space
from verify.measure.call import call_tensors, gradients_of, run_kernel
from verify.ops.geometry import ByGeometry, Shapes
from verify.truth.formats import named, torch_dtype

# operators whose result, or its shape, the host knows only after it has waited for the numbers
_READING = ("_local_scalar_dense", "nonzero", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "equal")


class _Reads(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes the first operator that reads numbers on the host."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.first = ""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        name = func._schema.name.partition("::")[2]
        moved = name == "_to_copy" and isinstance(result, Tensor) and result.is_cpu and not args[0].is_cpu
        self.first = self.first or (name if name in _READING or moved else "")
        return result


def excuse(subject: Subject, case: Case) -> None:
    """Raises NotApplicable if the kernel reads a number on the host in a case, such as `lengths.max().item()`.

    Neither a CUDA graph nor a whole program of torch.compile can hold such a kernel, and no declaration promises it.
    """
    inputs = inputs_of(subject.kernel.op, case, subject.backend.device)
    with suppress(KernelError), torch.no_grad(), _Reads() as seen:
        call_tensors(subject.kernel, inputs, case.params, differentiate=False)
    if seen.first:
        raise NotApplicable(f"not applicable: the kernel reads a number on the host ({seen.first})")


_FARTHER = 8.0  # another order of the same operators may round the scores of an attention where PyTorch's does not
_DIMS: ByGeometry[Shapes] = ByGeometry(
    elementwise=((2, 5), (33,), (3, 4, 5)),
    rowwise=((2, 5), (3, 33), (2, 3, 7)),
    contraction=((2, 5, 3), (4, 33, 8), (3, 7, 5)),
)


def _space(subject: Subject) -> CaseSpace:
    return plain_space(subject, shapes_for(subject.kernel, _DIMS, 512))


def _one(subject: Subject, chosen: CaseSpace) -> tuple[Case, ...]:
    return (plain_case(subject, chosen.shapes[0]),)  # one case, as each takes seconds


# -- torch.compile -------------------------------------------------------------------------------------


# The program that was compiled last: the kernel, the structure of its cases, and the compiled kernel. Cases with other
# values share it, because compiling takes seconds.
_last: list[tuple[Kernel, Case, Kernel]] = []


def _program(kernel: Kernel, case: Case) -> Kernel:
    """Returns the kernel under `torch.compile`. The program has only seen cases of this structure."""
    structure = msgspec.structs.replace(case, seed=0, values={}, edits={})
    if not _last or _last[0][:2] != (kernel, structure):
        _forget()
        _last.append((kernel, structure, replace(kernel, function=torch.compile(kernel.function, backend="aot_eager"))))
    return _last[0][2]


def _forget() -> None:
    """Drops the program. Programs of other cases must neither help nor use up the recompile limit."""
    _last.clear()
    torch._dynamo.reset()


@law("compiled", _space, examples=_one, share=0.02)
def compiled(subject: Subject, case: Case) -> None:
    """`torch.compile` gives the bits of the plain call."""
    kernel, device = subject.kernel, subject.backend.device
    program = _program(kernel, case)
    # elements that a case spells out fit its own shape only
    larger = msgspec.structs.replace(case, dims=another(kernel, case.dims), values={}, edits={})
    refilled = msgspec.structs.replace(case, seed=case.seed + 1, values={}, edits={})
    tried = ((case, "the first"), (larger, "another shape"), (refilled, "other values in the first shape"))
    try:
        for each, call in tried:
            expected = run_kernel(kernel, each, device).results
            try:
                with untraced() if subject.backend.triton == "interpreted" else nullcontext():
                    got = run_kernel(program, each, device).results
            except KernelError as error:
                excuse(subject, each)
                raise Broken("the kernel fails under torch.compile", case, {"raised": str(error)}) from error
            rule = "torch.compile changes the results"
            facts = {"dims": str(list(each.dims)), "call": call}
            demand_same(case, got, expected, rule, labels=("compiled", "eager"), facts=facts)
    except BaseException:
        _forget()  # a program after a failure cannot be trusted
        raise


# -- autocast ------------------------------------------------------------------------------------------


def _with(kernel: Kernel, prepare: Callable[[Tensor], Tensor]) -> Kernel:
    """Returns the kernel with each operand prepared inside the graph, so that gradients have the operand's dtype."""

    def function(*operands: Any, **keywords: Any) -> Any:
        prepared = (prepare(each) if each is not None and each.is_floating_point() else each for each in operands)
        return kernel.function(*prepared, **keywords)

    return replace(kernel, function=function)


def _results(kernel: Any, subject: Subject, case: Case, autocast: torch.dtype | None) -> dict[str, Tensor]:
    """Returns outputs and gradients of one call, inside autocast to a dtype or (None) outside."""
    inputs = inputs_of(subject.kernel.op, case, subject.backend.device)
    kind = torch.device(subject.backend.device).type
    with torch.autocast(kind, dtype=autocast or torch.bfloat16, enabled=autocast is not None):
        graph = call_tensors(kernel, inputs, case.params, differentiate=bool(case.upstream))
    own = {name: subject.kernel.result_dtype(case.dtype, name) or case.dtype for name in graph.values}
    outputs = {name: value.to(torch_dtype(named(own[name]))) for name, value in graph.values.items()}
    upstream = upstream_of(subject.kernel.op, case, outputs)
    arriving = {name: value.to(graph.outputs[name].dtype) for name, value in upstream.items()}
    return graph.values | gradients_of(kernel, graph, arriving)


@law(
    "autocast",
    _space,
    applies=lambda subject: "autocast leaves float64 alone" if subject.dtype == "float64" else None,
    examples=plain_cases,
    share=0.25,
)
def autocast(subject: Subject, case: Case) -> None:
    """Autocast gives the plain result, or the result for operands that are cast throughout.

    Compares calls under autocast with the three allowed results, then their error with PyTorch's.
    """
    rule = "autocast gives neither the plain result nor that of operands cast throughout, nor one as close as PyTorch's"
    for dtype in (torch.bfloat16, torch.float16):
        if dtype == torch_dtype(named(subject.dtype)):
            continue
        got = _results(subject.kernel, subject, case, dtype)
        closest: Broken | None = None
        for prepare in (lambda x: x, lambda x, to=dtype: x.to(to), lambda x: x.float()):
            try:
                expected = _results(_with(subject.kernel, prepare), subject, case, None)
                labels, facts = ("under autocast", "without"), {"autocast": str(dtype)}
                demand_same(case, got, expected, rule, labels=labels, facts=facts)
            except Broken as broken:
                closest = closest or broken
            except KernelError:
                continue  # the kernel may refuse the other dtypes
            else:
                closest = None
                break
        if closest is not None and not _is_as_close(subject, case, got, dtype):
            raise closest


def _is_as_close(subject: Subject, case: Case, got: dict[str, Tensor], dtype: torch.dtype) -> bool:
    """True if results are at most `_FARTHER` times as far from float64 as PyTorch's own under autocast.

    False for an elementwise op: autocast casts products and reductions.
    """
    definition = baseline_of(subject.kernel)
    if subject.kernel.op.geometry.by_element:
        return False
    try:
        theirs = _results(definition, subject, case, dtype)
        exact = _results(_with(definition, lambda x: x.double()), subject, case, None)
    except KernelError:  # some of PyTorch's functions refuse autocast
        return False

    def error(of: dict[str, Tensor], name: str) -> float:
        got, wanted = of[name].double(), exact[name].double()
        return float(torch.where(got == wanted, 0.0, (got - wanted).abs()).max()) if got.numel() else 0.0

    return got.keys() == theirs.keys() and all(error(got, name) <= _FARTHER * error(theirs, name) for name in got)


LAWS = (compiled, autocast)
