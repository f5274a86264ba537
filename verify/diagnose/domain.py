"""Finds the domain of a kernel by trying: the dtypes, ranks, sizes, layouts and magnitudes that it accepts.

Each trial changes one thing in the plainest case. A refusal gives one line of the report. If a trial ends the kernel's
process, the caller starts the probe again with that trial in `avoid`.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

import msgspec

from verify.backends import Backend
from verify.cases.blocks import block_cases
from verify.cases.case import Case
from verify.cases.layouts import LAYOUTS
from verify.cases.sizes import sizes_of
from verify.cases.strategies import Sizes
from verify.declare import promises
from verify.declare.declaration import DEFAULT_DTYPES, Kernel
from verify.diagnose.requests import Probed
from verify.errors import KernelError, OtherDtype
from verify.laws.accuracy import judge_measured
from verify.laws.law import Broken, Subject, plain_case
from verify.measure.call import Measured, run_kernel
from verify.measure.quantiser import QuantiserJudging, parts_of
from verify.ops.geometry import ByGeometry
from verify.ops.op import Largest, largest_words
from verify.truth import formats
from verify.truth.quantised import Encoding, causes, followed

Progress = Callable[[str], None]

DTYPES = (*DEFAULT_DTYPES, "float64")
WIDTHS = (1, 2, 3, 7, 8, 16, 24, 32, 33, 64, 100, 128, 200, 256, 512, 1000, 1024, 2048, 4096, 8192, 16384, 32768, 65536)
COUNTS = (1, 2, 3, 7, 64, 1000)  # numbers of rows; without a GPU each row takes a millisecond or more
WIDER = (65_537, 131_072, 262_144)  # more widths, on a GPU
PLAIN = 64
RANKS = ((PLAIN,), (2, PLAIN), (2, 3, PLAIN), (2, 1, 3, PLAIN))
MAGNITUDES = (1e38, 1e30, 1e24, 1e19, 1e18, 1e15, 1e12, 1e9, 1e6, 65504.0, 1e4, 1e3, 100.0, 10.0)
ENDS = "its process ends, or hangs"
MOST = 1 << 17  # limit for an operand of a PyTorch function, whose shapes are traced on the CPU
POWERS = 1 << 16  # its divisors are the powers of two up to it
BLOCK_CASES = 4  # number of cases of a quantiser, of each kind
STEPS = (256, 128, 64, 32, 16, 8, 4, 2)


def _shown(size: Largest) -> str:
    parts = [f"{name!r}: {each:g}" for name, each in size.items()] if isinstance(size, dict) else []
    return f"{{{', '.join(parts)}}}" if isinstance(size, dict) else f"{size:g}"


def _powers(taken: Collection[int], refused: Collection[int]) -> bool:
    """True if the accepted sizes are powers of two and the refused ones are not."""
    powers = [[size for size in some if size & (size - 1) == 0] for some in (taken, refused)]
    return len(taken) > 2 and len(powers[0]) == len(taken) and bool(refused) and not powers[1]


def _tried(kernel: Kernel) -> tuple[str, ...]:
    """Returns the dtypes to try: the wide ones and narrow ones that the declaration names."""
    return (*DTYPES, *(each for each in kernel.dtypes if formats.named(each).bits < 16))


def _for_all(kernel: Kernel, said: Mapping[str, Mapping[str, str]]) -> dict[str, Mapping[str, str]]:
    """Returns the declared dtypes of operands or outputs for every dtype to try.

    An undeclared dtype gets all the names that the declaration has for any dtype.
    """
    every = {name: item for some in said.values() for name, item in some.items()}
    return {dtype: said.get(dtype, {} if dtype in kernel.dtypes else every) for dtype in _tried(kernel)}


def probe(kernel: Kernel, target: str, backend: Backend, progress: Progress, avoid: Sequence[str]) -> Probed:
    """Returns what the kernel accepts, and the arguments of a matching declaration.

    For a quantiser, returns its rules.
    """
    if kernel.encoding is not None and not kernel.encoding.fused:
        return _rules(kernel, kernel.encoding, target, backend, progress)
    return _Probe(kernel, target, backend, progress, tuple(avoid)).found()


class _Probe:
    """Tries the cases of one kernel and collects the report and the arguments of the declaration."""

    def __init__(
        self, kernel: Kernel, target: str, backend: Backend, progress: Progress, avoid: tuple[str, ...]
    ) -> None:
        # the probe must not depend on the promises of the declaration
        dtypes = _tried(kernel)
        self.kernel = dataclasses.replace(
            kernel,
            dtypes=dtypes,
            where="",
            largest={},
            class_limits={},
            contiguous=(),
            max_ulp=dict.fromkeys(dtypes, max(kernel.max_ulp.values())),
            operand_dtypes=_for_all(kernel, kernel.operand_dtypes),
            output_dtypes=_for_all(kernel, kernel.output_dtypes),
        )
        self.declared = kernel
        self.target, self.backend, self.progress, self.avoid = target, backend, progress, avoid
        self.lines: list[tuple[str, str]] = []
        self.arguments: dict[str, str] = {}
        self.other: OtherDtype | None = None  # set if the last trial failed because an output had another dtype
        geometry = kernel.op.geometry
        self.plain: tuple[int, ...] = (PLAIN, PLAIN, PLAIN) if geometry.multiplies else (2, PLAIN)
        if geometry.named:  # the first sizes that the kernel accepts
            sizes = sizes_of(kernel.op, 1 << 12)
            taken = (dims for dims in sizes if not all(self._refusal(dtype, dims) for dtype in DEFAULT_DTYPES))
            self.plain = next(taken, sizes[0])

    def found(self) -> Probed:
        """Runs all trials. Sizes, layouts and magnitudes need a dtype that the kernel accepts."""
        dtypes = self._dtypes()
        if dtypes:
            self._sizes(dtypes[0])
            self._layouts(dtypes[0])
            self._magnitudes(dtypes)
        return Probed(self.kernel.name, self.lines, self.arguments)

    def _say(self, name: str, text: str) -> None:
        self.lines.append((name, text))

    def _case(self, dtype: str, dims: tuple[int, ...]) -> Case:
        return plain_case(self._subject(dtype), dims)

    def _subject(self, dtype: str) -> Subject:
        return Subject(self.kernel, dtype, self.backend, Sizes(), self.target)

    def _try(self, what: str, case: Case) -> tuple[Measured | None, str]:
        """Runs a case. Returns the results, or None and the reason."""
        self.other = None
        if what in self.avoid:
            return None, ENDS
        self.progress(what)
        try:
            return run_kernel(self.kernel, case, self.backend.device), ""
        except KernelError as error:
            self.other = error if isinstance(error, OtherDtype) else None
            return None, str(error).removeprefix(f"{self.kernel.name} raised ")

    def _dtypes(self) -> list[str]:
        """Tries each dtype, also with operands in float32. Returns the accepted dtypes."""
        taken, gradients = [], []
        beside: dict[str, list[str]] = {}  # outcome with operands in other dtypes -> data dtypes
        for dtype in self.kernel.dtypes:
            measured, reason = self._in_own_dtypes(f"dtype {dtype}", dtype)
            others = self._others(dtype, wanted=measured is None)
            if others:
                said, plain = ", ".join(f"{name} as {item}" for name, item in others.items()), self.kernel
                self._declare("operand_dtypes", dtype, others)
                mixed, why = self._in_own_dtypes(f"dtype {dtype} with {said}", dtype)
                if mixed is not None:
                    kept = self._within(self._subject(dtype), self._case(dtype, self.plain), mixed)
                    limit = f", and beyond {self.kernel.ulp_limit(dtype):g} ULP on ordinary inputs"
                    why = f"taken{'' if kept else limit}"
                if mixed is not None or why != reason:
                    beside.setdefault(f"{said}: {why}", []).append(dtype)
                if measured is not None or mixed is None:
                    self.kernel = plain
                measured = measured or mixed
            if measured is None:
                self._say("refuses", f"{dtype}: {reason}")
                continue
            taken.append(dtype)
            gradients = [name for name in measured.results if name not in self.kernel.outputs]
        self._say("dtypes", ", ".join(taken) or "none of " + ", ".join(self.kernel.dtypes))
        for said, dtypes in beside.items():
            self._say("mixed", f"beside {', '.join(dtypes)} {said}")
        if taken:
            asked = "none" if self.kernel.differentiable else "not requested: gradients=False"
            self._say("gradients", ", ".join(gradients) or asked)
        if taken and taken != list(self.declared.dtypes):
            self.arguments["dtypes"] = repr(taken)
        for what in ("operand_dtypes", "output_dtypes"):
            self._tell_others(what, taken)
        return taken

    def _others(self, dtype: str, *, wanted: bool) -> dict[str, str]:
        """Returns operands to try in float32 beside a 16-bit dtype, as in mixed precision.

        These are the weights and biases. If there are none and `wanted` is true, they are all operands but the first.
        """
        floating = [o for o in self.kernel.op.operands if o.name in self.kernel.operands and o.range is None]
        weights = [o.name for o in floating if o.role in ("scale", "shift")]
        if formats.named(dtype).bits > 16 or self.kernel.operand_dtypes.get(dtype):
            return {}
        return dict.fromkeys(weights or [o.name for o in floating[1:] if wanted], "float32")

    def _declare(self, what: str, dtype: str, names: Mapping[str, str]) -> None:
        known = getattr(self.kernel, what)
        changed = {**known, dtype: {**known.get(dtype, {}), **names}}
        self.kernel = dataclasses.replace(self.kernel, **{what: changed})  # type: ignore[arg-type]

    def _in_own_dtypes(self, what: str, dtype: str) -> tuple[Measured | None, str]:
        """Runs the plainest case and declares the output dtypes that the kernel returns."""
        for _ in self.kernel.outputs:
            found = self._try(what, self._case(dtype, self.plain))
            if self.other is None:
                return found
            self._declare("output_dtypes", dtype, {self.other.output: self.other.dtype})
        return self._try(what, self._case(dtype, self.plain))

    def _tell_others(self, what: str, taken: Sequence[str]) -> None:
        """Adds `operand_dtypes` or `output_dtypes` to the declaration, in their short form if all dtypes agree."""
        found = {dtype: promises.differing(dtype, getattr(self.kernel, what).get(dtype, {})) for dtype in taken}
        before = _for_all(self.declared, getattr(self.declared, what))
        if all(found[dtype] == promises.differing(dtype, before[dtype]) for dtype in taken):
            return
        for said in promises.of_others("", found):
            self._say("operands" if what == "operand_dtypes" else "returns", said)
        flat: dict[str, str] = {}
        for some in found.values():
            flat |= some
        same = all(promises.differing(dtype, flat) == some for dtype, some in found.items())
        self.arguments[what] = repr(flat if same else {dtype: some for dtype, some in found.items() if some})

    def _refusal(self, dtype: str, dims: tuple[int, ...]) -> str:
        return self._try(f"{dtype} {list(dims)}", self._case(dtype, dims))[1]

    def _sizes(self, dtype: str) -> None:
        """Tries sizes of each dimension alone, as far as the declaration allows them, and the ranks of operands."""
        op, geometry, conditions = self.kernel.op, self.kernel.op.geometry, list[str]()
        contraction, plain, named = geometry.multiplies, self.plain, geometry.named
        widths: tuple[int, ...] = WIDTHS if named or self.backend.scale == "small" else WIDTHS + WIDER
        if contraction:
            widths = tuple(width for width in WIDTHS if width <= 1024)

        def shapes(dims: tuple[int, ...]) -> list[tuple[int, ...]]:
            return list(op.shapes(dims, op.params).values())

        names = geometry.dims if named else ("m", "k", "n") if contraction else ("m", "n")
        for place, name in enumerate(names if not geometry.examples else ()):

            def sized(size: int, place: int = place) -> tuple[int, ...]:
                return (*plain[:place], size, *plain[place + 1 :])

            # the width of the data, which is the first operand
            width = contraction or shapes(plain)[0][-1:] != shapes(sized(plain[place] + 1))[0][-1:]
            tried = widths if width else COUNTS if named else (*COUNTS, 4096)
            if named:
                fits = (dims for dims in map(sized, tried) if geometry.allows(dims))
                tried = tuple(dims[place] for dims in fits if max(map(math.prod, shapes(dims))) <= MOST)
            if len(tried) > 1:
                refusal = functools.cache(lambda size, sized=sized: self._refusal(dtype, sized(size)))
                conditions += self._condition(name, tried, refusal)
        if geometry.examples:
            not_taken = {dims: why for dims in geometry.examples if (why := self._refusal(dtype, dims))}
            self._say("sizes", f"{len(geometry.examples) - len(not_taken)} of {len(geometry.examples)} examples")
            for dims, why in list(not_taken.items())[:3]:
                self._say("refuses", f"{list(dims)}: {why}")
        if not contraction and not named:
            refused = {len(dims): why for dims in RANKS if (why := self._refusal(dtype, dims))}
            taken = [len(dims) for dims in RANKS if len(dims) not in refused]
            self._say("ranks", ", ".join(map(str, taken)))
            for rank, why in refused.items():
                self._say("refuses", f"rank {rank}: {why}")
            if refused and taken:
                conditions.append(
                    f"rank == {taken[0]}" if len(taken) == 1 else f"rank in ({', '.join(map(str, taken))})"
                )
        for condition in conditions:
            self._where(condition)

    def _where(self, condition: str) -> None:
        """Adds a condition to those found before and to that of a PyTorch function's declaration."""
        said = self.arguments.get("where", repr(self.kernel.op.geometry.where))[1:-1]
        if condition not in said.split(" and "):
            self.arguments["where"] = repr(f"{said} and {condition}" if said else condition)

    def _condition(self, name: str, sizes: Iterable[int], refusal: Callable[[int], str]) -> list[str]:
        """Returns conditions on one size that separate refused sizes from accepted ones. Bisection finds the limit."""
        refused: dict[int, str] = {}
        for size in sizes:  # after a size that ends the process, larger ones are not tried
            if why := ENDS if ENDS in refused.values() else refusal(size):
                refused[size] = why
        taken = [size for size in sizes if size not in refused]
        if not taken:
            self._say("refuses", f"every {name} that was tried: {next(iter(refused.values()))}")
            return []
        power = _powers(taken, [size for size in refused if size < max(taken)])
        step = 1 if power else next((step for step in STEPS if refused and all(size % step == 0 for size in taken)), 1)

        def regular(size: int) -> bool:
            return POWERS % size == 0 if power else size % step == 0

        beyond = [size for size in refused if size > max(taken) and regular(size)]
        found = [f"{POWERS} % {name} == 0"] if power else [f"{name} % {step} == 0"] if step > 1 else []
        of = ", powers of two" if power else f", multiples of {step}" if step > 1 else ""
        most = max(taken)
        if beyond:
            high = min(beyond)
            while not power and high - most > step:
                middle = (most + high) // 2 // step * step
                most, high = (most, middle) if refusal(middle) else (middle, high)
            found.append(f"{name} <= {most}")
            self._say("refuses", f"{name} = {high:,}: {refusal(high)}")
        smaller = [size for size in refused if size < min(taken) and regular(size)]
        if smaller:
            found.append(f"{name} >= {min(taken)}")
            self._say("refuses", f"{name} = {max(smaller):,}: {refused[max(smaller)]}")
        others = [size for size in refused if size not in beyond + smaller and regular(size)]
        if others:
            self._say("refuses", f"{name} = {', '.join(map(str, others[:5]))}: {refused[others[0]]}")
        elif of and (odd := [size for size in refused if not regular(size)]):
            self._say("refuses", f"{name} = {odd[0]:,}: {refused[odd[0]]}")
        said = f"{name}: {min(taken):,} to {most:,}{of}" + ("" if refused else ", all that were tried")
        self._say("sizes", said)
        return found

    def _layouts(self, dtype: str) -> None:
        """Tries every layout of the first operand and judges the results."""
        plain, subject = self._case(dtype, self.plain), self._subject(dtype)
        first = self.kernel.operands[0]
        refused, wrong = dict[str, str](), list[str]()
        for layout in LAYOUTS:
            laid = msgspec.structs.replace(plain, layouts={first: layout})
            measured, why = self._try(f"layout {layout}", laid)
            if measured is None:
                refused[layout] = why
            elif not self._within(subject, laid, measured):
                wrong.append(layout)
        if "contiguous" in wrong:  # the error does not depend on the layout
            wrong = []
        self._say("layouts", ", ".join(layout for layout in LAYOUTS if layout not in (*refused, *wrong)))
        if wrong:
            limit = f"beyond {self.kernel.ulp_limit(dtype):g} ULP"
            self._say("wrong", f"{limit} where {first} is {', '.join(wrong)}; {first}.contiguous() fixes that")
        for layout, why in list(refused.items())[:3]:
            self._say("refuses", f"{layout}: {why}")
        if refused:
            self.arguments["layouts"] = "'contiguous'"

    def _magnitudes(self, dtypes: Sequence[str]) -> None:
        """Finds, for each dtype, the largest magnitude of inputs at which the error keeps the limit."""
        found: dict[str, Largest] = {}
        kept = list(dtypes)  # dtypes that a declaration may promise
        geometry = self.kernel.op.geometry
        dims = self._wide(dtypes[0])
        for dtype in dtypes:
            subject = self._subject(dtype)
            beyond = math.inf
            plain = self._case(dtype, dims)
            fills = ("bits",) if geometry.by_element else ("huge 1e30", "mean 1e4")
            cases = [msgspec.structs.replace(plain, fill=fill, regime=geometry.regime(fill)) for fill in fills]

            def trouble(largest: Largest | None, cases: Sequence[Case] = cases, subject: Subject = subject) -> str:
                words = "all inputs" if largest is None else largest_words(largest)
                tried = (msgspec.structs.replace(case, largest=largest) for case in cases)
                return next(filter(None, (self._trouble(subject, case, words) for case in tried)), "")

            if said := self._trouble(subject, self._case(dtype, dims), "ordinary inputs"):
                self._say("magnitudes", f"{dtype}: {said} on ordinary inputs")
                if dtype not in self.declared.dtypes:  # the kernel accepts this dtype and computes in a narrower one
                    kept.remove(dtype)
                continue
            for largest in (math.inf, *MAGNITUDES):
                said = trouble(None if math.isinf(largest) else largest)
                if not said:
                    break
                beyond, text = largest, said
            else:
                self._say("magnitudes", f"{dtype}: beyond the limit already at {MAGNITUDES[-1]:g}")
                if dtype not in self.declared.dtypes:
                    kept.remove(dtype)
                continue
            if beyond < math.inf or largest < math.inf:
                found[dtype] = bound = self._of_operands(largest, trouble)
                where = f"{largest_words(bound)}; " if isinstance(bound, dict) else f"up to {largest:g}; "
                self._say("magnitudes", f"{dtype}: {where}at {min(beyond, 3.4e38):g} {text}")
            else:
                self._say("magnitudes", f"{dtype}: all")
        if kept and kept != list(dtypes):
            self.arguments["dtypes"] = repr(kept)
            if kept == list(self.declared.dtypes):
                del self.arguments["dtypes"]
        if found:
            each = ", ".join(f"{dtype!r}: {_shown(size)}" for dtype, size in found.items())
            same = all(found.get(dtype) == found[next(iter(found))] for dtype in kept)
            self.arguments["largest"] = _shown(next(iter(found.values()))) if same else f"{{{each}}}"

    def _wide(self, dtype: str) -> tuple[int, ...]:
        """Returns sizes whose sums overflow earlier than in the plainest case, if the kernel accepts them."""
        geometry = self.kernel.op.geometry
        if geometry.named:
            wide = max(sizes_of(self.kernel.op, 1 << 9), key=math.prod)
        else:
            wide = geometry.of(ByGeometry((4, 256), (2, 1000), self.plain))
        return self.plain if self._refusal(dtype, wide) else wide

    def _of_operands(self, largest: float, trouble: Callable[[Largest], str]) -> Largest:
        """Returns the magnitude by operand if only some operands need the limit; else the magnitude."""
        names = [each.name for each in self.kernel.op.operands if each.role == "data" and each.range is None]
        needed = [name for name in names if trouble({other: largest for other in names if other != name})]
        alone = dict.fromkeys(needed, largest)
        return alone if 0 < len(needed) < len(names) and not trouble(alone) else largest

    def _trouble(self, subject: Subject, case: Case, words: str) -> str:
        """Returns why a declaration cannot promise a case; empty if it can."""
        measured, why = self._try(f"{case.dtype} {words}", case)
        kept = measured is not None and self._within(subject, case, measured)
        return "" if kept else why or f"beyond {subject.kernel.ulp_limit(case.dtype):g} ULP"

    def _within(self, subject: Subject, case: Case, measured: Measured) -> bool:
        try:
            judge_measured(subject, case, measured)
        except Broken:
            return False
        return True


