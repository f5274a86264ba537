"""Random programs of like= against an oracle: python -m benchmarks.fuzz_programs --seed 1 --programs 2000

Each program composes 2 to 6 functions, on inputs with ties, halves, equal rows, large means, thresholds hit exactly
and infinities. `tests/oracle` evaluates it in 500 bits under several choices at ties, with its gradients, and shares no
code with verify. `verify.assert_close` is then asked about PyTorch's own results, about the right ones, and about wrong
ones: scaled, zeros, and one gradient dropped. A wrong one counts where it is further from every choice than the
published limit of the program's noise, which the oracle measures itself.

    --json PATH         every figure and, for each finding, a snippet that runs alone
    --replay SEED:N     one program, with its source and every answer
    --jobs N            processes; the order of results does not depend on it

Exits 1 if a truth is wrong, a right result fails, a wrong one passes or verify crashes.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import re
import signal
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from mpmath import mp, mpf
from torch import Tensor

import verify
from tests.oracle.choices import Evaluation, choices, noise, opened, rounded
from tests.oracle.numbers import Oracled

DTYPES = ["float32"] * 7 + ["bfloat16", "float16", "float64"]
OFF = {"float32": 1.001, "bfloat16": 1.02, "float16": 1.02, "float64": 1 + 1e-6}
BITS = {"float32": 24, "bfloat16": 8, "float16": 11, "float64": 53}
LOWEST = {"float32": -149, "bfloat16": -133, "float16": -24, "float64": -1074}
EXPONENTS = {"float32": 100, "bfloat16": 100, "float16": 13, "float64": 900}  # of the largest number within a program
ULPS, NOISES = {"float32": 10.0, "float64": 10.0}, {"float32": 8.0, "float64": 8.0}  # docs/limits.md; 16 bits: 1 and 5
SLACK = 2.0  # the oracle's noise is sampled, and so is verify's
SECONDS, LARGEST = 60, 90
WRONGS = ("found", "within limits", "unjudged", "passes")
KINDS = ("passes", "vacuous or undecided", "wrong", "refused", "crash")

# One template a line or between bars; 2: for two dimensions or more, 2=: for two. {x} is the number so far, {d} a
# dimension, {k} from 1 to its size, {c} a number that inputs hit, {p} a positive one, {y} a tensor of the same shape,
# {r} a row, {w}, {b}, {W} weights, {L} labels, {I}, {J}, {G} indices.
TEMPLATES = {
    "elementwise": """torch.exp(-{x}.abs())|torch.tanh({x})|torch.sigmoid({x})|F.silu({x})|F.gelu({x})
F.gelu({x}, approximate="tanh")|F.mish({x})|F.softplus({x})|F.elu({x})|F.selu({x})|F.celu({x})|torch.erf({x})
torch.erfc({x})|torch.sin({x})|torch.cos({x})|torch.log1p({x}.abs())|torch.log({x}.abs() + {p})
torch.sqrt({x}.abs() + {p})|torch.rsqrt({x} * {x} + {p})|1 / ({x}.abs() + {p})|torch.square({x})|{x} ** 2|{x} ** 3
torch.atan({x})|torch.asinh({x})|F.softsign({x})|F.logsigmoid({x})|torch.expm1({x}.clamp(max=4))|F.tanhshrink({x})
torch.exp2({x}.clamp(max=4))|torch.sinh({x}.clamp(-3, 3))|{x}.neg()|torch.log2({x}.abs() + {p})|2 - {x}""",
    "kinks": """torch.relu({x})|F.leaky_relu({x}, 0.1)|F.relu6({x})|F.hardtanh({x})|F.hardsigmoid({x})|F.softshrink({x})
F.hardswish({x})|F.hardshrink({x})|F.threshold({x}, {c}, -1.0)|{x}.abs()|{x}.clamp(-{p}, {p})|torch.clamp({x}, min={c})
torch.clamp({x}, max={c})|torch.maximum({x}, {y})|torch.minimum({x}, {y})|torch.relu({x} - {c})|({x} - {c}).abs()
torch.maximum({x}, {x}.flip({d}))""",
    "reductions": """{x}.sum({d})|{x}.mean({d})|{x}.amax({d})|{x}.amin({d})|{x}.max({d}).values|{x}.min({d})[0]
{x}.sum()|{x}.mean()|{x}.max()|{x}.prod({d})|{x}.var({d})|{x}.std({d})|torch.logsumexp({x}, {d})|{x}.norm(dim={d})
torch.linalg.vector_norm({x}, 1, dim={d})|{x} - {x}.mean({d}, keepdim=True)|{x} / {x}.abs().amax({d}, keepdim=True)
{x} * {x}.amax({d}, keepdim=True)|{x}.median({d}).values|{x}.kthvalue({k}, {d}).values|{x}.amax({d}) * {x}.sum({d})
({x} > {c}).sum({d}).to({x}.dtype)|{x} / ({x}.sum({d}, keepdim=True) + {p})""",
    "normalisations": """F.layer_norm({x}, {x}.shape[-1:])|F.layer_norm({x}, {x}.shape[-1:], {r}, {r})
