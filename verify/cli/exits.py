"""The exit codes of every command: their names, and what each means."""

from __future__ import annotations

from verify.errors import INCOMPLETE, OF_VERDICT, PASS, UNWRITTEN, USAGE, WRONG

__all__ = ["INCOMPLETE", "MEANING", "OF_VERDICT", "PASS", "UNREAD", "UNWRITTEN", "USAGE", "WRONG"]

UNREAD = 141  # nobody read the output to its end: what a shell says of a command that a closed pipe ended

# docs/cli.md and `verify --help` print this table; a command that deviates says so in its description
MEANING = {
    PASS: "pass",
    WRONG: "wrong, breached or failed",
    USAGE: "usage: the command cannot be carried out as it was typed",
    INCOMPLETE: "incomplete: something was not measured, or its verdict is vacuous or undecided",
    UNWRITTEN: "unwritten: a file could not be written, whatever the verdict on the screen: a full disk, no permission",
}
