"""Derives every constant and coefficient of gelu_math.py, geglu.py and gelu.cu from the definitions.

    python -m kernels.derive.gelu            prints the generated blocks (about 20 seconds)
    python -m kernels.derive.gelu --write    writes them between the markers of the three files
    python -m kernels.derive.gelu --check    exits 1 if a file differs from its derivation

The approximated functions (u = |x|):

- `mills(u) = Phi(-u) exp(u^2/2)`: algebraic, like 1/u for large u. The approximation is a ratio of polynomials with
  positive coefficients. gelu(-u) = -u exp(-u^2/2) mills(u) keeps its relative precision in the whole tail.
- `erf_slope(u) = (Phi(-u) - u phi(u)) exp(u^2/2) / (z - u)`, z = 0.7518 the zero of the derivative. The two terms
  cancel near z. With the zero divided out, gelu'(-u) keeps its relative precision there.
- `Phi(-u)^(1/128)` on [0, 14.375]: flat enough for a polynomial; seven squarings give Phi(-u).
- `tanh_near(t)`: the same division by the zero for the tanh form, only near its zero.
- `Phi(-u)^(1/4)` on [0, 5.75] likewise, for gelu in float16; less precise if the result is subnormal.
- 2^f on [-1/2, 1/2] and (exp(r) - 1 - r) / r^2 on [-ln 2 / 2, ln 2 / 2].

`remez` minimises the largest relative error in 260-bit arithmetic. Then the coefficients are rounded to the kernel's
precision. The float16 kernels work in float32, and its rounding errors would misround a handful of the 65,536 inputs.
`settle` moves the last bits of a few coefficients, by a fixed pseudorandom sequence, until no input is misrounded for
any last bit of the hardware reciprocal. bfloat16 and the wider types need no such step.
"""

from __future__ import annotations

import math
import random
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import mpmath as mp
import numpy as np

mp.mp.prec = 260
F32 = np.float32
ROOT = Path(__file__).resolve().parent.parent

HALF_PI_ROOT = mp.sqrt(mp.mpf(2) / mp.pi)
CUBIC = mp.mpf("0.044715")
SQRT_2PI = mp.sqrt(2 * mp.pi)
LN2 = mp.log(2)
#: 2 z(x) = TANH_A x + TANH_B x^3, the argument of the sigmoid in the tanh form
TANH_A = 2 * HALF_PI_ROOT
TANH_B = TANH_A * CUBIC


def phi(u):
    """Returns Phi(-u), the tail of the normal distribution."""
    return mp.erfc(u / mp.sqrt(2)) / 2


def mills(u):
    """Returns Phi(-u) exp(u^2/2)."""
    return phi(u) * mp.exp(u * u / 2)


def erf_zero():
    """Returns the u at which gelu'(-u) = Phi(-u) - u phi(u) is 0."""
    return mp.findroot(lambda u: phi(u) - u * mp.exp(-u * u / 2) / SQRT_2PI, mp.mpf("0.7518"))


def tanh_decay(u):
    """Returns exp(-2 z(u))."""
    return mp.exp(-(TANH_A * u + TANH_B * u**3))


def tanh_numerator(u):
    """Returns N of gelu'(-u) = E / (1 + E) N, E = tanh_decay(u)."""
    return 1 - u * (TANH_A + 3 * TANH_B * u * u) / (1 + tanh_decay(u))


def tanh_zero():
    """Returns the u at which the tanh form's gelu'(-u) is 0."""
    return mp.findroot(tanh_numerator, mp.mpf("0.7525"))


ERF_ZERO, TANH_ZERO = erf_zero(), tanh_zero()


def _away(t):
    """Returns t, moved off 0 by 2^-60: a quotient 0/0 then gives its limit to 60 bits."""
    return t if abs(t) > mp.mpf(2) ** -60 else mp.mpf(2) ** -60


