"""`verify.laws_for(kernel)`: the laws of a kernel as one pytest test, parametrised by law and dtype."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from verify.declaration import Kernel
from verify.laws import engine, registry
from verify.shrink import shrink_law


def laws_for(
    kernel: Kernel, *, laws: Iterable[str] | None = None, dtypes: Iterable[str] | None = None
) -> Callable[..., None]:
    """A pytest test of every law and dtype of a kernel:

        test_my_gelu = verify.laws_for(my_gelu)

    `laws` and `dtypes` narrow it down. How many cases each law sees is Hypothesis' current profile:
    `pytest --hypothesis-profile=quick`, `ci`, `nightly` or `exhaustive`. Cases that break a law are remembered in the
    profile's example database and tried first the next time (ci has none).
    """
    import pytest

    chosen = registry.ALL if laws is None else tuple(registry.get(name) for name in laws)
    wanted = kernel.dtypes if dtypes is None else tuple(dtypes)
    pairs = [(law, dtype) for law in chosen for dtype in wanted]

    @pytest.mark.parametrize(("law", "dtype"), pairs, ids=[f"{law.name}-{dtype}" for law, dtype in pairs])
    def test(law: Any, dtype: str) -> None:
        from verify import backends

        backend = backends.select()
        if backend.name not in kernel.backends:
            pytest.skip(f"declared for {', '.join(kernel.backends)}; this is {backend.name}")
        if kernel.lacking:
            pytest.skip(f"needs {', '.join(kernel.lacking)}, which is not installed")
        backends.activate(backend)
        profile = engine.current_profile()
        memory = engine.remembered(law, kernel, dtype, backend, profile)
        found = engine.run_law(
            law, kernel, dtype, backend, profile, target_of(kernel), memory=memory, shrink=shrink_law
        )
        if found.status == "skipped":
            pytest.skip(found.message)
        if found.status == "broken":
            pytest.fail(engine.message(kernel.name, found), pytrace=False)

    test.__doc__ = f"The laws of {kernel.name}."
    suite: Callable[..., None] = test
    return suite


def target_of(kernel: Kernel) -> str:
    """The target that `verify replay` takes for a kernel declared in a file."""
    from pathlib import Path

    try:
        file = str(Path(kernel.file).relative_to(Path.cwd()))
    except ValueError:
        file = kernel.file
    return f"{file}::{kernel.name}"
