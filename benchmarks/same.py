"""Compares settings of PyTorch's functions and of the kernels here, bit by bit: python -m benchmarks.same

    python -m benchmarks.same --backend cuda --json same.json   prints a table in Markdown
    python -m benchmarks.same --later 1000000 --backend cuda    exits 1 if later inputs split a class
    python -m benchmarks.same --orders --backend cuda           exits 1 if two routes to an order of a sum differ

`--later` finds the classes of each kernel as `verify same` does, and then finds them again beside so many later inputs,
of other seeds and of all recipes. An input is a row, or a case of a kernel without rows. Two settings are falsely
called the same if there are more classes then. `--kernel NAME` takes some of the kernels. The file of `--json` is
written after each kernel, and a further start measures the kernels that are missing there. A setting that ends the use
of the GPU is named, and the rest is measured in a fresh process.

`--orders` probes the orders of the sums of benchmarks/sums.py and of the norms here, reads them from what Triton
compiled, and checks these in PTX. On a GPU a probed order that its replay supports must be a compiled one; the
interpreter adds in an order of its own.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import count, islice
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import Tensor
from torch.nn import functional

import verify
from tests.oracle import summation
from verify import backends
from verify.backends import Backend
from verify.cases import Case
from verify.cases.values import CANCELLING, ROW_REGIMES
from verify.declare.declaration import Kernel
from verify.declare.discovery import load
from verify.declare.target import Target
from verify.diagnose.order import orders_of
from verify.diagnose.requests import Order, SameBits, SettingBits
from verify.diagnose.same import settings_of, subject_of
from verify.laws.bits import cases_of
from verify.laws.locality import separate_rows
from verify.measure.call import is_fault

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
# Kernels of public projects, by file; those whose package is not installed are left out.
PUBLIC = {
    "examples/liger.py": ("liger_rms_norm",),
    "examples/public/vllm_kernels.py": ("matmul_persistent", "rms_norm"),
    "examples/public/fla_sequences.py": ("gla_chunked",),
}
DTYPES = ("float32", "bfloat16")
PROBED = ("sum", "matmul")  # functions of PyTorch whose orders are found
SUMS = ("benchmarks/sums.py", "properties/layer_norm.py", "properties/rms_norm.py")  # with kernels that add
SIZES = {"small": (4, 96), "large": (8, 1000)}  # at which their orders are found
AT_ONCE = {"small": 128, "large": 32}  # later cases beside the first ones: their results stay in memory together


def liger_cross_entropy(logits: Tensor, label: Tensor) -> Tensor:
    """Cross-entropy of each row, on a copy of the logits, over which Liger writes."""
    from liger_kernel.ops.cross_entropy import LigerCrossEntropyFunction

    found: Tensor = LigerCrossEntropyFunction.apply(logits.clone(), label, None, -100, 0.0, 0.0, "none")[0]
    return found


def attended(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """One query for each sequence over all of its keys, with a group of two heads for each head of the keys."""
    keys, values = (each.repeat_interleave(2, 2).transpose(1, 2) for each in (keys, values))
    return functional.scaled_dot_product_attention(q[:, :, None], keys, values)[:, :, 0]


def decode_attention(q: Tensor, keys: Tensor, values: Tensor) -> Tensor:
    """SGLang's decode attention, in four splits of the keys; the sequences follow each other in its cache."""
    from sglang.kernels.ops.attention.decode_attention import decode_attention_fwd

    (b, t), heads = keys.shape[:2], q.shape[1]
    starts, slots = (torch.arange(0, end + 1, step, device=q.device) for end, step in ((b * t, t), (b * t - 1, 1)))
    parts, lse = q.new_empty(b, heads, 4, 32).float(), q.new_empty(b, heads, 4).float()
    y, splits = torch.empty_like(q), torch.full((b,), 4, dtype=torch.int32, device=q.device)
    cache = (each.reshape(b * t, -1, 32).contiguous() for each in (keys, values))
    decode_attention_fwd(q, *cache, y, starts.int(), slots, parts, lse, splits, 4, 32**-0.5, 1.0, 1.0)
    return y


