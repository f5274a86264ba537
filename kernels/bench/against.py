"""Compares the bits of these kernels' results with those of another checkout's, in one process.

    python -m kernels.bench.against /path/to/other/checkout [--function gelu ...] [--dtype bfloat16 ...] [--json PATH]

Results are compared forward and backward, for odd and even shapes, dense and with padded rows. The last row holds
random bit patterns. The exit code is 1 if a bit differs. To compare speed, run kernels.bench.everything in both.
"""

from __future__ import annotations

import argparse
import importlib
import itertools
import pathlib
import sys
from functools import partial
from types import SimpleNamespace

import torch

from kernels.bench import report

PUBLIC = {
    "gelu": ("gelu",),
    "geglu": ("geglu", "geglu_split"),
    "swiglu": ("swiglu", "swiglu_split"),
    "rms_norm": ("rms_norm", "rms_norm_residual"),
    "linear_act": ("linear_act",),
    "linear_geglu": ("linear_geglu",),
    "layer_norm": ("layer_norm", "layer_norm_residual", "layer_norm_residual_bias"),
}
DTYPES = ("float64", "float32", "float16", "bfloat16")
SHAPES = (
    (3, 1), (16, 16), (37, 100), (70, 256), (9, 512), (5, 1023), (64, 1024), (7, 4097),
    (1030, 4352), (1024, 8192), (1500, 8191), (300, 20000), (100_000, 64),
)  # fmt: skip


def loaded(root: pathlib.Path, suffix: str) -> SimpleNamespace:
    """Returns the public functions of a checkout. Its operators get a suffix, because names must be unique."""
    kept = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "kernels"}
    original = torch.library.custom_op
    torch.library.custom_op = lambda name, *a, **k: original(name.replace("::", f"_{suffix}::"), *a, **k)
    sys.path.insert(0, str(root))
    try:
        modules = {name: importlib.import_module(f"kernels.{name}") for name in PUBLIC}
    finally:
        sys.path.remove(str(root))
        torch.library.custom_op = original
        for name in [name for name in sys.modules if name.split(".")[0] == "kernels"]:
            del sys.modules[name]
        sys.modules.update(kept)
    for name, module in modules.items():
        assert root in pathlib.Path(module.__file__).parents, f"kernels.{name} came from {module.__file__}, not {root}"
    return SimpleNamespace(**{f: getattr(modules[name], f) for name, functions in PUBLIC.items() for f in functions})


def problems(tree: SimpleNamespace, m: int, n: int, wanted: set[str]) -> dict:
    """Returns name -> (function, shapes of its arguments), for m rows of n numbers."""
    row, vector = (m, n), (n,)
    table = {
        "swiglu": (tree.swiglu, [(m, 2 * n)]),
        "swiglu_split": (tree.swiglu_split, [row, row]),
        "rms_norm": (tree.rms_norm, [row, vector]),
        "rms_norm_residual": (tree.rms_norm_residual, [row, row, vector]),
        "layer_norm bare": (tree.layer_norm, [row]),
        "layer_norm": (tree.layer_norm, [row, vector, vector]),
        "layer_norm_residual": (tree.layer_norm_residual, [row, row, vector, vector]),
        "layer_norm_residual_bias": (tree.layer_norm_residual_bias, [row, row, vector, vector, vector]),
    }
    for form in ("none", "tanh"):
        table[f"gelu {form}"] = partial(tree.gelu, approximate=form), [row]
        table[f"geglu {form}"] = partial(tree.geglu, approximate=form), [(m, 2 * n)]
        table[f"geglu_split {form}"] = partial(tree.geglu_split, approximate=form), [row, row]
        table[f"linear_geglu {form}"] = partial(tree.linear_geglu, approximate=form), [row, (2 * n, n), (2 * n,)]
    for activation in ("id", "gelu", "gelu_tanh", "squared_relu"):
        table[f"linear_act {activation}"] = partial(tree.linear_act, activation=activation), [row, (n, n), vector]
    wanted = {name for name in wanted if n <= 4352 or not name.startswith("linear")}
    return {what: problem for what, problem in table.items() if what.split()[0] in wanted}


