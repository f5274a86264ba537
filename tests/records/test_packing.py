"""The lean form of a record: nothing is lost, and nothing malformed gets through."""

from __future__ import annotations

import json
import math
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.report.sample import hostile_kernel, make, many, rich, sample
from verify.errors import UsageError
from verify.records import packing
from verify.records.record import (
    SCHEMA,
    Basis,
    Curve,
    Figures,
    Histogram,
    KernelRun,
    LawRun,
    Number,
    RegimeFigures,
    Result,
    Run,
    SpecialValue,
    Worst,
    decode,
    encode,
    number,
)

numbers: st.SearchStrategy[Number] = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False), st.sampled_from(["inf", "-inf", "nan", 0.0, -0.0, 0.5, 1.0])
)
counts = st.integers(0, 1 << 40)
texts = st.text(max_size=8) | st.sampled_from(["", "#0", "rows", " --result "])
figures = st.builds(
    Figures,
    n=counts,
    max_ulp=numbers,
    max_upper=numbers,
    p999=numbers,
    mean=numbers,
    misrounded=counts,
    undecided=counts,
    nonfinite=counts,
    scaled_max=st.none() | numbers,
    scaled_upper=st.none() | numbers,
    scaled_p999=st.none() | numbers,
)
inputs = st.dictionaries(st.sampled_from(["x", "rows", "low", "dy", "@"]), texts, max_size=3)
worst = st.builds(
    Worst,
    index=st.lists(st.integers(0, 99), max_size=3).map(tuple),
    inputs=inputs,
    got=texts,
    got_hex=texts,
    truth=texts,
    ulp=numbers,
    scaled_ulp=st.none() | numbers,
    replay=texts,
)
regimes = st.builds(
    RegimeFigures,
    name=texts,
    low=st.none() | numbers,
    high=st.none() | numbers,
    figures=figures,
    baseline=st.none() | figures,
    operand=texts,
    worst=st.none() | worst,
)
specials = st.builds(
    SpecialValue, inputs=inputs, got=texts, truth=texts, status=st.sampled_from(["ok", "wrong"]), replay=texts
)
histograms = st.one_of(
    st.integers(0, 40).map(lambda n: Histogram(packing.octaves(2 * n), list(range(2 * n)))),
    st.builds(Histogram, edges=st.lists(numbers, max_size=4), counts=st.lists(counts, max_size=4)),
)
curves = st.lists(st.sampled_from(["", "0x7f80", "0xff"]), max_size=4).map(
    lambda worst: Curve("x", [float(k) for k in range(len(worst) + 1)], [1] * len(worst), [0.5] * len(worst), worst)
)
results = st.builds(
    Result,
    output=texts,
    dtype=texts,
    basis=st.just(Basis("exhaustive", 4)),
    gate=st.sampled_from(["plain", "scaled"]),
    limit=st.just(4.0),
    status=st.sampled_from(["ok", "wrong"]),
    figures=figures,
    regimes=st.lists(regimes, max_size=3),
    histogram=histograms,
    worst=st.lists(worst, max_size=3),
    escalated=counts,
    certificate=texts,
    baseline=st.none() | figures,
    baseline_worst=st.lists(worst, max_size=1),
    curve=st.none() | curves,
    special=st.lists(specials, max_size=3),
)


laws = st.builds(
    LawRun,
    law=texts,
    dtype=texts,
    status=st.sampled_from(["ok", "broken", "skipped"]),
    cases=counts,
    message=texts,
    facts=inputs,
    replay=texts,
)


def of(rows: list[Result], tried: list[LawRun]) -> Run:
    kernel = KernelRun("k", "a.py::k", "gelu", {}, "float32", "ok", rows, laws=tried)
    return Run(SCHEMA, "0123456789ab", "", "verify run", "cuda", 0, "default", {}, [kernel])


def same(first: Run, second: Run) -> bool:
    """Equal down to the sign of every zero; a file keeps names in alphabetical order."""
    return msgspec.json.encode(first, order="sorted") == msgspec.json.encode(second, order="sorted")


@settings(max_examples=60, deadline=None)
@given(st.lists(results, max_size=2), st.lists(laws, max_size=3))
def test_whatever_is_written_comes_back(rows: list[Result], tried: list[LawRun]) -> None:
    run = of(rows, tried)
    raw = encode(run)
    assert same(decode(raw), run)
    assert encode(decode(raw)) == raw


@pytest.mark.parametrize("run", [sample(), rich(), many(3), make([hostile_kernel()])])
def test_the_samples_come_back(run: Run) -> None:
    assert same(decode(encode(run)), run)


def test_octaves_are_what_a_histogram_has() -> None:
    assert packing.octaves(2) == [-0.0625, 0.0, 0.0625]
    assert packing.octaves(6) == [-0.25, -0.125, -0.0625, 0.0, 0.0625, 0.125, 0.25]
    most = packing.octaves(2 * 70)
    assert (most[0], most[-1]) == ("-inf", "inf")
    assert most[-2] == math.ldexp(1.0, 64)


