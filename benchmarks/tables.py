"""The tables of docs/attention.md and docs/losses.md: how wrong shipped kernels are, and on which input.

    python -m benchmarks.tables                              both tables on GPUs, in at most 8 minutes
    python -m benchmarks.tables --quick                      tiny ones on a CPU: whether everything runs
    python -m benchmarks.tables --table losses --only eager
    python -m benchmarks.tables --report                     the records again from what is measured
    python -m benchmarks.tables --page reports/benchmarks/sm_90/losses.json.gz > docs/losses.md

Each kernel is a part, measured in a process of its own and kept in --out after each step. Another start continues with
the missing steps. A part measures each dtype at each regime, its time, and what hunts find. Processes share the
GPUs, but one that takes times has its GPU alone. A kernel that a machine lacks, and a step that the time did not
reach, is a line with its reason.

Writes OUT/attention.json.gz and OUT/losses.json.gz, again and again while it measures.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import fcntl
import gzip
import json
import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from operator import itemgetter
from pathlib import Path
from typing import Any

from verify.records.files import write_atomically

ROOT = Path(__file__).parents[1]
DTYPES = ("bfloat16", "float16", "float32")
SHORT = 400  # characters of a replay that the page shows
RECORD = "../reports/benchmarks/sm_90/{}.json.gz"  # where the record of a page is committed
LEAST = 0.5  # units of noise: an error below is none
LARGEST = 8.0  # magnitude of hunted inputs: what training and inference see
WRITTEN = 15.0  # seconds between two versions of a record while parts are measured
GRACE = 20.0  # seconds after the end in which a process may finish its step
LONGEST = 200  # characters of a reason


@dataclass(frozen=True)
class Table:
    """One table: the files of its kernels, the recipes of its inputs, and the sizes of a case by dimension."""

    title: str
    about: str  # what a reader of its page needs to know about its kernels
    files: tuple[str, ...]
    regimes: tuple[str, ...]
    sizes: dict[str, int]
    timed: dict[str, int]
    quick: dict[str, int]
    only: tuple[str, ...] = ()  # parts of the names of its kernels; all if empty


TABLES = {
    "attention": Table(
        title="Causal attention",
        about="`compiled` is attention as users write it: two products and a softmax, with the dtype between them.\n"
        "The other kernels keep float32 there.",
        files=("examples/attention.py", "examples/public/fla_kernels.py"),
        regimes=("randn", "scores below -87", "rising maxima", "falling maxima", "sinks", "repeated tokens"),
        sizes={"b": 2, "h": 4, "s": 257, "t": 257, "d": 64},
        timed={"b": 2, "h": 16, "s": 2048, "t": 2048, "d": 64},
        quick={"b": 1, "h": 1, "s": 33, "t": 33, "d": 16},
        only=("attention.py", "::causal_attention"),
    ),
    "losses": Table(
        title="Losses and norms",
        about="`eager` is PyTorch, `compiled` is `torch.compile`, `fla` is flash-linear-attention, and `own` is a\n"
        "kernel of this repository. [examples/losses_and_norms.py](../examples/losses_and_norms.py) has the formulas.",
        files=("examples/losses_and_norms.py",),
        regimes=("randn", "mean 1e3", "outlier", "constant", "spread", "ramp"),
        sizes={"n": 64, "d": 1025, "v": 1025, "c": 16, "h": 65},
        timed={"n": 4096, "d": 4096, "v": 32768, "c": 64, "h": 64},
        quick={"n": 3, "d": 33, "v": 33, "c": 4, "h": 5},
    ),
}


@dataclass(frozen=True)
class Plan:
    """The work of one process, its folder and its end."""

    table: str
    target: str
    out: Path
    quick: bool
    hunt: float  # seconds of each hunt
    until: float
    gpu: str = ""  # its number; empty: the first

    @property
    def path(self) -> Path:
        """The file of the part."""
        name = self.target.replace("/", ".").replace("::", ".")
        return self.out / f"{self.table}.{name}.json"


# -- one part -----------------------------------------------------------------------------------------------


class Part:
    """What is measured of one kernel, kept after each step. A step that is there is not measured again."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.steps: dict[str, Any] = {}
        if plan.path.exists():
            self.steps = json.loads(plan.path.read_text())["steps"]

    def step(self, name: str, measure: Callable[[], Any]) -> Any:
        """Measures a step, unless it is known or the time is over. An error is its reason."""
        if name not in self.steps and time.time() < self.plan.until:
            try:
                self.steps[name] = measure()
            except Exception as error:  # whatever a kernel of somebody else raises is the result of this step
                self.steps[name] = {"reason": reason(error)}
            self.save()
        return self.steps.get(name)

    def save(self, *, done: bool = False) -> None:
        """Writes the part."""
        held = {"target": self.plan.target, "table": self.plan.table, "done": done, "steps": self.steps}
        write_atomically(self.plan.path, json.dumps(held, indent=1).encode())


