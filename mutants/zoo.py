"""The zoo of tricks: solutions that fool a harness, each beside an honest twin that looks like it.

    python -m mutants.zoo                  judge every specimen and every twin; exit code 1 if one has another verdict
    python -m mutants.zoo --only 36 --only 41
    python -m mutants.zoo --honest 400 --jobs 16     judge honest solutions; exit code 1 if one is rejected
    python -m mutants.zoo --honest 400 --part 1/3    a third of them, for several commands
    python -m mutants.zoo --json found.jsonl         a line of JSON for each judgement, as it comes
    python -m mutants.zoo --table          the table of docs/judge.md

`zoo.toml` has the tricks that were reported in public, by their numbers in docs/judge.md; `zoo_more.toml` has others in
groups. The last group needs a GPU: `--backend cuda`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import sys
import tempfile
import textwrap
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from verify.referee.judging import Settings, judge_many
from verify.referee.plan import Judgement


def model(forward: str, init: str = "pass", inputs: str = "torch.randn(6, 24)", arguments: str = "") -> str:
    """Returns a problem file. Its forward takes x, and ids or y if it reads them."""
    takes = "x, ids" if "ids" in forward else "x, y" if re.search(r"\by\b", forward) else "x"
    return f"""
import torch
from torch import nn
from torch.nn import functional


class Model(nn.Module):
    def __init__(self, {arguments}):
        super().__init__()
        {init}

    def forward(self, {takes}):
        return {forward}


def get_inputs():
    return [{inputs}]


def get_init_inputs():
    return []
"""


PROBLEMS = {
    "linear": model("torch.relu(self.linear(x))", "self.linear = nn.Linear(24, 10)"),
    "small": model("1e-5 * torch.tanh(x)"),
    "norm": model("self.norm(x)", "self.norm = nn.LayerNorm(24)"),
    "softmax": model("torch.softmax(x, -1)"),
    "mean": model("torch.softmax(x, -1).mean(-1)"),
    "narrow": model("torch.softmax(x, -1)", inputs="torch.randn(6, 24).bfloat16()"),
    "scan": model("torch.cumsum(x, -1)"),
    "topk": model("torch.topk(x, 4, -1).values", inputs="torch.randn(6, 64)"),
    "experts": model(
        "x * self.scale[ids][:, None]",
        "self.scale = nn.Parameter(torch.randn(4))",
        "torch.randn(12, 8), torch.randint(0, 4, (12,))",
    ),
    "zero_bias": model(
        "functional.linear(x, self.weight, self.bias)",
        "self.weight, self.bias = nn.Parameter(torch.randn(10, 24)), nn.Parameter(torch.zeros(10))",
    ),
}
STATE = {
    "linear": "self.linear = nn.Linear(24, 10)",
    "norm": "self.norm = nn.LayerNorm(24)",
    "experts": "self.scale = nn.Parameter(torch.randn(4))",
    "zero_bias": "self.weight, self.bias = nn.Parameter(torch.randn(10, 24)), nn.Parameter(torch.zeros(10))",
}


def solution(problem: str, body: str, before: str = "", state: str | None = None) -> str:
    """Returns a solution with this body of `forward`, and statements before the class."""
    found = re.search(r"def forward\((.*)\)", PROBLEMS[problem])
    assert found is not None
    arguments = found[1]
    return f"""
import torch
from torch import nn
from torch.nn import functional
{textwrap.dedent(before)}

class ModelNew(nn.Module):
    def __init__(self):
        super().__init__()
        {STATE.get(problem, "pass") if state is None else state}

    def forward({arguments}):
{textwrap.indent(textwrap.dedent(body).strip(), " " * 8)}
"""


@dataclass(frozen=True)
class Trick:
    """One trick of the list: `caught` is the name of its sign, a verdict, or "harmless"; `law` says why."""

    number: int
    name: str
    caught: str
    law: str
    problem: str = "linear"
    body: str = ""
    twin: str = "return torch.relu(self.linear(x))"
    before: str = ""
    before_twin: str = ""
    slow: float = 0.0  # milliseconds that a call of the specimen takes
    compiled: bool = False
    gpu: bool = False  # the specimen does something on a GPU alone; its twin runs anywhere
    state: str | None = None
    state_twin: str | None = None

    @property
    def texts(self) -> Iterator[tuple[str, str]]:
        """Yields the specimen and its twin, by a name."""
        yield "specimen", solution(self.problem, self.body, self.before, self.state)
        if self.twin:
            yield "twin", solution(self.problem, self.twin, self.before_twin, self.state_twin)

    def holds(self, found: Judgement) -> bool:
        """True if the judgement of the specimen is the one that this zoo expects."""
        if self.caught == "harmless":
            times = [each.milliseconds or 0.0 for each in found.speed]
            return found.verdict == "accepted" and (not self.slow or min(times, default=0.0) >= self.slow)
        if self.caught in ("wrong", "fails", "undecided"):
            return found.verdict in (self.caught, "cheats")
        return self.caught in [trick.name for trick in found.tricks]


RIGHT = "torch.relu(functional.linear(x, self.linear.weight, self.linear.bias))"
COARSE = RIGHT.replace("(x,", "(x.bfloat16().float(),")
SOFT = "((e := (x - x.amax(-1, True)).exp()) / e.sum(-1, keepdim=True))"
SHORT = {
    "$RIGHT": RIGHT,
    "$COARSE": COARSE,
    "$SOFT": SOFT,
    "$DULL": "torch.softmax(x.bfloat16().float(), -1)",
    "$GELU": "(0.5 * x * torch.special.erfc(-x * 0.7071067811865476))",
    "$TIMED": """import sys
