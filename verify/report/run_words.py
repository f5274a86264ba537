"""What a run says, in words: labels of results, the worst of them, the sentence, the next command.

The words of the field: *correctly rounded* (no element misrounded), *faithful* (below 1 ULP),
*k ULP*, *wrong* (not proven within the kernel's own limit). The statuses are the record's.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from verify.records.readings import decimal
from verify.records.record import (
    CLASSES,
    ORDINARY,
    RESULT_STATUSES,
    UNPROVEN,
    Figures,
    Gate,
    KernelRun,
    LawRun,
    Result,
    Run,
    Unmeasured,
    Worst,
    replay_command,
    value_of,
)
from verify.report.gaps import FEW, GapLine, gathered
from verify.report.judged import beside_pytorch, promised, rank, result_notes
from verify.report.judged import judged as judged
from verify.report.words import (
    LONG,
    at_least,
    clean,
    clean_lines,
    interval,
    listed,
    plural,
    seconds,
    signed_ulp,
    sizes_tried,
    truth,
    ulp,
)
from verify.truth.figure import COUNTABLE, UNIT

HUGE = 65_504.0  # a magnitude beyond which squares and sums are what overflows
FIRST = 100  # characters of the first line of what was printed
Kind = Literal["rounded", "faithful", "within", "wrong", "undecided", "vacuous"]

FAILED = ("wrong", "crashed", "timeout", "error")
STATUS_WORD = {
    "ok": "ok",
    "wrong": "wrong",
    "error": "error",
    "crashed": "crashed",
    "timeout": "timed out",
    "undecided": "undecided",
    "vacuous": "vacuous",
    "interrupted": "interrupted",
    "skipped": "skipped",
    "peer": "peer",
}


@dataclass(frozen=True)
class Found:
    """A result with the kernel it belongs to and its worst element, if the record has one."""

    kernel: KernelRun
    result: Result
    worst: Worst | None
    also: tuple[Result, ...] = ()  # wrong for the same reason


def kind(kernel: KernelRun, result: Result) -> Kind:
    """Which word of the field a result has earned. A peer is not judged, so it is never "wrong"."""
    if result.status != "ok" and not kernel.peer:
        return result.status
    figures = promised(result)
    if all(not of.misrounded and not of.undecided and value_of(of.max_ulp) <= 0.5 for of in figures):
        return "rounded"
    return "faithful" if all(value_of(of.max_upper) < 1 and not of.open for of in figures) else "within"


def label(kernel: KernelRun, result: Result) -> str:
    """`correctly rounded`, `faithful`, `2.25 ULP`, `1.2 ULP scaled`, `NaN` (of a peer), `wrong`."""
    earned = kind(kernel, result)
    if earned == "wrong":
        return "wrong, as PyTorch" if beside_pytorch(result).endswith("as PyTorch") else wrong_words(result)
    beside = beside_pytorch(result)
    if earned != "within":
        return {"rounded": "correctly rounded"}.get(earned, earned) + beside
    found = max((judged(each, result.gate) for each in promised(result)), key=lambda each: rank(each.upper))
    figure = ulp(found.upper)
    if figure == "NaN":
        return figure
    figure += UNIT[result.gate] + beside
    return f"at least {figure}, open" if found.open else figure


def standing(kernel: KernelRun, result: Result | None = None) -> str:
    """The status to show: the record's, or "peer" for what is measured and not judged."""
    if kernel.peer:
        return "peer"
    return kernel.status if result is None else result.status


def name_of(kernel: KernelRun) -> str:
    """The kernel's name, clean, marked if it is a peer."""
    return clean(kernel.name) + (" (peer)" if kernel.peer else "")


def maximum(figures: Figures, gate: Gate, *, dash: str = "\N{EN DASH}") -> str:
    """The judged maximum as text; an interval where the reference left it open."""
    chosen = judged(figures, gate)
    shown = interval(chosen.maximum, chosen.upper, dash=dash)
    return at_least(chosen.maximum, dash=dash) if chosen.open and shown != "NaN" else shown


