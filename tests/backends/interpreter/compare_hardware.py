"""Compare the faithful interpreter with a real GPU, operation by operation, bit for bit.

On a machine with a GPU:      python tests/backends/interpreter/compare_hardware.py record hardware.npz [2/8]
Anywhere, in a new process:   python tests/backends/interpreter/compare_hardware.py compare hardware.npz ...
                              python tests/backends/interpreter/compare_hardware.py digest hardware.npz ... > sm_90.json

`record` runs every experiment as a Triton kernel on the GPU and keeps the raw output patterns; `2/8` records
the second of eight parts, so that eight processes can share the time of compilation. `compare` runs the same
kernels on the same inputs through the interpreter and reports the differences: experiments marked exact must
agree in every bit (the payload of a NaN apart) and decide the exit code; approximate ones, where the hardware
uses an approximation, report the largest distance in ULP. `digest` prints what test_hardware.py checks.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.util
import json
import os
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


def values(bits: np.ndarray, dtype: str) -> np.ndarray:
    """Patterns as float64 values (integers stay integers)."""
    if "int" in dtype:
        return bits.view(f"{'u' if dtype.startswith('u') else 'i'}{bits.dtype.itemsize}")
    return tensor(bits, dtype, "cpu").double().numpy()


def difference(hardware: np.ndarray, interpreted: np.ndarray, dtype: str) -> tuple[int, float, int]:
    """(number of differing elements, largest distance in ULP, index of the worst); equal NaNs are equal."""
    h, i = values(hardware, dtype), values(interpreted, dtype)
    same = hardware == interpreted
    if "int" in dtype:
        return int((~same).sum()), float("inf") if not same.all() else 0.0, int(np.argmin(same))
    same |= np.isnan(h) & np.isnan(i)
    if same.all():
        return 0, 0.0, 0
    sign = hardware.dtype.type(1 << (hardware.dtype.itemsize * 8 - 1))

    size_h, size_i = ((b & ~sign).astype(np.int64) for b in (hardware, interpreted))
    opposite = (hardware ^ interpreted) & sign != 0
    distance = np.where(opposite, size_h.astype(float) + size_i, np.abs(size_h - size_i))
    distance = np.where(np.isnan(h) != np.isnan(i), np.inf, distance)
    distance = np.where(same, 0.0, np.where(distance == 0, 0.5, distance))  # 0.5: zeros of opposite sign
    worst = int(np.argmax(distance))
    return int((~same).sum()), float(distance[worst]), worst


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
        raw = [t.flatten().view(torch_bytes()).numpy().tobytes() for t in matrices(item)]
        return short_hash(*raw)
    return short_hash(*(c.tobytes() for c in arguments(item)))


def torch_bytes() -> Any:
    import torch

    return torch.uint8


def digest(paths: list[str]) -> dict[str, list[str]]:
    """[hash of inputs, hash of outputs] of every exact experiment in a recording."""
    stored = {name: bits for path in paths for name, bits in np.load(path).items()}
    items: list[Experiment | Dot] = [*experiments(), *dots()]
    return {
        i.name: [input_hash(i), short_hash(canonical(stored[i.name], i.result))]
        for i in items
        if i.exact and i.name in stored
    }


def compare(paths: list[str]) -> int:
    """Report every experiment whose interpreted output differs; 1 if an exact one does."""
    os.environ["TRITON_INTERPRET"] = "1"
    sys.path.insert(0, str(ROOT))
    from verify import backends

    backends.activate(backends.select("interpreter"))
    stored = {name: bits for path in paths for name, bits in np.load(path).items()}
    interpreted = run_all("cpu")
    listed = {e.name: (e.exact, e.result, e) for e in experiments()}
    listed |= {d.name: (d.exact, d.result, d) for d in dots()}
    failed = 0
    for name, (exact, dtype, item) in listed.items():
        if name not in stored:
            continue
        if name not in interpreted:
            print(f"{'EXACT ' if exact else ''}{name}: the interpreter did not run it")
            failed += exact
            continue
        count, ulp, worst = difference(stored[name].ravel(), interpreted[name].ravel(), dtype)
        if count == 0:
            continue
        where = ""
        if isinstance(item, Experiment):
            at = [hex(int(c[worst])) for c in arguments(item)]
            where = f" at {', '.join(at)}: GPU {int(stored[name].ravel()[worst]):#x}, "
            where += f"interpreter {int(interpreted[name].ravel()[worst]):#x}"
        print(f"{'EXACT ' if exact else ''}{name}: {count} of {stored[name].size} differ, max {ulp:g} ulp{where}")
        failed += exact
    checked = sum(name in stored for name in listed)
    print(f"{checked} experiments compared, {failed} exact ones differ")
    return int(failed > 0)


def main() -> int:
    command, *rest = sys.argv[1:] or ["help"]
    if command == "record" and rest:
        sys.path.insert(0, str(ROOT))
        from verify.backends.probes import probe

        part, parts = (int(n) for n in (rest[1] if len(rest) > 1 else "1/1").split("/"))
        print(dataclasses.asdict(probe("cuda:0")))
        recorded = run_all("cuda", part - 1, parts)
        np.savez_compressed(rest[0], **recorded)  # type: ignore[arg-type]
        return 0
    if command == "compare" and rest:
        return compare(rest)
    if command == "digest" and rest:
        lines = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in digest(rest).items()]
        print("{\n" + ",\n".join(lines) + "\n}")
        return 0
    print(__doc__)
    return 2


if __name__ == "__main__":
    sys.exit(main())
