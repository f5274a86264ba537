"""Runs pairs of kernels that verify was not tuned on: each is a right kernel and the same with one mistake.

    python -m mutants.unseen --jobs 16 --json unseen.json
    python -m mutants.unseen --backend cpu --only softplus --only workspace
    python -m mutants.unseen --profile ci --from unseen.json --json laws.json    the laws, for mutants that survived

No specimen checks its operands, so the law of the error contract is left out.
Each runs alone, by `verify run` with its default settings, and has 60 seconds. Exits 1 if fewer than 95% of the mutants
are caught, more than 2% have no verdict, or fewer than 98% of the twins pass.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

MODULES = ("unseen_attention", "unseen_triton", "unseen_torch", "unseen_more")
DEFINED = re.compile(r'^@pair\(\s*"(.*?)".*?^def (\w+)\(', re.MULTILINE | re.DOTALL)


def specimens() -> Iterator[dict[str, str]]:
    """Yields twins and mutants, by name; modules are read and not imported, because Triton needs a backend first."""
    for module in MODULES:
        for note, name in DEFINED.findall((Path(__file__).parent / f"{module}.py").read_text()):
            yield {"name": name, "kind": "twin", "target": f"mutants.{module}::{name}", "note": note}
            yield {"name": name, "kind": "mutant", "target": f"mutants.{module}::{name}_wrong", "note": note}


def tried(specimen: dict[str, str], options: argparse.Namespace) -> dict[str, Any]:
    """Runs one specimen in a process of its own, and returns what verify said."""
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "run.json"
        command = [sys.executable, "-m", "verify", "run", specimen["target"], "--jobs", "1", "--json", str(record)]
        command += ["--backend", options.backend] if options.backend else []
        command += ["--profile", options.profile, "--without", "error contract"] if options.profile else []
        started, late = time.monotonic(), False
        with (Path(folder) / "text").open("w+") as text:
            environment = {"OMP_NUM_THREADS": "1", **os.environ}
            process = subprocess.Popen(
                command, stdout=text, stderr=subprocess.STDOUT, env=environment, start_new_session=True
            )
            try:
                process.wait(options.seconds)
            except subprocess.TimeoutExpired:
                late = True
                os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            seconds = round(time.monotonic() - started, 1)
            text.seek(0)
            printed = text.read()
        found = json.loads(record.read_text())["kernels"] if record.exists() and not late else []
    said = {"exit": None if late else process.returncode, "seconds": seconds, **(_read(found[0]) if found else {})}
    said["verdict"] = _verdict(said.get("status", ""), said["exit"], late)
    return {**specimen, **said, "text": printed[-3000:]}


def _read(kernel: dict[str, Any]) -> dict[str, Any]:
    """Returns what names a finding: results that are not right, laws that broke, and gaps."""
    results = {
        f"{each['output']} {each['dtype']}": f"{each['status']}: {each.get('reason', '')}"
        for each in kernel.get("results", ())
        if each.get("status", "ok") != "ok"
    }
    laws = {each.get("law", ""): str(each)[:400] for each in kernel.get("laws", ()) if each["status"] == "broken"}
    gaps = [str(each)[:400] for each in kernel.get("gaps", kernel.get("unmeasured", ()))]
    return {
        "status": kernel["status"],
        "message": kernel.get("message", ""),
        "results": results,
        "laws": laws,
        "gaps": gaps,
    }


def _verdict(status: str, code: int | None, late: bool) -> str:
    if late:
        return "none: out of time"
    if status in ("wrong", "crashed") or (status == "error" and code == 1):
        return "caught"
    return "passes" if code == 0 else "caught" if code == 1 else f"none: {status or 'no record'}"


def main() -> int:
    """The command of the docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--backend", default="", help="cuda, interpreter or cpu; default: verify's")
    parser.add_argument("--seconds", type=float, default=60.0, help="the time of one specimen")
    parser.add_argument("--profile", default="", help="the laws too, in this profile")
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--kind", choices=["twin", "mutant"])
    parser.add_argument("--from", dest="earlier", type=Path, help="only the mutants that were not caught there")
    parser.add_argument("--without", type=Path, metavar="FILE", help="leave out what has a verdict there")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    chosen = [each for each in specimens() if not options.only or each["name"] in options.only]
    chosen = [each for each in chosen if options.kind in (None, each["kind"])]
    if options.without:
        done = {each["target"] for each in json.loads(options.without.read_text()) if "none" not in each["verdict"]}
        chosen = [each for each in chosen if each["target"] not in done]
    if options.earlier:
        left = {each["target"] for each in json.loads(options.earlier.read_text()) if each["verdict"] != "caught"}
        chosen = [each for each in chosen if each["target"] in left and each["kind"] == "mutant"]
    rows: list[dict[str, Any]] = []
    with ThreadPoolExecutor(options.jobs) as pool:
        for row in pool.map(partial(tried, options=options), chosen):
            rows.append(row)
            first = next(iter([*row.get("results", {}).values(), *row.get("laws", {}), row.get("message", "")]), "")
            print(
                f"{row['verdict']:<20} {row['seconds']:6.1f} s  {row['kind']:<6} {row['name']}  {first:.90}", flush=True
            )
            if options.json:
                options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    counts = {
        kind: Counter(row["verdict"].split(":")[0] for row in rows if row["kind"] == kind)
        for kind in ("mutant", "twin")
    }
    print(*(f"{kind}s: {dict(found)}" for kind, found in counts.items()), sep="\n")
    mutants, twins = counts["mutant"], counts["twin"]
    short = mutants["caught"] < 0.95 * mutants.total() or mutants["none"] > 0.02 * mutants.total()
    return int(short or twins["passes"] < 0.98 * twins.total())


if __name__ == "__main__":
    sys.exit(main())
