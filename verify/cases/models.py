"""Plans cases of a kernel at the sizes of public models, as `verify run --model` and `sizes=` ask for.

The dimensions of shapes= take sizes by their names. An op by name has no such names: its rows get every width of the
model, and a product those of every projection.
"""

import ast
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import msgspec

from verify.cases.case import Case
from verify.cases.covering import Chosen, chosen_case
from verify.cases.plan import Group
from verify.cases.sizes import work_of
from verify.cases.values import MATRIX_REGIMES
from verify.declare.declaration import Kernel
from verify.declare.models import MODELS, OF_TURN, TURNS, Model, unnamed
from verify.declare.promises import free_dims
from verify.ops.graph.shapes import NamedDims, Related, names_in, value_of

Dims = tuple[int, ...]


@dataclass(frozen=True)
class ModelLimits:
    """Limits a case at the sizes of a model: elements of its largest tensor, and of all steps of its program.

    gradients: elements of its largest tensor up to which the gradients are measured too.
    """

    elements: int
    gradients: int
    work: float


# A host has the inputs, PyTorch's results and float64 beside them: 2^26 numbers of float32 take 0.3 GB each. The
# gradient of the weight of an op by name is judged at every element, 2^22 of them in 5 s.
_LIMITS = {"small": ModelLimits(1 << 26, 1 << 20, 2.0**32), "large": ModelLimits(1 << 31, 1 << 27, 2.0**43)}
_NEAR = 128  # numbers of tokens from the wanted one upwards that are tried until where= allows one
# Widths of rows, and columns of operand and result of the projections of a layer.
_WIDTHS = ("hidden", "head_dim", "experts", "intermediate", "expert_intermediate", "vocab")
_PRODUCTS = (
    ("hidden", "heads * head_dim"),
    ("hidden", "kv_heads * head_dim"),
    ("heads * head_dim", "hidden"),
    *((a, b) for each in ("intermediate", "expert_intermediate") for a, b in (("hidden", each), (each, "hidden"))),
    ("hidden", "experts"),
    ("hidden", "vocab"),
)


@dataclass(frozen=True)
class ModelPlan:
    """Holds the groups of cases at the sizes of models, notes on what they leave out, and why there may be none."""

    groups: tuple[Group, ...] = ()
    notes: tuple[str, ...] = ()
    impossible: str = ""


def modelled(kernel: Kernel, dtype: str, models: tuple[str, ...], scale: str, seed: int) -> ModelPlan:
    """Returns the cases of a dtype at the sizes of models, a group for each. Sizes that several have are tried once.

    They have the dtype of the model, or the first one that the kernel promises if it does not promise that.
    """
    wanted = [MODELS[name] for name in dict.fromkeys(models)]
    wanted = [one for one in wanted if dtype == (one.dtype if one.dtype in kernel.dtypes else kernel.dtypes[0])]
    geometry, reason = kernel.op.geometry, ""
    if geometry.examples or kernel.encoding is not None:
        reason = "a quantiser has sizes of its own" if kernel.encoding else "examples= has the only sizes that it takes"
    elif isinstance(geometry, NamedDims) and (nameless := free_dims(geometry, kernel.sizes)[1]):
        reason = f"{unnamed(nameless)}; sizes={{{nameless[0]!r}: 'hidden'}} names one"
    if wanted and reason:
        return ModelPlan(impossible=f"not measured at the sizes of a model: {reason}")
    groups, notes, first = list[Group](), list[str](), dict[Dims, str]()
    for one in wanted:
        found, left = _sizes(kernel, one, scale)
        sizes = [dims for dims in found if first.setdefault(dims, one.name) == one.name]
        notes += [f"{dtype}: {one.name}: {why}" for why in left]
        if sizes:
            cases = tuple(_cases(kernel, dtype, sizes, scale, seed))
            groups.append(Group(cases, label=f" ({one.name})", pinned=True, space=f"model {one.name}: {sorted(sizes)}"))
        elif found:
            others = dict.fromkeys(first[dims] for dims in found)
            notes.append(f"{dtype}: {one.name}: the same sizes as {', '.join(others)}")
    return ModelPlan(tuple(groups), tuple(notes))


