"""Reads the definition of a command from its docstring, and defines the options that several commands share.

The docstring of a command's module is the only place that says what the command takes: the parser, `verify COMMAND
--help`, docs/cli.md and the schema of `verify serve` come from it. An option that several commands have is spelled and
explained in shared_options.txt, and checked here. `Parser` adds examples to the help, ends errors with the next
command, and refuses abbreviated options.
"""

import argparse
import os
import re
import sys
from collections.abc import Callable, Sequence
from functools import cache
from importlib import import_module
from typing import Any, NoReturn

from verify.cli import exits
from verify.errors import UsageError, closest, nearest

_LONGEST = 255  # bytes of a name in a path, on Linux


# -- values -------------------------------------------------------------------------------------------------


def _whole(low: int, high: int, rule: str) -> Callable[[str], int]:
    """Returns a parser of a whole number within limits."""

    def parse(text: str) -> int:
        if not text.isdecimal() or not low <= int(text) <= high:
            raise argparse.ArgumentTypeError(f"{rule}; received {text!r}")
        return int(text)

    return parse


count = _whole(0, 1000, "a count from 0 to 1000")
whole_number = _whole(0, (1 << 63) - 1, "a whole number from 0")
rounds = _whole(1, 10_000, "rounds are a number from 1 to 10000")


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


def size(text: str) -> int:
    """Parses a size of memory: bytes, or 512M, 2G."""
    number, unit = text[:-1], " KMG".find(text[-1:].upper())
    digits, scale = (number, 1 << 10 * unit) if unit > 0 else (text, 1)
    if not digits.isdecimal() or not 0 < int(digits) * scale < 1 << 50:
        raise argparse.ArgumentTypeError(f"a size is bytes, or such as 512M or 2G; received {text!r}")
    return int(digits) * scale


def shape(text: str) -> tuple[int, ...]:
    """Parses a shape: positive sizes such as 8192,4096."""
    try:
        sizes = tuple(int(part) for part in text.split(","))
    except ValueError:
        sizes = ()
    if not sizes or any(size < 1 for size in sizes):
        raise argparse.ArgumentTypeError(f"a shape is positive sizes such as 8192,4096; received {text!r}")
    return sizes


def _name_in(module: str) -> Callable[[str], str]:
    """Returns a parser of a name that a module knows, such as that of a dtype without `torch.`, or a law with hyphens.

    It imports the module when it parses. An empty text, the default of an option, remains.
    """

    def parse(text: str) -> str:
        try:
            found = import_module(module).named(text) if text else text
        except UsageError as error:
            raise argparse.ArgumentTypeError(error.message) from error
        return str(getattr(found, "name", found))

    return parse


# -- paths --------------------------------------------------------------------------------------------------

# The type of an option says whether its path is read or written. `demand_apart` compares all paths of a command.


def read_path(text: str) -> str:
    """Parses the path of a file that the command reads, or a target. A module's name is a path of no file."""
    if any(len(os.fsencode(part)) > _LONGEST for part in text.partition("::")[0].split(os.sep)) or "\0" in text:
        raise argparse.ArgumentTypeError(f"names in a path have 1 to {_LONGEST} bytes, and no zero byte")
    return text


def written_path(text: str) -> str:
    """Parses the path of a file that the command writes. `-` is stdout."""
    if text != "-" and os.path.isdir(read_path(text)):
        raise argparse.ArgumentTypeError(f"a file is written; received the folder {text!r}")
    return text


def folder_path(text: str) -> str:
    """Parses the path of a folder that may not exist yet."""
    if os.path.exists(read_path(text)) and not os.path.isdir(text):
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

# A value has the name of its kind, which says how it is parsed. Others are text.
KINDS: dict[str, Callable[[str], Any]] = {
    "TIME": seconds,
    "N": whole_number,
    "COUNT": count,
    "COUNT|auto": lambda text: 0 if text == "auto" else count(text),
    "ROUNDS": rounds,
    "N,N": shape,
    "SIZE": size,
    "X": float,
    "DTYPE": _name_in("verify.truth.formats"),
    "LAW": _name_in("verify.laws.profiles"),
    "PATH": written_path,
    "DIR": folder_path,
    **dict.fromkeys(("LIST", "RUN.json", "BASE.json", "HEAD.json"), read_path),
    **dict.fromkeys(("TARGET", "OP|TARGET", "RUN.json|TARGET", "PROBLEM", "SOLUTION", "FOLDER"), read_path),
}


def definition_of(name: str) -> str:
    """Returns the docstring of a command's module, which it reads as text and does not import."""
    return _text_of(f"{name}.py").split('"""', 2)[1]


def _text_of(file: str) -> str:
    with open(os.path.join(os.path.dirname(__file__), file), encoding="utf-8") as stream:
        return stream.read()


def define(commands: Any, name: str, definition: str, handler: str = "") -> Any:
    """Adds a command as the docstring of its module defines it, and returns its parser.

    The docstring has four paragraphs: a line for the list of commands, a description, examples, and the options. An
    option has a line: its name, the kind of its value, perhaps `...` (it may be repeated), `!` (it is required) or
    `= DEFAULT`, and its help after two blanks. `name: KIND` is an argument without a flag. A line of names adds options
    of shared_options.txt; `--seed: the cases` and `--timeout = 30m: a kernel` also fill in their blanks. `|` excludes
    an option and the one before it, and `#` begins a group of options.
    """
    first, *paragraphs = definition.split("\n\n")
    description, examples, options = [*paragraphs, "", "", ""][:3]
    parser = commands.add_parser(
        name,
        help=first[:1].lower() + first[1:].strip().removesuffix("."),
        description=" ".join(description.split()),
        examples=[line.strip() for line in examples.strip().splitlines()],
    )
    parser.set_defaults(handler=handler)  # MODULE:FUNCTION
    title, entries = "", []
    for line in _joined(options):
        title = line[2:] if line.startswith("# ") else title
        entries += [] if line.startswith("# ") else [(title, *entry) for entry in _entries(line)]
    groups: dict[str, Any] = {"": parser}
    place = parser
    for (title, excluded, flag, settings), after in zip(entries, [*entries, None][1:], strict=True):
        group = groups[title] if title in groups else groups.setdefault(title, parser.add_argument_group(title))
        if not excluded:
            place = group.add_mutually_exclusive_group() if after is not None and after[1] else group
        place.add_argument(flag, **settings)
    return parser


