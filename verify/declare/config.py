"""Reads `[tool.verify]` of the nearest pyproject.toml: its kernels, and the folders of bounds and pinned cases."""

import functools
import tomllib
from dataclasses import dataclass
from pathlib import Path

from verify.errors import UsageError

_FOLDERS = {"bounds": "reports/bounds", "corpus": "reports/corpus"}
_KNOWN = {"kernels", "peers", *_FOLDERS}


@dataclass(frozen=True)
class Config:
    """Holds the settings of a project. `root` is the folder of pyproject.toml.

    kernels: targets of `verify run`, `sweep`, `hunt` and `nightly` if the command names none. peers: other
    implementations of the same ops, which `verify nightly` compares with them. bounds, corpus: folders of the
    committed bounds and of the pinned cases.
    """

    root: Path
    kernels: tuple[str, ...] = ()
    peers: tuple[str, ...] = ()
    bounds: Path = Path(_FOLDERS["bounds"])
    corpus: Path = Path(_FOLDERS["corpus"])


def find(start: Path | None = None) -> Config:
    """Returns the configuration above `start` (default: the working directory), or an empty one if there is none."""
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents):
        path = folder / "pyproject.toml"
        if path.is_file():
            try:
                return _parsed(path, path.read_text(encoding="utf-8"))
            except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
                raise UsageError(f"cannot read {path}: {error}") from error
    return _parsed(here / "pyproject.toml", "")


@functools.lru_cache(8)  # each law of each kernel asks for the corpus: 5 ms to parse, 0.1 ms to read
def _parsed(path: Path, text: str) -> Config:
    document = tomllib.loads(text)
    tool = document.get("tool", {})
    section = tool.get("verify", {}) if isinstance(tool, dict) else {}
    if not isinstance(section, dict):
        raise UsageError(f"{path}: [tool.verify] is a table; received {section!r}")
    unknown = sorted(set(section) - _KNOWN)
    if unknown:
        raise UsageError(f"{path}: [tool.verify] knows {', '.join(sorted(_KNOWN))}; received {', '.join(unknown)}")
    lists = {name: section.get(name, []) for name in ("kernels", "peers")}
    folders = {name: section.get(name, usual) for name, usual in _FOLDERS.items()}
    for name, value in lists.items():
        if not isinstance(value, list) or not all(isinstance(item, str) and item for item in value):
            raise UsageError(f"{path}: [tool.verify] {name} is a list of files or modules; received {value!r}")
    for name, value in folders.items():
        if not isinstance(value, str) or not value:
            raise UsageError(f"{path}: [tool.verify] {name} is a folder; received {value!r}")
    places = {name: path.parent / value for name, value in folders.items()}
    return Config(path.parent, tuple(lists["kernels"]), tuple(lists["peers"]), **places)
