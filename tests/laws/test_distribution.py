"""Samplers: right ones keep the law of distributions, by several methods; each defect breaks it for its own reason.

`mutants/samplers.py` has eleven more defects, which `tests/laws/test_mutants.py` tries.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor

import verify
from mutants.samplers import MUTANTS
from tests.laws.trial import attempt, breaks, holds, skips
from tests.measure.test_kernel import few_cases
from verify import backends
from verify.declare.declaration import Kernel
from verify.errors import KernelError, UsageError
from verify.laws import distribution, suite
from verify.laws.law import Subject
from verify.laws.registry import get
from verify.measure.call import run_tensors
from verify.measure.kernel import measure_kernel
from verify.measure.requests import Measure

LAW = "distribution"
OFTEN, POSSIBLE = "numbers are not drawn as often as their probabilities say", "a number is drawn that cannot be"
ALIKE, BITS = "numbers are not drawn independently", "the same seed draws other numbers"
SETTINGS: Mapping[str, Any] = {
    "shapes": {"logits": "r v", "seed": ""},
    "integers": {"seed": "0 <= seed < 2**31"},
    "draws": {"y": "seed"},
    "dtypes": ["float32"],
}
Sampler = Callable[[Tensor, Tensor], Tensor]


def softmax(logits: Tensor) -> Tensor:
    return logits.softmax(-1)


def declared(function: Callable[..., Tensor], like: Callable[..., Any] = softmax, **settings: Any) -> Kernel:
    return verify.kernel(like=like, name="k", **{**SETTINGS, **settings})(lambda logits, seed: function(logits, seed))


def multinomial(logits: Tensor, seed: Tensor) -> Tensor:
    """PyTorch's own. A row of NaN, which has no probabilities, would be refused."""
    generator = torch.Generator(logits.device).manual_seed(int(seed))
    return torch.multinomial(logits.double().softmax(-1).nan_to_num(1.0), 1, generator=generator)


def test_pytorchs_own_sampler_keeps_the_law() -> None:
    holds(LAW, declared(multinomial))


def test_seeds_may_be_one_for_each_row() -> None:
    def by_row(logits: Tensor, seed: Tensor) -> Tensor:
        u = verify.philox_uniform(verify.philox(seed, torch.zeros_like(seed))[0]).double()
        return (logits.double().softmax(-1).cumsum(-1) < u[:, None]).sum(-1).clamp(max=logits.shape[-1] - 1)

    holds(LAW, declared(by_row, shapes={"logits": "r v", "seed": "r"}))


def test_a_kernel_may_have_random_numbers_of_its_own() -> None:
    settings = {**SETTINGS, "shapes": {"logits": "r v"}, "integers": None, "draws": "y"}
    torch.manual_seed(1)
    right = verify.kernel(like=softmax, name="k", **settings)(
        lambda logits: torch.multinomial(logits.softmax(-1).nan_to_num(1.0), 1)
    )
    holds(LAW, right)
    skips("determinism", right, "its random numbers have no seed")
    greedy = verify.kernel(like=softmax, name="k", **settings)(lambda logits: logits.argmax(-1))
    breaks(LAW, greedy, ALIKE)


def test_results_that_are_not_drawn_are_judged_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    few_cases(monkeypatch, "randn")

    def both(logits: Tensor) -> tuple[Tensor, Tensor]:
        return logits.softmax(-1), logits.logsumexp(-1)

    settings = {"outputs": ["token", "lse"], "draws": {"token": "seed"}}
    kernel = declared(lambda x, seed: (multinomial(x, seed), x.logsumexp(-1)), both, **settings)
    holds(LAW, kernel)
    assert kernel.promise.endswith("draws token by seed") and kernel.outputs == ("token", "lse")
    wrong = declared(lambda x, seed: (multinomial(x, seed), x.logsumexp(-1) + 1), both, **settings)
    done = measure_kernel(wrong, Measure("here.py::k"), backends.select())
    assert {each.output: each.status for each in done.results} == {"token": "ok", "lse": "wrong"}


