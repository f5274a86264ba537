"""The parser of one command: examples in its help, errors that end with the next command, options with one spelling."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

from verify.cli import exits


class Parser(argparse.ArgumentParser):
    """As argparse has it, with `examples` below the help; `command` in the options is the parser that was taken.

    Abbreviated options are refused: `--res` would be a second spelling of `--result`.
    """

    def __init__(self, *args: Any, examples: Sequence[str] = (), **settings: Any) -> None:
        self.examples = tuple(examples)
        if examples:
            settings["epilog"] = "\n  ".join(["examples:", *examples])
        super().__init__(*args, **{**settings, "allow_abbrev": False, "formatter_class": _Help})
        self.set_defaults(command=self)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """What a command does not know is an error with its own usage; that of `verify` would say nothing of it."""
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            known = [flag for action in self._actions for flag in action.option_strings]
            near = [_closest(word.partition("=")[0], known, 0.8) for word in unknown if word.startswith("--")]
            self.error(f"unrecognized arguments: {' '.join(unknown)}{''.join(near)}")
        return options, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        """A misspelled command gets the closest one instead of the list of all, which the usage line names."""
        if isinstance(action, argparse._SubParsersAction) and value not in action.choices:
            names = ", ".join(action.choices)
            near = _closest(value, list(action.choices), 0.6) or f"; {self.prog} knows {names}"
            self.error(f"no command is named {value!r}{near}")
        super()._check_value(action, value)

    def error(self, message: str) -> NoReturn:
        """Usage, the error and the next command on stderr; exit code 2."""
        self.print_usage(sys.stderr)
        self.exit(exits.USAGE, f"{self.prog}: error: {message}\n  next: {self.prog} --help\n")


class _Help(argparse.HelpFormatter):
    """Examples keep their lines; every other text is wrapped."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        if text.startswith("examples:"):
            return "".join(f"{indent}{line}\n" for line in text.splitlines())
        return super()._fill_text(text, width, indent)


def _closest(given: str, known: Sequence[str], cutoff: float) -> str:
    """` (closest: ...)` where a known word is near the given one."""
    import difflib

    near = difflib.get_close_matches(given, known, n=1, cutoff=cutoff)
    return f" (closest: {near[0]})" if near else ""
