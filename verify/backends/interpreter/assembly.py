"""Inline PTX on the CPU: straight-line code of arithmetic, conversions and moves, on numpy arrays.

`tl.inline_asm_elementwise` passes PTX text. This module executes it statement by statement. A register is an array with
one pattern per instance of the code. An instruction with one defined result (fma, add, min, cvt, ...) gives that
result. The `.approx` ones (ex2, lg2, rcp, rsqrt, sqrt, sin, cos, tanh, div) and `div.full` are computed correctly
rounded, with `.ftz`: the value that the hardware approximates, not the hardware's bits.

Branches, predicated statements, memory and everything else that is not listed raise UsageError.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np

from verify.backends.interpreter import ptx
from verify.backends.interpreter.rounding import Array, silent
from verify.errors import UsageError

_STATEMENT = re.compile(r"^(?P<opcode>[a-z_0-9]+(?:\.[A-Za-z_0-9]+)*)\s*(?P<operands>.*)$", re.DOTALL)
_WORDS = {1: np.uint8, 2: np.uint16, 4: np.uint32, 8: np.uint64}


@dataclass(frozen=True)
class Packing:
    """The layout of `pack` elements of one tensor in registers: `per_register` elements in each of `count`."""

    per_register: int
    count: int

    @classmethod
    def of(cls, itemsize: int, pack: int) -> Packing:
        per_register = min(pack, max(4 // itemsize, 1))
        return cls(per_register, pack // per_register)


def run(asm: str, constraints: str, inputs: list[Array], outputs: list[np.dtype[np.generic]], pack: int) -> list[Array]:
    """Returns the outputs of an inline assembly, in the dtypes `outputs`."""
    shape = np.broadcast_shapes(*(a.shape for a in inputs)) if inputs else (1,)
    size = int(np.prod(shape))
    if size % pack != 0:
        raise UsageError(f"inline assembly: pack={pack} must divide the number of elements; got {size} elements")
    registers: dict[str, Array] = {}
    packings = [Packing.of(dtype.itemsize, pack) for dtype in outputs]
    wanted = sum(p.count for p in packings)
    declared = sum(c.strip().startswith("=") for c in constraints.split(","))
    if declared != wanted:
        raise UsageError(
            f"inline assembly: the results need {wanted} output registers (pack={pack}); "
            f"the constraints {constraints!r} declare {declared}"
        )
    number = wanted
    for array in inputs:
        packing = Packing.of(array.dtype.itemsize, pack)
        for register in _pack(np.broadcast_to(array, shape), packing):
            registers[f"${number}"] = register
            number += 1
    for statement in statements(asm):
        _execute(statement, registers)
    out, number = [], 0
    for dtype, packing in zip(outputs, packings, strict=True):
        names = [f"${number + i}" for i in range(packing.count)]
        number += packing.count
        missing = [n for n in names if n not in registers]
        if missing:
            raise UsageError(f"inline assembly: nothing is written to {', '.join(missing)} in {asm.strip()!r}")
        out.append(_unpack([registers[n] for n in names], dtype, packing, size, pack).reshape(shape))
    return out


def _pack(array: Array, packing: Packing) -> list[Array]:
    """Returns the registers of a tensor: element j of a group is in register j // per_register, low bits first."""
    word = np.ascontiguousarray(array).reshape(-1, packing.count, packing.per_register)
    wide = word.view(_WORDS[array.dtype.itemsize * packing.per_register])
    return [np.ascontiguousarray(wide[:, i, 0]) for i in range(packing.count)]


