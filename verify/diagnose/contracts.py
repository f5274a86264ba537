"""Finds where a layer and a kernel round their numbers, from the bits of their results alone: `verify.contract`.

    found = verify.contract(layer, kernel, (x, w))
    print(found)

The layer's program has finitely many places to round (`places.py`). A contract gives each place a format. The search
starts with nothing rounded, with what PyTorch rounds in the layer, and with everything rounded. It then changes the
format of one place after the other, as long as the predicted bits come closer to the kernel's, and tries pairs of near
places, and other forms of the program, where single changes help no more. A contract is confirmed on inputs of other
recipes, and what they refute joins the search. At last each rounding that explains nothing is taken back.
"""

from __future__ import annotations

import inspect
import itertools
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, cast

import msgspec
import torch
from torch import Tensor, fx

from verify.backends import Backend
from verify.cases.case import Case, inputs_of
from verify.cases.classes import class_of_recipe
from verify.cases.plan import plan
from verify.declare.declaration import Kernel
from verify.declare.discovery import imported
from verify.declare.target import Target
from verify.diagnose.forms import forms_of
from verify.diagnose.places import EXACT, Contract, Program, Rounded, trace
from verify.diagnose.requests import ContractReport, FoundContract
from verify.errors import UsageError
from verify.records.record import ORDINARY
from verify.truth.formats import named as named_format
from verify.truth.ulp import bits_of

_FAR = 8  # bits that differ by more units in the last place count as this many
_ENOUGH = 1 << 13  # elements that a search looks at, if the inputs have as many
_MOST_SETS = 64
_REFUTING = 4  # times as many inputs may refute a contract
_FORMS = 3  # forms of the program that are searched if its own explains too little
_GOOD = 1e-3  # of the elements may be a unit in the last place off: exp, erf and tanh differ by library
_NEXT = 3  # of them, the best after single changes, whose pairs are changed
_STARTS = 6  # contracts that a search begins with
_FIRST = 2  # inputs that a search begins with
_EVALUATIONS = 4_000  # of a search, after which it keeps the best so far
_ROUNDS = 6  # times that refuting inputs join the search
_NARROW = ("bfloat16", "float16")


def contract(
    layer: Callable[..., Any], kernel: Callable[..., Any], inputs: Sequence[Tensor], *, gradients: bool = False
) -> ContractReport:
    """Finds where a PyTorch layer and a kernel round, and where they part.

        print(verify.contract(layer, kernel, (x, w)))

    layer: the PyTorch function or module, whose program is searched for both.
    kernel: what is compared with it: a function of the same tensors with as many results.
    inputs: tensors in the shapes and dtypes of interest, 16,384 elements or more for a sure answer.
    gradients: True compares the gradients of floating-point inputs in place of the results. The upstream gradients
        become further operands, dy or dy1, dy2.

    The printed program, given to `like=`, predicts the kernel's bits: `unseen` says how many, on inputs of other
    recipes. Float32 results of exp, erf and tanh differ by library, so fewer are equal.
    """
    inputs = tuple(inputs)
    if not inputs or not all(isinstance(each, Tensor) for each in inputs):
        raise UsageError(
            f"inputs are the tensors that the layer takes; received {inputs!r}",
            hint="verify.contract(layer, kernel, (x, w))",
        )
    traced, call = layer, getattr(kernel, "function", kernel)
    names: tuple[str, ...] = ()
    results = _results(layer, inputs)
    if len(results) != (count := len(_results(call, inputs))):
        raise UsageError(
            f"a kernel has the results of its layer; the layer returns {len(results)}, the kernel {count}",
            hint="a lambda that returns the same tensors in the same order",
        )
    if gradients:
        count = len(inputs)
        upstream = ["dy"] if len(results) == 1 else [f"dy{at}" for at in range(1, len(results) + 1)]
        names = (*_names_of(layer, count), *upstream)
        traced, layer, call = _traced_gradients(layer, count), _gradients(layer, count), _gradients(call, count)
        generator = torch.Generator().manual_seed(0)
        inputs += tuple(torch.randn(each.shape, generator=generator).to(each) for each in results)
    program = trace(traced, inputs, names)
    own = found_by(program, traced, layer, inputs)
    theirs = found_by(program, traced, call, inputs)
    tried = [inputs, *(each for kind in _SEEDS for each in _sets(inputs, 2, kind))]
    pairs = ((each, _results(layer, each), _results(call, each)) for each in tried)
    shown = next(filter(None, (_shown(program, *pair) for pair in pairs)), "")
    return ContractReport(own, theirs, not shown, _first(own, theirs) if shown else "", shown)


