"""The command line: `verify COMMAND`. One module per command; nothing heavy is imported until it runs.

Exit codes: 0 pass, 1 a result is wrong or a kernel failed, 2 usage, 3 incomplete.
"""

from __future__ import annotations

import argparse
import os
import sys
from typing import Any, NoReturn

from verify.cli import (
    bench,
    bounds,
    certify,
    compare,
    corpus,
    doctor,
    explain,
    gate,
    history,
    hunt,
    list_,
    nightly,
    replay,
    report,
    run,
    sanitize,
    selftest,
    sweep,
)
from verify.errors import KernelError, TruthError, UsageError

# in workflow order
COMMANDS = (
    doctor,
    list_,
    run,
    sweep,
    hunt,
    bench,
    replay,
    corpus,
    explain,
    sanitize,
    report,
    gate,
    bounds,
    compare,
    history,
    nightly,
    selftest,
    certify,
)

EXIT_PASS, EXIT_FAIL, EXIT_USAGE, EXIT_INCOMPLETE = 0, 1, 2, 3


class _Parser(argparse.ArgumentParser):
    """Its errors end with the next command, as all others do; the parsers of the commands are of this class too."""

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """What a command does not know is an error with its own usage; that of `verify` would say nothing of it."""
        options, unknown = super().parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return options, unknown

    def error(self, message: str) -> NoReturn:
        self.print_usage(sys.stderr)
        self.exit(EXIT_USAGE, f"{self.prog}: error: {message}\n  next: {self.prog} --help\n")


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    from verify import __version__

    top = _Parser(
        prog="verify",
        description="How wrong is a GPU kernel, at worst, and on which input?",
        epilog="exit codes: 0 pass, 1 wrong or failed, 2 usage, 3 incomplete",
    )
    top.add_argument("--version", action="version", version=f"verify {__version__}")
    commands = top.add_subparsers(title="commands, in the order of use", metavar="COMMAND", dest="command_name")
    for module in COMMANDS:
        module.add(commands)
    return top


def main(arguments: list[str] | None = None) -> int:
    """Run one command; errors that a user can mend are one block on stderr."""
    top = parser()
    options = top.parse_args(arguments)
    if not hasattr(options, "handler"):
        top.print_help()
        return EXIT_PASS
    try:
        return int(options.handler(options))
    except UsageError as error:
        told = error if error.hint else UsageError(error.message, hint=f"verify {options.command_name} --help")
        print(f"verify: {told}", file=sys.stderr)
        return EXIT_USAGE
    except KernelError as error:
        print(f"verify: {error}\n  next: verify {options.command_name} --help", file=sys.stderr)
        return EXIT_USAGE
    except TruthError as error:
        print(f"verify: the harness is in error, no verdict: {error}", file=sys.stderr)
        return EXIT_INCOMPLETE
    except KeyboardInterrupt:
        print("verify: interrupted", file=sys.stderr)
        return EXIT_INCOMPLETE
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_INCOMPLETE
