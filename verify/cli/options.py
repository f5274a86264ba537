"""Defines the options that several commands share. Each is spelled, explained and checked here and nowhere else.

A command adds them by name, `add(parser, "--dtype", "--backend")`, or by a function if the help says what they apply
to, `timeout(parser, "one kernel")`. An option of a single command is defined in the command's module.
"""

from __future__ import annotations

import argparse
import os
import re
from collections.abc import Callable
from typing import Any

from verify.errors import UsageError

PROFILES = ("quick", "ci", "nightly", "exhaustive")  # verify.laws.profiles has the number of cases of each
TIMEOUT = 600.0  # seconds
_LONGEST = 255  # bytes of a name in a path, on Linux
CONFIGURED = "everything under `[tool.verify] kernels` in pyproject.toml"


# -- values -------------------------------------------------------------------------------------------------


def count(text: str) -> int:
    """Parses a count: 0 to 1000."""
    value = int(text) if text.isdigit() else -1
    if not 0 <= value <= 1000:
        raise argparse.ArgumentTypeError(f"a count from 0 to 1000; received {text!r}")
    return value


def seconds(text: str) -> float:
    """Parses a time into seconds: 90, 90s, 1.5m, 20m or 1h30m."""
    parts = re.fullmatch(r"(?:([\d.]+)h)?(?:([\d.]+)m)?(?:([\d.]+)s?)?", text.strip().lower())
    try:
        hours, minutes, rest = (float(part or 0) for part in parts.groups()) if parts else (0.0, 0.0, 0.0)
    except ValueError:
        hours = minutes = rest = 0.0
    value = hours * 3600 + minutes * 60 + rest
    if not 0 < value < 1e9:
        raise argparse.ArgumentTypeError(f"a time is positive, such as 90, 90s, 20m or 1h30m; received {text!r}")
    return value


def whole_number(text: str) -> int:
    """Parses a seed or an index: a whole number from 0 that fits 63 bits."""
    value = int(text) if text.isdecimal() else -1
    if not 0 <= value < 1 << 63:
        raise argparse.ArgumentTypeError(f"a whole number from 0; received {text!r}")
    return value


def size(text: str) -> int:
    """Parses a size of memory: bytes, or 512M, 2G."""
    number, unit = text[:-1], " KMG".find(text[-1:].upper())
    digits, scale = (number, 1 << 10 * unit) if unit > 0 else (text, 1)
    if not digits.isdecimal() or not 0 < int(digits) * scale < 1 << 50:
        raise argparse.ArgumentTypeError(f"a size is bytes, or such as 512M or 2G; received {text!r}")
    return int(digits) * scale


def share(text: str) -> float:
    """Parses a share, such as 0.1 for a tenth."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 10:
        raise argparse.ArgumentTypeError(f"a share is a number from 0 to 10, 0.1 for a tenth; received {text!r}")
    return value


def dtype_name(text: str) -> str:
    """Parses a dtype into its name without `torch.`. An empty text, the default of an option, remains."""
    if not text:
        return text
    from verify.truth.formats import named

    try:
        return named(text).name
    except UsageError as error:
        raise argparse.ArgumentTypeError(error.message) from error


def law_name(text: str) -> str:
    """Parses the name of a law, also with hyphens. An empty text, the default of an option, remains."""
    from verify.laws.profiles import named

    try:
        return named(text) if text else text
    except UsageError as error:
        raise argparse.ArgumentTypeError(error.message) from error


# -- paths --------------------------------------------------------------------------------------------------

# The type of an option says whether its path is read or written. `demand_apart` compares all paths of a command.


def _path(text: str) -> str:
    if any(len(os.fsencode(part)) > _LONGEST for part in text.partition("::")[0].split(os.sep)) or "\0" in text:
        raise argparse.ArgumentTypeError(f"names in a path have 1 to {_LONGEST} bytes, and no zero byte")
    return text


def read_path(text: str) -> str:
    """Parses the path of a file that the command reads, or a target. A module's name is a path of no file."""
    return _path(text)


def written_path(text: str) -> str:
    """Parses the path of a file that the command writes. `-` is stdout."""
    if text != "-" and os.path.isdir(_path(text)):
        raise argparse.ArgumentTypeError(f"a file is written; received the folder {text!r}")
    return text


