"""The Triton autotuners that a kernel launches: watched at work, made to forget, held to one configuration.

They are found by what runs, not by searching modules: `launched()` records every autotuner that starts a kernel
while it is open, however deep it is hidden.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass
class Launched:
    """One autotuner that ran, and the configurations that its own pruning allowed each time."""

    tuner: Any
    configs: list[Any]


@contextmanager
def launched() -> Iterator[list[Launched]]:
    """Autotuners that run while the context is open, in the order of their first launch.

    Each tunes anew at its first launch, as in a fresh process: nothing was pruned, else, that could be watched. It runs
    its kernel twice with every configuration, and the first one that can run wins: timing them would take a hundred
    times as long, and another one might win the next time. What was tuned before holds again afterwards.
    """
    from triton.runtime.autotuner import Autotuner

    seen: list[Launched] = []
    untuned = ExitStack()
    original_run, original_prune = Autotuner.run, Autotuner.prune_configs

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not any(each.tuner is self for each in seen):
            seen.append(Launched(self, list(self.configs)))
            untuned.enter_context(_empty_cache(self))
            untuned.enter_context(_no_stopwatch(self))
        return original_run(self, *args, **kwargs)

    def prune(self: Any, *args: Any, **kwargs: Any) -> Any:
        allowed = original_prune(self, *args, **kwargs)
        for each in seen:
            if each.tuner is self:
                each.configs = [config for config in each.configs if any(config is other for other in allowed)]
        return allowed

    Autotuner.run, Autotuner.prune_configs = run, prune
    try:
        yield seen
    finally:
        Autotuner.run, Autotuner.prune_configs = original_run, original_prune
        untuned.close()


@contextmanager
def _empty_cache(tuner: Any) -> Iterator[None]:
    """The tuner has tuned nothing; what it had tuned before holds again afterwards."""
    cache = dict(tuner.cache)
    tuner.cache.clear()
    try:
        yield
    finally:
        tuner.cache.clear()
        tuner.cache.update(cache)


@contextmanager
def _no_stopwatch(tuner: Any) -> Iterator[None]:
    """The tuner times nothing."""
    own = {name: value for name, value in vars(tuner).items() if name == "do_bench"}  # not every version has one
    tuner.do_bench = _twice
    try:
        yield
    finally:
        del tuner.do_bench
        vars(tuner).update(own)


def _twice(call: Callable[[], Any], quantiles: Sequence[float] = (), **options: Any) -> list[float]:
    """In the place of the stopwatch of a tuner: every configuration takes as long as the others."""
    call()
    call()
    return [0.0] * len(quantiles)


@contextmanager
def forced(tuner: Any, config: Any) -> Iterator[None]:
    """One autotuner uses one configuration and nothing else."""
    configs = tuner.configs
    tuner.configs = [config]
    try:
        with _empty_cache(tuner):
            yield
    finally:
        tuner.configs = configs


def with_warps(config: Any, warps: int) -> Any:
    """The same configuration with another number of warps."""
    import copy

    changed = copy.copy(config)
    changed.num_warps = warps
    return changed


def cannot_run(error: BaseException) -> bool:
    """Whether a launch failed because the configuration asks for more than the device has: a tuner drops it too."""
    from triton.compiler.errors import CompileTimeAssertionFailure
    from triton.runtime.errors import OutOfResources, PTXASError

    return isinstance(error.__cause__ or error, OutOfResources | CompileTimeAssertionFailure | PTXASError)


def describe(tuner: Any, config: Any) -> str:
    """The kernel's name and the configuration, as messages print it."""
    options = ", ".join(f"{name}={value}" for name, value in config.all_kwargs().items())
    return f"{tuner.base_fn.__name__}: {options}"
