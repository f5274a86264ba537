"""A run measures one state of its sources: a file that changes meanwhile is noticed, whatever else happens to it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from verify.declare.discovery import load
from verify.declare.sources import SourceWatch
from verify.declare.target import Target
from verify.errors import UsageError
from verify.records.commit import digest

CHANGED = (
    "^a run measures one state of its sources; .*kernels.py changed while it went on, and nothing of it is judged\n"
)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "kernels.py"
    path.write_text("FACTOR = 1.0\n")
    return path


def _replace(path: Path) -> None:
    other = path.with_suffix(".new")
    other.write_text("FACTOR = 1.5\n")
    os.utime(other, ns=(path.stat().st_atime_ns, path.stat().st_mtime_ns))
    other.replace(path)


@pytest.mark.parametrize("change", [lambda path: path.write_text("FACTOR = 1.5\n"), _replace, Path.unlink])
@pytest.mark.parametrize("local", [True, False])
def test_a_change_is_noticed(source: Path, change, local: bool) -> None:
    watch = SourceWatch({str(source): digest(source)}, local=local)
    watch.demand_unchanged()
    change(source)
    with pytest.raises(UsageError, match=CHANGED):
        watch.demand_unchanged()


def test_the_same_text_written_again_is_no_change(source: Path) -> None:
    watch = SourceWatch({str(source): digest(source)}, local=True)
    source.write_text("FACTOR = 1.0\n")
    watch.demand_unchanged()


def test_a_change_between_the_import_and_the_run(source: Path) -> None:
    known = {str(source): digest(source), str(source.with_name("elsewhere.py")): "0" * 12}
    source.write_text("FACTOR = 1.5\n")
    with pytest.raises(UsageError, match=CHANGED):
        SourceWatch(known, local=True)
    SourceWatch(known, local=False)  # the workers have files of their own


def test_a_file_that_changes_while_it_is_imported(tmp_path: Path) -> None:
    path = tmp_path / "kernels.py"
    path.write_text("import verify\nwith open(__file__, 'a') as stream:\n    stream.write('# saved\\n')\n")
    with pytest.raises(UsageError, match="kernels.py changed while it was imported\n"):
        load(Target.parse(str(path)))
