"""Sums that are evaluated part by part: what they give is what the whole sum gives."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn import functional

from verify.errors import BeyondEffort, TruthError
from verify.ops.graph import chunks
from verify.ops.graph.boxes import Box
from verify.ops.graph.chunks import Chunked
from verify.ops.graph.noise import noise_of
from verify.ops.graph.program import Program, trace, undisturbed
from verify.ops.graph.rounding import Rounding
from verify.ops.graph.slices import Cut
from verify.ops.graph.spans import point
from verify.ops.graph.steps import Leaf, Run

MEMORY = 1 << 20


def _batch_norm(x: Tensor) -> Tensor:
    return functional.batch_norm(x, None, None, training=True)


def _kl(x: Tensor, y: Tensor) -> Tensor:
    return functional.kl_div(torch.log_softmax(x, -1), torch.softmax(y, -1), reduction="batchmean")


# the function, the shapes of its operands, and the results with long sums
FUNCTIONS: dict[str, tuple[Callable[..., Tensor], tuple[tuple[int, ...], ...], tuple[str, ...]]] = {
    "mean of squares": (lambda x: x.square().mean(), ((64, 512),), ("y",)),
    "in one dimension": (lambda x: x.reshape(-1).square().sum(), ((64, 512),), ("y",)),
    "norm": (lambda x: x / torch.linalg.vector_norm(x), ((64, 512),), ("y", "dx0")),
    "divergence": (_kl, ((64, 256), (64, 256)), ("y",)),
    "batch norm": (_batch_norm, ((32, 4, 64),), ("y", "dx0")),
    "product, batch norm": (lambda x, w: _batch_norm(torch.relu(x @ w)), ((1024, 8), (8, 8)), ("y",)),
    "weights": (functional.linear, ((4096, 16), (8, 16)), ("dx1",)),
    "largest": (lambda x, w: (x @ w).amax(), ((512, 16), (16, 64)), ("y",)),
    "log of a sum": (lambda x: torch.logsumexp(2 * x, (0, 1)), ((64, 512),), ("y", "dx0")),
}


def _program(name: str) -> tuple[Program, dict[str, Tensor]]:
    function, shapes, _ = FUNCTIONS[name]
    generator = torch.Generator().manual_seed(1)
    leaves = {f"x{place}": torch.randn(shape, generator=generator) for place, shape in enumerate(shapes)}
    program = trace(function, leaves, differentiable=list(leaves))
    upstream = torch.randn(program.results["y"].shape, generator=generator)
    return program, {**leaves, "grad y": upstream}


def _box(shape: tuple[int, ...], rows: bool) -> Box:
    return tuple(np.arange(0, size, 1 if rows else max(size // 3, 1)) for size in shape)


@pytest.mark.parametrize(("name", "result"), [(name, each) for name, case in FUNCTIONS.items() for each in case[2]])
def test_parts_give_what_the_whole_sum_gives(name: str, result: str) -> None:
    program, leaves = _program(name)
    box = _box(program.results[result].shape, "batch norm" in name)
    run = Run(leaves, torch.device("cpu"))
    whole, some = Cut(program, run, result, box), Cut(program, run, result, box, memory=MEMORY)
    (one, its), (other, own) = whole.made(), some.made()
    sums = [step.totals for step in other.steps if isinstance(step, Chunked)]
    assert sums and all(len(totals.parts) > 1 and totals.bytes <= MEMORY / 4 for totals in sums)
    assert not any(isinstance(step, Chunked) for step in one.steps)
    known = noise_of(one, its, [result], Rounding.of(its))[0][result]
    found = noise_of(other, own, [result], Rounding.of(own))[0][result]
    value, again = (
        each.values(its_own, [result], undisturbed(its_own))[result] for each, its_own in ((one, its), (other, own))
    )
    assert torch.allclose(again, value, rtol=1e-12, atol=1e-13)
    noisy = known.deviation > 0
    assert bool((found.deviation[noisy] > 0).all())
    ratio = (found.deviation[noisy] / known.deviation[noisy]).log2()
    assert abs(float(ratio.mean())) < 0.5 and float(ratio.abs().max()) < 1.2  # 16 runs know noise to a fifth
    first, second = one.spans(its, [result])[result], other.spans(own, [result])[result]
    assert bool(((first.lo <= second.hi) & (second.lo <= first.hi)).all())
    roundings = 2.0**-46 * float(first.size().max())  # each part is rounded once more
    assert float((second.hi - second.lo).max()) <= 1.01 * float((first.hi - first.lo).max()) + roundings


def test_a_sum_of_parts_has_no_exact_value() -> None:
    program, leaves = _program("mean of squares")
    cut, run = Cut(program, Run(leaves, torch.device("cpu")), "y", (), memory=MEMORY).made()
    with pytest.raises(BeyondEffort, match="too many terms"):
        cut.places(run, "y", [0], {})


def test_a_wrong_interval_gives_no_verdict(monkeypatch: pytest.MonkeyPatch) -> None:
    program, leaves = _program("mean of squares")
    run = Run(leaves, torch.device("cpu"))
    cut, its = Cut(program, run, "y", (), memory=MEMORY).made()
    span = Leaf.span
    off = lambda self, run, given: point(span(self, run, given).lo * (1 + 1e-9))  # noqa: E731
    monkeypatch.setattr(Leaf, "span", off)
    with pytest.raises(TruthError, match="Arb finds a term of a sum outside of its interval"):
        cut.spans(its, ["y"])
    monkeypatch.setattr(chunks, "_check_terms", lambda program, run: None)
    noise_of(cut, its, ["y"], Rounding.of(its))
    with pytest.raises(TruthError, match="the float64 value of a sum is outside of its interval"):
        cut.spans(its, ["y"])


def test_what_the_parts_of_a_sum_round_to_few_bits_adds_up() -> None:
    program, leaves = _program("weights")
    box = _box((8, 16), True)
    for products in ("tf32", "14 bits", "14 bits, promoted every 128"):
        found = []
        for memory in (float("inf"), 64 * MEMORY):  # parts of 256 products
            cut, its = Cut(program, Run(leaves, torch.device("cpu")), "dx1", box, memory=memory).made()
            found.append(noise_of(cut, its, ["dx1"], Rounding.of(its, products=products))[0]["dx1"].deviation)  # type: ignore[arg-type]
        assert abs(float((found[1] / found[0]).log2().mean())) < 0.3
