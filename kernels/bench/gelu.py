"""The speed table of the GELU family on one GPU: every kernel as a fraction of a copy of the same bytes.

    python -m kernels.bench.gelu                   2^27 elements, all dtypes and forms
    python -m kernels.bench.gelu --log2 28 --json out.json

1.00 means as fast as `copy_` moving the same number of bytes (each input read once, each output written once),
measured in the same run. Times are medians of CUDA events around single launches, after three
warm-ups; work queued before the first event keeps the CPU's launch time out of them, and clears the
cache. Data is normal, of standard deviation 1 unless --scale says otherwise: the float32 erf forward
depends on it (a block that holds x < -7.5 takes both its branches).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable

import torch
import torch._functorch.config
import torch.nn.functional as F  # noqa: N812

from kernels import geglu, gelu, gelu_compiled, gelu_cuda

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


def median_ms(run: Callable[[], object], repeats: int = 11) -> float:
    for _ in range(3):
        run()
    spacer = torch.empty(1 << 30, dtype=torch.int8, device="cuda")
    times = []
    for _ in range(repeats):
        spacer.zero_()
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        run()
        end.record()
        end.synchronize()
        times.append(start.elapsed_time(end))
    return sorted(times)[repeats // 2]


def copy_ms(moved: int) -> float:
    """Median time of a copy that reads and writes `moved` bytes together."""
    source = torch.randn(moved // 8, device="cuda")
    target = torch.empty_like(source)
    return median_ms(lambda: target.copy_(source))


def gradient(y: torch.Tensor, x: torch.Tensor, dy: torch.Tensor) -> Callable[[], object]:
    return lambda: torch.autograd.grad(y, x, dy, retain_graph=True)


def eager_geglu(x: torch.Tensor, form: str) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return first * F.gelu(second, approximate=form)


def gelu_runs(x: torch.Tensor, dy: torch.Tensor, form: str) -> dict[str, dict[str, Callable]]:
    leaf = x.detach().requires_grad_()
    return {
        "forward": {
            "gelu": lambda: gelu.gelu(x, form),
            "gelu_cuda": lambda: gelu_cuda.gelu(x, form),
            "gelu_compiled": lambda: gelu_compiled.gelu(x, form),
            "eager": lambda: F.gelu(x, approximate=form),
        },
        "backward": {
            "gelu": lambda: gelu.gelu_backward(dy, x, form),
            "gelu_cuda": lambda: torch.ops.precise_gelu_cuda.backward(dy, x, form),
            "gelu_compiled": gradient(gelu_compiled.gelu(leaf, form), leaf, dy),
            "eager": lambda: torch.ops.aten.gelu_backward(dy, x, approximate=form),
        },
    }


def geglu_runs(x: torch.Tensor, dy: torch.Tensor, form: str) -> dict[str, dict[str, Callable]]:
    compiled = torch.compile(eager_geglu)
    leaf = x.detach().requires_grad_()
    return {
        "forward": {
            "geglu": lambda: geglu.geglu(x, form),
            "torch.compile": lambda: compiled(x, form),
            "eager": lambda: eager_geglu(x, form),
        },
        "backward": {
            "geglu": lambda: torch.ops.precise_geglu.packed_backward(dy, x, form, True),
            "torch.compile": gradient(compiled(leaf, form), leaf, dy),
            "eager": gradient(eager_geglu(leaf, form), leaf, dy),
        },
    }


def measure(log2: int, scale: float) -> list[dict[str, object]]:
    """One row per function, direction, dtype and form: {column: fraction of copy}."""
    rows: list[dict[str, object]] = []
    n, wide = 1 << log2, 1 << 13
    for name, dtype in DTYPES.items():
        size = dtype.itemsize
        x = (torch.randn(n, device="cuda") * scale).to(dtype)
        dy = torch.randn(n, device="cuda").to(dtype)
        cases = [("gelu", gelu_runs, x, dy, {"forward": 2, "backward": 3})]
        packed, half = x.view(-1, 2 * wide), dy[: n // 2].view(-1, wide)
        cases.append(("geglu", geglu_runs, packed, half, {"forward": 1.5, "backward": 2.5}))
        for function, runs, a, b, tensors in cases:
            for form in ("none", "tanh"):
                for direction, columns in runs(a, b, form).items():
                    moved = int(tensors[direction] * n * size)
                    limit = copy_ms(moved)
                    row: dict[str, object] = {"function": function, "direction": direction}
                    row |= {"dtype": name, "form": form, "copy_TB/s": moved / limit / 1e9}
                    row |= {column: limit / median_ms(run) for column, run in columns.items()}
                    rows.append(row)
                    print(text(row), flush=True)
    return rows


def text(row: dict[str, object]) -> str:
    what = f"{row['function']:6}{row['direction']:9}{row['dtype']:9}{row['form']:5}"
    figures = [f"{k} {v:.3f}" for k, v in row.items() if isinstance(v, float)]
    return what + "  ".join(figures)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Speed of the GELU family, as a fraction of copy.")
    parser.add_argument("--log2", type=int, default=27, help="elements, as a power of two")
    parser.add_argument("--scale", type=float, default=1.0, help="standard deviation of the data")
    parser.add_argument("--json", help="also write the rows to this file")
    options = parser.parse_args(arguments)
    if not torch.cuda.is_available():
        print("kernels.bench.gelu: a CUDA device is needed, torch sees none", file=sys.stderr)
        return 2
    # a compiled backward is run several times on one graph
    torch._functorch.config.donated_buffer = False
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}: fractions of copy")
    rows = measure(options.log2, options.scale)
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(rows, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