def erf_slope(u):
    """Returns the erf form's slope with the zero divided out."""
    t = _away(ERF_ZERO - u)
    return (mills(ERF_ZERO - t) - (ERF_ZERO - t) / SQRT_2PI) / t


def tanh_near(t):
    """Returns tanh_numerator(z - t) / t."""
    t = _away(t)
    return tanh_numerator(TANH_ZERO - t) / t


def tanh_near_sum(v, centre):
    """Returns (1 + E(u) - u w'(u)) / (z - u) at u = centre + v: float64's form, without the division by 1 + E."""
    u = TANH_ZERO - _away(TANH_ZERO - centre - v)
    return tanh_numerator(u) * (1 + tanh_decay(u)) / (TANH_ZERO - u)


def exp2_curve(f):
    """Returns (2^f - 1 - f ln 2) / f^2. float32 adds this part of 2^f, at most 2^-3.5 of it."""
    f = _away(f)
    return (mp.mpf(2) ** f - 1 - f * LN2) / (f * f)


def exp_tail(r):
    """Returns (exp(r) - 1 - r) / r^2."""
    r = _away(r)
    return (mp.exp(r) - 1 - r) / (r * r)


def remez(f: Callable, p: int, q: int, lo, hi, grid: int = 400, weight: Callable = lambda v: 1):
    """Returns N, D and e: N(v)/D(v) of degrees (p, q) with D(0) = 1 has the least relative error from f; e is its
    largest.

    Exchanges points on a Chebyshev grid. The equations N - f D (1 + s E) = 0 are linear in N and D. For q > 0, Newton's
    method in E solves them. Raises ArithmeticError if the errors do not become equal.

    Args:
        weight: factor of the relative error at v
    """
    n = p + q + 2
    lo, hi = mp.mpf(lo), mp.mpf(hi)
    at = [(lo + hi) / 2 - (hi - lo) / 2 * mp.cos(mp.pi * i / grid) for i in range(grid + 1)]
    value = [f(v) for v in at]
    chosen = [round(grid * i / (n - 1)) for i in range(n)]
    level, den = mp.mpf(0), [mp.mpf(1)]
    for _ in range(40):
        for _ in range(20):
            a, b = mp.matrix(n, n), mp.matrix(n, 1)
            for i, g in enumerate(chosen):
                v, fv, sign = at[g], value[g], (-1) ** i / weight(at[g])
                for j in range(p + 1):
                    a[i, j] = v**j
                for j in range(1, q + 1):
                    a[i, p + j] = -fv * (1 + sign * level) * v**j
                old = mp.polyval(den[::-1], v)
                a[i, n - 1] = -fv * sign * old
                b[i] = fv * (1 + sign * level) - fv * sign * level * old
            x = mp.lu_solve(a, b)
            den = [mp.mpf(1)] + [x[p + j] for j in range(1, q + 1)]
            step, level = abs(x[n - 1] - level), x[n - 1]
            if q == 0 or step <= abs(level) * mp.mpf(10) ** -9:
                break
        num = [x[j] for j in range(p + 1)]
        ratios = [mp.polyval(num[::-1], v) / mp.polyval(den[::-1], v) / fv for v, fv in zip(at, value, strict=True)]
        error = [weight(v) * (ratio - 1) for v, ratio in zip(at, ratios, strict=True)]
        runs = [[0]]
        for i in range(1, len(at)):
            if (error[i] > 0) == (error[runs[-1][-1]] > 0):
                runs[-1].append(i)
            else:
                runs.append([i])
        peaks = [max(run, key=lambda i: abs(error[i])) for run in runs]
        worst = max(map(abs, error))
        if len(peaks) < n:
            break
        while len(peaks) > n:
            peaks.pop(0 if abs(error[peaks[0]]) < abs(error[peaks[-1]]) else -1)
        if worst < abs(level) * mp.mpf("1.01"):
            return num, den, worst
        chosen = peaks
    raise ArithmeticError(f"remez: degrees ({p}, {q}) on [{lo}, {hi}] did not level")