F.rms_norm({x}, {x}.shape[-1:], {r})|F.rms_norm({x}, {x}.shape[-1:], None, 1e-5)|F.normalize({x}, dim={d})
3:F.instance_norm({x})|2:F.batch_norm({x}, None, None, training=True)|2:F.group_norm({x}, 1)
F.normalize({x}, p=1, dim={d})""",
    "softmax": """torch.softmax({x}, {d})|torch.log_softmax({x}, {d})|F.softmin({x}, {d})|torch.softmax({x} / {p}, {d})
{x}.logcumsumexp({d})|{x}.masked_fill({x} > {c}, -1e4).softmax({d})
{x}.masked_fill({x} > {c}, float("-inf")).softmax({d})|torch.softmax({x}, {d}) * {y}""",
    "products": """1:F.linear({x}, {w})|1:F.linear({x}, {w}, {b})|2=:{x} @ {x}.mT|{x} * {y}|{x} + {y}|{x} - {y}
{x} * {r}|{x} + {r}|{x} * {c} + {r}|torch.lerp({x}, {y}, 0.3)|torch.addcmul({x}, {y}, {y}, value=0.5)
torch.hypot({x}, {y})|{x} / ({y}.abs() + {p})|2=:torch.einsum("ij,kj->ik", {x}, {y})|1=:torch.outer({x}, {y})
3=:F.conv1d({x}, {W}, padding=1)|3=:F.conv1d({x}, {W}, padding=1, stride=2)|4=:F.conv2d({x}, {W}, padding=1)
3:F.scaled_dot_product_attention({x}, {y}, {x})|3:F.scaled_dot_product_attention({x}, {x}, {y}, is_causal=True)
F.cosine_similarity({x}, {y}, dim={d})""",
    "pooling": """3=:F.max_pool1d({x}, 2, ceil_mode=False)|3=:F.max_pool1d({x}, 3, 1, 1)|3=:F.avg_pool1d({x}, 2)
3=:F.avg_pool1d({x}, 3, 1, 1)|4=:F.max_pool2d({x}, 2)|4=:F.max_pool2d({x}, 3, 1, 1)|4=:F.avg_pool2d({x}, 2)
3=:torch.where({x} == F.max_pool1d({x}, 3, 1, 1), {x} * 2, 0.0)""",
    "order": """{x}.sort({d}).values|{x}.sort({d}, descending=True)[0]|{x}.topk({k}, {d}).values
{x}.topk({k}, {d})[0].sum({d}, keepdim=True) * {x}|{x}.cumsum({d})|{x}.cumprod({d})|{x}.cummax({d}).values
{x}.cummin({d})[0]|{x}.cumsum({d}) / 3|{x}.diff(dim={d})|{x}.flip({d}).cumsum({d}).flip({d})
torch.where({x} >= {x}.topk({k}, {d}).values.amin({d}, keepdim=True), {x} * 2, 0.0)
({x} == {x}.amax({d}, keepdim=True)) * {x}|torch.where({x} > {x}.mean({d}, keepdim=True), {x}, 0.0)
({x} > {x}.amin({d}, keepdim=True)) * {x}|{x} * ({x} >= {x}.detach().max())""",
    "places": """{x}.argsort({d}).argsort({d}) * {x}|{x}.argmax({d}, keepdim=True) + {x}
{x}.topk({k}, {d}).indices * 0.5|{x}.argsort({d}) * {x}|{x}.gather({d}, {x}.argsort({d}))
{y}.gather({d}, {x}.argsort({d}))|F.one_hot({x}.argmax(-1), {x}.shape[-1]) * {x}|{x}.argmin({d})
torch.zeros_like({x}).scatter({d}, {x}.topk({k}, {d}).indices, 1.0) * {x}|{x}.gather({d}, {x}.topk({k}, {d}).indices)
{x}.argmax({d})|1:{x}[..., {I}]|1:{x}.index_select(-1, {I})|2:{x}[{J}]|1:torch.zeros_like({x}).index_add(-1, {I}, {x})
1:{x} + torch.zeros_like({x}).scatter_add({d}, {G}, {y})|{x}.gather({d}, {G})|{x} * torch.arange({x}.shape[-1])
torch.bucketize({x}.detach(), torch.tensor([-1.0, 0.0, 1.0])) * {x}""",
    "conditions": """torch.where({x} > {c}, {x}, {y})|torch.where({x} >= {c}, {x} * 2, {x} / 2)
{x}.masked_fill({x} > {c}, {c})|{x} * ({x} > {c})|torch.where({x} <= {y}, {x}, {y} * 2)
torch.where(({x} > {c}) & ({x} < 2), {x}, 0.0)|{x}.masked_fill({x} == {c}, 3.0)|({x} != {y}) * {x}
torch.where({x}.abs() < {p}, 0.5 * {x} * {x}, {x}.abs() - 0.5)|{x} > {c}|{x}.masked_fill(~({x} < {c}), 0.0)
torch.sign({x}) * {x}""",
    "rounding": """torch.round({x})|torch.floor({x}) + {x}|torch.ceil({x} * 2) / 2|{x} - torch.trunc({x})
