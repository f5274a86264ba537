"""A linear layer to 2 d features and GEGLU in one kernel: p1 * gelu(p2), rounded once.

    linear_geglu(x, weight, bias)     p = x @ weight.T + bias;  p[..., :d] * gelu(p[..., d:])

Mathematics (x: [..., K], W: [2d, K], b: [2d], y: [..., d]), with p = x @ W^T + b and its halves p1, p2:

    y = p1 gelu(p2)        dp1 = dy gelu(p2)        dp2 = dy p1 gelu'(p2)
    gelu(a) = a Phi(a) ("none") or a sigmoid(2 sqrt(2/pi) (a + 0.044715 a^3)) ("tanh")

Rounding points. Products are exact (16-bit), or fused (float32, float64); sums are float32 (float64 for
float64), k ascending in one chain, whatever the tile shape, the strides and the number of rows. A tile holds the
same columns of both halves, so bias, gelu and the product are applied to the unrounded sums, and y is rounded
once. float32 is IEEE float32 throughout; `allow_tf32=True` lets the matrix units drop 13 bits of x and W.
In bfloat16 gelu(p2) and gelu'(p2) reach down to 2^-252, far below float32: a large factor lifts them into range again.

The Hopper kernel for 16-bit inputs is that of linear_act.py: one warp fetches, two warp groups multiply. Here
the second 128 rows of B's tile are the same features of the second half, and 32 rows of tiles, not 8, stay
together. Measured on an H200 at M, K, 2d = 8192, 4096, 22016 (kernels/bench/linear.py prints the table): forward
0.998 (bfloat16) and 0.989 (float16) of the time of cuBLAS's product alone, medians of 60 rounds side by side (1.001
and 0.992 with 8 rows). With 8 rows forward took 0.89 of torch.compile, backward 0.86.

Backward: one kernel writes dp1 and dp2 into one packed [M, 2d] tensor and sums its columns (db); then dW = dp^T @ x
and dx = dp @ W are one product each. p is saved, or computed again (save_pre=False). Every sum has a fixed order; a
dy that is not contiguous, or starts off a multiple of 16 bytes, is copied first for it.
"""

from __future__ import annotations

import math

import torch
import triton
import triton.language as tl
from torch import Tensor
from triton.language.extra import libdevice

# ------------------------------------------------------------------------------------- activations
# The text down to "end of shared mathematics" is the same in linear_act.py and linear_geglu.py.

# 12 + log2 Phi(-u) on [0, cap]: minimax, lowest first. The tests regenerate them. Past the cap u Phi(-u)
# rounds to zero in that format. The 12 keeps the exponential out of the subnormals, which exp2 flushes,
# and u 2^-12 is still exact for the smallest bfloat16.
CAP_FP16: tl.constexpr = tl.constexpr(5.9)
TAIL_FP16: tl.constexpr = tl.constexpr((
    11.00000469669497,
    -1.1512508399169978,
    -0.45846517167036066,
    -0.053959007763895436,
    0.008507224618454278,
    -0.0009303158955865105,
    6.156652382578551e-05,
    -1.832949408728355e-06,
))  # fmt: skip
CAP_BF16: tl.constexpr = tl.constexpr(13.7)
TAIL_BF16: tl.constexpr = tl.constexpr((
    10.999770697608785,
    -1.148537803976497,
    -0.463678418584505,
    -0.05019816820251243,
    0.007221599073226762,
    -0.0007093304193676544,
    4.425809196346769e-05,
    -1.567263761500613e-06,
    2.3864744366851683e-08,
))  # fmt: skip
# Past the cap, where a large factor still lifts it into range: log2 of gelu(-cap - t) / gelu(-cap), or of gelu' there,
# as t times a polynomial, minimax up to -19.5 (bfloat16) and -9.4 (float16). From a last coefficient below 0 on,
# an infinite t gives 0.
FAR_BF16: tl.constexpr = tl.constexpr((-19.763910402274607, -0.7214095477670118))
FAR_SLOPE_BF16: tl.constexpr = tl.constexpr((
    -19.658522261169292,
    -0.7252716114578452,
    0.00017509706234072032,
    -5.394052543257928e-06,
))  # fmt: skip
FAR_SLOPE_FP16: tl.constexpr = tl.constexpr((
    -8.25387503610203,
    -0.7448523369665518,
    0.0024436885697398606,
    -0.0001554355960361235,
))  # fmt: skip
# Left of these edges gelu and gelu' are worked on times 2^126, and the other factor times 2^-126: float32 holds the
# product where it does not hold the function, which ends at the square of float32's range.
EDGE: tl.constexpr = tl.constexpr((-13.0, -10.0))  # erf, tanh
LIFT: tl.constexpr = tl.constexpr(126.0)
UNLIFT: tl.constexpr = tl.constexpr(2.0**-126)
UNSCALE: tl.constexpr = tl.constexpr(2.0**-12)
RSQRT2: tl.constexpr = tl.constexpr(0.7071067811865476)  # 1 / sqrt(2)
RSQRT_2PI: tl.constexpr = tl.constexpr(0.3989422804014327)  # 1 / sqrt(2 pi)
HALF_LOG2E: tl.constexpr = tl.constexpr(0.7213475204444817)  # log2(e) / 2
LOG2_RSQRT_2PI: tl.constexpr = tl.constexpr(-1.3257480647361595)  # log2(1 / sqrt(2 pi))
TANH_A: tl.constexpr = tl.constexpr(1.5957691216057308)  # 2 sqrt(2 / pi)
TANH_B: tl.constexpr = tl.constexpr(0.07135481627260025)  # 0.044715 A
TANH_A_LOG2E: tl.constexpr = tl.constexpr(2.3022081981443248)
TANH_B_LOG2E: tl.constexpr = tl.constexpr(0.1029432395800235)


@triton.jit
def _log_tail(u, BF16: tl.constexpr):
    """12 + log2 Phi(-u) for 0 <= u <= cap."""
    if BF16:
        p = u * TAIL_BF16[8] + TAIL_BF16[7]
        for i in tl.static_range(6, -1, -1):
            p = p * u + TAIL_BF16[i]
    else:
        p = u * TAIL_FP16[7] + TAIL_FP16[6]
        for i in tl.static_range(5, -1, -1):
            p = p * u + TAIL_FP16[i]
    return p


