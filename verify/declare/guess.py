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
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, cast

import msgspec

from verify.declare.formulas import Shapes, formulas, keys, known, shaped
from verify.errors import said_by
from verify.workers.requests import Request
from verify.workers.start import put_on_path


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
    documentation: str = ""

    def answer(self, device: str) -> Guess:
        """Imports the function in this process and calls it on small inputs. Without a name, only imports it."""
        import torch

        put_on_path([self.folder])
        try:
            place = importlib.import_module(self.module)
            function: Any = functools.reduce(getattr, filter(None, self.name.split(".")), cast(Any, place))
        except (Exception, SystemExit) as error:
            return _by_name(self, f"{self.module} cannot be imported here: {said_by(error)}"[:160])
        torch.zeros(1, device=device)  # starts the device
        return _by_running(self, function, device) if self.name else Guess("")


SIZES = {"n": 5, "m": 17, "k": 32, "d": 16, "v": 37, "b": 2, "h": 3, "t": 16, "s": 16, "c": 4}
ATTENTION = "b t h d"
#: What a parameter that is no tensor gets, by its name, else by its annotation.
VALUES = {
    name: value
    for names, value in {
        "eps epsilon norm_eps": "1e-5",
        "dim axis dims": "-1",
        "alpha beta scale s exponent scalar value offset multiplier gate_multiplier down_multiplier": "1.0",
        "inplace in_place keepdim half_to_float is_causal causal": "False",
        "normalized_shape": "{0}.shape[-1:]",
        "reduction": '"mean"',
        "p num_groups kernel_size": "2",
        "num_channels": "4",
        "diagonal": "0",
        "padding": "(1, 1)",
        "threshold lambd maxi max": "0.5",
        "mini min": "-0.5",
        "k": "1",
        "w_quant rope_indices": "None",
    }.items()
    for name in names.split()
}
ANNOTATED = {"int": "1", "float": "1.0", "bool": "False"}
#: Logarithms of decays, which are negative.
GATES = {"g", "gk", "gv", "w", "log_alpha", "log_decay", "gate", "f"}
NO_TENSORS = {"proj", "model", "module", "config", "layer"}
#: Objects that hold the weights of a norm, and buffers for a result of the shape of the first operand.
NORMS = {"layernorm", "layer_norm", "rmsnorm", "rms_norm", "norm", "q_norm", "k_norm"}
BUFFERS = {"out", "out_"}
LABELS = {"label", "labels", "target", "targets", "index", "indices", "idx", "y_true", "input_ids", "token_ids"}
#: Shapes to try for so many tensors.
SHAPES: dict[int, list[Shapes]] = {
    1: shaped("elementwise; n d; n 2*d; d d; b t d; b c h d"),
    2: shaped("elementwise; n d, d; m k, k n; b m k, b k n; n d, n d; m k, k; d, d; n d, n; b t d, b t d"),
    3: shaped(
        "elementwise; n d, d, d; b m n, b m k, b k n; m n, m, n; b h t d, b h t d, b h t d; "
        "b t h d, b t h d, b t h d; m n, m k, k n; m k, n k, n; b t h 2*d, t d, t d"
    ),
    4: [(ATTENTION,) * 4, (*(ATTENTION,) * 3, "b t h"), *shaped("n d, d, d, n d; n d, 1, d, d")],
    5: [(*(ATTENTION,) * 3, "b t h", "b t h"), (*(ATTENTION,) * 4, "b t h"), (ATTENTION,) * 5],
}


@dataclass(frozen=True)
class _Candidate:
    """Holds a definition with `{0}` for its first operand, and the call of the function with these operands."""

    source: str
    call: list[str]
    tensors: list[str]
    shapes: Sequence[Shapes]
    reference: bool = False
    turn: str = ""  # what follows the result, and each operand of three or more dimensions


