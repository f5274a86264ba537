"""Certificates: strict files, honest bounds, and fresh seeds that stay inside the bound in use."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import mpmath
import pytest

from verify import ops
from verify.errors import TruthError, UsageError
from verify.measure import certify
from verify.ops import normalize
from verify.ops.compensated import Pair, Values
from verify.ops.elements import mpf_to_arb
from verify.ops.op import Fast, Op, Point
from verify.truth import certificate
from verify.truth.certificate import (
    FLOOR,
    SAFETY,
    UNCERTIFIED,
    Certificate,
    Entry,
    key,
    load,
    save,
    units_for,
)

ENTRY = Entry(
    op="gelu",
    params={"approximate": "tanh"},
    result="dx",
    device="cpu",
    units=30.5,
    n=1234,
    seed=0,
    torch="2.0",
    worst="somewhere",
)


def test_a_certificate_comes_back_and_is_written_in_one_order(tmp_path: Path) -> None:
    other = Entry(**{**json.loads(json.dumps(vars_of(ENTRY))), "result": "y"})
    first, second = tmp_path / "a.json", tmp_path / "b.json"
    save(Certificate(schema=1, entries=[other, ENTRY]), first)
    save(Certificate(schema=1, entries=[ENTRY, other]), second)
    assert first.read_bytes() == second.read_bytes()
    assert load(first).entries == [ENTRY, other]


def vars_of(entry: Entry) -> dict[str, object]:
    return {name: getattr(entry, name) for name in entry.__struct_fields__}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"", "{path} is not a certificate: Input data was truncated"),
        (b"{", "{path} is not a certificate: Input data was truncated"),
        (b"{}", "{path} is not a certificate: Object missing required field `schema`"),
        (
            b'{"schema": 1, "entries": [], "x": 1}',
            "{path} is not a certificate: Object contains unknown field `x`",
        ),
        (
            b'{"schema": 1, "entries": [{"op": 3}]}',
            "{path} is not a certificate: Expected `str`, got `int` - at `$.entries[0].op`",
        ),
        (
            b'{"schema": 2, "entries": []}',
            "{path} has certificate schema 2; this verify reads 1",
        ),
    ],
)
def test_a_bad_file_is_refused_with_its_reason(tmp_path: Path, text: bytes, message: str) -> None:
    path = tmp_path / "c.json"
    path.write_bytes(text)
    with pytest.raises(UsageError) as caught:
        load(path)
    assert caught.value.message == message.format(path=path)


def test_the_bound_in_use_is_the_measured_one_with_safety(monkeypatch: pytest.MonkeyPatch) -> None:
    small = Entry(**{**vars_of(ENTRY), "result": "y", "units": 0.5})
    table = {key(e.op, e.params, e.result, e.device): e for e in (ENTRY, small)}
    monkeypatch.setattr(certificate, "_shipped", lambda: table)
    bound, sentence = units_for("gelu", {"approximate": "tanh"}, "dx", "cpu")
    assert bound == SAFETY * 30.5
    assert sentence == "122.0 units of 2^-53 scale (cpu, torch 2.0, n = 1,234)"
    assert units_for("gelu", {"approximate": "tanh"}, "y", "cpu")[0] == SAFETY * FLOOR
    for missing in (
        ("gelu", {"approximate": "none"}, "dx", "cpu"),
        ("gelu", {"approximate": "tanh"}, "dx", "sm_90"),
    ):
        assert units_for(*missing)[0] == UNCERTIFIED


def test_numbers_such_as_eps_do_not_change_the_entry() -> None:
    assert key("n", {"eps": 1e-5}, "y", "cpu") == key("n", {"eps": 1e-6}, "y", "cpu")
    assert key("n", {"flag": True}, "y", "cpu") != key("n", {"flag": False}, "y", "cpu")


@pytest.mark.parametrize("name", ops.names())
def test_every_op_finds_the_entries_that_certify_writes_for_it(name: str) -> None:
    """A parameter that enters the key but has no list of choices would never be certified."""
    op = ops.get(name)
    for params in certify.variants(op):
        written = key(name, params, "y", "cpu")
        assert written == key(name, op.resolve(params), "y", "cpu")


# -- fresh seeds --------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["gelu", "layer_norm", "linear"])
def test_fresh_seeds_stay_within_the_shipped_bound(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(certify, "WIDTHS", (1, 31, 64, 257))
    monkeypatch.setattr(certify, "WIDE", ())
    monkeypatch.setattr(certify, "MATRICES", ((5, 33, 7),))
    monkeypatch.setattr(certify, "PER_CASE", 4)
    entries = certify.certify([name], device="cpu", seed=90_210, elements=256)
    assert entries
    for entry in entries:
        bound, sentence = units_for(entry.op, entry.params, entry.result, "cpu")
        assert entry.n >= 8
        assert entry.units <= bound, (entry, sentence)
        assert not sentence.startswith("none"), f"{name} is not certified on cpu"


# -- what certify must notice -------------------------------------------------------------------


def spoiled(op: Op, by: float) -> Op:
    """The op with a fast reference that is off by a relative amount."""

    def fast(problem):  # type: ignore[no-untyped-def]
        return {name: Fast(item.value * (1 + by), item.scale) for name, item in op.fast(problem).items()}

    return replace(op, fast=fast)


def test_certify_measures_a_reference_that_is_off(monkeypatch: pytest.MonkeyPatch) -> None:
    good = ops.get("gelu")
    monkeypatch.setattr(ops, "get", lambda name: spoiled(good, 2.0**-40))
    for entry in certify.certify(["gelu"], device="cpu", seed=1, elements=128):
        assert entry.units == pytest.approx(2.0**13, rel=0.05)
    monkeypatch.setattr(ops, "get", lambda name: spoiled(good, float("nan")))
    for entry in certify.certify(["gelu"], device="cpu", seed=1, elements=128):
        assert entry.units == float("inf")


def test_certify_sees_what_a_mean_of_one_word_loses_where_large_elements_cancel(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Alone: the other recipes are left out. Sums and the separate treatment of small elements are made plain."""
    monkeypatch.setattr(certify, "ROW_REGIMES", ())
    monkeypatch.setattr(certify, "WIDE", ())
    good = {entry.result: entry for entry in certify.certify(["layer_norm"], device="cpu", seed=1)}
    assert 0 < good["y"].units <= 8
    assert good["y"].worst.startswith("cancelling float32 (3, ")
    monkeypatch.setattr(normalize, "_CLOSE", 0.0)
    monkeypatch.setattr(normalize, "tree_sum", plain_sum)
    bad = {entry.result: entry for entry in certify.certify(["layer_norm"], device="cpu", seed=1)}
    assert bad["y"].units > 1e4
    assert bad["dweight"].units > 1e4


