"""Writes docs/speed.md from the records of `verify bench` under reports/published/ARCH/bench_*.json.

python docs/generate_speed.py            write docs/speed.md
python docs/generate_speed.py --check    exit 1 if it differs
"""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))

from verify import record  # noqa: E402
from verify.report import bench_table, words  # noqa: E402

PUBLISHED, PAGE = HERE.parent / "reports" / "published", HERE / "speed.md"
HEAD = """# Speed

Written by `python docs/generate_speed.py` from the published records of [`verify bench`](bench.md), which says how
speed is measured. A column of errors without entries means that the record was made with `--no-accuracy`.
"""


def records() -> list[Path]:
    """The published records, by hardware and name."""
    return sorted(PUBLISHED.glob("*/bench_*.json"))


def page() -> str:
    """The whole document."""
    return "\n".join([HEAD, *(_section(path) for path in records())])


def _section(path: Path) -> str:
    run = record.load(path)
    environment = dict(words.flat(run.environment))
    about = [f"{name} {environment[name]}" for name in ("gpu", "driver", "torch", "triton") if name in environment]
    lines = [f"## {path.parent.name}: {path.stem.removeprefix('bench_')}", "", f"Made by `{run.command}`.", ""]
    lines += [", ".join(about), ""] if about else []
    lines += ["```text", *bench_table.tables(run), *bench_table.notes(run), "```", ""]
    return "\n".join(lines)


def main(arguments: list[str]) -> int:
    if not records():
        print("docs/generate_speed.py: no reports/published/*/bench_*.json; `verify bench --json` makes one")
        return 2
    if arguments == ["--check"]:
        return 0 if PAGE.read_text(encoding="utf-8") == page() else 1
    PAGE.write_text(page(), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
