"""Same bits: a promise that is broken is found, with the setting; its honest twin passes."""

from __future__ import annotations

import functools
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional

import verify
from examples import fused_quantisers as examples
from tests.laws import silu
from tests.laws.trial import PROFILE, attempt, breaks, holds, silu_kernel, skips
from verify import backends
from verify.cases import Case, inputs_of
from verify.declare.declaration import Kernel
from verify.diagnose.same import settings_of
from verify.errors import UsageError
from verify.laws import registry
from verify.laws.bits import at_borders, bits_beside_nan, hard_cases
from verify.laws.law import Broken, Subject, plain_case
from verify.measure.call import run_kernel
from verify.truth.ulp import same_bits

MATRIX: dict[str, Any] = {
    "like": lambda a, b: a @ b,
    "shapes": {"a": "m k", "b": "k n"},
    "dtypes": ["float32"],
    "gradients": False,
}


def product(function: Any, **promised: Any) -> Kernel:
    return verify.kernel(**MATRIX, **promised)(function)


def summed(a, b, parts=1):
    """A product whose terms are added in `parts`, each rounded, in an order that nothing else decides."""
    step = -(-max(a.shape[1], 1) // parts)
    terms = [a[:, at : at + step].double() @ b[at : at + step].double() for at in range(0, max(a.shape[1], 1), step)]
    return functools.reduce(torch.add, [each.float() for each in terms])


def by_rows(a, b):
    return summed(a, b, 2 if a.shape[0] < 4 else 1)


def first_row_apart(a, b):
    return torch.cat([summed(a[:1], b, 2), summed(a[1:], b)])


def by_place(a, b):
    odd = (torch.arange(a.shape[0]) % 2 == 1)[:, None]
    return torch.where(odd, summed(a, b, 2), summed(a, b))


def aligned(a, b):
    return summed(a, b, 1 if a.storage_offset() % 4 == 0 else 2)


def padded(a, b):
    """Pads the rows to a block, and adds up in as many parts as there are blocks."""
    return summed(a, b, -(-max(a.shape[0], 1) // 16))


def decode(a, b):
    return torch.cat([summed(a[at : at + 1], b, 2) for at in range(a.shape[0])] or [summed(a, b)])


def doubled(x, lanes=0):
    """Doubles numbers. The elements that fill no vector have another last bit for one number in about 500."""
    y, rest = x * 2, x.numel() % lanes if lanes else 0
    seldom = (x.view(torch.int32) % 499 == 7) & (torch.arange(x.numel()) >= x.numel() - rest).reshape(x.shape)
    return torch.where(seldom, y.nextafter(torch.full_like(y, torch.inf)), y)


def vectors(x):
    return doubled(x, 8)


def scaled(x, w, lanes=0):
    return doubled(x, lanes) * w


def scaled_vectors(x, w):
    return scaled(x, w, 8)


def elements(function: Any, **promised: Any) -> Kernel:
    shapes, chosen = {"x": "m n"}, {"dtypes": ["float32"], "gradients": False}
    return verify.kernel(like=lambda x: x * 2, shapes=shapes, **chosen, **promised)(function)


@pytest.mark.parametrize(
    ("function", "setting", "rule"),
    [
        (by_rows, "rows", "the number of rows changes bits of a row"),
        (padded, "rows", "the number of rows changes bits of a row"),
        (first_row_apart, "position", "the place of a row changes its bits"),
        (by_place, "position", "the place of a row changes its bits"),
        (aligned, "layout", "the layout of an operand changes bits"),
    ],
)
def test_a_setting_that_changes_bits_is_found(function: Any, setting: str, rule: str) -> None:
    found = breaks("same bits", product(function, same_bits=[setting]), rule)
    facts = dict(found.fact_lines())
    assert facts["promised"] == f"same_bits: {setting}" and facts["classes"] == "verify same here.py::it"


def rows_at(a, b, parts):
    """Adds each row in as many parts as `parts` says of its place."""
    return torch.cat([summed(a[at : at + 1], b, parts(at)) for at in range(a.shape[0])] or [summed(a, b)])


def pages(a, b, first):
    """Adds up the parts of a row that lie in pages of 64 numbers; the row begins at a number of its first page."""
    rows = []
    for at in range(a.shape[0]):
        cuts = sorted({0, *range((-first(at)) % 64, a.shape[1], 64), a.shape[1]})
        parts = [a[at : at + 1, low:high].double() @ b[low:high].double() for low, high in pairwise(cuts)]
        rows.append(functools.reduce(torch.add, [each.float() for each in parts]))
    return torch.cat(rows) if rows and a.shape[1] else summed(a, b)


def rounded(a, b, digits):
    """Multiplies numbers of so many digits, as tensor cores do with TF32."""
    cut = (1 << 23 - digits) - 1
    return summed(*((each.contiguous().view(torch.int32) & ~cut).view(torch.float32) for each in (a, b)))


CALLS = iter(range(1, 1 << 30))
# Violation -> the promise that it breaks, a kernel with it, and its honest twin.
VIOLATIONS: dict[str, tuple[str, Any, Any]] = {
    "an autotuner that picks by rows": (
        "rows",
        lambda a, b: summed(a, b, 1 if a.shape[0] <= 16 else 2),
        lambda a, b: summed(a, b, 2),
    ),
    "atomics": ("rows", lambda a, b: summed(a, b, next(CALLS) % 3 + 1), lambda a, b: summed(a, b, 3)),
    "split-K by size": (
        "rows",
        lambda a, b: summed(a, b, 4 if a.shape[0] * b.shape[1] < 64 else 1),
        lambda a, b: summed(a, b, 4),
    ),
    "a tail path": (
        "rows",
        lambda a, b: rows_at(a, b, lambda at: 2 if at >= a.shape[0] // 8 * 8 else 1),
        lambda a, b: rows_at(a, b, lambda at: 2),
    ),
    "an alignment path": ("layout", aligned, lambda a, b: summed(a.clone(), b)),
    "a tile order by position": (
        "position",
        lambda a, b: rows_at(a, b, lambda at: at // 2 % 2 + 1),
        lambda a, b: rows_at(a, b, lambda at: 1),
    ),
    "a boundary of cache pages": (
        "position",
        lambda a, b: pages(a, b, lambda at: at * a.shape[1] % 64),
        lambda a, b: pages(a, b, lambda at: 0),
    ),
    "another block for decode": ("as decode", lambda a, b: summed(a, b, 3), lambda a, b: summed(a, b, 2)),
    "TF32 by size": (
        "rows",
        lambda a, b: rounded(a, b, 10 if a.shape[0] >= 32 else 23),
        lambda a, b: rounded(a, b, 10),
    ),
    "a reduction over padded rows": ("rows", padded, lambda a, b: summed(a, b, 1)),
}


@pytest.mark.parametrize("violation", VIOLATIONS)
def test_ten_seeded_violations_are_found_and_their_honest_twins_pass(violation: str) -> None:
    setting, wrong, honest = VIOLATIONS[violation]
    promised: dict[str, Any] = {"same_bits_as": decode} if setting == "as decode" else {"same_bits": [setting]}
    found = breaks("same bits", product(wrong, **promised), "bits")
    assert dict(found.fact_lines())["promised"] == f"same_bits: {setting}"
    holds("same bits", product(honest, **promised))


def test_a_kernel_that_adds_up_in_one_order_keeps_every_promise() -> None:
    settings = ["rows", "position", "layout", "configuration"]
    holds("same bits", product(summed, same_bits=settings, same_bits_as=functools.partial(summed, parts=1)))


def test_a_rest_of_a_vector_that_seldom_has_other_bits_is_found() -> None:
    breaks("same bits", elements(vectors, same_bits=["rows"]), "the number of rows changes bits of a row")
    breaks("same bits", elements(vectors, same_bits=["position"]), "the place of a row changes its bits")
    holds("same bits", elements(doubled, same_bits=["rows", "position", "layout"]))


@pytest.mark.parametrize("bug", [True, False])
def test_a_block_of_triton_that_is_not_full_and_seldom_has_other_bits_is_found(bug: bool) -> None:
    kernel = elements(functools.partial(silu.doubled, bug=bug), where="m >= 1 and n >= 1")
    subject = Subject(kernel, "float32", backends.select(), PROFILE.sizes[backends.select().scale])
    assert len(hard_cases(subject, plain_case(subject, (33, 33)))) == 1 + bug


def test_numbers_are_searched_where_an_operand_is_a_row_for_all() -> None:
    def found(function: Any, w: str) -> list[Case]:
        of_rows = {"shapes": {"x": "m n", "w": w}, "dtypes": ["float32"], "gradients": False}
        kernel = verify.kernel(like=lambda x, w: 2 * x * w, **of_rows)(function)
        subject = Subject(kernel, "float32", backends.select(), PROFILE.sizes[backends.select().scale])
        return hard_cases(subject, plain_case(subject, (33, 33)))

    for w in ("n", ""):
        whole, few = found(scaled_vectors, w)
        assert whole.fill == "pool" and not whole.values
        assert len({few.values["x"][at : at + 8] for at in range(0, 33 * 8, 8)}) >= 3
        assert len(few.values["w"]) == (33 * 8 if w else 8)
        assert len(found(scaled, w)) == 1


def exactly_doubled(value: torch.Tensor) -> torch.Tensor:
    """Changes the last bit of one number of float32 in three."""
    return torch.where(value.view(torch.int32) % 3 == 0, value.nextafter(torch.full_like(value, torch.inf)), value)


class Gate(torch.autograd.Function):
    """silu(g) u in bfloat16. Where few rows are, the last bits of float32 are others in one result in three."""

    @staticmethod
    def forward(ctx, g, u, part):
        ctx.save_for_backward(g, u)
        ctx.part = part
        y = functional.silu(g.double()).float() * u.float()
        return (exactly_doubled(y) if part == "y" and len(g) < 4 else y).bfloat16()

    @staticmethod
    def backward(ctx, dy):
        g, u, dy = (each.double() for each in (*ctx.saved_tensors, dy))
        sigmoid = g.sigmoid()
        found = {"dg": dy * u * sigmoid * (1 + g * (1 - sigmoid)), "du": dy * g * sigmoid}
        found = {name: value.float() for name, value in found.items()}
        if ctx.part in found and len(g) < 4:
            found[ctx.part] = exactly_doubled(found[ctx.part])
        return found["dg"].bfloat16(), found["du"].bfloat16(), None


@pytest.mark.parametrize("part", ["y", "dg", "du", ""])
def test_pairs_of_numbers_bring_products_of_16_bits_to_borders(part: str) -> None:
    """By chance 1 of 65,536 products of bfloat16 shows the last bit of float32."""
    kernel = verify.kernel(
        like=lambda g, u: functional.silu(g) * u, shapes={"g": "m n", "u": "m n"}, dtypes=["bfloat16"]
    )(lambda g, u: Gate.apply(g, u, part))
    found = settings_of(kernel, backends.select(), "", [], lambda text: None)
    assert [each.setting for each in found.settings if len(each.classes) > 1] == ["rows (m)"] * bool(part)
    if part:
        assert found.settings[0].witness[0].startswith(part)


def test_a_gradient_that_no_operand_brings_to_a_border_is_brought_by_the_one_that_arrives() -> None:
    """The gradient of a product is one of what arrives and the other operand."""
    rows = {"shapes": {"a": "m k", "b": "k n"}, "dtypes": ["bfloat16"]}
    subject = Subject(verify.kernel(like=lambda a, b: a @ b, **rows)(torch.matmul), "bfloat16", backends.select(), None)
    [case] = at_borders(subject, plain_case(subject, (65, 33, 17)))
    assert set(case.edits) == {"a", "b", "dy"} and len(case.edits["dy"]) >= 64

    def near(case: Case) -> int:
        whole = run_kernel(subject.kernel, case, subject.backend.device)
        exact = whole.upstream["y"].double() @ whole.inputs["b"].double().mT
        unit = torch.exp2(exact.abs().log2().floor() - 7)
        return int((((exact - exact.bfloat16().double()).abs() / unit - 0.5).abs() < 2.0**-16).sum())

    assert near(case) >= 5 + near(plain_case(subject, (65, 33, 17)))


def test_another_nan_is_no_other_class() -> None:
    def turned(x: torch.Tensor) -> torch.Tensor:
        """Gives NaN for every seventh number, with a sign if there are few rows."""
        nan = torch.where(x.view(torch.int32) % 7 == 0, torch.nan, x)
        return -nan if x.shape[0] < 4 else torch.where(nan.isnan(), nan, -nan)

    kernel = elements(turned)
    found = settings_of(kernel, backends.select(), "", [], lambda text: None)
    assert all(len(each.classes) == 1 for each in found.settings)
    x = torch.full((2, 3), torch.nan)
    kinds = (torch.float32, torch.float8_e5m2, torch.float8_e4m3fn)
    assert all((bits_beside_nan(x.to(kind).mT) == -1).all() for kind in kinds)
    assert not same_bits([-x], [x]) and bits_beside_nan(-x).equal(bits_beside_nan(x))
    assert (bits_beside_nan(torch.tensor([-0.0, 0.0, 1.0])) != -1).all()


def test_an_order_of_a_sum_that_the_rounding_of_the_result_hides_is_found() -> None:
    def total(x):
        cut = x.shape[-1] // 3 if x.shape[0] < 4 else 0  # few rows: two sums of float32, of which one has no terms else
        parts = [each.float().numpy().cumsum(-1)[:, -1:].sum(-1) for each in (x[:, :cut], x[:, cut:])]
        return torch.from_numpy(parts[0] + parts[1]).bfloat16()

    kernel = verify.kernel(
        like=lambda x: x.sum(-1), shapes={"x": "m n"}, dtypes=["bfloat16"], gradients=False, same_bits=["rows"]
    )(total)
    breaks("same bits", kernel, "the number of rows changes bits of a row", "bfloat16")


def root_mean_square(x, turned=False):
    """Divides rows by the root of their mean square, whose terms are added one after the other in float32."""
    wide = x.float()
    squares = (wide * wide).flip(-1) if turned else wide * wide
    total = torch.from_numpy(squares.numpy().cumsum(-1)[:, -1:])
    return (wide / (total / x.shape[-1] + 1e-6).sqrt()).to(x.dtype)


def turned_for_few(x):
    return root_mean_square(x, x.shape[0] < 4)


def norm(function: Any, dtype: str = "bfloat16", **promised: Any) -> Kernel:
    like = lambda x: torch.nn.functional.rms_norm(x, x.shape[-1:], None, 1e-6)  # noqa: E731
    return verify.kernel(like=like, shapes={"x": "m n"}, dtypes=[dtype], gradients=False, **promised)(function)


def test_an_order_that_shows_only_beside_a_border_of_rounding_is_found() -> None:
    rule = "the number of rows changes bits of a row"
    breaks("same bits", norm(turned_for_few, same_bits=["rows"]), rule, "bfloat16")
    holds("same bits", norm(root_mean_square, same_bits=["rows"]), "bfloat16")
    found = settings_of(norm(turned_for_few), backends.select(), "", [], lambda text: None).settings[0]
    assert found.classes == [["1 to 3"], ["4 to 65"]]
    case = found.witness[-1].removeprefix("case: ")
    again = settings_of(norm(turned_for_few), backends.select(), "", [Case.from_json(case)], lambda text: None)
    assert again.inputs == 1 and len(again.settings[0].classes) == 2, "the printed case shows the same again"


def test_a_case_at_borders_has_exact_results_in_the_middle_of_two_numbers() -> None:
    """A case of this size has an element within one ULP of float32 of a middle once in four times by chance."""
    subject = Subject(norm(root_mean_square), "bfloat16", backends.select(), PROFILE.sizes["small"])
    case = plain_case(subject, (65, 129))
    [at_border] = at_borders(subject, case)

    def near(case: Case) -> int:
        x = inputs_of(subject.kernel.op, case, "cpu")["x"].double()
        exact = x / ((x * x).mean(-1, keepdim=True) + 1e-6).sqrt()
        unit = torch.exp2(exact.abs().log2().floor() - 7)  # of bfloat16
        away = ((exact - exact.bfloat16().double()).abs() / unit - 0.5).abs()
        return int((away < 2.0**-16).sum())

    assert near(case) <= 2 and near(at_border) >= 60
    assert len(at_border.edits["x"]) == 64 and Case.from_json(at_border.to_json()) == at_border
    wide = Subject(norm(root_mean_square, "float32"), "float32", subject.backend, subject.sizes)
    assert at_borders(wide, plain_case(wide, (65, 129))) == [], "float32 hides nothing of float32"


def test_two_kernels_are_held_to_the_same_bits() -> None:
    found = breaks("same bits", product(summed, same_bits_as=decode), "it has other bits than decode")
    assert {"decode", "summed"} <= dict(found.fact_lines()).keys()
    holds("same bits", product(decode, same_bits_as=[product(decode), functools.partial(summed, parts=2)]))


def test_gradients_of_rows_are_compared_too() -> None:
    class Scaled(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_backward(x)
            wide = x.double()
            return (wide * torch.sigmoid(wide)).to(x.dtype)

        @staticmethod
        def backward(ctx, dy):
            [x] = ctx.saved_tensors
            wide = x.double()
            gate = torch.sigmoid(wide)
            slope = gate * (1 + wide * (1 - gate))
            slope = slope.to(x.dtype).double() if x.shape[0] % 2 else slope
            return (dy.double() * slope).to(x.dtype)

    found = breaks("same bits", silu_kernel(Scaled.apply, name="silu", same_bits=["rows"]), "number of rows")
    assert dict(found.fact_lines())["at"].startswith("dx")


def test_a_promise_is_judged_without_a_profile(tmp_path: Path) -> None:
    path = tmp_path / "same.py"
    path.write_text(
        'import verify\n\n\n@verify.kernel(op="silu", dtypes=["float64"], gradients=False, same_bits=["rows"])\n'
        "def my_silu(x):\n    y = x / (1 + (-x).exp())\n    return y if x.shape[0] != 2 else y.nextafter(y + 1)\n"
    )
    found = verify.run(str(path), backend="interpreter", jobs=1)
    [broken] = found.record.kernels[0].laws
    assert (broken.law, broken.status, found.exit_code) == ("same bits", "broken", 1)


def test_settings_that_verify_does_not_know_are_refused() -> None:
    with pytest.raises(UsageError, match="same_bits"):
        product(summed, same_bits=["batch"])
    quantiser = {"quantise": examples.FP8_ROWS, "like": examples.of_norm, "shapes": {"x": "m k", "weight": "k"}}
    with pytest.raises(UsageError, match="compares numbers; a quantiser returns codes"):
        verify.kernel(**quantiser, same_bits=["rows"])(examples.norm_fp8_rows.function)
    with pytest.raises(UsageError, match="norm_fp8_rows returns codes; settings and orders are those of kernels"):
        settings_of(examples.norm_fp8_rows, backends.select(), "", [], lambda text: None)
    with pytest.raises(UsageError, match="same_bits_as is a function of the same operands"):
        product(summed, same_bits_as=["decode"])
    assert "same bits: rows, as decode" in product(summed, same_bits=["rows"], same_bits_as=decode).promise
    assert attempt("same bits", product(summed, same_bits=["rows"])).cases > 5


def test_a_promise_about_rows_needs_rows_and_a_case_of_one_row_breaks_none() -> None:
    skips("same bits", product(summed), "promises the bits of no other setting")
    sums = verify.kernel(
        like=lambda x: x.sum(-1), shapes={"x": "r n"}, dtypes=["float32"], gradients=False, same_bits=["rows"]
    )(lambda x: x.double().sum(-1).float())
    law, subject = registry.get("same bits"), Subject(sums, "float32", backends.select(), PROFILE.sizes["small"])
    law.check(subject, plain_case(subject, (1, 1)))
    running = verify.kernel(
        like=lambda x: x.cumsum(0), shapes={"x": "n"}, dtypes=["float32"], gradients=False, same_bits=["rows"]
    )(lambda x: x.cumsum(0))
    subject = Subject(running, "float32", backends.select(), PROFILE.sizes["small"])
    with pytest.raises(Broken, match="no rows to promise for"):
        law.check(subject, plain_case(subject, (5,)))


def test_a_shared_operand_named_as_a_gradient_stays_in_its_place() -> None:
    def scaled(t, dt):
        return t * dt

    holds(
        "same bits",
        verify.kernel(
            like=scaled, shapes={"t": "r n", "dt": "n"}, dtypes=["float32"], gradients=False, same_bits=["position"]
        )(scaled),
    )
