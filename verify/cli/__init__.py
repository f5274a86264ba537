"""The command line: `verify COMMAND`. One module per command; nothing heavy is imported until it runs."""

from __future__ import annotations

import argparse
import errno
import os
import sys

from verify.cli import (
    bench,
    bounds,
    certify,
    compare,
    corpus,
    doctor,
    exits,
    explain,
    gate,
    history,
    hunt,
    init,
    list_,
    nightly,
    replay,
    report,
    run,
    sanitize,
    selftest,
    sinks,
    sweep,
)
from verify.cli.parsing import Parser
from verify.errors import InternalError, KernelError, TruthError, UsageError, WriteError, no_verdict

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)  # no command is wrong that meets these

# in workflow order
COMMANDS = (
    doctor,
    init,
    list_,
    run,
    sweep,
    hunt,
    bench,
    replay,
    explain,
    corpus,
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


def parser() -> argparse.ArgumentParser:
    """The whole command line."""
    from verify import __version__

    codes = "; ".join(f"{code} {meaning.partition(':')[0]}" for code, meaning in exits.MEANING.items())
    top = Parser(
        prog="verify",
        description="How wrong is a GPU kernel, at worst, and on which input?",
        epilog=f"verify COMMAND --help has examples. Exit codes: {codes}.",
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
        return exits.PASS
    try:
        sinks.check(options)
        code = int(options.handler(options))
        sys.stdout.flush()
        return code
    except UsageError as error:
        shown = error if error.hint else UsageError(error.message, hint=f"{options.command.prog} --help")
        print(f"verify: {shown}", file=sys.stderr)
        return exits.USAGE
    except KernelError as error:
        print(f"verify: {error}\n  next: {options.command.prog} --help", file=sys.stderr)
        return exits.USAGE
    except (TruthError, InternalError) as error:
        print(f"verify: {no_verdict(error)}", file=sys.stderr)
        return exits.INCOMPLETE
    except WriteError as error:
        print(f"verify: {error}\n  next: {error.hint}", file=sys.stderr)
        return exits.UNWRITTEN
    except KeyboardInterrupt:
        print("verify: interrupted", file=sys.stderr)
        return exits.INCOMPLETE
    except BrokenPipeError:  # `verify run | head -1`: whoever reads has what they wanted
        _discard_output()
        return exits.UNREAD
    except OSError as error:
        if error.errno not in FULL:
            raise
        place = f" {error.filename}" if error.filename else ""
        print(f"verify: cannot write{place}: {error.strerror} ({errno.errorcode[error.errno]})", file=sys.stderr)
        _discard_output()
        return exits.UNWRITTEN


def _discard_output() -> None:
    """Stdout takes nothing any more; what is buffered for it would be tried again at the end, with a traceback."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
