"""Shrinks a case that breaks to a small one that breaks in the same way.

Hypothesis could shrink its own draws (shapes, recipes, layouts), but no elements. So it only draws, and this module
makes every case smaller. It takes the elements of the operands. Delta debugging removes rows and columns. Then ones and
zeros replace the remaining elements. Each step is kept only if the case still breaks in the same way: by the same rule,
in the same result, with the same kind of wrong value, and by a comparable error. The result spells out its bits, so it
replays anywhere. Every candidate is tried, so the returned case was seen to break. The search is deterministic. A
number of evaluations limits it, not a time, so two machines find the same case.

Zeller and Hildebrandt, "Simplifying and isolating failure-inducing input", IEEE TSE 28 (2002).
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import product
from typing import Any

import msgspec
import torch
from torch import Tensor

from verify.cases import Case, inputs_of, upstream_of
from verify.cases.case import LIMIT, spell
from verify.declare.declaration import Kernel
from verify.errors import KernelError, TruthError, UsageError
from verify.laws.accuracy import broken_by
from verify.laws.law import Broken, Excess, Law, Subject
from verify.measure.call import Measured, run_kernel
from verify.ops.op import Op
from verify.truth import formats
from verify.truth.ulp import bits_of, from_bits, widen

Breaks = Callable[[Case], Broken | None]
EVALUATIONS = 400  # limit for a user who requests a smaller case
LAW_EVALUATIONS = 120  # limit for every law that breaks in a suite
EDITS = 4096  # a case spells out at most this many single elements besides a tensor of ones
_FINEST, _COARSE = 32, 4  # parts that are removed, at most: elements may have to keep their positions
_LARGEST = 1 << 13  # sizes beyond are not halved: their calls and exact values are expensive


def shrink_law(law: Law, subject: Subject, broken: Broken) -> Broken:
    """Returns how the smallest case found breaks a law, in the same way as `broken`; `broken` if no case is smaller.

    The facts include from which sizes on the kernel is wrong, and which other results of the call are right.
    """
    found = shrink_broken(law, subject, broken).broken
    found.facts |= _extent(subject, broken, _breaks(law, subject))
    return found


def shrink_broken(law: Law, subject: Subject, broken: Broken, *, evaluations: int = LAW_EVALUATIONS) -> Shrinker:
    """Does the same as `shrink_law`, and returns the number of evaluations too."""
    return Shrinker(subject.kernel, broken, _breaks(law, subject), evaluations).shrink()


def _breaks(law: Law, subject: Subject) -> Breaks:
    """Returns a function that tries a law on a case, and returns how it breaks; None if it holds."""

    def breaks(case: Case) -> Broken | None:
        try:
            law.check(subject, case)
        except Broken as found:
            return found
        except KernelError as error:
            return Broken(str(error), case, {})
        return None

    return breaks


def shrink_element(
    subject: Subject, case: Case, result: str, index: int, error: float, *, evaluations: int = EVALUATIONS
) -> Shrinker:
    """Returns the smallest case found whose `result` exceeds the kernel's limit, as element `index` does in `case`.

    `error` is the judged error of that element in ULP, or in ULP of scale if the op is judged by the scale.
    """
    kernel, limit = subject.kernel, subject.kernel.limit(subject.dtype, result)
    if abs(error) <= limit:
        raise UsageError(
            f"only a result beyond its limit can be made smaller; {result} at index {index} is {abs(error):.6g} ULP "
            f"off, the limit of {kernel.name} is {limit:g}"
        )

    def breaks(candidate: Case) -> Broken | None:
        measured = run_kernel(kernel, candidate, subject.backend.device)
        if result not in measured.results:
            return None
        alone = Measured(measured.inputs, measured.upstream, {result: measured.results[result]})
        return broken_by(subject, candidate, alone)

    given = Broken("", case, {}, result=result, index=index, excess=Excess(error, limit))
    return Shrinker(kernel, given, breaks, evaluations, trusted=True).shrink()


# -- what "in the same way" means ----------------------------------------------------------------------


def _rule(broken: Broken) -> str:
    """Returns the rule without the numbers that a smaller case changes."""
    return re.sub(r"[-+(\[]*\d[\d.,+\-e()\[\] ]*", "#", broken.rule)


def _alike(found: Broken, first: Broken) -> bool:
    """True if this is the same failure as the first one, and not a smaller one found during the search.

    Its error reaches at least half the way, in digits, from the limit to the first one's.
    """
    if found.result != first.result or (first.rule and _rule(found) != _rule(first)):
        return False
    now, was = (None if each.excess is None else abs(each.excess.error) for each in (found, first))
    if now is None or not math.isfinite(now):
        return (now is None) == (was is None or math.isfinite(was))
    if was is None or first.excess is None:
        return True
    return math.isfinite(was) and now >= math.sqrt(was) * math.sqrt(first.excess.limit)


# -- a case with its elements at hand ------------------------------------------------------------------


@dataclass(frozen=True)
class _Draft:
    """Holds a case whose elements are tensors: operands by name, upstream gradients as "d" + output."""

    base: Case
    tensors: dict[str, Tensor]
    ones: frozenset[str]  # tensors whose recipe can be all ones: only a few of their elements need to be spelled out

    def case(self) -> Case | None:
        """Returns the case that spells out these elements; None if it is too long to paste."""
        values: dict[str, str] = {}
        edits: dict[str, dict[str, str]] = {}
        for name, tensor in self.tensors.items():
            digits, bits = tensor.element_size() * 2, bits_of(tensor.reshape(-1))
            places = torch.nonzero(bits != bits_of(torch.ones(1).to(tensor.dtype))).reshape(-1).tolist()
            if name in self.ones and len(places) <= EDITS and len(places) * (digits + 9) <= tensor.numel() * digits:
                text = spell(tensor.reshape(-1)[places])
                cut = [text[at : at + digits] for at in range(0, len(text), digits)]
                edits |= {name: dict(zip(map(str, places), cut, strict=True))} if places else {}
            elif tensor.numel() > LIMIT:
                return None
            else:
                values[name] = spell(tensor)
        upstream = "ones" if self.base.upstream else ""
        return msgspec.structs.replace(self.base, fill="ones", upstream=upstream, values=values, edits=edits, regime="")


class _SpentError(Exception):
    """Reports that no evaluations remain."""


@dataclass
class Shrinker:
    """Searches for a smaller case. `case` is the smallest one so far that breaks in the same way, as `broken` says."""

    kernel: Kernel
    given: Broken
    breaks: Breaks
    limit: int
    trusted: bool = False  # True: the caller has seen the given case break
    evaluations: int = 0
    exhausted: bool = False  # True: the evaluations ran out before the search ended
    tried: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.op: Op = self.kernel.op
        self.case: Case = self.given.case
        self.broken: Broken = self.given
        self.draft: _Draft | None = None
        self.followed: dict[int, dict[str, list[tuple[int, int] | None]]] = {}  # by the number of dimensions

    def shrink(self) -> Shrinker:
        """Runs the search."""
        try:
            if self.trusted or self._accepts(self.case):
                self._smaller()
        except _SpentError:
            self.exhausted = True
        return self

    # -- trying

    def _accepts(self, case: Case) -> bool:
        """True if a candidate breaks in the same way. It is then the best so far."""
        text = case.to_json()
        if text in self.tried or not self.kernel.allows(case.dims):
            return False
        if self.evaluations >= self.limit:
            raise _SpentError
        self.tried.add(text)
        self.evaluations += 1
        try:
            found = self.breaks(case)
        except TruthError:
            raise
        except Exception:  # a candidate may not be a valid case at all
            return False
        if found is None or not _alike(found, self.given):
            return False
        self.case, self.broken = case, found
        return True

    def _takes(self, draft: _Draft) -> bool:
        case = draft.case()
        if case is None or not self._accepts(case):
            return False
        self.draft = draft
        return True

    # -- structure

    def _plainer(self) -> None:
        """Tries contiguous layouts, default parameters, one dtype, no gradients and seed 0, one after the other."""
        named = [(where, name) for where in ("layouts", "dtypes", "params") for name in getattr(self.case, where)]
        outputs = self.kernel.outputs
        changes: list[Callable[[Case], Case]] = [
            partial(_without, [each]) for each in named if each[0] != "params" or each[1] not in self.kernel.params
        ]
        if self.case.upstream and self.given.result in outputs:
            ways = list(product(("values", "edits", "layouts"), ["d" + name for name in outputs]))
            changes.append(partial(_without, ways, upstream=""))
        changes.append(partial(_without, [], seed=0))
        for change in changes:
            changed = change(self.case)
            if changed != self.case and self._accepts(changed) and self.draft is not None:
                kept = {n: t for n, t in self.draft.tensors.items() if changed.upstream or n in self.kernel.operands}
                self.draft = replace(self.draft, base=changed, tensors=kept)

    def _smaller(self) -> None:
        """Makes the case smaller: the failing element alone, then fewer positions, then plainer values."""
        self._jump(self._frozen(self.case))
        if self.draft is None:
            self._plainer()
            whole = self._frozen(self.case)
            self._jump(whole)
            if self.draft is None and not self._takes(whole):
                self._fewer_by_recipe()
                return
        self._merge()
        before, thorough = None, False  # cheap and likely steps first, because evaluations are few
        while before != self.case or not thorough:
            before, thorough = self.case, before is not None
            for dim in range(len(self.case.dims)) if not self.op.geometry.examples else ():
                self._cut(dim, thorough=thorough)
            for name in [name for name, value in self._required().tensors.items() if value.is_floating_point()]:
                self._simplify(name)
        self._plainer()

    def _required(self) -> _Draft:
        assert self.draft is not None
        return self.draft

    def _frozen(self, case: Case) -> _Draft:
        """Returns the case with the elements of its tensors."""
        inputs = inputs_of(self.op, case, "cpu")
        derived = [operand.name for operand in self.op.derived]  # each case computes these again
        tensors = {n: value.contiguous() for n, value in inputs.items() if value is not None and n not in derived}
        upstream = upstream_of(self.op, case, self._outputs(case)) if case.upstream else {}
        tensors |= {"d" + name: value.contiguous() for name, value in upstream.items()}
        roles = {operand.name: operand.role for operand in self.op.operands}
        apart = self.op.domains  # 1 may lie outside of a domain
        ones = frozenset(name for name in tensors if roles.get(name, "data") == "data" and name not in apart)
        return _Draft(case, tensors, ones)

    def _outputs(self, case: Case) -> dict[str, Tensor]:
        """Returns tensors with the form of the outputs.

        The kernel is not called for them, as it may write out of bounds.
        """
        own, shapes = formats.torch_dtype(formats.named(case.dtype)), self._shapes(case, case.dims)
        smooth = [name for name in self.kernel.outputs if name not in self.op.integers]
        dtypes = {name: self.kernel.torch_dtype(case.dtype, name) or own for name in smooth}
        return {name: torch.zeros(shapes["d" + name], dtype=dtypes[name]) for name in smooth}

    def _shapes(self, case: Case, dims: tuple[int, ...]) -> dict[str, tuple[int, ...]]:
        return self.op.shapes_with_outputs(dims, self.op.resolve(case.params), self.kernel.outputs)

    def _axes(self, case: Case) -> dict[str, list[tuple[int, int] | None]]:
        """Maps each axis of every tensor to the dimension of the case that it follows, and its multiple of that size.

        An axis follows a dimension if tripling the dimension triples the axis.
        """
        if found := self.followed.get(len(case.dims)):  # shapes of a PyTorch function take a trace each
            return found
        before = self._shapes(case, case.dims)
        found = {name: [None] * len(shape) for name, shape in before.items()}
        for dim, size in enumerate(case.dims) if not self.op.geometry.examples else ():
            try:
                after = self._shapes(case, (*case.dims[:dim], 3 * size, *case.dims[dim + 1 :]))
            except UsageError:
                continue
            for name, shape in before.items():
                for axis, own in enumerate(shape):
                    if size and after[name][axis] == 3 * own and own % size == 0:
                        found[name][axis] = dim, own // size
        self.followed[len(case.dims)] = found
        return found

    def _place(self) -> dict[int, int]:
        """Returns the position of the failing element in the dims, as far as it is known."""
        result, index, case = self.broken.result, self.broken.index, self.broken.case
        if not result or index is None or not case.dims:
            return {}
        name = "d" + result if result in self.kernel.outputs else result[1:]
        shapes, axes = self._shapes(case, case.dims), self._axes(case)
        if name not in axes:
            return {}
        place: dict[int, int] = {}
        for axis, size in zip(reversed(axes[name]), reversed(shapes[name]), strict=True):
            index, at = divmod(index, size)
            if axis is not None:
                place[axis[0]] = at % case.dims[axis[0]]
        return place

    def _kept(self, draft: _Draft, keep: dict[int, Sequence[int]]) -> _Draft:
        """Returns the draft with only some positions of some dimensions."""
        dims = tuple(len(keep[d]) if d in keep else size for d, size in enumerate(draft.base.dims))
        tensors = dict(draft.tensors)
        for name, axes in self._axes(draft.base).items():
            if name not in tensors:
                continue
            for axis, (dim, factor) in ((at, each) for at, each in enumerate(axes) if each and each[0] in keep):
                size = draft.base.dims[dim]
                chosen = [part * size + place for part in range(factor) for place in keep[dim]]
                tensors[name] = _select(tensors[name], axis, chosen)
        for operand in self.op.operands:  # whole numbers that are positions in a dimension change with it
            if operand.range is None or operand.name not in tensors or operand.boolean:
                continue
            if operand.range.structure:
                tensors[operand.name] = operand.range.arranged(tensors[operand.name], dims)
            else:
                for dim, places in keep.items():
                    if operand.range(draft.base.dims) == (0, size := draft.base.dims[dim]):
                        after = torch.zeros(size, dtype=torch.int64)
                        after[list(places)] = torch.arange(len(places))
                        tensors[operand.name] = after[tensors[operand.name]]
        return replace(draft, base=msgspec.structs.replace(draft.base, dims=dims), tensors=tensors)

    def _jump(self, whole: _Draft) -> None:
        """Tries only the failing element, or its row or column. For most kernels, this is the smallest case."""
        place = self._place()
        choices: list[dict[int, Sequence[int]]] = [{dim: [at] for dim, at in place.items()}] if place else []
        choices += [{dim: [at]} for dim, at in place.items() if len(place) > 1]
        for keep in choices:
            is_less = any(len(chosen) < whole.base.dims[dim] for dim, chosen in keep.items())
            if is_less and self._takes(self._kept(whole, keep)):
                return

    def _merge(self) -> None:
        """Merges many dimensions to two, or to one for elementwise ops."""
        draft = self._required()
        for dims in self.op.geometry.merged(draft.base.dims):
            shapes = self._shapes(draft.base, dims)
            if all(math.prod(shapes[name]) == tensor.numel() for name, tensor in draft.tensors.items()):
                tensors = {name: tensor.reshape(shapes[name]) for name, tensor in draft.tensors.items()}
                base = msgspec.structs.replace(draft.base, dims=dims)
                if self._takes(replace(draft, base=base, tensors=tensors)):
                    return

    def _cut(self, dim: int, *, thorough: bool) -> None:
        """Tries fewer positions of one dimension.

        Removes those behind the failing element first, then some at both ends, then any.
        """
        place = self._place().get(dim)
        if place is not None and place + 1 < self.case.dims[dim]:
            self._takes(self._kept(self._required(), {dim: range(place + 1)}))
        draft = self._required()

        def keeps(kept: Sequence[int]) -> bool:
            return bool(kept) and self._takes(self._kept(draft, {dim: kept}))

        kept = list(range(draft.base.dims[dim]))
        for back in (True, False):
            kept = _trim(kept, keeps, back=back)
        _minimise(kept, keeps, finest=_FINEST if thorough else _COARSE)

    def _fewer_by_recipe(self) -> None:
        """Tries smaller dims with the recipe's own values, for a case that is too large to spell out."""
        for dim in range(len(self.case.dims)) if not self.op.geometry.examples else ():
            size = 1
            while size < self.case.dims[dim]:
                dims = (*self.case.dims[:dim], size, *self.case.dims[dim + 1 :])
                if self._accepts(msgspec.structs.replace(self.case, dims=dims)):
                    break
                size *= 2

    # -- values

    def _simplify(self, name: str) -> None:
        """Replaces as many elements as possible by zeros and ones."""
        for number in (1.0, 0.0):  # ones need not be spelled out
            draft = self._required()
            wide = widen(draft.tensors[name].reshape(-1))
            left = torch.nonzero((wide != 0) & (wide != 1)).reshape(-1).tolist()

            def keeps(kept: Sequence[int], draft: _Draft = draft, number: float = number, left: Any = left) -> bool:
                changed = _filled(draft.tensors[name], number, sorted({*left} - {*kept}))
                return self._takes(replace(draft, tensors={**draft.tensors, name: changed}))

            if left:
                _minimise(left, keeps)