def error_text(worst: Worst, gate: Gate) -> str:
    """The error of one element: `+254.9 ULP`, `+1.2 ULP scaled, +3,000 ULP plain`."""
    if not math.isfinite(value_of(worst.ulp)):
        return f"unbounded: got is {clean(worst.got)}"
    plain = f"{signed_ulp(worst.ulp)} ULP"
    if abs(value_of(worst.ulp)) > COUNTABLE:
        plain += f" (got {clean(worst.got)} for {truth(worst.truth)})"
    if gate != "plain" and worst.scaled_ulp is not None:
        return f"{signed_ulp(worst.scaled_ulp)}{UNIT[gate]}, {plain} plain"
    return plain


def inputs_text(worst: Worst) -> str:
    """`x = -3.5 (0xc060), dy = 1 (0x3f80)`."""
    return named_values(worst.inputs)


def named_values(inputs: Mapping[str, str]) -> str:
    """The same for any named inputs, the gradient that arrives last: a file keeps names in alphabetical order."""
    ordered = sorted(inputs.items(), key=lambda item: item[0].startswith("d"))
    return ", ".join(f"{clean(name)} = {clean(value)}" for name, value in ordered)


def index_text(worst: Worst) -> str:
    """`[0, 12]`; empty for a 0-d tensor."""
    return f"[{', '.join(map(str, worst.index))}]" if worst.index else ""


def badness(result: Result) -> tuple[int, int, float]:
    """Orders results by how bad they are: by the class of inputs, then NaN above infinity above the multiple."""
    of = worst_class(result)
    return (len(CLASSES) - CLASSES.index(of) if of else 0, *size_of(result.figures, result.gate, result.limit))


def size_of(figures: Figures, gate: Gate, limit: float | None) -> tuple[int, float]:
    """Orders errors: NaN, infinities, then multiples of the limit."""
    error = value_of(judged(figures, gate).upper)
    if math.isnan(error):
        return (2, math.inf)
    return (1, math.inf) if math.isinf(error) else (0, error / limit if limit else error)


def wrong_results(run: Run) -> list[Found]:
    """Every wrong result of a judged kernel whose calls repeat, in the order of the record."""
    return [
        Found(kernel, result, shown_worst(result))
        for kernel in run.kernels
        for result in kernel.results
        if result.status == "wrong" and not kernel.peer and not kernel.unrepeatable
    ]


def shown_worst(result: Result) -> Worst | None:
    """The element that shows what is wrong: the worst of the class that weighs most, else of all."""
    of_class = next((each.worst for each in result.classes if each.reason), None)
    return of_class or next(iter(result.worst), None)


def unrepeatable(run: Run) -> list[KernelRun]:
    """Judged kernels whose calls differ with the same input: that comes before what follows from it."""
    return [kernel for kernel in run.kernels if kernel.unrepeatable and not kernel.peer]


def besides(kernel: KernelRun, law: LawRun | None = None) -> str:
    """What else is broken for the same reason as a law, or because the calls of the kernel differ (no law)."""
    results = [f"{result.output} {result.dtype}" for result in kernel.results if result.status == "wrong"]
    laws = [other for other in kernel.laws if other.status == "broken" and _same_cause(law, other)]
    broken: dict[str, list[str]] = {}
    for other in laws:
        broken.setdefault(other.law, []).append(other.dtype)
    named = [f"{name} ({', '.join(dtypes)})" for name, dtypes in broken.items()]
    parts = [f"wrong: {', '.join(results)}"] if results and law is None else []
    what = "broken" if law is None else "called for"
    return clean("; ".join(parts + ([f"{what}: {', '.join(named)}"] if named else [])))


def _same_cause(law: LawRun | None, other: LawRun) -> bool:
    if law is None:
        return other.cause == "not deterministic"
    return other is not law and law.cause == other.cause == "failed" and law.message == other.message


LAW_WORD = {"ok": "kept", "broken": "broken", "skipped": "not applicable"}


def broken_laws(run: Run) -> list[tuple[KernelRun, LawRun]]:
    """The broken laws of judged kernels, in the order of the record: of those with one cause the first."""
    found = []
    for kernel in run.kernels:
        seen: set[str] = set()
        for law in kernel.laws if not kernel.peer else ():
            if law.status == "broken" and law.cause != "not deterministic" and law.message not in seen:
                found.append((kernel, law))
                seen |= {law.message} if law.cause == "failed" else set()
    return found


def laws_line(run: Run) -> str:
    """`laws: 40 kept, 2 broken, 12 not applicable`; empty when none were tried."""
    found = [law.status for kernel in run.kernels for law in kernel.laws]
    if not found:
        return ""
    return "laws: " + ", ".join(f"{found.count(k):,} {word}" for k, word in LAW_WORD.items() if k in found)


