"""History: the files are the truth. What is kept of them may be missing, old, corrupt or shared."""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.records.bounds.gate_records import SEEN, kernel, result, run
from verify.errors import UsageError
from verify.records import files, history
from verify.records.history import History
from verify.records.record import Run
from verify.report.terminal import history_text
from verify.report.terminal.text_page import Terminal

nan, inf = math.nan, math.inf


def dated(number: int, *values: float, **more: Any) -> Run:
    """Run `number`, one day after the one before; one result per value."""
    results = [
        result(value, output=f"y{place or ''}", properties=f"aa00aa00aa{place:02}", **more)
        for place, value in enumerate(values)
    ]
    created = f"2026-{1 + number // 28:02d}-{1 + number % 28:02d}T10:00:00+00:00"
    return run(kernel(*results), id=f"{number:012x}", created=created, environment={"arch": "sm_90"})


@pytest.fixture
def place(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    folder.mkdir()
    return folder


def write(folder: Path, *values: float) -> None:
    for number, value in enumerate(values):
        files.save(dated(number, value), folder / f"{number}.json")


def values(folder: Path, output: str = "y") -> list[float]:
    """What the history says: all figures of a result in order."""
    found = History(folder, cache=folder.parent / "cache")
    found.refresh()
    return [point.value for line in found.series("gelu", output=output) for point in found.points(line)]


def kept_of(folder: Path) -> list[Path]:
    """The files in which the figures of records are kept."""
    return sorted((folder.parent / "cache").glob("*/*"))


def test_figures_come_in_the_order_of_their_dates_not_of_their_files(place: Path) -> None:
    write(place, 0.5, 0.6, 0.7)
    (place / "0.json").rename(place / "z.json")
    assert values(place) == [0.5, 0.6, 0.7]


def test_summary_and_events_of_a_line(place: Path) -> None:
    write(place, 0.5, 0.5, nan, nan, 0.7, 0.6, 0.6, 0.6)
    found = History(place, cache=place.parent / "cache")
    found.refresh()
    [line] = found.series("gelu")
    short = found.summary(line, recent=3)
    events = found.events(line)
    assert (short.count, short.least, short.recent) == (8, 0.5, (0.6, 0.6, 0.6))
    assert math.isnan(short.most)
    assert (short.last.record, short.since.record) == ("000000000007", "000000000005")
    assert short.before is not None
    assert (short.before.record, short.before.value) == ("000000000004", 0.7)
    assert [(str(event.before.value), str(event.after.value), event.after.record[-1]) for event in events] == [
        ("0.5", "nan", "2"),
        ("nan", "0.7", "4"),
        ("0.7", "0.6", "5"),
    ]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from([0.5, 0.6, nan, inf]), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_summary_agrees_with_the_list_of_figures(told: list[float], chance: random.Random) -> None:
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "runs"
        folder.mkdir()
        order = list(enumerate(told))
        chance.shuffle(order)
        for position, (number, value) in enumerate(order):
            files.save(dated(number, value), folder / f"{position}.json")
        found = History(folder, cache=Path(name) / "cache")
        found.refresh()
        [line] = found.series("gelu")
        short, events = found.summary(line), found.events(line)
    words = [str(value) for value in told]
    changes = [place for place in range(1, len(words)) if words[place] != words[place - 1]]
    assert [int(event.after.record, 16) for event in events] == changes
    assert int(short.since.record, 16) == (changes[-1] if changes else 0)
    assert (None if short.before is None else int(short.before.record, 16)) == (changes[-1] - 1 if changes else None)
    assert [str(value) for value in short.recent] == words
    finite = [value for value in told if not math.isnan(value)]
    assert str(short.least) == str(min(finite, default=nan))
    assert str(short.most) == ("nan" if "nan" in words else str(max(told)))
    assert str(short.finite) == str(max(filter(math.isfinite, told), default=nan))


def test_a_result_is_the_worst_of_its_regimes_and_each_regime_has_a_line(place: Path) -> None:
    files.save(run(kernel(result(low=0.5, high=0.9, rest=0.7))), place / "a.json")
    found = History(place, cache=place.parent / "cache")
    found.refresh()
    [whole] = found.series("gelu")
    assert found.points(whole)[0].value == 0.9
    every = {line.regime: found.points(line)[0].value for line in found.series("gelu", regime=None)}
    assert every == {"": 0.9, "low": 0.5, "high": 0.9, "rest": 0.7}


def test_machines_sources_and_gates_are_lines_of_their_own(place: Path) -> None:
    files.save(run(kernel(result(0.5), result(0.6, source="sweep"))), place / "a.json")
    files.save(run(kernel(result(0.7)), arch="interpreter"), place / "b.json")
    files.save(run(kernel(result(0.8, gate="scaled")), id="c" * 12), place / "c.json")
    found = History(place, cache=place.parent / "cache")
    found.refresh()
    lines = {(line.arch, line.source, line.gate): found.points(line)[0].value for line in found.series("gelu")}
    assert lines == {
        ("sm_90", "run", "plain"): 0.5,
        ("sm_90", "sweep", "plain"): 0.6,
        ("interpreter", "run", "plain"): 0.7,
        ("sm_90", "run", "scaled"): 0.8,
    }


# -- files that come, change and go -----------------------------------------------------------------------


def test_new_changed_removed_renamed_and_copied_files(place: Path) -> None:
    write(place, 0.5, 0.6, 0.7)
    assert values(place) == [0.5, 0.6, 0.7]
    files.save(dated(1, 0.9), place / "1.json")
    assert values(place) == [0.5, 0.9, 0.7]
    (place / "0.json").unlink()
    assert values(place) == [0.9, 0.7]
    (place / "1.json").rename(place / "one.json")
    assert values(place) == [0.9, 0.7]
    (place / "copy.json").write_bytes((place / "2.json").read_bytes())
    assert values(place) == [0.9, 0.7]  # a copy is no second run
    (place / "2.json").unlink()
    assert values(place) == [0.9, 0.7]  # and takes the place of the first
    (place / "copy.json").unlink()
    assert values(place) == [0.9]


@pytest.mark.parametrize("racy", [history.RACY, -(10**18)])  # the second as if the files were old when read
def test_a_change_of_the_same_size_and_time_is_seen(place: Path, monkeypatch: pytest.MonkeyPatch, racy: int) -> None:
    monkeypatch.setattr(history, "RACY", racy)
    write(place, 0.5)
    status = (place / "0.json").stat()
    assert values(place) == [0.5]
    text = (place / "0.json").read_bytes()
    changed = files.encode(dated(0, 0.6))
    assert len(changed) == len(text)
    (place / "0.json").write_bytes(changed)
    os.utime(place / "0.json", ns=(status.st_atime_ns, status.st_mtime_ns))
    assert values(place) == [0.6]


def test_unchanged_files_are_not_read_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(place, 0.5, 0.6)
    monkeypatch.setattr(history, "RACY", -(10**18))  # as if the files were old
    found = History(place, cache=place.parent / "cache")
    assert found.refresh().read == 2
    assert found.refresh().read == 0
    monkeypatch.setattr(history, "RACY", 10**18)  # as if they had been written within the tick
    found = History(place, cache=place.parent / "cache")
    assert found.refresh().read == 2


FOREIGN = {
    "empty.json": b"",
    "text.json": b"hello",
    "truncated.json": files.encode(dated(9, 0.9))[:-200],
    "other.json": b'{"schema": 1}',
    "future.json": b'{"schema": 999}',
    "list.json": b"[]",
    "binary.json": bytes(range(256)),
    "deep.json": b"[" * 100_000,
    "surrogate.json": b'{"schema": 2, "id": "\\ud800"}',
}


def test_foreign_and_corrupt_files_are_named_and_skipped(place: Path) -> None:
    write(place, 0.5, 0.6)
    for name, data in FOREIGN.items():
        (place / name).write_bytes(data)
    (place / "notes.txt").write_text("not looked at")
    (place / ".hidden.json").write_text("not looked at")
    (place / "folder.json").mkdir()
    (place / "dangling.json").symlink_to(place / "nowhere")
    found = History(place, cache=place.parent / "cache")
    done = found.refresh()
    again = found.refresh()
    assert sorted(name for name, _ in done.skipped) == sorted(FOREIGN)
    assert all(name in problem for name, problem in done.skipped)
    assert again.skipped == done.skipped  # told every time, not only the first
    assert values(place) == [0.5, 0.6]
    (place / "empty.json").write_bytes(files.encode(dated(5, 0.7)))
    assert values(place) == [0.5, 0.6, 0.7]  # a file that is mended counts


def test_file_names_of_any_bytes(place: Path) -> None:
    for number, name in enumerate([b"a\xff.json", b"<script>.json", b"\x1b[31m.json", "\u202e.json".encode()]):
        (Path(os.fsdecode(os.fsencode(place) + b"/" + name))).write_bytes(files.encode(dated(number, 0.5 + number)))
    (Path(os.fsdecode(os.fsencode(place) + b"/bad\xff\x1b.json"))).write_bytes(b"x")
    assert values(place) == [0.5, 1.5, 2.5, 3.5]
    found = History(place, cache=place.parent / "cache")
    text = history_text.kernels(found.kernels(), found.refresh(), Terminal(80))
    assert "\x1b" not in text
    assert "bad" in text


def test_no_folder_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no folder of records at"):
        History(tmp_path / "none")


# -- what is kept ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("damage", ["garbage", "empty", "truncated", "middle", "foreign", "folder"])
def test_what_is_kept_and_corrupt_is_made_again(place: Path, damage: str) -> None:
    write(place, 0.5, 0.6)
    assert values(place) == [0.5, 0.6]
    path, other = kept_of(place)
    data = path.read_bytes()
    if damage == "folder":
        path.unlink()
        path.mkdir()
    else:
        path.write_bytes(
            {
                "garbage": b"garbage" * 1000,
                "empty": b"",
                "truncated": data[: len(data) // 3],
                "middle": data[: len(data) // 2] + b"\xff" * (len(data) // 2),
                "foreign": other.read_bytes(),  # of another record
            }[damage]
        )
    assert values(place) == [0.5, 0.6]
    assert values(place) == [0.5, 0.6]


def test_what_is_kept_of_a_file_goes_with_it(place: Path) -> None:
    write(place, 0.5, 0.6)
    assert values(place) == [0.5, 0.6] and len(kept_of(place)) == 2
    (place / "0.json").unlink()
    assert values(place) == [0.6] and len(kept_of(place)) == 1


def test_without_a_place_to_keep_figures_the_answer_is_the_same(place: Path) -> None:
    write(place, 0.5, 0.6)
    blocked = place.parent / "cache"
    blocked.write_text("a file where the folder would be")
    assert values(place) == [0.5, 0.6]


def test_folders_do_not_share_what_is_kept(tmp_path: Path) -> None:
    for name, value in (("a", 0.5), ("b", 0.6)):
        (tmp_path / name).mkdir()
        files.save(dated(0, value), tmp_path / name / "0.json")
    assert [values(tmp_path / name) for name in ("a", "b", "a")] == [[0.5], [0.6], [0.5]]


def write_and_ask(folder: Path, first: int) -> None:
    for number in range(first, first + 12):
        files.save(dated(number, 0.5 + number / 100), folder / f"{number}.json")
        found = History(folder, cache=folder.parent / "cache")
        found.refresh()
        [line] = found.series("gelu")
        assert number in [int(point.record, 16) for point in found.points(line)]


def test_processes_that_write_and_ask_at_the_same_time_lose_nothing(place: Path) -> None:
    forks = multiprocessing.get_context("fork")
    started = [forks.Process(target=write_and_ask, args=(place, first)) for first in (0, 100, 200, 300)]
    for process in started:
        process.start()
    for process in started:
        process.join(120)
        assert process.exitcode == 0
    expected = sorted(0.5 + number / 100 for first in (0, 100, 200, 300) for number in range(first, first + 12))
    assert values(place) == expected


# -- text -------------------------------------------------------------------------------------------------


def test_sparkline() -> None:
    assert history_text.sparkline([0.5, 1.0, 2.0, 4.0, nan, inf, 64.0]) == "▁▂▃▄x^█"
    assert history_text.sparkline([0.5, 0.5, 0.5]) == "▁▁▁"
    assert history_text.sparkline([nan]) == "x"
    assert history_text.sparkline([0.0, 1.0], glyphs=False) == "_@"


@pytest.mark.parametrize("width", [80, 120])
def test_the_table_fits(place: Path, width: int) -> None:
    for number in range(30):
        files.save(dated(number, 0.5, 0.6 + number % 7, basis=SEEN), place / f"{number}.json")
    found = History(place, cache=place.parent / "cache")
    refreshed = found.refresh()
    lines = found.series("gelu")
    text = history_text.table("gelu", [found.summary(line) for line in lines], refreshed, Terminal(width))
    changed = [(line, found.events(line), found.points(line)[0]) for line in lines]
    listed = history_text.events("gelu", changed, refreshed, Terminal(width))
    assert all(len(line) <= width for line in (text + listed).splitlines())
    assert text.splitlines()[1].split()[:5] == ["output", "dtype", "now", "least", "most"]  # in columns at 80 too
    assert "1 line of 2 changed; the latest is y1 bfloat16: 0.6 to 1.6 ULP on 2026-02-02" in " ".join(text.split())
    assert "29 changes; the latest is y1 bfloat16 in record 00000000001d, 2026-02-02" in listed


@pytest.mark.parametrize("broken", [nan, inf])
def test_finite_figures_stand_beside_nan(place: Path, broken: float) -> None:
    """One NaN takes the place of a whole figure, and one run with it that of the largest."""
    word = "NaN" if math.isnan(broken) else "inf"
    files.save(dated(0, 0.7), place / "0.json")
    told = kernel(result(low=0.62, high=0.5, tail=broken))
    files.save(run(told, id="0" * 11 + "1", created="2026-02-02T10:00:00+00:00"), place / "1.json")
    found = History(place, cache=place.parent / "cache")
    refreshed = found.refresh()
    [line] = found.series("gelu")
    text = history_text.table("gelu", [found.summary(line)], refreshed, Terminal(120))
    [tail] = [found.summary(each) for each in found.series("gelu", regime="tail")]
    [row] = [each for each in text.splitlines() if each.startswith("  y ")]
    assert f" {word}, 0.62 " in row and f" {word}, 0.7 " in row
    assert "the largest number of the regimes (now) or of the runs (most)" in text
    assert math.isnan(tail.beside)


def test_json_holds_no_bare_nan(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    from verify.cli import main

    write(place, 0.5, nan, inf)
    monkeypatch.setenv("XDG_CACHE_HOME", str(place.parent / "xdg"))
    for extra in ([], ["--changed"], ["--regime", "all"]):
        assert main(["history", "gelu", "--runs", str(place), "--json", "-", *extra]) == 0
        out = capsys.readouterr().out
        assert json.loads(out, parse_constant=lambda name: pytest.fail(name))["lines"]
    assert main(["history", "--runs", str(place)]) == 0
    assert "gelu" in capsys.readouterr().out
    assert main(["history", "silu", "--runs", str(place)]) == 2
    assert "has a kernel 'silu'; known: gelu" in capsys.readouterr().err
    assert main(["history", "gelu", "--dtype", "float64", "--runs", str(place)]) == 2
    assert "it has arch sm_90; output y; dtype bfloat16; regime all" in capsys.readouterr().err
    assert (place.parent / "xdg" / "verify" / "history").is_dir()
