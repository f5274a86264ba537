"""Attention: laws for kernels whose program takes a softmax over products of queries and keys.

The program decides whether these laws apply; names of operands do not matter. A kernel with a special path for one
query breaks `decode equals prefill`; `--without "decode equals prefill"` omits the law.

Details:

The program must average values by that softmax. The laws compare outputs of calls without a gradient.

* causality: a key that a query does not see changes no bit of its result. The law draws the later half of the keys and
  values anew, then the earlier half. If float64 keeps the bits of an element and its gradient with respect to the new
  numbers is 0, the kernel must keep the bits too.
* decode equals prefill: the last query alone gets the same bits as among other queries. PyTorch's own sums and products
  choose their order by the sizes, so a kernel that calls them must only keep its limit.
"""

import re
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from verify.cases import Case, counter, inputs_of
from verify.cases.sizes import with_keys
from verify.cases.strategies import CaseSpace
from verify.laws.accuracy import broken_by
from verify.laws.law import Inputs, Subject, demand_same, law, plain_cases, plain_space, said_of
from verify.laws.locality import Rows, agree, growing, reference
from verify.measure.call import Measured, run_kernel, run_tensors
from verify.ops.graph.shapes import NamedDims
from verify.ops.op import Op, ScorePart

_LENGTHS = (5, 33, 129)


def _space(subject: Subject) -> CaseSpace:
    return plain_space(subject, with_keys(subject.kernel.op, _LENGTHS, others=4, features=64))


def _parts(op: Op) -> dict[str, tuple[str, ScorePart]]:
    """Maps each role to the operand that has it."""
    return {part.role: (name, part) for name, part in (op.scores or {}).items()}


def _dimension(op: Op, role: str) -> str:
    """Returns the name of the dimension that counts queries or keys; "" if a declaration gives a number."""
    name, part = _parts(op)[role]
    assert isinstance(op.geometry, NamedDims)
    found = op.geometry.table[name][part.tokens]
    return found if isinstance(found, str) else ""


def _forward(subject: Subject, case: Case) -> Measured:
    """Returns the outputs of a case. No operand requires a gradient."""
    return run_kernel(subject.kernel, msgspec.structs.replace(case, upstream=""), subject.backend.device)


def _reason(subject: Subject) -> str | None:
    """Returns why no law of this module applies; None if they apply."""
    if "value" not in _parts(subject.kernel.op):
        return f"{said_of(subject)} averages no values by a softmax over products of two operands"
    if not with_keys(subject.kernel.op, _LENGTHS[:1]):
        return "the declaration names no dimension that counts keys"
    return None


# -- causality -----------------------------------------------------------------------------------------


def _redrawn(op: Op, case: Case, half: slice, device: str) -> Inputs:
    """Returns the operands of a case with some keys and values drawn anew."""
    given = inputs_of(op, case, device)
    anew = inputs_of(op, msgspec.structs.replace(case, seed=case.seed + 1), device)
    for name, part in (op.scores or {}).items():
        held, other = given[name], anew[name]
        if part.role != "query" and held is not None and other is not None:
            place = (slice(None),) * part.tokens + (half,)
            given[name] = changed = held.clone()
            changed[place] = other[place]
    return given