def alone() -> Run:
    """One result, so that nothing of it is shared."""
    kernel = rich().kernels[0]
    return make([msgspec.structs.replace(kernel, results=kernel.results[:1], laws=[])])


def broken(edit: Any) -> bytes:
    document = json.loads(encode(alone()))
    edit(document["kernels"][0]["results"][0])
    return json.dumps(document).encode()


AT = "r breaks the record schema: "
HERE = " - at `$.kernels[0].results[0]."


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda it: it["regimes"].update(rows=99), f"{AT}Expected 99 entries, got 5{HERE}"),
        (lambda it: it["regimes"].update(rows=-1), f"{AT}Expected the number of rows, got -1{HERE}regimes.rows`"),
        (lambda it: it["regimes"].update(rows=True), f"{AT}Expected the number of rows, got True{HERE}regimes.rows`"),
        (lambda it: it["regimes"].update(rows=10**12), f"{AT}Expected the number of rows, got 1000000000000{HERE}"),
        (lambda it: it["regimes"].pop("rows"), f"{AT}Expected the number of rows, got None{HERE}regimes.rows`"),
        (lambda it: it["regimes"]["name"].pop(), f"{AT}Expected 5 entries, got 4{HERE}regimes.name`"),
        (lambda it: it["regimes"].update(more=1), f"{AT}Object contains unknown field `more`{HERE}regimes[0]`"),
        (lambda it: it["worst"].update(replay="#7"), f"{AT}Expected a command of the kernel's list, got '#7'{HERE}"),
        (lambda it: it["worst"].update(replay="verify replay"), f"{AT}Expected a command of the kernel's list, got"),
        (lambda it: it["worst"].update(replay=3), f"{AT}Expected a command of the kernel's list, got 3{HERE}"),
        (lambda it: it["histogram"].append("x"), f"{AT}Expected `int`, got `str`{HERE}histogram.counts["),
        (lambda it: it["figures"].pop("max_ulp"), f"{AT}Object missing required field"),
        (
            lambda it: it["regimes"]["figures"].update(n="3"),
            f"{AT}Expected `int`, got `str`{HERE}regimes[0].figures.n`",
        ),
    ],
)
def test_a_malformed_table_names_its_place(edit: Any, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        decode(broken(edit), source="r")
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("commands", [3, [3], {"a": 1}])
def test_commands_are_a_list_of_texts(commands: Any) -> None:
    document = json.loads(encode(rich()))
    document["kernels"][0]["commands"] = commands
    with pytest.raises(UsageError, match=r"Expected a list of commands - at `\$\.kernels\[0\]\.commands`"):
        decode(json.dumps(document).encode())


def test_a_file_can_be_read_by_other_tools() -> None:
    document = json.loads(encode(alone()))
    assert "shared" not in document
    first = document["kernels"][0]["results"][0]
    assert first["figures"]["max_ulp"] == number(0.49987)
    assert first["regimes"]["name"][1] == "negative tail"
    assert first["regimes"]["figures"]["max_ulp"][1] == 0.49987
    place = first["worst"]["replay"].partition(" ")[0].removeprefix("#")
    assert document["kernels"][0]["commands"][int(place)].startswith("verify replay accuracy.py::gelu_erf '{")


# -- the worst input of a regime --------------------------------------------------------------------------


def told() -> Run:
    """The same, its first regime with the worst element of all, its second with one of its own."""
    run = alone()
    result = run.kernels[0].results[0]
    own = msgspec.structs.replace(result.worst[0], got="7", inputs={"x": "7.5 (0x40f0)"})
    parts = [
        msgspec.structs.replace(result.regimes[0], worst=result.worst[0]),
        msgspec.structs.replace(result.regimes[1], worst=own),
        msgspec.structs.replace(result.regimes[2], worst=own),
        *result.regimes[3:],
    ]
    return make([msgspec.structs.replace(run.kernels[0], results=[msgspec.structs.replace(result, regimes=parts)])])


def test_the_worst_of_a_regime_stands_once() -> None:
    run = told()
    raw = encode(run)
    assert same(decode(raw), run)
    result = json.loads(raw)["kernels"][0]["results"][0]
    count = result["worst"]["rows"]
    assert result["regimes"]["worst"] == [0, count, count, None, None]
    assert result["others"]["rows"] == 1
    assert result["others"]["got"] == ["7"] or result["others"]["got"] == "7"


@pytest.mark.parametrize("place", [-1, 99, True])
def test_a_place_without_an_element_is_refused(place: Any) -> None:
    document = json.loads(encode(told()))
    document["kernels"][0]["results"][0]["regimes"]["worst"][1] = place
    with pytest.raises(UsageError) as caught:
        decode(json.dumps(document).encode(), source="r")
    wanted = f"{AT}Expected the place of an element, got {place!r}{HERE}regimes[1].worst`"
    assert str(caught.value).startswith(wanted)


def test_others_are_a_table() -> None:
    document = json.loads(encode(told()))
    document["kernels"][0]["results"][0]["others"] = 3
    with pytest.raises(UsageError, match=r"Expected a table - at `\$\.kernels\[0\]\.results\[0\]\.others`"):
        decode(json.dumps(document).encode())


def test_a_record_without_them_says_nothing_of_them() -> None:
    """Records that were written before there were any are read, and what they hold is written as it was."""
    raw = encode(alone())
    assert b"others" not in raw
    assert all(part.worst is None for part in decode(raw).kernels[0].results[0].regimes)


# -- long values ------------------------------------------------------------------------------------------


def rows_of(*cases: str) -> Run:
    """A kernel whose worst elements come from these cases."""
    kernel = alone().kernels[0]
    element = kernel.results[0].worst[0]
    many = [
        msgspec.structs.replace(element, replay=f"verify replay a.py::k '{case}' --result y --index {place}")
        for place, case in enumerate(cases)
    ]
    return make([msgspec.structs.replace(kernel, results=[msgspec.structs.replace(kernel.results[0], worst=many)])])


ROW = "3f80" * 64


def test_a_row_that_several_cases_hold_is_written_once() -> None:
    run = rows_of(*(f'{{"values":{{"x":"{place:0256x}","weight":"{ROW}"}}}}' for place in range(3)))
    raw = encode(run)
    assert raw.count(ROW.encode()) == 1
    assert same(decode(raw), run)


def test_what_looks_like_a_place_is_left_alone() -> None:
    run = rows_of(f'{{"x":"{ROW}"}}', f'{{"x":"{ROW}","a":1}}', '{"x":"@0"}')
    assert same(decode(encode(run)), run)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        (["00"], r"""Expected the place of a value, got "@1" - at `\$\.kernels\[0\]\.commands`"""),
        ([3], r"Expected a list of values - at `\$\.kernels\[0\]\.values`"),
        ("x", r"Expected a list of values - at `\$\.kernels\[0\]\.values`"),
        (["0" * 600_000] * 2, r"Expected commands of at most 67,108,864 characters - at `\$\.kernels\[0\]\.commands`"),
    ],
)
def test_values_that_are_not_there_or_fill_the_memory(values: Any, message: str) -> None:
    document = json.loads(encode(rows_of('{"x":"y"}')))
    kernel = document["kernels"][0]
    kernel["commands"] = ["verify replay a.py::k '" + ",".join(['"@0"', '"@1"'] * 60) + "'"]
    kernel["values"] = values
    with pytest.raises(UsageError, match=message):
        decode(json.dumps(document).encode())


