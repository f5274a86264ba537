"""Random programs of like= against an oracle: python -m benchmarks.fuzz_programs --seed 1 --programs 2000

Each program composes 2 to 6 functions, on inputs with ties, halves, equal rows, large means, thresholds hit exactly
and infinities. `tests/oracle` evaluates it in 500 bits under several choices at ties, with its gradients, and shares no
code with verify. `verify.assert_close` is then asked about PyTorch's own results, about the right ones, and about wrong
ones: scaled, zeros, and one gradient dropped. A wrong one counts where it is further from every choice than the
published limit of the program's noise, which the oracle measures itself.

    --json PATH         every figure and, for each finding, a snippet that runs alone
    --replay SEED:N     one program, with its source and every answer
    --jobs N            processes; the order of results does not depend on it

Ctrl-C prints and writes what was found so far. Exits 1 if a truth is wrong, a right result fails, a wrong one passes,
verify crashes, or not every program was judged.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing
import re
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from mpmath import mp, mpf
from torch import Tensor

import verify
from benchmarks.drafts import Program, drawn
from tests.oracle.choices import Evaluation, disturbed, noise, opened, rounded
from tests.oracle.numbers import NEAR
from tests.oracle.searching import Choices

OFF = {"float32": 1.001, "bfloat16": 1.02, "float16": 1.02, "float64": 1 + 1e-6}
BITS = {"float32": 24, "bfloat16": 8, "float16": 11, "float64": 53}
LOWEST = {"float32": -149, "bfloat16": -133, "float16": -24, "float64": -1074}
LIMITS = {
    "float32": (10.0, 8.0),
    "float64": (10.0, 8.0),
    "bfloat16": (1.0, 5.0),
    "float16": (1.0, 5.0),
}  # docs/limits.md, elementwise: ULP and noise
SUMS = {"float32": 4.0, "float64": 4.0}  # ULP of outputs that add up; what a gradient adds up the oracle does not tell
SLACK = 2.0  # the oracle's noise is sampled, and so is verify's
STORED = 12  # runs with roundings that reach as far as a right kernel's
OTHERS = 100  # choices that are drawn where a message names a truth that none of the first has
FIRST_AT_RANDOM = 2  # the choice after those in which the first and the last of equal numbers win
SECONDS = 60
LINES = (
    *(
        f"PyTorch {kind}"
        for kind in ("passes", "vacuous or undecided", "wrong", "wrong by the oracle too", "refused", "crash")
    ),
    *(
        "right passes",
        "right result fails",
        "right result at random not found",
        "truths compared",
        "truth of another choice",
        "truth among too many choices",
        "truth differs",
        "truth differs at a tie",
    ),
    *(
        f"{kind} {what}"
        for kind in ("scaled", "zeros", "dropped")
        for what in ("found", "within limits", "right under another choice", "passes")
    ),
    *("crash", "timeout", "harness"),
)
BAD = (
    "right result fails",
    "truth differs",
    "truth differs at a tie",
    "scaled passes",
    "zeros passes",
    "dropped passes",
    "crash",
    "harness",
)


@dataclass
class Answer:
    """What verify said: a status and text of each result that did not pass; or a status of the whole."""

    results: dict[str, tuple[str, str]] = field(default_factory=dict)
    whole: str = ""
    text: str = ""


def asked(program: Program, results: dict[str, Tensor]) -> Answer:
    """Asks verify.assert_close about results."""
    given = tuple(results[name] for name in program.outputs)
    grads = {name[1:]: value for name, value in results.items() if name not in program.outputs}
    upstream = [dy if y.is_floating_point() else None for y, dy in zip(given, program.upstream, strict=True)]
    wanted: dict[str, Any] = {"grads": grads, "upstream": upstream} if grads else {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            inputs = tuple(program.inputs.values())
            verify.assert_close(given[0] if len(given) == 1 else given, like=program.f, inputs=inputs, **wanted)
    except AssertionError as error:
        parts = re.split(r"^\w+\.(\w+) is (\w+): ", str(error), flags=re.MULTILINE)
        found = {name: (status, text) for name, status, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True)}
        return Answer(found, "" if found else "wrong", str(error))
    except (verify.UsageError, verify.TruthError) as error:
        return Answer(whole="refused", text=f"{type(error).__name__}: {error}")
    except TimeoutError:
        raise
    except Exception as error:
        return Answer(whole="crash", text="".join(traceback.format_exception(error)[-4:]))
    return Answer()


def candidate(program: Program, which: Evaluation) -> dict[str, Tensor]:
    """Returns the right results of one choice. Where the oracle cannot say, PyTorch's own number stands."""
    found = {}
    for (name, own), values, unclear in zip(program.own.items(), which.values, which.open, strict=True):
        found[name] = torch.where(torch.from_numpy(unclear), own, rounded(values, own.dtype))
    return found


