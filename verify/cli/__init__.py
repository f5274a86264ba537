"""Defines the command line, `verify COMMAND`, one module for each command.

The docstring of a module defines its command. The module is imported when its command runs: `verify --help` must not
wait for what all commands import.
"""

import argparse
import contextlib
import errno
import os
import sys
from functools import cache
from importlib import import_module
from typing import TextIO

from verify.cli import exits, screen
from verify.cli.options import Parser, define, definition_of, demand_apart
from verify.errors import InternalError, KernelError, TruthError, UsageError, VerifyError, WriteError, no_verdict

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)  # the system is at fault, not the command

# In workflow order.
COMMANDS = (
    *("doctor", "init", "list", "run", "sweep", "hunt", "bench", "judge", "replay", "explain", "contract", "same"),
    *("drift", "serve", "report", "gate", "bounds", "compare", "nightly"),
)


@cache
def parser() -> argparse.ArgumentParser:
    """Returns the parser of the whole command line."""
    from verify import __version__

    codes = "; ".join(f"{code} {meaning.partition(':')[0]}" for code, meaning in exits.MEANING.items())
    top = Parser(
        prog="verify",
        description="How wrong is a GPU kernel, at worst, and on which input?",
        epilog=f"verify COMMAND --help has examples. Exit codes: {codes}.",
    )
    top.add_argument("--version", action="version", version=f"verify {__version__}")
    commands = top.add_subparsers(title="commands, in the order of use", metavar="COMMAND", dest="command_name")
    for name in COMMANDS:
        definition, *steps = definition_of(name).split("\n## ")
        command = define(commands, name, definition, f"verify.cli.{name}:main")
        inner = command.add_subparsers(title="steps", metavar="STEP", required=True) if steps else None
        for step, _, text in (each.partition("\n\n") for each in steps):
            define(inner, step, text, f"verify.cli.{name}:{step}")
    return top


def main(arguments: list[str] | None = None) -> int:
    """Runs the command in `arguments` (default: sys.argv) and returns its exit code. Prints errors on stderr."""
    _open_streams()
    if foreign := _other_verify():
        then = "pip uninstall verify, then pip install --force-reinstall verify-kernels"
        return _ended(f"{foreign}\n  next: {then}", exits.USAGE)
    top = parser()
    given = sys.argv[1:] if arguments is None else arguments
    if any(text.encode(errors="ignore").decode() != text for text in given):
        return _ended(f"arguments are UTF-8; received {' '.join(given)}\n  next: verify --help", exits.USAGE)
    options = top.parse_args(given)
    if not hasattr(options, "handler"):
        top.print_help()
        return exits.PASS
    code = _run(options)
    _flush(sys.stderr)
    return code


def _other_verify() -> str:
    """Returns a message if the distribution `verify` overwrote this package, which has the same name; else ""."""
    import verify

    if "kernel" in getattr(verify, "__all__", ()):
        return ""
    return f"the distribution 'verify' replaced files of 'verify-kernels' in {os.path.dirname(str(verify.__file__))}"


def _run(options: argparse.Namespace) -> int:
    """Runs the command of the options. Turns each kind of error into a message and an exit code."""
    then = f"\n  next: {options.command.prog} --help"
    try:
        demand_apart(options)
        module, _, function = options.handler.partition(":")
        code = int(getattr(import_module(module), function)(options))
        sys.stdout.flush()
        return code
    except UsageError as error:
        return _ended(f"{error}{'' if error.hint else then}", exits.USAGE)
    except KernelError as error:
        return _ended(f"{error}{then}", exits.USAGE)
    except (TruthError, InternalError) as error:
        return _ended(no_verdict(error), exits.INCOMPLETE)
    except WriteError as error:
        return _ended(f"{error}\n  next: {error.hint}", exits.UNWRITTEN)
    except VerifyError as error:  # a worker that died or was late
        return _ended(f"no verdict: {error}{then}", exits.INCOMPLETE)
    except KeyboardInterrupt:
        return _ended("interrupted", exits.INCOMPLETE)
    except BrokenPipeError:  # `verify run | head -1`: the reader has read enough
        _discard(sys.stdout)
        return exits.UNREAD
    except Exception as error:
        if isinstance(error, OSError) and error.errno in FULL:
            place = f" {error.filename}" if error.filename else ""
            _ended(f"cannot write{place}: {error.strerror} ({errno.errorcode[error.errno]})", exits.UNWRITTEN)
            _discard(sys.stdout)
            return exits.UNWRITTEN
        import traceback

        # A traceback would end with exit code 1, that of a wrong result. An unexpected exception is no verdict.
        _say(traceback.format_exc().rstrip("\n"))
        return _ended(no_verdict(InternalError("the traceback is above")), exits.INCOMPLETE)


def _ended(text: str, code: int) -> int:
    """Prints why a command ended, and returns its exit code."""
    _say(f"verify: {text}")
    return code


def _say(text: str) -> None:
    """Prints lines on stderr, without control characters. If stderr is closed, nothing is printed."""
    with contextlib.suppress(OSError):
        print("\n".join(map(screen.plain, text.split("\n"))), file=sys.stderr)
    _flush(sys.stderr)


def _flush(stream: TextIO) -> None:
    """Flushes a stream. Discards it if it is broken."""
    try:
        stream.flush()
    except OSError:
        _discard(stream)


def _discard(stream: TextIO) -> None:
    """Redirects a broken stream to nowhere. Otherwise Python would flush it again at the end, with a traceback."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _open_streams() -> None:
    """Opens a null file for every closed standard stream. Otherwise the next opened file would take its place."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)  # takes the lowest free number; workers inherit it
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, "w" if number else "r", closefd=False))  # noqa: SIM115