def doubles(coefs) -> list[float]:
    """Returns the coefficients rounded to float64."""
    return [float(c) for c in coefs]


def singles(coefs) -> list[float]:
    """Returns the coefficients rounded to float32."""
    return [float(F32(float(c))) for c in coefs]


def pair(v) -> tuple[float, float]:
    """Returns v as the sum of two doubles."""
    return float(v), float(v - mp.mpf(float(v)))


def pair32(v) -> tuple[float, float]:
    """Returns v as the sum of two float32 numbers."""
    high = float(F32(float(v)))
    return high, float(F32(float(v - mp.mpf(high))))


# --- float16: the kernels' float32 arithmetic on numpy arrays, and the last bits of their coefficients ---


def fma(a, b, c):
    """Returns a b + c rounded once to float32.

    The float64 sum may round to a tie of float32; it is then moved off the tie to the side of the exact sum.
    """
    p = np.float64(1) * a * b
    total = np.asarray(p + c)
    tie = (total.view(np.int64) & 0x1FFFFFFF) == 0x10000000
    if tie.any():
        t = total - p
        lost = (p - (total - t)) + (c - t)
        away = np.where(lost * total < 0, -1, 1) * (tie & (lost != 0))
        total = (total.view(np.int64) + away).view(np.float64)
    return total.astype(F32)


def horner(coefs, u):
    """Returns the polynomial by float32 fused multiply-adds."""
    p = np.full(u.shape, F32(coefs[-1]), F32)
    for c in coefs[-2::-1]:
        p = fma(p.astype(np.float64), u.astype(np.float64), np.float64(F32(c)))
    return p


def _f(v):
    return np.asarray(v, dtype=np.float64)


def half_exp2(a, b, coefs):
    """Returns 2^(a b): reduction, polynomial and exponent field by float32 operations alone."""
    magic = F32(12582912.0)
    shifted = fma(_f(a), _f(b), _f(magic))
    f = fma(_f(a), _f(b), _f(magic - shifted))
    p = horner(coefs, f)
    return (p.view(np.uint32) + (shifted.view(np.uint32) << np.uint32(23))).view(F32)


def half_reciprocal(d, low, last_bit):
    """Returns 1/(d + low): an approximation off by `last_bit` units, and one Newton step."""
    r = (1 / _f(d)).astype(F32)
    r = (r.view(np.uint32) + np.uint32(last_bit & 0xFFFFFFFF)).view(F32)
    e = fma(-_f(d), _f(r), _f(1))
    if low is not None:
        e = fma(-_f(low), _f(r), _f(e))
    return fma(_f(r), _f(e), _f(r))


HALF_LIMIT = 9.25  # from here on dy x1 gelu' underflows float16, for every finite dy and x1
HALF_VALUE_LIMIT = 7.5  # from here on x1 gelu underflows, for every finite x1
HALF_NUDGE = 2.0**-47  # the tanh form subtracts it from |x|: it decides the tie x/2 of the smallest x
HALF_SCALE = float(F32(float(-1 / (2 * LN2))))


def half_value(x, tail, u):
    return fma(-_f(u), _f(tail), _f(np.where(x < 0, F32(-0.0), x)))


def half_erf(x, g, last_bit):
    u = np.minimum(np.abs(x), F32(HALF_VALUE_LIMIT))
    e = half_exp2(u * u, F32(HALF_SCALE), g["exp2"])
    r = half_reciprocal(horner(g["den"], u), None, last_bit)
    return half_value(x, (horner(g["num"], u) * e) * r, u)


HALF_ROOT_LIMIT = 5.75  # from here on u Phi(-u) < 2^-25, which rounds to 0
HALF_ROOT_SCALE = 87 / 256  # t = HALF_ROOT_SCALE u - 1


