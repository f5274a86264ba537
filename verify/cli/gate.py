"""`verify gate`: judge run records by the committed bounds, or measure base and head and judge the head."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verify.cli import json_, screen

if TYPE_CHECKING:
    from verify.gate.verdict import Verdict
    from verify.records.compare import Comparison
    from verify.records.record import Run


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "gate",
        help="judge records by the committed bounds",
        description="Judge run records by the committed bounds: every figure within its bound, every bound measured. "
        "With --base: measure a commit and the working tree on this device, judge the working tree, show the "
        "difference.",
        epilog="exit codes: 0 pass, 1 a bound is breached or a kernel failed, 2 usage, 3 something could not be judged",
    )
    parser.add_argument(
        "inputs", nargs="*", metavar="RUN.json", help="run records; with --base: what to measure (default: everything)"
    )
    parser.add_argument("--bounds", metavar="DIR", help="folder of the bounds (default reports/bounds)")
    parser.add_argument(
        "--kernel", action="append", default=[], metavar="NAME", help="judge this kernel only (repeatable)"
    )
    parser.add_argument("--all", action="store_true", help="list what is in order too")
    parser.add_argument("--json", metavar="PATH", help="write the verdict as JSON; - for stdout instead of the text")
    parser.add_argument("--markdown", metavar="PATH", help="write the verdict as a comment; - for stdout")
    base = parser.add_argument_group("measuring base and head")
    base.add_argument("--base", metavar="REF", help="commit to measure beside the working tree")
    base.add_argument("--dtype", action="append", default=[], metavar="DTYPE", help="only this dtype (repeatable)")
    base.add_argument("--seed", type=int, default=0, help="seed of the observed cases (default 0)")
    base.add_argument("--backend", choices=("cuda", "interpreter"), help="default: cuda if there is a GPU")
    base.add_argument("--timeout", metavar="SECONDS", help="time for one kernel (default 600)")
    base.add_argument("--records", metavar="DIR", help="keep base.json and head.json in this folder")
    parser.set_defaults(handler=main)


def main(options: argparse.Namespace) -> int:
    """Judge; the exit code is the verdict."""
    from verify.errors import UsageError
    from verify.gate import bounds
    from verify.gate import verdict as gate
    from verify.records.compare import compare
    from verify.records.record import load

    comparison: Comparison | None = None
    if options.base is not None:
        base, runs, paths = _both(options)
        comparison = compare(base, runs[0])
    elif options.inputs:
        paths = list(options.inputs)
        runs = [load(path) for path in paths]
    else:
        raise UsageError("no record to judge", hint="verify run --json run.json, then verify gate run.json")
    book = bounds.load(bounds_folder(options.bounds))
    verdict = gate.judge(runs, book, kernels=options.kernel)
    _write(options, verdict, comparison)
    if "-" not in (options.json, options.markdown):
        sys.stdout.write(_text(options, verdict, comparison, paths))
    return verdict.exit_code


def bounds_folder(given: str | None) -> Path:
    """The folder of the bounds: as given, else the project's."""
    from verify.declare import config
    from verify.errors import UsageError

    if given is None:
        return config.find().bounds
    folder = Path(given)
    if not folder.is_dir():
        raise UsageError(f"--bounds names a folder; there is none at {given}", hint="verify bounds propose RUN.json")
    return folder


def _text(options: argparse.Namespace, verdict: Verdict, comparison: Comparison | None, paths: list[str]) -> str:
    from verify.report.terminal import compare_text, gate_text

    terminal = screen.terminal()
    text = ""
    if comparison is not None:
        text = compare_text.render(comparison, terminal, everything=options.all) + "\n"
    return text + gate_text.render(verdict, terminal, everything=options.all, records=paths)


def _write(options: argparse.Namespace, verdict: Verdict, comparison: Comparison | None) -> None:
    from verify.records.record import write_atomically

    if options.json:
        from verify.report import gate_data

        data: dict[str, Any] = gate_data.of_verdict(verdict)
        if comparison is not None:
            data["comparison"] = gate_data.of_comparison(comparison)
        json_.write(options.json, data)
    if options.markdown:
        from verify.report.markdown import gate_markdown

        text = gate_markdown.render(verdict, comparison)
        if options.markdown == "-":
            sys.stdout.write(text)
        else:
            write_atomically(options.markdown, text.encode())


def _both(options: argparse.Namespace) -> tuple[Run, list[Run], list[str]]:
    """The records of the base and of the head, measured one after the other."""
    from verify.gate import worktree

    targets = _targets(options.inputs)
    arguments = [*targets, "--seed", str(options.seed)]
    for name, values in (
        ("--dtype", options.dtype),
        ("--backend", [options.backend]),
        ("--timeout", [options.timeout]),
    ):
        for value in values:
            arguments += [name, str(value)] if value is not None else []
    progress = screen.Progress()
    with worktree.checkout(options.base) as found, tempfile.TemporaryDirectory(prefix="verify-gate-") as spare:
        folder = Path(options.records).resolve() if options.records else Path(spare)
        folder.mkdir(parents=True, exist_ok=True)
        paths = [folder / "base.json", folder / "head.json"]
        for path in paths:
            path.unlink(missing_ok=True)
        progress("base: where its modules come from")
        worktree.check_imports(found, targets, options.backend)
        progress.clear()
        base = worktree.measure(found.base, found, arguments, paths[0])
        head = worktree.measure(found.head, found, arguments, paths[1])
    return base, [head], [str(paths[1])] if options.records else []


def _targets(given: list[str]) -> list[str]:
    """What to measure, the same for both: the head's own configuration unless named."""
    import os

    from verify.declare import config
    from verify.errors import UsageError

    if records := [item for item in given if item.endswith((".json", ".json.gz"))]:
        raise UsageError(
            f"--base measures anew and takes targets, as `verify run` does; received the record {records[0]}",
            hint="verify compare BASE.json HEAD.json",
        )
    if given:
        return given
    settings = config.find()
    if not settings.kernels:
        raise UsageError(
            "no target given and no [tool.verify] kernels in pyproject.toml", hint="verify gate --base REF FILE.py"
        )
    os.chdir(settings.root)
    return list(settings.kernels)
