"""Compares two records of the same cases figure by figure: how accuracy changed, and whether any bit changed.

The change may be in the code, or in the device and the versions below the kernel. Cases are the same bits on every
device. So two records answer the same question if their property hashes and seeds agree, on any machines. If every
input of a format is tried there is no seed.
"""

from dataclasses import dataclass
from typing import Literal

from verify.errors import INCOMPLETE, PASS, WRONG
from verify.records.bounds.committed import HEADROOM, badness, by_chance
from verify.records.bounds.verdict import Excess
from verify.records.figure import ordered
from verify.records.grouped import grouped
from verify.records.readings import FAILED, Key, Reading, arch_of, leading, readings
from verify.records.record import UNPROVEN, Run

Change = Literal["worse", "better", "same", "incomparable", "removed", "added"]
Bits = Literal["identical", "changed", "unknown"]
CHANGES: tuple[Change, ...] = ("worse", "incomparable", "removed", "better", "added", "same")
BENEATH = ("gpu", "driver", "cuda", "torch", "triton")  # the software and hardware below a kernel, as records name them


@dataclass(frozen=True)
class Pair:
    """Holds one key on both sides. `bits` is about the whole result to which the regime belongs."""

    key: Key  # its arch is that of the head
    source: str
    base: Reading | None
    head: Reading | None
    change: Change
    bits: Bits
    reason: str = ""  # why the two cannot be compared
    detail: str = ""  # hashes and seeds, which differ by kernel
    grew: tuple[Excess, ...] = ()  # the figures, and the verdict, of the head that are worse than in the base

    @property
    def why(self) -> str:
        """Returns the reason with its detail."""
        return f"{self.reason}: {self.detail}" if self.detail else self.reason

    @property
    def figures_differ(self) -> bool:
        """True if any figure differs, such as the mean below an equal maximum."""
        return self.base is None or self.head is None or self.base.figures != self.head.figures

    @property
    def moved(self) -> bool:
        """True if the verdict on the pair or a figure of it differs."""
        return self.change != "same" or self.figures_differ

    @property
    def silent(self) -> bool:
        """True if no figure and no bit is known to differ."""
        if self.change != "same" or self.bits == "changed":
            return False
        # Equal bits have equal errors. A figure that differs then comes from the reference, which rounds otherwise on
        # another device.
        return self.bits == "identical" or not self.figures_differ


@dataclass(frozen=True)
class Comparison:
    """Holds all pairs, the kernels that fail on one side only, and the two records."""

    pairs: tuple[Pair, ...]
    base: Run
    head: Run
    broke: tuple[tuple[str, str], ...] = ()  # kernel and message: fails in head, or breaks a law, not so in base
    fixed: tuple[str, ...] = ()  # kernels that failed in base and do not fail in head

    @property
    def beneath(self) -> tuple[tuple[str, str, str], ...]:
        """Returns each difference below the kernels: its name, then its version in base and in head."""
        sides = [
            {"arch": arch_of(run)} | {name: str(run.environment.get(name, "absent")) for name in BENEATH}
            for run in (self.base, self.head)
        ]
        return tuple((name, then, sides[1][name]) for name, then in sides[0].items() if then != sides[1][name])

    @property
    def other_cases(self) -> bool:
        """True if some figures could not be compared because the records measured different cases."""
        return any(pair.reason in (OTHER_PROPERTY, OTHER_SEED) for pair in self.pairs)

    @property
    def listed(self) -> list[Pair]:
        """Returns the pairs that a page lists.

        Bits are known only for a whole result. If only bits changed, all regimes of the result are listed.
        """
        moved = {_result(pair) for pair in self.pairs if pair.moved}
        return [pair for pair in self.pairs if not pair.silent and (pair.moved or _result(pair) not in moved)]

    def of(self, change: Change) -> list[Pair]:
        """Returns the pairs with one change."""
        return [pair for pair in self.pairs if pair.change == change]

    @property
    def exit_code(self) -> int:
        """Returns WRONG if something got worse, INCOMPLETE if something could not be compared, else PASS."""
        if self.of("worse") or self.broke:
            return WRONG
        alike = any(pair.change in ("same", "better") for pair in self.pairs)
        return INCOMPLETE if self.of("incomparable") or self.of("removed") or not alike else PASS


def _result(pair: Pair) -> tuple[str, str, str, str]:
    return (pair.key.kernel, pair.key.output, pair.key.dtype, pair.source)