def half_root(x, g, last_bit):
    u = np.minimum(np.abs(x), F32(HALF_ROOT_LIMIT))
    p = horner(g["root"], fma(_f(u), _f(F32(HALF_ROOT_SCALE)), _f(-1)))
    p = p * p
    return half_value(x, p, u * p)


def half_erf_slope(x, g, last_bit):
    u = np.minimum(np.abs(x), F32(HALF_LIMIT))
    e = half_exp2(u * u, F32(HALF_SCALE), g["exp2"])
    r = half_reciprocal(horner(g["den"], u), None, last_bit)
    zero, low = pair32(ERF_ZERO)
    t = (F32(zero) - u) + F32(low)
    v = (horner(g["num"], u) * e) * r
    return np.where(x < 0, t * v, fma(-_f(t), _f(v), _f(1)))


def half_tanh(x, g, last_bit):
    u = np.minimum(np.abs(x), F32(HALF_VALUE_LIMIT))
    a, b = g["arg"]
    e = half_exp2(u, fma(_f(u * u), _f(F32(b)), _f(F32(a))), g["exp2"])
    nudged = np.maximum(u - F32(HALF_NUDGE), F32(0))
    return half_value(x, e * half_reciprocal(F32(1) + e, None, last_bit), nudged)


def half_tanh_slope(x, g, last_bit):
    u = np.minimum(np.abs(x), F32(HALF_LIMIT))
    s = u * u
    a, b = g["arg"]
    e = half_exp2(u, fma(_f(s), _f(F32(b)), _f(F32(a))), g["exp2"])
    d = F32(1) + e
    r = half_reciprocal(d, e - (d - F32(1)), last_bit)
    a1, b1 = g["slope"]
    w = u * fma(_f(s), _f(F32(b1)), _f(F32(a1)))
    zero, low = pair32(TANH_ZERO)
    t = (F32(zero) - u) + F32(low)
    n = np.where(np.abs(t) < F32(0.0625), t * horner(g["near"], t), fma(-_f(w), _f(r), _f(1)))
    n = n * r
    return np.where(x < 0, e * n, fma(-_f(e), _f(n), _f(1)))


def exact_value(x, tanh: bool, slope: bool):
    """Returns gelu or gelu' of a Python float, to the working precision."""
    u = mp.mpf(abs(x))
    if tanh:
        e = tanh_decay(u)
        tail = e / (1 + e) * (tanh_numerator(u) if slope else -u)
    else:
        tail = phi(u) - u * mp.exp(-u * u / 2) / SQRT_2PI if slope else -u * phi(u)
    return tail if x < 0 else (1 - tail if slope else x + tail)


def half_references(tanh: bool, slope: bool):
    """Returns all finite nonzero float16 inputs and their correctly rounded results.

    float64 in stable forms decides a result unless it is within 2^-40 of a rounding boundary; then 260 bits decide.
    """
    x = np.arange(65536, dtype=np.uint16).view(np.float16).astype(np.float64)
    x = x[np.isfinite(x) & (x != 0)]
    u = np.abs(x)
    tail_phi = 0.5 * np.array([math.erfc(v) for v in u / math.sqrt(2)])
    with np.errstate(under="ignore", over="ignore"):
        if tanh:
            e = np.exp(-np.minimum(float(TANH_A) * u + float(TANH_B) * u**3, 700.0))
            w = u * (float(TANH_A) + 3 * float(TANH_B) * u**2)
            tail = e / (1 + e) * (1 - w / (1 + e)) if slope else -u * (e / (1 + e))
        else:
            tail = tail_phi - u * np.exp(-u * u / 2) / math.sqrt(2 * math.pi) if slope else -u * tail_phi
    tail = np.where(tail == 0, -0.0, tail)  # the limit is approached from below
    y = np.where(x < 0, tail, 1 - tail) if slope else np.where(x < 0, tail, x + tail)
    down, up = (y * (1 - 2.0**-40)).astype(np.float16), (y * (1 + 2.0**-40)).astype(np.float16)
    out = y.astype(np.float16)
    # near its zero the derivative's two terms cancel, so 260 bits decide there too
    unsure = (down != up) | (slope & (np.abs(u - 0.752) < 0.01))
    for i in np.flatnonzero(unsure):
        out[i] = _round_half(exact_value(float(x[i]), tanh, slope))
    return x.astype(F32), out


