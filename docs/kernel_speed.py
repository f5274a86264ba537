"""Renders reports/benchmarks/sm_90/everything.json, which kernels.bench.everything wrote, for generate_figures.py.

A figure is the time of the fastest peer over ours: above 1 ours is faster. Times are microseconds.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kernels.bench import promises
from kernels.bench.promises import CELL, ENOUGH, Row, figure, times

PEERS = {"eager": "eager", "compile": "torch.compile", "liger": "Liger", "fla": "fla", "flash": "flash-attention"}
PEERS |= {"quack": "quack", "cublas": "bare products"}


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table in Markdown."""
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)


def _measured(data: dict[str, Any], *groups: str) -> list[Row]:
    return [row for row in promises.rows() if row.group in groups and row.key in data["rows"]]


def _us(us: dict[str, float], name: str) -> str:
    return f"{us[name]:.1f}" if name in us else ""


def _figure(us: dict[str, float], least: float, of: str = "ours") -> str:
    """Returns a figure, bold below `least`."""
    value, _ = figure(us, of)
    return "" if value != value else f"{value:.3f}" if value >= least else f"**{value:.3f}**"


def _setting(data: dict[str, Any]) -> str:
    versions = ", ".join(f"{name} {version}" for name, version in data["peers"].items())
    return f"{data['device']}, Triton {data['triton']}; {versions}; commit {data['commit'][:12]}."


def promised(data: dict[str, Any]) -> str:
    """Returns the targets that were missed, with the figure reached, the ceiling and the reason."""
    wanted = promises.rows()
    lines = promises.verdict(data["rows"], wanted)
    below = [line for line in lines if not line.held]
    missing = sum(row.key not in data["rows"] for row in wanted)
    head = ["missed", "target", "reached", "ceiling", "reason"]
    measured = [line for line in below if line.reached != promises.NOT_MEASURED]
    rows = [[line.what, line.target, line.reached, line.ceiling, line.reason] for line in measured]
    rest = f"; {missing} of {len(wanted)} rows were not measured." if missing else f" in {len(wanted)} rows."
    counts = f"{len(lines) - len(below)} of {len(lines)} targets are met{rest}"
    return f"{counts} {_setting(data)}\n\n" + (table(head, rows) if rows else "")


def elsewhere(there: dict[str, Any], here: dict[str, Any]) -> str:
    """Returns the number of targets that another GPU meets, and the targets that it alone misses."""
    found, mine = (
        {line.what: line for line in promises.verdict(data["rows"], promises.rows())} for data in (there, here)
    )
    held = sum(line.held for line in found.values())
    rows = [
        [line.what, line.target, mine[what].reached, line.reached]
        for what, line in found.items()
        if not line.held and mine[what].held
    ]
    head = ["missed on this GPU alone", "target", here["device"].partition(",")[0], there["device"].partition(",")[0]]
    return f"{held} of {len(found)} targets are met on this GPU. {_setting(there)}\n\n" + (
        table(head, rows) if rows else ""
    )


def elementwise(*groups: str) -> Any:
    """Returns a renderer of norms or gates: ours and the fastest peer, forward and in a step."""

    def render(data: dict[str, Any]) -> str:
        rows, found = [], _measured(data, *groups)
        for row in sorted(found, key=lambda row: (groups.index(row.group), row.shape[0] * row.shape[1])):
            cells = [row.name, row.dtype, " x ".join(f"{n:,}" for n in row.shape)]
            for which in ("forward", "step"):
                us = times(data["rows"], row, which)
                cells += [_us(us, "ours"), PEERS.get(figure(us)[1], ""), _figure(us, ENOUGH)]
            copy = times(data["rows"], row, "forward")
            rows.append([*cells[:3], _us(copy, "copy"), *cells[3:]])
        head = ["", "dtype", "rows x columns", "copy of x"]
        head += ["forward", "fastest peer", "peer / ours", "step", "fastest peer", "peer / ours"]
        return table(head, rows) + f"\nBold: below {ENOUGH}.\n"

    return render


def linear(data: dict[str, Any]) -> str:
    """Returns the linear layers: a step and its peers, the figure, and the ceiling of the bare products."""
    rows = []
    for row in _measured(data, "linear"):
        us, forward = (times(data["rows"], row, which) for which in ("step", "forward"))
        peers = [_us(us, name) for name in ("ours", "eager", "compile", "cublas")]
        shape = ", ".join(f"{n:,}" for n in row.shape)
        figures = [_figure(us, CELL), _figure(us, CELL, "floor")]
        rows.append([row.name, row.dtype, shape, *peers, *figures, _us(forward, "ours"), _us(forward, "cublas")])
    head = ["", "dtype", "M, K, N", "step", "eager", "torch.compile", "bare products", "fastest / ours", "ceiling"]
    return table([*head, "forward", "bare product"], rows) + f"\nBold: below {CELL}.\n"


