"""Check some chunks of a space: run the kernel on every input in them and judge every result.

Two routes. The general one (`torch_route`) serves every op. The fused one (`fused`) does the
same for gate curves in one Triton kernel. Either way an element whose rounding the reference leaves open is
judged exactly before it is counted, and only it: what an element adds to the figures never depends on its
neighbours.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from verify.backends import Backend, architecture
from verify.declare.declaration import Kernel
from verify.errors import UsageError
from verify.search.sweep.partial import Part, Partial
from verify.search.sweep.space import Space
from verify.search.sweep.torch_route import check_chunk

Progress = Callable[[int], None]  # chunks done so far


def route_of(kernel: Kernel, space: Space, backend: Backend) -> str:
    """How `check` judges: "fused sm_90", "torch sm_90" or "torch cpu". Figures of different routes never merge."""
    kind = architecture(backend.device)
    if backend.fused:
        from verify.search.sweep import fused

        if fused.supports(kernel, space):
            return f"fused {kind}"
    return f"torch {kind}"


def check(
    kernel: Kernel,
    space: Space,
    chunks: int | tuple[int, int],
    backend: Backend,
    *,
    route: str = "",
    progress: Progress = lambda done: None,
    seconds: float = math.inf,
) -> Partial:
    """Check one chunk, or the chunks of a half-open interval. `route` is `route_of` unless it says otherwise.

    After `seconds` it ends with what it has: the partial result then covers the first chunks only, at least one.
    """
    low, high = (chunks, chunks + 1) if isinstance(chunks, int) else chunks
    if not 0 <= low < high <= space.chunks:
        raise UsageError(f"the space has chunks 0 to {space.chunks - 1}; received {low} to {high - 1}")
    route = route or route_of(kernel, space, backend)
    until = time.monotonic() + seconds
    if route.startswith("fused"):
        from verify.search.sweep import fused

        parts, notes, high = fused.check_chunks(kernel, space, low, high, backend, progress, until)
    else:
        parts, notes = {}, set()
        for number_ in range(low, high):
            found, said = check_chunk(kernel, space, number_, backend)
            parts = {name: parts.get(name, Part()).merge(part) for name, part in found.items()}
            notes |= said
            progress(number_ + 1 - low)
            if time.monotonic() >= until:
                high = number_ + 1
                break
    return Partial(space=space.identity(), reference=route, chunks=[(low, high)], parts=parts, notes=sorted(notes))
