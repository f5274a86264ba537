"""Defines a case: one fully specified input, as a small JSON value that gives the same bits everywhere."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from collections.abc import Iterable, Mapping
from typing import Annotated, Any

import msgspec
import torch
from torch import Tensor

from verify.cases.layouts import lay_out
from verify.cases.scores import RECIPES as SCORE_RECIPES
from verify.cases.scores import fill_scores
from verify.cases.values import (
    AT_BOUNDS,
    CONFIDENT,
    ENDLESS,
    MASKED,
    NEAR,
    SMALL,
    SPECIAL,
    Stream,
    fill,
    inside,
    within,
)
from verify.declare.declaration import Kernel
from verify.declare.promises import differing
from verify.errors import UsageError
from verify.ops.op import Op, Operand, Problem, up_to
from verify.truth import formats
from verify.truth.ulp import bits_of, from_bits, widen

LIMIT = 1 << 16  # a case spells out at most this many elements, so that it can be pasted


def spell(tensor: Tensor) -> str:
    """Returns every element of a tensor as hex, for `Case.values`."""
    digits = tensor.element_size() * 2
    mask = (1 << 4 * digits) - 1
    return "".join(f"{pattern & mask:0{digits}x}" for pattern in bits_of(tensor).reshape(-1).tolist())


def override(
    filled: Tensor, fmt: formats.Format | None, name: str, values: str | None, edits: Mapping[str, str] | None
) -> Tensor:
    """Returns the tensor with the values that the case spells out for it. `fmt` is None for integers."""
    filled = filled if values is None else _whole(filled, fmt, name, values)
    if not edits:
        return filled
    changed = filled.contiguous().clone()
    flat, digits = changed.view(-1), filled.element_size() * 2
    for place, text in edits.items():
        if not place.isascii() or not place.isdigit() or int(place) >= flat.numel():
            raise UsageError(f"an edit of {name!r} names an element from 0 to {flat.numel() - 1}; received {place!r}")
        flat[int(place)] = _tensor([_pattern(text, digits, name)], fmt, filled)[0]
    return changed


def _whole(filled: Tensor, fmt: formats.Format | None, name: str, values: str) -> Tensor:
    """Returns the tensor that `values` spells out: all its elements, or rows that repeat."""
    digits, count = filled.element_size() * 2, filled.numel()
    row = digits * math.prod(filled.shape[1:])
    whole = len(values) == digits * count or (filled.ndim > 1 and 0 < len(values) < digits * count)
    if not whole or (row and len(values) % row):
        rows = ", or for whole rows, which repeat" if filled.ndim > 1 else ""
        raise UsageError(
            f"a case spells out {name!r} with {digits} hex digits for each of its {count:,} elements, "
            f"{digits * count:,} in all{rows}; received {len(values):,}"
        )
    if len(values) > digits * LIMIT:
        received = len(values) // digits
        raise UsageError(f"a case spells out at most {LIMIT:,} elements of {name!r}; received {received:,}")
    patterns = [_pattern(values[at : at + digits], digits, name) for at in range(0, len(values), digits)]
    tensor = _tensor(patterns, fmt, filled)
    if len(patterns) == count:
        return tensor.reshape(filled.shape)
    return repeated(tensor.reshape(-1, *filled.shape[1:]), len(filled))


def repeated(rows: Tensor, count: int) -> Tensor:
    """Returns this many rows: the given ones in turn."""
    return rows[torch.arange(count, device=rows.device) % len(rows)]


def _pattern(text: str, digits: int, name: str) -> int:
    if len(text) != digits or not all(letter in "0123456789abcdefABCDEF" for letter in text):
        raise UsageError(f"an element of {name!r} is {digits} hex digits; received {text!r}")
    return int(text, 16)


def _tensor(patterns: list[int], fmt: formats.Format | None, like: Tensor) -> Tensor:
    if like.element_size() == 8:
        patterns = [item - (1 << 64) if item >= 1 << 63 else item for item in patterns]
    line = torch.tensor(patterns, dtype=torch.int64)
    tensor = line.to(like.dtype) if fmt is None else from_bits(line, fmt)
    assert tensor.dtype == like.dtype
    return tensor.to(like.device)


_MANY, _FEW, _BLANK = 1 << 40, 4, 1 << 22
Size = Annotated[int, msgspec.Meta(ge=0, lt=_MANY)]


class Case(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Holds everything that determines the inputs of one kernel call.

    dims: the shape of an elementwise operand, (..., N) of a row-wise op, (M, K, N) of a contraction.
    fill: the recipe of the data operands.
    only: the one operand that the recipe is for, if not for all; the others have ordinary values.
    upstream: the recipe of the gradient that arrives at each output; empty: forward only.
    dtypes: the dtypes of operands that differ from `dtype`.
    layouts: the memory layout of an operand, or of an upstream gradient as "d" + output; contiguous by default.
    largest: the largest magnitude of operands, one number or one by operand. Recipes are cut to it; spelled-out values
        are not.
    values, edits: elements spelled out by their bits in hex, by the same names as `layouts`: a searched or shrunk input
        follows no recipe. `values` replaces a whole tensor, row by row, with as many digits for each element; fewer
        rows than in the tensor repeat. `edits` replaces single elements of the recipe's values, by flat index.

    An operand with a domain lies inside it for every recipe but "patterns".
    """

    dtype: str
    dims: tuple[Size, ...]
    fill: str
    seed: int = 0
    params: dict[str, Any] = {}
    upstream: str = ""
    absent: tuple[str, ...] = ()
    dtypes: dict[str, str] = {}
    regime: str = ""
    layouts: dict[str, str] = {}
    values: dict[str, str] = {}
    edits: dict[str, dict[str, str]] = {}
    largest: float | dict[str, float] | None = None
    only: str = ""

    def to_json(self) -> str:
        """Returns compact JSON with the fields in a fixed order."""
        return msgspec.json.encode(self).decode()

    @staticmethod
    def from_json(text: str) -> Case:
        """Reads a case. An error names the field."""
        try:
            return msgspec.json.decode(text, type=Case)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            text = f"not a case: {error}"
            raise UsageError(text, hint="copy the case from the failure message or from the report") from error


