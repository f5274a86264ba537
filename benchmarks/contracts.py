"""Finds contracts from bits: seeded ones, and those of layers beside kernels: python -m benchmarks.contracts

    python -m benchmarks.contracts --json reports/benchmarks/interpreter/contracts.json
    python -m benchmarks.contracts --seeded 40 --seed 7        seeded contracts alone
    python -m benchmarks.contracts --pairs "T5"                pairs alone whose name has this text
    python -m benchmarks.contracts --pairs --backend cuda --jobs 8 --json reports/benchmarks/sm_90/contracts.json

A seeded contract is a random choice of formats at the places of a program. It is recovered if the contract found
predicts all bits of inputs of other recipes. A pair is a layer as models write it beside a kernel: the same layer fused
by hand (in float32, rounded once), what Inductor makes of it for the CPU, its gradients under both, PyTorch's own
function, or a kernel of this repository. `--promises` tries `rounds=` on each layer and on its fused form. Exit 1: a
seeded contract is not recovered, or a layer or a fused form does not keep its own promise.
"""

from __future__ import annotations

import argparse
import functools
import importlib
import inspect
import json
import multiprocessing
import random
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from itertools import islice
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

import verify
from verify import backends
from verify.diagnose.contracts import contract, found_by, sets_like
from verify.diagnose.places import EACH, EXACT, WIDE, Contract, Program, Rounded, trace
from verify.laws import registry
from verify.laws.engine import PROFILES, run_law

ROWS, COLUMNS = 16, 64
UNSEEN = 1_000_000  # results that two contracts predict alike, if they are not the same
TOGETHER = 16  # sets of inputs that are evaluated at once
LEAST = 0.999  # share of unseen bits that a pair's contract predicts


def _mean(x: Tensor) -> Tensor:
    return x.mean(-1, keepdim=True)


def _softmax(x: Tensor) -> Tensor:
    up = torch.exp(x - x.amax(-1, keepdim=True))
    return up / up.sum(-1, keepdim=True)


def _tanh_gelu(g: Tensor) -> Tensor:
    return 0.5 * g * (1 + torch.tanh(0.7978845608 * (g + 0.044715 * g * g * g)))


def _steps(x: Tensor, w: Tensor, g: Tensor, count: int) -> Tensor:
    """Adds gated norms to a stream."""
    for _ in range(count):
        x = x + x * torch.rsqrt(_mean(x * x) + 1e-6) * w * torch.sigmoid(x * g)
    return x


