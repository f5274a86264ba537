"""Kernels of 2026: can each be declared, judged, and told from a broken twin? python -m benchmarks.sayable [PAGE]

A row is a definition, a kernel that is right in its domain, and one with a defect. Both are judged by the limits that
the declaration has by default, at a few small cases with ordinary and with badly conditioned inputs. A claimed row
fails if its definition is refused, if an element of its truth is not known, if the right kernel does not pass, or if
the broken one does, unless the row names it as a blind spot. Rows that are not claimed say what they wait for.
The exit code is 1 if a row fails. With PAGE the table is put between the marks of the page.
"""

from __future__ import annotations

import argparse
import math
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

import verify
from benchmarks.like_rules import write
from examples import quantised_operands as quantised
from examples import quantisers
from examples.random_numbers import rounded_at_random
from examples.structured import BACK, BACKWARD, GATED, PERMUTED, ROUNDED, VARLEN, gradients, scores
from verify import backends
from verify.cases import Case, case_of, problem_of
from verify.cases.blocks import block_cases
from verify.cases.sizes import sizes_of
from verify.declare.declaration import Kernel
from verify.errors import VerifyError
from verify.laws import registry
from verify.laws.accuracy import judge_measured
from verify.laws.engine import PROFILES, run_law
from verify.laws.law import Broken, Subject
from verify.measure.call import run_kernel
from verify.measure.quantiser import parts_of
from verify.truth.fast import evaluate
from verify.truth.formats import named, of
from verify.truth.quantised import Value, causes

DEMANDING = ("outlier", "constant", "spread", "mean 1e3")
_ELEMENTS = 160  # of the largest operand of a case
_OF_KIND = 2  # cases of a quantiser


@dataclass(frozen=True)
class Row:
    """One kind of kernel. `blind` says why the broken twin passes, `waits` why a row is not claimed."""

    name: str
    like: Callable[..., Any] | None = None
    right: Callable[..., Any] | None = None
    broken: Callable[..., Any] | None = None
    said: dict[str, Any] = field(default_factory=dict)
    blind: str = ""
    waits: str = ""


@dataclass(frozen=True)
class Outcome:
    """What became of a row: four words, and why it fails."""

    row: Row
    sayable: str
    certified: str = "-"
    right: str = "-"
    broken: str = "-"
    failure: str = ""
    seconds: float = 0.0


ROWS: list[Row] = []


def row(name: str, like: Any, right: Any, broken: Any, *, blind: str = "", **said: Any) -> None:
    """Adds a claimed row."""
    ROWS.append(Row(name, like, right, broken, {"dtypes": ["float32"], "gradients": False, **said}, blind))


def waits(name: str, reason: str) -> None:
    """Adds a row that is not claimed."""
    ROWS.append(Row(name, waits=reason))


def tried(one: Row) -> Outcome:
    """Declares both twins of a row and judges them."""
    if one.waits:
        return Outcome(one, "no")
    began = time.perf_counter()
    try:
        right, broken = (
            verify.kernel(**({"like": one.like} if one.like else {}), name=name, **one.said)(function)
            for name, function in (("right", one.right), ("broken", one.broken))
        )
    except VerifyError as error:
        return Outcome(one, "no", failure=f"refused: {error}")
    if right.encoding is not None:
        unknown, wrong, caught = "", _blocks(right), _blocks(broken)
    else:
        cases = _cases(right)
        unknown, wrong = _judged(right, cases)
        _, caught = _judged(broken, cases)
    failures = [f"not certified: {unknown}"] if unknown else []
    failures += [f"the right kernel is wrong: {wrong}"] if wrong else []
    if bool(caught) is bool(one.blind):
        failures.append("the broken kernel passes" if not caught else f"it is no blind spot: {caught}")
    spent = time.perf_counter() - began
    words = "yes" if not unknown else "no", "passes" if not wrong else "fails", "caught" if caught else "blind spot"
    return Outcome(one, "yes", *words, failure="; ".join(failures), seconds=spent)


