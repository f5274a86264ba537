"""Reads the sizes of public models, and knows which of them the dimensions of a declaration take (models.toml).

>>> one = MODELS["qwen3-moe"]
>>> one.turn("small", 3)["expert_intermediate"], one.turn("small", 3)["kv_heads"]
(96, 1)
>>> named_by(["num_tokens", "d"], {"d": "heads * head_dim"})
{'num_tokens': 'tokens', 'd': 'heads * head_dim'}
"""

import tomllib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from verify.errors import UsageError, closest

_DATA: dict[str, Any] = tomllib.loads((Path(__file__).parent / "models.toml").read_text())
_COLUMNS: tuple[str, ...] = tuple(_DATA["columns"].split())
_TURNS: dict[str, Any] = _DATA["turns"]
TURNS = len(_TURNS["parallel"])  # sizes of a model that are tried
EVERY = "all"  # the name of all models
FORMS: dict[str, list[str]] = _DATA["names"]  # by role, the names of dimensions that take its sizes
ROLES = tuple(FORMS)
OF_TURN = ("tokens", "batch", "sequence", "keys")  # roles that no model fixes
_SHARED = ("heads", "kv_heads", "intermediate", "expert_intermediate", "vocab")  # roles that GPUs share
_ROLE_OF = {name.replace("_", ""): role for role, names in FORMS.items() for name in (role, *names)}


@dataclass(frozen=True)
class Model:
    """Holds the facts of one public configuration. `sizes` has a size for each role that the model has."""

    name: str
    source: str  # the name of the public configuration
    dtype: str
    sizes: Mapping[str, int]

    def turn(self, scale: str, number: int) -> dict[str, int]:
        """Returns the sizes on one GPU in a turn, by role. With each turn other numbers of GPUs share a layer.

        A number of GPUs that would cut a head, or that has no whole number of heads for each head of keys, is left out.
        A part that is not whole is rounded up, because a padded shard has that size.
        """
        heads, kv_heads = self.sizes["heads"], self.sizes["kv_heads"]
        ways = [n for n in _TURNS["parallel"] if heads % n == 0 and (kv_heads % n == 0 or n % kv_heads == 0)]
        parallel, found = ways[number % len(ways)], dict(self.sizes)
        found |= {role: -(-found[role] // parallel) for role in _SHARED if role in found}
        found |= {role: _TURNS[scale][role][number] for role in OF_TURN} | {"page": _TURNS["page"][number]}
        if "expert_intermediate" in found:  # each layer of some models has experts
            found.setdefault("intermediate", found["expert_intermediate"])
        found["pages"] = found["batch"] * -(-found["keys"] // found["page"])
        found["heads_per_kv"] = found["heads"] // found["kv_heads"]
        return found

    @property
    def words(self) -> str:
        """Returns the sizes as text, such as `hidden 2048, heads 32`."""
        return ", ".join(f"{role} {size}" for role, size in self.sizes.items())


def _read(name: str, source: str, dtype: str, row: str) -> Model:
    sizes = {column: int(size) for column, size in zip(_COLUMNS, row.split(), strict=True) if size != "-"}
    return Model(name, source, dtype, sizes | _DATA["latent"].get(name, {}))


MODELS: dict[str, Model] = {name: _read(name, *row) for name, row in _DATA["models"].items()}


def models_of(where: str, given: str | Iterable[str]) -> tuple[str, ...]:
    """Returns the names of models, each once. Raises UsageError for one that the data does not have."""
    names = [given] if isinstance(given, str) else list(given)
    for name in names:
        if name not in (*MODELS, EVERY):
            near = closest(name, MODELS) if isinstance(name, str) else ""
            known = f"{where} is one of {', '.join(MODELS)}, or {EVERY}; received {name!r}{near}"
            raise UsageError(known, hint="verify list --models")
    return tuple(dict.fromkeys(MODELS if EVERY in names else names))


def named_by(dims: Sequence[str], said: Mapping[str, str]) -> dict[str, str]:
    """Maps dimensions to roles by their names, or to the expressions of roles that a declaration gives them.

    The intermediate width is that of an expert where a declaration has experts.
    """
    found = {name: said.get(name) or _ROLE_OF.get(name.replace("_", "").lower(), "") for name in dims}
    if "experts" in found.values():
        found = {name: "expert_intermediate" if role == "intermediate" else role for name, role in found.items()}
    return {name: role for name, role in found.items() if role}


def unnamed(names: Sequence[str]) -> str:
    """Returns the rule for dimensions that take no size of a model, as text."""
    few = "has" if len(names) == 1 else "have"
    return f"{', '.join(names)} {few} no size in a model; these names have: {', '.join(ROLES)}, and their usual forms"