torch.round({x} / 0.25) * 0.25|torch.frac({x})|torch.remainder({x}, {p})|torch.fmod({x}, {p})
{x} + (torch.round({x}) - {x}).detach()|torch.round({x} * 2).clamp(-8, 7)|torch.floor({x} * {p})""",
    "casts": """{x}.to(torch.int32) * {x}|{x}.clamp(-100, 100).to(torch.int8).to({x}.dtype)|{x}.long() + {x}
{x}.double()|{x}.float()|torch.round({x}).to(torch.int32)|{x}.detach() * {x}|{x}.half().to({x}.dtype)
{x}.bfloat16().to({x}.dtype)|({x} > {c}).to({x}.dtype) - {x}""",
    "moves": """{x}.flip({d}) * {x}|{x}.roll(1, {d}) + {x}|torch.cat([{x}, {y}], {d})|2:{x}.mT|{x}[..., :1] * {x}
{x}.flatten()|torch.stack([{x}, {y}])|2:{x}.tril()|F.pad({x}, (1, 1))|F.pad({x}, (1, 0), value=0.5)|{x}.unsqueeze(0)
{x}.repeat_interleave(2, {d})|{x}.narrow({d}, 0, {k})""",
    "losses": """F.mse_loss({x}, {y})|F.l1_loss({x}, {y})|F.smooth_l1_loss({x}, {y})
