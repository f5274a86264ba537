"""The searcher: finds what has a slope, claims nothing where there is none, repeats itself, says only exact figures."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import mpmath
import pytest
import torch

from verify.backends import Backend
from verify.cases import Case, inputs_of, upstream_of
from verify.declare.declaration import Kernel
from verify.declare.discovery import load
from verify.declare.target import Declared, Target
from verify.errors import KernelError, UsageError
from verify.records.contradictions import contradictions
from verify.records.record import value_of
from verify.search.hunt.outcome import Hunted, hunt
from verify.search.hunt.requests import Hunt, Settings
from verify.search.hunt.space import searchable, space_of
from verify.truth import exact
from verify.truth.exact import BeyondEffort
from verify.truth.formats import named

FILE = Path(__file__).parent / "quarry.py"
KERNELS = {kernel.name: kernel for kernel in load(Target(str(FILE)))}


def hunted(
    backend: Backend, name: str, evaluations: int, *, dtype: str = "float32", result: str = "y", **rest: object
) -> Hunted:
    settings = Settings(evaluations=evaluations, **({"population": 1 << 12} | rest))  # type: ignore[arg-type]
    return hunt(KERNELS[name], f"k.py::{name}", backend, Hunt(dtype, result), settings)


def largest(found: Hunted) -> float:
    figures = found.result.figures
    return value_of(figures.max_ulp if figures.scaled_max is None else figures.scaled_max)


# -- needles -------------------------------------------------------------------------------------------


def test_an_error_in_one_binade_is_climbed_to_its_peak(backend: Backend) -> None:
    found = hunted(backend, "one_exponent", 1 << 17)
    # every hundredth number of the binade, by plain float64: an error of 1e3 needs no more
    x = torch.arange(0x3A800000, 0x3B000000, 100, dtype=torch.int32).view(torch.float32)
    wide = x.double() / (1 + torch.exp(-x.double()))
    unit = torch.exp2(torch.floor(torch.log2(wide)) - 23)
    peak = float(((KERNELS["one_exponent"](x).double() - wide) / unit).abs().max())
    assert peak > 1_000 and largest(found) >= 0.999 * peak
    assert found.result.status == "wrong" and "the limit is 4" in found.result.reason
    (text,) = found.result.worst[0].inputs.values()
    assert 2.0**-10 <= float(text.split(" ")[0]) < 2.0**-9


def test_an_error_of_one_pattern_pair_is_climbed_through_its_slope(backend: Backend) -> None:
    found = hunted(backend, "one_pair", 1 << 17)
    control = hunted(backend, "one_pair", 1 << 17, strategy="random")
    # all 23 bits agree, and the product lies at the upper end of its binade
    peak = 2.0**-22 * (2**11.5 - 1) * 2**24
    assert largest(found) >= 0.8 * peak > 2 * largest(control)


def test_a_needle_without_a_slope_is_not_claimed(backend: Backend) -> None:
    found = hunted(backend, "one_pattern", 1 << 15)
    assert found.result.status == "ok" and largest(found) <= 0.5 + 1e-6
    assert found.result.basis.kind == "observed" and found.result.basis.n == 1 << 15
    assert str(found.result.basis) == "observed over 32,768 cases, seed 0"
    assert found.result.source == "hunt"
    # the needle is there: the search is honest, not the kernel
    assert float(KERNELS["one_pattern"](torch.tensor([1.2345678806304932]))) == 5.0


def verify_kernel(name: str, *, op: str = "silu", **more: object):  # type: ignore[no-untyped-def]
    import verify

    return verify.kernel(op=op, dtypes=["float32"], gradients=False, name=name, **more)


# -- rows and dot products -----------------------------------------------------------------------------


def test_rows_that_cancel_are_found(backend: Backend) -> None:
    """With eight calls, before random sampling meets a weight and bias that cancel too."""
    for seed in range(2):
        found = hunted(backend, "one_pass", 1 << 9, largest=100.0, population=64, width=32, seed=seed)
        control = hunted(
            backend, "one_pass", 1 << 9, largest=100.0, population=64, width=32, seed=seed, strategy="random"
        )
        assert largest(found) > 10 * largest(control) > 0
        assert found.finds[0].case.dims == (1, 32)


def test_the_reference_is_right_on_rows_that_a_search_makes_cancel(backend: Backend) -> None:
    """Large elements that cancel hide the mean from 100 bits: there the certificate must hold, and float64 is right."""

    @verify_kernel("in_float64", op="layer_norm", operands=["x"])
    def in_float64(x: torch.Tensor, *, eps: float) -> torch.Tensor:
        return torch.nn.functional.layer_norm(x.double(), x.shape[-1:], eps=eps).to(x.dtype)

    settings = Settings(evaluations=1 << 11, width=8, population=128)
    found = hunt(in_float64, "k.py::in_float64", backend, Hunt("float32", "y"), settings)
    assert largest(found) <= 0.5001


def test_dot_products_are_found(backend: Backend) -> None:
    found = hunted(backend, "naive_linear", 1 << 13, population=128, width=16, largest=1e4)
    control = hunted(backend, "naive_linear", 1 << 13, population=128, width=16, largest=1e4, strategy="random")
    assert found.search.evaluations == 1 << 13
    assert largest(found) > 1.2 * largest(control) > 1


def test_a_declared_magnitude_bounds_the_search(backend: Backend) -> None:
    """A float32 sum overflows where its exact value does not: what a kernel promises may end below that."""

    def naive(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(x, weight, bias)

    everywhere = verify_kernel("naive", op="linear")(naive)
    bounded = verify_kernel("naive", op="linear", largest={"float32": 1e4})(naive)
    assert "inputs up to 10000 in float32" in bounded.promise and "inputs up to" not in everywhere.promise
    settings = Settings(evaluations=1 << 8, width=16, population=16)
    within = hunt(bounded, "k.py::naive", backend, Hunt("float32", "y"), settings)
    assert "x, weight, bias at most 10000 in magnitude" in within.search.space.sentence
    values = inputs_of(bounded.op, within.finds[0].case, backend.device)
    assert all(float(value.abs().max()) <= 1e4 for value in values.values() if value is not None)
    wider = Settings(evaluations=1 << 8, width=16, largest=1e6, population=16)
    assert "at most 1e+06" in hunt(bounded, "k.py::naive", backend, Hunt("float32", "y"), wider).search.space.sentence


def test_classes_with_a_limit_of_their_own_are_not_searched(backend: Backend) -> None:
    """What is found is judged by the limit of ordinary inputs."""

    def loud(x: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.silu(torch.where(x.abs() > 100_000, x * 1.5, x).double()).float()

    def found(**limits: float | None) -> Hunted:
        made.append(verify_kernel("loud", max_ulp={"float32": limits})(loud))
        return hunt(made[-1], "k.py::loud", backend, Hunt("float32", "y"), Settings(evaluations=1 << 10, population=64))

    made: list[Kernel] = []
    everywhere = found(ordinary=8.0)
    assert everywhere.result.status == "wrong" and everywhere.search.space.sentence.endswith("x finite")
    for limits, least, most in (
        ({"extreme": None}, 2.0**-100, 65_504.0),
        ({"demanding": 64.0}, 2.0**-24, 8.0),
    ):
        narrowed = found(ordinary=8.0, **limits)  # type: ignore[arg-type]
        assert narrowed.result.status == "ok" and "in magnitude" in narrowed.search.space.sentence
        for find in narrowed.finds:
            x = inputs_of(made[0].op, find.case, backend.device)["x"]
            assert x is not None
            size = x.abs()
            assert bool(((size == 0) | ((size >= least) & (size <= most))).all())


def test_gradients_of_rows_have_an_upstream_of_their_own(backend: Backend) -> None:
    found = hunted(backend, "eager_softmax", 256, result="dx", population=32, width=16)
    assert set(found.finds[0].case.values) == {"x", "dy"}
    assert largest(found) > 1


def test_float64_is_searched_in_exact_arithmetic(backend: Backend) -> None:
    found = hunted(backend, "one_pass", 256, dtype="float64", population=32, width=4, largest=1e6)
    assert found.result.certificate == "exact" and largest(found) > 1e3


def test_a_sum_in_order_of_rows_is_driven_to_its_worst(backend: Backend) -> None:
    found = hunted(backend, "row_by_row", 64, result="dweight", population=8, seed=1)
    control = hunted(backend, "row_by_row", 64, result="dweight", population=8, seed=1, strategy="random")
    assert largest(found) > largest(control) > 1
    searched = "hunt: sums over rows in cases of [16, 16], x, weight, dy finite, 0 or "
    assert found.search.space.sentence.startswith(searched)
    for find in found.finds[:1]:  # an independent route: 80 digits of mpmath
        inputs = inputs_of(KERNELS["row_by_row"].op, find.case, backend.device)
        upstream = upstream_of(KERNELS["row_by_row"].op, find.case, {"y": inputs["x"]})["y"]
        with mpmath.workdps(80):
            total = mpmath.mpf(0)
            for x, dy in zip(inputs["x"].tolist(), upstream.tolist(), strict=True):
                mean_square = mpmath.fsum(mpmath.mpf(value) ** 2 for value in x) / len(x)
                eps = mpmath.mpf(find.case.params.get("eps", KERNELS["row_by_row"].op.params["eps"]))
                total += (
                    mpmath.mpf(dy[find.worst.origin.index])
                    * mpmath.mpf(x[find.worst.origin.index])
                    / mpmath.sqrt(mean_square + eps)
                )
            assert find.worst.truth.startswith(mpmath.nstr(total, 12)[:10])


# -- what is said is exact -----------------------------------------------------------------------------


def test_the_reported_error_is_mpmath_s(backend: Backend) -> None:
    """An independent route: the case's bits, the kernel called directly, 60 digits of mpmath."""
    found = hunted(backend, "one_exponent", 1 << 14)
    fmt = named("float32")
    for find in found.finds:
        pattern = int(find.case.values["x"][:8], 16)
        x = torch.tensor([pattern], dtype=torch.int64).to(torch.int32).view(torch.float32).to(backend.device)
        got = float(KERNELS["one_exponent"](x)[0])
        with mpmath.workdps(60):
            real = mpmath.mpf(float(x[0])) / (1 + mpmath.exp(-mpmath.mpf(float(x[0]))))
            exponent = max(int(mpmath.floor(mpmath.log(abs(real), 2))), -126) - 23
            error = float((mpmath.mpf(got) - real) / mpmath.mpf(2) ** exponent)
        assert find.judged.ulp == pytest.approx(error, rel=1e-12)
        assert find.worst.got_hex == fmt.hex(fmt.from_float(got))


