"""Triton kernels that the backend tests run through the interpreter."""

import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.language.extra.cuda.libdevice import erfc as imported_erfc


@triton.jit
def cast(x, y, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(y + i, tl.load(x + i).to(y.dtype.element_ty))


@triton.jit
def fused(x, y, z, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.fma(tl.load(x + i), tl.load(y + i), tl.load(z + i)))


@triton.jit
def arithmetic(x, y, out, N: tl.constexpr, OP: tl.constexpr):
    i = tl.arange(0, N)
    a, b = tl.load(x + i), tl.load(y + i)
    if OP == "add":
        r = a + b
    elif OP == "minimum":
        r = tl.minimum(a, b)
    tl.store(out + i, r)


@triton.jit
def compare(x, y, out, N: tl.constexpr):
    i = tl.arange(0, N)
    a, b = tl.load(x + i), tl.load(y + i)
    code = (a < b).to(tl.int32) + 2 * (a <= b).to(tl.int32) + 4 * (a == b).to(tl.int32)
    code += 8 * (a != b).to(tl.int32) + 16 * (a > b).to(tl.int32) + 32 * (a >= b).to(tl.int32)
    tl.store(out + i, code)


@triton.jit
def threads(out):
    tl.store(out, tl.extra.cuda.num_threads())
    tl.store(out + 1, tl.extra.cuda.num_warps())


@triton.jit
def constants(out):
    tl.store(out + tl.arange(0, 4), tl.full([4], 0.1, out.dtype.element_ty))
    tl.store(out + 4 + tl.arange(0, 4), tl.full([4], 1e-7, out.dtype.element_ty))


@triton.jit
def special(x, out, N: tl.constexpr, F: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    if F == "erf":
        r = libdevice.erf(a)
    elif F == "erfc":
        r = imported_erfc(a)
    elif F == "tanh":
        r = libdevice.tanh(a)
    elif F == "normcdf":
        r = tl.extra.cuda.libdevice.normcdf(a)
    elif F == "expm1":
        r = libdevice.expm1(a)
    elif F == "tl.erf":
        r = tl.erf(a)
    elif F == "tl.exp":
        r = tl.exp(a)
    elif F == "tl.rsqrt":
        r = tl.rsqrt(a)
    elif F == "tl.log":
        r = tl.log(a)
    elif F == "tl.div_rn":
        r = tl.div_rn(1.0, a)
    tl.store(out + i, r)


@triton.jit
def unknown_symbol(x, out):
    i = tl.arange(0, 4)
    tl.store(out + i, libdevice.j0(tl.load(x + i)))


@triton.jit
def product(a, b, c, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr):
    m, n, k = tl.arange(0, M), tl.arange(0, N), tl.arange(0, K)
    at = c + m[:, None] * N + n[None, :]
    x = tl.load(a + m[:, None] * K + k[None, :])
    y = tl.load(b + k[:, None] * N + n[None, :])
    tl.store(at, tl.dot(x, y, tl.load(at), input_precision=PRECISION))


@triton.jit
def reduction(x, out, M: tl.constexpr, N: tl.constexpr, OP: tl.constexpr):
    m, n = tl.arange(0, M), tl.arange(0, N)
    a = tl.load(x + m[:, None] * N + n[None, :])
    if OP == "sum":
        r = tl.sum(a, axis=1)
    elif OP == "max":
        r = tl.max(a, axis=1)
    elif OP == "min":
        r = tl.min(a, axis=1)
    elif OP == "argmax":
        r = tl.argmax(a, axis=1)
    elif OP == "custom":
        r = tl.reduce(a, 1, product_of_sums)
    elif OP == "branching":
        r = tl.reduce(a, 1, larger_by_branch)
    tl.store(out + m, r.to(out.dtype.element_ty))


@triton.jit
def product_of_sums(a, b):
    return a + b + a * b


@triton.jit
def larger_by_branch(a, b):
    if a > b:
        r = a
    else:
        r = b
    return r


@triton.jit
def moments(x, out, N: tl.constexpr):
    """A reduction of three tensors at once, as Welford's algorithm does it."""
    a = tl.load(x + tl.arange(0, N))
    mean, m2, count = tl.reduce((a, tl.zeros_like(a), tl.full([N], 1.0, tl.float32)), 0, welford)
    tl.store(out, mean)
    tl.store(out + 1, m2 / count)


@triton.jit
def welford(mean_a, m2_a, n_a, mean_b, m2_b, n_b):
    delta = mean_b - mean_a
    n = n_a + n_b
    return mean_a + delta * (n_b / n), m2_a + m2_b + delta * delta * n_a * (n_b / n), n


@triton.jit
def scan(x, out, N: tl.constexpr, OP: tl.constexpr, REVERSE: tl.constexpr):
    i = tl.arange(0, N)
    a = tl.load(x + i)
    if OP == "cumsum":
        r = tl.cumsum(a, 0, reverse=REVERSE)
    elif OP == "cumprod":
        r = tl.cumprod(a, 0, reverse=REVERSE)
    elif OP == "sum_in_type":
        r = tl.associative_scan(a, 0, plus, reverse=REVERSE)
    tl.store(out + i, r.to(out.dtype.element_ty))


@triton.jit
def plus(a, b):
    return a + b


@triton.jit
def sorted_descending(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.sort(tl.load(x + i), descending=True))


@triton.jit
def divide_by_zero_in_masked_lanes(x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    a = tl.load(x + i, mask=i < n, other=0.0)
    tl.store(out + i, tl.log(a) / a + (7 // a.to(tl.int32)).to(tl.float32), mask=i < n)


@triton.autotune(configs=[triton.Config({"BLOCK": 32}), triton.Config({"BLOCK": 64})], key=["n"])
@triton.jit
def tuned(x, out, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n) * 2.0, mask=i < n)
    tl.store(out + n, BLOCK * 1.0)


@triton.jit
def assembly_fma(x, y, z, out, N: tl.constexpr):
    i = tl.arange(0, N)
    r = tl.inline_asm_elementwise(
        """{ .reg .f32 t; mul.rn.f32 t, $1, $2; // the product, rounded
             fma.rn.f32 $0, $1, $2, $3; sub.rn.f32 $0, $0, t; }""",
        "=f,f,f,f",
        [tl.load(x + i), tl.load(y + i), tl.load(z + i)],
        dtype=tl.float32,
        is_pure=True,
        pack=1,
    )
    tl.store(out + i, r)


@triton.jit
def assembly_unknown(x, out, N: tl.constexpr):
    i = tl.arange(0, N)
    r = tl.inline_asm_elementwise(
        "shfl.sync.bfly.b32 $0, $1, 1, 31, -1;", "=f,f", [tl.load(x + i)], dtype=tl.float32, is_pure=True, pack=1
    )
    tl.store(out + i, r)


@triton.jit
def padded(x, out):
    p = tl.make_block_ptr(x, (6,), (1,), (0,), (8,), (0,))
    tl.store(out + tl.arange(0, 8), tl.load(p, boundary_check=(0,), padding_option="nan"))
    tl.store(out + 8 + tl.arange(0, 8), tl.load(p, boundary_check=(0,), padding_option="zero"))


@triton.jit
def padded_descriptor(x, out):
    nan = tl.make_tensor_descriptor(x, [6], [1], [8], padding_option="nan")
    zero = tl.make_tensor_descriptor(x, [6], [1], [8])
    tl.store(out + tl.arange(0, 8), nan.load([0]))
    tl.store(out + 8 + tl.arange(0, 8), zero.load([0]))


@triton.jit
def approximate_division(x, y, out, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(out + i, tl.fdiv(tl.load(x + i), tl.load(y + i), approx=True))


@triton.jit
def atomic_pairs(x, out, old, N: tl.constexpr):
    i = tl.arange(0, N)
    tl.store(old + i, tl.atomic_add(out + i // 2, tl.load(x + i), mask=i < N - 2))


@triton.jit
def float_argument(out, s, N: tl.constexpr):
    """s^2 - 1: the last bits say in which precision the argument was squared."""
    tl.store(out + tl.arange(0, N), tl.zeros((N,), tl.float32) + (s.to(tl.float32) * s - 1.0))


# -- launch arguments: each of these stores a number made of n ------------------------------------


@triton.jit
def method_of_argument(out, n):
    """Compiles for every n but 1."""
    tl.store(out, n.to(tl.int64))


@triton.jit
def method_of_product(out, n):
    tl.store(out, (3 * n - 1).to(tl.int64))


@triton.jit
def type_of_argument(out, n):
    tl.store(out, tl.full((), 5, n.dtype))


@triton.jit
def method_in_a_device_function(out, n):
    tl.store(out, as_int64(n))


@triton.jit
def as_int64(n):
    return n.to(tl.int64)


@triton.jit
def method_of_tuple_element(out, sizes):
    tl.store(out, sizes[0].to(tl.int64))


@triton.jit
def method_of_assigned(out, n):
    m = n
    tl.store(out, m.to(tl.int64))


@triton.jit
def method_of_augmented(out, n):
    n += 1
    tl.store(out, n.to(tl.int64))


@triton.jit
def method_of_returned(out, n):
    tl.store(out, tl.cdiv(n, 4).to(tl.int64) + twice(n).to(tl.int64))


@triton.jit
def twice(n):
    return 2 * n


@triton.jit
def cast_argument(out, n):
    tl.store(out, tl.cast(n, tl.int64))


@triton.jit(do_not_specialize=["n"])
def method_of_listed(out, n):
    tl.store(out, n.to(tl.int64))


@triton.jit(do_not_specialize_on_alignment=["n"])
def method_of_listed_for_alignment(out, n):
    tl.store(out, n.to(tl.int64))


@triton.jit
def method_of_annotated(out, n: tl.int64):
    tl.store(out, (n * 2147483647 * 4).to(tl.int64))


@triton.jit
def method_of_default(out, n=1):
    tl.store(out, n.to(tl.int64))


@triton.jit
def method_of_flag(out, n):
    tl.store(out, tl.where(~n, 10, 20) + n.to(tl.int32))


@triton.jit
def method_of_none(out, n):
    if n is not None:
        tl.store(out, n.to(tl.int64))


@triton.jit
def numbers(x, out, n, m, BLOCK: tl.constexpr):
    """Index arithmetic in every way that kernels use."""
    i = tl.arange(0, BLOCK)
    at = (tl.program_id(0) * n + i) * m
    total = tl.zeros([BLOCK], tl.int64)
    for start in range(0, n, 1):
        total += start + (n << 3) // (m + 2) - (7 % n) + (-n) * m + (n ^ m) + (n | 2) + (1 + n) * (5 - m)
    if n == 1 and m < 3:
        total += 100
    if not (n > m):
        total += tl.cdiv(n, m) + tl.minimum(n, m) + tl.where(i < n, n, m)
    small = tl.load(x + at, mask=i < n, other=0) * n + n / 4 * m
    tl.store(out + i, total + small.to(tl.int64))


@triton.jit
def bytes_times(x, out, n):
    i = tl.arange(0, 4)
    x = tl.load(x + i)
    tl.store(out + i, (x * n + x).to(tl.int64))


@triton.jit
def logic_of_blocks(x, out, m, n, BLOCK: tl.constexpr):
    r = tl.arange(0, BLOCK)[:, None]
    c = tl.arange(0, BLOCK)[None, :]
    inside = (r < m) and (c < n)
    values = tl.load(x + r * n + c, mask=inside, other=-1.0)
    tl.store(out + r * BLOCK + c, values, mask=not inside or (r == c and not (r >= 1)))


@triton.jit
def logic_of_constants(out, n, FLAG: tl.constexpr):
    if FLAG and n > 2 and not (n > 6):
        tl.store(out, 1)
    if not FLAG or n > 5:
        tl.store(out + 1, 1)


@triton.jit
def counting_condition(out, n):
    if n > 100 and tl.atomic_add(out, 1) > 100:
        tl.store(out, -1)


@triton.jit
def chained_comparison(out, n):
    if 0 < n < 5:
        tl.store(out, 1)


@triton.jit
def offsets_of_turns(out, n, STEP: tl.constexpr):
    for turn in range(tl.cdiv(n, STEP)):
        wide = turn.to(tl.int64)
        tl.store(out + turn, wide * 2147483648 + turn)
