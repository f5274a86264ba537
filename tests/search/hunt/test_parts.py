"""The parts of the search against plain references: ordinals, edits, the pool, and the layout of a call."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from verify.backends import Backend
from verify.cases import Case, inputs_of
from verify.declare.discovery import load
from verify.declare.target import Target
from verify.search.hunt.draws import Draws
from verify.search.hunt.edits import EDITS, Lines, fresh
from verify.search.hunt.space import Variable, one_of, space_of
from verify.truth.formats import FORMATS, named
from verify.truth.ordinals import of_tensor, to_tensor
from verify.truth.ulp import from_bits, widen

KERNELS = {kernel.name: kernel for kernel in load(Target(str(Path(__file__).parent / "quarry.py")))}


@pytest.mark.parametrize("name", FORMATS)
@pytest.mark.parametrize("size", [1, 2, 5, 16])
def test_edits_change_numbers_and_never_leave_the_format(name: str, size: int) -> None:
    fmt = named(name)
    draws = Draws(3, "test", "cpu")
    count = 200
    span = 2 * fmt.max_bits + 1
    words = [draws.words(count * size).reshape(count, size) for _ in range(3)]
    own, mate, partner = ((item >> 1) % span - fmt.max_bits if fmt.bits < 64 else item >> 2 for item in words)
    landmarks = torch.tensor([0, 1, fmt.max_bits, fmt.from_float(1.0)])
    variable = Variable("x", fmt, (size,), "data", fmt.max_bits, row=size > 1)
    for change in EDITS:
        before = own.clone()
        inside = variable.within(change(Lines(own, mate, partner, variable, landmarks, draws)))
        assert inside.shape == own.shape and torch.equal(own, before), "edits leave their input alone"
        assert bool(torch.isfinite(widen(to_tensor(inside, fmt))).all())
        if size > 2:
            assert int((inside != own).any(1).sum()) > count // 3, change


@pytest.mark.parametrize(
    ("name", "width"), [("right", 0), ("one_pair", 0), ("one_pass", 6), ("naive_linear", 5), ("eager_softmax", 9)]
)
def test_a_candidate_alone_has_the_result_that_it_has_in_the_call(backend: Backend, name: str, width: int) -> None:
    """The tensors of a call, the order of its results and the case of one candidate fit together."""
    kernel = KERNELS[name]
    space = space_of(kernel, "float32", "y", backend.device, width=width, largest=3.0)
    draws = Draws(2, "layout", "cpu")
    count = 24
    population = fresh(space, count, draws)
    shared = {variable.name: fresh_vector(variable.size, draws) for variable in space.shared}
    inputs, _ = space.tensors(population, shared)
    whole = space.per_candidate(reference(name, inputs).reshape(-1), count)
    for place in range(0, count, 7):
        case = space.case(one_of(population, place), shared, 1)
        alone = inputs_of(kernel.op, Case.from_json(case.to_json()), "cpu")
        assert torch.equal(reference(name, alone).reshape(-1), whole[place])


def fresh_vector(size: int, draws: Draws) -> torch.Tensor:
    fmt = named("float32")
    return of_tensor(from_bits(draws.below(size, 1 << 23) + fmt.from_float(0.5), fmt), fmt)[None, :]


def reference(name: str, inputs: dict[str, torch.Tensor | None]) -> torch.Tensor:
    """Something that depends on every element of the right operands, computed so that a sum has one order."""
    x = [value for value in inputs.values() if value is not None]
    if name == "naive_linear":
        return (x[0][:, None, :] * x[1][None, :, :]).double().cumsum(-1)[..., -1] + x[2][None, :].double()
    if name == "one_pass":
        return (x[0].double().cumsum(-1) + x[1].double()) * x[2].double()
    return sum((value.double() * (place + 1) for place, value in enumerate(x)), torch.zeros(()))
