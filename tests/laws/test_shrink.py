"""Shrinking inside the tensor: what comes out breaks, in the same way, and holds little more than the reason."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import verify
from verify import backends
from verify.backends import select
from verify.cases import Case, inputs_of
from verify.cases.strategies import Sizes
from verify.declare.declaration import Kernel
from verify.diagnose.replay import replay
from verify.errors import UsageError
from verify.laws import engine, registry
from verify.laws.engine import PROFILES, run_law
from verify.laws.law import Broken, Subject
from verify.laws.shrink import Shrinker, shrink_broken, shrink_element, shrink_law


def right_silu(x):
    wide = x.double()
    return (wide / (1 + torch.exp(-wide))).to(x.dtype)


@verify.kernel(op="gelu", dtypes=["bfloat16", "float32"])
def textbook(x):
    return x * 0.5 * (1.0 + torch.erf(x * 0.7071067811865476))


@verify.kernel(op="silu", dtypes=["float32"])
def wrong_from_256_on(x):
    y = right_silu(x).reshape(-1)
    return torch.cat([y[:256], y[256:] * 1.25]).reshape(x.shape)


@verify.kernel(op="silu", dtypes=["float32"], gradients=False)
def wrong_when_two_meet(x):
    """Wrong only where the row holds both a number above 3 and one below -3."""
    y = right_silu(x)
    return y * 1.5 if bool((x > 3).any()) and bool((x < -3).any()) else y


@verify.kernel(op="silu", dtypes=["float32"], gradients=False)
def nan_or_a_little_off(x):
    y = right_silu(x) * (1 + 2.0**-18)
    return torch.where(x > 1, torch.nan, y)


@verify.kernel(op="layer_norm", dtypes=["float32"])
def one_pass(x, weight, bias, *, eps):
    mean = x.mean(-1, keepdim=True)
    variance = ((x * x).mean(-1, keepdim=True) - mean * mean).clamp(min=0)
    return (x - mean) * torch.rsqrt(variance + eps) * weight + bias


@verify.kernel(op="linear", dtypes=["float32"], gradients=False)
def loses_a_product(x, weight, bias, *, activation):
    y = x.double() @ weight.double().T + bias.double()
    if x.shape[1] > 2:
        y = y - x[:, 2:3].double() * weight[:, 2].double()
    return y.float()


@verify.kernel(op="silu", dtypes=["float32"], gradients=False)
def ignores_strides(x):
    flat = torch.as_strided(x, (x.numel(),), (1,), x.storage_offset()) if x.numel() else x.reshape(-1)
    return right_silu(flat.reshape(x.shape))


@verify.kernel(op="silu", dtypes=["float32"], gradients=False, refuses=False)
def raises_for_long_rows(x):
    if x.numel() > 40:
        raise RuntimeError(f"cannot take {x.numel()} elements")
    return right_silu(x)


def subject(kernel: Kernel, dtype: str = "float32") -> Subject:
    return Subject(kernel, dtype, backends.select(), Sizes(), f"here.py::{kernel.name}")


def shrink(kernel: Kernel, case: Case, result: str, index: int, **options: int) -> Shrinker:
    """Shrink an element; what must hold of every outcome is checked here."""
    about = subject(kernel, case.dtype)
    given = replay(kernel, about.target, about.backend, case, result=result, index=index)
    found = shrink_element(about, case, result, index, given.judged, **options)
    # it replays, from its JSON, to an element beyond the limit
    again = Case.from_json(found.case.to_json())
    assert found.broken.index is not None
    small = replay(kernel, about.target, about.backend, again, result=result, index=found.broken.index)
    assert not small.judged <= kernel.limit(case.dtype)
    return found


def elements(case: Case) -> list[float]:
    x = inputs_of(verify.ops.get("silu"), case, "cpu")["x"]
    assert x is not None
    return sorted(x.reshape(-1).tolist())


def test_one_element_of_all_patterns() -> None:
    case = Case(dtype="bfloat16", dims=(65536,), fill="patterns", upstream="ones")
    found = shrink(textbook, case, "y", 49291)  # x = -4.34
    assert found.case == Case(dtype="bfloat16", dims=(1,), fill="ones", values={"x": "c08b"})  # x = -4.34
    assert found.evaluations < 20 and not found.exhausted


def test_a_gradient_keeps_its_upstream_gradient_and_a_row_only_what_it_needs() -> None:
    case = Case(dtype="float32", dims=(3, 257), fill="mean 1e4", upstream="normal", params={"eps": 1e-6})
    found = shrink(one_pass, case, "dx", 300)
    assert found.case.upstream == "ones" and found.case.dims in ((1, 2), (2,), (1, 3), (3,))
    assert found.case.params == {}  # eps does not matter


def test_an_error_that_depends_on_the_place_keeps_the_places_before_it() -> None:
    case = Case(dtype="float32", dims=(4, 256), fill="normal", upstream="normal", layouts={"x": "transposed"})
    found = shrink(wrong_from_256_on, case, "y", 700)
    assert found.case == Case(dtype="float32", dims=(257,), fill="ones")


def test_elements_that_only_break_together_both_stay() -> None:
    case = Case(dtype="float32", dims=(40, 50), fill="active", seed=3)
    found = shrink(wrong_when_two_meet, case, "y", 17)
    left, right = elements(found.case)
    assert left < -3 and right > 3


def test_a_contraction_loses_rows_columns_and_depth() -> None:
    case = Case(dtype="float32", dims=(9, 33, 17), fill="randn")
    found = shrink(loses_a_product, case, "y", 20)
    assert found.case.dims[0] == found.case.dims[2] == 1
    assert found.case.dims[1] == 3  # the third product is the one that is lost


def test_nan_does_not_become_a_small_error_on_the_way() -> None:
    case = Case(dtype="float32", dims=(64,), fill="normal")
    x = inputs_of(nan_or_a_little_off.op, case, "cpu")["x"]
    assert x is not None
    found = shrink(nan_or_a_little_off, case, "y", int(x.argmax()))
    assert found.broken.facts["got"].startswith("nan")
    assert all(value > 1 for value in elements(found.case))


def test_a_large_error_does_not_become_one_just_over_the_limit() -> None:
    case = Case(dtype="float32", dims=(300,), fill="active")
    x = inputs_of(textbook.op, case, "cpu")["x"]
    assert x is not None
    index = int(torch.nonzero((x < -5.6) & (x > -7))[0])
    given = replay(textbook, "t", backends.select(), case, result="y", index=index)
    found = shrink(textbook, case, "y", index)
    error = float(found.broken.facts["error"].split()[0])
    assert given.judged > 1e6 and error >= (4 * given.judged) ** 0.5


def test_a_result_within_its_limit_is_refused() -> None:
    case = Case(dtype="float32", dims=(8,), fill="normal")
    with pytest.raises(UsageError, match=r"only a result beyond its limit .* is 0\.25 ULP off, the limit .* is 4"):
        shrink_element(subject(textbook), case, "y", 0, 0.25)


def broken_by(law: str, kernel: Kernel, case: Case) -> Broken:
    with pytest.raises(Broken) as caught:
        engine.attempt(registry.get(law), subject(kernel), case)
    return caught.value


def test_a_broken_law_breaks_on_a_smaller_case_by_the_same_rule() -> None:
    case = Case(dtype="float32", dims=(9, 21), fill="active", layouts={"x": "transposed"})
    broken = broken_by("layout independence", ignores_strides, case)
    found = shrink_broken(registry.get("layout independence"), subject(ignores_strides), broken)
    assert found.broken.rule == broken.rule
    assert found.case.layouts == {"x": "transposed"} and sorted(found.case.dims) == [2, 2]
    assert set(elements(found.case)) <= {0.0, 1.0}
    again = broken_by("layout independence", ignores_strides, Case.from_json(found.case.to_json()))
    assert again.facts == found.broken.facts


def test_a_kernel_that_raises_is_as_small_as_it_still_raises() -> None:
    broken = broken_by("accuracy", raises_for_long_rows, Case(dtype="float32", dims=(7, 31), fill="bits", seed=9))
    small = shrink_law(registry.get("accuracy"), subject(raises_for_long_rows), broken)
    assert "cannot take 41 elements" in small.rule  # the number in the message may differ, its words not
    assert small.case.to_json() == '{"dtype":"float32","dims":[41],"fill":"ones"}'


def test_a_broken_law_of_a_pytorch_function_is_made_smaller_within_its_sizes() -> None:
    kernel = verify.kernel(
        like=lambda x, w: (x * w).sum(-1), shapes={"x": "n d", "w": "d"}, where="d % 2 == 0", dtypes=["float32"]
    )(lambda x, w: (x * w).sum(-1) * (1.5 if len(x) > 2 else 1))
    broken = broken_by("accuracy", kernel, Case(dtype="float32", dims=(7, 8), fill="randn", upstream="normal", seed=9))
    small = shrink_law(registry.get("accuracy"), subject(kernel), broken).case
    assert small.dims == (3, 2)


def test_a_law_that_breaks_only_once_gives_back_what_it_was_given() -> None:
    case = Case(dtype="float32", dims=(3, 3), fill="normal")
    broken = Broken("never true again", case, {}, result="y", index=0)
    found = shrink_broken(registry.get("accuracy"), subject(wrong_from_256_on), broken)
    assert found.case == case and found.broken is broken and found.evaluations == 1


def test_the_first_wrong_size_and_the_right_results_are_said() -> None:
    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sum(-1), x * 2

    def kernel(x: Tensor) -> tuple[Tensor, Tensor]:
        total = x.double().sum(-1)
        if x.shape[1] > 128:
            total = total - x[:, 128:].double().sum(-1)
        return total.to(x.dtype), x * 2

    declared = verify.kernel(
        like=both, shapes={"x": "n s"}, outputs=["total", "twice"], dtypes=["float32"], gradients=False, name="k"
    )(kernel)
    found = run_law(registry.get("accuracy"), declared, "float32", select("interpreter"), PROFILES["ci"], "k.py::k")
    assert found.status == "broken"
    assert "wrong from s = 129 on, right up to 128, as far as tried" in found.facts["sizes"]
    assert found.facts["right"] == "twice of the same call"
