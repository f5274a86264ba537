"""Delivers a finished result to files, pages and the screen, whose last lines are the verdict and the next command."""

from __future__ import annotations

import argparse
import functools
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from verify.cli.screen import plain, terminal
from verify.errors import PASS, WriteError

if TYPE_CHECKING:
    from verify.records.record import Run
    from verify.report.checks import Check
    from verify.report.document import Document

Make = Callable[[], bytes]
SINKS = {  # and the name of the file in messages
    "json": "result",
    "markdown": "report",
    "html": "report",
    "schema": "schema",
    "sarif": "findings",
    "junit": "checks",
}


def quiet(options: argparse.Namespace) -> bool:
    """True if stdout belongs to a result for programs, so that no text for readers goes there."""
    return any(getattr(options, name, None) == "-" for name in SINKS)


def beside(page: str, record: str) -> str:
    """Returns the path of a record from the folder of a page; "" if one of them is no file."""
    files = page and record and "-" not in (page, record)
    return os.path.relpath(record, os.path.dirname(page) or ".") if files else ""


def deliver(
    options: argparse.Namespace,
    text: Callable[[], str],
    *,
    kind: str = "result",
    checks: Callable[[], Sequence[Check]] | None = None,
    **makers: Make,
) -> None:
    """Names the files that --json, --markdown and --html request, prints `text`, and writes the files.

    `makers` maps the name of an option to the function that makes its bytes. With `-`, stdout gets these bytes and
    nothing else. The line that names the file of --json calls it `kind`. The file of --json is written before anything
    is rendered, and a full disk is reported after the result is on the screen. --sarif, --junit and --github show
    `checks`.
    """
    if checks is not None:
        from verify.report import ci

        found = functools.cache(checks)
        makers |= {"sarif": lambda: ci.sarif(found()), "junit": lambda: ci.junit(found())}
    given = {name: path for name in makers if (path := getattr(options, name, None))}
    files = {path: makers[name] for name, path in given.items() if path != "-" and name != "json"}
    shown = not quiet(options)
    failed = _unwritten({given["json"]: makers["json"]} if given.get("json", "-") != "-" else {})
    try:
        for name, path in given.items():
            if path == "-":
                sys.stdout.write(makers[name]().decode())
            elif shown:
                print(f"{kind if name == 'json' else SINKS[name]}: {Path(path).resolve()}")
        if shown:
            sys.stdout.write(text())
        sys.stdout.flush()
    finally:  # a closed pipe does not prevent the files
        failed += _unwritten(files)
        if failed:
            raise WriteError("; ".join(failed))
    if checks is not None and getattr(options, "github", False):
        _annotate(found(), makers.get("markdown"))


def _annotate(checks: Sequence[Check], summary: Make | None) -> None:
    """Writes annotations to stderr, where the runner of GitHub finds them too, and adds to the summary of the step."""
    from verify.report import ci

    sys.stderr.write(ci.annotated(checks))
    sys.stderr.flush()
    if path := os.environ.get("GITHUB_STEP_SUMMARY"):
        try:
            with open(path, "ab") as file:
                file.write(ci.summary(checks).encode() if summary is None else summary())
        except OSError as error:
            raise WriteError(f"cannot write the summary {path}: {error.strerror}") from error


def write(files: Mapping[str | Path, Make]) -> None:
    """Writes files. Writes as many as possible before it raises WriteError about the others."""
    if failed := _unwritten(files):
        raise WriteError("; ".join(failed))


def _unwritten(files: Mapping[str | Path, Make]) -> list[str]:
    """Writes the files and returns why some could not be written."""
    from verify.records.files import write_atomically

    failed = []
    for path, make in files.items():
        try:
            write_atomically(path, make())
        except WriteError as error:
            failed.append(str(error))
    return failed


def deliver_data(options: argparse.Namespace, data: Any, text: Document | Iterable[str]) -> int:
    """Delivers a result that is no run record, as a page or lines. --json writes `data`. Returns the exit code 0."""
    from verify.report.document import Document

    deliver(options, lambda: pages(text) if isinstance(text, Document) else lines(*text), json=lambda: as_json(data))
    return PASS


def deliver_run(options: argparse.Namespace, run: Run, text: Callable[[], str] | None = None) -> None:
    """Delivers a run record. Without `text`, the screen gets its table."""
    from verify.records.files import encode
    from verify.report import run_table
    from verify.report.checks import of_run
    from verify.report.html import record_html
    from verify.report.markdown import comment

    record = options.json if options.json and options.json != "-" else ""
    deliver(
        options,
        text or (lambda: pages(run_table.document(run, record=record))),
        kind="record",
        checks=lambda: of_run(run),
        json=lambda: encode(run),
        markdown=lambda: comment.render(run_table.document(run, record=record)).encode(),
        html=lambda: record_html.render(run, record=beside(options.html, options.json)).encode(),
    )


def as_json(data: Any) -> bytes:
    """Returns sorted and indented JSON. NaN and infinity are the words "nan", "inf" and "-inf", as in a record."""
    return f"{json.dumps(finite(msgspec.to_builtins(data)), indent=1, sort_keys=True, allow_nan=False)}\n".encode()


def finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value


def pages(*documents: Document) -> str:
    """Returns pages as the screen shows them: the first one last, because a reader sees the end of a text."""
    from verify.report.terminal import text_page

    return "\n".join(text_page.render(each, terminal()) for each in reversed(documents))


def ending(verdict: str, then: str) -> list[str]:
    """Returns the last two lines of a text: the verdict as a sentence, and the next command."""
    return [verdict, f"next: {then}"]


def lines(*texts: str) -> str:
    """Returns lines for the screen, without control characters."""
    return "".join(f"{plain(text)}\n" for text in texts)
