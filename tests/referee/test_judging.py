"""Wrong solutions are wrong with an input, right ones are accepted, and each format is read."""

from __future__ import annotations

import json
import math
import os
import textwrap
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest
import torch

from tests import warm
from tests.cli.here import Here
from tests.records.bounds.gate_records import figures, kernel, result
from tests.referee.samples import FUNCTIONAL, LINEAR, OPERATOR, SHAPES, TASK, TESTED, TRACE, Form, solution, written
from verify.cases.values import RECIPES_OF_PROFILES
from verify.diagnose.requests import ReplayElement
from verify.errors import UsageError
from verify.measure.session import Session
from verify.records.merge import sealed
from verify.records.record import SCHEMA, Basis, ClassFigures, Result, Run
from verify.referee import host, judging, problem
from verify.referee.formats import operator as operators
from verify.referee.judging import Settings, judge_many
from verify.referee.messages import Entry
from verify.referee.plan import Judgement, Observed, Plan
from verify.search.hunt import requests as hunt
from verify.workers import process

PLAIN = "return torch.relu(functional.linear(x, weight, bias))"
RIGHT = {
    "product": "return (x @ weight.T + bias).clamp(min=0)",
    "by_columns": """
        y = bias.expand(len(x), -1)
        for k in range(x.shape[1]):
            y = y + x[:, k : k + 1] * weight[:, k]
        return torch.where(y > 0, y, torch.zeros_like(y))
    """,
}
WRONG = {
    "accumulates_in_bfloat16": """
        y = torch.zeros(len(x), len(weight), dtype=torch.bfloat16)
        for k in range(x.shape[1]):
            y = (y + x[:, k : k + 1] * weight[:, k]).bfloat16()
        return torch.relu(y.float() + bias)
    """,
    "drops_the_tail": "return torch.relu(functional.linear(x[:, :23], weight[:, :23], bias))",
}
CACHED = solution(
    """
    key = tuple(x.shape)
    if key not in kept:
        kept[key] = torch.relu(functional.linear(x, weight, bias))
    return kept[key]
    """,
    before="kept = {}",
)
OTHER_NAMES = """
import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, inner, outer):
        super().__init__()
        made = nn.Linear(inner, outer)
        self.packed = nn.Parameter(torch.cat([made.weight, made.bias[:, None]], 1))

    def forward(self, x):
        return torch.relu(x @ self.packed[:, :-1].T + self.packed[:, -1])
"""
# a residual addition in bfloat16, whose sum a solution rounds to nearest, or cuts off
ADDED = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x, r):
        return x + r


def get_inputs():
    return [torch.randn(64, 32).bfloat16(), torch.randn(64, 32).bfloat16()]


def get_init_inputs():
    return []
"""
STORED = """
import torch
from torch import nn


class ModelNew(nn.Module):
    def forward(self, x, r):
        return ({}).bfloat16()
"""
SUM = "x.float() + r.float()"
CUT_OFF = f"(({SUM}).view(torch.int32) & ~0xFFFF).view(torch.float32)"
DROPPED = """
import torch
from torch import nn


class ModelNew(nn.Module):
    def __init__(self, *sizes):
        super().__init__()

    def forward(self, x):
        return torch.zeros(6, 10)
"""


def judged_pairs(pairs: Sequence[tuple[Path, Path]], backend: str = "cpu") -> dict[str, Judgement]:
    """Judges pairs of a problem and a solution with one warm worker. Returns judgements by the stems of solutions."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TRITON_INTERPRET", raising=False)  # the tests of kernels have it interpret
        settings = Settings(backend=backend, seed=1, allow_weaker=backend != "cpu")  # a GPU may be in a container
        found = judge_many([(str(problem), str(path)) for problem, path in pairs], settings, 1)
        return {Path(each.solution).stem: each for each in found}


