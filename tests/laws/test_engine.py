"""The engine: what is tried in which order, from which seed, what is remembered, and that nothing else matters."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import verify
from verify import backends
from verify.cases import Case
from verify.cases.strategies import Sizes, space
from verify.declare.declaration import Kernel
from verify.errors import IN_ERROR, KernelError, TruthError, UsageError
from verify.laws import engine, registry
from verify.laws.engine import PROFILES, Profile, profile_named, run_law
from verify.laws.law import Broken, Law, Subject, space_of
from verify.measure import session
from verify.records.record import Gap, KernelRun

SIZES = Sizes(elements=300, width=300, depth=64)
PROFILE = Profile("trial", 30, {"small": SIZES, "large": SIZES}, fixed=0)


@verify.kernel(op="silu", dtypes=["float32"])
def silu(x):
    return torch.nn.functional.silu(x)


def law_of(check: Any, **options: Any) -> Law:
    return Law(name="trial", summary="for these tests", space=space_of, check=check, **options)


def tried(profile: Profile, kernel: Kernel = silu) -> list[str]:
    seen: list[str] = []
    run_law(law_of(lambda subject, case: seen.append(case.to_json())), kernel, "float32", here(), profile)
    return seen


def here() -> backends.Backend:
    return backends.select()


def test_the_same_seed_draws_the_same_cases_and_another_one_others() -> None:
    assert tried(PROFILE) == tried(PROFILE)
    assert tried(PROFILE) != tried(replace(PROFILE, seed=1))
    assert len(tried(PROFILE)) == 30


def test_cases_do_not_depend_on_the_text_of_the_check_or_on_loaded_modules() -> None:
    before = tried(PROFILE)
    seen: list[str] = []

    def another_check(subject: Subject, case: Case) -> None:
        unused = 1234567, "a literal that Hypothesis would collect"
        assert unused
        seen.append(case.to_json())

    run_law(law_of(another_check), silu, "float32", here(), PROFILE)
    assert seen == before


def test_a_search_draws_few_cases_of_the_largest_size_and_all_small_ones() -> None:
    sizes = list[int]()

    def check(subject: Subject, case: Case) -> float:
        sizes.append(math.prod(case.dims))
        return float(sizes[-1])  # the search looks for the largest case

    largest = Sizes(elements=1 << 20)
    many = Profile("many", 400, {"small": largest, "large": largest}, fixed=0)
    run_law(law_of(check), silu, "float32", here(), many)
    large = [size for size in sizes if size > 1 << 12]
    assert sum(large) <= 16 << 20 and max(large) >= (1 << 20) - 1
    assert len(sizes) - len(large) > 100


def test_fixed_cases_come_first_and_a_profile_may_limit_them() -> None:
    fixed = [case.to_json() for case in space(silu, "float32", sizes=SIZES).each_choice()]
    assert len(fixed) > 5
    assert tried(replace(PROFILE, examples=0, fixed=None)) == fixed
    assert tried(replace(PROFILE, examples=0, fixed=3)) == fixed[:3]
    assert tried(replace(PROFILE, fixed=None))[: len(fixed)] == fixed


def test_what_the_corpus_pins_for_a_law_is_tried_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from verify.cases import corpus

    (tmp_path / "pyproject.toml").write_text('[tool.verify]\ncorpus = "pinned"\n')
    monkeypatch.chdir(tmp_path)
    here_too = Case(dtype="float32", dims=(77,), fill="bits", seed=5)
    elsewhere = Case(dtype="float32", dims=(78,), fill="bits", seed=5)
    for case, law in ((here_too, "trial"), (elsewhere, "accuracy")):
        corpus.add(corpus.entry("silu", "accuracy.py::silu", "silu", case, law=law))
    first, second = tried(replace(PROFILE, fixed=None))[:2]
    assert first == here_too.to_json()
    assert second != elsewhere.to_json()


def test_a_case_that_breaks_is_reported_in_its_smallest_form_and_counted_as_it_was_found() -> None:
    def check(subject: Subject, case: Case) -> None:
        if torch.Size(case.dims).numel() >= 4:
            raise Broken("four elements or more", case, {})

    for profile, counts in ((PROFILE, range(1, 31)), (replace(PROFILE, fixed=None), (1,))):
        found = run_law(law_of(check), silu, "float32", here(), profile)
        assert found.status == "broken" and found.cases in counts
        small = Case.from_json(found.case)
        assert torch.Size(small.dims).numel() == 4 and (small.fill, small.seed) == ("ones", 0)


# -- profiles ------------------------------------------------------------------------------------------


def test_nightly_takes_the_day_or_the_environment_as_seed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VERIFY_SEED", raising=False)
    assert 20_240_101 <= profile_named("nightly").seed <= 99_991_231
    assert profile_named("ci").seed == PROFILES["ci"].seed
    monkeypatch.setenv("VERIFY_SEED", "7")
    assert (profile_named("nightly").seed, profile_named("exhaustive").seed, profile_named("ci").seed) == (7, 7, 0)
    assert profile_named("nightly", seed=3).seed == 3
    monkeypatch.setenv("VERIFY_SEED", "tomorrow")
    with pytest.raises(UsageError, match="VERIFY_SEED is a whole number from 0; received 'tomorrow'"):
        profile_named("nightly")
    with pytest.raises(UsageError, match="no profile is named 'weekly'; the profiles are: quick, ci, nightly, exhaust"):
        profile_named("weekly")


def test_exhaustive_tries_every_16_bit_number_of_an_op_of_one_number() -> None:
    from verify.laws import registry

    sizes = PROFILES["exhaustive"].sizes[here().scale]
    half = verify.kernel(op="silu", dtypes=["bfloat16", "float32"])(lambda x: x)
    pair = verify.kernel(op="swiglu_split", dtypes=["bfloat16"])(lambda x1, x2: x1)

    def enumerated(kernel: Kernel, dtype: str, sizes: Sizes = sizes) -> list[tuple[Any, str]]:
        found = registry.get("accuracy").fixed(Subject(kernel, dtype, here(), sizes))
        return [(case.dims, case.upstream) for case in found if case.fill == "patterns"]

    assert enumerated(half, "bfloat16") == [((65_536,), "ones")]
    assert enumerated(half, "float32") == enumerated(pair, "bfloat16") == enumerated(half, "bfloat16", SIZES) == []


def randomly(x: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.silu(x) * (1 + torch.rand_like(x))


def raising(x: torch.Tensor) -> torch.Tensor:
    raise ValueError("not today")


def unwritten(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


@pytest.mark.parametrize(
    ("function", "law", "cause", "message"),
    [
        (randomly, "determinism", "not deterministic", "the same call gives other bits"),
        (raising, "memory bounds", "failed", "k raised ValueError: not today"),
        (unwritten, "initialised memory", "", "an element of a result is never written"),
        (torch.sigmoid, "accuracy", "", "beyond the kernel's own limit"),
    ],
)
def test_a_broken_law_says_whose_fault_it_is(function: Any, law: str, cause: str, message: str) -> None:
    kernel = verify.kernel(op="silu", dtypes=["float32"], gradients=False, name="k", refuses=False)(
        lambda x: function(x)
    )
    found = run_law(registry.get(law), kernel, "float32", here(), PROFILE, "a.py::k")
    assert (found.status, found.cause) == ("broken", cause) and found.message.startswith(message)
    said = engine.message("k", found)
    if cause:
        assert f"k breaks the law of {law}" not in said


def law_raising(error: Exception) -> Law:
    def check(subject: Subject, case: Case) -> None:
        raise error

    return law_of(check)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (TruthError("routes"), f"{IN_ERROR}: routes"),
        (RuntimeError("stride"), f"{IN_ERROR}: verify itself failed: RuntimeError: stride"),
    ],
)
def test_a_law_without_a_verdict_is_neither_kept_nor_broken(error: Exception, said: str) -> None:
    found = engine.try_law(law_raising(error), silu, "float32", here(), PROFILE)
    assert (found.status, found.message) == ("skipped", said)
    with pytest.raises(type(error)):
        run_law(law_raising(error), silu, "float32", here(), PROFILE)
    one = KernelRun("k", "k.py::k", "silu", {}, "", "ok", [], laws=[found], notes=["plain"])
    assert session.gaps_of(one) == [Gap("harness error", f"k: the law of trial in float32: {said}", "k.py::k")]
    assert engine.try_law(law_raising(KernelError("no")), silu, "float32", here(), PROFILE).status == "broken"
