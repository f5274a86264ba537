"""The rows that everything.py measures, the figures that they are compared with, and the reasons for missed ones.

A row that misses its target has a line with the target, the figure reached, the ceiling where one was measured, and the
reason where one is known. The ceiling of a layer is the figure of "floor" in the same run: the three bare products and
one pass between them. It reads the pre-activation and the output's gradient and writes the gradient of the
pre-activation. For GEGLU, it reads the pre-activation alone. Storing the pre-activation is not counted.

This module does not import torch: docs/kernel_speed.py reads records with it.
"""

from __future__ import annotations

import itertools
import pathlib
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

HERE = pathlib.Path(__file__).parent
GROUPS = ("linear", "norms", "heads", "gated", "fp8", "gates", "gelu", "host", "block", "compile", "wall")
ENOUGH = 0.97  # of the fastest peer, for norms and gates
CELL, CELLS = 0.95, 0.8  # of the best of eager, torch.compile and bare products, in this part of cells.txt
HOST, BLOCK, WALL = 20.0, 1.05, 1.0  # microseconds beyond eager; times eager's wall time
NO_PEERS = ("ours", "copy", "floor", "bare", "ours fused", "in place")
NOT_MEASURED = "not measured"
# M, K, N of layers with GELU that must be ahead of eager and of torch.compile
FIRST = ((8192, 4096, 16384), (4096, 4096, 16384), (512, 1024, 4096))
NORMS, GATES, GELUS = ("rms_norm", "layer_norm"), ("swiglu_split", "geglu_split tanh"), ("gelu", "gelu tanh")
BLOCKS = ("rms+swiglu", "layer+geglu")
FP8 = {"rms_norm_fp8": None, "rms_norm_fp8 128": 128}  # columns that share a scale; None: the whole row
FUNCTIONS = (
    "gelu", "gelu tanh", "gelu_backward", "geglu", "geglu_split", "geglu_split tanh", "swiglu", "swiglu_split",
    "rms_norm", "rms_norm_residual", "rms_norm_gated", "layer_norm", "layer_norm_residual", "layer_norm_residual_bias",
    "linear_act", "linear_act id", "linear_data_grad", "linear_geglu", *FP8,
)  # fmt: skip
REASONS = {
    "cells": "bare products have neither bias nor activation; the ceiling counts the layers whose floor is fast enough",
    "float32": "ours computes in float64 or in pairs of float32, for an error of at most 1 ULP",
    "heads": "ours also stores statistics of the rows, and looks for rows that float32 does not hold",
    "gated": "silu(gate) keeps its precision to 2^-262, by 16 of the 33 instructions of an element",
    "in place": "Liger's backward pass overwrites its inputs with their gradients; ours returns new tensors",
    "inplace": ", with inplace=True {:.3f} of {}",
    "host": "{:+.0f} us is a function of Triton's with one launch each way; `profile` in the record lists the calls",
    "block": "the host's time decides, see the profile",
    "fused": "; with linear_geglu {:.3f} of eager's time",
}


@dataclass(frozen=True)
class Row:
    """A measured row. The shape of a layer is M, K, N, of a block batch and length, else rows and columns."""

    group: str
    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def key(self) -> str:
        return " ".join((self.group, self.name, self.dtype, "x".join(map(str, self.shape))))


@dataclass(frozen=True)
class Line:
    """One figure beside its target."""

    what: str
    target: str
    reached: str
    held: bool
    ceiling: str = ""
    reason: str = ""

    def __str__(self) -> str:
        ceiling = f"; ceiling {self.ceiling}" if self.ceiling else ""
        return f"{self.what}: {self.reached}; target {self.target}{ceiling}" + (f" ({self.reason})" * bool(self.reason))


def cells(group: str = "linear") -> list[Row]:
    """Returns the layers of cells.txt."""
    lines = (line.split() for line in (HERE / "cells.txt").read_text().splitlines() if not line.startswith("#"))
    return [Row(group, name, dtype, tuple(map(int, sizes))) for name, dtype, *sizes in lines]


