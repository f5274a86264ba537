"""Laws of kernels whose every case is large: they share a time, and judge some elements of each result."""

from __future__ import annotations

import time
from typing import Any

import pytest
import torch
from torch import Tensor

from verify import backends
from verify.cases import Case
from verify.declare.declaration import Kernel, kernel
from verify.errors import SPENT
from verify.laws import accuracy, engine, profiles, registry, suite
from verify.laws.law import Broken, Law, Subject, plain_case
from verify.measure.effort import Effort
from verify.measure.requests import Measure
from verify.records.record import Gap, KernelRun, LawRun
from verify.report.present import law_counts

TINY = Effort(work=2.0**18, whole=16, elements=64, drawn=2.0**18)


def softmax(x: Tensor) -> Tensor:
    return torch.softmax(x, -1)


def off_at_one(x: Tensor) -> Tensor:
    y = torch.softmax(x, -1)
    return y + torch.zeros_like(y).index_put((torch.tensor(17), torch.tensor(3)), torch.tensor(1e-3))


def declared(function: Any, *shape: int) -> Kernel:
    return kernel(like=softmax, examples=[(torch.empty(shape, device="meta"),)], dtypes=["float32"])(function)


def case_of(subject: Subject) -> Case:
    return plain_case(subject, (0,))


def test_a_case_is_large_by_the_numbers_of_its_program() -> None:
    assert engine.has_large_cases(declared(softmax, 1 << 12, 1 << 13))
    assert not engine.has_large_cases(declared(softmax, 1 << 6, 1 << 6))
    assert not engine.has_large_cases(kernel(op="silu", dtypes=["float32"])(torch.nn.functional.silu))


def test_a_law_whose_time_is_over_tries_its_first_case_and_says_that_others_are_left() -> None:
    function = declared(softmax, 3, 5)
    law = registry.get("upstream layout independence")

    def tried(until: float) -> LawRun:
        return engine.run_law(law, function, "float32", backends.select(), engine.PROFILES["quick"], until=until)

    late = tried(time.monotonic())
    assert (late.status, late.cases, late.late) == ("ok", 1, True)
    whole = tried(time.monotonic() + 600)
    assert whole.status == "ok" and whole.cases > 1 and not whole.late


def test_a_large_case_that_breaks_a_law_is_not_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "has_large_cases", lambda kernel: True)
    seen = list[int]()

    def check(subject: Subject, case: Case) -> None:
        seen.append(case.seed)
        if len(seen) > 3:
            raise Broken("it is wrong", case, {})

    of = registry.get("determinism").space
    law = Law(name="trial", summary="", space=of, check=check, examples=lambda subject, space: ())
    nightly = engine.PROFILES["nightly"]
    found = engine.run_law(law, declared(softmax, 3, 5), "float32", backends.select(), nightly)
    assert (found.status, found.cases, len(seen)) == ("broken", 4, 4)
    assert Case.from_json(found.case).seed == seen[3]


def test_a_break_stands_if_the_time_ends_while_it_is_made_smaller(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])

    def check(subject: Subject, case: Case) -> None:
        clock[0] += 1.0
        raise Broken("it is wrong", case, {})

    law = Law("trial", "", registry.get("determinism").space, check, examples=lambda subject, space: ())
    nightly = engine.PROFILES["nightly"]
    found = engine.run_law(law, declared(softmax, 3, 5), "float32", backends.select(), nightly, until=0.5)
    assert (found.status, found.facts, clock[0]) == ("broken", {}, 1.0)