def judged(
    folder: Path, problem: Path, solutions: dict[str, str], suffix: str = "py", backend: str = "cpu"
) -> dict[str, Judgement]:
    """Judges solutions of one problem with one warm worker."""
    for name, text in solutions.items():
        (folder / f"{name}.{suffix}").write_text(text)
    return judged_pairs([(problem, folder / f"{name}.{suffix}") for name in solutions], backend)


FEW = ("by_columns", "accumulates_in_bfloat16")  # of those above, in every run of the tests


def _linear(folder: Path, solutions: dict[str, str]) -> dict[str, Judgement]:
    return judged(folder, written(folder, problem=LINEAR)["problem"], solutions)


def judged_by_this_process(folder: Path) -> dict[str, Judgement]:
    """Returns judgements of three problems. Kills all processes that this one has started.

    Wrong inputs stay as large as they were found. Making each of them smaller takes seconds, and
    tests/laws/test_shrink.py tests that. A worker judges in test_hostile.py and in
    the slow tests.
    """
    asked = list[bool]()
    inverse = LINEAR.replace("torch.relu(self.linear(x))", "torch.linalg.inv(x)")
    problems = written(folder, linear=LINEAR, inverse=inverse.replace("randn(6, 24)", "randn(3, 2, 2)"), added=ADDED)
    texts = {name: solution((RIGHT | WRONG)[name]) for name in FEW} | {"cached": CACHED}
    texts |= {
        "inverts": solution("return torch.linalg.inv(x)"),
        "transposes": solution("return torch.linalg.inv(x).mT"),
        "to_nearest": STORED.format(SUM),
        "cut_off": STORED.format(CUT_OFF),
    }
    paths = written(folder, **texts)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(process, "Worker", Here)
        patch.setattr(os, "sched_getaffinity", lambda _: {0})  # more cores are forks for each case
        patch.setattr(
            judging, "ReplayElement", lambda *given, shrink=False: asked.append(shrink) or ReplayElement(*given)
        )
        of = {"inverts": "inverse", "transposes": "inverse", "to_nearest": "added", "cut_off": "added"}
        made = judged_pairs([(problems[of.get(name, "linear")], path) for name, path in paths.items()])
    assert asked == [True] * 4, "each wrong input is replayed, and made smaller if possible"
    return made


JUDGED = """
from pathlib import Path
import msgspec
from tests.referee.test_judging import judged_by_this_process
print(msgspec.json.encode(judged_by_this_process(Path(FOLDER))).decode())
"""


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Judgement]:
    """Returns the judgements of a fork of the warm process: only processes that the fork has started are killed."""
    printed = warm.printed(JUDGED, 300, FOLDER=str(tmp_path_factory.mktemp("judged")))
    return msgspec.json.decode(printed, type=dict[str, Judgement])


@pytest.fixture(scope="module")
def all_linear(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Judgement]:
    bodies = {name: solution(body) for name, body in (RIGHT | WRONG).items()}
    return _linear(tmp_path_factory.mktemp("all"), bodies | {"other_names": OTHER_NAMES, "dropped": DROPPED})


def demand_accepted(found: Judgement) -> None:
    assert (found.verdict, found.tricks, found.wrong) == ("accepted", [], None), found.message
    assert found.errors[0]["elements"] == 3 * len(RECIPES_OF_PROFILES["quick"]) * 60 and found.calls >= 8


def demand_wrong(found: Judgement) -> None:
    assert found.verdict == "wrong", found.message
    assert found.wrong is not None and "x = " in found.wrong.input and found.wrong.truth != found.wrong.got


def test_a_right_solution_is_accepted_and_a_wrong_one_has_an_input(found: dict[str, Judgement]) -> None:
    demand_accepted(found["by_columns"])
    demand_wrong(found["accumulates_in_bfloat16"])


def test_digits_that_a_solution_cuts_off_are_wrong_by_default(found: dict[str, Judgement]) -> None:
    """Each number is within an ULP. That all are on one side loses 9% of a residual stream in 72 layers."""
    assert found["to_nearest"].verdict == "accepted", found["to_nearest"].message
    assert found["cut_off"].verdict == "wrong" and "are rounded toward zero: -0.4" in found["cut_off"].message


