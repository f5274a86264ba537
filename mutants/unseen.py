"""Runs pairs of kernels that verify was not tuned on: each is a right kernel and the same with one mistake.

    python -m mutants.unseen --jobs 16 --limit 330 --json unseen.json
    python -m mutants.unseen --backend cpu --only softplus --only workspace
    python -m mutants.unseen --profile ci --from unseen.json --json laws.json    the laws, for mutants that survived

No specimen checks its operands, so the law of the error contract is left out.
Each runs alone, by `verify run --each` with its default settings, and its calls have 60 seconds. Records are added to
the file of --records (by default beside that of --json); a second start leaves out what is there. Exits 1 if fewer than
95% of the mutants are caught, more than 2% have no verdict, or fewer than 98% of the twins pass.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

MODULES = ("unseen_attention", "unseen_triton", "unseen_torch", "unseen_more", "unseen_blocks")
DEFINED = re.compile(r'^@pair\(\s*"(.*?)".*?^def (\w+)\(', re.MULTILINE | re.DOTALL)
FEW = re.compile(r"in 1 of|the smallest has")  # one case is described
SIZES = re.compile(r"(from|up to|multiple of|=) [\d,]+")


def specimens() -> Iterator[dict[str, str]]:
    """Yields mutants and twins, by name; modules are read and not imported, because Triton needs a backend first."""
    for kind, ending in (("mutant", "_wrong"), ("twin", "")):
        for module in MODULES:
            for note, name in DEFINED.findall((Path(__file__).parent / f"{module}.py").read_text()):
                yield {"name": name, "kind": kind, "target": f"mutants.{module}::{name}{ending}", "note": note}


def tried(chosen: list[dict[str, str]], records: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Runs the specimens, and returns what verify said about each that ended."""
    command = [sys.executable, "-m", "verify", "run", *(each["target"] for each in chosen), "--each", str(records)]
    command += ["--jobs", str(options.jobs), "--timeout", f"{options.seconds:g}s"]
    command += ["--backend", options.backend] if options.backend else []
    command += ["--profile", options.profile, "--without", "error contract"] if options.profile else []
    process = subprocess.Popen(command, env={"OMP_NUM_THREADS": "1", **os.environ})
    try:
        process.wait(options.limit or None)
    except subprocess.TimeoutExpired:
        print(f"stopped after {options.limit:g} s; the same command goes on from {records}")
    finally:
        if process.poll() is None:
            process.terminate()
            process.wait()
    lines = records.read_text(encoding="utf-8").splitlines() if records.exists() else []
    said = {row["target"]: row for row in map(json.loads, lines)}
    return [{**each, **_read(said[each["target"]])} for each in chosen if each["target"] in said]


def _read(row: dict[str, Any]) -> dict[str, Any]:
    """Returns the verdict on a specimen, and what names its mistake: results, laws, gaps, and where it is wrong."""
    [kernel] = row.get("record", {}).get("kernels") or [{}]
    wrong = [each for each in kernel.get("results", ()) if each["status"] != "ok"]
    said = {
        "exit": row["exit code"],
        "seconds": row["seconds"],
        "status": kernel.get("status", ""),
        "message": kernel.get("message", "") or row.get("problem", ""),
        "results": {f"{each['output']} {each['dtype']}": f"{each['status']}: {each['reason']}" for each in wrong},
        "where": {f"{each['output']} {each['dtype']}": each.get("where", "") for each in wrong},
        "right": [each["output"] for each in kernel.get("results", ()) if each["status"] == "ok"],
        "laws": {each["law"]: str(each)[:400] for each in kernel.get("laws", ()) if each["status"] == "broken"},
        "gaps": [str(each)[:400] for each in kernel.get("gaps", ())],
    }
    said["verdict"] = _verdict(said["status"], said["exit"])
    return said | ({"named": _named(said)} if said["verdict"] == "caught" else {})


def _verdict(status: str, code: int) -> str:
    if status in ("wrong", "crashed") or (status == "error" and code == 1):
        return "caught"
    return "passes" if code == 0 else "caught" if code == 1 else f"none: {status or 'no record'}"


def _named(said: dict[str, Any]) -> list[str]:
    """Returns what a finding names: a law, a rule of the contract, a result among others, sizes, values, a layout."""
    where = "; ".join(each for each in said["where"].values() if not FEW.search(each))
    found = {
        "law": bool(said["laws"]),
        "rule": said["status"] == "error",
        "result": bool(said["right"] and said["results"]),
        "sizes": bool(SIZES.search(where)),
        "values": "values: " in where,
        "one case": bool(FEW.search("".join(said["where"].values()))),
        "layout": bool(re.search(r"\b(transposed|stepped|expanded|one number)\b", where)),
        "class of inputs": any("demanding" in each or "NaN" in each for each in said["results"].values()),
    }
    return [name for name, is_named in found.items() if is_named]


def main() -> int:
    """The command of the docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--backend", default="", help="cuda, interpreter or cpu; default: verify's")
    parser.add_argument(
        "--seconds", type=float, default=60.0, help="the time of one specimen's calls, and of judging it"
    )
    parser.add_argument("--limit", type=float, default=0.0, help="the seconds of this start; 0: no limit")
    parser.add_argument("--profile", default="", help="the laws too, in this profile")
    parser.add_argument("--only", action="append", default=[], metavar="NAME")
    parser.add_argument("--kind", choices=["twin", "mutant"])
    parser.add_argument("--from", dest="earlier", type=Path, help="only the mutants that were not caught there")
    parser.add_argument("--records", type=Path, help="the records, a line each; a second start goes on there")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    chosen = [each for each in specimens() if not options.only or each["name"] in options.only]
    chosen = [each for each in chosen if options.kind in (None, each["kind"])]
    if options.earlier:
        left = {each["target"] for each in json.loads(options.earlier.read_text()) if each["verdict"] != "caught"}
        chosen = [each for each in chosen if each["target"] in left and each["kind"] == "mutant"]
    beside = options.records or (options.json and options.json.with_suffix(".jsonl"))
    with nullcontext(str(beside)) if beside else tempfile.TemporaryDirectory() as place:
        rows = tried(chosen, Path(place) if beside else Path(place) / "records.jsonl", options)
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
    counts = {kind: Counter({"not run": sum(each["kind"] == kind for each in chosen)}) for kind in ("mutant", "twin")}
    for row in rows:
        counts[row["kind"]][row["verdict"].split(":")[0]] += 1
        counts[row["kind"]]["not run"] -= 1
        if row["verdict"] != {"mutant": "caught", "twin": "passes"}[row["kind"]]:
            first = next(iter([*row["results"].values(), *row["laws"], row["message"]]), "")
            print(f"{row['verdict']:<20} {row['kind']:<6} {row['name']}  {first:.90}")
    print(*(f"{kind}s: {dict(+found)}" for kind, found in counts.items()), sep="\n")
    caught = [row for row in rows if row["kind"] == "mutant" and row["verdict"] == "caught"]
    names = Counter(name for row in caught for name in row["named"])
    print(f"named: {sum(bool(row['named']) for row in caught)} of {len(caught)} caught mutants: {dict(names)}")
    mutants, twins = counts["mutant"], counts["twin"]
    short = mutants["caught"] < 0.95 * mutants.total() or mutants["none"] > 0.02 * mutants.total()
    return int(short or twins["passes"] < 0.98 * twins.total())


if __name__ == "__main__":
    sys.exit(main())
