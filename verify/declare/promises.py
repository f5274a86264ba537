"""Checks the parts of a declaration: limits by class of inputs, magnitudes, other dtypes, results that are rounded at
random, and the models whose sizes it names.

Each check states the rule and the received value.
"""

import ast
import functools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, get_args

from verify.declare.models import ROLES, models_of, named_by, unnamed
from verify.errors import UsageError, closest, from_zero, one_of
from verify.ops.domain import Domain
from verify.ops.graph.relative import RelativeRms
from verify.ops.graph.rounding import Accumulate
from verify.ops.graph.shapes import NamedDims, Related, check, names_in
from verify.ops.op import Largest, Op, as_defined, up_to
from verify.records.record import CLASSES, DEMANDING, EXTREME, ORDINARY
from verify.truth.formats import FORMATS, named
from verify.truth.ordinals import between

DEFAULT_LIMIT = 4.0
WIDE = 10.0  # for an elementwise function by like=: the error of PyTorch's own mish is 8.7
DEFAULT_NOISE = 8.0
NOISE_BITS = 19  # limits in units of noise hold for 2^19 elements, and grow with the logarithm of their number
WHOLE = ("int64", "int32", "int16", "int8", "uint8")
NARROW_NOISE = 5.0  # up to 16 bits, because few roundings make the noise, and their sum ends sooner


def default_limit(dtype: str, wide: float = DEFAULT_LIMIT) -> float:
    """Returns the default limit in ULP of a format. `wide` is that of float32 and float64."""
    bits = named(dtype).bits
    return 0.51 if bits <= 8 else 1.0 if bits <= 16 else wide


def wide_of(op: Op, results: Sequence[str], by_name: bool) -> dict[str, float]:
    """Maps the results whose default in float32 differs to that default, and "" to that of all others.

    The results of a shipped norm or product take up to 20 roundings, of which PyTorch's reach 5.3 ULP of their terms
    and other right ones 5.0. So their default is that of noise. Results by like= that add nothing up have `WIDE`.
    """
    if by_name:
        return {"": DEFAULT_NOISE if op.gate == "scaled" else DEFAULT_LIMIT}
    alone = results and ([""] if op.gate == "plain" else [name for name in op.unsummed if name in results])
    return {"": DEFAULT_LIMIT} | dict.fromkeys(alone, WIDE)


def default_noise(dtype: str, among: int = 0) -> float:
    """Returns the default limit in units of noise of a format, for the largest error among so many elements.

    The largest of more random errors is larger: that of PyTorch's own float32 products and convolutions was 8.9 times
    the noise among 2^25 elements, and 10.6 among 2^28, where the root mean square was 0.75 and 1.2.
    """
    limit = NARROW_NOISE if named(dtype).bits <= 16 else DEFAULT_NOISE
    return limit * max(math.log2(max(among, 1)) / NOISE_BITS, 1.0)


def demand(where: str, what: str, given: Iterable[Any], kind: str, known: Sequence[str], hint: str) -> None:
    """Raises UsageError for the first name that a keyword of a declaration gives, and that is not known."""
    for name in given:
        if name not in known:
            names = ", ".join(known) or "none with a floating-point dtype"
            raise UsageError(f"{where}: {what} is about its {kind}, {names}; received {name!r}", hint=hint)


def contiguous(about: str, layouts: Any, taken: Sequence[str]) -> tuple[str, ...]:
    """Returns the operands that a kernel takes in contiguous memory alone."""
    said = layouts if isinstance(layouts, Mapping) else dict.fromkeys(taken, layouts)
    for name, layout in said.items():
        one_of(about, "layouts", layout, ("any", "contiguous"))
        demand(about, "layouts", [name], "operands", taken, f"layouts={{{taken[0]!r}: 'contiguous'}}")
    return tuple(name for name in taken if said.get(name) == "contiguous")


def of_layouts(contiguous: Sequence[str], taken: Sequence[str]) -> str:
    """Describes the layouts that a kernel takes."""
    some = f"any, {' '.join(contiguous)} contiguous" if contiguous else "any"
    return f"layouts: {'contiguous' if set(contiguous) == set(taken) else some}"


