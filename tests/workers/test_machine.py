"""The cores that a process may use, the GPUs that `--gpus` names, and what a worker does early on a GPU."""

from __future__ import annotations

import pytest

from verify.errors import UsageError
from verify.workers.machine import gpus


@pytest.mark.parametrize(
    ("request_", "visible", "seen", "devices"),
    [
        ("all", None, 2, ["0", "1"]),
        ("all", "3,5", 2, ["3", "5"]),
        ("1", None, 4, ["0"]),
        ("3", None, 4, ["0", "1", "2"]),
        ("0,2", None, 4, ["0", "2"]),
        ("1,0", "GPU-a,GPU-b", 2, ["GPU-b", "GPU-a"]),
    ],
)
def test_gpus_by_count_number_or_all(
    request_: str, visible: str | None, seen: int, devices: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert gpus(request_, seen) == devices


@pytest.mark.parametrize(
    ("request_", "seen", "message"),
    [
        ("all", 0, "this process sees none"),
        ("0", 2, "from 1 to 2 .* received 0"),
        ("3", 2, "from 1 to 2 .* received 3"),
        ("0,2", 2, "numbers below 2"),
        ("0,0", 2, "names a GPU twice"),
        ("two", 2, "received 'two'"),
        ("-1", 2, "received '-1'"),
    ],
)
def test_impossible_gpus(request_: str, seen: int, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(UsageError, match=message):
        gpus(request_, seen)
