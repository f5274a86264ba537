"""Cases that cover pairs of sizes, recipes and layouts, and values at bounds, at edges and near constants."""

from __future__ import annotations

import math
from itertools import combinations
from typing import Any

import pytest
import torch
from torch.nn import functional

import verify
from verify.cases import Case, case_of, inputs_of
from verify.cases.classes import class_of_recipe
from verify.cases.covering import CLASSES, CaseEffort, covering, empty_sizes, own_recipes
from verify.cases.layouts import LAYOUTS, lay_out
from verify.cases.plan import plan
from verify.cases.values import AT_BOUNDS, LEAST, MASKED, NOT_FINITE, ROW_REGIMES, SIGNS
from verify.declare.declaration import Kernel
from verify.records.record import DEMANDING, EXTREME, ORDINARY

EFFORT = CaseEffort(1 << 20, 1 << 20, 1 << 20)
ROWS: dict[str, Any] = {"shapes": {"x": "n d"}, "dtypes": ["float32", "bfloat16"]}
PRODUCT: dict[str, Any] = {"shapes": {"x": "m k", "w": "k n"}, "dtypes": ["float32"], "gradients": False}


def declared(like: Any, **said: Any) -> Kernel:
    return verify.kernel(like=like, **said)(like)


def softmax(x: torch.Tensor) -> torch.Tensor:
    return x.softmax(-1)


