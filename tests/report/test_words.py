"""Figures and texts, against their decimal expansions and against what must never be printed."""

from __future__ import annotations

import math
import random
import sys
import unicodedata
from fractions import Fraction
from pathlib import Path

import pytest

from tests.golden import answers
from verify.report import words
from verify.report.words import ulp


def test_figures_are_written_by_fixed_rules() -> None:
    """An interval is one figure only if it is tight: the upper end, which cannot be exceeded."""
    answers(Path(__file__).parent / "snapshots" / "figures.txt", vars(words) | {"sys": sys})


def test_a_printed_error_is_never_smaller_than_the_measured_one_and_close_to_it() -> None:
    rng = random.Random(7)
    for _ in range(20_000):
        value = math.ldexp(rng.uniform(1, 2), rng.randint(-40, 60))
        printed = Fraction(ulp(value).replace(",", ""))
        meant = Fraction(repr(value))
        assert meant <= printed <= meant * Fraction(111, 100), value


@pytest.mark.parametrize("line", [0.5, 1.0, 2.0, 4.0])
def test_an_error_beyond_a_limit_never_reads_as_the_limit(line: float) -> None:
    value = line
    for _ in range(3):
        value = math.nextafter(value, math.inf)
        assert float(ulp(value)) > line
    assert ulp(line) == f"{line:g}"


def test_an_error_below_one_never_reads_as_one() -> None:
    value = 1.0
    for _ in range(50):
        value = math.nextafter(value, 0)
        assert float(ulp(value)) < 1


def test_clean_leaves_nothing_that_controls_a_screen() -> None:
    everything = "".join(map(chr, range(sys.maxunicode + 1)))
    cleaned = words.clean(everything)
    left = {unicodedata.category(char) for char in cleaned}
    assert not left & {"Cc", "Cf", "Cs", "Zl", "Zp"}
    cleaned.encode("utf-8")  # lone surrogates could not be written to a file
    assert words.clean("a\x1b[31m\u202e\nb\U000e0001") == "a\\x1b[31m\\u202e\\nb\\U000e0001"
    assert words.clean("gelu_erf µ≤ 例") == "gelu_erf µ≤ 例"


def test_message_lines_stay_lines() -> None:
    assert words.clean_lines("\na\r\n\tb\x07 \n\n") == ["a", "    b\\x07"]