def test_every_find_is_a_case_that_shows_it(backend: Backend) -> None:
    found = hunted(backend, "eager_softmax", 512, result="y", population=64, width=16)
    kernel = KERNELS["eager_softmax"]
    for find in found.finds:
        assert find.alone
        case = Case.from_json(find.case.to_json())
        x = inputs_of(kernel.op, case, backend.device)["x"]
        assert x is not None
        row = [mpmath.mpf(value) for value in x[0].tolist()]
        with mpmath.workdps(80):
            weights = [mpmath.exp(value - max(row)) for value in row]
            real = weights[find.worst.origin.index] / mpmath.fsum(weights)
            got = mpmath.mpf(float(kernel(x)[0, find.worst.origin.index]))
            exponent = max(int(mpmath.floor(mpmath.log(real, 2))), -126) - 23
            error = float((got - real) / mpmath.mpf(2) ** exponent)
        assert find.judged.ulp == pytest.approx(error, rel=1e-9)


def test_a_nan_is_the_worst_there_is_and_ends_the_hunt(backend: Backend) -> None:
    found = hunted(backend, "nan_somewhere", 1 << 20)
    assert found.result.figures.max_ulp == "nan" and found.result.status == "wrong"
    assert found.result.reason == "NaN where the exact answer is a number"
    assert found.search.evaluations < 1 << 20
    assert any("nothing is worse" in note for note in found.notes)
    assert found.result.worst[0].got == "nan"
    assert float(found.result.worst[0].inputs["x"].split(" ")[0]) > 2.0**100


