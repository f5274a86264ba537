"""Classes of inputs, and the domain of a kernel: sizes that a condition allows, magnitudes up to which it promises."""

from __future__ import annotations

import math

import pytest
import torch

import verify
from verify.backends import Interpreter
from verify.cases import Case, inputs_of, problem_of
from verify.cases.classes import BEYOND, NONFINITE, class_of, class_of_recipe, classed, segments_of, special_parts
from verify.cases.plan import plan
from verify.cases.sizes import fitted
from verify.cases.strategies import Sizes, fixed_shapes
from verify.cases.values import ROW_REGIMES, within
from verify.declare.declaration import Kernel
from verify.errors import UsageError
from verify.measure.kernel import measure_kernel
from verify.measure.requests import Measure
from verify.ops import get
from verify.records.contradictions import contradictions
from verify.records.record import CLASSES
from verify.search.hunt.space import space_of
from verify.truth.formats import named

CPU = Interpreter("cpu")


def test_every_recipe_of_rows_has_a_class_and_every_class_has_recipes() -> None:
    assert {class_of_recipe(name) for name in ROW_REGIMES} == set(CLASSES)
    assert class_of_recipe("many rows") == class_of_recipe("randn") == "ordinary"
    assert (class_of_recipe("outlier"), class_of_recipe("huge 1e30")) == ("demanding", "extreme")


def test_rows_beside_special_numbers_have_the_class_of_their_own_numbers() -> None:
    kernel = verify.kernel(like=lambda x: x.softmax(-1), shapes={"x": "m n"}, dtypes=["float32"], gradients=False)
    op, case = kernel(lambda x: x.softmax(-1)).op, Case(dtype="float32", dims=(5, 2), fill="special")
    x = torch.tensor([[1.0, 2.0], [math.inf, 1.0], [-0.0, 3.0], [1e-39, 1.0], [100.0, 1.0]])
    segments, parts = special_parts(case, problem_of(op, case, {"x": x}, {}, ("y",)), x.double().softmax(-1), None)
    found = [(parts[at][0].name, parts[at][1]) for at in segments.reshape(5, 2)[:, 0].tolist()]
    ordinary, extreme = ("all", "ordinary"), ("all", "extreme")
    assert found == [ordinary, (NONFINITE, "extreme"), ordinary, extreme, ("all", "demanding")]
    segments, parts = special_parts(case, problem_of(op, case, {"x": x[:1]}, {}, ("y",)), torch.tensor(3.0), None)
    assert parts[int(segments)][1] == "ordinary"  # a result without dimensions


@pytest.mark.parametrize("dy", [1.0, 1e30])
def test_an_element_has_the_largest_class_of_all_that_it_depends_on(dy: float) -> None:
    op = get("silu")
    x = torch.tensor([0.0, 8.0, 8.5, 2.0**-24, 2.0**-25, 65504.0, 65536.0, 1e-38, math.inf, math.nan])
    case = Case(dtype="float32", dims=(10,), fill="ones", upstream="ones")
    problem = problem_of(op, case, {"x": x}, {"y": torch.full_like(x, dy)}, ("y", "dx"))
    for result in ("y", "dx"):
        parts, names = classed(op, case, problem, result, (10,))
        assert parts is not None
        found = [class_of(*names[place]) for place in parts.tolist()]
        if result == "dx" and dy > 1:
            assert found == ["extreme"] * 10
        else:
            o, d, e = CLASSES
            assert found == [o, o, d, o, d, d, e, e, e, e]
    _, regimes = segments_of(op, case, problem, "y", (10,), largest=1e4)
    segments, _ = segments_of(op, case, problem, "y", (10,), largest=1e4)
    assert segments is not None
    assert [regimes[place].name for place in segments[-5:].tolist()][:2] == [BEYOND, BEYOND]
    assert [regimes[place].name for place in segments[-2:].tolist()] == [BEYOND, NONFINITE]


def test_no_input_is_beyond_a_magnitude_and_what_is_within_is_as_it_was() -> None:
    for name in ("float32", "bfloat16", "float16", "float64"):
        fmt = named(name)
        values = torch.tensor([0.0, 1.0, -3.0, 299.0, 1e4, -math.inf, math.nan]).to(getattr(torch, name))
        found = within(values, fmt, 300.0)
        assert found.dtype == values.dtype
        assert found[:4].tolist() == values[:4].tolist() and math.isnan(found[-1])
        assert 290 < found[4] <= 300 and found[5] == -found[4]
    case = Case(dtype="float32", dims=(3, 33), fill="huge 1e30", regime="huge 1e30", largest=100.0)
    x = inputs_of(get("softmax"), case, "cpu")["x"]
    assert x is not None and float(x.abs().max()) <= 100


