"""A file with a function and its tests, divided by a line of #, as TritonBench-T has it.

    def scaled(input, factor=1): ...
    ########################
    def test_scaled():
        results["test_case_1"] = scaled(torch.randn(4, 5, device='cuda'), factor=3)
    test_results = test_scaled()

The solution is a file that defines a function of the same name. The calls of the tests are judged.
"""

import inspect
import re
from pathlib import Path
from typing import Any

from verify.errors import UsageError
from verify.referee.plan import Plan

DIVIDED = re.compile(r"^#{20,}\s*$", re.MULTILINE)
DEVICE = re.compile(r"""(['"])cuda(:\d+)?\1|\.cuda\(\)""")


def problems(plan: Plan) -> list[Any]:
    """Returns the problems of the calls in the tests."""
    import torch

    from verify.referee.messages import Entry
    from verify.referee.problem import problems_of

    above, *below = DIVIDED.split(Path(plan.problem).read_text())
    tests = "\n".join(below)
    called = re.search(r"^test_results = test_(\w+)\(\)", tests, re.MULTILINE)
    if not called:
        raise UsageError(f"{plan.problem}: below a line of # a file has its tests, and test_results = test_NAME()")
    known: dict[str, Any] = {"__name__": "problem"}
    exec(compile(above, plan.problem, "exec"), known)
    function = known.get(name := called[1])
    if not callable(function):
        raise UsageError(f"{plan.problem}: the function that is tested has the name {name}; received none")
    calls = list[list[Any]]()

    def watched(*given: Any, **more: Any) -> Any:
        bound = inspect.signature(function).bind(*given, **more)
        calls.append([*bound.args, bound.kwargs])
        return function(*given, **more)

    torch.manual_seed(plan.seed)
    known[name] = watched
    with torch.no_grad():
        exec(DEVICE.sub(lambda found: "" if found[0].startswith(".") else "'cpu'", tests), known)
    if not calls:
        raise UsageError(f"{plan.problem}: its tests call {name} at least once; received no call")
    return problems_of(function, calls, Entry((name,), {}, named=True))
