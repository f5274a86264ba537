"""The Triton kernels of the fused route: make inputs, evaluate the reference, judge, count.

Every product that is added is a `tl.fma` or exact, so that the reference has the same bits on every device and in
the interpreter.
"""

# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl

from verify.sweep.space import CHUNK
from verify.sweep.table import CELL_BITS, DEGREE, NEAR, WIDTH, float32_bits
from verify.tally import BINS, CAP, LOWEST, SUB_BITS

ROOM = 4096  # undecided elements that a chunk may have
BIN_SHIFT: tl.constexpr = tl.constexpr(52 - SUB_BITS)
FIRST_BIN: tl.constexpr = tl.constexpr(((1023 + LOWEST) << SUB_BITS) - 1)
TOP_BIN: tl.constexpr = tl.constexpr(BINS - 1)
N_BINS: tl.constexpr = tl.constexpr(BINS)
MEAN_CAP: tl.constexpr = tl.constexpr(CAP)
MAGIC: tl.constexpr = tl.constexpr(6755399441055744.0)  # 1.5 * 2^52: adding it rounds to an integer
MAGIC_BITS: tl.constexpr = tl.constexpr(0x4338000000000000)
ROW: tl.constexpr = tl.constexpr(WIDTH)
LAST: tl.constexpr = tl.constexpr(DEGREE)
CELL: tl.constexpr = tl.constexpr(CELL_BITS)
NEAR_BITS: tl.constexpr = tl.constexpr(float32_bits(NEAR))
BUFFER: tl.constexpr = tl.constexpr(ROOM)
# float32 patterns: infinity, 2^-125, 2^-50, a half, one, and the step from a number to its half
INFINITY: tl.constexpr = tl.constexpr(0x7F800000)
TINY: tl.constexpr = tl.constexpr(0x01000000)
SMALL: tl.constexpr = tl.constexpr(0x26800000)
HALF: tl.constexpr = tl.constexpr(0x3F000000)
ONE: tl.constexpr = tl.constexpr(0x3F800000)
STEP: tl.constexpr = tl.constexpr(0x00800000)
CHUNK_BITS: tl.constexpr = tl.constexpr(CHUNK.bit_length() - 1)


# -- patterns -----------------------------------------------------------------------------------------


@triton.jit
def _pattern(key, SIGN: tl.constexpr):
    """The bit pattern at a key (both int32 or int64): `space.bits_of_key`."""
    return tl.where(key >= SIGN, key - SIGN, (SIGN - 1 - key) + SIGN)


@triton.jit
def _number(bits, FORMAT: tl.constexpr):
    """The float64 behind int64 patterns of a format."""
    if FORMAT == 0:  # float32
        value = bits.to(tl.uint32).to(tl.float32, bitcast=True)
    elif FORMAT == 1:  # bfloat16: the upper half of a float32
        value = (bits.to(tl.uint32) << 16).to(tl.float32, bitcast=True)
    else:
        value = bits.to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
    return value.to(tl.float64)


