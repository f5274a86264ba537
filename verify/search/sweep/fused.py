"""Sweeps gate curves on the device, the fused route: reference, errors, histogram, worst units and curve.

The kernel under test, here called the subject, runs on slabs of inputs as on any tensors. One kernel judges the
results: it evaluates the table of `table` in float64. For every element it finds the error interval, the bin, the share
of the mean, and whether the element is rounded correctly. Elements that float64 leaves open go to a buffer and are
judged exactly on the host.

A *unit* is 4096 neighbouring inputs. The device keeps the largest error and the largest upper bound of every unit. At
the end it judges the elements of the worst units again one by one, so that the list of worst elements is complete.

A unit never crosses a regime or a bin of the error curve: both are plain numbers to the kernel. The kernel adds up
integers only, and takes maxima of all else, so neither the order nor the division of the work changes a bit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeVar

import torch
from torch import Tensor

from verify import ops
from verify.backends import Backend
from verify.declare.declaration import Kernel
from verify.declare.standin import baseline_of
from verify.measure.call import no_gradient
from verify.measure.counting import bin_of, in_use, leaders_of, top
from verify.measure.tally import BINS, CAP, KEEP, Leader, Maximum, Peak, Tally, merged_peaks
from verify.measure.tally import UNIT as MEAN_UNIT
from verify.records.record import CLASSES, Number, number, value_of
from verify.search.sweep.device import OPEN_SLOTS, elements_kernel, pairs_kernel, unary_kernel
from verify.search.sweep.exactly import halves, judge_at
from verify.search.sweep.layout import SIDE, UNIT, Plan
from verify.search.sweep.partial import HARD_KEEP, Part
from verify.search.sweep.reference import Reference, check_reference, reference_for
from verify.search.sweep.scope import SPECIAL
from verify.search.sweep.space import CHUNK, PAIR_BITS, Space, bits_of_key
from verify.search.sweep.subject import check_untouched, inputs_of_keys, make, run
from verify.search.sweep.torch_route import BASELINE, check_chunk
from verify.truth.exact import Judged
from verify.truth.ulp import Policy, bits_of, raw
from verify.workers.phases import phase

COPIES = 64  # copies of the histogram and the counters: neighbours have the same error and would queue for one
SAMPLE = 12  # random inputs per call and curve at which the certificate is checked
_Keys = TypeVar("_Keys", int, Tensor)
# Elements that one program judges together, and its warps. One warp needs no barrier to agree on a branch. In the
# interpreter, a tile is as cheap as a number. The figures do not depend on either.
_TILE = {"cuda": {"BLOCK": 64, "num_warps": 1}, "cpu": {"BLOCK": UNIT, "num_warps": 1}}


def supports(kernel: Kernel, space: Space) -> bool:
    """True if this route can judge a kernel: a gate curve under the default policy, in float32 or pairs of 16 bits."""
    known = bool(kernel.op.gate_curve) and ops.get(kernel.op.name) is kernel.op
    wanted = {"unary": 32}.get(space.shape, PAIR_BITS)
    plain = kernel.policy == Policy() and not kernel.mixed(space.dtype)
    return known and plain and space.format.bits == wanted


@dataclass(frozen=True)
class _Job:
    """Describes one column of a result: the curve or its slope, alone or times the other operand."""

    slope: bool
    times: bool
    half: int = 0


def _jobs(space: Space, kernel: Kernel, result: str) -> tuple[_Job, ...]:
    if space.shape == "unary":
        return (_Job(slope=result == "dx", times=False),)
    alone, sloped = _Job(slope=False, times=False), _Job(slope=True, times=True, half=1)
    if result == "y":
        return (_Job(slope=False, times=True),)
    if space.shape == "packed pairs":
        return (alone, sloped)
    return (_Job(slope=True, times=True),) if result == "d" + kernel.op.landmarks.of else (alone,)


def check_chunks(
    kernel: Kernel,
    space: Space,
    low: int,
    high: int,
    backend: Backend,
    progress: Callable[[int], None],
    until: float = math.inf,
) -> tuple[dict[str, Part], set[str], int]:
    """Checks the chunks low..high. Returns the parts by result, the notes, and one past the last chunk checked.

    `until` is a time.monotonic() value. After it no slab begins, so the call may end before `high`.
    """
    prefixes = ["", BASELINE] if space.baseline else [""]
    with phase("sweep: plan, inputs, kernel and judging on the device"):
        sweep = Sweep(kernel, space, low, high, backend, prefixes)
        sweep.run(progress, until=until)
    high = sweep.high
    with phase("sweep: the worst units again, open elements exactly"):
        parts, crowded = sweep.parts()
    if not crowded:
        return parts, sweep.notes, high
    # A sound reference leaves far fewer elements open. The torch route judges some of them and counts the rest.
    if high - low == 1:
        return *check_chunk(kernel, space, low, backend), high
    parts, notes = {}, set(sweep.notes)
    for number_ in range(low, high):
        found, said, _ = check_chunks(kernel, space, number_, number_ + 1, backend, lambda done: None)
        parts = {name: parts.get(name, Part()).merge(part) for name, part in found.items()}
        notes |= said
        progress(number_ + 1 - low)
    return parts, notes, high


@dataclass
class _Column:
    """Holds the unit maxima of one job."""

    job: _Job
    reference: Reference
    error: Tensor
    upper: Tensor
    place: Tensor
    hard: Tensor  # one element if no hard inputs are requested
    hardest: bool
    gates: tuple[Tensor, Tensor, Tensor] | None


@dataclass
class _Figures:
    """Holds the figures that the device accumulates for one result of one subject."""

    result: str
    histogram: Tensor
    counters: Tensor
    open_count: Tensor
    open_place: Tensor
    open_bits: Tensor
    columns: list[_Column] = field(default_factory=list)


class Sweep:
    """Runs one call: the subjects on every slab, and the judging of their results."""

    def __init__(
        self, kernel: Kernel, space: Space, low: int, high: int, backend: Backend, prefixes: list[str]
    ) -> None:
        self.kernel, self.space, self.low, self.high = kernel, space, low, high
        self.device = torch.device(backend.device)
        self.fmt = space.format
        self.first, self.last = space.chunk(low)[0], space.chunk(high - 1)[1]
        self.plan = Plan(kernel, space, self.first, self.last)
        self.pieces = torch.tensor(self.plan.rows(), dtype=torch.int64, device=self.device)
        sizes = torch.tensor([piece.units for piece in self.plan.pieces], device=self.device)
        numbers = torch.arange(len(self.plan.pieces), dtype=torch.int32, device=self.device)
        self.owner = torch.repeat_interleave(numbers, sizes, output_size=self.plan.count)  # the piece of each unit
        self.subjects = {prefix: baseline_of(kernel) if prefix else kernel for prefix in prefixes}
        self.figures: dict[str, _Figures] = {}
        self.references: dict[bool, Reference] = {}
        self.notes: set[str] = set()
        self.format_args = {
            "SIGN": self.fmt.sign_bit,
            "MANTISSA": self.fmt.mantissa_bits,
            "EMIN": self.fmt.emin,
            "EMAX": self.fmt.emax,
        }

    # -- inputs and subject ----------------------------------------------------------------------

    def run(self, progress: Callable[[int], None], *, judge: bool = True, until: float = math.inf) -> None:
        """Makes the inputs of every slab, runs each subject and judges each result. Begins no slab after `until`.

        Without `judge` it judges nothing. That takes the least time that any sweep of this subject can take.
        """
        slot = 0
        for place, (first, last, pieces) in enumerate(self.plan.slabs):
            if place and time.monotonic() >= until:
                self._end_at(place, slot)
                break
            units = sum(piece.units for piece in pieces)
            made = make(self.space, self.kernel.op, first, last, self.device)
            for prefix, subject in self.subjects.items():
                inputs = {name: None if value is None else value.clone() for name, value in made.items()}
                results, missing = run(subject, self.space, inputs)
                if not judge:
                    continue
                if not prefix:
                    self.notes |= set(map(no_gradient, missing))
                check_untouched(subject, made, inputs)
                for name, got in results.items():
                    self._judge(prefix + name, name, got, slot, units)
            slot += units
            progress(self.space.chunk_of(last - 1) + 1 - self.low)

    def _end_at(self, slabs: int, slots: int) -> None:
        """Shortens this call to its first slabs, whose units fill the first slots."""
        plan = self.plan
        plan.slabs = plan.slabs[:slabs]
        plan.pieces = [piece for _, _, pieces in plan.slabs for piece in pieces]
        plan.count = slots
        self.last = plan.slabs[-1][1]
        self.high = self.space.chunk_of(self.last - 1) + 1
        self.pieces, self.owner = self.pieces[: len(plan.pieces)], self.owner[:slots]
        for found in self.figures.values():
            found.open_count = found.open_count[: self.high - self.low]
            for column in found.columns:
                column.error, column.upper = column.error[:slots], column.upper[:slots]
                column.place = column.place[:slots]
                column.hard = column.hard[:slots]

    # -- judgement -------------------------------------------------------------------------------

    def _figures_for(self, label: str, result: str) -> _Figures:
        """Returns the figures of a result, and makes them on the device at the first slab."""
        if label in self.figures:
            return self.figures[label]
        device, parts, chunks = self.device, len(self.plan.names), self.high - self.low

        def zeros(*shape: int, dtype: torch.dtype) -> Tensor:
            return torch.zeros(shape, dtype=dtype, device=device)

        found = _Figures(
            result=result,
            histogram=zeros(parts, COPIES, 2 * BINS, dtype=torch.int32),
            counters=zeros(parts, COPIES, 8, dtype=torch.int64),
            open_count=zeros(chunks, dtype=torch.int32),
            open_place=torch.empty((chunks, OPEN_SLOTS), dtype=torch.int64, device=device),
            open_bits=torch.empty((chunks, OPEN_SLOTS), dtype=torch.int64, device=device),
        )
        slots = self.plan.count
        for job in _jobs(self.space, self.kernel, result):
            if job.slope not in self.references:
                with phase(f"sweep: table of the {'slope' if job.slope else 'curve'}, held against exact values"):
                    self.references[job.slope] = reference_for(self.kernel, self.fmt.name, job.slope, device)
                    self._sample(self.references[job.slope])
            reference = self.references[job.slope]
            gates = None
            if self.space.shape != "unary":
                keys = torch.arange(SIDE, dtype=torch.int64, device=device)
                high, low, scale = reference.at(keys)
                gates = (high, low, scale * reference.units)
            hardest = bool(self.space.hardest) and label == result
            found.columns.append(
                _Column(
                    job=job,
                    reference=reference,
                    error=torch.empty(slots, dtype=torch.float64, device=device),
                    upper=torch.empty(slots, dtype=torch.float64, device=device),
                    place=torch.empty(slots, dtype=torch.int32, device=device),
                    hard=torch.empty(slots if hardest else 1, dtype=torch.float64, device=device),
                    hardest=hardest,
                    gates=gates,
                )
            )
        self.figures[label] = found
        return found

    def _judge(self, label: str, result: str, got: Tensor, first_slot: int, units: int) -> None:
        """Judges one result of a slab, whose units begin at a slot."""
        found = self._figures_for(label, result)
        shared = (found.open_count, found.open_place, found.open_bits, self.first // CHUNK)
        width = halves(self.space, result)
        got_bits = raw(got)
        how = {**self.format_args, "SPREAD": COPIES, "SIZE": UNIT, **_TILE[self.device.type]}
        for column in found.columns:
            maxima = (found.histogram, found.counters, column.error, column.upper, column.place)
            if column.gates is None:
                reference = column.reference
                unary_kernel[(units,)](
                    got_bits, self.pieces, self.owner, first_slot, reference.rows, reference.table.first,
                    reference.table.last_row, int(reference.slope), reference.units, *maxima, column.hard, *shared,
                    HARD=column.hardest, **how,
                )  # fmt: skip
                continue
            half = column.job.half * SIDE if width == 2 else 0
            pairs_kernel[(units,)](
                got_bits.reshape(-1)[half:], width * SIDE, self.pieces, self.owner, first_slot, half, width * SIDE,
                *column.gates, *maxima, *shared, TIMES=column.job.times, **how,
            )  # fmt: skip

    def _sample(self, reference: Reference) -> None:
        """Checks the reference against exact values at random inputs. Raises TruthError if its bound breaks."""
        low, high = (point // self.space.per_key for point in (self.first, self.last - 1))
        low, high = max(low, self.plan.finite[0]), min(high, self.plan.finite[1] - 1)
        if low <= high:
            check_reference(reference, self.space, low, high + 1, SAMPLE, self.low)

    # -- figures ---------------------------------------------------------------------------------

    def parts(self) -> tuple[dict[str, Part], bool]:
        """Returns the part of every result, and True if a chunk had more open elements than the buffer holds."""
        if any(int(item.open_count.max()) > OPEN_SLOTS for item in self.figures.values()):
            return {}, True
        subjects = {label: prefix for prefix in self.subjects for label in self.figures if label.startswith(prefix)}
        return {label: self._part(item, self.subjects[subjects[label]]) for label, item in self.figures.items()}, False

    def _part(self, found: _Figures, subject: Kernel) -> Part:
        part = Part(regimes=self._counted(found), certificates=sorted({c.reference.sentence for c in found.columns}))
        for column in found.columns:
            leaders, hardest = self._worst(found.result, column, subject)
            regimes = {regime: _leading(first, rest) for regime, (first, rest) in leaders.items()}
            part = part.merge(Part(regimes=regimes, curve=self._curve(found.result, column), hardest=hardest))
        return part.merge(self._settled(found))

    def _counted(self, found: _Figures) -> dict[str, Tally]:
        """Returns the counts of every part, without leaders."""
        counts = found.histogram.sum(1, dtype=torch.int64).cpu()
        counters = found.counters.sum(1).cpu().tolist()
        tallies = {}
        for part, name in enumerate(self.plan.names):
            fixed, misrounded, nonfinite, nan, counted, below = counters[part][:6]
            if not counted:
                continue
            counts[part][0] = counted - int(counts[part].sum()) - below
            counts[part][BINS] = below
            tallies[name] = Tally(
                n=counted,
                misrounded=misrounded,
                nonfinite=nonfinite,
                nan=nan,
                capped_sum=fixed,
                counts=in_use(counts[part]),
            )
        return tallies

    @cached_property
    def _slots(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Returns for every unit: its part, deciding and other key of its first element, the end of the other keys."""
        rows, piece = self.pieces, self.owner
        parts = torch.tensor([item.part for item in self.plan.pieces], device=self.device)
        slot = torch.arange(self.plan.count, device=self.device)
        if self.space.shape == "unary":
            gate, other = (rows[piece, 2] + slot - rows[piece, 3]) * UNIT, torch.zeros_like(slot)
        else:
            within, per_row = slot - rows[piece, 5], rows[piece, 4]
            gate, other = rows[piece, 0] + within // per_row, rows[piece, 2] + within % per_row * UNIT
        return parts[piece], gate, other, rows[piece, 3]

    def _places(self, result: str, half: int, gate: _Keys, other: _Keys) -> _Keys:
        if self.space.shape == "unary":
            return gate
        width = halves(self.space, result)
        return gate * (width * SIDE) + (half * SIDE if width == 2 else 0) + other

    def _curve(self, result: str, column: _Column) -> list[Peak]:
        """Returns the largest error of every bin, at its first place. The host searches the units in order."""
        error, within = column.error.cpu().numpy(), column.place.cpu().numpy()
        found: list[Peak] = []
        for piece in self.plan.pieces:
            if piece.bin < 0:
                continue
            unit = int(error[piece.slot : piece.slot + piece.units].argmax())
            if self.space.shape == "unary":
                wide, gate, other = 1, (piece.start // UNIT + unit) * UNIT, 0
            else:
                wide = piece.columns[1] - piece.columns[0]
                row, part = divmod(unit, -(-wide // UNIT))
                gate, other = piece.start + row, piece.columns[0] + part * UNIT
            place = self._places(result, column.job.half, gate, other) + int(within[piece.slot + unit])
            count = (piece.stop - piece.start) * wide
            found.append(self._peak(result, piece.bin, count, float(error[piece.slot + unit]), place))
        return merged_peaks(found, ())

    def _peak(self, result: str, bin_: int, count: int, size: float, place: int) -> Peak:
        key = place // (self.space.per_key * halves(self.space, result))
        return Peak(bin_, count, number(size), place, bits_of_key(self.fmt, key))

    def _worst(
        self, result: str, column: _Column, subject: Kernel
    ) -> tuple[dict[str, tuple[list[Leader], Number]], list[tuple[float, int]]]:
        """Returns the worst elements of every part, and the hardest inputs. Judges the units that hold them again."""
        parts, gate, other, ends = self._slots
        base = self._places(result, column.job.half, gate, other)
        ranked = torch.where(column.upper > 0, column.upper, -1.0)
        used = sorted({piece.part for piece in self.plan.pieces})
        chosen = [top(torch.where(parts == part, ranked, -1.0), KEEP + 1, base) for part in used]
        slots = torch.cat(chosen)
        leaders: dict[str, tuple[list[Leader], Number]] = {}
        if slots.numel():
            places, bits, upper, _, inside = self._again(
                result, column, subject, gate[slots], other[slots], ends[slots]
            )
            inside &= upper > 0
            found = self._part_of(places, result)
            for part, mine in zip(used, chosen, strict=True):
                if not mine.numel():
                    continue
                first, rest = leaders_of(torch.where(inside & (found == part), upper, -1.0), places, bits)
                recorded = float(column.upper[mine].max())
                seen = max((value_of(item.upper) for item in first), default=-1.0)
                if not seen >= recorded * (1 - 2.0**-40):
                    self.notes.add(f"{subject.name} gave other bits of {result} when the same inputs came again")
                    rest = number(max(recorded, value_of(rest)))
                leaders[self.plan.names[part]] = (first, rest)
        if not column.hardest:
            return leaders, []
        slots = top(1.0 - column.hard, HARD_KEEP, base)
        places, _, _, hard, inside = self._again(result, column, subject, gate[slots], other[slots], ends[slots])
        nearness = torch.where(inside, 0.5 - hard, -1.0)
        nearest = top(nearness, HARD_KEEP)
        rows = zip(nearness[nearest].tolist(), places[nearest].tolist(), strict=True)
        return leaders, sorted((0.5 - near, place) for near, place in rows)

    def _part_of(self, places: Tensor, result: str) -> Tensor:
        """Returns the index of the part of each place."""
        per = self.space.per_key * halves(self.space, result)

        def by_key(keys: Tensor, starts: list[int], values: list[int]) -> Tensor:
            cuts, numbers = (torch.tensor(each, device=places.device) for each in (starts, values))
            return numbers[torch.bucketize(keys, cuts, right=True)]

        regime, level = (
            by_key(places // per, self.plan.cuts, [each[at] for each in self.plan.labels]) for at in (0, 2)
        )
        if self.space.shape != "unary":
            bands = self.plan.bands
            level = torch.maximum(
                level, by_key(places % SIDE, [key for key, _ in bands[1:]], [each for _, each in bands])
            )
        return torch.where(level < SPECIAL, regime * len(CLASSES) + level, self.plan.special - SPECIAL + level)

    def _again(
        self, result: str, column: _Column, subject: Kernel, gate: Tensor, other: Tensor, ends: Tensor
    ) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
        """Judges the elements of some units again: places, bits, upper bounds, distances from midpoints, and a mask.

        The mask is True for elements that belong to a unit.
        """
        offset = torch.arange(UNIT, dtype=torch.int64, device=self.device)
        if self.space.shape == "unary":
            # A bin of the curve may cut a unit in two: then the unit occurs twice in `gate`.
            gates = (torch.unique(gate)[:, None] + offset).reshape(-1)
            inside = (gates >= self.first) & (gates < self.last)
            gates = gates.clamp(self.first, self.last - 1)
            others = torch.zeros_like(gates)
            inputs = inputs_of_keys(self.space, self.kernel.op, gates, None)
        else:
            others = other[:, None] + offset
            inside = (others < ends[:, None]).reshape(-1)
            others = others.clamp(max=SIDE - 1)
            gates = gate[:, None].expand_as(others)
            inputs = inputs_of_keys(self.space, self.kernel.op, gates, others)
        got = run(subject, self.space, inputs)[0][result]
        if halves(self.space, result) == 2:
            got = got.chunk(2, -1)[column.job.half]
        bits = bits_of(got.contiguous().reshape(-1))
        gates, others = gates.reshape(-1).contiguous(), others.reshape(-1).contiguous()
        error, upper, hard = (torch.empty(bits.shape, dtype=torch.float64, device=self.device) for _ in range(3))
        reference, how = column.reference, _TILE[self.device.type]
        elements_kernel[(-(-bits.numel() // how["BLOCK"]),)](
            bits, gates, others, error, upper, hard, bits.numel(), reference.rows, reference.table.first,
            reference.table.last_row, int(reference.slope), reference.units, **self.format_args,
            TIMES=column.job.times, **how,
        )  # fmt: skip
        return self._places(result, column.job.half, gates, others), bits, upper, hard, inside

    def _settled(self, found: _Figures) -> Part:
        """Returns a part of the open elements, judged exactly."""
        counts = found.open_count.cpu().tolist()
        part = Part()
        per = self.space.per_key * halves(self.space, found.result)
        for chunk, count in enumerate(counts):
            if not count:
                continue
            places = found.open_place[chunk, :count].tolist()
            bits = found.open_bits[chunk, :count].tolist()
            judged = judge_at(self.kernel, self.space, found.result, places, bits, both=False)
            for place, pattern, verdict in zip(places, bits, judged, strict=True):
                other = None if self.space.shape == "unary" else place % SIDE
                part_number = self.plan.part_at(place // per, other)
                bin_ = self.plan.label(place // per)[1] if part_number < self.plan.special else -1
                # The judging kernel has already counted the element in its bin of the curve.
                curve = [self._peak(found.result, bin_, 0, abs(verdict.ulp), place)] if bin_ >= 0 else []
                regimes = {self.plan.names[part_number]: _single(place, pattern, verdict)}
                part = part.merge(Part(regimes=regimes, curve=curve, escalated=1))
        return part


def _leading(leaders: list[Leader], rest: Number) -> Tally:
    """Returns a tally of leaders only; another tally counts them. It has only the upper ends of their errors."""
    upper = max([0.0, value_of(rest), *(value_of(item.upper) for item in leaders)])
    return Tally(plain=Maximum(upper=number(upper)), leaders=leaders, rest=rest)


def _single(place: int, bits: int, judged: Judged) -> Tally:
    """Returns the tally of one exactly judged element."""
    size = abs(judged.ulp)
    index = int(bin_of(torch.tensor([size], dtype=torch.float64)))
    return Tally(
        n=1,
        misrounded=int(judged.misrounded),
        capped_sum=round(min(size, CAP) * MEAN_UNIT),
        counts=[(index + (BINS if judged.ulp < 0 else 0), 1)],
        plain=Maximum(number(size), number(size)),
        leaders=[Leader(number(size), place, bits)] if size > 0 else [],
    )
