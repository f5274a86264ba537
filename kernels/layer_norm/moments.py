"""Device functions for the mean, variance and statistics of a row, and for xhat in the backward pass.

One reduction gives both sums in float64, S1 = sum(v - k) and S2 = sum((v - k)^2). Then mean = k + S1/N is an
unevaluated pair, and N var = S2 - S1^2/N is computed with the pair and FMAs. The quotient is corrected by its FMA
remainder, so a constant row has v - mean = 0 exactly. The shift k:

- float32 rows: k = v[0]. v - k is exact unless exponents lie more than 29 binades apart. S2 / (N var) =
  1 + (k - mean)^2 / var <= 1 + N, because k is one of the N values. So var is off by less than about 8 N 2^-53: 2^-38
  at N = 4,096, 2^-34 at N = 65,537. The mean is off by 2^-53 |k - mean| and more. An element within 2^-24 deviations of
  the mean shows this error. So if k is an outlier, the sums are computed again around the mean (is_outlier).
- Sums of 16-bit operands: k = the first sum, likewise.
- Other sums are rounded to float64, off by 2^-53 |v|. If mean^2 > 2^20 var, one operand may hide another. The forward
  pass marks such rows, constant ones included, in the statistics, and hard_rows.py computes them again in float64
  pairs. So it does with rows that have a sum next to their mean (is_near).
- Plain 16-bit rows: k = 0. If mean^2 / var <= 2^20, var loses 20 bits of 53. If it is larger, the values share nearly
  one binade, their squares have 16 (bfloat16) or 22 (float16) bits, and both sums are exact.

Squares of float32 numbers neither overflow nor underflow in float64, so 1e30 and 1e-38 need no special case. eps
reaches the kernel as the bits of a float64, because Triton passes Python floats as float32.

The statistics of a row are four float64 numbers: up, rstd / up, up mean (high and low part). `up` is a power of two,
times 1/2 if the row is marked. For float64 operands, it is the mean of the differences from the row's first element.

RMS norm (not CENTRE) stores the first two numbers, and 0 in the place of an `up` of 1 for a row of zeros. It marks no
row because of its mean. Its v is the sum rounded once, because nothing is subtracted from it. Plain rows whose operands
all have 16 bits add squares in float32 (half_square), and their statistics are float32 numbers: 8 bytes of a row
instead of 32, which were an eighth of all bytes of a row of 64 columns.
"""

from __future__ import annotations

import triton
import triton.language as tl

from ..arithmetic import const, exponent, narrowed, power_of_two, power_of_two_32
from ..float_pairs import two_sum
from .operands import factor

# 16-bit sums with |mean| rstd above this are computed in float64
FAR = tl.constexpr(2.0**14)
# float64 sums are computed again in pairs if mean^2 exceeds this times the variance
FAR_SQUARED = tl.constexpr(2.0**20)


@triton.jit
def sums(a, b):
    """Returns sum(a) and sum(b) by one reduction, which needs one pair of barriers instead of two."""
    v = tl.sum(tl.join(a, b), 0)
    first = tl.arange(0, 2) == 0
    return tl.sum(tl.where(first, v, 0.0), 0), tl.sum(tl.where(first, 0.0, v), 0)


@triton.jit
def moments(s1, s2, shift, n, inv):
    """Returns the mean as a pair, and the variance, from the sums of v - shift and of its square."""
    m = s1 * inv
    m = tl.fma(tl.fma(-m, n, s1), inv, m)  # = RN(s1 / n): inv is RN(1 / n) (Markstein)
    m_low = tl.fma(-m, n, s1) * inv
    var = (tl.fma(-s1, m, s2) - s1 * m_low) * inv
    mean, e = two_sum(shift, m)
    return mean, e + m_low, tl.where(var < 0, 0.0, var)  # keeps NaN; maximum() would not


