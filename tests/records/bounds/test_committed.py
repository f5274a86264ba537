"""Bounds on disk: what is written comes back, what is not exactly understood is refused and named."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

import msgspec
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.golden import answers, golden
from tests.records.bounds.gate_records import ALL, PROVEN, SEEN, book, bound, kernel, result, run
from verify.errors import UsageError
from verify.records.bounds import committed
from verify.records.bounds.committed import Acceptance, Bound, file_name
from verify.records.figure import rounded_up
from verify.records.readings import Key, Reading, readings
from verify.records.record import Basis, Result

NAMES = st.text(st.characters(exclude_categories=["Cs"]), max_size=12) | st.sampled_from(
    ["gelu", "../x", "CON", "a/b", ".hidden", "-rf", "%2E", "", "α", "a" * 300, "\0", "gelu.toml", "Gelu"]
)
VALUES = st.floats(0.5, 1e300)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
ACCEPTED = st.builds(Acceptance, date=st.just("2026-11-21"), old=VALUES, new=VALUES, reason=TEXTS)


@st.composite
def any_bound(draw: st.DrawFn) -> Bound:
    plain = bound(draw(VALUES))
    kind = draw(st.sampled_from(["exhaustive", "certified", "observed"]))
    seed = draw(st.none() | st.integers(-5, 2**40))
    return dataclasses.replace(
        plain,
        key=Key("sm_90", draw(NAMES), draw(NAMES), draw(NAMES), draw(NAMES)),
        gate=draw(st.sampled_from(["plain", "scaled"])),
        basis=Basis(kind, draw(st.integers(1, 2**40)), seed),
        reason=draw(TEXTS),
        evidence=dataclasses.replace(plain.evidence, measured=draw(VALUES), worst=draw(NAMES), record=draw(TEXTS)),
        properties=draw(
            st.dictionaries(st.sampled_from(["run", "sweep", "hunt"]), st.just("0a1b2c3d4e5f"), min_size=1)
        ),
        accepted=tuple(draw(st.lists(ACCEPTED, max_size=2))),
    )


def written(item: Bound) -> bytes:
    return committed.render(item.key.arch, item.key.kernel, [item]).encode()


def read(data: bytes, name: str = "gelu.toml") -> dict[Key, Bound]:
    return committed.parse(data, source=f"reports/bounds/sm_90/{name}", arch="sm_90", name=name)


@given(any_bound())
def test_a_bound_comes_back_as_it_was_written(item: Bound) -> None:
    data = written(item)
    found = read(data, file_name(item.key.kernel))
    assert found == {item.key: item}
    assert written(found[item.key]) == data  # canonical


@given(NAMES, NAMES)
def test_two_kernels_never_share_a_file_and_none_leaves_the_folder(first: str, second: str) -> None:
    assume(first != second)
    assert file_name(first) != file_name(second)
    for name in (file_name(first), file_name(second)):
        assert re.fullmatch(r"[A-Za-z0-9_%][A-Za-z0-9_.%-]*\.toml", name)
        assert len(name) <= 200
        assert Path("folder", name).resolve().parent == Path("folder").resolve()


def test_the_file_is_pinned() -> None:
    entry = Acceptance("2026-11-21", 0.5, 0.75, "exp2 is approximate on this device")
    text = committed.render("sm_90", "gelu", [bound(0.75, accepted=(entry,)), bound(1.5, dtype="float16", basis=SEEN)])
    golden(Path(__file__).parent / "snapshots" / "gelu.toml", text)


def edited(old: str, new: str) -> None:
    """Reads a file of bounds in which one place was edited."""
    text = written(bound(0.75)).decode()
    assert text.count(old) == 1
    read(text.replace(old, new).encode())


def test_what_is_not_understood_is_refused_with_its_place() -> None:
    answers(Path(__file__).parent / "snapshots" / "bounds.txt", globals())


def test_a_key_has_one_bound() -> None:
    text = written(bound(0.75)).decode()
    entry = text[text.index("[[result]]") :]
    with pytest.raises(UsageError, match="result 2 repeats 'gelu/y/bfloat16/all'; a key has one bound"):
        read((text + entry.replace("0.75", "900.0")).encode())


@given(st.data())
def test_no_damage_to_a_file_changes_a_bound_unseen(data: st.DataObject) -> None:
    """Every damaged file is refused, or says the same bounds, or visibly other ones: never fewer without a word."""
    whole = committed.render("sm_90", "gelu", [bound(0.75), bound(1.5, dtype="float16")]).encode()
    place = data.draw(st.integers(0, len(whole) - 1))
    kind = data.draw(st.sampled_from(["cut", "flip", "drop", "insert"]))
    damaged = {
        "cut": whole[:place],
        "flip": whole[:place] + bytes([whole[place] ^ (1 << data.draw(st.integers(0, 7)))]) + whole[place + 1 :],
        "drop": whole[:place] + whole[place + data.draw(st.integers(1, 30)) :],
        "insert": whole[:place] + data.draw(st.binary(min_size=1, max_size=4)) + whole[place:],
    }[kind]
    try:
        found = read(damaged)
    except UsageError as error:
        refusal = str(error)
    else:
        refusal = ""
    if refusal:
        assert "gelu.toml" in refusal
        return
    for item in found.values():
        assert 0.5 <= item.value < float("inf")
        assert item.properties
    if kind in ("flip", "insert"):
        assert len(found) == 2


def test_saving_keeps_what_it_was_not_given(tmp_path: Path) -> None:
    empty = book(folder=tmp_path)
    first = [bound(0.75), bound(1.5, dtype="float16"), bound(2.0, kernel="silu"), bound(3.0, arch="interpreter")]
    paths = committed.save(empty, first)
    assert [str(path.relative_to(tmp_path)) for path in paths] == [
        "interpreter/gelu.toml",
        "sm_90/gelu.toml",
        "sm_90/silu.toml",
    ]
    # a book that was loaded before somebody else wrote must not take their bounds away
    stale = book(folder=tmp_path)
    committed.save(stale, [bound(0.6)])
    found = committed.load(tmp_path).bounds
    assert sorted(item.value for item in found.values()) == [0.6, 1.5, 2.0, 3.0]
    assert [path.name for path in tmp_path.rglob(".*")] == []


def test_saving_over_a_damaged_file_is_refused(tmp_path: Path) -> None:
    [path] = committed.save(book(folder=tmp_path), [bound(0.75)])
    path.write_bytes(path.read_bytes()[:-40])
    before = path.read_bytes()
    with pytest.raises(UsageError, match="gelu.toml"):
        committed.save(book(folder=tmp_path), [bound(0.6)])
    assert path.read_bytes() == before


@given(st.floats(1e-6, 1e300))
def test_rounding_a_bound_never_undercuts_the_measurement(value: float) -> None:
    rounded = rounded_up(value)
    assert value <= rounded <= value * 1.0011
    short = float(f"{rounded:.4g}")
    assert rounded in (short, value)


def test_what_a_measurement_supports() -> None:
    def proposed(value: float, basis: Basis) -> float:
        [reading] = readings(run(kernel(result(value, basis=basis))))
        return committed.proposal(reading)

    assert proposed(0.50012345, ALL) == 0.5002
    assert proposed(0.50012345, PROVEN) == 0.5002
    assert proposed(0.50012345, SEEN) == 0.6252  # 1.25 * 0.50012345 = 0.62515...
    assert proposed(0.6, SEEN) == 0.75
    assert proposed(1.5, SEEN) == 3.0  # 0.5 is rounding, 1.0 varies from seed to seed
    assert proposed(0.0, ALL) == 0.5  # no correctly rounded result is excluded
    assert proposed(0.0, SEEN) == 0.625
    few = Basis("observed", committed.FEW - 1, 0)
    assert proposed(0.7, few) == 2.1  # maxima of few cases differ far more from seed to seed
    assert proposed(0.7, Basis("observed", committed.FEW, 0)) == 1.0
    assert proposed(0.7, Basis("observed", committed.MANY - 1, 0)) == 1.0
    assert proposed(0.7, Basis("observed", committed.MANY, 0)) == 0.875


def tightens(found: list[Reading], held: Bound) -> bool:
    """True if the maximum of a bound falls."""
    return committed.tightened(found, held)[0] < held.value


def test_a_bound_of_few_cases_is_loose_when_it_is_beyond_its_headroom_twice() -> None:
    few = Basis("observed", committed.FEW - 1, 0)
    found = list(readings(run(kernel(result(0.5, basis=few)))))
    assert not tightens(found, bound(4.4, basis=few))
    assert tightens(found, bound(4.6, basis=few))


TWO, NONE = Basis("observed", SEEN.n, 2), Basis("observed", SEEN.n)


@pytest.mark.parametrize(
    ("measured", "expected"),
    [
        ([result(0.6, basis=SEEN)], False),
        ([result(0.6, basis=SEEN), result(0.5, basis=SEEN, source="hunt")], False),  # one seed
        ([result(0.6, basis=SEEN), result(0.6, basis=NONE, source="sweep")], False),  # no seed is not another one
        ([result(0.6, basis=SEEN), result(0.5, basis=Basis("observed", SEEN.n - 1, 2))], False),  # proves less
        ([result(0.6, basis=SEEN), result(0.9, basis=TWO)], False),  # the largest decides: 1.5 with headroom
        ([result(0.6, basis=SEEN), result(0.5, basis=TWO)], True),
        ([result(0.6, basis=PROVEN)], True),  # a proof has no luck
        ([result(0.6, basis=ALL)], True),
    ],
)
def test_an_accepted_bound_falls_by_two_seeds_or_a_proof(measured: list[Result], expected: bool) -> None:
    accepted = (Acceptance("2026-01-01", 0.5, 9.0, "earlier"), Acceptance("2026-01-02", 0.6, 1.5, "largest of four"))
    found = [reading for item in measured for reading in readings(run(kernel(item)))]
    assert tightens(found, bound(1.5, basis=SEEN, accepted=accepted)) is expected
    assert tightens(found, bound(1.4, basis=SEEN, accepted=accepted)) is expected  # fell once before


def test_one_seed_tightens_a_bound_to_its_accepted_value() -> None:
    found = list(readings(run(kernel(result(0.6, basis=SEEN)))))  # 0.75 with headroom
    accepted = Acceptance("2026-01-01", 0.5, 0.75, "earlier")
    assert tightens(found, bound(1.5, basis=SEEN, accepted=(accepted,)))
    higher = msgspec.structs.replace(accepted, new=0.76)
    assert not tightens(found, bound(1.5, basis=SEEN, accepted=(higher,)))
