"""Compare the faithful interpreter with a real GPU, operation by operation, bit for bit.

On a machine with a GPU:   python tests/backends/interpreter/compare_hardware.py record hardware.npz [2/8]
Anywhere:                  python tests/backends/interpreter/compare_hardware.py digest hardware.npz ... > sm_90.json

`record` runs every experiment as a Triton kernel on the GPU and keeps the raw output patterns; `2/8` records
the second of eight parts, so that eight processes can share the time of compilation. `digest` prints what
test_hardware.py compares with the same kernels on the same inputs through the interpreter.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.util
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from hardware_experiments import (  # noqa: E402 - the path above comes first
    TYPES,
    Dot,
    Experiment,
    arguments,
    dots,
    experiments,
    matrices,
    tensor,
)

ROOT = HERE.parents[2]
BLOCK = 512

# -- running --------------------------------------------------------------------------------------


def module(listed: list[Experiment], listed_dots: list[Dot]) -> Any:
    """A module with one kernel per experiment: Triton wants to read source files."""
    lines = ["import triton", "import triton.language as tl", "from triton.language.extra import libdevice", ""]
    for number, e in enumerate(listed):
        names = [f"A{i}" for i in range(len(e.arguments))]
        lines += ["@triton.jit", f"def kernel_{number}({', '.join(names)}, Y, B: tl.constexpr):"]
        lines += ["    i = tl.program_id(0) * B + tl.arange(0, B)"]
        lines += [f"    a{j} = tl.load(A{j} + i)" for j in range(len(names))]
        lines += [f"    y = {e.expression}", "    tl.store(Y + i, y)", ""]
    for number, d in enumerate(listed_dots):
        lines += ["@triton.jit", f"def dot_{number}(A, B, C, K: tl.constexpr):", "    m = tl.arange(0, 64)"]
        lines += ["    k = tl.arange(0, K)", "    a = tl.load(A + m[:, None] * K + k[None, :])"]
        lines += ["    b = tl.load(B + k[:, None] * 64 + m[None, :])", "    at = C + m[:, None] * 64 + m[None, :]"]
        lines += [f"    tl.store(at, tl.dot(a, b, tl.load(at), {d.options}))", ""]
    path = Path(tempfile.mkdtemp()) / "experiment_kernels.py"
    path.write_text("\n".join(lines))
    spec = importlib.util.spec_from_file_location("experiment_kernels", path)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def bits_of(t: Any, dtype: str) -> np.ndarray:
    import torch

    size = np.dtype(TYPES[dtype][1]).itemsize
    return t.cpu().view(getattr(torch, f"int{size * 8}")).numpy().view(TYPES[dtype][1])


def run_all(device: str, part: int = 0, parts: int = 1, only: set[str] | None = None) -> dict[str, np.ndarray]:
    """Output patterns by experiment name; an experiment that fails is reported and left out."""
    import torch

    def wanted(items: list[Any]) -> list[Any]:
        return [i for i in items if only is None or i.name in only][part::parts]

    listed, listed_dots = wanted(experiments()), wanted(dots())
    kernels = module(listed, listed_dots)
    out: dict[str, np.ndarray] = {}

    def attempt(item: Experiment | Dot, launch: Any, result: Any) -> None:
        try:
            launch()
            out[item.name] = bits_of(result, item.result)
        except Exception as error:
            line = str(error).splitlines()[-1][:150]
            print(f"{item.name}: {type(error).__name__}: {line}", flush=True)

    for number, e in enumerate(listed):
        inputs = [tensor(c, t, device) for c, t in zip(arguments(e), e.arguments, strict=True)]
        y = torch.empty(4096, dtype=getattr(torch, TYPES[e.result][0]), device=device)
        kernel = getattr(kernels, f"kernel_{number}")[(4096 // BLOCK,)]
        attempt(e, functools.partial(kernel, *inputs, y, B=BLOCK), y)
    for number, d in enumerate(listed_dots):
        a, b, c = (t.to(device) for t in matrices(d))
        kernel = getattr(kernels, f"dot_{number}")[(1,)]
        attempt(d, functools.partial(kernel, a, b, c, K=d.k), c)
    return out


# -- comparing ------------------------------------------------------------------------------------


def canonical(bits: np.ndarray, dtype: str) -> bytes:
    """The patterns with every NaN alike: its payload is not part of the promise."""
    if "int" in dtype:
        return bits.tobytes()
    nan = np.isnan(tensor(bits.ravel(), dtype, "cpu").double().numpy()).reshape(bits.shape)
    return np.where(nan, bits.dtype.type(np.iinfo(bits.dtype).max), bits).tobytes()


def short_hash(*parts: bytes) -> str:
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def input_hash(item: Experiment | Dot) -> str:
    """Tells whether this machine generates the inputs that were recorded."""
    if isinstance(item, Dot):
        import torch

        raw = [t.flatten().view(torch.uint8).numpy().tobytes() for t in matrices(item)]
        return short_hash(*raw)
    return short_hash(*(c.tobytes() for c in arguments(item)))


def digest(paths: list[str]) -> dict[str, list[str]]:
    """[hash of inputs, hash of outputs] of every experiment in a recording."""
    stored = {name: bits for path in paths for name, bits in np.load(path).items()}
    items: list[Experiment | Dot] = [*experiments(), *dots()]
    return {i.name: [input_hash(i), short_hash(canonical(stored[i.name], i.result))] for i in items if i.name in stored}


def main() -> int:
    command, *rest = sys.argv[1:] or ["help"]
    if command == "record" and rest:
        sys.path.insert(0, str(ROOT))
        from verify.backends.probes import probe

        part, parts = (int(n) for n in (rest[1] if len(rest) > 1 else "1/1").split("/"))
        print(probe("cuda:0"))
        recorded = run_all("cuda", part - 1, parts)
        np.savez_compressed(rest[0], **recorded)  # type: ignore[arg-type]
        return 0
    if command == "digest" and rest:
        lines = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in digest(rest).items()]
        print("{\n" + ",\n".join(lines) + "\n}")
        return 0
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main())
