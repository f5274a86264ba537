"""Checks a certificate of the order of sums: runs the kernel's PTX on symbols, all threads of a block in step.

    python -m tests.oracle.summation certificate.json

The certificate has the PTX, the integers of the launch, and for each sum its terms, its additions and a bound of the
error. This module reads nothing else and shares no code with the module that wrote it, which reads another language
(`verify.diagnose.compiled`: TTGIR, where a layout gives the order). Here no layout is known: shuffles and shared memory
move the numbers. An instruction that is not known gives an unknown number, or is refused if it writes memory.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
PRECISION = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8}
_FEW = 8  # terms of an addition that is a step of a term, and no sum of its own
_STEPS, _PATHS = 200_000, 16  # instructions of a run, and runs
_ADDITION = re.compile(r"(add|sub|fma)(?:\.rn)?\.(f64|f32|f16|bf16)")
_LINE = re.compile(r"(?:@(!?)(%\w+)\s+)?([a-z][\w.:]*)\s*(.*)")
_OPERAND = re.compile(r"\{[^}]*\}|\[[^\]]*\]|[^,\s{}\[\]]+")
_HIGH = np.uint64(48)  # a pointer is its operand's number and a byte


class Refused(Exception):
    """Raised with what the PTX or the certificate has that cannot be checked."""


class Word(NamedTuple):
    """Holds a register of every thread: a number, or the number of an expression where `symbol` is True."""

    bits: Array
    symbol: Array


def _signed(bits: Array, width: int) -> Array:
    shift = np.uint64(64 - width)
    return (bits << shift).view(np.int64) >> np.int64(64 - width)


def _shifted(a: Array, b: Array, right: bool, width: int) -> Array:
    gone = b >= width
    out = np.where(right, a >> (b % 64), a << (b % 64))
    return np.where(gone, np.where(right & (a < 0), -1, 0), out)


_INTEGER: dict[str, Callable[..., Array]] = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "mad": lambda a, b, c: a * b + c, "and": np.bitwise_and,
    "or": np.bitwise_or, "xor": np.bitwise_xor, "not": np.invert, "neg": np.negative, "min": np.minimum,
    "max": np.maximum, "bfe": lambda a, at, count: (a >> at) & ((np.int64(1) << count) - 1),
    "div": lambda a, b: np.trunc(a / b).astype(np.int64), "rem": np.fmod, "cvt": lambda a: a, "cvta": lambda a: a,
}  # fmt: skip
_COMPARED: dict[str, Callable[..., Array]] = {
    "eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "lo": np.less, "ls": np.less_equal, "hi": np.greater, "hs": np.greater_equal,
}  # fmt: skip


class Launch(NamedTuple):
    """Holds the integers of the operands, or None, the place of a block and the sizes of the grid."""

    values: Sequence[int | None]
    ids: Sequence[int]
    grid: Sequence[int]


class Block:
    """Runs one block of threads. `nodes` are the expressions, `stored` those in memory, by address and in halves."""

    def __init__(self, ptx: str, launch: Launch, choices: Sequence[bool] = ()) -> None:
        values, ids, grid = launch
        self.choices = list(choices)  # of branches on data, in turn; others are not taken
        self._chosen = 0
        entry = re.search(r"\.entry (\w+)\((.*?)\)(.*?)\{\n(.*)\n\}", re.sub(r"//.*", "", ptx), re.S)
        threads = re.search(r"\.reqntid (\d+)", ptx)
        if not entry or not threads:
            raise Refused("no kernel with a fixed number of threads")
        self.threads = np.arange(int(threads[1]), dtype=np.uint64)
        self.nodes: list[tuple[Any, ...]] = []
        self.stored: dict[int, int] = {}
        self._numbers: dict[tuple[Any, ...], int] = {}
        self._shared: dict[int, tuple[int, bool]] = {}
        self._registers: dict[str, Word] = {"%tid.x": self._plain(self.threads)}
        for axis, place, count in zip("xyz", ids, grid, strict=True):
            self._registers |= {f"%ctaid.{axis}": self._plain(place), f"%nctaid.{axis}": self._plain(count)}
        parameters = re.findall(r"\.param \.(\w+)( \.ptr)?.*? (\w+_param_\d+)", entry[2])
        for at, (_, pointer, name) in enumerate(parameters):
            known = at << 48 if pointer else values[at] if at < len(values) else None
            self._registers[name] = self._node("operand", at) if known is None else self._plain(known)
        self._execute(entry[4])

    # -- words

    def _plain(self, bits: Any) -> Word:
        wide = bits if isinstance(bits, np.ndarray) else np.array(bits % (1 << 64), np.uint64)
        return Word(np.broadcast_to(wide, self.threads.shape).astype(np.uint64), np.zeros(self.threads.shape, bool))

    def _number(self, *key: Any) -> int:
        if key not in self._numbers:
            self._numbers[key] = len(self.nodes)
            self.nodes.append(key)
        return self._numbers[key]

    def _node(self, op: str, *facts: Any, given: Sequence[Word] = (), ordered: bool = True) -> Word:
        """Returns the expression of an operation in every thread."""
        rows = zip(*(self._expressions(each) for each in given), strict=True) if given else [()] * len(self.threads)
        keys = (tuple(row) if ordered else (*sorted(row[:2]), *row[2:]) for row in rows)
        found = np.array([self._number(op, *facts, *key) for key in keys], np.uint64)
        return Word(found, np.ones(len(found), bool))

    def _expressions(self, word: Word) -> list[int]:
        pairs = zip(word.bits.tolist(), word.symbol.tolist(), strict=True)
        return [bits if symbol else self._number("bits", bits) for bits, symbol in pairs]

    def _read(self, text: str, width: int) -> Word:
        """Returns an operand: a register, a number or a vector."""
        if text.startswith("{"):
            parts = [self._read(each, width // (text.count(",") + 1)) for each in _OPERAND.findall(text[1:-1])]
            return self._packed(parts, width // len(parts))
        if text in self._registers:
            return self._registers[text]
        if matched := re.fullmatch(r"0[fd]([0-9A-F]+)", text):
            return self._plain(np.uint64(int(matched[1], 16)) + np.zeros_like(self.threads))
        if re.fullmatch(r"-?(0x[0-9a-fA-F]+|\d+)", text):
            return self._plain(int(text, 0))
        if text.startswith("%"):
            return self._node("undefined", text)
        return self._plain(0)  # the shared memory

    def _packed(self, parts: Sequence[Word], width: int) -> Word:
        """Returns words of so many bits side by side, the low one first."""
        if len(parts) > 2:
            half = len(parts) // 2
            parts, width = [self._packed(each, width) for each in (parts[:half], parts[half:])], width * half
        if len(parts) == 1:
            return parts[0]
        low, high = parts
        found, symbol = low.bits | high.bits << np.uint64(width), low.symbol | high.symbol
        if symbol.any():
            one, two = self._expressions(low), self._expressions(high)
            for thread in np.flatnonzero(symbol).tolist():
                found[thread] = self._joined(one[thread], two[thread])
        return Word(found, symbol)

    def _joined(self, low: int, high: int) -> int:
        """Returns the expression of two halves: what they are halves of, if they are."""
        (one, *first), (two, *second) = self.nodes[low], self.nodes[high]
        if one == two == "part" and (first, second) == ([0, first[1]], [1, first[1]]):
            return int(first[1])
        if one == two == "memory" and second == [first[0] + first[1], first[1]]:
            return self._number("memory", first[0], 2 * first[1])
        return self._number("pack", low, high)

    def _parts(self, word: Word, count: int, width: int) -> list[Word]:
        """Returns the equal parts of a word of so many bits."""
        if count == 1:
            return [word]
        half = np.uint64(width // 2)
        found = [Word(word.bits & np.uint64((1 << int(half)) - 1), word.symbol.copy())]
        found.append(Word(word.bits >> half, word.symbol.copy()))
        for thread in np.flatnonzero(word.symbol).tolist():
            number = int(word.bits[thread])
            op, *rest = self.nodes[number]
            for at, part in enumerate(found):
                if op == "pack":
                    inner = rest[at]
                elif op == "memory":
                    inner = self._number(op, rest[0] + at * rest[1] // 2, rest[1] // 2)
                else:
                    inner = self._number("part", at, number)
                plain = self.nodes[inner][0] == "bits"
                part.bits[thread], part.symbol[thread] = self.nodes[inner][1] if plain else inner, not plain
        return [part for each in found for part in self._parts(each, count // 2, width // 2)]

    def _of_halves(self, base: str, modifiers: list[str], given: list[Word], width: int) -> Word | None:
        """Returns the bits of an expression that only move, by halves; None if others decide."""
        zero = self._plain(0)
        if base == "cvt":
            widths = [int(each[1:]) for each in modifiers if re.fullmatch(r"u\d+", each)]
            target, source = widths if len(widths) == 2 == len(modifiers) else (0, 1)
            if target in (2 * source, source // 2):
                return (
                    self._packed([given[0], zero], source) if source < target else self._parts(given[0], 2, source)[0]
                )
            return None
        if base not in ("shl", "shr", "or", "and") or width < 32 or (base == "shr" and modifiers[0].startswith("s")):
            return None
        half = width // 2
        one, two = (self._parts(each, 2, width) for each in given)
        if base.startswith("sh"):
            if given[1].symbol.any() or (given[1].bits != half).any():
                return None
            return self._packed([zero, one[0]] if base == "shl" else [one[1], zero], half)
        found = []
        for a, b in zip(one, two, strict=True):
            neutral = 0 if base == "or" else (1 << half) - 1
            none = [~each.symbol & (each.bits == 0) for each in (a, b)]
            keep = [~each.symbol & (each.bits == neutral) for each in (a, b)]
            if base == "and" and (none[0] | none[1]).all():
                found.append(zero)
            elif (keep[0] | keep[1]).all():
                found.append(Word(*(np.where(keep[1], x, y) for x, y in zip(a, b, strict=True))))
            else:
                return None
        return self._packed(found, half)

    # -- instructions

    def _execute(self, body: str) -> None:
        lines = [part.strip() for line in body.splitlines() for part in line.split(";")]
        lines = [each for each in lines if each and not each.startswith((".", "{ .")) and each not in "{}"]
        labels = {each[:-1]: at for at, each in enumerate(lines) if each.endswith(":")}
        at = steps = 0
        while at < len(lines):
            at, steps = at + 1, steps + 1
            line = lines[at - 1]
            if line.endswith(":"):
                continue
            matched = _LINE.fullmatch(line)
            if not matched or steps > _STEPS:
                raise Refused(line if not matched else f"more than {_STEPS:,} instructions")
            negated, predicate, opcode, text = matched.groups()
            active, base = np.ones(self.threads.shape, bool), opcode.split(".")[0]
            if predicate:
                word = self._read(predicate, 1)
                if word.symbol.any():
                    if base != "bra" or not word.symbol.all() or (word.bits != word.bits[0]).any():
                        raise Refused(f"{opcode}: data decide if it runs")
                    self.choices += [False] * (self._chosen == len(self.choices))
                    self._chosen += 1
                    active[:] = self.choices[self._chosen - 1]
                else:
                    active = (word.bits == 0) if negated else (word.bits != 0)
            if base in ("bra", "ret", "exit"):
                if active.any() != active.all():
                    raise Refused(f"{opcode}: threads of a block part ways")
                if active.all():
                    at = labels[text] if base == "bra" else len(lines)
            else:
                self._one(opcode, _OPERAND.findall(text), active)

    def _one(self, opcode: str, operands: list[str], active: Array) -> None:
        base, *modifiers = opcode.split(".")
        kind = modifiers[-1] if modifiers else ""
        width = int(re.sub(r"\D", "", kind.removesuffix("x2")) or 1) * (2 if kind.endswith("x2") else 1)
        if base in ("ld", "st"):
            self._memory(base, modifiers, operands, active, width)
        elif base in ("bar", "barrier", "griddepcontrol", "membar", "fence"):
            pass
        elif base == "stmatrix":
            self._shared.clear()  # what is read from now on is not known
        elif base in ("red", "atom", "cp", "wgmma", "mma", "mbarrier", "call", "tcgen05", "multimem"):
            raise Refused(f"{opcode}: its order or what it writes is not known")
        elif base == "ldmatrix" and "trans" in modifiers:
            for name in _OPERAND.findall(operands[0][1:-1]):
                self._write(name, self._node("undefined", f"{opcode} {name}"), active)
        elif base == "ldmatrix":
            self._matrix(operands)
        else:
            target = operands[0]
            found = self._value(base, modifiers, kind, width, opcode, operands[1:])
            if target.startswith("{"):
                names = _OPERAND.findall(target[1:-1])
                for name, part in zip(names, self._parts(found, len(names), width), strict=True):
                    self._write(name, part, active)
            else:
                self._write(target.split("|")[0], found, active)

    def _write(self, name: str, word: Word, active: Array) -> None:
        if not active.all():
            before = self._read(name, 64)
            word = Word(*(np.where(active, new, old) for new, old in zip(word, before, strict=True)))
        self._registers[name] = word

    def _value(
        self, base: str, modifiers: list[str], kind: str, width: int, opcode: str, operands: list[str]
    ) -> Word:  # fmt: skip
        if kind.endswith("x2") and _ADDITION.fullmatch(opcode.removesuffix("x2")):  # two numbers in a register
            halves = [self._parts(self._read(each, width), 2, width) for each in operands]
            return self._packed(
                [self._added(opcode.removesuffix("x2"), list(pair)) for pair in zip(*halves, strict=True)], width // 2
            )
        given = [self._read(each, width) for each in operands]
        if base == "shfl":
            return self._shuffled(modifiers[1], given)
        if base == "mov":
            return given[0]
        if base == "selp":
            return self._selected(opcode, given)
        if _ADDITION.fullmatch(opcode):
            return self._added(opcode, given)
        if any(each.symbol.any() for each in given) and (moved := self._of_halves(base, modifiers, given, width)):
            return moved
        if any(each.symbol.any() for each in given) or (kind[:1] in "fb" and kind[1:2] not in ("1", "3", "6")):
            return self._node(opcode, given=given)
        if kind.startswith("f") or (base == "cvt" and modifiers[-2].startswith(("f", "bf"))):
            return self._node(opcode, given=given)
        return Word(self._integer(base, modifiers, kind, width, opcode, [each.bits for each in given]), given[0].symbol)

    def _added(self, opcode: str, given: list[Word]) -> Word:
        base, kind = _ADDITION.fullmatch(opcode).groups()  # type: ignore[union-attr]
        return self._node(base, kind, given=given, ordered=base == "sub")

    def _selected(self, opcode: str, given: list[Word]) -> Word:
        one, two, chosen = given
        if chosen.symbol.any():
            return self._node(opcode, given=given)
        return Word(*(np.where(chosen.bits != 0, a, b) for a, b in zip(one, two, strict=True)))

    def _integer(
        self, base: str, modifiers: list[str], kind: str, width: int, opcode: str, given: list[Array]
    ) -> Array:
        source = kind if base != "cvt" else modifiers[-1]
        width_in = int(re.sub(r"\D", "", source) or 1)
        signed = source.startswith("s")
        mask = np.uint64((1 << width_in) - 1)
        values = [_signed(each, width_in) if signed else (each & mask).view(np.int64) for each in given]
        if base == "setp" and len(modifiers) == 2:
            return _COMPARED[modifiers[0]](*values).astype(np.uint64)
        if base in ("shl", "shr"):
            out = _shifted(values[0], (given[1] & np.uint64(0xFFFFFFFF)).view(np.int64), base == "shr", width_in)
        elif base in _INTEGER and not {"hi", "cc", "sat"} & set(modifiers) and opcode.count(".to.") == 0:
            if base == "mad" and "wide" in modifiers:
                values[2] = given[2].view(np.int64)
            with np.errstate(all="ignore"):
                out = _INTEGER[base](*values)
        else:
            raise Refused(f"{opcode}: not known")
        bits = (
            2 * width_in
            if "wide" in modifiers
            else int(re.sub(r"\D", "", modifiers[0]) or 64)
            if base == "cvt"
            else width
        )
        return out.astype(np.int64).view(np.uint64) & np.uint64((1 << bits) - 1)

    def _shuffled(self, mode: str, given: list[Word]) -> Word:
        if any(each.symbol.any() for each in given[1:]):
            raise Refused("shfl: data decide the lane")
        lane, step = self.threads % np.uint64(32), given[1].bits
        lanes = {"bfly": lane ^ step, "idx": step % np.uint64(32), "down": lane + step, "up": lane - step}[mode]
        inside = np.where(lanes < 32, lanes, lane)
        place = (self.threads - lane + inside).astype(np.int64)
        return Word(*(each[place] for each in given[0]))

    def _memory(self, base: str, modifiers: list[str], operands: list[str], active: Array, width: int) -> None:
        """Loads or stores; the shared memory holds numbers in halves of 16 bits."""
        space, vector = modifiers[0], next((int(each[1]) for each in modifiers if each in ("v2", "v4", "v8")), 1)
        data, place = (operands[0], operands[1]) if base == "ld" else (operands[1], operands[0])
        names = _OPERAND.findall(data[1:-1]) if data.startswith("{") else [data]
        inside = re.fullmatch(r"\[\s*([%\w.$]+)\s*(?:\+\s*(-?\d+))?\s*\]", place)
        if not inside or space not in ("global", "shared", "param") or len(names) != vector or width < 16:
            raise Refused(f"{base}.{'.'.join(modifiers)} {place}: not known")
        if space == "param":
            self._write(names[0], self._registers[inside[1]], active)
            return
        start = self._read(inside[1], 64)
        if start.symbol[active].any():
            raise Refused(f"{base}.{space}: data decide the address")
        first = start.bits + np.uint64(int(inside[2] or 0) % (1 << 64))
        for at, name in enumerate(names):
            address = (first + np.uint64(at * width // 8)).tolist()
            if base == "st":
                parts = self._parts(self._read(name, width), width // 16, width)
                for thread in np.flatnonzero(active).tolist():
                    for half, part in enumerate(parts):
                        symbol = bool(part.symbol[thread])
                        value = int(part.bits[thread])
                        if space == "shared":
                            self._shared[address[thread] + 2 * half] = value, symbol
                        else:
                            self.stored[address[thread] + 2 * half] = value if symbol else self._number("bits", value)
            elif space == "global":
                if any(address[thread] in self.stored for thread in np.flatnonzero(active)):
                    raise Refused("ld.global: it reads what the kernel wrote")
                numbers = [self._number("memory", each, width // 8) for each in address]
                self._write(name, Word(np.array(numbers, np.uint64), np.ones(len(numbers), bool)), active)
            else:
                self._write(name, self._from_shared(address, width), active)

    def _from_shared(self, address: list[int], width: int) -> Word:
        halves = []
        for half in range(width // 16):
            found = [
                self._shared.get(each + 2 * half) or (self._number("undefined", each + 2 * half), True)
                for each in address
            ]
            bits, symbol = zip(*found, strict=True)
            halves.append(Word(np.array(bits, np.uint64), np.array(symbol)))
        return self._packed(halves, 16) if len(halves) > 1 else halves[0]

    def _matrix(self, operands: list[str]) -> None:
        """Loads four matrices of 8 by 8 halves: thread t of a warp gets two halves of row t / 4 of each."""
        lane = self.threads % np.uint64(32)
        rows = self._read(operands[1].strip("[] "), 64).bits
        for at, name in enumerate(_OPERAND.findall(operands[0][1:-1])):
            holder = (self.threads - lane + np.uint64(8 * at) + lane // np.uint64(4)).astype(np.int64)
            place = rows[holder] + np.uint64(4) * (lane % np.uint64(4))
            self._write(name, self._from_shared(place.tolist(), 32), lane < 32)


# -- sums -----------------------------------------------------------------------------------------


class Tree(NamedTuple):
    """Holds what an expression is as a part of a sum: a number that equal trees share; 0 is nothing but zeros."""

    number: int
    zeros: bool  # True: a zero is added, which turns a sum of negative zeros into zero
    products: bool  # True: a term is a product, which is rounded unless it is fused


class Trees:
    """Gives each expression its tree. A term is named by the addresses that it reads, if these are few."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}

    def term(self, addresses: frozenset[int]) -> int:
        """Returns the number of a term."""
        return self._numbers.setdefault(addresses, len(self._numbers) + 1)

    def sum(self, kind: str, one: int, two: int) -> int:
        """Returns the number of the sum of two trees. Terms without a name are one term together."""
        if not one or not two or one == two == self.term(frozenset()):
            return one or two
        return self._numbers.setdefault((kind, *sorted((one, two))), len(self._numbers) + 1)

    def of(self, nodes: Sequence[tuple[Any, ...]]) -> list[Tree]:
        """Returns the tree of each expression."""
        found, reads = list[Tree](), list[frozenset[int]]()
        for node in nodes:
            op, *rest = node
            kind = rest[0] if op in ("add", "sub", "fma") and rest and rest[0] in PRECISION else ""
            inner = rest[1:] if kind else [] if op in ("bits", "memory", "operand", "undefined") else rest
            children = [each for each in inner if isinstance(each, int)]
            if op == "part":
                children = children[1:]
            own = (
                frozenset([rest[0]]) if op == "memory" else frozenset[int]().union(*(reads[each] for each in children))
            )
            reads.append(own if len(own) <= _FEW else frozenset())
            if not kind:
                scaled = op.startswith(("mul.", "cvt.")) and not any(found[each].number for each in children)
                zero = scaled or (op == "bits" and rest[0] == 0)
                found.append(Tree(0 if zero else self.term(reads[-1]), zero, op.startswith("mul.") and not zero))
                continue
            parts = [found[each] for each in children]
            if op == "fma":  # a product that is not rounded is a term
                zero = not parts[0].number and not parts[1].number
                name = self.term(reads[children[0]] | reads[children[1]])
                parts = [Tree(0, True, False) if zero else Tree(name, False, True), parts[2]]
            one, two = parts
            number = self.sum(kind, one.number, two.number)
            found.append(Tree(number, one.zeros or two.zeros, one.products or two.products))
        return found