def limits(
    where: str,
    limit: Any,
    dtypes: tuple[str, ...],
    others: Iterable[Mapping[str, str]] = (),
    results: Sequence[str] = (),
    *,
    wide: Mapping[str, float] = MappingProxyType({"": DEFAULT_LIMIT}),
    relative: bool = False,
) -> dict[str, dict[str, float | None]]:
    """Maps a dtype, or "RESULT DTYPE", to the limit of each class of inputs.

    The dtypes come from the cases, and from `others` (single operands, outputs). `wide` maps results to
    their default in float32 and float64, and "" to that of all others. With `relative`, the default promises nothing of
    extreme inputs.
    """
    others = tuple(others)
    names = dict.fromkeys((*dtypes, *(item for each in others for item in each.values())))
    by_result = limit if isinstance(limit, Mapping) and set(limit) <= set(results) else {}
    if limit is None or by_result:
        extreme: dict[str, float | None] = {EXTREME: None} if relative else {}
        given = {name: {ORDINARY: default_limit(name, wide[""]), **extreme} for name in names}
        found = {name: _class_limits(where, each) for name, each in given.items()}
        for result, own in (*((name, None) for name in wide if name), *by_result.items()):
            of_result = limits(where, own, dtypes, others, wide={"": wide.get(result, wide[""])}, relative=relative)
            found |= {f"{result} {dtype}": each for dtype, each in of_result.items()}
        return found
    if not isinstance(limit, Mapping) or set(limit) & set(CLASSES):
        return dict.fromkeys(dtypes, _class_limits(where, limit))
    if not set(dtypes) <= set(limit) <= set(names):
        known = ", ".join(names)
        raise UsageError(
            f"{where}: max_ulp names one limit per dtype, {known}, or per class of inputs, "
            f"{', '.join(CLASSES)}; received {', '.join(map(str, limit))}",
            hint=f"max_ulp={dict.fromkeys(dtypes, DEFAULT_LIMIT)!r}, or one number for all",
        )
    return {dtype: _class_limits(where, limit[dtype]) for dtype in dict.fromkeys((*dtypes, *limit))}


def _class_limits(where: str, limit: Any) -> dict[str, float | None]:
    """Returns the limit of each class. A class without one has the limit of the class before it."""
    given = limit if isinstance(limit, Mapping) else {ORDINARY: limit}
    if unknown := set(given) - set(CLASSES):
        text = f"{where}: the classes of inputs are {', '.join(CLASSES)}; received {', '.join(map(str, unknown))}"
        raise UsageError(text, hint=f"max_ulp={{'{ORDINARY}': {DEFAULT_LIMIT:g}, '{EXTREME}': None}}")
    found: dict[str, float | None] = {}
    last: float | None = DEFAULT_LIMIT
    for name in CLASSES:
        if name in given:
            last = None if given[name] is None and name != ORDINARY else _limit(where, given[name])
        found[name] = last
    return found


def noise(where: str, given: Any, gate: str, results: Sequence[str]) -> dict[str, float]:
    """Maps a result to its limit in units of noise; "" means all other results."""
    if given is not None and gate != "noise":
        text = f"{where}: max_noise is about the results of a program that adds up numbers, as like= follows it"
        raise UsageError(text, hint="max_ulp= is the limit of elementwise functions and of verify's own ops")
    found = by_result(where, "max_noise", given, results)
    if not all(found.values()):
        raise UsageError(f"{where}: max_noise is above 0", hint="max_noise=8 is the default")
    return found


def by_result(where: str, what: str, given: Any, results: Sequence[str]) -> dict[str, float]:
    """Maps a result to a number of at least 0; "" means all other results."""
    each = given if isinstance(given, Mapping) else {} if given is None else {"": given}
    hint = f"{what}={{{results[0]!r}: 1.0}}, or one number for all"
    demand(where, what, filter(None, each), "results", results, hint)
    return {name: from_zero(where, what, one) for name, one in each.items()}


def reasons(where: str, given: Any, results: Sequence[str]) -> dict[str, str]:
    """Maps a result to the reason to accept a vacuous verdict on it."""
    each, hint = {} if given is None else given, 'vacuous={"dx": "saturated inputs"}'
    if not isinstance(each, Mapping) or any(not isinstance(text, str) or not text.strip() for text in each.values()):
        raise UsageError(f"{where}: vacuous maps results to reasons; received {given!r}", hint=hint)
    demand(where, "vacuous", each, "results", results, hint)
    return {name: " ".join(text.split()) for name, text in each.items()}