def limits(value: Any, dtype: str, noise: float, adds: bool = False) -> Any:
    """Returns how far a result may be from a value: the limit in ULP or in noise, whichever is larger."""
    finest, (ulps, noises) = LOWEST[dtype], LIMITS[dtype]
    ulps = SUMS.get(dtype, ulps) if adds else ulps
    exponent = max(int(mp.floor(mp.log(abs(value), 2))) - BITS[dtype] + 1, finest) if value else finest
    return max(ulps * mpf(2) ** exponent, mpf(2) ** (exponent - 1) + noises * mpf(noise))


class Verdicts:
    """What one program comes to: counts, and findings with their texts."""

    def __init__(self, program: Program) -> None:
        self.program, self.counts = program, Counter[str]()
        self.findings: list[dict[str, str]] = []
        self.unclear = dict(zip(program.own, opened(program.right), strict=True))

    @cached_property
    def noise(self) -> dict[str, Any]:
        """The program's noise by result. Most programs never need it."""
        program = self.program
        return dict(
            zip(program.names(), noise(program.f, list(program.inputs.values()), program.upstream), strict=True)
        )

    def clear(self, name: str, text: str) -> bool:
        """Says whether the oracle knows the element that a message is about."""
        place = place_of(text, self.program.own[name])
        return place is not None and not self.unclear[name][place]

    def truths_at(self, name: str, place: Any) -> list[Any]:
        at = list(self.program.own).index(name)
        return [each.values[at][place] for each in self.program.right]

    def adds(self, name: str) -> bool:
        return name in self.program.outputs and self.program.right[0].adds[self.program.names().index(name)]

    def beyond(self, name: str, value: Tensor) -> float:
        """Returns how many times its limit a result is away from every choice, at its worst element."""
        dtype, worst, adds = str(value.dtype).removeprefix("torch."), 0.0, self.adds(name)
        for place in zip(*(~self.unclear[name]).nonzero(), strict=True) if value.ndim else [()]:
            got, closest = value[place].item(), float("inf")
            for truth in self.truths_at(name, place):
                if not value.is_floating_point():
                    off = 0.0 if int(truth) == int(got) else 1e9
                elif not mp.isfinite(truth):  # a number in place of an infinity is off; of NaN nothing is known
                    off = 0.0 if mp.isnan(truth) or mpf(got) == truth else 1e9
                elif not mp.isfinite(mpf(got)):
                    off = 1e9
                else:
                    off = float(abs(truth - mpf(got)) / limits(truth, dtype, self.noise[name][place], adds))
                closest = min(closest, off)
            worst = max(worst, closest)
        return worst

    @cached_property
    def choices(self) -> Choices:
        """The choices beyond those that are tried first. A message may name the truth of any."""
        program = self.program
        return Choices(program.f, list(program.inputs.values()), program.upstream)

    def others(self, name: str, place: Any) -> Iterator[Any]:
        """Yields the numbers that one element of a result has under other choices."""
        floats, at = self.program.floats(), self.program.names().index(name)
        own = self.program.own[name]
        toward = None
        if name[1:] in floats and own.numel():
            toward = floats.index(name[1:]), int(torch.arange(own.numel()).reshape(own.shape)[place])
        for each in self.choices.others(OTHERS, toward):
            yield each.values[at][place]

    def stored(self, at: int, place: Any) -> list[Any]:
        """Returns numbers that one element has where roundings reach as far as a right kernel's, and formats store."""
        program = self.program
        if not program.right[0].run.stores:
            return []
        given = program.f, list(program.inputs.values()), program.upstream  # a rounding is half a unit in the mean
        return [each.values[at][place] for each in disturbed(*given, STORED, 2.0 * NEAR)]

    def off(self, results: dict[str, Tensor], found: Evaluation) -> float:
        """Returns how far results are from one choice, over all elements; 0: within twice the published limits."""
        total = 0.0
        for name, value in results.items():
            at = self.program.names().index(name)
            clear = ~(self.unclear[name] | found.open[at])
            got = value.double().numpy().astype(float)[clear]
            truth = np.array([float(v) for v in found.values[at].flat]).reshape(clear.shape)[clear]
            if not value.is_floating_point():
                total += 99.0 * float((got != truth).sum())
                continue
            adds, dtype, noise = (
                self.adds(name),
                str(value.dtype).removeprefix("torch."),
                self.noise[name][clear].astype(float),
            )
            most = np.array(
                [
                    float(limits(mpf(t), dtype, n, adds)) if math.isfinite(t) else math.inf
                    for t, n in zip(truth, noise, strict=True)
                ]
            )
            ratio = np.abs(truth - got) / (SLACK * most)
            endless = np.where(np.isnan(truth) | (got == truth), 0.0, 1e9)
            ratio = np.where(np.isfinite(truth), np.where(np.isfinite(got), ratio, 1e9), endless)
            total += float(np.log(np.maximum(ratio, 1.0)).sum())
        return total

    def finding(self, kind: str, text: str) -> None:
        self.counts[kind] += kind in LINES and not kind.startswith("PyTorch")
        self.findings.append({"kind": kind, "text": text[:2000]})

    def judge(self) -> None:
        own = asked(self.program, self.program.own)
        wrong = [name for name, (status, text) in own.results.items() if status == "wrong" and self.clear(name, text)]
        kind = own.whole or ("wrong" if wrong else "vacuous or undecided" if own.results else "passes")
        off = {name: self.beyond(name, self.program.own[name]) for name in wrong}
        kind += " by the oracle too" * (kind == "wrong" and max(off.values(), default=0.0) > 1)
        self.counts[f"PyTorch {kind}"] += 1
        if kind == "crash":
            self.finding("crash", own.text)
        elif kind not in ("passes", "vacuous or undecided"):
            times = ", ".join(f"{name} {by:.3g}" for name, by in off.items())
            self.finding(f"PyTorch {kind}", f"{times} times the limit by the oracle\n{own.text}" if off else own.text)
        if kind not in ("crash", "refused"):
            self.rights()
            self.wrongs(own)

    def rights(self) -> None:
        """Asks about the right results of each choice. With ties PyTorch's convention is left to PyTorch.

        No kernel breaks ties by a direction at random, and no search finds every one (docs/like.md, Choices). So such a
        result that is called wrong is counted apart, if those where the first and the last of equal numbers win pass.
        """
        tried = self.program.right if len(self.program.right) == 1 else self.program.right[1:4]
        for at, each in enumerate(tried):
            unclear = {name for name in self.program.own if self.unclear[name].any()}
            if not unclear.isdisjoint(self.program.outputs):  # PyTorch's numbers belong to no other choice than its own
                continue
            given = {name: v for name, v in candidate(self.program, each).items() if name not in unclear}
            said = asked(self.program, given)
            if said.whole:
                return self.finding("crash" if said.whole == "crash" else "right result fails", f"{at}: {said.text}")
            for name, (status, text) in said.results.items():
                if status == "wrong" and self.clear(name, text):
                    kind = "right result at random not found" if at == FIRST_AT_RANDOM else "right result fails"
                    return self.finding(kind, f"choice {at}, {name}: {text}")
        self.counts["right passes"] += 1
        return None

    def wrongs(self, own: Answer) -> None:
        """Asks about wrong results, each on the right ones of PyTorch's convention."""
        right = candidate(self.program, self.program.right[0])
        floats = {name: value for name, value in right.items() if value.is_floating_point()}
        factor = OFF[self.program.dtype]
        self.wrong("scaled", right, {name: (v.double() * factor).to(v.dtype) for name, v in floats.items()}, own)
        self.truths(self.wrong("zeros", right, {name: torch.zeros_like(v) for name, v in right.items()}, own))
        for name in [name for name in right if name not in self.program.outputs][:2]:
            self.wrong("dropped", right, {name: torch.zeros_like(right[name])}, own)

    def wrong(self, kind: str, right: dict[str, Tensor], changed: dict[str, Tensor], own: Answer) -> Answer:
        said = asked(self.program, right | changed)
        if said.whole == "crash":
            self.finding("crash", f"{kind}: {said.text}")
        passing = {name: value for name, value in (right | changed).items() if name not in said.results}
        for name, value in changed.items() if not said.whole else ():
            if torch.equal(value, right[name]):
                continue
            if name in said.results or name in own.results or (kind == "dropped" and said.results):
                self.counts[f"{kind} found"] += 1  # or vacuous anyway, which is no pass
            elif (by := self.beyond(name, value)) <= SLACK:
                self.counts[f"{kind} within limits"] += 1
            elif self.choices.explained(partial(self.off, passing)):
                self.counts[f"{kind} right under another choice"] += 1
            else:
                self.finding(f"{kind} passes", f"{name} is {by:.3g} times its limit off and passes")
        return said

    def truths(self, said: Answer) -> None:
        """Compares the truths that verify's messages print with the oracle's."""
        for name, (_, text) in said.results.items():
            own = self.program.own[name]
            found = re.search(r"^  truth   ([-\d.e+]+)(?: to (\S+))?$", text, flags=re.MULTILINE)
            place = place_of(text, own)
            if not found or place is None or not own.is_floating_point() or self.unclear[name][place]:
                continue
            low, high = mpf(found[1]), mpf(found[2] or found[1])
            dtype = str(own.dtype).removeprefix("torch.")  # of a cast, the oracle's number is rounded already
            rough = max(mpf(10) ** -8, mpf(2) ** -BITS[dtype]) * max(abs(low), abs(high)) + mpf(2) ** LOWEST[dtype]
            rough += mpf(self.noise[name][place]) * mpf(10) ** -6  # which no verdict hangs on
            truths = self.truths_at(name, place)
            self.counts["truths compared"] += 1

            def meets(t: Any) -> bool:
                return bool(mp.isnan(t) or low - rough <= t <= high + rough)  # noqa: B023

            if any(map(meets, truths)):
                continue
            seen = []
            for other in self.others(name, place):
                seen.append(other)
                if meets(other):
                    break
            at, middle = self.program.names().index(name), (low + high) / 2
            # a number stored in a narrow format may be any neighbour within noise: there are too many to draw
            reached = [*seen, *self.stored(at, place)]
            between = self.program.right[0].run.stores and min(reached) - rough <= low and high <= max(reached) + rough

            def apart(each: Evaluation) -> float:
                value = each.values[at][place]  # noqa: B023
                reached.append(value)  # noqa: B023
                return 0.0 if meets(value) else float(abs(value - middle))  # noqa: B023

            if seen and (between or meets(seen[-1]) or self.choices.explained(apart)):
                self.counts["truth of another choice"] += 1
                continue
            if len(set(seen)) * 2 > len(seen) and min(reached) <= high and low <= max(reached):
                self.counts["truth among too many choices"] += 1  # nearly each that is drawn is a new one
                continue
            tied = len(truths) > 1 or self.program.right[0].nears
            of_pytorch = mpf(own[place].item())  # whose order of equal numbers is its own, and always right
            if tied and abs(of_pytorch - middle) <= rough + limits(of_pytorch, dtype, self.noise[name][place]):
                self.counts["truth of another choice"] += 1
                continue
            kind = "truth differs at a tie" if tied else "truth differs"
            self.finding(kind, f"{name}{list(place)}: {found[0].strip()}; oracle {[mp.nstr(t, 20) for t in truths]}")