def drawn(shapes: list, dtype: torch.dtype, device: str, padded: bool) -> list[torch.Tensor]:
    """Returns normal numbers, scaled as weights so that sums have ordinary size; the last row of the first is random
    bits.
    """
    torch.manual_seed(len(shapes) + shapes[0][-1])
    made = [torch.randn(*s[:-1], s[-1] + 16 * padded, dtype=torch.float32).to(dtype) for s in shapes]
    made = [t[..., 8:-8] if padded and t.dim() == 2 else t[..., : s[-1]] for t, s in zip(made, shapes, strict=True)]
    if len(shapes) > 1 and shapes[1] in ((shapes[0][1],) * 2, (2 * shapes[0][1], shapes[0][1])):
        made[1] = made[1] * shapes[0][1] ** -0.5
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
    made[0][-1] = torch.empty(shapes[0][-1], dtype=integer).random_(-(2 ** (8 * dtype.itemsize - 1)), None).view(dtype)
    return [t.to(device) if padded else t.to(device).contiguous() for t in made]


def results(function, arguments: list[torch.Tensor]) -> list[torch.Tensor]:
    """Returns the outputs and the gradients of all arguments."""
    leaves = [t.detach().requires_grad_() for t in arguments]
    y = function(*leaves)
    outputs = list(y) if isinstance(y, tuple) else [y]
    upstream = [torch.sin(torch.arange(o.numel(), device=o.device) + 1.0).to(o.dtype).view(o.shape) for o in outputs]
    return [*outputs, *torch.autograd.grad(outputs, leaves, upstream)]


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """True if two tensors have equal shapes, strides and bits."""
    integer = {2: torch.int16, 4: torch.int32, 8: torch.int64}[a.dtype.itemsize]
    return a.shape == b.shape and a.stride() == b.stride() and torch.equal(a.view(integer), b.view(integer))


def compare_bits(trees: list[SimpleNamespace], dtypes: list[str], wanted: set[str], shapes: tuple, device: str):
    """Yields a row for each function, dtype, shape and layout."""
    for name, shape, padded in itertools.product(dtypes, shapes, (False, True)):
        both = [problems(tree, *shape, wanted) for tree in trees]
        for what, (_, sizes) in both[0].items():
            arguments = drawn(sizes, getattr(torch, name), device, padded)
            found = zip(*(results(table[what][0], arguments) for table in both), strict=True)
            equal = all(same_bits(a, b) for a, b in found)
            yield {"what": what, "dtype": name, "shape": shape, "padded": padded, "equal": equal}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("other", type=pathlib.Path, help="root of the other checkout")
    parser.add_argument("--function", nargs="+", default=list(PUBLIC), choices=PUBLIC, help="modules; default: all")
    parser.add_argument("--dtype", nargs="+", default=list(DTYPES), choices=DTYPES)
    parser.add_argument("--json", help="default: $OUT/against.json if OUT is set")
    options = parser.parse_args()
    device = report.device("kernels.bench.against")
    trees = [loaded(pathlib.Path(__file__).resolve().parents[2], "this"), loaded(options.other.resolve(), "other")]
    wanted = {f for module in options.function for f in PUBLIC[module]}
    bits = []
    for row in compare_bits(trees, options.dtype, wanted, SHAPES, "cuda"):
        bits.append(row)
        if not row["equal"]:
            print("bits differ:", *row.values(), flush=True)
    differ = sum(not row["equal"] for row in bits)
    print(f"{len(bits)} comparisons of bits, {differ} differ", flush=True)
    report.save(options.json, "against", device=device, bits=bits)
    return int(differ > 0)


if __name__ == "__main__":
    sys.exit(main())
