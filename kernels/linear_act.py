"""A linear layer and its activation in one kernel: act(x @ W^T + b), rounded once.

    linear_act(x, weight, bias, activation="gelu")        act(x @ weight.T + bias)
    linear_data_grad(dy, weight, pre, activation)         (dy @ weight) * act'(pre)

Mathematics, with a = x @ W^T + b (x: [..., K], W: [N, K], b: [N]):

    "id"            a                          1
    "gelu"          a Phi(a)                   Phi(a) + a phi(a)
    "gelu_tanh"     a S(a)                     S(a) + a S'(a),  S(a) = sigmoid(2 sqrt(2/pi) (a + 0.044715 a^3))
    "squared_relu"  max(a, 0)^2                2 max(a, 0)

Rounding points. Products are exact (16 bits) or fused (float32, float64). A sum is one chain in the order of k, float32
(float64 for float64). It does not depend on the tile shape, the strides or the number of rows: a row gives the same
bits alone and among others. The kernel adds the bias to that sum, applies the activation and rounds once to the
output's dtype. A product followed by PyTorch's activation rounds twice. float32 is IEEE float32 throughout; with
`allow_tf32=True` the matrix units drop 13 bits of x and W. gelu_of_sums.py has the activations and their errors.

Launches. On Hopper, a persistent kernel computes 16-bit products (hopper_product.py). It computes half of a tile's
activations while the matrix units work on the next tile. A plain tiled kernel computes the same sums, bit for bit, on
other devices, for K <= 128, for small products, whose tiles it chooses by their sizes so that they fill the GPU, and
for shapes and strides that the copy engine cannot address. On Hopper it also computes the last few tiles, cut into tiny
ones, if the whole rounds of one tile per processor leave only few (linear_tiles._rounds). At M, K, N = 8192, 4096,
16384, where 4 of 4096 tiles remain, the forward pass then takes 1.000 (bfloat16) and 0.991 (float16) of the time of
cuBLAS's bare product on an H200; without it 1.027 and 1.019.

Backward. One pass computes g = dy * act'(pre) and db. Then dx = g @ W uses the kernels above. dW = g^T @ x is a sum
over rows in two or three levels (linear_weight.py). `pre` is the rounded pre-activation. The forward pass stores it if
a gradient is needed. With recompute=True it stores nothing and the backward pass computes it again: a fourth product.
Every sum has a fixed order, so a dy that is not contiguous or starts off a multiple of 16 bytes is copied first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .checks import MODEL, Contract, under
from .gelu import second
from .gelu_autograd import derivatives
from .linear_layers import autocast, check_layer, check_operands, check_weight, matrix, shaped, wants_gradient
from .linear_tiles import ACTIVATIONS, GATES, GRAD, SAVE, activation_gradient, launch_tiles, mode_of
from .linear_weight import weight_gradient
from .operators import launcher_of, operator

# ------------------------------------------------------------------------------------- custom ops


def _layer_outputs(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, save_pre: bool, allow_tf32: bool
) -> tuple[Tensor, Any]:
    """Returns memory for the result, and for the pre-activation if `save_pre`, else None."""
    shape, n = x.shape[:-1], weight.shape[0]
    y = x.new_empty((*shape, n // 2 if _is_gate(activation) else n))
    return y, x.new_empty((*shape, n)) if save_pre else None


def _is_gate(activation: str) -> bool:
    """True for GEGLU, of linear_geglu.py: the result has half as many features as the linear layer."""
    return activation.removeprefix(MODEL) in GATES


@operator("verify_kernels::linear_act")
def _linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, save_pre: bool, allow_tf32: bool
) -> tuple[Tensor, Tensor]:
    """Returns act(x @ weight^T + bias), and the pre-activation if `save_pre`, else None."""
    y, pre = _layer_outputs(x, weight, bias, activation, save_pre, allow_tf32)
    mode = mode_of(activation, x.dtype) + (SAVE.value if save_pre else 0)
    bias = None if bias is None else bias.contiguous()
    launch_tiles(matrix(x), weight, bias, None, matrix(y), matrix(pre) if save_pre else None, mode, allow_tf32)
    return y, pre


_linear.register_fake(_layer_outputs)


@operator("verify_kernels::linear_act_data_grad")
def _data_grad(dy: Tensor, weight: Tensor, pre: Tensor, activation: str, allow_tf32: bool) -> Tensor:
    """Returns (dy @ weight) * act'(pre)."""
    dx = dy.new_empty((*dy.shape[:-1], weight.shape[1]))
    mode, pre = mode_of(activation, dy.dtype) + GRAD.value, matrix(pre).contiguous()
    launch_tiles(matrix(dy), weight.t(), None, pre, matrix(dx), None, mode, allow_tf32)
    return dx


