"""Error contract: a call with invalid operands raises a Python error and changes nothing.

The law tries integers, an operand that is one element too long or too short, an odd packed dimension, and an operand
on another device (`meta`). Each must raise an exception with a message and change no operand. A call may succeed if
its result is right: PyTorch's own function may accept the operand too.

Details:

An operand is longer or shorter in its last dimension. The device `meta` has no memory. These calls may succeed:

* A kernel with a single operand may accept a `meta` tensor, which asks for shapes. The result must then have no memory
  either.
* A kernel may accept integers if every result is within its limit of the exact answer. A result that is rounded to an
  integer is not.
* A PyTorch function may accept longer or shorter operands, for example in the last dimension of a product, if the
  results are right.
* An operand on another device is accepted if PyTorch's own function accepts it, as `torch.bmm` does.

Operands lie between guard bands, so a kernel that accepts invalid operands reads harmless memory.
"""

import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from verify.cases import Case, inputs_of
from verify.cases.case import derive_all
from verify.cases.sizes import shapes_for
from verify.errors import KernelError, UsageError
from verify.laws.accuracy import judge_known, known
from verify.laws.guard import NUMBER_FILL, Guard
from verify.laws.law import Broken, Inputs, Subject, demand_same, law, plain_cases, plain_space
from verify.measure.call import Measured, call_tensors, copies, sent_all
from verify.ops.geometry import alike
from verify.ops.graph.shapes import NamedDims, Range

_DIMS = alike((2, 5, 3), (4, 16, 8), (1, 33, 5))
OF_INT64 = "of int64"
_ALL_DERIVED = "the kernel receives nothing but what is derived from other operands"
Change = Callable[[Tensor], Tensor]
Mistake = tuple[str, str, Change]  # the error, the operand, and the change that makes it


def _longer(tensor: Tensor) -> Tensor:
    return torch.cat([tensor, tensor[..., :1]], -1)


def _shorter(tensor: Tensor) -> Tensor:
    return tensor[..., :-1].contiguous()


def _elsewhere(tensor: Tensor) -> Tensor:
    return tensor.to("meta")


def _seen(subject: Subject) -> list[str]:
    """Lists the operands of which a call may have another value: no derived ones, and none that no kernel receives."""
    unseen = [each.name for each in subject.kernel.op.operands if each.derive is not None or each.hidden]
    return [name for name in subject.kernel.operands if name not in unseen]


def _mistakes(subject: Subject) -> list[Mistake]:
    """Returns the changes that make operands which no kernel of this op can accept."""
    kernel = subject.kernel
    first, *others = _seen(subject)
    found: list[Mistake] = []
    if not any(operand.name == first and operand.range for operand in kernel.op.operands):
        found.append((OF_INT64, first, lambda tensor: tensor.float().to(torch.int64)))
    for name in others:
        found += [
            ("one element longer than it must be", name, _longer),
            ("one element shorter than it must be", name, _shorter),
            ("on another device", name, _elsewhere),
        ]
    if kernel.op.geometry.packed:
        found.append(("of an odd last dimension", first, _shorter))
    return found


