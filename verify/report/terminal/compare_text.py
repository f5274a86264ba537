"""A comparison in words: a sentence, and a table of what changed."""

from __future__ import annotations

from collections.abc import Sequence

from verify.records.compare import Comparison, Pair
from verify.records.readings import Reading, arch_of, commit_of, inputs
from verify.records.record import Run, replay_command
from verify.report import words
from verify.report.signs import Signs
from verify.report.terminal import gate_text
from verify.report.terminal.text_page import Cell, Page

MOST_BLOCKS = 6
STYLE = {"worse": "bold red", "better": "green", "incomparable": "yellow", "removed": "yellow"}
STATUS: dict[str, str] = {
    "worse": "wrong",
    "incomparable": "skipped",
    "removed": "skipped",
    "better": "ok",
    "added": "ok",
    "same": "ok",
}


def render(
    found: Comparison, *, width: int, color: bool, glyphs: bool = True, everything: bool = False, ends: bool = True
) -> str:
    """What changed from base to head. `ends` adds which records they are."""
    page, signs = Page(width=width, color=color), Signs.choose(glyphs)
    if ends:
        page.line(Cell("base  ", "dim"), _about(found.base))
        page.line(Cell("head  ", "dim"), _about(found.head))
        page.blank()
    shown = list(found.pairs) if everything else found.told
    tabled = [pair for pair in shown if pair.base is not None and pair.head is not None and not pair.reason]
    for kernel in dict.fromkeys(pair.key.kernel for pair in tabled):
        page.line(Cell(kernel, "bold"))
        page.results(
            ("output", "dtype", "regime", "base", "head", "misrounded", "bits", "change"),
            [_cells(pair, signs) for pair in tabled if pair.key.kernel == kernel],
            right=("base", "head", "misrounded"),
        )
    for pair in [pair for pair in found.pairs if pair.change == "worse"][:MOST_BLOCKS]:
        _block(page, pair, signs)
    _apart(page, shown, signs)
    for name, message in found.broke:
        page.blank()
        page.line(Cell(f"{signs.status['wrong']} fails now  ", STYLE["worse"]), Cell(name, "bold"))
        page.line(message, indent=4)
    page.blank()
    word = "wrong" if found.exit_code == 1 else "skipped" if found.exit_code == 3 else "ok"
    style = {"wrong": "bold red", "skipped": "yellow", "ok": "green"}[word]
    first, _, rest = sentence(found).partition(":")
    page.line(Cell(f"{signs.status[word]} {first}:", style), rest)
    return page.text()


def sentence(found: Comparison) -> str:
    """`worse: 2 of 48 figures grew; the worst is ...`, `same: all 48 figures, and every bit`."""
    pairs = found.pairs
    alike = [pair for pair in pairs if pair.change in ("worse", "better", "same")]
    worse, better = found.of("worse"), found.of("better")
    parts = []
    if found.broke:
        parts.append(f"{words.plural(len(found.broke), 'kernel')} that worked {_fails(len(found.broke))}")
    if worse:
        parts.append(f"{len(worse):,} of {words.plural(len(alike), 'figure')} grew")
        top = max(worse, key=_growth)
        parts.append(f"the most is {title(top)}, {_ulp(top.base)} to {_ulp(top.head)} ULP")
    if better:
        parts.append(f"{len(better):,} of {words.plural(len(alike), 'figure')} shrank")
    if not worse and not better and alike:
        parts.append(f"no maximum changed in {words.plural(len(alike), 'figure')}, {_bits(alike)}")
    for change, text in (
        ("incomparable", "cannot be compared"),
        ("removed", "only in base"),
        ("added", "only in head"),
    ):
        if count := len(found.of(change)):  # type: ignore[arg-type]
            parts.append(f"{count:,} {text}")
    if found.mended:
        parts.append(f"mended: {words.listed([words.clean(name) for name in found.mended])}")
    if not parts:
        parts.append("the records have no figure in common")
    word = "worse" if found.exit_code == 1 else "incomplete" if found.exit_code == 3 else "better" if better else "same"
    return f"{word}: {'; '.join(parts)}"