def place_of(text: str, value: Tensor) -> tuple[int, ...] | None:
    """Returns the place of the worst element in a message."""
    found = re.search(r"^  got .* at \[([\d, ]*)\]$", text, flags=re.MULTILINE)
    place = tuple(map(int, found[1].split(","))) if found and found[1] else (0,) * value.ndim
    return place if len(place) == value.ndim and (found or value.numel() == 1) else None


SNIPPET = """# {name} {dtype} {styles}
import torch, verify

F, inf = torch.nn.functional, float("inf")


{source}


inputs = {inputs}
upstream = {upstream}
live = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
found = program(*live)
ys = found if isinstance(found, tuple) else (found,)
pairs = [(y, dy) for y, dy in zip(ys, upstream) if y.requires_grad]
floats = {{n: x for n, x in zip(program.__code__.co_varnames, live) if x.requires_grad}}
given = {{}}
if {graded}:
    sums = [y for y, _ in pairs], list(floats.values()), [dy for _, dy in pairs]
    grads = torch.autograd.grad(*sums, allow_unused=True)
    upstream = [dy if y.is_floating_point() else None for y, dy in zip(ys, upstream)]
    given = {{"grads": {{n: g for n, g in zip(floats, grads) if g is not None}}, "upstream": upstream}}
out = tuple(y.detach() for y in ys)
verify.assert_close(out if len(out) > 1 else out[0], like=program, inputs=inputs, **given)
"""