@triton.jit(do_not_specialize=["first", "column", "width"])
def inputs_kernel(
    target,  # integers of the operand's width
    strange,  # int64: counts elements that differ, when COMPARE
    first,  # key of the first element
    side,  # elements per row of the tensor
    column,  # where the part of a row that is filled begins
    width,  # of that part
    SIGN: tl.constexpr,
    ROWS: tl.constexpr,  # keys count rows, else columns
    COMPARE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Write the patterns of consecutive keys, or count where they are no longer what they were."""
    row = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    mask = place < width
    key = first + (place * 0 + row if ROWS else place)
    made = _pattern(key, SIGN).to(target.dtype.element_ty)
    pointers = target + row * side + column + place
    if COMPARE:
        there = tl.load(pointers, mask=mask, other=0)
        changed = tl.sum((mask & (there != made)).to(tl.int32))
        if changed > 0:
            tl.atomic_add(strange, changed.to(tl.int64))
    else:
        tl.store(pointers, made, mask=mask)


# -- reference ----------------------------------------------------------------------------------------


@triton.jit
def _row_of(x, first, last):
    """The table row of float32-exact float64 numbers."""
    bits = (x.to(tl.float32).to(tl.int32, bitcast=True)) & 0x7FFFFFFF
    row = (bits >> CELL) - first + 1
    return tl.where(bits < NEAR_BITS, 0, tl.minimum(row, last))


@triton.jit
def _reference(x, row, table, SLOPE: tl.constexpr):
    """The curve or its slope at float64 x: the simple part, the remainder, and the scale of its error."""
    base = table + row * ROW
    near = row == 0
    u = tl.abs(x)
    square = x * x
    z = tl.where(near, square, u - tl.load(base))
    p = tl.load(base + (3 + LAST))
    for k in tl.static_range(LAST - 1, -1, -1):
        p = tl.fma(p, z, tl.load(base + (3 + k)))
    negative = x < 0
    if SLOPE:
        high = tl.where(near, 0.5, tl.where(negative, 0.0, 1.0).to(tl.float64))
        high = tl.where(x != x, x, high)
        low = p * tl.where(near, x, tl.where(negative, 1.0, -1.0).to(tl.float64))
    else:
        high = tl.where(near, x * 0.5, tl.where(negative, 0.0, x))
        low = p * tl.where(near, square, 1.0)
    low = tl.where((u - u) == 0, low, 0.0)
    scale = tl.fma(tl.abs(low), tl.load(base + 2), tl.load(base + 1))
    return high, low, scale


@triton.jit(do_not_specialize=["count", "first", "last"])
def reference_kernel(
    keys,  # int64
    high_out,  # float64
    low_out,  # float64
    scale_out,  # float64
    count,
    table,
    first,
    last,
    SIGN: tl.constexpr,
    FORMAT: tl.constexpr,
    SLOPE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The reference at any keys: for the table of a 16-bit gate, for samples and for the certificate."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    key = tl.load(keys + at, mask=mask, other=SIGN)
    x = _number(_pattern(key, SIGN), FORMAT)
    high, low, scale = _reference(x, _row_of(x, first, last), table, SLOPE)
    tl.store(high_out + at, high, mask=mask)
    tl.store(low_out + at, low, mask=mask)
    tl.store(scale_out + at, scale, mask=mask)


# -- judgement ----------------------------------------------------------------------------------------


@triton.jit
def _power(exponent):
    """2^exponent in float64."""
    return ((exponent + 1023).to(tl.int64) << 52).to(tl.float64, bitcast=True)


@triton.jit
def _judge(got, high, low, bound, MANTISSA: tl.constexpr, EMIN: tl.constexpr, EMAX: tl.constexpr):
    """The error of `got` against high + low: `verify.ulp.errors` under the default policy, low kept apart.

    Returns the signed error, an upper bound of its magnitude, and as booleans: misrounded, undecided, a
    non-finite mismatch, NaN against a number. The last two values are for the distance from a midpoint.
    """
    inf = float("inf")
    value = high + low
    raw = value.to(tl.int64, bitcast=True)
    exponent = ((raw >> 52) & 0x7FF) - 1023
    residual = low - (value - high)  # exact: |high| >= |low|, or high is zero
    # just below a power of two the sum has rounded up into the next binade
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

    # in units of the last place; beyond the largest binade the truth counts as the number after the largest
    beyond = size >= full
    stands = tl.where(value < 0, -full, full)
    simple = tl.where(beyond, stands, high * scale)
    rest = tl.where(beyond, 0.0, low * scale)
    width = tl.where(beyond, 0.0, width)
    infinite = tl.abs(got) == inf
    given = tl.where(infinite, tl.where(got < 0, -1.0, 1.0) * _power(unit * 0 + (EMAX + 1)), got) * scale
    plain = given - simple
    error = plain - rest
    # |error| - 1/2 without rounding where it is close to zero: plain is a multiple of a half there, or rest is all
    margin = tl.where(error < 0, -0.5 - plain, plain - 0.5) + tl.where(error < 0, rest, -rest)

    truth_nan, got_nan = value != value, got != got
    mismatch = truth_nan != got_nan
    truth_infinite = tl.abs(value) == inf
    opposite = infinite & truth_infinite & ((got < 0) != (value < 0))
    largest = (full - 1.0) * _power(unit * 0 + (EMAX - MANTISSA))
    strange = infinite & (tl.abs(value) <= largest)
    missing = truth_infinite & (tl.abs(got) < inf)
    endless = mismatch | opposite
    settled = truth_nan & got_nan
    clean = ~endless & ~settled
    undecided = clean & ((tl.abs(margin) <= width) & (width > 0) | (unsure & (tl.abs(error) > 0.125)))
    error = tl.where(endless, inf, tl.where(settled, 0.0, error))
    magnitude = tl.abs(error)
    # the last term covers the rounding of the figure itself
    upper = tl.where(clean, magnitude + (width + magnitude * _power(exponent * 0 - 50)), magnitude)
    misrounded = endless | (clean & (margin > 0))
    nonfinite = mismatch | strange | missing | opposite
    return error, upper, misrounded, undecided, nonfinite, got_nan & ~truth_nan, simple, rest


@triton.jit
def _from_midpoint(simple, rest, value, MANTISSA: tl.constexpr, EMIN: tl.constexpr):
    """How far the truth is from a midpoint, in ulp; 1 for zero, subnormal and infinite results."""
    part = (simple - tl.floor(simple)) + rest
    part = part - tl.floor(part)
    size = tl.abs(value)
    inside = (size >= _power((size * 0).to(tl.int64) + EMIN)) & (size < float("inf"))
    return tl.where(inside, tl.abs(part - 0.5), 1.0)


@triton.jit
def _count(
    error,
    undecided,
    mask,
    point,  # int64, of each element
    chunk_base,
    pattern,  # int64
    place,  # int64
    histogram,
    open_count,
    open_place,
    open_bits,
):
    """Add a tile to the histogram; hand over what is undecided. Returns the tile's other sums."""
    left_open = mask & undecided
    keep = mask & ~undecided
    magnitude = tl.abs(error)
    bin_ = (magnitude.to(tl.int64, bitcast=True) >> BIN_SHIFT) - FIRST_BIN
    bin_ = tl.minimum(tl.maximum(bin_, 0), TOP_BIN)
    negative = error < 0
    # the first bin, where most of a saturated regime lies, is what the others leave over
    tl.atomic_add(histogram + bin_ + tl.where(negative, N_BINS, 0), 1, mask=keep & (bin_ > 0), sem="relaxed")
    capped = (tl.minimum(magnitude, MEAN_CAP) * 65536.0 + MAGIC).to(tl.int64, bitcast=True) - MAGIC_BITS
    fixed = tl.sum(tl.where(keep, capped, 0))
    if tl.max(left_open.to(tl.int32)) > 0:
        chunk = ((point >> CHUNK_BITS) - chunk_base).to(tl.int32)
        slot = tl.atomic_add(open_count + chunk, 1, mask=left_open, sem="relaxed")
        room = left_open & (slot < BUFFER)
        tl.store(open_place + chunk.to(tl.int64) * BUFFER + slot, place, mask=room)
        tl.store(open_bits + chunk.to(tl.int64) * BUFFER + slot, pattern, mask=room)
    return fixed, keep, keep & (bin_ == 0) & negative


@triton.jit
def _add_counters(counters, fixed, misrounded, nonfinite, nan, counted, below):
    tl.atomic_add(counters, fixed, sem="relaxed")
    tl.atomic_add(counters + 1, misrounded.to(tl.int64), sem="relaxed")
    tl.atomic_add(counters + 4, counted.to(tl.int64), sem="relaxed")
    tl.atomic_add(counters + 5, below.to(tl.int64), sem="relaxed")
    if nonfinite + nan > 0:
        tl.atomic_add(counters + 2, nonfinite.to(tl.int64), sem="relaxed")
        tl.atomic_add(counters + 3, nan.to(tl.int64), sem="relaxed")


@triton.jit(do_not_specialize=["first", "last", "chunk_base"])
def unary_kernel(
    got,  # the result of a slab, as integers
    piece,  # int64 row of pieces: a range of keys in one regime and one bin of the curve
    table,
    first,
    last,
    units,  # float64: of the certificate, times 2^-53
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
    FORMAT: tl.constexpr,
    SLOPE: tl.constexpr,
    MANTISSA: tl.constexpr,
    EMIN: tl.constexpr,
    EMAX: tl.constexpr,
    HARD: tl.constexpr,
    SPREAD: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Judge one unit of consecutive float32 keys."""
    program = tl.program_id(0)
    start, stop = tl.load(piece), tl.load(piece + 1)
    unit = (tl.load(piece + 2) + program) * SIZE
    slot = tl.load(piece + 3) + program
    regime = tl.load(piece + 4)
    slab_first = tl.load(piece + 5)
    offset = tl.arange(0, BLOCK)
    # a unit lies within one cell of the table
    probe = _number(_pattern(unit, SIGN), FORMAT)
    row = _row_of(probe, first, last)
    histogram += (regime * SPREAD + program % SPREAD) * (2 * N_BINS)
    counters += regime * 8
    scale_of_units = tl.load(units)
    best = tl.zeros((BLOCK,), tl.float64) - 1.0
    highest = tl.zeros((BLOCK,), tl.float64) - 1.0
    nearest = tl.zeros((BLOCK,), tl.float64) + 1.0
    where = tl.zeros((BLOCK,), tl.int32)
    sums = tl.zeros((BLOCK,), tl.int32)
    strange = tl.zeros((BLOCK,), tl.int32)
    nans = tl.zeros((BLOCK,), tl.int32)
    counted = tl.zeros((BLOCK,), tl.int32)
    minus = tl.zeros((BLOCK,), tl.int32)
    total = tl.zeros((), tl.int64)
    # Far out and next to zero a right kernel gives one known pattern, and its error is below every bin and largest at
    # one end of the unit. The tile at that end is judged; of the others it is enough that the patterns are right.
    bits = _pattern(unit, SIGN) & (SIGN - 1)
    negative = unit < SIGN
    far = (row == last) & (bits < INFINITY)
    tiny = (bits >= TINY) & (bits < SMALL)
    simple_unit = (start <= unit) & (stop >= unit + SIZE) & (far | tiny)
    edge = tl.where(tiny & (unit >= SIGN), SIZE // BLOCK - 1, 0)
    for tile in range(SIZE // BLOCK):
        within = tile * BLOCK + offset
        key = unit + within
        mask = (key >= start) & (key < stop)
        pattern = tl.load(got + (key - slab_first), mask=mask, other=0).to(tl.int64) & (2 * SIGN - 1)
        easy = False
        if not HARD:
            easy = simple_unit & (tile != edge)
            if easy:
                if SLOPE:
                    right = tl.where(tiny, HALF, tl.where(negative, 0, ONE)) + key * 0
                else:
                    right = tl.where(tiny, _pattern(key, SIGN) - STEP, tl.where(negative, 0, _pattern(key, SIGN)))
                given = tl.where(far & negative, pattern & (SIGN - 1), pattern)
                easy = tl.min((given == right).to(tl.int32)) > 0
        if easy:
            counted += 1
            minus += ((unit >= SIGN) if SLOPE else tiny).to(tl.int32)
        else:
            x = _number(_pattern(key, SIGN), FORMAT)
            high, low, scale = _reference(x, row, table, SLOPE)
            error, upper, misrounded, undecided, nonfinite, nan, simple, rest = _judge(
                _number(pattern, FORMAT), high, low, scale * scale_of_units, MANTISSA, EMIN, EMAX
            )
            fixed, keep, below = _count(
                error, undecided, mask, key, chunk_base, pattern, key, histogram, open_count, open_place, open_bits,
            )  # fmt: skip
            total += fixed
            sums += (keep & misrounded).to(tl.int32)
            strange += (keep & nonfinite).to(tl.int32)
            nans += (keep & nan).to(tl.int32)
            counted += keep.to(tl.int32)
            minus += below.to(tl.int32)
            magnitude = tl.where(keep, tl.abs(error), -1.0)
            better = magnitude > best
            where = tl.where(better, within, where)
            best = tl.where(better, magnitude, best)
            highest = tl.maximum(highest, tl.where(keep, upper, -1.0))
            if HARD:
                nearest = tl.minimum(
                    nearest, tl.where(mask, _from_midpoint(simple, rest, high + low, MANTISSA, EMIN), 1.0)
                )
    peak = tl.max(best)
    tl.store(unit_error + slot, peak)
    tl.store(unit_upper + slot, tl.max(highest))
    tl.store(unit_place + slot, tl.min(tl.where(best == peak, where, SIZE)))
    if HARD:
        tl.store(unit_hard + slot, tl.min(nearest))
    _add_counters(counters, total, tl.sum(sums), tl.sum(strange), tl.sum(nans), tl.sum(counted), tl.sum(minus))


@triton.jit(do_not_specialize=["got_stride", "place_base", "place_stride", "chunk_base"])
def pairs_kernel(
    got,  # the result of a slab, as integers
    got_stride,  # elements per row of got
    piece,  # int64 row of pieces: gate keys and other keys in one regime and one bin of the curve
    place_base,  # of the result's element at gate key 0, other key 0
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
    FORMAT: tl.constexpr,
    TIMES: tl.constexpr,  # the curve is multiplied by the other operand
    MANTISSA: tl.constexpr,
    EMIN: tl.constexpr,
    EMAX: tl.constexpr,
    SPREAD: tl.constexpr,
    SIZE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Judge up to SIZE pairs of one gate with neighbouring values of the other operand."""
    program = tl.program_id(0)
    per_row = tl.load(piece + 4)
    gate = tl.load(piece) + program // per_row
    column = tl.load(piece + 2) + (program % per_row) * SIZE
    column_stop = tl.load(piece + 3)
    slot = tl.load(piece + 5) + program
    regime = tl.load(piece + 6)
    slab_row = tl.load(piece + 7)
    offset = tl.arange(0, BLOCK)
    curve_high, curve_low = tl.load(gate_high + gate), tl.load(gate_low + gate)
    curve_bound = tl.load(gate_bound + gate)
    histogram += (regime * SPREAD + program % SPREAD) * (2 * N_BINS)
    counters += regime * 8
    best = tl.zeros((BLOCK,), tl.float64) - 1.0
    highest = tl.zeros((BLOCK,), tl.float64) - 1.0
    where = tl.zeros((BLOCK,), tl.int32)
    sums = tl.zeros((BLOCK,), tl.int32)
    strange = tl.zeros((BLOCK,), tl.int32)
    nans = tl.zeros((BLOCK,), tl.int32)
    counted = tl.zeros((BLOCK,), tl.int32)
    minus = tl.zeros((BLOCK,), tl.int32)
    total = tl.zeros((), tl.int64)
    for tile in range(SIZE // BLOCK):
        within = tile * BLOCK + offset
        other = column + within
        mask = other < column_stop
        pattern = tl.load(got + (gate - slab_row) * got_stride + other, mask=mask, other=0)
        pattern = pattern.to(tl.int64) & (2 * SIGN - 1)
        if TIMES:
            factor = _number(_pattern(other.to(tl.int64), SIGN), FORMAT)
            endless = tl.abs(factor) == float("inf")
            high = factor * tl.where(endless, curve_high + curve_low, curve_high)
            low = tl.where(endless, 0.0, factor * curve_low)
            bound = tl.where(endless, 0.0, tl.abs(factor) * curve_bound)
        else:
            blank = tl.zeros((BLOCK,), tl.float64)
            high, low, bound = blank + curve_high, blank + curve_low, blank + curve_bound
        error, upper, misrounded, undecided, nonfinite, nan, _, _ = _judge(
            _number(pattern, FORMAT), high, low, bound, MANTISSA, EMIN, EMAX
        )
        point = gate.to(tl.int64) * 65536 + other
        place = place_base + gate.to(tl.int64) * place_stride + other
        fixed, keep, below = _count(
            error, undecided, mask, point, chunk_base, pattern, place, histogram, open_count, open_place, open_bits,
        )  # fmt: skip
        total += fixed
        sums += (keep & misrounded).to(tl.int32)
        strange += (keep & nonfinite).to(tl.int32)
        nans += (keep & nan).to(tl.int32)
        counted += keep.to(tl.int32)
        minus += below.to(tl.int32)
        magnitude = tl.where(keep, tl.abs(error), -1.0)
        better = magnitude > best
        where = tl.where(better, within, where)
        best = tl.where(better, magnitude, best)
        highest = tl.maximum(highest, tl.where(keep, upper, -1.0))
    peak = tl.max(best)
    tl.store(unit_error + slot, peak)
    tl.store(unit_upper + slot, tl.max(highest))
    tl.store(unit_place + slot, tl.min(tl.where(best == peak, where, SIZE)))
    _add_counters(counters, total, tl.sum(sums), tl.sum(strange), tl.sum(nans), tl.sum(counted), tl.sum(minus))


@triton.jit(do_not_specialize=["count", "first", "last"])
def elements_kernel(
    got,  # int64 patterns
    gates,  # int64 keys of the deciding operand
    others,  # int64 keys of the other one
    error_out,  # float64
    upper_out,  # float64; -1 where undecided
    hard_out,  # float64
    count,
    table,
    first,
    last,
    units,
    SIGN: tl.constexpr,
    FORMAT: tl.constexpr,
    SLOPE: tl.constexpr,
    TIMES: tl.constexpr,
    MANTISSA: tl.constexpr,
    EMIN: tl.constexpr,
    EMAX: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """The same judgement element by element, for the elements of the worst units."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = at < count
    x = _number(_pattern(tl.load(gates + at, mask=mask, other=SIGN), SIGN), FORMAT)
    high, low, scale = _reference(x, _row_of(x, first, last), table, SLOPE)
    bound = scale * tl.load(units)
    if TIMES:
        factor = _number(_pattern(tl.load(others + at, mask=mask, other=SIGN), SIGN), FORMAT)
        endless = tl.abs(factor) == float("inf")
        high = factor * tl.where(endless, high + low, high)
        low = tl.where(endless, 0.0, factor * low)
        bound = tl.where(endless, 0.0, tl.abs(factor) * bound)
    pattern = tl.load(got + at, mask=mask, other=0)
    error, upper, _, undecided, _, _, simple, rest = _judge(
        _number(pattern, FORMAT), high, low, bound, MANTISSA, EMIN, EMAX
    )
    tl.store(error_out + at, error, mask=mask)
    tl.store(upper_out + at, tl.where(undecided, -1.0, upper), mask=mask)
    tl.store(hard_out + at, _from_midpoint(simple, rest, high + low, MANTISSA, EMIN), mask=mask)
