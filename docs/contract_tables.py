"""Writes the tables of docs/contracts.md from the records of `python -m benchmarks.contracts --json`."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from docs.kernel_speed import table

LEAST = 0.999
KINDS = ("fused", "Inductor", "fused, gradients", "Inductor, gradients")


def contracts(data: dict[str, Any], on_gpu: Sequence[dict[str, Any]]) -> str:
    """What was found of seeded contracts, and of layers beside kernels."""
    seeded, promises = _seeded(data["seeded"]), _promises(data["promises"])
    return "\n".join((seeded, promises, _on_gpu(on_gpu), _layers(data["pairs"]), _others(data["pairs"])))


def _on_gpu(rows: Sequence[dict[str, Any]]) -> str:
    good = sum(row["kernel"] >= LEAST for row in rows)
    few = [f"{row['pair']} {_share(row)}" for row in rows if row["kernel"] < LEAST]
    return (
        f"On an H200, the contract found predicts {LEAST:.1%} or more of the kernel's unseen bits at {good} of "
        f"{len(rows)} pairs, all of results. The others: {', '.join(few)}. Twelve processes shared the GPU. "
        f"So the median took {statistics.median(row['seconds'] for row in rows):.0f} s of a processor, and "
        f"{sum(row['seconds'] > 10 for row in rows)} pairs took longer than 10 s.\n"
    )


def _seeded(rows: Sequence[dict[str, Any]]) -> str:
    if not rows:
        return "No seeded contract was tried.\n"
    missed = [row for row in rows if min(row["known"], row["unseen"]) < 1]
    same = sum(row["same"] for row in rows)
    seconds, places = [row["seconds"] for row in rows], [row["places"] for row in rows]
    few = [f"*{row['program']}* ({row['planted']} planted)" for row in missed]
    rest = f" Of the rest, a few of these bits are not predicted: {', '.join(few)}." if few else ""
    return (
        f"{len(rows)} seeded contracts in {len({row['program'] for row in rows})} programs of {min(places)} to "
        f"{max(places)} places: {len(rows) - len(missed)} predict all bits of the search and of a million "
        f"unseen results, and {same} are the planted set.{rest} The median takes {statistics.median(seconds):.1f} s of "
        f"a processor, the longest {max(seconds):.0f} s.\n"
    )


def _promises(rows: Sequence[dict[str, Any]]) -> str:
    """How the law of `rounds=` judges layers and their fused forms, outputs and gradients."""
    of = {"layer": "as like", "fused": "once"}
    own = [row for row in rows if row["promise"] == of[row["kernel"]]]
    broken = [row for row in rows if row not in own and row["status"] == "broken"]
    named = sum(row["contract"] == of[row["kernel"]] for row in broken)
    kept = sum(row["status"] == "ok" for row in own)
    return (
        f'Each layer of the table promises `rounds="as like"` and its fused form `rounds="once"`, for results and '
        f"gradients in bfloat16: {kept} of {len(own)} keep the promise. With the other promise {len(broken)} of "
        f"{len(rows) - len(own)} break it, and the message names the right contract for {named} of them. The others "
        "round alike under both.\n"
    )


def _layers(rows: Sequence[dict[str, Any]]) -> str:
    """A row for each layer: where the fused one parts, and how many bits of each kernel its contract predicts."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for row in rows:
        name, _, kind = row["pair"].rpartition(": ")
        if kind in KINDS:
            found.setdefault(name, {})[kind] = row
    lines = [
        [name, kinds["fused"]["parts"] or "no rounding that was found", *(_share(kinds.get(kind)) for kind in KINDS)]
        for name, kinds in found.items()
        if "fused" in kinds
    ]
    good = sum(row["kernel"] >= LEAST for row in rows)
    long = sum(row["seconds"] > 30 for row in rows)
    text = (
        f"{len(rows)} pairs: at {good} of them the contract found predicts {LEAST:.1%} or more of the kernel's unseen "
        f"bits. {long} took longer than 30 s.\n\n"
    )
    heads = ["layer", "the fused one parts at", *(f"bits: {kind}" for kind in KINDS)]
    return text + table(heads, lines)


def _others(rows: Sequence[dict[str, Any]]) -> str:
    lines = [
        [row["pair"], row["parts"] or "no rounding that was found", _share(row, "layer"), _share(row)]
        for row in rows
        if row["pair"].rpartition(": ")[2] not in KINDS
    ]
    return table(["layer, kernel", "they part at", "bits predicted: layer", "kernel"], lines)


def _share(row: dict[str, Any] | None, of: str = "kernel") -> str:
    if row is None:
        return "not tried"
    return "100%" if row[of] == 1 else f"{100 * min(row[of], 0.9999):.2f}%"