F.huber_loss({x}, {y}, reduction="sum")|2=:F.cross_entropy({x}, {L})|2=:F.cross_entropy({x}, {L}, label_smoothing=0.1)
2=:F.nll_loss({x}.log_softmax(-1), {L})|F.binary_cross_entropy_with_logits({x}, {y}.sigmoid())
F.kl_div({x}.log_softmax(-1), {y}.softmax(-1), reduction="batchmean")
F.kl_div({x}.log_softmax(-1), {y}.log_softmax(-1), reduction="sum", log_target=True)""",
}
OFTEN = {"elementwise": 4, "kinks": 2, "reductions": 2, "order": 2, "places": 2, "conditions": 2, "losses": 1}
STYLES = (
    ["normal"] * 5 + ["halves"] * 2 + ["ties"] * 2 + ["equal rows", "mean", "spread", "special", "constant", "infinite"]
)
THRESHOLDS = [0.0, 0.5, 1.0, -0.5, 0.25, 2.0]


class Unsayable(Exception):
    """This draft of a program is not used."""


@dataclass
class Program:
    """A program with its inputs."""

    seed: int
    number: int
    dtype: str
    source: str
    inputs: dict[str, Tensor]
    styles: dict[str, str]
    f: Any = None
    upstream: list[Tensor | None] = field(default_factory=list)
    own: dict[str, Tensor] = field(default_factory=dict)  # PyTorch's outputs and gradients
    right: list[Evaluation] = field(default_factory=list)

    @property
    def outputs(self) -> list[str]:
        return [name for name in self.own if name.startswith("y")]

    def grads(self, results: dict[str, Tensor]) -> dict[str, Tensor]:
        return {name[1:]: value for name, value in results.items() if name not in self.outputs}


class Draft:
    """Draws one program, line by line. PyTorch says the shape of each line, in float32."""

    def __init__(self, draw: random.Random, dtype: str) -> None:
        self.draw, self.dtype = draw, dtype
        self.lines: list[str] = []
        self.inputs: dict[str, Tensor] = {}
        self.styles: dict[str, str] = {}
        self.seen: dict[str, Tensor] = {}
        dims = draw.choices([1, 2, 3, 4], [2, 6, 3, 1])[0]
        while True:
            shape = [draw.randint(1, 9) for _ in range(dims)]
            if torch.Size(shape).numel() <= LARGEST:
                break
        self.last = self.tensor(shape)

    def tensor(self, shape: Sequence[int], style: str | None = None) -> str:
        name = f"x{len(self.inputs)}"
        style = style or self.draw.choice(STYLES)
        self.inputs[name], self.styles[name] = numbers(self.draw, shape, style, self.dtype), style
        self.seen[name] = torch.full(tuple(shape), 0.5)
        return name

    def integers(self, shape: Sequence[int], below: int) -> str:
        name = f"i{len(self.inputs)}"
        count = torch.Size(shape).numel()
        self.inputs[name] = torch.tensor([self.draw.randrange(below) for _ in range(count)]).reshape(tuple(shape))
        self.seen[name] = self.inputs[name]
        return name

    def step(self) -> None:
        """Adds a line."""
        names = list(TEMPLATES)
        kind = self.draw.choices(names, [OFTEN.get(name, 1) for name in names])[0]
        template = self.draw.choice([each for line in TEMPLATES[kind].splitlines() for each in line.split("|")])
        wants, _, text = template.rpartition(":") if re.match(r"\d=?:", template) else ("", "", template)
        x = self.seen[self.last]
        if not x.ndim or (wants and (x.ndim != int(wants[0]) if wants.endswith("=") else x.ndim < int(wants))):
            raise Unsayable("dimensions")
        kept = len(self.inputs)
        line = text.format_map(_Places(self))
        name = "abcdefgh"[len(self.lines)]
        try:
            found = eval(line, {"torch": torch, "F": torch.nn.functional}, self.seen)
        except Exception as error:
            for extra in list(self.inputs)[kept:]:
                del self.inputs[extra], self.seen[extra]
            raise Unsayable(str(error)) from None
        if found.numel() > 2 * LARGEST or not found.numel():
            raise Unsayable("size")
        self.lines.append(f"{name} = {line}")
        self.seen[name] = found
        self.last = name
        if not found.is_floating_point() and self.draw.random() < 0.7:
            self.lines[-1] = f"{name} = ({line}).to({next(iter(self.inputs))}.dtype)"
            self.seen[name] = found.float()

    def finished(self, seed: int, number: int) -> Program:
        returned = self.last
        others = [name for name in self.seen if name in "abcdefgh" and name != self.last]
        if others and self.draw.random() < 0.15:
            returned = f"{self.last}, {self.draw.choice(others)}"
        body = "\n".join(f"    {line}" for line in (*self.lines, f"return {returned}"))
        source = f"def program({', '.join(self.inputs)}):\n{body}\n"
        return Program(seed, number, self.dtype, source, self.inputs, self.styles)


class _Places(dict[str, str]):
    """Draws what a template asks for, once for each name."""

    def __init__(self, draft: Draft) -> None:
        super().__init__()
        self.draft = draft

    def __missing__(self, name: str) -> str:
        draft, draw, x = self.draft, self.draft.draw, self.draft.seen[self.draft.last]
        at = int(self["d"]) if name in "nkG" else -1
        if name == "x":
            return draft.last
        if name == "d":
            found = str(draw.randint(-x.ndim, -1))
        elif name == "n":
            found = str(x.shape[at])
        elif name == "k":
            found = str(draw.randint(1, x.shape[at]))
        elif name == "c":
            found = str(draw.choice(THRESHOLDS))
        elif name == "p":
            found = str(draw.choice([0.25, 0.5, 1.0, 2.0, 0.1, 1e-3]))
        elif name == "y":
            same = [each for each, value in draft.seen.items() if value.shape == x.shape and value.is_floating_point()]
            found = draw.choice(same) if len(same) > 1 and draw.random() < 0.5 else draft.tensor(x.shape)
        elif name in "rwbW":
            wide = draw.randint(1, 4)
            shape = {
                "r": x.shape[-1:],
                "w": (wide, x.shape[-1]),
                "b": (int(wide),),
                "W": (wide, x.shape[min(1, x.ndim - 1)], *[3] * (x.ndim - 2)),
            }
            if name == "b":
                shape["b"] = (draft.seen[self["w"]].shape[0],)
            found = draft.tensor(shape[name])
        elif name == "L":
            found = draft.integers(x.shape[:1], x.shape[-1])
        elif name == "I":
            found = draft.integers(x.shape[-1:], x.shape[-1])
        elif name == "J":
            found = draft.integers((draw.randint(1, 4),), x.shape[0])
        else:
            found = draft.integers(x.shape, x.shape[at])
        self[name] = found
        return found


def numbers(draw: random.Random, shape: Sequence[int], style: str, dtype: str) -> Tensor:
    """Draws the values of an input. Sums of uniform numbers are the same on every machine."""

    def normal() -> float:
        return sum(draw.random() for _ in range(12)) - 6

    n = torch.Size(shape).numel()
    values = [normal() for _ in range(n)]
    if style == "halves":
        values = [draw.randint(-6, 6) / 2 for _ in values]
    elif style == "ties":
        few = [normal() for _ in range(3)]
        values = [draw.choice(few) for _ in values]
    elif style == "mean":
        mean = draw.choice([10.0, 100.0] + [1000.0] * (dtype != "float16"))
        values = [mean + v for v in values]
    elif style == "spread":
        values = [v * 10.0 ** draw.randint(-3, 2) for v in values]
    elif style == "special":
        values = [v if draw.random() < 0.6 else draw.choice([*THRESHOLDS, -1.0, -2.0]) for v in values]
    elif style == "constant":
        values = [values[0] if draw.random() < 0.5 else draw.choice(THRESHOLDS)] * n
    elif style == "infinite":
        values[draw.randrange(n)] = draw.choice([float("inf"), float("-inf")])
    found = torch.tensor(values, dtype=torch.float64).reshape(tuple(shape))
    if style == "equal rows" and found.ndim > 1:
        found[draw.randrange(found.shape[0])] = found[0]
    return found.to(getattr(torch, dtype))


def drawn(seed: int, number: int) -> Program:
    """Returns one program that PyTorch computes and the oracle can say."""
    draw = random.Random(f"{seed}:{number}")
    while True:
        draft = Draft(draw, draw.choice(DTYPES))
        length, tries = draw.randint(2, 6), 0
        while len(draft.lines) < length and tries < 40:
            tries += 1
            try:
                draft.step()
            except Unsayable:
                continue
        program = draft.finished(seed, number)
        try:
            prepared(program)
        except (Unsayable, Oracled):
            continue
        return program


def prepared(program: Program) -> None:
    """Adds what PyTorch makes of a program, and what the oracle does."""
    names: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
    exec(program.source, names)
    program.f = names["program"]
    live = {n: v.clone().requires_grad_(v.is_floating_point()) for n, v in program.inputs.items()}
    try:
        found = program.f(*live.values())
        outputs = list(found) if isinstance(found, tuple) else [found]
        draw = random.Random(f"{program.seed}:{program.number}:upstream")
        shapes = [y.shape if y.is_floating_point() and y.requires_grad else None for y in outputs]
        program.upstream = [
            None if s is None else numbers(draw, s, "normal", "float64").to(y.dtype)
            for s, y in zip(shapes, outputs, strict=True)
        ]
        pairs = [(y, dy) for y, dy in zip(outputs, program.upstream, strict=True) if dy is not None]
        floats = {n: v for n, v in live.items() if v.is_floating_point()}
        grads = (
            torch.autograd.grad(
                [y for y, _ in pairs], list(floats.values()), [dy for _, dy in pairs], allow_unused=True
            )
            if pairs
            else [None] * len(floats)
        )
    except Exception as error:
        raise Unsayable(str(error)) from None
    if any(dy is None and y.is_floating_point() for y, dy in zip(outputs, program.upstream, strict=True)) and pairs:
        raise Unsayable("an output without an upstream beside others")
    names_of = ["y"] if len(outputs) == 1 else [f"y{n + 1}" for n in range(len(outputs))]
    program.own = {n: y.detach() for n, y in zip(names_of, outputs, strict=True)}
    program.right = choices(program.f, list(program.inputs.values()), program.upstream)
    finite = all(bool(v.isfinite().all()) for v in program.inputs.values() if v.is_floating_point())
    if max(each.exponent for each in program.right) > EXPONENTS[program.dtype]:
        raise Unsayable("numbers beyond the format")
    keep = [True] * len(outputs)
    for name, grad in zip(floats, grads, strict=True):
        keep.append(grad is not None and finite)
        if keep[-1]:
            program.own[f"d{name}"] = grad
    for each in program.right:
        each.values = [v for v, kept in zip(each.values, keep, strict=True) if kept]
        each.open = [v for v, kept in zip(each.open, keep, strict=True) if kept]
    clear = opened(program.right)
    if sum(int((~o).sum()) for o in clear) < sum(o.size for o in clear) / 2:
        raise Unsayable("most of it is open")


@dataclass
class Answer:
    """What verify said: of each result that did not pass a status and text; or a status of the whole."""

    results: dict[str, tuple[str, str]] = field(default_factory=dict)
    whole: str = ""
    text: str = ""


def asked(program: Program, results: dict[str, Tensor]) -> Answer:
    """Asks verify.assert_close about results."""
    given = [results[name] for name in program.outputs]
    grads = program.grads(results)
    wanted = {"grads": grads, "upstream": [dy for dy in program.upstream if dy is not None]} if grads else {}
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            verify.assert_close(
                given[0] if len(given) == 1 else tuple(given),
                like=program.f,
                inputs=tuple(program.inputs.values()),
                **wanted,
            )
    except AssertionError as error:
        parts = re.split(r"^(?:program|verify)\.(\w+) is (\w+): ", str(error), flags=re.MULTILINE)
        found = {name: (status, text) for name, status, text in zip(parts[1::3], parts[2::3], parts[3::3], strict=True)}
        return Answer(found, "" if found else "wrong", str(error))
    except (verify.UsageError, verify.TruthError) as error:
        return Answer(whole="refused", text=f"{type(error).__name__}: {error}")
    except TimeoutError:
        raise
    except Exception as error:
        return Answer(
            whole="crash",
            text=f"{type(error).__name__}: {error}\n" + "".join(traceback.format_tb(error.__traceback__)[-3:]),
        )
    return Answer()


def candidate(program: Program, which: Evaluation) -> dict[str, Tensor]:
    """Returns the right results of one choice. Where the oracle cannot say, PyTorch's own number stands."""
    found = {}
    for (name, own), values, unclear in zip(program.own.items(), which.values, which.open, strict=True):
        found[name] = torch.where(torch.from_numpy(unclear), own, rounded(values, own.dtype))
    return found


