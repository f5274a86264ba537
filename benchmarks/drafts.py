"""Draws programs for benchmarks.fuzz_programs: lines of PyTorch, one after the other, with inputs that meet them.

A program depends on its seed alone. Inputs are sums of uniform numbers, which are the same on every machine, and
PyTorch's shapes decide which line fits, never its numbers.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from tests.oracle.choices import Evaluation, choices, opened
from tests.oracle.numbers import Oracled

DTYPES = ["float32"] * 7 + ["bfloat16", "float16", "float64"]
EXPONENTS = {"float32": 100, "bfloat16": 100, "float16": 13, "float64": 900}  # of the largest number within a program
LARGEST = 90
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
STYLES = ["normal"] * 5 + ["halves", "ties"] * 2 + ["equal rows", "mean", "spread", "special", "constant", "infinite"]
THRESHOLDS = [0.0, 0.5, 1.0, -0.5, 0.25, 2.0]
POSITIVE = [0.25, 0.5, 1.0, 2.0, 0.1, 1e-3]


class Unsayable(Exception):
    """This draft is not used."""


@dataclass
class Program:
    """A program with its inputs, PyTorch's results by name, and the right results of each choice."""

    name: str
    dtype: str
    source: str
    inputs: dict[str, Tensor]
    styles: dict[str, str]
    f: Any = None
    upstream: list[Tensor] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)
    own: dict[str, Tensor] = field(default_factory=dict)
    right: list[Evaluation] = field(default_factory=list)

    def floats(self) -> list[str]:
        return [name for name, value in self.inputs.items() if value.is_floating_point()]

    def names(self) -> list[str]:
        """Returns the names of what the oracle evaluates: outputs and gradients, those that PyTorch lacks too."""
        return [*self.outputs, *[f"d{name}" for name in self.floats()]]


class Draft:
    """Draws one program, line by line."""

    def __init__(self, draw: random.Random) -> None:
        self.draw, self.dtype = draw, draw.choice(DTYPES)
        self.lines: list[str] = []
        self.inputs: dict[str, Tensor] = {}
        self.styles: dict[str, str] = {}
        self.seen: dict[str, Tensor] = {}  # stands for every name so far, in float32
        shape = [LARGEST + 1]
        while torch.Size(shape).numel() > LARGEST:
            shape = [draw.randint(1, 9) for _ in range(draw.choice([1, 1, 2, 2, 2, 2, 2, 3, 3, 4]))]
        self.last = self.tensor(shape)

    def tensor(self, shape: Sequence[int]) -> str:
        name, style = f"x{len(self.inputs)}", self.draw.choice(STYLES[:-1] if self.seen else STYLES)
        self.inputs[name], self.styles[name] = numbers(self.draw, shape, style, self.dtype), style
        self.seen[name] = torch.full(tuple(shape), 0.5)
        return name

    def integers(self, shape: Sequence[int], below: int) -> str:
        name, count = f"i{len(self.inputs)}", torch.Size(shape).numel()
        self.inputs[name] = torch.tensor([self.draw.randrange(below) for _ in range(count)]).reshape(tuple(shape))
        self.seen[name] = self.inputs[name]
        return name

    def step(self) -> None:
        """Adds a line, or raises Unsayable."""
        kind = self.draw.choices(list(TEMPLATES), [OFTEN.get(name, 1) for name in TEMPLATES])[0]
        template = self.draw.choice(re.split(r"[|\n]", TEMPLATES[kind]))
        number, exact, text = re.fullmatch(r"(?:(\d)(=?):)?(.*)", template).groups()  # type: ignore[union-attr]
        x = self.seen[self.last]
        if not x.ndim or x.ndim < int(number or 0) or (exact and x.ndim != int(number)):
            raise Unsayable("dimensions")
        kept, name = dict(self.inputs), "abcdefgh"[len(self.lines)]
        line = text.format_map(Places(self))
        try:
            found = eval(line, {"torch": torch, "F": torch.nn.functional}, self.seen)
        except Exception as error:
            found = str(error)
        if not isinstance(found, Tensor) or not 0 < found.numel() <= 2 * LARGEST:
            self.inputs = kept
            raise Unsayable(str(found))
        if not found.is_floating_point() and self.draw.random() < 0.7:
            line, found = f"({line}).to({next(iter(self.inputs))}.dtype)", found.float()
        self.lines.append(f"    {name} = {line}")
        self.seen = {key: value for key, value in self.seen.items() if key in self.inputs or key in "abcdefgh"}
        self.seen[name], self.last = found, name

    def finished(self, name: str) -> Program:
        others = [each for each in self.seen if each in "abcdefgh" and each != self.last]
        two = f", {self.draw.choice(others)}" if others and self.draw.random() < 0.15 else ""
        source = "\n".join([f"def program({', '.join(self.inputs)}):", *self.lines, f"    return {self.last}{two}"])
        return Program(name, self.dtype, source, self.inputs, self.styles)