@law(
    "error contract",
    lambda subject: plain_space(subject, shapes_for(subject.kernel, _DIMS, 512)),
    applies=lambda subject: None if _seen(subject) else _ALL_DERIVED,
    examples=plain_cases,
    of_draws=True,
    share=0.25,
)
def error_contract(subject: Subject, case: Case) -> None:
    """Invalid operands raise an error with a message, and nothing else happens."""
    kernel, device = subject.kernel, subject.backend.device
    good = inputs_of(kernel.op, case, device, shared=True)
    before = _values(subject, case, good)
    made = [(mistake, _with_mistake(subject, case, good, mistake)) for mistake in _mistakes(subject)]
    mistakes = [(mistake, given) for mistake, given in made if given is not None]

    def refused(wrong: Sequence[tuple[Mistake, Inputs]]) -> Guard:
        guard = Guard(NUMBER_FILL)
        held = {name: None if v is None else guard.embed(v, f"operand {name}", device) for name, v in good.items()}
        for mistake, given in wrong:
            changed = {name: v for name, v in given.items() if v is not good[name]}
            _refused(subject, case, guard, held, changed, mistake)
        return guard

    guard = refused(mistakes)
    if guard.damage():  # one check covers all mistakes; if it fails, each is checked alone
        for mistake in mistakes:
            _demand_untouched(case, refused([mistake]), _told(mistake[0]))
        _demand_untouched(case, guard, "one of those that were refused")
    after = _values(subject, case, good)
    rule = "a good call gives other bits after a refused one"
    demand_same(case, after, before, rule, labels=("after", "before"))
    if len(kernel.operands) == 1:
        _shapes_only(subject, case, good)


def _values(subject: Subject, case: Case, good: Inputs) -> dict[str, Tensor]:
    inputs = sent_all(good, subject.backend.device)
    return copies(call_tensors(subject.kernel, inputs, case.params, differentiate=False).values)


class LaunchedOnNothing(RuntimeError):
    """Reports that a compiled kernel would have been launched on a tensor without memory.

    The message names the kernel.
    """


def _no_launch_without_memory() -> AbstractContextManager[Any]:
    """Stops a compiled Triton kernel before it dereferences the null pointer of a tensor without memory.

    Such an illegal access makes the GPU unusable for the process, and all other tests would fail.
    """
    if "triton" not in sys.modules:  # without triton no kernel is launched
        return nullcontext()
    from triton.runtime.jit import JITFunction

    original = JITFunction.run

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if any(isinstance(value, Tensor) and value.is_meta for value in (*args, *kwargs.values())):
            raise LaunchedOnNothing(f"Triton kernel {self.fn.__name__}")
        return original(self, *args, **kwargs)

    return mock.patch.object(JITFunction, "run", run)


def _with_mistake(subject: Subject, case: Case, good: Inputs, mistake: Mistake) -> Inputs | None:
    """Returns the operands with one of the wrong form.

    A position beyond an operand that is too short would stop a GPU, and no declaration allows it. So it returns None if
    the numbers of an integer operand would be others for the wrong size, or if the operand has no length to change.
    """
    op, (_, name, change) = subject.kernel.op, mistake
    given, value = dict(good), good[name]
    if value is not None and not value.ndim and change in (_longer, _shorter):
        return None
    given[name] = None if value is None else change(value)
    geometry, token = op.geometry, ""
    if isinstance(geometry, NamedDims) and change in (_longer, _shorter) and geometry.table.get(name):
        token = str(geometry.table[name][-1])
    if token not in geometry.dims:
        return given
    place = geometry.dims.index(token)
    changed = (*case.dims[:place], case.dims[place] + (1 if change is _longer else -1), *case.dims[place + 1 :])
    for operand in op.operands:
        held, span = good[operand.name], operand.range
        if held is None or not isinstance(span, Range) or operand.derive is not None or operand.boolean:
            continue
        own = bool(span.structure) and operand.name == name  # a permutation with one position more is none
        if own or span(changed) != span(case.dims) or not torch.equal(span.arranged(held, changed), held):
            return None
    integers = any(each.name == name and each.range is not None for each in op.operands)
    with suppress(UsageError):  # lengths of one sequence more give other shapes; derived operands remain
        return derive_all(op, case, given, subject.backend.device) if op.derived and integers else given
    return given