# name -> program, and the shapes of its operands: r rows of n, or n
PROGRAMS: dict[str, tuple[Callable[..., Any], str]] = {
    "rms norm": (lambda x, w: x * torch.rsqrt(_mean(x * x) + 1e-6) * w, "r n"),
    "rms norm, 1 + w": (lambda x, w: x * torch.rsqrt(_mean(x * x) + 1e-6) * (w + 1), "r n"),
    "rms norm, divided": (lambda x, w: x / torch.sqrt(_mean(x * x) + 1e-6) * w, "r n"),
    "add, rms norm": (lambda x, r, w: (x + r) * torch.rsqrt(_mean((x + r) * (x + r)) + 1e-6) * w, "r r n"),
    "add, rms norm, stream": (lambda x, r, w: (x + r, (x + r) * torch.rsqrt(_mean((x + r) ** 2) + 1e-6) * w), "r r n"),
    "layer norm": (
        lambda x, w, b: (x - _mean(x)) * torch.rsqrt(_mean((x - _mean(x)) ** 2) + 1e-5) * w + b, "r n n"),
    "layer norm, one pass": (
        lambda x, w, b: (x - _mean(x)) * torch.rsqrt(_mean(x * x) - _mean(x) ** 2 + 1e-5) * w + b, "r n n"),
    "swiglu": (lambda g, u: g * torch.sigmoid(g) * u, "r r"),
    "swiglu, bias": (lambda g, u, b: (g + b) * torch.sigmoid(g + b) * u, "r r n"),
    "swiglu, clamped": (lambda g, u: g * torch.sigmoid(1.702 * g) * (u + 1), "r r"),
    "geglu, tanh": (lambda g, u: _tanh_gelu(g) * u, "r r"),
    "geglu, erf": (lambda g, u: 0.5 * g * (1 + torch.erf(g * 0.7071067811865476)) * u, "r r"),
    "reglu": (lambda g, u: torch.relu(g) * u + g * 0.125, "r r"),
    "rope": (lambda x, y, c, s: (x * c - y * s, y * c + x * s), "r r n n"),
    "softmax": (_softmax, "r"),
    "scaled softmax": (lambda x: _softmax(x * 0.088388), "r"),
    "masked softmax": (lambda x, m: _softmax(x * 0.125 + m), "r n"),
    "log softmax": (
        lambda x: x - x.amax(-1, keepdim=True)
        - torch.log(torch.exp(x - x.amax(-1, keepdim=True)).sum(-1, keepdim=True)), "r"),
    "softcap": (lambda x: 30 * torch.tanh(x / 30), "r"),
    "softcapped softmax": (lambda x: _softmax(5 * torch.tanh(x / 5)), "r"),
    "gated residual": (lambda x, r, g: r + x * torch.sigmoid(g), "r r r"),
    "layer scale": (lambda x, r, w: r + w * (x * 0.3), "r r n"),
    "adaptive norm": (
        lambda x, w, b: (x - _mean(x)) * torch.rsqrt(_mean((x - _mean(x)) ** 2) + 1e-6) * (1 + w) + b, "r n n"),
    "qk norm, rope": (
        lambda x, y, w, c, s: x * torch.rsqrt(_mean(x * x) + 1e-6) * w * c
        - y * torch.rsqrt(_mean(y * y) + 1e-6) * w * s, "r r n n n"),
    "norm, gate": (lambda x, g, w: x * torch.rsqrt(_mean(x * x) + 1e-5) * w * (g * torch.sigmoid(g)), "r r n"),
    "gate, norm": (
        lambda x, g, w: x * g * torch.sigmoid(g) * torch.rsqrt(_mean((x * g * torch.sigmoid(g)) ** 2) + 1e-5) * w,
        "r r n"),
    "l2 norm": (lambda x: x / torch.sqrt((x * x).sum(-1, keepdim=True) + 1e-6), "r"),
    "cosine": (
        lambda a, b: (a * b).sum(-1) / torch.sqrt((a * a).sum(-1) * (b * b).sum(-1) + 1e-8), "r r"),
    "adam": (lambda p, m, v: p - 1e-2 * (m / 0.1) / (torch.sqrt(v * v / 0.001) + 1e-8), "r r r"),
    "momentum": (lambda p, m, g: (p - 0.01 * (0.9 * m + g), 0.9 * m + g), "r r r"),
    "residual steps, 4": (lambda x, w, g: _steps(x, w, g, 4), "r n n"),
    "mish": (lambda x: x * torch.tanh(torch.log1p(torch.exp(-x.abs())) + torch.relu(x)), "r"),
    "residual steps, 6": (lambda x, w, g: _steps(x, w, g, 6), "r n n"),
    "squared relu": (lambda x, u: torch.relu(x * 0.7) ** 2 * u, "r r"),
    "decay": (lambda x, g, s: s * torch.exp(-torch.exp(g) * 0.1) + x * (1 - torch.exp(-torch.exp(g) * 0.1)), "r r r"),
    "temperature": (lambda x, t: _softmax(x / (t.abs() + 0.5)), "r n"),
    "two norms": (
        lambda x, r, w, v: r + x * torch.rsqrt(_mean(x * x) + 1e-6) * w
        + r * torch.rsqrt(_mean(r * r) + 1e-6) * v, "r r n n"),
    "sandwich": (
        lambda x, r, w, v: (r + x * torch.rsqrt(_mean(x * x) + 1e-6) * w)
        * torch.rsqrt(_mean((r + x * torch.rsqrt(_mean(x * x) + 1e-6) * w) ** 2) + 1e-6) * v, "r r n n"),
    "mlp's middle": (lambda g, u, b, c: _tanh_gelu(g + b) * (u + c), "r r n n"),
    "deep": (
        lambda x, r, g, w, v: _softmax((r + x * torch.sigmoid(g)) * torch.rsqrt(_mean((r + x * torch.sigmoid(g)) ** 2)
        + 1e-6) * w + v), "r r r n n"),
}  # fmt: skip


