"""Measure the fast reference against the exact one.

Measure how far the float64 reference of every op and result is from the exact value, in units of 2^-53 of the scale
of its terms, and print the table. Exit code 1: one is above the target.

    verify certify gelu layer_norm
    verify certify --certificate certificate.json

ops: [OP ...]  ops to certify (default: all)
--seed: the points that are measured
--backend
--timeout = 60m: the measurement
--certificate FILE  merge the result into this certificate (the shipped one: `shipped`)
--json: the certificate's new entries
"""

from __future__ import annotations

import argparse
from pathlib import Path

from verify.cli import exits, screen, sinks
from verify.measure.requests import Certify
from verify.truth import certificate
from verify.truth.certificate import TARGET_UNITS, Entry
from verify.workers import process


def main(options: argparse.Namespace) -> int:
    """Carries out the command."""
    progress = screen.Progress()
    with process.Worker(options.backend) as worker:
        entries = worker.ask(Certify(options.ops, options.seed), timeout=options.timeout, progress=progress)
    progress.clear()
    if options.certificate:
        path = certificate.shipped_path() if options.certificate == "shipped" else Path(options.certificate)
        known = certificate.load(path).entries if path.exists() else []
        fresh = {certificate.key(e.op, e.params, e.result, e.device) for e in entries}
        kept = [e for e in known if certificate.key(e.op, e.params, e.result, e.device) not in fresh]
        certificate.save(certificate.Certificate(schema=certificate.SCHEMA, entries=kept + entries), path)
        if not sinks.quiet(options):
            print(f"certificate: {path}")
    within = max((entry.units for entry in entries), default=0.0) <= certificate.TARGET_UNITS
    sinks.deliver_data(options, entries, _lines(entries, within=within))
    return exits.PASS if within else exits.WRONG


def _lines(entries: list[Entry], *, within: bool) -> list[str]:
    lines = [f"{'op':<28} {'result':<13} {'units':>8} {'f32 ULP':>9} {'n':>8}  worst input"]
    for entry in entries:
        params = ",".join(str(v) for v in entry.params.values() if isinstance(v, str))
        name = f"{entry.op}({params})" if params else entry.op
        ulp = entry.units * 2.0**-30
        lines.append(f"{name:<28} {entry.result:<13} {entry.units:8.1f} {ulp:9.1e} {entry.n:8,}  {entry.worst[:40]}")
    lines.append("units: multiples of 2^-53 of the scale; f32 ULP: the same as a share of a float32 ulp of scale.")
    verdict = f"above the target of {TARGET_UNITS:g} units: verdicts widen by the larger figure"
    if within:
        verdict = f"every reference is within {TARGET_UNITS:g} units (1e-6 float32 ULP of scale)"
    return lines + sinks.ending(verdict, "verify run")