def spacing(value: Any, dtype: str) -> Any:
    if not value or not mp.isfinite(value):
        return mpf(2) ** LOWEST[dtype]
    return mpf(2) ** max(int(mp.floor(mp.log(abs(value), 2))) - BITS[dtype] + 1, LOWEST[dtype])


class Verdicts:
    """What one program came to."""

    def __init__(self, program: Program) -> None:
        self.program, self.counts, self.findings = program, Counter[str](), list[dict[str, str]]()
        self.unclear = opened(program.right)
        self._noise: list[Any] | None = None

    @property
    def noise(self) -> list[Any]:
        """The program's noise, of the results that are compared. Most programs never need it."""
        if self._noise is None:
            program = self.program
            everything = noise(program.f, list(program.inputs.values()), program.upstream)
            names = [*program.outputs, *[f"d{n}" for n, v in program.inputs.items() if v.is_floating_point()]]
            self._noise = [v for n, v in zip(names, everything, strict=True) if n in program.own]
        return self._noise

    def beyond(self, name: str, value: Tensor) -> float:
        """Returns by how many of its limits a result is further from every choice than it may be, at most."""
        at = list(self.program.own).index(name)
        dtype = str(value.dtype).removeprefix("torch.")
        worst = 0.0
        for place, got in zip(range(value.numel()), value.flatten().tolist(), strict=True):
            if self.unclear[at].flat[place]:
                continue
            closest = float("inf")
            for each in self.program.right:
                truth = each.values[at].flat[place]
                if not value.is_floating_point():
                    closest = min(closest, 0.0 if int(truth) == int(got) else 1e9)
                elif not mp.isfinite(truth):
                    closest = 0.0
                elif got != got or abs(got) == float("inf"):
                    closest = min(closest, 1e9)
                else:
                    ulp = spacing(truth, dtype)
                    limit = max(
                        ULPS.get(dtype, 1.0) * ulp, ulp / 2 + NOISES.get(dtype, 5.0) * mpf(self.noise[at].flat[place])
                    )
                    closest = min(closest, float(abs(truth - mpf(got)) / limit))
            worst = max(worst, closest)
        return worst

    def finding(self, kind: str, text: str) -> None:
        self.counts[kind] += 1
        self.findings.append({"kind": kind, "text": text[:2000]})

    def judge(self) -> None:
        program = self.program
        own = asked(program, program.own)
        kind = own.whole or (
            "wrong"
            if any(s == "wrong" for s, _ in own.results.values())
            else "vacuous or undecided"
            if own.results
            else "passes"
        )
        self.counts[f"PyTorch {kind}"] += 1
        if kind == "crash":
            self.finding("crash", own.text)
            return
        if kind in ("refused", "wrong"):
            limits = (
                {name: f"{self.beyond(name, program.own[name]):.3g}" for name in own.results} if kind == "wrong" else {}
            )
            self.findings.append(
                {"kind": f"PyTorch {kind}", "text": f"oracle: {limits} of the limit\n{own.text}"[:2000]}
            )
        if kind == "refused":
            return
        self.rights()
        self.wrongs(own)

    def rights(self) -> None:
        """Asks about the right results of each choice. With ties PyTorch's convention is left to PyTorch."""
        tried = self.program.right if len(self.program.right) == 1 else self.program.right[1:4]
        for at, each in enumerate(tried):
            said = asked(self.program, candidate(self.program, each))
            if said.whole:
                self.finding("crash" if said.whole == "crash" else "right result fails", f"choice {at}\n{said.text}")
                return
            for name, (status, text) in said.results.items():
                place = _place(text, self.program.own[name])
                if status == "wrong" and not (place is None or self.unclear[list(self.program.own).index(name)][place]):
                    self.finding("right result fails", f"choice {at}, {name}: {text}")
                    return
        self.counts["right passes"] += 1

    def wrongs(self, own: Answer) -> None:
        right = candidate(self.program, self.program.right[0])
        factor = OFF[self.program.dtype]
        floats = {name: value for name, value in right.items() if value.is_floating_point()}
        scaled = {
            name: (value.double() * factor).to(value.dtype) if name in floats else value
            for name, value in right.items()
        }
        self.wrong("scaled", scaled, floats, own)
        zeros = {name: torch.zeros_like(value) for name, value in right.items()}
        self.truths(self.wrong("zeros", zeros, zeros, own))
        for name in [name for name in right if name not in self.program.outputs][:2]:
            self.wrong("dropped", right | {name: torch.zeros_like(right[name])}, {name: right[name]}, own)

    def wrong(self, kind: str, results: dict[str, Tensor], changed: dict[str, Tensor], own: Answer) -> Answer:
        said = asked(self.program, results)
        if said.whole == "crash":
            self.finding("crash", f"{kind}: {said.text}")
        for name in changed if not said.whole else ():
            if name in said.results or (kind == "dropped" and said.results):
                self.counts[f"{kind} found"] += 1
            elif name in own.results:
                self.counts[f"{kind} unjudged"] += 1
            elif (by := self.beyond(name, results[name])) > SLACK:
                self.finding(f"{kind} passes", f"{name} is {by:.3g} times its limit off and passes")
            else:
                self.counts[f"{kind} within limits"] += 1
        return said

    def truths(self, said: Answer) -> None:
        """Compares the truths that verify's messages print with the oracle's."""
        names = list(self.program.own)
        for name, (_, text) in said.results.items():
            found = re.search(r"^  truth   (\S+)(?: to (\S+))?$", text, flags=re.MULTILINE)
            place = _place(text, self.program.own[name])
            if not found or place is None or not self.program.own[name].is_floating_point():
                continue
            try:
                low, high = mpf(found[1]), mpf(found[2] or found[1])
            except ValueError:
                continue
            at = names.index(name)
            if self.unclear[at][place]:
                continue
            truths = [each.values[at][place] for each in self.program.right]
            size = max(abs(low), abs(high))
            rough = mpf(10) ** -8 * size + mpf(2) ** LOWEST[self.program.dtype]
            self.counts["truths compared"] += 1
            if not any(mp.isnan(t) or low - rough <= t <= high + rough or t == low for t in truths):
                kind = "truth differs at a tie" if len(truths) > 1 else "truth differs"
                self.finding(
                    kind, f"{name}{list(place)}: verify {found[0].strip()}; oracle {[mp.nstr(t, 20) for t in truths]}"
                )