def _halves(op: Op, case: Case) -> dict[str, slice]:
    count = case.dims[op.geometry.dims.index(_dimension(op, "key"))]
    return {"later": slice((count + 1) // 2, count), "earlier": slice(0, count // 2)}


def _kept(op: Op, case: Case, half: slice) -> dict[str, Tensor]:
    """Maps outputs to masks of the elements that some keys do not reach: same bits in float64, and a gradient of 0.

    A weight that float64 rounds to zero keeps the bits, but not the gradient. The masks are then empty.
    """
    given = inputs_of(op, case, "cpu")
    before, after = reference(op, given), reference(op, _redrawn(op, case, half, "cpu"))
    kept = {name: (before[name] == after[name]) for name in op.outputs}
    wide = {name: v.double() if v is not None and v.is_floating_point() else v for name, v in given.items()}
    names = [name for name, part in (op.scores or {}).items() if part.role != "query"]
    leaves = [wide[name].requires_grad_(True) for name in names]  # type: ignore[union-attr]
    made = op.baseline(*wide.values(), **op.resolve({}))
    outputs = dict(zip(op.outputs, made if isinstance(made, tuple | list) else (made,), strict=True))
    total = sum(
        (counter.uniform(1, f"kept/{name}", value.numel()).reshape(value.shape) * value.where(kept[name], 0.0)).sum()
        for name, value in outputs.items()
        if value.requires_grad
    )
    gradients = torch.autograd.grad(total, leaves, allow_unused=True) if isinstance(total, Tensor) else ()
    for name, gradient in zip(names, gradients, strict=False):
        place = (slice(None),) * (op.scores or {})[name].tokens + (half,)
        if gradient is not None and bool((gradient[place] != 0).any()):
            return {name: torch.zeros_like(value) for name, value in kept.items()}
    return kept


def _is_masked(subject: Subject) -> str | None:
    if (reason := _reason(subject)) is not None:
        return reason
    op, case = subject.kernel.op, plain_cases(subject, _space(subject))[0]
    kept = (mask for half in _halves(op, case).values() for mask in _kept(op, case, half).values())
    return None if any(bool(mask.any()) for mask in kept) else "every query sees every key"


@law("causality", _space, applies=_is_masked, examples=plain_cases, share=0.5)
def causality(subject: Subject, case: Case) -> None:
    """A key that a query does not see changes no bit of its result."""
    op, device = subject.kernel.op, subject.backend.device
    whole = _forward(subject, case)
    for label, half in _halves(op, case).items():
        kept = {name: mask.to(device) for name, mask in _kept(op, case, half).items()}
        if not any(bool(mask.any()) for mask in kept.values()):
            continue
        changed = run_tensors(subject.kernel, _redrawn(op, case, half, device), case.params, {})
        expected = {name: whole.results[name] for name in kept}
        got = {name: torch.where(kept[name], changed[name], value) for name, value in expected.items()}
        rule = "a result depends on keys that its query does not see"
        demand_same(case, got, expected, rule, labels=(f"{label} keys drawn anew", "as drawn"))


# -- decode equals prefill -------------------------------------------------------------------------------


def _queries(op: Op, case: Case) -> Rows | None:
    """Returns the axes of queries in operands and outputs; None if an output has none or if keys count with queries."""
    dimension, geometry = _dimension(op, "query"), op.geometry
    if not dimension or dimension == _dimension(op, "key"):
        return None
    assert isinstance(geometry, NamedDims)
    axes = {name: shape.index(dimension) for name, shape in geometry.table.items() if dimension in shape}
    place = geometry.dims.index(dimension)
    larger = (*case.dims[:place], case.dims[place] + 1, *case.dims[place + 1 :])
    if not (geometry.allows(larger) and geometry.allows((*case.dims[:place], 1, *case.dims[place + 1 :]))):
        return None
    longer = growing(op, case, dimension)
    if any(len(longer.get(name, ())) != 1 for name in op.outputs):
        return None
    return Rows(axes | {name: next(iter(longer[name])) for name in op.outputs}, case.dims[place], dimension)


def _is_alone(subject: Subject) -> str | None:
    if (reason := _reason(subject)) is not None:
        return reason
    op, case, last = subject.kernel.op, plain_cases(subject, _space(subject))[0], slice(-1, None)
    rows = _queries(op, case)
    if rows is None or rows.count < 2:
        return "the declaration does not allow one query alone with as many keys"
    given = inputs_of(op, case, "cpu")
    whole, alone = reference(op, given), reference(op, rows.pick(given, {}, last)[0])
    same = agree(alone, {name: rows.of(name, value, last) for name, value in whole.items()})
    return None if same else "the last query alone has another result than among others"


_ADDING = re.compile(r"mm|mv$|dot|sum|mean|softmax|attention|conv|norm|var|index_add|scatter")


class _Sums(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Records whether PyTorch's own operators add numbers during a call."""

    found: bool = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func.namespace == "aten" and _ADDING.search(func._schema.name):
            self.found = True
        return func(*args, **(kwargs or {}))


@law("decode equals prefill", _space, applies=_is_alone, examples=plain_cases, share=0.5, nearest=True)
def decode_equals_prefill(subject: Subject, case: Case) -> None:
    """The last query alone has the bits that it has among others."""
    kernel, op = subject.kernel, subject.kernel.op
    rows = _queries(op, case)
    if rows is None:
        return
    whole = _forward(subject, case)
    last = slice(rows.count - 1, rows.count)
    inputs, _ = rows.pick(whole.inputs, {}, last)
    alone = run_tensors(kernel, inputs, case.params, {})
    expected = {name: rows.of(name, whole.results[name], last).contiguous() for name in op.outputs}

    def within() -> bool:
        with _Sums() as sums:  # type: ignore[no-untyped-call]
            run_tensors(kernel, inputs, case.params, {})
        return sums.found and not broken_by(subject, case, Measured(inputs, {}, alone))

    rule = "the last query alone has other bits than among others"
    demand_same(case, alone, expected, rule, labels=("alone", f"among {rows.count}"), excused=within)


LAWS = (causality, decode_equals_prefill)
