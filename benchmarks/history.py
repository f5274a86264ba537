"""How fast `verify history` answers and how long its index takes to build, over thousands of records.

    python -m benchmarks.history --records 10000 --kernels 1

Records are made up, in the shape that `verify run` writes: three dtypes, three results each, eight regimes, worst
inputs, a histogram and a curve. `--kernels 4` makes them as large as those of a whole project. Figures change in one
of fifty runs. Answers are timed as whole processes, from start to exit, on a warm file cache; the best of five.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from verify.records.files import encode
from verify.records.history import History
from verify.records.record import (
    SCHEMA,
    Basis,
    Curve,
    Figures,
    Histogram,
    KernelRun,
    Origin,
    RegimeFigures,
    Result,
    Run,
    Worst,
)

REGIMES = ("vanishing", "negative tail", "negative", "slope root", "around zero", "positive", "saturated", "large")
DTYPES = ("bfloat16", "float16", "float32")
RESULTS = ("y", "dx", "dx (random dy)")


@dataclasses.dataclass
class State:
    """The figures of a project, which change now and then."""

    chance: random.Random
    kernels: int
    values: dict[tuple[str, str, str, str], float]

    def step(self) -> None:
        """One run later."""
        if self.chance.random() < 0.02 or not self.values:
            for number in range(self.kernels):
                for result in RESULTS:
                    for dtype in DTYPES:
                        for regime in REGIMES:
                            key = (f"kernel_{number}", result, dtype, regime)
                            self.values[key] = round(self.chance.uniform(0.45, 1.2), 6)


def figures(value: float, n: int = 8192) -> Figures:
    """Figures with this maximum."""
    return Figures(
        n=n, max_ulp=value, max_upper=value, p999=value * 0.9, mean=0.25, misrounded=17, undecided=0, nonfinite=0
    )


def worst(value: float, number: int) -> Worst:
    """One bad element."""
    return Worst(
        index=(number,),
        inputs={"x": "-4.34375 (0xc08b)"},
        got="-2.9802322e-05",
        got_hex="0xb7fa",
        truth="-3.04216506583981371555742603624e-5",
        ulp=-value,
        scaled_ulp=None,
        origin=Origin("kernels.py::kernel", '{"dtype":"bfloat16","dims":[65536],"fill":"patterns"}', "y", number),
    )


def result(state: State, kernel: str, output: str, dtype: str) -> Result:
    """One result with all that a record holds of it."""
    values = {regime: state.values[kernel, output, dtype, regime] for regime in REGIMES}
    top = max(values.values())
    return Result(
        output=output,
        dtype=dtype,
        basis=Basis("exhaustive", 65_536),
        gate="plain",
        limit=4.0,
        status="ok",
        figures=figures(top, 65_536),
        regimes=[
            RegimeFigures(name, -1.0, 1.0, figures(value, 65_536 // len(values)), figures(2.0))
            for name, value in values.items()
        ],
        histogram=Histogram([-1.0, -0.5, 0.0, 0.5, 1.0], [10, 32_000, 33_514, 12]),
        worst=[worst(top - 0.01 * number, number) for number in range(3)],
        escalated=3,
        certificate="exact",
        baseline=figures(2.0),
        baseline_name="torch",
        properties="0123456789ab",
        curve=Curve("x", [float(k) for k in range(129)], [512] * 128, [0.5] * 128, ["0xc08b"] * 128, [0.5] * 128),
    )


def record(state: State, number: int) -> bytes:
    """The record of one run."""
    kernels = [
        KernelRun(
            name=f"kernel_{place}",
            target=f"kernels.py::kernel_{place}",
            op="gelu",
            params={"approximate": "none"},
            promise="",
            status="ok",
            results=[result(state, f"kernel_{place}", output, dtype) for output in RESULTS for dtype in DTYPES],
        )
        for place in range(state.kernels)
    ]
    minute = number % 60
    hour = number // 60
    created = time.strftime("%Y-%m-%dT%H:", time.gmtime(1.6e9 + 3600 * hour)) + f"{minute:02d}:00+00:00"
    return encode(
        Run(
            schema=SCHEMA,
            id=f"{number:012x}",
            created=created,
            command="verify run",
            backend="interpreter",
            seed=0,
            profile="default",
            environment={"arch": "absent", "commit": f"{number:040x}"},
            kernels=kernels,
        )
    )


def answer(folder: Path, cache: Path, *arguments: str) -> float:
    """Seconds of a whole process; the best of five."""
    command = [sys.executable, "-m", "verify", "history", *arguments, "--runs", str(folder)]
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    times = []
    for _ in range(5):
        started = time.perf_counter()
        subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
        times.append(time.perf_counter() - started)
    return min(times)


def main() -> None:
    """Make the records, build the index, ask."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=10_000)
    parser.add_argument("--kernels", type=int, default=1, help="kernels per record")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="verify-history-") as place:
        folder, cache = Path(place) / "runs", Path(place) / "cache"
        folder.mkdir()
        state = State(random.Random(0), options.kernels, {})
        size = 0
        for number in range(options.records):
            state.step()
            data = record(state, number)
            size += len(data)
            (folder / f"{number:06d}.json").write_bytes(data)
        time.sleep(3)  # files that are older than the index trusts their stamps at once
        started, spent = time.perf_counter(), time.process_time()
        with History(folder, cache=cache / "verify" / "history") as history:
            read = history.refresh().read
        build, busy = time.perf_counter() - started, time.process_time() - spent
        assert read == options.records
        index = sum(file.stat().st_size for file in (cache / "verify" / "history").iterdir())
        found = {
            "records": options.records,
            "kernels per record": options.kernels,
            "bytes per record": size // options.records,
            "index bytes": index,
            "rebuild seconds": round(build, 2),
            "rebuild processor seconds": round(busy, 2),  # what it takes where nothing else runs
            "answer seconds": round(answer(folder, cache, "kernel_0"), 3),
            "answer seconds, one regime": round(answer(folder, cache, "kernel_0", "--regime", "positive"), 3),
            "answer seconds, changes of one result": round(
                answer(folder, cache, "kernel_0", "--result", "dx", "--dtype", "float32", "--changed"), 3
            ),
            "answer seconds, kernels": round(answer(folder, cache), 3),
        }
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
