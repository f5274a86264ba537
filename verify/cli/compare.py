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

import argparse
from typing import Any

from verify.cli import sinks
from verify.records.compare import Comparison, compare
from verify.records.files import load
from verify.report import compare_words, gate_data
from verify.report.markdown import comment


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
    """Returns the lines above the table: differences below the kernels."""
    lines = [f"{name:<7} {before}, now {after}" for name, before, after in found.beneath]
    return [*lines, ""] if lines else []


def data(found: Comparison) -> dict[str, Any]:
    """Returns the comparison for programs."""
    return gate_data.of_comparison(found) | {
        "beneath": {name: {"base": before, "head": after} for name, before, after in found.beneath},
    }
