"""Write a skeleton of declarations, a test and a CI workflow.

Find the public functions of a project that launch Triton kernels, and write a declaration of each into accuracy.py,
test_accuracy.py, which tries the laws in pytest, and .github/workflows/accuracy.yml, which runs all this and the gate.
A function whose name and operands are those of a shipped op or of an elementwise function of PyTorch is declared. The
others are comments to fill in. Nothing is imported, and a file that exists is never changed.

    verify init
    verify init src/mypackage/norms.py

folder: [FOLDER] = .  a folder or file (default: this folder)
--json: what was found and written
"""

import argparse
import itertools
import json
import os
import textwrap
from collections import Counter
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from subprocess import DEVNULL, CalledProcessError, check_output
from urllib.parse import unquote, urlsplit

from verify.cli import sinks
from verify.declare.package import Definition, LaunchingFunction, definition_of, functions_in
from verify.errors import UsageError, WriteError

DECLARATION, TEST, WORKFLOW = "accuracy.py", "test_accuracy.py", ".github/workflows/accuracy.yml"
_TEMPLATE = Path(__file__).with_name("workflow.yml")
_UNKNOWN = "verify-kernels # TODO: where verify comes from, for instance git+https://HOST/OWNER/REPOSITORY@COMMIT"
WIDTH = 120  # of the lines that are written


def main(options: argparse.Namespace) -> int:
    """Carries out the command."""
    folder = Path(options.folder)
    if not folder.exists():
        raise UsageError(f"PATH is a folder or a Python file; there is none at {folder}", hint="verify init src")
    functions = functions_in(folder)
    if not functions:
        rule = f"no public function in {folder} launches a Triton kernel"
        raise UsageError(rule, hint="docs/foreign-kernels.md declares any function in five lines")
    kept = [path for path in (DECLARATION, TEST, WORKFLOW) if Path(path).exists()]
    if len(kept) == 3:
        raise UsageError(f"nothing was written: {', '.join(kept)} exist already, and none is changed")
    definitions = [] if DECLARATION in kept else [definition_of(each) for each in functions]
    install = " -e ." if any(Path(name).exists() for name in ("pyproject.toml", "setup.py")) else ""
    roots = {Path(os.path.relpath(each.path)).parents[each.module.count(".")] for each in functions} - {Path()}
    importable = "" if install or not roots else os.pathsep.join(sorted(map(Path.as_posix, roots)))
    origin = _origin()
    declared = map(_declaration, functions, _labels(functions), definitions)
    workflow = _TEMPLATE.read_text("utf-8")
    texts = {
        DECLARATION: "\n\n\n".join([_HEAD, *declared]) + "\n",
        TEST: _TEST,
        WORKFLOW: workflow.format(
            install=install,
            file=DECLARATION,
            verify=origin or _UNKNOWN,
            path=f"\n      PYTHONPATH: {importable}" if importable else "",
        ),
    }
    written = [path for path in texts if path not in kept]
    for path in written:
        _write(Path(path), texts[path])
    names = [f"{each.module}.{each.name}" for each in functions]
    filled = [name for name, definition in zip(names, definitions, strict=False) if definition]
    missing = Counter(package for each in functions for package in each.missing)
    data = {"functions": names, "filled": filled, "missing": missing, "written": written, "kept": kept}
    lines = [f"{'filled' if name in filled else 'found '} {name}" for name in names]
    lines += [f"wrote  {path}" for path in written]
    lines += [f"kept   {path}: it exists, and was not changed" for path in kept]
    lines += [f"to do  install {name}: importing {count} of these needs it" for name, count in sorted(missing.items())]
    if WORKFLOW in written and not origin:
        lines.append(f"to do  set VERIFY in {WORKFLOW}: pip does not know where this verify came from")
    if importable:
        lines.append(f"to do  export PYTHONPATH={importable}: {DECLARATION} imports these functions from there")
    then = "" if filled or DECLARATION in kept else f"fill in like= in {DECLARATION}, then "
    end = f"functions to declare: {len(names)}, of these filled in: {len(filled)}"
    return sinks.deliver_data(options, data, [*lines, *sinks.ending(end, f"{then}verify run {DECLARATION}")])


