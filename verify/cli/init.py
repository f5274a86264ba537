"""`verify init`: a declaration file, a test and a CI workflow for the kernels that a project launches."""

from __future__ import annotations

import argparse
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from verify.cli import exits, options, sinks
from verify.errors import UsageError, WriteError

if TYPE_CHECKING:
    from verify.declare.scan import Launcher

DECLARATION, TEST, WORKFLOW = "accuracy.py", "test_accuracy.py", ".github/workflows/accuracy.yml"


def add(commands: Any) -> None:
    """Add the command to the parser."""
    parser = commands.add_parser(
        "init",
        help="write declarations, a test and a CI workflow for a project's kernels",
        description="Read the source of a project, without importing it, for functions that launch Triton kernels, and "
        f"write {DECLARATION} with a declaration for each of them, {TEST} and {WORKFLOW} into the working directory. "
        "What a function computes is filled in where its name says it, and is a TODO elsewhere. A file that exists is "
        "never changed.",
        examples=("verify init", "verify init src/mypackage"),
    )
    parser.add_argument(
        "folder", nargs="?", default=".", metavar="PATH", help="a folder or file (default: this folder)"
    )
    options.sinks(parser, "what was found and written", "--json")
    parser.set_defaults(handler=main)


def main(options: argparse.Namespace) -> int:
    """Find, write, say what is next."""
    from verify.declare import scan

    folder = Path(options.folder)
    if not folder.exists():
        raise UsageError(f"PATH is a folder or a Python file; there is none at {folder}", hint="verify init src")
    found, problems = scan.launchers(folder)
    if not found:
        raise UsageError(
            f"no function in {folder} launches a @triton.jit kernel as kernel[grid](...)",
            hint="verify list --ops, and docs/foreign-kernels.md: a declaration takes five lines",
        )
    names = _names(found)
    known = {name for name, item in names.items() if _filled(item) is not None}
    wanted = {DECLARATION: declaration(names), TEST: test(known), WORKFLOW: workflow(_installs())}
    if Path(DECLARATION).exists() and not Path(TEST).exists():
        del wanted[TEST]  # it would name what another file declares
    written = [path for path, text in wanted.items() if _write(Path(path), text)]
    if not written:
        raise UsageError(f"nothing was written: {', '.join(wanted)} exist already, and none is changed")
    data = {
        "kernels": [
            {"name": name, "of": f"{item.module}.{item.name}", "filled in": name in known}
            for name, item in names.items()
        ],
        "written": written,
        "kept": sorted(set(wanted) - set(written)),
        "not read": problems,
    }
    elsewhere = [root for root in scan.roots(found) if root.resolve() != Path.cwd()]
    sinks.deliver_data(options, lambda: data, lambda: sinks.lines(*_lines(names, known, data, elsewhere)))
    return exits.PASS


def _lines(names: dict[str, Launcher], known: set[str], data: dict[str, Any], elsewhere: list[Path]) -> list[str]:
    width = max(map(len, names))
    lines = []
    for name, item in names.items():
        state = f"like={_filled(item)[0]}" if name in known else "TODO: say what it computes"  # type: ignore[index]
        lines.append(f"{name:<{width}}  {_place(item)}  {state}")
    lines += [f"not read  {problem}" for problem in data["not read"]]
    lines += ["", *(f"wrote {path}" for path in data["written"])]
    lines += [f"kept  {path}: it exists, and was not changed" for path in data["kept"]]
    if elsewhere and _installs():
        lines.append("its package has to be importable: pip install -e .")
    elif elsewhere:
        lines.append(f"its package has to be importable: export PYTHONPATH={':'.join(map(os.path.relpath, elsewhere))}")
    todo = len(names) - len(known)
    verdict = f"{len(names)} function{'s' * (len(names) > 1)} launch{'es' * (len(names) == 1)} Triton kernels"
    then = f"verify run {DECLARATION}" if known else f"fill in a TODO of {DECLARATION}, then verify run {DECLARATION}"
    return lines + sinks.ending(f"{verdict}; {todo} to be filled in" if todo else verdict, then)


