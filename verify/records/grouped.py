"""Groups items by a key, as reports do with lines that have the same reason."""

from collections.abc import Callable, Hashable, Iterable
from typing import TypeVar

K = TypeVar("K", bound=Hashable)
V = TypeVar("V")


def grouped(items: Iterable[V], key: Callable[[V], K]) -> dict[K, list[V]]:
    """Maps each key to its items, in the order of first occurrence.

    >>> grouped(["gelu y", "silu y", "gelu dx"], lambda name: name.split()[0])
    {'gelu': ['gelu y', 'gelu dx'], 'silu': ['silu y']}
    """
    found: dict[K, list[V]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found
