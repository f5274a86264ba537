"""Starts a process for code that is not trusted, and calls it. Such a process cannot answer for any other."""

import os
import signal
import socket
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress

import msgspec

from verify.errors import UsageError
from verify.workers import process_tree
from verify.workers.calls import FOREIGN, Callee
from verify.workers.channel import Channel, Foreign
from verify.workers.process import START_SECONDS
from verify.workers.requests import Died, Outcome, Who
from verify.workers.sandbox.confine import Confined, Limits
from verify.workers.sandbox.starter import MESSAGE, Ended

HEAD = 1 << 20  # bytes of an answer without its tensors
UNFORGEABLE = "it wrote into the connection of its own process: what arrived is no answer to the call"


class ConfinedProcess(Callee):
    """Starts a process by a starter. It is idle until the first request."""

    who: Who = "solution"
    longest = HEAD

    def __init__(self, starter: str, limits: Limits) -> None:
        super().__init__()
        self._channel, theirs = Channel.pair()
        self._control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.pid = 0  # of its supervisor, once that runs
        self._confined: Confined | None = None
        self._lock = threading.Lock()
        with theirs:
            self._control.connect(starter)
            socket.send_fds(self._control, [msgspec.json.encode(limits)], [theirs.fileno()])

    def confined(self) -> Confined:
        """Returns the limits that hold, applied before anything that is not trusted is imported."""
        with self._lock:
            if self._confined is None:
                until = time.monotonic() + START_SECONDS
                self._control.settimeout(START_SECONDS)
                try:
                    self.pid = int(self._control.recv(MESSAGE))
                    self._confined = msgspec.json.decode(self._channel.receive(HEAD, until=until), type=Confined)
                except (OSError, ValueError, EOFError, Foreign, msgspec.DecodeError) as error:
                    raise UsageError(f"no confined process could be started here: {error or 'it ended'}") from None
            return self._confined

    def _connected(self) -> Channel:
        return self._channel

    def died(self) -> Outcome:
        """Ends a process that closed its end of the channel. Returns why there is no answer: its supervisor knows."""
        self._control.settimeout(process_tree.END_SECONDS)
        found = Ended(reason="closed its connection and went on")
        with suppress(OSError, msgspec.DecodeError):
            found = msgspec.json.decode(self._control.recv(MESSAGE), type=Ended)
        self.stop()
        return Died(f"its process {found.reason}") if found.reason else Died.of(found.code)

    def wrote_into_connection(self, text: str) -> Outcome:
        """Ends a process that sent something other than a message of verify, as `text` says. Returns the outcome."""
        self.stop()
        return Died(UNFORGEABLE if text == FOREIGN else text)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Stops the process and everything that it started for a while: its threads would slow the reference."""
        theirs, supervisor = set[int](), self.pid
        while self.pid and (more := process_tree.living({supervisor}, "") - theirs - {supervisor}):
            _signal(more, signal.SIGSTOP)  # it may have forked meanwhile
            theirs |= more
        try:
            yield
        finally:
            _signal(theirs, signal.SIGCONT)

    def stop(self, *, at_once: bool = True) -> None:
        """Ends the process and everything that it started."""
        pid, self.pid = self.pid, 0  # another thread may end it too, and 0 would be this process's own group
        self._broken = self._broken or Died("its process has ended")
        if pid:
            process_tree.kill(pid, "")
        self._control.close()
        self._channel.close()


def _signal(pids: Iterable[int], kind: signal.Signals) -> None:
    for pid in pids:
        with suppress(OSError):
            os.kill(pid, kind)
