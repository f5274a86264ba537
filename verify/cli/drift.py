"""Predict and measure what a kernel's error does to a stream over many layers.

A layer changes a residual stream: the kernel returns the stream itself, as a fused add does, or a branch that is added
to it. Print the mean error and the deviation of a stack of random layers, as shares of the stream: of one call,
predicted from single calls and from the derivative of a layer, and measured on the kernel's own stack. This is a report
and no verdict: the exit code is 0 in any case.

    verify drift accuracy.py::fused_add_norm --layers 72

target: TARGET  FILE.py::KERNEL or MODULE::KERNEL
--layers COUNT = 72  number of layers
--dtype --backend
--timeout: the search
--json: the figures
"""

import argparse

from verify.cli import replay
from verify.diagnose.requests import Drift, FindDrift


def main(options: argparse.Namespace) -> int:
    """Carries out the command."""
    return replay.report(options, FindDrift(options.target, options.dtype, options.layers), lines_of)


def lines_of(found: Drift) -> list[str]:
    """Returns the figures as lines for the screen."""
    stream = f"{found.result} carries {found.stream}" if found.carries else f"{found.result} is added to {found.stream}"
    lines = [f"{found.kernel} {found.dtype}: {stream}, {found.elements:,} numbers, {found.layers} layers"]
    lines.append(f"  {'share of the stream':20}{'one call':>12}{'predicted':>12}{'measured':>12}")
    for at, name in enumerate(("mean error", "deviation")):
        figures = (f"{100 * each[at]:+.3f}%" for each in (found.call, found.predicted, found.measured))
        lines.append(f"  {name:20}" + "".join(f"{text:>12}" for text in figures))
    return [*lines, f"  a random change of a stream becomes {found.gain:.3f} times as large in the last layer"]