def skipped_laws(laws: Iterable[LawRun]) -> list[tuple[str, str]]:
    """(reason, what it kept from being tried) of every law that was not tried, by reason, in the order met.

    `monotonicity, special values (bfloat16)`: the dtypes are left out where they are all that any law was asked for.
    """
    reasons: dict[str, dict[str, list[str]]] = {}
    asked: dict[str, None] = {}
    for law in laws:
        asked[law.dtype] = None
        if law.status == "skipped":
            reason = clean(law.message) or "no reason was recorded"
            reasons.setdefault(reason, {}).setdefault(clean(law.law), []).append(clean(law.dtype))
    found = []
    for reason, names in reasons.items():
        grouped: dict[tuple[str, ...], list[str]] = {}
        for name, dtypes in names.items():
            grouped.setdefault(tuple(dict.fromkeys(dtypes)), []).append(name)
        parts = [
            ", ".join(found_names) + ("" if len(dtypes) == len(asked) else f" ({', '.join(dtypes)})")
            for dtypes, found_names in grouped.items()
        ]
        found.append((reason, "; ".join(parts)))
    return found


def untried_laws(run: Run) -> list[tuple[str, str]]:
    """(reason, `monotonicity, shift: 3 kernels`) of the laws that a whole run did not try, most kernels first."""
    reasons: dict[str, tuple[dict[str, None], set[str]]] = {}
    for kernel in run.kernels:
        for law in kernel.laws:
            if law.status == "skipped":
                names, kernels = reasons.setdefault(clean(law.message) or "no reason was recorded", ({}, set()))
                names[clean(law.law)] = None
                kernels.add(kernel.target)
    found = sorted(reasons.items(), key=lambda item: -len(item[1][1]))
    return [(reason, f"{', '.join(names)}: {plural(len(kernels), 'kernel')}") for reason, (names, kernels) in found]


def law_title(kernel: KernelRun, law: LawRun) -> str:
    """`my_gelu layout independence bfloat16`."""
    return f"{name_of(kernel)} {clean(law.law)} {clean(law.dtype)}"


def law_word(law: LawRun) -> str:
    """What a broken law says of its kernel."""
    return "kernel failed" if law.cause == "failed" else "law broken"


def failures(run: Run) -> list[KernelRun]:
    """Kernels that raised, crashed or hung, peers included: nothing of that is silent."""
    return [kernel for kernel in run.kernels if kernel.status in ("error", "crashed", "timeout")]


def worst_result(run: Run) -> Found | None:
    """The worst of the wrong results: the one to look at first."""
    return max(wrong_results(run), key=lambda found: badness(found.result), default=None)


def closest_result(run: Run) -> Found | None:
    """Of the results within their limits the one that comes closest to its own."""
    within = [
        Found(kernel, result, result.worst[0] if result.worst else None)
        for kernel in run.kernels
        for result in kernel.results
        if result.status == "ok" and not kernel.peer
    ]
    return max(within, key=lambda found: badness(found.result), default=None)


def setting(run: Run) -> str:
    """Where and how: `cuda, profile default, seed 0, 3 min 32 s`; backends never mix."""
    parts = [
        clean(run.backend),
        f"profile {clean(run.profile)}",
        f"seed {run.seed}",
        seconds(run.seconds),
    ]
    return ", ".join(parts)


def not_measured(run: Run) -> list[GapLine]:
    """What was asked for and has no figures: skipped kernels, the rest."""
    lines = [gap.text for gap in run.incomplete]
    skipped = [
        f"{kernel.name} was skipped" + (f": {kernel.message}" if kernel.message else "")
        for kernel in run.kernels
        if kernel.status == "skipped" and f"{kernel.name}: {kernel.message}" not in lines
    ]
    return gathered([*skipped, *lines])


def leading(kernel: KernelRun) -> list[Result]:
    """One result for each output and dtype: of a run, a sweep and a hunt the largest error, then the best basis."""
    found: dict[tuple[str, str], Result] = {}
    for result in kernel.results:
        key = (result.output, result.dtype)
        if key not in found or _weight(result) > _weight(found[key]):
            found[key] = result
    return list(found.values())