class Places(dict[str, str]):
    """Draws what a template asks for, once for each letter."""

    def __init__(self, draft: Draft) -> None:
        super().__init__(x=draft.last)
        self.draft = draft

    def __missing__(self, letter: str) -> str:
        draft, draw, x = self.draft, self.draft.draw, self.draft.seen[self.draft.last]
        size = x.shape[int(self["d"])] if letter in "kG" else 0
        rows, columns, some = x.shape[0], x.shape[-1], draw.randint(1, 4)
        filters = (some, x.shape[min(1, x.ndim - 1)], *[3] * (x.ndim - 2))
        if letter == "y":
            same = [each for each, value in draft.seen.items() if value.shape == x.shape and value.is_floating_point()]
            self[letter] = draw.choice(same) if same and draw.random() < 0.5 else draft.tensor(x.shape)
        elif letter in "dkcp":
            first, last = (-x.ndim, -1) if letter == "d" else (1, max(size, 1))
            self[letter] = str(draw.choice({"c": THRESHOLDS, "p": POSITIVE}.get(letter) or range(first, last + 1)))
        elif letter in "LIJG":
            shape, below = {"L": ((rows,), columns), "I": ((columns,), columns), "J": ((some,), rows)}.get(
                letter, (tuple(x.shape), size)
            )
            self[letter] = draft.integers(shape, below)
        else:
            bias = draft.seen[self["w"]].shape[:1] if letter == "b" else ()
            self[letter] = draft.tensor({"r": (columns,), "w": (some, columns), "b": bias, "W": filters}[letter])
        return self[letter]


def numbers(draw: random.Random, shape: Sequence[int], style: str, dtype: str) -> Tensor:
    """Draws the values of an input."""

    def normal() -> float:
        return sum(draw.random() for _ in range(12)) - 6

    values = [normal() for _ in range(torch.Size(shape).numel())]
    few, mean = values[:3], draw.choice([10.0, 100.0, 100.0 if dtype == "float16" else 1000.0])
    constant = draw.choice([*THRESHOLDS, *few])
    values = {
        "halves": lambda: [draw.randint(-6, 6) / 2 for _ in values],
        "ties": lambda: [draw.choice(few) for _ in values],
        "mean": lambda: [mean + v for v in values],
        "spread": lambda: [v * 10.0 ** draw.randint(-3, 2) for v in values],
        "special": lambda: [v if draw.random() < 0.6 else draw.choice([*THRESHOLDS, -1.0, -2.0]) for v in values],
        "constant": lambda: [constant for _ in values],
    }.get(style, lambda: values)()
    if style == "infinite":
        values[draw.randrange(len(values))] = draw.choice([float("inf"), float("-inf")])
    found = torch.tensor(values, dtype=torch.float64).reshape(tuple(shape))
    if style == "equal rows" and found.ndim > 1:
        found[draw.randrange(found.shape[0])] = found[0]
    return found.to(getattr(torch, dtype))


def drawn(seed: int, number: int) -> Program:
    """Returns one program that PyTorch computes and the oracle can say."""
    draw = random.Random(f"{seed}:{number}")
    while True:
        draft, length = Draft(draw), draw.randint(2, 6)
        for _ in range(40):
            try:
                if len(draft.lines) < length:
                    draft.step()
            except Unsayable:
                continue
        try:
            return prepared(draft.finished(f"{seed}:{number}"))
        except (Unsayable, Oracled):
            continue


def prepared(program: Program) -> Program:
    """Adds what PyTorch makes of a program, and what the oracle does."""
    names: dict[str, Any] = {"torch": torch, "F": torch.nn.functional}
    exec(program.source, names)
    program.f, draw = names["program"], random.Random(program.name)
    live = {n: v.clone().requires_grad_(v.is_floating_point()) for n, v in program.inputs.items()}
    try:
        found = program.f(*live.values())
        ys = list(found) if isinstance(found, tuple) else [found]
        kinds = [y.dtype if y.is_floating_point() else live[program.floats()[0]].dtype for y in ys]
        program.upstream = [numbers(draw, y.shape, "normal", "float64").to(k) for y, k in zip(ys, kinds, strict=True)]
        pairs = [(y, dy) for y, dy in zip(ys, program.upstream, strict=True) if y.requires_grad]
        leaves = [live[name] for name in program.floats()]
        grads = (
            torch.autograd.grad([y for y, _ in pairs], leaves, [dy for _, dy in pairs], allow_unused=True)
            if pairs
            else ()
        )
    except Exception as error:
        raise Unsayable(str(error)) from None
    if len(pairs) not in (0, sum(y.is_floating_point() for y in ys)):
        raise Unsayable("an output without a gradient beside others")
    program.outputs = ["y"] if len(ys) == 1 else [f"y{n + 1}" for n in range(len(ys))]
    finite = all(bool(v.isfinite().all()) for v in program.inputs.values())
    kept = [True] * len(ys) + [g is not None and finite for g in grads or [None] * len(leaves)]
    results = [*[y.detach() for y in ys], *(grads or [None] * len(leaves))]
    program.own = {n: r for n, r, keep in zip(program.names(), results, kept, strict=True) if keep and r is not None}
    program.right = choices(program.f, list(program.inputs.values()), program.upstream)
    for each in program.right:
        each.values = [v for v, keep in zip(each.values, kept, strict=True) if keep]
        each.open = [v for v, keep in zip(each.open, kept, strict=True) if keep]
    unclear = opened(program.right)
    if max(each.exponent for each in program.right) > EXPONENTS[program.dtype]:
        raise Unsayable("numbers beyond the format")
    if sum(int(o.sum()) for o in unclear) * 2 > sum(o.size for o in unclear):
        raise Unsayable("most of it is open")
    if finite and any(v != v for each in program.right for values in each.values for v in values.flat):
        raise Unsayable("NaN of finite inputs")
    return program
