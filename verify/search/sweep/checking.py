"""Checks some chunks of a space: runs the kernel on every input in them and judges every result.

There are two routes. The torch route (`torch_route`) works for every op. The fused route (`fused`) does the same for
gate curves in one Triton kernel. On both routes, an element is judged exactly before it is counted if the reference
leaves its rounding open. Other elements are not. So an element's share of the figures never depends on its neighbours.
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

Progress = Callable[[int], None]  # receives the number of finished chunks


def route_of(kernel: Kernel, space: Space, backend: Backend) -> str:
    """Returns the route, such as "fused sm_90" or "torch cpu". Figures of different routes never merge."""
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
    """Checks one chunk, or the chunks of a half-open interval.

    `route` is by default that of `route_of`. After `seconds` it returns its findings so far: the partial result then
    covers only the first chunks, at least one.
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