def compare(base: Run, head: Run) -> Comparison:
    """Pairs the figures of two records."""
    sides = [
        grouped(readings(run), lambda each: (each.key.kernel, *each.key.part, each.source)) for run in (base, head)
    ]
    before, after = ({question: leading(found) for question, found in side.items()} for side in sides)
    questions = before.keys() | after.keys()
    pairs = [_pair(question, before.get(question), after.get(question), arch_of(head)) for question in questions]
    pairs.sort(key=lambda pair: (CHANGES.index(pair.change), pair.key, pair.source))
    failed, failing = _failed(base), _failed(head)
    failing |= _wrong_besides(base, head, {pair.key.kernel for pair in pairs if pair.change == "worse"})
    return Comparison(
        tuple(pairs),
        base,
        head,
        broke=tuple((name, message) for name, message in failing.items() if name not in failed),
        fixed=tuple(name for name in failed if name not in failing and any(k.name == name for k in head.kernels)),
    )


# without the arch, because records of two machines may answer the same question
_Question = tuple[str, str, str, str, str]
OTHER_PROPERTY, OTHER_SEED = "something else was measured", "other cases"


def _pair(question: _Question, base: Reading | None, head: Reading | None, arch: str) -> Pair:
    """Pairs two readings of one question, and says how the figure and the bits changed."""
    *names, source = question
    key = Key(arch, *names)
    if base is None or head is None:
        present = head or base
        assert present is not None
        change: Change = "added" if base is None else "removed"
        return Pair(key, source, base, head, change, "unknown")
    if different := _different(base, head):
        return Pair(key, source, base, head, "incomparable", "unknown", *different)
    bits: Bits = "unknown"
    if base.bits and head.bits:
        bits = "identical" if base.bits == head.bits else "changed"
    if grew := _grew(base, head):
        return Pair(key, source, base, head, "worse", bits, grew=grew)
    if head.status in UNPROVEN:  # without a verdict it is no pass
        return Pair(key, source, base, head, "incomparable", bits, f"head is {head.status}", head.why)
    better = ordered(head.value) < ordered(base.value) or badness(head.verdict) < badness(base.verdict)
    return Pair(key, source, base, head, "better" if better else "same", bits)


def _grew(base: Reading, head: Reading) -> tuple[Excess, ...]:
    """Returns what is worse in the head: any larger maximum, and what chance does not explain in shares and means.

    A change that rounds otherwise misrounds other elements, a few more or less of them.
    """
    found = [Excess("value", head, base.value)] if ordered(head.value) > ordered(base.value) else []
    share, mean = by_chance(base, HEADROOM)
    if base.share is not None and head.share is not None and not head.share <= (share or 0.0):
        found.append(Excess("share", head, base.share))
    if base.typical is not None and head.typical is not None and not head.typical <= (mean or 0.0):
        found.append(Excess("typical", head, base.typical))
    if head.decides and badness(head.verdict) > badness(base.verdict):
        found.append(Excess("verdict", head, base.verdict))
    return tuple(found)


def _different(base: Reading, head: Reading) -> tuple[str, str] | None:
    """Returns why two readings are not of the same cases, and the detail; None if they are."""
    if base.flaw or head.flaw:
        return base.flaw or head.flaw, ""
    if base.gate != head.gate:
        return f"the {base.gate} error was judged, now the {head.gate} one", ""
    if not base.properties or not head.properties:
        return "a record has no property hash, so it is not known whether the cases are the same", ""
    if base.properties != head.properties:
        return OTHER_PROPERTY, f"property {base.properties}, now {head.properties}"
    if base.basis.seed != head.basis.seed:
        return OTHER_SEED, f"seed {base.basis.seed}, now seed {head.basis.seed}"
    return None


def _failed(run: Run) -> dict[str, str]:
    return {kernel.name: kernel.message for kernel in run.kernels if kernel.status in FAILED and not kernel.peer}


def _wrong_besides(base: Run, head: Run, worse: set[str]) -> dict[str, str]:
    """Returns the kernels that are wrong in the head alone, and not by a figure: by a law or a side effect."""
    right = {kernel.name for kernel in base.kernels if kernel.status in ("ok", *UNPROVEN)} - worse
    return {
        kernel.name: f"wrong: {words or kernel.message}"
        for kernel in head.kernels
        if kernel.status == "wrong" and kernel.name in right and not kernel.peer
        for words in [", ".join(dict.fromkeys(f"law of {law.law}" for law in kernel.laws if law.status == "broken"))]
    }
