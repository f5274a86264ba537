"""A linear layer and its activation in one kernel: act(x @ W^T + b), rounded once.

    linear_act(x, weight, bias, activation="gelu")        act(x @ weight.T + bias)
    linear_data_grad(dy, weight, pre, activation)         (dy @ weight) * act'(pre)

Mathematics, with a = x @ W^T + b (x: [..., K], W: [N, K], b: [N]):

    "id"            a                          1
    "gelu"          a Phi(a)                   Phi(a) + a phi(a)
    "gelu_tanh"     a S(a)                     S(a) + a S'(a),  S(a) = sigmoid(2 sqrt(2/pi) (a + 0.044715 a^3))
    "squared_relu"  max(a, 0)^2                2 max(a, 0)

Rounding points. Products are exact (16-bit), or fused (float32, float64); sums are float32 (float64 for
float64), k ascending in one chain, whatever the tile shape, the strides and the number of rows: one row gives
the same bits alone and among others. The bias is added to that sum, the activation is applied to that, and
the result is rounded to the output's dtype: once, where a product followed by PyTorch's activation rounds
twice. float32 is IEEE float32 throughout; `allow_tf32=True` lets the matrix units drop 13 bits of x and W.

Activations of a 16-bit result are float32 arithmetic with one exp2, 2^-12.6 (bfloat16) or 2^-18 (float16)
relative in the whole tail; those of float32 and float64 results are float64.

On Hopper a 16-bit product runs in a persistent kernel of three warp groups: one warp fetches tiles with the
tensor copy engine, two warp groups multiply 64 x 256 each; half of a tile's activations are computed between
the next tile's products. Elsewhere, for K <= 128, and for shapes and strides that the copy engine cannot
address, a plain tiled kernel computes the same sums, bit for bit. It also computes the last few tiles on Hopper,
cut into tiny ones, where whole rounds of a tile per processor leave only few: see _rounds.

Measured on an H200 at M, K, N = 8192, 4096, 16384 (kernels/bench/linear.py prints the table), where 4 of 4096 tiles
are left after 31 rounds of 132: with bias and GELU the forward pass takes 1.000 (bfloat16) and 0.991 (float16) of the
time of cuBLAS's product without either, medians of 60 rounds side by side; with the 4 tiles in a round of their own
1.027 and 1.019. So computed, the product alone took 0.95 of cuBLAS's time, bias and GELU 7 percent of the product,
the forward pass 0.88 of torch.compile and 0.89 of eager, the backward pass 0.94 of torch.compile. Letting one warp
group lag one or two steps behind the other changed nothing: a chip at its power limit would explain that, but its
power was not read.

Backward: g = dy * act'(pre) and db in one pass, then dx = g @ W and dW = g^T @ x with the same kernels. `pre` is
the rounded pre-activation, saved (save_pre=True) or recomputed. Every sum has a fixed order; a dy that is not
contiguous, or starts off a multiple of 16 bytes, is copied first for it.
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

_ACTIVATIONS = {"id": 0, "gelu": 1, "gelu_tanh": 2, "squared_relu": 3}
# A kernel's MODE: the activation, and these
GRAD: tl.constexpr = tl.constexpr(4)  # multiply the sum by act'(the saved pre-activation)
SAVE: tl.constexpr = tl.constexpr(8)  # also store the rounded pre-activation


@triton.jit
def _value(x, ACT: tl.constexpr, OUT: tl.constexpr):
    """act(x) of a float32 or float64 sum, not yet rounded to OUT."""
    if ACT == 0:
        y = x
    elif ACT == 3:
        r = tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL)
        y = r * r
    elif tl.float32 == OUT:
        y = _gelu_value(x.to(tl.float64), ACT == 2, False)
    else:
        y = _gelu_value(x, ACT == 2, tl.bfloat16 == OUT)
    return y


@triton.jit
def _times_slope(m, x, ACT: tl.constexpr, OUT: tl.constexpr):
    """m act'(x) of float32 or float64 numbers, not yet rounded to OUT."""
    if ACT == 0:
        y = m
    elif ACT == 3:
        y = m * (2.0 * tl.maximum(x, 0.0, propagate_nan=tl.PropagateNan.ALL))
    elif tl.float32 == OUT:
        y = m.to(tl.float64) * _gelu_slope(x.to(tl.float64), ACT == 2, False)
    else:
        y = _unlifted(m, x, ACT == 2, tl.bfloat16 == OUT) * _gelu_slope(x, ACT == 2, tl.bfloat16 == OUT)
    return y


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
    b_ptr,  # [N, K], any strides
    bias_ptr,  # [N], contiguous; only with HAS_BIAS
    gate_ptr,  # [M, N], laid out as y: the pre-activation whose slope multiplies the sum; only with GRAD
    y_ptr,  # [M, N], rows of neighbouring numbers
    pre_ptr,  # [M, N], laid out as y: the rounded pre-activation; only with SAVE
    M,
    N,
    K,
    stride_am,
    stride_ak,
    stride_bn,
    stride_bk,
    stride_ym,
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
    wide: tl.constexpr = tl.float64 if a_ptr.dtype.element_ty == tl.float64 else tl.float32
    acc = tl.zeros((BM, BN), wide)
    for k in range(0, K, BK):
        at = k + ks
        a = tl.load(
            a_ptr + rows[:, None] * stride_am + at[None, :] * stride_ak,
            mask=(rows < M)[:, None] & (at < K)[None, :],
            other=0.0,
        )
        b = tl.load(
            b_ptr + cols[None, :] * stride_bn + at[:, None] * stride_bk,
            mask=(cols < N)[None, :] & (at < K)[:, None],
            other=0.0,
        )
        acc = tl.dot(a, b, acc, input_precision=PRECISION, out_dtype=wide)
    if HAS_BIAS:
        acc += tl.load(bias_ptr + cols, mask=cols < N, other=0.0).to(wide)[None, :]
    out: tl.constexpr = y_ptr.dtype.element_ty
    offsets = rows[:, None] * stride_ym + cols[None, :]
    mask = (rows < M)[:, None] & (cols < N)[None, :]
    if SAVE & MODE:
        tl.store(pre_ptr + offsets, acc.to(out), mask=mask)
    if GRAD & MODE:
        y = _times_slope(acc, tl.load(gate_ptr + offsets, mask=mask, other=0.0).to(wide), MODE % 4, out)
    else:
        y = _value(acc, MODE % 4, out)
    tl.store(y_ptr + offsets, y.to(out), mask=mask)


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
        """64 x 64 of the tile's sums: activation or slope, rounding, store."""
        ACT: gl.constexpr = MODE % 4
        out: gl.constexpr = y_desc.dtype
        layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
        lo, hi = _halves(x)
        if PART == 0:
            v = lo
        else:
            v = hi
        col += 128 * PART + 64 * LATE
        if SAVE & MODE:
            _send(v, pre_desc, out_bufs.index(2 * WG + 0), row, col)
        if GRAD & MODE:
            rows = row + gl.arange(0, 64, layout=gl.SliceLayout(1, layout))
            cols = col + gl.arange(0, 64, layout=gl.SliceLayout(0, layout))
            at = rows.to(gl.int64)[:, None] * N + cols[None, :]
            gate = gl.load(extra + at, mask=(rows < M)[:, None] & (cols < N)[None, :], other=0.0)
            v = _times_slope(v, gate.to(gl.float32), ACT, out)
        else:
            v = _value(v, ACT, out)
        if SAVE & MODE:
            _send(v, y_desc, out_bufs.index(2 * WG + 1), row, col)
        else:
            _send(v, y_desc, out_bufs.index(2 * WG + PART), row, col)

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