def product(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    return x @ w


def class_of_size(size: int) -> str:
    return next(name for name, sizes in CLASSES.items() if size in sizes)


def test_many_rounds_cover_every_pair_that_fits() -> None:
    """Counted anew from the cases themselves, not by the bookkeeping of the search."""
    kernel = declared(softmax, **ROWS)
    found = covering(kernel, {"recipe": ROW_REGIMES, "layout": ("contiguous", "padded")}, EFFORT, 12)
    assert found.covered == found.pairs
    seen = set()
    for each in found.cases:
        choices = [*enumerate(map(class_of_size, each.dims)), *each.others.items()]
        seen |= {frozenset(pair) for pair in combinations(choices, 2)}
    assert len(seen) == found.pairs
    assert {frozenset([(0, "over a block"), ("recipe", recipe)]) for recipe in ROW_REGIMES} <= seen
    assert frozenset([(0, "long"), (1, "long")]) in seen


def test_a_run_has_every_recipe_with_more_than_16_rows_or_columns_and_two_long_dimensions() -> None:
    for kernel in (declared(softmax, **ROWS), declared(product, **PRODUCT)):
        (group,) = plan(kernel, "float32", "interpreter", 0)
        widest = {
            fill: max(max(case.dims) for case in group.cases if case.fill == fill)
            for fill in {each.fill for each in group.cases}
        }
        # nothing is promised at extreme inputs: the least numbers would give no verdict
        assert {*ROW_REGIMES} - {LEAST} == set(widest) - {SIGNS, MASKED, *own_recipes(kernel.op)}
        assert all(size > 16 for size in widest.values())
        assert any(sorted(case.dims)[-2] >= 65 for case in group.cases)
        assert 0 < group.pairs[0] < group.pairs[1]


def test_an_empty_dimension_is_tried_where_pytorch_has_an_answer() -> None:
    assert {dims.index(0) for dims in empty_sizes(declared(product, **PRODUCT))} == {0, 1, 2}
    assert {dims.index(0) for dims in empty_sizes(declared(lambda x: x.amax(-1), **ROWS))} == {0}  # no largest of none
    assert empty_sizes(declared(product, **PRODUCT, where="k >= 1 and m >= 1 and n >= 1")) == ()


def test_a_recipe_may_be_for_one_operand_alone() -> None:
    kernel = declared(product, **PRODUCT)
    inputs = inputs_of(kernel.op, case_of(kernel, "float32", dims=(3, 5, 2), fill="mean 1e4", only="w"), "cpu")
    x, w = inputs["x"], inputs["w"]
    assert x is not None and w is not None and x.abs().max() < 100 and w.min() > 9000
    with pytest.raises(verify.UsageError, match="a recipe for 'y'"):
        inputs_of(kernel.op, Case("float32", (3, 5, 2), "randn", only="y"), "cpu")


def whole_numbers(text: str, count: int, seed: int = 0, shape: str = "b", s: int = 1000) -> list[int]:
    kernel = declared(
        lambda x, k: x.sum() * k, shapes={"x": "s b", "k": shape}, integers={"k": text}, dtypes=["float32"]
    )
    value = inputs_of(kernel.op, case_of(kernel, "float32", dims=(s, count), seed=seed), "cpu")["k"]
    assert value is not None
    return value.reshape(-1).tolist()


def test_integers_are_small_at_edges_and_at_both_ends() -> None:
    found = whole_numbers("0 <= k <= s", 200)
    assert (found[0], found[100], found[-1]) == (0, 0, 1000) and all(0 <= each <= 1000 for each in found)
    inner = found[1:-1]
    assert sum(each < 16 for each in inner) > 12  # 3 if they were uniform
    assert {each % 64 for each in inner} >= {63, 0, 1} and sum(each % 64 in (63, 0, 1) for each in inner) > 30
    steps = [whole_numbers("1 <= k <= 100000", 3, seed, "")[0] for seed in range(20)]
    assert min(steps) <= 16 and max(steps) > 1000 and all(1 <= each <= 100_000 for each in steps)


def test_some_integers_are_all_low_and_some_repeat_for_blocks() -> None:
    """A table is wider than any length needs, all tokens go to one expert, and a mask hides whole blocks of keys."""
    lengths = [whole_numbers("1 <= k <= 1000", 40, seed) for seed in range(16)]
    assert {max(each) == 1000 for each in lengths} == {True, False}
    assert any(len(set(each)) <= 2 for each in lengths) and sum(len(set(each)) > 10 for each in lengths) >= 8
    masks = [whole_numbers("bool", 400, seed) for seed in range(16)]
    assert any(not any(each[:32]) and any(each) for each in masks)
    assert {each[-1] for each in masks} == {0, 1}


def test_lengths_that_add_up_have_an_empty_one_between_others() -> None:
    settings: dict[str, Any] = {"shapes": {"x": "t", "k": "b"}, "integers": {"k": "0 <= k <= t, sum t"}}
    kernel = declared(lambda x, k: x.sum() * k, dtypes=["float32"], **settings)
    value = inputs_of(kernel.op, case_of(kernel, "float32", dims=(50, 7)), "cpu")["k"]
    assert value is not None
    assert int(value.sum()) == 50 and value[3] == 0 and (value[:3] > 0).any() and (value[4:] > 0).any()


def test_domains_are_tried_at_their_bounds_throughout() -> None:
    kernel = declared(
        lambda x, g: x * g.exp(), shapes={"x": "n d", "g": "n d"}, domain={"g": "-8 <= g <= 0"}, dtypes=["float32"]
    )
    assert own_recipes(kernel.op) == ("zero rows", "at lower bounds", "at upper bounds")
    for recipe, end in (("at lower bounds", -8.0), ("at upper bounds", 0.0)):
        inputs = inputs_of(kernel.op, case_of(kernel, "float32", dims=(3, 5), fill=recipe), "cpu")
        x, g = inputs["x"], inputs["g"]
        assert x is not None and g is not None and bool((g == end).all()) and x.unique().numel() == 15
    (group,) = plan(kernel, "float32", "interpreter", 0)
    assert {"at lower bounds", "at upper bounds"} <= {case.fill for case in group.cases}
    one_sided = declared(lambda x: x.sqrt().sum(-1), shapes={"x": "n d"}, domain={"x": "0 <= x"}, dtypes=["float32"])
    assert own_recipes(one_sided.op) == ("zero rows", "at lower bounds")


def test_integers_are_tried_at_their_bounds_throughout() -> None:
    """No row has a label, every row has the last one, a mask hides everything or nothing."""
    settings: dict[str, Any] = {"shapes": {"x": "n d", "k": "n"}, "dtypes": ["float32"]}
    kernel = declared(lambda x, k: x.sum(-1) * k, integers={"k": "-1 <= k < d"}, **settings)
    assert own_recipes(kernel.op) == ("zero rows", "at lower bounds", "at upper bounds")
    for recipe, end in (("at lower bounds", -1), ("at upper bounds", 4)):
        inputs = inputs_of(kernel.op, case_of(kernel, "float32", dims=(40, 5), fill=recipe), "cpu")
        x, k = inputs["x"], inputs["k"]
        assert x is not None and k is not None and k.unique().tolist() == [end] and x.unique().numel() == 200
    ordered = declared(lambda x, k: x.sum(-1) * k, integers={"k": "permutation n"}, **settings)
    assert own_recipes(ordered.op) == ("zero rows",)


def test_a_run_has_other_layouts_if_the_kernel_takes_them() -> None:
    settings = {**PRODUCT, "gradients": True}
    (group,) = plan(declared(product, **settings), "float32", "interpreter", 0)
    laid = {each for case in group.cases for each in case.layouts.items()}
    assert laid >= {(name, layout) for name in ("x", "w") for layout in ("transposed", "stepped", "expanded")}
    assert laid >= {("dy", "transposed"), ("dy", "expanded"), ("dy", "one number")}  # the last is that of .sum()
    assert all(len(case.layouts) <= 1 for case in group.cases)  # so that a finding names the operand
    (group,) = plan(declared(product, **settings, layouts="contiguous"), "float32", "interpreter", 0)
    assert not any(case.layouts for case in group.cases)


def test_sizes_come_twice_with_other_numbers() -> None:
    """A kernel that keeps something from call to call by the sizes is wrong in the second one."""
    (group,) = plan(declared(softmax, **ROWS), "float32", "interpreter", 0)
    plain = [case for case in group.cases if case.dims == group.cases[0].dims and case.fill == "randn"]
    assert len(plain) > 1 and len({case.seed for case in plain}) == len(plain)


def test_nan_and_infinities_lie_in_the_same_rows_of_operands_of_one_shape() -> None:
    """Two states may be empty at once. Elsewhere one operand alone has NaN, beside ordinary ones."""
    kernel = declared(torch.logaddexp, shapes={"a": "n d", "b": "n d"}, dtypes=["float32"], gradients=True)

    def made(dims: tuple[int, int], only: str = "") -> list[torch.Tensor]:
        case = case_of(kernel, "float32", dims=dims, fill=NOT_FINITE, only=only)
        return [value for value in inputs_of(kernel.op, case, "cpu").values() if value is not None]

    for dims in ((12, 5), (1, 120)):
        a, b = made(dims)
        empty = a == -math.inf
        assert bool((empty & (b == -math.inf)).any()) and bool(a.isnan().any()) and bool((a == math.inf).any())
        assert bool(a.isfinite().any()) and not torch.equal(a[a.isfinite()], b[b.isfinite()])
        assert bool((a.isnan() & b.isfinite()).any()) and bool((b.isnan() & a.isfinite()).any())
    a, b = made((12, 5), "b")
    assert bool(a.isfinite().all()) and bool(b.isnan().any())
    assert bool((a != b).any()) and class_of_recipe(NOT_FINITE) == EXTREME
    (group,) = plan(kernel, "float32", "interpreter", 0)
    cases = [case for case in group.cases if case.fill == NOT_FINITE]
    # an expanded operand has one row of it
    assert {(case.upstream, str(case.layouts), case.only) for case in cases} == {("", "{}", "")}
    assert len(cases) > 1 and max(case.dims[-1] for case in cases) > 64  # in long rows too


def test_a_promised_magnitude_a_domain_or_a_sum_has_no_infinities() -> None:
    """A definition may multiply what it hides by 0, which is NaN for an infinity that a right kernel skips."""
    about: dict[str, Any] = {"shapes": {"x": "n d"}, "dtypes": ["float32"], "gradients": False}

    def recipes(like: Any, **said: Any) -> set[str]:
        (group,) = plan(declared(like, **about, **said), "float32", "interpreter", 0)
        return {case.fill for case in group.cases}

    assert NOT_FINITE in recipes(torch.exp) and NOT_FINITE not in recipes(softmax)
    assert NOT_FINITE in recipes(lambda x: x.abs().amax(-1), where="d >= 1")  # a maximum adds nothing up
    for limited in ({"largest": 8.0}, {"domain": {"x": "0 <= x"}}):
        assert NOT_FINITE not in recipes(torch.exp, **limited)


def test_what_a_softmax_adds_up_may_be_masked() -> None:
    """In rows of -inf, and with -inf in front, where the first block of a long row has nothing else."""

    def merged(a: torch.Tensor, lse_a: torch.Tensor, b: torch.Tensor, lse_b: torch.Tensor) -> torch.Tensor:
        share = torch.stack((lse_a, lse_b)).softmax(0).nan_to_num()
        return a * share[0][:, None] + b * share[1][:, None]

    def attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.tensordot(((q @ k.mT) / 8 + bias).softmax(-1), v, 1)

    rows = {"a": "n d", "b": "n d", "lse_a": "n", "lse_b": "n"}
    tokens = {"q": "s d", "k": "t d", "v": "t d", "bias": "s t"}
    assert declared(merged, shapes=rows).op.normalised == ("lse_a", "lse_b")
    assert declared(attention, shapes=tokens).op.normalised == ("bias",)
    for like in (softmax, lambda x: x.logsumexp(-1), lambda x: (x / 3 - x.amax(-1, True) / 3).exp().sum(-1)):
        assert declared(like, **ROWS, where="d >= 1").op.normalised == ("x",)
    for like in (torch.cumsum, lambda x: x.exp().sum(-1), lambda x: x.sigmoid().sum(-1), lambda x: x @ x.mT):
        assert declared((lambda x: x.cumsum(-1)) if like is torch.cumsum else like, **ROWS).op.normalised == ()
    kernel = declared(merged, shapes=rows, dtypes=["float32"])
    case = case_of(kernel, "float32", dims=(16, 3), fill=MASKED)
    made = inputs_of(kernel.op, case, "cpu")
    a, one, two = (made[name] for name in ("a", "lse_a", "lse_b"))
    assert a is not None and one is not None and two is not None and bool(a.isfinite().all())
    assert bool((one.isinf() & two.isinf()).any()) and bool((one.isinf() & two.isfinite()).any())
    (group,) = plan(declared(softmax, **ROWS), "float32", "interpreter", 0)
    assert {max(case.dims) for case in group.cases if case.fill == MASKED} >= {4097}


def test_the_lower_end_of_an_integer_occurs_beside_a_long_dimension() -> None:
    """A label of -1, where a row has several blocks and few rows fit the budget: with inputs that have a verdict."""

    def loss(x: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(x, label, ignore_index=-1, reduction="none")

    said = {"shapes": {"x": "n v", "label": "n"}, "integers": {"label": "-1 <= label < v"}, "where": "v >= 1"}
    kernel = declared(loss, dtypes=["float32"], **said)
    (group,) = plan(kernel, "float32", "interpreter", 0)
    long = [case for case in group.cases if case.dims[1] > 128 and class_of_recipe(case.fill) != EXTREME]
    labels = [inputs_of(kernel.op, case, "cpu")["label"] for case in long]
    for lowest in (True, False):
        assert any(bool(((each == -1) if lowest else (each > 64)).any()) for each in labels if each is not None)


def test_a_lone_integer_is_small_beside_numbers_near_a_constant() -> None:
    """A bias correction of 100,000 steps is 1: eps inside of it or outside is the same then."""

    def step(m: torch.Tensor, v: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
        return m / ((v / (1 - 0.999**step)).sqrt() + 1e-8)

    said = {"shapes": {"m": "n", "v": "n", "step": ""}, "domain": {"v": "0 <= v <= 1e8"}, "dtypes": ["float32"]}
    kernel = declared(step, integers={"step": "1 <= step <= 100000"}, **said)
    (group,) = plan(kernel, "float32", "interpreter", 0)
    near = [inputs_of(kernel.op, case, "cpu")["step"] for case in group.cases if case.fill.startswith("near ")]
    assert near and all(each is not None and 1 <= int(each) <= 64 for each in near)


def test_an_elementwise_function_has_many_numbers_where_it_bends() -> None:
    """Of a long vector, some numbers are beyond a threshold of 5 and some are between 5 and 5.8."""
    kernel = declared(torch.nn.functional.softplus, shapes={"x": "n"}, dtypes=["float32"], gradients=False)
    (group,) = plan(kernel, "float32", "interpreter", 0)
    x = [inputs_of(kernel.op, case, "cpu")["x"] for case in group.cases if class_of_recipe(case.fill) != EXTREME]
    assert sum(int(((each > 5) & (each < 5.8)).sum()) for each in x if each is not None) >= 8


def test_values_near_a_small_constant_of_the_definition() -> None:
    """The number beside the constant is about as large, whatever lies between it and the operands."""
    kernel = declared(lambda x: x / ((x * x).sum(-1, keepdim=True).sqrt() + 1e-6), **ROWS)
    zero_rows, near = own_recipes(kernel.op)
    assert (zero_rows, float(near.removeprefix("near "))) == ("zero rows", pytest.approx(1e-6, rel=20))
    assert class_of_recipe("near 1e-06") == ORDINARY and class_of_recipe("near 1e-12") == DEMANDING
    v = {"shapes": {"v": "n d"}, "domain": {"v": "0 <= v"}, "dtypes": ["float32"]}
    for like, least, most in (
        (lambda v: 1 / (v.sqrt() + 1e-8), 1e-17, 1e-14),
        (lambda v: v.clamp(min=1e-4).log(), 1e-5, 1e-2),
        (lambda v: (v * v).mean(-1).rsqrt() * (v.mean(-1) + 1e-5), 1e-6, 1e-2),
    ):
        *_, near = own_recipes(declared(like, **v).op)
        assert least < float(near.removeprefix("near ")) < most
    assert own_recipes(declared(lambda x: x.sum(-1) * 1e-6, **ROWS).op) == ("zero rows",)  # shows everywhere


def test_a_long_row_is_negative_throughout_and_another_one_positive() -> None:
    """Padding with 0 joins a maximum only there. Of long columns, one is negative and one is positive."""
    kernel = declared(lambda x: x.amax(-1), shapes={"x": "n d"}, where="d >= 4", dtypes=["float32"])
    for dims, dim in (((4, 300), 1), ((300, 4), 0)):
        x = inputs_of(kernel.op, case_of(kernel, "float32", dims=dims, fill=SIGNS), "cpu")["x"]
        assert x is not None and bool((x < 0).all(dim).any()) and bool((x > 0).all(dim).any())
        assert int(((x < 0).any(dim) & (x > 0).any(dim)).sum()) == 2 and class_of_recipe(SIGNS) == ORDINARY
    (group,) = plan(kernel, "float32", "interpreter", 0)
    assert max(case.dims[1] for case in group.cases if case.fill == SIGNS) > 4096
    whole = {"shapes": {"a": "m k", "b": "n k"}, "integers": {"a": "-128 <= a < 128", "b": "-128 <= b < 128"}}
    (group,) = plan(declared(lambda a, b: (a[:, None] * b).sum(-1), **whole), "float32", "interpreter", 0)
    assert max(case.dims[1] for case in group.cases if case.fill == AT_BOUNDS[1]) > 4096  # beyond 2^24, if added up


def test_a_tensor_has_two_long_dimensions_and_more_elements_than_16_bits_count() -> None:
    kernel = declared(lambda w, at: w[at], shapes={"w": "v d", "at": "n"}, integers={"at": "0 <= at < v"})
    (group,) = plan(kernel, "float32", "interpreter", 0)
    cases = [case for case in group.cases if case.dims[0] * case.dims[1] > 1 << 16]
    last = [inputs_of(kernel.op, case, "cpu")["at"] for case in cases]
    assert any(at is not None and int(at.max()) == case.dims[0] - 1 for case, at in zip(cases, last, strict=True))


def test_two_dimensions_are_equal_in_some_case() -> None:
    """A kernel may find a dimension by its size."""
    kernel = declared(lambda x: x.mean(1), shapes={"x": "b m n"}, where="m >= 1", dtypes=["float32"])
    (group,) = plan(kernel, "float32", "interpreter", 0)
    for one, other in ((0, 1), (1, 2)):
        assert any(case.dims[one] == case.dims[other] > 3 for case in group.cases)


def test_labels_of_the_outer_rows_are_the_confident_ones() -> None:
    """Else no case has a gradient of a loss in a row that is sure of its label, which some kernels skip."""
    sizes = {"shapes": {"x": "n v", "at": "n"}, "integers": {"at": "0 <= at < v"}, "where": "n >= 1 and v >= 1"}
    kernel = declared(lambda x, at: functional.cross_entropy(x, at), **sizes)
    for seed in range(8):
        for rows in (3, 40):
            given = inputs_of(kernel.op, Case("float32", (rows, 7), "confident", seed=seed), "cpu")
            assert given["x"] is not None and given["at"] is not None
            assert given["x"].argmax(-1)[[0, -1]].tolist() == given["at"][[0, -1]].tolist() == [0, 6]


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_layout_has_a_single_number_and_nothing(layout: str) -> None:
    """The gradient that arrives at a loss has no dimension."""
    for shape in ((), (0, 3), (1, 1)):
        laid = lay_out(torch.full(shape, 2.0), layout)
        assert laid.shape == shape and bool((laid == 2).all())


def test_a_gap_behind_the_second_to_last_dimension() -> None:
    x = torch.arange(24.0).reshape(2, 3, 4)
    laid = lay_out(x, "matrices apart")
    assert torch.equal(laid, x) and laid.stride() == (16, 4, 1)
    gap = laid.as_strided((2, 4), (16, 1), laid.storage_offset() + 12)
    assert bool(gap.isnan().all()) and math.isnan(float(gap[0, 0]))
