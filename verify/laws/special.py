"""Special values: NaN, infinities, zeros, subnormals and the largest numbers give the mathematical result.

Each case puts every kind of special value into ordinary data, in each operand and the upstream gradient in turn. A
result must be NaN exactly where the real function has no value, and infinite where it is infinite. The kernel's
policy decides about subnormals and the sign of a zero.

Details:

A case has one special value per element, or one per row if a row decides.

No element depends on two special values. For infinity times a number that underflows, correct kernels differ: the
result depends on the range of an intermediate format.

In a PyTorch function, each operand in turn, including weights, has a NaN or an infinity in one element. Every second
NaN has a sign and a payload. A row of the only operand, and one element of two operands of one shape, are -inf, which
means what is empty. PyTorch in float64 shows the effect on each output, with its default and with its plain
kernels for attention. An output that three finite numbers in that place do not change must keep its bits where PyTorch
keeps its number. For other outputs NaN must remain NaN, and an empty part must not become NaN. If both evaluations give
an infinity, the kernel must not give a finite number. If PyTorch returns the position of the special value, the kernel
must return it too.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from itertools import combinations
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel

from verify.cases import Case, counter, inputs_of, upstream_of
from verify.cases.layouts import lay_out
from verify.cases.sizes import REACHES_OF_LAWS, long_sizes, sizes_of
from verify.cases.strategies import EITHER_PATH, CaseSpace
from verify.cases.values import nan_patterns, special_patterns
from verify.laws.accuracy import Known, judge_known, known
from verify.laws.law import Broken, Inputs, Subject, law, place, plain_cases, show, space_of
from verify.laws.locality import data_operands, reference
from verify.measure.call import Measured, Unchanged, call_tensors, gradients_of, run_tensors, sent_all
from verify.ops.domain import Domain
from verify.ops.geometry import ByGeometry, Shapes
from verify.truth import formats
from verify.truth.ulp import fetched, from_bits, raw

_DIMS: ByGeometry[Shapes] = ByGeometry(
    elementwise=((96,), (5, 7), (193,), (3,)),
    rowwise=((48, 5), (24, 1), (24, 33), (8, 2)),
    contraction=((48, 5, 3), (8, 33, 2), (24, 1, 4)),
)


def _space(subject: Subject) -> CaseSpace:
    geometry = subject.kernel.op.geometry
    if geometry.named:
        op, reach = subject.kernel.op, REACHES_OF_LAWS[subject.backend.scale]
        shapes = [*sizes_of(op, 512)[:4], *(dims for some in long_sizes(op, reach).values() for dims in some[1:3])]
        return space_of(subject, shapes=shapes, fill=("randn",), upstream=("",))
    return space_of(subject, shapes=geometry.of(_DIMS), fill=(geometry.fill,), upstream=(*EITHER_PATH, "ones"))


def plant(
    tensor: Tensor, specials: NDArray[Any], seed: int, lane: int, lanes: int, *, rows: bool, single: bool = False
) -> None:
    """Puts special values into every `lanes`-th element, or into one element of every `lanes`-th row.

    `specials` has their bits. With `single`, only one place gets a special value.
    """
    if not len(specials):
        return
    width = tensor.shape[-1] if rows else 1
    chosen = np.arange(lane, tensor.numel() // width, lanes)
    if single:
        chosen = chosen[:1]
    start = int(counter.below(seed, f"special/{lane}", 1, len(specials))[0])
    column = counter.below(seed, f"special/{lane}/column", len(chosen), width).numpy()
    flat = tensor.reshape(-1)
    raw(flat).numpy()[chosen * width + column] = np.resize(np.roll(specials, -start), len(chosen))
    if not tensor.is_contiguous():  # half of a packed operand cannot be viewed as flat
        tensor.copy_(flat.reshape(tensor.shape))


@lru_cache
def _specials(
    fmt: formats.Format, infinite: bool, largest: bool, domain: Domain | None = None, *, payload: bool = False
) -> NDArray[Any]:
    """Returns the bits of a format's special values, with or without infinities and the largest finite numbers.

    Values outside of a domain are omitted. payload: NaN has a sign and another payload.
    """
    patterns = [nan_patterns(fmt)[-1] if payload and fmt.is_nan(bits) else bits for bits in special_patterns(fmt)]
    if not infinite:
        patterns = [bits for bits in patterns if not fmt.is_inf(bits)]
    if not largest:
        patterns = [bits for bits in patterns if not fmt.is_finite(bits) or bits & ~fmt.sign_bit < fmt.max_bits - 1]
    if domain is not None:
        patterns = [bits for bits in patterns if domain.low <= fmt.to_float(bits) <= domain.high]
    return np.array(list(map(fmt.signed, patterns)), dtype=f"int{fmt.bits}")


def _examples(subject: Subject, chosen: CaseSpace) -> tuple[Case, ...]:
    """Returns every choice. For a PyTorch function, returns each shape with two places of the special value."""
    if not subject.kernel.op.geometry.named:
        return chosen.each_choice()
    plain = (msgspec.structs.replace(case, upstream="") for case in plain_cases(subject, chosen))
    return tuple(msgspec.structs.replace(case, seed=seed) for case in plain for seed in (0, 1))


_NEAR = 1 << 17  # elements of an operand up to which PyTorch's results in float64 are computed on the CPU
_FINITE = (1.0, -3.0, 50.0)  # these are added to an element to find the outputs that depend on it


def _check_reach(subject: Subject, case: Case) -> None:
    """Puts NaN and infinities into operands of a PyTorch function, and compares with PyTorch: see `_planted`."""
    kernel, device, op = subject.kernel, subject.backend.device, subject.kernel.op
    shapes = op.shapes(case.dims, op.resolve(case.params)).values()
    near = max(map(math.prod, shapes), default=0) <= _NEAR
    inputs = inputs_of(op, msgspec.structs.replace(case, layouts={}), "cpu" if near else device)

    def run(given: Mapping[str, Tensor | None]) -> dict[str, Tensor]:
        results = list(run_tensors(kernel, sent_all(given, device), case.params, {}).values())
        return dict(zip(kernel.outputs, fetched(results) if near else results, strict=True))

    plain, wide = run(inputs), reference(op, inputs)
    for planted in _planted(subject, case, inputs):
        changed = [reference(op, planted.into(inputs, plus=more)) for more in _FINITE]
        for value in planted.values:
            strange = planted.into(inputs, value)
            with sdpa_kernel(SDPBackend.MATH):
                known = [reference(op, strange)]
            known.append(reference(op, strange))
            got = run(strange)
            for output in kernel.outputs:
                depends = torch.stack([one[output] != wide[output] for one in changed]).any(0)
                one, other = (each[output] for each in known)
                seen = _Seen(plain[output], wide[output], one, other, got[output], depends)
                for rule, where in seen.wrong(planted, value, kernel.policy.nan, output in op.integers).items():
                    if bool(where.any()):
                        index = int(torch.nonzero(where.reshape(-1))[0])
                        facts = {"planted": f"{value} in {planted.where}"}
                        facts |= {"at": f"{output} {place(seen.found, index)}", "got": show(seen.found, index)}
                        raise Broken(rule, case, facts, result=output, index=index)


@dataclass(frozen=True)
class _Planted:
    """Says which elements of which operands get a special value, and the values that are tried."""

    places: Mapping[str, Tensor]  # flat numbers of elements
    values: tuple[float, ...]
    where: str
    payload: bool = False  # True: NaN has a sign and another payload
    empty: bool = False  # True: -inf means what is empty, as the logarithm of a sum without terms
    within: frozenset[int] = frozenset()  # positions of the element in its dimensions, without the first and the last

    def into(self, inputs: Mapping[str, Tensor | None], value: float = 0.0, *, plus: float = 0.0) -> Inputs:
        """Returns the inputs with a value in these places; with `plus`, with their numbers and this one."""
        given = dict(inputs)
        for name, places in self.places.items():
            held = given[name]
            assert held is not None
            changed = held.contiguous().clone()
            flat, at, fmt = changed.view(-1), places.to(held.device), formats.of(held.dtype)
            if plus:
                flat[at] += plus
            elif math.isnan(value):
                bits = fmt.signed(nan_patterns(fmt)[-1 if self.payload else 0])
                flat[at] = from_bits(torch.tensor(bits), fmt).to(held.device)
            else:
                flat[at] = value
            given[name] = changed
        return given


def _planted(subject: Subject, case: Case, inputs: Inputs) -> Iterator[_Planted]:
    """Yields places for special values: one element of each operand, its row, and one element of two operands each.

    -inf marks empty or masked parts. A whole row of the only operand may have it, and two operands of one shape:
    products of several operands have no such meaning.
    """
    kernel, found = subject.kernel, dict[str, int]()
    closed = kernel.op.domains  # neither NaN nor an infinity is in a domain
    for name in kernel.operands:
        operand = inputs[name]
        if operand is None or not operand.is_floating_point() or not operand.numel() or name in closed:
            continue
        found[name] = at = int(counter.below(case.seed, f"special/{name}", 1, operand.numel())[0])
        index = zip(np.unravel_index(at, operand.shape), operand.shape, strict=True)
        within = frozenset(int(each) for each, size in index if 0 < each < size - 1)
        where, values = f"{name} {place(operand, at)}", (math.nan, math.inf, -math.inf)
        yield _Planted({name: torch.tensor([at])}, values, where, bool(case.seed % 2), within=within)
    if len(found) == 1 and len((only := _held(inputs, *found)[0]).shape) > 1:
        (name, at), width = next(iter(found.items())), only.shape[-1]
        row = torch.arange(at // width * width, (at // width + 1) * width)
        yield _Planted({name: row}, (-math.inf,), f"{name}, the row of {place(only, at)}", empty=True)
    for first, second in combinations(found, 2):
        one, other = _held(inputs, first, second)
        if one.shape == other.shape:
            where, both = f"{first} and {second} {place(one, found[first])}", torch.tensor([found[first]])
            yield _Planted({first: both, second: both}, (-math.inf,), where, empty=True)


def _held(inputs: Inputs, *names: str) -> list[Tensor]:
    """Returns operands that are there."""
    return [value for name in names if (value := inputs[name]) is not None]


@dataclass(frozen=True)
class _Seen:
    """Holds one output without and with special values: the kernel's and PyTorch's in float64, by two ways."""

    plain: Tensor
    wide: Tensor
    one: Tensor
    other: Tensor
    found: Tensor
    depends: Tensor  # True at elements that finite numbers in the same places change

    def wrong(self, planted: _Planted, value: float, nan: str, whole: bool) -> dict[str, Tensor]:
        """Returns where a special value has another effect than in PyTorch, by rule. `whole`: integers are results."""
        agreed = self.one == self.other  # both ways give the same number
        untouched = ~self.depends & ((self.one == self.wide) | (self.other == self.wide))
        same = (self.found == self.plain) | (self.found.isnan() & self.plain.isnan())
        wrong = {"an output that does not depend on a special value is changed by it": untouched & ~same}
        if whole:
            # PyTorch returns the first or the last position if all numbers of a row are NaN, so `within` has neither
            chosen = agreed & (self.one != self.wide) & (self.plain == self.wide).all()
            here = torch.isin(self.one, self.one.new_tensor(sorted(planted.within)))
            return wrong | {"an integer result ignores a special value": chosen & here & (self.found != self.one)}
        wrong["an infinity is lost"] = self.depends & self.one.isinf() & agreed & self.found.isfinite()
        if nan == "match" and math.isnan(value):
            wrong["a NaN is lost"] = self.depends & self.one.isnan() & self.other.isnan() & ~self.found.isnan()
        if planted.empty:
            wrong["an empty state becomes NaN"] = agreed & self.found.isnan() & ~self.plain.isnan()
        return wrong


def _applies(subject: Subject) -> str | None:
    op = subject.kernel.op
    if op.geometry.named and all(operand.range is not None or operand.domain is not None for operand in op.operands):
        return "every operand has a domain, which holds neither NaN nor an infinity"
    if derived := [
        operand.name for operand in op.derived if operand.range is None and operand.derive and not operand.derive.exact
    ]:
        return f"{', '.join(derived)} would have to be derived from NaN and infinities"
    return None


@law("special values", _space, applies=_applies, examples=_examples)
def special_values(subject: Subject, case: Case) -> None:
    """NaN, infinities, zeros, subnormals and the largest numbers give the mathematical result.

    Plants special values into a case and judges all results.
    """
    if subject.kernel.op.geometry.named:
        _check_reach(subject, case)
        return
    kernel, device = subject.kernel, subject.backend.device
    rows = not kernel.op.geometry.by_element
    # special values are planted in CPU memory: a dozen launches on a GPU take longer than the copy
    plain = msgspec.structs.replace(case, layouts={})
    inputs = inputs_of(kernel.op, plain, "cpu")
    domains = kernel.op.domains
    held = [(value, domains.get(name)) for name in data_operands(kernel) if (value := inputs[name]) is not None]
    if kernel.op.geometry.packed:
        held = [(half, held[0][1]) for half in held[0][0].chunk(2, -1)]
    tensors = [tensor for tensor, _ in held]
    lanes = len(tensors) + (len(kernel.outputs) if case.upstream else 0)
    # The product of several factors may overflow before it reaches a number that fits, in any order of the factors. So
    # may intermediate results of a layer, for inputs beyond the magnitude that the kernel promises.
    largest = (rows or len(tensors) == 1) and subject.dtype not in kernel.largest
    # The gradient of a weight sums over all rows. Two large ones of opposite sign overflow before they cancel.
    single = kernel.op.geometry.multiplies
    for lane, (tensor, domain) in enumerate(held):
        specials = _specials(formats.of(tensor.dtype), True, largest, domain, payload=bool(case.seed % 2))
        plant(tensor, specials, case.seed, lane, lanes, rows=rows, single=single)
    inputs = {name: None if value is None else _laid(case, name, value) for name, value in inputs.items()}
    given = sent_all(inputs, device)
    graph = call_tensors(kernel, given, case.params, differentiate=bool(case.upstream))
    upstream = upstream_of(kernel.op, plain, {n: torch.empty_like(v, device="cpu") for n, v in graph.values.items()})
    for lane, tensor in enumerate(upstream.values(), len(tensors)):
        # In a sum, an infinite upstream gradient gives infinities of both signs to subtract, and the largest finite
        # number overflows before the sum is finite. Neither shows an error of a kernel.
        specials = _specials(formats.of(tensor.dtype), not rows, largest and not rows)
        plant(tensor, specials, case.seed, lane, lanes, rows=rows)
    upstream = {name: _laid(case, "d" + name, value) for name, value in upstream.items()}
    arriving = sent_all(upstream, device)
    unchanged = Unchanged()
    gradients = gradients_of(kernel, graph, arriving, unchanged=unchanged, originals=upstream)
    (results,) = unchanged.demand(graph.values | gradients)
    results = dict(zip(results, fetched(list(results.values())), strict=True))
    judged = known(subject, case, Measured(inputs, upstream, results))
    judge_known(subject, case, judged)
    if kernel.policy.signed_zero == "strict" and not rows:  # a sum that cancels has no sign of its own
        _check_zeros(case, judged)


def _laid(case: Case, name: str, value: Tensor) -> Tensor:
    """Returns a tensor in its layout. Elements that share memory may lose their planted values."""
    return lay_out(value, case.layouts.get(name, "contiguous"))


def _check_zeros(case: Case, judged: Known) -> None:
    for name, rules in judged.rules.items():
        got, truth = judged.results[name], rules.truth
        wrong = (truth.value == 0) & (got == 0) & (torch.signbit(got) != torch.signbit(truth.value))
        places = torch.nonzero(wrong.reshape(-1))
        if places.numel():
            index = int(places[0])
            facts = {"at": f"{name} {place(got, index)}", "got": show(got, index)}
            raise Broken("a zero has the wrong sign", case, facts, result=name, index=index)


LAWS = (special_values,)
