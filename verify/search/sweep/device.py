"""Defines the Triton kernels of the fused route: evaluate the reference, judge, count.

Every added product is a `tl.fma` or exact, so the reference has the same bits on every device and in the interpreter.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

from verify.measure.tally import BINS, CAP, LOWEST, SUB_BITS
from verify.search.sweep.space import CHUNK
from verify.search.sweep.table import CELL_BITS, DEGREE, WIDTH
from verify.search.sweep.table import NEAR_BITS as TABLE_BITS

OPEN_SLOTS = 4096  # undecided elements of a chunk that fit the buffer
BIN_SHIFT: tl.constexpr = tl.constexpr(20 - SUB_BITS)  # shift of the upper half of a float64
FIRST_BIN: tl.constexpr = tl.constexpr(((1023 + LOWEST) << SUB_BITS) - 1)
TOP_BIN: tl.constexpr = tl.constexpr(BINS - 1)
N_BINS: tl.constexpr = tl.constexpr(BINS)
MEAN_CAP: tl.constexpr = tl.constexpr(CAP)
MAGIC: tl.constexpr = tl.constexpr(6755399441055744.0)  # 1.5 * 2^52: adding it rounds to an integer
MAGIC_BITS: tl.constexpr = tl.constexpr(0x4338000000000000)
ROW: tl.constexpr = tl.constexpr(WIDTH)
LAST: tl.constexpr = tl.constexpr(DEGREE)
CELL: tl.constexpr = tl.constexpr(CELL_BITS)
NEAR_BITS: tl.constexpr = tl.constexpr(TABLE_BITS)
BUFFER: tl.constexpr = tl.constexpr(OPEN_SLOTS)
CHUNK_BITS: tl.constexpr = tl.constexpr(CHUNK.bit_length() - 1)


# -- patterns -----------------------------------------------------------------------------------------


@triton.jit
def _pattern(key, SIGN: tl.constexpr):
    """Returns the bit pattern at a key (both int32 or int64), as `space.bits_of_key` does."""
    return tl.where(key >= SIGN, key - SIGN, (SIGN - 1 - key) + SIGN)


@triton.jit
def _number(bits, MANTISSA: tl.constexpr, EMIN: tl.constexpr):
    """Returns the float64 values of int64 patterns of a format."""
    if EMIN == -126:  # float32, or its upper half, bfloat16
        value = (bits.to(tl.uint32) << (23 - MANTISSA)).to(tl.float32, bitcast=True)
    else:
        value = bits.to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
    return value.to(tl.float64)


# -- reference ----------------------------------------------------------------------------------------


@triton.jit
def _row_of(x, first, last):
    """Returns the table row of float64 numbers that are exact in float32."""
    bits = (x.to(tl.float32).to(tl.int32, bitcast=True)) & 0x7FFFFFFF
    row = (bits >> CELL) - first + 1
    return tl.where(bits < NEAR_BITS, 0, tl.minimum(row, last))


@triton.jit
def _reference(x, row, table, slope):
    """Returns the curve or its slope at float64 x: the simple part, the remainder, and the scale of its error."""
    base = table + row * ROW
    around_zero = row == 0
    u = tl.abs(x)
    square = x * x
    z = tl.where(around_zero, square, u - tl.load(base))
    p = tl.load(base + (3 + LAST))
    for k in tl.static_range(LAST - 1, -1, -1):
        p = tl.fma(p, z, tl.load(base + (3 + k)))
    negative = x < 0
    if slope != 0:
        high = tl.where(around_zero, 0.5, tl.where(negative, 0.0, 1.0).to(tl.float64))
        high = tl.where(x != x, x, high)
        low = p * tl.where(around_zero, x, tl.where(negative, 1.0, -1.0).to(tl.float64))
    else:
        high = tl.where(around_zero, x * 0.5, tl.where(negative, 0.0, x))
        low = p * tl.where(around_zero, square, 1.0)
    low = tl.where((u - u) == 0, low, 0.0)
    scale = tl.fma(tl.abs(low), tl.load(base + 2), tl.load(base + 1))
    return high, low, scale


@triton.jit(do_not_specialize=["count", "first", "last", "slope"])
def reference_kernel(
    keys,  # int64
    high_out,  # float64
    low_out,  # float64
    scale_out,  # float64
    count,
    table,
    first,
    last,
    slope,  # 1: the result is the slope of the curve, 0: the curve
    SIGN: tl.constexpr,
    MANTISSA: tl.constexpr,
    EMIN: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Evaluates the reference at any keys: for the table of a 16-bit gate, for samples and for the certificate."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    key = tl.load(keys + at, mask=mask, other=SIGN)
    x = _number(_pattern(key, SIGN), MANTISSA, EMIN)
    high, low, scale = _reference(x, _row_of(x, first, last), table, slope)
    tl.store(high_out + at, high, mask=mask)
    tl.store(low_out + at, low, mask=mask)
    tl.store(scale_out + at, scale, mask=mask)


# -- judgement ----------------------------------------------------------------------------------------


@triton.jit
def _power(exponent):
    """Returns 2^exponent in float64."""
    return ((exponent + 1023).to(tl.int64) << 52).to(tl.float64, bitcast=True)


@triton.jit
def _judge(got, high, low, bound, MANTISSA: tl.constexpr, EMIN: tl.constexpr, EMAX: tl.constexpr):
    """Returns the error of `got` against high + low, as `verify.truth.ulp.errors` does under the default policy.

    The error is computed from high and low separately, not from their rounded sum. Returns the signed error, an upper
    bound of its magnitude, and as booleans: misrounded, undecided, a non-finite mismatch, NaN against a number. The
    last two values are for the distance from a midpoint.
    """
    inf = float("inf")
    value = high + low
    raw = value.to(tl.int64, bitcast=True)
    exponent = ((raw >> 52) & 0x7FF) - 1023
    residual = low - (value - high)  # exact: |high| >= |low|, or high is zero
    # Just below a power of two the sum has rounded up into the next binade.
    power = (raw & 0xFFFFFFFFFFFFF) == 0
    exponent -= (power & (residual != 0) & ((residual < 0) != (value < 0))).to(tl.int64)
    normal = exponent >= EMIN
    unit = tl.minimum(tl.maximum(exponent, EMIN), EMAX) - MANTISSA
    scale = _power(-unit)
    size = tl.abs(value) * scale
    width = bound * scale
    full = _power(exponent * 0 + (MANTISSA + 1))
    unsure = normal & ((size - width < 0.5 * full) | (size + width >= full)) & (exponent <= EMAX)
    unsure &= ~(power & (tl.abs(residual) > bound)) & (width > 0)

    # In units of the last place. Beyond the largest binade the truth counts as the number after the largest. In other
    # binades a size of `full` is a truth just below a power of two.
    beyond = (size >= full) & (exponent > EMAX)
    stands = tl.where(value < 0, -full, full)
    simple = tl.where(beyond, stands, high * scale)
    rest = tl.where(beyond, 0.0, low * scale)
    width = tl.where(beyond, 0.0, width)
    infinite = tl.abs(got) == inf
    given = tl.where(infinite, tl.where(got < 0, -1.0, 1.0) * _power(unit * 0 + (EMAX + 1)), got) * scale
    plain = given - simple
    error = plain - rest
    # This is |error| - 1/2, without rounding where it is close to zero: there `plain` is a multiple of a half, or
    # `rest` is all.
    margin = tl.where(error < 0, -0.5 - plain, plain - 0.5) + tl.where(error < 0, rest, -rest)

    truth_nan, got_nan = value != value, got != got
    mismatch = truth_nan != got_nan
    truth_infinite = tl.abs(value) == inf
    opposite = infinite & truth_infinite & ((got < 0) != (value < 0))
    largest = (full - 1.0) * _power(unit * 0 + (EMAX - MANTISSA))
    # `got` is infinite and the truth is at most the largest number. The bound may leave open whether it is.
    early = infinite & (tl.abs(value) + bound <= largest)
    unsure_early = infinite & ~early & (bound > 0) & (tl.abs(value) - bound <= largest)
    missing = truth_infinite & (tl.abs(got) < inf)
    endless = mismatch | opposite | early | missing
    settled = truth_nan & got_nan
    clean = ~endless & ~settled
    undecided = clean & ((tl.abs(margin) <= width) & (width > 0) | (unsure & (tl.abs(error) > 0.125)) | unsure_early)
    error = tl.where(endless, inf, tl.where(settled, 0.0, error))
    magnitude = tl.abs(error)
    # The last term covers the rounding of the figure itself.
    upper = tl.where(clean, magnitude + (width + magnitude * _power(exponent * 0 - 50)), magnitude)
    misrounded = endless | (clean & (margin > 0))
    return error, upper, misrounded, undecided, endless, got_nan & ~truth_nan, simple, rest


@triton.jit
def _from_midpoint(simple, rest, value, MANTISSA: tl.constexpr, EMIN: tl.constexpr):
    """Returns the distance of the truth from a midpoint, in ulp. Returns 1 for zero, subnormal and infinite results."""
    part = (simple - tl.floor(simple)) + rest
    part = part - tl.floor(part)
    size = tl.abs(value)
    inside = (size >= _power((size * 0).to(tl.int64) + EMIN)) & (size < float("inf"))
    return tl.where(inside, tl.abs(part - 0.5), 1.0)


@triton.jit
def _blank(BLOCK: tl.constexpr):
    """Returns the sums of a unit before its first tile, for each lane."""
    nothing = tl.zeros((BLOCK,), tl.int32)
    none = tl.zeros((BLOCK,), tl.float64) - 1.0
    # Largest error, its place, largest upper bound, distance from a midpoint; then misrounded and first negative bin
    # (by 2^16), non-finite and NaN (by 2^16), left open, sum for the mean.
    return none, nothing, none, none + 2.0, nothing, nothing, nothing, tl.zeros((BLOCK,), tl.int64)


@triton.jit
def _tile(
    state,  # as `_blank` returns it
    pattern,  # integers of the result's width
    high,
    low,
    bound,
    mask,
    within,  # place in the unit
    point,  # int64
    place,  # int64
    chunk_base,
    histogram,
    open_count,
    open_place,
    open_bits,
    SIGN: tl.constexpr,
    MANTISSA: tl.constexpr,
    EMIN: tl.constexpr,
    EMAX: tl.constexpr,
    HARD: tl.constexpr,
):
    """Judges a tile, adds it to the histogram and to the sums of its unit, and stores its undecided elements."""
    best, where, highest, nearest, counts, nonfinites, opened, total = state
    got = _number(pattern, MANTISSA, EMIN)
    error, upper, misrounded, undecided, nonfinite, nan, simple, rest = _judge(
        got, high, low, bound, MANTISSA, EMIN, EMAX
    )
    keep = mask & ~undecided
    left_open = mask & undecided
    misrounded &= keep
    magnitude = tl.where(keep, tl.abs(error), -1.0)
    upper = tl.where(keep, upper, -1.0)
    nonfinites += (keep & nonfinite).to(tl.int32) + ((keep & nan).to(tl.int32) << 16)
    opened += left_open.to(tl.int32)
    chunk = ((point >> CHUNK_BITS) - chunk_base).to(tl.int32)
    slot = tl.atomic_add(open_count + chunk, 1, mask=left_open, sem="relaxed")
    held = left_open & (slot < BUFFER)
    tl.store(open_place + chunk.to(tl.int64) * BUFFER + slot, place, mask=held)
    bits = pattern.to(tl.int64) & (2 * SIGN - 1)
    tl.store(open_bits + chunk.to(tl.int64) * BUFFER + slot, bits, mask=held)
    bin_ = (tl.abs(error).to(tl.int64, bitcast=True) >> 32).to(tl.int32)
    bin_ = (bin_ >> BIN_SHIFT) - FIRST_BIN
    bin_ = tl.minimum(tl.maximum(bin_, 0), TOP_BIN)
    negative = keep & (error < 0)
    # The first bin holds most of a saturated regime. The host computes its count from the counts of the other bins.
    tl.atomic_add(histogram + (bin_ + tl.where(negative, N_BINS, 0)), 1, mask=keep & (bin_ > 0), sem="relaxed")
    capped = (tl.minimum(magnitude, MEAN_CAP) * 65536.0 + MAGIC).to(tl.int64, bitcast=True) - MAGIC_BITS
    total += tl.where(keep, capped, 0)
    counts += misrounded.to(tl.int32) + ((negative & (bin_ == 0)).to(tl.int32) << 16)
    better = magnitude > best
    where = tl.where(better, within, where)
    best = tl.where(better, magnitude, best)
    highest = tl.maximum(highest, upper)
    if HARD:
        nearest = tl.minimum(nearest, tl.where(mask, _from_midpoint(simple, rest, high + low, MANTISSA, EMIN), 1.0))
    return best, where, highest, nearest, counts, nonfinites, opened, total


@triton.jit
def _close(
    state,
    slot,
    size,  # elements that were judged
    counters,
    unit_error,
    unit_upper,
    unit_place,
    unit_hard,
    SIZE: tl.constexpr,
    HARD: tl.constexpr,
):
    """Writes the sums of a unit."""
    best, where, highest, nearest, counts, nonfinites, opened, total = state
    peak = tl.max(best)
    tl.store(unit_error + slot, peak)
    tl.store(unit_upper + slot, tl.max(highest))
    tl.store(unit_place + slot, tl.min(tl.where(best == peak, where, SIZE)))
    if HARD:
        tl.store(unit_hard + slot, tl.min(nearest))
    both, odd = tl.sum(counts), tl.sum(nonfinites)
    tl.atomic_add(counters, tl.sum(total), sem="relaxed")
    tl.atomic_add(counters + 1, (both & 0xFFFF).to(tl.int64), sem="relaxed")
    tl.atomic_add(counters + 4, (size - tl.sum(opened)).to(tl.int64), sem="relaxed")
    tl.atomic_add(counters + 5, (both >> 16).to(tl.int64), sem="relaxed")
    if odd > 0:
        tl.atomic_add(counters + 2, (odd & 0xFFFF).to(tl.int64), sem="relaxed")
        tl.atomic_add(counters + 3, (odd >> 16).to(tl.int64), sem="relaxed")


@triton.jit(do_not_specialize=["first_slot", "first", "last", "slope", "chunk_base"])
def unary_kernel(
    got,  # the result of a slab, as integers
    pieces,  # int64 rows: ranges of keys in one regime and one bin of the curve
    owner,  # int32: the piece of each unit
    first_slot,  # number of the slab's first unit
    table,
    first,
    last,
    slope,  # 1: the result is the slope of the curve, 0: the curve
    units,  # float64: units of the certificate, times 2^-53
    histogram,  # int32
    counters,  # int64
    unit_error,  # float64
    unit_upper,  # float64
    unit_place,  # int32: key of the largest error, within the unit
    unit_hard,  # float64
    open_count,
    open_place,
    open_bits,
    chunk_base,
    SIGN: tl.constexpr,
    MANTISSA: tl.constexpr,
    EMIN: tl.constexpr,
    EMAX: tl.constexpr,
    HARD: tl.constexpr,
    SPREAD: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Judges one unit of consecutive float32 keys."""
    slot = first_slot + tl.program_id(0)
    piece = pieces + tl.load(owner + slot) * 8
    start, stop = tl.load(piece), tl.load(piece + 1)
    unit = (tl.load(piece + 2) + slot - tl.load(piece + 3)) * SIZE
    regime = tl.load(piece + 4)
    got += unit - tl.load(piece + 5)
    # A unit lies within one cell of the table, and on one side of zero.
    row = _row_of(_number(_pattern(unit, SIGN), MANTISSA, EMIN), first, last)
    negative = unit < SIGN
    copy = regime * SPREAD + slot % SPREAD
    histogram += copy * (2 * N_BINS)
    counters += copy * 8
    scale_of_units = tl.load(units)
    low_end = tl.maximum(start - unit, 0).to(tl.int32)
    high_end = tl.minimum(stop - unit, SIZE).to(tl.int32)
    bits = _pattern(unit, SIGN).to(tl.int32)
    step = tl.where(negative, -1, 1)
    state = _blank(BLOCK)
    for tile in range(SIZE // BLOCK):
        within = tile * BLOCK + tl.arange(0, BLOCK)
        mask = (within >= low_end) & (within < high_end)
        pattern = tl.load(got + within, mask=mask, other=0)
        x = _number(bits + step * within, MANTISSA, EMIN)
        high, low, scale = _reference(x, row, table, slope)
        key = unit + within
        state = _tile(
            state, pattern, high, low, scale * scale_of_units, mask, within, key, key, chunk_base,
            histogram, open_count, open_place, open_bits, SIGN, MANTISSA, EMIN, EMAX, HARD,
        )  # fmt: skip
    _close(state, slot, high_end - low_end, counters, unit_error, unit_upper, unit_place, unit_hard, SIZE, HARD)


@triton.jit(do_not_specialize=["got_stride", "first_slot", "place_base", "place_stride", "chunk_base"])
def pairs_kernel(
    got,  # the result of a slab, as integers
    got_stride,  # elements per row of got
    pieces,  # int64 rows: gate keys and other keys in one regime and one bin of the curve
    owner,  # int32: the piece of each unit
    first_slot,  # number of the slab's first unit
    place_base,  # place of the result's element at gate key 0, other key 0
    place_stride,  # places per gate key
    gate_high,  # float64 by gate key
    gate_low,
    gate_bound,
    histogram,
    counters,
    unit_error,
    unit_upper,
    unit_place,
    open_count,
    open_place,
    open_bits,
    chunk_base,
    SIGN: tl.constexpr,
    TIMES: tl.constexpr,  # the curve is multiplied by the other operand
    MANTISSA: tl.constexpr,
    EMIN: tl.constexpr,
    EMAX: tl.constexpr,
    SPREAD: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Judges up to SIZE pairs of one gate with neighbouring values of the other operand."""
    slot = first_slot + tl.program_id(0)
    piece = pieces + tl.load(owner + slot) * 8
    number = (slot - tl.load(piece + 5)).to(tl.int32)
    per_row = tl.load(piece + 4).to(tl.int32)
    gate = tl.load(piece) + number // per_row
    column = tl.load(piece + 2) + (number % per_row) * SIZE
    size = tl.minimum(tl.load(piece + 3) - column, SIZE).to(tl.int32)
    regime = tl.load(piece + 6)
    got += (gate - tl.load(piece + 7)) * got_stride + column
    curve_high, curve_low = tl.load(gate_high + gate), tl.load(gate_low + gate)
    curve_bound = tl.load(gate_bound + gate)
    copy = regime * SPREAD + slot % SPREAD
    histogram += copy * (2 * N_BINS)
    counters += copy * 8
    state = _blank(BLOCK)
    for tile in range(tl.cdiv(size, BLOCK)):
        within = tile * BLOCK + tl.arange(0, BLOCK)
        mask = within < size
        other = column + within
        pattern = tl.load(got + within, mask=mask, other=0)
        if TIMES:
            factor = _number(_pattern(other.to(tl.int32), SIGN), MANTISSA, EMIN)
            endless = tl.abs(factor) == float("inf")
            high = factor * tl.where(endless, curve_high + curve_low, curve_high)
            low = tl.where(endless, 0.0, factor * curve_low)
            bound = tl.where(endless, 0.0, tl.abs(factor) * curve_bound)
        else:
            blank = tl.zeros((BLOCK,), tl.float64)
            high, low, bound = blank + curve_high, blank + curve_low, blank + curve_bound
        state = _tile(
            state, pattern, high, low, bound, mask, within, gate * 65536 + other,
            place_base + gate * place_stride + other, chunk_base,
            histogram, open_count, open_place, open_bits, SIGN, MANTISSA, EMIN, EMAX, False,
        )  # fmt: skip
    _close(state, slot, size, counters, unit_error, unit_upper, unit_place, unit_error, SIZE, False)


@triton.jit(do_not_specialize=["count", "first", "last", "slope"])
def elements_kernel(
    got,  # int64 patterns
    gates,  # int64 keys of the deciding operand
    others,  # int64 keys of the other operand
    error_out,  # float64
    upper_out,  # float64; -1 where undecided
    hard_out,  # float64
    count,
    table,
    first,
    last,
    slope,  # 1: the result is the slope of the curve, 0: the curve
    units,
    SIGN: tl.constexpr,
    TIMES: tl.constexpr,
    MANTISSA: tl.constexpr,
    EMIN: tl.constexpr,
    EMAX: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Judges single elements in the same way: those of the worst units."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    x = _number(_pattern(tl.load(gates + at, mask=mask, other=SIGN), SIGN), MANTISSA, EMIN)
    high, low, scale = _reference(x, _row_of(x, first, last), table, slope)
    bound = scale * tl.load(units)
    if TIMES:
        factor = _number(_pattern(tl.load(others + at, mask=mask, other=SIGN), SIGN), MANTISSA, EMIN)
        endless = tl.abs(factor) == float("inf")
        high = factor * tl.where(endless, high + low, high)
        low = tl.where(endless, 0.0, factor * low)
        bound = tl.where(endless, 0.0, tl.abs(factor) * bound)
    pattern = tl.load(got + at, mask=mask, other=0)
    error, upper, _, undecided, _, _, simple, rest = _judge(
        _number(pattern, MANTISSA, EMIN), high, low, bound, MANTISSA, EMIN, EMAX
    )
    tl.store(error_out + at, error, mask=mask)
    tl.store(upper_out + at, tl.where(undecided, -1.0, upper), mask=mask)
    tl.store(hard_out + at, _from_midpoint(simple, rest, high + low, MANTISSA, EMIN), mask=mask)