@pytest.mark.slow
@pytest.mark.parametrize("name", RIGHT)
def test_every_right_solution_is_accepted(all_linear: dict[str, Judgement], name: str) -> None:
    demand_accepted(all_linear[name])


@pytest.mark.slow
@pytest.mark.parametrize("name", WRONG)
def test_every_wrong_solution_is_wrong_with_an_input(all_linear: dict[str, Judgement], name: str) -> None:
    demand_wrong(all_linear[name])


def test_the_tolerance_of_the_problem_stands_beside_the_verdict(found: dict[str, Judgement]) -> None:
    passes = "passes allclose(1e-4), in 16 bits 1e-2, on the problem's own inputs"
    assert found["by_columns"].own_check == passes
    assert found["cached"].own_check == passes, "it is asked first"
    assert found["accumulates_in_bfloat16"].own_check == passes.replace("passes", "fails")


def test_an_answer_that_is_replayed_is_named_with_an_input(found: dict[str, Judgement]) -> None:
    cached = found["cached"]
    assert (cached.verdict, [each.name for each in cached.tricks]) == ("cheats", ["replays an earlier answer"])
    assert cached.wrong is not None and "whose arguments differ" in cached.tricks[0].evidence


@pytest.mark.slow
def test_a_module_with_other_names_is_judged_with_the_weights_of_a_seed(all_linear: dict[str, Judgement]) -> None:
    found = all_linear["other_names"]
    assert found.verdict == "accepted", found.message
    assert {each["kernel"] for each in found.errors} == {"seeded_1_0", "seeded_1_1"}


@pytest.mark.slow
def test_parameters_that_a_module_has_no_place_for_are_named(all_linear: dict[str, Judgement]) -> None:
    found = all_linear["dropped"]
    assert found.verdict in ("wrong", "cheats")  # zeros are a constant too
    (trick,) = (each for each in found.tricks if each.name == "drops parameters of the problem")
    assert trick.evidence == "no place for linear.weight, linear.bias: 0 of 250 numbers"


def test_what_is_not_there_is_undecided_and_the_next_pair_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "Worker", Here)
    pairs = [("nowhere.py", "s.py"), (str(tmp_path / "p.txt"), "s.py")]
    (tmp_path / "p.txt").write_text("")
    found = list(judge_many(pairs, Settings(backend="cpu"), 2))
    assert {(each.verdict, each.message) for each in found} == {
        ("undecided", "no such problem: nowhere.py"),
        ("undecided", "no such solution: s.py"),
    }