def folder_path(text: str) -> str:
    """Parses the path of a folder that may not exist yet."""
    if os.path.exists(_path(text)) and not os.path.isdir(text):
        raise argparse.ArgumentTypeError(f"a folder holds the files; received the file {text!r}")
    return text


def paths_of(options: argparse.Namespace, *kinds: Callable[[str], str]) -> list[tuple[str, str]]:
    """Returns the name and the value of each path of these types that a command line has."""
    found = []
    for action in options.command._actions:
        value = getattr(options, action.dest, None) if action.type in kinds else None
        name = action.option_strings[0] if action.option_strings else str(action.metavar or action.dest)
        found += [(name, each) for each in (value if isinstance(value, list) else [value]) if each]
    return found


def demand_apart(options: argparse.Namespace) -> None:
    """Raises UsageError if a command would write two results to one place, or one over a file that it reads."""
    read = {_place(path): name for name, path in paths_of(options, read_path)}
    written = dict[str, str]()
    for name, path in paths_of(options, written_path):
        place = _place(path)
        if place in written and path == "-":
            raise UsageError(f"one result goes to stdout; received - for {written[place]} and {name}")
        if place in written:
            raise UsageError(f"each result has a file of its own; received {path} for {written[place]} and {name}")
        if place in read:
            raise UsageError(f"{name} would write over {path}, which the command reads ({read[place]})")
        if os.path.isfile(parent := os.path.dirname(place)):
            raise UsageError(f"{name} names {path}; {parent} is a file, not a folder")
        written[place] = name


def _place(path: str) -> str:
    return path if path == "-" else os.path.realpath(path.partition("::")[0])


# -- the table ----------------------------------------------------------------------------------------------

# Choices among kernels, their results and records. A command that measures takes several of each; one that shows an
# element takes one.
_CHOICES: dict[str, dict[str, Any]] = {
    "--dtype": {"type": dtype_name, "metavar": "DTYPE", "help": "only this dtype, e.g. bfloat16"},
    "--result": {"metavar": "NAME", "help": "only this output or gradient, e.g. y or dx"},
    "--regime": {"metavar": "NAME", "help": "only this regime of the op, e.g. 'slope root'"},
    "--law": {"type": law_name, "metavar": "NAME", "help": "this law, e.g. 'batch invariance'"},
    "--kernel": {"metavar": "NAME", "help": "only this kernel"},
    "--without": {"type": law_name, "metavar": "LAW", "help": "leave out this law, e.g. 'error contract'"},
    "--run": {
        "type": read_path,
        "metavar": "RUN.json",
        "help": "the record of a run, which has the worst input of each result",
    },
}
_SHARED: dict[str, dict[str, Any]] = {
    "--backend": {
        "metavar": "NAME",
        "help": "where kernels run: cuda, interpreter (Triton's) or cpu (PyTorch code only); default: the first here",
    },
    "--jobs": {
        "type": count,
        "default": 0,
        "metavar": "N",
        "help": "worker processes at a time (default: one per core, if their memory fits; a sweep on a GPU: one)",
    },
    "--budget": {"type": seconds, "metavar": "TIME", "help": "time for the whole command (default: no limit)"},
    "--memory": {
        "type": size,
        "default": 0,
        "metavar": "SIZE",
        "help": "memory for judging a case, beside the kernel and its inputs, e.g. 512M or 8G; of a larger case some "
        "elements are judged (default: a quarter of a GPU; 2G, or a quarter, of a host)",
    },
    "--fail-fast": {
        "action": "store_true",
        "help": "try no further case of a dtype once a result is wrong on ordinary inputs, and no law after a finding",
    },
    "--index": {"type": whole_number, "metavar": "N", "help": "flat index of the element in its result"},
    "--base": {"metavar": "REF", "help": "the commit to compare the working tree with"},
    "--bounds": {
        "type": folder_path,
        "metavar": "DIR",
        "help": "folder of the committed bounds (default: [tool.verify] bounds, reports/bounds; `report`: no verdict)",
    },
    "--runs": {
        "type": folder_path,
        "metavar": "DIR",
        "help": "folder of earlier records (default: [tool.verify] runs, reports/runs; `report`: no history)",
    },
    "--all": {"action": "store_true", "help": "also list figures in order"},
    "--pin": {"action": "store_true", "help": "add what was found to the corpus, which every run tries again"},
    "--reason": {"metavar": "TEXT", "help": "why, in words that stay in the file"},
    "--headroom": {
        "type": share,
        "metavar": "SHARE",
        "help": "added to observed maxima: other seeds find larger ones (default: 0.25 or more, by cases)",
    },
    "--on-ci": {"action": "store_true", "help": "write although this is a CI machine"},
    "--resume": {
        "type": written_path,
        "metavar": "PATH",
        "help": "keep finished parts there, and continue from those of an earlier start",
    },
    "--gpus": {
        "metavar": "all|N|LIST",
        "help": "spread the work over these GPUs of this machine: all, a count, or numbers such as 0,2",
    },
    "--github": {
        "action": "store_true",
        "help": "in a step of GitHub Actions: annotate the lines of the findings, and add the report to its summary",
    },
    "--scheduler": {
        "metavar": "ADDRESS",
        "help": "the workers of a running Dask cluster, e.g. tcp://HOST:8786",
    },
}


