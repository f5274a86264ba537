"""Checks certificates of orders of sums: the additions and bounds that they claim, against the kernel's PTX.

    verify explain FILE.py::KERNEL --order --json order.json
    python -m tests.oracle.summation order.json

A certificate has the PTX, the integers of the launch, and for each sum its terms, its additions and a bound of its
error. This module reads nothing else, and shares no code with the module that wrote it, which reads another language
(`verify/measure/ttgir.py`, where layouts give the order).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Mapping
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

from tests.oracle.ptx import ADDITION, OPERAND, Block, Node, Refused, Value

PRECISION = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8}
_FEW, _PATHS = 8, 16  # numbers of memory that name a term; ways through branches on data


class Tree(NamedTuple):
    """Holds what a value is as a part of a sum: a number that equal trees share; 0 is nothing but zeros."""

    number: int
    zeros: bool  # True: a zero is added, which turns a sum of negative zeros into zero
    products: bool  # True: a term is a product


class Known(NamedTuple):
    """Holds the addresses that name an expression as a term, and its tree."""

    reads: frozenset[Any]
    tree: Tree
    many: bool  # True: it reads more addresses than name a term, as a maximum does


class Trees:
    """Numbers trees. A term without a name is one with all others that have none."""

    def __init__(self) -> None:
        self._numbers: dict[Any, int] = {}

    def term(self, addresses: frozenset[Any]) -> int:
        """Returns the number of a term, which is named by the addresses that it reads."""
        return self._numbers.setdefault(addresses, len(self._numbers) + 1)

    def sum(self, kind: str, one: int, two: int) -> int:
        """Returns the number of the sum of two trees."""
        if not one or not two or one == two == self.term(frozenset()):
            return one or two
        return self._numbers.setdefault((kind, *sorted((one, two))), len(self._numbers) + 1)

    def known(self, op: str, inputs: tuple[Value, ...]) -> Known:
        """Returns what is known of an expression."""
        parts = [each for each in inputs if isinstance(each, Node)]
        own = frozenset(inputs[:1] if op == "memory" else [at for each in parts for at in each.known.reads])
        combined = len(parts) == len(inputs) and all(each.op == op for each in parts)
        many = len(own) > _FEW or (combined and any(each.known.many for each in parts))
        reads = frozenset[Any]() if many else own
        return Known(reads, self._of(op, reads, inputs), many)

    def _of(self, op: str, reads: frozenset[Any], inputs: tuple[Value, ...]) -> Tree:
        """Returns the tree of an operation."""
        parts = [each.known.tree if isinstance(each, Node) else Tree(self.term(reads) if each else 0, not each, False)
                 for each in inputs]  # fmt: skip
        added = ADDITION.fullmatch(op)
        if not added:
            zero = op.startswith(("mul.", "cvt.")) and not any(each.number for each in parts)
            return Tree(0 if zero else self.term(reads), zero, op.startswith("mul.") and not zero)
        if added[1] == "fma":  # a product that is not rounded is a term
            zero = not parts[0].number and not parts[1].number
            name = frozenset(at for each in inputs[:2] if isinstance(each, Node) for at in each.known.reads)
            parts = [Tree(0, True, False) if zero else Tree(self.term(name), False, True), parts[2]]
        one, two = parts
        return Tree(self.sum(added[2], one.number, two.number), one.zeros or two.zeros, one.products or two.products)


def checked(order: Mapping[str, Any]) -> str:
    """Returns what an order proves; raises Refused if it claims what the PTX does not do."""
    proof, trees = order["proof"], Trees()
    blocks = list(_paths(proof, trees))
    known = {node.known.tree for block in blocks for node in block.nodes.values() if node.known.tree.number}
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
        terms = [frozenset((operand << OPERAND) + byte for operand, byte in each) for each in claim["terms"]]
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
            results = [_unrounded(block.stored.get((operand << OPERAND) + byte)) for block in blocks]
            if any(each is None or each.known.tree != tree for each in results):
                raise Refused(f"the result at byte {byte} of operand {operand} is no such sum")
    sums = f"{len(proof['sums']):,} sums of {count:,} terms"
    return f"{order['kernel']}: {sums}, at most {deep[-1]} roundings of {kind}: {float(bound):.2e} of the magnitudes"


def _paths(proof: Mapping[str, Any], trees: Trees) -> Iterator[Block]:
    """Yields a run for each way through the branches that data choose."""
    ways: list[list[bool]] = [[]]
    for _ in range(_PATHS):
        before = ways.pop()
        block = Block(proof, trees.known, before)
        ways += [[*block.choices[:at], True] for at in range(len(before), len(block.choices))]
        yield block
        if not ways:
            return
    raise Refused(f"more than {_PATHS} ways through the branches that data choose")


def _unrounded(value: Value | None) -> Node | None:
    """Returns the expression in memory before it was rounded to the result's format; None if there is none."""
    while isinstance(value, Node):
        inputs = value.inputs
        if value.op == "part" and isinstance(inputs[1], Node):
            packed = inputs[1].op.startswith("cvt.rn") and len(inputs[1].inputs) == 2  # the high half comes first
            value = inputs[1].inputs[1 - int(inputs[0] == 1)] if packed else inputs[1] if inputs[0] == 0 else None
        elif value.op.startswith("cvt.") and len(inputs) == 1:
            value = inputs[0]
        else:
            return value
    return None


def main(arguments: Iterator[str]) -> int:
    """Checks files of certificates; returns 1 if one does not hold."""
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