def dtypes(where: str, dtypes: Iterable[str] | None, default: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the dtypes that a kernel promises. Raises UsageError if one is no floating-point format."""
    if dtypes is None:
        return default
    names = []
    for item in strings(where, "dtypes", dtypes):
        try:
            names.append(named(item).name)
        except UsageError:
            raise UsageError(
                f"{where}: dtypes are floating-point formats, {', '.join(FORMATS)}; received {item!r}",
                hint=f"dtypes={list(default)!r}, which is also what is measured without dtypes=",
            ) from None
    return tuple(names)


def of_program(where: str, accumulate: Any, intermediate: Any, ties: Any = "") -> dict[str, Any]:
    """Returns accumulate=, intermediate= and ties= by name. Raises UsageError if one is unknown."""
    return {
        "accumulate": one_of(where, "accumulate", accumulate, get_args(Accumulate)),
        "intermediate": one_of(where, "intermediate", intermediate, ("", "eager", "float32")),
        "ties": one_of(where, "ties", ties, ("", AS_LIKE)),
    }


def of_limits(max_ulp: Mapping[str, float], max_noise: Mapping[str, float], gate: str) -> str:
    """Returns for example `max 4 ULP`, `max ULP scaled: 4 in float32, 1 in float16` or `max 4 ULP or 8x noise`."""
    unit = " scaled" if gate == "scaled" else ""
    if gate == "noise":
        said = [f"{limit:g}x noise{f' in {name}' if name else ''}" for name, limit in max_noise.items()]
        unit = f" or {', '.join(said) or 'the default of noise'}"
    limits = sorted(set(max_ulp.values()))
    if len(limits) == 1:
        return f"max {limits[0]:g} ULP{unit}"
    return f"max ULP{unit}: " + ", ".join(f"{limit:g} in {dtype}" for dtype, limit in max_ulp.items())


def of_classes(limits: Mapping[str, float | None]) -> str:
    """Returns `demanding 8 ULP, extreme inputs: no promise`, for classes with another limit than ordinary inputs."""
    others = {name: limit for name, limit in limits.items() if limit != limits[ORDINARY]}
    return ", ".join(f"{name} inputs: {'no promise' if x is None else f'{x:g} ULP'}" for name, x in others.items())


def _limit(where: str, limit: Any) -> float:
    if isinstance(limit, bool) or not isinstance(limit, int | float) or not limit >= 0.5 or math.isinf(limit):
        raise UsageError(
            f"{where}: max_ulp is a finite number of at least 0.5; received {limit!r}",
            hint="max_ulp=0.5 promises correct rounding, max_ulp=1 a faithful result; without it the limit is "
            f"{DEFAULT_LIMIT:g}, 1 in 16 bits, 0.51 in 8 bits",
        )
    return float(limit)


def largest(where: str, largest: Any, dtypes: tuple[str, ...], operands: Sequence[str]) -> dict[str, Largest]:
    """Maps each dtype to the magnitude of inputs up to which the limit is promised."""
    if largest is None:
        return {}
    each = largest if isinstance(largest, Mapping) else dict.fromkeys(dtypes, largest)
    if each and all(name in operands for name in each):
        each = dict.fromkeys(dtypes, each)
    for dtype, size in each.items():
        if dtype not in dtypes:
            raise UsageError(
                f"{where}: largest is about its dtypes, {', '.join(dtypes)}, or its operands, {', '.join(operands)}; "
                f"received {dtype!r}",
                hint=f"largest={{{dtypes[0]!r}: 1e4}} or largest={{{operands[0]!r}: 100.0}}; what is left out is tried "
                "with all finite numbers",
            )
        each_operand = size if isinstance(size, Mapping) else {operands[0]: size}
        hint = f"largest={{{dtype!r}: {{{operands[0]!r}: 100.0}}}}"
        demand(where, f"largest in {dtype}", each_operand, "operands", operands, hint)
        for one in each_operand.values():
            if isinstance(one, bool) or not isinstance(one, int | float) or not 0 < one < math.inf:
                text = f"{where}: largest is a positive finite magnitude of inputs; received {one!r}"
                raise UsageError(text, hint="without it all finite numbers are tried")
    return {
        dtype: {name: float(one) for name, one in size.items()} if isinstance(size, Mapping) else float(size)
        for dtype, size in each.items()
    }


def operands(where: str, op: Op, operands: Iterable[str] | None) -> tuple[str, ...]:
    """Returns the operands of a kernel, by default all of the op."""
    known = [operand.name for operand in op.operands]
    if operands is None:
        return tuple(known)
    chosen = _some_of(where, op, "operands", known, operands)
    for operand in op.operands:
        if not operand.optional and operand.name not in chosen:
            raise UsageError(
                f"{where}: op {op.name!r} requires operand {operand.name!r}; operands omits it",
                hint=f"operands={[item.name for item in op.operands if not item.optional or item.name in chosen]!r}",
            )
    return tuple(item for item in known if item in chosen)


def outputs(where: str, op: Op, outputs: Iterable[str] | None) -> tuple[str, ...]:
    """Returns the outputs of a kernel, by default the required ones of the op."""
    if outputs is None:
        return tuple(name for name in op.outputs if name not in op.optional_outputs)
    return _some_of(where, op, "outputs", op.all_outputs, outputs)


def _some_of(where: str, op: Op, what: str, known: Sequence[str], given: Iterable[str]) -> tuple[str, ...]:
    """Returns the given names of operands or outputs. Raises UsageError if the op lacks one."""
    chosen = strings(where, what, given)
    for item in chosen:
        if item not in known:
            text = f"{where}: op {op.name!r} has {what} {', '.join(known)}; received {item!r}"
            raise UsageError(text, hint=f"verify list --op {op.name}")
    return chosen


def domains(
    about: str,
    given: Any,
    op: Op,
    operands: Sequence[str],
    dtypes: Sequence[str],
    others: Mapping[str, Mapping[str, str]],
    largest: Mapping[str, Largest],
) -> Op:
    """Returns the op with the domains that a declaration gives to operands.

    Raises UsageError if one names no floating-point operand, has another form, or has no number of some dtype.
    """
    if given is None:
        return op
    for name in given if isinstance(given, Mapping) else [given]:
        if name not in operands or not isinstance(given, Mapping):
            text = f"{about}: domain is about its floating-point operands, {', '.join(operands)}; received {name!r}"
            raise UsageError(text, hint='domain={"v": "0 <= v"}; integers= is about the other operands')
    found = {name: Domain.of(about, name, text) for name, text in given.items()}
    for (name, domain), dtype in product(found.items(), dtypes):
        own, most = named(others.get(dtype, {}).get(name, dtype)), up_to(largest.get(dtype), name)
        if between(own, max(domain.low, -most), min(domain.high, most)) is None:
            magnitude = "" if most == math.inf else f" and a magnitude up to {most:g}"
            text = f"{about}: {own.name} has no number with {domain.text}{magnitude}"
            raise UsageError(text, hint="dtypes= without it, or a wider domain")
    return replace(op, operands=tuple(replace(each, domain=found.get(each.name)) for each in op.operands))


def whole_dtypes(about: str, op: Op, taken: Sequence[str], given: Any) -> tuple[Op, Any, dict[str, str]]:
    """Returns the op with a baseline that takes int64, the rest of operand_dtypes=, and the dtypes of integer operands.

    Raises UsageError for a dtype that PyTorch does not index, add and compare.
    """
    whole = [each.name for each in op.operands if each.range is not None and not each.boolean and each.name in taken]
    if not isinstance(given, Mapping) or not set(given) & set(whole):
        return op, given, {}
    found = {name: str(item).removeprefix("torch.") for name, item in given.items() if name in whole}
    for name, item in found.items():
        if item not in WHOLE:
            text = f"{about}: operand_dtypes gives integers a dtype of {', '.join(WHOLE)}; received {item!r} for {name}"
            raise UsageError(text, hint=f"operand_dtypes={{{name!r}: 'int32'}}")
    definition = op.baseline

    def baseline(*operands: Any, **params: Any) -> Any:
        return definition(*map(as_defined, operands), **params)

    rest = {name: item for name, item in given.items() if name not in whole}
    return replace(op, baseline=baseline), rest or None, found


def other_dtypes(
    where: str, what: str, given: Any, dtypes: tuple[str, ...], names: Sequence[str]
) -> dict[str, dict[str, str]]:
    """Maps the dtype of a case to the dtypes of named operands or outputs. Raises UsageError for wrong ones."""
    if given is None:
        return {}
    kind = what.partition("_")[0] + "s"
    hint = f"{what}={{{(names or ['y'])[-1]!r}: 'float32'}}, or by the dtype of the others: {{{dtypes[0]!r}: {{...}}}}"
    each = given if isinstance(given, Mapping) and given and set(given) <= set(dtypes) else dict.fromkeys(dtypes, given)
    for dtype, some in each.items():
        if not isinstance(some, Mapping) or not some:
            raise UsageError(f"{where}: {what} gives single {kind} a dtype by name; received {some!r}", hint=hint)
        demand(where, what, some, kind, names, hint)
        for name, item in some.items():
            if str(item).removeprefix("torch.") not in FORMATS:
                raise UsageError(
                    f"{where}: {what} names floating-point formats, {', '.join(FORMATS)}; received {item!r} for {name}",
                    hint="integers= says what integer operands hold" if kind == "operands" else hint,
                )
            if kind == "operands" and named(str(item)).name == "float64" != dtype:
                raise UsageError(
                    f"{where}: results of float64 operands are judged in cases of float64; received {item!r} for "
                    f"{name} beside {dtype}",
                    hint=f"dtypes=['float64'], {what}={{...}} for the narrower ones",
                )
        if kind == "operands" and set(some) == set(names):
            raise UsageError(
                f"{where}: {what} leaves one operand or more to the dtypes of the cases, {', '.join(dtypes)}; received "
                f"all, {', '.join(some)}",
                hint="dtypes= names the dtype of the data, output_dtypes= that of an output",
            )
    return {dtype: {name: named(str(item)).name for name, item in some.items()} for dtype, some in each.items()}


def differing(dtype: str, some: Mapping[str, str]) -> dict[str, str]:
    """Returns the names whose dtype differs from that of the case."""
    return {name: item for name, item in some.items() if item != dtype}


def of_others(
    verb: str, given: Mapping[str, Mapping[str, str]], everywhere: Mapping[str, str] = MappingProxyType({})
) -> Iterable[str]:
    """Yields `weight as float32 beside bfloat16, float16` for each set of names with another dtype than the case."""
    beside: dict[str, list[str]] = {}
    for dtype, some in given.items():
        if other := differing(dtype, some):
            beside.setdefault(", ".join(f"{name} as {item}" for name, item in other.items()), []).append(dtype)
    yield from (f"{verb}{text} beside {', '.join(dtypes)}" for text, dtypes in beside.items())
    yield from (f"{name} as {item}" for name, item in everywhere.items())


def strings(where: str, what: str, value: Any, allowed: Sequence[str] = ()) -> tuple[str, ...]:
    """Returns the strings of a declaration. Raises UsageError if none, or a repeated or forbidden one."""
    if isinstance(value, str) or not isinstance(value, Iterable):
        value = (value,)
    items = tuple(str(item) for item in value)
    if not items:
        text = f"{where}: {what} must name at least one; received an empty list"
        raise UsageError(text, hint=f"leave {what}= out for the default")
    if len(set(items)) != len(items):
        text = f"{where}: {what} must not repeat; received {', '.join(items)}"
        raise UsageError(text, hint=f"{what}={list(dict.fromkeys(items))!r}")
    return tuple(one_of(where, what, item, allowed) for item in items) if allowed else items


# By the field of a declaration that promises it: laws that are tried without a profile too, as no maximum shows them.
LAWS = {"stochastic": "stochastic rounding", "draws": "distribution", "same_bits": "same bits", "rounds": "roundings"}
AS_LIKE, ONCE = "as like", "once"  # where a kernel rounds to 16 bits
SETTINGS = ("rows", "position", "layout", "configuration")  # that may change no bit of a result


def same_bits(
    where: str, settings: Any, given: Any, quantises: bool
) -> tuple[tuple[str, ...], dict[str, Callable[..., Any]]]:
    """Returns the settings that change no bit, and maps `as NAME` to each function that has the same bits."""
    functions = [given] if callable(given) else list(given)
    if quantises and (settings or functions):
        raise UsageError(
            f"{where}: the law of same bits compares numbers; a quantiser returns codes",
            hint="leave same_bits= and same_bits_as= out: every right code is known, and a run demands it",
        )
    found: dict[str, Callable[..., Any]] = {}
    for each in functions:
        if not callable(each):
            text = f"{where}: same_bits_as is a function of the same operands, or a list of them; received {each!r}"
            raise UsageError(text, hint="same_bits_as=torch.nn.functional.silu")
        plain = each.func if isinstance(each, functools.partial) else each
        name = f"as {getattr(plain, 'name', '') or getattr(plain, '__name__', type(plain).__name__)}"
        found[name if name not in found else f"{name} {len(found) + 1}"] = getattr(each, "function", each)
    return strings(where, "same_bits", settings, SETTINGS) if settings else (), found


def where(about: str, op: Op, text: str) -> str:
    """Returns a condition on sizes. Raises UsageError if it is none in the sizes of the op."""
    try:
        check(text, op.geometry.sizes)
    except UsageError as error:
        raise UsageError(f"{about}: {error.message}", hint="where='n <= 65536', where='rank == 2'") from None
    return text


def rounds(where: str, given: Any, op: Op, other: Any) -> str:
    """Returns where a kernel promises to round. `other` is true if its results are codes, or are rounded at random."""
    if given and (other or op.meaning.shipped):
        beside = "a quantised or stochastic declaration" if other else f"op {op.name!r}"
        raise UsageError(
            f"{where}: rounds= says where a PyTorch function by like= is rounded to nearest; received {given!r} beside "
            f"{beside}",
            hint="like=torch.nn.functional.silu in place of the op's name, or no rounds=",
        )
    return str(one_of(where, "rounds", given, ("", AS_LIKE, ONCE)))


def intermediate(rounds: str, max_ulp: Any, max_noise: Any, stochastic: Any) -> str:
    """Returns the default of intermediate=: the format in which a kernel promises to keep numbers.

    A limit in ULP promises more than eager PyTorch keeps. Beside a limit in noise it leaves the unit of noise as it is.
    """
    if rounds:
        return "eager" if rounds == AS_LIKE else "float32"
    in_ulp = max_ulp is not None and max_noise is None
    return "float32" if in_ulp or stochastic is not None else ""


def required(where: str, requires: str | Iterable[str], file: str) -> tuple[str, ...]:
    """Returns the packages that a kernel needs. Raises UsageError for names that cannot be imported."""
    if not requires:
        return ()
    names = strings(where, "requires", requires)
    for item in names:
        if not item.isidentifier():
            text = f"{where}: requires names importable top-level packages; received {item!r}"
            raise UsageError(text, hint='the name after `import`, as in requires="liger_kernel"')
        if Path(file).stem == item:
            text = f"{where}: requires names the package {item!r}, which this file hides: `import {item}` finds {file}"
            raise UsageError(text, hint=f"name the file otherwise, such as {item}_kernels.py")
    return names


def gradients(where: str, op: Op, given: Any, taken: Sequence[str]) -> tuple[str, ...] | Literal["auto"]:
    """Returns the operands for which a kernel has gradients."""
    if given == "auto":
        return "auto"
    differentiable = tuple(operand.name for operand in op.operands if operand.differentiable and operand.name in taken)
    if isinstance(given, bool):
        return differentiable if given else ()
    chosen = []
    for item in strings(where, "gradients", given):
        operand = item if item in differentiable else item.removeprefix("d")
        if operand not in differentiable:
            raise UsageError(
                f"{where}: op {op.name!r} has gradients for {', '.join(differentiable)}; received {item!r}",
                hint='gradients=True (all), False (none), "auto" (those that autograd gives) or a list of operands',
            )
        chosen.append(operand)
    return strings(where, "gradients", chosen)


# Either neighbour is right: one ULP, and up to 4 times the noise of the sum that is rounded.
STOCHASTIC_LIMIT, STOCHASTIC_NOISE = 1.25, 12.0
_SEED = 'shapes={"x": "n", "seed": ""}, integers={"seed": "0 <= seed < 2**31"}'
_HINT = f'stochastic="seed", with {_SEED}'

OfDtypes = Mapping[str, Mapping[str, str]]


def stochastic_results(
    about: str, given: Any, op: Op, outputs: Sequence[str], dtypes: Sequence[str], others: OfDtypes
) -> dict[str, str]:
    """Maps each result that is rounded at random to the operand that is its seed.

    Raises UsageError if the seed is not one integer, or if the result has more than 16 bits.
    """
    if given is None:
        return {}
    numbers = [name for name in outputs if name not in op.integers]
    found = dict.fromkeys(numbers, given) if isinstance(given, str) else given
    if not isinstance(found, Mapping) or not found or not set(found) <= set(numbers):
        text = f"{about}: stochastic maps outputs, {', '.join(numbers)}, to their seed; received {given!r}"
        raise UsageError(text, hint='stochastic="seed" for all outputs, stochastic={"p_": "seed"} for one')
    for seed in found.values():
        table = op.geometry.table if isinstance(op.geometry, NamedDims) else {}
        if seed not in _integers(op) or table.get(seed) not in ((), (1,)):
            raise UsageError(f"{about}: a seed is an operand of one integer; received {seed!r}", hint=_HINT)
    for name, kind in _formats(found, dtypes, others):
        if kind is None or named(kind).bits > 16:
            text = f"{about}: stochastic rounding is judged in formats of 16 bits or fewer; {name} has {kind or 'any'}"
            raise UsageError(text, hint=f"dtypes=['bfloat16'], or output_dtypes={{{name!r}: 'bfloat16'}}")
    return dict(found)


def _integers(op: Op) -> list[str]:
    return [each.name for each in op.operands if each.range is not None and not each.boolean]


def draws(about: str, given: Any, op: Op) -> dict[str, str]:
    """Maps each result that is drawn at random to the operand that seeds it, or to ""."""
    found = of_draws(given)
    if not set(found) <= set(op.outputs):
        text = f"{about}: draws names results, {', '.join(op.outputs)}, or maps them to their seed; received {given!r}"
        raise UsageError(text, hint='draws="y", draws={"y": "seed"}')
    if wrong := [seed for seed in found.values() if seed and seed not in _integers(op)]:
        raise UsageError(f"{about}: a seed is an operand of integers; received {wrong[0]!r}", hint=_SEED)
    return found


def seeds_of(stochastic: Any, draws: Any) -> list[str]:
    """Returns the operands that seed random numbers."""
    return [stochastic] if isinstance(stochastic, str) else [*(stochastic or {}).values(), *of_draws(draws).values()]


def of_draws(given: Any) -> dict[str, str]:
    """Maps each result of draws= to its seed."""
    return {given: ""} if isinstance(given, str) else dict(given or {})


def limits_of_results(
    results: Iterable[str], dtypes: Sequence[str], others: OfDtypes, ordinary: float | None, *, demanding: bool
) -> dict[str, dict[str, float | None]]:
    """Returns limits by result and dtype: `ordinary`, else the default, without a promise of extreme inputs.

    demanding: True if demanding inputs have the same limit; otherwise nothing is promised of them.
    """
    found = {}
    for name, kind in _formats(results, dtypes, others):
        for each in (kind,) if kind else dtypes:
            own = default_limit(each) if ordinary is None else ordinary
            found[f"{name} {each}"] = {ORDINARY: own, DEMANDING: own if demanding else None, EXTREME: None}
    return found


def relative(about: str, given: Any, op: Op, outputs: Sequence[str]) -> tuple[Op, dict[str, RelativeRms]]:
    """Returns the op with the promises of whole rows, and these by result."""
    found = dict.fromkeys(outputs, given) if isinstance(given, RelativeRms) else {} if given is None else given
    hint = "promise=verify.relative_rms(0.02)"
    if not isinstance(found, Mapping) or not all(isinstance(each, RelativeRms) for each in found.values()):
        raise UsageError(f"{about}: promise is a verify.relative_rms, or some by result; received {given!r}", hint=hint)
    demand(about, "promise", found, "results", outputs, hint)
    return replace(op, gate="noise", meaning=replace(op.meaning, promised=found)) if found else op, dict(found)  # type: ignore[type-var]


def _formats(results: Iterable[str], dtypes: Sequence[str], others: OfDtypes) -> list[tuple[str, str | None]]:
    """Returns each result with its format, for each dtype of cases."""
    return [
        (name, others.get(dtype, {}).get(name, dtype if name == "y" else None)) for name in results for dtype in dtypes
    ]


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