def _refused(subject: Subject, case: Case, guard: Guard, held: Inputs, changed: Inputs, mistake: Mistake) -> None:
    """Makes one call with some operands changed. The others are `held`. The guard has all memory of this call."""
    wrong, _, change = mistake
    device = subject.backend.device
    inputs = held | {
        name: None if v is None else guard.embed(v, f"operand {name}", v.device if v.is_meta else device)
        for name, v in changed.items()
    }
    rule, facts = "an invalid operand is accepted", {"operand": _told(mistake)}
    try:
        with guard, _no_launch_without_memory():
            returned = call_tensors(subject.kernel, inputs, case.params, differentiate=False).values
    except KernelError as error:
        cause = error.__cause__
        if isinstance(cause, LaunchedOnNothing):
            facts["launched"] = str(cause)
        elif cause is None:  # the kernel returned an invalid result
            facts["returned"] = str(error)
        elif str(cause).strip():
            return
        else:
            rule, facts["raised"] = "an operand is refused without a message", type(cause).__name__
    else:
        sized = subject.kernel.op.geometry.named and change in (_longer, _shorter)
        if (wrong == OF_INT64 or sized) and _right(subject, case, inputs, returned):
            return
        if subject.kernel.op.geometry.named and change is _elsewhere and _of_pytorch(subject, inputs) is not None:
            return
        facts["returned"] = ", ".join(f"{key} {v.dtype} {list(v.shape)}" for key, v in returned.items())
    raise Broken(rule, case, facts)


def _of_pytorch(subject: Subject, inputs: Inputs) -> dict[str, Any] | None:
    """Returns what PyTorch's own function returns for these operands, by name; None if it refuses them."""
    op = subject.kernel.op
    try:
        made = op.baseline(*inputs.values())
    except Exception:
        return None
    return dict(zip(op.all_outputs, made if isinstance(made, tuple | list) else (made,), strict=False))


def _right(subject: Subject, case: Case, inputs: Inputs, returned: dict[str, Tensor]) -> bool:
    """True if results of changed operands are within the kernel's limit of the exact answer."""
    whole = [operand.name for operand in subject.kernel.op.operands if operand.range is not None]
    given, results = (
        {
            name: value if value is None or value.is_floating_point() or name in whole else value.double()
            for name, value in tensors.items()
        }
        for tensors in (inputs, returned)
    )
    try:
        made = {name: value for name, value in results.items() if value is not None}
        judged = known(subject, case, Measured(given, {}, made))
        shapes = {name: rules.truth.value.shape for name, rules in judged.rules.items()}
        if len(shapes) < len(judged.results):  # a result without elements has no truth; its shape must be PyTorch's
            made = _of_pytorch(subject, inputs) or {}
            shapes |= {name: value.shape for name, value in made.items() if not value.numel()}
        if {name: value.shape for name, value in judged.results.items()} != shapes:
            return False
        if judged.rules:
            judge_known(subject, case, judged)
    except (Broken, UsageError):
        return False
    return True


def _told(mistake: Mistake) -> str:
    wrong, name, _ = mistake
    return f"{name} {wrong}"


def _demand_untouched(case: Case, guard: Guard, operand: str) -> None:
    found = [line for line in guard.damage() if line.startswith("operand")]
    if found:
        facts = {"operand": operand, "written": found[0]}
        raise Broken("an operand is changed by a call that was refused", case, facts)


def _shapes_only(subject: Subject, case: Case, good: Inputs) -> None:
    """Calls a kernel of one operand with a tensor without memory, and checks that the results have none either."""
    inputs = {name: None if value is None else value.to("meta") for name, value in good.items()}
    try:
        with _no_launch_without_memory():
            returned = call_tensors(subject.kernel, inputs, case.params, differentiate=False).values
    except KernelError as error:
        if isinstance(error.__cause__, LaunchedOnNothing):
            facts = {"launched": str(error.__cause__)}
            raise Broken("a kernel is launched on a tensor without memory", case, facts) from None
        if error.__cause__ is not None and str(error.__cause__).strip():
            return
        raise Broken("a tensor without memory is refused without a message", case, {}) from None
    for name, value in returned.items():
        if not value.is_meta:
            facts = {"returned": f"{name} on {value.device}"}
            raise Broken("a tensor without memory gives a result with memory", case, facts, result=name)


LAWS = (error_contract,)
