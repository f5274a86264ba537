"""What a kernel may not do, and the line it gets for it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import NamedTuple

import msgspec
import pytest
import torch
from torch import Tensor

from verify import ops
from verify.backends import Backend
from verify.cases import Case
from verify.declare.declaration import Kernel, kernel
from verify.errors import LONGEST, KernelError, Refused
from verify.measure import call as measure
from verify.measure.call import (
    INFERENCE,
    describe,
    inferred,
    run_baseline,
    run_kernel,
)
from verify.truth.ulp import bits_of, same_bits
from verify.workers.requests import Failure

CASE = Case(dtype="float32", dims=(4, 6), fill="normal", upstream="normal")
FORWARD = Case(dtype="float32", dims=(4, 6), fill="normal")


def declare(function: Callable[..., object], *, op: str = "gelu", **options: object) -> Kernel:
    return kernel(op=op, name="k", **options)(function)  # type: ignore[arg-type]


def refusal(function: Callable[..., object], case: Case = CASE, **options: object) -> str:
    with pytest.raises(KernelError) as caught:
        run_kernel(declare(function, **options), case, "cpu")
    return str(caught.value)


def gelu(x: Tensor) -> Tensor:
    return torch.nn.functional.gelu(x)


# -- what comes back ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        "Torch not compiled with CUDA enabled",
        "Input must be a CUDA or XPU tensor",
        "Found no NVIDIA driver on your system",
        "CUDA_HOME environment variable is not set",
        "0 active drivers ([]). There should only be one.",
    ],
)
def test_a_kernel_for_gpus_alone_says_so_on_a_cpu(message: str) -> None:
    def k(x: Tensor) -> Tensor:
        raise AssertionError(message)

    assert refusal(k).startswith(f"k needs a GPU (declare backends=['cuda']): it raised AssertionError: {message}")


class Pair(NamedTuple):
    second: Tensor
    first: Tensor


@pytest.mark.parametrize(
    "returned",
    [
        lambda x: (2 * x, x + 1, None),
        lambda x: (2 * x, (x + 1, None)),
        lambda x: [[2 * x], {"other": x + 1}],
        lambda x: {"second": x + 1, "unasked": x, "first": 2 * x},
        lambda x: Pair(x + 1, 2 * x),
        lambda x: SimpleNamespace(second=x + 1, first=2 * x, loss=None),
    ],
    ids=["a None", "nested", "lists", "by key", "by field", "by attribute"],
)
def test_results_come_in_order_or_by_name(returned: Callable[[Tensor], object]) -> None:
    outputs = ["first", "second"]
    declared = kernel(like=lambda x: (2 * x, x + 1), outputs=outputs, dtypes=["float32"], name="k")(returned)
    found = run_kernel(declared, FORWARD, "cpu")
    x = found.inputs["x"]
    assert x is not None
    assert torch.equal(found.results["first"], 2 * x) and torch.equal(found.results["second"], x + 1)


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: (x, x), "k must return 1 tensor(s): y; it returned 2"),
        (lambda x: (), "k must return 1 tensor(s): y; it returned 0"),
        (lambda x: None, "k must return a torch.Tensor for y; it returned NoneType"),
        (lambda x: x.tolist()[0][0], "k must return a torch.Tensor for y; it returned float"),
        (lambda x: x.detach().numpy(), "k must return a torch.Tensor for y; it returned ndarray"),
        (lambda x: x[:, :5], "k must return y of shape (4, 6) for dims (4, 6); it returned (4, 5)"),
        (lambda x: x.sum(), "k must return y of shape (4, 6) for dims (4, 6); it returned ()"),
        (
            lambda x: x.double(),
            "k must return y as torch.float32; it returned torch.float64 (if that is meant: output_dtypes={'y': \
'float64'})",
        ),
        (lambda x: x.int(), "k must return a floating-point y; it returned torch.int32"),
        (lambda x: torch.empty(4, 6, device="meta"), "k must return y on cpu; it returned a tensor on meta"),
    ],
)
def test_a_wrong_return_value(function: Callable[..., object], message: str) -> None:
    assert refusal(function) == message
    assert refusal(function, FORWARD) == message


class Late(Tensor):
    """A subclass may compute when it is read."""


LAZY = "k must return {} as a plain tensor with its values in memory; it returned {}"


@pytest.mark.parametrize(
    ("lazily", "what"),
    [
        (lambda y: y.as_subclass(Late), "the subclass Late"),
        (lambda y: y.to_sparse(), "one with the layout torch.sparse_coo"),
        (lambda y: torch._neg_view(-y), "a lazy view, whose values are computed when it is read"),
        (lambda y: torch._efficientzerotensor(y.shape), "a lazy view, whose values are computed when it is read"),
    ],
)
def test_values_that_are_not_in_memory_are_refused(lazily: Callable[[Tensor], Tensor], what: str) -> None:
    assert refusal(lambda x: lazily(gelu(x)), FORWARD) == LAZY.format("y", what)


def test_a_storage_that_was_freed_is_refused() -> None:
    def freed(x: Tensor) -> Tensor:
        y = gelu(x)
        y.untyped_storage().resize_(4)
        return y

    assert refusal(freed, FORWARD) == LAZY.format("y", "one whose storage has 4 of 96 bytes")


def test_a_gradient_of_a_subclass_is_refused_and_a_parameter_is_a_tensor() -> None:
    class Subclassed(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return gelu(x)

        @staticmethod
        def backward(ctx, dy):
            return dy.clone().as_subclass(Late)

    assert refusal(Subclassed.apply, gradients=True) == LAZY.format("dx", "the subclass Late")
    kept = declare(lambda x: torch.nn.Parameter(gelu(x)))
    assert same_bits(
        [run_kernel(kept, FORWARD, "cpu").results["y"]], [run_kernel(declare(gelu), FORWARD, "cpu").results["y"]]
    )


def test_a_call_for_inference_is_shown_where_its_bits_differ() -> None:
    def trained(x: Tensor) -> Tensor:
        return gelu(x) * (1.0 if x.requires_grad and torch.is_grad_enabled() else 2.0)

    case, right = CASE, declare(gelu)
    measured = run_kernel(right, case, "cpu")
    assert inferred(right, case, measured) == {}
    assert inferred(right, FORWARD, run_kernel(right, FORWARD, "cpu")) == {}
    found = inferred(declare(trained), case, run_kernel(declare(trained), case, "cpu"))
    assert list(found) == list(INFERENCE)
    for outputs in found.values():
        assert torch.equal(outputs["y"], 2.0 * measured.results["y"]) and not outputs["y"].is_inference()

    def refuses(x: Tensor) -> Tensor:
        if torch.is_inference_mode_enabled():
            raise ValueError("no graph")
        return gelu(x)

    with pytest.raises(KernelError, match=r"k under torch.inference_mode\(\) raised ValueError: no graph"):
        inferred(declare(refuses), case, measured)

    def overwrites(x: Tensor) -> Tensor:
        if not torch.is_grad_enabled():
            x.detach().zero_()
        return gelu(x)

    with pytest.raises(KernelError, match="k for inference must not change its inputs; x differs after the call"):
        inferred(declare(overwrites), case, run_kernel(declare(overwrites), case, "cpu"))


def test_an_operand_that_a_case_leaves_out_is_none_to_a_kernel_that_takes_it() -> None:
    seen = []

    def norm(x, weight, bias, *, eps):
        seen.append((weight is None, bias is None))
        return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)

    for absent in ((), ("bias",), ("weight",)):
        case = Case(dtype="float32", dims=(4, 6), fill="randn", upstream="normal", absent=absent)
        results = run_kernel(declare(norm, op="layer_norm"), case, "cpu").results
        assert set(results) == {"y", "dx", "dweight", "dbias"} - {"d" + name for name in absent}
    assert seen == [(False, False), (False, True), (True, False)]


def test_two_outputs_are_both_checked() -> None:
    def swapped(x: Tensor, residual: Tensor, weight: Tensor, bias: Tensor) -> object:
        return x, x[:1]

    names = ops.get("layer_norm_residual")
    wanted = (*names.outputs, *names.optional_outputs)
    case = Case(dtype="float32", dims=(4, 6), fill="normal")
    message = refusal(swapped, case, op="layer_norm_residual", outputs=wanted)
    assert message == (f"k must return {wanted[1]} of shape (4, 6) for dims (4, 6); it returned (1, 6)")


# -- raising ------------------------------------------------------------------------------------


def test_raising_in_forward_names_the_place_in_the_kernel() -> None:
    def broken(x: Tensor) -> Tensor:
        raise ValueError("only rows of 8\nand more text")

    message = refusal(broken)
    line = broken.__code__.co_firstlineno + 1
    assert message == f"k raised ValueError: only rows of 8 ({__file__.removeprefix(f'{Path.cwd()}/')}:{line})"


class _RaisesInBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: object, dy: Tensor) -> Tensor:
        raise NotImplementedError


def raises_in_backward(x: Tensor) -> Tensor:
    return _RaisesInBackward.apply(x)  # type: ignore[no-any-return]


def test_raising_in_backward(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    raised = r"k raised in backward: NotImplementedError: no message"
    monkeypatch.chdir(Path(__file__).parents[1])
    assert re.fullmatch(raised + r" \(measure/test_call\.py:\d+\)", refusal(raises_in_backward))
    monkeypatch.chdir(tmp_path)
    assert re.fullmatch(raised + r" \(/.*/test_call\.py:\d+\)", refusal(raises_in_backward))
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    assert re.fullmatch(raised + r" \(/.*/test_call\.py:\d+\)", refusal(raises_in_backward))
    assert run_kernel(declare(raises_in_backward), FORWARD, "cpu").results.keys() == {"y"}


def test_a_folder_called_verify_is_still_the_users_own_code(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """A clone of this repository is called `verify` too."""
    file = tmp_path / "verify" / "kernels" / "mine.py"
    file.parent.mkdir(parents=True)
    code = compile("def broken(x):\n    raise RuntimeError('no')\n", str(file), "exec")
    space: dict[str, Callable[..., object]] = {}
    exec(code, space)
    assert refusal(space["broken"]) == f"k raised RuntimeError: no ({file}:2)"


def test_what_a_kernel_raises_is_cut_and_can_be_written() -> None:
    class Unreadable(Exception):
        def __str__(self) -> str:
            raise RuntimeError("no text")

    assert describe(Unreadable()) == "Unreadable: its message cannot be read"
    assert describe(ValueError("bad \ud800 text")) == "ValueError: bad \\ud800 text"
    said = describe(ValueError("z" * 5_000_000))
    assert said == f"ValueError: {'z' * LONGEST}... (5,000,000 characters)"
    assert Failure.of(Unreadable()).text == "Unreadable: its message cannot be read"
    assert Failure.of(OSError("z" * 5_000)).text == f"OSError: {'z' * LONGEST}... (5,000 characters)"


# -- touching what is not its own ---------------------------------------------------------------


def test_changing_an_input_in_forward() -> None:
    def clobber(x: Tensor) -> Tensor:
        y = gelu(x)
        x.data[1, 2] = 7.0
        return y

    assert refusal(clobber, FORWARD) == "k must not change its inputs; x differs after the call"
    assert refusal(clobber) == "k must not change its inputs; x differs after the call"


def test_a_result_lies_in_new_memory_as_pytorchs_does() -> None:
    """A later change of the result in place would change the operand."""

    def unclipped(x: Tensor) -> Tensor:
        return x.clamp(-9, 9) if bool((x.abs() > 9).any()) else x

    shapes = {"like": lambda x: x.clamp(-9, 9), "shapes": {"x": "n d"}, "gradients": False}
    wrong, view, sliced = (kernel(name="k", **(shapes | more))(f) for f, more in (  # type: ignore[arg-type]
        (unclipped, {}), (lambda x: x.mT, {"like": lambda x: x.mT}), (lambda x: x[:, 1:], {"like": lambda x: x[:, 1:]})
    ))  # fmt: skip
    with pytest.raises(
        KernelError, match="k must return y in new memory, as PyTorch does; it returned the memory of x"
    ):
        run_kernel(wrong, Case(dtype="float32", dims=(4, 6), fill="normal"), "cpu")
    for each in (view, sliced):
        assert run_kernel(each, FORWARD, "cpu").results
    assert run_kernel(wrong, Case(dtype="float32", dims=(0, 6), fill="normal"), "cpu").results


def test_changing_the_sign_of_a_zero_is_a_change() -> None:
    def negate_zero(x: Tensor) -> Tensor:
        y = gelu(x)
        x.detach().mul_(-1.0)
        return y

    zeros = Case(dtype="float32", dims=(2,), fill="bits", seed=1)
    assert "x differs" in refusal(negate_zero, zeros)


class _ClobbersInBackward(torch.autograd.Function):
    target = "dy"

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, dy: Tensor) -> Tensor:  # type: ignore[no-untyped-def]
        (x,) = ctx.saved_tensors
        dx = dy * 2
        victim = dy if _ClobbersInBackward.target == "dy" else x.detach()
        victim.data.zero_()
        return dx


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("dy", "k must not change the gradient that arrives at y; it differs after backward"),
        ("x", "k must not change its inputs; x differs after the call"),
    ],
)
def test_overwriting_in_backward(target: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A store from a Triton kernel bumps no version counter, so autograd does not notice."""
    monkeypatch.setattr(_ClobbersInBackward, "target", target)
    assert refusal(lambda x: _ClobbersInBackward.apply(x)) == message