def reason(error: Exception) -> str:
    """The first line of an error, without what differs between machines."""
    text = str(error).strip().splitlines() or [type(error).__name__]
    return text[0].replace(str(ROOT) + "/", "")[:LONGEST]


@contextlib.contextmanager
def turn(out: Path, *, alone: bool) -> Iterator[None]:
    """Shares the device with other processes, or has it alone. A process that waits for it alone is the next."""
    gpu = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    with (out / f"next{gpu}.lock").open("w") as following, (out / f"device{gpu}.lock").open("w") as device:
        fcntl.flock(following, fcntl.LOCK_EX)
        fcntl.flock(device, fcntl.LOCK_EX if alone else fcntl.LOCK_SH)
        if not alone:
            fcntl.flock(following, fcntl.LOCK_UN)
        yield


def measure_part(plan: Plan) -> None:
    """Measures one kernel."""
    import torch._dynamo

    from verify import backends
    from verify.backends.probes import fingerprint
    from verify.declare.discovery import load
    from verify.declare.target import Target

    backend = backends.select()
    backends.activate(backend)
    torch._dynamo.config.recompile_limit = 64  # three dtypes at three sizes: beyond it nothing is compiled
    (kernel,) = load(Target.parse(plan.target))
    part = Part(plan)
    part.steps["environment"] = {"backend": backend.name, **fingerprint(backend.device)}
    if kernel.lacking:
        part.steps["absent"] = {"reason": f"{', '.join(kernel.lacking)} is not installed"}
        return part.save(done=True)
    measured = _Measured(kernel, plan, backend)
    part.step("promise", lambda: {"promise": kernel.promise})
    for dtype in (each for each in DTYPES if each in kernel.dtypes):
        for regime in TABLES[plan.table].regimes[: 2 if plan.quick else None]:
            part.step(f"{dtype}/{regime}", lambda dtype=dtype, regime=regime: measured.regime(dtype, regime))
    for dtype in (each for each in DTYPES if each in kernel.dtypes):
        if "reason" not in (part.steps.get(f"{dtype}/randn") or {"reason": ""}):
            part.step(f"{dtype}/time", lambda dtype=dtype: measured.times(dtype))
    for dtype in (each for each in DTYPES if each in kernel.dtypes):
        for result in part.steps.get(f"{dtype}/randn", {}).get("results", {}):
            part.step(f"{dtype}/hunt {result}", lambda dtype=dtype, result=result: measured.hunted(dtype, result))
    return part.save(done=time.time() < plan.until)


