"""The run record: strict in, canonical out, never half written."""

from __future__ import annotations

import gzip
import itertools
import json
import math
import os
import re
from pathlib import Path

import msgspec
import pytest

from tests.golden import answers
from tests.records.bounds.gate_records import figures, kernel, result
from tests.records.bounds.gate_records import run as run_of
from verify.cli import sinks
from verify.errors import UsageError, WriteError
from verify.records import files, record
from verify.records.files import decode, encode, load, save
from verify.records.readings import NONFINITE
from verify.records.record import (
    Gap,
    Histogram,
    KernelRun,
    Origin,
    RegimeFigures,
    Run,
    number,
    replay_command,
    value_of,
)


def kernel_run(status: str = "wrong", *, peer: bool = False) -> KernelRun:
    """A kernel with NaN and infinite figures, and the regime of special values."""
    finite = figures(math.nan, n=65_280, nonfinite=1, max_upper="inf", mean=0.25)
    regimes = [RegimeFigures("all", None, "inf", finite), RegimeFigures(NONFINITE, None, None, figures(0.0, n=256))]
    histogram = Histogram(edges=["-inf", 0.0, "inf"], counts=[5280, 60000])
    made = msgspec.structs.replace(result(math.nan), figures=finite, regimes=regimes, histogram=histogram, escalated=3)
    params = {"approximate": "none", "eps": 1e-5}
    return kernel(made, name="k", status=status, params=params, promise="float32", peer=peer)


def run(*kernels: KernelRun, incomplete: tuple[str, ...] = ()) -> Run:
    environment = {"gpu": None, "probes": {"ftz": False}}
    return run_of(*kernels, environment=environment, incomplete=[Gap("not possible", line) for line in incomplete])


# -- round trip ---------------------------------------------------------------------------------


def test_a_record_comes_back_byte_for_byte(tmp_path: Path) -> None:
    first = run(kernel_run())
    raw = encode(first)
    assert decode(raw) == first
    assert encode(decode(raw)) == raw
    assert raw.startswith(b'{"schema":6,') and raw.count(b"\n") == 1 and raw.endswith(b"}\n")
    path = tmp_path / "deep" / "run.json"
    save(first, path)
    assert path.read_bytes() == raw
    assert load(path) == first


@pytest.mark.parametrize("value", [0.0, -0.0, 1e-320, 1.5, 1e308, math.inf, -math.inf, math.nan])
def test_numbers_survive(value: float) -> None:
    written = msgspec.json.decode(msgspec.json.encode(number(value)), type=record.Number)
    again = value_of(written)
    assert again == value or (math.isnan(again) and math.isnan(value))
    assert math.copysign(1, again) == math.copysign(1, value) or math.isnan(value)


# -- strict -------------------------------------------------------------------------------------


def edited(**changes: object) -> bytes:
    return json.dumps({**json.loads(encode(run(kernel_run()))), **changes}).encode()


def inside(old: bytes, new: bytes) -> bytes:
    """The first place with `old`, in a record written with a blank after every colon."""
    raw = json.dumps(json.loads(encode(run(kernel_run())))).encode()
    assert raw.count(old) >= 1
    return raw.replace(old, new, 1)


NOT = "r.json is not a verify run record: "
AGAIN = "\n  next: verify run --json PATH measures again"
OLDER = {name: value for name, value in json.loads(encode(run(kernel_run()))).items() if name != "digest"}


def bad(data: bytes) -> None:
    decode(data, source="r.json")


def test_a_bad_record_names_its_fault() -> None:
    answers(Path(__file__).parent / "snapshots" / "bad_records.txt", globals())


def test_a_bare_nan_is_no_json() -> None:
    for word in (b"NaN", b"Infinity", b"-Infinity"):
        with pytest.raises(UsageError, match="is not a verify run record: JSON is malformed"):
            decode(inside(b'"max_ulp": "nan"', b'"max_ulp": ' + word), source="r.json")


@pytest.mark.parametrize(
    ("old", "new"), [(b"verify run", b"verify \xff run"), (b'"seed": 0', b'"seed": 0, "more": "\xc3\x28"')]
)
def test_bytes_that_are_no_text(old: bytes, new: bytes) -> None:
    with pytest.raises(UsageError, match=r"^r\.json "):
        decode(inside(old, new), source="r.json")


# -- digest and contradictions -------------------------------------------------------------------


def test_what_was_changed_after_it_was_written_is_refused() -> None:
    """Wherever it is; another layout of the same content is not."""
    assert decode(json.dumps(json.loads(encode(run(kernel_run()))), indent=2, sort_keys=True).encode()) == run(
        kernel_run()
    )
    said = r"^r.json was changed after it was written: its digest is [0-9a-f]{12}..., its content has [0-9a-f]{12}..."
    for data in (edited(seed=1), edited(digest="0" * 64), inside(b'"mean": 0.25', b'"mean": 0.125')):
        with pytest.raises(UsageError, match=said) as caught:
            decode(data, source="r.json")
        assert caught.value.hint == "verify run --json PATH measures again"
    with pytest.raises(UsageError, match="missing required field `digest`"):
        decode(re.sub(rb',"digest":"[0-9a-f]+"', b"", encode(run())), source="r.json")


