"""Defines `verify init`: writes a CI workflow and a skeleton of declarations for the public functions of a project."""

from __future__ import annotations

import argparse
import itertools
import math
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verify.cli import exits, options, screen, sinks
from verify.errors import InternalError, UsageError, WriteError

if TYPE_CHECKING:
    from verify.declare.guess import Guess
    from verify.declare.package import Found

DECLARATION, WORKFLOW = "accuracy.py", ".github/workflows/accuracy.yml"


def add(commands: Any) -> None:
    """Adds the command to the parser."""
    parser = commands.add_parser(
        "init",
        help="write a skeleton of declarations and a CI workflow",
        description="Find the public functions of a project that launch Triton kernels, and write a declaration of "
        f"each into {DECLARATION}, and {WORKFLOW}, which runs them and the gate. Each function is imported and runs "
        "beside PyTorch on small inputs. Where the numbers agree, like= and the shapes are filled in. The others stay "
        "comments that give the reason. A file that exists is never changed.",
        examples=("verify init", "verify init src/mypackage/norms.py"),
    )
    parser.add_argument(
        "folder",
        type=options.read_path,
        nargs="?",
        default=".",
        metavar="PATH",
        help="a folder or file (default: this folder)",
    )
    options.add(parser, "--jobs", "--budget")
    options.timeout(parser, "the trial of one function", default=30.0)
    options.sinks(parser, "what was found and written", "--json")
    parser.set_defaults(handler=main)


def main(options: argparse.Namespace) -> int:
    """Finds the functions, guesses their definitions, writes both files, and names the next command."""
    from verify.declare.package import functions_in

    folder = Path(options.folder)
    if not folder.exists():
        raise UsageError(f"PATH is a folder or a Python file; there is none at {folder}", hint="verify init src")
    functions, references = functions_in(folder)
    if not functions:
        rule = f"no public function in {folder} launches a Triton kernel"
        raise UsageError(rule, hint="docs/foreign-kernels.md declares any function in five lines")
    kept = [path for path in (DECLARATION, WORKFLOW) if Path(path).exists()]
    if len(kept) == 2:
        raise UsageError(f"nothing was written: {', '.join(kept)} exist already, and none is changed")
    guesses = [] if DECLARATION in kept else _guesses(functions, references, options)
    install = " -e ." if any(Path(name).exists() for name in ("pyproject.toml", "setup.py")) else ""
    declared = map(_declaration, functions, _labels(functions), guesses)
    texts = {
        DECLARATION: "\n\n\n".join([_HEAD, *declared]) + "\n",
        WORKFLOW: _WORKFLOW.format(install=install, file=DECLARATION),
    }
    written = [path for path, text in texts.items() if path not in kept and _write(Path(path), text)]
    names = [f"{each.module}.{each.name}" for each in functions]
    filled = [name for name, guess in zip(names, guesses, strict=False) if guess.like]
    by_name = [name for name, guess in zip(names, guesses, strict=False) if guess.like and not guess.ran]
    data = {"functions": names, "filled": filled, "by_name": by_name, "written": written, "kept": kept}

    def lines() -> list[str]:
        found = [f"{'filled' if name in filled else 'found '} {name}" for name in names]
        found += [f"wrote  {path}" for path in written]
        found += [f"kept   {path}: it exists, and was not changed" for path in kept]
        then = (
            f"verify run {DECLARATION}" if filled else f"fill in like= in {DECLARATION}, then verify run {DECLARATION}"
        )
        return found + sinks.ending(f"functions to declare: {len(names)}, of these filled in: {len(filled)}", then)

    sinks.deliver_data(options, lambda: data, lambda: sinks.lines(*lines()))
    return exits.PASS