def drawn(shapes: str, seed: int, dtype: torch.dtype, rows: int = ROWS) -> tuple[Tensor, ...]:
    """Draws operands."""
    generator = torch.Generator().manual_seed(seed)
    sizes = [(rows, COLUMNS) if each == "r" else (COLUMNS,) for each in shapes.split()]
    return tuple(torch.randn(size, generator=generator).to(dtype) for size in sizes)


def planted_in(program: Program, chance: random.Random, wide: torch.dtype) -> dict[str, str]:
    """Draws formats for some places: of stored numbers, of accumulators, and of products that are not rounded."""
    share, kinds = chance.choice([0.1, 0.3, 0.6]), ["bfloat16", "bfloat16", "float16", "float16", "float8_e4m3fn"]
    planted = {place: chance.choice(kinds) for place in program.places if chance.random() < share}
    for place in sorted(program.added):
        if chance.random() < share / 2:
            planted[place] = chance.choice(kinds[:-1]) + EACH
    if wide == torch.float32:
        planted |= {place: EXACT for place in sorted(program.contracted) if chance.random() < 0.5}
    return planted


def seeded(count: int, seed: int) -> Iterator[dict[str, Any]]:
    """Plants contracts in the programs, one program after the other, and yields what is found of each."""
    return (recovered(trial, seed) for trial in range(count))


def recovered(trial: int, seed: int) -> dict[str, Any]:
    """Plants one contract, and returns what is found of it."""
    name = list(PROGRAMS)[trial % len(PROGRAMS)]
    layer, shapes = PROGRAMS[name]
    chance = random.Random(seed * 1_000_003 + trial)
    dtype = chance.choice([torch.bfloat16, torch.bfloat16, torch.float16])
    inputs = drawn(shapes, trial, dtype, 4 * ROWS)
    program = trace(layer, inputs)
    wide = torch.float32 if trial % 5 == 4 else dtype  # every fifth kernel returns float32, and may contract
    planted = planted_in(program, chance, wide)

    def kernel(*operands: Tensor) -> list[Tensor]:
        return [value.float().to(wide) for value in Rounded(program, operands, planted).outputs()]

    started = time.process_time()
    found = found_by(program, layer, kernel, inputs)
    same = found.formats == {place: kind for place, kind in planted.items() if kind != WIDE}
    alike = same or (not found.form and _alike(program, inputs, wide, planted, found.formats))
    return {
        "program": name,
        "places": len(program.places),
        "planted": len(planted),
        "found": len(found.formats),
        "same": same,
        "known": found.known,
        "unseen": 1.0 if alike else min(found.unseen, 1 - 1 / UNSEEN),
        "undecided": len(found.undecided),
        "evaluations": found.evaluations,
        "seconds": round(time.process_time() - started, 2),
    }


def _alike(program: Program, inputs: Sequence[Tensor], wide: torch.dtype, one: Contract, other: Contract) -> bool:
    """True if two contracts predict the same bits of at least `UNSEEN` results, for inputs of the unseen recipes."""
    drawn, tried = sets_like(inputs, "unseen"), 0
    while tried < UNSEEN:
        stack = [torch.stack(each) for each in zip(*islice(drawn, TOGETHER), strict=True)]
        base = Rounded(program, stack, one)
        pairs = zip(base.outputs(), Rounded(program, stack, other).outputs(), strict=True)
        for a, b in pairs:
            if not torch.equal(*(each.float().to(wide).float().nan_to_num(-7.0) for each in (a, b))):
                return False
            tried += a.numel()
    return True


# -- layers beside kernels ------------------------------------------------------------------------------------


def _normed(x: Tensor) -> Tensor:
    """Returns x over its root mean square, in float32."""
    wide = x.float()
    return wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)


def llama_norm(x: Tensor, w: Tensor) -> Tensor:
    return w * _normed(x).to(x.dtype)


def fused_norm(x: Tensor, w: Tensor) -> Tensor:
    return (w.float() * _normed(x)).to(x.dtype)


