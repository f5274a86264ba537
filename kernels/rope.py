"""Rotary position embedding of queries and keys, one launch each way (Triton).

    q, k = rope(q, k, cos, sin)      q [batch, heads, tokens, d], k [batch, heads of k, tokens, d]
                                     cos, sin [batch or 1, tokens, r], r <= d

The first r numbers of a head turn, in two halves (x1, x2), as in Hugging Face's models; the others stay. The angles of
a token have two halves too: cos = (c1, c2) and sin = (s1, s2). Then

    y1 = x1 c1 - x2 s1          dx1 = dy1 c1 + dy2 s2
    y2 = x2 c2 + x1 s2          dx2 = dy2 c2 - dy1 s1

The backward pass is the transposed rotation: the same kernel, so derivatives of any order are launches of it. Only cos
and sin are kept for it, and they get no gradient. Operands have any strides and are read in place. A program turns a
few heads of a few tokens of one batch, of q or of k; an element depends on its own operands alone.

Rounding, for angles in the dtype of q and k, or in float32 beside 16 bits:

    16 bits           products are exact in float32 (float64 beside float32 angles); their sum is rounded to float32,
                      then to the result: 0.5 + 2^-13 ULP (float16), 0.5 + 2^-16 (bfloat16)
    float32           products are exact in float64: 0.5 + 2^-28 ULP
    float64           Kahan's sum of two products: at most 1.5 ULP
    contract="model"  16 bits: the products are rounded too, as eager PyTorch's are, to 16 bits or to float32 if the
                      angles are float32. Gradients of products are rounded to 16 bits.

Only the fused multiply-adds written here are fused (enable_fp_fusion=False): LLVM would fuse a product rounded to 16
bits with the sum, and leave out the rounding.
"""

from __future__ import annotations

import itertools
from typing import Any

import torch
import triton
import triton.language as tl
from torch import Tensor

from .arithmetic import narrowed, neg
from .checks import Contract, check_dtype, rounds_as_model, under
from .launch import INTERPRETED, INTERPRETER_BLOCK, check_device, check_strided, of_any_alignment
from .operators import operator
from .plans import run

__all__ = ["rope"]


@triton.jit
def _turned(a, c, b, s, SIGN: tl.constexpr, MODEL: tl.constexpr, TRANSPOSED: tl.constexpr):
    """Returns a c + SIGN b s in the dtype of a and b."""
    TYPE: tl.constexpr = a.dtype
    SAME: tl.constexpr = c.dtype == a.dtype
    EXACT: tl.constexpr = tl.float32 if SAME and a.dtype.primitive_bitwidth == 16 else tl.float64  # holds a product
    ROUNDED: tl.constexpr = TYPE if SAME or TRANSPOSED else tl.float32  # the products of MODEL
    x, c, z, s = a.to(EXACT), c.to(EXACT), b.to(EXACT) * SIGN, s.to(EXACT)
    p = z * s
    if a.dtype == tl.float64:
        y = tl.fma(x, c, p)
        y += tl.where(p * 0.0 == 0.0, tl.fma(z, s, neg(p)), 0.0)  # what p lost; not of an infinite p
    elif MODEL:
        y = narrowed(x * c, ROUNDED) + narrowed(p, ROUNDED)
        if TRANSPOSED:
            y += 0.0  # autograd adds the zeros of the gradient of a half: -0 becomes 0
    else:
        y = tl.fma(x, c, p)
    return y.to(tl.float32).to(TYPE) if a.dtype.primitive_bitwidth == 16 else y.to(TYPE)  # the last rounding