def chosen() -> Iterator[tuple[str, Kernel]]:
    """Yields the kernels with the name of their project."""
    for name, (function, shapes) in PYTORCH.items():
        declared = verify.kernel(like=function, shapes=shapes, dtypes=DTYPES, name=name)
        yield "PyTorch", declared(lambda *given, of=function: of(*given))
    for file, wanted in PUBLIC.items():
        for kernel in load(Target.parse(file)):
            if kernel.name in wanted:
                # a scan's backward pass has 200 configurations of autotuners, each a second of compilation
                forward = replace(kernel, gradients=()) if kernel.name == "gla_chunked" else kernel
                yield file.rpartition("/")[2].removesuffix(".py"), forward
    shapes = {"q": "b 2*g 32", "keys": "b t g 32", "values": "b t g 32"}
    declared = verify.kernel(like=attended, shapes=shapes, dtypes=DTYPES[1:], gradients=False, requires="sglang")
    yield "sglang", declared(decode_attention)
    yield (
        "liger",
        verify.kernel(
            like=partial(functional.cross_entropy, reduction="none"),
            shapes={"logits": "n v", "label": "n"},
            integers={"label": "0 <= label < v"},
            dtypes=DTYPES,
            requires="liger_kernel",
        )(liger_cross_entropy),
    )
    for file in KERNELS:
        for kernel in load(Target.parse(f"properties/{file}.py")):
            if not kernel.peer:
                yield "this repository", kernel


