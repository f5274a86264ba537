"""Memory of a GPU that goes from one process to another. The driver here is a double: its GPU is the host's memory."""

from __future__ import annotations

import ctypes
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import torch

from verify.errors import KernelError
from verify.measure import tensors as lending
from verify.measure.requests import Lent


class Driver:
    """Knows one allocation, and opens it at another address."""

    def __init__(self, held: torch.Tensor) -> None:
        self.held, self.opened, self.allocated = held, 0, dict[int, torch.Tensor]()

    def cuMemGetAddressRange_v2(self, base: Any, size: Any, place: Any) -> int:
        start = self.held.data_ptr()
        base._obj.value, size._obj.value = start, self.held.nbytes
        return 0 if start <= place.value < start + self.held.nbytes else 1

    def cuMemAlloc_v2(self, base: Any, size: Any) -> int:
        made = torch.zeros(size.value, dtype=torch.uint8)
        base._obj.value = made.data_ptr()
        self.allocated[made.data_ptr()] = made
        return 0

    def cuMemFree_v2(self, base: Any) -> int:
        del self.allocated[base.value]
        return 0

    def cuIpcGetMemHandle(self, handle: Any, base: Any) -> int:
        handle._obj.reserved = b"this one"
        return 0

    def cuIpcOpenMemHandle_v2(self, base: Any, handle: Any, flags: Any) -> int:
        if handle.reserved != b"this one":
            return 1
        base._obj.value, self.opened = self.held.data_ptr(), self.opened + 1
        return 0

    def cuMemcpyDtoD_v2(self, to: Any, place: Any, count: Any) -> int:
        ctypes.memmove(to.value, place.value, count.value)
        return 0

    def cuIpcCloseMemHandle(self, base: Any) -> int:
        self.opened -= 1
        return 0


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Driver]:
    made = Driver(torch.arange(100, dtype=torch.float32))
    monkeypatch.setattr(lending, "_driver", lambda: made)
    monkeypatch.setattr(lending, "_is_away", lambda tensor: True)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device=None: None)
    yield made
    assert made.opened == 0  # what was opened is closed, whatever happened


def test_what_is_lent_to_a_process_is_a_copy_of_its_own(driver: Driver) -> None:
    """Whatever it writes there, the tensor stays; at the end the memory is free."""
    own = torch.arange(10.0)
    with lending.Loans() as loans:
        forms, parts = lending.announced([("x", own)], loans.add)
        assert forms[0].lent is None and bytes(parts[0]) == own.numpy().tobytes()  # small: its bytes follow
        assert loans.add(own) == Lent(b"this one".ljust(64, b"\0"), 0)
        [copy] = driver.allocated.values()
        assert len(copy) == 1 << 21  # no other tensor lies there
        assert torch.equal(copy[:40].view(torch.float32), own)
        copy.zero_()
        assert torch.equal(own, torch.arange(10.0))
    assert not driver.allocated and lending.Loans(on=False).add(own) is None


@pytest.mark.parametrize(
    ("handle", "offset", "count", "said"),
    [
        (b"this one", -4, 10, "less memory than the 40 bytes"),
        (b"this one", 364, 10, "less memory than the 40 bytes"),
        (b"other", 0, 10, "cannot be opened"),
        (b"short", None, 10, "cannot be opened"),
    ],
)
def test_memory_that_is_not_there_is_an_error_of_the_kernel(
    driver: Driver, handle: bytes, offset: int | None, count: int, said: str
) -> None:
    held = Lent(handle if offset is None else handle.ljust(64, b"\0"), offset or 0)
    with pytest.raises(KernelError, match=said):
        lending.borrowed(held, torch.empty(count))


OTHER = """
import msgspec, sys, torch
from verify.measure.tensors import lent
x = torch.arange(1 << 24, dtype=torch.float32, device="cuda")
print(msgspec.json.encode(lent(x[1000:])).decode(), flush=True)
sys.stdin.read()
"""


@pytest.mark.gpu
def test_memory_of_another_process_is_read_on_the_gpu() -> None:
    with subprocess.Popen([sys.executable, "-c", OTHER], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None and other.stdin is not None
        held = msgspec.json.decode(other.stdout.readline(), type=Lent)
        like = torch.empty((1 << 24) - 1000, device="cuda")
        found = lending.borrowed(held, like)
        assert torch.equal(found, torch.arange(1000, 1 << 24, dtype=torch.float32, device="cuda"))
        with pytest.raises(KernelError, match="less memory"):
            lending.borrowed(held, torch.empty(1 << 26, device="cuda"))
        other.stdin.close()
