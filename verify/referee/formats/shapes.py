"""A folder with `reference.py` and `shapes.py`; the solution defines `Model` too.

Each entry of `SHAPES` sets constants of the reference: `{"rows": 4}` sets `ROWS`. The solution has the same parameters.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from verify.referee.formats import imported
from verify.referee.formats.model import of_model
from verify.referee.plan import Plan


def problems(plan: Plan) -> list[Any]:
    """Returns a problem for each shape."""
    folder, found = Path(plan.problem), list[Any]()
    module = imported(folder / "reference.py")
    shapes = imported(folder / "shapes.py").SHAPES if (folder / "shapes.py").is_file() else [{}]
    for number, shape in enumerate(shapes, 1):
        for name, value in shape.items():
            setattr(module, name.upper(), value)
        found += of_model(module, plan, ("Model", "ModelNew"), number)
    return found