def _names_of(layer: Callable[..., Any], count: int) -> list[str]:
    """Returns the names of the arguments of a layer."""
    called = layer.forward if isinstance(layer, torch.nn.Module) else layer
    with suppress(TypeError, ValueError):
        if len(names := list(inspect.signature(called).parameters)) >= count:
            return names[:count]
    return [f"x{at}" for at in range(1, count + 1)]


def _traced_gradients(layer: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Returns the gradients of a layer as a function that PyTorch can trace."""

    def pulled(*given: Tensor) -> list[Tensor]:
        smooth = [at for at in range(count) if given[at].is_floating_point()]

        def called(*some: Tensor) -> Any:
            values = dict(zip(smooth, some, strict=True))
            return layer(*(values.get(at, given[at]) for at in range(count)))

        made, pull = torch.func.vjp(called, *(given[at] for at in smooth))
        upstream = given[count:]
        return list(pull(upstream[0] if isinstance(made, Tensor) else tuple(upstream)))

    return pulled


def _gradients(function: Callable[..., Any], count: int) -> Callable[..., Any]:
    """Returns the gradients of a function by autograd, which may call a kernel's own."""

    def pulled(*given: Tensor) -> list[Tensor]:
        with torch.enable_grad():
            values = [each.detach().requires_grad_(each.is_floating_point()) for each in given[:count]]
            returned = function(*values)
        made = [returned] if isinstance(returned, Tensor) else list(returned)
        if not all(each.requires_grad for each in made):
            raise UsageError("gradients are compared, and a result has none", hint="compare results: no gradients")
        wanted = [each for each in values if each.requires_grad]
        return list(torch.autograd.grad(made, wanted, list(given[count:]), materialize_grads=True))

    return pulled


def case_of_size(kernel: Kernel, dtype: str, backend: Backend) -> Case:
    """Returns an ordinary case of about 4,096 elements, in the first dtype of 16 bits by default."""
    dtype = dtype or next((each for each in kernel.dtypes if named_format(each).bits <= 16), kernel.dtypes[0])
    groups = plan(kernel, dtype, backend.name, 0)
    cases = [case for group in groups for case in group.cases if class_of_recipe(case.regime or case.fill) == ORDINARY]
    if not cases:
        raise UsageError(f"kernel {kernel.name!r} has no ordinary case in {dtype}")

    def far(case: Case) -> float:
        shapes = kernel.op.shapes(case.dims, kernel.op.resolve(case.params))
        return abs(math.log2(max(map(math.prod, shapes.values()), default=0) + 1) - 12)

    return min(cases, key=far)


def contract_of_target(
    kernel: Kernel, layer: str, backend: Backend, dtype: str, gradients: bool = False
) -> ContractReport:
    """Finds the contracts of a layer, given by name, and of a declared kernel, on an ordinary case of about 4,096
    elements.
    """
    given = inputs_of(kernel.op, case_of_size(kernel, dtype, backend), backend.device)
    inputs = [value for name in kernel.operands if (value := given[name]) is not None]
    return contract(_layer(kernel, layer), kernel.function, inputs, gradients=gradients)


def _layer(kernel: Kernel, text: str) -> Callable[..., Any]:
    """Returns the layer of a command: the definition of the kernel for "like", FILE::NAME, or a dotted name."""
    callee = getattr(kernel.op.meaning, "callee", None)
    if text == "like" and callee is not None:
        return callee.function  # type: ignore[no-any-return]
    source, _, name = text.rpartition("::" if "::" in text else ".")
    found = getattr(imported(Target.parse(source)), name, None) if source else None
    found = getattr(found, "function", found)  # of a declared kernel
    if not callable(found):
        raise UsageError(
            f"a layer is a PyTorch function or module: FILE.py::NAME, a dotted name, or like for the kernel's own "
            f"definition; received {text!r}",
            hint="verify contract torch.nn.functional.silu accuracy.py::my_silu",
        )
    return cast(Callable[..., Any], found)


def found_by(
    program: Program, layer: Callable[..., Any], function: Callable[..., Any], inputs: Sequence[Tensor]
) -> FoundContract:
    """Returns the contract of a function, in the form of the program that predicts the most bits."""
    size = sum(value.numel() for value in _results(function, inputs))
    count = min(_MOST_SETS, -(-_ENOUGH // max(size, 1)))
    sets = {kind: list(_sets(inputs, count * (_REFUTING if kind == "others" else 1), kind)) for kind in _SEEDS}
    sets["search"].insert(0, tuple(inputs))
    known, others, unseen = ([(x, [*map(_Got, _results(function, x))]) for x in some] for some in sets.values())
    searched = partial(_searched, known=known, others=others, unseen=unseen)
    best = searched(program, before=None)
    if min(best.known, best.unseen) < 1 - _GOOD:  # another form of the program: those that begin nearest
        forms = [(form, other) for form, other in forms_of(program, layer, inputs) if form]
        least = [min(_Search(other, known).off(start) for start in _starts(other, best)) for _, other in forms]
        spent = best.evaluations + _STARTS * len(forms)
        for at in sorted(range(len(forms)), key=least.__getitem__)[:_FORMS]:
            form, other = forms[at]
            found = msgspec.structs.replace(searched(other, before=best), form=form)
            spent += found.evaluations
            best = found if found.known + found.unseen > best.known + best.unseen else best
            if min(best.known, best.unseen) >= 1 - _GOOD:
                break
        best = msgspec.structs.replace(best, evaluations=spent)
    return best


Known = list[tuple[tuple[Tensor, ...], list["_Got"]]]  # inputs with the results of a function


def _searched(
    program: Program, *, known: Known, others: Known, unseen: Known, before: FoundContract | None
) -> FoundContract:
    """Searches for the contract of one form of the program.

    Those of the `others` that refute it join the search. `unseen` inputs never do.
    """
    starts, rest = _starts(program, before), [*known[_FIRST:], *others]
    search = _Search(program, known[:_FIRST])
    formats = search.best(starts)
    for _ in range(_ROUNDS):
        wrong = [pair for pair in rest if search.off(formats, [pair]) > 0]
        fresh = [pair for pair in wrong if all(pair is not each for each in search.known)]
        if not fresh:
            break
        stuck = search.off(formats) > search.good and len(search.known) < len(known)
        more = known if stuck else [*search.known, fresh[0]]
        search = _Search(program, more, search.evaluations)
        formats = search.best([formats, *starts])
    formats = search.smallest(formats, [*known, *others])
    decided = [*search.known[:2], *others[:2]]
    least = search.off(formats, decided)
    undecided = []
    for place, kind in search.choices():
        if formats.get(place, program.usual) != kind and search.off({**formats, place: kind}, decided) == least:
            undecided.append(f"{program.words(place)} in {kind}")
    own = {place: kind for place, kind in formats.items() if kind != program.usual}
    return FoundContract(
        like=program.text(own),
        formats=own,
        places={place: program.words(place) for place in program.places},
        usual=program.usual,
        known=_share(program, own, known),
        unseen=_share(program, own, unseen),
        elements=sum(got.value.numel() for _, results in unseen for got in results),
        evaluations=search.evaluations,
        undecided=undecided,
    )


def _starts(program: Program, before: FoundContract | None) -> list[dict[str, str]]:
    """Returns the contracts that a search begins with."""
    places, drawn = program.places, random.Random(0)
    kind = next((kind for kind in program.stored.values()), program.narrow)
    made = [{}, dict(program.stored), dict.fromkeys(places, kind)]
    if before is not None:
        kept = {place: kind for place, kind in before.formats.items() if place in places}
        made = [
            kept,
            {place: kept.get(place, kind) for place in places if place not in before.places} | kept,
            *made,
        ]
    while len(made) < _STARTS:
        made.append({place: kind for place in places if drawn.random() < 0.5})
    return made


@dataclass(frozen=True)
class _Held:
    """Holds the values of a contract on all inputs of a search, and how far its bits are off."""

    formats: dict[str, str]
    values: list[Rounded]
    off: float


class _Search:
    """Looks for the formats of a program's places that predict known results."""

    def __init__(self, program: Program, known: Known, evaluations: int = 0) -> None:
        self.program, self.known, self.evaluations = program, known, evaluations

    def choices(self) -> Iterator[tuple[str, str]]:
        """Yields each place with each format that it may have."""
        wide = any(got.value.dtype == torch.float32 for _, results in self.known for got in results)
        for place in self.program.places:
            for kind in (self.program.usual, *self.program.kinds):
                yield place, kind
            if wide and place in self.program.contracted:
                yield place, EXACT

    def off(self, formats: Contract, known: Known | None = None) -> float:
        """Returns how far the predicted bits are off, on average; 0 if all are equal."""
        chosen = self.known if known is None else known
        return sum(_off(Rounded(self.program, inputs, formats), results) for inputs, results in chosen)

    def best(self, starts: Sequence[Contract]) -> dict[str, str]:
        """Returns the best contract: that of the best start, improved by changes of one place, then of two."""
        held = sorted((self._held(start) for start in starts), key=lambda each: each.off)
        for at, each in enumerate(held):
            if held[0].off <= self.good:
                break
            held[at] = self._descended(each, self._singles)
        held.sort(key=lambda each: each.off)
        enough = self.good if self.program.differs_by_library else 0.0
        best = self._descended(held[0], self._singles) if 0 < held[0].off <= self.good else held[0]
        for each in (best, *held[1:_NEXT]):
            paired = each
            while min(best.off, paired.off) > enough:
                before, paired = paired.off, self._descended(paired, self._pairs)
                if paired.off >= before:
                    break
                paired = self._descended(paired, self._singles)
            best = min(best, paired, key=lambda one: one.off)
        return best.formats

    @cached_property
    def good(self) -> float:
        """The distance that other functions of a library make: a unit in the last place of few elements."""
        return _GOOD * sum(got.value.numel() for _, results in self.known for got in results)

    def _held(self, formats: Contract) -> _Held:
        self.evaluations += 1
        values = [Rounded(self.program, inputs, formats) for inputs, _ in self.known]
        off = sum(_off(one, results) for one, (_, results) in zip(values, self.known, strict=True))
        return _Held(dict(formats), values, off)

    def _descended(self, held: _Held, flips_of: Callable[[], Iterable[dict[str, str]]]) -> _Held:
        """Takes each change that brings the bits closer, until none does."""
        before = math.inf
        while 0 < held.off < before:
            before = held.off
            for flips in flips_of():
                if self.evaluations >= _EVALUATIONS:
                    return held
                if any(held.formats.get(place, self.program.usual) != kind for place, kind in flips.items()):
                    held = self._nearer(held, flips)
        return held

    def _nearer(self, held: _Held, flips: Contract) -> _Held:
        """Returns the better of a contract and the same with other formats at some places."""
        self.evaluations += 1
        made, total = [], 0.0
        for one, (_, results) in zip(held.values, self.known, strict=True):
            made.append(one.changed(flips))
            total += _off(made[-1], results)
            if not total < held.off:
                return held
        return _Held({**held.formats, **flips}, made, total)

    def _singles(self) -> Iterator[dict[str, str]]:
        return ({place: kind} for place, kind in self.choices())

    def _pairs(self) -> Iterator[dict[str, str]]:
        """Yields changes of two places, of which one takes the other's numbers or both reach the same step."""
        near: set[tuple[str, str]] = set()
        places = set(self.program.places)
        for node in self.program.nodes:
            family = [*_taken(node, places), *([node.name] if node.name in places else [])]
            near |= {(a, b) for a, b in itertools.combinations(family, 2) if a != b}
        for a, b in sorted(near):
            for one, other in itertools.product((self.program.usual, self.program.narrow), repeat=2):
                yield {a: one, b: other}

    def smallest(self, formats: Contract, every: Known) -> dict[str, str]:
        """Takes back each rounding that explains nothing on any of the inputs."""
        kept, usual = dict(formats), self.program.usual
        least, whole = self.off(kept), self.off(kept, every)
        for place in reversed(self.program.places):
            if kept.get(place, usual) != usual:
                without = {**kept, place: usual}
                self.evaluations += 1
                if self.off(without) <= least and self.off(without, every) <= whole:
                    kept = without
        return {place: kind for place, kind in kept.items() if kind != usual}


def _taken(node: fx.Node, places: set[str]) -> list[str]:
    """Returns the places whose numbers reach a node without another place between."""
    found: list[str] = []
    ahead = list(node.all_input_nodes)
    while ahead:
        each = ahead.pop()
        if each.name in places:
            found.append(each.name)
        else:
            ahead += each.all_input_nodes
    return found


# -- bits --------------------------------------------------------------------------------------------------


def _results(function: Callable[..., Any], inputs: Sequence[Tensor]) -> list[Tensor]:
    """Returns the results of a function on copies of the inputs."""
    with torch.no_grad():
        returned = function(*(each.clone() for each in inputs))
    items = list(returned) if isinstance(returned, list | tuple) else [returned]
    return [each.detach() for each in items if isinstance(each, Tensor) and each.is_floating_point()]


def _ordinals(value: Tensor) -> Tensor:
    """Returns the places of numbers in the order of their format."""
    bits, sign = bits_of(value.reshape(-1)), 1 << (8 * value.element_size() - 1)
    return torch.where(bits >= sign, sign - bits, bits)


class _Got:
    """Holds a result of a function, and what each comparison with a prediction asks of it."""

    def __init__(self, value: Tensor) -> None:
        self.value, self.ordinals, self.nan = value, _ordinals(value), value.float().isnan().reshape(-1)

    def apart(self, predicted: Tensor) -> Tensor:
        """Returns by how many units in the last place the prediction of each element is off."""
        made = predicted.float().to(self.value.dtype)
        far = (_ordinals(made) - self.ordinals).abs_().clamp_(max=_FAR).double()
        return far.masked_fill_(made.float().isnan().reshape(-1) & self.nan, 0.0)


def _off(made: Rounded, results: Sequence[_Got]) -> float:
    return sum(float(got.apart(one).sum()) for one, got in zip(made.outputs(), results, strict=True))


def _share(program: Program, formats: Contract, known: Known) -> float:
    """Returns the share of elements whose bits are predicted."""
    made = ((Rounded(program, inputs, formats).outputs(), results) for inputs, results in known)
    equal = [got.apart(one) == 0 for pair in made for one, got in zip(*pair, strict=True)]
    return sum(int(each.sum()) for each in equal) / max(sum(map(torch.numel, equal)), 1)


# -- inputs ------------------------------------------------------------------------------------------------

_SEEDS = {"search": 0, "others": 1000, "unseen": 2000}  # the others refute a contract, the unseen ones only count
_SEARCH: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda z: z,  # normal
    lambda z: z * torch.exp2((z * 977).frac() * 6),  # of any size
)
_OTHERS: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda z: z * 8,
    lambda z: z.abs() + 0.01,
    lambda z: z + 3,  # far from zero
    lambda z: z * 0.03,
)


def _sets(inputs: Sequence[Tensor], count: int, kind: str) -> Iterator[tuple[Tensor, ...]]:
    """Yields inputs of the same shapes and dtypes: floating-point operands by the recipes, others as they are."""
    recipes = _SEARCH if kind == "search" else _OTHERS
    size = max(each.numel() for each in inputs)
    for at in range(max(len(recipes), count)):
        generator = torch.Generator().manual_seed(_SEEDS[kind] + at)
        made = []
        for each in inputs:
            drawn = torch.randn(each.shape, generator=generator, dtype=torch.float64)
            drawn = recipes[at % len(recipes)](drawn) if each.numel() == size else drawn
            made.append(drawn.to(each.dtype).to(each.device) if each.is_floating_point() else each)
        yield tuple(made)


# -- what is shown -----------------------------------------------------------------------------------------


def _first(own: FoundContract, theirs: FoundContract) -> str:
    """Returns the first place where two contracts differ, in words."""
    if own.form != theirs.form:
        return f"the form of the program: {theirs.form or own.form}"
    for place, words in own.places.items():
        a, b = (each.formats.get(place, each.usual) for each in (own, theirs))
        if a != b:
            return f"{words}: the layer keeps it in {a}, the kernel in {b}"
    return ""


def _shown(program: Program, inputs: Sequence[Tensor], own: Sequence[Tensor], theirs: Sequence[Tensor]) -> str:
    """Returns the element with the largest difference, with the operands that lie at its place."""
    for one, other in zip(own, theirs, strict=True):
        if one.shape != other.shape or one.dtype != other.dtype:
            return f"the layer returns {tuple(one.shape)} {one.dtype}, the kernel {tuple(other.shape)} {other.dtype}"
        apart = (_ordinals(one) - _ordinals(other)).abs()
        if not bool(apart.any()):
            continue
        flat = int(apart.argmax())
        place = [int(each) for each in torch.unravel_index(torch.tensor(flat), one.shape)]
        given = []
        for node, value in zip(program.operands, inputs, strict=True):
            if tuple(one.shape[one.ndim - value.ndim :]) == tuple(value.shape):
                at = tuple(place[one.ndim - value.ndim :])
                given.append(f"{node.name.removesuffix('_1')} = {float(value[at]):.6g}")
        count = int((apart > 0).sum())
        results = [float(each.reshape(-1)[flat]) for each in (one, other)]
        return (
            f"at {place}, {', '.join(given)}: the layer has {results[0]:.6g}, the kernel {results[1]:.6g}; "
            f"{count:,} of {one.numel():,} results differ"
        )
    return ""
