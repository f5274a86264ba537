"""Offsets in 32 bits: the sizes from which on they wrap are those that were published, and 64 bits need none."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
import torch

import verify
from mutants import wraps
from tests.laws.trial import attempt
from verify import backends
from verify.declare.declaration import Kernel
from verify.laws import device, registry
from verify.laws.addresses import smallest_wraps
from verify.laws.engine import PROFILES, profile_named, run_law
from verify.laws.law import Subject, plain_case

AXIS = {"permuted": 1}  # where it is not the first dimension that grows
QUICK = ("fused_views", "padded_copy", "returning")  # a view, a loaded index, a branch; the others take minutes in all
FEW = 3


def base_of(name: str) -> tuple[int, ...]:
    dims, axis = wraps.WRAPS[name][0], AXIS.get(name, 0)
    return (*dims[:axis], FEW, *dims[axis + 1 :])


def subject_of(kernel: Kernel) -> Subject:
    return Subject(kernel, kernel.dtypes[0], backends.select(), PROFILES["ci"].sizes["small"])


def found_in(kernel: Kernel, dims: tuple[int, ...]) -> list[tuple[int, ...]]:
    subject = subject_of(kernel)
    return [each.dims for each in smallest_wraps(subject, plain_case(subject, dims))]


NAMES = [pytest.param(name, marks=() if name in QUICK else pytest.mark.slow) for name in wraps.WRAPS]


@pytest.mark.parametrize("name", NAMES)
def test_the_published_size_is_found_without_its_memory(name: str) -> None:
    assert wraps.WRAPS[name][0] in found_in(vars(wraps)[f"{name}_wrong"], base_of(name))


@pytest.mark.parametrize("name", NAMES)
def test_offsets_in_64_bits_are_right_at_all_sizes(name: str) -> None:
    assert found_in(vars(wraps)[name], base_of(name)) == []


def test_the_law_names_sizes_place_and_basis() -> None:
    kernel, target = vars(wraps)["fused_views_wrong"], "mutants/wraps.py::fused_views_wrong"
    law = registry.get("large offsets")
    found = run_law(law, kernel, "float16", backends.select(), profile_named("ci"), target)
    assert found.status == "broken" and found.message == "an offset or a mask is computed in 32 bits and needs more"
    assert found.facts["from"] == "tokens = 99,866" and "mutants/wraps.py:" in found.facts["at"]
    assert found.facts["offset"] == "2,147,496,960 elements in program [3120, 0, 0]"
    assert found.facts["basis"].startswith("by analysis: ")


def test_a_kernel_without_triton_and_a_quick_run_are_not_analysed() -> None:
    plain = verify.kernel(like=lambda x: x * 2, shapes={"x": "n"}, dtypes=["float32"], name="plain")(lambda x: x * 2)
    reasons = {"ci": "it launches no Triton kernel that is understood", "quick": "the quick profile analyses no kernel"}
    for profile, reason in reasons.items():
        found = attempt("large offsets", plain, profile=profile_named(profile))
        assert found.status == "skipped" and found.message == reason


@pytest.mark.parametrize("wrong", [False, True])
def test_where_there_is_room_the_sizes_are_tried(wrong: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def doubled(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        y[-1] += wrong
        return y

    monkeypatch.setattr(device, "_lacking", lambda *given: None)
    monkeypatch.setattr(device, "_alone_on", lambda where: nullcontext())
    kernel = verify.kernel(like=lambda x: x * 2, shapes={"x": "n"}, dtypes=["float32"], name="doubled")(doubled)
    subject = subject_of(kernel)
    said, raised = device._tried(subject, plain_case(subject, (5,)))
    expected = "tried: 1 of 5 elements of y are not PyTorch's" if wrong else "by analysis; tried, and the results are"
    assert said.startswith(expected) and not raised