def _place(text: str, value: Tensor) -> tuple[int, ...] | None:
    """Returns the place of the worst element in a message."""
    found = re.search(r"^  got .* at \[([\d, ]*)\]$", text, flags=re.MULTILINE)
    if found:
        place = tuple(int(each) for each in found[1].split(",") if each.strip())
        return place if len(place) == value.ndim else None
    return (0,) * value.ndim if value.numel() == 1 else None


SNIPPET = """# {seed}:{number} {dtype} {styles}
import torch, verify

F, inf = torch.nn.functional, float("inf")


{source}

inputs = {inputs}
upstream = {upstream}
live = [x.clone().requires_grad_(x.is_floating_point()) for x in inputs]
found = program(*live)
ys = found if isinstance(found, tuple) else (found,)
pairs = [(y, dy) for y, dy in zip(ys, upstream) if dy is not None]
floats = {{n: x for n, x in zip(program.__code__.co_varnames, live) if x.requires_grad}}
given = {{}}
if pairs:
    out, dys = map(list, zip(*pairs))
    grads = torch.autograd.grad(out, list(floats.values()), dys, allow_unused=True)
    given = {{"grads": {{n: g for n, g in zip(floats, grads) if g is not None}}, "upstream": dys}}
out = tuple(y.detach() for y in ys)
verify.assert_close(out if len(out) > 1 else out[0], like=program, inputs=inputs, **given)
"""


