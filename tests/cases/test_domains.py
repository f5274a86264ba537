"""Domains of operands: every way to make inputs stays inside, and what is outside is never judged."""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import msgspec
import pytest
import torch
from torch import Tensor

import verify
from tests.laws import trial
from tests.measure.test_kernel import few_cases
from verify.backends import Backend
from verify.cases import Case, case_of, inputs_of
from verify.cases.case import fingerprint
from verify.cases.values import ELEMENT, ROW
from verify.errors import UsageError
from verify.laws.engine import Profile
from verify.measure.kernel import measure_kernel
from verify.measure.requests import Measure
from verify.ops.domain import Domain
from verify.records.readings import BEYOND
from verify.records.record import KernelRun
from verify.search.hunt.draws import Draws
from verify.search.hunt.edits import fresh
from verify.search.hunt.space import space_of
from verify.search.sweep.checking import check
from verify.search.sweep.finishing import finish
from verify.search.sweep.serve import space_of as sweep_of
from verify.truth.formats import Format, named, torch_dtype
from verify.truth.ordinals import between, folded, moved_inside, of_tensor
from verify.truth.ulp import bits_of, from_bits, widen

DOMAINS = [
    "0 <= x",
    "x <= 0",
    "0 < x < 1",
    "-8 <= x <= 0.5",
    "-1 <= x <= 1",
    "0.1 <= x <= 0.30",
    "x < -2",
    "2 <= x <= 2",
]


@functools.cache
def kernels() -> Any:
    """Declares them where they are used: tracing them takes as long as ten tests, and every process collects this."""
    from tests.cases import domain_kernels

    return domain_kernels


def open_again(kernel: verify.Kernel) -> verify.Kernel:
    """The same kernel without any domain."""
    operands = tuple(dataclasses.replace(each, domain=None) for each in kernel.op.operands)
    return dataclasses.replace(kernel, op=dataclasses.replace(kernel.op, operands=operands))


# -- what a domain says -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "low", "high"),
    [
        ("0 <= x", 0.0, None),
        ("x<=1", None, 1.0),
        (" -8 <=  x < 0 ", -8.0, math.nextafter(0.0, -1.0)),
        ("1e-3 < x <= 2.5E2", math.nextafter(1e-3, 1.0), 250.0),
    ],
)
def test_bounds_are_read(text: str, low: float | None, high: float | None) -> None:
    domain = Domain.of("kernel 'k'", "x", text)
    assert domain.low == (-1.7976931348623157e308 if low is None else low)
    assert domain.high == (1.7976931348623157e308 if high is None else high)
    strange = torch.tensor([math.nan, math.inf, -math.inf], dtype=torch.float64)
    assert not domain.holds(strange).any()


@pytest.mark.parametrize(
    "text",
    ["x", "", "0 <= y", "0 >= x", "x >= 0", "0 <= x <= n", "0 <= x <= inf", "1e999 <= x", "0 <= x <= 2**3", "0 <= x*1"]
    + ["0 <= __import__('os')", "nan <= x", "٠ <= x", 3, None],
)
def test_other_texts_are_refused(text: Any) -> None:
    with pytest.raises(UsageError, match="a domain has the form low <= x <= high"):
        Domain.of("kernel 'k'", "x", text)


def test_a_domain_without_a_number_is_refused() -> None:
    with pytest.raises(UsageError, match="no number fulfils the domain '1 < x <= 1'"):
        Domain.of("kernel 'k'", "x", "1 < x <= 1")
    declare = verify.kernel(like=torch.sqrt, dtypes=["float16"], domain={"x": "1e5 <= x"})
    with pytest.raises(UsageError, match="float16 has no number with 1e5 <= x"):
        declare(lambda x: x.sqrt())
    declare = verify.kernel(like=torch.sqrt, domain={"x": "10 <= x"}, largest=2.0)
    with pytest.raises(UsageError, match="float32 has no number with 10 <= x and a magnitude up to 2"):
        declare(lambda x: x.sqrt())
    with pytest.raises(UsageError, match="domain is about its floating-point operands, x; received 'y'"):
        verify.kernel(op="gelu", domain={"y": "0 <= y"})(lambda x: x)