def _minimise(items: Sequence[int], attempt: Callable[[list[int]], bool], *, finest: int = LIMIT) -> list[int]:
    """Returns a subset of `items` that passes `attempt` and from which no part can be removed (delta debugging).

    Each part is at least one `finest`-th of the items.
    """
    kept = list(items)
    if len(kept) > 1 and attempt([]):
        return []
    parts = 2
    while len(kept) > 1:
        size = -(-len(kept) // parts)
        chunks = [kept[at : at + size] for at in range(0, len(kept), size)]
        smaller = next((chunk for chunk in chunks if attempt(chunk)), None)
        if smaller is not None:
            kept, parts = smaller, 2
            continue
        rests = ([item for item in kept if item not in set(chunk)] for chunk in chunks if len(chunks) > 2)
        smaller = next((rest for rest in rests if attempt(rest)), None)
        if smaller is not None:
            kept, parts = smaller, max(parts - 1, 2)
        elif parts >= min(len(kept), finest):
            break
        else:
            parts = min(2 * parts, len(kept), finest)
    if len(kept) == 1 and attempt([]):
        return []
    return kept


def _trim(items: list[int], attempt: Callable[[list[int]], bool], *, back: bool) -> list[int]:
    """Removes from one end of `items` as many as pass `attempt`, in steps that are halved."""
    step = len(items) // 2
    while step:
        rest = items[:-step] if back else items[step:]
        if len(rest) < len(items) and attempt(rest):
            items = rest
        else:
            step //= 2
    return items


def _filled(tensor: Tensor, number: float, places: Sequence[int]) -> Tensor:
    """Returns the tensor with one number at some flat places. It sets bits, because float8 has no arithmetic."""
    fmt = formats.of(tensor.dtype)
    bits = bits_of(tensor).reshape(-1).clone()
    bits[torch.tensor(list(places), dtype=torch.int64)] = fmt.from_float(number)
    return from_bits(bits, fmt).reshape(tensor.shape)


def _select(tensor: Tensor, axis: int, places: Sequence[int]) -> Tensor:
    """Returns some positions of one axis."""
    at = torch.tensor(list(places), dtype=torch.int64)
    if not tensor.is_floating_point():
        return tensor.index_select(axis, at)
    return from_bits(bits_of(tensor).index_select(axis, at), formats.of(tensor.dtype))


def _without(settings: Sequence[tuple[str, str]], case: Case, **changes: Any) -> Case:
    """Returns the case without some settings, given as a field and a name in it, and with other changes."""
    for where, name in settings:
        changes[where] = {key: v for key, v in changes.get(where, getattr(case, where)).items() if key != name}
    return msgspec.structs.replace(case, **changes)


# -- where a kernel is wrong: from which size on, and which results of the call are right ----------------


def _extent(subject: Subject, broken: Broken, breaks: Breaks) -> dict[str, str]:
    """Returns facts about the case of a result beyond its limit. `breaks` tries another case.

    Halving finds the size of each dimension: `wrong from s = 129 on, right up to 128, as far as tried`. The other sizes
    are those of the case that broke, so only some sizes are tried.
    """
    if broken.excess is None or not broken.result:
        return {}
    facts, case = {}, broken.case
    if not case.values and not case.edits:
        found = [_first_wrong(subject, broken, place, breaks) for place in range(len(case.dims))]
        if any(found):
            facts["sizes"] = "; ".join(filter(None, found))
    if others := _right(subject, broken):
        facts["right"] = f"{', '.join(others)} of the same call"
    return facts


def _first_wrong(subject: Subject, broken: Broken, place: int, breaks: Breaks) -> str:
    """Returns the smallest wrong size of a dimension beside a right one; "" if every smaller size is wrong too."""
    kernel, case, size = subject.kernel, broken.case, broken.case.dims[place]
    names = kernel.op.geometry.dims
    if size < 3 or size > _LARGEST or kernel.op.geometry.examples or place >= len(names):
        return ""

    def sized(number: int) -> tuple[int, ...]:
        return (*case.dims[:place], number, *case.dims[place + 1 :])

    def wrong(number: int) -> bool:
        try:
            found = breaks(msgspec.structs.replace(case, dims=sized(number)))
        except (KernelError, TruthError, UsageError):
            return True  # neither right nor comparable
        return found is not None and found.result == broken.result

    sizes = [number for number in range(1, size + 1) if kernel.allows(sized(number))]
    low, high = 0, len(sizes) - 1
    if not sizes or wrong(sizes[low]):
        return ""
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if wrong(sizes[middle]) else (middle, high)
    return f"wrong from {names[place]} = {sizes[high]:,} on, right up to {sizes[low]:,}, as far as tried"


def _right(subject: Subject, broken: Broken) -> list[str]:
    """Returns the other results of the call that are within the limit."""
    try:
        measured = run_kernel(subject.kernel, broken.case, subject.backend.device)
        alone = {name: Measured(measured.inputs, measured.upstream, {name: v}) for name, v in measured.results.items()}
        return [n for n, one in alone.items() if n != broken.result and broken_by(subject, broken.case, one) is None]
    except (KernelError, TruthError, UsageError):
        return []
