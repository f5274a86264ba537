"""A file with `Model`, `get_inputs` and `get_init_inputs`; the solution defines `ModelNew`, as in KernelBench.

Or a folder with `reference.py`, which has the same, and `shapes.py`; the solution defines `Model` too. Each entry of
`SHAPES` sets constants of the reference: `{"rows": 4}` sets `ROWS`. The solution has the same parameters.

The model's parameters are operands: each call has other values, which the solution's module gets under the same names.
A module with other names is judged with weights that both make after the same seed.
"""

import hashlib
import inspect
import itertools
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import ModuleType
from typing import Any

from verify.referee.formats import imported
from verify.referee.plan import SEEDED, Plan

SEEDS = 2  # of weights, if they are no operands
SAMPLES = 2  # more calls of get_inputs, which show the structure of its tensors


def problems(plan: Plan) -> list[Any]:
    """Returns the problems of a file, or of a folder for each of its shapes: with weights as operands, and by seed."""
    path, found = Path(plan.problem), list[Any]()
    if path.is_file():
        return list(_of_model(imported(path), plan, ("ModelNew", "Model"), 1))
    module, shapes = imported(path / "reference.py"), path / "shapes.py"
    for number, shape in enumerate(imported(shapes).SHAPES if shapes.is_file() else [{}], 1):
        for name, value in shape.items():
            setattr(module, name.upper(), value)
        found += _of_model(module, plan, ("Model", "ModelNew"), number)
    return found


def _of_model(module: ModuleType, plan: Plan, names: Sequence[str], number: int) -> Iterator[Any]:
    """Yields the problems of a module with a model, as its functions are now."""

    from verify.referee.messages import Entry, template_of
    from verify.referee.problem import CLOSE, SAMPLED, Problem, is_close
    from verify.referee.weights import constructed

    init, made = template_of(tuple(module.get_init_inputs()), (f"init{place}" for place in itertools.count(1)))

    def at_seed(name: str, place: int, *, weights: bool) -> Problem:
        # a solution knows the seed of its weights, and nothing by which inputs are drawn
        seed = int.from_bytes(hashlib.sha256(f"{plan.seed}/{place}".encode()).digest()[:4])
        model = constructed(module.Model, module.get_init_inputs(), seed)
        values = _inputs(module, plan, place)
        state = {each.replace(".", "_"): each for each, _ in model.named_parameters()} if weights else {}
        labels = _labels(model, values, {each.replace(".", "_") for each, _ in model.named_parameters()})
        arguments, tensors = template_of(values, iter(labels))
        small = sum(each.numel() for each in tensors.values()) <= SAMPLED
        samples = [template_of(tuple(module.get_inputs()), iter(labels))[1] for _ in range(SAMPLES if small else 0)]
        held = {flat: model.get_parameter(dotted).detach() for flat, dotted in state.items()}
        entry = Entry(tuple(names), arguments, init=init, seed=seed)
        operands, every = (*tensors, *state), {**tensors, **held}
        of_seed = not weights and any(True for _ in model.parameters())
        return Problem(name, model, operands, entry, (values,), every, state, made, is_close, CLOSE, of_seed, samples)

    own = at_seed(f"own_{number}", 0, weights=True)
    yield own
    if own.state:
        for place in range(SEEDS):
            yield at_seed(f"{SEEDED}_{number}_{place}", place, weights=False)


def _inputs(module: ModuleType, plan: Plan, place: int) -> tuple[Any, ...]:
    """Returns the arguments of a call. Large ones are made on the GPU: 10^9 random numbers take a CPU many seconds."""
    import torch

    from verify.referee.problem import SAMPLED

    torch.manual_seed(plan.seed + place)
    if plan.device != "cpu":
        with suppress(Exception), torch.device(plan.device):  # it may read its tensors as arrays
            values = tuple(module.get_inputs())
            if sum(each.numel() for each in values if isinstance(each, torch.Tensor)) > SAMPLED:
                return values
        torch.manual_seed(plan.seed + place)
    return tuple(module.get_inputs())


def _labels(model: Any, values: Sequence[Any], taken: set[str]) -> list[str]:
    """Returns names for the tensors among the arguments: `forward`'s names, unless parameters have them."""
    import torch

    parameters = inspect.signature(model.forward).parameters.values()
    known = [each.name for each in parameters if each.kind is not each.VAR_POSITIONAL][: len(values)]
    own = [name for name, value in zip(known, values, strict=False) if isinstance(value, torch.Tensor)]
    count = sum(isinstance(value, torch.Tensor) for value in values)
    return own if len(own) == count and not set(own) & taken else [f"input{place}" for place in range(1, count + 1)]