def _place(item: Launcher) -> str:
    return f"{os.path.relpath(item.file)}:{item.line}"


def _write(path: Path, text: str) -> bool:
    """Write a new file; False where there is one."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        return False
    except OSError as error:
        raise WriteError(f"cannot write {path}: {error.strerror}") from error
    return True


def _installs() -> bool:
    return any(Path(name).exists() for name in ("pyproject.toml", "setup.py"))


# -- what a name says ---------------------------------------------------------------------------------------

_OF_FUNCTIONAL = (
    "celu elu gelu hardsigmoid hardswish hardtanh leaky_relu logsigmoid mish relu relu6 selu silu softplus softsign "
    "tanhshrink"
).split()
_OF_TORCH = "abs cos erf exp expm1 log log1p neg reciprocal rsqrt sigmoid sin sqrt square tanh".split()
_PAIRS = {
    "add": "torch.add",
    "mul": "torch.mul",
    "sub": "torch.sub",
    "maximum": "torch.maximum",
    "minimum": "torch.minimum",
}
_ROW, _VECTOR, _ROWS = "m n", "n", "m"
_NORMS = {"layer_norm": 1e-5, "rms_norm": 1e-6}
_NOISE = set(
    "triton fused fast my liger forward fwd kernel launch op fn func vector naive simple custom run call".split()
)
_SPELLINGS = {"swish": "silu", "layernorm": "layer_norm", "rmsnorm": "rms_norm", "logsoftmax": "log_softmax"}


def _filled(item: Launcher) -> tuple[str, dict[str, str], str] | None:
    """`like`, `shapes` and the value of numbers where the name says what a function computes, else None."""
    stem = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", item.name.removesuffix(".apply")).lower().removesuffix("_function")
    words = [word for word in stem.strip("_").split("_") if word not in _NOISE]
    name = _SPELLINGS.get("_".join(words), "_".join(words))
    operands, count = list(item.operands), len(item.operands)
    arguments = ", ".join(operands)
    if count == 1 and not item.scalars:
        like = next((f"{home}.{name}" for home, names in _HOMES if name in names), "")
        if like:
            return like, {}, ""
        if name in ("softmax", "log_softmax"):
            return f"lambda {arguments}: torch.{name}({arguments}, -1)", {operands[0]: _ROW}, ""
    if count == 2 and not item.scalars and name in _PAIRS:
        return _PAIRS[name], {}, ""
    if name in _NORMS and count in (1, 2, 3) and set(item.scalars) <= {"eps"} and (name == "layer_norm" or count < 3):
        eps = item.defaults.get("eps", repr(_NORMS[name]))
        rest = "".join(f", {operand}" for operand in operands[1:]) + ", None" * ((name == "layer_norm") + 2 - count)
        like = f"lambda {arguments}: functional.{name}({operands[0]}, {operands[0]}.shape[-1:]{rest}, {eps})"
        shapes = {operands[0]: _ROW, **dict.fromkeys(operands[1:], _VECTOR)}
        return like, shapes, eps
    return None


_HOMES = (("functional", _OF_FUNCTIONAL), ("torch", _OF_TORCH))


def _shape_of(operand: str) -> str:
    """The shape that an operand's name suggests beside rows of data."""
    parts = set(operand.lower().split("_"))
    if parts & {"label", "labels", "target", "targets", "ids", "index", "indices"}:
        return _ROWS
    return _VECTOR if parts & {"weight", "w", "bias", "b", "gamma", "beta"} else _ROW


def _names(found: list[Launcher]) -> dict[str, Launcher]:
    """A name for the declaration of each, which no other one has."""
    names: dict[str, Launcher] = {}
    tops = {"torch", "verify", "functional", *(item.module.split(".")[0] for item in found)}
    for item in found:
        name = item.name.removesuffix(".apply")
        while name in names or name in tops:
            name = f"{item.module.replace('.', '_')}_{name}"
        names[name] = item
    return names


# -- the files ----------------------------------------------------------------------------------------------

