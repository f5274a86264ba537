"""Prints the Python that makes the environment: the one that runs this, or the system's own if that is much faster.

A Python that was compiled without a profile of its work, as version managers compile it, takes up to 1.8 times as long
for a loop. Only two of the same version are compared.
"""

from __future__ import annotations

import subprocess
import sys

SYSTEM = "/usr/bin/python3"
FASTER = 0.9  # share of the time from which on the other one is taken
ROUNDS = 5  # in turn: the speed of a virtual machine changes within seconds
# Prints the version and the time of a loop. Fails if this Python cannot make an environment.
MEASURE = """
import ensurepip, sys, timeit, venv
times = timeit.repeat("for x in range(50000): f(x)", "def f(x): return x * x + 1", number=1, repeat=10)
print(*sys.version_info[:2], min(times))
"""


def measured(python: str) -> tuple[tuple[str, ...], float]:
    """Returns the version of a Python and its time for a loop. No version if it cannot make an environment."""
    try:
        done = subprocess.run([python, "-c", MEASURE], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return (), 0.0
    *version, seconds = done.stdout.split()
    return tuple(version), float(seconds)


def chosen(own: str, system: str) -> str:
    """Returns the system's Python if it has the same version and is much faster."""
    rounds = [(measured(own), measured(system)) for _ in range(ROUNDS)]
    (version, seconds), (theirs, less) = map(min, zip(*rounds, strict=True))
    if theirs != version or not less < FASTER * seconds:
        return own
    print(
        f"make: {system} makes the environment: it takes {less / seconds:.0%} of the time of {own} "
        f"(PYTHON={own} takes the other)",
        file=sys.stderr,
    )
    return system


if __name__ == "__main__":
    print(chosen(sys.executable, *sys.argv[1:] or [SYSTEM]))
