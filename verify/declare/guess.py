"""Guesses what a function of a package computes: by its name, and by running it beside PyTorch.

A guess is a definition for `like=` with shapes. It counts if the function returns the same numbers to three digits on
one ordinary input. That decides which function is meant. How accurate it is remains the question of `verify run`. A
function that cannot be imported here is guessed by its name alone.
"""

from __future__ import annotations

import functools
import importlib
import itertools
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, cast

import msgspec

from verify.errors import said_by
from verify.workers.requests import Request


class Guess(msgspec.Struct, frozen=True):
    """Holds the parts of a declaration. Without `like` there is none, and `why` has the reason."""

    why: str
    like: str = ""
    call: list[str] = []  # the arguments of the function, as source
    first: bool = False  # the function returns several values, and the first one is judged
    tensors: list[str] = []
    shapes: dict[str, str] = {}
    integers: dict[str, str] = {}
    domain: dict[str, str] = {}
    dtypes: list[str] = []
    gradients: bool = False
    ran: bool = False  # False: the function could not be imported here


class Parameter(msgspec.Struct, frozen=True):
    """Holds a parameter of a function as its source has it."""

    name: str
    annotation: str = ""
    default: str | None = None


class GuessDefinition(Request[Guess], frozen=True, tag="guess"):
    """Asks for the definition of one function. `references` are functions of the package in plain PyTorch."""

    folder: str
    module: str
    name: str
    parameters: list[Parameter]
    references: dict[str, list[str]] = msgspec.field(default_factory=dict)

    def answer(self, device: str) -> Guess:
        """Imports the function in this process and calls it on small inputs."""
        if self.folder not in sys.path:
            sys.path.insert(0, self.folder)
        try:
            place = importlib.import_module(self.module)
            function: Any = functools.reduce(getattr, self.name.split("."), cast(Any, place))
        except (Exception, SystemExit) as error:
            return _by_name(self, f"{self.module} cannot be imported here: {said_by(error)}"[:160])
        return _by_running(self, function, device)


