"""Computes every fact of a report once: `present(run)`. Terminal, Markdown and HTML lay the facts out.

The words of the field are: *correctly rounded* (no element misrounded), *faithful* (below 1 ULP), *k ULP*, *wrong* (not
proven within the kernel's own limit). The record has the statuses.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property
from typing import Literal

from verify.records import recorded
from verify.records.figure import UNIT, rank
from verify.records.grouped import grouped
from verify.records.record import RESULT_STATUSES, UNPROVEN, KernelRun, LawRun, Result, Run, Worst, replay_command
from verify.report import result_words, words
from verify.report.gaps import FEW, GapLine, gathered, refusals
from verify.report.words import LOOKS, STATUS_WORDS, clean, listed, plural

FIRST = 100  # characters of the first printed line
MOST_ALSO = 8  # results of one cause that are named after the first
FAILED = ("wrong", "crashed", "timeout", "error")
LAW_WORD = {"ok": "kept", "broken": "broken", "skipped": "not applicable", "late": "not tried"}
LIMIT_WORD = {"refused": "refuses", "crashed": "ends its process on", "hung": "did not finish"}
Kind = Literal["rounded", "faithful", "within", "wrong", "undecided", "vacuous"]


def name_of(kernel: KernelRun) -> str:
    """Returns the kernel's name, clean, marked if it is a peer."""
    return clean(kernel.name) + (" (peer)" if kernel.peer else "")


class ResultFacts:
    """Holds the facts of one result of a kernel. `also` are others that are wrong for the same reason."""

    def __init__(self, owner: KernelFacts, result: Result, also: tuple[Result, ...] = ()) -> None:
        self.owner, self.result, self.also = owner, result, also
        self.standing = "peer" if owner.run.peer else result.status  # to show: a peer is not judged
        self.name = f"{clean(result.output)} {clean(result.dtype)}"
        self.title = f"{owner.name} {self.name}"
        self.maximum = result_words.most(result, result.figures)  # an interval if the reference left it open
        has_unit = self.maximum != "NaN" and not result.counts
        self.figure = self.maximum + (UNIT[result.gate] if has_unit else "")
        self.classes = result_words.of_classes(result)  # the maximum on each
        self.baseline = result_words.baseline_of(result)  # PyTorch's maximum on ordinary inputs, or ""
        self.worst = recorded.shown_worst(result)  # the element that shows the error
        self.badness = recorded.badness(result)  # a sort key: worse results are larger

    @property
    def where(self) -> str:
        """Returns the cases where the result is wrong, if the record has them, and the results that are right."""
        alike = [each for each in self.owner.run.results if (each.dtype, each.status) == (self.result.dtype, "ok")]
        right = f"; right: {', '.join(each.output for each in alike)}" if alike else ""
        return clean(self.result.where + right) if self.result.where else ""

    @cached_property
    def kind(self) -> Kind:
        """Returns the word of the field for the result. A peer is not judged, so it is never "wrong"."""
        if self.result.status != "ok" and not self.owner.run.peer:
            return self.result.status
        figures = result_words.promised(self.result)
        if all(not of.misrounded and not of.undecided and float(of.max_ulp) <= 0.5 for of in figures):
            return "rounded"
        return "faithful" if all(float(of.max_upper) < 1 and not of.open for of in figures) else "within"

    @cached_property
    def as_pytorch(self) -> bool:
        """True if a result is wrong and PyTorch's own function is as wrong on the same inputs."""
        return self.kind == "wrong" and result_words.is_wrong_as_pytorch(self.result)

    @cached_property
    def label(self) -> str:
        """Returns for example `correctly rounded`, `faithful`, `1.2 ULP scaled`, `NaN` (of a peer) or `wrong`."""
        result = self.result
        if self.kind == "wrong":
            said = result_words.wrong_words(result)
            return f"{said.replace(' on ordinary inputs', '')}, as PyTorch" if self.as_pytorch else said
        beside = f", {text}" if (text := result_words.beside_pytorch(result)) else ""
        if self.kind != "within":
            right = "exact" if result.counts else "correctly rounded"
            return {"rounded": right}.get(self.kind, self.kind) + beside
        found = [recorded.judged(each, result.gate) for each in result_words.promised(result)]
        most = max(found, key=lambda each: rank(each.upper))
        figure = words.ulp(most.upper)
        if figure == "NaN":
            return figure
        figure += UNIT[result.gate] + beside
        return f"at least {figure}, open" if most.open else figure

    @cached_property
    def also_words(self) -> str:
        """Returns `also` with errors, for example `y bfloat16 (71), float16 (566.4); dx float32 (NaN)`."""

        def named(result: Result) -> str:
            of = result_words.worst_class(result)
            return f"{result.dtype} ({result_words.of_class(result, of)})" if of else result.dtype

        outputs = grouped(self.also[:MOST_ALSO], lambda result: result.output)
        more = f" and {len(self.also) - MOST_ALSO} more" if len(self.also) > MOST_ALSO else ""
        return clean("; ".join(f"{name} {', '.join(map(named, some))}" for name, some in outputs.items()) + more)

    def short_replay(self, record: str, run: Run, item: Worst | None = None, **place: int) -> str:
        """Returns a replay command that names a long case by its place in the record `run`, or "".

        It finds the element that shows the error, or `item` by further arguments.
        """
        kernel, item = self.owner.run.name, item or self.worst
        named = {"result": self.result.output, "dtype": self.result.dtype, **place}
        if not record or item is None or len(replay_command(item.origin)) <= words.LONG:
            return ""
        is_found = recorded.is_found(run, item, kernel, **named)
        texts = {name: clean(str(value)) for name, value in named.items()}
        return words.replay_in(record, clean(kernel), texts) if is_found else ""

    def weight(self) -> tuple[int, tuple[int, float], int, int]:
        """Returns a sort key of results of one output and dtype: the largest error, then the best basis."""
        result = self.result
        strength = ("observed", "certified", "exhaustive").index(result.basis.kind)
        size = recorded.size_of(result.figures, result.gate, result.limit)
        return RESULT_STATUSES.index(result.status), size, strength, result.basis.n


