"""Stochastic rounding: right kernels keep the law, by several generators; each defect breaks it for its own reason."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import verify
from tests.laws.trial import attempt, breaks, holds, skips
from tests.measure.test_kernel import few_cases
from verify import backends
from verify.backends import Backend
from verify.declare.declaration import Kernel
from verify.declare.discovery import load
from verify.declare.target import Target
from verify.errors import UsageError
from verify.laws import suite
from verify.measure.kernel import measure_kernel
from verify.measure.requests import Measure

EXAMPLE = Path(__file__).parents[2] / "examples" / "random_numbers.py"
LAW = "stochastic rounding"
NEIGHBOURS, MEANS = "a result is no neighbour of the exact number", "upper neighbours are not taken as often"
ALIKE = "elements do not round independently"
SETTINGS: Mapping[str, Any] = {
    "shapes": {"x": "n", "seed": ""},
    "integers": {"seed": "0 <= seed < 2**31"},
    "stochastic": "seed",
    "dtypes": ["float32"],
    "output_dtypes": {"y": "bfloat16"},
    "gradients": False,
}
Rounding = Callable[[Tensor, Tensor], Tensor]


def words(x: Tensor, seed: Tensor, place: Tensor | None = None) -> Tensor:
    """16 random bits for each element."""
    place = torch.arange(x.numel(), device=x.device) if place is None else place
    return verify.philox(seed, place)[0] & 0xFFFF


def cut(x: Tensor, random: Tensor, up: int = 0) -> Tensor:
    """float32 to bfloat16, up in magnitude where a random number is below the 16 bits that are cut off."""
    bits = x.view(torch.int32)
    chosen = (random < (bits & 0xFFFF) + up).to(torch.int32) << 16
    return ((bits & -0x10000) + chosen).view(torch.float32).bfloat16()


def by_threefry(x: Tensor, seed: Tensor) -> Tensor:
    """Another generator, which torch has on every device."""
    generator = torch.Generator(x.device).manual_seed(int(seed))
    return cut(x, torch.randint(0, 1 << 16, x.shape, device=x.device, generator=generator))


def eight_bits(x: Tensor, seed: Tensor) -> Tensor:
    """Eight random bits, in the middle of their steps: unbiased on average."""
    return cut(x, (words(x, seed) & 0xFF00) + 0x80)


def declared(function: Rounding, like: Callable[..., Any] = lambda x, seed: x, **settings: Any) -> Kernel:
    return verify.kernel(like=like, name="k", **{**SETTINGS, **settings})(
        lambda x, seed: function(x.contiguous(), seed)
    )


RIGHT: dict[str, Rounding] = {
    "Philox": lambda x, seed: cut(x, words(x, seed)),
    "PyTorch's generator": by_threefry,
    "eight bits": eight_bits,
}


@pytest.mark.parametrize("name", RIGHT)
def test_a_right_rounding_keeps_the_law(name: str) -> None:
    holds(LAW, declared(RIGHT[name]))


def towards_infinity(x: Tensor, seed: Tensor) -> Tensor:
    """Up by value: negative numbers are cut more often than they should be."""
    random = words(x, seed)
    return torch.where(x < 0, cut(x, random + 0x1000), cut(x, random - 0x1000))


def off_by_one(x: Tensor, seed: Tensor) -> Tensor:
    """The neighbour beyond the upper one, once in 256."""
    random = words(x, seed)
    y = cut(x, random)
    return torch.where(random % 256 == 7, (y.view(torch.int16) + 1).view(torch.bfloat16), y)


def at(x: Tensor) -> Tensor:
    return torch.arange(x.numel(), device=x.device)


WRONG: dict[str, tuple[Rounding, str]] = {
    "always up": (lambda x, seed: cut(x, torch.zeros_like(words(x, seed)), 0), MEANS),
    "to nearest": (lambda x, seed: x.bfloat16() + 0 * seed, MEANS),
    "cut off": (lambda x, seed: cut(x, words(x, seed) | 0x10000), MEANS),
    "biased by 1/16": (lambda x, seed: cut(x, words(x, seed), up=0x1000), MEANS),
    "one step of 256 too far": (lambda x, seed: cut(x, words(x, seed) & 0xFF00, up=0x200), MEANS),
    "towards infinity by 1/16": (towards_infinity, MEANS),
    "one lane of 64 goes up": (lambda x, seed: cut(x, torch.where(at(x) % 64 == 5, 0, words(x, seed))), ALIKE),
    "exact numbers move": (lambda x, seed: cut(x, words(x, seed), up=8), NEIGHBOURS),
    "off by one neighbour": (off_by_one, NEIGHBOURS),
    "the seed is ignored": (lambda x, seed: cut(x, words(x, 0 * seed)), ALIKE),
    "16 bits of the seed": (lambda x, seed: cut(x, words(x, seed & 0xFFFF)), ALIKE),
    "the seed is added to the place": (lambda x, seed: cut(x, words(x, 0 * seed, at(x) + seed)), ALIKE),
    "two lanes share a number": (lambda x, seed: cut(x, words(x, seed, at(x) // 2)), ALIKE),
    "the place in a block of 96": (lambda x, seed: cut(x, words(x, seed, at(x) % 96)), ALIKE),
    "a number for the tensor": (lambda x, seed: cut(x, words(x, seed, 0 * at(x))), ALIKE),
}


@pytest.mark.parametrize("bug", WRONG)
def test_a_defect_breaks_the_law(bug: str) -> None:
    function, rule = WRONG[bug]
    many = backends.select().scale == "large"  # among as many elements, most defects show as dependence first
    found = attempt(LAW, declared(function))
    assert found.status == "broken" and found.facts
    assert rule in found.message or (many and ALIKE in found.message), (found.message, found.facts)


def test_the_facts_say_what_was_found() -> None:
    facts = breaks(LAW, declared(WRONG["biased by 1/16"][0]), MEANS).facts
    count = {"small": "65,568", "large": "1,050,344"}[backends.select().scale]
    assert facts["of"] == f"{count} elements of y, positive" and facts["went up"].endswith(" of them")
    assert facts["mean error"].endswith("of the spacing")
    facts = breaks(LAW, declared(WRONG["the place in a block of 96"][0]), ALIKE).facts
    apart = re.fullmatch(r"magnitudes of y, elements (\d+) places apart, in the same call", facts["of"])
    assert apart and int(apart[1]) % 96 == 0
    facts = breaks(LAW, declared(WRONG["the seed is ignored"][0]), ALIKE).facts
    assert facts["of"] == "values of y, elements 0 places apart, in the call with the next seed"


@pytest.mark.parametrize("bug", ["the seed is ignored", "the place in a block of 96"])
def test_the_facts_do_not_depend_on_the_last_bits_of_a_fourier_transform(
    bug: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another processor's transform differs by roundings, which decided between equally large dependences."""
    exact = torch.fft.irfft

    def other(*given: Any) -> Tensor:
        found = exact(*given)
        noise = torch.randn(found.shape, dtype=found.dtype, generator=chance, device=found.device)
        return found + 1e-12 * found.abs().max() * noise

    seen = set[str]()
    for seed in range(3):
        chance = torch.Generator().manual_seed(seed)
        with monkeypatch.context() as patch:
            patch.setattr(torch.fft, "irfft", other)
            seen.add(breaks(LAW, declared(WRONG[bug][0]), ALIKE).facts["of"])
    assert len(seen) == 1


