"""Mean, variance and statistics of a row, and what the backward pass makes of them: device functions.

One reduction gives both sums in float64, S1 = sum(v - k) and S2 = sum((v - k)^2). Then mean = k + S1/N as an
unevaluated pair (the quotient is corrected by its FMA remainder, so that a constant row has v - mean = 0 exactly), and
N var = S2 - S1^2/N, with the pair and FMAs.
- float32 rows take k = v[0]. v - k is exact unless exponents lie more than 29 binades apart, and
  S2 / (N var) = 1 + (k - mean)^2 / var <= 1 + N because k is one of the N values. So var is off by
  less than about 8 N 2^-53: 2^-38 at N = 4,096, 2^-34 at N = 65,537. The mean is off by 2^-53 |k - mean| and more,
  which an element that lies within 2^-24 deviations of it shows: where k is an outlier, sums are made once more around
  the mean (is_outlier).
- Sums of 16-bit operands likewise.
- Other sums are rounded to float64, off by 2^-53 |v|. Where mean^2 > 2^20 var, one operand may hide
  another: such rows are marked in the statistics and redone in float64 pairs (hard_rows.py). Constant rows are among
  them.
- Plain 16-bit rows take k = 0. If mean^2 / var <= 2^20, var loses 20 bits of 53. If it is larger, the
  values share nearly one binade, their squares have 16 (bfloat16) or 22 (float16) bits, and both
  sums are exact.
Squares of float32 numbers neither overflow nor underflow in float64: 1e30 and 1e-38 are no special
cases. eps reaches the kernel as the bits of a float64 (Triton passes Python floats as float32).

The statistics of a row are four float64 numbers: up, up mean (high and low part), rstd / up. `up` is a power of two,
times 1/2 if the row is marked. With float64 operands the mean is that of the differences from the row's first element.
RMS norm (not CENTRE) has the mean square in the second place and 0 in the third, no row of it is marked for its mean,
and its v is the sum rounded once: nothing is subtracted from it.
"""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.arithmetic import exponent, power_of_two, power_of_two_32
from kernels.float_pairs import two_sum

# 16-bit sums with |mean| rstd above this are worked on in float64
FAR = tl.constexpr(2.0**14)
# sums worked on in float64 are redone in pairs where mean^2 exceeds this times the variance
FAR_SQUARED = tl.constexpr(2.0**20)


@triton.jit
def sums(a, b):
    """(sum(a), sum(b)) through one reduction, hence one pair of barriers instead of two."""
    v = tl.sum(tl.join(a, b), 0)
    first = tl.arange(0, 2) == 0
    return tl.sum(tl.where(first, v, 0.0), 0), tl.sum(tl.where(first, 0.0, v), 0)


@triton.jit
def moments(s1, s2, shift, n, inv):
    """Mean as a pair, and variance, from the sums of v - shift and of its square."""
    m = s1 * inv
    m = tl.fma(tl.fma(-m, n, s1), inv, m)  # = RN(s1 / n): inv is RN(1 / n) (Markstein)
    m_low = tl.fma(-m, n, s1) * inv
    var = (tl.fma(-s1, m, s2) - s1 * m_low) * inv
    mean, e = two_sum(shift, m)
    return mean, e + m_low, tl.where(var < 0, 0.0, var)  # keeps NaN, which maximum() would not


@triton.jit
def is_outlier(shift, mean, var):
    """Whether sums of v - shift know the mean too badly: the shift lies beyond three standard deviations. No NaN is."""
    return (shift - mean) * (shift - mean) > 9.0 * var


@triton.jit
def mean_square(squares, inv):
    """What moments() gives where nothing is centred: no mean, and the mean of v^2, whose terms are all positive."""
    return inv * 0.0, inv * 0.0, tl.sum(squares, 0) * inv


