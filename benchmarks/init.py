"""How much of a package `verify init` declares, and how much of that runs: python -m benchmarks.init PACKAGE_DIR

Runs `verify init` on the folder of a package in an empty folder, then `verify run` in float32 on a sample of the
declarations that it filled in. Prints how many public kernels there are, how many are filled in, and how many of the
sample have a verdict.

A public kernel is a function, or the `apply` of an autograd function, whose name begins without an underscore, which
takes tensors, and whose code launches a Triton kernel. These are not counted: halves of autograd functions; launchers
that other functions call, if the package exports functions; methods that are put on other classes; tests; files of
other devices. A module counts by the function that it calls.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from verify.declare.package import root_of
from verify.records import files


def main() -> int:
    """The command of the docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("package", type=Path, metavar="PACKAGE_DIR")
    parser.add_argument("--sample", type=int, default=15)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--timeout", default="120s", help="of each kernel in the run")
    parser.add_argument("--trial", default="30s", help="of each function in init")
    parser.add_argument("--budget", help="of all functions in init; the others are not filled in")
    parser.add_argument("--jobs", default="0", help="processes at a time")
    parser.add_argument("--json", type=Path, help="the file for the figures")
    parser.add_argument("--keep", type=Path, help="the folder for the files, instead of a temporary one")
    options = parser.parse_args()
    package = options.package.resolve()
    with tempfile.TemporaryDirectory() as temporary:
        folder = (options.keep or Path(temporary)).resolve()
        folder.mkdir(parents=True, exist_ok=True)
        paths = [str(root_of(package / "__init__.py")), *filter(None, [os.environ.get("PYTHONPATH")])]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join(paths)}

        def verify(*arguments: str) -> float:
            begun = time.monotonic()
            command = [sys.executable, "-m", "verify", *arguments]
            subprocess.run(command, cwd=folder, env=environment, stdout=subprocess.DEVNULL)
            return time.monotonic() - begun

        limits = ["--timeout", options.trial, *(["--budget", options.budget] if options.budget else [])]
        took = verify("init", str(package), "--json", "init.json", "--jobs", options.jobs, *limits)
        found: dict[str, Any] = json.loads((folder / "init.json").read_text())
        compile((folder / "accuracy.py").read_text(), "accuracy.py", "exec")
        share = len(found["filled"]) / len(found["functions"])
        counts = f"{len(found['functions'])} public kernels, {len(found['filled'])} filled in ({share:.0%})"
        counts += f", of these {len(found['by_name'])} by their names alone"
        print(f"{package.name}: {counts}, {took:.0f} s", flush=True)
        figures = {"package": package.name, "seconds": round(took), "share": share, **found, "sample": {}}
        _write(options.json, figures)
        if not found["filled"]:
            return 0
        verify("list", "accuracy.py", "--json", "list.json")
        targets = [each["target"] for each in json.loads((folder / "list.json").read_text())]
        sample = sorted(random.Random(options.seed).sample(targets, min(options.sample, len(targets))))
        rest = ["--dtype", "float32", "--timeout", options.timeout, "--jobs", options.jobs, "--json", "run.json"]
        took = verify("run", *sample, *rest)
        run = files.load(folder / "run.json")
        judged = [kernel for kernel in run.kernels if kernel.results]
        print(f"of a sample of {len(sample)} (seed {options.seed}), {len(judged)} have a verdict, {took:.0f} s")
        for kernel in run.kernels:
            print(f"  {kernel.status:<12} {kernel.name}  {' '.join((kernel.message or '').split())[:120]}")
            figures["sample"][kernel.name] = {"status": kernel.status, "results": len(kernel.results)}
        _write(options.json, figures | {"environment": run.environment})
    return 0


def _write(path: Path | None, figures: dict[str, Any]) -> None:
    """Writes the figures, if a file is named."""
    if path is not None:
        files.write_atomically(path, json.dumps(figures, indent=1).encode() + b"\n")


if __name__ == "__main__":
    raise SystemExit(main())