def _round_half(y) -> float:
    """Returns y rounded to float16, ties to even. Every y here is 30 digits away from a tie."""
    m, e = mp.frexp(abs(y))
    step = mp.mpf(2) ** (max(e - 1, -14) - 10)
    return float(mp.sign(y) * mp.nint(abs(y) / step) * step)


def settle(
    name: str, kernel, groups: dict, movable, tanh: bool, slope: bool, seed: int = 1, rounds: int = 20000
) -> dict:
    """Returns the groups with last bits moved so that `kernel` misrounds no float16 input.

    Raises ArithmeticError if it finds none.
    """
    x, want = half_references(tanh, slope)

    def misrounded(g, x, want):
        total = 0
        for last_bit in (0, 1, -1):
            with np.errstate(all="ignore"):
                got = kernel(x, g, last_bit).astype(np.float16)
            total += int(np.count_nonzero(got.view(np.uint16) != want.view(np.uint16)))
        return total

    # such moves can change only results within 2^-19 of a rounding boundary
    y = kernel(x, groups, 0).astype(np.float64)
    lo, hi = (y * (1 - 2.0**-19)).astype(np.float16), (y * (1 + 2.0**-19)).astype(np.float16)
    hard = (lo != hi) | (y.astype(np.float16) != want)
    xh, wh = x[hard], want[hard]
    draw = random.Random(seed)
    best, count = groups, misrounded(groups, xh, wh)
    for _ in range(rounds):
        if count == 0:
            break
        trial = {k: list(v) for k, v in best.items()}
        for _ in range(draw.randint(1, 3)):
            key, i = draw.choice(movable)
            bits = np.array([trial[key][i]], F32).view(np.int32) + np.int32(draw.choice((-3, -2, -1, 1, 2, 3)))
            trial[key][i] = float(bits.view(F32)[0])
        c = misrounded(trial, xh, wh)
        if c <= count:
            best, count = trial, c
    left = misrounded(best, x, want)
    if left:
        raise ArithmeticError(f"settle: {name} still misrounds {left} inputs")
    return best


# --- the constants of each file ---