# -- gradients ----------------------------------------------------------------------------------


def test_a_detached_output_is_an_error_only_where_gradients_are_promised() -> None:
    def detached(x: Tensor) -> Tensor:
        return gelu(x).detach()

    assert refusal(detached, gradients=True) == (
        "k promises gradients for x, but its output is not attached to autograd"
    )
    quiet = run_kernel(declare(detached), CASE, "cpu")
    assert quiet.missing == ("dx",)
    assert set(quiet.results) == {"y"}
    assert run_kernel(declare(gelu, gradients=False), CASE, "cpu").missing == ()


class _WrongGradient(torch.autograd.Function):
    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: object, dy: Tensor) -> Tensor:
        return dy[:2]


def test_a_gradient_of_the_wrong_shape() -> None:
    message = refusal(lambda x: _WrongGradient.apply(x))
    assert message.startswith("k raised in backward: RuntimeError: ")
    assert "returned an invalid gradient at index 0 - got [2, 6]" in message


# -- what is right ------------------------------------------------------------------------------


def test_results_are_the_kernels_own_bits_and_the_inputs_are_untouched() -> None:
    measured = run_kernel(declare(gelu), CASE, "cpu")
    x = measured.inputs["x"]
    assert x is not None
    leaf = x.clone().requires_grad_()
    y = gelu(leaf)
    y.backward(measured.upstream["y"])
    assert torch.equal(bits_of(measured.results["y"]), bits_of(y.detach()))
    assert leaf.grad is not None
    assert torch.equal(bits_of(measured.results["dx"]), bits_of(leaf.grad))
    assert not any(tensor.requires_grad for tensor in measured.results.values())


