"""Runs a kernel's PTX on symbols, all threads of a block in step: who adds what, without a GPU and without layouts.

Integers and addresses have the values of a launch; a number of memory is an expression. Shuffles and shared memory move
expressions between threads. An instruction that is not known gives an unknown number; it is refused if it writes
memory.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import cache
from typing import Any

OPERAND = 48  # a pointer is its operand's number, and a byte
ADDITION = re.compile(r"(add|sub|fma)(?:\.rn)?\.(f64|f32|f16|bf16)(x2)?")
_STEPS = 200_000  # instructions of a run
_LINE = re.compile(r"(?:@(!?)(%\w+)\s+)?([a-z][\w.:]*)\s*(.*)")
_OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s{}\[\]]+")
_PLACE = re.compile(r"\[\s*([%\w.$]+)\s*(?:\+\s*(-?\d+))?\s*\]")
_INTEGER: dict[str, Callable[..., int]] = {
    "add": lambda a, b: a + b, "sub": lambda a, b: a - b, "mul": lambda a, b: a * b, "mad": lambda a, b, c: a * b + c,
    "and": lambda a, b: a & b, "or": lambda a, b: a | b, "xor": lambda a, b: a ^ b, "not": lambda a: ~a,
    "neg": lambda a: -a, "min": min, "max": max, "cvt": lambda a: a, "cvta": lambda a: a,
    "shl": lambda a, b: a << b if b < 64 else 0, "shr": lambda a, b: a >> b,
    "bfe": lambda a, at, count: a >> at & (1 << count) - 1, "div": lambda a, b: math.trunc(Fraction(a, b)),
    "rem": lambda a, b: a - b * math.trunc(Fraction(a, b)),
}  # fmt: skip
_COMPARED: dict[str, Callable[[int, int], bool]] = {
    "eq": lambda a, b: a == b, "ne": lambda a, b: a != b, "lt": lambda a, b: a < b, "le": lambda a, b: a <= b,
    "gt": lambda a, b: a > b, "ge": lambda a, b: a >= b,
}  # fmt: skip


class Refused(Exception):
    """Raised with what the PTX or a certificate has that cannot be checked."""


class Node:
    """Holds an expression, and what the caller of the run knows of it. Equal expressions are one object."""

    __slots__ = ("inputs", "known", "op")

    def __init__(self, op: str, inputs: tuple[Value, ...], known: Any) -> None:
        self.op, self.inputs, self.known = op, inputs, known


Value = int | Node  # of one register in one thread
Word = list[Value]  # of one register in every thread


@cache
def _width(kind: str) -> int:
    """Returns the bits of a type such as u32, pred or bf16x2."""
    return int(re.sub(r"\D", "", kind.removesuffix("x2")) or 1) * (2 if kind.endswith("x2") else 1)


class Block:
    """Runs one block of threads. `nodes` are the expressions, and `stored` has the memory in 16 bits each."""

    def __init__(
        self,
        proof: Mapping[str, Any],
        describe: Callable[[str, tuple[Value, ...]], Any],
        choices: Sequence[bool] = (),
    ) -> None:
        text = re.sub(r"//.*", "", proof["ptx"])
        entry = re.search(r"\.entry \w+\((.*?)\)(.*?)\{\n(.*)\n\}", text, re.S)
        threads = re.search(r"\.reqntid (\d+)", text)
        if not entry or not threads:
            raise Refused("no kernel with a fixed number of threads")
        self.count, self.choices, self._chosen = int(threads[1]), list(choices), 0
        self.nodes: dict[tuple[Any, ...], Node] = {}
        self.stored: dict[int, Value] = {}
        self._describe, self._shared = describe, dict[int, Value]()
        self._unknown = self.node("unknown")
        self._registers: dict[str, Word] = {"%tid.x": list(range(self.count)), "global_smem": [0] * self.count}
        for axis, place, size in zip("xyz", proof["program"], proof["grid"], strict=True):
            self._registers |= {f"%ctaid.{axis}": [place] * self.count, f"%nctaid.{axis}": [size] * self.count}
        values = proof["values"]
        for at, (pointer, name) in enumerate(re.findall(r"\.param \.\w+( \.ptr)?.*? (\w+_param_\d+)", entry[1])):
            value = at << OPERAND if pointer else values[at] if at < len(values) else None
            self._registers[name] = [self.node("operand", at) if value is None else value % (1 << 64)] * self.count
        lines = [part.strip() for line in entry[3].splitlines() for part in line.split(";")]
        self._execute([each for each in lines if each not in ("", "{", "}") and not each.startswith((".", "{ ."))])

    def node(self, op: str, *inputs: Value) -> Node:
        """Returns an expression; sums and products are the same in both orders of their factors or terms."""
        if op.startswith(("add.", "mul.", "fma.")):
            inputs = (*sorted(inputs[:2], key=id), *inputs[2:])
        if (op, *inputs) not in self.nodes:
            self.nodes[op, *inputs] = Node(op, inputs, self._describe(op, inputs))
        return self.nodes[op, *inputs]

    # -- units: 16 bits of a register, the low ones first

    def _joined(self, units: Sequence[Value]) -> Value:
        """Returns units side by side as one value."""
        first, count = units[0], len(units)
        if all(isinstance(each, int) for each in units):
            return sum(each << 16 * at for at, each in enumerate(units) if isinstance(each, int))
        if isinstance(first, Node) and first.op in ("memory", "part"):
            whole = first.inputs[1] if first.op == "part" else self.node("memory", first.inputs[0], 2 * count)
            if self._units(whole, count) == list(units):
                return whole
        return first if count == 1 else self.node("pack", *units)

    def _units(self, value: Value, count: int) -> list[Value]:
        """Returns a value as so many units."""
        if isinstance(value, int):
            return [value >> 16 * at & 0xFFFF for at in range(count)]
        if value.op == "pack" or count == 1:
            return list(value.inputs) if value.op == "pack" else [value]
        first = value.inputs[0] if value.op == "memory" else 0
        if value.op == "memory" and isinstance(first, int):
            return [self.node("memory", first + 2 * at, 2) for at in range(count)]
        return [self.node("part", at, value, count) for at in range(count)]

    def _moved(self, base: str, modifiers: list[str], given: Sequence[Value], width: int) -> Value | None:
        """Returns the bits of an expression that only move, by units; None if they do not."""
        count, by = width // 16, given[-1]
        if base == "cvt" and all(each in ("u16", "u32", "u64") for each in modifiers):
            target, source = (int(each[1:]) // 16 for each in modifiers)
            return self._joined([*self._units(given[0], source), 0, 0, 0][:target])
        if base in ("shl", "shr") and not modifiers[0].startswith("s") and isinstance(by, int) and not by % 16:
            units, zeros = self._units(given[0], count), [0] * (by // 16)
            return self._joined([*zeros, *units][:count] if base == "shl" else [*units, *zeros][-count:])
        if base not in ("or", "and") or count < 2:
            return None
        found, neutral = list[Value](), 0 if base == "or" else 0xFFFF
        for pair in zip(*(self._units(each, count) for each in given), strict=True):
            if neutral in pair:
                found.append(pair[0] if pair[1] == neutral else pair[1])
            elif base == "and" and 0 in pair:
                found.append(0)
            else:
                return None
        return self._joined(found)

    # -- instructions

    def _execute(self, lines: list[str]) -> None:
        labels = {each[:-1]: at for at, each in enumerate(lines) if each.endswith(":")}
        at = steps = 0
        while at < len(lines):
            line, at, steps = lines[at], at + 1, steps + 1
            matched = _LINE.fullmatch(line)
            if line.endswith(":"):
                continue
            if not matched or steps > _STEPS:
                raise Refused(line if not matched else f"more than {_STEPS:,} instructions")
            negated, predicate, opcode, text = matched.groups()
            base = opcode.split(".")[0]
            active = self._active(predicate, bool(negated), opcode)
            if base in ("bra", "ret", "exit"):
                if any(active) != all(active):
                    raise Refused(f"{opcode}: threads of a block part ways")
                if all(active):
                    at = labels[text] if base == "bra" else len(lines)
            else:
                self._one(opcode, _OPERAND.findall(text), active)

    def _active(self, predicate: str | None, negated: bool, opcode: str) -> list[bool]:
        """Returns the threads that carry out an instruction. Data choose branches as `choices` say, then not."""
        word = self._read(predicate) if predicate else [1] * self.count
        if any(isinstance(each, Node) for each in word):
            if opcode.split(".")[0] != "bra" or any(each is not word[0] for each in word):
                raise Refused(f"{opcode}: data decide if it runs")
            self.choices += [False] * (self._chosen == len(self.choices))
            self._chosen += 1
            return [self.choices[self._chosen - 1]] * self.count
        return [bool(each) != negated for each in word]

    def _read(self, text: str, width: int = 64) -> Word:
        """Returns an operand: a register, a number or a vector."""
        if text.startswith("{"):
            names = _OPERAND.findall(text[1:-1])
            words = [self._read(each, width // len(names)) for each in names]
            count = width // len(names) // 16
            return [self._joined([unit for part in each for unit in self._units(part, count)])
                    for each in zip(*words, strict=True)]  # fmt: skip
        if text in self._registers:
            return self._registers[text]
        if matched := re.fullmatch(r"0[fd]([0-9A-F]+)|(-?(?:0x[0-9a-fA-F]+|\d+))", text):
            return [int(matched[1], 16) if matched[1] else int(matched[2], 0) % (1 << width)] * self.count
        return [self._unknown] * self.count

    def _write(self, name: str, word: Word, active: Sequence[bool]) -> None:
        before = word if all(active) else self._read(name)
        self._registers[name] = [new if on else old for new, old, on in zip(word, before, active, strict=True)]

    def _one(self, opcode: str, operands: list[str], active: list[bool]) -> None:
        base, *modifiers = opcode.split(".")
        kind = modifiers[-1] if modifiers else ""
        names = _OPERAND.findall(operands[0].strip("{}")) if operands else []
        if base in ("ld", "st"):
            self._memory(base, modifiers, operands, active)
        elif base == "stmatrix":
            self._shared.clear()  # what is read from now on is not known
        elif base == "ldmatrix":
            self._matrices(names, operands[1], "trans" in modifiers)
        elif base in ("red", "atom", "cp", "wgmma", "mma", "mbarrier", "call", "tcgen05", "multimem", "fence"):
            raise Refused(f"{opcode}: its order or what it writes is not known")
        elif base not in ("bar", "barrier", "griddepcontrol", "membar"):
            given = [self._read(each, _width(kind)) for each in operands[1:]]
            if base == "shfl":
                found = self._shuffled(modifiers[1], given)
            else:
                found = [self._value(opcode, base, modifiers, row) for row in zip(*given, strict=True)]
            step = _width(kind) // len(names) // 16
            for at, name in enumerate(names):
                part = found if len(names) == 1 else [
                    self._joined(self._units(each, step * len(names))[at * step :][:step]) for each in found
                ]  # fmt: skip
                self._write(name.split("|")[0], part, active)

    def _matrices(self, names: list[str], place: str, turned: bool) -> None:
        """Loads matrices of 8 by 8 halves: thread t of a warp gets two of row t / 4. Turned ones are not known."""
        rows = self._read(place.strip("[] "))
        for at, name in enumerate(names):
            word = Word()
            for thread in range(self.count):
                row, column = rows[thread - thread % 32 + 8 * at + thread % 32 // 4], 4 * (thread % 4)
                halves = [row + column + half if isinstance(row, int) and not turned else -1 for half in (0, 2)]
                word.append(self._joined([self._shared.get(each, self._unknown) for each in halves]))
            self._registers[name] = word

    def _shuffled(self, mode: str, given: list[Word]) -> Word:
        found = Word()
        for thread, step in enumerate(given[1]):
            if isinstance(step, Node):
                raise Refused("shfl: data decide the lane")
            lane = thread % 32
            other = {"bfly": lane ^ step, "idx": step % 32, "down": lane + step, "up": lane - step}[mode]
            found.append(given[0][thread - lane + other if 0 <= other < 32 else thread])
        return found

    def _value(self, opcode: str, base: str, modifiers: list[str], given: Sequence[Value]) -> Value:
        """Returns the result of an instruction in one thread."""
        kind = modifiers[-1]
        width = _width(kind)
        if (added := ADDITION.fullmatch(opcode)) and added[3]:  # two numbers in a register
            pairs = zip(*(self._units(each, 2) for each in given), strict=True)
            return self._joined([self.node(opcode.removesuffix("x2"), *pair) for pair in pairs])
        if base == "mov":
            return given[0]
        if base == "selp" and isinstance(given[2], int):
            return given[0 if given[2] else 1]
        if any(isinstance(each, Node) for each in given):
            moved = self._moved(base, modifiers, given, width)
            return self.node(opcode, *given) if moved is None else moved
        if any(each.startswith(("f", "bf")) and each != "full" for each in modifiers):
            return self.node(opcode, *given)
        return self._integer(opcode, base, modifiers, [each for each in given if isinstance(each, int)])

    def _integer(self, opcode: str, base: str, modifiers: list[str], given: list[int]) -> int:
        width = _width(modifiers[-1])
        values = [each & (1 << width) - 1 for each in given]
        if modifiers[-1].startswith("s"):
            values = [each - (each >> width - 1 << width) for each in values]
        if base in ("shl", "shr", "bfe"):
            values[1:] = [each & (1 << 32) - 1 for each in given[1:]]
        if base == "mad" and "wide" in modifiers:
            values[2] = given[2]
        if base == "setp" and len(modifiers) == 2:
            order = {"lo": "lt", "ls": "le", "hi": "gt", "hs": "ge"}
            return int(_COMPARED[order.get(modifiers[0], modifiers[0])](*values))
        if base not in _INTEGER or {"hi", "cc", "sat", "to"} & set(modifiers):
            raise Refused(f"{opcode}: not known")
        target = 2 * width if "wide" in modifiers else _width(modifiers[0]) if base == "cvt" else width
        return int(_INTEGER[base](*values)) & (1 << target) - 1

    def _memory(self, base: str, modifiers: list[str], operands: list[str], active: list[bool]) -> None:
        """Loads or stores; memory that the kernel writes holds 16 bits at an address."""
        space, width, loads = modifiers[0], _width(modifiers[-1]), base == "ld"
        data, place = operands[:2] if loads else operands[1::-1]
        names, inside = _OPERAND.findall(data.strip("{}")), _PLACE.fullmatch(place)
        if not inside or space not in ("global", "shared", "param") or width % 16:
            raise Refused(f"{base}.{'.'.join(modifiers)} {place}: not known")
        start, memory = self._read(inside[1]), self.stored if space == "global" else self._shared
        if space == "param":
            self._write(names[0], start, active)
            return
        for at, name in enumerate(names):
            word = list(self._read(name, width))
            for thread in (each for each, on in enumerate(active) if on):
                address = start[thread]
                if isinstance(address, Node):
                    raise Refused(f"{base}.{space}: data decide the address")
                address += at * width // 8 + int(inside[2] or 0)
                halves = range(address, address + width // 8, 2)
                if not loads:
                    memory |= dict(zip(halves, self._units(word[thread], width // 16), strict=True))
                elif space == "shared":
                    word[thread] = self._joined([memory.get(each, self._unknown) for each in halves])
                elif any(each in memory for each in halves):
                    raise Refused("ld.global: it reads what the kernel wrote")
                else:
                    word[thread] = self.node("memory", address, width // 8)
            if loads:
                self._write(name, word, active)
