"""Correct rounding, whatever proposes: the same bits with AVX-512, with AVX2 and with neither."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import flint
import numpy as np
import pytest

from tests.backends.interpreter import functions_digest
from tests.processors import without_vectors
from verify.backends.interpreter import functions
from verify.backends.interpreter.casts import STORAGE
from verify.backends.interpreter.functions import NEAR, Evaluated

EVALUATED = {name: f for name, f in vars(functions).items() if isinstance(f, Evaluated)}
ARITY = dict.fromkeys(("power", *functions_digest.TWO), 2)
#: What every processor gives; made with AVX-512, which the tests below repeat without.
DIGESTS = {
    "float32 functions": "21fae63afa56e5a5",
    "float64 functions": "5f8a2f6d9bd52cb5",
    "exact functions": "b97652c1f9decbea",
    "fast functions": "749bfc916347905d",
    "instructions": "8253910815068c6c",
    "casts": "5588a77886dac821",
    "sums": "1212509455553535",
}


# -- the same bits everywhere ---------------------------------------------------------------------


def test_this_processor_gives_the_recorded_bits() -> None:
    assert functions_digest.digests() == DIGESTS


def test_a_processor_without_vector_instructions_gives_the_same_bits() -> None:
    command = [sys.executable, str(Path(functions_digest.__file__))]
    env = without_vectors() | {"PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=env)
    assert done.returncode == 0, done.stderr
    printed = json.loads(done.stdout)
    assert (printed.pop("torch"), printed.pop("numpy")) == ("DEFAULT", [])  # else nothing was switched off
    assert printed == DIGESTS


def inputs(name: str, count: int, seed: int = 7) -> list[np.ndarray]:
    """float32 arguments of every kind: all patterns, everyday sizes, near 1 and 1/2, near multiples of pi / 2."""
    rng = np.random.default_rng(seed)

    def column() -> np.ndarray:
        kinds = [
            rng.integers(0, 2**32, count, dtype=np.uint32).view(np.float32),
            rng.normal(size=count) * 10.0 ** rng.uniform(-3, 2, count),
            rng.uniform(0, 1, count),
            *(centre + rng.normal(size=count) * 2.0 ** -rng.integers(2, 24, count) for centre in (0.5, 1.0, 2.0)),
            np.rint(rng.uniform(-100, 100, count)) * np.pi / 2,
        ]
        return np.concatenate(kinds).astype(np.float32).astype(np.float64)

    return [column() for _ in range(ARITY.get(name, 1))]


@pytest.mark.parametrize("name", EVALUATED)
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_proposals_are_far_closer_than_is_assumed(name: str) -> None:
    """64 times: measured at most 6.6 units of 2^-53 on 28,000 arguments for each, 512 are assumed."""
    f, columns = EVALUATED[name], inputs(name, 40)
    proposed, before = f.propose(*columns), flint.ctx.prec
    settled = np.zeros(len(proposed), bool) if f.far is None else f.far(*columns, proposed)
    worst = 0.0
    try:
        flint.ctx.prec = 300
        for *values, guess, skip in zip(*columns, proposed, settled, strict=True):
            if skip or not np.isfinite([*values, guess]).all() or 0.0 in values:
                continue
            exact = f.ball(*map(flint.arb, values))
            if 1e-46 < abs(float(exact)) < 3.5e38:
                worst = max(worst, abs(float((flint.arb(float(guess)) - exact) / exact)))
    finally:
        flint.ctx.prec = before
    assert worst <= NEAR / 64


@pytest.mark.parametrize("name", EVALUATED)
@pytest.mark.parametrize("target", ["fp64", "fp32", "fp16", "bf16"])
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_what_a_proposal_is_off_does_not_show(name: str, target: str) -> None:
    """Proposals that differ much more than any two machines do."""
    f, columns = EVALUATED[name], inputs(name, 12)
    noise = 1.0 + np.random.default_rng(3).uniform(-0.4, 0.4, columns[0].shape) * NEAR
    other = replace(f, propose=lambda *a: np.where(np.isin(f.propose(*a), (0, np.inf)), 1, noise) * f.propose(*a))
    bits = np.dtype(f"u{STORAGE[target].itemsize}")
    ours, theirs = (each.rounded(target, *columns) for each in (f, other))
    assert ours.dtype == STORAGE[target]
    assert np.array_equal(ours.view(bits), theirs.view(bits))


# -- correct rounding -----------------------------------------------------------------------------


def test_ties_go_to_even() -> None:
    """x^y half-way between two float32: 11^7 = (11^4)^(7/4) has 25 bits, where no precision tells the side."""
    x, y = np.array([11.0**4, 4099.0, 4101.0, 5793.0]), np.array([1.75, 2.0, 2.0, 2.0])
    exact = [11**7, 4099**2, 4101**2, 5793**2]
    assert [value.bit_length() for value in exact] == [25, 25, 25, 26]
    got = functions.power.rounded("fp32", x, y)
    assert got.tolist() == np.array(exact, np.float32).tolist()


def test_ties_in_float64_go_to_even() -> None:
    roots = np.array([94906267.0, 94906269.0, 134217727.0, 121654321.0])  # their squares have 54 bits
    assert {int(root) ** 2 % 2 for root in roots} == {1} and {(int(root) ** 2).bit_length() for root in roots} == {54}
    got = functions.power(roots, np.full(4, 2.0))
    assert got.tolist() == [float(int(root) ** 2) for root in roots]


def test_an_element_whose_proposal_is_doubtful() -> None:
    """exp2 at 0.29412... lies 5.3e-8 of a spacing below the middle of two float32: the ball tells the side."""
    x, f = np.array([0.2941235303878784]), functions.exp2
    sides = [np.float32(f.propose(x) * (1 + side * NEAR))[0] for side in (-1, 1)]
    assert np.nextafter(sides[0], np.float32(2)) == sides[1]
    assert f.rounded("fp32", x)[0] == sides[0]
    assert replace(f, propose=lambda x: np.exp2(x) * (1 + NEAR / 2)).rounded("fp32", x)[0] == sides[0]


def test_signs_of_zeros_poles_and_limits() -> None:
    inf, nan = np.inf, np.nan

    def of(f: Evaluated, *rows: tuple[float, ...]) -> str:
        with np.errstate(all="ignore"):
            return str(f(*(np.array(column) for column in zip(*rows, strict=True))).tolist())

    assert of(functions.atan2, (-0.0, -1.0), (0.0, -1.0), (-0.0, 1.0)) == f"[{-np.pi}, {np.pi}, -0.0]"
    assert of(functions.exp, (-1e300,), (1e300,), (-0.0,), (nan,)) == "[0.0, inf, 1.0, nan]"
    assert of(functions.power, (-8.0, 3.0), (-8.0, 0.5), (-0.0, -3.0), (1.5, 1e300)) == "[-512.0, nan, -inf, inf]"
    assert of(functions.tgamma, (-0.0,), (-3.0,), (171.7,), (-180.5,), (-200.5,), (inf,), (-inf,)) == (
        "[-inf, nan, inf, -0.0, -0.0, inf, nan]"
    )
    assert of(functions.lgamma, (-2.0,), (1.0,), (-0.5,), (1e305,)) == (
        "[inf, 0.0, 1.2655121234846454, 7.012884533631839e+307]"
    )
    assert of(functions.sinpi, (-2.0,), (0.5,), (1e300,), (inf,)) == "[-0.0, 1.0, 0.0, nan]"
    assert of(functions.log, (0.0,), (-1.0,), (inf,), (5e-324,)) == "[-inf, nan, inf, -744.4400719213812]"


def test_precision_is_put_back() -> None:
    before = flint.ctx.prec
    functions.exp(np.array([1.0, 2.0]))
    assert flint.ctx.prec == before
    broken = Evaluated(np.exp, lambda x: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        broken(np.array([1.0]))
    assert flint.ctx.prec == before
