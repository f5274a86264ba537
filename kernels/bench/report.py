"""What the scripts of kernels/bench share around their tables: the device, and the JSON file."""

from __future__ import annotations

import json
import os
import pathlib
import sys

import torch


def device(program: str) -> str:
    """The GPU and torch's version; ends the program where there is no GPU."""
    if not torch.cuda.is_available():
        sys.exit(f"{program}: it times kernels on a CUDA device; torch sees none")
    return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"


def save(path: str | None, name: str, **content: object) -> None:
    """Writes `content` to `path`, or to $OUT/name.json if OUT is set, else nowhere."""
    folder = os.environ.get("OUT")
    path = path or (folder and os.path.join(folder, f"{name}.json"))
    if path:
        pathlib.Path(path).write_text(json.dumps(content, indent=1))