def test_a_kernel_computes_in_float32_before_it_rounds() -> None:
    def updated(p: Tensor, u: Tensor, seed: Tensor) -> Tensor:
        return p - 0.01 * u

    settings = {**SETTINGS, "shapes": {"p": "n", "u": "n", "seed": ""}, "dtypes": ["bfloat16"], "output_dtypes": None}
    right = verify.kernel(like=updated, name="right", **settings)(
        lambda p, u, seed: cut(p.float() - 0.01 * u.float(), words(p, seed))
    )
    holds(LAW, right, "bfloat16")
    wrong = verify.kernel(like=updated, name="wrong", **settings)(
        lambda p, u, seed: cut(p.float() - (0.01 * u).float(), words(p, seed))
    )
    breaks(LAW, wrong, NEIGHBOURS, "bfloat16")


def test_a_function_may_be_off_by_units_of_float32_before_it_is_rounded() -> None:
    """An exponential that is 6 ULP of float32 off is within every limit; beside a midpoint nothing shows it."""

    def rounded(x: Tensor, seed: Tensor) -> Tensor:
        y = torch.exp(x)
        return cut(y * (1 + 6 * 2.0**-24), words(x, seed))

    holds(LAW, declared(rounded, lambda x, seed: torch.exp(x)))


def test_nothing_to_round_and_few_seeds_are_no_pass() -> None:
    settings = {"dtypes": ["bfloat16"], "output_dtypes": None}
    skips(LAW, declared(lambda x, seed: x + 0, **settings), "y has nothing to round", "bfloat16")
    few = declared(RIGHT["Philox"], integers={"seed": "0 <= seed < 7"})
    skips(LAW, few, "seed has fewer than 8 values")
    skips(
        LAW, verify.kernel(like=torch.exp, dtypes=["float32"])(lambda x: x.exp()), "the declaration has no stochastic="
    )