def _elements(log2: int) -> list[Row]:
    """Returns the norms and gates of 2^log2 elements; the rows of heads and of FP8 have three sizes."""

    def made(group: str, names: Iterable[str], columns: Iterable[int]) -> list[Row]:
        every = itertools.product(("float32", "bfloat16"), columns, names)
        return [Row(group, name, dtype, ((1 << log2) // n, n)) for dtype, n, name in every]

    found = made("norms", NORMS, (4096, 8192, 1024) if log2 in (22, 24) else (4096, 8192))
    found += made("gates", GATES, (4096,)) + made("gelu", GELUS, (4096,))
    if log2 in (20, 22, 24):
        found += made("heads", ("rms_norm",), (64, 128, 256)) + made("gated", ("rms_norm_gated",), (128, 4096))
        found += made("fp8", FP8, (4096,))
    return found


def rows() -> list[Row]:
    """Returns all rows, the most important ones first."""
    made = [Row("linear", "gelu_tanh", "bfloat16", sizes) for sizes in FIRST]
    made += [Row("block", name, "bfloat16", (1, 512)) for name in BLOCKS]
    made += [Row("host", name, "bfloat16", (512, 1024)) for name in FUNCTIONS]
    made += [*_elements(22), *cells()]
    for log2 in (24, 20, 18, 26):
        made += _elements(log2)
    made += [Row("compile", "gelu_tanh", "bfloat16", sizes) for sizes in FIRST] + cells("compile")
    return made + [Row("block", name, "bfloat16", (4, 2048)) for name in BLOCKS]


def walls() -> list[Row]:
    """Returns the rows of the wall time of a step, which everything.json does not have."""
    names, shapes = ("gelu", "geglu", "swiglu", "layer_norm", "rms_norm", "linear_act"), ((512, 1024), (2048, 4096))
    return [Row("wall", *each) for each in itertools.product(names, ("bfloat16", "float32"), (*shapes, (8192, 4096)))]


def figure(us: dict[str, float], of: str = "ours") -> tuple[float, str]:
    """Returns the time of the fastest peer over that of `of`, and its name; NaN without either."""
    peers = {name: t for name, t in us.items() if name not in NO_PEERS}
    if not peers or of not in us:
        return float("nan"), "-"
    best = min(peers, key=lambda name: peers[name])
    return peers[best] / us[of], best


def times(found: dict[str, Any], row: Row, which: str) -> dict[str, float]:
    """Returns the times of a pass. A layer has torch.compile's too, scaled to its row by ours, which is in both."""
    us = dict(found.get(row.key, {}).get("us", {}).get(which, {}))
    if row.group == "linear":
        other = times(found, Row("compile", row.name, row.dtype, row.shape), which)
        if {"ours", "compile"} <= other.keys() and "ours" in us:
            us["compile"] = other["compile"] * us["ours"] / other["ours"]
    return us


def _of_cells(found: dict[str, Any], wanted: list[Row]) -> list[Line]:
    every = [times(found, row, "step") for row in wanted]
    good = sum(figure(us)[0] >= CELL for us in every)
    could = sum(figure(us, "floor")[0] >= CELL for us in every)
    alone = ", ".join(
        f"{sum(us.get(peer, float('nan')) / us.get('ours', float('nan')) >= CELL for us in every)} of {peer}"
        for peer in ("eager", "compile", "cublas")
        if any(peer in us for us in every)
    )
    least = CELLS * len(every)
    reached = f"{good} of {len(every)} at {CELL} of the best of eager, torch.compile and bare products (alone: {alone})"
    return [Line("layers of cells.txt, step", f"{CELLS:.0%}", reached, good >= least, f"{could}", REASONS["cells"])]


def _of_row(found: dict[str, Any], row: Row) -> list[Line]:
    """Returns the lines of a row that is not one of cells.txt."""
    lines = []
    passes = ("forward", "step")
    if row.group in ("host", "block", "wall", "fp8"):
        passes = ("forward",) if row.name in FP8 else ("step",)
    for which in passes:
        us, reason = times(found, row, which), ""
        ours, eager = (us.get(name, float("nan")) for name in ("ours", "eager"))
        if row.group == "host":
            target, held, reached = f"+{HOST:.0f} us", ours - eager <= HOST, f"{ours - eager:+.0f} us beyond eager"
            reason = REASONS["host"].format(us.get("bare", float("nan")) - eager)
        elif row.group in ("block", "wall"):
            most = BLOCK if row.group == "block" else WALL
            target, held, reached = f"{most}", ours / eager <= most, f"{ours / eager:.3f} of eager's time"
            fused = REASONS["fused"].format(us["ours fused"] / eager) if "ours fused" in us else ""
            reason = (REASONS["block"] + fused) * (row.group == "block")
        else:
            least, peers = ENOUGH, us
            if row.group == "linear":
                least, peers = 1.0, {name: t for name, t in us.items() if name != "cublas"}
            value, best = figure(peers)
            target, held, reached = f"{least}", value >= least, f"{value:.3f} of {best}"
            reason = REASONS["float32"] if row.dtype == "float32" and row.group not in ("linear", "fp8") else ""
            reason = REASONS["gated"] if (row.group, row.dtype, which) == ("gated", "bfloat16", "forward") else reason
            reason = REASONS["heads"] if (row.group, row.dtype, which) == ("heads", "bfloat16", "forward") else reason
            if (row.group, which, best) == ("gates", "step", "liger"):
                reason = REASONS["in place"]
                reason += REASONS["inplace"].format(*figure(us, "in place")) if "in place" in us else ""
        if "nan" in reached:
            reached, reason = NOT_MEASURED, ""
        lines.append(Line(f"{row.key} {which}", target, reached, held, reason="" if held else reason))
    return lines


def verdict(found: dict[str, Any], wanted: list[Row]) -> list[Line]:
    """Returns a line for each target. A row that was not measured misses its target.

    Args:
        found: key of a row -> its times
    """
    listed = {row.key for row in cells()}
    of_cells = [row for row in wanted if row.key in listed]
    lines = _of_cells(found, of_cells) if of_cells else []
    for row in wanted:
        promised = row.group != "compile" and (row.group != "block" or row.shape == (1, 512))
        if promised and row.key not in listed:
            lines += _of_row(found, row)
    return lines
