"""Checks that all workers of one record are equal, and rejects one that differs."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from verify.backends import named
from verify.errors import UsageError, VerifyError
from verify.workers.pool import Pool
from verify.workers.process import START_SECONDS, AnyWorker
from verify.workers.requests import About, Environment


def equal_workers(found: dict[str, dict[str, str]]) -> dict[str, str]:
    """Returns the facts that all workers share. Raises UsageError naming a worker that differs."""
    first, *others = sorted(found)
    for name in (first, *others):
        refuse_unlike(found[first], name, found[name])
    return found[first]


def refuse_unlike(reference: dict[str, str], name: str, about: dict[str, str]) -> None:
    """Raises UsageError if a worker differs from the reference."""
    if "error" in about:
        raise UsageError(f"worker {name} cannot run verify: {about['error']}")
    for key, value in reference.items():
        if about.get(key) != value:
            raise UsageError(
                f"the workers of one run must be equal: {key} is {value!r}, but {about.get(key)!r} on {name}",
                hint="one run for each kind of GPU; `verify compare` sets the records side by side",
            )


# The same GPU gives the same bits under another kernel of the operating system. Sources are compared by their digests.
_MAY_DIFFER = frozenset({"platform", "commit", "dirty"})


def identity_of(about: About) -> dict[str, str]:
    """Returns the facts that must be equal among the workers of one run, as text."""
    ignored = _MAY_DIFFER | ({"cpu"} if named(about.backend).gpu else set())
    found = {name: str(value) for name, value in about.environment.items() if name not in ignored}
    return {**found, "backend": about.backend}


def check_equal(pool: Pool) -> None:
    """Raises UsageError if the GPUs of one machine differ. Starts all processes."""

    def asked(worker: AnyWorker) -> dict[str, str]:
        try:
            return identity_of(worker.ask(Environment(), timeout=START_SECONDS))
        except VerifyError as error:
            return {"error": str(error)}

    with ThreadPoolExecutor(len(pool.workers)) as threads:
        found = list(threads.map(asked, pool.workers))
    equal_workers({f"{place}": about for place, about in enumerate(found)})
