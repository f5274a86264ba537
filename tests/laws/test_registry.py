"""The registry: every law is there once, is found by name, and says what it is about."""

from __future__ import annotations

import importlib
import pkgutil
import re
import runpy
from pathlib import Path
from typing import Any

import pytest

import verify.laws
from verify import backends
from verify.declare.declaration import Kernel, kernel
from verify.errors import UsageError
from verify.laws import profiles, registry, suite
from verify.laws.law import Law
from verify.measure.requests import Measure
from verify.records.record import KernelRun, LawRun


def test_every_law_of_every_module_is_registered_once() -> None:
    found = []
    for module in pkgutil.iter_modules(verify.laws.__path__):
        found += getattr(importlib.import_module(f"verify.laws.{module.name}"), "LAWS", ())
    assert sorted(law.name for law in found) == sorted(law.name for law in registry.ALL)
    assert len({law.name for law in registry.ALL}) == len(registry.ALL)
    for law in registry.ALL:
        assert law.summary and not law.summary.endswith(".") and 0 < law.share <= 1
        assert registry.get(law.name) is law is registry.get(law.name.replace(" ", "-").upper())
    assert tuple(law.name for law in registry.ALL) == profiles.NAMES


def test_an_unknown_law_is_refused_with_the_known_ones() -> None:
    with pytest.raises(UsageError, match=r"no law is named 'speed'; the laws are: determinism, accuracy, "):
        registry.get("speed")
    with pytest.raises(UsageError, match=r"no law is named 'eror contract' \(closest: error contract\)"):
        registry.get("eror contract")


def test_single_laws_are_left_out_of_a_suite_whose_ids_have_no_spaces() -> None:
    silu = kernel(op="silu", dtypes=["float32"])(lambda x: x)
    [everything] = verify.laws_for(silu).pytestmark
    [narrowed] = verify.laws_for(silu, without=["error contract", "batch-invariance"]).pytestmark
    names = [law.name for law, _ in narrowed.args[1]]
    assert names == [law.name for law in registry.ALL if law.name not in ("error contract", "batch invariance")]
    assert "error-contract-float32" in everything.kwargs["ids"]
    assert not any(" " in name for name in everything.kwargs["ids"])
    [one] = verify.laws_for(silu, laws=["accuracy", "same bits"], without=["accuracy"]).pytestmark
    assert one.kwargs["ids"] == ["same-bits-float32"]
    with pytest.raises(UsageError, match="no law is named"):
        verify.laws_for(silu, without=["speed"])


def test_a_run_that_fails_fast_tries_no_law_after_a_finding(monkeypatch: pytest.MonkeyPatch) -> None:
    def tried(law: Law, kernel: Kernel, dtype: str, *rest: object, **more: object) -> LawRun:
        return LawRun(law.name, dtype, "broken" if law.name == "mixed dtypes" else "ok", 1)

    monkeypatch.setattr(suite.engine, "try_law", tried)
    silu = kernel(op="silu", dtypes=["float32"])(lambda x: x)
    done = KernelRun("silu", "here.py::silu", "silu", {}, "", "ok", [])
    for fast, count in ((False, len(profiles.NAMES)), (True, 3)):
        found = suite.with_laws(done, silu, backends.select(), Measure("", laws="ci", fail_fast=fast))
        assert (found.status, len(found.laws)) == ("wrong", count)


def test_what_a_kernel_breaks_beside_determinism_is_put_down_to_that(monkeypatch: pytest.MonkeyPatch) -> None:
    broken = {"determinism": "not deterministic", "accuracy": "", "autocast": "failed", "memory bounds": ""}

    def tried(law: Law, kernel: Kernel, dtype: str, *rest: object, **more: object) -> LawRun:
        cause: Any = broken.get(law.name, "")
        return LawRun(law.name, dtype, "broken" if law.name in broken else "ok", 1, cause=cause)

    monkeypatch.setattr(suite.engine, "try_law", tried)
    silu = kernel(op="silu", dtypes=["float32"])(lambda x: x)
    done = KernelRun("silu", "here.py::silu", "silu", {}, "", "ok", [])
    found = suite.with_laws(done, silu, backends.select(), Measure("", laws="ci")).laws
    causes = {law.law: law.cause for law in found if law.status == "broken"}
    assert causes == broken | {"accuracy": "not deterministic"}


def test_a_run_says_which_laws_it_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    def kept(law: Law, kernel: Kernel, dtype: str, *rest: object, **more: object) -> LawRun:
        return LawRun(law.name, dtype, "ok", 1)

    monkeypatch.setattr(suite.engine, "try_law", kept)
    silu = kernel(op="silu", dtypes=["float32"])(lambda x: x)
    done = KernelRun("silu", "here.py::silu", "silu", {}, "", "ok", [])
    found = suite.with_laws(done, silu, backends.select(), Measure("", laws="ci", without=("compiled",))).laws
    assert sorted(law.law for law in found) == sorted(profiles.NAMES)
    assert [(law.law, law.message) for law in found if law.status == "skipped"] == [
        ("compiled", "left out by --without")
    ]


def test_a_kernel_that_raises_is_red_in_pytest_unless_it_declares_that() -> None:
    def raises(x: object) -> object:
        raise ValueError("no")

    def outcome(**options: bool) -> str:
        declared = kernel(op="silu", dtypes=["float16"], gradients=False, name="raises", **options)(raises)
        test = verify.laws_for(declared, laws=["determinism"])
        with pytest.raises((pytest.fail.Exception, pytest.skip.Exception)) as caught:
            test(registry.get("determinism"), "float16")
        return f"{type(caught.value).__name__}: {caught.value}"

    assert re.match(r"Failed: raises: it refuses (\d+) of \1 cases, which where= or refuses=True would d", outcome())
    assert outcome(refuses=True).startswith("Skipped: it refuses every case: raises raised ValueError: no")
    assert outcome(refuses=False).startswith("Failed: ")


GENERATE = runpy.run_path(str(Path(__file__).parents[2] / "docs" / "generate_laws.py"))
BEGIN, END, PAGE, updated = (GENERATE[name] for name in ("BEGIN", "END", "PAGE", "updated"))


def test_the_page_is_what_the_registry_would_write() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert updated(text) == text, "run: python docs/generate_laws.py"