@dataclass(frozen=True)
class _Measured:
    """Measures one kernel on one backend."""

    kernel: Any
    plan: Plan
    backend: Any

    def dims(self, sizes: dict[str, int]) -> tuple[int, ...]:
        """The sizes of a case."""
        return tuple(sizes[name] for name in self.kernel.op.geometry.dims)

    def case(self, dtype: str, regime: str, sizes: dict[str, int]) -> Any:
        import msgspec

        from verify.cases import case_of

        case = case_of(self.kernel, dtype, dims=self.dims(sizes), fill=regime, regime=regime)
        return msgspec.structs.replace(case, largest=self.kernel.largest.get(dtype))

    def regime(self, dtype: str, regime: str) -> dict[str, Any]:
        """The figures of every result on the inputs of one recipe, and whether a second call has the same bits."""
        from verify.measure.call import run_kernel
        from verify.truth.ulp import same_bits

        table = TABLES[self.plan.table]
        case = self.case(dtype, regime, table.quick if self.plan.quick else table.sizes)
        with turn(self.plan.out, alone=False):
            measured = run_kernel(self.kernel, case, self.backend.device)
            again = run_kernel(self.kernel, case, self.backend.device)
            found = figures(self.kernel, case, measured)
        for name, each in found.items():
            each["same bits"] = same_bits([again.results[name]], [measured.results[name]])
        return {"results": found, "replay": f"verify replay {self.plan.target} '{case.to_json()}'"}

    def times(self, dtype: str) -> dict[str, Any]:
        """Milliseconds of a forward pass, and of a backward pass where there is one: the median of 20."""
        import torch

        from verify.cases import inputs_of
        from verify.measure.call import call_tensors

        table = TABLES[self.plan.table]
        case = self.case(dtype, "randn", table.quick if self.plan.quick else table.timed)
        given = inputs_of(self.kernel.op, case, self.backend.device)
        on_gpu, smooth = self.backend.device != "cpu", bool(case.upstream)

        def now() -> float:
            if on_gpu:
                torch.cuda.synchronize()
            return time.perf_counter()

        def call() -> tuple[float, float]:
            begun = now()
            graph = call_tensors(self.kernel, given, case.params, differentiate=smooth)
            between = now()
            if graph.leaves and smooth:
                outputs = [each for each in graph.outputs.values() if each.requires_grad]
                ones = [torch.ones_like(each) for each in outputs]
                torch.autograd.grad(outputs, list(graph.leaves.values()), ones, allow_unused=True)
            return between - begun, now() - between

        with turn(self.plan.out, alone=False):
            call()  # compiles
        with turn(self.plan.out, alone=True):
            forward, backward = zip(*(call() for _ in range(20 if on_gpu else 3)), strict=True)
        found = {"dims": list(case.dims), "forward": 1e3 * statistics.median(forward)}
        return found | ({"backward": 1e3 * statistics.median(backward)} if smooth else {})

    def hunted(self, dtype: str, result: str) -> dict[str, Any]:
        """The worst input that a hunt finds, with the command that replays it."""
        from verify.records.record import replay_command
        from verify.search.hunt.outcome import hunt
        from verify.search.hunt.requests import Hunt
        from verify.search.hunt.settings import Settings

        spent = {"evaluations": 4} if self.plan.quick else {"seconds": self.plan.hunt}
        budget = Settings(largest=LARGEST, **spent)
        with turn(self.plan.out, alone=False):
            done = hunt(self.kernel, self.plan.target, self.backend, Hunt(dtype, result), budget)
        of, gate = done.result.figures, self.kernel.op.gate_of(result)
        largest = of.max_upper if gate == "plain" else of.scaled_upper
        worst = done.result.worst[0] if done.result.worst else None
        return {
            "max": largest,
            "evaluations": done.state.evaluations,
            "replay": "" if worst is None else replay_command(worst.origin),
            "got": "" if worst is None else worst.got,
            "truth": "" if worst is None else worst.truth,
        }


