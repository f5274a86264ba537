"""`verify certify`: measure the fast reference against the exact one and write its error bound."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from verify.cli import screen


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "certify",
        help="measure the fast reference against the exact one",
        description="Measure how far the float64 reference of every op and result is from the exact value, "
        "in units of 2^-53 of the scale of its terms, and print the table.",
    )
    parser.add_argument("ops", nargs="*", metavar="OP", help="ops to certify (default: all)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the points that are measured (default 0)")
    parser.add_argument("--backend", choices=("cuda", "interpreter"), help="default: cuda if there is a GPU")
    parser.add_argument(
        "--output",
        metavar="PATH",
        help="merge the result into this certificate (the shipped one: `shipped`)",
    )
    parser.add_argument("--json", action="store_true", help="as JSON")
    parser.set_defaults(handler=main)


def main(options: argparse.Namespace) -> int:
    """Certify; exit 1 when a reference is worse than the target."""
    import msgspec

    from verify.measure.requests import Certify
    from verify.truth import certificate
    from verify.workers.process import Worker

    progress = screen.Progress()
    with Worker(options.backend) as worker:
        entries = worker.ask(Certify(options.ops, options.seed), timeout=3600, progress=progress)
    progress.clear()
    if options.json:
        screen.print_json(msgspec.to_builtins(entries))
    else:
        print(f"{'op':<28} {'result':<13} {'units':>8} {'f32 ULP':>9} {'n':>8}  worst input")
        for entry in entries:
            params = ",".join(str(v) for v in entry.params.values() if isinstance(v, str))
            name = f"{entry.op}({params})" if params else entry.op
            ulp = entry.units * 2.0**-30
            print(f"{name:<28} {entry.result:<13} {entry.units:8.1f} {ulp:9.1e} {entry.n:8,}  {entry.worst[:40]}")
        print("units: multiples of 2^-53 of the scale; f32 ULP: the same as a share of a float32 ulp of scale.")
    if options.output:
        path = certificate.shipped_path() if options.output == "shipped" else Path(options.output)
        known = certificate.load(path).entries if path.exists() else []
        fresh = {certificate.key(e.op, e.params, e.result, e.device) for e in entries}
        kept = [e for e in known if certificate.key(e.op, e.params, e.result, e.device) not in fresh]
        certificate.save(certificate.Certificate(schema=certificate.SCHEMA, entries=kept + entries), path)
        print(f"certificate: {path}")
    worst = max((entry.units for entry in entries), default=0.0)
    if not worst <= certificate.TARGET_UNITS:
        print(f"above the target of {certificate.TARGET_UNITS:g} units: verdicts widen by the larger figure")
        return 1
    print(f"every reference is within {certificate.TARGET_UNITS:g} units (1e-6 float32 ULP of scale)")
    return 0
