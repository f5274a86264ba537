"""Writes docs/cli.md from the parser, so that the reference matches the commands.

    python docs/generate_cli.py            write docs/cli.md
    python docs/generate_cli.py --check    exit 1 if it differs

The layout is not argparse's, whose help differs between Python versions.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from verify.cli import exits, parser

PAGE = Path(__file__).with_name("cli.md")
HEAD = """# Command line

Every command and option, as `verify COMMAND --help` prints them. An option has one spelling and one meaning in all
commands. Results go to stdout, progress to stderr if that is a terminal. `NO_COLOR` is honoured. The path `-` of
`--json`, `--html` or `--markdown` writes to stdout and suppresses other output there.

{codes}
A command's description names exit codes with another meaning.
"""


def page() -> str:
    """Returns the whole reference."""
    top = parser()
    codes = [
        "| exit code | meaning |",
        "|---|---|",
        *(f"| {code} | {meaning} |" for code, meaning in exits.MEANING.items()),
    ]
    parts = [HEAD.format(codes="\n".join(codes) + "\n")]
    for group in top._subparsers._group_actions if top._subparsers else []:
        parts.append(", ".join(f"[{name}](#verify-{name})" for name in group.choices) + "\n")  # type: ignore[union-attr]
        parts += [_command(name, command) for name, command in group.choices.items()]  # type: ignore[union-attr]
    return "\n".join(parts)


def _command(name: str, command: argparse.ArgumentParser, level: int = 2) -> str:
    lines = [f"{'#' * level} verify {name}", "", _text(command.description or ""), ""]
    if examples := getattr(command, "examples", ()):
        lines += ["```sh", *examples, "```", ""]
    nested = [action for action in command._actions if isinstance(action, argparse._SubParsersAction)]
    actions = [a for a in command._actions if not isinstance(a, (argparse._HelpAction, argparse._SubParsersAction))]
    shown = [action for action in actions if action.help != argparse.SUPPRESS]
    if shown:
        lines += ["| argument | what it does |", "|---|---|"]
        lines += [f"| `{_flags(action)}` | {_help(action)} |" for action in shown]
        lines.append("")
    for group in nested:
        lines += [_command(f"{name} {inner}", one, level + 1) for inner, one in group.choices.items()]
    return "\n".join(lines)


def _flags(action: argparse.Action) -> str:
    value = _value(action)
    return f"{', '.join(action.option_strings)} {value}".strip().replace("|", "\\|")


def _value(action: argparse.Action) -> str:
    if action.nargs == 0:
        return ""
    if isinstance(action.metavar, tuple):
        base = " ".join(action.metavar)
    elif action.choices is not None and action.metavar is None:
        base = "{" + ",".join(str(item) for item in action.choices) + "}"
    else:
        base = str(action.metavar or action.dest.upper())
    if not action.option_strings:
        base = {"*": f"[{base} ...]", "+": f"{base} ...", "?": f"[{base}]"}.get(str(action.nargs), base)
    return base


def _help(action: argparse.Action) -> str:
    return _text(action.help or "").replace("|", "\\|")


def _text(text: str) -> str:
    return " ".join(text.replace("%%", "%").split())


def main() -> int:
    """Write the page, or say whether it is current."""
    if "--check" in sys.argv[1:]:
        return 0 if PAGE.read_text() == page() else 1
    PAGE.write_text(page())
    return 0


if __name__ == "__main__":
    sys.exit(main())
