"""Elementary and special functions against mpmath at 200 bits."""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable

import mpmath as mp
import numpy as np
import pytest

from verify.backends.interpreter import functions, libdevice
from verify.backends.interpreter.libdevice import lookup
from verify.errors import UsageError

RNG = np.random.default_rng(0)


def uniform(low: float, high: float, n: int = 150) -> np.ndarray:
    return RNG.uniform(low, high, n)


def scales(low: float, high: float, n: int = 60) -> np.ndarray:
    size = 10.0 ** RNG.uniform(low, high, n)
    return np.concatenate([size, -size])


def normcdf(x: mp.mpf) -> mp.mpf:
    return mp.erfc(-x / mp.sqrt(2)) / 2


CASES: dict[str, tuple[Callable[..., mp.mpf], np.ndarray]] = {
    "erf": (mp.erf, np.concatenate([uniform(-6, 6), scales(-300, 0)])),
    "erfc": (mp.erfc, uniform(-6, 26.5)),
    "normcdf": (normcdf, np.concatenate([uniform(-37, 8), scales(-300, 0)])),
    "erfinv": (mp.erfinv, uniform(-1, 1, 40)),
    "sinpi": (lambda x: mp.sin(mp.pi * x), uniform(-1000, 1000)),
    "cospi": (lambda x: mp.cos(mp.pi * x), uniform(-1000, 1000)),
    "tgamma": (mp.gamma, uniform(-20, 170, 40)),
    "exp10": (lambda x: mp.mpf(10) ** x, uniform(-300, 300)),
    "rsqrt": (lambda x: 1 / mp.sqrt(x), 10.0 ** uniform(-300, 300)),
}


@pytest.mark.parametrize("name", CASES)
def test_float64_functions_are_correctly_rounded(name: str) -> None:
    exact, points = CASES[name]
    with mp.workprec(200), np.errstate(all="ignore"):
        got = getattr(functions, name)(points)
        for x, y in zip(points.tolist(), got.tolist(), strict=True):
            assert y == float(exact(mp.mpf(x))), x


#: libdevice float32 symbols, their exact functions and a range where nothing overflows or is subnormal.
FLOAT32: dict[str, tuple[Callable[..., mp.mpf], float, float]] = {
    "erf": (mp.erf, -4, 4), "erfc": (mp.erfc, -4, 9),
    "normcdf": (normcdf, -12, 5), "tanh": (mp.tanh, -9, 9), "exp": (mp.exp, -80, 80),
    "exp2": (lambda x: mp.mpf(2) ** x, -120, 120), "exp10": (lambda x: mp.mpf(10) ** x, -35, 35),
    "expm1": (mp.expm1, -10, 60), "log": (mp.log, 1e-30, 3), "log2": (lambda x: mp.log(x, 2), 1e-30, 3),
    "log10": (mp.log10, 1e-30, 3), "log1p": (mp.log1p, -0.99, 5), "rsqrt": (lambda x: 1 / mp.sqrt(x), 1e-30, 9),
    "sin": (mp.sin, -1e6, 1e6), "cos": (mp.cos, -1e6, 1e6), "sinh": (mp.sinh, -40, 40), "cosh": (mp.cosh, -40, 40),
    "atan": (mp.atan, -20, 20), "cbrt": (mp.cbrt, 0.01, 1e10), "asinh": (mp.asinh, -50, 50),
    "acosh": (mp.acosh, 1.0001, 50), "atanh": (mp.atanh, -0.999, 0.999), "asin": (mp.asin, -1, 1),
    "acos": (mp.acos, -1, 1), "tan": (mp.tan, -50, 50),
    "erfinv": (mp.erfinv, -0.99, 0.99),
}  # fmt: skip


@pytest.mark.parametrize("name", FLOAT32)
def test_float32_libdevice_is_correctly_rounded(name: str) -> None:
    exact, low, high = FLOAT32[name]
    x = np.random.default_rng(1).uniform(low, high, 60).astype(np.float32)
    got = libdevice.lookup(f"__nv_{name}f")(x)
    assert got.dtype == np.float32
    with mp.workprec(120):
        for v, y in zip(x.tolist(), got.tolist(), strict=True):
            truth = exact(mp.mpf(v))
            below, above = (float(np.nextafter(np.float32(y), np.float32(s))) for s in (-np.inf, np.inf))
            assert abs(truth - y) <= abs(truth - below) and abs(truth - y) <= abs(truth - above), (v, y)


def test_limits() -> None:
    inf, nan = math.inf, math.nan
    x = np.array([0.0, -0.0, inf, -inf, nan])
    with np.errstate(all="ignore"):
        table = {name: getattr(functions, name)(x).tolist() for name in ("erf", "erfc", "normcdf", "cospi")}
    assert str(table["erf"]) == "[0.0, -0.0, 1.0, -1.0, nan]"
    assert str(table["erfc"]) == "[1.0, 1.0, 0.0, 2.0, nan]"
    assert str(table["normcdf"]) == "[0.5, 0.5, 1.0, 0.0, nan]"
    assert str(table["cospi"]) == "[1.0, 1.0, nan, nan, nan]"


F = np.float32


def test_every_cuda_libdevice_function_is_there_but_rare_ones() -> None:
    cuda = pytest.importorskip("triton.language.extra.cuda.libdevice")
    symbols = set(re.findall(r"\"(__nv_\w+)\"", inspect.getsource(cuda)))
    assert len(symbols) > 280
    missing = {s for s in symbols if s not in libdevice.SYMBOLS}
    bessel = r"(j0|j1|jn|y0|y1|yn|cyl_bessel_i[01])f?"
    others = r"(erfcx|erfcinv|normcdfinv|r?norm[34]d|rhypot|rcbrt|remainder)f?"
    integers = "u?(mul24|sad|hadd|rhadd)"
    of_float64 = r"(fma|d(add|sub|mul|div|rcp|sqrt)|u?ll2double)_r[zdu]"
    of_float32 = r"(fmaf|f(add|sub|mul|div|rcp|sqrt)|double2float|u?(int|ll)2float)_r[du]"
    rare = "|".join((bessel, others, integers, of_float64, of_float32))
    assert missing == {s for s in symbols if re.fullmatch(f"__nv_({rare})", s)}


def test_an_unknown_symbol_is_named_with_the_way_to_add_it() -> None:
    with pytest.raises(UsageError) as error:
        lookup("__nv_besselkf")
    assert "the interpreter backend has no __nv_besselkf" in str(error.value)
    assert "next: add '__nv_besselkf' to SYMBOLS in verify/backends/interpreter/libdevice.py" in str(error.value)
