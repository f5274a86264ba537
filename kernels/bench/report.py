"""Shared parts of the scripts in kernels/bench: the device line, times of calls that take turns, and the JSON file."""

from __future__ import annotations

import gc
import json
import os
import pathlib
import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch


def device(program: str) -> str:
    """Returns the name of the GPU and the version of torch. Ends the program if there is no GPU."""
    if not torch.cuda.is_available():
        sys.exit(f"{program}: it times kernels on a CUDA device; torch sees none")
    return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"


def captured(function: Callable[[], Any], stream: Any) -> Any:
    """Returns a CUDA graph that calls `function` once, warmed up on the same stream."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            function()
    stream.synchronize()
    graph = torch.cuda.CUDAGraph()
    gc.collect()  # an uncollected autograd graph would tie the capture to the stream that made it
    gc.disable()  # memory of an earlier graph freed during this capture would fail both
    try:
        with torch.cuda.graph(graph, stream=stream):
            # the graph keeps the memory that it reads and writes
            graph.kept = function, function()
    finally:
        gc.enable()
    return graph


def medians(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """Returns milliseconds of each call; the calls take turns. One before it fills the queue, so that none is waited
    for.
    """
    times: dict[str, list[Any]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            call()
            start.record()
            call()
            end.record()
            times[name].append((start, end))
    torch.cuda.synchronize()
    return {n: statistics.median(a.elapsed_time(b) for a, b in t) for n, t in times.items()}


def turns(calls: dict[str, Any], rounds: int, timed: Callable[[Any], float], skip: int = 0) -> dict[str, float]:
    """Returns the median of what `timed` returns of each call, after `skip` rounds. The calls take turns."""
    times: dict[str, list[float]] = {name: [] for name in calls}
    for turn in range(skip + rounds):
        for name in list(calls)[:: 1 if turn % 2 else -1]:
            times[name].append(timed(calls[name]))
    return {name: statistics.median(each[skip:]) for name, each in times.items()}


def save(path: str | None, name: str, **content: object) -> None:
    """Writes `content` to `path`, or to $OUT/name.json if OUT is set. Otherwise writes nothing."""
    folder = os.environ.get("OUT")
    path = path or (folder and os.path.join(folder, f"{name}.json"))
    if path:
        whole = pathlib.Path(path)
        part = whole.with_name(f"{whole.name}.part")
        part.write_text(json.dumps(content, indent=1))
        part.replace(whole)
