"""A Definition in JSON, with workloads in a file of the same name. The solution is a Solution in JSON, as
FlashInfer-Bench.

`entry_point` names the file and the function. With `destination_passing_style` the outputs are arguments too, after the
inputs.
"""

import json
import types
from pathlib import Path
from typing import Any

from verify.errors import UsageError
from verify.referee.plan import Plan

SIZE = 5  # of a variable axis without a size in the workload
CONTENT = "solution.json"


def place(problem: str, solution: Path, scratch: Path) -> str:
    """Writes the sources of a solution, and returns the file of its entry point."""
    given = json.loads(solution.read_text())
    for source in given["sources"]:
        path = (scratch / source["path"]).resolve()
        if not path.is_relative_to(scratch.resolve()):
            raise UsageError(f"{solution.name}: a source is below the solution's folder; received {source['path']!r}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source["content"])
    (scratch / CONTENT).write_text(json.dumps(given["spec"]))
    return str(given["spec"]["entry_point"].partition("::")[0])


def problems(plan: Plan) -> list[Any]:
    """Returns a problem for each workload."""
    from dataclasses import replace

    import torch

    from verify.measure.requests import Form
    from verify.measure.tensors import KINDS
    from verify.referee.messages import Entry
    from verify.referee.problem import problems_of

    definition = json.loads(Path(plan.problem).read_text())
    spec = json.loads(Path(plan.scratch, CONTENT).read_text())
    module = types.ModuleType("definition")
    exec(compile(definition["reference"], plan.problem, "exec"), vars(module))
    found = list[Any]()
    path = Path(plan.problem).with_suffix(".jsonl")  # of workloads, plain or in traces
    lines = path.read_text().splitlines() if path.is_file() else ["{}"]
    given = [json.loads(line) for line in lines if line.strip()]
    for number, workload in enumerate([each.get("workload", each) for each in given], 1):
        known = {name: axis.get("value", SIZE) for name, axis in definition["axes"].items()}
        axes = {name: workload.get("axes", {}).get(name, size) for name, size in known.items()}

        def sized(about: dict[str, Any], axes: dict[str, int] = axes) -> tuple[int, ...]:
            return tuple(size if isinstance(size, int) else axes[size] for size in about["shape"])

        generator, call = torch.Generator().manual_seed(plan.seed), list[Any]()
        for name, about in definition["inputs"].items():
            kind = KINDS[f"torch.{about['dtype']}"]
            if about["shape"] is None:
                call.append(workload["inputs"][name]["value"])
            elif kind.is_floating_point:
                call.append(torch.randn(sized(about), generator=generator).to(kind))
            else:
                raise UsageError(f"{plan.problem}: {name} is {about['dtype']}; verify draws floating-point inputs")
        outputs = definition["outputs"].items()
        into = tuple(Form(name, f"torch.{about['dtype']}", sized(about)) for name, about in outputs)
        passed = into if spec.get("destination_passing_style", True) else ()
        entry = Entry((spec["entry_point"].partition("::")[2],), {}, into=passed)
        found += [replace(each, name=f"own_{number}") for each in problems_of(module.run, [call], entry)]
    return found