def case_of(kernel: Kernel, dtype: str, **fields: Any) -> Case:
    """Returns a case of a kernel with its parameters, operands and dtypes.

    Values are ordinary, with every gradient.
    """
    made = {
        "fill": kernel.op.geometry.fill,
        "params": dict(kernel.params),
        "upstream": "normal" if kernel.differentiable else "",
        "absent": kernel.absent,
        "dtypes": differing(dtype, kernel.operand_dtypes.get(dtype, {})) | dict(kernel.integer_dtypes),
    }
    return Case(dtype=dtype, **{**made, **fields})


def operand_dtype(case: Case, operand: Operand) -> str:
    """Returns the dtype of one operand."""
    return case.dtypes.get(operand.name, case.dtype)


def inputs_of(
    op: Op, case: Case, device: torch.device | str, *, shared: bool = False, blank: bool = False
) -> dict[str, Tensor | None]:
    """Returns the operands of a case on a device, in the op's order. Absent operands are None.

    With `blank` only a few whole numbers with a structure, such as lengths, have values. Other operands are on "meta".

    With `shared` the caller must not write to them, because other callers may have the same tensors. If all are small,
    they are then in CPU memory, for any device.
    """
    params = op.resolve(case.params)
    shapes = op.shapes(case.dims, params)
    shared = shared and all(math.prod(shape) <= SMALL for shape in shapes.values())
    result: dict[str, Tensor | None] = {}
    data = list[str]()
    _known(op, case)
    held = op.captured.of(case.fill) if op.captured is not None else {}
    for operand in op.operands:
        if operand.name in case.absent:
            if not operand.optional:
                raise UsageError(f"op {op.name!r}: operand {operand.name!r} is required; the case omits it")
            result[operand.name] = None
            continue
        if operand.derive is not None:
            result[operand.name] = None  # computed after all other operands
            continue
        if blank and not (operand.range and operand.range.structure and math.prod(shapes[operand.name]) <= _BLANK):
            result[operand.name] = torch.empty(shapes[operand.name], dtype=_kind(case, operand), device="meta")
            continue
        if operand.name in held:
            result[operand.name] = _captured(op, case, operand, device)
            continue
        if operand.range is not None:
            result[operand.name] = _whole_numbers(operand, case, shapes[operand.name], device)
            continue
        data += [operand.name] if operand.role == "data" else []
        recipe = op.geometry.fill if held or case.only not in ("", operand.name) else case.fill
        largest = up_to(case.largest, operand.name)
        # an infinity in one operand of a product makes all results infinite, if another one has them too
        alike = case.only == operand.name or (bool(data) and shapes[operand.name] == shapes[data[0]])
        endless = largest == math.inf and (operand.name in op.normalised if recipe == MASKED else alike)
        recipe = _recipe_of(operand, recipe, first=data == [operand.name], endless=endless)
        fmt = formats.named(operand_dtype(case, operand))
        stream = Stream(case.seed, operand.name, torch.device(device))
        filled = _filled(op, case, operand, recipe, shapes[operand.name], stream, shared=shared)
        if operand.domain is not None and case.fill != "patterns":
            filled = inside(filled, operand.domain, largest, recipe=recipe)
        elif largest < math.inf:
            filled = within(filled, fmt, largest)
        filled = override(filled, fmt, operand.name, case.values.get(operand.name), case.edits.get(operand.name))
        if operand.name in case.values or operand.name in case.edits:
            _demand_inside(operand, filled)
        filled = filled if operand.project is None else operand.project(filled, case.seed)
        result[operand.name] = lay_out(filled, case.layouts.get(operand.name, "contiguous"))
    result = derive_all(op, case, result, device) if op.derived else result
    return result if op.regions is None or blank else _poisoned(op, case, result)