# -- how numbers are moved inside -------------------------------------------------------------------------


def reflected_slowly(at: int, low: int, high: int) -> int:
    """An ordinal reflected one end at a time, in Python's integers."""
    sign = 1 if low >= 0 else -1 if high <= 0 else -1 if at < 0 else 1
    least, most = (max(low, 0), max(high, 0)) if sign > 0 else (max(-high, 0), max(-low, 0))
    size = abs(at)
    while not least <= size <= most:
        size = 2 * most - size if size > most else 2 * least - size
        size = least if least == most else size
    return sign * size


@pytest.mark.parametrize("text", DOMAINS)
@pytest.mark.parametrize("dtype", ["float8_e4m3fn", "float8_e5m2", "float16", "bfloat16"])
def test_every_pattern_is_moved_inside_and_those_inside_stay(text: str, dtype: str) -> None:
    fmt, domain = named(dtype), Domain.of("", "x", text)
    values = from_bits(torch.arange(1 << fmt.bits), fmt)
    span = between(fmt, domain.low, domain.high)
    assert span is not None
    made = moved_inside(values, fmt, *span)
    held = domain.holds(widen(values))
    assert held.any() and domain.holds(widen(made)).all()
    assert torch.equal(bits_of(made[held]), bits_of(values[held]))
    ordinals = of_tensor(values, fmt)
    finite = torch.isfinite(widen(values))
    expected = [reflected_slowly(at, *span) for at in ordinals[::37].tolist()]
    assert folded(ordinals, *span)[::37].tolist() == expected
    # the whole of the domain is reached, and nothing but it
    reached = {each for each in widen(made[finite]).tolist() if each}
    assert reached == {each for each in widen(values[held]).tolist() if each}


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("text", DOMAINS)
def test_wide_formats_are_moved_without_overflow(text: str, dtype: str) -> None:
    fmt, domain = named(dtype), Domain.of("", "x", text)
    span = between(fmt, domain.low, domain.high)
    assert span is not None
    ends = (0, 1, -1, fmt.max_bits, -fmt.max_bits, *span, span[0] - 1, span[1] + 1, fmt.from_float(3.7))
    ordinals = torch.tensor([at for at in ends if abs(at) <= fmt.max_bits])
    assert domain.holds(widen(from_bits(patterns(folded(ordinals, *span), fmt), fmt))).all()
    if text != "2 <= x <= 2" and "0.1" not in text:
        assert folded(ordinals, *span).tolist() == [reflected_slowly(at, *span) for at in ordinals.tolist()]


def patterns(ordinals: Tensor, fmt: Format) -> Tensor:
    sign = -(1 << 63) if fmt.bits == 64 else fmt.sign_bit
    return torch.where(ordinals < 0, ordinals.abs() | sign, ordinals)


# -- cases ------------------------------------------------------------------------------------------------

