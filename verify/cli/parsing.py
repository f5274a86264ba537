"""Parses one command: adds examples to its help, ends errors with the next command, and refuses abbreviated options."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from verify.cli import exits
from verify.errors import closest, nearest


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
