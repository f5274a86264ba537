"""`--json PATH`: the same facts for programs, to a file or to stdout."""

from __future__ import annotations

import json
from typing import Any

from verify.cli import screen


def write(path: str, data: Any) -> None:
    """Write atomically; `-` is stdout."""
    if path == "-":
        screen.print_json(data)
        return
    from verify.records.record import write_atomically

    text = json.dumps(data, indent=1, sort_keys=True, allow_nan=False)
    write_atomically(path, f"{text}\n".encode())
