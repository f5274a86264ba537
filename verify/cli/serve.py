"""Answer requests of programs by warm workers.

Read requests of the Model Context Protocol from stdin, a line each, and write answers to stdout: run, judge, replay
and explain, with the options and the JSON of these commands. Workers stay warm between requests. There is no network
port. At the end of stdin all requests are answered first; Ctrl-C ends the command at once (docs/serve.md).

    verify serve
    verify serve --jobs 4 --backend cuda --timeout 2m

--backend
--jobs COUNT|auto = 0  worker processes at a time (default: auto, one)
--timeout: a request
"""

import argparse
import os
import signal
import sys
import threading

from verify.cli import exits
from verify.cli.door import Door
from verify.declare.requests import Forget
from verify.workers.lanes import Lanes


def main(options: argparse.Namespace) -> int:
    """Carries out the command."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # other output is no answer
    sys.stdout = sys.stderr
    reader = threading.get_ident()

    def write(line: bytes) -> None:
        try:
            answers.write(line)
            answers.flush()
        except OSError:  # the client has gone
            signal.pthread_kill(reader, signal.SIGTERM)

    with exits.terminated_as_interrupted():
        lanes = Lanes(options.backend, options.jobs or 1, Forget())
        try:
            Door(write, lanes, options.timeout, options.backend).read(sys.stdin.buffer)
            lanes.close()
        except BaseException:
            lanes.close(reason="interrupted")
            raise
    return exits.PASS