def test_a_problem_that_changes_meanwhile_is_no_trick_of_the_solution(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its process cannot write there, and the results of `--json` may be in the folder of a problem."""
    (folder := tmp_path / "task").mkdir()
    TASK.write(folder)

    def run(targets: list[str], settings: Session, command: str) -> Run:
        (folder / "found.json").write_text("[]")
        return recorded(result(1.0))

    monkeypatch.setattr(process, "Worker", Here)
    monkeypatch.setattr(judging, "declared_by", lambda *asked, **how: [SimpleNamespace(name="own_1")])
    monkeypatch.setattr(judging.session, "run", run)
    (right := tmp_path / "right.py").write_text(TASK.right)
    (found,) = judge_many([(str(folder), str(right))], Settings(backend="cpu"), 1)
    assert (found.verdict, found.tricks) == ("undecided", []) and "other bytes than before" in found.message


def test_what_this_machine_enforces_is_in_the_answer(found: dict[str, Judgement]) -> None:
    columns = found["by_columns"]
    assert columns.isolation and not [line for line in columns.not_isolated if line in columns.isolation]
    assert set(columns.fixed) == {"problem", "solution", "plan"}


@pytest.mark.parametrize(
    "form", [pytest.param(form, marks=pytest.mark.slow) for form in (TRACE, SHAPES, TASK, OPERATOR, FUNCTIONAL, TESTED)]
)
def test_the_other_formats_are_read(tmp_path: Path, form: Form) -> None:
    """Each has a right solution, and one with a plausible mistake."""
    problem = form.write(tmp_path / "problem")
    found = judged(tmp_path, problem, {"right": form.right, "wrong": form.wrong}, form.suffix)
    assert found["right"].verdict == "accepted", found["right"].message
    assert found["wrong"].verdict == "wrong", found["wrong"].message
    assert found["right"].format == form.name
    assert len({each["kernel"] for each in found["right"].errors}) == form.problems


@pytest.mark.slow
def test_where_pytorch_is_wrong_the_reference_is_accepted_with_a_fact(tmp_path: Path) -> None:
    """PyTorch's gelu loses its tail; a mean of probabilities says nothing about a solution."""
    text = LINEAR.replace("torch.relu(self.linear(x))", "nn.functional.gelu(x)")
    gelu = judged(tmp_path, written(tmp_path, gelu=text)["gelu"], {"same": text.replace("Model(", "ModelNew(")})["same"]
    assert gelu.verdict == "accepted" and "as wrong as PyTorch: y float32" in gelu.facts[1]
    text = LINEAR.replace("torch.relu(self.linear(x))", "torch.softmax(x, -1).mean(-1)")
    mean = judged(tmp_path, written(tmp_path, mean=text)["mean"], {"of": text.replace("Model(", "ModelNew(")})["of"]
    assert (mean.verdict, mean.message.partition(":")[0]) == ("undecided", "the problem is vacuous")


@pytest.mark.parametrize("seed", [0, 1, 42])
def test_a_problem_that_draws_after_a_usual_seed_is_not_vacuous(seed: int) -> None:
    x = torch.randn(6, 24, generator=torch.Generator().manual_seed(seed))
    (found, *_) = problem.problems_of(lambda x: x.exp(), [(x,)], Entry(("solve",), {}))
    (other,) = problem._drawn(found, found.tensors)
    assert not torch.equal(other, x)


def test_inputs_that_the_reference_refuses_are_not_checked(found: dict[str, Judgement]) -> None:
    verdicts = [found[name].verdict for name in ("inverts", "transposes")]
    assert verdicts == ["accepted", "wrong"], found["inverts"].message
    assert any("no verdict where " in each for each in found["inverts"].unchecked)


@pytest.mark.slow
def test_a_hunt_finds_an_input_that_no_recipe_draws(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(judging, "HUNTS", {"quick": hunt.Settings(evaluations=64)})
    seldom = "x = torch.where((x[:, :1] == x[:, 1:2]) & (x[:, :1] != 0), x.bfloat16().float(), x)\n" + PLAIN
    found = _linear(tmp_path, {"seldom": solution(seldom), "right": solution(PLAIN)})
    demand_wrong(found["seldom"])
    assert (
        found["right"].verdict == "accepted" and "its worst input: nothing was hunted" not in found["right"].unchecked
    )


@pytest.mark.parametrize(
    ("of_class", "open_ones", "error", "verdict"),
    [
        ("demanding", 250, 3.0, "accepted"),
        ("demanding", 251, 3.0, "undecided"),
        ("ordinary", 1, 3.0, "undecided"),
        ("demanding", 1, math.inf, "undecided"),
        ("demanding", 1, math.nan, "undecided"),
    ],
)
def test_few_elements_of_unknown_truth_on_demanding_inputs_do_not_hinder(
    of_class: str, open_ones: int, error: float, verdict: str
) -> None:
    own = msgspec.structs.replace(figures(error, n=1000), open=open_ones, undecided=open_ones)
    reason = f"nothing is known of {open_ones} of 1,000 elements on {of_class} inputs"
    classes = [ClassFigures(of_class, own, 4.0, reason=reason), ClassFigures("extreme", figures(1.0, n=9), None)]
    found = msgspec.structs.replace(result(1.0), status="undecided", reason=reason, classes=classes)
    run = recorded(result(1.0))
    run.kernels[:] = [msgspec.structs.replace(run.kernels[0], status="undecided", results=[found])]
    seen = judging._Found(run, [], None)
    assert seen.verdict[0] == verdict
    assert any(reason in each for each in seen.unchecked) == (verdict == "accepted")


@pytest.mark.parametrize(
    ("theirs", "near", "verdict"),
    [(2.0, 4.5, "wrong"), (7.0, 1.3, "accepted"), (7.0, 9.0, "wrong"), (math.inf, 1.0, "undecided")],
)
def test_an_error_of_pytorch_excuses_those_near_it_and_an_infinite_one_nothing(
    theirs: float, near: float, verdict: str
) -> None:
    """`near`: an error in parts of PyTorch's in its neighbourhood. An error of PyTorch elsewhere excuses nothing."""
    mine = figures(math.inf if math.isinf(theirs) else 9.0)
    classes = [ClassFigures("ordinary", mine, 4.0, figures(theirs), reason="9 ULP on ordinary inputs, the limit is 4")]
    found = msgspec.structs.replace(result(9.0, basis=Basis("observed", 1000, 0)), classes=classes, excess=near)
    assert judging._Found(recorded(found), [], None).verdict[0] == verdict


@pytest.mark.parametrize(("theirs", "verdict"), [(0.0, "wrong"), (-0.5, "accepted")])
def test_rounding_to_one_side_is_excused_if_pytorch_does_it_as_much(theirs: float, verdict: str) -> None:
    """Every element is within the limit, and the root mean square is twice PyTorch's."""
    own, beside = (
        msgspec.structs.replace(figures(0.9), rms=rms, bias=bias, bias_error=0.01)
        for rms, bias in ((0.6, -0.5), (0.3, theirs))
    )
    classes = [ClassFigures("ordinary", own, 1.0, beside, reason="900 distinct inputs are rounded toward zero")]
    found = msgspec.structs.replace(result(0.9, basis=Basis("observed", 1000, 0)), classes=classes, status="wrong")
    assert judging._Found(recorded(found), [], None).verdict[0] == verdict


def recorded(*results: Result, **fields: str) -> Run:
    """Returns the record of a solution."""
    made = msgspec.structs.replace(kernel(*results), **fields)
    return sealed(Run(SCHEMA, "", "", "verify judge", "cpu", 0, "quick", {}, [made]), 0.0)


@pytest.mark.parametrize(
    ("own", "verdict"),
    [
        ("passes allclose(1e-4) on the problem's own inputs", "accepted"),
        ("fails allclose(1e-4) on the problem's own inputs", "undecided"),
        ("fails allclose(1e-4) on the problem's own inputs, as the problem's own model does", "accepted"),
        ("fails allclose(1e-4) on the problem's own inputs, as zeros do: it says nothing", "accepted"),
    ],
)
def test_what_fails_the_problems_own_check_is_accepted_only_if_its_own_model_fails_too(own: str, verdict: str) -> None:
    assert judging._Found(recorded(result(1.0)), [Observed(own_check=own)], None).verdict[0] == verdict


def test_the_end_of_the_judges_time_is_undecided_and_names_the_limit() -> None:
    found = judging._Found(recorded(status="timeout", message="no time for 3 more cases within 240 s"), [], None)
    assert found.verdict == ("undecided", "no time for 3 more cases within 240 s, the limit of one problem (--timeout)")


@pytest.mark.parametrize(("load", "verdict"), [(0.5, "fails"), (8.0, "undecided")])
def test_a_late_answer_on_a_busy_machine_is_undecided(
    load: float, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "getloadavg", lambda: (load * judging.usable_cores(),) * 3)
    late = Observed(failed="its process gave no answer within 20 s; stopped")
    assert judging._Found(recorded(result(1.0)), [late], None).verdict[0] == verdict
    died = Observed(failed="its process died of SIGSEGV")
    assert judging._Found(recorded(result(1.0)), [died], None).verdict[0] == "fails"


@pytest.mark.parametrize(
    ("failed", "verdict", "text"),
    [
        (
            "ModuleNotFoundError: No module named 'tilelang'",
            "undecided",
            "it needs TileLang, which is not installed here",
        ),
        ("OSError: CUDA_HOME environment variable is not set", "undecided", "it needs the CUDA toolkit"),
        ("RuntimeError: 0 active drivers ([])", "fails", "Triton runs on a GPU or, with --backend interpreter"),
        ("ModuleNotFoundError: No module named 'mine'", "fails", "mine"),
    ],
)
def test_what_this_machine_lacks_is_no_fault_of_a_solution(failed: str, verdict: str, text: str) -> None:
    seen = Observed(failed=f"it could not be built: its process says: {failed}")
    found = judging._Found(recorded(result(1.0)), [seen], None).verdict
    assert found[0] == verdict and text in found[1]


@pytest.mark.parametrize("jobs", [1, 2])
def test_what_runs_out_of_memory_beside_others_is_judged_again_alone(
    jobs: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another solution may have filled the GPU. It comes last, and counts as it is then."""
    asked = list[tuple[str, int]]()

    def judge(problem: str, solution: str, settings: Settings, *_: object) -> Judgement:
        asked.append((solution, settings.jobs))
        full = solution == "b.py" and len(asked) < 3
        return Judgement(
            2, "fails" if full else "accepted", problem, solution, "", "CUDA out of memory" if full else ""
        )

    monkeypatch.setattr(judging, "judge", judge)
    monkeypatch.setattr(process, "Worker", Here)
    found = list(judge_many([("p.py", "b.py"), ("p.py", "c.py")], Settings(backend="cpu"), jobs))
    verdicts = {each.solution: each.verdict for each in found}
    assert verdicts == {"b.py": "fails" if jobs == 1 else "accepted", "c.py": "accepted"}
    assert len(asked) == jobs + 1


def test_another_result_at_nan_is_a_fact_and_of_a_declaration_wrong() -> None:
    reason = "wrong at 3 infinite or NaN inputs, right at all others"
    found = recorded(msgspec.structs.replace(result(1.0), status="wrong", reason=reason))
    assert judging._Found(found, [], None).verdict[0] == "accepted"
    assert any(reason in fact for fact in judging._Found(found, [], None).facts)
    assert judging._Found(found, [], None, strict=True).verdict[0] == "wrong"
    of_hunt = recorded(msgspec.structs.replace(result(9.0), status="wrong", reason="9 ULP", source="hunt"))
    assert judging._Found(recorded(result(1.0)), [], of_hunt).verdict[0] == "wrong"


def test_only_replaced_functions_that_judge_are_a_trick() -> None:
    honest = "replaced builtins.print, torch.load, torch.nn.functional.gelu and 2 more"
    assert host.judging_functions([honest]) == ()
    for name in ("torch.allclose", "verify.referee.chain.run"):
        trick = Observed(replaced=host.judging_functions([f"replaced builtins.print, {name}"]))
        assert judging._Found(recorded(result(1.0)), [trick], None).verdict[0] == "cheats"


def test_a_reference_that_writes_into_its_arguments_is_no_problem(tmp_path: Path) -> None:
    x = torch.randn(6, 24)
    entry = Entry(("ModelNew",), {"tuple": [{"tensor": "x"}]})
    found = problem.Problem("own_1", torch.relu_, ("x",), entry, ((x,),), {"x": x})
    with pytest.raises(UsageError, match="the reference writes into its arguments"):
        found.answers  # noqa: B018


@pytest.mark.slow
def test_a_wrong_answer_that_the_reference_repeats_is_no_replay(tmp_path: Path) -> None:
    """Tiny arguments beside a bias, and those that differ by little, have nearly the same answer."""
    coarse = solution("x = torch.where(x.abs() > 100, x.bfloat16().float(), x)\n" + PLAIN)
    problem = written(tmp_path, problem=LINEAR)["problem"]
    (tmp_path / "coarse.py").write_text(coarse)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("TRITON_INTERPRET", raising=False)
        settings = Settings(backend="cpu", seed=1, profile="ci")
        (found,) = judge_many([(str(problem), str(tmp_path / "coarse.py"))], settings, 1)
    assert (found.verdict, found.tricks) == ("wrong", [])


@pytest.mark.slow
def test_a_tolerance_that_zeros_pass_says_nothing(tmp_path: Path) -> None:
    text = LINEAR.replace("torch.relu(self.linear(x))", "1e-6 * torch.tanh(x)")
    found = judged(tmp_path, written(tmp_path, small=text)["small"], {"same": text.replace("Model(", "ModelNew(")})
    assert found["same"].verdict == "accepted" and "as zeros do: it says nothing" in found["same"].own_check


@pytest.mark.slow
def test_a_declaration_is_a_problem(tmp_path: Path) -> None:
    declared = """
        import torch, verify

        @verify.kernel(like=torch.nn.functional.softplus, dtypes=["bfloat16"])
        def mine(x):
            raise AssertionError("the declared function is not called")
    """
    (tmp_path / "declared.py").write_text(textwrap.dedent(declared))
    right = "import torch\ndef mine(x):\n    return torch.nn.functional.softplus(x.float()).bfloat16()\n"
    wrong = "import torch\ndef mine(x):\n    return (1 + x.exp()).log()\n"
    found = judged(tmp_path, Path(f"{tmp_path / 'declared.py'}::mine"), {"right": right, "wrong": wrong})
    assert (found["right"].verdict, found["wrong"].verdict) == ("accepted", "wrong"), found["right"].message
    wrong_input = found["wrong"].wrong
    assert wrong_input is not None and json.loads(wrong_input.case)["dtype"] == "bfloat16"


@pytest.mark.gpu
def test_solutions_on_a_gpu(tmp_path: Path) -> None:
    """Their process begins before the GPU is used. Memory that they never wrote holds the pattern there too."""
    bodies = {
        "right": RIGHT["product"],
        "wrong": WRONG["drops_the_tail"],
        "unwritten": "y = torch.empty(6, 10, device=x.device)\ny[:5] = torch.relu(x @ weight.T + bias)[:5]\nreturn y",
        "died": "import ctypes\nctypes.string_at(0)",
    }
    problem = written(tmp_path, problem=LINEAR)["problem"]
    texts = {name: solution(body) for name, body in bodies.items()}
    found = judged(tmp_path, problem, texts, backend="cuda")
    assert {name: each.verdict for name, each in found.items()} == {
        "right": "accepted",
        "wrong": "wrong",
        "unwritten": found["unwritten"].verdict,
        "died": "fails",
    }
    assert found["unwritten"].verdict in ("wrong", "cheats"), "memory that it never wrote may hold an earlier answer"
    assert "its processes end with it" in found["right"].isolation


@pytest.mark.parametrize(
    ("operator", "call", "message"),
    [
        ("aten.nothing.Tensor", "((T([2], f32),), {})", "an operator is one of PyTorch's"),
        ("aten.relu.default", "((T([2], f32),), {}", r"a call is \(ARGUMENTS, KEYWORDS\)"),
        ("aten.relu.default", "((T([2], f32), torch.no_name), {})", r"a call is \(ARGUMENTS, KEYWORDS\)"),
        ("aten.relu.default", "((T([2], i64),), {})", "lists no call of relu.default"),
    ],
)
def test_a_list_of_calls_that_cannot_be_read_is_refused(operator: str, call: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "calls.txt").write_text(f"Operator: {operator}\ncnt: 1, {call}\n")
    with pytest.raises(UsageError, match=message):
        operators.problems(Plan("operator", str(tmp_path / "calls.txt"), "", "", "", 1, "quick", 1.0, 1.0, 1))
