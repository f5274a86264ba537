"""Makes the table of `verify bench`: every implementation of an op, its worst errors and its speed.

There is one line per implementation, dtype and shape. The error columns hold the judged maximum of the outputs and of
the gradients, each with its basis. Speed is the time of a copy of the same bytes (or of the bare matrix products)
divided by the time of the pass: 1 is memory speed.
"""

from dataclasses import dataclass

from verify.records import recorded
from verify.records.grouped import grouped
from verify.records.record import RESULT_STATUSES, KernelRun, Result, Run, Speed
from verify.report import result_words, words
from verify.report.document import EVERY, Document, Section, TableRow, plain
from verify.report.present import name_of, present


@dataclass(frozen=True)
class BenchRow:
    """Holds what one line of the table is about: an implementation in one dtype, at one shape if it was timed."""

    kernel: KernelRun
    dtype: str
    shape: tuple[int, ...]


def document(run: Run) -> Document:
    """Returns a table per op, the meaning of the columns, missing measurements, and the verdict."""
    facts = present(run)
    failed = [f"{failed.name}: {words.clean(failed.run.message)}" for failed in facts.failures]
    said = [f"{name_of(kernel)}: {words.clean(note)}" for kernel in run.kernels for note in kernel.notes]
    return Document(
        "verify bench",
        words.STANDING[run.verdict],
        run.verdict,
        facts.clauses,
        [
            *tables(run),
            Section("columns", lines=plain([*notes(run), facts.setting]), most=EVERY),
            Section("failed", lines=plain(failed), most=EVERY, standing="error"),
            Section("notes", lines=plain(said), most=EVERY),
            Section("not measured", lines=plain(_missing(run)), most=EVERY),
        ],
    )


def tables(run: Run) -> list[Section]:
    """Returns a table per op that has lines."""
    ops = grouped(run.kernels, lambda kernel: words.call(kernel.op, kernel.params))
    found = ((title, lines(kernels)) for title, kernels in ops.items())
    return [Section(title, rows=[_row(line) for line in some], layouts=[_columns(some)]) for title, some in found]


def _missing(run: Run) -> list[str]:
    """Returns the missing measurements. Kernels that were skipped for one reason share a line."""
    skipped = [kernel for kernel in run.kernels if kernel.status == "skipped" and not kernel.speed]
    reasons = grouped(skipped, lambda kernel: words.clean(kernel.message))
    found = [f"skipped, {reason}: {', '.join(map(name_of, some))}" for reason, some in reasons.items()]
    return found + [words.clean(gap.text) for gap in run.incomplete]


def lines(kernels: list[KernelRun]) -> list[BenchRow]:
    """Returns lines by dtype, then as recorded, so that implementations of one dtype follow each other."""
    found = []
    for kernel in kernels:
        for dtype in dict.fromkeys([result.dtype for result in kernel.results] + [item.dtype for item in kernel.speed]):
            shapes = dict.fromkeys(item.shape for item in kernel.speed if item.dtype == dtype)
            found += [BenchRow(kernel, dtype, shape) for shape in shapes or [()]]
    dtypes = list(dict.fromkeys(line.dtype for line in found))
    return sorted(found, key=lambda line: dtypes.index(line.dtype))


def _columns(shown: list[BenchRow]) -> list[str]:
    many = len({line.shape for line in shown if line.shape}) > 1
    columns = ["implementation", "dtype", *(["shape"] if many else []), "output", "basis", "gradient", "its basis"]
    columns += ["forward", "ms", "backward", "its ms"] if any(line.shape for line in shown) else []
    return [*columns, "verdict"]


def _row(line: BenchRow) -> TableRow:
    results = [result for result in line.kernel.results if result.dtype == line.dtype]
    cells = {"implementation": name_of(line.kernel), "dtype": line.dtype, "shape": "x".join(map(str, line.shape))}
    for side, basis in (("output", "basis"), ("gradient", "its basis")):
        of_side = [result for result in results if result.output.startswith("d") == (side == "gradient")]
        worst = max(of_side, key=_size, default=None)
        cells |= {side: _error(worst), basis: "" if worst is None else words.basis_short(worst.basis)}
    own = [each for each in line.kernel.speed if (each.dtype, each.shape) == (line.dtype, line.shape)]
    timed: dict[str, Speed] = {each.direction: each for each in own}
    for direction, column in (("forward", "ms"), ("backward", "its ms")):
        speed = timed.get(direction)
        ratio = None if speed is None else speed.of_copy if speed.of_product is None else speed.of_product
        cells[direction] = "-" if ratio is None else f"{ratio:.2f}"
        cells[column] = "" if speed is None else f"{speed.milliseconds:.3f} ±{speed.spread / 2:.3f}"
    if not results and line.kernel.speed:
        return TableRow("", "", cells, "peer", "not judged")  # timed only
    status = max((result.status for result in results), key=RESULT_STATUSES.index, default=line.kernel.status)
    standing = "peer" if line.kernel.peer else status
    return TableRow("", "", cells, standing, words.STATUS_WORDS[standing])


def _size(result: Result) -> tuple[int, tuple[int, float]]:
    """Returns a sort key of results: the class of inputs that decides, then the largest error on all inputs."""
    return recorded.badness(result)[0], recorded.size_of(result.figures, result.gate, result.limit)


def _error(result: Result | None) -> str:
    if result is None:
        return "-"
    scaled = words.MARK[result.gate]
    return f"{words.clean(result.output)} {result_words.maximum(result.figures, result.gate)}{scaled}"


def notes(run: Run) -> list[str]:
    """Returns the meaning of the columns and marks that occur."""
    found = ["output, gradient: the largest error found, in ULP, of the worst output and the worst gradient"]
    gates = {result.gate for kernel in run.kernels for result in kernel.results}
    found += [f"{words.MARK[gate].strip()}: {text}" for gate, text in words.LEGEND.items() if gate in gates]
    if any("@" in kernel.name for kernel in run.kernels):
        found.append("KERNEL@eager, KERNEL@compile: PyTorch's own formula in that kernel's place")
    timed = [item for kernel in run.kernels for item in kernel.speed]
    if timed:
        shapes = dict.fromkeys("x".join(map(str, item.shape)) for item in timed)
        units = ["a copy of the same bytes"] if any(item.of_copy is not None for item in timed) else []
        units += ["the bare matrix products"] if any(item.of_product is not None for item in timed) else []
        found.append(
            f"forward, backward: time of {' or '.join(units)} / time of the pass, at {words.listed(list(shapes))}; "
            f"ms: median of {timed[0].rounds} interleaved rounds, ± half the distance between the quartiles"
        )
    return found
