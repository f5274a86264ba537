"""Compares settings of PyTorch's functions and of the kernels here, bit by bit: python -m benchmarks.same

    python -m benchmarks.same --backend cuda --json same.json
    python -m benchmarks.same --from reports/benchmarks/sm_90/same.json --page docs/same-bits.md

The second form writes the table of the page from a record.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.nn import functional

import verify
from benchmarks.like_rules import write
from verify import backends
from verify.declare.declaration import Kernel
from verify.declare.discovery import load
from verify.declare.target import Target
from verify.diagnose.requests import SameBits, SettingBits
from verify.diagnose.same import settings_of

KERNELS = ("gelu", "geglu", "swiglu", "layer_norm", "rms_norm", "linear")
# Functions of PyTorch, each declared as a kernel for itself: name -> function and shapes.
PYTORCH: dict[str, tuple[Callable[..., Any], dict[str, str]]] = {
    "matmul": (lambda a, b: a @ b, {"a": "m k", "b": "k n"}),
    "linear": (functional.linear, {"input": "m k", "weight": "n k", "bias": "n"}),
    "sum": (lambda x: x.sum(-1), {"x": "m n"}),
    "mean": (lambda x: x.mean(-1), {"x": "m n"}),
    "softmax": (lambda x: x.softmax(-1), {"x": "m n"}),
    "log softmax": (lambda x: x.log_softmax(-1), {"x": "m n"}),
    "layer norm": (lambda x, w, b: functional.layer_norm(x, x.shape[-1:], w, b), {"x": "m n", "w": "n", "b": "n"}),
    "RMS norm": (lambda x, w: functional.rms_norm(x, x.shape[-1:], w, 1e-6), {"x": "m n", "w": "n"}),
    "attention": (
        functional.scaled_dot_product_attention,
        {"query": "m 2 s 64", "key": "m 2 t 64", "value": "m 2 t 64"},
    ),
    "silu": (functional.silu, {"input": "m n"}),
}
DTYPES = ("float32", "bfloat16")


def chosen() -> Iterator[tuple[str, Kernel]]:
    """Yields the kernels with the name of their project."""
    for name, (function, shapes) in PYTORCH.items():
        declared = verify.kernel(like=function, shapes=shapes, dtypes=DTYPES, name=name)
        yield "PyTorch", declared(lambda *given, of=function: of(*given))
    for file in KERNELS:
        for kernel in load(Target.parse(f"properties/{file}.py")):
            if not kernel.peer:
                yield "this repository", kernel


def measured(backend: str) -> list[dict[str, Any]]:
    """Returns the classes of every kernel in every dtype, or why there are none."""
    place, found = backends.select(backend), []
    backends.activate(place)
    for project, kernel in chosen():
        for dtype in DTYPES:
            if dtype not in kernel.dtypes:
                continue
            began = time.monotonic()
            row: dict[str, Any] = {"project": project, "name": kernel.name, "dtype": dtype}
            try:
                row["classes"] = msgspec.to_builtins(settings_of(kernel, place, dtype, "", lambda text: None))
            except Exception as error:
                row["error"] = f"{type(error).__name__}: {error}"
            found.append(row | {"seconds": round(time.monotonic() - began, 1)})
            print(f"{kernel.name} {dtype}: {found[-1].get('error', 'ok')}, {found[-1]['seconds']} s", file=sys.stderr)
    return found


def table(record: dict[str, Any]) -> str:
    """Returns the table of a record in Markdown."""
    lines = [f"{record['device']}; torch {record['torch']}.", ""]
    lines += ["| | dtype | sizes | rows | position | layout | configuration |", "|---" * 7 + "|"]
    project = ""
    for row in record["rows"]:
        if row["project"] != project:
            project = row["project"]
            lines.append(f"| **{project}** | | | | | | |")
        if "error" in row:
            lines.append(f"| {row['name']} | {row['dtype']} | {row['error']} | | | | |")
            continue
        classes = msgspec.convert(row["classes"], SameBits)
        sizes = ", ".join(f"{name} {size:,}" for name, size in classes.sizes.items())
        cells = [_cell(classes, name) for name in ("rows", "position", "layout", "configuration")]
        lines.append(f"| {row['name']} | {row['dtype']} | {sizes} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _cell(found: SameBits, setting: str) -> str:
    return "; ".join(_shown(each) for each in found.settings if each.setting.split(" ")[0] == setting)


def _shown(each: SettingBits) -> str:
    """Returns the classes of a setting: where classes of rows end, or how many values differ from the usual."""
    name = f"{each.setting[6:-1]}: " if each.setting.startswith("rows (") else ""
    if len(each.classes) == 1:
        return f"{name}same"
    if each.setting.startswith("rows"):
        return (
            name
            + " \\| ".join(" ".join(one.values) for one in each.classes[:6])
            + (" ..." if len(each.classes) > 6 else "")
        )
    others = [value for one in each.classes[1:] for value in one.values]
    return f"{len(each.classes)} classes: {', '.join(others[:3])}{' ...' if len(others) > 3 else ''} differ"


def main() -> None:
    """The command of the docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--from", dest="record", type=Path)
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    if options.record:
        record = json.loads(options.record.read_text())
    else:
        rows = measured(options.backend)
        device = torch.cuda.get_device_name() if torch.cuda.is_available() else "a CPU"
        record = {"device": device, "torch": torch.__version__, "rows": rows}
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    if options.page:
        write(options.page, "same bits", table(record))
    elif not options.json:
        print(table(record))


if __name__ == "__main__":
    main()
