"""Hunts of PyTorch functions: what a candidate is, what one call holds, and that finds replay and shrink."""

from __future__ import annotations

import json
import shlex
from functools import cache
from pathlib import Path

import pytest
import torch

import verify
from tests.cli.here import said
from tests.measure.test_kernel import CPU
from verify.backends import Backend
from verify.cases import Case, inputs_of
from verify.cases.strategies import Sizes
from verify.declare.declaration import Kernel
from verify.declare.discovery import load
from verify.declare.target import Target
from verify.diagnose.replay import replay
from verify.errors import UsageError
from verify.laws.law import Subject
from verify.laws.shrink import shrink_element
from verify.measure.kernel import measure_kernel
from verify.measure.requests import Measure
from verify.ops.graph import single
from verify.records.record import replay_command, value_of
from verify.search.hunt.draws import Draws
from verify.search.hunt.edits import fresh, fresh_shared
from verify.search.hunt.outcome import Hunted, hunt
from verify.search.hunt.requests import Hunt, Settings
from verify.search.hunt.serve import allowed
from verify.search.hunt.space import one_of, searchable, space_of

pytestmark = pytest.mark.usefixtures("warm")

FILE = Path(__file__).parent / "graphs.py"


@cache
def kernels() -> dict[str, Kernel]:
    """Traced by who runs these tests, not by all who collect them: three seconds."""
    return {kernel.name: kernel for kernel in load(Target(str(FILE)))}


def hunted(backend: Backend, name: str, evaluations: int, result: str = "y", **rest: object) -> Hunted:
    settings = Settings(evaluations=evaluations, **({"population": 0} | rest))  # type: ignore[arg-type]
    return hunt(kernels()[name], f"k.py::{name}", backend, Hunt("float32", result), settings)