@triton.jit
def _tail(u, BF16: tl.constexpr):
    """2^12 Phi(-u) for 0 <= u <= cap: a polynomial and one exp2."""
    return tl.exp2(_log_tail(u, BF16))


@triton.jit
def _past(t, coefs: tl.constexpr, terms: tl.constexpr):
    """t (coefs[0] + coefs[1] t + ...)"""
    p = t * coefs[terms - 1] + coefs[terms - 2]
    for i in tl.static_range(terms - 3, -1, -1):
        p = p * t + coefs[i]
    return p * t


@triton.jit
def _clamped(x, LOW: tl.constexpr, HIGH: tl.constexpr):
    """x in [LOW, HIGH]; NaN stays."""
    y = tl.maximum(x, LOW, propagate_nan=tl.PropagateNan.ALL)
    return tl.minimum(y, HIGH, propagate_nan=tl.PropagateNan.ALL)


@triton.jit
def _gelu_value(x, TANH: tl.constexpr, BF16: tl.constexpr):
    """gelu(x): x is float64, or the float32 of a result that will be rounded to 16 bits."""
    if x.dtype == tl.float64:
        if TANH:
            v = tl.maximum(x, -40.0, propagate_nan=tl.PropagateNan.ALL)  # -inf -> -0, not -inf / inf
            y = v / (1.0 + libdevice.exp(-v * (TANH_A + TANH_B * v * v)))
        else:
            v = tl.maximum(x, -40.0, propagate_nan=tl.PropagateNan.ALL)
            y = (0.5 * v) * libdevice.erfc(-v * RSQRT2)
    else:
        if TANH:
            # both sides of the fraction scaled, so that exp2 overflows only where y rounds to zero
            v = tl.maximum(x, -40.0, propagate_nan=tl.PropagateNan.ALL)
            t = v * (v * v * -TANH_B_LOG2E - TANH_A_LOG2E) - 12.0
            y = (v * UNSCALE) / (UNSCALE + tl.exp2(t))
        else:
            cap: tl.constexpr = CAP_BF16 if BF16 else CAP_FP16
            u = tl.minimum(tl.abs(x), cap, propagate_nan=tl.PropagateNan.ALL)
            y = tl.maximum(x, 0.0) - (u * UNSCALE) * _tail(u, BF16)
    return y


@triton.jit
def _unlifted(m, x, TANH: tl.constexpr, BF16: tl.constexpr):
    """m, times 2^-126 where _gelu_slope(x) is lifted. A choice of results: a choice of factors spills registers."""
    if BF16 and x.dtype == tl.float32:
        m = tl.where(x < EDGE[TANH], m * UNLIFT, m)
    return m


@triton.jit
def _gelu_slope(x, TANH: tl.constexpr, BF16: tl.constexpr):
    """gelu'(x) as a factor, for x as in _gelu_value; for bfloat16 lifted: the other factor has to be _unlifted."""
    if x.dtype == tl.float64:
        if TANH:
            v = _clamped(x, -21.0, 21.0)
            e = libdevice.exp(-v * (TANH_A + TANH_B * v * v))
            r = 1.0 / (1.0 + e)
            y = r * (1.0 + v * (TANH_A + 3.0 * TANH_B * v * v) * (e * r))
        else:
            v = _clamped(x, -40.0, 40.0)
            y = 0.5 * libdevice.erfc(-v * RSQRT2) + v * RSQRT_2PI * libdevice.exp(-0.5 * v * v)
    elif TANH:
        end: tl.constexpr = -13.3 if BF16 else -10.5
        v = _clamped(x, end, 10.5)  # outside, 0 and 1 in every 16-bit format
        t = v * (v * v * -TANH_B_LOG2E - TANH_A_LOG2E) - 24.0
        scale: tl.constexpr = UNSCALE * UNSCALE
        if BF16:
            deep = x < EDGE[1]
            e = tl.exp2(tl.where(deep, t - LIFT, t))
            r = 1.0 / tl.where(deep, e, scale + e)
        else:
            e = tl.exp2(t)
            r = 1.0 / (scale + e)
        y = (r * (1.0 + v * (TANH_A + 3.0 * TANH_B * v * v) * (e * r))) * scale
        y = tl.where(x < end, y * 0.0, y)
    else:
        cap: tl.constexpr = CAP_BF16 if BF16 else CAP_FP16
        u = tl.minimum(tl.abs(x), cap, propagate_nan=tl.PropagateNan.ALL)
        e = _past(tl.abs(x) - u, FAR_SLOPE_BF16 if BF16 else FAR_SLOPE_FP16, 4)
        if BF16:
            e = tl.where(x < EDGE[0], e + LIFT, e)
        density = tl.exp2((u * u * -HALF_LOG2E + (LOG2_RSQRT_2PI + 12.0)) + e)
        # gelu'(-u) = Phi(-u) - u phi(u)
        d = (tl.exp2(_log_tail(u, BF16) + e) - u * density) * UNSCALE
        y = tl.where(x < 0, d, 1.0 - d)  # gelu'(u) = 1 - gelu'(-u)
    return y


# ------------------------------------------------------------------------ end of shared mathematics


@triton.jit
def _times_gate(m, x, TANH: tl.constexpr, BF16: tl.constexpr):
    """m gelu(x). A large m lifts the tail into range, so float16 gets the polynomial of bfloat16."""
    if BF16 and x.dtype == tl.float32:
        deep = x < EDGE[TANH]
        m = _unlifted(m, x, TANH, True)
        if TANH:  # as in _gelu_value, with both sides of the fraction divided by 2^126
            v = tl.maximum(x, -40.0, propagate_nan=tl.PropagateNan.ALL)
            t = v * (v * v * -TANH_B_LOG2E - TANH_A_LOG2E) - 12.0
            e = tl.exp2(tl.where(deep, t - LIFT, t))
            y = (v * UNSCALE) / tl.where(deep, e, UNSCALE + e)
        else:
            u = tl.minimum(tl.abs(x), CAP_BF16, propagate_nan=tl.PropagateNan.ALL)
            p = _log_tail(u, True) + _past(tl.abs(x) - u, FAR_BF16, 2)
            y = tl.maximum(x, 0.0) - (u * UNSCALE) * tl.exp2(tl.where(deep, p + LIFT, p))
    else:
        y = _gelu_value(x, TANH, True)
        if x.dtype == tl.float32 and not TANH:
            y = tl.where(x < -CAP_BF16, y * 0.0, y)  # not its value at the cap: 1e3 gelu(-20) would be -1e-37
    return m * y


