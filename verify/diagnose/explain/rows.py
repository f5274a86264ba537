"""How layer norm and RMS norm are commonly computed: by which moments, in which order of sums, in which dtype."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from verify.diagnose.explain.steps import Model, Step, Values

_SEQUENTIAL = 8192  # columns up to which a sum one after the other is tried


def tree_mean(values: Tensor) -> Tensor:
    """The mean by a tree of halves over the next power of two, as a block of a Triton kernel adds up."""
    width = values.shape[-1]
    size = 1 << max(width - 1, 0).bit_length()
    total = torch.nn.functional.pad(values, (0, size - width))
    while size > 1:
        size //= 2
        total = total[..., :size] + total[..., size:]
    return total / width


def sequential_mean(values: Tensor) -> Tensor:
    """The mean by adding one element after the other."""
    total = values[..., :1].clone()
    for column in range(1, values.shape[-1]):
        total += values[..., column : column + 1]
    return total / values.shape[-1]


_MEANS: dict[str, Callable[[Tensor], Tensor] | None] = {
    "sums as torch.mean takes them": None,
    "sums by a tree of halves": tree_mean,
    "sums one after the other": sequential_mean,
}


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _casts(names: Sequence[str], work: torch.dtype) -> list[Step]:
    return [Step(name, f"{name} as {_short(work)}", "cast", _rounded(f"{name}_given", work)) for name in names]


def _rounded(source: str, dtype: torch.dtype) -> Callable[[Values, Any], Any]:
    return lambda v, a: a.cast(v[source], dtype)


def _row(summands: Sequence[str], work: torch.dtype) -> list[Step]:
    """The row itself, `s`: the one summand, or the sum of them all."""
    if len(summands) == 1:
        [name] = summands
        return [Step("s", f"{name} as {_short(work)}", "cast", _rounded(f"{name}_given", work))]

    def compute(values: Values, algebra: Any) -> Any:
        total = values[summands[0]]
        for name in summands[1:]:
            total = total + values[name]
        return total

    return [*_casts(summands, work), Step("s", " + ".join(summands), "arithmetic", compute)]


_MEAN = Step("mean", "mean m of x", "accumulation", lambda v, a: a.mean(v["s"]))
_CENTRED = Step("centred", "x - m", "arithmetic", lambda v, a: v["s"] - v["mean"], lambda v, a: (v["s"], v["mean"]))
_MOMENTS: dict[str, tuple[Step, ...]] = {
    "two passes: mean of (x - m)²": (
        _MEAN,
        _CENTRED,
        Step("var", "mean of (x - m)²", "accumulation", lambda v, a: a.mean(v["centred"] * v["centred"])),
    ),
    "one pass: mean of x² minus m²": (
        _MEAN,
        Step("square", "mean of x²", "accumulation", lambda v, a: a.mean(v["s"] * v["s"])),
        Step("m²", "m²", "arithmetic", lambda v, a: v["mean"] * v["mean"]),
        Step(
            "var",
            "mean of x² - m²",
            "arithmetic",
            lambda v, a: v["square"] - v["m²"],
            lambda v, a: (v["square"], v["m²"]),
        ),
        _CENTRED,
    ),
}
_RMS = {
    "mean of x²": (Step("var", "mean of x²", "accumulation", lambda v, a: a.mean(v["s"] * v["s"])),),
}
_ROOTS: dict[str, tuple[Step, ...]] = {
    "rsqrt": (
        Step("under", "var + eps", "arithmetic", lambda v, a: v["var"] + v["eps"]),
        Step("rstd", "rsqrt(var + eps)", "intrinsic", lambda v, a: a.rsqrt(v["under"])),
    ),
    "1 / sqrt": (
        Step("under", "var + eps", "arithmetic", lambda v, a: v["var"] + v["eps"]),
        Step("root", "sqrt(var + eps)", "intrinsic", lambda v, a: a.sqrt(v["under"])),
        Step("rstd", "1 / sqrt(var + eps)", "arithmetic", lambda v, a: 1 / v["root"]),
    ),
}


def _xhat(*, centre: bool, narrow: bool) -> Step:
    if centre:
        return Step("xhat", "xhat = (x - m) rstd", "arithmetic", lambda v, a: v["centred"] * v["rstd"], narrow=narrow)
    return Step("xhat", "xhat = x rstd", "arithmetic", lambda v, a: v["s"] * v["rstd"], narrow=narrow)


def _affine(names: Sequence[str], *, centre: bool) -> list[Step]:
    steps = [_xhat(centre=centre, narrow=True)]
    if "weight" in names:
        steps.append(Step("scaled", "xhat w", "arithmetic", lambda v, a: v["xhat"] * v["weight"], narrow=True))
    if "bias" in names:
        last = steps[-1].name
        steps.append(
            Step(
                "shifted",
                "xhat w + b",
                "arithmetic",
                lambda v, a: v[last] + v["bias"],
                lambda v, a: (v[last], v["bias"]),
                narrow=True,
            )
        )
    return steps


def _gradient(names: Sequence[str], *, centre: bool) -> list[Step]:
    """dx = rstd (g - xhat mean(g xhat) - mean(g)), g = w dy."""
    grown = (lambda v, a: v["weight"] * v["dy"]) if "weight" in names else (lambda v, a: v["dy"])
    steps = [
        _xhat(centre=centre, narrow=False),
        Step("grown", "g = w dy", "arithmetic", grown),
        Step("c1", "mean of g xhat", "accumulation", lambda v, a: a.mean(v["grown"] * v["xhat"])),
    ]
    if centre:
        steps.append(Step("c2", "mean of g", "accumulation", lambda v, a: a.mean(v["grown"])))
    product = Step("along", "xhat mean(g xhat)", "arithmetic", lambda v, a: v["xhat"] * v["c1"], narrow=True)
    steps.append(product)
    if centre:
        steps.append(Step("taken", "… + mean(g)", "arithmetic", lambda v, a: v["along"] + v["c2"], narrow=True))
    last = steps[-1].name
    return [
        *steps,
        Step(
            "left",
            "g - (…)",
            "arithmetic",
            lambda v, a: v["grown"] - v[last],
            lambda v, a: (v["grown"], v[last]),
            narrow=True,
        ),
        Step("gradient", "rstd (g - …)", "arithmetic", lambda v, a: v["left"] * v["rstd"], narrow=True),
    ]


def models(
    result: str, summands: Sequence[str], names: Sequence[str], dtype: torch.dtype, width: int, *, centre: bool
) -> list[Model]:
    """How a result ("y", or "dx" and the gradients of other summands) is commonly computed."""
    found = []
    working = [dtype] if dtype == torch.float64 else list(dict.fromkeys([torch.float32, dtype, torch.float64]))
    for work in working:
        taken = [name for name in names if name not in summands]
        arriving = ["dy"] if result != "y" else []
        head = [*_row(summands, work), *_casts([*taken, *arriving], work)]
        for moments_text, moments in (_MOMENTS if centre else _RMS).items():
            for means_text, mean in _MEANS.items():
                if mean is not None and (work not in (torch.float32, torch.float64) or width > _SEQUENTIAL):
                    continue
                for root_text, root in _ROOTS.items():
                    body = _affine(taken, centre=centre) if result == "y" else _gradient(taken, centre=centre)
                    formula = f"{moments_text}; {root_text}"
                    steps = [*head, *moments, *root, *body]
                    arithmetic = f"in {_short(work)}, {means_text}"
                    if work == dtype:
                        found.append(Model(formula, arithmetic, tuple(steps), mean))
                        continue
                    end = steps[-1].name
                    rounding = Step(
                        "result",
                        f"rounded to {_short(dtype)}",
                        "output",
                        _rounded(end, dtype),
                        narrow=True,
                    )
                    found.append(Model(formula, arithmetic + ", rounded once", (*steps, rounding), mean))
                    if result == "y" and "weight" in taken:
                        only = [*_row(summands, work), *moments, *root]
                        found.append(_affine_in(formula, arithmetic, only, _affine(taken, centre=centre), dtype, mean))
    return found


def _affine_in(
    formula: str,
    arithmetic: str,
    head: Sequence[Step],
    affine: Sequence[Step],
    dtype: torch.dtype,
    mean: Callable[[Tensor], Tensor] | None,
) -> Model:
    """xhat rounded to the dtype, weight and bias applied there."""
    short = _short(dtype)
    xhat, *rest = affine
    names = ["weight", "bias"][: len(rest)]
    steps = [
        *head,
        Step("wide", xhat.text, "arithmetic", xhat.compute, narrow=True),
        Step("xhat", f"xhat as {short}", "output", lambda v, a: a.cast(v["wide"], dtype), narrow=True),
        *(Step(name, f"{name} as {short}", "cast", _rounded(f"{name}_given", dtype), narrow=True) for name in names),
    ]
    return Model(formula, f"{arithmetic}; {' and '.join(names)} in {short}", (*steps, *rest), mean)