KINDS = ["adamw", "rope", "decay", "kl", "norm"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_recipe_stays_inside(kind: str) -> None:
    kernel = kernels().ALL[f"{kind}_right"]
    dims = {"rope": (5, 8, 4)}.get(kind, (7,) * max(len(kernel.op.geometry.dims), 1))
    for recipe in [name for name in (*ELEMENT, *ROW) if name != "patterns"]:
        for largest in (None, 0.25):
            case = case_of(kernel, "float32", dims=dims, fill=recipe, seed=3, largest=largest)
            for operand in kernel.op.operands:
                value = inputs_of(kernel.op, case, "cpu")[operand.name]
                assert value is not None
                wide = widen(value)
                if operand.domain is not None:
                    assert operand.domain.holds(wide).all(), (recipe, operand.name)
                    assert largest is None or (wide.abs() <= largest).all()
                    # a recipe keeps its spread: no clamp puts many numbers at an end
                    same = ("ones", "constant", "alternating", "sparse", "medley", "zero rows")
                    spread = recipe in same or wide.unique().numel() > 1
                    assert spread, (recipe, operand.name)


def test_the_ends_of_a_domain_are_tried() -> None:
    kernel = kernels().ALL["rope_right"]
    for recipe in ("outlier", "spread"):
        cos = inputs_of(kernel.op, case_of(kernel, "float32", dims=(5, 8, 4), fill=recipe), "cpu")["cos"]
        assert cos is not None and (float(cos[0, 0]), float(cos[-1, -1])) == (-1.0, 1.0)
    kernel = kernels().log_inside
    x = inputs_of(kernel.op, case_of(kernel, "bfloat16", dims=(4096,), fill="near"), "cpu")["x"]
    assert x is not None and float(x.max()) == 4.0 and 0 < float(x.min()) < 1e-38


def test_a_case_that_spells_out_a_number_outside_is_an_error() -> None:
    kernel = kernels().root
    case = case_of(kernel, "float32", dims=(2,), values={"x": "3f800000" + "bf800000"})
    rule = "operand 'x' is declared with the domain 0.01 <= x; the case has -1 at 1"
    with pytest.raises(UsageError, match=rule):
        inputs_of(kernel.op, case, "cpu")
    with pytest.raises(UsageError, match="has nan at 0"):
        inputs_of(kernel.op, msgspec.structs.replace(case, values={}, edits={"x": {"0": "7fc00000"}}), "cpu")
    inputs_of(kernel.op, msgspec.structs.replace(case, values={"x": "3f800000" * 2}), "cpu")


def test_a_domain_is_part_of_the_property_and_of_the_promise() -> None:
    kernel = kernels().root
    other = verify.kernel(like=torch.sqrt, dtypes=["float32", "float64"], domain={"x": "0.02 <= x"})(kernel.function)
    case = case_of(kernel, "float32", dims=(2,))
    hashes = {fingerprint(each, "y", "float32", [case]) for each in (kernel, other, open_again(kernel))}
    assert len(hashes) == 3, "bounds of one domain are not compared with figures of another"
    assert "domain: 0.01 <= x" in kernel.promise


# -- verdicts ---------------------------------------------------------------------------------------------


def measured(name: str, backend: Backend) -> KernelRun:
    return measure_kernel(kernels().ALL[name], Measure(f"tests/cases/domain_kernels.py::{name}"), backend)


BROKEN = {
    "adamw": "adamw_eps_in_root",
    "rope": "rope_half_sine",
    "decay": "decay_half_weights",
    "kl": "kl_eps",
    "norm": "norm_eps_outside",
}


# rows of a norm cost three times what another kind does
@pytest.mark.parametrize("kind", [pytest.param(k, marks=pytest.mark.slow) if k == "norm" else k for k in KINDS])
def test_the_right_kernel_passes_and_the_broken_one_is_caught(
    kind: str, backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    few_cases(monkeypatch, "randn", "mean 1e3", "tiny 1e-20", "spread")
    right, broken = measured(f"{kind}_right", backend), measured(BROKEN[kind], backend)
    assert (right.status, broken.status) == ("ok", "wrong"), (right.results, broken.results)
    assert all(result.basis.n for result in right.results)


@pytest.mark.slow
def test_without_its_domain_the_right_kernel_fails(backend: Backend) -> None:
    assert measured("decay_open", backend).status == "wrong"


def test_a_bug_at_an_end_of_the_domain_is_found(backend: Backend) -> None:
    run = measure_kernel(
        kernels().wrong_at_the_end, Measure("tests/cases/domain_kernels.py::wrong_at_the_end"), backend
    )
    assert run.status == "wrong" and run.results[0].worst[0].inputs["w"] == "2 (0x40000000)", run.results[0].worst[0]


def test_where_all_inputs_are_tried_those_outside_are_not_judged(backend: Backend) -> None:
    kernel, target = kernels().log_inside, "tests/cases/domain_kernels.py::log_inside"
    space = sweep_of(kernel, target, "bfloat16", results=("y",))
    for run in (
        measure_kernel(kernel, Measure(target), backend),
        finish(kernel, space, check(kernel, space, 0, backend)),
    ):
        assert run.status == "ok", run
        (outside,) = (part for part in run.results[0].regimes if part.name == BEYOND)
        x = widen(from_bits(torch.arange(1 << 16), named("bfloat16")))
        assert outside.figures.n == int((~((x > 0) & (x <= 4))).sum())
    unbound = open_again(kernel)
    assert measure_kernel(unbound, Measure(target), backend).status == "wrong", "the test would see a number outside"


# -- laws, special values, hunts: the kernel `root` raises an error on any number outside -----------------


def test_the_kernel_that_refuses_numbers_outside_sees_one_without_its_domain(backend: Backend) -> None:
    assert measure_kernel(kernels().root, Measure("here.py::root"), backend).status == "ok"
    assert measure_kernel(open_again(kernels().root), Measure("here.py::root"), backend).status == "error"


@pytest.mark.parametrize(
    ("law", "dtype"),
    [
        ("accuracy", "float32"),
        ("special values", "float32"),
        ("batch invariance", "float32"),
    ],
)
def test_laws_stay_inside(law: str, dtype: str) -> None:
    profile = Profile("test", 30, trial.PROFILE.sizes)
    found = trial.attempt(law, kernels().root, dtype, profile)
    assert (found.status, found.cases > 0) == ("ok", True), (found.message, found.facts)
    assert "refuse" not in found.message


def test_laws_that_must_leave_a_domain_do_not_apply() -> None:
    closed = verify.kernel(
        like=lambda a: a.cumsum(-1), shapes={"a": "n d"}, dtypes=["float32"], domain={"a": "0 <= a <= 1"}, name="sums"
    )(lambda a: a.cumsum(-1))
    trial.skips("special values", closed, "every operand has a domain, which holds neither NaN nor an infinity")


@pytest.mark.parametrize("kind", ["adamw", "rope", "kl", "norm"])
def test_hunts_stay_inside(kind: str, backend: Backend) -> None:
    kernel = kernels().ALL[f"{kind}_right"]
    space = space_of(kernel, "float32", "y", backend.device)
    domains = {each.name: each.domain for each in kernel.op.operands if each.domain is not None}
    assert all(domain.text in space.sentence for domain in domains.values())
    generator = torch.Generator().manual_seed(0)
    for variable in (*space.variables, *space.shared):
        if variable.name in domains:
            low, high = -variable.fmt.max_bits, variable.fmt.max_bits
            drawn = torch.randint(low, high, (1000,), generator=generator)
            inside = variable.within(torch.cat([drawn, torch.tensor([low, -1, 0, 1, high])]))
            assert domains[variable.name].holds(widen(from_bits(patterns(inside, variable.fmt), variable.fmt))).all()
    first = fresh(space, 64, Draws(0, "test", "cpu"))
    for name in first.keys() & domains.keys():
        fmt = next(each.fmt for each in space.variables if each.name == name)
        assert domains[name].holds(widen(from_bits(patterns(first[name], fmt), fmt))).all()
    assert torch_dtype(space.fmt) is torch.float32


def test_a_hunt_says_where_no_number_is_left() -> None:
    kernel = verify.kernel(like=torch.log, dtypes=["float32"], domain={"x": "0 < x < 1e-35"})(lambda x: x.log())
    space = space_of(kernel, "float32", "y", "cpu")
    with pytest.raises(UsageError, match="no float32 number in it has a magnitude"):
        fresh(space, 4, Draws(0, "test", "cpu"))


def test_a_smaller_case_stays_inside() -> None:
    found = trial.breaks("accuracy", kernels().wrong_at_the_end, "beyond the kernel's own limit")
    case = Case.from_json(found.case)
    w = inputs_of(kernels().wrong_at_the_end.op, case, "cpu")["w"]
    assert w is not None and bool(((w >= 1) & (w <= 2)).all())
