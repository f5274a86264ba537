"""A declaration `FILE.py::KERNEL` of verify's own. The solution defines a function of the kernel's name.

The function of the declaration itself is not called.
"""

from typing import Any

from verify.errors import UsageError
from verify.referee.plan import Plan


def problems(plan: Plan) -> list[Any]:
    """Returns the declared kernel as a problem."""
    from verify.declare.discovery import load
    from verify.declare.target import Target
    from verify.referee.messages import Entry
    from verify.referee.problem import Problem

    (kernel,) = load(Target.parse(plan.problem))
    if getattr(kernel.function, "writing", None):
        raise UsageError(f"{plan.problem} writes into its operands: no solution of such a declaration is judged")
    names = tuple(dict.fromkeys((kernel.name, getattr(kernel.function, "__name__", kernel.name))))
    entry = Entry(names, {"tuple": [{"tensor": name} for name in kernel.operands]})
    return [Problem("own_1", kernel, kernel.operands, entry)]
