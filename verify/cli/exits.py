"""Defines the exit codes of every command: their names and meanings."""

from __future__ import annotations

from verify.errors import INCOMPLETE, OF_VERDICT, PASS, UNWRITTEN, USAGE, WRONG

__all__ = ["INCOMPLETE", "MEANING", "OF_VERDICT", "PASS", "UNREAD", "UNWRITTEN", "USAGE", "WRONG"]

UNREAD = 141  # the reader closed the output early; a shell reports the same for a command that a closed pipe ended

# docs/cli.md and `verify --help` print this table. A command that deviates says so in its description.
MEANING = {
    PASS: "pass",
    WRONG: "wrong, breached or failed",
    USAGE: "usage: the command cannot be carried out as it was typed",
    INCOMPLETE: "incomplete: something was not measured, or its verdict is vacuous or undecided",
    UNWRITTEN: "unwritten: a file could not be written (full disk, no permission), for any verdict on the screen",
}
