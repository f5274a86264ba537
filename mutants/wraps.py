"""Triton kernels whose offsets wrap in 32 bits, each beside a twin that computes them in 64.

`WRAPS` has the smallest size at which each is wrong, as its public report has it. `tests/laws/test_addresses.py` finds
these sizes by analysis, without the memory that such tensors need.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from mutants.pairs import pair

# name -> the smallest wrong sizes if one dimension grows, and where they were published
WRAPS = {
    "chunks": ((61_441,), "state-spaces/mamba 1015: about 61K tokens with 35,072 columns, in chunks of 256"),
    "fused_views": ((99_866,), "thu-ml/SageAttention 387: 56 heads of 128 in a fused projection"),
    "padded_copy": ((524_289, 3), "databricks/megablocks 185: index 524,288 with 4,096 columns"),
    "permuted": ((3, 299_595), "DeepLink-org/DLBlas 171: rows past 299,593 with 7,168 columns"),
    "block_pointer": ((524_288,), "fla-org/flash-linear-attention 1080: (T H + H - 1) K > 2^31 - 1, H = 32, K = 128"),
    "chunk_states": (
        (1_821, 9, 8, 128, 128),
        "fla-org/flash-linear-attention 818: 9 chunks, 8 heads, states of 128 x 128",
    ),
    "recurrence": ((524_289,), "fla-org/flash-linear-attention 1173: about 524K tokens, H = 32, K = 128"),
    "ragged_queries": ((262_145, 3), "sgl-project/sglang 20389: more than 262,144 tokens of stride 8,192"),
    "batched": ((275, 2_560, 3_072), "microsoft/dion 103: matrices of 2,560 x 3,072"),
    "product": ((32_769, 16, 65_536), "Comfy-Org/comfy-kitchen 172: 65,536 columns"),
    "elements": (((1 << 31) + 1,), "deepspeedai/DeepSpeed 8590: more than 2^31 elements"),
    "returning": (((1 << 31) - 2047,), "none: the program after the last one computes 2^31 in 32 bits"),
}


@triton.jit
def wide(index, RIGHT: tl.constexpr):
    """Returns an index in 64 bits; in the mutants as it is."""
    return index.to(tl.int64) if RIGHT else index


@triton.jit
def _copy_rows(x, y, rows, stride, RIGHT: tl.constexpr, CHUNK: tl.constexpr, COLUMNS: tl.constexpr):
    chunk, local, column = tl.program_id(0), tl.arange(0, CHUNK), tl.arange(0, COLUMNS)
    inside = chunk * CHUNK + local[:, None] < rows
    at = wide(chunk, RIGHT) * CHUNK * stride + wide(local[:, None], True) * stride + column[None, :]
    kept = tl.load(x + at, mask=inside)
    tl.store(y + (chunk.to(tl.int64) * CHUNK + local[:, None]) * COLUMNS + column[None, :], kept, mask=inside)


@pair("a chunk's rows of a wide projection", like=lambda x: x[:, :64] * 1, shapes={"x": "tokens 35072"},
      dtypes=["bfloat16"])  # fmt: skip
def chunks(x, *, right):
    y = x.new_empty(x.shape[0], 64)
    _copy_rows[(triton.cdiv(x.shape[0], 256),)](x, y, x.shape[0], x.stride(0), right, 256, 64)
    return y


@triton.jit
def _copy_heads(x, y, rows, row_stride, head_stride, RIGHT: tl.constexpr, BLOCK: tl.constexpr, K: tl.constexpr):
    block, head, column = tl.program_id(0), tl.program_id(1), tl.arange(0, K)
    row = block * BLOCK + tl.arange(0, BLOCK)
    inside = row[:, None] < rows
    kept = tl.load(x + head * head_stride + wide(row[:, None], RIGHT) * row_stride + column[None, :], mask=inside)
    tl.store(y + (head.to(tl.int64) * rows + row)[:, None] * K + column[None, :], kept, mask=inside)


@pair("a row of a view into a fused projection", like=lambda qkv: qkv[:, 0].transpose(0, 1) * 1,
      shapes={"qkv": "tokens 3 56 128"}, dtypes=["float16"])  # fmt: skip
def fused_views(qkv, *, right):
    q = qkv[:, 0]
    y = q.new_empty(56, q.shape[0], 128)
    _copy_heads[(triton.cdiv(q.shape[0], 32), 56)](q, y, q.shape[0], q.stride(0), q.stride(1), right, 32, 128)
    return y


@triton.jit
def _gathered(x, index, y, RIGHT: tl.constexpr, COLUMNS: tl.constexpr, STORED: tl.constexpr, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    chosen = wide(tl.load(index + row), RIGHT or STORED)
    for start in range(0, COLUMNS, BLOCK):
        column = start + tl.arange(0, BLOCK)
        kept = tl.load(x + chosen * COLUMNS + column, mask=column < COLUMNS)
        tl.store(y + wide(row, RIGHT or not STORED) * COLUMNS + column, kept, mask=column < COLUMNS)


def gathered(x, index, *, right, stored=False):
    """Returns the rows of x that the index names."""
    y = x.new_empty(index.shape[0], x.shape[1])
    _gathered[(index.shape[0],)](x, index, y, right, x.shape[1], stored, 1024)
    return y


GATHER = {"like": lambda x, index: x[index], "dtypes": ["bfloat16"]}


@pair("a loaded index", **GATHER, shapes={"x": "rows 4096", "index": "few"}, integers={"index": "0 <= index < rows"},
      operand_dtypes={"index": "int32"})  # fmt: skip
def padded_copy(x, index, *, right):
    return gathered(x, index, right=right)


@pair("a stored row", **GATHER, shapes={"x": "few 7168", "index": "rows"}, integers={"index": "0 <= index < few"},
      operand_dtypes={"index": "int32"})  # fmt: skip
def permuted(x, index, *, right):
    return gathered(x, index, right=right, stored=True)


@pair("the first query of a sequence", **GATHER, shapes={"x": "tokens 8192", "index": "batch"},
      integers={"index": "0 <= index < tokens"}, operand_dtypes={"index": "int32"})  # fmt: skip
def ragged_queries(x, index, *, right):
    return gathered(x, index, right=right)


@triton.jit
def _heads(k, y, t, RIGHT: tl.constexpr, H: tl.constexpr, K: tl.constexpr, BT: tl.constexpr):
    block, head = tl.program_id(0), tl.program_id(1)
    b, h = wide(head // H, RIGHT), head % H
    source = tl.make_block_ptr(k + (b * t * H + h) * K, (t, K), (H * K, 1), (block * BT, 0), (BT, K), (1, 0))
    base = y + ((head // H).to(tl.int64) * t * H + h) * K
    target = tl.make_block_ptr(base, (t, K), (H * K, 1), (block * BT, 0), (BT, K), (1, 0))
    tl.store(target, tl.load(source, boundary_check=(0, 1)), boundary_check=(0, 1))


@pair("the base of a block pointer", like=lambda k: k * 1, shapes={"k": "2 t 32 128"}, dtypes=["bfloat16"])  # fmt: skip
def block_pointer(k, *, right):
    y = torch.empty_like(k)
    _heads[(triton.cdiv(k.shape[1], 64), 64)](k, y, k.shape[1], right, 32, 128, 64)
    return y


@triton.jit
def _states(h, y, RIGHT: tl.constexpr, H: tl.constexpr, KV: tl.constexpr):
    i_tg, i_h, element = tl.program_id(0), tl.program_id(1), tl.arange(0, KV)
    kept = tl.load(h + (wide(i_tg, RIGHT) * H + i_h) * KV + element)
    tl.store(y + (i_tg.to(tl.int64) * H + i_h) * KV + element, kept)


@pair("the state of a chunk", like=lambda h: h * 1, shapes={"h": "b c h k v"}, where="k == 128 and v == 128")
def chunk_states(h, *, right):
    y = torch.empty_like(h)
    _states[(h.shape[0] * h.shape[1], h.shape[2])](h, y, right, h.shape[2], h.shape[3] * h.shape[4])
    return y


@triton.jit
def _recurrence(x, y, t, RIGHT: tl.constexpr, HK: tl.constexpr, K: tl.constexpr, BT: tl.constexpr):
    head, column = tl.program_id(0), tl.arange(0, K)
    total = tl.zeros([K], tl.float32)
    for i_t in range(tl.cdiv(t, BT)):
        row = i_t * BT + tl.arange(0, BT)
        at = head * K + wide(row[:, None], RIGHT) * HK + column[None, :]
        total += tl.sum(tl.load(x + at, mask=row[:, None] < t, other=0.0), 0)
    tl.store(y + head * K + column, total)


@pair("tokens of a loop", like=lambda x: x.sum(0), shapes={"x": "t 32 128"}, dtypes=["float32"],
      max_ulp=64)  # fmt: skip
def recurrence(x, *, right):
    y = x.new_empty(32, 128)
    _recurrence[(32,)](x, y, x.shape[0], right, 32 * 128, 128, 64)
    return y


@triton.jit
def _batched(a, y, stride_b, stride_m, rows, RIGHT: tl.constexpr, BM: tl.constexpr, N: tl.constexpr):
    tile, b, column = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.arange(0, N)
    row = tile * BM + tl.arange(0, BM)[:, None]
    a += wide(b, RIGHT) * stride_b
    y += b.to(tl.int64) * stride_b
    for start in range(0, stride_m, N):
        at = row * stride_m + start + column[None, :]
        inside = (row < rows) & (start + column[None, :] < stride_m)
        tl.store(y + at, tl.load(a + at, mask=inside), mask=inside)


@pair("the matrix of a batch", like=lambda a: a * 1, shapes={"a": "b m n"}, dtypes=["bfloat16"])  # fmt: skip
def batched(a, *, right):
    y = torch.empty_like(a)
    _batched[(triton.cdiv(a.shape[1], 64), a.shape[0])](a, y, a.stride(0), a.stride(1), a.shape[1], right, 64, 1024)
    return y


@triton.jit
def _product(a, b, c, M, N, RIGHT: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, K: tl.constexpr):
    row = wide(tl.program_id(0), RIGHT) * BM + tl.arange(0, BM)
    column = wide(tl.program_id(1), RIGHT) * BN + tl.arange(0, BN)
    inner = tl.arange(0, K)
    left = tl.load(a + row[:, None].to(tl.int64) * K + inner[None, :], mask=row[:, None] < M, other=0.0)
    right = tl.load(b + inner[:, None].to(tl.int64) * N + column[None, :], mask=column[None, :] < N, other=0.0)
    inside = (row[:, None] < M) & (column[None, :] < N)
    tl.store(c + row[:, None] * N + column[None, :], tl.dot(left, right), mask=inside)


@pair("the result of a product", like=torch.matmul, operands=["a", "b"], shapes={"a": "m k", "b": "k n"}, max_ulp=64,
      where="k == 16")  # fmt: skip
def product(a, b, *, right):
    y = a.new_empty(a.shape[0], b.shape[1])
    grid = triton.cdiv(a.shape[0], 32), triton.cdiv(b.shape[1], 64)
    _product[grid](a, b, y, a.shape[0], b.shape[1], right, 32, 64, a.shape[1])
    return y


@triton.jit
def _elements(x, y, n, RIGHT: tl.constexpr, BLOCK: tl.constexpr):
    at = wide(tl.program_id(0), RIGHT) * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n), mask=at < n)


@pair("every element", like=lambda x: x * 1, shapes={"x": "n"}, dtypes=["float16"])
def elements(x, *, right):
    y = torch.empty_like(x)
    _elements[(triton.cdiv(x.shape[0], 2048),)](x, y, x.shape[0], right, 2048)
    return y


@triton.jit
def _returning(x, y, n, RIGHT: tl.constexpr, BLOCK: tl.constexpr):
    block = wide(tl.program_id(0), RIGHT)
    if block * BLOCK >= n:
        return
    at = block * BLOCK + tl.arange(0, BLOCK)
    tl.store(y + at, tl.load(x + at, mask=at < n), mask=at < n)


@pair("every element, after an early return", like=lambda x: x * 1, shapes={"x": "n"})
def returning(x, *, right):
    y = torch.empty_like(x)
    _returning[(triton.cdiv(x.shape[0], 2048) + 1,)](x, y, x.shape[0], right, 2048)
    return y
