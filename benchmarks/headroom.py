"""How far observed maxima differ between seeds: what a gate's headroom has to be (docs/gate.md).

    python -m benchmarks.headroom RUN.json RUN.json ... [--json PATH]

Records of the same kernels with different seeds. A bound is proposed from every figure that was observed in one record
and judged by the same figure of each other record, where both asked the same; counted is how many are exceeded, by the
number of cases and by the rule of the headroom: a share of the maximum, or that of a quarter or of a share of what the
maximum has beyond half a unit, whichever is more. What is proven or of a peer is left out.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path

import msgspec

from verify.records.bounds.committed import headroom_of
from verify.records.figure import LEAST
from verify.records.files import load, write_atomically
from verify.records.readings import Key, Reading, readings

SHARES = (0.25, 0.5, 1.0, 2.0)
EXCESSES = (0.5, 1.0, 1.5, 2.0)
EDGES = (0, 1_000, 10_000, 100_000, 1_000_000)  # cases


def observed(path: Path) -> tuple[int, dict[tuple[Key, str], Reading]]:
    """The seed of a record, and its figures that another seed may exceed."""
    run = load(path)
    peers = {kernel.name for kernel in run.kernels if kernel.peer}
    found = (each for each in readings(run) if each.key.kernel not in peers and each.finite and headroom_of(each))
    return run.seed, {(each.key, each.source): each for each in found}


def rules(value: float) -> dict[str, float]:
    """The bound that each rule proposes for a maximum."""
    value = max(value, LEAST)
    by_share = {f"{share:.0%}": value * (1 + share) for share in SHARES}
    by_excess = {f"excess {share:.0%}": LEAST + (value - LEAST) * (1 + share) for share in EXCESSES}
    return by_share | {name: max(bound, by_share["25%"]) for name, bound in by_excess.items()}


def counts(records: list[tuple[int, dict[tuple[Key, str], Reading]]]) -> list[dict[str, int]]:
    """A row for each number of cases: pairs of figures, and how many exceed each rule."""
    rows = [{"from": edge, "pairs": 0} | dict.fromkeys(rules(LEAST), 0) for edge in EDGES]
    for (seed, base), (other, head) in itertools.permutations(records, 2):
        if seed == other:
            raise SystemExit(f"headroom compares records of different seeds; seed {seed} was given twice")
        for key, reading in base.items():
            again = head.get(key)
            if again is None or again.properties != reading.properties:
                continue
            cases = min(reading.basis.n, again.basis.n)
            row = next(row for row in reversed(rows) if cases >= row["from"])
            row["pairs"] += 1
            for name, bound in rules(reading.value).items():
                row[name] += again.value > bound * (1 + 1e-9)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("records", nargs="+", type=Path, metavar="RUN.json")
    parser.add_argument("--json", type=Path, help="write the counts to this file")
    options = parser.parse_args()
    records = [observed(path) for path in options.records]
    rows = counts(records)
    names = list(rows[0])
    print("| " + " | ".join(names) + " |")
    print("|" + " ---: |" * len(names))
    for row in rows:
        print("| " + " | ".join(f"{row[name]:,}" for name in names) + " |")
    if options.json:
        said = {"seeds": [seed for seed, _ in records], "rows": rows}
        write_atomically(options.json, msgspec.json.format(msgspec.json.encode(said)) + b"\n")


if __name__ == "__main__":
    main()
