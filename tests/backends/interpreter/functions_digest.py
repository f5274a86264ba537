"""Prints, for each group of the interpreter's functions, a digest of what they give for many arguments.

Every NaN counts as one. Arguments come from integers and from powers of two, so that they are the same everywhere.
"""

from __future__ import annotations

import hashlib
import itertools
import json
from collections.abc import Iterator

import numpy as np

from verify.backends.interpreter import casts, libdevice, ptx
from verify.backends.interpreter.dot import dot
from verify.backends.interpreter.fma import fma
from verify.backends.interpreter.functions import Evaluated
from verify.backends.interpreter.libdevice import lookup

COUNT = 600
TWO = ("atan2", "hypot", "pow", "fmod")
FAST = "sin cos tan log2 log log10 exp exp10".split()
INSTRUCTIONS = [
    *(f"{base}.approx.{kind}" for base in ("ex2", "tanh") for kind in ("f16", "bf16")),
    *(f"{base}.approx.f32" for base in ("ex2", "lg2", "sin", "cos", "tanh", "rcp", "rsqrt", "sqrt")),
    *("rcp.approx.ftz.f64", "rsqrt.approx.ftz.f64"),
]


def arguments(dtype: type, seed: int) -> np.ndarray:
    """Specials, all patterns alike, and numbers of everyday size."""
    rng = np.random.default_rng(seed)
    special = rng.permutation(np.array([0.0, -0.0, np.inf, -np.inf, np.nan, 1, -1, 0.5, 2, -3, 128, 1e-40], dtype))
    patterns = rng.integers(0, 2 ** (8 * np.dtype(dtype).itemsize), COUNT, dtype=f"u{np.dtype(dtype).itemsize}")
    sizes = np.ldexp(rng.integers(-(2**20), 2**20, COUNT) / 2.0**20, rng.integers(-24, 8, COUNT)).astype(dtype)
    return np.concatenate([special, patterns.view(dtype), sizes])


def digest(results: Iterator[np.ndarray]) -> str:
    total = hashlib.sha256()
    for out in results:
        plain = np.where(np.isnan(out), out.dtype.type(np.nan), out) if out.dtype.kind == "f" else out
        total.update(np.ascontiguousarray(plain).tobytes())
    return total.hexdigest()[:16]


def of_libdevice(dtype: type, *, exactly: bool) -> Iterator[np.ndarray]:
    suffix = "f" if dtype is np.float32 else ""
    for name, f in libdevice._EVALUATED.items():
        if isinstance(f, Evaluated) == exactly:
            columns = [arguments(dtype, seed) for seed in range(1 + (name in TWO))]
            yield lookup(f"__nv_{name}{suffix}")(*columns)


def of_instructions() -> Iterator[np.ndarray]:
    for opcode in INSTRUCTIONS:
        instruction = ptx.decode(opcode)
        assert instruction is not None
        width = instruction.widths[0]
        yield instruction.compute(np.random.default_rng(1).integers(0, 2**width, 4096, dtype=f"u{width // 8}"))


def of_casts() -> Iterator[np.ndarray]:
    for source, target in itertools.product(casts.STORAGE, repeat=2):
        stored = casts.STORAGE[source]
        bits = np.random.default_rng(2).integers(0, 2 ** (8 * stored.itemsize), 4096, dtype=f"u{stored.itemsize}")
        yield casts.convert(bits.view(stored), source, target)


def of_sums() -> Iterator[np.ndarray]:
    for dtype, name in ((np.float32, "fp32"), (np.float64, "fp64")):
        yield fma(*(arguments(dtype, seed) for seed in range(3)), name)
    for name, precision in itertools.product(("fp32", "fp16", "bf16", "fp8e5"), ("ieee", "tf32", "tf32x3")):
        rng = np.random.default_rng(3)
        a, b = (casts.narrow(rng.integers(-999, 999, (16, 48)) / 128.0, name) for _ in range(2))
        yield dot(a, np.ascontiguousarray(b.T), np.zeros((16, 16), np.float32), name, name, "fp32", precision)


@np.errstate(all="ignore")
def digests() -> dict[str, str]:
    return {
        "float32 functions": digest(of_libdevice(np.float32, exactly=True)),
        "float64 functions": digest(of_libdevice(np.float64, exactly=True)),
        "exact functions": digest(
            itertools.chain(*(of_libdevice(dtype, exactly=False) for dtype in (np.float32, np.float64)))
        ),
        "fast functions": digest(lookup(f"__nv_fast_{name}f")(arguments(np.float32, 4)) for name in FAST),
        "instructions": digest(of_instructions()),
        "casts": digest(of_casts()),
        "sums": digest(of_sums()),
    }


if __name__ == "__main__":
    import torch
    from numpy._core._multiarray_umath import __cpu_dispatch__, __cpu_features__

    used = [name for name in __cpu_dispatch__ if __cpu_features__[name]]
    print(json.dumps({"torch": torch.backends.cpu.get_cpu_capability(), "numpy": used, **digests()}))
