"""What searching is worth: `verify hunt` beside random sampling, by as many evaluations and by as much time.

    python -m benchmarks.hunt [--size small|full] [--json PATH]

Subjects are this repository's kernels and PyTorch's own, layer norm and GEGLU in float32, over several seeds. Random
sampling is the same program with every candidate fresh (`--strategy random`): the recipes of `verify run`, in the same
calls, judged the same way. Both figures are judged exactly. `evaluations_to_match` says after how many evaluations the
hunt had passed what random sampling found with all of its own, as the search saw it.

PyTorch's layer norm is searched among inputs of at most 1e4, because its variance overflows beyond: both strategies
then stop at the first NaN. Its GEGLU is wrong in every bit of the negative tail, so it is searched among inputs of at
most 4 too.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from verify import backends

BACKEND = backends.select()
backends.activate(BACKEND)

import verify  # noqa: E402
from properties import geglu, layer_norm  # noqa: E402
from verify.backends import probes  # noqa: E402
from verify.declare.declaration import Kernel  # noqa: E402
from verify.records.record import number, value_of  # noqa: E402
from verify.search.hunt.outcome import hunt  # noqa: E402
from verify.search.hunt.requests import Hunt, Settings  # noqa: E402
from verify.search.hunt.search import Search  # noqa: E402


@verify.kernel(op="geglu", dtypes=["float32"], peer=True)
def torch_geglu(x: torch.Tensor) -> torch.Tensor:
    """PyTorch eager: the product of two kernels."""
    first, second = x.chunk(2, -1)
    return first * torch.nn.functional.gelu(second)


@verify.kernel(op="layer_norm", dtypes=["float32"], peer=True)
def torch_layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, *, eps: float) -> torch.Tensor:
    """PyTorch eager."""
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)


@dataclass(frozen=True)
class Subject:
    """One comparison: which kernel, which result, how much."""

    kernel: Kernel
    result: str
    evaluations: dict[str, int]
    largest: float | None = None


ROWS = {"small": 1 << 10, "full": 1 << 19}
PAIRS = {"small": 1 << 16, "full": 1 << 26}
SUBJECTS = (
    Subject(layer_norm.layer_norm, "y", ROWS),
    Subject(geglu.geglu, "y", PAIRS),
    Subject(torch_layer_norm, "y", ROWS, largest=1e4),
    Subject(torch_geglu, "y", PAIRS, largest=4.0),
    Subject(torch_geglu, "y", PAIRS),
    Subject(layer_norm.layer_norm, "dx", ROWS),
)


@dataclass
class Trace:
    """Best so far after every generation."""

    steps: list[tuple[int, float]] = field(default_factory=list)

    def __call__(self, search: Search) -> None:
        self.steps.append((search.evaluations, search.best))

    def passed(self, bar: float) -> int | None:
        """Evaluations until something larger than `bar` had been seen."""
        return next((evaluations for evaluations, best in self.steps if best > bar), None)


def searched(subject: Subject, settings: Settings) -> tuple[dict[str, Any], Trace]:
    """One search, judged exactly."""
    trace = Trace()
    started = time.perf_counter()
    target = f"{subject.kernel.module}::{subject.kernel.name}"
    done = hunt(subject.kernel, target, BACKEND, Hunt("float32", subject.result), settings, watch=trace)
    figures = done.result.figures
    figure = figures.max_ulp if figures.scaled_max is None else figures.scaled_max
    return {
        "maximum": figure,
        "evaluations": done.search.evaluations,
        "search_seconds": done.search.seconds,
        "seconds": time.perf_counter() - started,
        "input": done.result.worst[0].inputs,
        "alone": done.finds[0].alone,
        "searched": done.search.space.sentence,
    }, trace


def compare(subject: Subject, size: str, seeds: range) -> dict[str, Any]:
    """Hunt against random sampling: as many evaluations, and as much time."""
    rows: list[dict[str, Any]] = []
    count = subject.evaluations[size]
    for seed in seeds:
        base = {"seed": seed, "largest": subject.largest}
        found, trace = searched(subject, Settings(**base, evaluations=count))  # type: ignore[arg-type]
        control, control_trace = searched(subject, Settings(**base, evaluations=count, strategy="random"))  # type: ignore[arg-type]
        seconds = found["search_seconds"]
        timed, _ = searched(subject, Settings(**base, seconds=seconds, strategy="random"))  # type: ignore[arg-type]
        row = {"seed": seed, "hunt": found, "random": control, "random_same_time": timed}
        bar = max((best for _, best in control_trace.steps), default=math.inf)
        rows.append(row | {"evaluations_to_match": trace.passed(bar)})
    hunts, controls, timed_ones = (
        [value_of(row[name]["maximum"]) for row in rows] for name in ("hunt", "random", "random_same_time")
    )
    again, _ = searched(subject, Settings(seed=seeds[0], largest=subject.largest, evaluations=count))
    stays = ("maximum", "input", "evaluations")
    matched = [row["evaluations_to_match"] for row in rows]
    return {
        "kernel": subject.kernel.name,
        "result": subject.result,
        "gate": subject.kernel.op.gate,
        "largest_input": subject.largest,
        "evaluations": count,
        "median_hunt": number(statistics.median(hunts)),
        "median_random": number(statistics.median(controls)),
        "median_random_same_time": number(statistics.median(timed_ones)),
        "hunt_above_random": sum(a > b for a, b in zip(hunts, controls, strict=True)),
        "hunt_above_random_same_time": sum(a > b for a, b in zip(hunts, timed_ones, strict=True)),
        "seeds": len(rows),
        "repeats": all(again[name] == rows[0]["hunt"][name] for name in stays),
        "median_evaluations_to_match": statistics.median(matched) if None not in matched else None,
        "runs": rows,
    }


def main() -> int:
    """Measure, print a table, write JSON."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--size", choices=("small", "full"), default="full" if BACKEND.name == "cuda" else "small")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    seeds = range(options.seeds)
    report: dict[str, Any] = {"backend": BACKEND.name, "label": BACKEND.label, "environment": probes.fingerprint()}
    report |= {"size": options.size, "comparisons": []}

    def save() -> None:
        if options.json:
            options.json.parent.mkdir(parents=True, exist_ok=True)
            options.json.write_text(json.dumps(report, indent=1, sort_keys=True, allow_nan=False) + "\n")

    for subject in SUBJECTS:
        # a first call compiles; it is not the search's time
        searched(subject, Settings(evaluations=subject.evaluations[options.size] // 64, largest=subject.largest))
        item = compare(subject, options.size, seeds)
        report["comparisons"].append(item)
        save()
        inputs = "all" if subject.largest is None else f"<= {subject.largest:g}"
        print(
            f"{item['kernel']:<18} {item['result']:<3} {inputs:<6} {item['evaluations']:>11,} evaluations: hunt "
            f"{value_of(item['median_hunt']):.6g}, random {value_of(item['median_random']):.6g}, "
            f"same time {value_of(item['median_random_same_time']):.6g}; "
            f"above in {item['hunt_above_random']} and {item['hunt_above_random_same_time']} of {item['seeds']}; "
            f"matched after {item['median_evaluations_to_match']}; repeats: {item['repeats']}",
            flush=True,
        )
    save()
    return 0


if __name__ == "__main__":
    sys.exit(main())
