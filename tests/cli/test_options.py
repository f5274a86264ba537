"""Every option has one spelling and one meaning in all commands; help, examples, errors and stdout are the same too."""

from __future__ import annotations

import argparse
import json
import math
import re
import shlex
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.here import Here
from verify.cli import exits, given, main, options, parser, sinks
from verify.cli.options import Parser
from verify.workers import process


def commands(top: argparse.ArgumentParser) -> Iterator[Parser]:
    """Every command, those of several steps after their own steps."""
    for action in top._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from commands(inner)
                yield inner


COMMANDS = {command.prog: command for command in commands(parser())}
# what a help text may have of its own: what is stopped, drawn or written, a default, whether it may be repeated
OWN = re.compile(
    r"^stop .* (after this time|once its calls took this time, and judging as much)|"
    r"^seed of .*|^write .* as JSON to|^folder for .*| \((default|repeatable).*"
)


def test_an_option_means_the_same_in_all_commands() -> None:
    meanings = defaultdict(set)
    for command in COMMANDS.values():
        for action in command._actions:
            for flag in action.option_strings:
                text = OWN.sub("", str(action.help))
                meanings[flag].add((text, action.metavar, action.type, str(action.choices), action.nargs))
    assert {flag: found for flag, found in meanings.items() if len(found) > 1} == {}
    assert len(meanings["--backend"]) == len(meanings["--timeout"]) == 1


def test_a_docstring_defines_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    definition = """Try it.

    Tries it at 5% of the
    inputs.

        verify try FILE

    name: NAME  what to try
    --dtype ... --base = HEAD
    --timeout = 30m: a kernel
    --width N = 4  how wide
        it is
    | --all
    --until DATE!  the last day
    """
    command = options.define(Parser(prog="verify").add_subparsers(), "try", definition)
    found = vars(command.parse_args(["x", "--until", "now", "--dtype", "float16", "--dtype", "float32"]))
    assert {name: found[name] for name in ("name", "dtype", "base", "timeout", "width", "all", "until")} == {
        "name": "x",
        "dtype": ["float16", "float32"],
        "base": "HEAD",
        "timeout": 1800.0,
        "width": 4,
        "all": False,
        "until": "now",
    }
    text = command.format_help()
    assert "Tries it at 5% of the inputs." in text and text.endswith("examples:\n  verify try FILE\n")
    assert "--width N " in text and "how wide it is" in text and "(default 30m)" in text
    for wrong in (["--until", "now", "--width", "2", "--all"], []):
        with pytest.raises(SystemExit):
            command.parse_args(["x", *wrong])
    said = capsys.readouterr().err
    assert "argument --all: not allowed with argument --width" in said and "required: --until" in said


@pytest.mark.parametrize("prog", COMMANDS)
def test_every_command_has_examples_that_it_takes_and_that_fit_eighty_columns(prog: str) -> None:
    examples = COMMANDS[prog].examples
    assert examples
    for example in examples:
        words = shlex.split(example, comments=True)
        assert example.startswith(prog) and len(example) <= 78
        assert hasattr(parser().parse_args(words[1:]), "handler")


def test_a_python_without_docstrings_has_the_same_commands() -> None:
    command = [sys.executable, "-OO", "-m", "verify", "serve", "--backend", "cpu"]
    call = '{"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "run"}}'
    done = subprocess.run(command, input=call, capture_output=True, text=True)
    assert done.returncode == exits.PASS and '"rule":"run needs targets"' in done.stdout


# -- what was given -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        "run a.py b.py::k --dtype float32 --dtype bfloat16 --profile ci --seed 7",
        "sweep a.py --result dx --pairs --range=-1:0.5 --backend cuda",
        "hunt a.py --duration 90s --largest 0.1 --strategy random",
        "bench silu --shape 8192,4096 --shape 2,3 --no-accuracy --rounds 3",
        "nightly a.py --stage accuracy --profile ci --without accuracy",
    ],
)
def test_what_determines_the_figures_is_the_command_again(command: str) -> None:
    apart = ["--json", "r.json", "--timeout", "1m"]
    assert sorted(given.words(parser().parse_args(command.split() + apart))) == sorted(command.split())
    everything = given.words(parser().parse_args(command.split() + apart), everything=True)
    assert sorted(everything) == sorted([*command.split(), "--json", "r.json", "--timeout", "60s"])


# -- where it goes ------------------------------------------------------------------------------------------


def test_with_a_dash_stdout_has_the_result_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "r.html"
    chosen = argparse.Namespace(json="-", html=str(page), markdown=None)
    sinks.deliver(chosen, lambda: "text\n", json=lambda: b"{}\n", html=lambda: b"<p>", markdown=lambda: b"#")
    assert (capsys.readouterr().out, page.read_bytes()) == ("{}\n", b"<p>")
    chosen.json = str(tmp_path / "r.json")
    sinks.deliver(chosen, lambda: "text\nnext: verify run\n", json=lambda: b"{}\n", html=lambda: b"<p>")
    assert capsys.readouterr().out.splitlines() == [
        f"result: {tmp_path / 'r.json'}",
        f"report: {page}",
        "text",
        "next: verify run",
    ]


def test_a_path_is_relative_to_the_folder_where_the_command_was_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Configured targets are relative to pyproject.toml, which may lie above it."""
    (tmp_path / "pyproject.toml").write_text('[tool.verify]\nkernels = ["k.py"]\n')
    (tmp_path / "k.py").write_text("import verify\n@verify.kernel(op='silu')\ndef mine(x):\n    return x\n")
    (tmp_path / "below").mkdir()
    monkeypatch.chdir(tmp_path / "below")
    monkeypatch.setattr(process, "Worker", Here)
    assert main(["list", "--json", "kernels.json"]) == exits.PASS
    [kernel] = json.loads((tmp_path / "below" / "kernels.json").read_text())
    assert kernel["target"] == "k.py::mine"
    assert capsys.readouterr().out.startswith(f"result: {tmp_path / 'below' / 'kernels.json'}\n")


def test_numbers_that_json_lacks_are_words() -> None:
    text = sinks.as_json({"b": [math.nan, (math.inf, -math.inf)], "a": 0.5})
    assert json.loads(text) == {"a": 0.5, "b": ["nan", ["inf", "-inf"]]}