def _kind(case: Case, operand: Operand) -> torch.dtype:
    if operand.range is None:
        floating: torch.dtype = formats.torch_dtype(formats.named(operand_dtype(case, operand)))
        return floating
    kind: torch.dtype = getattr(torch, case.dtypes.get(operand.name, "bool" if operand.boolean else "int64"))
    return kind


def _poisoned(op: Op, case: Case, inputs: dict[str, Tensor | None]) -> dict[str, Tensor | None]:
    """Returns the operands with NaN outside of their regions, but for layouts whose elements share memory."""
    found = dict(inputs)
    for name, region in op.regions.operands.items():
        value = inputs.get(name)
        mask = None if value is None else region.outside(value, inputs)
        if value is not None and mask is not None:
            filled = widen(value).masked_fill(mask, math.nan)
            made = lay_out(filled.to(value.dtype), case.layouts.get(name, "contiguous"))
            found[name] = made if torch.equal(widen(made).isnan(), filled.isnan()) else value
    return found


def _recipe_of(operand: Operand, recipe: str, *, first: bool, endless: bool) -> str:
    """Returns the recipe of an operand where the data have this one: weights and biases have ordinary values.

    `first`: it is the first operand of data. `endless`: it may have NaN and infinities beside the first one.
    """
    if operand.role == "data" or (operand.domain is not None and recipe in AT_BOUNDS):
        allowed = operand.domain is None and (first if recipe == SPECIAL else endless)
        if recipe in ENDLESS and not allowed:  # else every result may be NaN
            return "randn"
        return "shuffled" if recipe == "mixed" and not first else recipe
    if operand.role == "matrix" and recipe == "spread":
        return recipe
    return "around one" if operand.role == "scale" else "around zero"


def derive_all(
    op: Op, case: Case, inputs: Mapping[str, Tensor | None], device: torch.device | str
) -> dict[str, Tensor | None]:
    """Returns the operands with the derived ones computed from the others."""
    found, shapes = dict(inputs), op.shapes(case.dims, op.resolve(case.params))
    for operand in op.derived:
        assert operand.derive is not None
        dtype = None if operand.range is not None else formats.torch_dtype(formats.named(operand_dtype(case, operand)))
        made = operand.derive.of(found, dtype, shapes[operand.name])
        made = made if operand.range is None or operand.boolean else _narrowed(case, operand, made)
        found[operand.name] = lay_out(made.to(device), case.layouts.get(operand.name, "contiguous"))
    return found


