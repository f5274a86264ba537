"""Judge solutions that are not trusted.

Judge a solution of a problem by the exact answer, in a process that sees nothing of the judge: accepted, wrong,
cheats, fails or undecided. A problem is a file with Model, get_inputs and get_init_inputs, a function with its
tests, a folder with reference.py, task.yml or func_forward.py, a Definition in JSON, calls of an operator, or
FILE.py::KERNEL (docs/judge.md). Exit code 1: wrong, cheats or fails; 3: undecided, or accepted where nothing held
the solution.

    verify judge problem.py solution.py
    verify judge problem.py solution.py --json judgement.json
    verify judge layers.py::my_layer solution.py --profile ci
    verify judge --many list.txt --jobs 4 --json ranked.json
    verify judge --many list.txt --resume ranked.json  # continues there
    verify judge --schema -

problem: [PROBLEM]  the file or folder of a problem, or FILE::KERNEL
solution: [SOLUTION]  the file or folder of a solution
--many LIST  judge the pairs of this file, PROBLEM SOLUTION in each line; prints a line of JSON for each
--profile = quick: quick
--seed N  seed of weights and inputs (default: by chance, and in the answer)
--backend
--jobs COUNT|auto = 0  worker processes at a time (default: auto, one; they take the GPUs in turns)
--timeout: one problem of a file
--allow-weaker  judge also where this machine cannot hold a solution; the answer says what was given up, and the
    exit code of an accepted solution is 3
--resume
--json: the judgement
--schema --sarif --junit --github
"""

from __future__ import annotations

import argparse
import json
import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from verify.cli import exits, screen, sinks
from verify.errors import UsageError
from verify.referee.plan import Judgement, schema
from verify.workers.pool import using

if TYPE_CHECKING:
    from verify.api import CompletedJudgement

WRITTEN_SECONDS = 2.0  # between two writes of the file of many judgements


def main(options: argparse.Namespace) -> int:
    """Carries out the command."""
    if options.schema and not options.problem and not options.many:
        sinks.deliver(options, lambda: "", schema=lambda: sinks.as_json(schema()))
        return exits.PASS
    given = {
        "profile": options.profile,
        "backend": options.backend,
        "seed": options.seed,
        "timeout": options.timeout if options.timeout != options.command.get_default("timeout") else None,
        "allow_weaker": options.allow_weaker,
    }
    with exits.terminated_as_interrupted():  # so that nothing of a solution is left
        return _many(options, given) if options.many else _one(options, given)


def _one(options: argparse.Namespace, given: dict[str, Any]) -> int:
    """Prints one judgement."""
    if not options.solution:
        said = f"a problem and a solution are judged; received {options.problem or 'neither'}"
        raise UsageError(said, hint="verify judge PROBLEM SOLUTION, or verify judge --many LIST")
    with using(None, options.backend) as pool:
        pool.begin(1)  # its worker imports PyTorch while this process imports the rest
        from verify import api
        from verify.declare.requests import declared_by
        from verify.referee.words import checks_of

        if "::" in options.problem:
            declared_by(pool, options.problem)  # raises UsageError if there is no such kernel
        progress = screen.Progress()
        done = api.judge(options.problem, options.solution, progress=progress, pool=pool, **given)
        progress.clear()
        sinks.deliver(
            options,
            lambda: sinks.lines(*str(done).splitlines()),
            checks=lambda: checks_of([done.judgement]),
            json=lambda: sinks.as_json(done.data()),
            schema=lambda: sinks.as_json(schema()),
        )
    return done.exit_code


def _many(options: argparse.Namespace, given: dict[str, Any]) -> int:
    """Prints each judgement as it is made. --json and --resume get all that there are, the best first, as they come."""
    from verify import api
    from verify.referee.words import checks_of

    found, pairs = _before(options, _pairs(options.many), given["profile"])
    files, written = {each for each in (options.resume, options.json) if each and each != "-"}, 0.0

    def as_json() -> bytes:
        return sinks.as_json([each.data() for each in sorted(found, key=lambda each: each.rank)])

    try:
        for done in api.judge_many(pairs, jobs=options.jobs or 1, **given):
            found.append(done)
            if not sinks.quiet(options):
                print(json.dumps(done.data(), sort_keys=True), flush=True)
            if time.monotonic() - written > WRITTEN_SECONDS:
                sinks.write(dict.fromkeys(files, as_json))
                written = time.monotonic()
    finally:  # also at Ctrl-C
        sinks.write(dict.fromkeys(files, as_json))
    found.sort(key=lambda each: each.rank)
    sinks.deliver(options, lambda: "", checks=lambda: checks_of(each.judgement for each in found), json=as_json)
    return max((each.exit_code for each in found), key=exits.worse, default=exits.PASS)


def _pairs(path: str) -> list[tuple[str, str]]:
    """Returns the pairs of a list."""
    try:
        text = Path(path).read_text("utf-8")
        pairs = [pair for line in text.splitlines() if (pair := shlex.split(line, comments=True))]
    except (OSError, ValueError) as error:
        said = f"--many names a file of text with PROBLEM SOLUTION in each line; cannot read {path}: {error}"
        raise UsageError(said, hint="verify judge --many list.txt") from error
    if not pairs:
        raise UsageError(f"{path} has no pair to judge", hint="a line is PROBLEM SOLUTION")
    if bad := next((pair for pair in pairs if len(pair) != 2), None):
        raise UsageError(f"{path}: a line is PROBLEM SOLUTION; received {shlex.join(bad)}")
    return [(pair[0], pair[1]) for pair in pairs]


def _before(
    options: argparse.Namespace, pairs: list[tuple[str, str]], profile: str
) -> tuple[list[CompletedJudgement], list[tuple[str, str]]]:
    """Returns the judgements of the file of --resume whose problem and solution did not change, and the other pairs."""
    from verify.api import CompletedJudgement
    from verify.workers.sandbox.folders import digest

    if not options.resume or not Path(options.resume).exists():
        return [], pairs
    try:
        known = msgspec.json.decode(Path(options.resume).read_bytes(), type=list[Judgement])
    except msgspec.DecodeError as error:
        raise UsageError(f"--resume {options.resume}: the file has no judgements: {error}") from None
    kept, left = [], []
    for problem, solution in pairs:
        path, mark, kernel = problem.partition("::")
        named = (f"{Path(path).resolve()}{mark}{kernel}", solution, profile)
        same = [each for each in known if (each.problem, each.solution, each.profile) == named and each.fixed]
        now = [digest(Path(each)) for each in (path, solution)] if same else []
        same = [each for each in same if [each.fixed["problem"], each.fixed["solution"]] == now]
        kept += [CompletedJudgement(same[0])] if same else []
        left += [] if same else [(problem, solution)]
    return kept, left
