"""Declares a kernel twice: as it should be, and with one mistake. The unseen specimens are such pairs.

A function with the argument `right` is both. `pair` puts them into its module, as NAME and NAME_wrong.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import verify
from verify.declare.declaration import Kernel


def pair(note: str, **declared: Any) -> Callable[[Callable[..., Any]], Kernel]:
    """Declares the twin and its mutant; the note says what is wrong with the mutant."""

    def both(function: Callable[..., Any]) -> Kernel:
        scope = function.__globals__
        signature = inspect.signature(function)
        taken = [each for name, each in signature.parameters.items() if name != "right"]

        def declare(right: bool, name: str) -> Kernel:
            def called(*operands: Any) -> Any:
                return function(*operands, right=right)

            called.__signature__ = signature.replace(parameters=taken)  # type: ignore[attr-defined]
            called.__name__ = called.__qualname__ = name
            called.__module__ = function.__module__
            settings = {"dtypes": ["float32"], "gradients": False, **declared}
            made = verify.kernel(name=name, **settings)(called)
            return replace(made, module=scope["__name__"], file=scope["__file__"])

        name = function.__name__
        scope[f"{name}_wrong"] = declare(False, f"{name}_wrong")
        scope.setdefault("NOTES", {})[name] = note
        return declare(True, name)

    return both
