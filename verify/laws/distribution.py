"""Distribution: a kernel draws each number as often as its probability says, independently in each row and call.

The law looks at results that `draws=` names ([what it demands](like.md#samplers)). It calls the kernel 16 to 512 times
on rows of ordinary, equal and masked numbers, and on a long row.

Details:

* Support. A number whose exact probability is 0 is never drawn.
* Frequencies. The count of each cell, a number in a row, is near its expectation. So are the counts of each number over
  all rows, of sixteenths of the probability (from the likeliest number on, and from the first on), and of every
  sixteenth number.
* Chi-square. The squared deviations of all sixteenths together are not too large.
* Independence. Rows at distances of 1, 2, 4 and so on, and calls with other seeds, draw equal numbers as often as
  independent ones.
* The same seed gives the same numbers.

A right kernel breaks a case of this law once in a billion. Every count is a sum of independent terms with a known
variance, which Bernstein's inequality bounds. Chi-square is the square of a supremum of such sums, which the inequality
of Klein and Rio (2005) bounds. Where ties leave probabilities open, the choice nearest to the counts decides.
Float32 probabilities may be off by 8 times their noise, or by 10 ULP.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from verify.cases import Case, inputs_of, problem_of
from verify.cases.sizes import REACHES_OF_LAWS, largest_of, long_sizes
from verify.cases.strategies import CaseSpace
from verify.cases.values import MASKED
from verify.errors import UsageError
from verify.laws.law import Broken, Inputs, Subject, demand_same, law, place, plain_case, space_of
from verify.laws.stochastic import called, limit_of, range_of, room_of, seeds_of
from verify.measure.call import run_tensors
from verify.ops.graph.drawn import Drawn

_ELEMENTS = {"small": 1 << 12, "large": 1 << 16}  # probabilities of the plain case
_DRAWS = {"small": 1 << 14, "large": 1 << 18}  # of a case together, unless its calls are too few or too many
_CALLS = (16, 512)
_NUMBERS = {"small": 1 << 21, "large": 1 << 31}  # probabilities that all calls of a case draw from
_LONGEST = 1 << 15
_GROUPS = 16
_EXPONENT = math.log(2e9)  # a deviation to either side has this probability together
_RARE = 1.0  # a combination of groups with less variance is left to the counts
_OFF = 1e-6  # of a row of probabilities, whose sum is 1


@dataclass(frozen=True)
class _Drawn:
    """Holds the numbers that calls of a kernel drew, and their probabilities, for each row that has some."""

    numbers: Tensor  # by call and row
    share: Tensor  # by row and number
    room: Tensor  # how far a kernel's probability may be from it

    @cached_property
    def counts(self) -> Tensor:
        """Returns how often each number was drawn in each row."""
        return torch.zeros_like(self.share).scatter_add(1, self.numbers.T, self.share.new_ones(self.numbers.T.shape))

    @property
    def exponent(self) -> float:
        """Returns minus the logarithm of the probability that a right kernel exceeds one limit."""
        rows, count = self.share.shape
        return _EXPONENT + math.log(_sums(rows, count))

    def groups(self) -> dict[str, Tensor]:
        """Maps words to the group of each number: sixteenths of the probability of a row, and lanes."""
        at = torch.arange(self.share.shape[1], device=self.share.device).expand(self.share.shape)
        found = {"in turn": at % _GROUPS}
        likely = self.share.argsort(dim=1, descending=True, stable=True)
        for words, order in (("from the likeliest number on", likely), ("from the first number on", at)):
            share = self.share.gather(1, order)
            group = ((share.cumsum(1) - share / 2) * _GROUPS).long().clamp(0, _GROUPS - 1)
            found[words] = torch.zeros_like(group).scatter(1, order, group)
        return found


def _sums(rows: int, count: int) -> int:
    """Returns how many sums the law looks at in a case."""
    return rows * count + count + 3 * (_GROUPS + 1) + rows.bit_length() + 4


def _shape(subject: Subject, dims: tuple[int, ...], name: str = "") -> tuple[int, int]:
    """Returns the number of rows of probabilities, and of the numbers in each."""
    op = subject.kernel.op
    *rows, count = op.result_shapes(dims, op.params)[name or next(iter(subject.kernel.draws))]
    return math.prod(rows), count


def _calls(subject: Subject, rows: int, count: int) -> int:
    scale, (fewest, most) = subject.backend.scale, _CALLS
    return max(min(_DRAWS[scale] // max(rows, 1), _NUMBERS[scale] // max(rows * count, 1), most), fewest)


def _plain(subject: Subject) -> Case:
    return plain_case(subject, largest_of(subject.kernel.op, _ELEMENTS[subject.backend.scale]))


def _reason(subject: Subject) -> str | None:
    if not subject.kernel.draws:
        return "the declaration has no draws="
    for seed in filter(None, subject.kernel.draws.values()):
        low, high = range_of(subject, _plain(subject), seed)
        if high - low < 2 * _CALLS[1]:
            return f"{seed} has fewer than {2 * _CALLS[1]:,} values"
    return None


def _space(subject: Subject) -> CaseSpace:
    op = subject.kernel.op
    sizes = long_sizes(op, REACHES_OF_LAWS[subject.backend.scale]).values()
    long = {dims: _shape(subject, dims)[1] for some in sizes for dims in some}
    widest = sorted((dims for dims, width in long.items() if width <= _LONGEST), key=long.__getitem__)[-1:]
    fill = ("randn", "constant", *([MASKED] if op.normalised else []))
    return space_of(subject, shapes=(_plain(subject).dims, *widest), fill=fill, upstream=("",))


def _sees(subject: Subject) -> str:
    rows, count = _shape(subject, _plain(subject).dims)
    draws, share = rows * _calls(subject, rows, count), torch.tensor([1 / 2, 1 / _GROUPS], dtype=torch.float64)
    half, part = (limit_of(draws * share * (1 - share), _sums(rows, count), _EXPONENT) / draws / share).tolist()
    return (
        f"the law of distributions sees a half of the probability that is off by {half:.1%}, and a sixteenth that is "
        f"off by {part:.0%}, in {draws:,} draws; it accuses a right kernel once in a billion cases"
    )


@law(
    "distribution",
    _space,
    applies=_reason,
    examples=lambda subject, space: tuple(case for dims in space.shapes for case in space.each_choice([dims])),
    of_draws=True,
    share=0.1,
    sees=_sees,
)
def distribution(subject: Subject, case: Case) -> None:
    """Numbers are drawn by their probabilities, independently, and follow from the seed."""
    kernel, inputs = subject.kernel, inputs_of(subject.kernel.op, case, subject.backend.device)
    for name, seed in kernel.draws.items():
        rows, count = _shape(subject, case.dims, name)
        if not rows * count:
            continue
        calls, seeds = _calls(subject, rows, count), list[int]()
        results: Iterable[dict[str, Tensor]] = (run_tensors(kernel, inputs, case.params, {}) for _ in range(calls))
        if seed:
            ends = range_of(subject, case, seed)
            seeds = seeds_of(inputs, seed, ends, calls // 2)
            first, again = (next(called(kernel, case, inputs, seed, seeds, ends)) for _ in range(2))
            rule, labels = "the same seed draws other numbers", ("second call", "first call")
            demand_same(case, {name: again[name]}, {name: first[name]}, rule, labels=labels)
            results = called(kernel, case, inputs, seed, seeds, ends)
        numbers = torch.stack([each[name].argmax(-1).reshape(rows) for each in results])
        drawn = _with_probabilities(subject, case, inputs, name, numbers, seeds)
        if drawn.share.numel():
            pairs, counts = _pairs(drawn), _frequencies(drawn)
            for rule, found in (("independently", pairs), ("as often as their probabilities say", counts)):
                size, facts = max(found, key=lambda each: each[0])  # what stands out most names it
                if not size <= 1:
                    facts["of"] = f"{name}, {len(numbers):,} calls of {rows:,} rows, {facts['of']}"
                    raise Broken(f"numbers are not drawn {rule}", case, facts, result=name)


def _with_probabilities(
    subject: Subject, case: Case, inputs: Inputs, name: str, numbers: Tensor, seeds: Sequence[int]
) -> _Drawn:
    """Returns the draws with their probabilities. Raises Broken for a number that cannot be drawn."""
    op = subject.kernel.op
    assert isinstance(op.meaning, Drawn)
    problem, shape = problem_of(op, case, inputs, {}, (name,)), op.result_shapes(case.dims, op.params)[name]
    seen = torch.nn.functional.one_hot(numbers, shape[-1]).double().mean(0)
    exact = op.meaning.probabilities(problem, name, seen.reshape(shape), len(numbers))
    found = (exact.value, exact.bound, op.meaning.deviation(problem, name))
    value, bound, noise = (each.to(seen.device).reshape(seen.shape) for each in found)
    known = (torch.isfinite(value) & torch.isfinite(bound)).all(1)  # the other rows have no probabilities
    numbers, value, bound, noise = numbers[:, known], value[known], bound[known], noise[known]
    if len(off := value.sum(1)[~((value.sum(1) - 1).abs() <= _OFF)]):
        text = f"{subject.kernel.name}: like= returns probabilities of {name} that add up to 1 in each row"
        raise UsageError(f"{text}; received a row with {off[0]:.9g}", hint="like=lambda logits: logits.softmax(-1)")
    possible = value.abs() + bound > 0
    wrong = torch.nonzero(~possible.expand(len(numbers), *possible.shape).gather(2, numbers[..., None]))
    if len(wrong):
        call, row, _ = wrong[0].tolist()
        facts = {
            "at": f"{name} {place(known.reshape(shape[:-1]), int(torch.nonzero(known)[row]))}",
            "call": f"{call + 1} of {len(numbers)}; {len(wrong):,} of {numbers.numel():,} draws in all",
            **({"seed": str(seeds[call])} if seeds else {}),
            "got": f"{int(numbers[call, row])}, whose probability is 0",
        }
        raise Broken("a number is drawn that cannot be", case, facts, result=name)
    return _Drawn(numbers, value.clamp(min=0.0), room_of(value, bound, noise))


Found = tuple[float, dict[str, str]]  # a deviation in units of its limit, and facts about it


def _frequencies(drawn: _Drawn) -> Iterator[Found]:
    """Yields the worst of each kind of count, and chi-square of groups."""
    held = (drawn.counts, drawn.share, drawn.room)
    yield _most(drawn, held, "number {0} in all rows")
    yield _most(drawn, held, "number {0} in row {1}", pooled=False)
    for words, group in drawn.groups().items():
        grouped = tuple(each.new_zeros(len(group), _GROUPS).scatter_add(1, group, each) for each in held)
        yield _most(drawn, grouped, f"sixteenth {{0}} {words}")
        yield _chi_square(drawn, grouped, words)


def _most(drawn: _Drawn, held: Sequence[Tensor], words: str, *, pooled: bool = True) -> Found:
    """Returns the worst count. `held` has counts, probabilities and their room, by row and group."""
    counts, share, room = held
    sums = (counts, share, share * (1 - share), room)
    total, share, variance, room = (each.sum(0, keepdim=True) if pooled else each for each in sums)
    calls = len(drawn.numbers)
    limit = limit_of(calls * variance.clamp(min=0), 1, drawn.exponent) + calls * room
    size = (total - calls * share).abs() / limit
    row, at = divmod(int(size.argmax()), size.shape[1])
    facts = {
        "of": words.format(at, row),
        "drawn": f"{float(total[row, at]):,.0f} times",
        "should": f"{calls * float(share[row, at]):,.1f} +- {math.sqrt(calls * float(variance[row, at])):.1f}",
        "limit": f"+- {float(limit[row, at]):.1f}, which a right kernel exceeds once in a billion cases",
    }
    return float(size[row, at]), facts


def _chi_square(drawn: _Drawn, held: Sequence[Tensor], words: str) -> Found:
    """Returns the root of chi-square of all groups."""
    (counts, share, room), calls, exponent = held, len(drawn.numbers), drawn.exponent
    variance, vectors = torch.linalg.eigh(calls * (torch.diag(share.sum(0)) - share.T @ share))
    root = vectors[:, variance > _RARE] / variance[variance > _RARE].sqrt()
    size, mean = float((root.T @ (counts - calls * share).sum(0)).norm()), math.sqrt(root.shape[1])
    # a draw is a step of at most `most`, and the mean of the size is at most the root of the degrees of freedom
    most = float(torch.where(share > 0, (root[None] - (share @ root)[:, None]).norm(dim=2), 0.0).max())
    limit = mean + 1.5 * exponent * most + float((calls * room.sum(0)) @ root.norm(dim=1))
    limit += math.sqrt((1.5 * exponent * most) ** 2 + 2 * exponent * (1 + 2 * most * mean))
    facts = {
        "of": f"all sixteenths {words}",
        "chi-square": f"{size**2:,.1f} for {root.shape[1]} degrees of freedom",
        "limit": f"{limit**2:,.1f}, which a right kernel exceeds once in a billion cases",
    }
    return size / limit, facts


def _pairs(drawn: _Drawn) -> Iterator[Found]:
    """Yields how often two rows, or two calls, drew equal numbers.

    Each draw is in one pair of a kind at most, so that pairs are independent.
    """
    calls, rows = drawn.numbers.shape
    row, half = torch.arange(rows, device=drawn.numbers.device), calls // 2
    pairs = [("one row in calls half of all calls apart", slice(half), row, slice(half, 2 * half), row)]
    for apart in (1 << each for each in range((rows - 1).bit_length())):
        first = row[(row // apart % 2 == 0) & (row + apart < rows)]
        pairs.append((f"rows {apart} apart in one call", slice(calls), first, slice(calls), first + apart))
    for shift in (0, 1, -1):
        first = row[(row + shift >= 0) & (row + shift < rows)]
        even, odd = slice(0, 2 * half, 2), slice(1, 2 * half, 2)
        pairs.append((f"a row and row {shift:+} in the next call", even, first, odd, first + shift))
    for words, one, first, other, second in pairs:
        equal = drawn.numbers[one][:, first] == drawn.numbers[other][:, second]
        chance = (drawn.share[first] * drawn.share[second]).sum(1)
        room = (drawn.room[first] * drawn.share[second] + drawn.share[first] * drawn.room[second]).sum()
        variance, should = len(equal) * (chance * (1 - chance)).clamp(min=0).sum(), len(equal) * float(chance.sum())
        limit = float(limit_of(variance, 1, drawn.exponent) + len(equal) * room)
        facts = {
            "of": words,
            "equal": f"{int(equal.sum()):,} of {equal.numel():,} pairs",
            "should": f"{should:,.1f} +- {math.sqrt(float(variance)):.1f}",
        }
        yield abs(int(equal.sum()) - should) / limit, facts


LAWS = (distribution,)