def _weight(result: Result) -> tuple[int, tuple[int, float], int, int]:
    strength = ("observed", "certified", "exhaustive").index(result.basis.kind)
    return (
        RESULT_STATUSES.index(result.status),
        size_of(result.figures, result.gate, result.limit),
        strength,
        result.basis.n,
    )


def summary(kernel: KernelRun) -> str:
    """`y float16: faithful, dx float16: 1.2 ULP`; of many results how many have which label, and the worst."""
    results = leading(kernel)
    if len(results) <= FEW:
        return ", ".join(f"{clean(item.output)} {clean(item.dtype)}: {label(kernel, item)}" for item in results)
    kinds = [kind(kernel, item) for item in results]
    parts = [
        f"{kinds.count(name):,} {'correctly rounded' if name == 'rounded' else name}"
        for name in ("wrong", *UNPROVEN, "rounded", "faithful")
        if name in kinds
    ]
    worst = max(results, key=_weight)
    figure = maximum(worst.figures, worst.gate)
    figure += "" if figure == "NaN" else UNIT[worst.gate]
    labels = f" ({', '.join(parts)})" if parts else ""
    return f"{len(results):,} results{labels}; the worst is {clean(worst.output)} {clean(worst.dtype)}: {figure}"


def counts(run: Run) -> dict[str, int]:
    """How many kernels have each standing that occurs, in the order of `STATUS_WORD`."""
    found = [standing(kernel) for kernel in run.kernels]
    return {status: found.count(status) for status in STATUS_WORD if status in found}


def of_class(result: Result, name: str, *, dash: str = "\N{EN DASH}") -> str:
    """The maximum on one class of inputs; where inputs are not divided so, what it cannot exceed; "-" for none."""
    found = next((each for each in result.classes if each.name == name), None)
    if found is not None:
        return maximum(found.figures, result.gate, dash=dash)
    if result.classes:
        return "-"
    whole = maximum(result.figures, result.gate, dash=dash)
    return whole if whole == "NaN" or whole[:1] in "≤≥<>" else ("≤" if dash == "–" else "<=") + whole


def baseline_of(result: Result, *, dash: str = "\N{EN DASH}") -> str:
    """PyTorch's maximum on ordinary inputs, on all where inputs are not divided; empty without one."""
    theirs = [each.baseline for each in result.classes if each.name == ORDINARY] or [result.baseline]
    return maximum(theirs[0], result.gate, dash=dash) if theirs[0] is not None else ""


def worst_class(result: Result) -> str:
    """The class that weighs most among those on which a result is wrong; empty where none is."""
    return next((each.name for each in result.classes if each.reason), "")


def wrong_words(result: Result) -> str:
    """What is wrong, as a maintainer would say it: `wrong on ordinary inputs`, `NaN at -inf`, `loses the tail`."""
    of = worst_class(result)
    worst = next((each.worst for each in result.classes if each.reason), None)
    if not of:
        worst = result.worst[0] if result.worst else None
        if worst is None or not result.reason.startswith("wrong at"):
            return "wrong"
        at = [text.partition(" ")[0] for text in worst.inputs.values() if not _is_finite(text)]
        shown = "NaN" if worst.got == "nan" else clean(worst.got)
        return f"{shown} at {at[0]}" if len(at) == 1 else "wrong at infinity or NaN"
    if worst is None or of == ORDINARY:
        return f"wrong on {of} inputs"
    got = decimal(worst.got)
    largest = max((abs(decimal(text)) for text in worst.inputs.values()), default=0.0)
    if math.isnan(got) and largest:
        return f"NaN at {largest:.1g}"
    if largest > HUGE and (got == 0 or not math.isfinite(got)):
        return f"overflows at {largest:.1g}"
    return "loses the tail" if got == 0 and decimal(worst.truth) else f"wrong on {of} inputs"


def _is_finite(text: str) -> bool:
    return math.isfinite(decimal(text))


LIMIT_WORD = {"refused": "refuses", "crashed": "ends its process on", "hung": "was not done with"}


