"""The way of one case through verify, as a reader follows it: `python -m benchmarks.walk [ROUTE]`.

Runs one case of a shipped op, of a function by `like=`, and one judgement, in this process, and notes each function of
verify at its first call. A function of one statement, such as an accessor, is not counted. Each time the next function
lies in another module, a reader changes the module. With a ROUTE, prints it: each module with the functions read there.
"""

from __future__ import annotations

import argparse
import ast
import functools
import itertools
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import CodeType, FrameType
from typing import Any
from unittest import mock

from tests.cli.here import Here

PACKAGE = Path(__file__).parent.parent / "verify"
SHIPPED = """
import torch, verify

@verify.kernel(op="silu", dtypes=["bfloat16"], gradients=False)
def silu(x):
    wide = x.double()
    return torch.where(wide == -torch.inf, 0.0, wide * torch.sigmoid(wide)).bfloat16()
"""
LIKE = """
import torch, verify

@verify.kernel(like=lambda x: torch.softmax(x, -1), shapes={"x": "m n"}, dtypes=["bfloat16"], gradients=False)
def softmax(x):
    return torch.softmax(x, -1)
"""
JUDGED = """
import torch

class Model(torch.nn.Module):
    def forward(self, x):
        return torch.softmax(x, -1)

class ModelNew(Model):
    pass

def get_inputs():
    return [torch.randn(16, 64)]

def get_init_inputs():
    return []
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


class Walk:
    """Notes the functions of verify, as (module, name), in the order of their first calls."""

    def __init__(self) -> None:
        self.read: list[tuple[str, str]] = []
        self._seen: set[CodeType] = set()

    def note(self, frame: FrameType, event: str, argument: object) -> None:
        """Takes an event of sys.setprofile."""
        code = frame.f_code
        if event != "call" or code in self._seen or not code.co_filename.startswith(f"{PACKAGE}/"):
            return
        self._seen.add(code)
        if statements(code.co_filename).get((code.co_name, code.co_firstlineno), 0) > 1:
            module = Path(code.co_filename).relative_to(PACKAGE).with_suffix("").as_posix().removesuffix("/__init__")
            self.read.append((module, code.co_qualname))

    @property
    def stays(self) -> list[tuple[str, list[str]]]:
        """The modules in the order of the walk, each with the functions that are read there."""
        grouped = itertools.groupby(self.read, key=lambda each: each[0])
        return [(module, [name for _, name in group]) for module, group in grouped]


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


def walk_of(route: str) -> Walk:
    """Walks a route twice: the first time loads modules and fills caches, the second is noted."""
    import verify
    from verify.cases import plan as plans
    from verify.measure import kernel as measuring
    from verify.workers import process

    def one(plan: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *given, **options: [replace(group := plan(*given, **options)[0], cases=group.cases[:1])]

    def run(file: Path) -> None:
        file.write_text(ROUTES[route], encoding="utf-8")
        if route == "judge":
            verify.judge(str(file), str(file), backend="cpu", allow_weaker=True)
        else:
            verify.run(str(file), backend="cpu", jobs=1)

    walk = Walk()
    with (
        tempfile.TemporaryDirectory() as folder,
        mock.patch.object(process, "Worker", Here),
        mock.patch.object(measuring, "plan", one(plans.plan)),
    ):
        run(Path(folder) / "before.py")
        with traced(walk):
            run(Path(folder) / "counted.py")
    return walk


ROUTES = {"shipped": SHIPPED, "like": LIKE, "judge": JUDGED}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("route", nargs="?", choices=ROUTES, help="print this route")
    asked = parser.parse_args().route
    for route in [asked] if asked else ROUTES:
        stays = walk_of(route).stays
        for module, names in stays if asked else []:
            print(f"{module:<28} {', '.join(names)}")
        functions = sum(len(names) for _, names in stays)
        modules = len({module for module, _ in stays})
        print(f"{route}: {functions} functions in {modules} modules, {len(stays) - 1} changes of module")


if __name__ == "__main__":
    main()
