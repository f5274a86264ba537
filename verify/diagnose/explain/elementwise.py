"""How GELU, SiLU and their gated forms are commonly computed, value and slope."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from verify.diagnose.explain.steps import Model, Step

_HALF, _ONE = 0.5, 1


def _cast(name: str, source: str, dtype: torch.dtype) -> Step:
    return Step(name, f"{name} as {_short(dtype)}", "cast", lambda v, a: a.cast(v[source], dtype))


def _output(source: str, dtype: torch.dtype) -> Step:
    return Step("result", f"rounded to {_short(dtype)}", "output", lambda v, a: a.cast(v[source], dtype))


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _arithmetic(work: torch.dtype, out: torch.dtype) -> str:
    if work == out:
        return f"every step in {_short(work)}"
    return f"every step in {_short(work)}, the result rounded once to {_short(out)}"


# -- arguments and gates: steps from x to a value that multiplies it -----------------------------------

Chain = tuple[str, tuple[Step, ...]]  # how it is written, and its steps; the last one is called "gate"

_SCALED = (
    Step("t", "x · (1/√2)", "arithmetic", lambda v, a: v["x"] * a.constant("1/√2")),
    Step("t", "x / √2", "arithmetic", lambda v, a: v["x"] / a.constant("√2")),
)
_ERF = (
    Step("erf", "erf(x/√2)", "intrinsic", lambda v, a: a.erf(v["t"])),
    Step("sum", "1 + erf(x/√2)", "arithmetic", lambda v, a: _ONE + v["erf"], lambda v, a: (_ONE, v["erf"])),
    Step("gate", "½ (1 + erf(x/√2))", "arithmetic", lambda v, a: _HALF * v["sum"]),
)
_ERFC = (
    Step("erfc", "erfc(-x/√2)", "intrinsic", lambda v, a: a.erfc(-v["t"])),
    Step("gate", "½ erfc(-x/√2)", "arithmetic", lambda v, a: _HALF * v["erfc"]),
)


def _inner(*steps: tuple[str, str]) -> tuple[Step, ...]:
    made = []
    for name, text in steps:
        kind = "intrinsic" if text == "x**3" else "arithmetic"
        made.append(Step(name, text, kind, _INNER[text]))
    return tuple(made)


_INNER = {
    "x**3": lambda v, a: a.cube(v["x"]),
    "x · x": lambda v, a: v["x"] * v["x"],
    "x · x · x": lambda v, a: v["x"] * v["x"] * v["x"],
    "0.044715 x³": lambda v, a: a.constant("0.044715") * v["cube"],
    "0.044715 · x · x · x": lambda v, a: a.constant("0.044715") * v["x"] * v["x"] * v["x"],
    "x + 0.044715 x³": lambda v, a: v["x"] + v["cubic"],
    "0.044715 x²": lambda v, a: a.constant("0.044715") * v["square"],
    "1 + 0.044715 x²": lambda v, a: _ONE + v["quadratic"],
    "√(2/π) x": lambda v, a: a.constant("√(2/π)") * v["x"],
    "u = √(2/π) (x + 0.044715 x³)": lambda v, a: a.constant("√(2/π)") * v["poly"],
    "u = √(2/π) x (1 + 0.044715 x²)": lambda v, a: v["linear"] * v["poly"],
}
_CUBICS: tuple[tuple[Step, ...], ...] = (
    _inner(
        ("cube", "x**3"),
        ("cubic", "0.044715 x³"),
        ("poly", "x + 0.044715 x³"),
        ("u", "u = √(2/π) (x + 0.044715 x³)"),
    ),
    _inner(
        ("cube", "x · x · x"),
        ("cubic", "0.044715 x³"),
        ("poly", "x + 0.044715 x³"),
        ("u", "u = √(2/π) (x + 0.044715 x³)"),
    ),
    _inner(("cubic", "0.044715 · x · x · x"), ("poly", "x + 0.044715 x³"), ("u", "u = √(2/π) (x + 0.044715 x³)")),
    _inner(
        ("square", "x · x"),
        ("quadratic", "0.044715 x²"),
        ("poly", "1 + 0.044715 x²"),
        ("linear", "√(2/π) x"),
        ("u", "u = √(2/π) x (1 + 0.044715 x²)"),
    ),
)
_GROWN = Step("grown", "exp(2u)", "intrinsic", lambda v, a: a.exp(2 * v["u"]))
_TANHS: tuple[Chain, ...] = (
    ("tanh(u)", (Step("tanh", "tanh(u)", "intrinsic", lambda v, a: a.tanh(v["u"])),)),
    (
        "(e^2u - 1) / (e^2u + 1)",
        (
            _GROWN,
            Step("above", "e^2u - 1", "arithmetic", lambda v, a: v["grown"] - _ONE, lambda v, a: (v["grown"], _ONE)),
            Step("below", "e^2u + 1", "arithmetic", lambda v, a: v["grown"] + _ONE),
            Step("tanh", "(e^2u - 1) / (e^2u + 1)", "arithmetic", lambda v, a: v["above"] / v["below"]),
        ),
    ),
    (
        "1 - 2 / (e^2u + 1)",
        (
            _GROWN,
            Step("below", "e^2u + 1", "arithmetic", lambda v, a: v["grown"] + _ONE),
            Step("part", "2 / (e^2u + 1)", "arithmetic", lambda v, a: 2 / v["below"]),
            Step(
                "tanh", "1 - 2 / (e^2u + 1)", "arithmetic", lambda v, a: _ONE - v["part"], lambda v, a: (1, v["part"])
            ),
        ),
    ),
)
_TANH_GATE = (
    Step("sum", "1 + tanh(u)", "arithmetic", lambda v, a: _ONE + v["tanh"], lambda v, a: (_ONE, v["tanh"])),
    Step("gate", "½ (1 + tanh(u))", "arithmetic", lambda v, a: _HALF * v["sum"]),
)


def _logistic(argument: str, text: str) -> tuple[tuple[Step, ...], ...]:
    """sigmoid(z), as one function and by the exponential."""
    whole = Step("gate", f"sigmoid({text})", "intrinsic", lambda v, a: a.sigmoid(v[argument]))
    grown = Step("grown", f"exp(-{text})", "intrinsic", lambda v, a: a.exp(-v[argument]))
    below = Step("below", f"1 + exp(-{text})", "arithmetic", lambda v, a: _ONE + v["grown"])
    gate = Step("gate", f"1 / (1 + exp(-{text}))", "arithmetic", lambda v, a: _ONE / v["below"])
    return (whole,), (grown, below, gate)


def _gelu_gates() -> list[Chain]:
    gates: list[Chain] = []
    gates += [("½ x (1 + erf(x/√2))", (scaled, *_ERF)) for scaled in _SCALED]
    gates += [("½ x erfc(-x/√2)", (scaled, *_ERFC)) for scaled in _SCALED]
    for text, tanh in _TANHS:
        written = f"½ x (1 + {text})" if text == "tanh(u)" else f"½ x (1 + t), t = {text}"
        gates += [(f"{written}, {cubic[-1].text}", (*cubic, *tanh, *_TANH_GATE)) for cubic in _CUBICS]
    double = Step("z", "2u", "arithmetic", lambda v, a: 2 * v["u"])
    for cubic in _CUBICS:
        gates += [(f"x sigmoid(2u), {cubic[-1].text}", (*cubic, double, *part)) for part in _logistic("z", "2u")]
    quick = Step("z", "1.702 x", "arithmetic", lambda v, a: a.constant("1.702") * v["x"])
    gates += [("x sigmoid(1.702 x)", (quick, *part)) for part in _logistic("z", "1.702 x")]
    return gates


def _silu_gates() -> list[Chain]:
    return [("x sigmoid(x)", part) for part in _logistic("x", "x")]


_PRODUCT = Step("product", "x · gate", "arithmetic", lambda v, a: v["x"] * v["gate"])
_QUOTIENT = Step("product", "x / (1 + exp(-z))", "arithmetic", lambda v, a: v["x"] / v["below"])


def _products(gate: tuple[Step, ...]) -> list[tuple[Step, ...]]:
    """x times the gate; x over the denominator, where the gate is a reciprocal."""
    chains = [(*gate, _PRODUCT)]
    if any(step.name == "below" and step.text.startswith("1 + exp(-") for step in gate):
        chains.append((*gate[:-1], _QUOTIENT))
    return chains


# -- whole models --------------------------------------------------------------------------------------


def value_models(family: str, dtype: torch.dtype, *, gated: bool) -> list[Model]:
    """How y is commonly computed: in the dtype of the data, or in float32 (float64) and rounded once."""
    models = []
    for work in _working(dtype):
        for formula, gate in _gelu_gates() if family == "gelu" else _silu_gates():
            for chain in _products(gate):
                models += _gated(formula, chain, work, dtype) if gated else [_plain(formula, chain, work, dtype)]
    return models


def _working(dtype: torch.dtype) -> list[torch.dtype]:
    wider = {torch.float32: torch.float64}.get(dtype, torch.float32)
    return [dtype] if dtype == torch.float64 else list(dict.fromkeys([dtype, torch.float32, wider]))


def _plain(formula: str, chain: Sequence[Step], work: torch.dtype, out: torch.dtype) -> Model:
    steps = [_cast("x", "x_given", work), *chain]
    if work != out:
        steps.append(_output("product", out))
    return Model(formula, _arithmetic(work, out), tuple(steps))


def _gated(formula: str, chain: Sequence[Step], work: torch.dtype, out: torch.dtype) -> list[Model]:
    """x1 times the activation of x2 (`x` in the steps); the activation may be rounded to the dtype in between."""
    first = [_cast("x1", "x1_given", work), _cast("x", "x_given", work), *chain]
    times = Step("y", "x1 · activation", "arithmetic", lambda v, a: v["x1"] * v["product"])
    if work == out:
        return [Model(f"x1 · {formula} of x2", _arithmetic(work, out), (*first, times))]
    narrow = [
        _cast("x1", "x1_given", out),
        _cast("x", "x_given", work),
        *chain,
        Step("rounded", f"activation as {_short(out)}", "output", lambda v, a: a.cast(v["product"], out)),
        Step("result", f"x1 · activation in {_short(out)}", "output", lambda v, a: v["x1"] * v["rounded"]),
    ]
    once = Model(f"x1 · {formula} of x2", _arithmetic(work, out), (*first, times, _output("y", out)))
    twice = f"activation in {_short(work)}, rounded to {_short(out)} before the product"
    return [once, Model(f"x1 · {formula} of x2", twice, tuple(narrow))]


_DENSITY = (
    Step("density", "exp(-½ x²)", "intrinsic", lambda v, a: a.exp(-_HALF * v["x"] * v["x"])),
    Step("phi", "exp(-½ x²) / √(2π)", "arithmetic", lambda v, a: v["density"] * a.constant("1/√(2π)")),
    Step("term", "x φ(x)", "arithmetic", lambda v, a: v["x"] * v["phi"]),
)
_SLOPE = Step(
    "slope", "Φ(x) + x φ(x)", "arithmetic", lambda v, a: v["gate"] + v["term"], lambda v, a: (v["gate"], v["term"])
)
_TIMES_DY = Step("gradient", "dy · slope", "arithmetic", lambda v, a: v["dy"] * v["slope"])


def _tanh_slope(cubic: tuple[Step, ...]) -> tuple[Step, ...]:
    return (
        *cubic,
        *_TANHS[0][1],
        *_TANH_GATE,
        Step(
            "sech",
            "1 - tanh(u)²",
            "arithmetic",
            lambda v, a: _ONE - v["tanh"] * v["tanh"],
            lambda v, a: (_ONE, v["tanh"] * v["tanh"]),
        ),
        Step(
            "rate",
            "u' = √(2/π) (1 + 0.134145 x²)",
            "arithmetic",
            lambda v, a: a.constant("√(2/π)") * (_ONE + a.constant("0.134145") * v["x"] * v["x"]),
        ),
        Step("term", "½ x (1 - tanh(u)²) u'", "arithmetic", lambda v, a: _HALF * v["x"] * v["sech"] * v["rate"]),
        Step(
            "slope",
            "½ (1 + tanh(u)) + ½ x (1 - tanh(u)²) u'",
            "arithmetic",
            lambda v, a: v["gate"] + v["term"],
            lambda v, a: (v["gate"], v["term"]),
        ),
    )


_AUTOGRAD = (
    Step("half", "½ x", "arithmetic", lambda v, a: v["x"] * _HALF),
    _SCALED[0],
    *_ERF[:2],
    Step("outer", "½ dy (1 + erf)", "arithmetic", lambda v, a: v["dy"] * v["sum"] * _HALF),
    Step("into", "½ x dy", "arithmetic", lambda v, a: v["dy"] * v["half"]),
    Step("bell", "exp(-x²/2)", "intrinsic", lambda v, a: a.exp(-(v["t"] * v["t"]))),
    Step("erf'", "2/√π exp(-x²/2)", "arithmetic", lambda v, a: a.constant("2/√π") * v["bell"]),
    Step("rate", "½ x dy · 2/√π exp(-x²/2)", "arithmetic", lambda v, a: v["erf'"] * v["into"]),
    Step("inner", "… / √2", "arithmetic", lambda v, a: v["rate"] * a.constant("1/√2")),
    Step(
        "gradient",
        "sum of both paths",
        "arithmetic",
        lambda v, a: v["inner"] + v["outer"],
        lambda v, a: (v["inner"], v["outer"]),
    ),
)


def slope_models(dtype: torch.dtype) -> list[Model]:
    """How dx of GELU is commonly computed."""
    chains: list[Chain] = [(f"dy (Φ + x φ), Φ = ½ (1 + erf), {s.text}", (s, *_ERF, *_DENSITY, _SLOPE)) for s in _SCALED]
    chains += [(f"dy (Φ + x φ), Φ = ½ erfc, {s.text}", (s, *_ERFC, *_DENSITY, _SLOPE)) for s in _SCALED]
    chains += [(f"dy · slope of the tanh form, {cubic[-1].text}", _tanh_slope(cubic)) for cubic in _CUBICS]
    models = []
    for work in _working(dtype):
        casts = (_cast("x", "x_given", work), _cast("dy", "dy_given", work))
        ends = (_output("gradient", dtype),) if work != dtype else ()
        for formula, chain in chains:
            models.append(Model(formula, _arithmetic(work, dtype), (*casts, *chain, _TIMES_DY, *ends)))
        formula = "autograd of ½ x (1 + erf(x/√2))"
        models.append(Model(formula, _arithmetic(work, dtype), (*casts, *_AUTOGRAD, *ends)))
    return models