SIZES = {"n": 5, "m": 17, "k": 32, "d": 16, "v": 37, "b": 2, "h": 3, "t": 16, "s": 16, "c": 4}
ATTENTION = "b t h d"
#: What a parameter that is no tensor gets, by its name, else by its annotation.
VALUES = {
    **dict.fromkeys(("eps", "epsilon", "norm_eps"), "1e-5"),
    **dict.fromkeys(("dim", "axis", "dims"), "-1"),
    **dict.fromkeys(("alpha", "beta", "scale", "exponent", "scalar", "value", "offset"), "1.0"),
    **dict.fromkeys(("multiplier", "gate_multiplier", "down_multiplier"), "1.0"),
    **dict.fromkeys(("inplace", "in_place", "keepdim", "half_to_float", "is_causal", "causal"), "False"),
} | {
    "normalized_shape": "{0}.shape[-1:]",
    "reduction": '"mean"',
    "p": "2.0",
    "num_groups": "2",
    "num_channels": "4",
    "diagonal": "0",
    "kernel_size": "2",
    "padding": "(1, 1)",
    "threshold": "0.5",
    "lambd": "0.5",
    "mini": "-0.5",
    "maxi": "0.5",
    "k": "1",
    "min": "-0.5",
    "max": "0.5",
}
ANNOTATED = {"int": "1", "float": "1.0", "bool": "False"}
#: Logarithms of decays, which are negative.
GATES = {"g", "gk", "gv", "w", "log_alpha", "log_decay", "gate", "f"}
NO_TENSORS = {"layernorm", "proj", "model", "module", "config", "layer"}
LABELS = {"label", "labels", "target", "targets", "index", "indices", "idx", "y_true", "input_ids", "token_ids"}
#: Shapes to try for so many tensors. None is elementwise.
SHAPES: dict[int, list[tuple[str, ...] | None]] = {
    1: [None, ("n d",), ("d d",), ("b c h d",)],
    2: [None, ("n d", "d"), ("m k", "k n"), ("b m k", "b k n"), ("n d", "n d"), ("m k", "k"), ("d", "d"), ("n d", "n")],
    3: [
        None,
        ("n d", "d", "d"),
        ("b m n", "b m k", "b k n"),
        ("m n", "m", "n"),
        ("b h t d",) * 3,
        (ATTENTION,) * 3,
        ("m n", "m k", "k n"),
        ("m k", "n k", "n"),
    ],
    4: [(ATTENTION,) * 4, ("b t h d", "b t h d", "b t h d", "b t h"), ("n d", "d", "d", "n d"), ("n d", "1", "d", "d")],
    5: [("b t h d", "b t h d", "b t h d", "b t h", "b t h"), (ATTENTION,) * 4 + ("b t h",), (ATTENTION,) * 5],
}
_NORM = "functional.rms_norm({}, {{0}}.shape[-1:], {}, {{eps}})"
_HEADS = "functional.scaled_dot_product_attention({{0}}{0}, {{1}}{0}, {{2}}{0}, is_causal={1}){0}"
_TURNED = ".transpose(1, 2)"
_MEAN = "(({0}.exp() + {1}.exp()) / 2).log()"
#: Definitions that PyTorch has under no name of its own, by the name without underscores.
FORMULAS = {
    "swiglu silumul siluandmul": ["functional.silu({0}) * {1}"],
    "geglu gelumul geluandmul gegluexact": ["functional.gelu({0}) * {1}"],
    "geglu gelumul gelutanhandmul gegluapprox": ['functional.gelu({0}, approximate="tanh") * {1}'],
    "reglu reluandmul": ["functional.relu({0}) * {1}"],
    "sigmoidmul sigmoidandmul": ["torch.sigmoid({0}) * {1}"],
    "relusquared relu2 sqrelu squaredrelu": ["functional.relu({0}).square()"],
    "swish": ["functional.silu({0})"],
    "rmsnorm rmslayernorm": [_NORM.format("{0}", "{1}"), _NORM.format("{0}", "None")],
    "addrmsnorm addrmslayernorm": [_NORM.format("{0} + {1}", "{2}"), "{0} + {1}"],
    "layernorm": [
        "functional.layer_norm({0}, {0}.shape[-1:], {1}, {2}, {eps})",
        "functional.layer_norm({0}, {0}.shape[-1:], None, None, {eps})",
    ],
    "groupnorm": ["functional.group_norm({0}, 2, {1}, {2}, {eps})"],
    "softmax": ["torch.softmax({0}, -1)"],
    "logsoftmax": ["torch.log_softmax({0}, -1)"],
    "l2norm": ["{0} * torch.rsqrt({0}.square().sum(-1, keepdim=True) + {eps})", "functional.normalize({0}, dim=-1)"],
    "embedding": ["functional.embedding({1}, {0})"],
    "crossentropy crossentropyloss": [
        "functional.cross_entropy({0}, {1})",
        'functional.cross_entropy({0}, {1}, reduction="none")',
    ],
    "selectivelogsoftmax logprob": ["-functional.cross_entropy({0}, {1}, reduction='none')"],
    "linearcrossentropy": ["functional.cross_entropy({0} @ {1}.T, {2})", "functional.cross_entropy({1} @ {0}.T, {2})"],
    "kldiv kldivloss": [
        f'functional.kl_div({{0}}, {{1}}, reduction="{each}")' for each in ("batchmean", "mean", "none")
    ],
    "tvd tvdloss": ["({0} - {1}).abs().sum() / (2 * {0}.shape[0])", "({0} - {1}).abs().mean() / 2"],
    "jsd": [
        "(({1}.exp() * ({1} - {m})).sum() + ({0}.exp() * ({0} - {m})).sum()) / (2 * {0}.shape[0])".replace("{m}", _MEAN)
    ],
    "modulatedrmsnorm": [
        "functional.rms_norm({0}, {0}.shape[-1:], {1}, {eps}) * (1 + {2})",
        "functional.rms_norm({0}, {0}.shape[-1:], {1}, {eps}) * {2}",
    ],
    "polynorm": [
        "sum({1}[n] * functional.rms_norm({0} ** (3 - n), {0}.shape[-1:], None, {eps}) for n in range(3)) + {2}"
    ],
    "gateupsilumul": ["functional.silu({0}.chunk(2, -1)[0]) * {0}.chunk(2, -1)[1]"],
    "mlp swiglumlp": ["(functional.silu({0} @ {1}.T) * ({0} @ {2}.T)) @ {3}.T"],
    "dyt": ["torch.tanh({1} * {0}) * {2} + {3}"],
    "linear": ["functional.linear({0}, {1})", "functional.linear({0}, {1}, {2})"],
    "attention attn flashattention": [_HEADS.format(*each) for each in itertools.product(("", _TURNED), (False, True))],
}
#: Shapes of operands that a formula has.
SHAPED: dict[str, list[tuple[str, ...] | None]] = {
    "linearcrossentropy": [("n d", "v d", "n"), ("v d", "n d", "n")],
    "crossentropy": [("n v", "n")],
    "addrmsnorm": [("n d", "n d", "d")],
    "addrmslayernorm": [("n d", "n d", "d")],
    "groupnorm": [("b 4 d", "4", "4")],
    "embedding": [("v d", "n"), ("n", "v d")],
    "kldiv": [("n d", "n d")],
    "jsd": [("n d", "n d")],
    "modulatedrmsnorm": [("n d", "d", "n d"), ("n d", "d", "d")],
    "polynorm": [("n d", "3", "1"), ("n d", "3", "")],
    "mlp": [("n d", "k d", "k d", "d k")],
    "tvd": [("n d", "n d")],
}
_NOISE = (
    "liger|unsloth|flag|gems|fast|fused|triton|kernel|function|func|forward|fwd|parallel|optimized|chunk|recurrent|"
    "tensor|scalar|inplace|self|fg"
)