def least_likely_never(logits: Tensor, seed: Tensor) -> Tensor:
    p = logits.double().softmax(-1).nan_to_num(1.0)
    p = torch.where(p < 0.25 * p.mean(-1, keepdim=True), 0.0, p)
    return torch.multinomial(p, 1, generator=torch.Generator().manual_seed(int(seed)))


_COUNT = [0]


def by_calls(logits: Tensor, seed: Tensor) -> Tensor:
    _COUNT[0] += 1
    return multinomial(logits, seed + _COUNT[0])


WRONG: dict[str, tuple[Sampler, str]] = {
    "greedy": (lambda logits, seed: logits.nan_to_num(0.0).argmax(-1), ALIKE),
    "a temperature of 1.2": (lambda logits, seed: multinomial(logits / 1.2, seed), OFTEN),
    "the tail is cut off": (least_likely_never, OFTEN),
    "half of the seeds": (lambda logits, seed: multinomial(logits, seed // 2), ALIKE),
    "low bits of the seed": (lambda logits, seed: multinomial(logits, seed & 0xFFFF), ALIKE),
    "masked numbers": (lambda logits, seed: multinomial(logits.nan_to_num(neginf=0.0), seed), POSSIBLE),
    "other numbers for a seed": (by_calls, BITS),
}


@pytest.mark.parametrize("bug", WRONG)
def test_a_defect_breaks_the_law(bug: str) -> None:
    function, rule = WRONG[bug]
    found = attempt(LAW, declared(function))
    assert found.status == "broken"
    assert rule in (found.message, found.facts.get("besides")), (found.message, found.facts)


def test_the_facts_say_what_was_drawn_how_often() -> None:
    last = next(mutant.kernel for mutant in MUTANTS if mutant.name.endswith("last number never drawn"))
    facts = breaks(LAW, last, OFTEN).facts
    assert re.fullmatch(r"y, 256 calls of 64 rows, number 6[23] in all rows", facts["of"])  # the last is never drawn
    assert re.fullmatch(r"[\d,]+ times", facts["drawn"]) and "once in a billion cases" in facts["limit"]
    late = next(mutant.kernel for mutant in MUTANTS if mutant.name.endswith("cut one too late"))
    facts = breaks(LAW, late, POSSIBLE).facts
    assert facts["got"].endswith("whose probability is 0") and int(facts["seed"]) >= 0


def trial(rows: int, count: int, calls: int, generator: torch.Generator) -> Any:
    """What calls of a right sampler draw."""
    p = (torch.randn(rows, count, generator=generator, dtype=torch.float64) * 2).softmax(-1)
    numbers = torch.multinomial(p, calls, replacement=True, generator=generator).T
    return distribution._Drawn(numbers, p, torch.zeros_like(p))


def sizes(drawn: Any) -> list[float]:
    """Every statistic of the law, in units of its limit."""
    return [size for size, _ in (*distribution._frequencies(drawn), *distribution._pairs(drawn))]


@pytest.mark.parametrize(("rows", "count", "calls"), [(64, 64, 64), (2, 4097, 128), (1, 2, 512), (7, 3, 16)])
def test_no_statistic_of_a_right_sampler_comes_near_its_limit(rows: int, count: int, calls: int) -> None:
    """Of a statistic that exceeds its limit once in a billion cases, the largest of a hundred is about half of it."""
    generator = torch.Generator().manual_seed(rows)
    most = torch.tensor([sizes(trial(rows, count, calls, generator)) for _ in range(100)]).amax(0)
    assert most.max() < 0.85, most
    assert most.max() > 0.3, most


def test_the_law_says_what_it_sees_and_sees_it() -> None:
    kernel = declared(multinomial)
    said = attempt(LAW, kernel).message
    half, part, draws = re.findall(r"off by ([\d.]+)%", said) + re.findall(r"in ([\d,]+) draws", said)
    subject = Subject(kernel, "float32", backends.select(), None)
    assert get(LAW).sees(subject) == said and draws == "16,384" and "once in a billion" in said
    for words, seen in (("half", float(half) / 100), ("part", float(part) / 100)):
        for factor, found in ((1.3, True), (0.4, False)):
            rows, calls = 64, 256
            p = torch.full((rows, 2 if words == "half" else 16), 1.0, dtype=torch.float64)
            p /= p.shape[1]
            off = p.clone()
            off[:, 0] *= 1 + factor * seen
            off[:, 1:] = (1 - off[:, :1]) / (p.shape[1] - 1)
            numbers = torch.multinomial(off, calls, replacement=True, generator=torch.Generator().manual_seed(3)).T
            assert (max(sizes(distribution._Drawn(numbers, p, torch.zeros_like(p)))) > 1) is found, (words, factor)


def test_a_draw_that_cannot_be_is_wrong_in_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """Results by element find it without the law, and replay it; a pass says what the law sees."""
    few_cases(monkeypatch, "randn", "masked", most=3)
    monkeypatch.setattr(suite.engine, "shrink_law", lambda law, subject, broken: broken)
    backend, asked = backends.select(), Measure("here.py::k")

    def largest_two(logits: Tensor) -> Tensor:
        values, places = logits.topk(2, -1)
        return torch.zeros_like(logits).scatter(1, places, values.softmax(-1))

    def right(logits: Tensor, seed: Tensor) -> Tensor:
        values, places = logits.topk(2, -1)
        return places.gather(1, multinomial(values, seed))

    for function, status in ((right, "ok"), (multinomial, "wrong")):
        kernel = declared(function, largest_two, where="v >= 2")
        done = suite.with_laws(measure_kernel(kernel, asked, backend), kernel, backend, asked)
        assert (done.status, done.results[0].status, done.laws[0].status) == (
            status, status, {"ok": "ok", "wrong": "broken"}[status],
        )  # fmt: skip
        assert any("the law of distributions sees" in note for note in done.notes) is (status == "ok")


def test_a_draw_of_another_form_is_an_error() -> None:
    inputs = {"logits": torch.zeros(3, 5), "seed": torch.tensor(1)}
    for function, message in (
        (lambda x, seed: torch.full((3,), 5), "must draw y from 0 to 4; it returned 5"),
        (lambda x, seed: torch.full((3,), -1), "must draw y from 0 to 4; it returned -1"),
        (lambda x, seed: torch.zeros(5, dtype=torch.int32), r"must return y of shape \(3,\); it returned \(5,\)"),
        (lambda x, seed: torch.zeros(3), "must return integers or conditions as y"),
    ):
        with pytest.raises(KernelError, match=message):
            run_tensors(declared(function), inputs, {}, {})
    drawn = run_tensors(declared(lambda x, seed: torch.tensor([[4], [0], [1]])), inputs, {}, {})["y"]
    assert drawn.argmax(-1).tolist() == [4, 0, 1] and drawn.sum(-1).tolist() == [1, 1, 1]


def plain(logits: Tensor, seed: Tensor) -> Tensor:
    return softmax(logits)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no such result": ({"draws": "z", "like": plain}, "draws names results, y, or maps them to their seed; received"),
    "no such seed": ({"draws": {"y": "key"}, "like": plain}, "a seed is an operand of integers; received 'key'"),
    "a number": ({"draws": {"y": "logits"}, "like": plain}, "a seed is an operand of integers; received 'logits'"),
    "integers": ({"like": lambda logits: logits.argmax(-1)}, "the probabilities of, in the last dimension; y has none"),
    "one number": ({"like": lambda logits: logits.sum()}, "the probabilities of, in the last dimension; y has none"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_declaration_is_an_error(what: str) -> None:
    settings, message = BAD[what]
    with pytest.raises(UsageError, match=message):
        declared(multinomial, **{"like": softmax, **settings})
    with pytest.raises(UsageError, match="an op by name has no use for draws="):
        verify.kernel(op="gelu", draws="y")