def _guesses(functions: list[Found], references: dict[str, list[str]], options: argparse.Namespace) -> list[Guess]:
    """Asks workers for the definition of each function. A function that ends its worker, or fails there, has none."""
    import msgspec

    from verify.declare.guess import Guess, GuessDefinition
    from verify.declare.package import root_of
    from verify.workers.pool import Pool, spread
    from verify.workers.process import START_SECONDS
    from verify.workers.requests import Died, Late

    end = time.monotonic() + (options.budget or math.inf)

    def guess(number: int, pool: Pool) -> tuple[int, Guess]:
        if time.monotonic() > end:
            return number, Guess("not tried: the budget of time ended")
        each = functions[number]
        asked = GuessDefinition(
            str(root_of(each.path)), each.module, each.name, each.parameters, references, each.documentation
        )
        try:
            # the start of a process, of the package and of the device is not the function's time
            pool.ask(msgspec.structs.replace(asked, name="", references={}), timeout=START_SECONDS)
            found = pool.ask(asked, timeout=min(options.timeout, max(end - time.monotonic(), 1.0)))
        except (Died, Late) as error:
            return number, Guess(f"running it ended the process: {error}")
        except InternalError as error:  # the worker has printed where
            return number, Guess(str(error))
        if "CUDA error" in found.why:  # its process can no longer use the GPU
            pool.stop()
        return number, found

    guesses, progress = {}, screen.Progress()
    for number, found in spread(range(len(functions)), options.jobs, None, guess):
        guesses[number] = found
        progress(f"{len(guesses)} of {len(functions)}: {functions[number].module}.{functions[number].name}")
    progress.clear()
    return [guesses[number] for number in range(len(functions))]


def _write(path: Path, text: str) -> bool:
    """Writes a new file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise WriteError(f"cannot write {path}: {error.strerror}") from error
    return True


def _declaration(found: Found, label: str, guess: Guess) -> str:
    """Returns the declaration of a function. It is in comments if nothing defines it."""
    import json

    place = f"{os.path.relpath(found.path)}:{found.line}"
    names = guess.tensors or [each.name for each in found.parameters if each.default is None]
    of = found.name.partition(".")[0]
    kernel = "kernel" if "." not in found.name else "kernel.apply"
    call = f"{kernel}({', '.join(guess.call or names)})" + ("[0]" if guess.first else "")
    shapes = ", ".join(f'"{name}": "{guess.shapes.get(name, "...")}"' for name in names)
    arguments = [f"like={guess.like or '...'}", f"requires={json.dumps(found.module.partition('.')[0])}"]
    arguments += [f"shapes={{{shapes}}}"] if guess.shapes or not guess.like else []
    arguments += [f"integers={json.dumps(guess.integers)}"] if guess.integers else []
    arguments += [f"domain={json.dumps(guess.domain)}"] if guess.domain else []
    arguments += [f"dtypes={json.dumps(guess.dtypes)}"] if guess.dtypes else []
    arguments += [] if guess.gradients or not (guess.ran and guess.like) else ["gradients=False"]
    arguments += [] if guess.ran or not guess.like else ['backends=["cuda"]']
    lines = [f"@verify.kernel({', '.join(arguments)})", f"def {label}({', '.join(names)}):"]
    lines += [f"    from {found.module} import {of} as kernel", "", f"    return {call}"]
    if guess.like:
        return "\n".join(
            [f"# {place}: {'guessed, ' if guess.ran else 'guessed by its name, '}{_line(guess.why)}", *lines]
        )
    todo = [f"TODO {place}: fill in like= and shapes; {_line(guess.why)}", "Then remove the # of the lines below."]
    return "\n".join(f"# {line}".rstrip() for line in (*todo, *lines))


def _line(text: str) -> str:
    """Returns a text of one line that ends no comment."""
    return " ".join(text.split())


def _labels(functions: list[Found]) -> list[str]:
    """Returns a name for each declaration, different from all others and from the names that the file imports."""
    taken = {"torch", "functional", "import_module", "SimpleNamespace", "verify"}
    labels = []
    for each in functions:
        tail = each.module.rpartition(".")[2]
        wanted = (label := each.name.partition(".")[0], f"{tail}_{label}")
        name = next((one for one in wanted if one not in taken), "")
        name = name or next(one for n in itertools.count(2) if (one := f"{label}_{n}") not in taken)
        taken.add(name)
        labels.append(name)
    return labels


_HEAD = f'''"""What the kernels of this project compute and promise: measured by `verify run {DECLARATION}`.

A guess is a definition that gave the same numbers as the function on one ordinary input. Check it, and its shapes.
"""

from importlib import import_module  # noqa: F401
from types import SimpleNamespace  # noqa: F401

import torch  # noqa: F401
from torch.nn import functional  # noqa: F401

import verify  # noqa: F401'''

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
