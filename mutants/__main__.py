"""`python -m mutants` prints the kill matrix; `--json PATH` writes it, with `--first` what killed each mutant.

Exit code 1: a visible mutant survived.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path

from verify import backends


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m mutants", description=__doc__)
    parser.add_argument("--profile", default="ci", choices=["fixed", "quick", "ci", "nightly", "exhaustive"])
    parser.add_argument("--backend", choices=["cuda", "interpreter"])
    parser.add_argument("--family", help="only the mutants of one module")
    parser.add_argument("--only", default="", help="only mutants whose name contains this")
    parser.add_argument("--shard", default="0/1", metavar="K/N", help="every N-th mutant from the K-th on")
    parser.add_argument("--law", action="append", help="only this law (repeatable)")
    parser.add_argument("--without", action="append", default=[], metavar="LAW", help="all laws but this (repeatable)")
    parser.add_argument("--twins", action="store_true", help="try the twins instead: each must survive")
    parser.add_argument("--first", action="store_true", help="stop at the first law that kills a mutant")
    parser.add_argument("--json", type=Path, metavar="PATH")
    options = parser.parse_args()
    backend = backends.select(options.backend)
    backends.activate(backend)

    import torch

    from mutants import FAMILIES, family, mutants
    from mutants.matrix import FIXED, row_of, try_law
    from mutants.table import brief, render, render_twins
    from verify.laws import registry
    from verify.laws.engine import profile_named

    torch.set_num_threads(1)
    if options.family and options.family not in FAMILIES:
        parser.error(f"--family is one of {', '.join(FAMILIES)}; received {options.family!r}")
    laws = [registry.get(name) for name in options.law or (law.name for law in registry.ALL)]
    laws = [law for law in laws if law not in [registry.get(name) for name in options.without]]
    chosen = [m for m in (family(options.family) if options.family else mutants()) if options.only in m.name]
    place, of = (int(part) for part in options.shard.split("/"))
    chosen = chosen[place::of]
    profile = FIXED if options.profile == "fixed" else profile_named(options.profile)
    if options.twins:
        twins = {id(m.twin): m.twin for m in chosen}.values()
        trials = {twin.name: [try_law(law, twin, backend, profile) for law in laws] for twin in twins}
        print(render_twins(trials))
        return int(any(trial.fate in ("killed", "harness error") for each in trials.values() for trial in each))

    rows = []
    for mutant in chosen:
        started = time.monotonic()
        rows.append(row_of(mutant, laws, backend, profile, first=options.first))
        if sys.stderr.isatty():
            print(f"{time.monotonic() - started:6.1f} s  {mutant.name}", file=sys.stderr)
    print(render(rows, backend.name))
    if options.json:
        document = (
            brief(rows, backend.name, backend.label, profile.name)
            if options.first
            else {
                "backend": backend.name,
                "profile": profile.name,
                "laws": [law.name for law in laws],
                "mutants": [row.to_json() for row in rows],
            }
        )
        options.json.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return int(any(not row.killers for row in rows if backend.name in row.mutant.backends))


if __name__ == "__main__":
    sys.exit(main())
