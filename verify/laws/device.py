"""Devices and streams: the device and the stream of a call do not change its results. Most of these laws need a GPU.

`side stream` keeps the default stream busy. A kernel that runs out of memory in `large tensors` gets no verdict.

Details:

* side stream: a call on a stream other than the default one gives the bits of the plain call.
* CUDA graph: a captured call, replayed on new values in the same memory, gives the bits of a plain call on them. The
  law does not apply to a kernel that reads a number on the host, because no graph can hold that.
* other device: operands on a GPU that is not the current one give the same bits there, and the current device does not
  change.
* large offsets: the kernel computes no offset in 32 bits that needs more. For a Triton kernel the smallest sizes at
  which one does are found by analysis of its program, on any machine, and tried if a GPU has room for them. The law of
  large tensors tries other kernels.
* large tensors: the first and the last rows of tensors of more than 2^31 elements are within the kernel's limit of the
  exact answer. The law includes gradients if the GPU has room for them. Rows of a PyTorch function are the indices of a
  named dimension that are independent of each other, as in `batch invariance`.
"""

from __future__ import annotations

import fcntl
import math
import os
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import torch
from torch import Tensor

from verify.cases import Case, inputs_of
from verify.cases.sizes import fitted_rows, sizes_of
from verify.cases.strategies import CaseSpace
from verify.errors import KernelError
from verify.laws.accuracy import broken_by
from verify.laws.composition import excuse
from verify.laws.law import Broken, BrokenBeyond, Subject, demand_same, law, plain_cases, space_of
from verify.laws.locality import Rows, data_operands, separate_rows
from verify.measure.call import Measured, Unchanged, call_tensors, gradients_of, run_baseline, run_kernel, run_tensors
from verify.measure.state import working_folder
from verify.truth.formats import named, torch_dtype

if TYPE_CHECKING:
    from verify.laws.addresses import Found

_FAR = (1 << 31) + 64  # elements
_SPARE = 1 << 30  # bytes that remain free
_BUSY = 20_000_000  # clock cycles for which the default stream is busy: about 10 ms


def _on_gpu(subject: Subject) -> str | None:
    return None if subject.backend.streams else "needs a CUDA device"


def _other_device(subject: Subject) -> str | None:
    return _on_gpu(subject) or (None if torch.cuda.device_count() > 1 else "needs a second CUDA device")


def _plain(subject: Subject, chosen: CaseSpace) -> tuple[Case, ...]:
    # these laws are about where and when a kernel runs, so one case suffices
    return chosen.each_choice()[:1]


@law("side stream", applies=_on_gpu, examples=_plain, share=0.25)
def side_stream(subject: Subject, case: Case) -> None:
    """A call on another stream gives the same bits."""
    kernel, device = subject.kernel, subject.backend.device
    expected = run_kernel(kernel, case, device).results
    stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    stream.wait_stream(torch.cuda.current_stream(device))
    # A launch on the default stream by mistake comes too late, and cannot look right by chance.
    torch.cuda._sleep(_BUSY)  # type: ignore[no-untyped-call]
    with torch.cuda.stream(stream):
        got = {name: value.clone() for name, value in run_kernel(kernel, case, device).results.items()}
    stream.synchronize()
    demand_same(case, got, expected, "another stream gives other results", labels=("side stream", "default stream"))


