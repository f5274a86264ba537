"""The supervisor of a process that is not trusted: it looks at it some times a second, whatever ends meanwhile."""

from __future__ import annotations

import subprocess
import sys

WATCHES = """
import os, select, signal, socket, time
from verify.workers.sandbox import confine, starter

looks, wait = 0, select.select

def counted(*given):
    global looks
    looks += 1
    return wait(*given)

select.select = counted
signal.signal(signal.SIGCHLD, lambda *_: None)
child, other = os.fork() or os._exit(time.sleep(1.2) or 0), os.fork() or os._exit(time.sleep(0.2) or 0)
ours, judge = socket.socketpair()
starter._watched(ours, child, confine.Limits(), "")
print(looks)
"""


def test_the_end_of_another_process_does_not_wake_the_supervisor_for_ever() -> None:
    """A process of the solution's that ends is the supervisor's child: its signal took a whole core from then on."""
    done = subprocess.run([sys.executable, "-c", WATCHES], capture_output=True, text=True, check=True)
    assert 1 < int(done.stdout) < 30
