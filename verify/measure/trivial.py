"""Judges trivial answers, such as zeros, to find limits that say nothing.

If zeros keep a limit, then a kernel that keeps it proves nothing. So zeros, the mean, copies of operands, half the
truth, and the truth with a small error are judged on ordinary inputs as if a kernel had returned them. A result is
vacuous if one of them would pass, unless that answer is right. Zeros are right for the gradient of a constant.

Whether ten elements show an error of 1% depends on their values, so on the seed. Another result of the same output may
show it instead, by the same limit. All other answers are much further off. Each result has to show these itself, as a
kernel may compute sums over many rows in another way.
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
from verify.truth.formats import torch_dtype
from verify.truth.ulp import Yardstick, errors, ulp_exponent

SEEN = 4096  # at most this many elements of each case
# the small error, as a share of the truth; at least two spacings of the format
OFF = 0.01
_SPACINGS = 2
SLIGHTLY_OFF = "values 1% off"


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
    truth, fmt = by.truth, by.fmt
    unit = truth.unit(by.op.gate_of(by.result), by.floor)
    places = torch.nonzero(ordinary & torch.isfinite(truth.value.reshape(-1))).reshape(-1)
    if not places.numel():
        return {}
    if places.numel() > SEEN:
        chosen = counter.below(by.seed, f"trivial/{by.result}", SEEN, places.numel())
        places = places[chosen.to(places.device)]
    value = truth.value.reshape(-1)[places]
    found: dict[str, Tally] = {}
    for name, exact in _answers(by, places).items():
        answer = exact.to(torch_dtype(fmt))
        near = truth.at(places).for_result(answer)
        mine = unit.at(places) if isinstance(unit, Yardstick) else None if unit is None else unit.reshape(-1)[places]
        judged = errors(answer, near.value, fmt, low=near.low, bound=near.bound, scale=mine, policy=by.policy)
        found[name] = tally(judged)[0]
    return found if bool((value != 0).any()) else {"zeros": found["zeros"]}


def _answers(by: JudgedBy, places: Tensor) -> dict[str, Tensor]:
    """Returns the answers in float64, by their names in the verdict."""
    problem, values = by.problem, by.truth.value
    value = values.reshape(-1)[places]
    spacing = torch.ldexp(torch.full_like(value, _SPACINGS), ulp_exponent(value, by.fmt))
    off = torch.maximum(value.abs() * OFF, spacing)
    found = {
        "zeros": torch.zeros_like(value),
        "their mean": torch.full_like(value, float(value.mean())),
        "half of them": value * 0.5,
        SLIGHTLY_OFF: value + torch.copysign(off, value),
    }
    shape = tuple(values.shape)
    given = {**problem.inputs, **{f"d{name}": tensor for name, tensor in problem.upstream.items()}}
    for name, tensor in given.items():
        if tensor is not None and tuple(tensor.shape) == shape and name != by.result:
            found[f"a copy of {name}"] = tensor.detach().reshape(-1).to(value.device)[places].to(torch.float64)
    return found
