"""Compare two records of the same cases.

Compare two run records: what got worse, what got better, and whether any bit changed. They may come from two
commits, two devices or two versions of Triton; figures of other cases are incomparable. Exit code 1: something got
worse; 3: something could not be compared.

    verify compare before.json after.json
    verify compare sm_90.json interpreter.json --all

base: BASE.json  the record from before
head: HEAD.json  the record from after, of the same cases
--all
--json: the comparison
--markdown
"""

from __future__ import annotations

import argparse
from typing import Any

from verify.cli import sinks
from verify.records.compare import Comparison, compare
from verify.records.files import load
from verify.report import compare_words, gate_data
from verify.report.markdown import comment

MOST_SPECIAL = 12  # special inputs on the screen; --json has all


def main(options: argparse.Namespace) -> int:
    """Carries out the command."""
    found = compare(load(options.base), load(options.head))

    def text() -> str:
        shown = sinks.pages(compare_words.document(found, everything=options.all))
        again = [f"next: verify run --like {options.base} --json {options.head}"] if found.other_cases else []
        return sinks.lines(*about(found)) + shown + sinks.lines(*again)

    sinks.deliver(
        options,
        text,
        json=lambda: sinks.as_json(data(found)),
        markdown=lambda: comment.render(compare_words.document(found)).encode(),
    )
    return found.exit_code


def about(found: Comparison) -> list[str]:
    """Returns the lines above the table: differences below the kernels, and special inputs with other answers."""
    lines = [f"{name:<7} {before}, now {after}" for name, before, after in found.beneath]
    if found.special_tried:
        lines.append(f"special {len(found.special):,} of {found.special_tried:,} special inputs have another answer")
    # Wrong answers come first, because the list is cut.
    for item in sorted(found.special, key=lambda item: not item.worse)[:MOST_SPECIAL]:
        inputs = ", ".join(f"{name} = {value}" for name, value in item.head.inputs.items())
        verdict = ": wrong now" if item.worse else ""
        place = f"{item.kernel} {item.output} {item.dtype} at {inputs}"
        lines.append(f"        {place}: {item.base.got}, now {item.head.got}{verdict}")
    if (more := len(found.special) - MOST_SPECIAL) > 0:
        lines.append(f"        and {more:,} more: --json PATH has all")
    return [*lines, ""] if lines else []


def data(found: Comparison) -> dict[str, Any]:
    """Returns the comparison for programs."""
    return gate_data.of_comparison(found) | {
        "beneath": {name: {"base": before, "head": after} for name, before, after in found.beneath},
        "special tried": found.special_tried,
        "special": [
            {"kernel": item.kernel, "output": item.output, "dtype": item.dtype, "inputs": item.head.inputs}
            | {name: {"got": of.got, "status": of.status} for name, of in (("base", item.base), ("head", item.head))}
            for item in found.special
        ],
    }
