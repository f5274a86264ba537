"""Error contract and composition: each law finds its bug, and passes the correct twin."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import pytest
import torch

import verify
from tests.laws.silu import silu, silu_in_a_triton_op, silu_in_an_operator
from tests.laws.trial import attempt, breaks, gated_kernel, holds, silu_kernel, skips
from verify import backends
from verify.cases import Case
from verify.cases.strategies import Sizes
from verify.declare.declaration import Kernel
from verify.laws import device, registry
from verify.laws.engine import Profile
from verify.laws.law import Subject


def checked_silu(x):
    if not x.is_floating_point():
        raise TypeError(f"silu: x is floating point; received {x.dtype}")
    return x * torch.sigmoid(x)


def checked_gate(x1, x2):
    if x1.shape != x2.shape:
        raise ValueError(f"swiglu: x1 and x2 have one shape; received {tuple(x1.shape)} and {tuple(x2.shape)}")
    if x1.device != x2.device:
        raise ValueError(f"swiglu: x1 and x2 are on one device; received {x1.device} and {x2.device}")
    return x1 * checked_silu(x2) if x1.is_floating_point() else checked_silu(x1)


# -- contract ------------------------------------------------------------------------------------------


def test_checked_operands_keep_the_contract() -> None:
    holds("error contract", silu_kernel(checked_silu))
    holds("error contract", gated_kernel(checked_gate))


@pytest.mark.parametrize(("of", "right"), [("right", True), ("bits", False), ("flat", False), ("empty", False)])
def test_integers_may_be_taken_where_the_answer_is_right(of: str, right: bool) -> None:
    wide = {
        "right": lambda x: x.float(),
        "bits": lambda x: x.view(torch.float64).float(),
        "flat": lambda x: x.float().flatten(),
        "empty": lambda x: x.float()[:0],
    }[of]
    taken = silu_kernel(lambda x: torch.nn.functional.silu(x if x.is_floating_point() else wide(x)))
    if right:
        holds("error contract", taken)
    else:
        breaks("error contract", taken, "an invalid operand is accepted")


def test_a_longer_operand_that_is_taken_is_found() -> None:
    def trusting(x1, x2):
        if not x1.is_floating_point():
            raise TypeError("x1 is floating point")
        return x1 * torch.nn.functional.silu(x2.reshape(-1)[: x1.numel()].reshape(x1.shape))

    found = breaks("error contract", gated_kernel(trusting), "an invalid operand is accepted")
    assert found.facts["operand"] == "x2 one element longer than it must be"


def test_a_refusal_without_a_word_is_found() -> None:
    def silent(x):
        if not x.is_floating_point():
            raise ValueError
        return torch.nn.functional.silu(x)

    found = breaks("error contract", silu_kernel(silent), "an operand is refused without a message")
    assert found.facts == {"operand": "x of int64", "raised": "ValueError"}


def test_an_operand_that_a_refused_call_changed_is_found() -> None:
    def late(x1, x2):
        if x1.is_floating_point() and x1.shape != x2.shape:
            x1.zero_()
        return checked_gate(x1, x2)

    found = breaks("error contract", gated_kernel(late), "an operand is changed by a call that was refused")
    assert "operand x1" in found.facts["written"]
    assert found.facts["operand"] == "x2 one element longer than it must be"  # the mistake that did it, of all


def test_a_refused_call_that_leaves_a_mark_is_found() -> None:
    state = {"scale": 1.0}

    def marked(x):
        if not x.is_floating_point():
            state["scale"] += 0.5
            raise TypeError("x is floating point")
        return torch.nn.functional.silu(x) * state["scale"]

    breaks("error contract", silu_kernel(marked, gradients=False), "a good call gives other bits after a refused one")


@pytest.fixture
def launch(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """A compiled Triton kernel that does nothing; without a GPU there is no other."""
    from triton.runtime.jit import JITFunction

    def nothing_kernel() -> None: ...

    monkeypatch.setattr(JITFunction, "run", lambda self, *args, **kwargs: None)
    compiled = object.__new__(JITFunction)
    compiled.fn = nothing_kernel
    return lambda *args: JITFunction.run(compiled, *args)


def test_a_kernel_is_not_launched_on_the_null_pointer_of_a_tensor_without_memory(launch: Callable[..., None]) -> None:
    """A GPU would answer with an illegal access, after which no other test could use it."""

    def trusting(x):
        y = checked_silu(x)
        launch(x, x.numel())
        return y

    found = breaks("error contract", silu_kernel(trusting), "a kernel is launched on a tensor without memory")
    assert found.facts == {"launched": "Triton kernel nothing_kernel"}


def test_nor_on_one_beside_operands_that_have_memory(launch: Callable[..., None]) -> None:
    def trusting(x1, x2):
        if x1.shape != x2.shape or not x1.is_floating_point():
            raise ValueError("x1 and x2 have one shape")
        launch(x1, x2)
        return x1 * torch.nn.functional.silu(x2)

    found = breaks("error contract", gated_kernel(trusting), "an invalid operand is accepted")
    assert found.facts == {"operand": "x2 on another device", "launched": "Triton kernel nothing_kernel"}


# -- composition ---------------------------------------------------------------------------------------


def test_a_traceable_kernel_compiles_to_the_same_bits() -> None:
    holds("compiled", silu_kernel(lambda x: silu_in_an_operator(x, ""), gradients=False))


def test_a_triton_kernel_outside_of_an_operator_compiles_too() -> None:
    holds("compiled", silu_kernel(lambda x: silu(x, "")))


def test_a_triton_op_compiles_to_the_same_bits() -> None:
    """Its function runs on tensors without values: on the interpreter too nothing is launched on those."""
    holds("compiled", silu_kernel(silu_in_a_triton_op(), gradients=False))


def test_a_case_that_spells_out_its_elements_is_tried_in_a_larger_shape_too() -> None:
    case = Case(dtype="float32", dims=(1,), fill="ones", values={"x": "bf298000"})
    kernel = silu_kernel(lambda x: silu_in_an_operator(x, ""), gradients=False)
    registry.get("compiled").check(Subject(kernel, "float32", backends.select(), None), case)


def test_a_value_that_is_baked_into_the_compiled_program_is_found() -> None:
    @torch.compiler.assume_constant_result
    def first(x):
        return float(x.reshape(-1)[0])

    def baked(x):
        return silu_in_an_operator(x, "") + (1.0 if first(x) > 0.0 else 0.0)

    found = breaks("compiled", silu_kernel(baked, gradients=False), "torch.compile changes the results")
    assert found.facts["call"] == "other values in the first shape"


def test_autocast_that_is_ignored_or_applied_throughout_keeps_the_law() -> None:
    holds("autocast", silu_kernel(checked_silu))
    kind = torch.device(backends.select().device).type

    def applied(x):
        dtype = torch.get_autocast_dtype(kind)
        return checked_silu(x.to(dtype) if torch.is_autocast_enabled(kind) else x)

    holds("autocast", verify.kernel(op="silu", dtypes=["float32"])(applied))
    skips("autocast", silu_kernel(checked_silu), "autocast leaves float64 alone", "float64")


def test_autocast_that_reaches_half_of_a_kernel_is_found() -> None:
    kind = torch.device(backends.select().device).type

    def half(x):
        dtype = torch.get_autocast_dtype(kind)
        inner = torch.sigmoid(x.to(dtype)).to(x.dtype) if torch.is_autocast_enabled(kind) else torch.sigmoid(x)
        return x * inner

    found = breaks("autocast", silu_kernel(half), "autocast gives neither the plain result nor that of operands cast")
    assert found.facts["autocast"] == "torch.bfloat16"


def squares(x, w, t):
    return torch.nn.functional.mse_loss(x @ w, t)


def test_operators_that_autocast_casts_one_by_one_keep_the_law_as_in_pytorch() -> None:
    """A product is in bfloat16 under autocast, and a loss of it in float32. Neither is cast throughout."""
    declared = partial(
        verify.kernel,
        like=squares,
        shapes={"x": "n d", "w": "d m", "t": "n m"},
        dtypes=["float32", "bfloat16"],
        outputs=["loss"],
        backends=["cpu", "interpreter"],  # where the loss is among the operators that autocast casts to float32
    )
    kind = torch.device(backends.select().device).type

    def coarse(x, w, t):
        if torch.is_autocast_enabled(kind):
            x, w = (each.to(torch.float8_e4m3fn).to(x.dtype) for each in (x, w))
        return squares(x, w, t)

    for dtype in ("float32", "bfloat16"):
        holds("autocast", declared(name="squares")(squares), dtype)
        breaks("autocast", declared(name="coarse")(coarse), "autocast gives neither", dtype)


# -- devices -------------------------------------------------------------------------------------------

GPU_LAWS = ("side stream", "CUDA graph", "other device", "large tensors")


@pytest.mark.parametrize("law", GPU_LAWS)
def test_device_laws_ask_for_a_gpu(law: str) -> None:
    if backends.select().name == "interpreter":
        skips(law, silu_kernel(checked_silu), "needs a CUDA device")


@pytest.mark.gpu
def test_a_call_that_waits_for_nothing_keeps_the_stream_laws() -> None:
    holds("side stream", silu_kernel(checked_silu))
    holds("CUDA graph", silu_kernel(checked_silu, gradients=False))


@pytest.mark.gpu
def test_a_kernel_that_waits_for_the_device_cannot_be_captured_and_one_that_reads_is_excused() -> None:
    def waiting(x):
        torch.cuda.synchronize(x.device)
        return checked_silu(x)

    def asking(x):
        return checked_silu(x) if bool((x == x).all()) else x * 0

    breaks("CUDA graph", silu_kernel(waiting, gradients=False), "the kernel cannot be captured in a CUDA graph")
    skips("CUDA graph", silu_kernel(asking, gradients=False), "the kernel reads a number on the host")


# -- large tensors -------------------------------------------------------------------------------------

LARGE = Sizes(elements=300, width=300, depth=300, many_rows=70_000)
NIGHTLY = Profile("large", 2, {"small": LARGE, "large": LARGE})
COUNTED = 5_000  # in the place of 2^31


@pytest.fixture
def roomy(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine where `large tensors` applies: tensors are large beyond 5,000 elements."""
    monkeypatch.setattr(device, "_FAR", COUNTED)
    monkeypatch.setattr(device, "_on_gpu", lambda subject: None)
    monkeypatch.setattr(device, "_free", lambda subject: 1 << 40)
    monkeypatch.setattr(device, "_alone_on", lambda device: nullcontext())


