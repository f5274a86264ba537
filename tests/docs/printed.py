"""Tables of pages against tables that commands print here, where PyTorch's own figures may be others.

PyTorch's CPU kernels take other formulas with AVX-512 than without. The pages say which processor their figures of
PyTorch were measured on; only on such a one are they compared. Everything else is compared everywhere.
"""

from __future__ import annotations

import os
import re

import torch

MEASURED_ON = "AVX512"
# oneDNN, which computes gelu's gradient in bfloat16, may be held to less by the environment (tests/processors.py)
COMPARABLE = torch.backends.cpu.get_cpu_capability() == MEASURED_ON and "ONEDNN_MAX_CPU_ISA" not in os.environ


def rows(text: str, *, peer: bool = COMPARABLE) -> list[tuple[str, ...]]:
    """The lines of a text as cells; those of a table with a column PyTorch are without it unless `peer`."""
    found, place = [], None
    for line in text.splitlines():
        cells = re.split(r"\s{2,}", line.strip())
        if cells[0] in ("kernel", "output"):
            place = cells.index("PyTorch") if "PyTorch" in cells else None
            width = len(cells)
        if place is not None and len(cells) == width and not peer:
            del cells[place]
            cells = [cell.replace("as PyTorch", "wrong") for cell in cells]  # PyTorch may be right there
        found.append(tuple(cells))
    return found
