"""Defines `verify init`: writes a CI workflow and a skeleton of declarations for the public functions of a project."""

from __future__ import annotations

import argparse
import ast
import os
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from verify.cli import exits, options, sinks
from verify.errors import UsageError, WriteError

DECLARATION, WORKFLOW = "accuracy.py", ".github/workflows/accuracy.yml"


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser(
        "init",
        help="write a skeleton of declarations and a CI workflow",
        description=f"Read a project without importing it, and write {DECLARATION}, with a commented declaration for "
        f"each public function that takes arguments, and {WORKFLOW}, which runs them and the gate. You fill in like=. "
        "In a folder, only files that import triton are read. A file that exists is never changed.",
        examples=("verify init", "verify init src/mypackage/norms.py"),
    )
    parser.add_argument(
        "folder", nargs="?", default=".", metavar="PATH", help="a folder or file (default: this folder)"
    )
    options.sinks(parser, "what was found and written", "--json")
    parser.set_defaults(handler=main)


def main(options: argparse.Namespace) -> int:
    """Finds the functions, writes both files, and names the next command."""
    folder = Path(options.folder)
    if not folder.exists():
        raise UsageError(f"PATH is a folder or a Python file; there is none at {folder}", hint="verify init src")
    skeletons = dict(_skeletons(folder))
    if not skeletons:
        rule = f"no public function that takes an argument in {folder}, in a file that imports triton"
        raise UsageError(rule, hint="verify init FILE.py reads a file with any imports")
    install = " -e ." if any(Path(name).exists() for name in ("pyproject.toml", "setup.py")) else ""
    texts = {
        DECLARATION: "\n\n\n".join([_HEAD, *skeletons.values()]) + "\n",
        WORKFLOW: _WORKFLOW.format(install=install, file=DECLARATION),
    }
    written = [path for path, text in texts.items() if _write(Path(path), text)]
    if not written:
        raise UsageError(f"nothing was written: {', '.join(texts)} exist already, and none is changed")
    data = {"functions": list(skeletons), "written": written, "kept": sorted(set(texts) - set(written))}

    def lines() -> list[str]:
        made = [f"found {name}" for name in skeletons] + [f"wrote {path}" for path in written]
        made += [f"kept  {path}: it exists, and was not changed" for path in data["kept"]]
        then = f"fill in like= in {DECLARATION}, then verify run {DECLARATION}"
        return made + sinks.ending(f"functions to declare: {len(skeletons)}", then)

    sinks.deliver_data(options, lambda: data, lambda: sinks.lines(*lines()))
    return exits.PASS


def _write(path: Path, text: str) -> bool:
    """Writes a new file. Returns False if there is one."""
    if path.exists():
        return False
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise WriteError(f"cannot write {path}: {error.strerror}") from error
    return True


def _skeletons(folder: Path) -> Iterator[tuple[str, str]]:
    """Yields MODULE.FUNCTION and a declaration in comments for each function of a folder or file."""
    for path in [folder] if folder.is_file() else sorted(folder.rglob("*.py")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts[:-1])
        try:
            text = path.read_text(encoding="utf-8")
            tree = ast.parse(text)
        except (SyntaxError, UnicodeDecodeError):  # a template, or a file of another version of Python
            continue
        if folder.is_dir() and (hidden or not re.search(r"^\s*(import|from) triton\b", text, re.MULTILINE)):
            continue
        module = _module(path.resolve())
        for node in tree.body:
            if isinstance(node, ast.FunctionDef) and not node.name.startswith("_"):
                # a declaration calls its launcher
                jit = any("triton" in ast.unparse(each) for each in node.decorator_list)
                required = node.args.args[: len(node.args.args) - len(node.args.defaults)]
                names = [each.arg for each in (*node.args.posonlyargs, *required)]
                if names and not jit:
                    shapes = ", ".join(f'"{name}": "..."' for name in names)
                    place = f"{os.path.relpath(path)}:{node.lineno}"
                    text = _SKELETON.format(
                        place=place, module=module, name=node.name, shapes=shapes, a=", ".join(names)
                    )
                    yield f"{module}.{node.name}", textwrap.indent(text, "# ")


def _module(path: Path) -> str:
    """Returns the dotted name of a file in the packages around it."""
    parts = [] if path.stem == "__init__" else [path.stem]
    while (path := path.parent).joinpath("__init__.py").exists():
        parts.insert(0, path.name)
    return ".".join(parts)


_HEAD = f'''"""What the kernels of this project compute and promise: measured by `verify run {DECLARATION}`."""

import torch  # noqa: F401
import verify  # noqa: F401'''

_SKELETON = """\
TODO {place}: fill in like=, the PyTorch function that defines the right answer, and the shapes of its
tensors, which elementwise functions do not need. An argument that is no tensor gets a value in the call.
Then remove the # of the lines below.
from {module} import {name} as _{name}
@verify.kernel(like=..., shapes={{{shapes}}}, dtypes=["float32", "bfloat16", "float16"], gradients=False)
def {name}({a}):
    return _{name}({a})"""

_WORKFLOW = """\
# Written by `verify init`: the declarations of {file} with their laws, and the gate, for every pull request.
name: accuracy
on:
  pull_request:
permissions:
  contents: read
jobs:
  gate:
    runs-on: ubuntu-latest
    timeout-minutes: 30
    env:
      VERIFY: verify-kernels # TODO: where verify comes from, for instance git+https://HOST/OWNER/REPOSITORY@COMMIT
    steps:
      - uses: actions/checkout@11d5960a326750d5838078e36cf38b85af677262 # v4.4.0
      - uses: actions/setup-python@a26af69be951a213d495a4c3e4e4022e16d87065 # v5.6.0
        with:
          python-version: "3.12"
      - run: pip install torch --index-url https://download.pytorch.org/whl/cpu
      - run: pip install "$VERIFY"{install}
      - run: verify run {file} --backend interpreter --profile ci --json run.json || test -s run.json
      - run: verify gate run.json --markdown gate.md
      - run: cat gate.md >> "$GITHUB_STEP_SUMMARY"
        if: always()
"""