# --------------------------------------------------------- gradient of the activation, and column sums


@triton.jit(do_not_specialize=["M"])
def _gradient_kernel(
    dy_ptr,  # [M, N], contiguous, like all pointers here from a multiple of 16 bytes on: see _dense
    pre_ptr,  # [M, N], contiguous; not read where the activation is "id"
    g_ptr,  # [M, N], contiguous: dy * act'(pre), rounded once; only with STORE
    part_ptr,  # [ceil(M / ROWS), N], float32 or float64: sums of ROWS rows of g before rounding; only with SUM
    M,
    N,
    ACT: tl.constexpr,
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
    total = tl.zeros((BM, BN), wide)
    for r in range(0, ROWS, BM):
        rows = part * ROWS + r + tl.arange(0, BM)
        mask = (rows < M)[:, None] & (cols < N)[None, :]
        at = rows[:, None] * N + cols[None, :]
        g = tl.load(dy_ptr + at, mask=mask, other=0.0).to(wide)
        if ACT != 0:
            g = _times_slope(g, tl.load(pre_ptr + at, mask=mask, other=0.0).to(wide), ACT, out)
        if STORE:
            tl.store(g_ptr + at, g.to(out), mask=mask)
        if SUM:
            total += g.to(wide)
    if SUM:
        tl.store(part_ptr + part * N + cols, tl.sum(total, 0), mask=cols < N)


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
        return [(64, 64, 16, 4, 3)]
    if dtype == torch.float32 and not allow_tf32:
        return [(128, 64, 16, 8, 3), (64, 64, 16, 8, 2), (128, 128, 16, 8, 3)]
    if dtype == torch.float32:
        return [(128, 128, 32, 8, 3), (64, 128, 32, 4, 4)]
    return [(128, 256, 64, 8, 3), (128, 128, 64, 8, 3), (64, 128, 64, 4, 4)]


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


_GROUP = 8  # rows of tiles that stay together
_TINY = (64, 32, 128)  # BM, BN, BK of the tiles that the Hopper kernel's last round is cut into


def _rounds(tiles_m: int, tiles_n: int, units: int, group: int) -> tuple[int, int, int]:
    """(tiles for the Hopper kernel, rows and columns of tiles left to the tile kernel), one tile to a unit in a round.

    A round lasts as long for one tile as for all units. Where the last round's tiles, cut into tiny ones, still have a
    unit each, only the whole rounds are the Hopper kernel's; 0 and 0 where there is no whole round, or where the
    last tiles in the order of _tile_of are not one rectangle of the last group, in the lowest right corner."""
    tiles = tiles_m * tiles_n
    left = tiles % units
    pieces = (128 // _TINY[0]) * (256 // _TINY[1])
    height = (tiles_m - 1) % group + 1  # of the last group, whose columns are the order's last
    if 0 < left < tiles and left * pieces <= units:
        if left <= height:
            return tiles - left, left, 1
        if left % height == 0 and left // height <= tiles_n:
            return tiles - left, height, left // height
    return tiles, 0, 0


def _launch_hopper(a, b, bias, gate, y, pre, mode, has_bias, transposed) -> None:
    """_launch_tiles with the persistent kernel and, where a few tiles are left after whole rounds, tiny tiles."""
    (m, k), n = a.shape, b.shape[0]
    a_t, b_t = transposed
    tiles_m, tiles_n = triton.cdiv(m, 128), triton.cdiv(n, 256)
    units = torch.cuda.get_device_properties(a.device).multi_processor_count
    bm, bn, bk = _TINY
    tiles, rest_m, rest_n = tiles_m * tiles_n, 0, 0
    # With another K the last step of bk would add more zeros than the Hopper kernel's of 64, which may turn a sum of -0
    # into 0. Of a transposed A the tile kernel loads single numbers, one step after the other. By the times above, at
    # K = 4096 a round takes 52 us and the second launch 8; that it pays from K = 1024 on is an estimate.
    if k >= 1024 and k % bk == 0 and not a_t and _aligned(a, b, bias, gate, y, pre):
        tiles, rest_m, rest_n = _rounds(tiles_m, tiles_n, units, _GROUP)
    # no more programs than the last round needs: an idle one would only draw power
    _hopper_kernel[(triton.cdiv(tiles, triton.cdiv(tiles, units)),)](
        _boxes(a.t(), 64, 128) if a_t else _boxes(a, 128, 64),
        _boxes(b.t(), 64, 128) if b_t else _boxes(b, 128, 64),
        _boxes(y, 64, 64), _boxes(pre, 64, 64), gate, bias, m, n, k, tiles, 128, n,
        MODE=mode, HAS_BIAS=has_bias, STEP=256, A_T=a_t, B_T=b_t, GROUP=_GROUP, STAGES=4,
        num_warps=4,
    )  # fmt: skip
    if rest_m == 0:
        return
    row, col = (tiles_m - rest_m) * 128, (tiles_n - rest_n) * 256
    gate, y, pre = (t[row:, col:] for t in (gate, y, pre))
    bias = bias[col:] if has_bias else y
    a, b = a[row:], b[col:]
    _tile_kernel[(triton.cdiv(m - row, bm) * triton.cdiv(n - col, bn),)](
        a, b, bias, gate, y, pre, m - row, n - col, k, *a.stride(), *b.stride(), n,
        MODE=mode, HAS_BIAS=has_bias, PRECISION="ieee", BM=bm, BN=bn, BK=bk, GROUP=_GROUP,
        num_warps=4, num_stages=4,
    )  # fmt: skip


def _launch_tiles(a, b, bias, gate, y, pre, mode, allow_tf32) -> None:
    """y = act(a @ b^T + bias), or (a @ b^T) * act'(gate); a [M, K] and b [N, K] of any strides."""
    (m, k), n = a.shape, b.shape[0]
    if m == 0 or n == 0:
        return
    has_bias = bias is not None
    # an argument that a mode does not read still has to be a tensor
    bias, gate, pre = (y if t is None else t for t in (bias, gate, pre))
    with torch.cuda.device_of(a):  # the tensor's device, not the current one
        transposed = _on_hopper(a, b, n)
        if transposed is not None:
            _launch_hopper(a, b, bias, gate, y, pre, mode, has_bias, transposed)
            return
        precision = "tf32" if allow_tf32 and a.dtype == torch.float32 else "ieee"
        kernel = _tile_kernel if _aligned(a, b, bias, gate, y, pre) else _strided_tile_kernel

        def launch(config):
            bm, bn, bk, warps, stages = config
            kernel[(triton.cdiv(m, bm) * triton.cdiv(n, bn),)](
                a, b, bias, gate, y, pre, m, n, k, *a.stride(), *b.stride(), n,
                MODE=mode, HAS_BIAS=has_bias, PRECISION=precision,
                BM=bm, BN=bn, BK=bk, GROUP=_GROUP, num_warps=warps, num_stages=stages,
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


def _launch_gradient(dy, pre, g, part, act) -> None:
    m, n = dy.shape
    dy = _dense(dy)
    pre = dy if act == 0 else _dense(pre)
    bm, bn = (_ROWS, 128) if _INTERPRETED else (16, 128)
    with torch.cuda.device_of(dy):
        _gradient_kernel[(triton.cdiv(m, _ROWS) * triton.cdiv(n, bn),)](
            dy, pre, dy if g is None else g, dy if part is None else part, m, n,
            ACT=act, STORE=g is not None, SUM=part is not None, ROWS=_ROWS, BM=bm, BN=bn, num_warps=4,
        )  # fmt: skip


# ------------------------------------------------------------------------------------- custom ops


def _none(like: Tensor) -> Tensor:
    """What an operator returns in the place of an output that was not asked for."""
    return like.new_empty((0,))


@torch.library.custom_op("verify_kernels::linear_act", mutates_args=())
def _linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, save_pre: bool, allow_tf32: bool
) -> tuple[Tensor, Tensor]:
    y = x.new_empty((x.shape[0], weight.shape[0]))
    pre = torch.empty_like(y) if save_pre else None
    mode = _ACTIVATIONS[activation] + (SAVE.value if save_pre else 0)
    _launch_tiles(x, weight, bias, None, y, pre, mode, allow_tf32)
    return y, _none(y) if pre is None else pre


@_linear.register_fake
def _(x, weight, bias, activation, save_pre, allow_tf32):
    y = x.new_empty((x.shape[0], weight.shape[0]))
    return y, torch.empty_like(y) if save_pre else _none(y)


@torch.library.custom_op("verify_kernels::linear_act_data_grad", mutates_args=())
def _data_grad(dy: Tensor, weight: Tensor, pre: Tensor, activation: str, allow_tf32: bool) -> Tensor:
    dx = dy.new_empty((dy.shape[0], weight.shape[1]))
    mode = _ACTIVATIONS[activation] + GRAD.value
    _launch_tiles(dy, weight.t(), None, pre.contiguous(), dx, None, mode, allow_tf32)
    return dx


@_data_grad.register_fake
def _(dy, weight, pre, activation, allow_tf32):
    return dy.new_empty((dy.shape[0], weight.shape[1]))


@torch.library.custom_op("verify_kernels::linear_act_gradient", mutates_args=())
def _gradient(dy: Tensor, pre: Tensor, activation: str, store: bool, total: bool) -> tuple[Tensor, Tensor]:
    """(dy * act'(pre), its column sums), each empty unless asked for. pre is not read for "id"."""
    m, n = dy.shape
    g = dy.new_empty((m, n)) if store else None
    wide = _WIDE.get(dy.dtype, torch.float32)
    part = dy.new_empty((triton.cdiv(m, _ROWS), n), dtype=wide) if total else None
    if m > 0 and n > 0:
        _launch_gradient(dy, pre, g, part, _ACTIVATIONS[activation])
    # the partial sums are added in float64, in an order that depends on their number alone
    db = _none(dy) if part is None else part.sum(0, dtype=torch.float64).to(dy.dtype)
    return _none(dy) if g is None else g, db


@_gradient.register_fake
def _(dy, pre, activation, store, total):
    m, n = dy.shape
    return dy.new_empty((m, n)) if store else _none(dy), dy.new_empty((n,)) if total else _none(dy)


# ----------------------------------------------------------------------------------------- autograd


def _curvature(x: Tensor, activation: str) -> Tensor:
    """act''(x) in differentiable operations: only a second derivative needs it."""
    if activation == "gelu":
        return (2.0 - x * x) * torch.exp(-0.5 * x * x) * RSQRT_2PI.value
    if activation == "gelu_tanh":
        a, b = TANH_A.value, TANH_B.value
        s = torch.sigmoid(x * (a + b * x * x))
        w1, w2 = a + 3.0 * b * x * x, 6.0 * b * x
        return s * (1.0 - s) * (2.0 * w1 + x * (w2 + (1.0 - 2.0 * s) * w1 * w1))
    return 2.0 * (x > 0) if activation == "squared_relu" else torch.zeros_like(x)


def _product(a: Tensor, b: Tensor, allow_tf32: bool) -> Tensor:
    """a @ b^T"""
    return _linear(a, b, None, "id", False, allow_tf32)[0]


def _save_linear(ctx, inputs, output):
    x, weight, bias, ctx.activation, ctx.saved_pre, ctx.allow_tf32 = inputs
    ctx.save_for_backward(x, weight, bias, output[1] if ctx.saved_pre else None)
    ctx.set_materialize_grads(False)


def _differentiate_linear(ctx, dy, dpre):
    """Made of the operators above, which are differentiable themselves: so is this."""
    x, weight, bias, pre = ctx.saved_tensors
    need_x, need_w, need_b = ctx.needs_input_grad[:3]
    need_b = need_b and bias is not None
    act = ctx.activation
    if not ctx.saved_pre or (dy is None and dpre is None):
        dpre = None
    g = db = None
    if dy is not None:
        dy = dy.contiguous()  # one copy at most for three readers
        if act == "id":
            g, pre = dy, dy
        elif pre is None:
            pre = _linear(x, weight, bias, "id", False, ctx.allow_tf32)[0]
        if act != "id" or need_b:
            g1, db = _gradient(dy, pre, act, act != "id", need_b)
            g = dy if act == "id" else g1
    if dpre is not None:
        more = _gradient(dpre, dpre, "id", False, True)[1] if need_b else None
        g = dpre if g is None else g + dpre
        db = more if db is None or more is None else db + more
    if g is None:
        return None, None, None, None, None, None
    dx = _product(g, weight.t(), ctx.allow_tf32) if need_x else None
    dw = _product(g.t(), x.t(), ctx.allow_tf32) if need_w else None
    return dx, dw, db if need_b else None, None, None, None


def _save_data_grad(ctx, inputs, output):
    dy, weight, pre, ctx.activation, ctx.allow_tf32 = inputs
    ctx.save_for_backward(dy, weight, pre)


def _differentiate_data_grad(ctx, u):
    dy, weight, pre = ctx.saved_tensors
    tf32, act = ctx.allow_tf32, ctx.activation
    v = u if act == "id" else _gradient(u, pre, act, True, False)[0]
    of_dy = _product(v, weight, tf32) if ctx.needs_input_grad[0] else None
    of_weight = _product(dy.t(), v.t(), tf32) if ctx.needs_input_grad[1] else None
    of_pre = None
    if ctx.needs_input_grad[2]:
        product = _product(dy, weight.t(), tf32)
        of_pre = (u.double() * product.double() * _curvature(pre.double(), act)).to(pre.dtype)
    return of_dy, of_weight, of_pre, None, None


def _save_gradient(ctx, inputs, output):
    dy, pre, ctx.activation, ctx.store, ctx.total = inputs
    ctx.save_for_backward(dy, pre)
    ctx.set_materialize_grads(False)


def _differentiate_gradient(ctx, u, ub):
    dy, pre = ctx.saved_tensors
    u = u if ctx.store else None
    ub = ub.expand(dy.shape) if ctx.total and ub is not None else None
    if u is None and ub is None:
        return None, None, None, None, None
    total = ub if u is None else u if ub is None else u + ub
    act = ctx.activation
    of_dy = total if act == "id" else _gradient(total, pre, act, True, False)[0]
    of_pre = None
    if ctx.needs_input_grad[1] and act != "id":
        of_pre = (total.double() * dy.double() * _curvature(pre.double(), act)).to(pre.dtype)
    return of_dy, of_pre, None, None, None


_linear.register_autograd(_differentiate_linear, setup_context=_save_linear)
_data_grad.register_autograd(_differentiate_data_grad, setup_context=_save_data_grad)
_gradient.register_autograd(_differentiate_gradient, setup_context=_save_gradient)

# --------------------------------------------------------------------------------- public functions

_DTYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16)


def _checked(op: str, activation: str, x: Tensor, others: tuple) -> None:
    """Raises where dtypes, devices or the activation do not fit; `others` are (name, tensor)."""
    if activation not in _ACTIVATIONS:
        names = ", ".join(_ACTIVATIONS)
        raise ValueError(f"{op}: activation must be one of {names}, got {activation!r}")
    first = "x" if op == "linear_act" else "dy"
    if x.dtype not in _DTYPES:
        raise TypeError(
            f"{op}: {first} must be float64, float32, float16 or bfloat16, got {x.dtype}; "
            f"convert it first, for example {first}.to(torch.float32)"
        )
    for name, t in others:
        if t.dtype != x.dtype:
            raise TypeError(
                f"{op}: {name} must have {first}'s dtype {x.dtype}, got {t.dtype}; "
                f"convert one of them, or run under torch.autocast"
            )
        if t.device != x.device:
            raise ValueError(f"{op}: {name} must be on {first}'s device {x.device}, got {t.device}")
    if not x.is_cuda and not _INTERPRETED and x.device.type != "meta":
        raise ValueError(
            f"{op}: {first} must be on a CUDA device, got {x.device}; move it with {first}.cuda(), or "
            "set TRITON_INTERPRET=1 before the import to run on the CPU (slow)"
        )


def _autocast(*tensors: Tensor | None) -> tuple:
    """Under torch.autocast, what torch.nn.functional.linear does: everything but float64 is cast."""
    device = tensors[0].device.type
    if device == "meta" or not torch.is_autocast_enabled(device):
        return tensors
    dtype = torch.get_autocast_dtype(device)
    keep = (None, torch.float64)
    return tuple(t if getattr(t, "dtype", None) in keep else t.to(dtype) for t in tensors)


def linear_act(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str = "id",
    save_pre: bool = False,
    allow_tf32: bool = False,
) -> Tensor | tuple[Tensor, Tensor]:
    """act(x @ weight.T + bias), rounded once; with save_pre also the rounded pre-activation.

    x: [..., K] and weight: [N, K], of any strides (weight.t() of a [K, N] matrix is read as it is).
    save_pre=True returns (y, pre) and the backward pass reads pre; otherwise it computes pre again.
    """
    x, weight, bias = _autocast(x, weight, bias)
    others = (("weight", weight),) + (() if bias is None else (("bias", bias),))
    _checked("linear_act", activation, x, others)
    if weight.dim() != 2:
        raise ValueError(f"linear_act: weight must have 2 dimensions [out, in], got shape {tuple(weight.shape)}")
    if x.dim() == 0:
        raise ValueError("linear_act: x must have at least 1 dimension, got a scalar")
    n, k = weight.shape
    if x.shape[-1] != k:
        raise ValueError(f"linear_act: weight has {k} input features, x has {x.shape[-1]}")
    if bias is not None and bias.shape != (n,):
        raise ValueError(f"linear_act: bias must have shape ({n},), one per output feature, got {tuple(bias.shape)}")
    shape = (*x.shape[:-1], n)
    bias = None if bias is None else bias.contiguous()
    y, pre = _linear(_matrix(x), weight, bias, activation, save_pre, allow_tf32)
    return (y.view(shape), pre.view(shape)) if save_pre else y.view(shape)


def linear_data_grad(dy: Tensor, weight: Tensor, pre: Tensor, activation: str, *, allow_tf32: bool = False) -> Tensor:
    """(dy @ weight) * act'(pre) in one kernel: the gradient that the layer before this one needs.

    dy: [..., N], weight: [N, K]; pre: [..., K], the pre-activation whose activation was this layer's input.
    """
    op = "linear_data_grad"
    _checked(op, activation, dy, (("weight", weight), ("pre", pre)))
    if weight.dim() != 2:
        raise ValueError(f"{op}: weight must have 2 dimensions [out, in], got shape {tuple(weight.shape)}")
    if dy.dim() == 0:
        raise ValueError(f"{op}: dy must have at least 1 dimension, got a scalar")
    n, k = weight.shape
    if dy.shape[-1] != n:
        raise ValueError(f"{op}: weight has {n} output features, dy has {dy.shape[-1]}")
    shape = (*dy.shape[:-1], k)
    if pre.shape != shape:
        raise ValueError(f"{op}: pre must have shape {shape}, got {tuple(pre.shape)}")
    return _data_grad(_matrix(dy), weight, _matrix(pre), activation, allow_tf32).view(shape)


def _matrix(x: Tensor) -> Tensor:
    """[..., K] as [M, K]: a view where the leading dimensions allow one, else a copy."""
    return x.reshape(math.prod(x.shape[:-1]), x.shape[-1])
