"""The Triton autotuners that a kernel launches: without a stopwatch, watched at work, held to one configuration.

A figure must not depend on which configuration was fastest that day, and to time thirty of them for every width of a
row takes minutes: where errors are measured, `choose_by_key()` gives each key of an autotuner one configuration.
Timings are taken inside `timed()`. The laws find tuners by what runs, not by searching modules: `launched()` records
every one that starts a kernel while it is open, however deep it is hidden.
"""

from __future__ import annotations

import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass
class Launched:
    """One autotuner that ran, and the configurations that its own pruning allowed each time."""

    tuner: Any
    configs: list[Any]


_own: dict[str, Any] = {}  # what Triton's class had, while `choose_by_key` holds


def choose_by_key() -> None:
    """From now on a tuner gives each of its keys one configuration, the same in every process, and times none.

    Keys take them in turns, by a checksum, so that a plan of many sizes sees many of them; one that asks for more than
    the device has is passed over, as a stopwatch would. A subclass that overrides both methods tunes as it likes.
    """
    from triton.runtime.autotuner import Autotuner

    if not _own:
        _own.update(prune_configs=Autotuner.prune_configs, _bench=Autotuner._bench)
        Autotuner.prune_configs, Autotuner._bench = _prune, _bench


def _prune(self: Any, kwargs: dict[str, Any]) -> list[Any]:
    """In the place of Autotuner.prune_configs: one of those that it allows, which has run once."""
    allowed = list(_own["prune_configs"](self, kwargs))
    given = {**self.nargs, **kwargs}
    dtypes = [str(value.dtype) for value in given.values() if hasattr(value, "dtype")]
    key = repr([given[name] for name in self.keys if not hasattr(given.get(name, self), "dtype")] + dtypes)
    first = zlib.crc32(key.encode()) % len(allowed)
    in_turn = allowed[first:] + allowed[:first]
    with _stopwatch(self, _once):
        for config in in_turn[:-1]:
            if _own["_bench"](self, *self.nargs.values(), config=config, **kwargs)[0] == 0.0:
                return [config]
    return in_turn[-1:]


def _bench(self: Any, *args: Any, config: Any, **kwargs: Any) -> list[float]:
    """In the place of Autotuner._bench: what is left to be timed was chosen."""
    return [0.0, 0.0, 0.0]


@contextmanager
def launched(timed: bool = False) -> Iterator[list[Launched]]:
    """Autotuners that run while the context is open, in the order of their first launch, as Triton made them.

    Each tunes anew at its first launch, as in a fresh process: nothing was pruned, else, that could be watched. Unless
    they are `timed`, it runs its kernel twice with every configuration, and the first one that can run wins: timing
    them would take a hundred times as long, and another one might win the next time. What was tuned before holds again
    afterwards.
    """
    if "triton" not in sys.modules:  # then nothing launches one
        yield []
        return
    from triton.runtime.autotuner import Autotuner

    seen: list[Launched] = []
    untuned = ExitStack()
    before = {name: getattr(Autotuner, name) for name in ("run", "prune_configs", "_bench")}
    own = before | _own

    def run(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not any(each.tuner is self for each in seen):
            seen.append(Launched(self, list(self.configs)))
            untuned.enter_context(_empty_cache(self))
            if not timed:
                untuned.enter_context(_stopwatch(self, _twice))
        return own["run"](self, *args, **kwargs)

    def prune(self: Any, *args: Any, **kwargs: Any) -> Any:
        allowed = own["prune_configs"](self, *args, **kwargs)
        for each in seen:
            if each.tuner is self:
                each.configs = [config for config in each.configs if any(config is other for other in allowed)]
        return allowed

    Autotuner.run, Autotuner.prune_configs, Autotuner._bench = run, prune, own["_bench"]
    try:
        yield seen
    finally:
        for name, method in before.items():
            setattr(Autotuner, name, method)
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
def _stopwatch(tuner: Any, instead: Callable[..., list[float]]) -> Iterator[None]:
    """The tuner has something else in the place of its stopwatch."""
    own = {name: value for name, value in vars(tuner).items() if name == "do_bench"}  # not every version has one
    tuner.do_bench = instead
    try:
        yield
    finally:
        del tuner.do_bench
        vars(tuner).update(own)


def _once(call: Callable[[], Any], quantiles: Sequence[float] = (), **options: Any) -> list[float]:
    """In the place of a stopwatch: whether the configuration can run."""
    call()
    return [0.0] * len(quantiles)


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