def shared_block() -> dict[str, object]:
    """Returns the constants of gelu_math.py and gelu.cu."""
    out: dict[str, object] = {}
    exp2 = lambda f: mp.mpf(2) ** f  # noqa: E731
    # float32 kernels, in float64 arithmetic. |u| to 24: dy x1 gelu'(x2) underflows float32 beyond.
    num, den, _ = remez(erf_slope, 4, 4, 0, 24)
    out["SLOPE_NUM"], out["SLOPE_DEN"] = doubles(num), doubles(den)
    out["EXP2_CURVE"] = singles(remez(exp2_curve, 5, 0, -0.5, 0.5)[0])
    out["LN2"] = float(LN2)
    out["EXP2_6"] = doubles(remez(exp2, 6, 0, -0.5, 0.5)[0])
    out["EXP2_11"] = doubles(remez(exp2, 11, 0, -0.5, 0.5)[0])
    out["NEG_HALF_LOG2E"] = float(-1 / (2 * LN2))
    out["NEG_TANH_A_LOG2E"], out["NEG_TANH_B_LOG2E"] = float(-TANH_A / LN2), float(-TANH_B / LN2)
    # float64 kernels: polynomials in t - 0.1, t = 1 / (u + 3), u to 40 (underflow is at 38.6)
    lo, hi = 1 / mp.mpf(43) - mp.mpf(0.1), 1 / mp.mpf(3) - mp.mpf(0.1)
    scaled = lambda tau: mills(1 / (tau + mp.mpf(0.1)) - 3) / (tau + mp.mpf(0.1))  # noqa: E731
    num, _, _ = remez(scaled, 26, 0, lo, hi, grid=300)
    out["MILLS64"], out["MILLS64_LO"] = doubles(num), pair(num[0])[1]
    num, _, _ = remez(lambda tau: erf_slope(1 / (tau + mp.mpf(0.1)) - 3), 22, 0, lo, hi, grid=300)
    out["SLOPE64"], out["SLOPE64_LO"] = doubles(num), pair(num[0])[1]
    centre = mp.mpf(float(TANH_ZERO))
    num, _, _ = remez(lambda v: tanh_near_sum(v, centre), 12, 0, mp.mpf("0.5") - centre, 1 - centre, grid=200)
    out["TANH_NEAR64"] = doubles(num)
    out["EXP_TAIL64"] = doubles(remez(exp_tail, 10, 0, -0.3475, 0.3475)[0])
    out["LOG2E"] = float(1 / LN2)
    high = mp.floor(LN2 * 2**40) / 2**40
    out["LN2_HI"], out["LN2_LO"] = float(high), float(LN2 - high)
    out["INV_SQRT_2PI"], out["INV_SQRT_2PI_LO"] = pair(1 / SQRT_2PI)
    # u sqrt(2 pi) mills(u) as a series in 1/u^2, for u > 37: the first term left out is below 2^-60
    out["MILLS_SERIES"] = [float((-1) ** k * mp.fac2(2 * k - 1)) for k in range(8)]
    for name, value in (
        ("ERF_ZERO", ERF_ZERO),
        ("TANH_ZERO", TANH_ZERO),
        ("NEG_TANH_A", -TANH_A),
        ("NEG_TANH_B", -TANH_B),
        ("NEG_TANH_3B", -3 * TANH_B),
    ):
        out[name], out[name + "_LO"] = pair(value)
    # bfloat16 kernels, in float32 arithmetic. |u| to 19.4: m gelu(x) underflows for every finite m.
    num, den, _ = remez(mills, 3, 4, 0, mp.mpf("19.4"))
    out["BF_MILLS_NUM"], out["BF_MILLS_DEN"] = singles(num), singles(den)
    num, den, _ = remez(erf_slope, 3, 3, 0, mp.mpf("19.4"))
    out["BF_SLOPE_NUM"], out["BF_SLOPE_DEN"] = singles(num), singles(den)
    # float16 kernels, in float32 arithmetic
    out["ERF_ZERO32"], out["ERF_ZERO32_LO"] = pair32(ERF_ZERO)
    out["TANH_ZERO32"], out["TANH_ZERO32_LO"] = pair32(TANH_ZERO)
    out |= half_constants()
    return out | root_block()


