"""Find what a kernel accepts, and print its declaration.

Try dtypes, ranks, sizes, memory layouts and magnitudes of inputs, one at a time. Print what the kernel refuses, and
the arguments of @verify.kernel that declare what it accepts. A trial that ends the kernel's process or hangs is
named, and the others are tried in a new process.

    verify probe accuracy.py::my_softmax

target: TARGET  FILE::KERNEL or MODULE::KERNEL
--timeout: one kernel
--json: what was found
"""

from __future__ import annotations

import argparse
import shlex

from verify.cli import exits, screen, sinks
from verify.declare.requests import declared_by
from verify.diagnose.requests import Probe
from verify.errors import UsageError
from verify.workers import process
from verify.workers.requests import Died, Late

TRIES = 32  # trials that may end the kernel's process


def main(options: argparse.Namespace) -> int:
    """Carries out the command."""
    ended: list[str] = []
    trial = ""
    progress = screen.Progress()

    def follow(text: str) -> None:
        nonlocal trial
        trial = text
        progress(text)

    with process.Worker() as worker:
        found = declared_by(worker, options.target)
        if len(found) != 1:
            raise UsageError(
                f"one kernel is probed at a time; {options.target} declares {len(found)}",
                hint=f"verify probe {shlex.quote(found[0].target if found else options.target + '::KERNEL')}",
            )
        target = found[0].target
        while True:
            try:
                probed = worker.ask(Probe(target, tuple(ended)), timeout=options.timeout, progress=follow)
                break
            except (Died, Late) as error:
                ended.append(trial)
                progress.clear()
                if len(ended) > TRIES:
                    raise UsageError(
                        f"{target}: {TRIES} trials ended its process, the last one {trial}: {error}"
                    ) from None
    progress.clear()
    width = max(len(name) for name, _ in probed.lines)
    lines = [f"{probed.kernel} ({target})", *(f"  {name:<{width}}  {text}" for name, text in probed.lines)]
    arguments = ", ".join(f"{name}={value}" for name, value in probed.arguments.items())
    if arguments:
        lines += ["", "declare:", f"  @verify.kernel(..., {arguments})"]
    else:
        taken = any(name == "dtypes" and not text.startswith("none") for name, text in probed.lines)
        lines += [
            "",
            "nothing to add to the declaration" if taken else "it takes no dtype: there is nothing to declare",
        ]
    data = {"target": target, "lines": probed.lines, "arguments": probed.arguments}
    end = sinks.ending("probed", shlex.join(["verify", "run", target]))
    sinks.deliver_data(options, data, [*lines, *end])
    return exits.PASS
