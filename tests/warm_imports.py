"""Imports what `verify` and its workers import at their start, for the server of `tests.warm`.

It activates the interpreter, as they do. The modules of the laws are not among them: a worker imports them later.
"""

import gc
import os
import sys

os.sched_getaffinity = lambda _: {0}  # more are forks for each case, and further workers
gc.disable()

from verify import backends, cli, worker  # noqa: E402, F401
from verify.backends.backend import told_to_interpret  # noqa: E402
from verify.measure import apart  # noqa: E402, F401

if told_to_interpret():
    backends.activate(backends.select())
for name in ("verify.worker", "verify.declare.sources"):  # forks run them
    sys.modules.pop(name, None)
gc.freeze()
gc.enable()
