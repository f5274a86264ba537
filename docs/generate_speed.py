"""Writes docs/speed.md from the published records that hold timings: reports/published/ARCH/{run,bench_*}.json,
compressed or not.

python docs/generate_speed.py            write docs/speed.md
python docs/generate_speed.py --check    exit 1 if it differs
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from verify.records import files, record  # noqa: E402
from verify.report import bench_words, words  # noqa: E402
from verify.report.terminal.text_page import Page, Terminal, lay_out  # noqa: E402

WIDE = 1000  # columns, more than any table takes: speeds are compared in one line
PUBLISHED, PAGE = HERE.parent / "reports" / "published", HERE / "speed.md"
HEAD = """# Speed

Written by `python docs/generate_speed.py` from the published records that hold timings; [bench.md](bench.md) says how
speed is measured. A column of errors without entries means that the record was made with `--no-accuracy`.
"""


def records() -> list[tuple[Path, record.Run]]:
    """The published records that hold timings, by hardware and name."""
    found = sorted([*PUBLISHED.glob("*/run.json*"), *PUBLISHED.glob("*/bench_*.json*")])
    read = [(path, files.load(path)) for path in found]
    return [(path, run) for path, run in read if any(kernel.speed for kernel in run.kernels)]


def page(found: list[tuple[Path, record.Run]]) -> str:
    """The whole document about these records."""
    return "\n".join([HEAD, *(_section(path, run) for path, run in found)])


def _section(path: Path, run: record.Run) -> str:
    environment = dict(words.flat(run.environment))
    about = [f"{name} {environment[name]}" for name in ("gpu", "driver", "torch", "triton") if name in environment]
    name = path.name.partition(".")[0]
    title = name.removeprefix("bench_") if name != "run" else "the published night"
    lines = [f"## {path.parent.name}: {title}", "", f"Made by `{run.command}`.", ""]
    lines += [", ".join(about), ""] if about else []
    lay_out(shown := Page(Terminal(WIDE)), bench_words.tables(run))
    lines += ["```text", shown.text(), *bench_words.notes(run), "```", ""]
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    found = records()
    if not found:
        print("docs/generate_speed.py: no record under reports/published has timings; `verify bench --json` makes one")
        return 2
    if arguments == ["--check"]:
        return 0 if PAGE.read_text(encoding="utf-8") == page(found) else 1
    PAGE.write_text(page(found), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