@_data_grad.register_fake
def _(dy: Tensor, weight: Tensor, pre: Tensor, activation: str, allow_tf32: bool) -> Any:
    return dy.new_empty((*dy.shape[:-1], weight.shape[1]))


@operator("verify_kernels::linear_act_gradient")
def _gradient(dy: Tensor, pre: Tensor, activation: str, store: bool, total: bool) -> tuple[Tensor, Tensor]:
    """Returns the gradient of pre, dy * act'(pre), if `store`, its column sums if `total`, else None.

    pre is not read for "id". For GEGLU both halves of the gradient are in one tensor.
    """
    return activation_gradient(dy, pre, activation, store, total)


@_gradient.register_fake
def _(dy: Tensor, pre: Tensor, activation: str, store: bool, total: bool) -> Any:
    m, n = dy.shape
    n *= 1 + _is_gate(activation)
    return dy.new_empty((m, n)) if store else None, dy.new_empty((n,)) if total else None


# ----------------------------------------------------------------------------------------- autograd


_OF_GELU = {"gelu": "none", "gelu_tanh": "tanh", "geglu_none": "none", "geglu_tanh": "tanh"}  # the forms of gelu.py


def _times_curvature(u: Tensor, m: Tensor, pre: Tensor, act: str) -> Tensor:
    """Returns u m act''(pre) in differentiable operations, for second derivatives."""
    x, act = pre.double(), act.removeprefix(MODEL)
    if act in _OF_GELU:
        bend = derivatives(x, _OF_GELU[act])[2]
    else:
        bend = 2.0 * (x > 0) if act == "squared_relu" else torch.zeros_like(x)
    return (u.double() * m.double() * bend).to(pre.dtype)


def _gradients(
    dy: Tensor | None, dpre: Tensor | None, x: Tensor, weight: Tensor, bias: Tensor | None, pre: Tensor | None,
    how: str, need_x: bool, need_w: bool, need_b: bool, allow_tf32: bool, call: Callable[[Any], Any],
) -> tuple[Any, Any, Any]:  # fmt: skip
    """Returns dx, dweight and dbias, None for each that is not needed. dpre: gradient of the saved pre-activation.

    If `call` returns the operators themselves, which are differentiable, the results are differentiable.
    """
    linear, shape, x = call(_linear), x.shape, matrix(x)
    g = db = None
    if dy is not None:
        g = matrix(dy).contiguous()  # one copy serves three readers
        if how != "id":
            pre = linear(x, weight, bias, "id", False, allow_tf32)[0] if pre is None else matrix(pre)
            g, db = call(_gradient)(g, pre, how, True, need_b)
        elif need_b:
            db = call(_gradient)(g, g, how, False, True)[1]
    if dpre is not None:  # in a second derivative
        dpre = matrix(dpre)
        more = call(_gradient)(dpre, dpre, "id", False, True)[1] if need_b else None
        g = dpre if g is None else g + dpre
        db = more if db is None or more is None else db + more
    if g is None:
        return None, None, None
    dx = shaped(linear(g, weight.t(), None, "id", False, allow_tf32)[0], shape) if need_x else None
    dw = call(weight_gradient)(g, x, allow_tf32) if need_w else None
    return dx, dw, db


