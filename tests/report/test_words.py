"""Figures and texts, against their decimal expansions and against what must never be printed."""

from __future__ import annotations

import math
import random
import sys
import unicodedata
from fractions import Fraction

import msgspec
import pytest

from tests.report.sample import eager_kernel, figures
from verify.records.record import Basis, RegimeFigures
from verify.report import words
from verify.report.words import share, signed_ulp, ulp


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


def test_signed_errors_say_their_direction() -> None:
    values = [0.0, 0.3, -0.3, 254.9, "inf", "-inf", "nan"]
    assert (signed_ulp(3.3e43), signed_ulp(-3.3e43)) == (">1.8e+19", "<-1.8e+19")
    texts = [signed_ulp(value) for value in values]  # type: ignore[arg-type]
    assert texts == ["0", "+0.3", "-0.3", "+254.9", "inf", "-inf", "NaN"]


def test_an_interval_is_one_figure_only_when_it_is_tight() -> None:
    assert words.interval(0.8123, 0.8131) == "0.814"  # the upper end: what cannot be exceeded
    assert words.interval(0.81, 0.97, dash="..") == "0.81..0.97"
    assert words.interval("nan", "nan") == "NaN"
    assert words.interval(3.0, "inf", dash="..") == ">=3" and words.interval(3.0, "inf") == "≥3"
    assert words.interval("inf", "inf") == "inf"
    assert words.interval(1e20, "inf") == ">1.8e+19" and words.interval(0.5, 1e20) == "≥0.5"
    assert words.interval(0.0, 1.9e-9) == "≤1.9e-09" and words.interval(3.4e-111, 1.5e-8, dash="..") == "<=1.5e-08"
    assert words.interval(0.0, 0.0) == "0"


def test_a_share_says_none_and_all_only_when_it_is() -> None:
    assert share(0, 1 << 32) == "0%"
    assert share(1, 1 << 32) == "<0.01%"
    assert share((1 << 32) - 1, 1 << 32) == ">99.9%"
    assert share(1 << 32, 1 << 32) == "100%"
    assert share(9_120, 65_536) == "13.9%"
    assert share(1_420, 65_536) == "2.17%"
    assert share(0, 0) == "0%"


def test_basis_in_full_and_in_short() -> None:
    every = Basis("exhaustive", 65_536)
    seen = Basis("observed", 1_048_576, 0)
    assert str(every) == "exhaustive, 65,536 inputs"
    assert str(seen) == "observed over 1,048,576 cases, seed 0"
    assert words.basis_short(every) == "all 2^16"
    assert words.basis_short(seen) == "seen 2^20"
    assert words.basis_short(Basis("observed", 65_535, 0)) == "seen 65,535"
    assert words.basis_short(Basis("certified", 4_096)) == "proven 4,096"


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


def test_regions_and_edges() -> None:
    some = figures(1, 0.5, 0.5, 0.2, 0)

    def place(low: float | str | None, high: float | str | None) -> str:
        return words.region(RegimeFigures("r", low, high, some))  # type: ignore[arg-type]

    assert place("-inf", -13.0) == "below -13"
    assert place(-13.0, -5.25) == "-13 to -5.25"
    assert place(0.5, "inf") == "0.5 and above"
    assert place("-inf", "inf") == "everywhere"
    assert place(None, None) == ""
    edges = [0.0, -0.0625, 0.5, 2.0, 1024.0, 2.0**24, "inf", "-inf", 3.0]
    texts = ["0", "-1/16", "1/2", "2", "1,024", "2^24", "inf", "-inf", "3"]
    assert [words.power(edge) for edge in edges] == texts  # type: ignore[arg-type]


def test_settings_are_flattened() -> None:
    nested = {"gpu": {"name": "H\x1b200", "arch": ["a", 1]}, "dirty": True, "none": None, "e": {}}
    assert words.flat(nested) == [
        ("gpu name", "H\\x1b200"),
        ("gpu arch", "a, 1"),
        ("dirty", "yes"),
        ("none", "none"),
        ("e", "none"),
    ]


def test_durations() -> None:
    texts = [words.seconds(value) for value in (0.307, 12.44, 59.99, 60.0, 212.7)]
    assert texts == ["0.31 s", "12.4 s", "60.0 s", "1 min 0 s", "3 min 32 s"]


def test_an_exponent_that_no_format_holds_is_shortened() -> None:
    assert words.truth("-7.43312345e-" + "22" + 75 * "1") == "-7.433…·10^(-2.2e76)"
    assert words.truth("2.5e+" + 20 * "3") == "2.5…·10^(3.3e19)"
    assert words.truth("-3.04e-5") == "-3.04e-5"


def test_a_loss_rests_on_calls() -> None:
    result = eager_kernel().results[0]
    seen = msgspec.structs.replace(result, basis=Basis("observed", 14, 0))
    loss = msgspec.structs.replace(seen, worst=[msgspec.structs.replace(seen.worst[0], index=())])
    assert (
        words.basis_of(loss) == "observed over 14 calls, seed 0" and words.basis_of(loss, short=True) == "seen 14 calls"
    )
    assert words.basis_of(seen) == "observed over 14 cases, seed 0" and words.basis_of(seen, short=True) == "seen 14"