def add(parser: Any, *flags: str, **changes: Any) -> None:
    """Adds options of the table. `changes` are a default or a `required` of this command."""
    for flag in flags:
        parser.add_argument(flag, **(_SHARED[flag] | changes))


def some(parser: Any, *flags: str) -> None:
    """Adds options that choose among results and may be repeated."""
    for flag in flags:
        settings = _CHOICES[flag]
        repeated = settings | {"help": f"{settings['help']} (repeatable)"}
        parser.add_argument(flag, action="append", default=[], **repeated)


def one(parser: Any, *flags: str) -> None:
    """Adds the same options for a single element, figure or case."""
    for flag in flags:
        parser.add_argument(flag, default="", **_CHOICES[flag])


def timeout(parser: Any, what: str, *, default: float = TIMEOUT, once: str = "after this time") -> None:
    """Adds `--timeout`, after which `what` is stopped."""
    text = f"stop {what} {once}, e.g. 90s, 20m or 1h30m (default {default / 60:g}m)"
    parser.add_argument("--timeout", type=seconds, default=default, metavar="TIME", help=text)


def seed(parser: Any, what: str, *, default: int | None = 0, named: str = "0") -> None:
    """Adds `--seed`, from which `what` is drawn."""
    text = f"seed of {what} (default {named})"
    parser.add_argument("--seed", type=whole_number, default=default, metavar="N", help=text)


def profile(parser: Any, *, default: str, named: str, laws: bool = True) -> None:
    """Adds `--profile`, which sets the number of cases, and with `laws` also `--without`, which leaves out laws."""
    text = f"try the cases of this profile; `run` and `nightly`: of the laws (default: {named})"
    parser.add_argument("--profile", choices=PROFILES, default=default, help=text)
    if laws:
        some(parser, "--without")


def sinks(parser: Any, what: str, *flags: str) -> None:
    """Adds `--json` for `what`, and the other forms for its report. `verify.cli.sinks` writes them."""
    forms = {
        "--json": f"{what} as JSON",
        "--html": "the report as one self-contained HTML page",
        "--markdown": "the report as Markdown",
        "--csv": "a row for each result as CSV",
        "--schema": "the JSON schema of a record",
        "--sarif": "the findings as SARIF 2.1.0",
        "--junit": "every check as JUnit XML",
    }
    for flag in flags:
        text = f"write {forms[flag]} to this file; with - to stdout, and nothing else there"
        parser.add_argument(flag, type=written_path, metavar="PATH", help=text)


def folder(parser: Any, what: str, *, named: str) -> None:
    """Adds `--output`, the folder that a command writes `what` into. `named` is the default."""
    text = f"write {what} into this folder (default: {named})"
    parser.add_argument("--output", type=folder_path, metavar="DIR", help=text)


def spread(parser: Any) -> None:
    """Adds `--gpus` and `--scheduler`, which exclude each other."""
    add(parser.add_mutually_exclusive_group(), "--gpus", "--scheduler")


# -- targets ------------------------------------------------------------------------------------------------


def targets(parser: Any, *, also: str = "") -> None:
    """Adds the positional targets, by default the configured ones. `also` names what else the command accepts there."""
    parser.add_argument(
        "targets",
        nargs="*",
        type=read_path,
        metavar=f"{also}|TARGET" if also else "TARGET",
        help=f"{also and also + ', or '}FILE.py, MODULE, FILE.py::KERNEL, MODULE::KERNEL (default: {CONFIGURED})",
    )