def _joined(text: str) -> list[str]:
    """Returns the lines of a text, each with its continuation lines, which are indented further."""
    indent = text[: len(text) - len(text.lstrip(" "))]
    return [line.strip() for line in re.sub(rf"\n{indent} +", " ", text.rstrip()).splitlines()]


# `| --name ...! = DEFAULT`, where all but the name may be missing
_NAMED = re.compile(r"(\| )?(--[a-z-]+|[a-z]+)( \.\.\.)?(!)?(?: = (\S+))?")
_DEFINED = re.compile(r"(--[a-z-]+|[a-z]+:) ?(.*?)( \.\.\.)?(!)?(?: = (\S+))?")


def _entries(line: str) -> list[tuple[bool, str, dict[str, Any]]]:
    """Returns the options of a line: whether each excludes the one before, its name and the settings of argparse."""
    spec, _, text = line.partition("  ")
    if text:
        return [(line.startswith("| "), *_argument(spec.removeprefix("| "), text))]
    named, _, blank = line.partition(": ")
    found = []
    for excluded, name, several, needed, default in _NAMED.findall(named):
        shared, text = _shared()[name]
        shared, _, usual = shared.partition(" = ")
        default = default or usual
        text = text.replace("{}", blank).replace("{default}", default)
        found.append((bool(excluded), *_argument(shared + several + needed + f" = {default}" * bool(default), text)))
    return found


@cache
def _shared() -> dict[str, tuple[str, str]]:
    """Maps the name of an option of shared_options.txt to its definition and its help.

    There {} is what a command applies the option to, and {default} its default there.
    """
    split = [line.partition("  ") for line in _joined(_text_of("shared_options.txt"))]
    return {spec.partition(" ")[0].rstrip(":"): (spec, text) for spec, _, text in split}


def _argument(spec: str, text: str) -> tuple[str, dict[str, Any]]:
    """Returns the name of an option and its settings for argparse: `--shape N,N ...`, `case: [CASE] = ""`."""
    match = _DEFINED.fullmatch(spec)
    assert match is not None, spec
    name, value, several, needed, default = match.groups()
    kind = value.removeprefix("[").removesuffix("]").removesuffix(" ...")
    parse = KINDS.get(kind)
    settings: dict[str, Any] = {"help": text.replace("%", "%%")}
    if not value:
        return name, settings | {"action": "store_true"}
    settings |= {"choices": kind[1:-1].split(",")} if kind.startswith("{") else {"metavar": kind, "type": parse}
    usual = {None: None, '""': "", "0": 0}
    settings |= {"default": usual[default] if default in usual else parse(default) if parse else default}
    if name.endswith(":"):
        many = "*" if value.endswith(" ...]") else "?" if value.startswith("[") else "+" if several else None
        return name[:-1], settings | {"nargs": many}
    if several:
        settings |= {"action": "append", "default": [], "help": f"{settings['help']} (repeatable)"}
    return name, settings | ({"required": True} if needed else {})


class Parser(argparse.ArgumentParser):
    """Extends argparse: `examples` below the help, and the parser of the chosen command as `command` in the options.

    Abbreviated options are refused: `--res` would be a second spelling of `--result`.
    """

    def __init__(self, *args: Any, examples: Sequence[str] = (), **settings: Any) -> None:
        self.examples = tuple(examples)
        if examples:
            settings["epilog"] = "\n  ".join(["examples:", *examples])
        super().__init__(*args, **{**settings, "allow_abbrev": False, "formatter_class": _Help})
        self.set_defaults(command=self)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Parses and reports unknown arguments with the command's own usage, which helps more than that of `verify`."""
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            known = [flag for action in self._actions for flag in action.option_strings]
            near = (closest(word.partition("=")[0], known, 0.8) for word in unknown if word.startswith("--"))
            self.error(f"unrecognized arguments: {' '.join(unknown)}{next(filter(None, near), '')}")
        return options, unknown

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        """Refuses an empty value of an option, which a shell passes for a variable that is not set."""
        if action.option_strings and "" in arg_strings:
            self.error(f"argument {action.option_strings[0]}: a value is not empty; received ''")
        return super()._get_values(action, arg_strings)

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """Reports a misspelled command with the closest one. The usage line already lists all of them."""
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            if near := nearest(value, action.choices):
                self.error(f"no command is named {value!r} (closest: {near})", then=f"{self.prog} {near} --help")
            self.error(f"no command is named {value!r}; {self.prog} knows {', '.join(action.choices)}")
        super()._check_value(action, value)

    def error(self, message: str, *, then: str = "") -> NoReturn:
        """Prints the usage, the error and the next command (default: the help) on stderr. The exit code is 2."""
        self.print_usage(sys.stderr)
        self.exit(exits.USAGE, f"{self.prog}: error: {message}\n  next: {then or f'{self.prog} --help'}\n")


class _Help(argparse.HelpFormatter):
    """Keeps the lines of examples, and wraps every other text."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith("examples:"):
            return "".join(f"{indent}{line}\n" for line in text.splitlines())
        return super()._fill_text(text, width, indent)