def test_a_find_that_exact_arithmetic_does_not_settle_is_undecided_and_no_maximum(
    backend: Backend, monkeypatch: pytest.MonkeyPatch
) -> None:
    def beyond(*given: object, **more: object) -> None:
        raise BeyondEffort("too long")

    monkeypatch.setattr(exact, "judge", beyond)
    found = hunted(backend, "one_exponent", 1 << 12)
    assert found.result.status == "undecided" and found.result.worst == []
    assert found.result.reason.startswith("exact arithmetic would have taken too long at ")
    figures = found.result.figures
    assert 0 < figures.open <= figures.undecided and figures.max_ulp == 0.0
    run = Declared("k.py::k", "k", "silu", "elementwise", {}, "", (), ()).run("undecided", results=[found.result])
    assert list(contradictions(run)) == []


@pytest.mark.parametrize(
    ("dtype", "population", "most", "within"), [("float32", 1 << 12, 2**24, 0.01), ("float64", 128, 2**53, 0.1)]
)
def test_an_error_that_needs_company_is_judged_and_said_to_be_so(
    backend: Backend, dtype: str, population: int, most: int, within: float
) -> None:
    found = hunted(backend, "neighbourly", population, dtype=dtype, population=population)
    assert not any(find.alone for find in found.finds[:1])
    assert any(find.worst.got.startswith("-") for find in found.finds)
    assert largest(found) == pytest.approx(1e-5 * most, rel=within)
    assert any("results depend on their neighbours" in note for note in found.notes)