def _unpack(registers: list[Array], dtype: np.dtype[np.generic], packing: Packing, size: int, pack: int) -> Array:
    width = _WORDS[dtype.itemsize * packing.per_register]
    stacked = np.stack([np.broadcast_to(r.astype(width), (size // pack,)) for r in registers], axis=1)
    if dtype == np.bool_:
        flags: Array = stacked.ravel() != 0
        return flags
    return np.ascontiguousarray(stacked).view(_WORDS[dtype.itemsize]).ravel().view(dtype)


def statements(asm: str) -> list[str]:
    """Returns the statements of PTX text, without comments, scopes and register declarations."""
    text = re.sub(r"/\*.*?\*/", " ", re.sub(r"//[^\n]*", " ", asm), flags=re.DOTALL)
    out = []
    for raw in text.split(";"):
        # A brace at the start of a statement is a scope; inside a statement it is a vector operand.
        statement = re.sub(r"^[\s{}]+", "", raw).strip()
        if statement and not statement.startswith(".reg"):
            out.append(" ".join(statement.split()))
    return out


def _execute(statement: str, registers: dict[str, Array]) -> None:
    """Executes one statement."""
    match = _STATEMENT.match(statement)
    if match is None or statement.startswith("@"):
        raise _unknown(statement)
    opcode = match["opcode"]
    operands = re.findall(r"\{[^}]*\}|[^,\s]+", match["operands"].replace("|", " "))
    instruction = ptx.decode(opcode)
    if instruction is None or not operands:
        raise _unknown(statement)
    destination, sources = operands[0], operands[1:]
    if opcode.startswith("mov") and (destination.startswith("{") or any(s.startswith("{") for s in sources)):
        _move_vector(destination, sources[0], registers)
        return
    if len(sources) != instruction.operands:
        raise UsageError(f"inline assembly: {opcode} takes {instruction.operands} sources: {statement!r}")
    values = [_read(s, instruction.width(i), registers, statement) for i, s in enumerate(sources)]
    with silent():
        registers[destination] = instruction.compute(*values)


def _move_vector(destination: str, source: str, registers: dict[str, Array]) -> None:
    """Executes `mov.b32 {a, b}, r` or `mov.b32 r, {a, b}`: splits or joins a word, low half first."""
    if destination.startswith("{"):
        names = [n.strip() for n in destination.strip("{}").split(",")]
        whole = registers[source]
        half = whole.dtype.itemsize * 8 // len(names)
        for i, name in enumerate(names):
            part = (whole >> whole.dtype.type(half * i)) & whole.dtype.type((1 << half) - 1)
            registers[name] = part.astype(_WORDS[half // 8])
        return
    parts = [registers[n.strip()] for n in source.strip("{}").split(",")]
    word = _WORDS[parts[0].dtype.itemsize * len(parts)]
    shift = parts[0].dtype.itemsize * 8
    whole = np.zeros_like(parts[0], dtype=word)
    for i, part in enumerate(parts):
        whole |= part.astype(word) << word(shift * i)
    registers[destination] = whole


def _read(operand: str, width: int, registers: dict[str, Array], statement: str) -> Array:
    """Returns the patterns of a register or an immediate, as unsigned integers of the instruction's width."""
    if operand in registers:
        value = registers[operand]
        if value.dtype == np.bool_ or width == 0 or value.dtype.itemsize * 8 == width:
            return value
        return value.astype(_WORDS[width // 8])
    if match := re.fullmatch(r"0[fF]([0-9a-fA-F]{8})", operand):
        return np.array([int(match[1], 16)], dtype=np.uint32)
    if match := re.fullmatch(r"0[dD]([0-9a-fA-F]{16})", operand):
        bits = np.array([int(match[1], 16)], dtype=np.uint64)
        return bits if width == 64 else bits.view(np.float64).astype(np.float32).view(np.uint32)
    if re.fullmatch(r"-?(0x[0-9a-fA-F]+|\d+)", operand):
        return np.array([int(operand, 0) % (1 << width)], dtype=np.uint64).astype(_WORDS[width // 8])
    if re.fullmatch(r"-?\d+\.\d*(e[-+]?\d+)?", operand):
        float_type = np.float64 if width == 64 else np.float32
        return np.array([float(operand)], dtype=float_type).view(_WORDS[width // 8])
    raise UsageError(f"inline assembly: {operand!r} is read before it is written in {statement!r}")


def _unknown(statement: str) -> UsageError:
    return UsageError(
        f"inline assembly: the interpreter backend has no {statement.split()[0]!r} (in {statement!r}); "
        f"it has {', '.join(sorted(ptx.BASES))}",
        hint="write the step in Triton, add the instruction to verify/backends/interpreter/ptx.py, or run on a GPU",
    )