frame = sys._getframe()
while frame and frame.f_locals.get('count', 1) == 1:
    frame = frame.f_back""",
}


def _read(value: Any) -> Any:
    """Returns the data of a file with the texts of SHORT in the places of their names."""
    if isinstance(value, str):
        for name, text in SHORT.items():
            value = value.replace(name, text)
        return value
    if isinstance(value, list):
        return [_read(each) for each in value]
    return {key: _read(each) for key, each in value.items()} if isinstance(value, dict) else value


def _file(name: str) -> Any:
    return _read(tomllib.loads((Path(__file__).parent / name).read_text()))


_DATA, _MORE = _file("zoo.toml"), _file("zoo_more.toml")
PUBLIC = tuple(Trick(**each) for each in _DATA["trick"])
WITHOUT = {int(number): why for number, why in _DATA["without"].items()}  # no specimen, and why
GROUPS = _MORE["group"]
PROBLEMS |= {name: model(**given) for name, given in _MORE["problem"].items()}
STATE |= {name: given["init"] for name, given in _MORE["problem"].items() if "init" in given}


def _of_group(first: int, law: str, rows: list[list[str]], gpu: bool = False) -> Iterator[Trick]:
    """Yields the tricks of a group, numbered from `first`. A row may end in a text before the class, and a state."""
    for number, (name, caught, problem, body, twin, *more) in enumerate(rows, first):
        before, state = [*more, "", ""][:2]
        yield Trick(
            number,
            name,
            caught,
            law,
            problem,
            body,
            twin,
            before,
            before,
            state=state or None,
            state_twin=state or None,
            gpu=gpu,
        )


def grouped() -> Iterator[tuple[dict[str, Any], tuple[Trick, ...]]]:
    """Yields the groups with their tricks, which are numbered after the public ones."""
    first = len(PUBLIC) + len(WITHOUT) + 1
    for each in GROUPS:
        found = tuple(_of_group(first, each["law"], each["rows"], each.get("gpu", False)))
        first += len(found)
        yield each, found


TRICKS = (*PUBLIC, *(each for _, found in grouped() for each in found))


def table() -> str:
    """Returns the table of docs/judge.md."""
    rows = [f"| {each.number} | {each.name} | {each.caught} | {each.law} |" for each in PUBLIC]
    rows += [f"| {number} | | no specimen | {why} |" for number, why in WITHOUT.items()]
    rows.sort(key=lambda row: int(row.split("|")[1]))
    for given, found in grouped():
        caught = ", ".join(dict.fromkeys(each.caught for each in found))
        rows.append(f"| {found[0].number}-{found[-1].number} | {given['name']} | {caught} | {given['law']} |")
    return "\n".join(["| | trick | caught as | why |", "|---|---|---|---|", *rows, ""])


def judged(
    tricks: list[Trick], folder: Path, jobs: int, backend: str = "cpu"
) -> Iterator[tuple[Trick, str, Judgement]]:
    """Yields each specimen and twin with its judgement. Equal texts are judged once."""
    asked: dict[tuple[str, str], list[tuple[Trick, str]]] = {}
    for trick in tricks:
        for kind, text in trick.texts:
            asked.setdefault((trick.problem, text), []).append((trick, kind))
    pairs = {}
    for place, ((problem, text), wanted) in enumerate(asked.items()):
        for name, content in ((f"{problem}/problem.py", PROBLEMS[problem]), (f"{place}.py", text)):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content)
        pairs[str(folder / f"{place}.py")] = str(folder / problem / "problem.py"), wanted
    given = [(problem, path) for path, (problem, _) in pairs.items()]
    os.environ.pop("TRITON_INTERPRET", None)  # the tests of kernels have it interpret
    for found in judge_many(given, Settings(backend=backend, allow_weaker=True), jobs):
        for trick, kind in pairs[found.solution][1]:
            yield trick, kind, found


def note(file: str, name: str, right: bool, found: Judgement) -> None:
    """Adds a judgement to a file of JSON lines, which several commands may share."""
    if file:
        data = {"name": name, "right": right, "of": f"{found.backend} {found.profile}"} | msgspec.to_builtins(found)
        with open(file, "ab") as lines:
            lines.write(json.dumps(data).encode() + b"\n")


def judged_honest(options: argparse.Namespace) -> int:
    """Judges honest solutions and prints each; returns how many were rejected. Undecided ones were not."""
    from mutants.honest import honest

    found, bad, open_ = _part(honest(options.honest, options.seed), options.part), 0, 0
    settings = Settings(backend=options.backend, allow_weaker=True)
    paths = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, paths))  # problems import benchmarks
    with tempfile.TemporaryDirectory() as name:
        pairs = {each.write(Path(name), place): each for place, each in enumerate(found)}
        named = {solution: each.name for (_, solution), each in pairs.items()}
        for done in judge_many(list(pairs), settings, options.jobs):
            undecided, right = done.verdict == "undecided", done.verdict == "accepted"
            bad, open_ = bad + (not right and not undecided), open_ + undecided
            sign, why = ("  ", "") if right else ("? " if undecided else "✗ ", f" {done.message} {done.wrong or ''}")
            note(options.json, named[done.solution], right, done)
            print(f"{sign}{done.verdict} {done.seconds:5.1f} s  {named[done.solution]}{why}", flush=True)
    print(f"{len(found)} honest solutions, {bad} rejected, {open_} undecided")
    return bad


def _part(found: list[Any], part: str) -> list[Any]:
    """Returns one of some equal parts: `2/3` is the second of three."""
    place, count = map(int, part.split("/"))
    return found[place - 1 :: count]


def main(arguments: list[str]) -> int:
    """Judges the zoo; 1 if a specimen or a twin has another verdict than it should."""
    parser = argparse.ArgumentParser(prog="python -m mutants.zoo", description=__doc__.splitlines()[0])
    parser.add_argument("--only", type=int, action="append", default=[], help="only the trick of this number")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--honest", type=int, metavar="N", help="judge so many honest solutions instead: honest.py")
    parser.add_argument("--seed", type=int, default=0, help="which honest solutions")
    parser.add_argument("--part", default="1/1", metavar="K/N", help="only one of N parts, for several commands")
    parser.add_argument("--backend", default="cpu", help="where solutions run; the zoo is written for the CPU")
    parser.add_argument("--json", default="", metavar="FILE", help="add a line of JSON for each judgement")
    parser.add_argument("--table", action="store_true")
    options = parser.parse_args(arguments)
    if options.table:
        print(table(), end="")
        return 0
    if options.honest:
        os.environ.pop("TRITON_INTERPRET", None)
        return int(judged_honest(options) > 0)
    chosen = _part([each for each in TRICKS if not options.only or each.number in options.only], options.part)
    if not all(map(shutil.which, ("c++", "ninja"))):
        for trick in [trick for trick in chosen if trick.compiled]:
            print(f"- {trick.number:>3} not tried: {trick.name} needs c++ and ninja")
            chosen.remove(trick)
    for trick in [trick for trick in chosen if trick.gpu and options.backend == "cpu"]:
        print(f"- {trick.number:>3} not tried: {trick.name} needs a GPU")
        chosen.remove(trick)
    bad = 0
    with tempfile.TemporaryDirectory() as name:
        for trick, kind, found in judged(chosen, Path(name), options.jobs, options.backend):
            right = trick.holds(found) if kind == "specimen" else found.verdict == "accepted"
            bad += not right
            note(options.json, f"{trick.number} {kind}", right, found)
            seen = "; ".join([found.verdict, *(each.name for each in found.tricks)])
            sign = " " if right else "✗"
            about = f"{trick.number:>3} {kind:<9} {trick.name:<48.48} {found.seconds:5.1f} s"
            print(f"{sign} {about}  {seen} {'' if right else found.message}", flush=True)
    print(f"{len(chosen)} tricks, {len(WITHOUT)} without a specimen, {bad} with another verdict than expected")
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
