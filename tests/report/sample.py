"""A run as the reports meet it: good, wrong, NaN, raising, crashing, hanging, skipped, hostile.

kernels.json has the kernels of its record by name. Worst inputs are true: inputs and truth come from mpmath, `got` is
what the described bug returns there. Counts and the figures of regimes are made up, in the proportions measured on real
kernels.
"""

from __future__ import annotations

import functools
import random
from pathlib import Path

import msgspec

from verify.records.record import SCHEMA, ClassFigures, Figures, Gap, KernelRun, Number, Result, Run, Stage

HOSTILE_NAME = "<script>alert(1)</script>[bold]a|b`c`\x1b[31m\u202e@octocat #1"
KERNELS = msgspec.json.decode(Path(__file__).with_name("kernels.json").read_bytes(), type=dict[str, KernelRun])
HOSTILE_MESSAGE = KERNELS["geglu_raises"].message
FAILURES = [each for each in KERNELS.values() if each.op == "geglu"]  # one of each status that has no figures
RICH = [KERNELS[name] for name in ("rich good", "rich eager", "rich peer", "layer_norm")]  # all that a result can have


def figures(n: int, maximum: Number, p999: Number, mean: float, misrounded: int, **more: object) -> Figures:
    """Figures with nothing open."""
    return _replace(Figures(n, maximum, maximum, p999, mean, misrounded), **more)


def _replace(struct_: object, **changes: object):  # type: ignore[no-untyped-def]
    return msgspec.structs.replace(struct_, **changes)


ENVIRONMENT = {
    "python": "3.12.8",
    "platform": "Linux x86_64",
    "torch": "2.11.0",
    "triton": "3.6.0",
    "gpu": {"name": "NVIDIA H200", "arch": "sm_90", "driver": "570.86", "memory_gib": 139.8},
    "flush_to_zero": False,
    "tf32": False,
    "commit": "0a9ec1b26e62",
    "dirty": True,
    "property_hash": None,
}


@functools.cache
def rich() -> Run:
    """A nightly run: laws, speed and stages."""
    stages = [
        Stage("run", "wrong", "1 kernel is wrong", 61.0),
        Stage("sweep", "ok", "", 12.5),
        Stage("hunt", "incomplete", "the budget was spent <i>", 100.0),
    ]
    return make(RICH, stages=stages)


def rich_many(count: int) -> Run:
    """A large run with everything: `count` kernels."""
    return make(
        [_replace(RICH[k % 2], name=f"kernel_{k:03d}", target=f"accuracy.py::kernel_{k:03d}") for k in range(count)]
    )


def night(peers: int) -> Run:
    """Judged kernels beside many peers, stand-ins among them, no two with the same bits."""
    drawn = random.Random(0)
    kernels = []
    for kernel in rich_many(4 + peers).kernels:
        place = len(kernels)
        results = [
            _replace(
                result,
                worst=[_replace(item, truth=f"-3.{drawn.randrange(10**29)}e-5") for item in result.worst],
                status="ok" if place >= 4 else result.status,
            )
            for result in kernel.results
        ]
        target = kernel.target + ("@eager" if place % 3 == 0 else "")
        kernels.append(_replace(kernel, results=results, target=target, peer=place >= 4))
    return make(kernels)


def classed(result: Result) -> Result:
    """The result with its elements in two classes: the worst are ordinary, the others demanding."""
    if result.source != "run" or result.classes or result.figures.n < 2:
        return result
    half = result.figures.n // 2

    def part(of: Figures, n: int, share: float) -> Figures:
        smaller = {
            name: value * share
            for name in ("max_ulp", "max_upper", "scaled_max", "scaled_upper")
            if isinstance(value := getattr(of, name), float)
        }
        counts = {name: min(getattr(of, name), n) for name in ("misrounded", "undecided", "nonfinite")}
        return _replace(of, n=n, **counts, **(smaller if share < 1 else {}))

    beyond = result.status == "wrong" and result.worst and not result.reason.startswith("wrong at")
    reason = (result.reason or "beyond the limit") if beyond else ""
    worst = next(iter(result.worst), None)
    theirs = result.baseline
    return _replace(
        result,
        classes=[
            ClassFigures(
                "ordinary",
                part(result.figures, result.figures.n - half, 1.0),
                result.limit,
                theirs and part(theirs, result.figures.n - half, 1.0),
                worst,
                reason,
            ),
            ClassFigures(
                "demanding",
                part(result.figures, half, 0.5) if not reason else part(result.figures, half, 1e-3),
                result.limit,
                theirs and part(theirs, half, 0.5),
            ),
        ],
    )


def make(kernels: list[KernelRun], **changes: object) -> Run:
    base = Run(
        schema=SCHEMA,
        id="3f9ac07be215",
        created="2026-07-28T09:14:03Z",
        command="verify run accuracy.py --profile default",
        backend="cuda",
        seed=0,
        profile="default",
        environment=ENVIRONMENT,
        kernels=[_replace(kernel, results=[classed(result) for result in kernel.results]) for kernel in kernels],
        seconds=212.7,
    )
    run: Run = _replace(base, **changes)
    return run


@functools.cache
def sample() -> Run:
    """Everything at once: a failing run."""
    named = [KERNELS[name] for name in ("good", "eager", "peer", "nan", "layer_norm", "long", "hostile")]
    return make(
        [*named, *FAILURES],
        incomplete=[Gap("out of time", "layer_norm float64: the time budget of 200 s ended before its turn")],
    )


@functools.cache
def plain() -> Run:
    """What most runs look like: short names, one thing wrong."""
    return make([KERNELS["good"], KERNELS["eager"], KERNELS["nan"]])


@functools.cache
def passing() -> Run:
    return make([KERNELS["good"]])


@functools.cache
def incomplete() -> Run:
    """Nothing wrong, and something did not happen."""
    skipped = [kernel for kernel in FAILURES if kernel.status == "skipped"]
    return make([KERNELS["good"], *skipped], incomplete=sample().incomplete)


def empty() -> Run:
    return make([])


def many(count: int = 20) -> Run:
    """A large run: `count` kernels of two results with ten worst inputs each."""
    templates = [KERNELS[name] for name in ("eager", "nan", "layer_norm", "good")]
    kernels = [
        _replace(templates[k % len(templates)], name=f"kernel_{k:02d}", target=f"accuracy.py::kernel_{k:02d}")
        for k in range(count)
    ]
    return make(kernels)