def large_silu(bug: str) -> Kernel:
    class Silu(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            return large_silu_value(x, bug == "forward")

        @staticmethod
        def backward(ctx, dy):
            (x,) = ctx.saved_tensors
            s = torch.sigmoid(x.double())
            dx = (dy.double() * s * (1 + x.double() * (1 - s))).to(x.dtype)
            if bug == "backward":
                dx.view(-1)[COUNTED:] = 0
            return dx

    return verify.kernel(op="silu", dtypes=["float32"], max_ulp=4, name="silu")(lambda x: Silu.apply(x))


def large_silu_value(x, cut: bool):
    y = (x.double() * torch.sigmoid(x.double())).to(x.dtype)
    if cut:
        y.view(-1)[COUNTED:] = 0
    return y


@pytest.mark.usefixtures("roomy")
def test_large_tensors_hold_for_what_counts_far_enough() -> None:
    found = attempt("large tensors", large_silu(""), profile=NIGHTLY)
    assert found.status == "ok" and found.cases > 0, (found.message, found.facts)


@pytest.mark.usefixtures("roomy")
@pytest.mark.parametrize(("bug", "result"), [("forward", "y"), ("backward", "dx")])
def test_elements_beyond_the_count_are_found_where_they_are_wrong(bug: str, result: str) -> None:
    found = attempt("large tensors", large_silu(bug), profile=NIGHTLY)
    assert found.status == "broken"
    assert found.message.endswith("in a tensor of more than 2^31 elements")
    assert found.facts["at"].startswith(f"{result} [")
    assert " of " in found.facts["rows"]


def large_function(cut: bool) -> Kernel:
    """A function of rows by like=, whose last rows are wrong where `cut`."""

    def called(x, label):
        y = torch.nn.functional.cross_entropy(x.double(), label, reduction="none").float()
        return torch.where((torch.arange(len(y), device=y.device) * x.shape[1] < COUNTED) | (not cut), y, 0)

    return verify.kernel(
        like=lambda x, label: torch.nn.functional.cross_entropy(x, label, reduction="none"),
        shapes={"x": "n 40", "label": "n"},
        integers={"label": "0 <= label < 40"},
        dtypes=["float32"],
        name="loss",
    )(called)


@pytest.mark.usefixtures("roomy")
def test_rows_of_a_pytorch_function_are_found_where_they_are_wrong() -> None:
    found = attempt("large tensors", large_function(cut=False), profile=NIGHTLY)
    assert found.status == "ok" and found.cases > 0, (found.message, found.facts)
    found = attempt("large tensors", large_function(cut=True), profile=NIGHTLY)
    assert found.status == "broken" and found.message.endswith("in a tensor of more than 2^31 elements")
    assert found.facts["rows"].startswith("the last ") and found.facts["at"].startswith("y [")
    summed = verify.kernel(like=lambda x: x.cumsum(0), shapes={"x": "n m"}, dtypes=["float32"], name="sums")
    kernel = summed(lambda x: x.double().cumsum(0).float())
    assert attempt("large tensors", kernel, profile=NIGHTLY).status == "ok"  # along m, whose indices are independent
    few = verify.kernel(
        like=lambda x: x.softmax(-1), shapes={"x": "n m"}, where="n < 100", dtypes=["float32"], name="few"
    )
    found = attempt("large tensors", few(lambda x: x.double().softmax(-1).float()), profile=NIGHTLY)
    assert found.status == "skipped" and "may be so long" in found.message


@pytest.mark.usefixtures("roomy")
def test_gradients_are_left_out_where_they_have_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = large_silu("backward")
    subject = Subject(kernel, "float32", backends.select(), LARGE)
    enough = device._memory_of_rows(subject, gradients=False)
    assert enough < device._memory_of_rows(subject, gradients=True)
    monkeypatch.setattr(device, "_free", lambda subject: enough)
    assert attempt("large tensors", kernel, profile=NIGHTLY).status == "ok"
    monkeypatch.setattr(device, "_free", lambda subject: enough - 1)
    found = attempt("large tensors", kernel, profile=NIGHTLY)
    assert found.status == "skipped" and "GiB of free GPU memory" in found.message


@pytest.mark.usefixtures("roomy")
def test_a_kernel_that_takes_more_memory_than_there_is_gets_no_verdict() -> None:
    def hungry(x):
        if x.numel() > COUNTED:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return large_silu_value(x, cut=False)

    kernel = verify.kernel(op="silu", dtypes=["float32"], max_ulp=4, gradients=False)(hungry)
    assert attempt("large tensors", kernel, profile=NIGHTLY).status == "ok"

    def failing(x):
        if x.numel() > COUNTED:
            raise RuntimeError("invalid argument")
        return large_silu_value(x, cut=False)

    kernel = verify.kernel(op="silu", dtypes=["float32"], max_ulp=4, gradients=False, refuses=False)(failing)
    found = attempt("large tensors", kernel, profile=NIGHTLY)
    assert found.status == "broken" and "invalid argument" in found.message