def _cases(kernel: Kernel) -> list[Case]:
    """Ordinary inputs at three sizes, and badly conditioned ones at the squarest of them, within the domain."""
    op, dtype = kernel.op, kernel.dtypes[0]
    sizes = [(5, 7)] if not op.geometry.named else list(sizes_of(op, _ELEMENTS))
    square = max(sizes, key=lambda dims: (min(dims), math.prod(dims)))
    sizes = [sizes[0], sizes[len(sizes) // 2], square]
    upstream = "normal" if kernel.differentiable else ""
    made = [(dims, op.geometry.fill) for dims in dict.fromkeys(sizes)]
    made += [(sizes[-1], "active" if op.geometry.by_element else recipe) for recipe in DEMANDING]
    return [
        case_of(
            kernel, dtype, dims=dims, fill=fill, seed=seed, upstream=upstream, regime=op.geometry.regime(fill),
            largest=kernel.largest.get(dtype),
        )
        for seed, (dims, fill) in enumerate(dict.fromkeys(made))
    ]  # fmt: skip


def _blocks(kernel: Kernel) -> str:
    """Returns why a quantiser is wrong, at a few cases of each kind; empty if it is right."""
    assert kernel.encoding is not None
    dtype, kinds = kernel.dtypes[0], dict[str, int]()
    for planned in block_cases(kernel.encoding, named(dtype), kernel.allows):
        kinds[planned.kind] = kinds.get(planned.kind, 0) + 1
        if kinds[planned.kind] <= _OF_KIND:
            case = case_of(kernel, dtype, dims=planned.dims, fill=planned.fill, upstream="")
            measured = run_kernel(kernel, case, "cpu")
            x, bits = measured.inputs["x"], measured.inputs.get("bits")
            assert x is not None
            value, parts = Value.of(x, bits), parts_of(measured)
            if why := causes(kernel.encoding, value, parts):
                return why[0]
    return ""


def _judged(kernel: Kernel, cases: Iterable[Case]) -> tuple[str, str]:
    """Returns where the truth is not known, and where the kernel is wrong; empty if nowhere."""
    backend = backends.select("interpreter" if backends.told_to_interpret() else "cpu")
    subject, unknown = Subject(kernel, kernel.dtypes[0], backend, None), ""
    for case in cases:
        try:
            measured = run_kernel(kernel, case, "cpu")
            problem = problem_of(kernel.op, case, measured.inputs, measured.upstream, tuple(measured.results))
            formats = {name: of(value.dtype) for name, value in measured.results.items()}
            for name, truth in evaluate(kernel.op, problem, formats).items():
                if truth.unknown is not None or not bool(torch.isfinite(truth.bound).all()):
                    unknown = unknown or f"{name} at {case.fill} {list(case.dims)}"
            judge_measured(subject, case, measured)
        except Broken as broken:
            return unknown, f"{broken.result} at {case.fill} {list(case.dims)}: {broken}"
        except VerifyError as error:
            return unknown, str(error)
    if kernel.stochastic:  # which element goes up is no matter of its limit
        found = run_law(registry.get("stochastic rounding"), kernel, kernel.dtypes[0], backend, PROFILES["quick"])
        return unknown, "" if found.status == "ok" else f"{found.status}: {found.message}"
    return unknown, ""


def table(outcomes: Iterable[Outcome]) -> str:
    """The table as Markdown."""
    lines = ["| kernel | sayable | certified | right one | broken one | |", "|---|---|---|---|---|---|"]
    for each in outcomes:
        note = each.failure or each.row.blind or each.row.waits
        cells = [each.row.name, each.sayable, each.certified, each.right, each.broken, note.replace("|", "\\|")]
        lines.append("| " + " | ".join(cells).rstrip() + " |")
    return "\n".join(lines) + "\n"


# -- attention -------------------------------------------------------------------------------------------------


def grouped(q: Tensor, k: Tensor, v: Tensor, *, scale: float = 1.0) -> tuple[Tensor, Tensor]:
    """Causal attention of two query heads on one head of keys, and its logsumexp."""
    s = q @ k.mT * (scale / q.shape[-1] ** 0.5)
    s = s.masked_fill(torch.ones(s.shape[-2:], dtype=torch.bool).triu(1), -math.inf)
    return s.softmax(-1) @ v, s.logsumexp(-1)


GQA = {"shapes": {"q": "2 s d", "k": "s d", "v": "s d"}, "outputs": ["y", "lse"], "output_dtypes": {"lse": "float32"}}
row("grouped queries, causal, lse", grouped, grouped, lambda q, k, v: grouped(q, k, v, scale=1.02), largest=8.0, **GQA)


def window(q: Tensor, k: Tensor, v: Tensor, *, width: int = 3, cap: float = 20.0) -> Tensor:
    """Attention to the last keys, with capped scores."""
    place = torch.arange(q.shape[0])
    away = place[:, None] - place
    s = cap * torch.tanh(scores(q, k) / cap)
    return s.masked_fill((away < 0) | (away >= width), -math.inf).softmax(-1) @ v


QKV = {"shapes": {"q": "s d", "k": "s d", "v": "s d"}}
row("sliding window, softcap", window, window, lambda q, k, v: window(q, k, v, width=4), largest=8.0, **QKV)


def each_sequence(q: Tensor, k: Tensor, v: Tensor, offsets: Tensor, *, back: int = 0) -> Tensor:
    """One call for each sequence, which sees some keys of the one before it."""
    pairs = pairwise(offsets.tolist())
    return torch.cat([scores(q[a:b], k[max(a - back, 0) : b]).softmax(-1) @ v[max(a - back, 0) : b] for a, b in pairs])


row(
    "sequences of several lengths (offsets)", VARLEN["like"], each_sequence,
    lambda q, k, v, offsets: each_sequence(q, k, v, offsets, back=1), largest=8.0,
    **{name: VARLEN[name] for name in ("shapes", "integers", "derive")},
)  # fmt: skip


def sinks(s: Tensor, v: Tensor, sink: Tensor) -> Tensor:
    """Weights that leave a part to a sink."""
    return torch.cat([s, sink[:, None]], -1).softmax(-1)[:, :-1] @ v


def sinks_overflow(s: Tensor, v: Tensor, sink: Tensor) -> Tensor:
    p = s.exp()
    return p / (p.sum(-1, keepdim=True) + sink.exp()[:, None]) @ v


row("sinks", sinks, sinks, sinks_overflow, shapes={"s": "n m", "v": "m d", "sink": "n"}, largest=1e4)


def paged(q: Tensor, k: Tensor, v: Tensor, table: Tensor, length: Tensor, *, more: int = 0) -> Tensor:
    """One query to the keys of a table of pages of four, up to a length."""
    keys, values = (x[table].flatten(0, 1) for x in (k, v))
    beyond = torch.arange(keys.shape[0]) >= length + more
    return scores(q[None], keys).masked_fill(beyond, -math.inf).softmax(-1) @ values


row(
    "paged decode (block table)", paged, paged, lambda *given: paged(*given, more=1), largest=8.0,
    shapes={"q": "d", "k": "p 4 d", "v": "p 4 d", "table": "b", "length": ""},
    integers={"table": "distinct p", "length": "1 <= length < 4 * b"},
)  # fmt: skip


def latent(q: Tensor, w: Tensor, c: Tensor, *, scale: float = 1.0) -> Tensor:
    """Multi-head latent attention with the projection absorbed into the query."""
    return ((q @ w) @ c.mT * (scale / c.shape[-1] ** 0.5)).softmax(-1) @ c


row(
    "latent attention, absorbed", latent, latent, lambda q, w, c: latent(q, w, c, scale=1.29), largest=8.0,
    shapes={"q": "s e", "w": "e d", "c": "t d"},
)  # fmt: skip
row(
    "attention, probabilities in bfloat16", ROUNDED["like"],
    lambda q, k, v: scores(q, k).softmax(-1).bfloat16().float() @ v,
    lambda q, k, v: scores(q, k).softmax(-1) @ v, shapes=ROUNDED["shapes"], largest=8.0,
)  # fmt: skip

# -- losses ----------------------------------------------------------------------------------------------------


def cross_entropy(logits: Tensor, label: Tensor, *, z: float = 1e-2) -> Tensor:
    """Capped logits, ignored labels, smoothing, and a loss on the logsumexp."""
    logits = 30 * torch.tanh(logits / 30)
    return (
        F.cross_entropy(logits, label, ignore_index=-1, label_smoothing=0.1) + z * logits.logsumexp(-1).square().mean()
    )


LABELS = {"shapes": {"logits": "n v", "label": "n"}, "integers": {"label": "-1 <= label < v"}}
row(
    "cross entropy: ignored, smoothed, z, capped", cross_entropy, cross_entropy,
    lambda logits, label: cross_entropy(logits, label, z=0.0), where="n >= 2", **LABELS,
)  # fmt: skip
row(
    "linear cross entropy", lambda x, w, label: F.cross_entropy(x @ w, label),
    lambda x, w, label: F.cross_entropy(x @ w, label),
    lambda x, w, label: F.cross_entropy((x @ w).bfloat16().float(), label),
    shapes={"x": "n d", "w": "d v", "label": "n"}, integers={"label": "0 <= label < v"}, largest=8.0,
)  # fmt: skip


def kl(p: Tensor, q: Tensor) -> Tensor:
    """KL divergence of two rows of logits."""
    return (p.softmax(-1) * (p.log_softmax(-1) - q.log_softmax(-1))).sum(-1).mean()


row("KL", kl, kl, lambda p, q: kl(q, p), shapes={"p": "n v", "q": "n v"}, largest=8.0)
row(
    "DPO", lambda a, b: -F.logsigmoid(0.1 * (a - b)).mean(), lambda a, b: -F.logsigmoid(0.1 * (a - b)).mean(),
    lambda a, b: -F.logsigmoid(0.11 * (a - b)).mean(), shapes={"a": "n", "b": "n"}, largest=100.0,
)  # fmt: skip


def jensen_shannon(p: Tensor, q: Tensor, *, half: float = 0.5) -> Tensor:
    """The mean divergence of two rows of logits from their mean."""
    a, b = p.softmax(-1), q.softmax(-1)
    m = (half * a + (1 - half) * b).log()
    return (0.5 * (a * (p.log_softmax(-1) - m) + b * (q.log_softmax(-1) - m)).sum(-1)).mean()


row(
    "JSD", jensen_shannon, jensen_shannon, lambda p, q: jensen_shannon(p, q, half=0.51),
    shapes={"p": "n v", "q": "n v"}, largest=8.0, max_ulp={"ordinary": 4, "demanding": None},
)  # fmt: skip


def focal(x: Tensor, keep: Tensor, *, power: int = 2) -> Tensor:
    """Cross-entropy of two classes that gives less weight to right answers."""
    z = torch.where(keep, x, -x)
    return (-((1 - z.sigmoid()) ** power) * F.logsigmoid(z)).mean()


row(
    "focal loss", focal, focal, lambda x, keep: focal(x, keep, power=3), shapes={"x": "n", "keep": "n"},
    integers={"keep": "bool"}, largest=8.0,
)  # fmt: skip

# -- norms, activations, embeddings ----------------------------------------------------------------------------


def rope(x: Tensor, angle: Tensor, *, sign: float = 1.0) -> Tensor:
    """Rotates the halves of each row."""
    a, b = x.chunk(2, -1)
    return torch.cat([a * angle.cos() - sign * b * angle.sin(), b * angle.cos() + sign * a * angle.sin()], -1)


row(
    "rotary embedding", rope, rope, lambda x, angle: rope(x, angle, sign=-1.0), largest=100.0,
    shapes={"x": "n 2*d", "angle": "n d"},
)  # fmt: skip


def added_norm(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    """Adds a residual and norms the sum."""
    h = x + r
    return h * (h.square().mean(-1, keepdim=True) + 1e-5).rsqrt() * w, h


def eps_misplaced(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    h = x + r
    return h / (h.square().mean(-1, keepdim=True).sqrt() + 1e-5) * w, h


NORM = {"shapes": {"x": "n d", "r": "n d", "w": "d"}, "outputs": ["y", "h"], "output_dtypes": {"h": "float32"}}
row("residual and RMS norm", added_norm, added_norm, eps_misplaced, largest=1e4, **NORM)


def gated_norm(x: Tensor, g: Tensor, *, eps: float = 1e-5) -> Tensor:
    return x * (x.square().mean(-1, keepdim=True) + eps).rsqrt() * F.silu(g)


row(
    "gated RMS norm", gated_norm, gated_norm, lambda x, g: gated_norm(x, g, eps=1e-2),
    shapes={"x": "n d", "g": "n d"}, largest=1e4,
)  # fmt: skip


def normed_scores(q: Tensor, k: Tensor, *, kept: Callable[[Tensor], Tensor] = lambda x: x) -> Tensor:
    """Products of normed queries and keys."""
    q, k = (x * (x.square().mean(-1, keepdim=True) + 1e-5).rsqrt() for x in (q, k))
    return kept(q) @ kept(k).mT


row(
    "QK norm", normed_scores, normed_scores, lambda q, k: normed_scores(q, k, kept=lambda x: x.bfloat16().float()),
    shapes={"q": "s d", "k": "t d"}, largest=1e4,
)  # fmt: skip
row(
    "sum over ranks and RMS norm", lambda x: added_norm(x.sum(0), torch.zeros_like(x[0]), torch.ones_like(x[0]))[0],
    lambda x: added_norm(x[0] + x[1] + x[2] + x[3], torch.zeros_like(x[0]), torch.ones_like(x[0]))[0],
    lambda x: added_norm(x.bfloat16().sum(0).float(), torch.zeros_like(x[0]), torch.ones_like(x[0]))[0],
    shapes={"x": "4 n d"}, largest=1e4,
)  # fmt: skip
row(
    "L2 norm", lambda x: F.normalize(x, dim=-1), lambda x: F.normalize(x, dim=-1),
    lambda x: x / (x.square().sum(-1, keepdim=True).sqrt() + 1e-3), shapes={"x": "n d"}, largest=1e4,
)  # fmt: skip
row(
    "group norm and SiLU", lambda x: F.silu(F.group_norm(x, 2)), lambda x: F.silu(F.group_norm(x, 2)),
    lambda x: F.silu(F.layer_norm(x, x.shape[1:])), shapes={"x": "n 4 l"}, largest=1e4, where="l >= 2",
)  # fmt: skip


def batch_norm(x: Tensor, *, correction: int = 1) -> tuple[Tensor, Tensor]:
    """The normed batch and the variance that is kept."""
    return (x - x.mean(0)) * (x.var(0, correction=0) + 1e-5).rsqrt(), x.var(0, correction=correction)


row(
    "batch norm with its variance", batch_norm, batch_norm, lambda x: batch_norm(x, correction=0), largest=100.0,
    shapes={"x": "n c"}, where="n >= 2", outputs=["y", "kept"], output_dtypes={"kept": "float32"},
    max_ulp={"ordinary": 4, "demanding": None},
)  # fmt: skip
row(
    "dynamic tanh", lambda x, a, w: torch.tanh(a * x) * w, lambda x, a, w: torch.tanh(a * x) * w,
    lambda x, a, w: torch.tanh(x) * w, shapes={"x": "n d", "a": "", "w": "d"},
)  # fmt: skip

# -- experts ---------------------------------------------------------------------------------------------------


def top_weights(s: Tensor, *, again: bool = True) -> tuple[Tensor, Tensor]:
    """The two largest probabilities, normed again, and their places."""
    p, i = s.softmax(-1).topk(2, -1)
    return p / p.sum(-1, keepdim=True) if again else p, i


TOP = {"shapes": {"s": "n e"}, "where": "e >= 2", "outputs": ["y", "i"]}
row("softmax top-k", top_weights, top_weights, lambda s: top_weights(s, again=False), largest=16.0, **TOP)


def biased(s: Tensor, b: Tensor) -> Tensor:
    chosen = (torch.sigmoid(s) + b).topk(2, -1).values
    return chosen / chosen.sum(-1, keepdim=True)


row("gating with a bias", GATED["like"], GATED["like"], biased, **{n: GATED[n] for n in ("shapes", "where", "domain")})
row(
    "permutation of tokens", PERMUTED["like"], lambda x, expert: torch.cat([x[expert == e] for e in range(4)]),
    lambda x, expert: torch.cat([x[expert == e].flip(0) for e in range(4)]),
    shapes=PERMUTED["shapes"], integers=PERMUTED["integers"],
)  # fmt: skip
row(
    "permuted and put back", BACK["like"], lambda x, p, back: x[p][back], lambda x, p, back: x[p][p],
    **{name: BACK[name] for name in ("shapes", "integers", "derive")},
)  # fmt: skip
row(
    "order by computed scores", lambda x, s: x[s.sigmoid().argsort()], lambda x, s: x[s.sigmoid().argsort()],
    lambda x, s: x[s.argsort(descending=True)], shapes={"x": "n d", "s": "n"}, largest=8.0,
)  # fmt: skip


def grouped_product(x: Tensor, w: Tensor, lengths: Tensor) -> Tensor:
    """Rows of each expert by its matrix."""
    expert = (torch.arange(x.shape[0])[:, None] >= lengths.cumsum(0)).sum(1)
    return torch.einsum("te,td,edf->tf", F.one_hot(expert, 3).to(x.dtype), x, w)


def by_expert(x: Tensor, w: Tensor, lengths: Tensor, *, late: int = 0) -> Tensor:
    return torch.cat([part @ w[e] for e, part in enumerate((x + 0).roll(late, 0).split(lengths.tolist()))])


row(
    "grouped GEMM", grouped_product, by_expert, lambda *given: by_expert(*given, late=1),
    shapes={"x": "t d", "w": "3 d f", "lengths": "3"}, integers={"lengths": "0 <= lengths <= t, sum t"}, largest=8.0,
)  # fmt: skip

# -- quantised -------------------------------------------------------------------------------------------------


def fp8_rows(x: Tensor) -> Tensor:
    """Rows rounded to e4m3 by their largest magnitude, and back."""
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 448
    return verify.rounds(x / scale, "float8_e4m3fn") * scale


def fp8_truncated(x: Tensor) -> Tensor:
    scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 448
    return verify.rounds((x / scale * 0.97), "float8_e4m3fn") * scale


row("rows in float8, and back", fp8_rows, fp8_rows, fp8_truncated, shapes={"x": "n d"}, largest=1e4)
row(
    "dequantised weights", lambda x, w, s: x @ (w.float() * s), lambda x, w, s: x @ (w.float() * s),
    lambda x, w, s: x @ (w.float() * s.bfloat16().float()), shapes={"x": "n k", "w": "k m", "s": "m"},
    integers={"w": "-128 <= w < 128"}, domain={"s": "0.001 <= s <= 1"}, largest={"x": 8.0},
)  # fmt: skip


def to_int8(x: Tensor) -> Tensor:
    """Rows as int8 by their largest magnitude."""
    return (x / (x.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127)).round().clamp(-128, 127).to(torch.int8)


def cut_to_int8(x: Tensor) -> Tensor:
    return (x / (x.abs().amax(-1, keepdim=True).clamp(min=1e-12) / 127)).trunc().to(torch.int8)


row("dynamic int8", to_int8, to_int8, cut_to_int8, shapes={"x": "n d"}, largest=1e4)
row(
    "static int8", lambda x: torch.round(x / 0.05).clamp(-128, 127), lambda x: torch.round(x * 20).clamp(-128, 127),
    lambda x: torch.trunc(x / 0.05).clamp(-128, 127), shapes={"x": "n d"}, largest=1e4,
)  # fmt: skip


def unpacked(x: Tensor, w: Tensor, *, high: int = 4) -> Tensor:
    """A product with weights of four bits, two in a byte."""
    return x @ (torch.stack([w & 15, (w >> high) & 15], 1).flatten(0, 1) - 8).to(x.dtype)


row(
    "int4, packed", unpacked, unpacked, lambda x, w: unpacked(x, w, high=3), largest=8.0,
    shapes={"x": "n 2*k", "w": "k m"}, integers={"w": "0 <= w < 256"},
)  # fmt: skip


def codes_of(twin: Kernel, broken: Any, name: str) -> None:
    """Adds a row of a quantiser."""
    row(name, None, twin, broken, quantise=twin.encoding, dtypes=["bfloat16"])


def shifted(x: Tensor) -> tuple[Tensor, Tensor]:
    """MXFP8 with scales that are one code off."""
    codes, scales = quantisers.mxfp8(x)
    return codes, (scales.view(torch.uint8) ^ 1)


def swapped(x: Tensor) -> tuple[Tensor, ...]:
    codes, *others = quantisers.nvfp4(x)
    return (codes << 4 | codes >> 4, *others)


codes_of(quantisers.mxfp8, shifted, "MXFP8 codes")
codes_of(quantisers.mxfp4, lambda x: (quantisers.mxfp4(x)[0] & 0x77, quantisers.mxfp4(x)[1]), "MXFP4 codes")
codes_of(quantisers.nvfp4, swapped, "NVFP4 codes")
codes_of(
    quantisers.uint4_groups,
    lambda x: (*quantisers.uint4_groups(x)[:2], quantisers.uint4_groups(x)[2] ^ 1),
    "codes with zero points",
)
codes_of(quantisers.mxfp4_random, lambda x, bits: quantisers.mxfp4(x), "codes rounded by given random bits")


def operands_of(twin: Kernel, broken: Any, name: str, **said: Any) -> None:
    """Adds a row of a kernel with quantised operands."""
    assert twin.encoded is not None
    function = twin.function.calling.function  # type: ignore[attr-defined]
    row(name, twin.encoded.whole, function, broken, operands=twin.encoded.encodings, dtypes=list(twin.dtypes), **said)


ALONE, PRODUCT = ({"shapes": each["shapes"]} for each in (quantised.ALONE, quantised.PRODUCT))
operands_of(
    quantised.dequantised_mxfp4,
    lambda w_codes, w_scales: quantised.dequantised_mxfp4(w_codes << 4 | w_codes >> 4, w_scales),
    "MXFP4 dequantised", **ALONE,
)  # fmt: skip
operands_of(
    quantised.dequantised_uint4,
    lambda w_codes, w_scales, w_zeros: quantised.dequantised_uint4(w_codes, w_scales, w_zeros + 1),
    "UINT4 with zero points, dequantised", **ALONE,
)  # fmt: skip
operands_of(
    quantised.w4a16, lambda x, w_codes, w_scales: quantised.w4a16(x, w_codes, w_scales.roll(1, 0)), "W4A16",
    shapes={"x": "m k", "w": "n k"}, largest=8.0,
)  # fmt: skip


def summed_in_bfloat16(a_codes: Tensor, a_scales: Tensor, b_codes: Tensor, b_scales: Tensor) -> Tensor:
    """Blocks of the sum are added up in bfloat16."""
    a, b = quantised.of_mxfp8(a_codes, a_scales), quantised.of_mxfp8(b_codes, b_scales)
    total = torch.zeros(len(a), len(b), dtype=torch.bfloat16)
    for one, other in zip(a.split(8, 1), b.split(8, 1), strict=True):
        total += (one @ other.mT).bfloat16()
    return total


operands_of(quantised.mxfp8_product, summed_in_bfloat16, "MXFP8 product, block-scaled", largest=8.0, **PRODUCT)
operands_of(
    quantised.fp8_blocks,
    lambda a_codes, a_scales, b_codes, b_scales: quantised.fp8_blocks(
        a_codes, a_scales.log2().round().exp2(), b_codes, b_scales
    ),
    "FP8 product with scales of blocks", largest=8.0, **PRODUCT,
)  # fmt: skip

# -- optimisers, scans, convolutions, sums ---------------------------------------------------------------------


def adamw(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """A step of AdamW."""
    m, v = 0.9 * m + 0.1 * g, 0.999 * v + 0.001 * g * g
    return p - 1e-3 * m / (v.sqrt() + 1e-8), m, v


def adamw_in_place(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> None:
    m.mul_(0.9).add_(g, alpha=0.1)
    v.mul_(0.999).addcmul_(g, g, value=0.001)
    p.addcdiv_(m, v.sqrt().add_(1e-8), value=-1e-3)


def adamw_forgets(p: Tensor, g: Tensor, m: Tensor, v: Tensor) -> None:
    old = v.clone()
    adamw_in_place(p, g, m, v)
    v.copy_(old)


STEP = {"shapes": dict.fromkeys("pgmv", "n"), "writes": {"p": "p_", "m": "m_", "v": "v_"}, "domain": {"v": "0 <= v"}}
row("AdamW in place", adamw, adamw_in_place, adamw_forgets, largest=1e4, **STEP)


def lion(p: Tensor, g: Tensor, m: Tensor) -> tuple[Tensor, Tensor]:
    """A step of Lion."""
    return p - 1e-3 * torch.sign(0.9 * m + 0.1 * g), 0.99 * m + 0.01 * g


row(
    "Lion", lion, lion, lambda p, g, m: (lion(p, g, m)[0], 0.9 * m + 0.1 * g), shapes=dict.fromkeys("pgm", "n"),
    outputs=["p_", "m_"], largest=1e4,
)  # fmt: skip


def newton_schulz(g: Tensor, *, a: float = 3.4445) -> Tensor:
    """One step towards the orthogonal factor of a matrix."""
    x = g / (g.norm() + 1e-7)
    s = x @ x.mT
    return a * x + (-4.7750 * s + 2.0315 * s @ s) @ x


row("Newton-Schulz", newton_schulz, newton_schulz, lambda g: newton_schulz(g, a=3.4), shapes={"g": "n m"}, largest=1e4)
row(
    "clipping by norm", lambda g: g * (1 / (g.norm() + 1e-6)).clamp(max=1),
    lambda g: g * (1 / (g.norm() + 1e-6)).clamp(max=1), lambda g: g * (1.013 / (g.norm() + 1e-6)).clamp(max=1),
    shapes={"g": "n"}, largest=1e4,
)  # fmt: skip
row(
    "dropout by a given mask", lambda x, keep: torch.where(keep, x / 0.9, 0.0), lambda x, keep: x * keep / 0.9,
    lambda x, keep: torch.where(keep, x, 0.0), shapes={"x": "n", "keep": "n"}, integers={"keep": "bool"}, largest=1e4,
)  # fmt: skip
row(
    "cumulative sum", lambda x: x.cumsum(-1), lambda x: x.cumsum(-1), lambda x: x.bfloat16().cumsum(-1).float(),
    shapes={"x": "n d"}, largest=1e4,
)  # fmt: skip


def dropped(x: Tensor, seed: Tensor, *, first: int = 0) -> Tensor:
    """Dropout by the numbers of Triton's generator."""
    u = verify.philox_uniform(verify.philox(seed, torch.arange(len(x)) + first)[0])
    return torch.where(u > 0.125, x / 0.875, 0.0)


SEEDED = {"shapes": {"x": "n", "seed": ""}, "integers": {"seed": "0 <= seed < 2**31"}}
row("dropout by a seed, Philox", dropped, dropped, lambda x, seed: dropped(x, seed, first=1), largest=1e4, **SEEDED)
row(
    "stochastic rounding", lambda x, seed: x, rounded_at_random, lambda x, seed: rounded_at_random(x, 0 * seed),
    stochastic="seed", output_dtypes={"y": "bfloat16"}, **SEEDED,
)  # fmt: skip


def scan(x: Tensor, a: Tensor, *, kept: Callable[[Tensor], Tensor] = lambda state: state) -> Tensor:
    """A recurrence with a decay for each token."""
    state, found = torch.zeros_like(x[0]), []
    for t in range(x.shape[0]):
        state = kept(torch.sigmoid(a[t]) * state + x[t])
        found.append(state)
    return torch.stack(found)


row(
    "selective scan", scan, scan, lambda x, a: scan(x, a, kept=lambda s: s.bfloat16().float()), largest=8.0,
    shapes={"x": "t d", "a": "t d"}, where="t <= 16",
)  # fmt: skip


def linear_attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Causal attention without softmax."""
    return (q @ k.mT).tril() @ v


def delta_rule(q: Tensor, k: Tensor, v: Tensor, b: Tensor, *, kept: Callable[[Tensor], Tensor] = lambda s: s) -> Tensor:
    """The gated delta rule, token by token."""
    state, found = torch.zeros(k.shape[1], v.shape[1], dtype=q.dtype), []
    for t in range(4):
        state = kept(state + k[t][:, None] * (b[t] * (v[t] - k[t] @ state)))
        found.append(q[t] @ state)
    return torch.stack(found)


def delta_chunked(q: Tensor, k: Tensor, v: Tensor, b: Tensor) -> Tensor:
    """The same in one chunk: a triangular system for the values that are written."""
    lower = (b[:, None] * (k @ k.mT)).tril(-1)
    written = torch.linalg.solve_triangular(lower + torch.eye(4, dtype=q.dtype), b[:, None] * v, upper=False)
    return (q @ k.mT).tril() @ written


row(
    "gated delta rule, chunked", delta_rule, delta_chunked,
    lambda *given: delta_rule(*given, kept=lambda s: s.bfloat16().float()), largest=1.0,
    shapes={"q": "4 d", "k": "4 d", "v": "4 e", "b": "4"}, domain={"b": "0 <= b <= 1"},
    max_ulp={"ordinary": 4, "demanding": None},
)  # fmt: skip
row(
    "linear attention", linear_attention, lambda q, k, v: ((q @ k.mT).tril() @ v),
    lambda q, k, v: ((q @ k.mT).tril(-1) @ v), largest=8.0, **QKV,
)  # fmt: skip


def causal_conv(x: Tensor, w: Tensor, *, pad: int = 2) -> Tensor:
    """A short causal convolution of each channel, and SiLU."""
    return F.silu(F.conv1d(F.pad(x, (pad, 2 - pad))[None], w[:, None], groups=w.shape[0])[0])


row(
    "causal convolution and SiLU", causal_conv, causal_conv, lambda x, w: causal_conv(x, w, pad=1), largest=8.0,
    shapes={"x": "c l", "w": "c 3"},
)  # fmt: skip


def embedding_backward(dy: Tensor, ids: Tensor) -> Tensor:
    """The gradient of a table of four rows."""
    return torch.zeros(4, dy.shape[1], dtype=dy.dtype).index_add(0, ids, dy)


row(
    "embedding backward", embedding_backward, embedding_backward,
    lambda dy, ids: torch.zeros(4, dy.shape[1]).index_copy(0, ids, dy), largest=8.0,
    shapes={"dy": "n d", "ids": "n"}, integers={"ids": "0 <= ids < 4"},
)  # fmt: skip
row(
    "sort, and places", lambda x: tuple(x.sort(-1)), lambda x: tuple(x.sort(-1)),
    lambda x: (x.sort(-1).values, x.bfloat16().sort(-1).indices), shapes={"x": "n d"}, outputs=["y", "i"],
)  # fmt: skip
row(
    "convolution of images in float16", lambda x, w: F.conv2d(x, w, padding=1), lambda x, w: F.conv2d(x, w, padding=1),
    lambda x, w: sum(F.conv2d(x[:, c : c + 1], w[:, c : c + 1], padding=1) * (1.01 if c else 1.0) for c in range(2)),
    shapes={"x": "1 2 h w", "w": "2 2 3 3"}, dtypes=["float16"], largest=8.0,
)  # fmt: skip
row(
    "sums of segments", lambda x, ids: torch.zeros(4, x.shape[1], dtype=x.dtype).index_add(0, ids, x),
    lambda x, ids: F.one_hot(ids, 4).to(x.dtype).mT @ x,
    lambda x, ids: (F.one_hot(ids, 4).bfloat16().mT @ x.bfloat16()).float(),
    shapes={"x": "n d", "ids": "n"}, integers={"ids": "0 <= ids < 4"}, largest=1e4,
)  # fmt: skip
row(
    "argmax", lambda x: x.argmax(-1), lambda x: x.argmax(-1), lambda x: x.abs().argmax(-1), shapes={"x": "n d"},
    where="d >= 2",
)  # fmt: skip
row(
    "counts of experts", lambda x, ids: (2 * x, torch.bincount(ids, minlength=4)),
    lambda x, ids: (2 * x, torch.bincount(ids, minlength=4)),
    lambda x, ids: (2 * x, torch.bincount(ids.clamp(max=2), minlength=4)),
    shapes={"x": "n", "ids": "n"}, integers={"ids": "0 <= ids < 4"}, outputs=["y", "n"],
)  # fmt: skip

# -- backward passes alone, and other ways to be called --------------------------------------------------------


def delta(
    q: Tensor, k: Tensor, v: Tensor, o: Tensor, lse: Tensor, do: Tensor, *, kept: float = 1.0
) -> tuple[Tensor, ...]:
    return tuple(each.bfloat16() for each in gradients(*(x.float() for x in (q, k, v, kept * o, lse, do))))


row(
    "attention backward alone", BACKWARD["like"], delta, lambda *given: delta(*given, kept=0.0),
    **{name: each for name, each in BACKWARD.items() if name not in ("like", "gradients")},
)  # fmt: skip


def norm_gradient(x: Tensor, mean: Tensor, rstd: Tensor, dy: Tensor) -> Tensor:
    """The gradient of a layer norm from its saved statistics."""
    n = (x - mean[:, None]) * rstd[:, None]
    return (dy - dy.mean(-1, keepdim=True) - n * (dy * n).mean(-1, keepdim=True)) * rstd[:, None]


row(
    "layer norm backward alone", norm_gradient, norm_gradient,
    lambda x, mean, rstd, dy: (dy - dy.mean(-1, keepdim=True)) * rstd[:, None],
    shapes={"x": "n d", "mean": "n", "rstd": "n", "dy": "n d"}, largest=1e4,
    derive={"mean": lambda x: x.mean(-1), "rstd": lambda x: (x.var(-1, correction=0) + 1e-5).rsqrt()},
)  # fmt: skip


def exp_into(x: Tensor, y: Tensor) -> None:
    torch.exp(x, out=y)


def exp_half_into(x: Tensor, y: Tensor) -> None:
    torch.exp(x[..., : x.shape[-1] // 2], out=y[..., : x.shape[-1] // 2])


row("out=", torch.exp, exp_into, exp_half_into, into=["y"])


def weighted(x: Tensor, weights: list[Tensor], *, bias: Tensor) -> Tensor:
    """A sum of products, with a list of weights and an operand by keyword."""
    return x @ weights[0] + x @ weights[1] + bias


def twice_the_first(x: Tensor, weights: list[Tensor], *, bias: Tensor) -> Tensor:
    return x @ weights[0] + x @ weights[0] + bias


row(
    "a list, and an operand by keyword", weighted, weighted, twice_the_first, largest=8.0,
    shapes={"x": "n d", "weights": ["d e", "d e"], "bias": "e"},
)  # fmt: skip
row(
    "float64", lambda x: torch.tanh(x) * x, lambda x: torch.tanh(x) * x, lambda x: torch.tanh(x.float()).double() * x,
    dtypes=["float64"], shapes={"x": "n"}, largest=8.0,
)  # fmt: skip


def in_tf32(x: Tensor, w: Tensor) -> Tensor:
    """A product whose operands are cut to ten bits, as matrix units of a GPU read them."""
    x, w = ((each.view(torch.int32) & -(1 << 13)).view(torch.float32) for each in (x, w))
    return x @ w


row(
    "product in TF32", lambda x, w: x @ w, in_tf32, lambda x, w: (x.bfloat16() @ w.bfloat16()).float(),
    shapes={"x": "n d", "w": "d m"}, accumulate="tf32", largest=8.0,
)  # fmt: skip
row(
    "GELU of float8", F.gelu, lambda x: F.gelu(x.float()).to(torch.float8_e4m3fn),
    lambda x: (0.94 * F.gelu(x.float())).to(torch.float8_e4m3fn), dtypes=["float8_e4m3fn"], largest=400.0,
    shapes={"x": "n d"},
)  # fmt: skip
waits("complex numbers", "real numbers alone")


def main() -> int:
    """The command of the docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("page", type=Path, nargs="?")
    parser.add_argument("--only", nargs="*", help="names of rows, or parts of them")
    options = parser.parse_args()
    outcomes = []
    for one in ROWS:
        if options.only and not any(each in one.name for each in options.only):
            continue
        outcomes.append(tried(one))
        if outcomes[-1].failure:
            print(f"{one.name}: {outcomes[-1].failure}", file=sys.stderr)
    text = table(outcomes)
    if options.page is not None:
        write(options.page, "sayable", text)
    print(text, end="")
    failed = [each for each in outcomes if each.failure]
    claimed = sum(not each.row.waits for each in outcomes)
    print(f"{claimed - len(failed)} of {claimed} claimed rows hold; {len(outcomes) - claimed} rows wait")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
