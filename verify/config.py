"""`[tool.verify]` of the nearest pyproject.toml: which kernels `verify run` measures when none are named."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass
from pathlib import Path

from verify.errors import UsageError

_KNOWN = {"kernels"}


@dataclass(frozen=True)
class Config:
    """The settings of a project; `root` is the folder that holds pyproject.toml."""

    root: Path
    kernels: tuple[str, ...] = ()


def find(start: Path | None = None) -> Config:
    """The configuration above `start` (default: the working directory); an empty one if there is none."""
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents):
        path = folder / "pyproject.toml"
        if path.is_file():
            return _read(path)
    return Config(root=here)


def _read(path: Path) -> Config:
    try:
        document = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"cannot read {path}: {error}") from error
    tool = document.get("tool", {})
    section = tool.get("verify", {}) if isinstance(tool, dict) else {}
    if not isinstance(section, dict):
        raise UsageError(f"{path}: [tool.verify] is a table; received {section!r}")
    unknown = sorted(set(section) - _KNOWN)
    if unknown:
        raise UsageError(f"{path}: [tool.verify] knows {', '.join(sorted(_KNOWN))}; received {', '.join(unknown)}")
    kernels = section.get("kernels", [])
    if not isinstance(kernels, list) or not all(isinstance(item, str) and item for item in kernels):
        raise UsageError(f"{path}: [tool.verify] kernels is a list of files or modules; received {kernels!r}")
    return Config(root=path.parent, kernels=tuple(kernels))