@law("CUDA graph", applies=_on_gpu, examples=_plain, share=0.25)
def cuda_graph(subject: Subject, case: Case) -> None:
    """A captured and replayed call gives the same bits."""
    kernel, device = subject.kernel, subject.backend.device
    inputs = inputs_of(kernel.op, case, device)
    warm = run_kernel(kernel, case, device)  # compile and tune outside of the capture
    # other numbers that the declaration allows, which zeros may not be
    still = inputs_of(kernel.op, msgspec.structs.replace(case, seed=case.seed + 1, values={}, edits={}), device)
    run_tensors(kernel, still, case.params, {})
    graph = torch.cuda.CUDAGraph()
    try:
        with warnings.catch_warnings(), torch.cuda.graph(graph):
            warnings.filterwarnings("ignore", message="The CUDA Graph is empty")  # empty tensors give an empty graph
            captured = call_tensors(kernel, still, case.params, differentiate=False).values
    except Exception as error:
        torch.cuda.synchronize(device)
        excuse(subject, case)
        raise Broken("the kernel cannot be captured in a CUDA graph", case, {"raised": str(error)}) from error
    for name, value in still.items():
        fresh = inputs[name]
        if value is not None and fresh is not None:
            value.copy_(fresh)
    graph.replay()
    torch.cuda.synchronize(device)
    expected = {name: warm.results[name] for name in captured}
    rule = "a replayed CUDA graph gives other results"
    demand_same(case, captured, expected, rule, labels=("replayed", "called"))


@law("other device", applies=_other_device, examples=_plain, share=0.25)
def other_device(subject: Subject, case: Case) -> None:
    """Operands on a device that is not the current one give the same bits."""
    kernel, here = subject.kernel, torch.device(subject.backend.device)
    current = torch.cuda.current_device()
    there = next(index for index in range(torch.cuda.device_count()) if index not in (here.index, current))
    expected = run_kernel(kernel, case, subject.backend.device).results
    got = run_kernel(kernel, case, f"cuda:{there}").results
    if torch.cuda.current_device() != current:
        raise Broken("the current device is another one after the call", case, {})
    for name, value in got.items():
        if value.device.index != there:
            facts = {"returned": f"{name} on {value.device}", "operands": f"on cuda:{there}"}
            raise Broken("a result is on another device than the operands", case, facts, result=name)
    moved = {name: value.to(here) for name, value in got.items()}
    rule = "a device that is not the current one gives other results"
    demand_same(case, moved, expected, rule, labels=(f"cuda:{there}", str(here)))


# -- large offsets -------------------------------------------------------------------------------------


def _lacking(subject: Subject, what: str, needed: int) -> str | None:
    """Returns why a law that needs this many bytes of a GPU cannot run here; None if it can."""
    if (reason := _on_gpu(subject)) is not None:
        return reason
    if subject.sizes.many_rows <= 65_535:
        return "this profile has no case of more than 2^31 elements (the nightly profile on a GPU has)"
    with _alone_on(subject.backend.device):  # another process may release its memory for such a law
        free = _free(subject)
    if free < needed:
        return f"{what} need {needed / 2**30:.0f} GiB of free GPU memory; {free / 2**30:.0f} are"
    return None


def _free(subject: Subject) -> int:
    return int(torch.cuda.mem_get_info(subject.backend.device)[0])


def _far_space(subject: Subject) -> CaseSpace:
    geometry = subject.kernel.op.geometry
    shapes = [(2, 40, 5), (2, 129, 17)] if geometry.multiplies else [(2, 40), (2, 257)]
    return space_of(subject, shapes=sizes_of(subject.kernel.op, 512)[:1] if geometry.named else shapes)


@contextmanager
def _alone_on(device: str) -> Iterator[None]:
    """Lets one process at a time use this much memory of a GPU, and releases the memory afterwards."""
    path = Path(tempfile.gettempdir()) / f"verify-{os.getuid()}-{torch.cuda.get_device_properties(device).uuid}.lock"
    handle = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        torch.cuda.empty_cache()
        os.close(handle)


def _analysed(subject: Subject) -> str | None:
    if not subject.backend.triton:
        return "only Triton kernels are analysed"
    return None if subject.sizes.addresses else "the quick profile analyses no kernel"


@law("large offsets", _far_space, applies=_analysed, examples=_plain, share=0.02)
def large_offsets(subject: Subject, case: Case) -> None:
    """No offset of a Triton kernel wraps in 32 bits."""
    from verify.laws.addresses import smallest_wraps

    if found := smallest_wraps(subject, case):
        raise _wrapping(subject, case, found)