@triton.jit
def scaled_stats(mean, mean_low, rstd):
    """(up, up mean, up mean_low, rstd / up): up = 2^k is 1 unless rstd lies outside 2^-40..2^40.

    float32 arithmetic on up * v then neither overflows nor underflows. up * mean is rounded to
    float32 here, its remainder goes to the low part."""
    k = exponent(rstd)
    k = tl.where((k >= -40) & (k <= 40), 0, tl.minimum(k, 125 - exponent(mean)))  # constant rows: rstd is of eps
    k = tl.minimum(tl.maximum(k, -126), 126)
    up = power_of_two(k)
    m = (mean * up).to(tl.float32).to(tl.float64)
    return up, m, (mean * up - m) + mean_low * up, rstd * power_of_two(-k)


@triton.jit
def mark_of(mean, var):
    """0.5 where the sums of a row may need pairs, else 1 (zero rows and NaN, too).

    A float64 sum is off by 2^-53 |mean|: where |mean| is at most 2^10 standard deviations, that is as
    little as the mean itself is off. `up` times the mark tells the kernels that redo such rows."""
    return tl.where(mean * mean > FAR_SQUARED * var, 0.5, 1.0)


@triton.jit
def store_stats(stats_ptr, up, mean, mean_low, rstd):
    tl.store(stats_ptr, up)
    tl.store(stats_ptr + 1, mean)
    tl.store(stats_ptr + 2, mean_low)
    tl.store(stats_ptr + 3, rstd)


@triton.jit
def load_stats(stats_ptr, there):
    up = tl.load(stats_ptr, mask=there, other=0.0)
    mean = tl.load(stats_ptr + 1, mask=there, other=0.0)
    mean_low = tl.load(stats_ptr + 2, mask=there, other=0.0)
    rstd = tl.load(stats_ptr + 3, mask=there, other=0.0)
    return up, mean, mean_low, rstd


@triton.jit
def xhat_of(v, low, up, mean, mean_low, rstd, PAIR: tl.constexpr, CENTRE: tl.constexpr = 1):
    """(v up - mean - mean_low) rstd in v's dtype; two roundings, three if PAIR; v up rstd unless CENTRE: one."""
    if not CENTRE:
        return (v * up) * rstd  # no sum in which the sign of a zero is lost; low is below v's last bit
    elif PAIR:
        return (tl.fma(v, up, -mean) + tl.fma(low, up, -mean_low)) * rstd
    else:
        return tl.fma(tl.fma(v, up, -mean), rstd, -mean_low * rstd)


@triton.jit
def lifted_xhat(v, up, rstd):
    """2^200 xhat of an RMS norm's row in float64: numbers beside 2^1000 times larger ones keep their bits."""
    return tl.where(tl.abs(v) < 1, (v * 2.0**200) * up, (v * up) * 2.0**200) * rstd


@triton.jit
def weighted_xhat(x, up, rstd, w, y_ptr, HAS_W: tl.constexpr):
    """xhat weight of an RMS norm's row in float32: x up rstd w, one rounding per product.

    Bfloat16's smallest numbers are 2^16 times those of float32. A weight below 2^9 leaves of what an xhat has lost
    there less than 2^-6 of their ulp; before a larger one xhat is 2^64 times as large (a row with up > 1 has none so
    small)."""
    if not HAS_W:
        return (x * up) * rstd
    w = w.to(tl.float32)
    if y_ptr.dtype.element_ty == tl.bfloat16:
        lift = tl.where(up > 1, 0, 64)
        large = tl.abs(w) >= 512
        x = x * tl.where(large, up * power_of_two_32(lift), up)
        return (x * rstd) * (w * tl.where(large, power_of_two_32(-lift), 1.0))
    else:
        return ((x * up) * rstd) * w


@triton.jit
def one_column(xhat, g, c1, ONE: tl.constexpr, CENTRE: tl.constexpr = 1):
    """(xhat, g - c1): both 0 where a row is ONE number, NaN where it is not finite; (xhat, g) unless CENTRE.

    There g - c1 is not left to a subtraction: fused with g = dy weight, it gives that product's rounding
    error. Rows of 16-bit operands have a mean of 48 bits, their pair may have more."""
    if not CENTRE:
        return xhat, g
    elif ONE:
        return xhat * 0.0, tl.abs(g) * 0.0
    else:
        return xhat, g - c1
