"""kernels/plans.py: launches that are repeated give the bits of the launcher, for every public function.

Without a GPU the interpreter takes a compiled kernel's place: a launch gets addresses and numbers alone, as a GPU's
does, and its tensors are made of the addresses.
"""

from __future__ import annotations

import ctypes
import gc
import threading
import time
import weakref

import pytest
import torch
from triton.runtime import JITFunction
from triton.runtime.interpreter import InterpretedFunction

from kernels import plans
from kernels.geglu import geglu, geglu_split
from kernels.gelu import _forward, _launch, gelu
from kernels.layer_norm import layer_norm
from kernels.layer_norm.operators import forward_op
from tests.kernels.public import DEVICE, FUNCTIONS, GPU, ROW, VECTOR, WIDE, drawn, results, same

_LAUNCHER = plans._launcher


def _pointed(value):
    """What makes a tensor like this one at another address; None for what is no pointer."""
    if not isinstance(value, torch.Tensor) or not value.data_ptr():
        return None
    size, dtype, shape, strides = plans._span(value), value.dtype, value.shape, value.stride()

    def tensor_at(address: int) -> torch.Tensor:
        memory = torch.frombuffer((ctypes.c_char * size).from_address(address), dtype=torch.uint8)
        return memory.view(dtype).as_strided(shape, strides)

    return tensor_at


class Launcher:
    """What launches: counts, and without a GPU runs the kernel in the interpreter."""

    def __init__(self) -> None:
        self.launches = 0

    def __call__(self, launch: plans.Launch):
        compiled, fixed, taken = _LAUNCHER(launch) if GPU else (None, (), launch.values)
        kernel, options, pointed = launch.kernel, launch.options, [_pointed(value) for value in launch.values]

        def start(x, y, z, stream, *values):
            self.launches += 1
            if GPU:
                compiled(x, y, z, stream, *values)
                return
            assert stream == 7
            args = [tensor_at(v) if tensor_at else v for v, tensor_at in zip(values, pointed, strict=True)]
            kernel[(x, y, z)](**dict(zip(kernel.arg_names, args, strict=True)), **options)

        return start, fixed, taken


@pytest.fixture
def launcher(monkeypatch):
    """Plans as on a GPU, of nothing that was seen before; what launches."""
    launcher = Launcher()
    monkeypatch.setattr(plans, "_launcher", launcher)
    if not GPU:
        monkeypatch.setattr(plans, "REPEATS", True)
        monkeypatch.setattr(plans, "_current_device", lambda: -1)
        monkeypatch.setattr(plans, "_stream", lambda device: 7)
        monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    plans.forget()
    yield launcher
    plans.forget()


@pytest.mark.parametrize("name", FUNCTIONS)
def test_repeated_launches_give_the_bits_and_strides_of_the_launcher(launcher, monkeypatch, name):
    function, shapes = FUNCTIONS[name]
    with monkeypatch.context() as plain:
        plain.setattr(plans, "REPEATS", False)
        expected = [results(function, drawn(seed, *shapes)) for seed in range(3)]
    for seed in range(3):
        assert same(results(function, drawn(seed, *shapes)), expected[seed]), seed
        assert seed > 0 or launcher.launches == 0
    with monkeypatch.context() as watched:
        worked_out = []
        watched.setattr(plans.Planned, "_unplanned", lambda self, *_: worked_out.append(self.launcher))
        results(function, drawn(0, *shapes))
        assert not worked_out


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_plan_keeps_no_tensor_and_no_graph(launcher, name):
    function, shapes = FUNCTIONS[name]
    dtype = torch.bfloat16 if GPU else torch.float32  # whose products have tensor descriptors, if they are large enough
    gc.disable()
    try:
        for seed in range(3):
            leaves = drawn(seed, *(tuple(16 * n for n in s) if GPU else s for s in shapes), dtype=dtype)
            kept = results(function, leaves)
            alive = [weakref.ref(t) for t in (*leaves, *kept)]
            del leaves, kept
            until = time.monotonic() + 5  # on a GPU PyTorch's thread drops a node after its caller goes on
            while any(ref() is not None for ref in alive) and time.monotonic() < until:
                time.sleep(0.01)
            assert not any(ref() is not None for ref in alive), seed
    finally:
        gc.enable()