def figures(kernel: Any, case: Any, measured: Any) -> dict[str, dict[str, Any]]:
    """The figures of each result of one call, by certified intervals of every element."""
    from verify.cases import problem_of
    from verify.measure.counting import tally
    from verify.measure.judge import JudgedBy
    from verify.truth import formats
    from verify.truth.fast import evaluate

    op, results = kernel.op, measured.results
    problem = problem_of(op, case, measured.inputs, measured.upstream, tuple(results))
    kinds = {name: formats.of(value.dtype) for name, value in results.items()}
    found = {}
    for name, truth in evaluate(op, problem, kinds).items():
        got, fmt, gate = results[name].to(truth.value.device), kinds[name], op.gate_of(name)
        floor = kernel.noise_floor(case.dtype, name)
        by = JudgedBy(op, problem, name, truth, fmt, kernel.policy, floor=floor).with_noise_again(got)
        _, seen = by.compared(got)
        of = tally(seen)[0].figures()
        found[name] = {
            "format": fmt.name,
            "unit": {"plain": "ULP", "scaled": "ULP of the scale", "noise": "noise"}[gate],
            "max": of.max_upper if gate == "plain" else of.scaled_upper,
            "max ULP": of.max_upper,
            "limit": kernel.limit(case.dtype, name),
            "n": of.n,
            "misrounded": of.misrounded,
            "undecided": of.undecided,
            "bias": of.bias,
            "bias error": of.bias_error,
        }
    return found


# -- all parts ----------------------------------------------------------------------------------------------


def targets(table: Table, only: str) -> list[str]:
    """The kernels of a table, by the functions that its files decorate: no file is imported here."""
    found = []
    for file in table.files:
        for each in ast.parse((ROOT / file).read_text()).body:
            words = [ast.unparse(one) for one in each.decorator_list] if isinstance(each, ast.FunctionDef) else []
            if any(not word.startswith(("triton.", "functools.")) for word in words):
                found.append(f"{file}::{each.name}")  # type: ignore[union-attr]
    wanted = [each for each in found if not table.only or any(part in each for part in table.only)]
    return [each for each in wanted if only in each]


def gpus() -> list[str]:
    """The numbers of the GPUs that this process sees; an empty one where there is none or nothing lists them."""
    if visible := os.environ.get("CUDA_VISIBLE_DEVICES"):
        return visible.split(",")
    with contextlib.suppress(OSError):
        listed = subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=False).stdout
        return [str(number) for number in range(listed.count("GPU "))] or [""]
    return [""]


def run_parts(plans: list[Plan], jobs: int, write: Callable[[], None]) -> None:
    """Measures the parts that are not done, several at a time, each in a process of its own until the time is over.

    Calls `write` again and again, so that a run that is ended from outside leaves a record.
    """
    free, written = gpus() * jobs, time.monotonic()
    waiting = [plan for plan in plans if not (plan.path.exists() and json.loads(plan.path.read_text())["done"])]
    running: list[tuple[Plan, subprocess.Popen[bytes]]] = []
    while waiting or running:
        while waiting and len(running) < jobs:
            plan = replace(waiting.pop(0), gpu=free.pop(0))
            command = [sys.executable, "-m", "benchmarks.tables", "--part", plan.target, "--table", plan.table]
            command += ["--out", str(plan.out), "--hunt", str(plan.hunt), "--until", str(plan.until)]
            log = plan.path.with_suffix(".log").open("wb")
            own = {**os.environ, **({"CUDA_VISIBLE_DEVICES": plan.gpu} if plan.gpu else {})}
            process = subprocess.Popen(command + ["--quick"] * plan.quick, stdout=log, stderr=log, cwd=ROOT, env=own)
            running.append((plan, process))
        time.sleep(0.2)
        for plan, process in running[:]:
            if time.time() > plan.until + GRACE and process.poll() is None:
                process.kill()
            if process.poll() is not None:
                running.remove((plan, process))
                free.insert(0, plan.gpu)
                print(f"{plan.target}: {'done' if process.returncode == 0 else f'ended with {process.returncode}'}")
        if waiting and time.time() > waiting[0].until:
            waiting.clear()
        if time.monotonic() > written + WRITTEN:
            write()
            written = time.monotonic()