def limits_of(run: Run) -> list[tuple[KernelRun, str]]:
    """What judged kernels do not take, a line for each reason: `refuses 2 x 65537 (3 cases in float32): ...`."""
    found: list[tuple[KernelRun, str]] = []
    for kernel in run.kernels:
        reasons: dict[tuple[str, str, tuple[tuple[int, ...], ...]], list[Unmeasured]] = {}
        for each in kernel.unmeasured:
            if each.kind in LIMIT_WORD and not kernel.peer:
                text = clean(each.text).removeprefix(f"{clean(kernel.name)} raised ")
                reasons.setdefault((text, each.kind, tuple(each.dims)), []).append(each)
        refused: dict[str, dict[str, None]] = {}
        for law in kernel.laws if not kernel.peer else ():
            if law.refused:
                text = clean(law.message).removeprefix("it refuses every case: ")
                refused.setdefault(text.removeprefix(f"{clean(kernel.name)} raised "), {})[law.law] = None
        for text, laws in refused.items():
            if not any(text == said for said, _, _ in reasons):
                found.append(
                    (kernel, f"refuses cases of {plural(len(laws), 'law')} ({listed(list(laws)[:FEW])}): {text}")
                )
        for (text, kind, dims), some in reasons.items():
            sizes = listed([" x ".join(map(str, each)) or "scalars" for each in dims[:FEW]])
            more = f" and {len(dims) - FEW:,} more" if len(dims) > FEW else ""
            count = sum(each.cases for each in some)
            dtypes = ", ".join(clean(each.dtype) for each in some)
            found.append((kernel, f"{LIMIT_WORD[kind]} {sizes}{more} ({plural(count, 'case')} in {dtypes}): {text}"))
    return found


def trouble(result: Result, *, dash: str = "\N{EN DASH}") -> str:
    """What is wrong with a result in a few words: its maximum, or the reason where the maximum is in order."""
    of = worst_class(result)
    if result.reason and not of and value_of(judged(result.figures, result.gate).upper) <= result.limit:
        return clean(result.reason)
    figure = of_class(result, of, dash=dash) if of else maximum(result.figures, result.gate, dash=dash)
    on = f" on {of} inputs" if of and len(result.classes) > 1 else ""
    return (figure if figure == "NaN" else f"{figure} ULP") + on


def sentence(run: Run, *, dash: str = "\N{EN DASH}") -> str:
    """The verdict as one sentence, beginning with pass, fail or incomplete."""
    return f"{run.verdict}: {'; '.join(clauses(run, dash=dash))}"


def clauses(run: Run, *, dash: str = "\N{EN DASH}") -> list[str]:
    """The sentence after its first word, in parts: what was found, the worst, what is missing."""
    found = counts(run)
    total = sum(count for status, count in found.items() if status != "peer")
    if not total:
        return ["no kernel was judged" if run.kernels else "no kernel was measured"]
    missing = _missing(run, found)
    if run.verdict == "incomplete":
        return [f"nothing wrong was seen, but {missing}"]
    if run.verdict == "pass":
        ran = found.get("ok", 0)
        who = (
            "1 kernel is"
            if ran == 1
            else f"all {ran:,} kernels that ran are"
            if missing
            else f"all {ran:,} kernels are"
        )
        results = sum(len(kernel.results) for kernel in run.kernels if standing(kernel) == "ok")
        parts = [f"{who} within the declared limits ({plural(results, 'result')})"]
    else:
        parts = [listed(_failed(found, total))]
        worst = worst_result(run)
        if worst is not None:
            parts.append(f"the worst is {title(worst.kernel, worst.result)}: {trouble(worst.result, dash=dash)}")
        if differ := unrepeatable(run):
            are = "is" if len(differ) == 1 else "are"
            parts.append(f"{listed([name_of(kernel) for kernel in differ])} {are} not deterministic")
        if failed := [name_of(kernel) for kernel, law in broken_laws(run) if law.cause == "failed"]:
            parts.append(f"{listed(list(dict.fromkeys(failed)))} failed where a law called it")
        if broken := [each for each in broken_laws(run) if not each[1].cause]:
            parts.append(f"{plural(len(broken), 'law')} broken, the first is {law_title(*broken[0])}")
    if limits := list(dict.fromkeys(name_of(kernel) for kernel, _ in limits_of(run))):
        parts.append(f"{listed(limits)} {'does' if len(limits) == 1 else 'do'} not take every case")
    return parts + ([missing] if missing else [])


def _failed(found: dict[str, int], total: int) -> list[str]:
    parts: list[str] = []
    for status in FAILED:
        if count := found.get(status, 0):
            verb = {
                "wrong": "is wrong" if count == 1 else "are wrong",
                "crashed": "crashed",
                "timeout": "timed out",
                "error": "raised an error",
            }[status]
            noun = "kernels" if total > 1 else "kernel"
            parts.append(f"{count:,} {verb}" if parts else f"{count:,} of {total:,} {noun} {verb}")
    return parts