def plain_sum(values: Values | Pair, dim: int) -> Pair:
    total = (values[0] + values[1] if isinstance(values, tuple) else values).sum(dim, keepdims=True)
    return total, 0.0 * total


def third(precision: int) -> mpmath.mpf:
    with mpmath.workprec(precision):
        return mpmath.mpf(1) / 3


def units(value: float, scale: float, exact=third) -> float:  # type: ignore[no-untyped-def]
    point = Point(mp=exact, arb=lambda bits: mpf_to_arb(exact(bits)))
    return certify.distance(point, value, scale, both=True, what="a.y")


def test_distance_in_units_of_the_scale() -> None:
    near = 1 / 3
    assert units(near, 1.0) < 1.0
    assert units(near + 2.0**-50, 1.0) == pytest.approx(8.0, abs=0.5)
    assert units(near + 2.0**-50, 0.5) == pytest.approx(16.0, abs=1.0)
    assert units(1e-100, 0.0, exact=lambda p: mpmath.mpf(0)) == 0.0  # within the absolute slack
    assert units(1.0, 0.0, exact=lambda p: mpmath.mpf(0)) == float("inf")


def test_distance_of_values_that_are_not_finite() -> None:
    nan, inf = float("nan"), float("inf")
    assert units(nan, 1.0, exact=lambda p: mpmath.nan) == 0.0
    assert units(1.0, 1.0, exact=lambda p: mpmath.nan) == inf
    assert units(inf, inf, exact=lambda p: mpmath.inf) == 0.0
    assert units(-inf, inf, exact=lambda p: mpmath.inf) == inf
    assert units(nan, 1.0) == inf
    assert units(inf, 1.0) == inf
    with pytest.raises(TruthError, match="^a.y: the scale of a finite result is inf$"):
        units(0.5, inf)