def record_of(table: str, plans: list[Plan]) -> dict[str, Any]:
    """The record of a table: all its parts. A part without a file was not reached."""
    of_table: dict[str, Any] = {}
    for plan in plans:
        held = json.loads(plan.path.read_text()) if plan.path.exists() else {"steps": {}, "done": False}
        if not held["steps"]:
            log = plan.path.with_suffix(".log")
            last = log.read_text(errors="replace").strip().splitlines()[-1:] if log.exists() else []
            held["steps"] = {"absent": {"reason": (last or ["the time did not reach it"])[0][:LONGEST]}}
        left = (
            {}
            if held["done"] or "absent" in held["steps"]
            else {"rest": {"reason": "the time did not reach all of it"}}
        )
        of_table[plan.target] = held["steps"] | left
    environments = [steps["environment"] for steps in of_table.values() if "environment" in steps]
    return {"schema": 2, "table": table, "environment": (environments or [{}])[0], "kernels": of_table}


# -- the page -----------------------------------------------------------------------------------------------


def page(record: dict[str, Any]) -> str:
    """The page of a record: how to read it, then its tables."""
    environment, name, table = record["environment"], record["table"], record["kernels"]
    of, title = TABLES[name], TABLES[name].title
    where = next((environment[each] for each in ("gpu", "cpu") if environment.get(each, "absent") != "absent"), "-")
    versions = ", ".join(f"{name} {environment[name]}" for name in ("torch", "triton") if environment.get(name))
    lines = [
        f"# {title}: how wrong shipped kernels are",
        "",
        "`python -m benchmarks.tables` measures these tables and writes this page. An error is in units of the",
        "[noise](like.md#the-noise) of the definition, beyond half a ULP. A kernel that rounds as PyTorch does has",
        "about 1 to 5. The first number of a cell is the largest error on normal random inputs. The number behind the",
        "arrow is the largest on all inputs: recipes where such kernels go wrong, and what [hunts](hunt.md) find.",
        of.about,
        "",
        f"Measured on {where}, {versions}. {_sizes(of)}",
    ]
    for dtype in DTYPES:
        rows = [row for target, steps in table.items() if (row := _row(target, steps, dtype))]
        lines += ["", f"## {title} in {dtype}", "", *_head(), *rows] if rows else []
    lines += ["", "## Worst inputs", "", *_finds(table, RECORD.format(name))]
    if missing := [line for target, steps in table.items() if (line := _missing(target, steps))]:
        lines += ["", "Not measured to the end:", "", *missing]
    return "\n".join(lines) + "\n"


def _sizes(table: Table) -> str:
    shown = [n for n in table.sizes if n != "t"]
    sizes, timed = (", ".join(f"{n} {each[n]:,}" for n in shown) for each in (table.sizes, table.timed))
    return f"Errors at {sizes}; times at {timed}. Inputs: {', '.join(table.regimes)}."


def _head() -> list[str]:
    names = ["kernel", "result", "error", "misrounded", "bias", "same bits", "forward, backward"]
    return ["| " + " | ".join(names) + " |", "|---" * len(names) + "|"]


def _row(target: str, steps: dict[str, Any], dtype: str) -> str:
    """The lines of one kernel in one dtype: one for each result."""
    randn = steps.get(f"{dtype}/randn", {}).get("results", {})
    lines = []
    for result, plain in randn.items():
        others = [
            (each["results"][result], name)
            for name, each in steps.items()
            if name.startswith(f"{dtype}/") and result in each.get("results", {})
        ]
        largest = max((_number(each["max"]) for each, _ in others), default=math.nan)
        hunted = steps.get(f"{dtype}/hunt {result}", {})
        largest = max(largest, _number(hunted.get("max", 0.0)))
        same = all(each["same bits"] for each, _ in others)
        times = steps.get(f"{dtype}/time", {})
        spent = ", ".join(f"{times[each]:.3g} ms" for each in ("forward", "backward") if each in times)
        name = target.partition("::")[2] if not lines else ""
        error = f"{_shown(plain['max'])} → {_shown(largest)}"
        share = f"{plain['misrounded'] / max(plain['n'], 1):.1%}"
        bias = "-" if plain["bias"] is None else f"{plain['bias']:+.2g} ± {plain['bias error']:.1g}"
        lines.append(
            f"| {name} | {result} | {error} | {share} | {bias} | {'yes' if same else 'no'} | {spent if name else ''} |"
        )
    return "\n".join(lines)