def _candidates(
    asked: GuessDefinition, call: list[str], tensors: list[str], numbers: Mapping[str, str]
) -> Iterator[_Candidate]:
    """Yields the definitions that the name suggests, then references of the package, similar names first."""
    eps = next((each.default for each in asked.parameters if "eps" in each.name and each.default), VALUES["eps"])
    places = [f"{{{index}}}" for index in range(len(tensors))]
    general = SHAPES.get(len(tensors), [])
    for key in dict.fromkeys(keys(asked.name, asked.module.partition(".")[0])):
        for formula, shapes in formulas(key, len(tensors)):
            yield _Candidate(formula.replace("{eps}", eps), call, tensors, shapes or general)
        if key in known():
            operands = dict(zip(tensors, places, strict=True))
            given = [operands.get(each, each) for each in call if "empty_like" not in each]
            for several in (given, places, [*places, "-1"], [*places, "1"]):
                arguments = ", ".join(several)
                yield _Candidate(f"{known()[key]}({arguments})", call, tensors, general)
    whole = set(re.findall(r"[a-z0-9]+", asked.name.lower()))
    room = asked.module.rpartition(".")[0] + "."
    near = [each for each in asked.references if each.startswith(room) and not each.rpartition(".")[2].startswith("_")]
    for each in sorted(near, key=lambda each: -len(whole & set(re.findall(r"[a-z0-9]+", each.lower()))))[:6]:
        yield from _beside(asked, each, call, tensors, numbers)


def _beside(
    asked: GuessDefinition, reference: str, call: list[str], tensors: list[str], numbers: Mapping[str, str]
) -> Iterator[_Candidate]:
    """Yields calls of a reference with the operands of a function: by name, the others in order.

    An optional parameter of the function that the reference requires is an operand too.
    """
    optional = {each.name: each for each in asked.parameters if each.default is not None}
    # after the required arguments, `call` may have a buffer for the result
    required = zip(_required(asked), call, strict=False)
    fixed = {each.name: value for each, value in required if each.name not in tensors}
    call, tensors, given = list(call), list(tensors), {}
    for name in asked.references[reference]:
        if name in optional and not asked.name.endswith(".apply"):
            value = "" if "Tensor" in optional[name].annotation else numbers.get(name) or _annotated(optional[name])
            tensors += [] if value else [name]
            call.append(f"{name}={value or name}")
            fixed |= {name: value} if value else {}
        if name in tensors or name in fixed:
            given[name] = fixed.get(name) or f"{{{tensors.index(name)}}}"
    rest = [index for index, name in enumerate(tensors) if name not in given]
    missing = [name for name in asked.references[reference] if name not in given]
    if len(rest) != len(missing):
        return
    given |= {name: f"{{{index}}}" for name, index in zip(missing, rest, strict=True)}
    module, _, name = reference.rpartition(".")
    shapes = _documented(asked.documentation, tensors) or SHAPES.get(len(tensors), [])
    many = len(tensors) - 3
    if not shapes:
        shapes = [(*(ATTENTION,) * 3, *each) for each in itertools.product((ATTENTION, "b t h"), repeat=min(many, 6))]
        shapes += [(*("b t d",) * whole, *("d",) * (len(tensors) - whole)) for whole in range(1, len(tensors) + 1)]
    source = f'import_module("{module}").{name}({", ".join(f"{key}={value}" for key, value in given.items())})'
    flags = [each.name for each in asked.parameters if each.default == "True"]
    for flag, turn in itertools.product(["", *flags[:3]], ("", ".transpose(1, 2)")):
        yield _Candidate(source, [*call, *([f"{flag}=False"] if flag else [])], tensors, shapes, True, turn)