# -- what occurs twice ------------------------------------------------------------------------------------


def twice() -> Run:
    """Two kernels of one op: PyTorch's figures, regions and special values are those of both."""
    kernel = alone().kernels[0]
    return make([kernel, msgspec.structs.replace(kernel, name="other", target="a.py::other")])


def test_what_occurs_twice_stands_once() -> None:
    once, both = encode(alone()), encode(twice())
    assert len(both) < 1.4 * len(once)
    document = json.loads(both)
    [first, second] = [kernel["results"][0] for kernel in document["kernels"]]
    assert first["regimes"] == second["regimes"]
    [place] = first["regimes"].values()
    assert document["shared"][place] == json.loads(once)["kernels"][0]["results"][0]["regimes"]
    assert first["figures"] == second["figures"]  # short, and what other tools ask for first: never shared
    assert "@" not in first["figures"]


@pytest.mark.parametrize("place", [-1, 99, True, None, 1.5])
def test_a_reference_to_nothing_is_refused(place: Any) -> None:
    document = json.loads(encode(twice()))
    document["kernels"][1]["results"][0]["regimes"] = {"@": place}
    with pytest.raises(UsageError) as caught:
        decode(json.dumps(document).encode(), source="r")
    wanted = f"Expected the place of a shared entry, got {place!r} - at `$.kernels[1].results[0].regimes`"
    assert str(caught.value).startswith(f"{AT}{wanted}")


def test_an_operand_may_be_called_like_a_reference() -> None:
    kernel = alone().kernels[0]
    element = kernel.results[0].worst[0]
    many = [msgspec.structs.replace(element, inputs={"@": f"{k}.5 (0x3f8{k})"}) for k in range(9)]
    rows = [msgspec.structs.replace(kernel.results[0], worst=many, output=name) for name in ("y", "dy")]
    rows.append(msgspec.structs.replace(rows[0], worst=many[:1]))
    run = make([msgspec.structs.replace(kernel, results=rows)])
    assert same(decode(encode(run)), run)


def test_a_shared_entry_refers_to_nothing() -> None:
    document = json.loads(encode(twice()))
    document["shared"] = [{"@": 0} for _ in document["shared"]]
    with pytest.raises(UsageError, match="breaks the record schema"):
        decode(json.dumps(document).encode())


def test_what_is_shared_is_a_list() -> None:
    document = json.loads(encode(twice()))
    document["shared"] = {"0": []}
    with pytest.raises(UsageError, match=r"Expected a list - at `\$\.shared`"):
        decode(json.dumps(document).encode())


def test_records_of_schema_3_share_nothing_and_are_read() -> None:
    document = json.loads(encode(alone()))
    document["schema"] = 3
    assert decode(json.dumps(document).encode()) == alone()
