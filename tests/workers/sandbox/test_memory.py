"""Groups of processes whose memory the kernel limits, on machines that let the judge make one."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from verify.workers.sandbox import memory

MIB = 1 << 20
TAKES = """
import mmap, sys
from verify.workers.sandbox import memory
memory.join(sys.argv[1])
kept = mmap.mmap(-1, int(sys.argv[2]) << 20)  # shared, which no limit of a process counts
for place in range(int(sys.argv[2])):
    kept[place << 20] = 1
    kept[place << 20 : (place << 20) + 4096 * 255] = bytes(4096 * 255)
"""


@pytest.fixture
def group() -> Iterator[str]:
    found = memory.make(96 * MIB)
    if not found:
        pytest.skip("this machine lets no one make a group")
    yield found
    memory.remove(found)
    assert not Path(found).exists()


@pytest.mark.parametrize(("size", "code"), [(16, 0), (400, -signal.SIGKILL)])
def test_the_kernel_ends_what_exceeds_a_group(group: str, size: int, code: int) -> None:
    done = subprocess.run([sys.executable, "-c", TAKES, group, str(size)])
    assert done.returncode == code
    assert memory.ended(group) == bool(code)


def test_a_group_of_a_dead_supervisor_is_removed_and_no_other(group: str) -> None:
    top = Path(group).parent
    (dead := top / f"verify-{1 << 30}").mkdir()
    (living := top / "verify-1").mkdir()
    try:
        memory.remove(group)
        assert memory.make(96 * MIB) == group
        assert not dead.exists() and living.exists()
    finally:
        living.rmdir()


def test_without_a_group_nothing_is_done(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_VERSIONS", ((str(tmp_path), "memory.max", "memory.swap.max", "memory.events"),))
    assert memory.make(MIB) == "" and not list(tmp_path.iterdir())
    memory.join("")
    memory.remove("")
    assert not memory.ended("")