def _documented(text: str, tensors: Sequence[str]) -> list[Shapes]:
    """Reads the shapes of operands from a docstring. The second answer has one width for keys and values."""
    parts = re.split(r"(?m)^\s*[`*]*(\w+)[`*]*(?: *\([^)\n]*\))? *:", text)
    described = dict(zip(parts[1::2], parts[2::2], strict=False))
    shapes = []
    for tensor in tensors:
        about = described.get(tensor, "").lower()
        found = re.search(r"\bshape\b[^\[(\n]*[\[(]([^\])\n]*)[\])]|^\s*`*\[([^\]\n]*)\]", about)
        sizes = [re.sub(r"\s", "", each) for each in (found[1] or found[2] or "").split(",")] if found else [""]
        if not all(re.fullmatch(r"\w+([*+]\w+)*", each) for each in sizes):
            return []
        shape = re.sub(r"\bh\w\b", "h", " ".join(sizes))  # as many heads of keys as of values
        # the name of an operand is no name of a dimension
        shapes.append(re.sub(r"[a-z_]\w*", lambda one: f"d{one[0]}" if one[0] in tensors else one[0], shape))
    one = tuple(re.sub(r"\bd?v\b", "dk" if "k" in tensors else "k", each) for each in shapes)
    return list(dict.fromkeys([tuple(shapes), one]))


def _required(asked: GuessDefinition) -> list[Parameter]:
    """Lists the parameters without a default."""
    return [each for each in asked.parameters if each.default is None]


def _annotated(parameter: Parameter) -> str:
    """Returns a value of the annotated type. Returns "" for a tensor or another type."""
    kinds = (value for word, value in ANNOTATED.items() if re.search(rf"\b{word}\b", parameter.annotation))
    return "" if "Tensor" in parameter.annotation else next(kinds, "")


def _ways(asked: GuessDefinition) -> Iterator[tuple[list[str], list[str], Mapping[str, str]]]:
    """Yields the required arguments as source, the names of the tensors, and the values of the numbers.

    A name such as alpha is a number in one way and a tensor in the other. An object such as `layernorm` gives its
    weight as an operand, or its weight and bias.
    """
    keys_of_queries = "k" if any(each.name.lower() == "q" for each in asked.parameters) else ""
    numbers: list[Mapping[str, str]] = [{name: VALUES[name] for name in VALUES if name != keys_of_queries}, {}]
    for known_values, bias in itertools.product(numbers, (False, True)):
        call, tensors, weights = [], [], []
        for each in _required(asked):
            value = _annotated(each) or ("" if "Tensor" in each.annotation else known_values.get(each.name.lower(), ""))
            if each.name in BUFFERS:
                value = "torch.empty_like({0})"
            elif each.name in NORMS and "Tensor" not in each.annotation:
                own = [f"{each.name}_weight", *([f"{each.name}_bias"] if bias else [])]
                weights += own
                given = f"weight={own[0]}, bias={own[1] if bias else None}"
                value = f"SimpleNamespace({given}, eps=1e-5, variance_epsilon=1e-5)"
            call.append(value or each.name)
            tensors += [] if value else [each.name]
        if asked.name.endswith("_out") and any(each.name == "out" and each.default for each in asked.parameters):
            call.append("out=torch.empty_like({0})")
        tensors += weights
        if tensors and not NO_TENSORS & set(tensors) and bias <= bool(weights):
            yield [each.replace("{0}", tensors[0]) for each in call], tensors, known_values


class _Sizes(dict[str, int]):
    """Maps the name of a dimension to a size. Names that only docstrings have get the size of a head."""

    def __missing__(self, name: str) -> int:
        return 32 if name == "dv" else 16


def _inputs(
    tensors: Sequence[str], shapes: Sequence[str], device: str, *, more: int = 0
) -> tuple[list[Any], dict[str, str]]:
    """Draws the operands, and says which of them are indices. Each dimension is larger by `more`."""
    import torch

    torch.manual_seed(1)
    sizes_of = _Sizes({name: size + more for name, size in SIZES.items()})
    integers = {}
    values: list[Any] = []
    table = shapes[0] if "v" in shapes[0] else next((each for each in shapes if "v" in each), shapes[0])
    classes = "v" if "v" in table else table.split()[-1]
    for name, shape in zip(tensors, shapes, strict=True):
        sizes = [eval(each, {}, sizes_of) for each in shape.split()]  # products and sums of names and numbers
        if name.lower() in LABELS and len(tensors) > 1 and len(sizes) == 1:
            integers[name] = f"0 <= {name} < {classes}"
            values.append(torch.randint(0, sizes_of[classes], sizes, device=device))
        else:
            values.append(torch.randn(sizes, device=device))
    return values, integers


