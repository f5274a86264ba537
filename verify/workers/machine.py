"""The cores that this process may use, and GPUs as entries of a variable such as CUDA_VISIBLE_DEVICES."""

import os
from contextlib import suppress
from pathlib import Path

from verify.errors import UsageError

QUOTA = Path("/sys/fs/cgroup/cpu.max")  # of a container: microseconds of cores in each period, and of a period


def usable_cores() -> int:
    """Returns how many cores this process may use.

    taskset, batch systems and `docker --cpuset-cpus` give a process some of the machine's cores; `docker --cpus` gives
    it time on all of them. os.cpu_count() knows neither.
    """
    count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    with suppress(OSError, ValueError):  # no such file, or no quota ("max")
        quota, period = map(int, QUOTA.read_text().split())
        count = min(count, max(1, quota // period))
    return count


def gpus(request: str, seen: int, visible: str = "CUDA_VISIBLE_DEVICES") -> list[str]:
    """Returns the devices that `--gpus` names (all, a count, or a list such as 0,2) as entries of a variable.

    `seen` is the number of GPUs that the process sees. If the user has set the variable, its entries are used.
    """
    listed = os.environ.get(visible)
    names = listed.split(",") if listed else [str(number) for number in range(seen)]
    names = names[:seen]
    if request == "all":
        if not names:
            raise UsageError("--gpus all needs a GPU; this process sees none", hint="--jobs N spreads over CPU cores")
        return names
    wanted = [part.strip() for part in request.split(",")]
    if len(wanted) == 1 and wanted[0].isascii() and wanted[0].isdigit() and "," not in request:
        count = int(wanted[0])
        if not 1 <= count <= len(names):
            raise UsageError(f"--gpus takes a count from 1 to {len(names)} (the GPUs seen here); received {request}")
        return names[:count]
    chosen = []
    for part in wanted:
        if not (part.isascii() and part.isdigit() and int(part) < len(names)):
            text = f"--gpus takes all, a count, or numbers below {len(names)} as in 0,2; received {request!r}"
            raise UsageError(text)
        chosen.append(names[int(part)])
    if len(set(chosen)) != len(chosen):
        raise UsageError(f"--gpus names a GPU twice: {request!r}")
    return chosen