def test_keywords_go_to_functions_that_accept_them() -> None:
    seen: dict[str, object] = {}

    def accepts(x: Tensor, *, approximate: str) -> Tensor:
        seen["approximate"] = approximate
        return torch.nn.functional.gelu(x, approximate=approximate)

    params = {"approximate": "tanh"}
    case = Case(dtype="float32", dims=(4, 6), fill="normal", params=params)
    run_kernel(declare(accepts, params=params), case, "cpu")
    assert seen == {"approximate": "tanh"}
    run_kernel(declare(accepts), FORWARD, "cpu")
    assert seen == {"approximate": "none"}


def test_an_absent_operand_is_not_passed() -> None:
    def two(x: Tensor, weight: Tensor) -> Tensor:
        return torch.nn.functional.layer_norm(x, x.shape[-1:], weight)

    item = declare(two, op="layer_norm", operands=["x", "weight"])
    case = Case(dtype="float32", dims=(4, 6), fill="normal", upstream="normal", absent=item.absent)
    measured = run_kernel(item, case, "cpu")
    assert measured.inputs["bias"] is None
    assert set(measured.results) == {"y", "dx", "dweight"}


@pytest.mark.parametrize("name", ["gelu", "layer_norm", "linear", "softmax"])
def test_every_baseline_meets_the_contract(name: str) -> None:
    op = ops.get(name)
    dims = op.geometry.dims_of(4, 6, 3)
    case = Case(dtype="float32", dims=dims, fill="randn", upstream="normal")
    measured = run_baseline(declare(op.baseline, op=name), case, "cpu")
    assert {"y", "dx"} <= set(measured.results)