def half_constants() -> dict[str, object]:
    """Returns the float16 coefficients, settled."""
    out: dict[str, object] = {}
    exp2 = singles(remez(lambda f: mp.mpf(2) ** f, 5, 0, -0.5, 0.5)[0])
    scale = HALF_SCALE
    arg = singles([-TANH_A / LN2, -TANH_B / LN2])
    limit = mp.mpf(HALF_LIMIT)
    coefs = [("exp2", i) for i in range(3)]
    rational = [*coefs, *(("num", i) for i in range(3)), *(("den", i) for i in range(1, 4))]
    logistic = [*coefs, ("exp2", 3), ("arg", 0), ("arg", 1)]
    # exp(-u^2/2) over 2^(scale u^2): the rational function corrects for the rounding of scale to float32
    rest = lambda u: mp.exp(-u * u / 2) / mp.mpf(2) ** (mp.mpf(scale) * u * u)  # noqa: E731
    num, den, _ = remez(lambda u: mills(u) * rest(u), 3, 4, 0, mp.mpf(HALF_VALUE_LIMIT))
    g = {"exp2": exp2, "num": singles(num), "den": singles(den)}
    g = settle("float16 erf", half_erf, g, rational, tanh=False, slope=False)
    out["HALF_ERF_NUM"], out["HALF_ERF_DEN"] = g["num"], g["den"]
    out["HALF_ERF_EXP2"], out["HALF_SCALE"] = g["exp2"], scale
    inverse = lambda t: (t + 1) / mp.mpf(HALF_ROOT_SCALE)  # noqa: E731
    subnormal = lambda t: min(1, mp.mpf(2) ** 14 * inverse(t) * phi(inverse(t))) if t > 0 else 1  # noqa: E731
    end = mp.mpf(HALF_ROOT_SCALE) * HALF_ROOT_LIMIT - 1
    root, _, _ = remez(lambda t: phi(inverse(t)) ** (mp.mpf(1) / 4), 13, 0, -1, end, weight=subnormal)
    g = settle("float16 root", half_root, {"root": singles(root)}, [("root", i) for i in range(8)], False, False)
    out["HALF_ROOT"], out["HALF_ROOT_LIMIT"], out["HALF_ROOT_SCALE"] = g["root"], HALF_ROOT_LIMIT, HALF_ROOT_SCALE
    num, den, _ = remez(lambda u: erf_slope(u) * rest(u), 4, 4, 0, limit)
    g = {"exp2": exp2, "num": singles(num), "den": singles(den)}
    g = settle("float16 erf slope", half_erf_slope, g, rational, tanh=False, slope=True, seed=2)
    out["HALF_SLOPE_NUM"], out["HALF_SLOPE_DEN"] = g["num"], g["den"]
    out["HALF_SLOPE_EXP2"] = g["exp2"]
    g = settle("float16 tanh", half_tanh, {"exp2": exp2, "arg": arg}, logistic, tanh=True, slope=False)
    out["HALF_TANH_EXP2"], out["HALF_TANH_ARG"] = g["exp2"], g["arg"]
    near = singles(remez(tanh_near, 2, 0, mp.mpf("-0.0626"), mp.mpf("0.0626"))[0])
    g = {"exp2": exp2, "arg": arg, "near": near, "slope": singles([TANH_A, 3 * TANH_B])}
    movable = [*logistic, ("slope", 0), ("slope", 1)]
    g = settle("float16 tanh slope", half_tanh_slope, g, movable, tanh=True, slope=True)
    out["HALF_TANH_SLOPE_EXP2"], out["HALF_TANH_SLOPE_ARG"] = g["exp2"], g["arg"]
    out["HALF_TANH_SLOPE_W"], out["HALF_TANH_NEAR"] = g["slope"], g["near"]
    return out


ROOT_POWER = 128
ROOT_LIMIT = 14.375  # from here on u Phi(-u) < 2^-150, which float32 rounds to 0
ROOT_SCALE = 285 / 2048  # t = ROOT_SCALE u - 1 in [-1, 1.0005]: one rounding in both precisions
ROOT_DEGREE = 19
ROOT_LOW_TERMS = 8  # float64 terms; the others are float32 and at most 2^-9.7 of the sum


def root_block() -> dict[str, object]:
    """Returns the root of Phi(-u) as a polynomial in t, its high terms in float32."""
    scale = mp.mpf(ROOT_SCALE)
    root = lambda t: phi((t + 1) / scale) ** (mp.mpf(1) / ROOT_POWER)  # noqa: E731
    num, _, _ = remez(root, ROOT_DEGREE, 0, -1, scale * ROOT_LIMIT - 1)
    low, high = doubles(num[:ROOT_LOW_TERMS]), singles(num[ROOT_LOW_TERMS:])
    return {"ROOT_LIMIT": ROOT_LIMIT, "ROOT_SCALE": ROOT_SCALE, "ROOT_LOW": low, "ROOT_HIGH": high}


