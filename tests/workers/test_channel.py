"""Channels: what a process sends has a limit of bytes, and no wait outlasts its deadline."""

from __future__ import annotations

import os
import threading
import time

import pytest

from verify.workers.calls import receive
from verify.workers.channel import Channel, Foreign


def test_a_message_its_bytes_and_its_files_arrive() -> None:
    ours, theirs = Channel.pair()
    read, write = os.pipe()
    ours.send(b"{}", [b"bytes", b""], descriptors=[write])
    files = list[int]()
    assert (theirs.receive(descriptors=files), theirs.fill(5), theirs.fill(0)) == (b"{}", b"bytes", b"")
    os.write(*files, b"x")
    assert os.read(read, 1) == b"x"
    for number in (read, write, *files):
        os.close(number)


@pytest.mark.parametrize("length", [b"\0\0\0\5", b"\xff\xff\xff\xff", b"\x7f\0\0\0"])
def test_a_message_of_another_size_is_refused_before_memory_is_taken(length: bytes) -> None:
    ours, theirs = Channel.pair()
    os.write(ours.fileno(), length)
    with pytest.raises(Foreign):
        theirs.receive(4)


def test_bytes_beyond_the_limit_are_refused_before_they_are_read() -> None:
    for most in (7, lambda size: 7):
        ours, theirs = Channel.pair()
        ours.send(b'{"event":"reply","reply":1,"parts":[4,4]}')
        with pytest.raises(Foreign):
            receive(theirs, most, time.monotonic() + 5)


@pytest.mark.parametrize("sent", [b"", b"\0\0", b"\0\0\1\0 half of it"])
def test_no_wait_outlasts_its_deadline(sent: bytes) -> None:
    """Neither one for a message that never comes or never ends, nor one for a reader that never reads."""
    ours, theirs = Channel.pair()
    os.write(ours.fileno(), sent)
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        theirs.receive(until=began + 0.2)
    with pytest.raises(TimeoutError):
        ours.send(bytes(1 << 24), until=began + 0.4)
    assert time.monotonic() - began < 5


def test_bytes_that_come_one_by_one_prolong_no_wait() -> None:
    ours, theirs = Channel.pair()
    ended = threading.Event()

    def drip() -> None:
        while not ended.wait(0.02):
            os.write(ours.fileno(), b"\0")

    os.write(ours.fileno(), b"\0\1\0\0")
    thread = threading.Thread(target=drip)
    thread.start()
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        theirs.receive(until=began + 0.3)
    assert time.monotonic() - began < 5
    ended.set()
    thread.join()


def test_whether_the_other_end_is_closed_takes_no_time_and_reads_nothing() -> None:
    ours, theirs = Channel.pair()
    theirs.send(b"{}")
    assert ours.receive(until=time.monotonic() + 60) == b"{}"  # the socket now has a deadline
    began = time.monotonic()
    assert not ours.ended and time.monotonic() - began < 30
    theirs.send(b"last")
    theirs.close()
    assert not ours.ended and ours.receive() == b"last" and ours.ended


def test_a_thread_that_waits_ends_when_another_one_hangs_up() -> None:
    ours, _theirs = Channel.pair()
    threading.Timer(0.2, ours.hang_up).start()
    with pytest.raises(EOFError):
        ours.receive(until=time.monotonic() + 60)