def _missing(run: Run, found: dict[str, int]) -> str:
    counts = [(status, found[status]) for status in ("interrupted", "skipped") if found.get(status)]
    parts = [f"{plural(count, 'kernel')} {'was' if count == 1 else 'were'} {status}" for status, count in counts]
    for status in UNPROVEN:
        if count := found.get(status, 0):
            parts.append(f"the verdict on {plural(count, 'kernel')} is {status}")
    kinds = [gap.kind for gap in run.incomplete if gap.kind != "interrupted" or not found.get("interrupted")]
    if failed := kinds.count("judge failed"):
        parts.append(f"the judge failed at {plural(failed, 'part')} of the run")
    if lines := len(kinds) - failed:
        parts.append(f"{plural(lines, 'part')} of the run did not happen")
    return listed(parts)


def title(kernel: KernelRun, result: Result) -> str:
    """`my_gelu y bfloat16`."""
    return f"{name_of(kernel)} {clean(result.output)} {clean(result.dtype)}"


def notes_of(kernel: KernelRun) -> list[str]:
    """What was noticed about a kernel; what holds of many results is one line."""
    found = [text for result in kernel.results for text in result_notes(result)]
    found += [gap.text for gap in gathered(kernel.notes)]
    for each in kernel.left:
        if each.text not in kernel.message:
            found.append(f"its {each.after} {clean(each.text)}")
    if kernel.sizes:
        found.append(sizes_tried(kernel.sizes))
    if kernel.printed is not None:
        lines = [line for line in clean_lines(kernel.printed.text) if line] or [""]
        found.append(f"printed {plural(kernel.printed.bytes, 'byte')}: {lines[0][:FIRST]}")
    return found


def rerun(kernel: KernelRun) -> str:
    """The command that measures one kernel again: the one that its hint names, such as one with more time, if any."""
    target, hint = shlex.quote(clean(kernel.target)), clean(kernel.hint)
    return hint if hint.startswith("verify ") and target in hint else f"verify run {target}"


def advice(kernel: KernelRun) -> str:
    """What the hint of a kernel says beside the command of `rerun`; empty where it says no more."""
    hint = clean(kernel.hint)
    return "" if hint == rerun(kernel) else hint


def replay_of(kernel: KernelRun) -> str:
    """The command that shows again that the calls of a kernel differ."""
    laws = [law.origin for law in kernel.laws if law.cause == "not deterministic"]
    worst = [result.worst[0].origin for result in kernel.results if result.status == "wrong" and result.worst]
    return clean(replay_command((laws + worst)[0])) if laws or worst else rerun(kernel)


def short_replay(found: Found, record: str) -> str:
    """The replay of a long case by its place in the record; empty for a short one, or where there is no record."""
    if not record or found.worst is None or len(replay_command(found.worst.origin)) <= LONG:
        return ""
    kernel, result = clean(found.kernel.name), found.result
    place = ["--result", clean(result.output), "--dtype", clean(result.dtype)]
    return shlex.join(["verify", "replay", kernel, "--run", record, *place])


def next_command(run: Run, *, record: str = "") -> str:
    """The one command to type next: replay the worst, rerun what failed, or write the report.

    `record` is where the run was saved, if it was: a command that names another file would fail.
    """
    worst = worst_result(run)
    if worst is not None and worst.worst is not None:
        return short_replay(worst, record) or clean(replay_command(worst.worst.origin))
    for _, law in broken_laws(run):
        return clean(replay_command(law.origin))
    for kernel in unrepeatable(run):
        return replay_of(kernel)
    found = {standing(kernel): kernel for kernel in reversed(run.kernels)}  # the first of each standing
    for status in FAILED:
        if status in found:
            return rerun(found[status])
    if run.unproven:
        return rerun(run.unproven[0])
    if run.verdict == "incomplete":
        if "skipped" in found and not run.incomplete:
            hint = clean(found["skipped"].hint)
            return hint if hint.startswith("verify ") else "verify doctor"
        return clean(run.command) if run.incomplete and run.command else "verify list"
    if record:
        return f"verify report {shlex.quote(record)} --html report.html"
    return f"{clean(run.command)} --json run.json --html report.html" if run.command else "verify list"