def test_a_name_that_stands_twice_is_refused() -> None:
    """JSON readers take the last, or the first, of the two."""
    for old, new, name in (
        (b'"mean": 0.25', b'"mean": 0.125, "mean": 0.25', "mean"),
        (b'"seed": 0', b'"seed": 1, "seed": 0', "seed"),
        (b'"gpu": null', b'"gpu": "x", "gpu": null', "gpu"),
    ):
        with pytest.raises(UsageError, match=f"the name '{name}' occurs twice in one object"):
            decode(inside(old, new))


def test_a_record_that_contradicts_itself_is_refused_though_its_digest_is_right() -> None:
    doubtful = kernel_run("ok")
    place = "$.kernels[1].results[0].status"
    with pytest.raises(UsageError) as caught:
        decode(encode(run(kernel_run(), doubtful)), source="r.json")
    assert str(caught.value) == f'r.json contradicts itself: "wrong", and the kernel k is "ok" - at `{place}`' + AGAIN


# -- atomic -------------------------------------------------------------------------------------


@pytest.mark.parametrize("victim", ["replace", "fsync", "chmod"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_crash_while_writing_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, victim: str, error: BaseException
) -> None:
    path = tmp_path / "run.json"
    save(run(), path)
    before = path.read_bytes()

    def fail(*_: object) -> None:
        raise error

    monkeypatch.setattr(os, victim, fail)
    expected = WriteError if isinstance(error, OSError) else KeyboardInterrupt
    with pytest.raises(expected) as caught:
        save(run(kernel_run()), path)
    if isinstance(error, OSError):
        assert str(caught.value) == f"cannot write {path}: No space left on device (ENOSPC)"
    assert path.read_bytes() == before
    assert list(tmp_path.iterdir()) == [path]


# -- verdict ------------------------------------------------------------------------------------

STATUSES = ("ok", "wrong", "error", "crashed", "timeout", "skipped")


def expected_verdict(statuses: tuple[str, ...], incomplete: bool) -> str:
    if any(status not in ("ok", "skipped") for status in statuses):
        return "fail"
    if incomplete or not any(status == "ok" for status in statuses):
        return "incomplete"
    return "pass"


@pytest.mark.parametrize("incomplete", [False, True])
def test_the_verdict_of_every_pair_of_statuses(incomplete: bool) -> None:
    lines = ("x was not measured",) if incomplete else ()
    assert run(incomplete=lines).verdict == "incomplete"
    for first in STATUSES:
        assert run(kernel_run(first), incomplete=lines).verdict == expected_verdict((first,), incomplete)
    for pair in itertools.product(STATUSES, repeat=2):
        found = run(*(kernel_run(status) for status in pair), incomplete=lines).verdict
        assert found == expected_verdict(pair, incomplete), pair


def test_a_peer_is_never_judged_and_never_counts() -> None:
    for status in STATUSES:
        peer = kernel_run(status, peer=True)
        assert run(peer).verdict == "incomplete"
        assert run(kernel_run("ok"), peer).verdict == "pass"
        assert run(kernel_run("wrong"), peer).verdict == "fail"


# -- lean ---------------------------------------------------------------------------------------


def test_a_path_that_ends_in_gz_is_compressed_and_the_same_every_time(tmp_path: Path) -> None:
    first = run(*[kernel_run()] * 20)
    save(first, tmp_path / "a.json.gz")
    save(first, tmp_path / "b.json.gz")
    raw = (tmp_path / "a.json.gz").read_bytes()
    assert raw == (tmp_path / "b.json.gz").read_bytes() and len(raw) < len(encode(first)) / 8
    assert gzip.decompress(raw) == encode(first)
    sinks.write({tmp_path / "c.json.gz": lambda: encode(first)})  # as the --json of every command does
    assert raw == (tmp_path / "c.json.gz").read_bytes()
    (tmp_path / "renamed.json").write_bytes(raw)
    assert load(tmp_path / "a.json.gz") == load(tmp_path / "renamed.json") == first


def test_a_compressed_file_that_is_cut_off_damaged_or_enormous(monkeypatch: pytest.MonkeyPatch) -> None:
    raw = gzip.compress(encode(run(kernel_run())), mtime=0)
    damaged = raw[:40] + bytes([raw[40] ^ 255]) + raw[41:]
    monkeypatch.setattr(files, "LARGEST", 1000)
    for data, fault in (
        (raw, "it holds more than 1,000 bytes"),
        (gzip.compress(b"{}")[:-5], "the compressed data is truncated"),
        (damaged, "Error -"),
        (gzip.compress(b"{}") + gzip.compress(b"{}"), "22 bytes follow the compressed data"),
        (gzip.compress(b"{}") + b"\0", "1 bytes follow the compressed data"),
    ):
        with pytest.raises(UsageError, match=f"^{NOT}{fault}"):
            decode(data, source="r.json")


def test_replay_commands_are_those_that_a_shell_takes() -> None:
    element = Origin("my kernels.py::k", '{"dims":[4]}', "dx", 3)
    assert replay_command(element) == """verify replay 'my kernels.py::k' '{"dims":[4]}' --result dx --index 3"""
    law = Origin("a.py::k", "{}", law="batch invariance")
    assert replay_command(law) == "verify replay a.py::k '{}' --law 'batch invariance'"
    assert replay_command(None) == ""
