"""Reads `sizes=`: at the sizes of which models a kernel is measured, and what its dimensions are in a model."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from verify.declare.models import ROLES, models_of, named_by, unnamed
from verify.declare.promises import demand
from verify.errors import UsageError, closest
from verify.ops.graph.shapes import NamedDims, Related, check, names_in
from verify.ops.op import Op


def models_and_roles(about: str, given: Any, op: Op) -> tuple[tuple[str, ...], dict[str, str]]:
    """Returns the models whose sizes a kernel is measured at, and the roles of dimensions that have other names.

    Raises UsageError for an unknown model, dimension or role, and for dimensions of shapes= that no size is for.
    """
    said = dict(given) if isinstance(given, Mapping) else {"model": given}
    models, dims = models_of(f"{about}: sizes", said.pop("model", ())), op.geometry.sizes
    hint = f'sizes={{"{dims[-1]}": "hidden", "model": "qwen3-moe"}}; verify list --models'
    demand(about, "sizes", said, "dimensions", dims, hint)
    for text in said.values():
        try:
            unknown = names_in(ast.parse(text, mode="eval")) - set(ROLES)
            check(text, [*ROLES, *unknown])
        except (SyntaxError, TypeError, UsageError):
            unknown = {repr(text)}
        if unknown:
            roles = f"{about}: sizes= is made of {', '.join(ROLES)}, and numbers; received {text!r}"
            raise UsageError(f"{roles}{closest(min(unknown), ROLES)}", hint=hint)
    lacking = free_dims(op.geometry, said)[1] if models and isinstance(op.geometry, NamedDims) else []
    if lacking:
        raise UsageError(f"{about}: {unnamed(lacking)}", hint=hint)
    return models, said


def free_dims(geometry: NamedDims, said: Mapping[str, str]) -> tuple[dict[str, str], list[str]]:
    """Maps dimensions to roles in a model, as `said` or by the names of dimensions that where= makes equal.

    Omits dimensions that where= computes from others. Lists those without a role.
    """
    related, named = Related.by(geometry.dims, geometry.where), named_by(geometry.dims, said)
    found = {related.group[name]: role for name, role in reversed(named.items())}
    lacking = [root for root in related.roots if root not in found]
    return {root: found[root] for root in related.roots if root in found}, lacking