@operator("verify_kernels::linear_act_backward")
def _backward(
    dy: Tensor, x: Tensor, weight: Tensor, bias: Tensor | None, pre: Tensor | None, how: str,
    need_x: bool, need_w: bool, need_b: bool, allow_tf32: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return _gradients(dy, None, x, weight, bias, pre, how, need_x, need_w, need_b, allow_tf32, launcher_of)


@_backward.register_fake
def _(dy: Tensor, x: Tensor, weight: Tensor, bias: Any, pre: Any, how: str, *flags: bool) -> Any:
    shapes = x.shape, weight.shape, weight.shape[:1]
    return tuple(x.new_empty(shape) if need else None for need, shape in zip(flags[:3], shapes, strict=True))


def _keep(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
    x, weight, bias, ctx.how, ctx.saved_pre, ctx.allow_tf32 = inputs
    ctx.save_for_backward(x, weight, bias, output[1] if ctx.saved_pre else None)
    ctx.set_materialize_grads(False)


def _differentiate(ctx: Any, dy: Tensor | None, dpre: Tensor | None) -> tuple[Any, ...]:
    x, weight, bias, pre = ctx.saved_tensors
    need_x, need_w, need_b = ctx.needs_input_grad[:3]
    needs = need_x, need_w, need_b and bias is not None
    arguments = (x, weight, bias, pre, ctx.how, *needs, ctx.allow_tf32)
    dpre = dpre if ctx.saved_pre else None
    again = dy is None or dpre is not None or torch.is_grad_enabled()
    if again or (type(dy) is Tensor and dy.numel() == 0):
        found = _gradients(dy, dpre, *arguments, call=lambda operator: operator)
    else:
        found = _backward(dy, *arguments)
    dx, dw, db = (t if need else None for t, need in zip(found, needs, strict=True))
    return dx, dw, db, None, None, None


_linear.register_autograd(_differentiate, setup_context=_keep)


def _data_gradients(
    call: Callable[[Any], Any], u: Tensor, dy: Tensor, weight: Tensor, pre: Tensor, act: str, need_dy: bool,
    need_w: bool, need_pre: bool, allow_tf32: bool,
) -> tuple[Any, Any, Any]:  # fmt: skip
    """Returns the gradients of dy, weight and pre for the gradient u of dx, None for each that is not needed.

    If `call` returns the operators themselves, which are differentiable, the results are differentiable.
    """
    linear, shapes = call(_linear), (dy.shape, pre.shape)
    u, dy, pre = matrix(u), matrix(dy), matrix(pre).contiguous()
    of_dy = of_w = of_pre = None
    if need_dy or need_w:
        v = u if act == "id" else call(_gradient)(u, pre, act, True, False)[0]
        of_dy = shaped(linear(v, weight, None, "id", False, allow_tf32)[0], shapes[0]) if need_dy else None
        of_w = call(weight_gradient)(dy, v, allow_tf32) if need_w else None
    if need_pre:
        product = linear(dy, weight.t(), None, "id", False, allow_tf32)[0]
        form = _OF_GELU.get(act.removeprefix(MODEL))
        if call is launcher_of and form:
            of_pre = call(second)(u, product, pre, form)
        else:
            of_pre = _times_curvature(u, product, pre, act)
        of_pre = shaped(of_pre, shapes[1])
    return of_dy, of_w, of_pre


@operator("verify_kernels::linear_act_data_grad_backward")
def _data_grad_backward(
    u: Tensor, dy: Tensor, weight: Tensor, pre: Tensor, act: str, need_dy: bool, need_w: bool, need_pre: bool,
    allow_tf32: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    return _data_gradients(launcher_of, u, dy, weight, pre, act, need_dy, need_w, need_pre, allow_tf32)


@_data_grad_backward.register_fake
def _(u: Tensor, dy: Tensor, weight: Tensor, pre: Tensor, act: str, *flags: bool) -> Any:
    return tuple(t.new_empty(t.shape) if need else None for need, t in zip(flags, (dy, weight, pre), strict=False))


def _differentiate_data_grad(ctx: Any, u: Tensor) -> tuple[Any, ...]:
    needs, (act, allow_tf32) = ctx.needs_input_grad[:3], ctx.values
    arguments = (u, *ctx.saved_tensors, act, *needs, allow_tf32)
    plain = not needs[2] or act.removeprefix(MODEL) in _OF_GELU  # launches alone, which have a plan
    if torch.is_grad_enabled() or not plain:
        found = _data_gradients(lambda operator: operator, *arguments)
    else:
        found = _data_grad_backward(*arguments)
    return *(t if need else None for t, need in zip(found, needs, strict=True)), None, None


def _differentiate_gradient(ctx: Any, u: Tensor | None, ub: Tensor | None) -> tuple[Any, ...]:
    (dy, pre), (act, store, total) = ctx.saved_tensors, ctx.values
    u = u if store else None
    ub = ub.expand(len(dy), len(ub)) if total and ub is not None else None
    if u is None and ub is None:
        return None, None, None, None, None
    both: Any = ub if u is None else u if ub is None else u + ub
    of_pre: Any
    if _is_gate(act):  # in float64: d dy = u1 gelu + u2 p1 gelu', and so on
        (u1, u2), (p1, p2), d = both.double().chunk(2, -1), pre.double().chunk(2, -1), dy.double()
        value, slope, curve = derivatives(p2, _OF_GELU[act.removeprefix(MODEL)])
        of_pre = torch.cat((u2 * d * slope, d * (u1 * slope + u2 * p1 * curve)), -1)
        return (u1 * value + u2 * p1 * slope).to(dy.dtype), of_pre.to(pre.dtype), None, None, None
    of_dy = both if act == "id" else _gradient(both, pre, act, True, False)[0]
    of_pre = _times_curvature(both, dy, pre, act) if ctx.needs_input_grad[1] and act != "id" else None
    return of_dy, of_pre, None, None, None


_data_grad.register_autograd(_differentiate_data_grad)
_gradient.register_autograd(_differentiate_gradient)

# --------------------------------------------------------------------------------- public functions


def _check_activation(op: str, activation: str) -> None:
    activation = activation.removeprefix(MODEL)
    if activation not in ACTIVATIONS:
        names = ", ".join(ACTIVATIONS)
        raise ValueError(f"{op}: activation must be one of {names}, got {activation!r}")


def _check_linear(
    x: Tensor, weight: Tensor, bias: Tensor | None, activation: str, save_pre: bool, allow_tf32: bool
) -> None:
    _check_activation("linear_act", activation)
    check_operands("linear_act", "x", x, (("weight", weight), ("bias", bias)))
    check_layer("linear_act", x, weight, bias)


def _check_data_grad(dy: Tensor, weight: Tensor, pre: Tensor, activation: str, allow_tf32: bool) -> None:
    op = "linear_data_grad"
    _check_activation(op, activation)
    check_operands(op, "dy", dy, (("weight", weight), ("pre", pre)))
    check_weight(op, "dy", dy, weight)
    n, k = weight.shape
    if dy.shape[-1] != n:
        raise ValueError(f"{op}: weight has {n} output features, dy has {dy.shape[-1]}")
    if pre.shape != (*dy.shape[:-1], k):
        raise ValueError(f"{op}: pre must have shape {(*dy.shape[:-1], k)}, got {tuple(pre.shape)}")


def linear_act(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    *,
    activation: str = "id",
    return_pre: bool = False,
    recompute: bool = False,
    allow_tf32: bool = False,
    contract: Contract = "once",
) -> Tensor | tuple[Tensor, Tensor]:
    """Returns act(x @ weight.T + bias), rounded once. return_pre=True adds the rounded pre-activation.

    x: [..., K] and weight: [N, K] may have any strides; weight.t() of a [K, N] matrix is read in place. If a gradient
    is needed, the pre-activation is stored, rounded to x's dtype. recompute=True stores nothing and computes it again.
    contract="model" rounds the pre-activation before its activation too, as act(torch.nn.functional.linear(...)) does.
    """
    how = under(contract, "linear_act", activation) if activation != "id" else activation
    x, weight, bias = autocast(x, weight, bias)
    wanted = not recompute and activation != "id" and wants_gradient(x, weight, bias)
    y, pre = _linear.checked(_check_linear, x, weight, bias, how, return_pre or wanted, allow_tf32)
    return (y, pre) if return_pre else y


def linear_data_grad(
    dy: Tensor, weight: Tensor, pre: Tensor, activation: str, *, allow_tf32: bool = False, contract: Contract = "once"
) -> Tensor:
    """Returns (dy @ weight) * act'(pre) in one kernel: the gradient that the previous layer needs.

    dy: [..., N], weight: [N, K]; pre: [..., K], the pre-activation whose activation was this layer's input.
    """
    how = under(contract, "linear_data_grad", activation) if activation != "id" else activation
    return _data_grad.checked(_check_data_grad, dy, weight, pre, how, allow_tf32)