def _wrapping(subject: Subject, case: Case, found: Sequence[Found]) -> Broken:
    """Returns the finding of sizes at which offsets wrap, after the smallest is tried if there is room."""
    wrap, geometry = found[0].wrap, subject.kernel.op.geometry
    function, operand, place = wrap.key
    usual = geometry.sizes_by_name(found[0].base)
    sizes = [geometry.sizes_by_name(each.dims).items() for each in found]
    longer = [", ".join(f"{name} = {size:,}" for name, size in each if size != usual.get(name)) for each in sizes]
    others = ", ".join(f"{name} = {size:,}" for name, size in sizes[0] if size == usual.get(name))
    tried, failed = _tried(subject, msgspec.structs.replace(case, dims=found[0].dims))
    facts = {
        "from": " or ".join(longer) + (f", with {others}" if others else ""),
        "at": f"{operand} in {function}, {place.removeprefix(f'{working_folder()}/')}",
        "offset": f"{wrap.exact:,} elements in program {list(wrap.program)}",
        "basis": tried,
    }
    rule = "an offset or a mask is computed in 32 bits and needs more"
    return BrokenBeyond(rule, case, facts, failed=failed)


_TIMES = 6  # a call at large sizes and PyTorch's take this multiple of the operands' memory, with what compares them


def _tried(subject: Subject, case: Case) -> tuple[str, bool]:
    """Returns in words what the kernel computes in a large case, and whether it raises."""
    kernel, device, chunk = subject.kernel, subject.backend.device, 1 << 26
    shapes = kernel.op.shapes(case.dims, kernel.op.resolve(case.params)).values()
    needed = _TIMES * sum(map(math.prod, shapes)) * torch_dtype(named(subject.dtype)).itemsize
    if (reason := _lacking(subject, "these sizes", needed)) is not None:
        return f"by analysis: {reason}", False
    with _alone_on(device):
        try:
            ours = run_kernel(kernel, case, device)
            theirs = run_baseline(kernel, case, device, beside=ours).results
        except KernelError as error:
            return f"tried: {error}", True
        for name, value in ours.results.items():
            pairs = zip(*(torch.split(each.reshape(-1), chunk) for each in (value, theirs[name])), strict=True)
            off = sum(int((~torch.isclose(a.float(), b.float(), 0.1, 0.1)).sum()) for a, b in pairs)
            if off:
                return f"tried: {off:,} of {value.numel():,} elements of {name} are not PyTorch's", False
    return "by analysis; tried, and the results are PyTorch's", False


# -- large tensors -------------------------------------------------------------------------------------

_BESIDE = 2  # a kernel may use this multiple of the memory of operands and results


def _memory_of_rows(subject: Subject, *, gradients: bool) -> int:
    """Returns the bytes of a call with more than 2^31 elements in every operand and result with rows."""
    kernel = subject.kernel
    tensors = len(kernel.operands if kernel.op.geometry.named else data_operands(kernel)) + len(kernel.outputs)
    each = _FAR * int(torch_dtype(named(subject.dtype)).itemsize)
    return tensors * (2 if gradients else 1) * each * _BESIDE + _SPARE


def _room_for_rows(subject: Subject) -> str | None:
    lacking = _lacking(subject, "more than 2^31 elements", _memory_of_rows(subject, gradients=False))
    if lacking is None and _many_rows(subject, _large_space(subject).each_choice()[0]) is None:
        return "no dimension of the declaration may be so long with independent indices"
    return lacking