def _filled(
    op: Op, case: Case, operand: Operand, recipe: str, shape: tuple[int, ...], stream: Stream, *, shared: bool
) -> Tensor:
    """Returns the numbers of an operand before its domain and the case's magnitude limit them."""
    fmt = formats.named(operand_dtype(case, operand))
    if case.fill in SCORE_RECIPES:
        part = (op.scores or {}).get(operand.name)
        if op.scores is None:
            text = f"{case.fill!r} is a recipe for a softmax over products of two operands; {op.name!r} has none"
            raise UsageError(text)
        if part is not None:
            return fill_scores(case.fill, part, fmt, shape, stream, "scores")
        recipe = "randn" if recipe == case.fill else recipe
    landmarks = op.landmarks.boundaries(op.resolve(case.params))
    landmarks = landmarks if operand.domain is None else (*landmarks, *operand.domain.ends)
    return fill(recipe, fmt, shape, stream, landmarks=landmarks, shared=shared)


def _whole_numbers(operand: Operand, case: Case, shape: tuple[int, ...], device: torch.device | str) -> Tensor:
    """Returns an integer operand at random: half of its numbers small or near a multiple of 64, and both ends.

    Of up to 4 numbers the last one is one of the ends, and the others are free: two cases have other numbers.
    In one case of four its numbers are the same for 32 to 256 places, the first ones low: blocks of a mask, tokens that
    all go to one expert. In another one they stay in a low part of the range: no sequence has the longest length.
    """
    assert operand.range is not None
    low, high = operand.range(case.dims)
    count = math.prod(shape)
    if low >= high and count:
        text = f"operand {operand.name!r} needs whole numbers from {low} to below {high}; there are none"
        raise UsageError(text, hint="integers= and where= together leave none for these sizes")
    structure = operand.range.structure
    stream = Stream(case.seed, f"whole/{operand.name}", torch.device(device))
    # a permutation is the order of random numbers
    drawn = _below(stream, count, _MANY if structure == "permutation" else max(high - low, 1))
    if not structure and 4 < high - low <= 1 << 31:  # wider ranges are of seeds
        drawn = _at_edges(stream, drawn, low, high - low)
    if count == 1 and not structure and case.fill.startswith(NEAR):  # a step of 100,000 hides what the constant does
        drawn = (max(-low, 0) + drawn % 64) % (high - low)
    chance = Stream(case.seed, f"whole/{operand.name}", torch.device("cpu"))
    confident = case.fill == CONFIDENT  # both ends stay: they are labels of the confident logits of the outer rows
    form = int(chance.below(1, 4, "form")) if not structure and high - low <= 1 << 31 and not confident else 0
    if form == 3 and not operand.boolean:
        drawn = drawn % (2 << int(chance.below(1, max((high - low).bit_length() - 1, 1), "part")))
    elif count > 1 and not structure:
        ends = (0, high - low - 1)
        drawn[0], drawn[-1] = ends if count > _FEW or confident else (drawn[0], ends[int(chance.below(1, 2, "end"))])
    if count > _FEW and low <= 0 < high and structure in ("", "sum") and not operand.boolean:
        drawn[count // 2] = -low  # nothing between others, such as an empty sequence
    if form == 2:
        drawn = drawn[torch.arange(count, device=drawn.device) // (32 << int(chance.below(1, 4, "run")))]
    if case.fill in AT_BOUNDS and not structure:
        drawn = torch.full_like(drawn, (0, high - low - 1)[AT_BOUNDS.index(case.fill)])
    values = operand.range.arranged((drawn + low).reshape(shape), case.dims)
    values = values.bool() if (low, high) == (0, 2) and operand.boolean else values
    if operand.name in case.values or operand.name in case.edits:
        values = override(values, None, operand.name, case.values.get(operand.name), case.edits.get(operand.name))
        if count and not (low <= int(values.min()) and int(values.max()) < high):
            raise UsageError(f"operand {operand.name!r} holds whole numbers from {low} to below {high}")
        if structure and not torch.equal(values, operand.range.arranged(values, case.dims)):
            raise UsageError(f"operand {operand.name!r} is declared as a {structure}, which the case's numbers are not")
    return _narrowed(case, operand, values)


def _narrowed(case: Case, operand: Operand, values: Tensor) -> Tensor:
    """Returns whole numbers in the operand's dtype. Raises UsageError if this dtype does not hold them."""
    if operand.name not in case.dtypes:
        return values
    kind: torch.dtype = getattr(torch, case.dtypes[operand.name])
    limits = torch.iinfo(kind)
    if values.numel() and not limits.min <= int(values.min()) <= int(values.max()) <= limits.max:
        raise UsageError(
            f"operand {operand.name!r} holds {case.dtypes[operand.name]}, from {limits.min} to {limits.max}; received "
            f"{int(values.min())} to {int(values.max())}",
            hint="integers= says what it holds, and where= which sizes the kernel accepts",
        )
    return values.to(kind)


def _below(stream: Stream, count: int, most: int, part: str = "") -> Tensor:
    """Returns integers from 0 to below `most`. `below` has 32 random bits, too few for a large range."""
    return stream.below(count, most, part) if most <= 1 << 31 else (stream.words(count, part) & ((1 << 63) - 1)) % most


def _at_edges(stream: Stream, drawn: Tensor, low: int, most: int) -> Tensor:
    """Replaces a quarter of uniform numbers by small ones and a quarter by those near multiples of 64.

    The numbers are offsets from `low`, below `most`. Small ones are spread by their number of bits, on both sides of 0
    if it is in range. A single number is never uniform: few uniform steps from 1 to 100,000 are below 1,000.
    """
    count, zero = drawn.numel(), -low if low <= 0 < low + most else 0
    bits = torch.bitwise_left_shift(torch.ones_like(drawn), stream.below(count, most.bit_length(), "bits"))
    small = _below(stream, count, most, "small") % bits * (1 - 2 * stream.below(count, 2, "side"))
    blocks = 64 * _below(stream, count, most // 64 + 1, "blocks") + stream.below(count, 3, "beside") - 1 - low
    kind = stream.below(count, 2 if count == 1 else 4, "kind")
    edges = (kind == 1) & (blocks >= 0) & (blocks < most)
    return torch.where(kind == 0, (zero + small).remainder(most), torch.where(edges, blocks, drawn))


def _captured(op: Op, case: Case, operand: Operand, device: torch.device | str) -> Tensor:
    """Returns an operand from the file of captured calls. Raises UsageError if its numbers are not those declared."""
    values, name = op.captured.tensor(case.fill, operand.name), operand.name
    if operand.range is None:
        fmt = formats.named(operand_dtype(case, operand))
        values = override(values, fmt, name, case.values.get(name), case.edits.get(name))
        _demand_inside(operand, values)
    else:
        values, (low, high) = values.to(torch.int64), operand.range(case.dims)
        inside = not values.numel() or (low <= int(values.min()) and int(values.max()) < high)
        if not inside or not torch.equal(values, operand.range.arranged(values, case.dims)):
            structure = f", as a {operand.range.structure}" if operand.range.structure else ""
            raise UsageError(
                f"{op.captured.path.name}: {name} holds whole numbers from {low} to below {high}{structure}; received "
                "others",
                hint="integers= says what an integer operand holds",
            )
        values = values.bool() if operand.boolean else _narrowed(case, operand, values)
    return lay_out(values.to(device), case.layouts.get(name, "contiguous"))


def _demand_inside(operand: Operand, values: Tensor) -> None:
    """Raises UsageError if a case spells out a number outside of the operand's domain."""
    if operand.domain is None:
        return
    wide = widen(values).reshape(-1)
    outside = torch.nonzero(~operand.domain.holds(wide)).reshape(-1)
    if outside.numel():
        place = int(outside[0])
        raise UsageError(
            f"operand {operand.name!r} is declared with the domain {operand.domain.text}; the case has "
            f"{float(wide[place]):.9g} at {place}",
            hint="another case, or another domain= in the declaration of the kernel",
        )


def _known(op: Op, case: Case) -> None:
    """Raises UsageError if a case spells out values of something that the op does not have."""
    names = [operand.name for operand in op.operands] + ["d" + name for name in op.all_outputs]
    if case.only and case.only not in names[: len(op.operands)]:
        raise UsageError(f"the case has a recipe for {case.only!r}; op {op.name!r} has {', '.join(names)}")
    for name in [*case.values, *case.edits]:
        if any(name == each.name for each in op.derived):
            raise UsageError(f"a case does not spell out {name!r}, which is derived from other operands")
        if name not in names:
            raise UsageError(f"op {op.name!r} has {', '.join(names)}; the case spells out {name!r}")
        if name not in names[: len(op.operands)] and not case.upstream:
            raise UsageError(f"the case spells out {name!r} but asks for no gradient: its upstream is empty")


def upstream_of(op: Op, case: Case, outputs: dict[str, Tensor], *, shared: bool = False) -> dict[str, Tensor]:
    """Returns the gradient that arrives at each differentiable output, with its shape and dtype.

    `shared`: see `inputs_of`.
    """
    if not case.upstream:
        return {}
    upstream = {}
    shared = shared and all(output.numel() <= SMALL for output in outputs.values())
    for name, output in outputs.items():
        fmt, label = formats.of(output.dtype), "d" + name
        if op.captured is not None and label in op.captured.of(case.upstream):
            found = op.captured.tensor(case.upstream, label)
            if found.shape != output.shape or found.dtype != output.dtype:
                raise UsageError(
                    f"{op.captured.path.name}: {label} has {found.dtype} {list(found.shape)}; the kernel returns "
                    f"{output.dtype} {list(output.shape)}",
                    hint="the gradient that arrives at an output has its shape and dtype",
                )
            upstream[name] = found.to(output.device)
            continue
        filled = fill(
            "normal" if op.captured is not None and op.captured.of(case.upstream) else case.upstream,
            fmt,
            tuple(output.shape),
            Stream(case.seed, f"upstream/{name}", output.device),
            shared=shared,
        )
        filled = override(filled, fmt, label, case.values.get(label), case.edits.get(label))
        upstream[name] = lay_out(filled, case.layouts.get(label, "contiguous"))
    return upstream


def problem_of(
    op: Op, case: Case, inputs: dict[str, Tensor | None], upstream: dict[str, Tensor], results: tuple[str, ...]
) -> Problem:
    """Returns the problem whose truth answers this case."""
    return Problem(inputs=inputs, params=op.resolve(case.params), upstream=upstream, results=results)


def meaning_of(op: Op, case: Case) -> str:
    """Returns a digest of the function for the sizes and dtypes of a case; "" if the op's name identifies it."""
    kinds = {operand.name: _kind(case, operand) for operand in op.operands}
    return op.meaning.identity(case.dims, kinds, gradients=bool(case.upstream))


VERSION = 1  # increased if the meaning of a figure changes; all older bounds then become incomparable


def fingerprint(kernel: Kernel, output: str, dtype: str, cases: Iterable[Case] = (), space: str = "") -> str:
    """Returns 12 hex digits. `space` describes inputs that are not a list of cases, such as a sweep's."""
    cases = list(cases)
    said = {
        "version": VERSION,
        "op": kernel.op.name,
        "params": dict(kernel.params),
        "operands": kernel.operands,
        "output": output,
        "dtype": dtype,
        "policy": dataclasses.asdict(kernel.policy),
        "cases": [{**json.loads(case.to_json()), "seed": 0} for case in cases],
        "space": space,
    }
    if mixed := kernel.mixed(dtype):
        said["dtypes"] = mixed
    if kernel.op.domains:
        said["domain"] = kernel.op.domain_words
    if not kernel.op.meaning.shipped:  # a function may branch on sizes
        said["meaning"] = sorted({meaning_of(kernel.op, case) for case in cases})
    text = json.dumps(said, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