def _scope() -> dict[str, Any]:
    """Returns the names that definitions and calls may use. The written file imports the same names."""
    import torch

    here = {"import_module": importlib.import_module, "SimpleNamespace": SimpleNamespace}
    return {"torch": torch, "functional": torch.nn.functional, **here}


def _results(returned: Any) -> list[Any]:
    """Lists the tensors that a function returned."""
    return [each for each in (returned if isinstance(returned, tuple | list) else [returned]) if hasattr(each, "dtype")]


def _elementwise(define: Callable[..., Any], values: Sequence[Any], expected: Any) -> bool:
    """True if a definition gives the same numbers for the same elements in another order and shape."""
    import torch

    turned = [each.flip(0).reshape(-1) for each in values]
    with suppress(Exception):
        return torch.equal(_results(define(*turned))[0].nan_to_num(), expected.flip(0).reshape(-1).nan_to_num())
    return False


def _trials(asked: GuessDefinition, device: str) -> Iterator[tuple[Guess, list[Any], list[Any]]]:
    """Yields each definition that runs: the guess, its inputs and its results."""
    tried = set()
    for call, tensors, numbers in _ways(asked):
        for each in _candidates(asked, call, tensors, numbers):
            for shapes in each.shapes:
                key = (each.source, each.turn, *each.call, shapes)
                if key not in tried:
                    tried.add(key)
                    with suppress(Exception):
                        yield from _trial(each, shapes, device)


def _trial(of: _Candidate, shapes: Shapes, device: str) -> Iterator[tuple[Guess, list[Any], list[Any]]]:
    """Runs a definition on operands of these shapes. Of several results it yields all, then the first alone."""
    scope = _scope()
    turned = [of.turn if len(shape.split()) > 2 else "" for shape in shapes or [""] * len(of.tensors)]
    names, source = ", ".join(of.tensors), of.source.format(*map("".join, zip(of.tensors, turned, strict=True)))
    values, integers = _inputs(of.tensors, shapes or ("n d",) * len(of.tensors), device)
    gated = of.reference and bool(shapes)
    define = eval(f"lambda {names}: {source}", scope)  # source of this room and names of parameters
    values, domain, returned = _inside(define, of.tensors, values, integers, gated=gated)
    several = isinstance(returned, tuple | list)
    whole = not several or (len(_results(returned)) == len(returned) > 1 and not of.turn)
    for end in ([""] if whole else []) + (["[0]"] if several else []):
        like = f"lambda {names}: {source}{end}{of.turn}"
        define = eval(like, scope)
        expected = _results(define(*values))
        usable = expected and not any(each.is_complex() or not each.numel() for each in expected)
        if usable and (shapes is not None or _elementwise(define, values, expected[0])):
            if shapes is not None:  # a definition that needs even sizes fails here
                define(*_inputs(of.tensors, shapes, device, more=1)[0])
            named = dict(zip(of.tensors, shapes or (), strict=False))
            guess = Guess("", like, of.call, False, of.tensors, named, integers, domain)
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
    returned = define(*values)
    expected = _results(returned)[0]
    if expected.isnan().any() and expected.shape != values[0].shape:
        domain = {name: f"0 < {name} <= 8" for name in tensors if name not in integers}
        values = [each.abs() if name in domain else each for name, each in zip(tensors, values, strict=True)]
        returned = define(*values)
    return values, domain, returned


