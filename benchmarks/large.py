"""Three kernels that fill a GPU of 80 GB: python -m benchmarks.large --record large.json

An elementwise kernel of 2^31 + 1 float32 numbers (8 GiB), a softmax of 65,536 x 65,536 numbers in bfloat16 (8 GiB) and
attention 1 x 32 x 131,072 x 128 in bfloat16, forward, PyTorch as the kernel. Each is one `verify run`. Prints the
verdict, the elements that were judged and the seconds. `--wrong` returns one wrong element in each: the last one. Exits
1 unless each kernel ends with a verdict on its output: right, or with `--wrong` wrong.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

TARGETS = {
    "elementwise": """
@verify.kernel(like=functional.silu, examples=[(meta(2**31 + 1),)], dtypes=["float32"], gradients=False)
def elementwise(x):
    return changed(functional.silu(x))
""",
    "matrix": """
@verify.kernel(like=lambda x: x.softmax(-1), examples=[(meta(65536, 65536),)], dtypes=["bfloat16"],
               gradients=False)
def matrix(x):
    return changed(x.softmax(-1))
""",
    "attention": """
@verify.kernel(like=functional.scaled_dot_product_attention, examples=[(meta(1, 32, 131072, 128),) * 3],
               dtypes=["bfloat16"], gradients=False)
def attention(query, key, value):
    return changed(functional.scaled_dot_product_attention(query, key, value))
""",
}
HEAD = """
import torch, verify
from torch.nn import functional


def meta(*shape):
    return torch.empty(shape, device="meta")


def changed(y):
    if {wrong}:
        y = y.detach().clone()
        y.view(-1)[-1] += 1
    return y

"""


def measured(name: str, wrong: bool, seconds: float) -> dict[str, Any]:
    """Runs verify on one of the kernels, and returns what came of it."""
    with tempfile.TemporaryDirectory() as folder:
        target, record = Path(folder, "large.py"), Path(folder, "run.json")
        target.write_text(HEAD.format(wrong=wrong) + TARGETS[name])
        command = [sys.executable, "-m", "verify", "run", f"{target}::{name}", "--json", str(record), "--jobs", "1"]
        started = time.monotonic()
        done = subprocess.run([*command, "--timeout", f"{seconds:g}s"], capture_output=True, text=True, cwd=folder)
        row: dict[str, Any] = {"name": name, "seconds": round(time.monotonic() - started, 1), "exit": done.returncode}
        if not record.exists():
            return row | {"why": (done.stderr or done.stdout)[-500:]}
        run = json.loads(record.read_text())
    kernel = next(iter(run["kernels"]), {"results": []})
    results = kernel["results"]
    return row | {
        "status": kernel.get("status", ""),
        "seen": {each["output"]: [each["basis"]["n"], each["basis"].get("of", 0)] for each in results},
        "reasons": [each["reason"] for each in results if each.get("reason")],
        "peak": kernel.get("peak", {}),
        "gaps": [gap["text"][:300] for gap in run.get("incomplete", [])],
    }


def main() -> int:
    """The command of the docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", action="append", choices=list(TARGETS), help="only this (repeatable)")
    parser.add_argument("--wrong", action="store_true", help="the last element is wrong")
    parser.add_argument("--timeout", type=float, default=180.0, help="seconds of a kernel")
    parser.add_argument("--record", type=Path)
    options = parser.parse_args()
    rows = list[dict[str, Any]]()
    for name in options.only or TARGETS:
        rows.append(measured(name, options.wrong, options.timeout))
        print(json.dumps(rows[-1]), flush=True)
    if options.record:
        options.record.write_text(json.dumps(rows, indent=1))
    wanted = "wrong" if options.wrong else "ok"
    return 0 if all(row.get("status") == wanted and row["seen"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