def _origin() -> str:
    """Returns what pip installs to get this verify: its repository at a commit, or a wheel in this folder; or ""."""
    wheels = sorted(Path().glob("*/verify_kernels-*.whl"))
    if wheels:
        return wheels[-1].as_posix()
    with suppress(PackageNotFoundError, ValueError, OSError, CalledProcessError):
        known = json.loads(distribution("verify-kernels").read_text("direct_url.json") or "{}")
        if vcs := known.get("vcs_info"):
            return f"{vcs['vcs']}+{known['url']}@{vcs['commit_id']}"
        if (url := urlsplit(known.get("url", ""))).scheme == "file":
            git = ["git", "-C", unquote(url.path)]
            asked = ("remote", "get-url", "origin"), ("rev-parse", "HEAD")
            remote, commit = (check_output([*git, *each], text=True, stderr=DEVNULL).strip() for each in asked)
            return f"git+{remote}@{commit}" if remote.startswith("https://") else ""
    return ""


def _write(path: Path, text: str) -> None:
    """Writes a new file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise WriteError(f"cannot write {path}: {error.strerror}") from error


def _declaration(function: LaunchingFunction, label: str, definition: Definition | None) -> str:
    """Returns the declaration of a function. It is in comments if nothing defines it."""
    names = definition.operands if definition else [each.name for each in function.required]
    params = ["*", *definition.params] if definition and definition.params else []
    call = definition.call if definition else [each.passed for each in function.required]
    package, _, _ = function.module.partition(".")
    shapes = ", ".join(f'"{name}": "..."' for name in names)
    given = f"{definition.source if definition else f'like=..., shapes={{{shapes}}}'}, requires={json.dumps(package)}"
    of, _, apply = function.name.partition(".")
    lines = [
        *_wrapped("@verify.kernel(", given, ")"),
        *_wrapped(f"def {label}(", ", ".join([*names, *params]), "):"),
        *_wrapped(f"    from {function.module} import ", f"{of} as kernel", "", "(", ")"),
        "",
        *_wrapped(f"    return kernel{'.apply' if apply else ''}(", ", ".join(call), ")"),
    ]
    place = f"{os.path.relpath(function.path)}:{function.line}"
    if definition:
        return "\n".join([f"# {place}", *lines])
    todo = [place, "TODO fill in like= and shapes=, then remove the # of the lines below", *lines]
    return "\n".join(f"# {line}".rstrip() for line in todo)


def _wrapped(head: str, inner: str, tail: str, opening: str = "", closing: str = "") -> list[str]:
    """Returns a statement as one line, or with its inner part on lines of their own if it is too long."""
    width = WIDTH - len("# ")
    if len(head + inner + tail) <= width:
        return [head + inner + tail]
    indent = " " * (len(head) - len(head.lstrip()) + 4)
    # a line ends at a comma: \0 is no white space
    text = inner.replace(": ", ":\0")
    filled = textwrap.wrap(
        text, width, initial_indent=indent, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False
    )
    return [head + opening, *(line.replace("\0", " ") for line in filled), indent[4:] + closing + tail]


def _labels(functions: list[LaunchingFunction]) -> list[str]:
    """Returns a name for each declaration, different from all others and from the names that the file imports."""
    taken = {"torch", "functional", "verify"}
    labels = []
    for each in functions:
        tail = each.module.rpartition(".")[2]
        wanted = (label := each.name.partition(".")[0], f"{tail}_{label}")
        name = next((one for one in wanted if one not in taken), "")
        name = name or next(one for n in itertools.count(2) if (one := f"{label}_{n}") not in taken)
        taken.add(name)
        labels.append(name)
    return labels


_HEAD = f'''"""What the kernels of this project compute and promise: measured by `verify run {DECLARATION}`."""

import torch  # noqa: F401
from torch.nn import functional  # noqa: F401

import verify  # noqa: F401'''

_TEST = f'''"""The laws of each kernel in {DECLARATION}: `pytest {TEST} --verify-profile=quick`."""

import accuracy
import verify

for name, kernel in vars(accuracy).items():
    if isinstance(kernel, verify.Kernel):
        globals()[f"test_{{name}}"] = verify.laws_for(kernel)
'''
