"""Carries out the requests of `verify serve`: four commands, each by its own parser, on a pool of warm workers."""

import argparse
import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NoReturn

import msgspec

from verify import api
from verify.cli import exits, explain, given, options, replay, sinks
from verify.cli.screen import plain
from verify.errors import UsageError, closest
from verify.records import files
from verify.workers.pool import Pool

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Answer:
    """Holds the result of a command as JSON, its exit code, and its text for people."""

    result: Any
    exit_code: int
    text: str


@dataclass(frozen=True)
class Tool:
    """The options of a command that a request may have, the function that does it, and what its result has."""

    names: tuple[str, ...]
    required: tuple[str, ...]
    work: Callable[[argparse.Namespace, Pool, Progress], Answer]
    returns: str


def _run(options: argparse.Namespace, pool: Pool, progress: Progress) -> Answer:
    own = {"seed": options.seed or 0, "jobs": 1, "pool": pool, "progress": progress}
    done = api.run(options.targets, **given.arguments(options, api.run, **own))
    if done.problems and not done.record.kernels:
        message, _, hint = done.problems[0].partition("\n  next: ")
        raise UsageError(message, hint=hint or None)
    return Answer(msgspec.Raw(files.encode(done.record).strip()), done.exit_code, str(done))


def _judge(options: argparse.Namespace, pool: Pool, progress: Progress) -> Answer:
    chosen = {"profile": options.profile, "seed": options.seed, "backend": options.backend}
    done = api.judge(options.problem, options.solution, pool=pool, progress=progress, **chosen)
    return Answer(sinks.finite(done.data()), done.exit_code, str(done))


def _replay(options: argparse.Namespace, pool: Pool, progress: Progress) -> Answer:
    done = replay.outcome(options, pool)
    return Answer(sinks.finite(done.data), done.exit_code, "\n".join(done.lines))


def _explain(options: argparse.Namespace, pool: Pool, progress: Progress) -> Answer:
    found = replay.ask(options, explain.request_of(options), pool)
    return Answer(sinks.finite(msgspec.to_builtins(found)), exits.PASS, "\n".join(explain.lines_of(found)))


PLACE = ("target", "case", "result", "index", "law", "run", "dtype", "regime", "timeout")
TOOLS = {
    "run": Tool(
        ("targets", "dtype", "profile", "without", "seed", "memory", "fail_fast", "model", "timeout"),
        ("targets",),
        _run,
        "The record. `kernels` has the status of each kernel and its `results`: the largest error, its limit, and the "
        "worst input with the arguments of `replay`. `incomplete` lists what was not measured.",
    ),
    "judge": Tool(
        ("problem", "solution", "profile", "seed"),
        ("problem", "solution"),
        _judge,
        "`verdict` is accepted, wrong, cheats, fails or undecided. `facts` say why.",
    ),
    "replay": Tool(
        (*PLACE, "shrink"),
        (),
        _replay,
        "The element: its inputs, what the kernel returned, and the exact answer.",
    ),
    "explain": Tool(PLACE, (), _explain, "`cause` names the step of the computation that moves the element most."),
}


class _Commands(options.Parser):
    """Raises an error instead of ending the process."""

    def error(self, message: str, *, then: str = "") -> NoReturn:
        raise UsageError(message, hint=then or f"{self.prog} --help")


_COMMANDS = _Commands(prog="verify").add_subparsers()
PARSERS: dict[str, argparse.ArgumentParser] = {
    name: options.define(_COMMANDS, name, options.definition_of(name)) for name in TOOLS
}


def options_of(name: str, wanted: Mapping[str, Any], backend: str | None) -> argparse.Namespace:
    """Returns the options of a command from JSON. Raises UsageError for an unknown field or a wrong value."""
    tool = TOOLS[name]
    if unknown := next((key for key in wanted if key not in tool.names), None):
        near = closest(unknown, tool.names)
        raise UsageError(f"{name} takes {', '.join(tool.names)}; received {plain(unknown)}{near}")
    if lacking := [key for key in tool.required if not wanted.get(key)]:
        raise UsageError(f"{name} needs {' and '.join(tool.required)}; received no {' and no '.join(lacking)}")
    flags, places = [f"--backend={backend}"] if backend else [], list[str]()
    for action in _actions(name):
        value = wanted.get(action.dest)
        values = value if isinstance(value, list) else [] if value in (None, False) else [value]
        if action.nargs == 0 and not isinstance(value, bool | None):
            raise UsageError(f"{action.dest} is true or false; received {plain(json.dumps(value)[:80])}")
        texts = [json.dumps(each) if isinstance(each, dict) and action.dest == "case" else each for each in values]
        if wrong := [each for each in texts if not isinstance(each, str | int | float)]:
            raise UsageError(f"{action.dest} is text or a number; received {plain(json.dumps(wrong[0])[:80])}")
        if not action.option_strings:
            places += map(str, texts) if texts else [""] * (action.nargs == "?")
        else:
            flag = action.option_strings[0]
            flags += [flag if action.nargs == 0 else f"{flag}={text}" for text in texts]
    while places and not places[-1]:
        places.pop()
    return PARSERS[name].parse_args([*flags, "--", *places] if places else flags)


def _actions(name: str) -> list[argparse.Action]:
    return [action for action in PARSERS[name]._actions if action.dest in TOOLS[name].names]


def schema_of(name: str) -> dict[str, Any]:
    """Returns the JSON schema of a request, made from the options of the command."""
    fields = {}
    for action in _actions(name):
        whole = action.type in (options.whole_number, options.count)
        kind: dict[str, Any] = {"type": "boolean" if action.nargs == 0 else "integer" if whole else "string"}
        kind |= {"enum": list(action.choices)} if action.choices else {}
        if action.nargs == "*" or isinstance(action, argparse._AppendAction):
            kind = {"type": "array", "items": kind}
        fields[action.dest] = kind | {"description": _of_fields(str(action.help).replace("%%", "%"))}
    required = {"required": list(TOOLS[name].required)} if TOOLS[name].required else {}
    return {"type": "object", "properties": fields, "additionalProperties": False} | required


def schema_of_answer(name: str) -> dict[str, Any]:
    """Returns the JSON schema of an answer: the exit code of the command, with its result or an error."""
    parts = {each: {"type": "string"} for each in ("kind", "rule", "received", "hint")}
    fields = {
        "exit_code": {"type": "integer", "description": "0 pass, 1 wrong, 2 the request is invalid, 3 no full verdict"},
        "result": {"type": "object", "description": TOOLS[name].returns},
        "error": {"type": "object", "properties": parts, "description": "in place of result; hint is the next step"},
    }
    return {"type": "object", "properties": fields, "required": ["exit_code"]}


def described(name: str) -> dict[str, Any]:
    """Returns the description of a command from its help, and the schemas of its requests and answers."""
    about = {"name": name, "description": _of_fields(str(PARSERS[name].description))}
    return about | {"inputSchema": schema_of(name), "outputSchema": schema_of_answer(name)}


def _of_fields(text: str) -> str:
    """Returns a text of the command line for clients, which see fields in place of options, and no pages."""
    text = re.sub(r" \((docs/[^)]*|repeatable)\)", "", text)
    return re.sub(r"(?<![\w-])--([a-z][a-z-]*)", lambda option: f"`{option[1].replace('-', '_')}`", text)