# A kernel's MODE: 0 is a plain product, 1 GEGLU with erf, 2 GEGLU with tanh; and this
SAVE: tl.constexpr = tl.constexpr(4)  # also store the rounded pre-activation


@triton.jit
def _tile_of(t, tiles_m, tiles_n, GROUP: tl.constexpr):
    """Tile t in an order that keeps GROUP rows of tiles together, so that L2 serves A and B."""
    per_group = GROUP * tiles_n
    first = (t // per_group) * GROUP
    rows = tl.minimum(tiles_m - first, GROUP)
    rest = t % per_group
    return first + rest % rows, rest // rows


# -------------------------------------------------------------------------- the kernel for any device


@triton.jit(do_not_specialize=["M"])
def _tile_kernel(
    a_ptr,  # [M, K], any strides
    b_ptr,  # [N, K], any strides; [2N, K] for GEGLU
    bias_ptr,  # [N] or [2N], contiguous; only with HAS_BIAS
    y_ptr,  # [M, N], contiguous
    pre_ptr,  # [M, 2N], contiguous: the rounded pre-activation; only with SAVE
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bn,
    stride_bk,
    MODE: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    PRECISION: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
    BK: tl.constexpr,
    GROUP: tl.constexpr,
):
    tile_m, tile_n = _tile_of(tl.program_id(0), tl.cdiv(M, BM), tl.cdiv(N, BN), GROUP)
    rows = tile_m.to(tl.int64) * BM + tl.arange(0, BM)
    cols = tile_n.to(tl.int64) * BN + tl.arange(0, BN)
    ks = tl.arange(0, BK).to(tl.int64)
    out: tl.constexpr = y_ptr.dtype.element_ty
    wide: tl.constexpr = tl.float64 if out == tl.float64 else tl.float32
    acc = tl.zeros((BM, BN), wide)  # the first half, or all of a plain product
    second = tl.zeros((BM, BN), wide)
    for k in range(0, K, BK):
        at = k + ks
        a_mask = (rows < M)[:, None] & (at < K)[None, :]
        b_mask = (cols < N)[None, :] & (at < K)[:, None]
        a = tl.load(a_ptr + rows[:, None] * stride_am + at[None, :] * stride_ak, mask=a_mask, other=0.0)
        b_at = b_ptr + cols[None, :] * stride_bn + at[:, None] * stride_bk
        b = tl.load(b_at, mask=b_mask, other=0.0)
        acc = tl.dot(a, b, acc, input_precision=PRECISION, out_dtype=wide)
        if MODE % 4 != 0:
            gap = tl.cast(N, tl.int64)  # N.to would not compile for N = 1, which Triton makes a plain number
            b = tl.load(b_at + gap * stride_bn, mask=b_mask, other=0.0)
            second = tl.dot(a, b, second, input_precision=PRECISION, out_dtype=wide)
    mask = (rows < M)[:, None] & (cols < N)[None, :]
    if HAS_BIAS:
        acc += tl.load(bias_ptr + cols, mask=cols < N, other=0.0).to(wide)[None, :]
    if MODE % 4 == 0:
        y = acc
    else:
        if HAS_BIAS:
            second += tl.load(bias_ptr + N + cols, mask=cols < N, other=0.0).to(wide)[None, :]
        if SAVE & MODE:
            at = rows[:, None] * (2 * N) + cols[None, :]
            tl.store(pre_ptr + at, acc.to(out), mask=mask)
            tl.store(pre_ptr + at + N, second.to(out), mask=mask)
        if out == tl.float32:
            y = _times_gate(acc.to(tl.float64), second.to(tl.float64), MODE % 4 == 2, False)
        else:
            y = _times_gate(acc, second, MODE % 4 == 2, out == tl.bfloat16)
    tl.store(y_ptr + rows[:, None] * N + cols[None, :], y.to(out), mask=mask)


def _of_any_alignment(kernel):
    """The kernel compiled once for whatever strides, sizes and addresses there are, not once for each class of them."""
    names = kernel.fn.__code__.co_varnames[: kernel.fn.__code__.co_argcount]
    arguments = [name for name in names if "ptr" in name or "stride" in name or name in ("M", "N", "K")]
    return triton.jit(do_not_specialize=arguments)(kernel.fn)


_strided_tile_kernel = _of_any_alignment(_tile_kernel)
_INTERPRETED = not isinstance(_tile_kernel, triton.runtime.JITFunction)

# --------------------------------------------------------------------- the kernel for Hopper, 16 bits
# Two warp groups own the upper and the lower 64 rows of a 128 x 256 tile. The copy engine fills STAGES buffers
# of 64 steps of k; `ready` and `free` are their barriers. Every other 64 columns of a tile's sums stay in
# registers and are finished while the matrix units already work on the next tile.

if not _INTERPRETED:
    from triton.experimental import gluon
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.language.nvidia.hopper import (
        fence_async_shared,
        mbarrier,
        tma,
        warpgroup_mma,
        warpgroup_mma_wait,
    )
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    @gluon.jit
    def _fetch(
        a_desc, b_desc, a_bufs, b_bufs, ready, free, M, N, K, tiles, gap,
        STEP: gl.constexpr, A_T: gl.constexpr, B_T: gl.constexpr,
        GROUP: gl.constexpr, STAGES: gl.constexpr,
    ):  # fmt: skip
        """The fetching warp. B's tile is two blocks of 128 rows, `gap` rows apart."""
        tiles_m = gl.cdiv(M, 128)
        tiles_n = gl.cdiv(N, STEP)
        i = 0
        for t in range(gl.program_id(0), tiles, gl.num_programs(0)):
            tile_m, tile_n = _tile_of(t, tiles_m, tiles_n, GROUP)
            row = tile_m * 128
            col = tile_n * STEP
            for k in range(0, K, 64):
                s = i % STAGES
                mbarrier.wait(free.index(s), ((i // STAGES) & 1) ^ 1)
                bar = ready.index(s)
                mbarrier.expect(bar, (128 + 256) * 64 * 2)
                if A_T:
                    tma.async_copy_global_to_shared(a_desc, [k, row], bar, a_bufs.index(s))
                else:
                    tma.async_copy_global_to_shared(a_desc, [row, k], bar, a_bufs.index(s))
                if B_T:
                    lo = b_bufs.index(s).slice(0, 128, 1)
                    hi = b_bufs.index(s).slice(128, 128, 1)
                    tma.async_copy_global_to_shared(b_desc, [k, col], bar, lo)
                    tma.async_copy_global_to_shared(b_desc, [k, col + gap], bar, hi)
                else:
                    lo = b_bufs.index(s).slice(0, 128, 0)
                    hi = b_bufs.index(s).slice(128, 128, 0)
                    tma.async_copy_global_to_shared(b_desc, [col, k], bar, lo)
                    tma.async_copy_global_to_shared(b_desc, [col + gap, k], bar, hi)
                i += 1

    @gluon.jit
    def _multiply(
        acc, i, a_bufs, b_bufs, ready,
        FIRST: gl.constexpr, WG: gl.constexpr, A_T: gl.constexpr, B_T: gl.constexpr,
        STAGES: gl.constexpr,
    ):  # fmt: skip
        """Starts the products of buffer i: 64 rows, 256 columns, 64 steps of k."""
        s = i % STAGES
        mbarrier.wait(ready.index(s), (i // STAGES) & 1)
        a = a_bufs.index(s)
        b = b_bufs.index(s)
        if A_T:
            a = a.permute((1, 0))
        if not B_T:
            b = b.permute((1, 0))
        return warpgroup_mma(a.slice(WG * 64, 64, 0), b, acc, use_acc=not FIRST, is_async=True)

    @gluon.jit
    def _halves(x):
        """Columns [0, n/2) and [n/2, n): no data moves, since a thread holds columns of both."""
        m: gl.constexpr = x.shape[0]
        n: gl.constexpr = x.shape[1] // 2
        lo, hi = gl.split(gl.permute(gl.reshape(x, [m, 2, n]), (0, 2, 1)))
        layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, n, 16])
        return gl.convert_layout(lo, layout), gl.convert_layout(hi, layout)

    @gluon.jit
    def _quarters(acc):
        """Columns 0-63 and 128-191 of a tile, and columns 64-127 and 192-255, as two 64 x 128."""
        x = gl.permute(gl.reshape(acc, [64, 2, 2, 64]), (0, 1, 3, 2))
        early, late = gl.split(x)
        layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 128, 16])
        early = gl.convert_layout(gl.reshape(early, [64, 128]), layout)
        return early, gl.convert_layout(gl.reshape(late, [64, 128]), layout)

    @gluon.jit
    def _send(y, desc, buf, row, col):
        """Hands 64 x 64 results to the copy engine; the buffer used two calls ago is free again."""
        tma.store_wait(1)
        buf.store(y.to(desc.dtype))
        fence_async_shared()
        tma.async_copy_shared_to_global(desc, [row, col], buf)

    @gluon.jit
    def _finish(
        x, row, col, y_desc, pre_desc, extra, out_bufs, M, N,
        WG: gl.constexpr, LATE: gl.constexpr, PART: gl.constexpr, MODE: gl.constexpr,
    ):  # fmt: skip
        """64 x 64 results: of the two halves in x, or, in a plain product, of one of them."""
        lo, hi = _halves(x)
        if MODE % 4 == 0:
            if PART == 0:
                v = lo
            else:
                v = hi
            _send(v, y_desc, out_bufs.index(2 * WG + PART), row, col + 128 * PART + 64 * LATE)
        elif PART == 0:
            at = col + 64 * LATE
            v = _times_gate(lo, hi, MODE % 4 == 2, y_desc.dtype == gl.bfloat16)
            _send(v, y_desc, out_bufs.index(2 * WG + LATE), row, at)
            if SAVE & MODE:
                _send(lo, pre_desc, out_bufs.index(2 * WG + 1 - LATE), row, at)
                _send(hi, extra, out_bufs.index(2 * WG + LATE), row, at)

    @gluon.jit
    def _consume(
        y_desc, pre_desc, extra, bias_ptr, a_bufs, b_bufs, out_bufs, ready, free, M, N, K,
        tiles, gap, bias_size, WG: gl.constexpr, MODE: gl.constexpr, HAS_BIAS: gl.constexpr,
        STEP: gl.constexpr, A_T: gl.constexpr, B_T: gl.constexpr, GROUP: gl.constexpr,
        STAGES: gl.constexpr,
    ):  # fmt: skip
        """A multiplying warp group. K > 128: every tile has at least three steps."""
        tiles_m = gl.cdiv(M, 128)
        tiles_n = gl.cdiv(N, STEP)
        layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 256, 16])
        zeros = gl.zeros([64, 256], gl.float32, layout)
        early, late = _quarters(zeros)
        row = tiles_m * 128  # there is no tile before the first: the copy engine drops rows past M
        col = 0
        i = 0
        for t in range(gl.program_id(0), tiles, gl.num_programs(0)):
            acc = _multiply(zeros, i, a_bufs, b_bufs, ready, True, WG, A_T, B_T, STAGES)
            acc = _multiply(acc, i + 1, a_bufs, b_bufs, ready, False, WG, A_T, B_T, STAGES)
            # `late` passes through the waits, or the compiler would finish it before it multiplies
            acc, late = warpgroup_mma_wait(1, deps=[acc, late])
            mbarrier.arrive(free.index(i % STAGES))
            _finish(late, row, col, y_desc, pre_desc, extra, out_bufs, M, N, WG, 1, 0, MODE)
            acc = _multiply(acc, i + 2, a_bufs, b_bufs, ready, False, WG, A_T, B_T, STAGES)
            acc, late = warpgroup_mma_wait(1, deps=[acc, late])
            mbarrier.arrive(free.index((i + 1) % STAGES))
            _finish(late, row, col, y_desc, pre_desc, extra, out_bufs, M, N, WG, 1, 1, MODE)
            i += 3
            tile_m, tile_n = _tile_of(t, tiles_m, tiles_n, GROUP)
            col = tile_n * STEP
            if HAS_BIAS:
                j = gl.arange(0, 256, layout=gl.SliceLayout(0, layout))
                j += col + gl.where(j < 128, 0, gap - 128)
                j = gl.max_contiguous(gl.multiple_of(j, 2), 2)  # gap is even
                bias = gl.load(bias_ptr + j, mask=j < bias_size, other=0.0)
            for _k in range(192, K, 64):
                acc = _multiply(acc, i, a_bufs, b_bufs, ready, False, WG, A_T, B_T, STAGES)
                acc = warpgroup_mma_wait(1, deps=[acc])
                mbarrier.arrive(free.index((i - 1) % STAGES))
                i += 1
            acc = warpgroup_mma_wait(0, deps=[acc])
            mbarrier.arrive(free.index((i - 1) % STAGES))
            if HAS_BIAS:
                acc += bias.to(gl.float32)[None, :]
            row = tile_m * 128 + WG * 64
            early, late = _quarters(acc)
            _finish(early, row, col, y_desc, pre_desc, extra, out_bufs, M, N, WG, 0, 0, MODE)
            _finish(early, row, col, y_desc, pre_desc, extra, out_bufs, M, N, WG, 0, 1, MODE)
        _finish(late, row, col, y_desc, pre_desc, extra, out_bufs, M, N, WG, 1, 0, MODE)
        _finish(late, row, col, y_desc, pre_desc, extra, out_bufs, M, N, WG, 1, 1, MODE)
        tma.store_wait(0)

    @gluon.jit(do_not_specialize=["M", "K", "tiles"])
    def _hopper_kernel(
        a_desc,  # A, [M, K] in boxes of 128 x 64; its transpose in boxes of 64 x 128 where A_T
        b_desc,  # B, [N, K] likewise
        y_desc,  # the result in boxes of 64 x 64
        pre_desc,  # the rounded pre-activation, if saved
        extra,  # what this file's _finish needs beyond that
        bias_ptr,
        M,
        N,
        K,
        tiles,  # how many to compute, in the order of _tile_of
        gap,  # rows of B between the two halves of a tile
        bias_size,
        MODE: gl.constexpr,
        HAS_BIAS: gl.constexpr,
        STEP: gl.constexpr,  # rows of B from one tile to the next
        A_T: gl.constexpr,
        B_T: gl.constexpr,
        GROUP: gl.constexpr,
        STAGES: gl.constexpr,
    ):
        dtype: gl.constexpr = a_desc.dtype
        a_shape: gl.constexpr = [STAGES, 64, 128] if A_T else [STAGES, 128, 64]
        b_shape: gl.constexpr = [STAGES, 64, 256] if B_T else [STAGES, 256, 64]
        a_bufs = gl.allocate_shared_memory(dtype, a_shape, a_desc.layout)
        b_bufs = gl.allocate_shared_memory(dtype, b_shape, b_desc.layout)
        out_bufs = gl.allocate_shared_memory(dtype, [4, 64, 64], y_desc.layout)
        ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
        for s in gl.static_range(STAGES):
            mbarrier.init(ready.index(s), count=1)
            mbarrier.init(free.index(s), count=2)  # both multiplying groups
        fence_async_shared()
        gl.warp_specialize(
            [
                (_consume, (y_desc, pre_desc, extra, bias_ptr, a_bufs, b_bufs, out_bufs, ready, free,
                            M, N, K, tiles, gap, bias_size, 0, MODE, HAS_BIAS, STEP, A_T, B_T, GROUP, STAGES)),
                (_consume, (y_desc, pre_desc, extra, bias_ptr, a_bufs, b_bufs, out_bufs, ready, free,
                            M, N, K, tiles, gap, bias_size, 1, MODE, HAS_BIAS, STEP, A_T, B_T, GROUP, STAGES)),
                (_fetch, (a_desc, b_desc, a_bufs, b_bufs, ready, free, M, N, K, tiles, gap,
                          STEP, A_T, B_T, GROUP, STAGES)),
            ],
            [4, 1],
            [240, 24],
        )  # fmt: skip

