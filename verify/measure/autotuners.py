"""Controls the Triton autotuners that a kernel launches.

A figure must not depend on which configuration was fastest that day, and timing thirty configurations for every row
width takes minutes. So `choose_by_key()` gives each key of an autotuner one configuration where errors are measured.
The laws find tuners by running the kernel, not by searching modules: `launched()` records every tuner that starts a
kernel while it is open, however deep it is hidden. `forced()` makes a tuner use one configuration.
"""

import sys
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass
class Launched:
    """Holds an autotuner that ran, and the configurations that its own pruning allowed in every launch."""

    tuner: Any
    configs: list[Any]


_own: dict[str, Any] = {}  # the original methods of Triton's class, while `choose_by_key` is in effect


def choose_by_key() -> None:
    """Makes every tuner use one configuration for each of its keys, the same in every process. Nothing is timed.

    A checksum of the key selects the configuration, so a plan with many sizes tries many configurations. A
    configuration that needs more than the device has is skipped, as in ordinary tuning. This process keeps the change.
    A subclass that overrides both methods still tunes on its own.
    """
    from triton.runtime.autotuner import Autotuner

    if not _own:
        _own.update(prune_configs=Autotuner.prune_configs, _bench=Autotuner._bench)
        Autotuner.prune_configs, Autotuner._bench = _prune, _bench


def _prune(self: Any, kwargs: dict[str, Any]) -> list[Any]:
    """Replaces Autotuner.prune_configs. Returns one allowed configuration, which has run once."""
    allowed = list(_own["prune_configs"](self, kwargs))
    given = {**self.nargs, **kwargs}
    dtypes = [str(value.dtype) for value in given.values() if hasattr(value, "dtype")]
    key = repr([given[name] for name in self.keys if not hasattr(given.get(name, self), "dtype")] + dtypes)
    first = zlib.crc32(key.encode()) % len(allowed)
    in_turn = allowed[first:] + allowed[:first]
    with _untimed(self, calls=1):
        for config in in_turn[:-1]:
            if _own["_bench"](self, *self.nargs.values(), config=config, **kwargs)[0] == 0.0:
                return [config]
    return in_turn[-1:]


def _bench(self: Any, *args: Any, config: Any, **kwargs: Any) -> list[float]:
    """Replaces Autotuner._bench. Times nothing, because `_prune` has chosen."""
    return [0.0, 0.0, 0.0]


@contextmanager
def launched(timed: bool = False) -> Iterator[list[Launched]]:
    """Yields a list of the autotuners that run while the context is open, in the order of their first launch.

    Each tuner tunes anew at its first launch, as in a fresh process, so that its pruning can be observed. With `timed`
    it times its configurations. Otherwise it runs its kernel twice with every configuration, and the first one that can
    run wins. Timing would take a hundred times as long, and a different configuration might win the next time. At the
    end each tuner gets its earlier choices back.
    """
    if "triton" not in sys.modules:  # without triton no kernel launches a tuner
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
                untuned.enter_context(_untimed(self, calls=2))
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
    """Clears the choices of a tuner inside the context and restores them afterwards."""
    cache = dict(tuner.cache)
    tuner.cache.clear()
    try:
        yield
    finally:
        tuner.cache.clear()
        tuner.cache.update(cache)


@contextmanager
def _untimed(tuner: Any, calls: int) -> Iterator[None]:
    """Replaces the stopwatch of a tuner inside the context: it runs a configuration, which raises if it cannot run.

    It reports 0 for each, so the first one wins.
    """

    def instead(call: Callable[[], Any], quantiles: Sequence[float] = (), **options: Any) -> list[float]:
        for _ in range(calls):
            call()
        return [0.0] * len(quantiles)

    # not every version of Triton has one
    own = {name: value for name, value in vars(tuner).items() if name == "do_bench"}
    tuner.do_bench = instead
    try:
        yield
    finally:
        del tuner.do_bench
        vars(tuner).update(own)


@contextmanager
def forced(tuner: Any, config: Any) -> Iterator[None]:
    """Makes one autotuner use one configuration inside the context."""
    configs = tuner.configs
    tuner.configs = [config]
    try:
        with _empty_cache(tuner):
            yield
    finally:
        tuner.configs = configs


def with_warps(config: Any, warps: int) -> Any:
    """Returns the configuration with another number of warps."""
    import copy

    changed = copy.copy(config)
    changed.num_warps = warps
    return changed


def cannot_run(error: BaseException) -> bool:
    """True if a launch failed because the configuration needs more than the device has. A tuner drops it too."""
    from triton.compiler.errors import CompileTimeAssertionFailure
    from triton.runtime.errors import OutOfResources, PTXASError

    return isinstance(error.__cause__ or error, OutOfResources | CompileTimeAssertionFailure | PTXASError)


def describe(tuner: Any, config: Any) -> str:
    """Returns the kernel's name and the configuration as text for messages."""
    options = ", ".join(f"{name}={value}" for name, value in config.all_kwargs().items())
    return f"{tuner.base_fn.__name__}: {options}"