def snippet(program: Program) -> str:
    """Returns a script that asks verify about PyTorch's own results of a program."""

    def spelled(values: Sequence[Tensor | None]) -> str:
        each = [
            v if v is None else f"torch.tensor({v.tolist()}, dtype={v.dtype}).reshape({tuple(v.shape)})" for v in values
        ]
        return f"[{', '.join(map(str, each))}]"

    said = {key: getattr(program, key) for key in ("seed", "number", "dtype", "styles", "source")}
    return SNIPPET.format(**said, inputs=spelled(list(program.inputs.values())), upstream=spelled(program.upstream))


def _late(*_: Any) -> None:
    raise TimeoutError


def judged(seed: int, number: int) -> dict[str, Any]:
    """Judges one program, within its time."""
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore", category=RuntimeWarning)  # numpy looks at NaN that the oracle means
    signal.signal(signal.SIGALRM, _late)
    signal.alarm(SECONDS)
    started = time.perf_counter()
    program = None
    try:
        program = drawn(seed, number)
        drawing = time.perf_counter() - started
        verdicts = Verdicts(program)
        verdicts.judge()
        counts, findings = verdicts.counts, verdicts.findings
    except TimeoutError:
        counts, findings, drawing = (
            Counter(["timeout"]),
            [{"kind": "timeout", "text": f"no answer within {SECONDS} s"}],
            0.0,
        )
    except Exception:
        counts, findings, drawing = (
            Counter(["harness"]),
            [{"kind": "harness", "text": traceback.format_exc()[-1500:]}],
            0.0,
        )
    finally:
        signal.alarm(0)
    row = {"number": number, "dtype": program.dtype if program else "", "counts": dict(counts), "findings": findings}
    row |= {"seconds": round(time.perf_counter() - started, 2), "drawing": round(drawing, 2)}
    if findings and program:
        row["snippet"] = snippet(program)
    return row


