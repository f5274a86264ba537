"""A case is JSON that determines its inputs to the bit."""

from __future__ import annotations

import pytest
import torch

import verify
from verify import ops
from verify.cases import Case, inputs_of, problem_of, upstream_of
from verify.errors import UsageError
from verify.truth.ulp import bits_of

CASES = [
    ("gelu", Case(dtype="bfloat16", dims=(64,), fill="mixed", params={"approximate": "tanh"})),
    ("layer_norm", Case(dtype="float16", dims=(4, 33), fill="mean 1e3", seed=9, absent=("bias",))),
    ("linear", Case(dtype="float32", dims=(5, 7, 3), fill="spread", upstream="normal")),
    ("layer_norm", Case(dtype="bfloat16", dims=(2, 9), fill="randn", dtypes={"weight": "float32"})),
    ("softmax", Case(dtype="float64", dims=(3, 4), fill="ramp", regime="ramp")),
]


@pytest.mark.parametrize(("name", "case"), CASES, ids=[name for name, _ in CASES])
def test_a_case_gives_the_same_bits_after_json(name: str, case: Case) -> None:
    op = ops.get(name)
    again = Case.from_json(case.to_json())
    assert again == case
    assert again.to_json() == case.to_json()
    before, after = inputs_of(op, case, "cpu"), inputs_of(op, again, "cpu")
    assert list(before) == [operand.name for operand in op.operands] == list(after)
    for key, tensor in before.items():
        other = after[key]
        if tensor is None or other is None:
            assert tensor is other is None
            assert key in case.absent
            continue
        assert tensor.dtype == other.dtype
        assert torch.equal(bits_of(tensor), bits_of(other))


def test_json_is_short_and_in_field_order() -> None:
    case = Case(dtype="float32", dims=(2, 3), fill="randn", seed=4)
    assert case.to_json() == '{"dtype":"float32","dims":[2,3],"fill":"randn","seed":4}'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a case: Input data was truncated"),
        ("[1]", "not a case: Expected `object`, got `array`"),
        ('{"dtype":"float32","dims":[2]}', "not a case: Object missing required field `fill`"),
        ('{"dtype":"float32","dims":["a"],"fill":"x"}', "not a case: Expected `int`, got `str` - at `$.dims[0]`"),
        ('{"dtype":"float32","dims":[2],"fill":"x","sead":1}', "not a case: Object contains unknown field `sead`"),
    ],
)
def test_a_bad_case_names_its_fault(text: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        Case.from_json(text)
    assert caught.value.message == message
    assert caught.value.hint == "copy the case from the failure message or from the report"


def test_a_required_operand_cannot_be_absent() -> None:
    case = Case(dtype="float32", dims=(3,), fill="ones", absent=("x",))
    with pytest.raises(UsageError) as caught:
        inputs_of(ops.get("gelu"), case, "cpu")
    assert str(caught.value) == "op 'gelu': operand 'x' is required; the case omits it"


def test_an_unknown_dtype_or_parameter_is_refused() -> None:
    op = ops.get("gelu")
    with pytest.raises(UsageError, match="^unknown dtype 'float12'"):
        inputs_of(op, Case(dtype="float12", dims=(3,), fill="ones"), "cpu")
    with pytest.raises(UsageError, match="^op 'gelu' has no parameter 'form'"):
        inputs_of(op, Case(dtype="float32", dims=(3,), fill="ones", params={"form": 1}), "cpu")


def test_operands_of_one_case_differ_and_follow_their_role() -> None:
    case = Case(dtype="float32", dims=(40, 200), fill="mean 1e4", seed=1)
    made = inputs_of(ops.get("layer_norm"), case, "cpu")
    assert abs(float(made["x"].mean()) - 1e4) < 1  # type: ignore[union-attr]
    assert abs(float(made["weight"].mean()) - 1) < 0.1  # type: ignore[union-attr]
    assert abs(float(made["bias"].mean())) < 0.1  # type: ignore[union-attr]


def test_the_second_data_operand_does_not_march_in_step_with_the_first() -> None:
    op = next(
        ops.get(name)
        for name in ops.names()
        if sum(operand.role == "data" for operand in ops.get(name).operands) > 1 and ops.get(name).geometry.by_element
    )
    made = list(inputs_of(op, Case(dtype="float32", dims=(50, 20), fill="mixed"), "cpu").values())
    first, second = made[0], made[1]
    assert first is not None
    assert second is not None
    assert int((bits_of(first) == bits_of(second)).sum()) < 50


def test_upstream_is_shaped_like_the_outputs_and_a_stream_of_its_own() -> None:
    case = Case(dtype="float32", dims=(4, 6), fill="normal", upstream="normal")
    outputs = {"y": torch.zeros(4, 6, dtype=torch.bfloat16)}
    arrived = upstream_of(ops.get("gelu"), case, outputs)
    assert list(arrived) == ["y"]
    assert arrived["y"].dtype == torch.bfloat16
    assert arrived["y"].shape == (4, 6)
    x = inputs_of(ops.get("gelu"), case, "cpu")["x"]
    assert x is not None
    assert not torch.equal(x.to(torch.bfloat16), arrived["y"])
    forward = Case(dtype="float32", dims=(4, 6), fill="normal")
    assert upstream_of(ops.get("gelu"), forward, outputs) == {}


def test_a_problem_carries_the_resolved_parameters() -> None:
    op = ops.get("gelu")
    case = Case(dtype="float32", dims=(3,), fill="ones")
    made = problem_of(op, case, inputs_of(op, case, "cpu"), {}, ("y",))
    assert made.params == {"approximate": "none"}
    assert made.results == ("y",)


def test_whole_numbers_of_a_wide_range_have_random_high_bits() -> None:
    """A kernel that drops half of a seed of 64 bits is found only by seeds beyond 32 bits."""
    settings = {"shapes": {"x": "n", "seed": ""}, "integers": {"seed": "0 <= seed < 2**62"}, "dtypes": ["float32"]}
    kernel = verify.kernel(like=lambda x, seed: x * seed, **settings)(lambda x, seed: x * seed)
    seeds = [int(inputs_of(kernel.op, Case("float32", (3,), "randn", seed=n), "cpu")["seed"]) for n in range(20)]
    assert len({seed >> 32 for seed in seeds}) == 20 and max(seeds) > 2**61 and all(0 <= seed < 2**62 for seed in seeds)


@pytest.mark.parametrize("dims", ["[-4]", "[2,-1]", "[1099511627776]"])
def test_sizes_that_no_tensor_has_are_no_case(dims: str) -> None:
    with pytest.raises(UsageError, match=r"not a case: Expected `int` (>=|<=|<) \d+ - at `\$.dims"):
        Case.from_json(f'{{"dtype":"float32","dims":{dims},"fill":"normal"}}')
