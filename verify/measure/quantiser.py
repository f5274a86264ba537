"""Measures a quantiser: judges the blocks of each case.

A result is about codes or about scales. The error of an element is the number of codes between its code and the
nearest right one. The limit is 0, because every right code is known.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields, replace

import msgspec
import torch

from verify.cases import Case, case_of, problem_of
from verify.cases.blocks import BlockCase, Kind, block_cases
from verify.cases.case import fingerprint
from verify.cases.plan import plan
from verify.cases.values import ROW_REGIMES
from verify.declare.declaration import Kernel
from verify.declare.promises import DEFAULT_LIMIT, DEFAULT_NOISE
from verify.measure.call import Measured, rows_and_columns
from verify.measure.tally import octave_edges
from verify.ops.op import Fast
from verify.records.record import Basis, Figures, Histogram, Result, ResultStatus, number
from verify.truth import formats
from verify.truth.quantised import Encoding, Judged, Parts, Value, causes, judge
from verify.truth.quantised.blocks import WRONG, counted
from verify.truth.ulp import widen

Call = Callable[[Case], Measured | None]
_OUTPUTS: dict[Kind, str] = {"scales": "scales", "rounding": "codes", "special": "special blocks", "blocks": "blocks"}
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
