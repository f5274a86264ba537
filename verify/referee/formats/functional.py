"""A folder with `func_forward.py`: `forward_fn`, and a `Model` that calls it, as robust-kbench has it.

The solution is a `.cu` or `.cpp` file, which is compiled, or a Python file. It defines `forward`, which replaces
`forward_fn`. Everything that the model passes to that function is an argument: weights too. Sizes are in
`config_forward.json`.
"""

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from verify.errors import UsageError
from verify.referee.formats import copied, imported
from verify.referee.plan import Plan

COMPILED = (".cu", ".cpp")
LOADER = "from torch.utils import cpp_extension as c\nforward = c.load('solution_extension', [{name!r}]).forward\n"


def place(problem: str, solution: Path, scratch: Path) -> str:
    """Copies a solution; beside a source that is compiled it writes the file that has it compiled."""
    if solution.suffix not in COMPILED:
        return copied(problem, solution, scratch)
    name = f"forward{solution.suffix}"
    (scratch / name).write_bytes(solution.read_bytes())
    (scratch / "solution.py").write_text(LOADER.format(name=name))
    return "solution.py"


def problems(plan: Plan) -> list[Any]:
    """Returns the problems of `forward_fn` at the sizes of the configuration."""
    import torch

    from verify.referee.messages import Entry
    from verify.referee.problem import problems_of

    folder = Path(plan.problem)
    module = imported(folder / "func_forward.py")
    calls = list[list[Any]]()
    for init, inputs in _configurations(folder / "config_forward.json", many=plan.profile != "quick"):
        torch.manual_seed(plan.seed)
        default = module.get_init_inputs() if hasattr(module, "get_init_inputs") and not init else []
        model = module.Model(*default, **init)
        seen = list[Any]()

        def watched(*given: Any, seen: list[Any] = seen, **more: Any) -> Any:
            if more:
                raise UsageError(f"{folder}: Model passes {', '.join(more)} by name to its function; verify does not")
            seen.append(given)
            return module.forward_fn(*given)

        with torch.no_grad():
            model(*module.get_inputs(**inputs), fn=watched)
        if len(seen) != 1:
            raise UsageError(f"{folder}: Model calls its function once; received {len(seen)} calls")
        calls.append([value.detach() if isinstance(value, torch.Tensor) else value for value in seen[0]])
    return problems_of(module.forward_fn, calls, Entry(("forward", "forward_fn"), {}))


def _configurations(path: Path, *, many: bool) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Yields the arguments of Model and of get_inputs by name. `many` takes the larger lists where there are any."""
    given = json.loads(path.read_text()) if path.is_file() else {}
    kinds = ("multi", "single") if many else ("single", "multi")

    def listed(name: str) -> list[dict[str, Any]]:
        return next((found for kind in kinds if (found := given.get(f"{kind}_{name}_configs"))), [{}])

    for init, inputs, shared in itertools.product(listed("init"), listed("input"), listed("shared")):
        yield {**init, **shared}, {**inputs, **shared}