def _number(value: Any) -> float:
    """A figure of a record; NaN is the worst."""
    found = float(value) if value is not None else math.nan
    return math.inf if math.isnan(found) else found


def _shown(value: Any) -> str:
    found = _number(value)
    return "∞" if math.isinf(found) else f"{found:.3g}"


def _finds(table: dict[str, Any], record: str) -> list[str]:
    """Returns a table of the worst find of each kernel, as a multiple of what random inputs show, with its replay.

    A hunt spells its operands out, so its replay may be too long for the page. Then the worst find of a recipe follows.
    """
    lines = []
    for target, steps in table.items():
        found = []
        for name, each in steps.items():
            dtype, _, what = name.partition("/")
            plain = steps.get(f"{dtype}/randn", {}).get("results", {})
            if what.startswith("hunt ") and each.get("replay"):
                found.append((what[5:], dtype, _number(each["max"]), plain, each["replay"]))
            elif "results" in each and what != "randn":
                found += [(r, dtype, _number(it["max"]), plain, each["replay"]) for r, it in each["results"].items()]
        rated = [
            (size / max(_number(plain[result]["max"]), LEAST), result, dtype, size, plain, replay)
            for result, dtype, size, plain, replay in found
            if result in plain
        ]
        if rated:
            worst = max(rated, key=itemgetter(0))
            brief = [each for each in rated if len(each[-1]) <= SHORT]
            shown = [worst, *([max(brief, key=itemgetter(0))] if brief and worst not in brief else [])]
            for _, result, dtype, size, plain, replay in shown:
                again = f"`{replay}`" if len(replay) <= SHORT else f"in the [record]({record})"
                before = _shown(plain[result]["max"])
                lines.append(
                    f"| **{target.partition('::')[2]}** | {result} in {dtype} | {before} → {_shown(size)} | {again} |"
                )
    head = ["| kernel | result | error | replay |", "|---|---|---|---|"]
    return [*head, *lines] if lines else ["Nothing was found."]


def _missing(target: str, steps: dict[str, Any]) -> str:
    reasons = dict.fromkeys(
        f"{name.partition('/')[0]}: {each['reason']}" if "/" in name else each["reason"]
        for name, each in steps.items()
        if "reason" in each
    )
    told = list(reasons)[:3]
    return f"- {target.partition('::')[2]}: {'; '.join(told)}" if told else ""


def main() -> int:
    """The command of the docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "tables", help="folder of parts and record")
    parser.add_argument("--table", choices=list(TABLES), help="one table alone")
    parser.add_argument("--only", default="", help="kernels whose target contains this")
    parser.add_argument("--quick", action="store_true", help="tiny sizes and two regimes")
    parser.add_argument("--seconds", type=float, default=420.0, help="for all parts together")
    parser.add_argument("--hunt", type=float, default=3.0, help="seconds of each hunt")
    parser.add_argument("--jobs", type=int, default=max(1, min(8, (os.cpu_count() or 2) // 2)))
    parser.add_argument("--page", type=Path, metavar="RECORD", help="print the page of this record alone")
    parser.add_argument("--report", action="store_true", help="measure nothing")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, default=0.0, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.page is not None:
        print(page(json.loads(gzip.decompress(options.page.read_bytes()))), end="")
        return 0
    out = options.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    until = options.until or time.time() + options.seconds
    if options.part:
        measure_part(Plan(options.table, options.part, out, options.quick, options.hunt, until))
        return 0
    plans = {
        name: [
            Plan(name, each, out, options.quick, options.hunt, until) for each in targets(TABLES[name], options.only)
        ]
        for name in TABLES
        if options.table in (None, name)
    }

    def write() -> None:
        for name, some in plans.items():
            record = json.dumps(record_of(name, some), indent=1).encode()
            write_atomically(out / f"{name}.json.gz", record)

    if not options.report:
        run_parts([plan for some in plans.values() for plan in some], options.jobs, write)
    write()
    for name, some in plans.items():
        print(page(record_of(name, some)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