def test_a_magnitude_may_be_about_one_operand() -> None:
    promised = verify.kernel(op="rms_norm", dtypes=["float32", "float16"], largest={"x": 100.0, "weight": 2.0})
    both = promised(lambda x, weight: x.clone())
    assert both.largest == {dtype: {"x": 100.0, "weight": 2.0} for dtype in ("float32", "float16")}
    assert "x up to 100, weight up to 2 in float32" in both.promise
    weight = verify.kernel(op="rms_norm", dtypes=["float32"], largest={"float32": {"weight": 1.5}})(lambda x, weight: x)
    assert (weight.promised_to("float32", "weight"), weight.promised_to("float32", "x")) == (1.5, math.inf)
    for subject, bounds in ((both, (100.0, 2.0)), (weight, (math.inf, 1.5))):
        planned = [case for group in plan(subject, "float32", "interpreter", 0) for case in group.cases]
        huge = next(case for case in planned if case.fill == "huge 1e30" and math.prod(case.dims) < 1e5)
        assert Case.from_json(huge.to_json()) == huge
        assert Kernel.of_description(subject.described()).largest == subject.largest
        inputs = inputs_of(subject.op, huge, "cpu")
        assert all(float(inputs[name].abs().max()) <= most for name, most in zip(("x", "weight"), bounds, strict=True))
    assert float(inputs["x"].abs().max()) > 1e25
    space = space_of(both, "float32", "y", "cpu", largest=both.largest["float32"])
    assert "x up to 100, weight up to 2" in space.sentence
    assert [variable.fmt.to_float(variable.limit) for variable in (*space.variables, *space.shared)] == [100.0, 2.0]


WHERE = [
    ("rowwise", "n <= 100", (3, 257), (3, 100)),
    ("rowwise", "n % 16 == 0", (3, 257), (3, 256)),
    ("rowwise", "rank == 2", (2, 3, 64), None),
    ("elementwise", "rank == 2 and n <= 4096", (1 << 16,), None),
]


@pytest.mark.parametrize(("kind", "where", "dims", "wanted"), WHERE)
def test_sizes_are_the_next_ones_that_the_condition_allows(
    kind: str, where: str, dims: tuple[int, ...], wanted: tuple[int, ...] | None
) -> None:
    op = {"rowwise": "softmax", "elementwise": "silu"}[kind]
    kernel = verify.kernel(op=op, where=where, dtypes=["bfloat16", "float32"])(lambda x: x)
    found = fitted(kernel, dims)
    assert kernel.allows(found) and math.prod(found) == math.prod(dims if wanted is None else wanted)
    assert wanted in (None, found)
    for dtype in kernel.dtypes:
        for group in plan(kernel, dtype, "interpreter", 0):
            assert all(kernel.allows(case.dims) for case in group.cases)
            assert group.exhaustive == (kind == "elementwise" and dtype == "bfloat16" and not group.label)
    assert all(kernel.allows(shape) for shape in fixed_shapes(kernel, Sizes()))


def test_a_condition_that_nothing_fulfils_or_that_is_none_says_so() -> None:
    kernel = verify.kernel(op="softmax", where="n < 0", dtypes=["float32"])(lambda x: x)
    with pytest.raises(UsageError, match="allows no sizes near"):
        fitted(kernel, (3, 4))
    with pytest.raises(UsageError, match="kernel 'k': an expression of sizes has names of dimensions"):
        verify.kernel(op="softmax", where="columns < 5", name="k")(lambda x: x)


def test_limits_of_classes_and_the_domain_decide_the_verdict() -> None:
    def off_where_large(x: torch.Tensor) -> torch.Tensor:
        y = torch.where(x == -math.inf, 0.0, torch.nn.functional.silu(x.double())).to(x.dtype)
        return torch.where(x.abs() > 100, y / 2, y)

    def status(**options: object) -> tuple[str, dict[str, str]]:
        declared = verify.kernel(op="silu", dtypes=["float16"], gradients=False, name="k", **options)(off_where_large)
        run = measure_kernel(declared, Measure("k.py::k"), CPU)
        [result] = run.results
        assert not list(contradictions(run))
        return run.status, {each.name: each.reason for each in result.classes}

    wrong, reasons = status(max_ulp=1)
    assert wrong == "wrong" and [name for name, reason in reasons.items() if reason] == ["demanding"]
    assert "on demanding inputs, the limit is 1" in reasons["demanding"]
    assert status(max_ulp={"ordinary": 1, "demanding": None})[0] == "ok"
    assert status(max_ulp={"float16": {"ordinary": 1, "demanding": 1e6}})[0] == "ok"
    assert status(max_ulp=1, largest=99)[0] == "ok", "beyond the domain nothing is judged"
    assert status(max_ulp=1, largest=1e4)[0] == "wrong"
