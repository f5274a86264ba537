"""The table of docs/public-kernels.md: python -m benchmarks.public_kernels RUN.json --page docs/public-kernels.md

RUN.json is the record of `verify run examples/public/*.py --json RUN.json` on a machine with the packages.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.like_rules import write
from verify.records import files
from verify.records.record import CLASSES, KernelRun, Result, Run
from verify.report import result_words
from verify.report.present import present

DTYPES = ("float32", "bfloat16", "float16")


def table(run: Run) -> str:
    """A row for each result: its largest errors by class in each dtype, and PyTorch's on ordinary inputs."""
    environment = run.environment
    where = environment["gpu"] if run.backend == "cuda" else f"Triton's interpreter on {environment['cpu']}"
    versions = f"torch {environment['torch']}, triton {environment['triton']}"
    lines = [f"{where}; {versions}; seed {run.seed}.", ""]
    lines += ["| kernel | s / dtype | result | " + " | ".join(DTYPES) + " |", "|---" * (3 + len(DTYPES)) + "|"]
    project = ""
    for kernel in sorted(run.kernels, key=lambda each: each.target.partition("::")[0]):
        if kernel.status in ("skipped", "interrupted") or not (kernel.results or kernel.unmeasured or kernel.message):
            continue
        file = Path(kernel.target.partition("::")[0]).stem
        if file != project:
            project = file
            lines.append(f"| **{file}** |" + " |" * (2 + len(DTYPES)))
        lines += _rows(kernel)
    told = dict.fromkeys((kernel.run.target, text) for kernel, text in present(run).limits)
    refused = [f"- `{target.removeprefix('examples/public/')}`: {text}" for target, text in told]
    return (
        "\n".join([*lines, *(["", "Sizes and inputs that a kernel does not take:", "", *refused] if refused else [])])
        + "\n"
    )


def _rows(kernel: KernelRun) -> list[str]:
    if not kernel.results:
        return [f"| {kernel.name} | | {kernel.status} |" + " |" * len(DTYPES)]
    seconds = kernel.seconds / len({result.dtype for result in kernel.results})
    rows = []
    for output in dict.fromkeys(result.output for result in kernel.results):
        found = {result.dtype: result for result in kernel.results if result.output == output}
        cells = [_cell(found[dtype]) if dtype in found else "" for dtype in DTYPES]
        shown = f"{kernel.name} | {seconds:.1f}" if not rows else " | "
        rows.append(f"| {shown} | {output} | " + " | ".join(cells) + " |")
    return rows


def _cell(result: Result) -> str:
    classes = " · ".join(result_words.of_class(result, name) for name in CLASSES)
    return f"{classes} ({result_words.baseline_of(result)})"


def main() -> None:
    """The command of the docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path)
    parser.add_argument("--page", type=Path, required=True)
    options = parser.parse_args()
    write(options.page, "public kernels", table(files.load(options.run)))


if __name__ == "__main__":
    main()