def _by_name(asked: GuessDefinition, why: str) -> Guess:
    """Returns the first definition that its name says, if it runs on some shapes.

    Operands are copied where the function may write into them: the first one of `relu_`, all if it has several results.
    """
    for guess, _, results in _trials(msgspec.structs.replace(asked, references={}), "cpu"):
        written = guess.tensors if len(results) > 1 else guess.tensors[: asked.name.endswith("_")]
        call = [_copied(each, written) for each in guess.call]
        return msgspec.structs.replace(guess, why=why, call=call)
    return Guess(why)


def _by_running(asked: GuessDefinition, function: Callable[..., Any], device: str) -> Guess:
    """Returns the first definition that gives the same numbers as the function, and how it can be called."""
    import torch

    reasons = []
    for guess, values, expected in _trials(asked, device):
        for dtype, tolerance in ((torch.float32, 1e-3), (torch.bfloat16, 2e-2)):
            given = [each.to(dtype, copy=True) if each.is_floating_point() else each.clone() for each in values]
            scope = dict(zip(guess.tensors, given, strict=True)) | _scope() | {"kernel": function}
            try:
                returned = eval(f"kernel({', '.join(guess.call)})", scope)  # the function's own arguments
            except Exception as error:
                reasons.append(f"it fails beside {guess.like}: {said_by(error)}")
                if "CUDA error" in str(error):  # each further call in this process would fail too
                    return Guess(reasons[-1], ran=True)
                if dtype is torch.float32 and re.search(r"float32|bf16|bfloat16|fp16|float16", str(error)):
                    continue
                break
            got, alone = _results(returned), len(expected) == 1
            if len(got) < len(expected) or any(a.shape != b.shape for a, b in zip(got, expected, strict=False)):
                reasons.append(f"it returns no tensor of the shape that {guess.like} has")
            elif (len(got) > 1 and not alone and len(got) != len(expected)) or not all(
                _close(a, b, tolerance) for a, b in zip(got, expected, strict=False)
            ):
                reasons.append(f"its numbers differ from those of {guess.like}")
            else:
                changed = {
                    name for name, value in zip(guess.tensors, values, strict=True) if _other(scope[name], value)
                }
                gradients, more, note = _backward(function, guess, values, dtype)
                call = [_copied(each, changed | more) for each in guess.call]
                why = f"the same to three digits on {' and '.join(str(tuple(each.shape)) for each in values)}{note}"
                dtypes = [] if dtype is torch.float32 else ["bfloat16", "float16"]
                found = {
                    "why": why,
                    "call": call,
                    "first": alone and isinstance(returned, tuple | list),
                    "dtypes": dtypes,
                }
                return msgspec.structs.replace(guess, gradients=gradients, ran=True, **found)
            break
    return Guess((reasons or ["no function of PyTorch or of this package has this name"])[0], ran=True)


def _close(got: Any, expected: Any, tolerance: float) -> bool:
    """True if two tensors agree to some digits of their largest number."""
    import torch

    scale = expected.to(torch.float32).nan_to_num(posinf=0, neginf=0).abs().max().item()
    numbers = (got.to(torch.float32), expected.to(torch.float32))
    return torch.allclose(*numbers, rtol=2 * tolerance, atol=tolerance * scale, equal_nan=True)


def _copied(argument: str, changed: Collection[str]) -> str:
    """Returns the source of an argument. An operand that the function changes is copied."""
    return f"{argument}.clone()" if argument.rpartition("=")[2] in changed else argument


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
        scope = dict(zip(guess.tensors, given, strict=True)) | _scope() | {"kernel": function}
        result = _results(eval(f"kernel({', '.join(guess.call)})", scope))[0]
        upstream = torch.ones_like(result)
        result.backward(upstream)
        changed = {name for name, value in zip(guess.tensors, values, strict=True) if _other(scope[name], value)}
        if bool((upstream != 1).any()):
            return False, changed, "; its backward pass writes over the gradient that arrives"
        return all(each.grad is not None for each in leaves), changed, ""
    return False, set(), ""