def test_laws_of_large_cases_share_the_time_and_the_record_names_those_without_any(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock, given = [1000.0], dict[str, float]()

    def tried(law: Law, of: Kernel, dtype: str, backend: Any, profile: Any, target: str, until: float) -> LawRun:
        given[law.name] = until - clock[0]
        clock[0] += 10.0 if law.name in ("determinism", "special values", "autocast") else 0.0
        return LawRun(law.name, dtype, "ok", 3, late=law.name == "special values")

    monkeypatch.setattr(suite.engine, "try_law", tried)
    monkeypatch.setattr(suite.time, "monotonic", lambda: clock[0])
    done = KernelRun("softmax", "here.py::softmax", "like softmax", {}, "", "ok", [])
    large = declared(softmax, 1 << 12, 1 << 13)
    found = suite.with_laws(done, large, backends.select(), Measure("", laws="ci"))
    count = len(profiles.NAMES)
    assert given["determinism"] == pytest.approx(25 / (count + 3))
    assert given["accuracy"] == pytest.approx(15 * 4 / (count + 2))
    none = [law.law for law in found.laws if law.status == "skipped"]
    assert none == list(profiles.NAMES[profiles.NAMES.index("autocast") + 1 :])
    some = "laws share 25 s: 1 tried some of their cases, at least 3 each"
    assert found.notes == [f"{some}; not tried: {', '.join(none)}"]
    assert law_counts(found.laws) == f"{count - len(none)} kept, {len(none)} not tried"
    clock[0] = 1000.0
    small = suite.with_laws(done, declared(softmax, 3, 5), backends.select(), Measure("", laws="ci"))
    assert given["autocast"] == float("inf") and not any(law.status == "skipped" for law in small.laws)
    clock[0] = 1000.0
    night = suite.with_laws(done, declared(softmax, 3, 5), backends.select(), Measure("", laws="ci", enough=25.0))
    names = ", ".join(f"{name} in float32" for name in none)
    assert night.gaps == [Gap("out of time", f"softmax: laws not tried: {names}: {SPENT}", done.target)]


def test_accuracy_judges_some_elements_of_a_large_result_and_names_the_place_in_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    law, judged = registry.get("accuracy"), list[int]()
    monkeypatch.setattr(accuracy.Effort, "of", lambda backend: TINY)
    judge = accuracy.judge_known

    def counted(subject: Subject, case: Case, facts: accuracy.Known) -> float:
        judged.extend(value.numel() for value in facts.results.values())
        return judge(subject, case, facts)

    monkeypatch.setattr(accuracy, "judge_known", counted)
    right = Subject(declared(softmax, 24, 40), "float32", backends.select(), engine.PROFILES["ci"].sizes["small"])
    score = law.check(right, case_of(right))
    assert score is not None and 0 < score <= 5
    assert len(judged) >= 2 and all(0 < count < 24 * 40 for count in judged)  # y and dx
    wrong = Subject(declared(off_at_one, 24, 40), "float32", backends.select(), right.sizes)
    with pytest.raises(Broken, match="beyond the kernel's own limit") as broken:
        law.check(wrong, case_of(wrong))
    assert broken.value.facts["at"] == "y [17, 3]" and broken.value.index == 17 * 40 + 3


def test_a_law_that_runs_out_of_memory_is_not_tried_and_no_error_of_the_harness() -> None:
    def check(subject: Subject, case: Case) -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB")

    law = Law(name="determinism", summary="", space=registry.get("determinism").space, check=check)
    found = engine.try_law(law, declared(softmax, 3, 5), "float32", backends.select(), engine.PROFILES["quick"])
    assert (found.status, found.late, found.in_error) == ("skipped", True, False)
    assert found.message == "not tried: a case needs more memory than there is (CUDA out of memory)"


def test_laws_after_an_error_that_makes_the_gpu_unusable_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    class Gpu(type(backends.select())):  # type: ignore[misc]
        usable = lambda self: not broken  # noqa: E731

    broken = list[str]()

    def tried(law: Law, of: Kernel, dtype: str, *rest: Any) -> LawRun:
        if law.name == "special values":
            broken.append("CUDA error: misaligned address")
            return LawRun(law.name, dtype, "broken", 1, broken[0], cause="failed")
        return LawRun(law.name, dtype, "ok", 1)

    monkeypatch.setattr(suite.engine, "try_law", tried)
    done = KernelRun("softmax", "here.py::softmax", "like softmax", {}, "", "ok", [])
    here = backends.select()
    found = suite.with_laws(done, declared(softmax, 3, 5), Gpu(here.device, here.label), Measure("", laws="ci"))
    assert found.status == "wrong" and [law.law for law in found.laws] == list(profiles.NAMES)
    place = profiles.NAMES.index("special values")
    assert all(law.late and "no longer use the GPU" in law.message for law in found.laws[place + 1 :])
    assert [law.status for law in found.laws[: place + 1]] == [*["ok"] * place, "broken"]