def _rules(
    kernel: Kernel, encoding: Encoding, target: str, backend: Backend, progress: Callable[[str], None]
) -> Probed:
    """Returns the rules of a quantiser in its first dtype, and the arguments of a matching declaration."""
    dtype = kernel.dtypes[0]
    judging = QuantiserJudging(
        kernel, encoding, dtype, target, 0, backend.name, lambda case: run_kernel(kernel, case, backend.device)
    )
    tried = []
    cases = block_cases(encoding, formats.named(dtype), kernel.allows)
    for kind in ("rounding", "scales"):
        for planned in itertools.islice((each for each in cases if each.kind == kind), BLOCK_CASES):
            progress(f"{kernel.name} {dtype}, {planned.fill}")
            measured = judging.call(case := judging.case(planned))
            assert measured is not None
            tried.append((judging.value(case, measured), parts_of(measured)))
    progress(f"{kernel.name} {dtype}, rules")
    found = followed(encoding, tried)
    lines = [("dtypes", dtype)]
    if not found:
        why = next(filter(None, (causes(encoding, *each) for each in tried)), [])
        lines += [("rules", "none that verify knows"), ("declared", "; ".join(why) or "no block is wrong")]
    for each in found:
        lines += [("scales", f"{each.rule}{f' by {each.by}' if each.by else ''}"), ("ties", each.ties)]
        lines += [("beyond", each.overflow), ("zeros", each.zero), ("layout", each.words)]
    told = ("ties", "overflow", "packed", "swizzle", "rule", *(["by"] if any(each.by for each in found) else []))
    other = [each for each in found if any(getattr(each, name) != getattr(encoding, name) for name in told)]
    first = dataclasses.replace(other[0], zero=encoding.zero) if other and len(other) == len(found) else None
    return Probed(kernel.name, lines, {} if first is None else {"quantise": first.declaration})
