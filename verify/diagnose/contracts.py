"""Finds where a layer and a kernel round their numbers, from the bits of their results alone: `verify.contract`.

    found = verify.contract(layer, kernel, (x, w))
    print(found)

The layer's program has finitely many places to round (`places.py`). A contract gives each place a format. The search
starts with nothing rounded, with what PyTorch rounds in the layer, and with everything rounded. It then changes formats
of single places as long as the predicted bits come closer to the kernel's, and of two or three near places, and takes
other forms of the program, where single changes help no more. Inputs of other recipes that refute a contract join the
search, and so do inputs chosen to tell it from its rivals, which predict the same bits of all others. At last each
rounding that explains nothing is taken back.
"""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain, combinations, count, islice, product
from typing import Any, cast

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
from verify.diagnose.places import Contract, Program, Rounded, trace
from verify.diagnose.requests import ContractReport, FoundContract
from verify.errors import UsageError
from verify.records.record import ORDINARY
from verify.truth.formats import named as named_format
from verify.truth.ulp import bits_of

_ENOUGH = 1 << 13  # elements that a search looks at, if the inputs have as many
_MOST_SETS = 64
_REFUTING = 4  # times as many inputs may refute a contract
_JOIN = 2  # sets of inputs that refute a contract join the search at once
_ROUNDS = 12  # times that inputs join the search
_DRAWN = 1 << 23  # elements of inputs, of which those that tell contracts apart are chosen
_CHUNK = 1 << 16  # elements that are evaluated at once
_FORMS = (3, 2)  # that are searched if that of the program explains too little: with the same places, with others
_CHANGES = 3  # of the form, one after the other
_GOOD = 1e-3  # of the elements may be a unit in the last place off: exp, erf, tanh and orders of sums differ
_ORDER = 2.0**-22  # what another order of a sum makes, as a share of the sizes of its terms: 4 roundings of float32
_STARTS = 6  # contracts that a search begins with
_NEXT = 3  # of them, the best after single changes, in which several places are changed at once
_TOGETHER = 3  # places that are changed at once, at most
_EVALUATIONS = 20_000  # of a search, after which it keeps the best so far
_PART = 0.125  # changes with less than this part of the largest gain wait


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
    traced, call = torch.func.functionalize(layer), getattr(kernel, "function", kernel)
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
        traced, layer, call = (_gradients(each, count) for each in (traced, layer, call))
        generator = torch.Generator().manual_seed(0)
        inputs += tuple(torch.randn(each.shape, generator=generator).to(each) for each in results)
        call(*inputs)  # a kernel without a gradient is refused before the layer is searched for seconds
    program = trace(traced, inputs, names)
    own = found_by(program, traced, layer, inputs)
    theirs = found_by(program, traced, call, inputs)
    tried = [inputs, *(each for kind in _KINDS for each in islice(sets_like(inputs, kind), 4))]
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
    cases = [case for group in plan(kernel, dtype, backend.name, 0) for case in group.cases]
    cases = [case for case in cases if class_of_recipe(case.regime or case.fill) == ORDINARY]
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


@dataclass(frozen=True)
class _Known:
    """Holds sets of inputs as one stack, with the results of a function."""

    inputs: tuple[Tensor, ...]
    results: tuple[Tensor, ...]

    @staticmethod
    def of(function: Callable[..., Any], sets: Iterable[Sequence[Tensor]]) -> _Known:
        """Calls the function on each set."""
        sets = list(sets)
        return _Known(_stack(sets), _stack([_results(function, each) for each in sets]))

    def at(self, places: Tensor) -> _Known:
        """Returns some of the sets."""
        return _Known(tuple(each[places] for each in self.inputs), tuple(each[places] for each in self.results))

    def __add__(self, other: _Known) -> _Known:
        pairs = (self.inputs, other.inputs), (self.results, other.results)
        return _Known(*(tuple(map(torch.cat, zip(*pair, strict=True))) for pair in pairs))

    @cached_property
    def ordinals(self) -> list[Tensor]:
        """The places of the results in the order of their formats."""
        return [_ordinals(each) for each in self.results]

    def apart(self, made: Rounded) -> list[Tensor]:
        """Returns how far the prediction of each element is off, of each result: log2(1 + units in the last place)."""
        found = []
        for one, got, order in zip(made.outputs(), self.results, self.ordinals, strict=True):
            if torch.equal(predicted := one.float().to(got.dtype), got):
                found.append(torch.zeros_like(got, dtype=torch.float32))
                continue
            off = (_ordinals(predicted) - order).abs().float().add(1).log2().reshape(got.shape)
            found.append(off.masked_fill(torch.isnan(predicted.float()) & torch.isnan(got.float()), 0.0))
        return found

    def by_set(self, made: Rounded) -> Tensor:
        """Returns how far the predictions of each set are off."""
        return torch.stack([each.reshape(len(each), -1).sum(1) for each in self.apart(made)]).sum(0)

    def unexplained(self, program: Program, formats: Contract) -> float:
        """Returns how far a contract's predictions are off beyond what another order of its sums makes of few bits."""
        apart = self.apart(Rounded(program, self.inputs, formats))
        if 0 < sum(int((each > 0).sum()) for each in apart) <= _GOOD * sum(map(torch.numel, apart)):
            for side in (1, -1):
                moved = self.apart(Rounded(replace(program, lean=side * _ORDER), self.inputs, formats))
                apart = list(map(torch.minimum, apart, moved))
        return sum(float(each.sum()) for each in apart)

    def share(self, program: Program, formats: Contract) -> float:
        """Returns the share of elements whose bits are predicted."""
        apart = self.apart(Rounded(program, self.inputs, formats))
        return sum(int((each == 0).sum()) for each in apart) / max(sum(map(torch.numel, apart)), 1)