# -- where values are read -------------------------------------------------------------------------------


def entropy(x: Tensor, t: Tensor) -> Tensor:
    return torch.nn.functional.binary_cross_entropy(x.sigmoid(), t.sigmoid())


def distance(x: Tensor, t: Tensor) -> Tensor:
    return torch.nn.functional.mse_loss(x.sigmoid(), t.sigmoid())


def special(loss: Callable[..., Tensor]) -> tuple[Kernel, Case]:
    declared = kernel(like=loss, shapes={"x": "n", "t": "n"}, dtypes=["float32"])(loss)
    return declared, Case(dtype="float32", dims=(64,), fill="special", regime="special")


def test_numbers_that_pytorch_refuses_are_refused_before_a_gpu_asserts() -> None:
    measure.demand_numbers(*special(distance))
    declared, case = special(entropy)
    measure.demand_numbers(declared, msgspec.structs.replace(case, fill="randn"))
    with pytest.raises(Refused, match="should be between 0 and 1"):
        measure.demand_numbers(declared, case)


@pytest.mark.gpu
def test_the_entropy_of_nan_leaves_the_process_alive(backend: Backend) -> None:
    with pytest.raises(Refused):
        run_kernel(*special(entropy), backend.device)
    assert float(torch.ones(2, device=backend.device).sum()) == 2
