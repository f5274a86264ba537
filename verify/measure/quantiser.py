"""Measures a quantiser: judges the blocks of each case, and tries the laws of quantisers.

A result is about codes or about scales. The error of an element is the number of codes between its code and the
nearest right one. The limit is 0, because every right code is known.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace

import msgspec
import torch
from torch import Tensor

from verify.cases import Case, case_of, inputs_of, problem_of
from verify.cases.blocks import BlockCase, Kind, block_cases, dims_of
from verify.cases.case import LIMIT, fingerprint, spell
from verify.cases.plan import plan
from verify.cases.values import ROW_REGIMES
from verify.declare.declaration import Kernel
from verify.declare.promises import DEFAULT_LIMIT, DEFAULT_NOISE
from verify.measure.call import Measured, rows_and_columns
from verify.measure.tally import octave_edges
from verify.ops.op import Fast
from verify.records.record import Basis, Figures, Histogram, LawRun, Origin, Result, ResultStatus, number
from verify.truth import formats
from verify.truth.codes import code_format
from verify.truth.quantised import Encoding, Judged, Parts, Value, causes, judge
from verify.truth.quantised.blocks import WRONG, counted, from_blocks, in_blocks
from verify.truth.ulp import widen

Call = Callable[[Case], Measured | None]
_OUTPUTS: dict[Kind, str] = {"scales": "scales", "rounding": "codes", "special": "special blocks", "blocks": "blocks"}
_BLOCKS = 24  # number of blocks in the tensors of the laws
_PASTED = 4096  # elements of a law's case that the command to replay it may spell out
_NAMED = 3  # causes are found for at most this many wrong cases of an output
_FLOAT32, _SMALLEST = 24, -149  # bits of a float32 mantissa, and the exponent of the smallest float32 number
_EXTREME = ("tiny 1e-38", "huge 1e30")  # recipes for which a fused kernel promises nothing


@dataclass
class _Blocks:
    """Collects the verdicts on the cases of one output."""

    counts: Counter[str] = field(default_factory=Counter)
    elements: int = 0
    wrong: int = 0
    worst: float = 0.0
    causes: list[str] = field(default_factory=list)
    facts: str = ""  # facts about the first wrong block
    wrong_cases: int = 0
    tried: int = 0  # what the cases try: block maxima, numbers to round, or blocks
    exhaustive: bool = True  # the cases try every value
    zeros_pass: bool = True  # zeros in place of all codes would be right too
    cases: list[Case] = field(default_factory=list)  # that gave a result

    def add(self, judged: Judged, why: list[str], planned: BlockCase | None) -> None:
        """Adds the verdict on one case.

        Args:
            why: the causes of wrong blocks
            planned: the plan of the case; None for a fused quantiser
        """
        self.counts.update(judged.counts)
        self.elements += judged.away.numel()
        self.tried += judged.kinds.numel() if planned is None else planned.tried
        self.exhaustive = self.exhaustive and planned is not None and planned.everything
        if judged.wrong:
            away = judged.away[(judged.kinds == WRONG).reshape(-1)]
            self.wrong += int((away > 0).sum()) or judged.wrong
            self.worst = max(self.worst, float(away.max()), 1.0)
            self.causes += [cause for cause in why if cause.partition(" in ")[0] not in " ".join(self.causes)]
            self.facts = self.facts or ", ".join(f"{name} {text}" for name, text in judged.facts().items())
            self.wrong_cases += 1


@dataclass(frozen=True)
class QuantiserJudging:
    """Judges one quantiser in one dtype. `call` runs it on a case and returns None if it gave no result."""

    kernel: Kernel
    encoding: Encoding
    dtype: str
    target: str
    seed: int
    backend: str
    call: Call

    def results(self) -> Iterator[tuple[Result, str]]:
        """Measures every case. Yields the result of each output, with a note that counts its blocks.

        A fused quantiser gets the cases of its function, others the cases of `block_cases`.
        """
        blocks, fmt = defaultdict[str, _Blocks](_Blocks), formats.named(self.dtype)
        if self.encoding.fused:
            groups = plan(self.kernel, self.dtype, self.backend, self.seed)
            for case in (case for group in groups for case in group.cases if case.fill not in _EXTREME):
                self._judge(blocks["blocks"], case, None)
        else:
            for planned in block_cases(self.encoding, fmt, self.kernel.allows, ROW_REGIMES):
                self._judge(blocks[_OUTPUTS[planned.kind]], self.case(planned), planned)
        for output, each in blocks.items():
            if each.counts:
                count = f"{sum(each.counts.values()):,} blocks, {counted(each.counts)}"
                yield self._result(output, each), f"{self.dtype} {output}: {count}"

    def case(self, planned: BlockCase) -> Case:
        """Returns the case of a plan."""
        return case_of(self.kernel, self.dtype, seed=self.seed, dims=planned.dims, fill=planned.fill, upstream="")

    def _judge(self, into: _Blocks, case: Case, planned: BlockCase | None) -> None:
        """Calls the quantiser on one case, judges its blocks and adds the verdict to `into`."""
        case = msgspec.structs.replace(case, upstream="")
        measured = self.call(case)
        if measured is None:
            return
        into.cases.append(case)
        value, parts = self.value(case, measured), parts_of(measured)
        judged = judge(self.encoding, value, parts)
        named = [] if into.wrong_cases >= _NAMED else causes(self.encoding, value, parts, judged)
        into.add(judged, named, planned)
        if into.zeros_pass:
            zeros = replace(parts, codes=torch.zeros_like(parts.codes.view(torch.uint8)))
            into.zeros_pass = not judge(self.encoding, value, zeros).wrong

    def value(self, case: Case, measured: Measured) -> Value:
        """Returns the numbers before they are quantised: the operand, or an enclosure of the fused function."""
        if not self.encoding.fused:
            x, bits = measured.inputs["x"], measured.inputs.get("bits")
            assert x is not None
            shape = rows_and_columns(self.kernel, case)
            return Value.of(widen(x.cpu()).reshape(shape), None if bits is None else bits.cpu().reshape(shape))
        name = self.kernel.outputs[0]
        problem = problem_of(self.kernel.op, case, measured.inputs, {}, (name,))
        return _enclosed(self.kernel, self.encoding, self.kernel.op.fast(problem)[name].cpu())

    def _result(self, output: str, blocks: _Blocks) -> Result:
        """Returns the entry of one output in the record."""
        right, reason = not blocks.counts["wrong"], ""
        status: ResultStatus = "ok"
        if not right:
            wrong = f"{blocks.counts['wrong']:,} of {sum(blocks.counts.values()):,} blocks"
            status, reason = "wrong", f"{wrong}: {'; '.join(blocks.causes)}. First wrong block: {blocks.facts}"
        elif blocks.zeros_pass:
            status, reason = "vacuous", "zeros in place of all codes would be right too: these cases say nothing"
        tried = blocks.tried
        basis = Basis("exhaustive", tried) if blocks.exhaustive else Basis("observed", tried, self.seed)
        worst = number(blocks.worst if math.isfinite(blocks.worst) else math.nan)
        nonfinite = blocks.wrong if math.isinf(blocks.worst) else 0
        counts = [0, 0, blocks.elements - blocks.wrong, blocks.wrong]  # the bin that starts at 0 contains 0
        # the declaration, by which the codes are judged, as text
        named = [(each.name, getattr(self.encoding, each.name)) for each in fields(self.encoding)]
        rules = str([(name, value.name if name == "data" else value) for name, value in named])
        return Result(
            output=output,
            dtype=self.dtype,
            basis=basis,
            gate="plain",
            limit=0.0,
            status=status,
            figures=Figures(blocks.elements, worst, worst, 0.0 if right else worst, 0.0, blocks.wrong, 0, nonfinite),
            regimes=[],
            histogram=Histogram(octave_edges(4), counts),
            worst=[],
            escalated=0,
            certificate="exact",
            reason=reason,
            properties=fingerprint(self.kernel, output, self.dtype, blocks.cases, rules),
        )

    # -- laws -------------------------------------------------------------------------------------

    def laws(self) -> list[LawRun]:
        """Tries the laws of quantisers on one tensor.

        Tries none for a fused quantiser, and for blocks that are too large for a case.
        """
        if self.encoding.fused:
            return []
        rows, columns = self.encoding.block
        count = max(min(_BLOCKS, LIMIT // max(rows * columns, 1)), 1)
        dims = dims_of(self.encoding, count, self.kernel.allows)
        if math.prod(dims) > LIMIT:
            return []
        base = case_of(self.kernel, self.dtype, seed=self.seed, dims=dims, fill="randn", upstream="")
        drawn = inputs_of(self.kernel.op, base, "cpu")["x"]
        assert drawn is not None
        x = in_blocks(widen(drawn), self.encoding, 0.0)
        x = x * torch.exp2((torch.arange(len(x)) % 7 - 3).double())[:, None]  # so that neighbours have other scales
        before = self.call(_spelled(base, from_blocks(x, self.encoding, dims).to(drawn.dtype)))
        if before is None or (held := before.inputs["x"]) is None:
            return []
        laws = _QuantiserLaws(self, base, widen(held.cpu()), parts_of(before), drawn.dtype)
        return [law for law in laws.all() if law is not None]


@dataclass(frozen=True)
class _QuantiserLaws:
    """Tries the laws of one quantiser on the numbers `x`, for which it returned `parts`."""

    judging: QuantiserJudging
    base: Case
    x: Tensor
    parts: Parts
    kind: torch.dtype

    def all(self) -> Iterator[LawRun | None]:
        """Yields the outcome of each law that applies; None if the quantiser gave no result."""
        encoding, shape = self.judging.encoding, (self.x.shape[0], self.x.shape[1])
        numbers, codes = encoding.decode(self.parts, shape), encoding.codes_of(self.parts)
        again = numbers if self._fits(numbers) else self._with_whole_scales()
        if again is not None:
            yield self._law("requantising", "requantised numbers are other numbers", again, again, None)
        rule = "x times 4 has other codes or not 4 times the scales"
        yield self._law("power of two", rule, self.x * 4, numbers * 4, codes)
        if encoding.grid(shape) != (1, 1) and not encoding.random:  # the bits of a block stay where they are
            turned = [from_blocks(in_blocks(x, encoding, 0).flip(0), encoding, shape) for x in (self.x, numbers, codes)]
            yield self._law("permuted blocks", "blocks in another order have other codes", *turned)
        yield from self._laws_of_one_block(numbers, codes)

    def _laws_of_one_block(self, numbers: Tensor, codes: Tensor) -> Iterator[LawRun | None]:
        """Yields the outcomes of laws that change one block: the others must keep their codes.

        If the whole tensor has a scale too, its largest number decides that scale. So the changed block is not the one
        that contains this number.
        """
        encoding, shape = self.judging.encoding, (self.x.shape[0], self.x.shape[1])
        rows, columns = encoding.block_in(shape)
        at = int(self.x.abs().argmax()) if encoding.second else -1
        left = columns if 0 <= at % shape[1] < columns and at >= 0 else 0
        block = (slice(0, rows), slice(left, left + columns))
        others = torch.ones(shape, dtype=torch.bool)
        others[block] = False
        for name, rule, change in (
            ("zero block", "a block of zeros does not decode to zeros, or changes others", torch.zeros_like),
            ("neighbours", "a block has other codes beside other blocks", lambda x: x * 0.5),
            ("NaN in its block", "NaN in a block changes another block", lambda x: torch.full_like(x, math.nan)),
        ):
            if name != "zero block" and not bool(others.any()):
                continue
            if name == "NaN in its block" and encoding.second:
                continue  # a NaN would make the scale of the tensor NaN
            changed, wanted = self.x.clone(), numbers.clone()
            changed[block], wanted[block] = change(changed[block]), 0.0
            where = torch.ones_like(others) if name == "zero block" else others
            yield self._law(name, rule, changed, wanted, torch.where(others, codes, -1), where)

    def _fits(self, numbers: Tensor) -> bool:
        """True if the dtype of the quantiser holds these numbers."""
        return bool((numbers.to(self.kind).double() == numbers).all())

    def _with_whole_scales(self) -> Tensor | None:
        """Returns quantised numbers with scales that are powers of two, if the quantiser gives these.

        Other scales give numbers that the dtype does not hold. The ends of each block decide its scale: they become
        the largest number, or the ends of the range if there are zero points.
        """
        encoding, shape = self.judging.encoding, (self.x.shape[0], self.x.shape[1])
        most = encoding.data.largest
        low = -most if not encoding.zero_point else min(encoding.data.numbers[0], -(2.0 ** (encoding.data.bits - 1)))
        x = in_blocks(self.x * (most / 64), encoding, 0.0)
        x[:, 0], x[:, -1] = (low + encoding.span if encoding.zero_point else most), low
        if encoding.second:
            x[0] *= code_format(encoding.scale).largest
        measured = self.judging.call(_spelled(self.base, from_blocks(x, encoding, shape).to(self.kind)))
        if measured is None:
            return None
        numbers = encoding.decode(parts_of(measured), shape)
        return numbers if self._fits(numbers) else None

    def _law(
        self, name: str, rule: str, x: Tensor, wanted: Tensor, codes: Tensor | None, where: Tensor | None = None
    ) -> LawRun | None:
        """Quantises `x` and checks one law: the numbers, and the codes if they are given, are the expected ones.

        A code of -1 means any code. `where` marks the numbers that count; without it all do.
        """
        case = _spelled(self.base, x.to(self.kind))
        if (measured := self.judging.call(case)) is None:
            return None
        parts, encoding, shape = parts_of(measured), self.judging.encoding, (x.shape[0], x.shape[1])
        got, made = encoding.decode(parts, shape), encoding.codes_of(parts)
        differs = got != wanted if where is None else (got != wanted) & where
        if codes is not None:
            differs |= (made != codes) & (codes >= 0)
        wrong = torch.nonzero(differs.reshape(-1))
        label, dtype = f"quantiser: {name}", self.judging.dtype
        if not len(wrong):
            return LawRun(law=label, dtype=dtype, status="ok", cases=1)
        at = int(wrong[0])
        place = (at // shape[1], at % shape[1])
        code = "" if codes is None or codes[place] < 0 else f", code {int(codes[place]):x}"
        facts = {
            "at": f"[{place[0]}, {place[1]}], {len(wrong):,} elements in all",
            "got": f"{float(got[place]):.9g}, code {int(made[place]):x}",
            "truth": f"{float(wanted[place]):.9g}{code}",
        }
        pasted = x.numel() <= _PASTED  # else the command would fill screens
        origin = Origin.here(self.judging.target, case.to_json(), result="codes", index=0) if pasted else None
        return LawRun(law=label, dtype=dtype, status="broken", cases=1, message=rule, facts=facts, origin=origin)


def _spelled(case: Case, x: Tensor) -> Case:
    """Returns the case with these numbers."""
    return msgspec.structs.replace(case, fill="ones", values={"x": spell(x)})


def parts_of(measured: Measured) -> Parts:
    """Returns a quantiser's results, in CPU memory."""
    held = {name: value.detach().cpu() for name, value in measured.results.items()}
    return Parts(held["codes"], held["scales"], held.get("second"), held.get("zeros"))


def _enclosed(kernel: Kernel, encoding: Encoding, fast: Fast) -> Value:
    """Returns intervals for the float32 numbers that a fused kernel may have before it quantises them.

    An interval is the exact value, widened by the limit, the noise and the bound of the float64 reference.
    """
    value = fast.value.double()
    exponent = torch.where(value == 0, _SMALLEST, torch.frexp(value)[1] - _FLOAT32).clamp(min=_SMALLEST)
    ulp = torch.ldexp(torch.ones_like(value), exponent)
    room = ulp * DEFAULT_LIMIT
    if fast.noise is not None:
        room = torch.maximum(ulp, fast.noise * kernel.max_noise.get("", DEFAULT_NOISE))
    bound = torch.zeros_like(value) if fast.bound is None else fast.bound
    low, high = value - room - bound, value + room + bound
    if encoding.before != "float32":
        narrow = (low.bfloat16().double(), high.bfloat16().double())
        low = narrow[0] if encoding.before else torch.minimum(low, narrow[0])
        high = narrow[1] if encoding.before else torch.maximum(high, narrow[1])
    return Value(low, high, torch.signbit(value))
