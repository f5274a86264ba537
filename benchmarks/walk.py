"""The way of one case through verify, as a reader follows it: `python -m benchmarks.walk`.

Runs `verify run` of one kernel with one case in this process and notes which functions of verify call which. A reader
reads a function once, at its first call. Some calls are only looked up, like a call of torch, and do not count:

- a function of one statement, such as an accessor;
- a call that comes back after it went through one other module, or through one other room.

A *stay* is a run of the functions left that are read in one module without leaving it. A *climb* is a move to a room
above (`LAYERS` of tests/test_imports.py).
"""

from __future__ import annotations

import argparse
import ast
import functools
import itertools
import sys
import tempfile
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from unittest import mock

from tests.cli.here import Here
from tests.test_imports import LAYERS

PACKAGE = Path(__file__).parent.parent / "verify"
KERNEL = """
import torch, verify

@verify.kernel(op="silu", dtypes=["bfloat16"], gradients=False)
def silu(x):
    wide = x.double()
    return torch.where(wide == -torch.inf, 0.0, wide * torch.sigmoid(wide)).bfloat16()
"""


@functools.cache
def statements(file: str) -> dict[tuple[str, int], int]:
    """Maps each function of a file, by name and first line, to its number of statements, without the docstring."""
    found = {}
    for node in ast.walk(ast.parse(Path(file).read_text(encoding="utf-8"))):
        if isinstance(node, ast.FunctionDef):
            body = node.body[1:] if ast.get_docstring(node) is not None else node.body
            first = min([node.lineno, *(each.lineno for each in node.decorator_list)])
            found[node.name, first] = sum(isinstance(each, ast.stmt) for item in body for each in ast.walk(item))
    return found


@dataclass(eq=False)
class Read:
    """A function that is read, at its first call."""

    module: str
    name: str
    caller: Read | None
    calls: list[Read] = field(default_factory=list)

    @property
    def room(self) -> str:
        return self.module.partition("/")[0]

    def modules(self) -> set[str]:
        """Every module that the function leads to."""
        return {self.module}.union(*(each.modules() for each in self.calls))

    def is_looked_up(self) -> bool:
        """True if this call comes back from one module, or one room, that is not the caller's; or its caller is."""
        if self.caller is None:
            return False
        rooms = {module.partition("/")[0] for module in self.modules()}
        other_module = self.module != self.caller.module and len(self.modules()) == 1
        other_room = self.room != self.caller.room and len(rooms) == 1
        return other_module or other_room or self.caller.is_looked_up()


class Walk:
    """Notes the functions of verify in the order of their first calls."""

    def __init__(self) -> None:
        self.read: list[Read] = []
        self._seen: set[CodeType] = set()
        self._stacks: defaultdict[int, list[tuple[FrameType, Read | None]]] = defaultdict(list)  # by thread

    def note(self, frame: FrameType, event: str, argument: object) -> None:
        """Takes an event of sys.setprofile."""
        code, stack = frame.f_code, self._stacks[threading.get_ident()]
        if not code.co_filename.startswith(f"{PACKAGE}/"):
            return
        if event == "return" and stack and stack[-1][0] is frame:
            stack.pop()
        if event == "call":
            stack.append((frame, self._first(code, stack)))

    def _first(self, code: CodeType, stack: list[tuple[FrameType, Read | None]]) -> Read | None:
        if code in self._seen:
            return None
        self._seen.add(code)
        if statements(code.co_filename).get((code.co_name, code.co_firstlineno), 0) <= 1:
            return None
        module = Path(code.co_filename).relative_to(PACKAGE).with_suffix("").as_posix().removesuffix("/__init__")
        caller = next((read for _, read in reversed(stack) if read is not None), None)
        found = Read(module, code.co_qualname, caller)
        self.read.append(found)
        if caller is not None:
            caller.calls.append(found)
        return found

    @property
    def stays(self) -> list[tuple[str, list[str]]]:
        """The modules in the order of the walk, each with the functions that are read there."""
        walked = [each for each in self.read if not each.is_looked_up()]
        grouped = itertools.groupby(walked, key=lambda each: each.module)
        return [(module, [each.name for each in group]) for module, group in grouped]

    @property
    def climbs(self) -> int:
        """Counts the moves to a room above."""
        rooms = [LAYERS.index(module.partition("/")[0]) for module, _ in self.stays]
        return sum(later > before for before, later in itertools.pairwise(rooms))


@contextmanager
def traced(walk: Walk) -> Iterator[None]:
    """Notes the calls of this thread and of threads that it starts."""
    threading.setprofile(walk.note)
    sys.setprofile(walk.note)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def walk_of_one_case() -> Walk:
    """Runs one case twice: the first time loads modules and fills caches, the second is noted."""
    import verify
    from verify.cases import plan as plans
    from verify.measure import kernel as measuring
    from verify.workers import process

    def one(plan: Callable[..., Any]) -> Callable[..., Any]:
        def planned(*given: Any, **options: Any) -> Any:
            first = plan(*given, **options)[0]
            return [replace(first, cases=first.cases[:1])]

        return planned

    walk = Walk()
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(process, "Worker", Here),
        mock.patch.object(measuring, "plan", one(plans.plan)),
    ):
        for name in ("before", "counted"):
            file = Path(folder) / f"{name}.py"
            file.write_text(KERNEL, encoding="utf-8")
            if name == "before":
                verify.run(str(file), backend="cpu", jobs=1)
            else:
                with traced(walk):
                    verify.run(str(file), backend="cpu", jobs=1)
    return walk


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    walk = walk_of_one_case()
    before = 0
    for module, names in walk.stays:
        room = LAYERS.index(module.partition("/")[0])
        print(f"{'^' if room > before else ' '} {module:<28} {', '.join(names)}")
        before = room
    print(f"{len(walk.stays)} stays in {len({module for module, _ in walk.stays})} modules, {walk.climbs} climbs")


if __name__ == "__main__":
    main()
