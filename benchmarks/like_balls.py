"""How often balls decide what float64 does not, and the cost: python -m benchmarks.like_balls docs/like-tables.md

PyTorch's own float32 results are judged for functions at sizes where a verdict takes seconds, with the cases of a run.
*Open* is the share of elements whose rounding float64's interval leaves open, *balls* that of the time of the whole
measurement which Arb and mpmath take, beside it for those elements alone. Of some open elements *106 bits* is how many
a ball of the precision of two float64 decides.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.nn import functional as F  # noqa: N812

import verify
from benchmarks.like_rules import write
from benchmarks.like_suite import adamw
from verify.backends import Interpreter
from verify.measure import judge as judging
from verify.measure.kernel import measure_kernel
from verify.measure.requests import Measure
from verify.ops.graph import single
from verify.truth.enclosure import from_arb

CPU = Interpreter("cpu")
SAMPLE, BITS = 64, 106  # open elements that are tried at the precision of two float64
ROWS, IMAGE, HEADS = (64, 256), (2, 8, 12, 12), (2, 2, 24, 16)

FUNCTIONS: dict[str, tuple[Callable[..., Any], Sequence[Any]]] = {
    "gelu": (F.gelu, [ROWS]),
    "mish": (F.mish, [ROWS]),
    "softmax": (lambda x: F.softmax(x, -1), [ROWS]),
    "log softmax": (lambda x: F.log_softmax(x, -1), [ROWS]),
    "layer norm": (lambda x, w, b: F.layer_norm(x, x.shape[-1:], w, b), [ROWS, (256,), (256,)]),
    "RMS norm": (lambda x, w: F.rms_norm(x, x.shape[-1:], w, 1e-6), [ROWS, (256,)]),
    "group norm": (lambda x, w, b: F.group_norm(x, 4, w, b), [IMAGE, (8,), (8,)]),
    "variance": (lambda x: x.var(-1), [ROWS]),
    "cumsum": (lambda x: x.cumsum(-1), [ROWS]),
    "logsumexp": (lambda x: x.logsumexp(-1), [ROWS]),
    "cosine similarity": (lambda a, b: F.cosine_similarity(a, b), [ROWS, ROWS]),
    "cross entropy": (lambda x, y: F.cross_entropy(x, y.softmax(-1)), [ROWS, ROWS]),
    "matmul": (torch.matmul, [(32, 64), (64, 32)]),
    "conv2d": (lambda x, w: F.conv2d(x, w, padding=1), [IMAGE, (8, 8, 3, 3)]),
    "attention": (F.scaled_dot_product_attention, [HEADS, HEADS, HEADS]),
    "AdamW": (adamw, [ROWS, ROWS, ROWS, ROWS]),
}


class Watched:
    """What a measurement asks of balls."""

    def __init__(self) -> None:
        self.elements = self.open = self.tried = self.decided = 0
        self.seconds = {True: 0.0, False: 0.0}  # for open elements alone: both routes are not asked there

    def errors(self, *args: Any, **options: Any) -> Any:
        found = judging_errors(*args, **options)
        self.elements += found.undecided.numel()
        self.open += int(found.undecided.sum())
        return found

    def judge(self, point: Any, fmt: Any, pattern: int, *, both: bool, policy: Any) -> Any:
        if not both and self.tried < SAMPLE:
            with mock.patch.object(single, "_FEWEST", BITS):
                ball = point.arb(BITS)
            self.tried += 1
            self.decided += _rounds(ball, fmt)
        started = time.monotonic()
        found = judging_judge(point, fmt, pattern, both=both, policy=policy)
        self.seconds[both] += time.monotonic() - started
        return found


judging_errors, judging_judge = judging.errors, judging.judge


def _rounds(ball: Any, fmt: Any) -> bool:
    if not ball.is_finite():
        return False
    enclosure = from_arb(ball)
    return bool(fmt.round(enclosure.low) == fmt.round(enclosure.high))


def measured(function: Callable[..., Any], shapes: Sequence[Any], limit: float) -> tuple[Watched, float, float]:
    """What was asked, and the seconds of all and of balls."""
    torch.manual_seed(1)
    names = [f"x{place}" for place in range(len(shapes))]
    scope: dict[str, Any] = {"function": function}
    exec(f"def kernel({', '.join(names)}):\n    return function({', '.join(names)})", scope)
    examples = [tuple(torch.rand(shape) + 0.1 for shape in shapes)]
    kernel = verify.kernel(like=function, examples=examples, dtypes=["float32"], max_ulp=1e9)(scope["kernel"])
    watched, spent, inside = Watched(), [0.0], [0]

    def element(self: Any, *args: Any) -> Any:
        started, inside[0] = time.monotonic(), inside[0] + 1
        try:
            return asked(self, *args)
        finally:
            inside[0] -= 1
            spent[0] += 0.0 if inside[0] else time.monotonic() - started

    asked = single.ElementEvaluator._element
    with (
        mock.patch.object(judging, "errors", watched.errors),
        mock.patch.object(judging, "judge", watched.judge),
        mock.patch.object(single.ElementEvaluator, "_element", element),
    ):
        started = time.monotonic()
        measure_kernel(kernel, Measure("like.py::kernel", seconds=limit), CPU)
        return watched, time.monotonic() - started, spent[0]


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("page", type=Path)
    options.add_argument("--seconds", type=float, default=25.0, help="for each function")
    chosen = options.parse_args()
    lines = [
        "| function | elements | open | time | balls | for open ones | 106 bits |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, (function, shapes) in FUNCTIONS.items():
        seen, seconds, balls = measured(function, shapes, chosen.seconds)
        decides = f"{seen.decided / seen.tried:.0%}" if seen.tried else ""
        shares = f"{balls / seconds:.0%} | {seen.seconds[False] / seconds:.1%} | {decides}"
        lines.append(f"| {name} | {seen.elements:,} | {seen.open / seen.elements:.2%} | {seconds:.0f} s | {shares} |")
        print(lines[-1], flush=True)
    write(chosen.page, "like balls", "\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