# -- determinism ---------------------------------------------------------------------------------------


def test_a_seed_decides_everything(backend: Backend) -> None:
    for name, many, rest in (
        ("one_exponent", 1_100, {"population": 1 << 9}),
        ("one_pass", 100, {"population": 32, "width": 8}),
        ("row_by_row", 5, {"population": 2, "result": "dweight"}),
    ):
        first, second = (hunted(backend, name, many, seed=7, **rest) for _ in range(2))
        other = hunted(backend, name, many, seed=8, **rest)
        assert first.result == second.result and first.notes == second.notes
        assert first.result.worst != other.result.worst
        assert first.result.properties == other.result.properties


def test_a_time_budget_only_stops_earlier(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    from verify.search.hunt import search

    ticks = iter(range(1_000))
    monkeypatch.setattr(search.time, "monotonic", lambda: float(next(ticks)))
    kernel = KERNELS["one_exponent"]
    timed = hunt(kernel, "k.py::one_exponent", backend, Hunt("float32", "y"), Settings(seconds=4.5, population=1 << 10))
    monkeypatch.undo()
    assert timed.search.generations == 5
    counted = hunted(backend, "one_exponent", timed.search.evaluations, population=1 << 10)
    assert counted.result == timed.result


def test_an_interrupted_hunt_keeps_its_best(backend: Backend) -> None:
    calls: list[float] = []

    def stop() -> bool:
        calls.append(1.0)
        return len(calls) == 3

    kernel = KERNELS["one_exponent"]
    settings = Settings(evaluations=1 << 30, population=1 << 12)
    found = hunt(kernel, "k.py::k", backend, Hunt("float32", "y"), settings, stop=stop)
    assert found.search.stopped == "interrupted" and found.search.generations == 3
    assert found.result.basis.n == found.search.evaluations == 3 << 12
    assert found.finds and any("interrupted" in note for note in found.notes)


# -- rules ---------------------------------------------------------------------------------------------


def test_what_cannot_be_hunted_says_why(backend: Backend) -> None:
    with pytest.raises(UsageError, match="input of 'silu' can be tried"):
        space_of(KERNELS["sixteen_bits"], "float16", "y", backend.device)
    with pytest.raises(UsageError, match="has results y; received 'dx'"):
        space_of(KERNELS["right"], "float32", "dx", backend.device)
    norm = KERNELS["one_pass"]
    full = Kernel(**{**vars(norm), "operands": ("x", "weight", "bias"), "gradients": "auto"})
    assert searchable(full, "float32", "dx") is None
    with pytest.raises(
        UsageError, match="--width is at most 4,096 for dweight: a case spells out 16 rows; received 5,000"
    ):
        space_of(full, "float32", "dweight", backend.device, width=5_000)
    linear = Kernel(**{**vars(KERNELS["naive_linear"]), "gradients": "auto"})
    assert searchable(linear, "float32", "dweight") is None
    assert searchable(linear, "float32", "dx") == "a hunt searches sums over rows; dx of 'linear' sums over columns"


def test_a_kernel_that_raises_is_that_kernel_s_error(backend: Backend) -> None:
    with pytest.raises(KernelError, match="RuntimeError: no such unit"):
        hunted(backend, "refuses", 10)


def test_no_candidate_leaves_the_range_that_was_asked_for(backend: Backend) -> None:
    seen: list[float] = []

    @verify_kernel("watching")
    def watching(x: torch.Tensor) -> torch.Tensor:
        seen.append(float(x.abs().max()))
        return KERNELS["right"](x)

    hunt(
        watching,
        "k.py::w",
        backend,
        Hunt("float32", "y"),
        Settings(evaluations=1 << 14, largest=3.4, population=1 << 11),
    )
    within = named("float32").to_float(named("float32").from_float(3.4) - 1)  # 3.4 itself rounds up
    assert max(seen[2:]) == within


# -- what hunts found before ---------------------------------------------------------------------------

# Lower quartiles of nine seeds of the search that came before this one, with as many evaluations.
FOUND = [
    ("quarry.py", "one_exponent", "y", 1 << 17, {"population": 1 << 12}, 1_669.0),
    ("quarry.py", "one_pair", "y", 1 << 17, {"population": 1 << 12}, 11_220.0),
    ("quarry.py", "one_pass", "y", 1 << 11, {"population": 64, "width": 32, "largest": 100.0}, 1.37e8),
    ("quarry.py", "naive_linear", "y", 1 << 13, {"population": 128, "width": 16, "largest": 1e4}, 3.07),
    ("graphs.py", "one_pair", "y", 1 << 15, {"population": 1 << 11, "width": 6}, 14.2),
    ("../../../properties/geglu.py", "geglu", "y", 1 << 16, {}, 0.7213),
    ("../../../properties/gelu.py", "gelu", "y", 1 << 18, {}, 0.7309),
    ("../../../examples/pytorch.py", "layer_norm", "y", 1 << 12, {"largest": 1e4}, 2.6e8),
    ("../../../examples/pytorch.py", "layer_norm", "dx", 1 << 11, {"largest": 1e4}, 3.56e7),
    ("../../../examples/pytorch.py", "softmax", "y", 1 << 12, {}, 66.7),
    ("../../../examples/functions.py", "cosine_similarity", "y", 1 << 11, {"largest": 1e4}, 3.67),
    ("../../../examples/functions.py", "attention", "y", 512, {"largest": 1e2}, 3.2),
]


@pytest.mark.slow
@pytest.mark.parametrize(("file", "name", "result", "evaluations", "rest", "before"), FOUND)
def test_a_hunt_finds_at_least_what_it_found_before(
    backend: Backend, file: str, name: str, result: str, evaluations: int, rest: dict[str, Any], before: float
) -> None:
    if backend.name == "cuda":
        pytest.skip("the figures are those of kernels on a CPU")
    path = FILE.parent / file
    kernel = next(kernel for kernel in load(Target(str(path))) if kernel.name.partition("@")[0] == name)
    found = []
    for seed in range(9):
        settings = Settings(seed=seed, evaluations=evaluations, **rest)
        done = hunt(kernel, f"k.py::{name}", backend, Hunt("float32", result), settings)
        found.append(largest(done))
    finite = sorted(math.inf if math.isnan(value) else value for value in found)
    assert finite[4] >= before, finite
