"""A folder with `task.yml` and `reference.py`: `generate_input`, `ref_kernel`. The solution is `custom_kernel(data)`.

This module reads only the lists `files` and `tests` of task.yml, one flow mapping in each line, as in
`- {"m": 64, "seed": 1}`.
"""

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

from verify.errors import UsageError
from verify.referee.formats import copied, imported
from verify.referee.plan import Plan

KEPT_BACK = ("reference.py", "eval.py")  # files of the task that are hidden from a solution


def problems(plan: Plan) -> list[Any]:
    """Returns the problems of the tests of a task."""
    from verify.referee.messages import Entry, value_of
    from verify.referee.problem import problems_of

    folder = Path(plan.problem)
    (together := Path(plan.notes).parent / "task").mkdir(exist_ok=True)
    shutil.copyfile(folder / "reference.py", together / "reference.py")
    _copy(folder, together)
    sys.path.append(str(folder))  # for files that are not listed
    module = imported(together / "reference.py")
    tests = listed(folder / "task.yml", "tests")
    if not tests:
        raise UsageError(f"{folder / 'task.yml'} lists no tests of the form - {{m: 64, seed: 1}}")
    calls = [(module.generate_input(**arguments),) for arguments in tests]

    def check(problem: Any, results: list[Any]) -> bool:
        (data,) = value_of(problem.entry.arguments, problem.tensors)
        said = module.check_implementation(data, results[0] if len(results) == 1 else tuple(results))
        return bool(said[0]) if isinstance(said, tuple) else said in ("", True, None)

    own = check if hasattr(module, "check_implementation") else None
    return problems_of(module.ref_kernel, calls, Entry(("custom_kernel",), {}), own)


def place(problem: str, solution: Path, scratch: Path) -> str:
    """Copies the solution, and the files of the task that it may import."""
    _copy(Path(problem), scratch, KEPT_BACK)
    return copied(problem, solution, scratch)


def _copy(problem: Path, into: Path, but: tuple[str, ...] = ()) -> None:
    """Copies the files of a task beside each other: `files` names some of other folders."""
    for file in listed(problem / "task.yml", "files"):
        source = problem / str(file.get("source"))
        if source.is_file() and source.name not in but:
            shutil.copyfile(source, into / Path(str(file["name"])).name)


def listed(path: Path, key: str) -> list[dict[str, Any]]:
    """Returns the flow mappings of a list."""
    found, inside = [], False
    for line in path.read_text().splitlines():
        if line.strip() and not line.startswith((" ", "-", "#")):
            inside = line.startswith(f"{key}:")
        elif inside and (flow := re.fullmatch(r"\s*-\s*(\{.*\})\s*", line)):
            found.append(_mapping(flow[1], path))
    return found


def _mapping(text: str, path: Path) -> dict[str, Any]:
    quoted = re.sub(r"([{,]\s*)([A-Za-z_]\w*)\s*:", r'\1"\2":', text)
    quoted = re.sub(r":\s*(?!true\b|false\b|null\b)([A-Za-z_@][\w./@]*)", r': "\1"', quoted)
    try:
        return dict(json.loads(quoted))
    except ValueError:
        raise UsageError(f"{path}: a flow mapping of names, numbers and texts was expected; received {text}") from None