def snippet(program: Program) -> str:
    """Returns a script that asks verify about PyTorch's own results of a program."""

    def spelled(values: Sequence[Tensor]) -> str:
        return (
            f"[{', '.join(f'torch.tensor({v.tolist()}, dtype={v.dtype}).reshape({tuple(v.shape)})' for v in values)}]"
        )

    said = {key: getattr(program, key) for key in ("name", "dtype", "styles", "source")}
    said["graded"] = len(program.own) > len(program.outputs)
    return SNIPPET.format(**said, inputs=spelled(list(program.inputs.values())), upstream=spelled(program.upstream))


def late(*_: Any) -> None:
    raise TimeoutError


def judged(seed: int, number: int) -> dict[str, Any]:
    """Judges one program, within its time."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")  # of numpy and PyTorch, about NaN that the program means
    signal.signal(signal.SIGPROF, late)
    signal.setitimer(signal.ITIMER_PROF, SECONDS)  # of the processor, so that other work beside it changes no verdict
    row: dict[str, Any] = {"program": f"{seed}:{number}", "dtype": "", "counts": {}, "findings": []}
    started = time.perf_counter()
    try:
        program = drawn(seed, number)
        row |= {"dtype": program.dtype, "drawing": round(time.perf_counter() - started, 2)}
        verdicts = Verdicts(program)
        verdicts.judge()
        row |= {"counts": dict(verdicts.counts), "findings": verdicts.findings}
        row |= {"snippet": snippet(program)} if verdicts.findings else {}
    except Exception as error:
        kind = "timeout" if isinstance(error, TimeoutError) else "harness"
        row |= {"counts": {kind: 1}, "findings": [{"kind": kind, "text": traceback.format_exc()[-1500:]}]}
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    return row | {"seconds": round(time.perf_counter() - started, 2)}


def rows(seed: int, numbers: Sequence[int], jobs: int) -> Iterator[dict[str, Any]]:
    work: Callable[[int], dict[str, Any]] = partial(judged, seed)
    if jobs == 1:
        yield from map(work, numbers)
        return
    pool = ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"))
    try:
        yield from pool.map(work, numbers, chunksize=4)
    finally:  # Ctrl-C waits for no program
        pool.shutdown(wait=False, cancel_futures=True)


def table(found: Sequence[dict[str, Any]]) -> str:
    """Returns the counts by dtype, as a table of markdown."""
    dtypes = [each for each in BITS if any(row["dtype"] == each for row in found)]
    columns = [[row for row in found if row["dtype"] == dtype] for dtype in dtypes] + [found]
    lines = [f"| | {' | '.join([*dtypes, 'all'])} |", "|---" * (len(dtypes) + 2) + "|"]
    lines.append(f"| programs | {' | '.join(str(len(column)) for column in columns)} |")
    for name in LINES:
        counts = [sum(row["counts"].get(name, 0) for row in column) for column in columns]
        lines.append(f"| {name} | {' | '.join(map(str, counts))} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0, help="the number of the first program")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--replay", metavar="SEED:N")
    given = parser.parse_args(arguments)
    seed, numbers = given.seed, range(given.first, given.first + given.programs)
    if given.replay:
        seed, number = map(int, given.replay.split(":"))
        numbers = range(number, number + 1)
        print(snippet(drawn(seed, number)))
    found = []
    try:
        for row in rows(seed, numbers, given.jobs):
            found.append(row)
            for each in row["findings"]:
                text = each["text"] if given.replay else each["text"].splitlines()[0][:150]
                print(f"{row['program']} {row['dtype']} {each['kind']}: {text}", file=sys.stderr, flush=True)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # `timeout -s INT` sends two
        print(f"interrupted after {len(found)} of {len(numbers)} programs", file=sys.stderr)
    print(table(found))
    if given.json:
        record = {"seed": seed, "torch": torch.__version__, "table": table(found), "rows": found}
        given.json.write_text(json.dumps(record, indent=1))
    return int(len(found) < len(numbers) or any(row["counts"].get(name) for row in found for name in BAD))


if __name__ == "__main__":
    sys.exit(main())