def checked(order: Mapping[str, Any]) -> str:
    """Returns what an order proves; raises Refused if it claims what the PTX does not do."""
    proof = order["proof"]
    launch = Launch(proof["values"], proof["program"], proof["grid"])
    trees = Trees()
    blocks = [(block, trees.of(block.nodes)) for block in _paths(proof["ptx"], launch)]
    known = {each for _, found in blocks for each in found if each.number}
    count, kind = order["terms"], order["kind"]
    deep, left = [int(proof["products"])] * count, set(range(count))
    for one, two in order["additions"]:
        if one == two or not {one, two} <= left:
            raise Refused("a part of a sum is added twice, or before it is there")
        left = left - {one, two} | {len(deep)}
        deep.append(max(deep[one], deep[two]) + 1)
    bound = (1 + Fraction(1, 1 << PRECISION[kind])) ** deep[-1] - 1
    if len(left) != 1 or order["depth"] != deep[-1] or Fraction(proof["bound"]) < bound:
        raise Refused(f"{deep[-1]} roundings give the bound {float(bound):.3g}, not {proof['bound']}")
    for claim in proof["sums"]:
        terms = [frozenset((operand << 48) + byte for operand, byte in each) for each in claim["terms"]]
        named = [each for each in terms if each]
        if len(set(named)) != len(named) or len(terms) != count:
            raise Refused("two terms of a sum have one name")
        numbers = [trees.term(each) for each in terms]
        for one, two in order["additions"]:
            numbers.append(trees.sum(kind, numbers[one], numbers[two]))
        tree = Tree(numbers[-1], proof["zeros"], proof["products"])
        if tree not in known:
            raise Refused(f"the PTX does not add the {count:,} terms from {claim['terms'][0]} on in this order")
        for operand, byte in claim["results"]:
            if any(tree != found[_unrounded(block, (operand << 48) + byte)] for block, found in blocks):
                raise Refused(f"the result at byte {byte} of operand {operand} is another sum")
    sums = f"{len(proof['sums']):,} sums of {count:,} terms"
    return f"{order['kernel']}: {sums}, at most {deep[-1]} roundings of {kind}: {float(bound):.2e} of the magnitudes"


