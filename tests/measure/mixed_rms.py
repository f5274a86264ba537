"""RMS norm as mixed precision trains it: 16-bit data beside a float32 weight, and 1 / rms in float32."""

import torch
import triton
import triton.language as tl

import verify


@triton.jit
def _forward(x_ptr, weight_ptr, y_ptr, rstd_ptr, n, NARROW: tl.constexpr, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + at, mask=at < n, other=0.0).to(tl.float32)
    rstd = 1 / tl.sqrt_rn(tl.sum(x * x) / n + 1e-6)
    weight = tl.load(weight_ptr + at, mask=at < n, other=0.0)
    if NARROW:
        weight = weight.to(y_ptr.dtype.element_ty)
    tl.store(y_ptr + row * n + at, x * rstd * weight.to(tl.float32), mask=at < n)
    tl.store(rstd_ptr + row, rstd)


@triton.jit
def _backward(dy_ptr, x_ptr, weight_ptr, rstd_ptr, dx_ptr, parts_ptr, n, BLOCK: tl.constexpr):
    row, at = tl.program_id(0), tl.arange(0, BLOCK)
    x = tl.load(x_ptr + row * n + at, mask=at < n, other=0.0).to(tl.float32)
    dy = tl.load(dy_ptr + row * n + at, mask=at < n, other=0.0).to(tl.float32)
    weight = tl.load(weight_ptr + at, mask=at < n, other=0.0).to(tl.float32)
    rstd = tl.load(rstd_ptr + row)
    wide = x * rstd
    dx = rstd * (dy * weight - wide * tl.sum(dy * weight * wide) / n)
    tl.store(dx_ptr + row * n + at, dx, mask=at < n)
    tl.store(parts_ptr + row * n + at, dy * wide, mask=at < n)


class Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, bug):
        if not x.is_floating_point():
            raise TypeError(f"x is floating point; received {x.dtype}")
        rows = x.reshape(-1, x.shape[-1]).contiguous()
        y, rstd = torch.empty_like(rows), rows.new_empty(rows.shape[0], dtype=torch.float32)
        block = triton.next_power_of_2(rows.shape[1])
        _forward[(rows.shape[0],)](rows, weight.contiguous(), y, rstd, rows.shape[1], bug == "narrow", BLOCK=block)
        ctx.save_for_backward(rows, weight, rstd)
        ctx.bug = bug
        shown = rstd.reshape(x.shape[:-1])
        ctx.mark_non_differentiable(shown)
        return y.view(x.shape), shown.to(x.dtype) if bug == "statistics" else shown

    @staticmethod
    def backward(ctx, dy, _):
        rows, weight, rstd = ctx.saved_tensors
        dx, parts = torch.empty_like(rows), torch.empty_like(rows, dtype=torch.float32)
        block = triton.next_power_of_2(rows.shape[1])
        shape, weight, dy = dy.shape, weight.contiguous(), dy.reshape(rows.shape).contiguous()
        _backward[(rows.shape[0],)](dy, rows, weight, rstd, dx, parts, rows.shape[1], BLOCK=block)
        return dx.view(shape), parts.sum(0).to(weight.dtype), None


def _meaning(x, weight):
    rstd = torch.rsqrt(x.square().mean(-1) + 1e-6)
    return x * rstd[..., None] * weight, rstd.detach()


MIXED = {
    "like": _meaning,
    "shapes": {"x": "n d", "weight": "d"},
    "outputs": ["y", "rstd"],
    "dtypes": ["bfloat16"],
    "operand_dtypes": {"weight": "float32"},
    "output_dtypes": {"rstd": "float32"},
    "max_ulp": {"bfloat16": 0.51, "float32": 4},
    "where": "n == 2 and d in (3, 8)",
    "largest": 1e12,
}


def declared(bug, **options):
    """The kernel with a bug that only operands of two dtypes show."""
    return verify.kernel(name="norm", **options)(lambda x, weight: Norm.apply(x, weight, bug))


@verify.kernel(**MIXED)
def norm(x, weight):
    return Norm.apply(x, weight, "")


def picked(x, at):
    assert at.dtype != torch.int64, "the declaration names another dtype"
    return x.gather(-1, at.long())
