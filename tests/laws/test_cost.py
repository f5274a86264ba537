"""What a case of a law costs besides the kernel: torch operations on the device, and waits for its answer.

Times belong to `benchmarks.overhead`, these counts are the same on every machine. On a GPU an operation is a
launch (5 to 10 us of the host's time), a question is a wait for the device.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any
from unittest import mock

import pytest
from torch import Tensor
from torch.utils._python_dispatch import _disable_current_modes
from torch.utils._pytree import tree_leaves

from benchmarks.overhead import Clock, counted, small, spread, subjects, watched
from verify import backends
from verify.cases import values
from verify.laws import accuracy, compare, contract, guard, identities, memory, registry, special
from verify.laws.engine import PROFILES, attempt
from verify.laws.law import Subject
from verify.measure import call as measure
from verify.truth.ulp import same_bits

# At most so many operations, and questions, of a plain case (with a stride where the law is about strides).
LIMITS = {
    "accuracy": (11, 2),
    "mixed dtypes": (6, 1),
    "special values": (7, 1),
    "layout independence": (12, 2),
    "upstream layout independence": (15, 2),
    "memory bounds": (18, 3),
    "initialised memory": (24, 1),
    "nothing overwritten": (13, 2),
    "no stale results": (20, 1),
    "batch invariance": (16, 3),
    "shapes": (6, 2),
    "determinism": (21, 3),
    "linear backward": (10, 1),
    "error contract": (26, 5),
    "autocast": (16, 3),
}


class Host:
    """Which tensors lie in the memory of the host, although the device is a CPU as well."""

    def __init__(self) -> None:
        self.held: list[Any] = []
        self.places: set[int] = set()
        self.operations, self.questions = 0, 0

    def keep(self, value: Any) -> Any:
        """What a function made in the memory of the host."""
        for tensor in tree_leaves(value):
            if isinstance(tensor, Tensor):
                self.held.append(tensor)
                self.places.add(tensor.untyped_storage().data_ptr())
        return value

    def has(self, tensor: Tensor) -> bool:
        return not tensor.numel() or tensor.untyped_storage().data_ptr() in self.places

    def fetched(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """One operation that joins what is on the device, one that copies it, and a wait."""
        if not all(map(self.has, tensors)):
            self.operations, self.questions = self.operations + 2, self.questions + 1
        with _disable_current_modes():
            return [value if self.has(value) else self.keep(value.clone()) for value in tensors]

    def same_bits(self, left: Sequence[Tensor], right: Sequence[Tensor]) -> bool:
        both = self.fetched([*left, *right])
        with _disable_current_modes():
            return same_bits(both[: len(left)], both[len(left) :])

    def full_of(self, function: Any) -> Any:
        def run(*args: Any) -> Any:
            self.operations, self.questions = self.operations + 3, self.questions + 1
            with _disable_current_modes():
                return function(*args)

        return run

    def here(self, function: Any) -> Any:
        """A function that works in the memory of the host."""

        def run(*args: Any, **kwargs: Any) -> Any:
            with _disable_current_modes():
                return self.keep(function(*args, **kwargs))

        return run

    def shared(self, function: Any) -> Any:
        """The inputs of a case, which are made in the memory of the host, and stay there if they are shared."""
        there = self.here(function)
        return lambda *args, **kwargs: (there if kwargs.get("shared") else function)(*args, **kwargs)


@contextmanager
def as_on_a_gpu(host: Host) -> Iterator[None]:
    """Do not count what is done in the memory of the host wherever a small case runs; count each way there."""
    here = [
        (values, "_small"),
        *((special, name) for name in ("inputs_of", "upstream_of", "plant", "_laid", "judge_known")),
        *((accuracy, name) for name in ("judge_known", "evaluate")),
        *((contract, name) for name in ("_integers", "_longer", "_shorter")),
        (identities, "_demand"),
        (guard, "_image"),
    ]
    shared = [
        (module, name) for module in (measure, memory, contract, identities) for name in ("inputs_of", "upstream_of")
    ]
    with ExitStack() as stack:
        for module, name in here:
            stack.enter_context(mock.patch.object(module, name, host.here(getattr(module, name))))
        for module, name in shared:
            if hasattr(module, name):
                stack.enter_context(mock.patch.object(module, name, host.shared(getattr(module, name))))
        for module in (measure, compare, guard, memory):
            stack.enter_context(mock.patch.object(module, "same_bits", host.same_bits))
        for module in (measure, special, accuracy):
            stack.enter_context(mock.patch.object(module, "fetched", host.fetched))
        stack.enter_context(mock.patch.object(guard, "_full_of", host.full_of(guard._full_of)))
        stack.enter_context(mock.patch.dict(guard._SLAB, {"cpu": guard._SLAB["cuda"]}))
        yield


@pytest.mark.parametrize("law", LIMITS)
def test_a_case_takes_few_operations_and_few_questions(law: str) -> None:
    backend = backends.select("interpreter")  # no GPU needed: what would be done on one is counted
    clock = Clock(lambda: None, lambda: 0.0)
    found = []
    for kernel in subjects(clock):
        subject = Subject(kernel, "bfloat16", backend, PROFILES["ci"].sizes[backend.scale])
        chosen = registry.get(law)
        if chosen.reason(subject) is None:
            case = [each for each in chosen.fixed(subject) if small(each) and len(each.layouts) < 2][-1]
            host = Host()
            values.forget()
            with watched(clock), as_on_a_gpu(host):
                operations, waits = counted(partial(attempt, chosen, subject, case), clock, backend.device)
            values.forget()
            found.append((operations + host.operations, waits + host.questions))
    most = max(operations for operations, _ in found), max(questions for _, questions in found)
    assert most[0] <= LIMITS[law][0] and most[1] <= LIMITS[law][1], most


def test_where_time_is_short_the_first_cases_come_from_everywhere() -> None:
    for count in range(41):
        assert sorted(spread(list(range(count)))) == list(range(count))
    first = spread(list(range(40)))[:4]
    assert max(first) - min(first) >= 20
