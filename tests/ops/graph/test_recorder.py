"""A function is followed as PyTorch runs it: memory that is written to, constants, shapes; and what is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import verify
from verify.errors import UsageError
from verify.ops.graph.inference import result_of
from verify.ops.graph.program import trace
from verify.ops.graph.spans import Span
from verify.ops.graph.steps import Run

_aten = torch.ops.aten


def _random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float32).double()


def _view_of_view(x: Tensor) -> Any:
    y = x.clone()
    inner = y[1:].t()[2:]
    inner.mul_(3)
    y[0] = 7.0
    return y, inner, inner.sum() * y[:, 0]


def _base_first(x: Tensor) -> Tensor:
    y = x * 1
    row = y[1]
    y.add_(1)
    row.mul_(2)
    y[:, 2] -= row[2]
    return y * row


def _columns(x: Tensor) -> Tensor:
    y = torch.zeros_like(x)
    for place in range(x.shape[1]):
        y[:, place] = x[:, : place + 1].sum(1)
    return y


def _copied(x: Tensor) -> Tensor:
    y = torch.zeros(2, 3, 5)
    y.copy_(x[0])
    y[1].copy_(x)
    return y


def _accumulated(x: Tensor) -> Tensor:
    y, rows, columns = x.clone(), torch.tensor([0, 0, 2]), torch.tensor([1, 1, 3])
    y.index_put_((rows, columns), x[1, :3], accumulate=True)
    y[torch.tensor([2, 0])] = x[1] * 2
    return y


def _transposed(x: Tensor) -> Tensor:
    y = x.t().clone()  # lies as x does
    y[1] = 3.0
    y.add_(x.t())
    z = x.t().contiguous()
    z.view(-1)[2:4].mul_(5)
    return y * z


def _copied_or_not(x: Tensor) -> Any:
    y = x.t() * 2
    flat = y.reshape(-1)  # a copy, as y does not lie in order
    flat.add_(1)
    z = x * 3
    z.reshape(-1).add_(1)
    return y, flat, z


def _moved_in_place(x: Tensor) -> Tensor:
    y = x * 2
    y.t_().unsqueeze_(0)
    y[0, 1] = 0.0
    return y.squeeze_(0)


def _swapped(x: Tensor) -> Tensor:
    y = x.clone()
    kept = y[0].clone()
    y[0] = y[1]
    y[1] = kept
    y.diagonal().add_(1.0)
    return y


def _steps(x: Tensor) -> Tensor:
    y = x.clone().abs_().add_(1)
    y.div_(3).lerp_(x, 0.25).addcmul_(x, x, value=0.5).clamp_(-1, 5)
    return y.masked_fill_(x > 1, 0.5)


def _windows(x: Tensor) -> Tensor:
    y = x.clone()
    y.unfold(1, 2, 2).mul_(3)
    return y


def _mean(x: Tensor) -> Tensor:
    running = torch.zeros(5)
    for row in x:
        running.mul_(0.9).add_(row, alpha=0.1)
    return running


def _shared(x: Tensor) -> Tensor:
    y = x * 1
    y.detach().mul_(2)  # known to the memory, not to the gradient
    return y


WRITTEN = [
    _view_of_view,
    _base_first,
    _columns,
    _copied,
    _accumulated,
    _transposed,
    _copied_or_not,
    _moved_in_place,
    _swapped,
    _steps,
    _windows,
    _mean,
    _shared,
    lambda x: functional.relu(x.clone(), inplace=True) + functional.silu(x + 0, inplace=True),
]


def _agrees(function: Callable[..., Any], x: Tensor, *, gradient: bool) -> None:
    """Intervals of a function of one operand, and of its gradient, hold what PyTorch computes."""
    value = x.clone().requires_grad_(gradient)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        program = trace(function, {"x": x}, differentiable=("x",) if gradient else ())
        made = function(value)
    finally:
        torch.set_default_dtype(before)
    made = made if isinstance(made, tuple) else (made,)
    names = [name for name in program.results if name != "dx"]
    upstream = [_random(*each.shape, seed=7) for each in made]
    leaves = {"x": x} | {f"grad {name}": each for name, each in zip(names, upstream, strict=True)}
    found = program.spans(Run(leaves, x.device), list(program.results))
    expected = dict(zip(names, made, strict=True))
    if gradient:
        [expected["dx"]] = torch.autograd.grad(made, [value], upstream)
    for name, want in expected.items():
        span = found[name]
        assert isinstance(span, Span) and span.lo.shape == want.shape
        assert bool(((span.lo <= want + 1e-12) & (want - 1e-12 <= span.hi)).all()), name


@pytest.mark.parametrize("gradient", [False, True], ids=["values", "gradient"])
@pytest.mark.parametrize("function", WRITTEN, ids=lambda function: function.__name__)
def test_what_is_written_in_place_is_read_by_all_that_share_the_memory(
    function: Callable[..., Any], gradient: bool
) -> None:
    _agrees(function, _random(3, 5), gradient=gradient)


def _out(x: Tensor) -> Any:
    wide, small = torch.empty(3, 10), torch.empty(0)
    torch.exp(x, out=wide[:, ::2])
    torch.sin(x, out=wide[:, 1::2])
    torch.sum(x, 1, out=small)
    values, places = torch.empty(3, 5), torch.empty(3, 5, dtype=torch.int64)
    torch.sort(x, 1, out=(values, places))
    return wide, small, values


def test_an_out_that_is_given_holds_the_result() -> None:
    _agrees(_out, _random(3, 5), gradient=False)


def test_constants_that_share_memory_are_written_to_together_and_stay_what_they_are() -> None:
    held = torch.arange(6, dtype=torch.float64).reshape(2, 3)
    row = held[1]

    def function(x: Tensor) -> Tensor:
        row.mul_(x.sum())
        return held * 1

    program = trace(function, {"x": torch.zeros(3)})
    assert torch.equal(held, torch.arange(6.0).double().reshape(2, 3))
    span = program.spans(Run({"x": torch.ones(3).double()}, torch.device("cpu")), ["y"])["y"]
    assert torch.allclose(span.mid(), torch.tensor([[0.0, 1.0, 2.0], [9.0, 12.0, 15.0]]).double())


def test_a_constant_that_pytorch_makes_is_one_of_float64() -> None:
    """Followed under float32 as the default it was the third of float32."""
    program = trace(lambda x: x + torch.linspace(0, 1, 4), {"x": torch.zeros(4)})
    span = program.spans(Run({"x": torch.zeros(4).double()}, torch.device("cpu")), ["y"])["y"]
    assert span.lo[1] <= 1 / 3 <= span.hi[1] and span.hi[1] - span.lo[1] < 1e-15


def _expanded(x: Tensor) -> Tensor:
    y = x.new_zeros(1, 5).expand(3, 5)
    return y.index_add_(0, torch.tensor([0, 1, 2]), x)


def test_a_write_to_elements_that_share_memory_is_refused() -> None:
    with pytest.raises(UsageError, match="share memory|single memory location"):  # the second is PyTorch's own
        trace(_expanded, {"x": torch.zeros(3, 5)})


def test_a_tensor_that_outlives_its_function_is_named() -> None:
    kept: list[Tensor] = []
    trace(lambda x: (kept.append(x), x * 2)[1], {"x": torch.zeros(3)})
    with pytest.raises(UsageError, match="received a tensor of an earlier call"):
        kept[-1] + 1


def _statistics(x: Tensor) -> Any:
    mean, variance = torch.zeros(5), torch.ones(5)
    y = functional.batch_norm(x, mean, variance, training=True, momentum=0.25)
    return y, mean, variance


def test_batch_norm_in_training_writes_its_statistics() -> None:
    _agrees(_statistics, _random(3, 5), gradient=False)
    _agrees(lambda x: _statistics(x)[0], _random(3, 5, 2), gradient=True)


def test_batch_norm_in_training_leaves_its_module_as_it_was() -> None:
    module = nn.BatchNorm1d(5).double()
    buffers = {name: value.clone() for name, value in module.named_buffers()}

    def function(x: Tensor) -> Tensor:
        copies = {name: buffer.clone() for name, buffer in module.named_buffers()}
        return torch.func.functional_call(module, copies, (x,))  # type: ignore[no-any-return]

    _agrees(function, _random(3, 5), gradient=True)
    assert all(torch.equal(value, buffers[name]) for name, value in module.named_buffers())


@pytest.mark.parametrize(
    "options",
    [{}, {"padding_idx": 2}, {"scale_grad_by_freq": True}, {"padding_idx": 1, "scale_grad_by_freq": True}],
    ids=str,
)
def test_gradients_of_an_embedding_are_those_of_pytorch(options: dict[str, Any]) -> None:
    index = torch.tensor([[0, 2, 2], [1, 2, 0]])
    _agrees(lambda w: functional.embedding(index, w, **options), _random(4, 3), gradient=True)


@pytest.mark.parametrize("weighted", [False, True], ids=["even", "weighted"])
@pytest.mark.parametrize("reduction", ["none", "mean", "sum"])
@pytest.mark.parametrize("shape", [(5,), (4, 5), (2, 5, 3)], ids=str)
def test_losses_of_labels_are_those_of_pytorch(shape: tuple[int, ...], reduction: str, weighted: bool) -> None:
    label = torch.tensor([1, 4, 0, 3, 2, 1])[: max(torch.Size(shape).numel() // 5, 1)]
    label = label.reshape(shape[:1] + shape[2:] if len(shape) > 1 else ())
    weight = torch.tensor([0.5, 1, 2, 3, 4], dtype=torch.float64) if weighted else None

    def function(x: Tensor) -> Tensor:
        return functional.nll_loss(x, label, weight, ignore_index=4, reduction=reduction)

    _agrees(function, _random(*shape), gradient=True)


A, B = torch.empty(2, 3, 4, device="meta", dtype=torch.float64), torch.empty(4, 3, 2, device="meta").permute(2, 1, 0)
C = torch.empty(2, 3, 4, 5, device="meta")
I = torch.zeros(2, 5, device="meta", dtype=torch.int64)  # noqa: E741
M = torch.empty(2, 3, 4, device="meta", dtype=torch.bool)
CALLS: list[tuple[Any, tuple[Any, ...], dict[str, Any]]] = [
    (_aten.add.Tensor, (A, B), {}),
    (_aten.mul.Tensor, (B, B), {}),
    (_aten.mul.Tensor, (B, 2), {}),
    (_aten.add.Tensor, (I, 0.5), {}),
    (_aten.div.Tensor, (I, I), {}),
    (_aten.lt.Tensor, (A, B), {}),
    (_aten.where.self, (M[0], B, A[:, :1].transpose(1, 2)[:, :1]), {}),
    (_aten.exp.default, (A.permute(1, 0, 2)[:, :, ::2],), {}),
    (_aten.maximum.default, (A[:, :1], B[0]), {}),
    (_aten.sum.dim_IntList, (A, [-1], True), {}),
    (_aten.sum.dim_IntList, (I, [0]), {}),
    (_aten.sum.default, (M,), {}),
    (_aten.sum.dim_IntList, (B, [1]), {"dtype": torch.float32}),
    (_aten.mv.default, (A[0].t(), A[0, :, 0]), {}),
    (_aten.amax.default, (A, [0, 2]), {}),
    (_aten.any.dim, (M, 1, True), {}),
    (_aten.argmax.default, (A, 1), {}),
    (_aten.mm.default, (A[0], A[1].t()), {}),
    (_aten.bmm.default, (A, A.transpose(1, 2)), {}),
    (_aten.cat.default, ([A, A[:, :1].contiguous()], 1), {}),
    (_aten.cat.default, ([B, B], -1), {}),
    (_aten.cat.default, ([C, C[..., 1:]], -1), {}),
    (_aten.cat.default, ([C.to(memory_format=torch.channels_last)] * 2, 1), {}),
    (_aten.cat.default, ([A, A[:0]], 0), {}),
    (_aten.constant_pad_nd.default, (A, [1, -1, 0, 2], 0.5), {}),
    (_aten.constant_pad_nd.default, (C, [0, -1]), {}),
    (_aten.index.Tensor, (A, [None, I]), {}),
    (_aten.index.Tensor, (A, [I, None, I]), {}),
    (_aten.gather.default, (A[0].contiguous(), 1, I), {}),
    (_aten.embedding.default, (A[0].contiguous(), I), {}),
    (_aten.topk.default, (A, 2, 1), {}),
    (_aten.sort.default, (A, 1), {}),
    (_aten.sort.stable, (A,), {"stable": True, "dim": 1}),
    (_aten.cumsum.default, (I, 0), {}),
    (_aten.full_like.default, (B, 1.0), {}),
    (_aten.full_like.default, (A, 1), {"dtype": torch.int64}),
    (_aten.full_like.default, (A[:, 1], 1), {}),
    (_aten.full_like.default, (C.permute(3, 0, 2, 1)[::2], 1), {}),
    (_aten.full_like.default, (B, 1), {"memory_format": torch.contiguous_format}),
    (_aten.empty_like.default, (C[:1, :, ::2],), {}),
    (_aten.empty_like.default, (C[:, :1].expand(2, 3, 4, 5),), {}),
    (_aten._softmax.default, (A, 1, False), {}),
    (_aten.log_sigmoid_forward.default, (A,), {}),
    (_aten.arange.start_step, (1, 9, 3), {"device": torch.device("cpu")}),
]


@pytest.mark.parametrize("call", CALLS, ids=lambda call: str(call[0]))
def test_shapes_dtypes_and_layouts_are_those_of_pytorch(call: tuple[Any, tuple[Any, ...], dict[str, Any]]) -> None:
    func, args, kwargs = call
    theirs = {key: torch.device("meta") if key == "device" else value for key, value in kwargs.items()}
    found, wanted = result_of(func, args, kwargs), func(*args, **theirs)
    pairs = [(found, wanted)] if isinstance(found, Tensor) else zip(found, wanted, strict=True)
    for mine, other in pairs:
        assert mine.device.type == "meta" and (mine.shape, mine.dtype) == (other.shape, other.dtype)
        wide = [dim for dim, size in enumerate(mine.shape) if size > 1]
        assert [mine.stride(dim) for dim in wide] == [other.stride(dim) for dim in wide]


@pytest.mark.parametrize("kind", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("used", [True, False])
def test_attention_that_no_result_needs_or_that_rounds_is_followed(used: bool, kind: torch.dtype) -> None:
    """Integers divided are of the default dtype, which is narrower than float64 operands: attention rounds to it."""

    def like(x: Tensor) -> Tensor:
        whole = (x > 0) * 2 / 2
        y = functional.scaled_dot_product_attention(whole, whole, whole)
        return y if used else x * 2

    x = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(0)).to(kind)
    verify.assert_close(like(x), like=like, inputs=(x,))
    with pytest.raises(AssertionError, match="wrong"):
        verify.assert_close(like(x) * 1.05, like=like, inputs=(x,))