def host(data: dict[str, Any]) -> str:
    """Returns the host's time of a call of each function."""
    rows = []
    for row in _measured(data, "host"):
        forward, us = (times(data["rows"], row, which) for which in ("forward", "step"))
        most = us if "ours" in us else forward
        more = most.get("ours", float("nan")) - most.get("eager", float("nan"))
        text = f"{more:+.0f}" if more <= promises.HOST else f"**{more:+.0f}**"
        cells = [_us(each, name) for each in (forward, us) for name in ("ours", "eager", "liger")]
        rows.append([row.name, *cells, _us(us, "bare"), text])
    head = ["", *(f"{which}, {name}" for which in ("forward", "step") for name in ("ours", "eager", "Liger"))]
    return table([*head, "bare Triton", "beyond eager"], rows) + "\nbfloat16, 512 x 1,024.\n"


def wall(data: dict[str, Any]) -> str:
    """Returns the wall time of a step beside eager PyTorch's, and the ratio of both."""
    rows = []
    for row in promises.walls():
        us = times(data["rows"], row, "step")
        ratio = us["ours"] / us["eager"]
        text = f"{ratio:.2f}" if ratio <= promises.WALL else f"**{ratio:.2f}**"
        shape = " x ".join(f"{n:,}" for n in row.shape)
        rows.append([row.name, row.dtype, shape, _us(us, "ours"), _us(us, "eager"), text])
    head = ["", "dtype", "rows x columns", "ours, us", "eager, us", "ours / eager"]
    return f"{_setting(data)}\n\n" + table(head, rows) + f"\nBold: above {promises.WALL:.0f}.\n"


def models(data: dict[str, Any]) -> str:
    """Returns the logits of patched models beside eager's, and the losses of their trainings."""
    rows, trainings = [], []
    for family, found in data["models"].items():
        for name, each in found["logits"].items():
            figures = [f"{each['error']:.5f}", f"{each['from eager']:.5f}", f"{each['equal']:.2%}"]
            rows.append([family, name, *figures])
        for name, losses in found["losses"].items():
            apart = f"{found['apart'][name]:.4f}" if name in found["apart"] else ""
            trainings.append([family, name, *(f"{losses[i]:.4f}" for i in (0, 1, 2, 5, 10, -1)), apart])
    text = table(["model", "contract", "error", "distance from eager", "eager's bits"], rows)
    head = ["model", "contract", *(f"step {i}" for i in (1, 11, 21, 51, 101, 191)), "apart from eager at most"]
    return f"{data['device']}, transformers {data['transformers']}.\n\n{text}\n{table(head, trainings)}"


def block(data: dict[str, Any]) -> str:
    """Returns the decoder blocks: a step on the wall and on the GPU, errors, and where the host's time goes."""
    names = {"ours": "ours", "ours fused": "ours, linear_geglu", "eager": "eager", "liger": "Liger"}
    rows, profiles = [], []
    for row in _measured(data, "block"):
        found, size = data["rows"][row.key], " x ".join(f"{n:,}" for n in row.shape)
        for which, what in (("step", "wall, us"), ("gpu", "GPU, us")):
            us = found["us"].get(which, {})
            rows.append([f"{row.name} {size}", what, *(f"{us[n]:.0f}" if n in us else "" for n in names)])
        for what in ("y", "dx", "parameters") if found.get("errors") else ():
            errors = [f"{found['errors'][n][what]:.2e}" if n in found["errors"] else "" for n in names]
            rows.append([row.name, f"error of {'out' if what == 'y' else what}", *errors])
        profiles += [(row.name, found["profile"])] if found.get("profile") else []
    text = table(["", "", *names.values()], rows)
    for name, profile in profiles:
        ours, eager = profile.get("ours", {}), profile.get("eager", {})
        first = sorted({*list(ours)[:13], *list(eager)[:7]}, key=lambda at: (-ours.get(at, 0), at))
        lines = [[f"`{at}`", *(f"{each[at]:.0f}" if at in each else "" for each in (ours, eager))] for at in first]
        text += f"\nHost time of a step of {name}, microseconds under the profiler:\n\n"
        text += table(["function", "ours", "eager"], lines)
    return text