def found_by(
    program: Program, layer: Callable[..., Any], function: Callable[..., Any], inputs: Sequence[Tensor]
) -> FoundContract:
    """Returns the contract of a function, in the form of the program that predicts the most bits."""
    size = max(sum(value.numel() for value in _results(function, inputs)), 1)
    few = min(_MOST_SETS, -(-_ENOUGH // size))
    evidence = _Evidence(
        function=function,
        known=_Known.of(function, chain([inputs], islice(sets_like(inputs, "search"), max(few - 1, len(_SEARCH))))),
        others=_Known.of(function, islice(sets_like(inputs, "others"), _REFUTING * few)),
        unseen=_Known.of(function, islice(sets_like(inputs, "unseen"), few)),
    )
    best = evidence.searched(program)
    for _ in range(_CHANGES):  # of the form: those that begin nearest, and then changes of a changed one
        before, forms = best, list[tuple[bool, float, str, Program]]()
        if max(1 - best.known, 1 - best.unseen) <= _GOOD:
            break
        for change, other in forms_of(program, layer, inputs):
            search, starts = _Search(other, evidence.others), _starts(other, best)
            kept, new = starts[:2]  # a number that is computed again changes bits only where it is rounded
            alone = [{**base, place: new[place]} for place in new if place not in kept for base in (kept, {})]
            forms.append((bool(alone), min(search.held(start).off for start in starts + alone), change, other))
        forms.sort(key=lambda form: form[1])
        nearest = [f for more in (False, True) for f in [each for each in forms if each[0] == more][: _FORMS[more]]]
        for _, _, change, other in sorted(nearest, key=lambda form: form[1]):
            found = evidence.searched(other, before, "; ".join(filter(None, (before.form, change))))
            if _missed(found) < _missed(best):
                best, program = found, other
                if _missed(best) <= _missed(before) / 2:  # it explains most: others are looked for after it
                    break
        if best.form == before.form:
            break
    return best


def _missed(found: FoundContract) -> float:
    """Returns the shares of bits that are not predicted, of inputs of the search and of unseen ones."""
    return 2 - found.known - found.unseen


@dataclass(frozen=True)
class _Evidence:
    """Holds a function's results for the inputs of a search, for others that may refute its contract, and for unseen
    ones.
    """

    function: Callable[..., Any]
    known: _Known
    others: _Known
    unseen: _Known

    def searched(self, program: Program, before: FoundContract | None = None, form: str = "") -> FoundContract:
        """Searches for the contract of one form of the program.

        Those of the `others` that refute it join the search, and so do inputs that tell it from a contract which
        predicts the same bits. `unseen` inputs never do.
        """
        starts, search, others = _starts(program, before), _Search(program, self.known), self.others
        one = [each[0] for each in self.known.inputs]
        drawn = sets_like(one, "telling")
        formats = search.best(starts)
        rivals, settled = list[Contract](), None  # the contract whose rivals were looked for
        for _ in range(_ROUNDS):
            if not search.predicts(search.known, formats):
                break  # the form of the program is another one
            if not search.predicts(others, formats):
                apart = others.by_set(Rounded(program, others.inputs, formats))
                fresh = others.at(apart.topk(min(_JOIN, len(apart))).indices)
            else:
                formats = _Search(program, search.known + others).smallest(formats)
                telling = list[tuple[Tensor, ...]]()
                if formats != settled:
                    telling, rivals = search.told_apart(formats, search.rivals(formats, others), drawn)
                    settled = formats
                if not telling:  # several roundings may be wrong at once: as many others confirm the contract
                    size = len(others.inputs[0])
                    more = _Known.of(self.function, islice(sets_like(one, "others"), size, 2 * size))
                    others += more
                    if search.predicts(more, formats):
                        break
                    continue
                fresh = _Known.of(self.function, telling)
            search = _Search(program, search.known + fresh, search.evaluations)
            formats = search.best([formats, *starts])
        smallest = _Search(program, search.known + others).smallest(formats)
        own = {place: kind for place, kind in smallest.items() if kind != program.usual}
        return FoundContract(
            like=program.text(own),
            formats=own,
            places={place: program.words(place) for place in program.places},
            usual=program.usual,
            known=self.known.share(program, own),
            unseen=self.unseen.share(program, own),
            elements=sum(each.numel() for each in self.unseen.results),
            evaluations=search.evaluations,
            undecided=[" with ".join(f"{program.words(p)} in {kind}" for p, kind in each.items()) for each in rivals],
            form=form,
        )


def _starts(program: Program, before: FoundContract | None) -> list[dict[str, str]]:
    """Returns the contracts that a search begins with."""
    places, drawn = program.places, random.Random(0)
    kind = next(iter(program.stored.values()), program.narrow)
    made = [{}, dict(program.stored), dict.fromkeys(places, kind)]
    if before is not None:
        kept = {place: kind for place, kind in before.formats.items() if place in places}
        new = {place: kept.get(place, kind) for place in places if place not in before.places}
        made = [kept, new | kept, *made]
    chance = [{place: kind for place in places if drawn.random() < 0.5} for _ in range(_STARTS - len(made))]
    return made + chance


@dataclass(frozen=True)
class _Held:
    """Holds the values of a contract on all inputs of a search, and how far its bits are off."""

    values: Rounded
    off: float  # 0 if all bits are equal


class _Search:
    """Looks for the formats of a program's places that predict known results."""

    def __init__(self, program: Program, known: _Known, evaluations: int = 0) -> None:
        self.program, self.known, self.evaluations = program, known, evaluations
        self.kinds = program.formats(any(each.dtype == torch.float32 for each in known.results))

    def predicts(self, known: _Known, contract: Contract) -> bool:
        """True if a contract predicts all bits but those that other orders of sums, and other libraries, move."""
        enough = _GOOD * sum(map(torch.numel, known.results)) if self.program.differs_by_library else 0.0
        return known.unexplained(self.program, contract) <= enough

    def held(self, contract: Contract, near: _Held | None = None) -> _Held:
        """Evaluates a contract, or another one with the formats of a contract at some places."""
        self.evaluations += 1
        values = near.values.changed(contract) if near else Rounded(self.program, self.known.inputs, contract)
        return _Held(values, float(self.known.by_set(values).sum()))

    def best(self, starts: Sequence[Contract]) -> dict[str, str]:
        """Returns the best contract: that of the best start, improved by changes of one place, then of more."""
        found = list[_Held]()
        for start in starts:
            held = self.held(start)
            found.append(held if self._explains(held) else self._climbed(held, 1))
            if self._explains(found[-1]):
                return found[-1].values.contract
        for size in range(2, _TOGETHER + 1):
            found.sort(key=lambda each: each.off)
            for at, each in enumerate(found[:_NEXT]):
                nearest = min(found, key=lambda one: one.off)
                if self._explains(nearest):
                    return nearest.values.contract
                if at == 0 or not self.predicts(self.known, nearest.values.contract):
                    found[at] = self._climbed(each, size)
        return min(found, key=lambda each: each.off).values.contract

    def _explains(self, held: _Held) -> bool:
        """True if a contract predicts all bits but those that another order of its sums moves."""
        return not held.off or not self.known.unexplained(self.program, held.values.contract)

    def _climbed(self, held: _Held, size: int) -> _Held:
        """Changes so many near places at once, and then single ones, until nothing brings the bits closer.

        While bits are far off, chance brings some closer. So the changes that gain most are made first, and those of a
        small part of that gain wait. A change that gains less than it gained alone is explained by another one.
        """
        while held.off and self.evaluations < _EVALUATIONS:
            flips = [each for group in self._groups(size) for each in self._changes(held.values.contract, group)]
            gains = [held.off - self.held(each, held).off for each in flips]
            if not (most := max(gains, default=0.0)) > 0:
                break
            for at in sorted(range(len(flips)), key=lambda at: -gains[at]):
                if gains[at] < _PART * most or not held.off:
                    break
                made = self.held(flips[at], held)
                held = made if held.off - made.off >= gains[at] / 2 else held
            held = self._climbed(held, 1) if size > 1 else held
        return held

    def _groups(self, size: int) -> list[tuple[str, ...]]:
        """Returns groups of near places in order: one takes the other's numbers, or both reach the same step."""
        if size == 1:
            return [(place,) for place in self.program.places]
        order = {place: at for at, place in enumerate(self.program.places)}
        near, made = set[frozenset[int]](), dict[fx.Node, set[int]]()  # places that reach a node without another one
        for node in self.program.nodes:
            taken = set[int]().union(*(made[each] for each in node.all_input_nodes))
            own = {order[node.name]} if node.name in order else set()
            near |= set(map(frozenset, combinations(taken | own, 2)))
            made[node] = own or taken
        groups = near
        for _ in range(size - 2):
            groups = {one | pair for one in groups for pair in near if len(one & pair) == 1}
        return [tuple(self.program.places[at] for at in group) for group in sorted(map(sorted, groups))]

    def smallest(self, formats: Contract) -> dict[str, str]:
        """Takes back each rounding that explains nothing."""
        held = self.held(formats)
        for place in reversed(self.program.places):
            if held.values.contract.get(place, self.program.usual) != self.program.usual:
                without = self.held({place: self.program.usual}, held)
                held = without if without.off <= held.off else held
        return held.values.contract

    def rivals(self, formats: Contract, others: _Known) -> list[Contract]:
        """Returns the changes of one place, and of two near ones, that no known result refutes."""
        found = [each for size in (1, 2) for group in self._groups(size) for each in self._changes(formats, group)]
        for search in (self, _Search(self.program, others)):
            held = search.held(formats)
            found = [each for each in found if search.held(each, held).off <= held.off]
        return found

    def _changes(self, formats: Contract, group: Sequence[str]) -> Iterator[Contract]:
        """Yields each change of the formats of all places of a group. Three places have the first three formats."""
        usual, most = self.program.usual, None if len(group) < _TOGETHER else _TOGETHER
        others = ([kind for kind in self.kinds[each][:most] if kind != formats.get(each, usual)] for each in group)
        return (dict(zip(group, kinds, strict=True)) for kinds in product(*others))

    def told_apart(
        self, formats: Contract, rivals: Sequence[Contract], sets: Iterator[tuple[Tensor, ...]]
    ) -> tuple[list[tuple[Tensor, ...]], list[Contract]]:
        """Returns inputs on which rivals of a contract predict other bits, and the rivals that no input tried tells."""
        size, chosen, tried = sum(each[0].numel() for each in self.known.results), list[tuple[Tensor, ...]](), 0
        while rivals and tried < _DRAWN:
            drawn, left = list(islice(sets, max(1, _CHUNK // size))), list[Contract]()
            tried += size * len(drawn)
            base = Rounded(self.program, _stack(drawn), formats)
            pairs = zip(base.outputs(), self.known.results, strict=True)
            predicted = _Known((), tuple(one.float().to(each.dtype) for one, each in pairs))
            for rival in rivals:
                self.evaluations += 1
                apart = predicted.by_set(base.changed(rival))
                if float(apart.max()):
                    chosen.append(drawn[int(apart.argmax())])
                else:
                    left.append(rival)
            rivals = left
        return chosen, list(rivals)


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


def _stack(sets: Sequence[Sequence[Tensor]]) -> tuple[Tensor, ...]:
    return tuple(map(torch.stack, zip(*sets, strict=True)))


# -- inputs ------------------------------------------------------------------------------------------------

_RECIPES: tuple[Callable[[Tensor], Tensor], ...] = (
    lambda z: z,  # normal
    lambda z: z * torch.exp2((z * 977).frac() * 6),  # of any size
    lambda z: z * 8,
    lambda z: z.abs() + 0.01,
    lambda z: z + 3,  # far from zero
    lambda z: z * 0.03,
    lambda z: z * torch.exp2((z.reshape(-1)[0] * 977).frac() * 12),  # each operand of another size
    lambda z: z * torch.exp2((z.amax(-1, keepdim=True) * 977).frac() * 12),  # each row
)
_SEARCH = _RECIPES[:2]
#: The first seed and the recipes of a kind. The others refute a contract, telling ones are chosen; unseen ones count.
_KINDS = {
    "search": (0, _SEARCH),
    "others": (1_000, _RECIPES[2:6]),
    "unseen": (1_000_000, _RECIPES[2:6]),
    "telling": (2_000_000, _RECIPES[2:]),
}


def sets_like(inputs: Sequence[Tensor], kind: str) -> Iterator[tuple[Tensor, ...]]:
    """Yields inputs of the same shapes and dtypes: floating-point operands by the recipes, others as they are."""
    first, recipes = _KINDS[kind]
    size = max(each.numel() for each in inputs)
    for at in count():
        generator = torch.Generator().manual_seed(first + at)
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
