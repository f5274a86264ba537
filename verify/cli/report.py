"""Render a saved run record.

Render a run record as a table, an HTML page or Markdown; beside bounds or an earlier run if asked. See
docs/report.md for how to read it.

    verify report run.json
    verify report run.json --html report.html
    verify report run.json --compare old.json --bounds reports/bounds
    verify report run.json --sarif run.sarif --junit run.xml
    verify report a.json b.json --merge --json run.json
    verify report runs/*.json.gz --coverage --markdown coverage.md
    verify report --schema schema.json             # needs no record

records: [RUN.json ...]  the record to show; with --coverage one page of several
--merge  show several records of one command's parts as one
--html --markdown --schema
--json: the record
--sarif --junit --github
--compare RUN.json  show what changed since this earlier run
--coverage  show which laws and sizes each kernel was judged at in each dtype, and which were never tried
--bounds
"""

import argparse
import shlex

from verify.cli import exits, given, sinks
from verify.declare import config
from verify.errors import UsageError
from verify.records import files
from verify.records.bounds import committed
from verify.records.bounds.verdict import Verdict
from verify.records.bounds.waivers import judge
from verify.records.compare import Comparison, compare
from verify.records.merge import shards
from verify.records.record import Run
from verify.report import compare_words, coverage, gate_words, run_table
from verify.report.checks import of_run
from verify.report.document import EVERY, Document
from verify.report.html import record_html
from verify.report.markdown import comment


def main(options: argparse.Namespace) -> int:
    """Carries out the command."""
    if not options.records:
        if not options.schema:
            raise UsageError("a report shows a record; received none", hint="verify report RUN.json")
        sinks.deliver(options, lambda: "", schema=files.schema)
        return exits.PASS
    if options.coverage:
        return _coverage(options)
    if (count := len(options.records)) > 1 and not options.merge:
        said = f"a report shows one record, or with --merge the parts of one; received {count} records"
        raise UsageError(said, hint="verify compare BASE.json HEAD.json")
    run, path = files.load(options.records[0]), options.records[0]  # commands may name this file
    if options.merge:
        command = shlex.join(["verify", "report", *options.records, "--merge"])
        run = shards([run, *map(files.load, options.records[1:])], command)
        path = options.json if options.json and options.json != "-" else "RUN.json"
    base = compare(files.load(options.compare), run) if options.compare else None
    verdict = None
    if options.bounds is not None:
        verdict = judge([run], committed.load(given.bounds_folder(options, config.find())))
    found = pages(run, path, base, verdict)
    asked = any(getattr(options, name) for name in sinks.SINKS)
    sinks.deliver(
        options,
        lambda: "" if asked else sinks.pages(*found),
        checks=lambda: of_run(run),
        json=lambda: files.encode(run),
        markdown=lambda: comment.render(*found).encode(),
        html=lambda: record_html.render(
            run,
            beside=list(reversed(found[:-1])),
            record=sinks.beside(options.html, options.json or ("" if options.merge else options.records[0])),
        ).encode(),
        schema=files.schema,
    )
    return exits.PASS


def _coverage(options: argparse.Namespace) -> int:
    """Shows the judged parts of all records. The HTML page is that of the last record, with the coverage above it."""
    others = ("merge", "json", "sarif", "junit", "github", "compare", "bounds")
    if given_too := [f"--{name}" for name in others if getattr(options, name)]:
        said = f"--coverage is a page in the terminal, --html or --markdown; received {', '.join(given_too)} too"
        raise UsageError(said, hint="verify report RUN.json --coverage --html coverage.html")
    runs = sorted(map(files.load, options.records), key=lambda run: run.created)
    found = coverage.document(runs)
    asked = options.html or options.markdown
    sinks.deliver(
        options,
        lambda: "" if asked else sinks.pages(found),
        markdown=lambda: comment.render(found, limit=EVERY).encode(),
        html=lambda: record_html.render(runs[-1], beside=[found]).encode(),
    )
    return exits.PASS


def pages(run: Run, record: str, base: Comparison | None, verdict: Verdict | None) -> list[Document]:
    """Returns the pages of a gate and of a comparison, if there are any, and of a run."""
    found = [] if verdict is None else [gate_words.document(verdict, records=[record])]
    found += [] if base is None else [compare_words.document(base)]
    return [*found, run_table.document(run, record=record)]
