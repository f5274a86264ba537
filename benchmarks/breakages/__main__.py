"""How the default limits separate honest kernels from broken ones: python -m benchmarks.breakages docs/limits.md

Computes every program of benchmarks/breakages/programs.py as honest kernels do (other orders of sums, PyTorch) and as
broken ones do (zeros, 1% off, a bfloat16 accumulator, a constant that is off, ...), and has verify judge all results at
its default limit. Exit 0: no broken kernel passes on ordinary inputs, zeros pass nowhere, 98% of the honest ones pass.
Exit 1: something of this does not hold.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path

import msgspec
import torch

from benchmarks.breakages.measure import INPUTS, Measured, attempt
from benchmarks.breakages.programs import programs
from benchmarks.breakages.table import shown, summary, tables
from benchmarks.like_rules import write
from verify.records.files import write_atomically


class Record(msgspec.Struct, frozen=True):
    """The file that --json writes."""

    torch: str
    device: str
    programs: list[Measured]


def main(given: Sequence[str] | None = None) -> int:
    chosen = _parser().parse_args(given)
    known = programs()
    if unknown := set(chosen.programs or ()) - set(known):
        raise SystemExit(f"no program is called {', '.join(map(repr, sorted(unknown)))}; --list prints all")
    if chosen.list:
        print("\n".join(known))
        return 0
    names = chosen.programs or [name for name, each in known.items() if each.quick or not chosen.quick]
    started = time.monotonic()
    measured = []
    one = partial(attempt, compile=chosen.compile, device=chosen.device)
    with ProcessPoolExecutor(chosen.jobs, multiprocessing.get_context("spawn")) as pool:
        for each in pool.map(one, names) if chosen.jobs > 1 else map(one, names):
            measured.append(each)
            print(_line(each), file=sys.stderr, flush=True)
    if chosen.json:
        write_atomically(
            chosen.json, msgspec.json.encode(Record(str(torch.__version__), chosen.device, measured)) + b"\n"
        )
    if chosen.page:
        write(chosen.page, "breakages", tables(measured, chosen.blind))
    found = summary(measured, chosen.blind)
    for title, some in (("passes though broken", found.passed), ("zeros pass", found.zeros), ("fails", found.failed)):
        print("\n".join(f"{title}: {text}" for text in some[: chosen.most]))
    print("\n".join([*found.lines(), f"{time.monotonic() - started:.0f} s"]))
    return 0 if found.separates else 1


def _line(each: Measured) -> str:
    if each.error:
        return f"{each.program:48} {each.error}"
    right = sum(one.passes for one in each.honest)
    wrong = sum(one.passes for one in each.broken if one.inputs == INPUTS[0])
    worst = max(one.figure for one in each.honest)
    return (
        f"{each.program:48} {each.seconds:5.1f} s  honest {right} of {len(each.honest)} pass, at most {shown(worst)}; "
        f"{wrong} broken pass"
    )


def _parser() -> argparse.ArgumentParser:
    options = argparse.ArgumentParser(
        prog="python -m benchmarks.breakages", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("page", nargs="?", type=Path, help="the page with <!-- breakages --> marks to write tables to")
    options.add_argument("--json", metavar="PATH", help="write every figure to a file")
    options.add_argument("--quick", action="store_true", help="a subset that takes a minute")
    options.add_argument("--programs", nargs="+", metavar="NAME", help="these programs alone")
    options.add_argument("--list", action="store_true", help="print the names of the programs")
    options.add_argument("--jobs", type=int, default=2, help="processes (default 2)")
    options.add_argument("--compile", action="store_true", help="judge torch.compile as an honest kernel too")
    options.add_argument("--device", default="cpu", help="cuda: judge PyTorch's results there as honest kernels too")
    options.add_argument("--blind", nargs="*", default=[], metavar="TEXT", help="blind spots, as 'program: breakage'")
    options.add_argument("--most", type=int, default=40, help="lines of each kind that are printed (default 40)")
    return options


if __name__ == "__main__":
    sys.exit(main())
