"""Defines `verify sanitize`: one kernel under compute-sanitizer, on a GPU."""

from __future__ import annotations

import argparse
import shlex

from verify.cli import exits, screen, sinks


def main(options: argparse.Namespace) -> int:
    """Run a kernel under compute-sanitizer (GPU only).

    Run a kernel, forward and backward, under the tools of compute-sanitizer, on one case or on sizes at both sides of a
    block: memcheck (accesses out of bounds), initcheck (reads of memory that was never written), racecheck (races in
    shared memory), synccheck (barriers that some threads miss). Exit code 3 without a GPU or without compute-sanitizer.

        verify sanitize accuracy.py::my_gelu
        verify sanitize accuracy.py::my_gelu --tool memcheck

    target: TARGET  FILE.py::KERNEL or MODULE::KERNEL
    case
    --tool {memcheck,initcheck,racecheck,synccheck}  default: all four
    --timeout: a tool
    --json: the findings
    """
    from verify.diagnose import sanitize

    program = sanitize.executable()
    outcomes = []
    progress = screen.Progress()
    for tool in [options.tool] if options.tool else sanitize.TOOLS:
        progress(f"{options.target}: {tool}")
        if program is None:
            reason = "compute-sanitizer comes with the CUDA toolkit; it is not on the path, nor under CUDA_HOME"
            outcomes.append(sanitize.Outcome(tool, "incomplete", reason))
        else:
            outcomes.append(sanitize.check(program, tool, options.target, options.case, timeout=options.timeout))
    progress.clear()
    found, missing = ([each for each in outcomes if each.status == one] for one in ("findings", "incomplete"))
    lines = [line for each in outcomes for line in (f"{each.tool}: {each.status}", *each.report.splitlines())]
    verdict = f"wrong: {len(found)} of {len(outcomes)} tools found something" if found else ""
    verdict = verdict or (
        f"incomplete: {len(missing)} of {len(outcomes)} tools gave no verdict" if missing else "clean"
    )
    end = sinks.ending(verdict, shlex.join(["verify", "run", options.target]))
    sinks.deliver_data(options, lambda: [each._asdict() for each in outcomes], lambda: sinks.lines(*lines, *end))
    return exits.WRONG if found else exits.INCOMPLETE if missing else exits.PASS