@triton.jit
def is_outlier(shift, mean, var):
    """True if the shift lies beyond three standard deviations, so that its sums give the mean badly. False for NaN."""
    return (shift - mean) * (shift - mean) > 9.0 * var


@triton.jit
def is_near(xhat, mean, rstd, mask):
    """True if the rounding of a sum, 2^-53 of the mean, may be a quarter of an ULP of its xhat in float32.

    Up to |mean| = 4 deviations it is less: the scale of xhat is at least 2^-24 (docs/reductions.md).
    """
    far = (tl.abs(mean) * rstd).to(tl.float32)
    nearest = tl.min(tl.where(mask, tl.abs(xhat), 1.0).to(tl.float32), 0)
    return (far > 4.0) & (nearest < 2.0**-27 * far)


@triton.jit
def half_square(x, inv, eps, AXIS: tl.constexpr):
    """Returns up and rstd of 16-bit rows of RMS norm in float32. x is float32.

    float32 adds the squares of a row whose mean square + eps is within 2^-40..2^70: rstd is off by a few 2^-24, and
    squares that underflow are 2^-100 of the sum. `up` is 1, or 0 if all squares are 0, which numbers of up to 2^-75 may
    have. It is -1 for other rows, which forward_hard_row computes again.
    """
    square = tl.sum(x * x, AXIS) * inv.to(tl.float32)
    total = square + eps.to(tl.float32)
    usual = (total >= 2.0**-40) & (total < 2.0**70)
    return tl.where(usual, tl.where(square == 0, 0.0, 1.0), -1.0), tl.rsqrt(total)


@triton.jit
def scaled_stats(mean, mean_low, rstd):
    """Returns up, up mean, up mean_low and rstd / up; up = 2^k is 1 unless rstd lies outside 2^-40..2^40.

    float32 arithmetic on up * v then neither overflows nor underflows. up * mean is rounded to float32; its remainder
    goes to the low part.
    """
    k = exponent(rstd)
    k = tl.where((k >= -40) & (k <= 40), 0, tl.minimum(k, 125 - exponent(mean)))  # constant rows: rstd is of eps alone
    k = tl.minimum(tl.maximum(k, -126), 126)
    up = power_of_two(k)
    m = (mean * up).to(tl.float32).to(tl.float64)
    return up, m, (mean * up - m) + mean_low * up, rstd * power_of_two(-k)


@triton.jit
def half_stats(mean, mean_low, var, eps):
    """Returns scaled_stats() of a row of 16 bits, and rstd / up once more as a float32 number, off by 2^-22.

    y needs the latter alone. The former comes from it by one step of third order, without rsqrt's wait, if rstd is
    within 2^-35..2^35.
    """
    square = (var + eps).to(tl.float32)
    fast = tl.rsqrt(square)
    up = tl.full((), 1.0, tl.float64)
    m = mean.to(tl.float32).to(tl.float64)
    low = (mean - m) + mean_low
    rstd = fast.to(tl.float64)
    e = tl.fma(rstd * rstd, -(var + eps), const(eps, 1.0))
    rstd = tl.fma(rstd * e, tl.fma(e, const(e, 0.375), const(e, 0.5)), rstd)
    if ((square >= 2.0**-70) & (square < 2.0**70)) == 0:
        up, m, low, rstd = scaled_stats(mean, mean_low, tl.rsqrt(var + eps))
        fast = rstd.to(tl.float32)
    return up, m, low, rstd, fast


@triton.jit
def mark_of(mean, var):
    """Returns 0.5 if the sums of a row may need pairs, else 1; zero rows and NaN give 1.

    A float64 sum is off by 2^-53 |mean|. If |mean| is at most 2^10 standard deviations, the mean itself is off by as
    much. `up` times the mark tells the kernels that redo marked rows.
    """
    return tl.where(mean * mean > FAR_SQUARED * var, 0.5, 1.0)


