"""Figures and texts, against their decimal expansions and against what must never be printed."""

from __future__ import annotations

import math
import random
import sys
import unicodedata
from fractions import Fraction

import pytest

from verify.report import words
from verify.report.words import ulp


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0, "0"),
        (5e-324, "5.0e-324"),
        (1.23e-5, "1.3e-05"),
        (0.0312, "0.0312"),
        (0.5, "0.5"),
        (0.50004, "0.501"),
        (0.501, "0.501"),
        (0.99999, "0.99999"),
        (0.9999999999999999, "0.9999999999999999"),
        (1.0, "1"),
        (1.0000001, "1.01"),
        (2.25, "2.25"),
        (9.999, "10"),
        (99.99, "100"),
        (254.9, "254.9"),
        (254.918, "255"),
        (999.96, "1,000"),
        (1234.0, "1,234"),
        (9999.5, "1.0e+04"),
        (1.68e7, "1.7e+07"),
        (9.99e7, "1.0e+08"),
        (1.7e19, "1.7e+19"),
        (3.3e43, ">1.8e+19"),
        (-sys.float_info.max, "<-1.8e+19"),
        ("inf", "inf"),
        ("-inf", "-inf"),
        ("nan", "NaN"),
        (-3.2, "-3.2"),
    ],
)
def test_ulp_is_written_by_fixed_rules(value: float | str, text: str) -> None:
    assert ulp(value) == text  # type: ignore[arg-type]


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


def test_an_interval_is_one_figure_only_when_it_is_tight() -> None:
    assert words.interval(0.8123, 0.8131) == "0.814"  # the upper end: what cannot be exceeded
    assert words.interval(0.81, 0.97) == "0.81–0.97"
    assert words.interval("nan", "nan") == "NaN"
    assert words.interval(3.0, "inf") == "≥3"
    assert words.interval("inf", "inf") == "inf"
    assert words.interval(1e20, "inf") == ">1.8e+19" and words.interval(0.5, 1e20) == "≥0.5"
    assert words.interval(0.0, 1.9e-9) == "≤1.9e-09"
    assert words.interval(0.0, 0.0) == "0"


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