def rows(seed: int, numbers: Sequence[int], jobs: int) -> Iterator[dict[str, Any]]:
    work: Callable[[int], dict[str, Any]] = partial(judged, seed)
    if jobs == 1:
        yield from map(work, numbers)
        return
    with multiprocessing.get_context("spawn").Pool(jobs) as pool:
        yield from pool.imap(work, numbers, chunksize=4)


LINES = (
    *(f"PyTorch {kind}" for kind in KINDS),
    *("right passes", "right result fails", "truths compared", "truth differs", "truth differs at a tie"),
    *(f"scaled {what}" for what in WRONGS),
    *(f"zeros {what}" for what in WRONGS),
    *(f"dropped {what}" for what in WRONGS),
    *("crash", "timeout", "harness"),
)
BAD = (
    "right result fails",
    "truth differs",
    "truth differs at a tie",
    "crash",
    "scaled passes",
    "zeros passes",
    "dropped passes",
    "harness",
)


def table(found: Sequence[dict[str, Any]]) -> str:
    dtypes = [each for each in BITS if any(row["dtype"] == each for row in found)]
    lines = ["| | " + " | ".join([*dtypes, "all"]) + " |", "|---" * (len(dtypes) + 2) + "|"]
    lines.append(
        f"| programs | {' | '.join(str(sum(r['dtype'] == d for r in found)) for d in dtypes)} | {len(found)} |"
    )
    for name in LINES:
        counts = [sum(r["counts"].get(name, 0) for r in found if r["dtype"] == d) for d in dtypes]
        lines.append(f"| {name} | {' | '.join(map(str, counts))} | {sum(r['counts'].get(name, 0) for r in found)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--programs", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0, help="the number of the first program")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--replay", metavar="SEED:N")
    given = parser.parse_args(arguments)
    if given.replay:
        seed, number = map(int, given.replay.split(":"))
        print(snippet(drawn(seed, number)))
        row = judged(seed, number)
        print(json.dumps(row["counts"], indent=1), *(f"{f['kind']}: {f['text']}" for f in row["findings"]), sep="\n\n")
        return int(any(row["counts"].get(name) for name in BAD))
    found = []
    for row in rows(given.seed, range(given.first, given.first + given.programs), given.jobs):
        found.append(row)
        for each in row["findings"]:
            print(
                f"{given.seed}:{row['number']} {row['dtype']} {each['kind']}: {each['text'].splitlines()[0][:150]}",
                file=sys.stderr,
            )
    print(table(found))
    if given.json:
        given.json.write_text(
            json.dumps({"seed": given.seed, "torch": torch.__version__, "table": table(found), "rows": found}, indent=1)
        )
    return int(any(row["counts"].get(name) for row in found for name in BAD))


if __name__ == "__main__":
    sys.exit(main())