@triton.jit
def store_stats(stats_ptr, row, up, mean, mean_low, rstd, there, CENTRE: tl.constexpr):
    """Stores the statistics of rows that are `there`."""
    at = stats_ptr + row * (4 if CENTRE else 2)
    tl.store(at, up, mask=there)
    tl.store(at + 1, rstd, mask=there)
    if CENTRE:
        tl.store(at + 2, mean, mask=there)
        tl.store(at + 3, mean_low, mask=there)


@triton.jit
def load_stats(stats_ptr, row, there, CENTRE: tl.constexpr):
    """Loads the statistics of rows in float64. Unless CENTRE: the mean is 0 for a row of zeros, else not 0."""
    at = stats_ptr + row * (4 if CENTRE else 2)
    up = tl.load(at, mask=there, other=0.0).to(tl.float64)
    rstd = tl.load(at + 1, mask=there, other=0.0).to(tl.float64)
    if CENTRE:
        mean = tl.load(at + 2, mask=there, other=0.0)
        mean_low = tl.load(at + 3, mask=there, other=0.0)
        return up, mean, mean_low, rstd
    else:
        return tl.where(up == 0, 1.0, up), up, tl.zeros_like(up), rstd


@triton.jit
def xhat_of(v, low, up, mean, mean_low, rstd, PAIR: tl.constexpr, CENTRE: tl.constexpr = 1):
    """Returns (v up - mean - mean_low) rstd in v's dtype, with two roundings, three if PAIR.

    Returns v up rstd, with one rounding, for RMS norm (not CENTRE).
    """
    if not CENTRE:
        return (v * up) * rstd  # an addition would lose the sign of a zero; low is below v's last bit
    elif PAIR:
        return (tl.fma(v, up, -mean) + tl.fma(low, up, -mean_low)) * rstd
    else:
        return tl.fma(tl.fma(v, up, -mean), rstd, -mean_low * rstd)


@triton.jit
def lifted_xhat(v, up, rstd):
    """Returns 2^200 xhat of a row of RMS norm in float64, so that xhat keeps its bits next to 2^1000 times larger
    numbers.
    """
    return tl.where(tl.abs(v) < 1, (v * 2.0**200) * up, (v * up) * 2.0**200) * rstd


@triton.jit
def weighted_xhat(x, up, rstd, w, y_ptr, HAS_W: tl.constexpr):
    """Returns xhat weight of a row of RMS norm in float32: x up rstd w, one rounding per product.

    The smallest bfloat16 numbers are 2^16 times float32's, so xhat may lose bits there. Below a weight of 2^9
    the loss is less than 2^-6 of bfloat16's ulp. For a larger weight, xhat is multiplied by 2^64 first. A row with up >
    1 has no xhat that small.
    """
    if not HAS_W:
        return (x * up) * rstd
    w = factor(w, x, HAS_W)
    if HAS_W == 2:
        return narrowed((x * up) * rstd, y_ptr.dtype.element_ty) * w
    elif y_ptr.dtype.element_ty == tl.bfloat16:
        lift = tl.where(up > 1, 0, 64)
        large = tl.abs(w) >= 512
        x = x * tl.where(large, up * power_of_two_32(lift), up)
        return (x * rstd) * (w * tl.where(large, power_of_two_32(-lift), 1.0))
    else:
        return ((x * up) * rstd) * w


@triton.jit
def one_column(xhat, g, c1, ONE: tl.constexpr, CENTRE: tl.constexpr = 1):
    """Returns xhat and g - c1. In a row of ONE number both are 0, or NaN if it is not finite. Unless CENTRE: xhat and
    g.

    A subtraction would not give 0: the compiler fuses it with g = dy weight, which leaves that product's rounding
    error. Rows of 16-bit operands have a mean of 48 bits, and their pair may have more.
    """
    if not CENTRE:
        return xhat, g
    elif ONE:
        return xhat * 0.0, tl.abs(g) * 0.0
    else:
        return xhat, g - c1