@triton.jit
def _tile(
    x_ptr, y_ptr, cos_ptr, sin_ptr,  # of this batch
    x_head, x_token, x_column, y_head, y_token, y_column,  # elements from one to the next
    cos_token, cos_column, sin_token, sin_column,
    tile, heads, tokens,
    TOKENS: tl.constexpr, HEADS: tl.constexpr, HALF: tl.constexpr, REST: tl.constexpr, BLOCK: tl.constexpr,
    MODEL: tl.constexpr, TRANSPOSED: tl.constexpr,
):  # fmt: skip
    """Turns TOKENS x HEADS heads, fewer at the ends."""
    groups = tl.cdiv(heads, HEADS)
    token = (tile // groups).to(tl.int64) * TOKENS + tl.arange(0, TOKENS)[:, None, None]
    head = (tile % groups).to(tl.int64) * HEADS + tl.arange(0, HEADS)[None, :, None]
    first = tl.arange(0, BLOCK)[None, None, :].to(tl.int64)
    second = first + HALF
    of_token = (token < tokens) & (first < HALF)
    there = (token < tokens) & (head < heads)
    mask = there & (first < HALF)
    x_ptr += token * x_token + head * x_head
    y_ptr += token * y_token + head * y_head
    cos_ptr += token * cos_token
    sin_ptr += token * sin_token
    x1, x2 = tl.load(x_ptr + first * x_column, mask=mask), tl.load(x_ptr + second * x_column, mask=mask)
    c1, c2 = tl.load(cos_ptr + first * cos_column, mask=of_token), tl.load(cos_ptr + second * cos_column, mask=of_token)
    s1, s2 = tl.load(sin_ptr + first * sin_column, mask=of_token), tl.load(sin_ptr + second * sin_column, mask=of_token)
    if TRANSPOSED:
        s1, s2 = s2, s1
    y1 = _turned(x1, c1, x2, s1, 2 * TRANSPOSED - 1, MODEL, TRANSPOSED)
    y2 = _turned(x2, c2, x1, s2, 1 - 2 * TRANSPOSED, MODEL, TRANSPOSED)
    tl.store(y_ptr + first * y_column, y1, mask=mask)
    tl.store(y_ptr + second * y_column, y2, mask=mask)
    for start in tl.static_range(2 * HALF, 2 * HALF + REST, BLOCK):
        column = first + start
        within = there & (column < 2 * HALF + REST)
        x = tl.load(x_ptr + column * x_column, mask=within)
        if MODEL and TRANSPOSED:
            x = (x.to(tl.float32) + 0.0).to(x1.dtype)
        tl.store(y_ptr + column * y_column, x, mask=within)


@triton.jit(do_not_specialize=["q_tiles", "q_heads", "k_heads", "tokens", "batches"])
def _rope_kernel(
    q_ptr, k_ptr,  # queries and keys, or gradients of their results when TRANSPOSED
    cos_ptr, sin_ptr,
    q_out_ptr, k_out_ptr,  # outputs, same dtype
    q_batch, q_head, q_token, q_column, k_batch, k_head, k_token, k_column,  # elements from one to the next
    cos_batch, cos_token, cos_column, sin_batch, sin_token, sin_column,
    q_out_batch, q_out_head, q_out_token, q_out_column, k_out_batch, k_out_head, k_out_token, k_out_column,
    q_tiles,  # the programs of q in one batch, before those of k
    q_heads, k_heads, tokens, batches,
    Q_TOKENS: tl.constexpr, Q_HEADS: tl.constexpr, K_TOKENS: tl.constexpr, K_HEADS: tl.constexpr,
    HALF: tl.constexpr, REST: tl.constexpr, BLOCK: tl.constexpr, MODEL: tl.constexpr, TRANSPOSED: tl.constexpr,
):  # fmt: skip
    tile = tl.program_id(0)
    batch = (tl.program_id(1) + tl.program_id(2) * tl.num_programs(1)).to(tl.int64)
    tokens = tl.where(batch < batches, tokens, 0)
    cos_ptr += batch * cos_batch
    sin_ptr += batch * sin_batch
    if tile < q_tiles:
        _tile(
            q_ptr + batch * q_batch, q_out_ptr + batch * q_out_batch, cos_ptr, sin_ptr,
            q_head, q_token, q_column, q_out_head, q_out_token, q_out_column,
            cos_token, cos_column, sin_token, sin_column,
            tile, q_heads, tokens, Q_TOKENS, Q_HEADS, HALF, REST, BLOCK, MODEL, TRANSPOSED,
        )  # fmt: skip
    else:
        _tile(
            k_ptr + batch * k_batch, k_out_ptr + batch * k_out_batch, cos_ptr, sin_ptr,
            k_head, k_token, k_column, k_out_head, k_out_token, k_out_column,
            cos_token, cos_column, sin_token, sin_column,
            tile - q_tiles, k_heads, tokens, K_TOKENS, K_HEADS, HALF, REST, BLOCK, MODEL, TRANSPOSED,
        )  # fmt: skip


_OF_ANY_ALIGNMENT = of_any_alignment(_rope_kernel)
BYTES = 2048  # of each half in a program


def _strides(t: Tensor) -> tuple[int, ...]:
    """Returns the strides; that of a dimension with one element, which may be anything, is 0."""
    return tuple(stride if n > 1 else 0 for n, stride in zip(t.shape, t.stride(), strict=True))


def _shape(x: Tensor, rows: int) -> tuple[int, int, int]:
    """Returns tokens and heads of a program, at most `rows` together, and the programs of a batch."""
    _, heads, tokens, _ = x.shape
    most = triton.next_power_of_2(max(heads, 1))
    # eight heads share the load of their angles; more if they fill the tile; one where tokens are side by side
    across = 1 if x.stride(2) < x.stride(1) else min(rows, most, max(8, heads & -heads))
    down = min(rows // across, triton.next_power_of_2(tokens))
    return down, across, triton.cdiv(tokens, down) * triton.cdiv(heads, across)


@operator("precise_rope::rotate")
def _rotate(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, contract: str, transposed: bool) -> tuple[Tensor, Tensor]:
    """Returns q and k turned by the angles, or back."""
    results = torch.empty_like(q), torch.empty_like(k)  # the layout that torch's elementwise operators give
    batches, half = q.shape[0], cos.shape[2] // 2
    if q.numel() + k.numel() == 0:
        return results
    block = triton.next_power_of_2(max(half, 1))
    rows = max(1, (INTERPRETER_BLOCK if INTERPRETED else BYTES // q.element_size()) // block)
    (q_down, q_across, q_tiles), (k_down, k_across, k_tiles) = (_shape(x, rows) for x in (q, k))
    deep = triton.cdiv(batches, 65535)  # a dimension of the grid has no more programs
    tensors = (q, k, cos, sin, *results)
    strides = [_strides(t) for t in tensors]
    kernel = _rope_kernel
    regular = all(each[-1] == 1 and not any(stride % 16 for stride in each[:-1]) for each in strides)
    if not regular or any(t.data_ptr() % 16 for t in tensors):
        kernel = _OF_ANY_ALIGNMENT
    with torch.cuda.device_of(q):  # which may differ from the current one
        run(
            kernel, (q_tiles + k_tiles, triton.cdiv(batches, deep), deep), *tensors, *itertools.chain(*strides),
            q_tiles, q.shape[1], k.shape[1], q.shape[2], batches, Q_TOKENS=q_down, Q_HEADS=q_across, K_TOKENS=k_down,
            K_HEADS=k_across, HALF=half, REST=q.shape[3] - 2 * half, BLOCK=block, TRANSPOSED=transposed,
            MODEL=rounds_as_model(contract, q.dtype), num_warps=4, enable_fp_fusion=False,
        )  # fmt: skip
    return results


def _keep_angles(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    ctx.save_for_backward(*inputs[2:4])
    ctx.values = inputs[4:]


def _differentiate(ctx: Any, dq: Tensor, dk: Tensor) -> tuple[Any, ...]:
    contract, transposed = ctx.values
    return *_rotate.checked(None, dq, dk, *ctx.saved_tensors, contract, not transposed), None, None, None, None


_rotate.register_fake(lambda q, k, cos, sin, contract, transposed: (torch.empty_like(q), torch.empty_like(k)))
_rotate.register_autograd(_differentiate, _keep_angles)


def _check(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, contract: str, transposed: bool) -> None:
    """Raises if an operand breaks a rule."""
    check_dtype("rope", "q", q)
    for name, t in (("q", q), ("k", k), ("cos", cos), ("sin", sin)):
        check_strided("rope", name, t)
    check_device("rope", "q", q)
    got = ", ".join(f"{tuple(t.shape)} {t.dtype} on {t.device}" for t in (q, k, cos, sin))
    fits = q.dim() == k.dim() == cos.dim() + 1 == 4 and k.shape == (q.shape[0], k.shape[1], *q.shape[2:])
    turned = cos.shape[-1] if fits else 0
    angles = [(batches, q.shape[2], turned) for batches in (q.shape[0], 1)] if fits else []
    if turned % 2 or turned > q.shape[-1] or cos.shape not in angles or sin.shape not in angles:
        raise ValueError(
            "rope: q has shape [batch, heads, tokens, d], k [batch, heads of k, tokens, d], cos and sin "
            f"[batch or 1, tokens, r] with an even r of at most d; got {got}"
        )
    dtypes = k.dtype == q.dtype and cos.dtype == sin.dtype and cos.dtype in (q.dtype, torch.float32)
    if not dtypes or any(t.device != q.device for t in (k, cos, sin)):
        raise ValueError(f"rope: q and k have one dtype, cos and sin that one or float32, all one device; got {got}")


def rope(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, *, contract: Contract = "once") -> tuple[Tensor, Tensor]:
    """Returns q cos + rotate_half(q) sin and the same of k, in their dtype: apply_rotary_pos_emb of Hugging Face.

    Args:
        cos, sin: get no gradient; if a table of angles needs one, use PyTorch's operators
        contract: "once" rounds each result once, "model" gives the bits of the eager function in 16 bits
    """
    if torch.is_grad_enabled() and (cos.requires_grad or sin.requires_grad):
        raise ValueError("rope: cos and sin get no gradient; pass cos.detach() and sin.detach()")
    return _rotate.checked(_check, q, k, cos, sin, under(contract, "rope", ""), False)
