"""Finds the definitions that the name of a function suggests, as source for `like=`.

`{0}` is the first operand, `{1}` the second, `{eps}` the function's own epsilon.
"""

from __future__ import annotations

import functools
import itertools
import re
from collections.abc import Iterator, Sequence

Shapes = tuple[str, ...] | None  # None is elementwise

_NORM = "functional.rms_norm({}, {{0}}.shape[-1:], {}, {{eps}})"
_HEADS = "functional.scaled_dot_product_attention({{0}}{0}, {{1}}{0}, {{2}}{0}, is_causal={1}){0}"
_TURNED = ".transpose(1, 2)"
_TURN = (
    "torch.cat(["
    + ", ".join(
        f"{{0}}.chunk(2, -1)[{here}] * {{1}}.chunk(2, -1)[0] {sign} {{0}}.chunk(2, -1)[{there}] * {{2}}.chunk(2, -1)[0]"
        for here, sign, there in ((0, "-", 1), (1, "+", 0))
    )
    + "], -1)"
)
_NORMED = [
    _TURN.format(_NORM.format(*each), "{2}.unsqueeze(-2)", "{3}.unsqueeze(-2)")
    for each in (("{0}", "{4}"), ("{1}", "{5}"))
]
_TANH = ', approximate="tanh"'
_MEAN = "(({0}.exp() + {1}.exp()) / 2).log()"
#: Definitions that PyTorch has under no name of its own, by the name without underscores.
FORMULAS = {
    "gegluexact": ["functional.gelu({0}) * {1}"],
    "geglu gelumul gelutanhandmul gegluapprox": ['functional.gelu({0}, approximate="tanh") * {1}'],
    "relusquared relu2 sqrelu squaredrelu": ["functional.relu({0}).square()"],
    "swish": ["functional.silu({0})"],
    "rmsnorm rmslayernorm": [
        _NORM.format("{0}", "{1}"),
        _NORM.format("{0}", "None"),
        _NORM.format("{0}", "{1}") + " + {2}",
    ],
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
    "crossentropy": [
        "functional.cross_entropy({0}, {1})",
        'functional.cross_entropy({0}, {1}, reduction="none")',
    ],
    "selectivelogsoftmax logprob": ["-functional.cross_entropy({0}, {1}, reduction='none')"],
    "linearcrossentropy": [
        f"functional.cross_entropy({{{x}}} @ {{{weight}}}.T, {{{label}}})"
        for x, weight, label in ((0, 1, 2), (1, 0, 2), (0, 2, 1))
    ],
    "kldiv": [f'functional.kl_div({{0}}, {{1}}, reduction="{each}")' for each in ("batchmean", "mean", "none")],
    "tvd": ["({0} - {1}).abs().sum() / (2 * {0}.shape[0])", "({0} - {1}).abs().mean() / 2"],
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
    "mlp swiglumlp": ["(functional.silu({0} @ {1}.T) * ({0} @ {2}.T)) @ {3}.T"],
    "dyt": ["torch.tanh({1} * {0}) * {2} + {3}"],
    "linear": ["functional.linear({0}, {1})", "functional.linear({0}, {1}, {2})"],
    "linearkldiv kldiv": [
        'functional.kl_div(torch.log_softmax({0} @ {1}.T, -1), {2}, reduction="batchmean")',
        'functional.kl_div(torch.log_softmax({0} @ {2}.T, -1), torch.softmax({1} @ {3}.T, -1), reduction="batchmean")',
    ],
    **{  # the gradients of a gated unit, in place of the upstream gradient, the gate and the other operand
        name: [f"({unit.format('{1}')} * {{2}}, {{0}} * {unit.format('{1}')}, {slope.format('{0} * {2}, {1}')})"]
        for name, unit, slope in (
            ("swiglubackward swigludwfdwd", "functional.silu({})", "torch.ops.aten.silu_backward({})"),
            ("gegluexactbackward", "functional.gelu({})", "torch.ops.aten.gelu_backward({})"),
            ("gegluapproxbackward", f"functional.gelu({{}}{_TANH})", f"torch.ops.aten.gelu_backward({{}}{_TANH})"),
        )
    },
    "matmullora": ["{0} @ {1}.T + ({0} @ {2}.T) @ {3}.T"],
    "normrope": [f"({', '.join(f'{each}.transpose(1, 2)' for each in _NORMED)})"],
    "rope rotary rotaryembedding ropeembedding ropeembeddingpositions rotaryposemb": [
        text
        for heads in ("", ".unsqueeze(-2)")
        for text in (
            _TURN.format("{0}", f"{{1}}{heads}", f"{{2}}{heads}"),
            f"({', '.join(_TURN.format(x, f'{{2}}{heads}', f'{{3}}{heads}') for x in ('{0}', '{1}'))})",
        )
    ],
    "attention attn flashattention": [_HEADS.format(*each) for each in itertools.product(("", _TURNED), (False, True))],
}


def shaped(text: str) -> list[Shapes]:
    """Reads lists of shapes: a semicolon between two lists, a comma between two operands."""
    return [None if each == "elementwise" else tuple(each.split(", ")) for each in text.split("; ")]