def _cases(kernel: Kernel, dtype: str, sizes: list[Dims], scale: str, seed: int) -> Iterator[Case]:
    """Yields two cases for each size: of ordinary values, and of others in rows that lie apart in memory."""
    strided = [each for each in kernel.operands if each not in kernel.contiguous]
    for place, dims in enumerate(sizes):
        layout = {"layout": f"{strided[place % len(strided)]} padded"} if strided else {}
        other = MATRIX_REGIMES[1 + place % (len(MATRIX_REGIMES) - 1)]
        for recipe, more in ((MATRIX_REGIMES[0], {}), (other, layout)):
            case = chosen_case(kernel, dtype, Chosen(dims, {"recipe": recipe, **more}), seed + place)
            if kernel.op.geometry.by_element:
                case = msgspec.structs.replace(case, fill="mixed", regime="")
            if _largest(kernel, dims) > _LIMITS[scale].gradients:
                case = msgspec.structs.replace(case, upstream="")
            yield case


def _sizes(kernel: Kernel, one: Model, scale: str) -> tuple[list[Dims], list[str]]:
    """Returns the sizes of a model in its turns, and why some are left out.

    Those of an op by name are tried again only with other widths, those of products in the first and the last turn.
    """
    named, limits = isinstance(kernel.op.geometry, NamedDims), _LIMITS[scale]
    found, left = dict[Dims, Dims](), dict[str, None]()
    for number in (0, TURNS - 1) if kernel.op.geometry.multiplies else range(TURNS):
        turn = one.turn(scale, number)
        for roles in _forms(kernel):
            lacking = {role for text in roles.values() for role in names_in(ast.parse(text))} - set(turn)
            if lacking:
                left |= {f"it has no {', '.join(sorted(lacking))}": None} if named else {}
                continue
            dims = _allowed(kernel, roles, turn)
            if dims is None:
                fixed = [f"{name} = {turn.get(role, role)}" for name, role in roles.items() if role not in OF_TURN]
                left[f"where= allows no {', '.join(fixed)}"] = None
            elif _largest(kernel, dims) > limits.elements or work_of(kernel.op, dims) > limits.work:
                left[f"{list(dims)} is too large for this backend"] = None
            else:
                found.setdefault(dims if named else dims[1:], dims)
    return list(found.values()), list(left)


def _forms(kernel: Kernel) -> list[dict[str, str]]:
    """Returns the roles of the dimensions: one mapping for named dimensions, and for an op by name one for each use."""
    geometry = kernel.op.geometry
    if isinstance(geometry, NamedDims):
        return [free_dims(geometry, kernel.sizes)[0]]
    said = {"m": "tokens"} | dict(kernel.sizes)
    if geometry.multiplies:
        forms = [{"k": a, "n": b} | said for a, b in _PRODUCTS]
    else:
        forms = [{"n": width} | said for width in _WIDTHS]
    return list({tuple(sorted(form.items())): form for form in forms}.values())


def _allowed(kernel: Kernel, roles: Mapping[str, str], turn: Mapping[str, int]) -> Dims | None:
    """Returns the sizes of a turn, with the next number of tokens that the declaration allows. None: it allows none."""
    geometry, related = kernel.op.geometry, Related.by(kernel.op.geometry.dims, kernel.op.geometry.where)
    for more in range(_NEAR):
        sizes = dict(turn) | {role: turn[role] + more for role in OF_TURN}
        free = {name: int(value_of(ast.parse(text, mode="eval").body, sizes)) for name, text in roles.items()}
        if isinstance(geometry, NamedDims):
            dims = related.dims(free)
        else:
            dims = geometry.dims_of(free["m"], free["k"], free["n"]) if "k" in free else (free["m"], free["n"])
        if min(dims) > 0 and kernel.allows(dims):
            return dims
    return None


def _largest(kernel: Kernel, dims: Dims) -> int:
    """Returns the number of elements of the largest operand or result."""
    op, params = kernel.op, kernel.op.resolve(kernel.params)
    return max(math.prod(shape) for each in (op.shapes, op.result_shapes) for shape in each(dims, params).values())