def test_a_call_is_recognised_only_if_every_tensor_and_value_is_as_before(launcher):
    """Each variant is called between calls that are recognised. A wrong plan would give other bits or no gradient."""
    x, w, b = (t.detach() for t in drawn(0, (8, 48), (48,), (48,)))
    expected = layer_norm(x, w, b)
    for _ in range(4):
        layer_norm(x, w, b)
    [[known]] = forward_op.launcher.known.values()
    assert torch.equal(known((x, None, None, w, b, 1e-5, True, None, "once"))[0], expected)
    assert known((x, None, None, w, b, 1e-5, True, None)) is None
    wide = torch.empty(8, 49, device=DEVICE)
    off = torch.empty(8 * 48 + 1, device=DEVICE)[1:].view(8, 48)
    variants = [
        (x, w, b, 1e-3), (x.half(), w, b, 1e-5), (x, w.half(), b, 1e-5), (x, w, None, 1e-5), (x, None, b, 1e-5),
        (wide[:, :48].copy_(x), w, b, 1e-5), (off.copy_(x), w, b, 1e-5), (torch._neg_view(-x), w, b, 1e-5),
        (x, w, w, 1e-5), (torch.nn.Parameter(x, requires_grad=False), w, b, 1e-5), (x[:, :40], w[:40], b[:40], 1e-5),
    ]  # fmt: skip
    plans.forget()
    wanted = [layer_norm(*variant[:3], eps=variant[3]) for variant in variants]
    for variant, want in zip(variants * 3, wanted * 3, strict=True):
        for _ in range(2):
            assert torch.equal(layer_norm(x, w, b), expected)
        assert known((variant[0], None, None, *variant[1:], True, None, "once")) is None
        assert torch.equal(layer_norm(*variant[:3], eps=variant[3]), want)
    args, seen = (x, None, None, w, b, 1e-5, True, None, "once"), []

    def asked(y):
        seen.append(known((y, *args[1:])))
        return y + 1

    torch.func.vmap(asked)(x[None])
    torch.func.grad(lambda y: asked(y).sum())(x)
    torch.func.functionalize(asked)(x)
    torch.jit.trace(asked, (x,), check_trace=False)
    with plans._Recorder(), torch.no_grad():
        asked(x)
    with torch.inference_mode():
        asked(x.clone())
    with torch.autocast(x.device.type, torch.bfloat16):
        asked(x)
    assert seen == [None] * 7
    leaf = x.clone().requires_grad_()
    for grad in (True, False, True, True, False):
        with torch.set_grad_enabled(grad):
            assert layer_norm(leaf, w, b).requires_grad == grad
            assert not layer_norm(x, w, b).requires_grad
    with pytest.raises(NotImplementedError, match="no forward-mode"), torch.autograd.forward_ad.dual_level():
        layer_norm(torch.autograd.forward_ad.make_dual(x, x), w, b)


def test_an_operand_that_has_to_be_copied_is_copied_every_time(launcher):
    x = torch.randn(6, 64, device=DEVICE)[:, ::2]
    for _ in range(4):
        assert torch.equal(gelu(x), gelu(x.contiguous()))
        x += 1
    assert plans._NEVER in _forward.launcher.plans.values()


def test_operands_that_overlap_are_told_apart(launcher):
    """Recorded where both operands, or parts of one tensor, are in the same memory; repeated where they are not."""
    x, z = (t.detach() for t in drawn(3, ROW, WIDE))
    for _ in range(3):
        assert torch.equal(geglu_split(x, x), geglu_split(x, x.clone()))
        halves = z[:, :32], z[:, 32:]
        assert torch.equal(geglu_split(*halves), geglu(z))
    a, b = (t.detach() for t in drawn(4, ROW, ROW))
    assert torch.equal(geglu_split(a, b), geglu(torch.cat((a, b), 1)))
    assert launcher.launches > 0


@pytest.mark.parametrize("how", ["hook", "debug", "replaced", "kernel's hook"])
def test_nothing_is_repeated_where_a_launch_is_watched(launcher, monkeypatch, how):
    [x] = drawn(1, ROW)
    for _ in range(3):
        y = gelu(x.detach())
    before = launcher.launches
    assert before == 1
    if how == "hook":
        monkeypatch.setattr(plans._ENTER, "calls", [lambda *a: None])
    elif how == "debug":
        monkeypatch.setattr(plans._runtime, "debug", True)
    elif how == "replaced":
        monkeypatch.setattr(JITFunction, "run", lambda *a, **k: None)
    else:
        [plan] = _forward.launcher.plans.values()
        plan.hooks[0].append(lambda *a, **k: None)
    try:
        assert torch.equal(gelu(x.detach()), y)
        assert launcher.launches == before
    finally:
        [plan] = _forward.launcher.plans.values()
        plan.hooks[0].clear()


def test_a_capture_repeats_and_records_nothing(launcher, monkeypatch):
    [x] = drawn(1, ROW)
    y = gelu(x.detach())
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    for _ in range(3):
        assert torch.equal(gelu(x.detach()), y)
    assert launcher.launches == 0


def test_threads_share_plans(launcher, monkeypatch):
    lock, interpreted = threading.Lock(), InterpretedFunction.run

    def one_by_one(*args, **kwargs):  # the interpreter has one state for all threads
        with lock:
            return interpreted(*args, **kwargs)

    monkeypatch.setattr(InterpretedFunction, "run", one_by_one)
    inputs = {seed: drawn(seed, ROW, VECTOR, VECTOR) for seed in range(4)}
    expected = {seed: results(layer_norm, leaves) for seed, leaves in inputs.items()}
    plans.forget()
    wrong = []

    def work(seed):
        for _ in range(3):
            if not same(results(layer_norm, inputs[seed]), expected[seed]):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in inputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_what_is_made_by_anything_but_a_launch_is_not_repeated(launcher):
    """Seeded bugs of launchers: a tensor from elsewhere, a result no kernel was given, zeroed or an operand, a sum."""

    def launched(x):
        return _launch(x, "none")

    constant = torch.ones(20, device=DEVICE)

    def with_constant(x):
        return _launch(constant, "none")

    for wrong in (
        with_constant,
        lambda x: (launched(x),),
        lambda x: launched(x) + 1,
        lambda x: (launched(x), torch.empty_like(x)),
        lambda x: (launched(x), torch.zeros_like(x)),
        lambda x: (launched(x), x),
        lambda x: launched(x).mul_(2),
    ):
        launcher_of_it = plans.Planned(wrong)
        x = torch.randn(5, 4, device=DEVICE)
        for _ in range(3):
            launcher_of_it(x)
        assert list(launcher_of_it.plans.values()) == [plans._NEVER]
    right = plans.Planned(launched)
    for _ in range(3):
        right(x)
    assert [type(plan) for plan in right.plans.values()] == [plans.Plan]