def _paths(ptx: str, launch: Launch) -> Iterator[Block]:
    """Yields a run for each way through the branches that data choose."""
    ways: list[list[bool]] = [[]]
    for _ in range(_PATHS):
        if not ways:
            return
        before = ways.pop()
        block = Block(ptx, launch, before)
        ways += [[*block.choices[:at], True] for at in range(len(before), len(block.choices))]
        yield block
    raise Refused(f"more than {_PATHS} ways through the branches that data choose")


def _unrounded(block: Block, address: int) -> int:
    """Returns the expression that is stored at an address, before it was rounded to the result's format."""
    number = block.stored.get(address, -1)
    while number >= 0:
        op, *rest = block.nodes[number]
        if op == "part":
            inner = block.nodes[rest[1]]
            packed = inner[0].startswith("cvt.rn") and len(inner) == 3
            number = inner[2 - rest[0]] if packed else rest[1] if rest[0] == 0 else -1
        elif op.startswith("cvt.") and len(rest) == 1:
            number = rest[0]
        else:
            return number
    raise Refused(f"nothing is stored at byte {address & (1 << 48) - 1} of operand {address >> 48}")


def main(arguments: Iterator[str]) -> int:
    """Checks certificates; returns 1 if one does not hold."""
    failed = 0
    for path in arguments:
        try:
            orders = [each for each in json.loads(Path(path).read_text()) if each.get("proof")]
            print(path, *map(checked, orders), sep="\n  ")
        except Refused as why:
            print(path, f"not proved: {why}", sep="\n  ")
            failed = 1
    return failed


if __name__ == "__main__":
    sys.exit(main(iter(sys.argv[1:])))