def _gemma_norm(x: Tensor, w: Tensor) -> Tensor:
    return (_normed(x) * (1.0 + w.float())).to(x.dtype)


def _gemma_norm_narrow(x: Tensor, w: Tensor) -> Tensor:
    """Adds 1 to the weight in the weight's own format, and multiplies there."""
    return _normed(x).to(x.dtype) * (1.0 + w)


def _add_norm(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    h = x + r
    return llama_norm(h, w), h


def _add_norm_wide(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Norms the sum before it is rounded for the stream."""
    h = x.float() + r.float()
    return (w.float() * _normed(h)).to(x.dtype), h.to(x.dtype)


def _turned(x: Tensor) -> Tensor:
    half = x.shape[-1] // 2
    return torch.cat((-x[..., half:], x[..., :half]), -1)


def _rope(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    return x * c + _turned(x) * s


def _rope_wide(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    return (x.float() * c.float() + _turned(x.float()) * s.float()).to(x.dtype)


def _softmax_wide(x: Tensor) -> Tensor:
    return functional.softmax(x, -1, dtype=torch.float32).to(x.dtype)


def _softmax_narrow(x: Tensor) -> Tensor:
    """Stores the exponentials and their sum in the format of x."""
    up = (x - x.amax(-1, keepdim=True)).exp()
    return up / up.sum(-1, keepdim=True)


def _loss(x: Tensor) -> Tensor:
    return functional.log_softmax(x.float(), -1).to(x.dtype)


def _loss_narrow(x: Tensor) -> Tensor:
    return x - torch.logsumexp(x.float(), -1, keepdim=True).to(x.dtype)


def _swiglu(g: Tensor, u: Tensor) -> Tensor:
    return functional.silu(g) * u


def _geglu(g: Tensor, u: Tensor) -> Tensor:
    return functional.gelu(g) * u


def _geglu_tanh(g: Tensor, u: Tensor) -> Tensor:
    return functional.gelu(g, approximate="tanh") * u


def _layer_norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return functional.layer_norm(x, x.shape[-1:], w, b, 1e-5)


def _layer_norm_eager(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    """Layer norm as models write it by hand, with each step in the format of x."""
    mean = x.mean(-1, keepdim=True)
    return (x - mean) * torch.rsqrt((x - mean).pow(2).mean(-1, keepdim=True) + 1e-5) * w + b


def _torch_norm(x: Tensor, w: Tensor) -> Tensor:
    return functional.rms_norm(x, x.shape[-1:], w, 1e-6)


def _own(path: str, name: str, *, gate: bool = False, **fixed: Any) -> Callable[..., Any]:
    """Returns a kernel of this repository, which Triton's interpreter runs. Its gate is the last operand."""

    def kernel(*operands: Tensor) -> Any:
        return getattr(importlib.import_module(path), name)(*(operands[::-1] if gate else operands), **fixed)

    return kernel


def _t5_norm(x: Tensor, w: Tensor) -> Tensor:
    variance = x.float().pow(2).mean(-1, keepdim=True)
    return w * (x * torch.rsqrt(variance + 1e-6)).to(w.dtype)


def _gelu_new(x: Tensor, u: Tensor) -> Tensor:
    inner = 0.7978845608028654 * (x + 0.044715 * torch.pow(x, 3.0))
    return 0.5 * x * (1.0 + torch.tanh(inner)) * u


def _interleaved(x: Tensor, c: Tensor, s: Tensor) -> Tensor:
    turned = torch.stack((-x[..., 1::2], x[..., ::2]), -1).flatten(-2)
    return x * c + turned * s


def _clamped_swiglu(g: Tensor, u: Tensor) -> Tensor:
    g, u = g.clamp(max=7.0), u.clamp(-7.0, 7.0)
    return (u + 1) * (g * torch.sigmoid(g * 1.702))


def _scores(x: Tensor, m: Tensor) -> Tensor:
    return functional.softmax(x * 0.125 + m, -1, dtype=torch.float32).to(x.dtype)


def _softcap(x: Tensor) -> Tensor:
    return torch.tanh(x / 50.0) * 50.0


def _qk_rope(x: Tensor, w: Tensor, c: Tensor, s: Tensor) -> Tensor:
    return _rope(llama_norm(x, w), c, s)


# Layers as models of the transformers package write them, in own words: name -> layer, and the shapes of its operands.
LAYERS: dict[str, tuple[Callable[..., Any], str]] = {
    "Llama, Mistral, Qwen2: norm": (llama_norm, "r n"),
    "Gemma: norm, 1 + w": (_gemma_norm, "r n"),
    "T5: norm": (_t5_norm, "r n"),
    "OLMo: layer norm without weights": (
        lambda x: functional.layer_norm(x.float(), x.shape[-1:], eps=1e-5).to(x.dtype), "r"),
    "GPT-2, BERT: layer norm": (_layer_norm, "r n n"),
    "Mamba2: gate, then norm": (lambda x, g, w: w * _normed(x * functional.silu(g.float())).to(x.dtype), "r r n"),
    "Llama: add, norm": (_add_norm, "r r n"),
    "Qwen3: norm of q, RoPE": (_qk_rope, "r n n n"),
    "Llama: SwiGLU": (_swiglu, "r r"),
    "gpt-oss: SwiGLU, clamped": (_clamped_swiglu, "r r"),
    "GPT-2: GELU by tanh, gate": (_gelu_new, "r r"),
    "Gemma: GEGLU by tanh": (_geglu_tanh, "r r"),
    "BERT: GELU, gate": (_geglu, "r r"),
    "Nemotron: squared ReLU, gate": (lambda x, u: torch.relu(x).square() * u, "r r"),
    "Llama: RoPE": (_rope, "r n n"),
    "GPT-J: RoPE, interleaved": (_interleaved, "r n n"),
    "Gemma2: softcap": (_softcap, "r"),
    "Llama: masked softmax of scores": (_scores, "r n"),
    "Mixtral: router's softmax": (lambda x: functional.softmax(x, -1, dtype=torch.float), "r"),
    "log softmax in float32": (_loss, "r"),
    "Falcon: parallel residual": (lambda x, a, m: m + a + x, "r r r"),
    "ViT, LLaVA: layer scale, residual": (lambda x, r, w: r + x * w, "r r n"),
    "Granite: residual, scaled": (lambda x, r: r + x * 0.22, "r r"),
    "RWKV: interpolation": (lambda x, p, m: x * m + p * (1 - m), "r r n"),
}  # fmt: skip


def _fused(layer: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a layer as a fused kernel computes it: in float32, with results in the dtypes of the layer's."""

    def kernel(*operands: Tensor) -> Any:
        made = layer(*(each.float() for each in operands))
        parts = made if isinstance(made, tuple) else (made,)
        kinds = [each.dtype for each in _parts(layer(*operands))]
        found = tuple(each.to(kind) for each, kind in zip(parts, kinds, strict=True))
        return found if isinstance(made, tuple) else found[0]

    return kernel


def _compiled(layer: Callable[..., Any]) -> Callable[..., Any]:
    """Returns what Inductor makes of a layer. It compiles when it is called first, as that imports Triton."""
    made = functools.cache(lambda: torch.compile(layer, dynamic=False))
    return lambda *operands: made()(*operands)


def _parts(made: Any) -> tuple[Tensor, ...]:
    return made if isinstance(made, tuple) else (made,)


# name -> layer, kernel, shapes of the operands, and whether their gradients are compared
PAIRS: dict[str, tuple[Callable[..., Any], Callable[..., Any], str, bool]] = {
    name: (*pair, False)
    for name, pair in {
        "Llama's norm, F.rms_norm": (llama_norm, _torch_norm, "r n"),
        "Llama's norm, itself": (llama_norm, llama_norm, "r n"),
        "Llama's norm, a fused one (vllm 42379, kernels-community 105)": (llama_norm, fused_norm, "r n"),
        "add + norm, the sum kept wide (lmdeploy 4133)": (_add_norm, _add_norm_wide, "r r n"),
        "Gemma's norm, 1 + w in 16 bits": (_gemma_norm, _gemma_norm_narrow, "r n"),
        "GEGLU, fused with tanh": (_geglu, _fused(_geglu_tanh), "r r"),
        "softmax, exponentials in 16 bits": (_softmax_wide, _softmax_narrow, "r"),
        "cross-entropy, its sum in 16 bits": (_loss, _loss_narrow, "r"),
        "layer norm, by hand": (_layer_norm, _layer_norm_eager, "r n n"),
        "rms_norm of kernels/": (llama_norm, _own("kernels.rms_norm", "rms_norm", eps=1e-6), "r n"),
        "layer_norm of kernels/": (_layer_norm, _own("kernels.layer_norm", "layer_norm", eps=1e-5), "r n n"),
        "swiglu_split of kernels/": (_swiglu, _own("kernels.swiglu", "swiglu_split", gate=True), "r r"),
        "geglu_split of kernels/": (
            _geglu_tanh, _own("kernels.geglu", "geglu_split", gate=True, approximate="tanh"), "r r"),
    }.items()
}  # fmt: skip
PAIRS |= {
    f"{name}: {kind}{', gradients' if gradients else ''}": (layer, made, shapes, gradients)
    for gradients in (False, True)
    for name, (layer, shapes) in LAYERS.items()
    for kind, made in (("fused", _fused(layer)), ("Inductor", _compiled(layer)))
}


def paired(name: str, device: str) -> dict[str, Any]:
    """Returns what is found of a pair."""
    layer, kernel, shapes, gradients = PAIRS[name]
    inputs = [each.to(device) for each in drawn(shapes, 0, torch.bfloat16, 4 * ROWS)]
    compiled = [each.clone().requires_grad_(gradients) for each in inputs]
    made = _parts(kernel(*compiled))  # compiles it
    if gradients:
        torch.autograd.backward(made, [torch.ones_like(each) for each in made])
    started = time.process_time()
    found = contract(layer, kernel, inputs, gradients=gradients)
    return {
        "pair": name,
        "parts": "nowhere" if found.same else found.first,
        "layer": found.layer.unseen,
        "kernel": found.kernel.unseen,
        "undecided": len(found.kernel.undecided),
        "evaluations": found.layer.evaluations + found.kernel.evaluations,
        "seconds": round(time.process_time() - started, 2),
    }


# -- promises -----------------------------------------------------------------------------------------------------


def promises(name: str, backend: backends.Backend) -> Iterator[dict[str, Any]]:
    """Yields what the law of `rounds=` says of a layer and of its fused form, under both promises."""
    layer, shapes = LAYERS[name]
    names = list(inspect.signature(layer).parameters)
    sizes = {each: "r n" if shape == "r" else "n" for each, shape in zip(names, shapes.split(), strict=True)}
    given = drawn(shapes, 0, torch.bfloat16)
    outputs = [f"y{at}" for at in range(1, len(_parts(layer(*given))) + 1)]
    kinds = {each: "float32" for each, made in zip(outputs, _parts(layer(*given)), strict=True) if made.itemsize > 2}
    for kernel, function in (("layer", layer), ("fused", _fused(layer))):
        for promise in ("as like", "once"):
            space: dict[str, Any] = {"function": function}
            exec(f"def kernel({', '.join(names)}):\n    return function({', '.join(names)})", space)
            options: dict[str, Any] = {"output_dtypes": kinds} if kinds else {}
            declared = verify.kernel(
                like=layer, shapes=sizes, where="n % 2 == 0", dtypes=["bfloat16"], outputs=outputs,
                rounds=promise, **options,
            )(space["kernel"])  # fmt: skip
            found = run_law(registry.get("roundings"), declared, "bfloat16", backend, PROFILES["ci"])
            yield {
                "layer": name,
                "kernel": kernel,
                "promise": promise,
                "status": found.status,
                "contract": found.facts.get("contract", found.message),
            }


# -- the run ------------------------------------------------------------------------------------------------------


def _begin(backend: str) -> None:
    """Prepares a process."""
    backends.activate(backends.select(backend))
    torch.set_num_threads(1)
    torch.backends.mkldnn.set_flags(False)  # its GELU is another one, which some processors alone have


def _rows(backend: str, kind: str, key: Any) -> list[dict[str, Any]]:
    """Returns the rows of the record that one task has."""
    if kind == "seeded":
        return [recovered(*key)]
    chosen = backends.select(backend)
    return [paired(key, chosen.device)] if kind == "pairs" else [*promises(key, chosen)]


def main() -> int:
    """Prints a line for each contract, and the sums."""
    options = argparse.ArgumentParser(
        prog="python -m benchmarks.contracts", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    options.add_argument("--seeded", type=int, help="seeded contracts alone, that many (default 500, and all pairs)")
    options.add_argument("--seed", type=int, default=0)
    options.add_argument("--pairs", nargs="?", const="", metavar="TEXT", help="pairs alone whose name has this text")
    options.add_argument("--promises", action="store_true", help="promises of layers and of their fused forms alone")
    options.add_argument("--backend", default="interpreter", help="where pairs and promises run (default interpreter)")
    options.add_argument("--jobs", type=int, default=1, help="processes")
    options.add_argument("--json", type=Path, help="write every figure to a file; other kinds and pairs stay in it")
    chosen = options.parse_args()
    rows: dict[str, Any] = {"seeded": [], "pairs": [], "promises": []}
    if chosen.json and chosen.json.exists():
        rows |= json.loads(chosen.json.read_text())
    long = {row["pair"]: row["seconds"] for row in rows["pairs"]} | dict(
        enumerate(r["seconds"] for r in rows["seeded"])
    )
    tasks: list[tuple[str, Any]] = []
    alone = chosen.promises or chosen.pairs is not None or chosen.seeded is not None
    if chosen.seeded is not None or not alone:
        tasks += [("seeded", (at, chosen.seed)) for at in range(500 if chosen.seeded is None else chosen.seeded)]
    if chosen.pairs is not None or not alone:
        tasks += [("pairs", name) for name in PAIRS if (chosen.pairs or "") in name]
    if chosen.promises or not alone:
        tasks += [("promises", name) for name in LAYERS]
    known = {kind for kind, _ in tasks}
    made: dict[tuple[str, Any], list[dict[str, Any]]] = {
        ("pairs", row["pair"]): [row] for row in rows["pairs"] if row["pair"] in PAIRS
    }
    failed = 0
    context, begin = multiprocessing.get_context("spawn"), (chosen.backend,)
    with ProcessPoolExecutor(chosen.jobs, context, initializer=_begin, initargs=begin) as pool:
        first = sorted(tasks, key=lambda task: -long.get(task, 5.0))
        running = {
            pool.submit(_rows, chosen.backend, *task): task for task in first
        }  # the longest ones of an earlier record first
        for done in as_completed(running):
            if error := done.exception():
                failed += 1
                print(f"{running[done]}: {type(error).__name__}: {str(error)[:500]}", file=sys.stderr, flush=True)
                continue
            made[running[done]] = done.result()
            for row in done.result():
                shown = (f"{value:.5f}" if isinstance(value, float) else str(value) for value in row.values())
                print("  ".join(shown), flush=True)
            order = [task for task in (*tasks, *(("pairs", name) for name in PAIRS)) if task in made]
            for kind in known:
                rows[kind] = [row for each, key in dict.fromkeys(order) if each == kind for row in made[each, key]]
            rows["pairs"].sort(key=lambda each: [*PAIRS].index(each["pair"]))
            if chosen.json:
                chosen.json.parent.mkdir(parents=True, exist_ok=True)
                chosen.json.write_text(json.dumps(rows, indent=1) + "\n")
    whole = sum(min(row["known"], row["unseen"]) == 1 for row in rows["seeded"])
    same = sum(row["same"] for row in rows["seeded"])
    good = sum(row["kernel"] >= LEAST for row in rows["pairs"])
    print(f"{len(rows['seeded'])} seeded: {whole} predict all bits, {same} are the planted set")
    print(f"{len(rows['pairs'])} pairs: {good} kernels are predicted at {LEAST:.1%} or more of unseen results")
    own = [row for row in rows["promises"] if row["promise"] == {"layer": "as like", "fused": "once"}[row["kernel"]]]
    kept = sum(row["status"] == "ok" for row in own)
    print(f"{len(own)} promises of a layer's or of a fused kernel's own contract: {kept} are kept")
    return 0 if not failed and whole == len(rows["seeded"]) and kept == len(own) else 1


if __name__ == "__main__":
    sys.exit(main())