class KernelFacts:
    """Holds the facts of one kernel, the `index`-th of a run."""

    def __init__(self, run: KernelRun, index: int = 0) -> None:
        self.run, self.index = run, index
        self.name = name_of(run)
        self.anchor = f"kernel-{index}"  # the address of its section on a page
        self.standing = "peer" if run.peer else run.status  # to show: a peer is not judged
        self.word = STATUS_WORDS[run.status]  # of peers too
        self.call = words.call(run.op, run.params)
        target, hint = shlex.quote(clean(run.target)), clean(run.hint)
        # The command that measures it again: that of its hint, for example with more time, if any.
        self.rerun = hint if hint.startswith("verify ") and target in hint else f"verify run {target}"
        self.advice = "" if hint == self.rerun else hint

    @cached_property
    def results(self) -> list[ResultFacts]:
        return [ResultFacts(self, result) for result in self.run.results]

    @property
    def is_bare(self) -> bool:
        """True if the kernel has a row of its own: it has no results, or a status that no result has."""
        return not self.run.results or self.run.status not in RESULT_STATUSES

    @cached_property
    def leading(self) -> list[ResultFacts]:
        """Returns one result for each output and dtype: of a run, a sweep and a hunt the one with the largest error."""
        of_result = grouped(self.results, lambda each: (each.result.output, each.result.dtype))
        return [max(some, key=ResultFacts.weight) for some in of_result.values()]

    @cached_property
    def summary(self) -> str:
        """Returns `y float16: faithful, dx float16: 1.2 ULP`. Counts the labels if there are many results."""
        results = self.leading
        if len(results) <= FEW:
            return ", ".join(f"{each.name}: {each.label}" for each in results)
        kinds, worst = [each.kind for each in results], max(results, key=ResultFacts.weight)
        named = {name: name for name in ("wrong", *UNPROVEN)} | {"rounded": "correctly rounded", "faithful": "faithful"}
        parts = [f"{kinds.count(kind):,} {word}" for kind, word in named.items() if kind in kinds]
        labels = f" ({', '.join(parts)})" if parts else ""
        return f"{len(results):,} results{labels}; the worst is {worst.name}: {worst.figure}"

    @cached_property
    def notes(self) -> list[str]:
        """Returns remarks about the kernel. A remark about many results is one line."""
        run = self.run
        found = [text for result in run.results for text in result_words.result_notes(result)]
        found += [gap.text for gap in gathered(run.notes)]
        found += [f"its {each.after} {clean(each.text)}" for each in run.left if each.text not in run.message]
        if run.sizes:
            found.append("sizes up to " + ", ".join(f"{clean(name)} {size:,}" for name, size in run.sizes.items()))
        if run.printed is not None:
            lines = [line for line in words.clean_lines(run.printed.text) if line] or [""]
            found.append(f"printed {plural(run.printed.bytes, 'byte')}: {lines[0][:FIRST]}")
        return found

    @cached_property
    def replay(self) -> str:
        """Returns the command that shows again that its calls differ."""
        laws = [law.origin for law in self.run.laws if law.cause == "not deterministic"]
        worst = [each.worst[0].origin for each in self.run.results if each.status == "wrong" and each.worst]
        return clean(replay_command((laws + worst)[0])) if laws or worst else self.rerun

    def besides(self, law: LawRun | None = None) -> str:
        """Names results and laws broken for the reason of `law`, or because calls differ if it is None."""
        results = [f"{result.output} {result.dtype}" for result in self.run.results if result.status == "wrong"]
        broken = [each for each in self.run.laws if each.status == "broken" and each is not law]
        if law is None:
            broken = [each for each in broken if each.cause == "not deterministic"]
        else:
            broken = [each for each in broken if each.cause == law.cause == "failed" and each.message == law.message]
        of_law = grouped(broken, lambda each: each.law).items()
        named = [f"{name} ({', '.join(each.dtype for each in some)})" for name, some in of_law]
        parts = [f"wrong: {', '.join(results)}"] if results and law is None else []
        what = "broken" if law is None else "called for"
        return clean("; ".join(parts + ([f"{what}: {', '.join(named)}"] if named else [])))

    def law_title(self, law: LawRun) -> str:
        """Returns for example `my_gelu layout independence bfloat16`."""
        return f"{self.name} {clean(law.law)} {clean(law.dtype)}"

    @cached_property
    def broken_laws(self) -> list[LawRun]:
        """Returns its broken laws. Of laws that failed with one message it returns the first."""
        found, seen = [], set[str]()
        for law in self.run.laws:
            if law.status == "broken" and law.cause != "not deterministic" and law.message not in seen:
                found.append(law)
                seen |= {law.message} if law.cause == "failed" else set()
        return found

    @cached_property
    def limits(self) -> list[str]:
        """Returns lines about cases that it cannot run: `refuses 2 x 65537 (3 cases in float32): ...`."""
        raised = f"{clean(self.run.name)} raised "
        limited = [each for each in self.run.unmeasured if each.kind in LIMIT_WORD]
        reasons = grouped(limited, lambda each: (clean(each.text).removeprefix(raised), each.kind, tuple(each.dims)))
        every = "it refuses every case: "
        refused = grouped(
            [law for law in self.run.laws if law.refused],
            lambda law: clean(law.message).removeprefix(every).removeprefix(raised),
        )
        found = []
        for text, some_laws in refused.items():
            if all(text != said for said, _, _ in reasons):
                laws = list(dict.fromkeys(law.law for law in some_laws))
                found.append(f"refuses cases of {plural(len(laws), 'law')} ({listed(laws[:FEW])}): {text}")
        for (text, kind, dims), some in reasons.items():
            sizes = listed([" x ".join(map(str, each)) or "scalars" for each in dims[:FEW]])
            more = f" and {len(dims) - FEW:,} more" if len(dims) > FEW else ""
            count, dtypes = sum(each.cases for each in some), ", ".join(clean(each.dtype) for each in some)
            found.append(f"{LIMIT_WORD[kind]} {sizes}{more} ({plural(count, 'case')} in {dtypes}): {text}")
        return found