_HEAD = '''\
"""What the kernels of this project compute, and what they promise: measured by `verify run {file}`.

Written by `verify init`. Each `like=` is a guess from a name, or a TODO: it has to be the function, in PyTorch, that
the kernel is judged against, for tensors of the `shapes` given. max_ulp= (default 4) is the error that is allowed.
"""

import torch  # noqa: F401
import verify  # noqa: F401
from torch.nn import functional  # noqa: F401
'''


def declaration(names: dict[str, Launcher]) -> str:
    """A declaration for each function; one that is to be filled in is a comment, so that the others can be measured."""
    imports = "".join(f"\n{item.imported(f'_{name}')}" for name, item in names.items())
    parts = [_HEAD.format(file=DECLARATION) + imports]
    for name, item in names.items():
        lines = _declared(name, item)
        if _filled(item) is None:
            todo = f"# TODO {name}: fill in like= and shapes=, then take away the # in front of these lines."
            lines = [todo, *(f"# {line}".rstrip() for line in lines)]
        parts.append("\n".join([f"# {_place(item)}", *lines]))
    return "\n\n\n".join(parts) + "\n"


def _declared(name: str, item: Launcher) -> list[str]:
    operands = ", ".join(item.operands)
    guessed = {operand: _shape_of(operand) for operand in item.operands}
    like, shapes, value = _filled(item) or (f"lambda {operands}: ...", guessed, "...")
    labels = [operand for operand, shape in shapes.items() if shape == _ROWS]
    inner = ", ".join(f'"{operand}": "{shape}"' for operand, shape in shapes.items())
    lines = ["@verify.kernel(", f"    like={like},"]
    lines += [f"    shapes={{{inner}}},"] if shapes else []
    if labels:
        held = ", ".join(f'"{label}": "0 <= {label} < n"' for label in labels)
        lines.append(f"    integers={{{held}}},")
    lines.append('    dtypes=["float32", "bfloat16", "float16"],')
    if not item.differentiable:
        lines.append("    gradients=False,  # it goes through no torch.autograd.Function with a backward pass")
    left = ", ".join(f"{key}={value}" for key, value in item.defaults.items())
    return [
        *lines,
        ")",
        f"def {name}({operands}):",
        *([f"    # as it is called without {left}"] if left else []),
        f"    return {item.call(f'_{name}', value)}",
    ]


_TEST = '''\
"""The laws that any correct kernel obeys: pytest {file} --hypothesis-profile=ci, or quick, nightly."""

import verify
from verify import backends

backends.activate(backends.select())  # before kernels are imported: without a GPU Triton interprets them

import accuracy  # noqa: E402

'''


def test(known: set[str]) -> str:
    """A pytest test of the laws of each kernel that is declared."""
    lines = [f"test_{name} = verify.laws_for(accuracy.{name})" for name in sorted(known)]
    return _TEST.format(file=TEST) + "\n".join(lines or ["# TODO: test_NAME = verify.laws_for(accuracy.NAME)"]) + "\n"


_WORKFLOW = """\
# Written by `verify init`. Kernels run on Triton's interpreter here; docs/gate.md of verify has the recipe for a GPU.
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
      # TODO: where verify comes from, for instance git+https://HOST/OWNER/REPOSITORY@COMMIT
      VERIFY: verify-kernels
    steps:
      - uses: actions/checkout@v4
      - uses: actions/setup-python@v5
        with:
          python-version: "3.12"
      - run: pip install torch --index-url https://download.pytorch.org/whl/cpu
      - run: pip install "$VERIFY" pytest{install}
      - run: pytest {test} --hypothesis-profile=ci
      # the gate says what is wrong: bounds that are committed, or waivers
      - run: verify run {file} --backend interpreter --json run.json || test -s run.json
      - run: |
          code=0
          verify gate run.json --markdown gate.md || code=$?
          cat gate.md >> "$GITHUB_STEP_SUMMARY"
          exit $code
"""


def workflow(installs: bool) -> str:
    """The laws and the gate for every pull request."""
    return _WORKFLOW.format(install=" -e ." if installs else "", test=TEST, file=DECLARATION)