def split(
    kernel: Kernel, place: Backend, cases: Sequence[Case], later: int, seed: int, ended: Mapping[str, str]
) -> tuple[list[str], int]:
    """Returns the settings of which inputs later than the cases split a class, and the number of later inputs."""
    dtype = cases[0].dtype
    classes = settings_of(kernel, place, dtype, cases, lambda text: None, ended)
    by_element = kernel.op.geometry.by_element
    fills = (kernel.op.geometry.fill,) if by_element else (*ROW_REGIMES, CANCELLING)
    rows = max((each.count for each in separate_rows(kernel, cases[0])), default=1)
    drawn = ((seed, fill) for seed in count(seed) for fill in fills)
    seen, found = 0, set[str]()
    while seen < later:
        some = [
            msgspec.structs.replace(cases[0], fill=fill, regime=kernel.op.geometry.regime(fill), seed=seed)
            for seed, fill in islice(drawn, min(AT_ONCE[place.scale], -(-(later - seen) // rows)))
        ]
        after = settings_of(kernel, place, dtype, [*cases, *some], lambda text: None, ended)
        pairs = zip(classes.settings, after.settings, strict=True)
        # More inputs only divide classes, so a class was split if there are more of them.
        found |= {one.setting for one, two in pairs if len(two.classes) != len(one.classes)}
        seen += rows * len(some)
    return sorted(found), seen


def measured(options: argparse.Namespace, record: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yields the classes of every kernel in every dtype that the record lacks, or why there are none.

    A row with "ended" names a value of a setting that ended the use of the GPU: the last row of this process.
    """
    place = backends.select(options.backend)
    backends.activate(place)
    known = {(row["project"], row["name"], row["dtype"]) for row in record["rows"]}
    for project, kernel in chosen():
        for dtype in DTYPES:
            names = options.kernel
            if dtype not in kernel.dtypes or kernel.lacking or (names and kernel.name not in names):
                continue
            if (project, kernel.name, dtype) in known:
                continue
            began, begun = time.monotonic(), list[str]()
            ended: dict[str, str] = record["ended"].get(f"{kernel.name} {dtype}", {})
            row: dict[str, Any] = {"project": project, "name": kernel.name, "dtype": dtype}
            try:
                cases = cases_of(subject_of(kernel, place, dtype))
                classes = settings_of(kernel, place, dtype, cases, begun.append, ended, options.rows)
                row["classes"] = msgspec.to_builtins(classes)
                if options.later:
                    row["split"], row["later"] = split(kernel, place, cases, options.later, options.seed, ended)
            except Exception as error:
                if is_fault(error) and begun and options.json:
                    record["ended"][f"{kernel.name} {dtype}"] = {**ended, begun[-1]: str(error)}
                    yield {"ended": begun[-1]}
                    return
                row["error"] = f"{type(error).__name__}: {error}"
            row["seconds"] = round(time.monotonic() - began, 1)
            said = row.get("error", f"{len(row.get('split', ()))} settings split over {row.get('later', 0):,} inputs")
            print(f"{kernel.name} {dtype}: {said}, {row['seconds']} s", file=sys.stderr)
            yield row


def parts_of(order: Order) -> frozenset[frozenset[int]]:
    """Returns the terms of each partial sum, by their place among those that read memory. One order has one set."""
    terms = order.proof.sums[0].terms if order.proof else [[(0, 0)]] * order.terms
    named = [at for at, term in enumerate(terms) if term]
    places = {at: place for place, at in enumerate(named)}
    made = [frozenset([places[at]]) if at in places else frozenset[int]() for at in range(len(terms))]
    for one, two in order.additions:
        made.append(made[one] | made[two])
    return frozenset(made) - {frozenset()}  # padding that the compiled order adds, such as exp(-inf)


def added() -> Iterator[tuple[str, Kernel]]:
    """Yields the kernels that add, with the file of those that Triton compiles."""
    yield from (("", kernel) for _, kernel in chosen() if kernel.name in PROBED)
    numpy_sum = verify.kernel(like=lambda x: x.sum(-1), shapes={"x": "m n"}, dtypes=["float32"], gradients=False)
    yield "", numpy_sum(lambda x: torch.from_numpy(x.cpu().numpy().sum(-1)).to(x.device))
    yield from ((file, kernel) for file in SUMS for kernel in load(Target.parse(file)) if not kernel.peer)


def compared_orders(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Returns the orders of each kernel by both routes, and what is wrong with them."""
    place, rows = backends.select(options.backend), []
    backends.activate(place)
    for file, kernel in added():
        if not options.kernel or kernel.name in options.kernel:
            began, size = time.monotonic(), SIZES[place.scale]
            dims = (*size[:1], options.terms or size[1], *size[:1])[: max(2, len(kernel.op.geometry.dims))]
            case = json.dumps({"dtype": "float32", "dims": dims, "fill": "randn"})
            found = orders_of(kernel, place, "float32", case, lambda text: None, file, options.sums)
            row: dict[str, Any] = {"name": kernel.name, "probed": [], "compiled": [], "wrong": []}
            compiled = {parts_of(each) for each in found if each.proof}
            for each in found:
                words = each.unknown or f"{each.terms:,} terms, {each.depth:,} deep"
                if each.basis == "probed":
                    row["probed"].append(words if each.unknown else f"{words}, {each.explained:.2%} of {each.tested}")
                    holds = not each.unknown and each.explained == 1 and compiled
                    if holds and place.triton == "compiled" and parts_of(each) not in compiled:
                        row["wrong"].append(f"the probed order of {each.result} is no compiled one")
                    continue
                row["compiled"].append(f"{each.kernel}: {words}")
                try:
                    if each.proof:
                        summation.checked(msgspec.to_builtins(each))
                except summation.Refused as why:
                    row["wrong"].append(f"{each.kernel}: {why}")
            rows.append(row)
            took = time.monotonic() - began
            print(
                f"{kernel.name}: {len(found)} orders, {row['wrong'] or 'none is wrong'}, {took:.0f} s", file=sys.stderr
            )
            if options.json:
                options.json.write_text(json.dumps(rows, indent=1) + "\n")
    return rows


def table_of_orders(rows: Sequence[dict[str, Any]]) -> str:
    """Returns the orders as a table in Markdown."""
    lines = ["| | probed | compiled | |", "|---" * 4 + "|"]
    cells = ("probed", "compiled", "wrong")
    lines += [f"| {row['name']} | {' | '.join('; '.join(row[cell]) for cell in cells)} |" for row in rows]
    return "\n".join(lines) + "\n"


def table(record: dict[str, Any]) -> str:
    """Returns the table of a record in Markdown."""
    lines = [f"{record['device']}; torch {record['torch']}.", ""]
    lines += ["| | dtype | settings | sizes | rows | position | layout | configuration |", "|---" * 8 + "|"]
    project = ""
    for row in record["rows"]:
        if row["project"] != project:
            project = row["project"]
            lines.append(f"| **{project}** | | | | | | | |")
        if "error" in row:
            lines.append(f"| {row['name']} | {row['dtype']} | | {row['error']} | | | | |")
            continue
        classes = msgspec.convert(row["classes"], SameBits)
        sizes = ", ".join(f"{name} {size:,}" for name, size in classes.sizes.items())
        cells = [
            "; ".join(_shown(each) for each in classes.settings if each.setting.split(" ")[0] == setting)
            for setting in ("rows", "position", "layout", "configuration")
        ]
        tried = sum(each.tried for each in classes.settings)
        lines.append(f"| {row['name']} | {row['dtype']} | {tried:,} | {sizes} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _shown(each: SettingBits) -> str:
    """Returns the classes of a setting: where classes of rows end, or how many values differ from the usual."""
    name = f"{each.setting[6:-1]}: " if each.setting.startswith("rows (") else ""
    refused = f", {len(each.refused)} refused" if each.refused else ""
    if len(each.classes) == 1:
        return f"{name}same{refused}"
    if each.setting.startswith("rows"):
        shown = " \\| ".join(" ".join(one) for one in each.classes[:6])
        return f"{name}{shown}{' ...' if len(each.classes) > 6 else ''}{refused}"
    others = [value for one in each.classes[1:] for value in one]
    return f"{len(each.classes)} classes: {', '.join(others[:3])}{' ...' if len(others) > 3 else ''} differ{refused}"


def main() -> int:
    """The command of the docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend")
    parser.add_argument("--kernel", action="append", default=[], help="only this one (repeatable)")
    parser.add_argument("--rows", type=int, default=8, help="each number of rows up to this is tried")
    parser.add_argument("--later", type=int, default=0, help="number of later inputs of each kernel and dtype")
    parser.add_argument("--seed", type=int, default=1, help="of the first of these inputs")
    parser.add_argument("--orders", action="store_true", help="orders of sums by two routes")
    parser.add_argument("--terms", type=int, default=0, help="of each of these sums")
    parser.add_argument("--sums", type=int, default=4096, help="random sums that a probed order must explain")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if options.orders:
        orders = compared_orders(options)
        print(table_of_orders(orders))
        return int(not any(row["compiled"] for row in orders) or any(row["wrong"] for row in orders))
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "a CPU"
    record: dict[str, Any] = {"device": device, "torch": torch.__version__, "rows": [], "ended": {}}
    if options.json and options.json.exists():
        record = json.loads(options.json.read_text())
    for row in measured(options, record):
        record["rows"] += [] if "ended" in row else [row]
        if options.json:
            options.json.write_text(json.dumps(record, indent=1) + "\n")
        if "ended" in row:  # a GPU with a fault serves no further call of this process
            os.execv(sys.executable, [sys.executable, "-m", "benchmarks.same", *sys.argv[1:]])
    print(table(record))
    return int(not record["rows"] or any(row.get("split") or "error" in row for row in record["rows"]))


if __name__ == "__main__":
    sys.exit(main())