def geglu_block() -> dict[str, object]:
    """Returns the constants of geglu.py alone: |u| to 24, because x1 gelu(x2) underflows float32 only beyond.

    Its backward pass needs tail and slope at one point, so the slope's ratio has the denominator of the tail's.
    """
    out: dict[str, object] = {}
    num, den, _ = remez(mills, 4, 5, 0, 24)
    out["MILLS_NUM"], out["MILLS_DEN"] = doubles(num), doubles(den)
    out["MILLS_SLOPE_NUM"] = doubles(remez(lambda u: erf_slope(u) * mp.polyval(den[::-1], u), 5, 0, 0, 24)[0])
    den = singles(remez(mills, 3, 4, 0, mp.mpf("19.4"))[1])
    num, _, _ = remez(lambda u: erf_slope(u) * mp.polyval(den[::-1], u), 4, 0, 0, mp.mpf("23.75"))
    out["BF_MILLS_SLOPE_NUM"] = singles(num)
    return out


def python_text(block: dict[str, object]) -> str:
    """Returns a block as Python source."""
    lines = ["# fmt: off"]
    for name, value in block.items():
        text = f"{name}: tl.constexpr = tl.constexpr({tuple(value) if isinstance(value, list) else value!r})"
        if isinstance(value, list) and len(text) > 120:
            rows = textwrap.wrap("".join(f"{v!r}, " for v in value), 116, break_on_hyphens=False)
            text = "\n    ".join([f"{name}: tl.constexpr = tl.constexpr((", *rows]) + "\n))"
        lines.append(text)
    return "\n".join([*lines, "# fmt: on"]) + "\n"


def cuda_text(block: dict[str, object]) -> str:
    """Returns a block as CUDA C++ source."""
    lines = []
    for name, value in block.items():
        single = name.startswith(("HALF_", "BF_", "ROOT_HIGH", "EXP2_CURVE")) or "32" in name
        kind, suffix = ("float", "f") if single else ("double", "")
        if isinstance(value, list):
            body = ", ".join(f"{v!r}{suffix}" for v in value)
            lines.append(f"__device__ constexpr {kind} {name}[{len(value)}] = {{{body}}};")
        else:
            lines.append(f"__device__ constexpr {kind} {name} = {value!r}{suffix};")
    return "\n".join(lines) + "\n"


def marked(text: str, name: str, comment: str) -> tuple[int, int]:
    """Returns start and end of the region between the two marker lines of a block."""
    start = f"{comment} >>> {name}: generated by kernels/derive/gelu.py\n"
    end = f"{comment} <<< {name}\n"
    return text.index(start) + len(start), text.index(end)


def wanted() -> list[tuple[Path, str, str, str]]:
    """Returns (file, block name, comment sign, text) of every generated block."""
    shared = shared_block()
    return [
        (ROOT / "gelu_math.py", "constants", "#", python_text(shared)),
        (ROOT / "geglu.py", "constants", "#", python_text(geglu_block())),
        (ROOT / "gelu.cu", "constants", "//", cuda_text(shared)),
    ]


def main(arguments: list[str]) -> int:
    differing = []
    for path, name, comment, text in wanted():
        if "--write" not in arguments and "--check" not in arguments:
            print(f"{comment} {path.name}: {name}\n{text}")
            continue
        if not path.exists():
            continue
        old = path.read_text()
        start, end = marked(old, name, comment)
        if old[start:end] != text:
            differing.append(f"{path.name}: {name}")
            if "--write" in arguments:
                path.write_text(old[:start] + text + old[end:])
    if "--check" in arguments and differing:
        print("differs from the derivation: " + ", ".join(differing))
        print("next: python -m kernels.derive.gelu --write")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