def _many_rows(subject: Subject, case: Case) -> tuple[Rows, int] | None:
    """Returns the rows of a case, and a number of rows with more than 2^31 elements; None if none is allowed."""
    kernel, op = subject.kernel, subject.kernel.op
    shapes = {**op.shapes(case.dims, case.params), **op.result_shapes(case.dims, case.params)}
    for rows in separate_rows(kernel, case):
        few = rows.count
        widest = max(math.prod(shapes[name]) // few for name in rows.axes if name in shapes)
        count = _FAR // widest + 2 * few
        count += -count % few if kernel.where or op.geometry.named else 0  # a declaration may demand a multiple
        if rows.allowed(kernel, case, count):
            return rows, count
    return None


def _large_space(subject: Subject) -> CaseSpace:
    if subject.kernel.op.geometry.named:
        return _far_space(subject)
    # in a product, the large tensor is once the operand and once the result
    shapes = [(2, 257, 40), (2, 40, 257)] if subject.kernel.op.geometry.multiplies else [(2, 257)]
    fitting = [fitted_rows(subject.kernel, dims) for dims in shapes]
    return space_of(subject, shapes=fitting)


# gigabytes and a fifth of a second each, one at a time on a GPU
@law("large tensors", _large_space, applies=_room_for_rows, examples=plain_cases, share=0.002)
def large_tensors(subject: Subject, case: Case) -> None:
    """The ends of tensors of more than 2^31 elements are within the declared limit of the exact answer."""
    many = _many_rows(subject, case)
    if many is None:  # drawn sizes; the sizes of the fixed cases have such rows
        return
    plain = run_kernel(subject.kernel, case, subject.backend.device)
    with _alone_on(subject.backend.device):
        try:
            ends = _ends_of_large(subject, case, plain, *many)
        except KernelError as error:
            if isinstance(error.__cause__, torch.OutOfMemoryError):
                return  # the offsets of the kernel were not tested
            raise
    host = plain.to_read
    for label, results in ends.items():
        if broken := broken_by(subject, case, Measured(host.inputs, host.upstream, results)):
            rule = f"{broken.rule} in a tensor of more than 2^31 elements"
            raise broken.restated(rule, case, broken.facts | {"rows": label})


def _ends_of_large(
    subject: Subject, case: Case, plain: Measured, rows: Rows, count: int
) -> dict[str, dict[str, Tensor]]:
    """Returns the first and the last rows of results for tensors of `count` rows.

    These begin and end with the rows of the case.
    """
    kernel, few = subject.kernel, rows.count
    given = {name: value for name, value in plain.inputs.items() if value is not None and name in rows.axes}
    gradients = bool(case.upstream) and _free(subject) >= _memory_of_rows(subject, gradients=True)
    large = {name: _between_others(value, rows.axes[name], count) for name, value in given.items()}
    graph = call_tensors(kernel, plain.inputs | large, case.params, differentiate=gradients)
    results = graph.values
    if gradients:
        upstream = {name: _between_others(value, rows.axes[name], count) for name, value in plain.upstream.items()}
        results |= gradients_of(kernel, graph, upstream, unchanged=Unchanged(), originals=upstream)
    ends = {"the first": slice(few), "the last": slice(-few, None)}
    return {
        f"{label} {few} of {count:,}": {name: value.clone() for name, value in rows.local(results, part).items()}
        for label, part in ends.items()
    }


def _between_others(value: Tensor, axis: int, count: int) -> Tensor:
    """Returns a tensor of `count` rows that begins and ends with the rows of `value`.

    Zeros lie in between; copies of the first row, if the numbers are integers, which may have a range.
    """
    few = value.shape[axis]
    shape = (*value.shape[:axis], count, *value.shape[axis + 1 :])
    if value.is_floating_point():
        whole = torch.zeros(shape, dtype=value.dtype, device=value.device)
    else:
        whole = value.narrow(axis, 0, 1).expand(shape).clone(memory_format=torch.contiguous_format)
    whole.narrow(axis, 0, few).copy_(value)
    whole.narrow(axis, count - few, few).copy_(value)
    return whole


LAWS = (side_stream, cuda_graph, other_device, large_offsets, large_tensors)
