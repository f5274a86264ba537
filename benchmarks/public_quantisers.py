"""The table of docs/public-quantisers.md: python -m benchmarks.public_quantisers

It shows the records of `verify run` on the files of examples/public that declare quantisers and dequantisers, and on
the kernels of bitsandbytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from benchmarks.like_rules import write
from verify.records import files
from verify.records.record import KernelRun, Run

ROOT = Path(__file__).parents[1]
RECORDS = [
    ROOT / "reports" / "benchmarks" / "interpreter" / f"public-{name}.json.gz"
    for name in ("quantisers", "bitsandbytes")
]
PAGE = ROOT / "docs" / "public-quantisers.md"


def table(runs: Sequence[Run]) -> str:
    """A row for each kernel: its dtypes, its verdict, and what is wrong on how many of the blocks tried."""
    environment = runs[0].environment
    lines = [f"On a CPU ({environment['cpu']}), torch {environment['torch']}.", ""]
    lines += ["| kernel | dtypes | blocks or elements | verdict | why |", "|---|---|---|---|---|"]
    file = ""
    for kernel in (kernel for run in runs for kernel in run.kernels):
        path = kernel.target.partition("::")[0]
        if path != file:
            file = path
            lines.append(f"| **[{Path(path).stem}](../{path})** | | | | |")
        lines.append(_row(kernel))
    return "\n".join(lines) + "\n"


def _row(kernel: KernelRun) -> str:
    dtypes = ", ".join(dict.fromkeys(result.dtype for result in kernel.results))
    wrong = [result for result in kernel.results if result.status == "wrong"]
    broken = [f"law broken: {law.message}" for law in kernel.laws if law.status == "broken"]
    figures = [float(result.figures.max_ulp) for result in kernel.results]
    right = "right" if max(figures) == 0 else f"right, {max(figures):.3g} ULP"
    why = "; ".join([*([f"{wrong[0].output}: {wrong[0].reason.partition('. First')[0]}"] if wrong else []), *broken])
    tried = sum(result.basis.n for result in kernel.results)
    return f"| {kernel.name} | {dtypes} | {tried:,} | {right if kernel.status == 'ok' else kernel.status} | {why} |"


if __name__ == "__main__":
    write(PAGE, "public quantisers", table([files.load(path) for path in RECORDS]))
