"""README and docs: links lead somewhere, commands exist, Python blocks run, generated parts are current.

What single pages show is compared where their subject is tested (tests/README.md lists them).
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import io
import re
import shlex
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from tests.cli.here import Here, said
from tests.docs.printed import COMPARABLE, rows
from verify.cli import parser
from verify.ops import op
from verify.workers import process

ROOT = Path(__file__).parents[2]
DOCS = sorted((ROOT / "docs").glob("*.md"))
OUTSIDE = "README CHANGELOG CONTRIBUTING SECURITY CODE_OF_CONDUCT tests/README mutants/README kernels/README"
PAGES = [*(ROOT / f"{name}.md" for name in OUTSIDE.split()), *DOCS]
OWN = "README contracts explain failures findings foreign-kernels judge serve"
HAS_ITS_OWN_TEST = {f"{page}.md" for page in OWN.split()}
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.DOTALL | re.MULTILINE)


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def module(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


# -- generated parts ------------------------------------------------------------------------------------

CLI = module(ROOT / "docs" / "generate_cli.py")
REFERENCE = module(ROOT / "docs" / "generate_reference.py")
FIGURES = module(ROOT / "docs" / "generate_figures.py")


def test_the_command_line_reference_is_current() -> None:
    assert CLI.PAGE.read_text() == CLI.page(), "run: python docs/generate_cli.py"


def test_the_reference_of_public_names_is_current() -> None:
    assert REFERENCE.PAGE.read_text() == REFERENCE.page(), "run: python docs/generate_reference.py"


@pytest.mark.parametrize("path", FIGURES.pages(), ids=name)
def test_sections_of_figures_are_current(path: Path) -> None:
    text = path.read_text()
    assert FIGURES.updated(text) == text, "run: python docs/generate_figures.py"


# -- links ----------------------------------------------------------------------------------------------


def anchors(path: Path) -> set[str]:
    """The headings of a page as GitHub links to them."""
    text = FENCE.sub("", path.read_text())
    titles = re.findall(r"^#+ (.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_every_relative_link_leads_somewhere(path: Path) -> None:
    text = FENCE.sub("", path.read_text())
    for link in re.findall(r"\]\(([^)\s]+)\)", text):
        if link.startswith(("http://", "https://")):
            continue
        file, _, anchor = link.partition("#")
        target = path if not file else (path.parent / file).resolve()
        assert target.exists(), f"{name(path)} links to {link}"
        if anchor:
            assert anchor in anchors(target), f"{name(path)} links to {link}"


# -- commands -------------------------------------------------------------------------------------------


def commands(path: Path) -> list[str]:
    """Commands in blocks: lines that begin with verify, or with a prompt and verify."""
    found = []
    for language, block in FENCE.findall(path.read_text()):
        block = block.replace("\\\n", " ")
        for line in block.splitlines():
            prompted = line.startswith("$ verify ")
            if prompted or (language == "sh" and line.startswith("verify ")):
                found.append(line.removeprefix("$ "))
    return found


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_commands_in_blocks_are_taken_by_the_parser(path: Path) -> None:
    for command in commands(path):
        words = shlex.split(command, comments=True)
        errors = io.StringIO()
        try:
            with contextlib.redirect_stderr(errors):
                parser().parse_args(words[1:])
        except SystemExit:
            pytest.fail(f"{name(path)}: {command}\n{errors.getvalue()}")


def options_of(top: argparse.ArgumentParser) -> dict[str, set[str]]:
    """Every command, nested ones too, with its options."""
    found: dict[str, set[str]] = {}
    for action in top._actions:
        if isinstance(action, argparse._SubParsersAction):
            for command, inner in action.choices.items():
                nested = options_of(inner)
                own = {option for each in inner._actions for option in each.option_strings}
                found[command] = own.union(*nested.values())
                found |= {f"{command} {below}": options | own for below, options in nested.items()}
    return found


OPTIONS = options_of(parser())
REMOVED = re.compile(r"^### Removed\n.*?(?=^##)", re.M | re.S)  # the changelog names once more what is gone
# of other programs that the pages mention: pytest, Dask, systemctl, the benchmarks, the mutants
FOREIGN = set(
    "--hypothesis-profile --verify-profile --nthreads --user --failed --measure --merge --check --honest --page "
    "--programs --rules --family --only --twins --renew --limit --records --rows --later".split()
)


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_commands_and_options_in_sentences_exist(path: Path) -> None:
    text = REMOVED.sub("", FENCE.sub("", path.read_text()))
    for code in re.findall(r"`([^`\n]+)`", text):
        given = set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", code))
        mentioned = re.match(r"verify (\w+)(?: (\w+))?", code)
        if not mentioned:
            known = set().union(*OPTIONS.values()) | FOREIGN
            assert given <= known, f"{name(path)}: `{code}`"
            continue
        command = mentioned[1] if f"{mentioned[1]} {mentioned[2]}" not in OPTIONS else f"{mentioned[1]} {mentioned[2]}"
        assert command in OPTIONS or mentioned[1].isupper(), f"{name(path)}: `{code}`"
        assert given <= OPTIONS.get(command, given), f"{name(path)}: `{code}`"


# -- Python blocks --------------------------------------------------------------------------------------


def python_blocks() -> list[tuple[Path, int, str]]:
    return [
        (path, number, block)
        for path in PAGES
        if path.name not in HAS_ITS_OWN_TEST or path.parent == ROOT / "tests"
        for number, block in enumerate(
            block for language, block in FENCE.findall(path.read_text()) if language == "python"
        )
    ]


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with the README's accuracy.py; ops and modules that a block brings are gone afterwards."""
    [first, *_] = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.DOTALL)
    (tmp_path / "accuracy.py").write_text(first)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(op, "_OPS", dict(op._OPS))
    monkeypatch.setattr(process, "Worker", Here)
    monkeypatch.delitem(sys.modules, "accuracy", raising=False)
    return tmp_path


BLOCKS = python_blocks()


@pytest.mark.parametrize(("path", "number", "block"), BLOCKS, ids=[f"{path.stem}-{n}" for path, n, _ in BLOCKS])
def test_a_python_block_runs(path: Path, number: int, block: str, project: Path, capsys: pytest.CaptureFixture) -> None:
    exec(compile(block, f"{path.name}[{number}]", "exec"), {"__name__": "block"})
    sys.modules.pop("accuracy", None)
    printed = capsys.readouterr().out
    after = path.read_text().split(f"```python\n{block}```", 1)[1]
    shown = re.match(r"\n\n```text\n(.*?)```", after, flags=re.DOTALL)
    if "print(" in block and shown:
        assert printed == shown[1]
    else:
        assert "print(" not in block or printed


@pytest.mark.skipif(torch.cuda.is_available(), reason="the page shows the CPU's figures")
def test_the_page_of_ops_shows_what_the_command_prints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (ROOT / "docs" / "ops.md").read_text()
    [block] = re.findall(r"```python\n# accuracy.py\n(.*?)```", page, flags=re.DOTALL)
    [shown] = re.findall(r"```text\n(.*?)```", page, flags=re.DOTALL)
    (tmp_path / "accuracy.py").write_text(block)
    monkeypatch.setenv("COLUMNS", "120")
    done = said("run", "accuracy.py", "--backend", "interpreter", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    # The kernel is PyTorch's own function, so that all its figures are PyTorch's. Columns after the basis are as wide
    # as the verdicts of all rows leave them.
    known = None if COMPARABLE else 2
    printed = [cells[:known] for cells in rows(done.stdout)]
    wanted = rows(shown)
    assert len(wanted) == 4
    for cells in wanted:
        assert cells[:known] in printed