# -------------------------------------------------------------------- gradient of p, and column sums


@triton.jit(do_not_specialize=["M"])
def _gradient_kernel(
    dy_ptr,  # [M, N], contiguous, like all pointers here from a multiple of 16 bytes on: see _dense
    pre_ptr,  # [M, 2N], contiguous
    dp_ptr,  # [M, 2N], contiguous: both halves, rounded once; only with STORE
    part_ptr,  # [ceil(M / ROWS), 2N], float32 or float64: column sums of ROWS rows, unrounded; only with SUM
    M,
    N,
    TANH: tl.constexpr,
    STORE: tl.constexpr,
    SUM: tl.constexpr,
    ROWS: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    tiles_n = tl.cdiv(N, BN)
    part = (tl.program_id(0) // tiles_n).to(tl.int64)
    cols = (tl.program_id(0) % tiles_n).to(tl.int64) * BN + tl.arange(0, BN)
    out: tl.constexpr = dy_ptr.dtype.element_ty
    wide: tl.constexpr = tl.float64 if out == tl.float64 else tl.float32
    # float32 gradients are computed in float64 and rounded once, 16-bit ones in float32 but for one product
    math: tl.constexpr = tl.float64 if out == tl.float32 else wide
    sum1 = tl.zeros((BM, BN), wide)
    sum2 = tl.zeros((BM, BN), wide)
    for r in range(0, ROWS, BM):
        rows = part * ROWS + r + tl.arange(0, BM)
        mask = (rows < M)[:, None] & (cols < N)[None, :]
        dy = tl.load(dy_ptr + rows[:, None] * N + cols[None, :], mask=mask, other=0.0).to(math)
        at = rows[:, None] * (2 * N) + cols[None, :]
        p1 = tl.load(pre_ptr + at, mask=mask, other=0.0).to(math)
        p2 = tl.load(pre_ptr + at + N, mask=mask, other=0.0).to(math)
        d1 = _times_gate(dy, p2, TANH, out == tl.bfloat16)
        slope = _gelu_slope(p2, TANH, True)
        if out == tl.bfloat16:  # dy p1 may be as far from 1 as the square of float32's range; both products are exact
            d2 = _unlifted(dy.to(tl.float64) * p1.to(tl.float64) * slope.to(tl.float64), p2, TANH, True).to(tl.float32)
        else:
            d2 = _unlifted(dy * p1, p2, TANH, True) * slope
        if STORE:
            tl.store(dp_ptr + at, d1.to(out), mask=mask)
            tl.store(dp_ptr + at + N, d2.to(out), mask=mask)
        if SUM:
            sum1 += d1.to(wide)
            sum2 += d2.to(wide)
    if SUM:
        at = part_ptr + part * (2 * N) + cols
        tl.store(at, tl.sum(sum1, 0), mask=cols < N)
        tl.store(at + N, tl.sum(sum2, 0), mask=cols < N)


# ---------------------------------------------------------------------------------------- launchers

_WIDE = {torch.float64: torch.float64}  # sums of everything else are float32
_ROWS = 256  # rows of one partial column sum: fixed, so that db has the same bits on every device


def _configs(dtype: torch.dtype, allow_tf32: bool) -> list[tuple[int, int, int, int, int]]:
    """(BM, BN, BK, num_warps, num_stages) to choose from: every one of a list gives the same bits.

    float32 and float64 sums are chains of fused multiply-adds in the order of k. The matrix units add 16
    (tf32: 8) products at a time, in the order of k, if BM >= 64 on Hopper (smaller tiles use an older
    instruction); float64 has one entry, because its instruction depends on the tile. A list has one BK: the zeros
    that fill the last step turn a sum of -0 into 0."""
    if _INTERPRETED:
        return [(64, 64, 32, 4, 1)]
    if dtype == torch.float64:
        return [(64, 64, 16, 4, 2)]
    if dtype == torch.float32 and not allow_tf32:
        return [(64, 64, 16, 8, 3), (128, 64, 16, 8, 2)]
    if dtype == torch.float32:
        return [(128, 64, 32, 8, 3), (64, 64, 32, 4, 4)]
    return [(128, 128, 64, 8, 3), (64, 128, 64, 4, 3)]


def _few(elements: int, configs: list[tuple]) -> list[tuple]:
    """Only the smallest tile where there are few of it: each has a processor of its own, and nothing is to be timed."""
    small = min(configs, key=lambda config: config[0] * config[1])
    return [small] if elements <= _FEW_TILES * small[0] * small[1] else configs


_FEW_TILES = 64
_fastest: dict[tuple, tuple] = {}


def _choose(key: tuple, configs: list[tuple], launch) -> tuple:
    """The fastest of `configs` for this key, timed once; each writes the same bits to the same output."""
    if len(configs) == 1 or torch.cuda.is_current_stream_capturing():
        return _fastest.get(key, configs[0])  # a capture cannot be timed
    if key not in _fastest:
        times = []
        for config in configs:
            launch(config)  # compile
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record()
            for _ in range(3):
                launch(config)
            end.record()
            end.synchronize()
            times.append(start.elapsed_time(end))
        _fastest[key] = configs[times.index(min(times))]
    return _fastest[key]


def _copyable(t: Tensor) -> bool | None:
    """How the copy engine can address a matrix: False as it is, True transposed, None not at all."""
    for transposed in (False, True):
        rows, cols = t.stride()[:: -1 if transposed else 1]
        if cols == 1 and rows * t.element_size() % 16 == 0 and t.data_ptr() % 16 == 0 and rows > 0:
            return transposed
    return None


def _boxes(t: Tensor, rows: int, cols: int):
    """A matrix for the copy engine, in boxes of rows x cols."""
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=2)
    return TensorDescriptor(t, list(t.shape), list(t.stride()), [rows, cols], layout)


def _on_hopper(a: Tensor, b: Tensor, n: int) -> tuple[bool, bool] | None:
    """Whether A and B are read transposed, or None where the Hopper kernel does not apply."""
    if _INTERPRETED or a.element_size() != 2 or n % 8 or a.shape[1] <= 128:
        return None
    if torch.cuda.get_device_capability(a.device)[0] != 9:
        return None
    a_t, b_t = _copyable(a), _copyable(b)
    return None if a_t is None or b_t is None else (a_t, b_t)


def _aligned(a: Tensor, b: Tensor, *others: Tensor) -> bool:
    """Whether the tile kernel for multiples of 16 applies: K, the strides of A and B but for those of 1, addresses."""
    regular = all(min(t.stride()) == 1 and max(t.stride()) % 16 == 0 for t in (a, b))
    return regular and a.shape[1] % 16 == 0 and all(t.data_ptr() % 16 == 0 for t in (a, b, *others))


def _launch_tiles(a, b, bias, y, pre, mode, allow_tf32) -> None:
    """y = a @ b^T + bias, or GEGLU of it; a [M, K] and b [N, K] or [2N, K] of any strides."""
    (m, k), n = a.shape, y.shape[1]
    if m == 0 or n == 0:
        return
    has_bias = bias is not None
    # an argument that a mode does not read still has to be a tensor
    bias, pre = (y if t is None else t for t in (bias, pre))
    with torch.cuda.device_of(a):  # the tensor's device, not the current one
        transposed = _on_hopper(a, b, n)
        if transposed is not None:
            a_t, b_t = transposed
            step, gap = (256, 128) if mode == 0 else (128, n)
            tiles = triton.cdiv(m, 128) * triton.cdiv(n, step)
            units = torch.cuda.get_device_properties(a.device).multi_processor_count
            halves = (pre[:, :n], pre[:, n:]) if mode & SAVE.value else (y, y)
            # no more programs than the last round needs: an idle one would only draw power
            _hopper_kernel[(triton.cdiv(tiles, triton.cdiv(tiles, units)),)](
                _boxes(a.t(), 64, 128) if a_t else _boxes(a, 128, 64),
                _boxes(b.t(), 64, 128) if b_t else _boxes(b, 128, 64),
                _boxes(y, 64, 64), *(_boxes(t, 64, 64) for t in halves), bias,
                m, n, k, tiles, gap, b.shape[0],
                MODE=mode, HAS_BIAS=has_bias, STEP=step, A_T=a_t, B_T=b_t, GROUP=32, STAGES=4,
                num_warps=4,
            )  # fmt: skip
            return
        precision = "tf32" if allow_tf32 and a.dtype == torch.float32 else "ieee"
        kernel = _tile_kernel if _aligned(a, b, bias, y, pre) else _strided_tile_kernel

        def launch(config):
            bm, bn, bk, warps, stages = config
            kernel[(triton.cdiv(m, bm) * triton.cdiv(n, bn),)](
                a, b, bias, y, pre, m, n, k, *a.stride(), *b.stride(),
                MODE=mode, HAS_BIAS=has_bias, PRECISION=precision,
                BM=bm, BN=bn, BK=bk, GROUP=8, num_warps=warps, num_stages=stages,
            )  # fmt: skip

        major = (a.stride(1) == 1, b.stride(1) == 1)
        key = (a.device, a.dtype, precision, m.bit_length(), n, k, major, mode, has_bias)
        launch(_choose(key, _few(m * n, _configs(a.dtype, allow_tf32)), launch))


def _dense(t: Tensor) -> Tensor:
    """t, or a copy where it is not contiguous or starts off a multiple of 16 bytes.

    Triton compiles a kernel again for another alignment or a stride of 1, with another distribution of a tile's rows
    over threads: a sum over rows then has another order. Of a dense tensor there is one such kernel for each shape."""
    if t.is_contiguous() and t.data_ptr() % 16 == 0:
        return t
    return t.clone(memory_format=torch.contiguous_format)


def _launch_gradient(dy, pre, dp, part, tanh) -> None:
    m, n = dy.shape
    dy, pre = _dense(dy), _dense(pre)
    bm, bn = (_ROWS, 128) if _INTERPRETED else (8, 128)
    with torch.cuda.device_of(dy):
        _gradient_kernel[(triton.cdiv(m, _ROWS) * triton.cdiv(n, bn),)](
            dy, pre, dy if dp is None else dp, dy if part is None else part, m, n,
            TANH=tanh, STORE=dp is not None, SUM=part is not None, ROWS=_ROWS, BM=bm, BN=bn, num_warps=4,
        )  # fmt: skip


# ------------------------------------------------------------------------------------- custom ops


def _none(like: Tensor) -> Tensor:
    """What an operator returns in the place of an output that was not asked for."""
    return like.new_empty((0,))


@torch.library.custom_op("verify_kernels::linear_geglu", mutates_args=())
def _linear_geglu(
    x: Tensor, weight: Tensor, bias: Tensor | None, approximate: str, save_pre: bool, allow_tf32: bool
) -> tuple[Tensor, Tensor]:
    y = x.new_empty((x.shape[0], weight.shape[0] // 2))
    pre = x.new_empty((x.shape[0], weight.shape[0])) if save_pre else None
    mode = (2 if approximate == "tanh" else 1) + (SAVE.value if save_pre else 0)
    _launch_tiles(x, weight, bias, y, pre, mode, allow_tf32)
    return y, _none(y) if pre is None else pre


@_linear_geglu.register_fake
def _(x, weight, bias, approximate, save_pre, allow_tf32):
    y = x.new_empty((x.shape[0], weight.shape[0] // 2))
    return y, x.new_empty((x.shape[0], weight.shape[0])) if save_pre else _none(y)


@torch.library.custom_op("verify_kernels::linear_geglu_product", mutates_args=())
def _product(a: Tensor, b: Tensor, bias: Tensor | None, allow_tf32: bool) -> Tensor:
    """a @ b^T + bias: the pre-activation, and both products of the backward pass."""
    y = a.new_empty((a.shape[0], b.shape[0]))
    _launch_tiles(a, b, bias, y, None, 0, allow_tf32)
    return y


@_product.register_fake
def _(a, b, bias, allow_tf32):
    return a.new_empty((a.shape[0], b.shape[0]))


@torch.library.custom_op("verify_kernels::linear_geglu_gradient", mutates_args=())
def _gradient(dy: Tensor, pre: Tensor, approximate: str, total: bool) -> tuple[Tensor, Tensor]:
    """(dp, its column sums if `total`, else empty); dp is [M, 2d], both halves in one tensor."""
    m, n = dy.shape
    dp = dy.new_empty((m, 2 * n))
    wide = _WIDE.get(dy.dtype, torch.float32)
    part = dy.new_empty((triton.cdiv(m, _ROWS), 2 * n), dtype=wide) if total else None
    if m > 0 and n > 0:
        _launch_gradient(dy, pre, dp, part, approximate == "tanh")
    # the partial sums are added in float64, in an order that depends on their number alone
    return dp, _none(dy) if part is None else part.sum(0, dtype=torch.float64).to(dy.dtype)


@_gradient.register_fake
def _(dy, pre, approximate, total):
    m, n = dy.shape
    return dy.new_empty((m, 2 * n)), dy.new_empty((2 * n,)) if total else _none(dy)


# ----------------------------------------------------------------------------------------- autograd


def _gelu_derivatives(x: Tensor, approximate: str) -> tuple[Tensor, Tensor, Tensor]:
    """gelu, gelu' and gelu'' in differentiable operations: only second derivatives need them."""
    if approximate == "tanh":
        a, b = TANH_A.value, TANH_B.value
        s = torch.sigmoid(x * (a + b * x * x))
        w1, w2 = a + 3.0 * b * x * x, 6.0 * b * x
        s1 = s * (1.0 - s)
        return x * s, s + x * s1 * w1, s1 * (2.0 * w1 + x * (w2 + (1.0 - 2.0 * s) * w1 * w1))
    density = torch.exp(-0.5 * x * x) * RSQRT_2PI.value
    mass = 0.5 * torch.special.erfc(-x * RSQRT2.value)
    return x * mass, mass + x * density, (2.0 - x * x) * density


def _column_sums(t: Tensor) -> Tensor:
    """t.sum(0) of a fresh dense copy: PyTorch's order of the sum follows strides and alignment."""
    return t.clone(memory_format=torch.contiguous_format).sum(0)


def _save_geglu(ctx, inputs, output):
    x, weight, bias, ctx.approximate, ctx.saved_pre, ctx.allow_tf32 = inputs
    ctx.save_for_backward(x, weight, bias, output[1] if ctx.saved_pre else None)
    ctx.set_materialize_grads(False)


def _differentiate_geglu(ctx, dy, dpre):
    """Made of the operators above, which are differentiable themselves: so is this."""
    x, weight, bias, pre = ctx.saved_tensors
    need_x, need_w, need_b = ctx.needs_input_grad[:3]
    need_b = need_b and bias is not None
    tf32 = ctx.allow_tf32
    dp = db = None
    if dy is not None:
        if pre is None:
            pre = _product(x, weight, bias, tf32)
        dp, db = _gradient(dy, pre, ctx.approximate, need_b)
    if ctx.saved_pre and dpre is not None:  # from a second derivative
        dp = dpre if dp is None else dp + dpre
        if need_b:
            more = _column_sums(dpre)
            db = more if db is None else db + more
    if dp is None:
        return None, None, None, None, None, None
    dx = _product(dp, weight.t(), None, tf32) if need_x else None
    dw = _product(dp.t(), x.t(), None, tf32) if need_w else None
    return dx, dw, db if need_b else None, None, None, None


def _save_product(ctx, inputs, output):
    a, b, bias, ctx.allow_tf32 = inputs
    ctx.save_for_backward(a, b)


def _differentiate_product(ctx, u):
    a, b = ctx.saved_tensors
    need_a, need_b, need_bias = ctx.needs_input_grad[:3]
    return (
        _product(u, b.t(), None, ctx.allow_tf32) if need_a else None,
        _product(u.t(), a.t(), None, ctx.allow_tf32) if need_b else None,
        _column_sums(u) if need_bias else None,
        None,
    )


def _save_gradient(ctx, inputs, output):
    dy, pre, ctx.approximate, ctx.total = inputs
    ctx.save_for_backward(dy, pre)
    ctx.set_materialize_grads(False)


def _differentiate_gradient(ctx, u, ub):
    """With u for dp (and u's columns from db): d dy = u1 gelu + u2 p1 gelu', and so on; in float64."""
    dy, pre = ctx.saved_tensors
    if ctx.total and ub is not None:
        u = ub.expand(pre.shape) if u is None else u + ub
    if u is None:
        return None, None, None, None
    (u1, u2), (p1, p2), d = u.double().chunk(2, -1), pre.double().chunk(2, -1), dy.double()
    value, slope, curve = _gelu_derivatives(p2, ctx.approximate)
    of_dy = u1 * value + u2 * p1 * slope
    of_pre = torch.cat((u2 * d * slope, d * (u1 * slope + u2 * p1 * curve)), -1)
    return of_dy.to(dy.dtype), of_pre.to(pre.dtype), None, None


_linear_geglu.register_autograd(_differentiate_geglu, setup_context=_save_geglu)
_product.register_autograd(_differentiate_product, setup_context=_save_product)
_gradient.register_autograd(_differentiate_gradient, setup_context=_save_gradient)

# --------------------------------------------------------------------------------- public functions

_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def _checked(x: Tensor, weight: Tensor, bias: Tensor | None, approximate: str) -> None:
    """Raises where the arguments do not fit together."""
    op = "linear_geglu"
    if approximate not in ("none", "tanh"):
        raise ValueError(f'{op}: approximate must be "none" or "tanh", got {approximate!r}')
    if x.dtype not in _DTYPES:
        raise TypeError(
            f"{op}: x must be float64, float32, float16 or bfloat16, got {x.dtype}; "
            "convert it first, for example x.to(torch.float32)"
        )
    for name, t in (("weight", weight), ("bias", bias)):
        if t is None:
            continue
        if t.dtype != x.dtype:
            raise TypeError(
                f"{op}: {name} must have x's dtype {x.dtype}, got {t.dtype}; "
                "convert one of them, or run under torch.autocast"
            )
        if t.device != x.device:
            raise ValueError(f"{op}: {name} must be on x's device {x.device}, got {t.device}")
    if not x.is_cuda and not _INTERPRETED and x.device.type != "meta":
        raise ValueError(
            f"{op}: x must be on a CUDA device, got {x.device}; move it with x.cuda(), or "
            "set TRITON_INTERPRET=1 before the import to run on the CPU (slow)"
        )
    if weight.dim() != 2:
        raise ValueError(f"{op}: weight must have 2 dimensions [out, in], got shape {tuple(weight.shape)}")
    if weight.shape[0] % 2:
        raise ValueError(f"{op}: weight must have an even number of output features, two halves, got {weight.shape[0]}")
    if x.dim() == 0:
        raise ValueError(f"{op}: x must have at least 1 dimension, got a scalar")
    n, k = weight.shape
    if x.shape[-1] != k:
        raise ValueError(f"{op}: weight has {k} input features, x has {x.shape[-1]}")
    if bias is not None and bias.shape != (n,):
        raise ValueError(f"{op}: bias must have shape ({n},), one per output feature, got {tuple(bias.shape)}")


def _autocast(*tensors: Tensor | None) -> tuple:
    """Under torch.autocast, what torch.nn.functional.linear does: everything but float64 is cast."""
    device = tensors[0].device.type
    if device == "meta" or not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    keep = (None, torch.float64)
    return tuple(t if getattr(t, "dtype", None) in keep else t.to(dtype) for t in tensors)


def linear_geglu(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    approximate: str = "none",
    save_pre: bool = True,
    allow_tf32: bool = False,
) -> Tensor:
    """p1 * gelu(p2) with p = x @ weight.T + bias and its halves p1, p2; rounded once.

    x: [..., K], weight: [2d, K], of any strides; the result is [..., d]. For a backward pass, p is stored
    (rounded to x's dtype); save_pre=False stores nothing and computes p again.
    """
    x, weight, bias = _autocast(x, weight, bias)
    _checked(x, weight, bias, approximate)
    bias = None if bias is None else bias.contiguous()
    save = save_pre and torch.is_grad_enabled()
    save = save and any(t is not None and t.requires_grad for t in (x, weight, bias))
    # [..., K] as [M, K]: a view where the leading dimensions allow one, else a copy
    rows = x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
    y, _ = _linear_geglu(rows, weight, bias, approximate, save, allow_tf32)
    return y.view(*x.shape[:-1], y.shape[1])