def title(pair: Pair) -> str:
    """`gelu dx bfloat16 positive`."""
    key = pair.key
    return " ".join(words.clean(part) for part in (key.kernel, key.output, key.dtype, key.regime) if part)


def _bits(pairs: Sequence[Pair]) -> str:
    results = {(pair.key.kernel, pair.key.output, pair.key.dtype, pair.source): pair.bits for pair in pairs}
    changed = sum(bits == "changed" for bits in results.values())
    if changed:
        return f"bits changed in {changed:,} of {words.plural(len(results), 'result')}"
    if "unknown" in results.values():
        return "whether bits changed is not known"
    return "and not a bit" if len(results) == 1 else f"and not a bit in {len(results):,} results"


def _fails(count: int) -> str:
    return "fails now" if count == 1 else "fail now"


def _about(run: Run) -> str:
    parts = [run.id, run.created[:16].replace("T", " "), arch_of(run), f"commit {commit_of(run)}", f"seed {run.seed}"]
    return ", ".join(words.clean(part) for part in parts if part)


def _ulp(reading: Reading | None) -> str:
    return "-" if reading is None else gate_text.error(reading)


def change_text(pair: Pair) -> str:
    """The last column: what happened, where the maximum alone does not say it."""
    if pair.change == "same" and pair.figures_differ:
        return "same maximum"
    return pair.change


def misrounded_text(pair: Pair) -> str:
    """`2.0% to 1.1%`; one share where it is the same."""
    assert pair.base is not None and pair.head is not None
    before, after = (words.share(side.figures.misrounded, side.figures.n) for side in (pair.base, pair.head))
    return before if before == after else f"{before} to {after}"


def _cells(pair: Pair, signs: Signs) -> list[Cell]:
    scaled = " s" if pair.head is not None and pair.head.gate == "scaled" else ""
    output = pair.key.output + ("" if pair.source == "run" else f" ({pair.source})")
    return [
        Cell(output),
        Cell(pair.key.dtype),
        Cell(pair.key.regime),
        Cell(_ulp(pair.base) + scaled),
        Cell(_ulp(pair.head) + scaled, "red" if pair.change == "worse" else ""),
        Cell(misrounded_text(pair)),
        Cell(pair.bits),
        Cell(f"{signs.status[STATUS[pair.change]]} {change_text(pair)}", STYLE.get(pair.change, "")),
    ]


def _block(page: Page, pair: Pair, signs: Signs) -> None:
    assert pair.head is not None and pair.base is not None
    page.blank()
    page.line(Cell(f"{signs.status['wrong']} worse  ", STYLE["worse"]), Cell(title(pair), "bold"))
    page.field("error", f"{_ulp(pair.base)} to {_ulp(pair.head)} ULP, {words.basis(pair.head.basis)}")
    if pair.head.worst is not None:
        page.field("input", inputs(pair.head.worst))
        page.field("replay", "")
        page.command(replay_command(pair.head.worst.origin), indent=4)


def _apart(page: Page, pairs: Sequence[Pair], signs: Signs) -> None:
    """What stands on one side only or cannot be compared, one line per kernel and reason."""
    found: dict[tuple[str, str, str], int] = {}
    for pair in pairs:
        if pair.change in ("incomparable", "removed", "added"):
            name = (pair.change, pair.key.kernel, pair.reason)
            found[name] = found.get(name, 0) + 1
    if found:
        page.blank()
    for (change, kernel, reason), count in found.items():
        said = {"incomparable": reason, "removed": "only in base", "added": "only in head"}[change]
        sign = signs.status[STATUS[change]]
        page.line(
            Cell(f"{sign} {change}  ", STYLE.get(change, "")),
            Cell(kernel, "bold"),
            f" {words.plural(count, 'figure')}: {said}",
        )


def _growth(pair: Pair) -> tuple[float, float]:
    assert pair.base is not None and pair.head is not None
    if not pair.head.finite:
        return (1.0, pair.head.figures.nonfinite)
    return (0.0, pair.head.value / max(pair.base.value, 0.5))
