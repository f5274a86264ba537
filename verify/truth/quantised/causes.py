"""Finds why a quantised tensor is wrong: the other rule or layout that explains its bits."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, get_args

import torch
from torch import Tensor

from verify.truth.codes import CODE_FORMATS, TIES, code_format
from verify.truth.quantised.blocks import WRONG, Judged, Value, in_blocks, judge
from verify.truth.quantised.encoding import FLOATS, PACKINGS, POWERS, Encoding, Overflow, Parts, ScaleRule
from verify.truth.quantised.operands import tiled

ZEROS = "every code of the wrong blocks is 0"
UNKNOWN = "no other rule or layout that verify knows explains it"
_SHOWN = 3  # distances of zero points that are listed
_MOST = 0.5  # largest part of the wrong blocks that may stay wrong under a change that explains something
_NEARLY = 0.99  # part of the elements whose code an explanation must give
_WORDS = {
    "packed": "the codes of a byte are swapped: they lie {0}, the declaration says {1}",
    "words": "the codes of an int32 lie in another order: {0}, the declaration says {1}",
    "swizzle": "the scales are {0}, the declaration says {1}",
    "rule": "scales follow the rule {0}, the declaration says {1}",
    "by": "amax / largest is computed by {0}, the declaration says by {1}",
    "ties": "ties go {0}, the declaration says {1}",
    "overflow": "elements beyond the largest number become {0}, the declaration says {1}",
    "random": "elements are rounded {0}, the declaration says {1}",
    "zero": "zeros are {0}, the declaration says {1}",
}
_VALUES = {  # of some fields, in words
    "swizzle": {"": "in the order of the blocks", "128x4": "in 128x4 tiles"},
    "ties": {"even": "to even", "to zero": "toward zero", "away": "away from zero",
             "truncate": "toward zero, all elements", "outward": "away from zero, all elements"},
    "random": {"": "to nearest, without the bits", "add": "up where the bits carry",
               "less": "up where the bits are less"},
}  # fmt: skip


def causes(encoding: Encoding, value: Value, parts: Parts, found: Judged | None = None) -> list[str]:
    """Returns reasons for wrong blocks in words, the one that explains most first; [] if no block is wrong.

    `found` is the verdict, if the caller has it.
    """
    found = judge(encoding, value, parts) if found is None else found
    if not found.wrong:
        return []
    if found.second:
        rules = [words for left, words in _explained(encoding, value, parts, found.wrong) if not left]
        return [*rules[:1], found.second]
    seen = _at_once(found)
    if seen and (seen[0] == ZEROS or seen[0].startswith("only")):
        return seen
    explained = sorted(_explained(encoding, value, parts, found.wrong), key=lambda each: each[0])
    whole = [words for left, words in explained if not left]
    # A full explanation comes first. If it is a layout, it also explains the scales, so no other reason follows.
    if whole:
        return whole[:2] + ([] if any(name in whole[0] for name in ("byte", "int32", "order of the blocks")) else seen)
    return seen + [f"{words} (explains all but {left:,} blocks)" for left, words in explained[:2]] or [UNKNOWN]


def _explained(encoding: Encoding, value: Value, parts: Parts, wrong: int) -> Iterator[tuple[int, str]]:
    """Yields, for each change of one field that explains most wrong blocks, how many stay wrong, and the words."""
    for name, other in _others(encoding):
        changed = replace(encoding, **{name: other})
        left = judge(changed, value, _relaid(changed, value, parts), ties=False).wrong
        if left <= _MOST * wrong and left < wrong:
            values = (getattr(changed, name), getattr(encoding, name))
            said = (_VALUES.get(name, {}).get(value, value) for value in values)
            phrase = "words" if name == "packed" and changed.packing and changed.packing.is_word else name
            yield left, _WORDS[phrase].format(*said)


def _others(encoding: Encoding) -> Iterator[tuple[str, Any]]:
    """Yields the fields of a declaration to try, with another value."""
    # the packing whose codes lie in the order that is taken for that of the declaration
    mistaken = encoding.packing and encoding.packing.mistaken
    yield from (("packed", name) for name, each in PACKINGS.items() if each == mistaken)
    yield "swizzle", "" if encoding.swizzle else "128x4"
    for rule in _rules(encoding):
        if rule != encoding.rule:
            yield "rule", rule
    if encoding.by:
        yield "by", "reciprocal" if encoding.by == "division" else "division"
    if encoding.random:
        yield "random", "less" if encoding.random == "add" else "add"
        yield "random", ""
    yield from (("ties", ties) for ties in TIES if encoding.ties not in (ties, "any"))
    yield from (("overflow", each) for each in get_args(Overflow) if each != encoding.overflow)
    yield from (("zero", each) for each in ("signed", "positive") if encoding.zero not in (each, "any"))


def _relaid(encoding: Encoding, value: Value, parts: Parts) -> Parts:
    """Returns the parts with the scales in the shape of another layout. Cuts them, or adds zeros."""
    wanted = encoding.shapes(value.shape)["scales"]
    flat, count = parts.scales.reshape(-1), math.prod(wanted)
    if len(flat) < count:
        flat = torch.cat([flat, torch.zeros(count - len(flat), dtype=flat.dtype)])
    return replace(parts, scales=flat[:count].reshape(wanted))


def _rules(encoding: Encoding) -> tuple[ScaleRule, ...]:
    """Returns the rules that are possible with the format of the scales."""
    if encoding.scale == "e8m0":
        return POWERS
    if encoding.scale in FLOATS:
        return (*POWERS, "nearest", "up")
    both = (encoding.data.name, encoding.scale) == ("e2m1", "e4m3fn")
    return ("nearest", "up", "4over6") if both else ("nearest", "up")


def _at_once(found: Judged) -> list[str]:
    """Returns the causes that the bits show without a trial: zeros, lost NaN, scales that are one code off."""
    encoding, wrong = found.encoding, (found.kinds == WRONG).reshape(-1)
    x = in_blocks(found.value.low, encoding, 0.0)
    numbers, scale = encoding.data.tensor("table")[found.codes], found.scale.reshape(-1)
    named = []
    if bool((found.codes[wrong] == 0).all()) and bool((x[wrong] != 0).any()):
        return [ZEROS]
    numbered = wrong & ~x.isnan().any(1)
    if encoding.scale not in FLOATS and not encoding.second:
        least = code_format(encoding.scale).numbers[0]
        reached = not bool((found.scale_off.reshape(-1) & numbered).any())
        if bool(numbered.any()) and bool((scale[numbered] == least).all()) and reached:
            return [f"only blocks with the smallest scale, {least:g}, are wrong: it is read as another number"]
    lost = wrong & (x.isnan() & ~(numbers * scale[:, None]).isnan()).any(1)
    if bool(lost.any()):
        named.append(f"NaN is lost: {int(lost.sum()):,} blocks with NaN decode to numbers")
    made = numbered & (numbers * scale[:, None]).isnan().any(1)
    if bool(made.any()):
        named.append(f"NaN is made: {int(made.sum()):,} blocks without NaN decode to NaN")
    if _unrounded(found, x, numbered):
        named.append("elements are divided by the scale before it is rounded to its format")
    if found.zero is not None and found.zeros is not None:
        named += _zeros(found, wrong & ~found.scale_off.reshape(-1) & (x != 0).any(1))
    off = wrong & found.scale_off.reshape(-1) & ~lost & ~made & (x != 0).any(1)
    if bool(off.any()):
        named.append(_off(encoding, scale[off], found.wanted.nominal.reshape(-1)[off]))
    return named


def _zeros(found: Judged, blocks: torch.Tensor) -> list[str]:
    """Names zero points that the rule cannot give, of blocks with a right scale."""
    assert found.zero is not None and found.zeros is not None
    off = blocks & ~((found.zeros >= found.zero.low) & (found.zeros <= found.zero.high))
    steps = sorted(set((found.zeros - found.zero.nominal)[off].tolist()))
    if not steps:
        return []
    shown = ", ".join(f"{step:+g}" for step in steps) if len(steps) <= _SHOWN else f"{steps[0]:+g} to {steps[-1]:+g}"
    return [f"the zero point is off ({shown}) in {int(off.sum()):,} blocks"]


def _unrounded(found: Judged, x: torch.Tensor, blocks: torch.Tensor) -> bool:
    """True if nearly all elements of these blocks have the code of x divided by the unrounded scale."""
    table, values = found.encoding.data, x[blocks]
    if found.encoding.rule not in ("nearest", "rceil", "up") or not len(values):
        return False
    exact = values.abs().amax(1, keepdim=True) / table.largest
    got = table.tensor("places")[found.codes[blocks]]
    return float((table.nearest(values / exact) == got).double().mean()) > _NEARLY


def _off(encoding: Encoding, got: torch.Tensor, wanted: torch.Tensor) -> str:
    """Says how far scales are from those of the rule: in codes of their format, or as a factor of floats."""
    blocks = f"in {len(got):,} blocks"
    if encoding.scale in FLOATS:
        factors = (got / wanted)[wanted > 0]
        if not len(factors):
            return f"the scale is not 0 {blocks}, the rule gives 0"
        low, high = float(factors.min()), float(factors.max())
        return f"the scale is off {blocks}: {low:.9g}{'' if low == high else f' to {high:.9g}'} times that of the rule"
    numbers = code_format(encoding.scale).tensor("numbers")
    steps = torch.searchsorted(numbers, got.nan_to_num(nan=float("inf"))) - torch.searchsorted(numbers, wanted)
    few = sorted(set(steps.tolist()))
    if all(abs(step) <= 2 for step in few):
        code = "one code" if set(few) <= {-1, 1} else "some codes"
        return f"the scale is off by {code} ({', '.join(f'{step:+d}' for step in few)}) {blocks}"
    return f"the scale is off {blocks}, by {few[0]:+,} to {few[-1]:+,} codes"


Named = Mapping[str, Tensor]
Mistake = tuple[str, Named, Encoding]  # in words, and the parts and the encoding of the numbers that it makes


def misread(encoding: Encoding, parts: Named) -> Iterator[Mistake]:
    """Yields each mistake that changes something."""
    scales = parts["scales"]
    yield from _other_order(encoding, parts)
    if encoding.swizzle:
        line = tiled(scales, math.nan if encoding.scale in FLOATS else 255)
        in_order = line[..., : math.prod(scales.shape[-2:])].reshape(scales.shape)
        words = f"the scales are read in the order of the blocks, they lie in {encoding.swizzle} tiles"
        yield words, {**parts, "scales": in_order}, encoding
    yield from _other_formats(encoding, parts)
    for step in (1, -1):
        if encoding.scale in FLOATS:
            continue
        last = len(code_format(encoding.scale).table) - 1
        words = f"the scale is read off by one code ({step:+d})"
        yield words, {**parts, "scales": (scales + step).clamp(0, last)}, encoding
    if scales.shape[-1] > 1:
        yield "the scale is that of the next block in a row", {**parts, "scales": scales.roll(-1, -1)}, encoding
        yield "the scale is that of the block before in a row", {**parts, "scales": scales.roll(1, -1)}, encoding
        first = scales[..., :1].expand(scales.shape)
        yield "the scale is that of the first block in a row", {**parts, "scales": first}, encoding
    one = encoding.filled("scales", scales, 1.0)
    yield "the scales are left out", {**parts, "scales": one}, encoding
    if encoding.zero_point:
        yield from _other_zeros(encoding, parts)
    if encoding.second:
        yield "the second scale is left out", {**parts, "second": torch.ones_like(parts["second"])}, encoding


def _other_order(encoding: Encoding, parts: Named) -> Iterator[Mistake]:
    """Yields the readings of packed codes, and of zero points that are packed likewise, in another order."""
    if (packing := encoding.packing) is None:
        return
    axes = {"codes": packing.axis, **({"zeros": -1} if encoding.packs_zeros else {})}
    seen = {name: packing.mistaken.unpack(packing.pack(parts[name], axis).long(), axis) for name, axis in axes.items()}
    words = f"the codes of a byte are swapped: they lie {encoding.packed}, the kernel reads them the other way"
    if packing.is_word:
        words = f"the codes of an int32 lie in the order {packing.words}, the kernel reads {packing.mistaken.words}"
    yield words, {**parts, "codes": seen["codes"]}, encoding
    if "zeros" in seen:
        yield words, {**parts, **seen}, encoding
        yield words.replace("codes", "zero points"), {**parts, "zeros": seen["zeros"]}, encoding


def _other_zeros(encoding: Encoding, parts: Named) -> Iterator[Mistake]:
    """Yields the mistakes that concern zero points."""
    zeros = parts["zeros"]
    yield "the zero points are left out", {**parts, "zeros": encoding.filled("zeros", zeros, 0.0)}, encoding
    if encoding.data.numbers[0] == 0:
        middle = encoding.filled("zeros", zeros, 2.0 ** (encoding.data.bits - 1))
        yield "the middle of the codes is taken as the zero point", {**parts, "zeros": middle}, encoding
    for step in (1, -1):
        moved = zeros + step
        if encoding.zero_point not in FLOATS:
            moved = moved % len(code_format(encoding.zero_point).table)
        yield f"the zero point is off by one ({step:+d})", {**parts, "zeros": moved}, encoding


def _other_formats(encoding: Encoding, parts: Named) -> Iterator[Mistake]:
    """Yields the readings of codes, and of scales, in other formats of as many bits."""
    for other in CODE_FORMATS.values():
        if other.bits == encoding.data.bits and other.name not in (encoding.data.name, "e8m0"):
            words = f"the codes are read as {other.name}, they are {encoding.data.name}"
            yield words, parts, replace(encoding, data=other)
        if encoding.scale not in FLOATS and other.bits == 8 and other.name not in (encoding.scale, "int8"):
            words = f"the scales are read as {other.name}, they are {encoding.scale}"
            yield words, parts, replace(encoding, scale=other.name)