class Facts:
    """Holds the facts of a whole run."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.kernels = [KernelFacts(kernel, index) for index, kernel in enumerate(run.kernels)]
        self.judged = [kernel for kernel in self.kernels if not kernel.run.peer]
        # Calls that differ with the same input may explain other errors of a kernel.
        self.unrepeatable = [kernel for kernel in self.judged if kernel.run.unrepeatable]
        # Peers that raised, crashed or hung are shown too: a report never hides a failure.
        self.failures = [kernel for kernel in self.kernels if kernel.run.status in ("error", "crashed", "timeout")]
        self.broken_laws = [(kernel, law) for kernel in self.judged for law in kernel.broken_laws]
        self.limits = [(kernel, text) for kernel in self.judged for text in kernel.limits]  # cases that it cannot run

    @cached_property
    def rows(self) -> list[tuple[KernelFacts, ResultFacts | None]]:
        """Returns results, and kernels that have none, worst first. Equal ones keep the order of the record."""
        found: list[tuple[KernelFacts, ResultFacts | None]] = []
        for kernel in self.kernels:
            found += [(kernel, each) for each in (*kernel.leading, *([None] if kernel.is_bare else []))]

        def order(row: tuple[KernelFacts, ResultFacts | None]) -> tuple[float, ...]:
            kernel, each = row
            of = () if each is None else each.badness
            return -LOOKS[(each or kernel).standing].rank, *(-part for part in of)

        return sorted(found, key=order)

    @cached_property
    def wrong(self) -> list[ResultFacts]:
        """Returns every wrong result of a judged kernel whose calls repeat, in the order of the record."""
        return [each for each in self.results("wrong") if not each.owner.run.unrepeatable]

    def results(self, *statuses: str) -> list[ResultFacts]:
        """Returns the results of judged kernels that have one of these statuses."""
        return [each for kernel in self.judged for each in kernel.results if each.result.status in statuses]

    @cached_property
    def worst(self) -> ResultFacts | None:
        """Returns the worst of the wrong results, which a reader should look at first."""
        return max(self.wrong, key=lambda each: each.badness, default=None)

    @cached_property
    def closest(self) -> ResultFacts | None:
        """Returns the result within its limit that comes closest to it."""
        return max(self.results("ok"), key=lambda each: each.badness, default=None)

    @cached_property
    def findings(self) -> list[ResultFacts]:
        """Returns wrong results, worst first. The worst result of each cause has the others of that cause in `also`."""
        return _by_cause(sorted(self.wrong, key=lambda each: each.badness, reverse=True), _cause)

    @cached_property
    def unproven(self) -> list[ResultFacts]:
        """Returns vacuous and undecided results of judged kernels, grouped by kernel and reason."""
        found = self.results(*UNPROVEN)
        return _by_cause(found, lambda each: (each.owner.run.target, each.result.status, each.result.reason))

    @cached_property
    def missing(self) -> list[GapLine]:
        """Returns lines about skipped kernels and all other parts of the run without figures."""
        lines = [gap.text for gap in self.run.incomplete]
        skipped = [
            f"{kernel.name} was skipped" + (f": {kernel.message}" if kernel.message else "")
            for kernel in self.run.kernels
            if kernel.status == "skipped" and f"{kernel.name}: {kernel.message}" not in lines
        ]
        return gathered([*skipped, *lines])

    @cached_property
    def laws_line(self) -> str:
        """Returns for example `laws: 40 kept, 2 broken, 12 not applicable`, or "" if none were tried."""
        counted = law_counts(law for kernel in self.run.kernels for law in kernel.laws)
        return f"laws: {counted}" if counted else ""

    @cached_property
    def untried_laws(self) -> list[tuple[str, str]]:
        """Returns (reason, `monotonicity, shift: 3 kernels`) for laws that were not tried, most kernels first."""
        skipped = [(each.target, law) for each in self.run.kernels for law in each.laws if law.status == "skipped"]
        found = []
        for reason, some in grouped(skipped, lambda each: clean(each[1].message) or "no reason was recorded").items():
            names, kernels = dict.fromkeys(clean(law.law) for _, law in some), len({target for target, _ in some})
            found.append((kernels, reason, f"{', '.join(names)}: {plural(kernels, 'kernel')}"))
        return [(reason, text) for _, reason, text in sorted(found, key=lambda each: -each[0])]

    @cached_property
    def setting(self) -> str:
        """Returns how the run was made, for example `cuda, profile default, seed 0, 3 min 32 s`."""
        run = self.run
        where = f"{clean(run.backend)}, profile {clean(run.profile)}"
        return f"{where}, seed {run.seed}, {words.seconds(run.seconds)}"

    @cached_property
    def counts(self) -> dict[str, int]:
        """Returns the number of kernels with each `standing` that occurs, in the order of `LOOKS`."""
        found = [kernel.standing for kernel in self.kernels]
        return {status: found.count(status) for status in LOOKS if status in found}

    @property
    def sentence(self) -> str:
        """Returns the verdict as one sentence, which begins with pass, fail or incomplete."""
        return f"{self.run.verdict}: {'; '.join(self.clauses)}"

    @cached_property
    def clauses(self) -> list[str]:
        """Returns the parts of the sentence after its first word: counts, the worst result, missing parts."""
        total = sum(count for status, count in self.counts.items() if status != "peer")
        if not total:
            return ["no kernel was judged" if self.run.kernels else "no kernel was measured"]
        missing = self._missing()
        if self.run.verdict == "incomplete":
            return [f"nothing wrong was seen, but {missing}"]
        parts = self._failed(total)
        if self.run.verdict == "pass":
            ran = self.counts.get("ok", 0)
            who = "1 kernel is" if ran == 1 else f"all {ran:,} kernels {'that ran ' if missing else ''}are"
            results = sum(len(kernel.results) for kernel in self.kernels if kernel.standing == "ok")
            parts = [f"{who} within the declared limits ({plural(results, 'result')})"]
            if self.run.profile == "hunt":
                parts.append("a hunt does not prove that nothing is worse")
        if limits := list(dict.fromkeys(kernel.name for kernel, _ in self.limits)):
            parts.append(f"{listed(limits)} {'does' if len(limits) == 1 else 'do'} not take every case")
        return parts + ([missing] if missing else [])

    def _failed(self, total: int) -> list[str]:
        """Returns the parts of a failing sentence: counts, the worst result, kernels that differ, broken laws."""
        counted: list[str] = []
        for status in FAILED:
            if count := self.counts.get(status, 0):
                is_wrong = "is wrong" if count == 1 else "are wrong"
                verb = {"wrong": is_wrong, "timeout": "timed out", "error": "raised an error"}.get(status, status)
                noun = "kernels" if total > 1 else "kernel"
                counted.append(f"{count:,} {verb}" if counted else f"{count:,} of {total:,} {noun} {verb}")
        parts = [listed(counted)]
        if self.worst is not None:
            trouble = result_words.trouble(self.worst.result)
            parts.append(f"the worst is {self.worst.title}: {trouble}")
            others = sum(self.counts.get(status, 0) for status in FAILED if status != "wrong")
            if not others and all(each.as_pytorch for each in self.results("wrong")):
                parts.append("PyTorch is as wrong on the same inputs")
        if differ := [kernel.name for kernel in self.unrepeatable]:
            parts.append(f"{listed(differ)} {'is' if len(differ) == 1 else 'are'} not deterministic")
        if failed := [kernel.name for kernel, law in self.broken_laws if law.cause == "failed"]:
            parts.append(f"{listed(list(dict.fromkeys(failed)))} failed where a law called it")
        if broken := [kernel.law_title(law) for kernel, law in self.broken_laws if not law.cause]:
            parts.append(f"{plural(len(broken), 'law')} broken, the first is {broken[0]}")
        return parts

    def _missing(self) -> str:
        """Describes missing parts: interrupted or skipped kernels, missing verdicts, and gaps."""
        found = self.counts
        counts = [(status, found[status]) for status in ("interrupted", "skipped") if found.get(status)]
        parts = [f"{plural(count, 'kernel')} {'was' if count == 1 else 'were'} {status}" for status, count in counts]
        for status in UNPROVEN:
            if count := found.get(status, 0):
                parts.append(f"the verdict on {plural(count, 'kernel')} is {status}")
        kinds = [gap.kind for gap in self.run.incomplete if gap.kind != "interrupted" or not found.get("interrupted")]
        if failed := kinds.count("judge failed"):
            parts.append(f"the judge failed at {plural(failed, 'part')} of the run")
        if lines := len(kinds) - failed - kinds.count("refused"):
            parts.append(f"{plural(lines, 'part')} of the run did not happen")
        return listed([*parts, *refusals(self.run)])

    def next_command(self, record: str = "") -> str:
        """Returns the one command to type next: replay the worst, rerun what failed, or make bounds of the figures.

        `record` is the path of the saved run, or "". A command that names another file would fail.
        """
        run, worst = self.run, self.worst
        if worst is not None and worst.worst is not None:
            return worst.short_replay(record, run) or clean(replay_command(worst.worst.origin))
        for _, law in self.broken_laws:
            return clean(replay_command(law.origin))
        for kernel in self.unrepeatable:
            return kernel.replay
        found = {kernel.standing: kernel for kernel in reversed(self.kernels)}  # the first kernel of each standing
        for status in FAILED:
            if status in found:
                return found[status].rerun
        if run.unproven:
            return next(kernel.rerun for kernel in self.kernels if kernel.run is run.unproven[0])
        if run.verdict == "incomplete":
            if "skipped" in found and not run.incomplete:
                return clean(found["skipped"].run.hint) or "verify doctor"
            return clean(run.command) if run.incomplete and run.command else "verify list"
        if record:
            return f"verify bounds propose {shlex.quote(record)}"
        return f"{clean(run.command)} --json run.json --html report.html" if run.command else "verify list"


def law_counts(laws: Iterable[LawRun]) -> str:
    """Returns for example `40 kept, 2 broken, 12 not applicable`, or "" for no laws."""
    found = ["late" if law.late and law.status == "skipped" else law.status for law in laws]
    return ", ".join(f"{found.count(key):,} {word}" for key, word in LAW_WORD.items() if key in found)


def _by_cause(results: Sequence[ResultFacts], cause: Callable[[ResultFacts], tuple[str, ...]]) -> list[ResultFacts]:
    """Returns the first result of each cause, with the others in `also`."""
    causes = grouped(results, cause).values()
    return [ResultFacts(first.owner, first.result, tuple(each.result for each in rest)) for first, *rest in causes]


def _cause(each: ResultFacts) -> tuple[str, ...]:
    """Returns the cause of an error: one output in all dtypes has one, and so has NaN, as gradients inherit it."""
    nan = each.worst is not None and each.worst.got == "nan"
    return each.owner.run.target, result_words.worst_class(each.result), "nan" if nan else each.result.output


def present(run: Run) -> Facts:
    """Returns the facts of a run. Each is computed at its first use."""
    return Facts(run)
