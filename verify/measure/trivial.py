"""Judges trivial answers, such as zeros, to find limits that say nothing.

If zeros keep a limit, then a kernel that keeps it proves nothing. So zeros, half the truth, the mean, copies of
operands, and the truth with errors of several sizes are judged on ordinary inputs as if a kernel had returned them. A
result is vacuous if zeros or halves would pass, unless they are right. Zeros are right for the gradient of a constant.
The other answers tell what the limit cannot see: a softcap of small numbers differs little from a copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from verify.cases import counter
from verify.cases.classes import class_of
from verify.measure.counting import tally
from verify.measure.judge import JudgedBy
from verify.measure.tally import Tally
from verify.ops.op import Regime
from verify.records.readings import APART
from verify.records.record import ORDINARY
from verify.truth.formats import Format, torch_dtype
from verify.truth.ulp import ulp_exponent

SEEN = 4096  # at most this many elements of each case
EMPTY = ("zeros", "half of them")  # a limit that they keep says nothing
SHARES = (0.01, 0.03, 0.1, 0.3)  # errors, as shares of the truth; the first is at least two spacings of the format
_SPACINGS = 2


def rungs(fmt: Format) -> dict[str, float]:
    """Maps the name of each answer with an error of some size to its share of the truth, the smallest first.

    Two spacings of bfloat16 are up to 1.6%, of float8 up to 25% or 50%.
    """
    least = _SPACINGS * 2.0**-fmt.mantissa_bits
    wider = [share for share in SHARES if share > least]
    first = {} if wider == list(SHARES) else {"values two spacings off": 0.0}
    return first | {f"values {share:.0%} off": share for share in wider}


def trivial_at_ordinary(by: JudgedBy, segments: Tensor | None, parts: Sequence[tuple[Regime, str]]) -> dict[str, Tally]:
    """Judges trivial answers at ordinary elements. `segments` numbers the regime and class of each element."""
    value = by.truth.value
    ordinary = torch.tensor([class_of(*part) == ORDINARY and part[0].name not in APART for part in parts])
    if segments is None:
        mine = torch.full((value.numel(),), bool(ordinary[0]), device=value.device)
    else:
        member = segments.reshape(-1)
        mine = ordinary.to(member.device)[member.clamp(min=0)] & (member >= 0)
    return trivial_answers(by, mine)


def trivial_answers(by: JudgedBy, ordinary: Tensor) -> dict[str, Tally]:
    """Judges trivial answers at some of the ordinary elements (a flat mask) of one case."""
    truth = by.truth
    places = torch.nonzero(ordinary & torch.isfinite(truth.value.reshape(-1))).reshape(-1)
    if not places.numel():
        return {}
    if places.numel() > SEEN:
        chosen = counter.below(by.seed, f"trivial/{by.result}", SEEN, places.numel())
        places = places[chosen.to(places.device)]
    value = truth.value.reshape(-1)[places]
    found: dict[str, Tally] = {}
    for name, exact in _answers(by, places).items():
        found[name] = tally(by.compared(exact.to(torch_dtype(by.fmt)), places)[1])[0]
    return found if bool((value != 0).any()) else {"zeros": found["zeros"]}


def _answers(by: JudgedBy, places: Tensor) -> dict[str, Tensor]:
    """Returns the answers in float64, by their names in the verdict."""
    problem, values = by.problem, by.truth.value
    value = values.reshape(-1)[places]
    spacing = torch.ldexp(torch.full_like(value, _SPACINGS), ulp_exponent(value, by.fmt))
    found = {
        "zeros": torch.zeros_like(value),
        "half of them": value * 0.5,
        "their mean": torch.full_like(value, float(value.mean())),
    }
    for name, share in rungs(by.fmt).items():
        found[name] = value + torch.copysign(torch.maximum(value.abs() * share, spacing), value)
    shape = tuple(values.shape)
    given = {**problem.inputs, **{f"d{name}": tensor for name, tensor in problem.upstream.items()}}
    for name, tensor in given.items():
        if tensor is not None and tuple(tensor.shape) == shape and name != by.result:
            found[f"a copy of {name}"] = tensor.detach().reshape(-1).to(value.device)[places].to(torch.float64)
    return found