def test_the_shipped_examples_keep_the_law(backend: Backend) -> None:
    kernels = {kernel.name: kernel for kernel in load(Target(str(EXAMPLE)))}
    holds(LAW, kernels["to_bfloat16"])
    holds(LAW, kernels["adamw_bfloat16"], "bfloat16")
    assert "rounds at random: p_ by seed" in kernels["adamw_bfloat16"].promise


@pytest.mark.parametrize("name", ["bias_dropout_add", "attention_dropout"])
def test_a_dropout_inside_a_kernel_is_right_at_every_element(name: str, backend: Backend) -> None:
    holds("accuracy", {kernel.name: kernel for kernel in load(Target(str(EXAMPLE)))}[name])


def test_every_run_tries_the_law_without_a_profile(monkeypatch: pytest.MonkeyPatch) -> None:
    """Both kernels keep the limit of every element; the law alone tells them apart."""
    few_cases(monkeypatch, "randn")
    monkeypatch.setattr(suite.engine, "shrink_law", lambda law, subject, broken: broken)  # it takes seconds
    backend, asked = backends.select(), Measure("here.py::k")
    for function, status in ((RIGHT["Philox"], "ok"), (WRONG["the seed is ignored"][0], "wrong")):
        kernel = declared(function)
        done = measure_kernel(kernel, asked, backend)
        assert done.status == "ok", done.results
        done = suite.with_laws(done, kernel, backend, asked)
        assert (done.status, [law.law for law in done.laws]) == (status, [LAW])


def test_the_limit_is_either_neighbour() -> None:
    kernel = declared(RIGHT["Philox"])
    assert kernel.max_ulp["y bfloat16"] == 1.25 and kernel.limit_of("float32", "extreme", "y") is None
    breaks("accuracy", declared(lambda x, seed: (x * (1 + 2.0**-6)).bfloat16()), "beyond the kernel's own limit")
    skips("batch invariance", kernel, "y is rounded at random")


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "no such operand": ({"stochastic": "key"}, "a seed is an operand of one integer; received 'key'"),
    "a number": ({"stochastic": "x"}, "a seed is an operand of one integer; received 'x'"),
    "several seeds": (
        {"shapes": {"x": "n", "seed": "n"}},
        "a seed is an operand of one integer; received 'seed'",
    ),
    "no such result": ({"stochastic": {"z": "seed"}}, "stochastic maps outputs, y, to their seed"),
    "float32": ({"output_dtypes": None}, "in formats of 16 bits or fewer; y has float32"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_declaration_is_an_error(what: str) -> None:
    settings, message = BAD[what]
    with pytest.raises(UsageError, match=message):
        declared(RIGHT["Philox"], **settings)
    with pytest.raises(UsageError, match="an op by name has no use for stochastic="):
        verify.kernel(op="gelu", stochastic="seed")
