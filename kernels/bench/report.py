"""The device line and the JSON file of the scripts in kernels/bench."""

from __future__ import annotations

import json
import os
import pathlib
import sys

import torch


def device(program: str) -> str:
    """Returns the name of the GPU and the version of torch. Ends the program if there is no GPU."""
    if not torch.cuda.is_available():
        sys.exit(f"{program}: it times kernels on a CUDA device; torch sees none")
    return f"{torch.cuda.get_device_name()}, torch {torch.__version__}"


def save(path: str | None, name: str, **content: object) -> None:
    """Writes `content` to `path`, or to $OUT/name.json if OUT is set. Otherwise writes nothing."""
    folder = os.environ.get("OUT")
    path = path or (folder and os.path.join(folder, f"{name}.json"))
    if path:
        pathlib.Path(path).write_text(json.dumps(content, indent=1))