def test_a_wrong_element_is_found_and_replayed_by_its_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where an exact value would depend on too many numbers."""
    kernel = kernels()["one_pair"]
    monkeypatch.setattr(single, "_EFFORT", 0)
    monkeypatch.setattr(single, "_CHEAP", 0)
    [result] = measure_kernel(kernel, Measure("k.py::one_pair"), CPU).results
    monkeypatch.undo()
    [known] = measure_kernel(kernel, Measure("k.py::one_pair"), CPU).results
    assert result.escalated == 0 < known.escalated
    assert value_of(result.figures.max_upper) == pytest.approx(value_of(known.figures.max_upper), rel=1e-6)
    worst = known.worst[0].origin
    exact = replay(kernel, "k.py::k", CPU, Case.from_json(worst.case), result="y", index=worst.index)
    monkeypatch.setattr(single, "_EFFORT", 0)
    monkeypatch.setattr(single, "_CHEAP", 0)
    seen = replay(kernel, "k.py::k", CPU, Case.from_json(worst.case), result="y", index=worst.index)
    low, high = map(float, seen.worst.truth.split(" to "))
    assert low <= float(exact.worst.truth) <= high
    assert value_of(seen.worst.ulp) == pytest.approx(value_of(exact.worst.ulp), abs=1e-6)


def test_what_cases_do_not_meet_a_hunt_climbs_to_replays_and_makes_smaller(backend: Backend) -> None:
    kernel = kernels()["one_pair"]
    run = measure_kernel(kernel, Measure("k.py::one_pair"), CPU)
    assert run.status == "ok"
    # random numbers of PyTorch differ by processor, and with them the route of a search: one of a few gets there
    searches = (hunted(backend, "one_pair", 1 << 15, width=6, population=1 << 11, seed=seed) for seed in range(4))
    found = next(each for each in searches if each.result.status == "wrong")
    assert found.search.space.sentence == "hunt: cases of n = 3, x finite" and found.search.evaluations == 1 << 15
    assert found.finds[0].judged.ulp > 800 and found.finds[0].alone
    control = hunted(backend, "one_pair", 1 << 15, width=6, population=1 << 11, strategy="random")
    assert control.result.status == "ok"
    case = found.finds[0].case
    seen = replay(kernel, "k.py::k", backend, case, result="y", index=found.finds[0].worst.origin.index)
    assert seen.worst.got_hex == found.finds[0].worst.got_hex
    subject = Subject(kernel, "float32", backend, Sizes())
    smaller = shrink_element(subject, case, "y", found.finds[0].worst.origin.index, found.finds[0].error)
    assert smaller.case.dims == (3,) and smaller.broken.excess is not None and smaller.broken.excess.error > 8
    x = inputs_of(kernel.op, smaller.case, "cpu")["x"]
    assert x is not None and int(((x == 0) | (x == 1)).sum()) == 4, "the two other pairs say nothing"


PROMISED = "finite, 0 or 7.88861e-31 to 65504 in magnitude"  # without a max_ulp= extreme inputs have no limit


@pytest.mark.parametrize(
    ("name", "result", "sentence", "together"),
    [
        ("one_pair", "y", "n = 3, x finite", True),
        ("right", "dx", "n = 1, x, dy finite", True),
        ("wrong_beside_label", "y", f"n = 1, v = 128, logits {PROMISED}", True),
        ("wrong_beside_label", "dlogits", f"n = 1, v = 128, logits, dy {PROMISED}", True),
        ("plain_mean", "y", "n = 8, d = 16, x finite", False),
        ("picks", "dx", f"n = 1, d = 128, x, dy {PROMISED}", True),
    ],
)
def test_a_candidate_alone_has_the_result_that_it_has_in_the_call(
    backend: Backend, name: str, result: str, sentence: str, together: bool
) -> None:
    kernel = kernels()[name]
    space = space_of(kernel, "float32", result, backend.device)
    assert space.sentence == f"hunt: cases of {sentence}" and space.alone is not together
    draws = Draws(2, "layout", "cpu")
    population = fresh(space, 6, draws)
    shared = fresh_shared(space, 0, draws)
    if space.alone:
        population = one_of(population, 4)
    inputs, _ = space.tensors(population, shared)
    count = len(next(iter(population.values())))
    whole = space.per_candidate(kernel.op.baseline(*inputs.values())[0].reshape(-1), count) if name == "picks" else None
    for place in range(count):
        case = space.case(one_of(population, place), shared, 1)
        alone = inputs_of(kernel.op, Case.from_json(case.to_json()), "cpu")
        for key, value in alone.items():
            given = inputs[key]
            assert value is not None and given is not None
            rows = given.reshape(count, -1)[place] if together else given.reshape(-1)
            assert torch.equal(value.reshape(-1), rows)
        if whole is not None:
            assert torch.equal(kernel.op.baseline(*alone.values())[0].reshape(-1), whole[place])


def test_whole_numbers_are_spelled_out_and_stay_in_their_range(backend: Backend) -> None:
    kernel = kernels()["wrong_beside_label"]
    found = hunted(backend, "wrong_beside_label", 400 if backend.scale == "small" else 4000)
    assert found.result.status == "wrong"
    single = [find for find in found.finds if find.case.dims[0] == 1 and find.error > 4]
    if not single and backend.scale == "large":
        pytest.skip("this hunt's worst finds have eight rows each")
    find = single[0]
    case = find.case
    label = inputs_of(kernel.op, case, "cpu")["label"]
    assert label is not None and case.values["label"] == f"{int(label):016x}"
    subject = Subject(kernel, "float32", backend, Sizes())
    smaller = shrink_element(subject, case, "y", 0, find.error, evaluations=60).case
    left = inputs_of(kernel.op, smaller, "cpu")
    assert left["logits"] is not None and left["logits"].numel() <= 3 and left["label"] is not None
    beyond = Case(**{**{f: getattr(smaller, f) for f in ("dtype", "dims", "fill")}, "values": {"label": f"{9:016x}"}})
    with pytest.raises(UsageError, match="'label' holds whole numbers from 0 to below"):
        inputs_of(kernel.op, beyond, "cpu")
    found = hunted(backend, "masked", 1 << 12, population=1 << 9)
    assert found.result.status == "wrong" and found.finds[0].case.values["mask"] in ("01", "01" * 32)


def test_where_results_depend_on_each_other_each_candidate_has_a_call(backend: Backend) -> None:
    found = hunted(backend, "plain_mean", 40)
    assert found.result.status == "wrong" and found.search.evaluations == 40
    assert found.finds[0].case.dims == (8, 16)


def test_float64_is_judged_in_balls(backend: Backend) -> None:
    settings = Settings(evaluations=24, largest=1e9, population=12)
    found = hunt(kernels()["right"], "k.py::right", backend, Hunt("float64", "y"), settings)
    assert found.result.certificate == "exact" and found.result.status == "ok"
    assert 0.5 < float(found.result.figures.max_ulp) < 1 and found.result.figures.scaled_max not in (None, 0.0)


def test_what_cannot_be_hunted_says_the_rule(backend: Backend) -> None:
    def rule(name: str, result: str) -> str:
        return searchable(kernels()[name], "float32", result) or ""

    assert rule("picks", "index") == "", "a wrong integer can be looked for"
    assert rule("counts", "y").startswith("a hunt changes floating-point numbers; all operands of 'like")
    with pytest.raises(UsageError, match="at most 65,536 numbers of an operand; the smallest sizes .* have 90,000"):
        space_of(kernels()["large"], "float32", "y", backend.device)
    with pytest.raises(UsageError, match="has nothing to hunt: a hunt spells out its finds"):
        allowed(kernels()["large"], [], [])  # a list says so before a worker begins


def test_on_the_command_line_a_find_is_pinned_replayed_and_made_smaller(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.verify]\nkernels = ["k.py"]\ncorpus = "pinned"\n')
    (tmp_path / "k.py").write_text(FILE.read_text())
    done = said("hunt", "k.py::plain_mean", "--evaluations", "16", "--result", "y", "--json", "run.json", cwd=tmp_path)
    assert done.returncode == 1, done.stderr
    assert json.loads((tmp_path / "run.json").read_text())["kernels"][0]["results"][0]["source"] == "hunt"
    from verify.records import files

    worst = files.load(tmp_path / "run.json").kernels[0].results[0].worst[0]
    words = shlex.split(replay_command(worst.origin))[2:]
    said("replay", *words, "--pin", cwd=tmp_path)
    [pinned] = tmp_path.glob("pinned/*/*.json")
    again = said("replay", str(pinned), cwd=tmp_path)
    assert again.returncode == 1 and "wrong: beyond its limit" in again.stdout
    small = said("replay", *words, "--shrink", cwd=tmp_path)
    assert small.returncode == 1 and '"dims":[8,16]' not in small.stdout.split("original")[0], small.stderr
    why = said("explain", *words, cwd=tmp_path)
    assert why.returncode == 0, why.stderr


def test_a_kernel_of_a_function_keeps_its_shape_rules_when_made_smaller(backend: Backend) -> None:
    """Sizes that where= forbids are not tried, though the kernel would take them."""
    seen: list[tuple[int, ...]] = []

    def watched(x: torch.Tensor) -> torch.Tensor:
        seen.append(tuple(x.shape))
        return x * 1.5

    import verify

    kernel: Kernel = verify.kernel(
        like=lambda x: x * 1.0, shapes={"x": "n d"}, where="d % 4 == 0", dtypes=["float32"], gradients=False, name="w"
    )(watched)
    case = Case(dtype="float32", dims=(6, 16), fill="randn", seed=3)
    smaller = shrink_element(Subject(kernel, "float32", backend, Sizes()), case, "y", 40, 2.0**22)
    assert smaller.case.dims == (1, 4) and all(shape[1] % 4 == 0 for shape in seen)


def test_fresh_candidates_of_attention_have_scores_that_operands_share() -> None:
    """One in twenty begins with scores below -87, which operands that are drawn apart never have."""

    def attention(q, k, v):
        return torch.softmax(q @ k.transpose(-1, -2), -1) @ v

    shapes = {"q": "b t d", "k": "b s d", "v": "b s d"}
    kernel = verify.kernel(like=attention, shapes=shapes, dtypes=["bfloat16"])(attention)
    space = space_of(kernel, "bfloat16", "y", "cpu")
    assert space.layout.axis == 0 and not space.shared
    population = fresh(space, 40, Draws(0, "0", "cpu"))
    inputs, _ = space.tensors(population, {})
    q, k = (inputs[name].double() for name in "qk")  # type: ignore[union-attr]
    highest = (q @ k.transpose(-1, -2)).amax(-1).amin(-1)
    assert highest[0] < -87 and highest[20] < -87
    assert bool((fresh(space, 40, Draws(0, "0", "cpu"))["q"] == population["q"]).all())


def test_a_replay_counts_the_noise_that_a_run_counts() -> None:
    """The sum 0.3 + x * x rounds to 1, so that its logarithm, 1.6e-9, is lost in every float32 kernel."""

    def root(x: torch.Tensor) -> torch.Tensor:
        return torch.log(0.3 + x * x)

    case = Case.from_json('{"dtype":"float32","dims":[1,2],"fill":"ones","values":{"x":"3f562f5a3f562f5a"}}')
    right, wrong = (
        verify.kernel(like=root, dtypes=["float32"], name=name)(function)
        for name, function in (("right", root), ("wrong", lambda x: root(x) * 1 + 1e-4))
    )
    found = replay(right, "k.py::right", CPU, case, result="y", index=0)
    assert found.within and abs(value_of(found.worst.ulp)) > 1e6 and found.judged < 10
    assert not replay(wrong, "k.py::wrong", CPU, case, result="y", index=0).within
    settings = Settings(evaluations=2000, population=0)
    assert hunt(right, "k.py::right", CPU, Hunt("float32", "y"), settings).result.status == "ok"