def _keys(name: str) -> tuple[str, str]:
    """Returns a name in small letters without underscores, and that without words that say how it is computed."""
    whole = re.sub(r"[^a-z0-9]", "", name.removesuffix(".apply").lower())
    return whole, re.sub(_NOISE, "", whole)


@functools.cache
def _known() -> dict[str, str]:
    """Maps names without underscores to functions of PyTorch."""
    import torch

    rooms = {"functional": torch.nn.functional, "torch": torch, "torch.special": torch.special}
    rooms |= {"torch.linalg": torch.linalg, "torch.ops.aten": torch.ops.aten}
    names = ((room, name) for room, place in reversed(rooms.items()) for name in dir(place) if not name.endswith("_"))
    return {name.replace("_", "").lower(): f"{room}.{name}" for room, name in names if not name.startswith("_")}


def _candidates(asked: GuessDefinition, call: Sequence[str], tensors: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Yields a definition as source, and the name by which it was found."""
    eps = next((each.default for each in asked.parameters if "eps" in each.name and each.default), VALUES["eps"])
    places = [f"{{{index}}}" for index in range(len(tensors))]
    keys = dict.fromkeys(_keys(asked.name))
    for key in keys:
        for names, formulas in FORMULAS.items():
            if key in names.split():
                for formula in formulas:
                    with suppress(IndexError):
                        formula.format(*tensors, eps=eps)
                        if all(place in formula for place in places):
                            yield formula.replace("{eps}", eps), key
        if key in _known():
            given = [places[tensors.index(each)] if each in tensors else each for each in call]
            yield f"{_known()[key]}({', '.join(given)})", key
            yield f"{_known()[key]}({', '.join(places)})", key
    whole = set(re.findall(r"[a-z0-9]+", asked.name.lower()))
    room = asked.module.rpartition(".")[0] + "."
    near = [each for each in asked.references if each.startswith(room) and not each.rpartition(".")[2].startswith("_")]
    for each in sorted(near, key=lambda each: -len(whole & set(re.findall(r"[a-z0-9]+", each.lower()))))[:6]:
        module, _, name = each.rpartition(".")
        taken = [places[tensors.index(one)] for one in asked.references[each] if one in tensors]
        rest = [place for place in places if place not in taken]
        if len(taken) + len(rest) == len(asked.references[each]):
            yield f'import_module("{module}").{name}({", ".join([*taken, *rest])})', ""


def _arguments(asked: GuessDefinition, known: Mapping[str, str]) -> tuple[list[str], list[str]]:
    """Returns the required arguments as source, and the names of those that are tensors."""
    call, tensors = [], []
    for each in asked.parameters:
        if each.default is None:
            kind = next((value for word, value in ANNOTATED.items() if re.search(rf"\b{word}\b", each.annotation)), "")
            value = kind if "Tensor" not in each.annotation else ""
            value = value or ("" if "Tensor" in each.annotation else known.get(each.name.lower(), ""))
            call.append(value or each.name)
            tensors += [] if value else [each.name]
    first = tensors[0] if tensors else ""
    return [each.replace("{0}", first) for each in call], tensors


def _inputs(tensors: Sequence[str], shapes: Sequence[str], device: str) -> tuple[list[Any], dict[str, str]]:
    """Draws the operands, and says which of them are indices."""
    import torch

    torch.manual_seed(1)
    integers = {}
    values: list[Any] = []
    table = shapes[0] if "v" in shapes[0] else next((each for each in shapes if "v" in each), shapes[0])
    classes = "v" if "v" in table else table.split()[-1]
    for name, shape in zip(tensors, shapes, strict=True):
        sizes = [int(each) if each.isdigit() else SIZES[each] for each in shape.split()]
        if name.lower() in LABELS and len(tensors) > 1 and len(sizes) == 1:
            integers[name] = f"0 <= {name} < {classes}"
            values.append(torch.randint(0, SIZES[classes], sizes, device=device))
        else:
            values.append(torch.randn(sizes, device=device))
    return values, integers


def _first(returned: Any) -> Any:
    """Returns the first tensor of what a function returned."""
    return (
        next((each for each in returned if hasattr(each, "dtype")), None) if isinstance(returned, tuple) else returned
    )


def _elementwise(define: Callable[..., Any], values: Sequence[Any], expected: Any) -> bool:
    """True if a definition gives the same numbers for the same elements in another order and shape."""
    import torch

    turned = [each.flip(0).reshape(-1) for each in values]
    with suppress(Exception):
        return torch.equal(_first(define(*turned)).nan_to_num(), expected.flip(0).reshape(-1).nan_to_num())
    return False


def _trials(asked: GuessDefinition, device: str) -> Iterator[tuple[Guess, list[Any], Any]]:
    """Yields what runs as a definition: the guess, its inputs and its result."""
    import torch

    scope = {"torch": torch, "functional": torch.nn.functional, "import_module": importlib.import_module}
    numbers: list[Mapping[str, str]] = [VALUES, {}]  # `alpha` is a number here and a tensor there
    ways = [_arguments(asked, each) for each in numbers]
    for call, tensors in ways[: 1 + (ways[0] != ways[1])]:
        if not tensors or NO_TENSORS & set(tensors):
            continue
        for source, key in _candidates(asked, call, tensors):
            like = f"lambda {', '.join(tensors)}: {source.format(*tensors)}"
            with suppress(Exception):
                define = eval(like, dict(scope))  # source of this module and names of parameters
                kind = next((name for name in SHAPED if key.endswith(name)), "")
                for shapes in SHAPED.get(kind) or SHAPES.get(len(tensors), []):
                    with suppress(Exception):
                        values, integers = _inputs(tensors, shapes or ("n d",) * len(tensors), device)
                        values, domain, expected = _inside(
                            define, tensors, values, integers, gated=not key and bool(shapes)
                        )
                        usable = torch.is_tensor(expected) and not expected.is_complex() and expected.numel() > 0
                        if usable and (shapes is not None or _elementwise(define, values, expected)):
                            named = dict(zip(tensors, shapes or (), strict=False))
                            guess = Guess("", like, call, False, tensors, named, integers, domain)
                            _demand_declarable(guess, define)
                            yield guess, values, expected


def _demand_declarable(guess: Guess, define: Callable[..., Any]) -> None:
    """Raises what the declaration of a guess raises: one that fails would take all others of its file with it."""
    from verify.declare.declaration import kernel

    options: dict[str, Any] = {"shapes": guess.shapes, "integers": guess.integers, "domain": guess.domain}
    made = kernel(like=define, name="guess", **{name: value for name, value in options.items() if value})
    made(eval(f"lambda {', '.join(guess.tensors)}: None"))  # names of parameters


def _inside(
    define: Callable[..., Any], tensors: Sequence[str], values: list[Any], integers: Mapping[str, str], *, gated: bool
) -> tuple[list[Any], dict[str, str], Any]:
    """Moves inputs into the domain of a definition: decays as logarithms, and positive numbers if others give NaN."""
    domain = {name: f"-8 <= {name} <= 0" for name in tensors if name in GATES and gated}
    values = [-each.abs() if name in domain else each for name, each in zip(tensors, values, strict=True)]
    values = [
        each / 4 if gated and name not in domain and name not in integers else each
        for name, each in zip(tensors, values, strict=True)
    ]
    expected = _first(define(*values))
    if expected.isnan().any() and expected.shape != values[0].shape:
        domain = {name: f"0 < {name} <= 8" for name in tensors if name not in integers}
        values = [each.abs() if name in domain else each for name, each in zip(tensors, values, strict=True)]
        expected = _first(define(*values))
    return values, domain, expected


def _by_name(asked: GuessDefinition, why: str) -> Guess:
    """Returns the first definition that its name says, if it runs on some shapes."""
    for guess, *_ in _trials(msgspec.structs.replace(asked, references={}), "cpu"):
        call = [
            f"{each}.clone()" if index == 0 and asked.name.endswith("_") else each
            for index, each in enumerate(guess.call)
        ]
        return msgspec.structs.replace(guess, why=why, call=call)
    return Guess(why)


def _by_running(asked: GuessDefinition, function: Callable[..., Any], device: str) -> Guess:
    """Returns the first definition that gives the same numbers as the function, and how it can be called."""
    import torch

    last = "no function of PyTorch or of this package has this name"
    for guess, values, expected in _trials(asked, device):
        for dtype, tolerance in ((torch.float32, 1e-3), (torch.bfloat16, 2e-2)):
            given = [each.to(dtype, copy=True) if each.is_floating_point() else each.clone() for each in values]
            scope = dict(zip(guess.tensors, given, strict=True)) | {"kernel": function}
            try:
                returned = eval(f"kernel({', '.join(guess.call)})", scope)  # the function's own arguments
            except Exception as error:
                last = f"it fails beside {guess.like}: {said_by(error)}"
                if dtype is torch.float32 and re.search(r"float32|bf16|bfloat16|fp16|float16", str(error)):
                    continue
                break
            got = _first(returned)
            if not torch.is_tensor(got) or got.shape != expected.shape:
                last = f"it returns no tensor of the shape that {guess.like} has"
            elif not _close(got, expected, tolerance):
                last = f"its numbers differ from those of {guess.like}"
            else:
                changed = {
                    name for name, value in zip(guess.tensors, values, strict=True) if _other(scope[name], value)
                }
                gradients, more, note = _backward(function, guess, values, dtype)
                call = [f"{each}.clone()" if each in changed | more else each for each in guess.call]
                why = f"the same to three digits on {' and '.join(str(tuple(each.shape)) for each in values)}{note}"
                dtypes = [] if dtype is torch.float32 else ["bfloat16", "float16"]
                found = {"why": why, "call": call, "first": isinstance(returned, tuple), "dtypes": dtypes}
                return msgspec.structs.replace(guess, gradients=gradients, ran=True, **found)
            break
    return Guess(last, ran=True)


def _close(got: Any, expected: Any, tolerance: float) -> bool:
    """True if two tensors agree to some digits of their largest number."""
    import torch

    scale = expected.to(torch.float32).nan_to_num(posinf=0, neginf=0).abs().max().item()
    numbers = (got.to(torch.float32), expected.to(torch.float32))
    return torch.allclose(*numbers, rtol=2 * tolerance, atol=tolerance * scale, equal_nan=True)


def _other(now: Any, before: Any) -> bool:
    """True if a call changed a tensor."""
    return not bool((now == before.to(now.dtype)).logical_or(now != now).all())


def _backward(
    function: Callable[..., Any], guess: Guess, values: Sequence[Any], dtype: Any
) -> tuple[bool, set[str], str]:
    """Runs a backward pass. Returns whether gradients can be measured, the operands that it changes, and a note."""
    import torch

    with suppress(Exception):
        given = [each.to(dtype, copy=True) if each.is_floating_point() else each.clone() for each in values]
        leaves = [each.requires_grad_() for each in given if each.is_floating_point()]
        scope = dict(zip(guess.tensors, given, strict=True)) | {"kernel": function}
        result = _first(eval(f"kernel({', '.join(guess.call)})", scope))
        upstream = torch.ones_like(result)
        result.backward(upstream)
        changed = {name for name, value in zip(guess.tensors, values, strict=True) if _other(scope[name], value)}
        if bool((upstream != 1).any()):
            return False, changed, "; its backward pass writes over the gradient that arrives"
        return all(each.grad is not None for each in leaves), changed, ""
    return False, set(), ""