_HEADED: list[Shapes] = [
    (*(layout,) * many, *(f"{lead}t 2*d",) * 2)
    for layout in ("b h t 2*d", "b t h 2*d")
    for many in (1, 2)
    for lead in ("", "1 ", "b ")
]
#: Shapes of operands that a formula has, by the end of its name.
SHAPED: dict[str, list[Shapes]] = {
    "linearcrossentropy": shaped("n d, v d, n; v d, n d, n; n d, n, v d"),
    "crossentropy": shaped("n v, n"),
    "addrmsnorm": shaped("n d, n d, d"),
    "addrmslayernorm": shaped("n d, n d, d"),
    "groupnorm": shaped("b 4 d, 4, 4"),
    **dict.fromkeys(("backward", "dwfdwd"), shaped("n d, n d, n d")),
    "normrope": shaped("b t h 2*d, b t h 2*d, t 2*d, t 2*d, 2*d, 2*d"),
    "matmullora": shaped("m k, n k, d k, n d"),
    **dict.fromkeys(
        ("rope", "rotary", "rotaryembedding", "ropeembedding", "ropeembeddingpositions", "rotaryposemb"), _HEADED
    ),
    "embedding": shaped("v d, n; n, v d"),
    "modulatedrmsnorm": shaped("n d, d, n d; n d, d, d"),
    "polynorm": [("n d", "3", "1"), ("n d", "3", "")],
    "mlp": shaped("n d, k d, k d, d k"),
    "kldiv": shaped("n d, n d; n d, k d, n k; n d, n d, k d, k d"),
    **dict.fromkeys(("jsd", "tvd"), shaped("n d, n d")),
}
_NOISE = (
    "fast|fused|triton|kernel|function|func|forward|fwd|parallel|optimized|chunk|recurrent|global|vector|"
    "tensor|scalar|inplace|self|apply|gateup|fg|qk"
)
_UNITS = {"swi": "silu", "ge": "gelu", "re": "relu"}  # before "glu"


def keys(name: str, package: str) -> tuple[str, str]:
    """Returns a name in small letters without underscores, and that without words that say how it is computed."""
    whole = re.sub(r"[^a-z0-9]", "", name.removesuffix(".apply").removesuffix("_out").lower())
    words = [word for word in package.lower().split("_") if len(word) > 3]
    return whole, re.sub("|".join([_NOISE, *words]), "", whole)


def formulas(key: str, count: int) -> Iterator[tuple[str, Sequence[Shapes]]]:
    """Yields formulas of so many operands with the shapes that they have; no shapes if any may be tried."""
    key = key.removesuffix("loss")
    listed = [each for names, several in FORMULAS.items() if key in names.split() for each in several]
    shapes: Sequence[Shapes] = next((shapes for kind, shapes in SHAPED.items() if key.endswith(kind)), [])
    for formula in listed:
        if {int(place) for place in re.findall(r"\{(\d)\}", formula)} == set(range(count)):
            yield formula, [each for each in shapes if each is None or len(each) == count]
    unit = re.fullmatch(r"(\w+?)(glu|andmul|mul)", key)
    if unit and (function := known().get(_UNITS.get(unit[1], unit[1]))):
        if count == 2:
            yield f"{function}({{0}}) * {{1}}", []
        elif count == 1:
            yield f"{function}({{0}}.chunk(2, -1)[0]) * {{0}}.chunk(2, -1)[1]", [("n 2*d",)]
    if key.endswith("linear") and count > 2:
        for formula, shapes in formulas(key.removesuffix("linear"), count - 2):
            whole = f"functional.linear({formula}, {{{count - 2}}}, {{{count - 1}}})"
            yield whole, [(*each, "k d", "k") for each in shapes or [_rows(key, count - 2)] if each]
    gate = re.fullmatch(r"(\w+norm)(swish|silu)?gated?", key)
    if gate and count > 1:  # the gate is the second operand
        for formula, shapes in formulas(gate[1], count - 1):
            later = re.sub(r"\{([1-9])\}", lambda place: f"{{{int(place[1]) + 1}}}", formula)
            all_shapes = [(each[0], *each) for each in shapes or [_rows(key, count - 1)] if each]
            yield f"({later}) * functional.silu({{1}})", all_shapes


def _rows(key: str, count: int) -> tuple[str, ...]:
    """Returns shapes of rows and, for a norm, of its weights."""
    return ("n d", *("d" if "norm" in key else "n d",) * (count - 1))


@functools.cache
def known() -> dict[str, str]:
    """Maps names without underscores to functions of PyTorch."""
    import torch

    rooms = {"functional": torch.nn.functional, "torch": torch, "torch.special": torch.special}
    rooms |= {"torch.linalg": torch.linalg, "torch.ops.aten": torch.ops.aten}
    names = ((room, name) for room, place in reversed(rooms.items()) for name in dir(place) if not name.endswith("_"))
    return {name.replace("_", "").lower(): f"{room}.{name}" for room, name in names if not name.startswith("_")}
