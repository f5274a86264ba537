"""Defines kernels with one seeded bug each, one for every law, and their correct twins, for `verify selftest`.

They are SiLU, y = x sigmoid(x), in plain torch wherever a bug in torch can break the law, so that they run wherever
verify runs. A bug is one line of `_value` or `_slope`, chosen by name. The twin is the same function without a bug. All
kernels compute in float64 and round once.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from verify.cases.sizes import sizes_of
from verify.declare.declaration import Kernel, kernel
from verify.measure.call import run_tensors
from verify.ops.graph.like import Definition
from verify.ops.op import Op

Function = Callable[..., Any]


@dataclass(frozen=True)
class Seeded:
    """Holds one bug: the law that must find it, the kernel with the bug, and the kernel without it."""

    law: str
    bug: str
    note: str
    kernel: Kernel
    twin: Kernel
    triton: bool = False


# -- SiLU ----------------------------------------------------------------------------------------------


def _sigmoid(x: Tensor) -> Tensor:
    return torch.sigmoid(x)


def _silu(x: Tensor) -> Tensor:
    """Returns SiLU of float64 values, with its limit at -infinity. An underflow keeps its sign."""
    low = x.clamp(min=-1e3)
    value = torch.where(x.isnan(), x, torch.where(x > 0, x, low) * _sigmoid(low))
    tiny = torch.where(x == -torch.inf, -0.0, -1e-300)
    return torch.where((value == 0) & (x < 0), tiny.to(value.dtype), value)


def _slope_of(x: Tensor) -> Tensor:
    """Returns the derivative of SiLU."""
    low = x.clamp(-1e3, 1e3)
    s = _sigmoid(low)
    value = s * (1.0 + low * _sigmoid(-low))
    value = torch.where((value == 0) & (x < 0) & (x > -torch.inf), torch.full_like(value, -1e-300), value)
    return torch.where(x.isnan(), x, value)


def _in_order(tensor: Tensor) -> Tensor:
    """Returns the memory of a tensor read in order from its beginning, modulo its size, as if it were contiguous."""
    store = tensor.as_strided((tensor.untyped_storage().nbytes() // tensor.element_size(),), (1,), 0)
    at = torch.arange(tensor.numel(), device=tensor.device) + tensor.storage_offset()
    return store[at % max(store.numel(), 1)].reshape(tensor.shape)


_MEMORY: dict[Any, Tensor] = {}
_CALLS: dict[str, int] = {}


def _value(x: Tensor, bug: str) -> Tensor:
    wide = x.double() if x.is_floating_point() else x.float().double()
    y = _silu(wide).to(x.dtype if x.is_floating_point() else torch.float32)
    y = _placed(x, y, bug)
    if bug == "tail cancels":
        narrow = x.float()
        return (0.5 * narrow * (1.0 + torch.tanh(0.5 * narrow))).to(x.dtype)
    if bug == "NaN swallowed":
        return torch.nan_to_num(y, posinf=torch.inf, neginf=-torch.inf)
    if bug == "sum of all joins":
        return y + 0.0 * wide.sum().to(y.dtype)
    if bug == "two dimensions assumed" and y.ndim > 2:
        return torch.cat([y[:1], torch.zeros_like(y[1:])]) if len(y) > 1 else y * 0.0
    if bug == "grid of 65,535 rows" and y.ndim == 2:
        return torch.where(torch.arange(len(y), device=y.device)[:, None] < 65_535, y, torch.zeros_like(y))
    if bug == "every third call differs":
        _CALLS[bug] = _CALLS.get(bug, 0) + 1
        return y * (1.0 + 1e-6) if _CALLS[bug] % 3 == 0 else y
    if bug == "lopsided":
        return torch.where(wide < 0, (_silu(wide) * 1.0001).to(y.dtype), y)
    if bug == "a seam":
        return torch.where(y.view(torch.int32) % 16 == 5, y * (1 + 2.0**-18), y)
    if bug == "different when compiled" and torch.compiler.is_compiling():
        return y * 1.001
    if bug == "half under autocast" and torch.is_autocast_enabled(x.device.type):
        half = torch.get_autocast_dtype(x.device.type)
        return (wide * _sigmoid(wide).to(half).double()).to(x.dtype)
    if bug == "asks the host" and not bool((x == x).all()):
        return y * 1.0
    return y


def _placed(x: Tensor, y: Tensor, bug: str) -> Tensor:
    """Returns the result of a kernel whose bug is where it reads or writes; y for any other bug."""
    if bug == "strides ignored":
        return _silu(_in_order(x).double()).to(x.dtype)
    if bug == "written past the end":
        room = y.untyped_storage().nbytes() // y.element_size() - y.storage_offset() - y.numel()
        if room > 0:  # only between guard bands is there room; elsewhere nothing is written
            y.as_strided((1,), (1,), y.storage_offset() + y.numel()).zero_()
        return y
    if bug == "last element not written":
        out = torch.empty_like(y, memory_format=torch.contiguous_format)
        out.view(-1)[: max(y.numel() - 1, 0)] = y.reshape(-1)[: max(y.numel() - 1, 0)]
        return out
    if bug == "cached by address":
        if len(_MEMORY) > 64:
            _MEMORY.clear()
        key = (x.data_ptr(), tuple(x.shape), x.dtype)
        return _MEMORY.setdefault(key, y.clone()).clone()
    if bug == "returned on device 0":
        return y.to("cuda:0") if y.is_cuda else y
    if bug == "32-bit offset":
        at = x.storage_offset() & ((1 << 31) - 1)
        steps = [step & ((1 << 31) - 1) for step in x.stride()]
        return _silu(x.as_strided(x.shape, steps, at).double()).to(x.dtype)
    return y


class _Silu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, bug: str) -> Tensor:
        ctx.bug = bug
        ctx.save_for_backward(x.clone() if bug == "saved tensor overwritten" else x)
        if bug == "on the default stream" and x.is_cuda:
            with torch.cuda.stream(torch.cuda.default_stream(x.device)):
                return _value(x, bug)
        return _value(x, bug)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        bug = ctx.bug
        at = x.detach() if bug == "double backward forgets a path" else x
        slope = _slope_of(at.double() * (1.001 if bug == "wrong slope" else 1.0))
        upstream = _in_order(dy) if bug == "upstream strides ignored" else dy
        dx = (upstream.double() * slope).to(x.dtype)
        if bug == "gradient clipped":
            dx = dx.clamp(max=0.9)
        elif bug == "saved tensor overwritten":
            x.detach().data.copy_(dx)  # no version counter changes, as with a Triton store
        return dx, None


@torch.library.custom_op("verify_seeded::silu", mutates_args=())
def _operator(x: Tensor, longer: bool) -> Tensor:
    return _value(x, "").clone(memory_format=torch.contiguous_format)


@_operator.register_fake
def _(x: Tensor, longer: bool) -> Tensor:
    return x.new_empty((*x.shape[:-1], x.shape[-1] + 1) if longer else x.shape)


def _checked(x: Tensor, bug: str) -> None:
    if not x.is_floating_point() and bug != "integers taken":
        raise TypeError(f"silu: x is floating point; received {x.dtype}")


def _plain(x: Tensor, bug: str) -> Tensor:
    _checked(x, bug)
    if not x.is_floating_point():
        return _value(x, bug).to(x.dtype)
    y: Tensor = _Silu.apply(x, bug)  # type: ignore[no-untyped-call]
    return y


def _forward_only(x: Tensor, bug: str) -> Tensor:
    _checked(x, bug)
    return _value(x, bug)


_PIECE, _COUNTED = 1 << 26, 1 << 31


def _in_pieces(x: Tensor, bug: str) -> Tensor:
    """Computes piece by piece: float64 copies of a tensor of 2^31 elements do not fit on a GPU."""
    _checked(x, bug)
    flat = x.reshape(-1)
    y = torch.zeros_like(flat)
    end = min(flat.numel(), _COUNTED) if bug == "32-bit count" else flat.numel()
    for start in range(0, end, _PIECE):
        piece = slice(start, min(start + _PIECE, end))
        y[piece] = _value(flat[piece], "")
    return y.view(x.shape)


def _through_operator(x: Tensor, bug: str) -> Tensor:
    _checked(x, bug)
    y: Tensor = _operator(x, bug == "fake of another shape")
    return y


def _tuned(x: Tensor, bug: str) -> Tensor:
    from verify.laws.selftest.seeded_triton import silu

    _checked(x, bug)
    return silu(x, bug)


# -- RMS norm, for the law that needs a weight ------------------------------------------------------------


def _rms_norm(x: Tensor, weight: Tensor, eps: float, bug: str) -> Tensor:
    wide = x.double()
    rstd = torch.rsqrt((wide * wide).mean(-1, keepdim=True) + eps)
    scale = weight.to(x.dtype) if bug == "weight rounded first" else weight
    return (wide * rstd * scale.double()).to(x.dtype)


# -- attention, for the laws about keys that heads share and that queries do not see ----------------------


def _attention(q: Tensor, k: Tensor, v: Tensor, bug: str = "") -> Tensor:
    """Returns causal attention whose last query sees all keys. Heads share keys and values."""
    heads, queries, keys = q.shape[0], q.shape[1], k.shape[1]
    if bug == "heads in another order where none are shared" and k.shape[0] == heads:
        k, v = k.roll(1, 0), v.roll(1, 0)
    k, v = (each.double().repeat_interleave(heads // each.shape[0], 0) for each in (k, v))
    seen = torch.ones(queries, keys, dtype=torch.bool, device=q.device).tril(keys - queries)
    if bug == "half of the keys for one query" and queries == 1:
        seen[:, : keys // 2] = False
    weights = torch.softmax((q.double() @ k.transpose(-1, -2)).masked_fill(~seen, -torch.inf), -1)
    if bug == "a trace of masked keys":
        weights = weights + torch.where(seen, 0.0, 1e-3)
    return (weights @ v).to(q.dtype)


@cache
def _attention_op() -> Op:
    shapes = {"q": "h t d", "k": "g s d", "v": "g s d"}
    return Definition(_attention, tuple(shapes), shapes=shapes, where="h % g == 0 and s >= t").op()


def _attending(law: str, bug: str, note: str) -> Seeded:
    def declare(name: str, seed: str) -> Kernel:
        options: dict[str, Any] = {"op": _attention_op(), "dtypes": ["float32"], "max_ulp": 4, "gradients": False}
        return kernel(**options, name=name)(lambda q, k, v: _attention(q, k, v, seed))

    return Seeded(law, bug, note, declare(_identifier(bug), bug), declare(f"{_identifier(bug)}_twin", ""))


# -- tokens of experts and sequences with padding, for the laws about them -----------------------------------


def _experts(x: Tensor, gate: Tensor, w: Tensor, bug: str = "") -> Tensor:
    """The products of each token with the matrices of all experts, weighted by a softmax."""
    scores, matrices = x.double() @ gate.double(), w.double()
    if bug == "the first expert twice":
        matrices = torch.cat([matrices[:1], matrices[:1], matrices[2:]])
    return torch.einsum("te,td,edf->tf", torch.softmax(scores, -1), x.double(), matrices).to(x.dtype)


def _log_sum(x: Tensor, lengths: Tensor, bug: str = "") -> Tensor:
    """The logarithm of the sum of exponentials of each sequence. A maximum below 0 is taken as 0."""
    seen = torch.arange(x.shape[1], device=x.device) < lengths[:, None]
    wide = x.double()
    highest = (wide if bug == "the maximum of padding" else wide.masked_fill(~seen, 0.0)).amax(-1, keepdim=True)
    found = torch.where(seen, (wide - highest).exp(), 0.0).sum(-1).log() + highest[:, 0]
    return found.to(x.dtype)


@cache
def _shaped_op(function: Function) -> Op:
    shapes = {"x": "t d", "gate": "d e", "w": "e d f"} if function is _experts else {"x": "b s", "lengths": "b"}
    integers = None if function is _experts else {"lengths": "1 <= lengths <= s"}
    return Definition(function, tuple(shapes), shapes=shapes, integers=integers).op()


def _shaped(law: str, function: Function, bug: str, note: str) -> Seeded:
    def declare(name: str, seed: str) -> Kernel:
        options: dict[str, Any] = {"op": _shaped_op(function), "dtypes": ["float32"], "max_ulp": 4, "gradients": False}
        return kernel(**options, name=name)(lambda *operands: function(*operands, seed))

    return Seeded(law, bug, note, declare(_identifier(bug), bug), declare(f"{_identifier(bug)}_twin", ""))


# -- a copy in bfloat16, for the law about rounding at random -------------------------------------------------


def _stored(x: Tensor, seed: Tensor, bug: str) -> Tensor:
    """x in bfloat16: 16 random bits decide whether the 16 bits that are cut off count."""
    generator = torch.Generator(x.device).manual_seed(0 if bug else int(seed))
    random = torch.randint(0, 1 << 16, x.shape, dtype=torch.int32, device=x.device, generator=generator)
    bits = x.contiguous().view(torch.int32)
    up = (random < (bits & 0xFFFF)).to(torch.int32) << 16
    return ((bits & -0x10000) + up).view(torch.float32).bfloat16()


def _rounding() -> Seeded:
    bug = "the seed is ignored"
    names = _identifier(bug), f"{_identifier(bug)}_twin"
    options: dict[str, Any] = {"shapes": {"x": "n", "seed": ""}, "integers": {"seed": "0 <= seed < 2**31"}}
    options |= {"dtypes": ["float32"], "output_dtypes": {"y": "bfloat16"}, "gradients": False, "stochastic": "seed"}
    twin = kernel(like=lambda x, seed: x, **options, name=names[1])(lambda x, seed: _stored(x, seed, ""))
    wrong = replace(twin, name=names[0], function=lambda x, seed: _stored(x, seed, bug))
    return Seeded("stochastic rounding", bug, "every call rounds alike", wrong, twin)


# -- the list -----------------------------------------------------------------------------------------------

_ORDINARY: tuple[tuple[str, str, str, Function, str], ...] = (
    ("accuracy", "tail cancels", "0.5 x (1 + tanh(x / 2)) in float32", _plain, "float32"),
    ("special values", "NaN swallowed", "a NaN becomes 0", _plain, "float32"),
    ("gradcheck", "wrong slope", "the derivative at 1.001 x", _plain, "float64"),
    ("gradgradcheck", "double backward forgets a path", "x is detached in backward", _plain, "float64"),
    ("layout independence", "strides ignored", "memory of x read in order", _plain, "float32"),
    ("upstream layout independence", "upstream strides ignored", "memory of dy read in order", _plain, "float32"),
    ("memory bounds", "written past the end", "one element behind y", _forward_only, "float32"),
    ("initialised memory", "last element not written", "it keeps what lay there", _forward_only, "float32"),
    ("nothing overwritten", "saved tensor overwritten", "dx is written over x", _plain, "float32"),
    ("no stale results", "cached by address", "an earlier result for the same address", _forward_only, "float32"),
    ("batch invariance", "sum of all joins", "a NaN reaches every element", _forward_only, "float32"),
    ("shapes", "two dimensions assumed", "the rest is zero", _forward_only, "float32"),
    ("many rows", "grid of 65,535 rows", "later rows are zero", _forward_only, "float32"),
    ("determinism", "every third call differs", "by 1e-6", _forward_only, "float32"),
    ("exact identities", "lopsided", "negative x off by 1e-4", _forward_only, "float32"),
    ("linear backward", "gradient clipped", "at 0.9", _plain, "float32"),
    ("monotone", "a seam", "every sixteenth pattern is 2^-18 too large", _forward_only, "float32"),
    ("configuration independence", "block baked in", "wrong with the second configuration", _tuned, "float32"),
    ("error contract", "integers taken", "and answered in int64", _plain, "float32"),
    ("compiled", "different when compiled", "by 1e-3", _forward_only, "float32"),
    ("custom operators", "fake of another shape", "one element longer", _through_operator, "float32"),
    ("autocast", "half under autocast", "the sigmoid alone is rounded", _forward_only, "float32"),
    ("side stream", "on the default stream", "whatever stream is current", _plain, "float32"),
    ("CUDA graph", "asks the host", "whether there is a NaN", _forward_only, "float32"),
    ("other device", "returned on device 0", "wherever x is", _forward_only, "float32"),
    ("large offsets", "32-bit offset", "offsets modulo 2^31", _forward_only, "float32"),
    ("large tensors", "32-bit count", "elements from 2^31 on are zero", _in_pieces, "float32"),
)


@cache
def seeded() -> tuple[Seeded, ...]:
    """Returns one seeded bug for every law, nearly in the order of the registry."""
    found = [_ordinary(*row) for row in _ORDINARY]
    found[1:1] = [_mixed(), _rounding()]
    found += [
        _attending("causality", "a trace of masked keys", "with a weight of 1e-3"),
        _attending("decode equals prefill", "half of the keys for one query", "it sees the later half alone"),
        _attending("grouped heads", "heads in another order where none are shared", "each has its neighbour's keys"),
        _shaped("varlen equals padded", _log_sum, "the maximum of padding", "all exponentials become 0"),
        _shaped("permutation of experts", _experts, "the first expert twice", "in place of the second"),
    ]
    return tuple(found)


def _ordinary(law: str, bug: str, note: str, function: Function, dtype: str) -> Seeded:
    def declare(name: str, seed: str) -> Kernel:
        bound = partial(function, bug=seed)
        gradients: Any = function is _plain
        return kernel(op="silu", dtypes=[dtype], max_ulp=4, gradients=gradients, name=name)(lambda x: bound(x))

    names = _identifier(bug), f"{_identifier(bug)}_twin"
    return Seeded(law, bug, note, declare(names[0], bug), declare(names[1], ""), triton=function is _tuned)


def _mixed() -> Seeded:
    def declare(name: str, seed: str) -> Kernel:
        options: dict[str, Any] = {"op": "rms_norm", "dtypes": ["bfloat16"], "max_ulp": 0.6, "gradients": False}
        return kernel(**options, name=name)(lambda x, weight, *, eps: _rms_norm(x, weight, eps, seed))

    bug = "weight rounded first"
    note = "a float32 weight becomes bfloat16"
    return Seeded("mixed dtypes", bug, note, declare(_identifier(bug), bug), declare(f"{_identifier(bug)}_twin", ""))


def _identifier(text: str) -> str:
    return "_".join("".join(c if c.isalnum() else " " for c in text).split())


def seen_by_assert_close(item: Seeded, device: str, **tolerance: float) -> bool:
    """True if `torch.testing.assert_close` distinguishes the seeded kernel from the op's baseline.

    Operands and the upstream gradient are contiguous randn values of 32 x 64. The tolerances are the defaults unless
    given.
    """
    declared = item.kernel
    dtype = getattr(torch, declared.dtypes[0])
    generator = torch.Generator().manual_seed(0)
    params = declared.op.resolve(declared.params)
    dims = sizes_of(declared.op, 1 << 12)[0] if declared.op.geometry.named else (32, 64)
    shapes = declared.op.shapes(dims, params)

    def randn(shape: tuple[int, ...]) -> Tensor:
        return torch.randn(shape, generator=generator).to(dtype).to(device)

    inputs: dict[str, Tensor | None] = {name: randn(shapes[name]) for name in declared.operands}
    leaves = [value.clone().requires_grad_(True) for value in inputs.values() if value is not None]
    wanted = declared.op.baseline(*leaves, **params)
    dy = randn(tuple(wanted.shape))
    expected = {"y": wanted.detach()}
    if declared.differentiable:
        gradients = torch.autograd.grad(wanted, leaves, dy)
        expected |= {"d" + name: value for name, value in zip(declared.operands, gradients, strict=True)}
    results = run_tensors(declared, inputs, params, {"y": dy} if declared.differentiable else {})
    try:
        for name, value in expected.items():
            torch.testing.assert_close(results[name], value.to(results[name].dtype), **tolerance)
    except AssertionError:
        return True
    return False
