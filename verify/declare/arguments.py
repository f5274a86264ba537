"""Names the arguments of a declaration, for type checkers and for calls that pass them on. Does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, TypedDict

from verify.errors import UsageError, closest

if TYPE_CHECKING:
    from verify.ops.graph.relative import RelativeRms
    from verify.ops.graph.rounding import Accumulate
    from verify.ops.op import Op
    from verify.truth.quantised.encoding import Encoding
    from verify.truth.ulp import Policy


class HuntDeclaration(TypedDict, total=False):
    """The arguments of `verify.kernel`, which explains them, except the arguments that `verify.hunt` has itself."""

    op: str | Op | None
    like: Callable[..., Any] | None
    shapes: Mapping[str, str] | None
    where: str
    integers: Mapping[str, str] | None
    valid: Mapping[str, str] | None
    examples: Any
    params: Mapping[str, Any] | None
    operands: Iterable[str] | Mapping[str, Encoding] | None
    outputs: Iterable[str] | None
    layouts: str | Mapping[str, str]
    gradients: bool | Iterable[str] | Literal["auto"]
    max_ulp: float | Mapping[str, Any] | None
    max_noise: float | Mapping[str, float] | None
    max_bias: float | Mapping[str, float] | None
    accumulate: Accumulate
    intermediate: Literal["", "eager", "float32"]
    vacuous: Mapping[str, str] | None
    backends: Iterable[str] | None
    peer: bool
    policy: Policy | None
    name: str | None
    requires: str | Iterable[str]
    domain: Mapping[str, str] | None
    writes: Mapping[str, str] | None
    into: Iterable[str] | None
    derive: Mapping[str, Callable[..., Any]] | None
    refuses: bool | None
    operand_dtypes: Mapping[str, Any] | None
    output_dtypes: Mapping[str, Any] | None
    quantise: Encoding | None
    rounds: Literal["", "as like", "once"]
    ties: Literal["", "as like"]
    stochastic: str | Mapping[str, str] | None
    draws: str | Mapping[str, str] | None
    promise: RelativeRms | Mapping[str, RelativeRms] | None
    inputs: str | None
    same_bits: Iterable[str]
    same_bits_as: Callable[..., Any] | Iterable[Callable[..., Any]]
    sizes: str | Iterable[str] | Mapping[str, Any] | None


class Declaration(HuntDeclaration, total=False):
    """The same with `largest`. `verify.run` and `verify.sweep` have `dtypes` themselves."""

    largest: float | Mapping[str, float | Mapping[str, float]] | None


def demand_known(caller: str, given: Iterable[str], own: Iterable[str]) -> None:
    """Raises UsageError for a name that is no argument of a declaration. `own` are the other arguments of the call."""
    for name in given:
        if name not in Declaration.__annotations__:
            near = closest(name, (*own, *Declaration.__annotations__))
            hint = "docs/api.md has its arguments, docs/like.md those of a declaration"
            raise UsageError(f"{caller} has no argument {name!r}{near}", hint=hint)
