"""Compares settings of PyTorch's functions and of the kernels here, bit by bit: python -m benchmarks.same

    python -m benchmarks.same --backend cuda --json same.json   prints a table in Markdown
    python -m benchmarks.same --later 1000000 --backend cuda    exits 1 if later inputs split a class

`--later` finds the classes of each kernel as `verify same` does, and then finds them again beside so many later inputs,
of other seeds and of all recipes. An input is a row, or a case of a kernel without rows. Two settings are falsely
called the same if there are more classes then. `--kernel NAME` takes some of the kernels.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch.nn import functional

import verify
from verify import backends
from verify.backends import Backend
from verify.cases.values import CANCELLING, ROW_REGIMES
from verify.declare.declaration import Kernel
from verify.declare.discovery import load
from verify.declare.target import Target
from verify.diagnose.requests import SameBits, SettingBits
from verify.diagnose.same import cases_of, settings_of
from verify.laws.engine import PROFILES
from verify.laws.law import Subject
from verify.laws.locality import separate_rows

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
    "GELU": (functional.gelu, {"input": "m n"}),
    "exp": (torch.exp, {"input": "m n"}),
}
DTYPES = ("float32", "bfloat16")
AT_ONCE = {"small": 32, "large": 8}  # later cases beside the first ones: their results stay in memory together


def chosen(names: Sequence[str]) -> Iterator[tuple[str, Kernel]]:
    """Yields the kernels with the name of their project: all, or those with a name."""
    for name, (function, shapes) in PYTORCH.items():
        if not names or name in names:
            declared = verify.kernel(like=function, shapes=shapes, dtypes=DTYPES, name=name)
            yield "PyTorch", declared(lambda *given, of=function: of(*given))
    for file in KERNELS:
        for kernel in load(Target.parse(f"properties/{file}.py")):
            if not kernel.peer and (not names or kernel.name in names):
                yield "this repository", kernel


def split(kernel: Kernel, place: Backend, dtype: str, classes: SameBits, later: int) -> tuple[list[str], int]:
    """Returns the settings of which later inputs split a class, and the number of later inputs."""
    cases = cases_of(Subject(kernel, dtype, place, PROFILES["ci"].sizes[place.scale]))
    by_element = kernel.op.geometry.by_element
    fills = (kernel.op.geometry.fill,) if by_element else (*ROW_REGIMES, CANCELLING)
    rows = max((each.count for each in separate_rows(kernel, cases[0])), default=1)
    drawn = ((seed, fill) for seed in count(max(each.seed for each in cases) + 1) for fill in fills)
    seen, found = 0, set[str]()
    while seen < later:
        some = [
            msgspec.structs.replace(cases[0], fill=fill, regime=kernel.op.geometry.regime(fill), seed=seed)
            for seed, fill in islice(drawn, AT_ONCE[place.scale])
        ]
        after = settings_of(kernel, place, dtype, "", lambda text: None, later=some)
        pairs = zip(classes.settings, after.settings, strict=True)
        # More inputs only divide classes, so a class was split if there are more of them.
        found |= {one.setting for one, two in pairs if len(two.classes) != len(one.classes)}
        seen += rows * len(some)
    return sorted(found), seen


def measured(backend: str, names: Sequence[str], later: int) -> list[dict[str, Any]]:
    """Returns the classes of every kernel in every dtype, or why there are none."""
    place, found = backends.select(backend), []
    backends.activate(place)
    for project, kernel in chosen(names):
        for dtype in (each for each in DTYPES if each in kernel.dtypes):
            began = time.monotonic()
            row: dict[str, Any] = {"project": project, "name": kernel.name, "dtype": dtype}
            try:
                classes = settings_of(kernel, place, dtype, "", lambda text: None)
                row["classes"] = msgspec.to_builtins(classes)
                if later:
                    row["split"], row["later"] = split(kernel, place, dtype, classes, later)
            except Exception as error:
                row["error"] = f"{type(error).__name__}: {error}"
            found.append(row | {"seconds": round(time.monotonic() - began, 1)})
            said = row.get("error", f"{len(row.get('split', ()))} settings split over {row.get('later', 0):,} inputs")
            print(f"{kernel.name} {dtype}: {said}, {found[-1]['seconds']} s", file=sys.stderr)
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
        cells = [
            "; ".join(_shown(each) for each in classes.settings if each.setting.split(" ")[0] == setting)
            for setting in ("rows", "position", "layout", "configuration")
        ]
        lines.append(f"| {row['name']} | {row['dtype']} | {sizes} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _shown(each: SettingBits) -> str:
    """Returns the classes of a setting: where classes of rows end, or how many values differ from the usual."""
    name = f"{each.setting[6:-1]}: " if each.setting.startswith("rows (") else ""
    if len(each.classes) == 1:
        return f"{name}same"
    if each.setting.startswith("rows"):
        shown = " \\| ".join(" ".join(one.values) for one in each.classes[:6])
        return f"{name}{shown}{' ...' if len(each.classes) > 6 else ''}"
    others = [value for one in each.classes[1:] for value in one.values]
    return f"{len(each.classes)} classes: {', '.join(others[:3])}{' ...' if len(others) > 3 else ''} differ"


def main() -> int:
    """The command of the docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="")
    parser.add_argument("--kernel", action="append", default=[], help="only this one (repeatable)")
    parser.add_argument("--later", type=int, default=0, help="number of later inputs of each kernel and dtype")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    rows = measured(options.backend, options.kernel, options.later)
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "a CPU"
    record = {"device": device, "torch": torch.__version__, "rows": rows}
    if options.json:
        options.json.write_text(json.dumps(record, indent=1) + "\n")
    print(table(record))
    return int(not record["rows"] or any(row.get("split") or "error" in row for row in record["rows"]))


if __name__ == "__main__":
    sys.exit(main())
