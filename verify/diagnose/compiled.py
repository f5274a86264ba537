"""Proves the order in which a Triton kernel adds up, from what Triton compiled, for `verify explain --order`.

On a GPU the compiled programs are those of the launches. Elsewhere the launches of the interpreter are compiled for an
H100 in a process of its own, whose Triton interprets nothing; no GPU is needed for that. `ttgir.py` runs one program of
a launch on symbols, and a sum is a tree of additions in what it computed.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from fractions import Fraction
from functools import partial
from hashlib import sha256
from itertools import groupby, pairwise, product
from typing import Any, NamedTuple

import msgspec

from verify.backends import Backend
from verify.diagnose.requests import Order, Proof, ProvedSum
from verify.measure.launches import Launch, launches_of
from verify.measure.ttgir import ADDITIONS, COMMUTES, OPERAND, PRODUCT, NotUnderstood, Program
from verify.ops.autograd import DispatchMode

_PROGRAMS = 256  # of a launch that are compared
_FEW = 8  # numbers of memory that name a term
_OF_ZEROS = {*ADDITIONS, "arith.mulf", "arith.extf", "arith.truncf", PRODUCT}  # give zero for zeros
_PRECISION = {"f64": 53, "f32": 24, "f16": 11, "bf16": 8}
_PLACES = {  # where additions are made: of parts in turn, or in a butterfly
    "loop": "{0:,} turns of a loop",
    "thread": "{0:,} numbers of a thread in turn",
    "lanes": "a butterfly over {1:,} lanes",
    "warps": "a butterfly over {1:,} warps",
}


# -- orders ---------------------------------------------------------------------------------------


def proved(of: Order, call: Callable[[], Any], backend: Backend, target: str) -> Iterator[Order]:
    """Yields the orders of the sums in the launches of a call, or why there are none; `of` names kernel and dtype."""
    try:
        launches = {each.ttgir + str(each.grid): each for each in launches_of([call], backend, target)[0]}
    except NotUnderstood as why:
        yield msgspec.structs.replace(of, unknown=str(why), basis="compiled")
        return
    for launch in launches.values():
        named = msgspec.structs.replace(of, kernel=launch.function, basis="compiled")
        if "tt.reduce" not in launch.ttgir and "scf.for" not in launch.ttgir and "tt.dot" not in launch.ttgir:
            continue
        try:
            program = _program(launch, (0, 0, 0))
            sums, refused = sums_of(program)
        except NotUnderstood as why:
            sums, refused = [], [str(why)]
        forms: dict[tuple[Any, ...], list[Sum]] = {}
        for each in sums:
            forms.setdefault((tuple(each.additions), each.format, each.zeros, each.products), []).append(each)
        yield from (_order(named, launch, program, form) for form in forms.values())
        yield from (msgspec.structs.replace(named, unknown=why) for why in refused)


def _program(launch: Launch, ids: Sequence[int]) -> Program:
    try:
        return Program(launch.ttgir, launch.values, ids, launch.grid)
    except (LookupError, TypeError, ValueError) as error:  # a form of text that `ttgir.py` does not know
        raise NotUnderstood(f"its TTGIR is not read: {type(error).__name__}: {error}") from error


def _order(of: Order, launch: Launch, program: Program, form: list[Sum]) -> Order:
    """Returns the order of sums of one form, with their proof."""
    first = form[0]
    numbers = [launch.values.get(name) for name in program.operands]
    bound = (1 + Fraction(1, 1 << _PRECISION[first.format])) ** first.depth - 1
    split = [
        ProvedSum([[_split(each) for each in term] for term in one.terms], [_split(each) for each in one.results])
        for one in form
    ]
    read = {at >> OPERAND for each in form for term in each.terms for at in term}
    stored = {at >> OPERAND for each in form for at in each.results}
    operand, result = (", ".join(program.operands[at] for at in sorted(places)) for places in (read, stored))
    words = [_PLACES[where].format(deep + 1, 1 << deep) for where, deep in reversed(first.places)]
    return msgspec.structs.replace(
        of,
        operand=operand,
        result=result or "a step",
        rows=len(form),
        kind=first.format,
        terms=len(first.terms),
        additions=first.additions,
        depth=first.depth,
        explained=1.0,
        words=[", then ".join(words)],
        proof=Proof(
            target=launch.target,
            ptx=launch.ptx,
            values=[int(each) if isinstance(each, int) else None for each in numbers],
            program=[0, 0, 0],
            grid=launch.grid,
            zeros=first.zeros,
            products=first.products,
            branches=program.branches,
            bound=math.nextafter(float(bound), math.inf),
            sums=split,
        ),
    )


class _OnlyLaunches(DispatchMode):  # type: ignore[no-untyped-call]
    """Refuses a call that computes anything beside its launches."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view and "empty" not in func.__name__:
            raise NotUnderstood(f"it calls {func} beside its launches")
        return func(*args, **(kwargs or {}))


def store_the_same(
    calls: Sequence[Callable[[], Any]], whole: Callable[[], Any], backend: Backend, target: str
) -> list[bool]:
    """Tells of each call if it stores what `whole` stores at the same places, whatever the numbers are.

    Its launches then have the same code, and each number that they store is the same expression of memory.
    """

    def alone(call: Callable[[], Any]) -> None:
        with _OnlyLaunches():  # type: ignore[no-untyped-call]
            call()

    made = launches_of([partial(alone, each) for each in (*calls, whole)], backend, target, launched=False)
    *some, every = [[(each.ptx, _stored(each)) for each in launches] for launches in made]
    if not every:
        raise NotUnderstood("it launches no Triton kernel")

    def same(one: list[tuple[str, dict[int, bytes]]]) -> bool:
        pairs = zip(one, every, strict=False)
        return len(one) == len(every) and all(
            ptx == other and stored.items() <= more.items() for (ptx, stored), (other, more) in pairs
        )

    return [same(one) for one in some]


def _stored(launch: Launch) -> dict[int, bytes]:
    """Maps addresses to hashes of the expressions that the programs of a launch store there."""
    found = dict[int, bytes]()
    if math.prod(launch.grid) > _PROGRAMS:
        raise NotUnderstood(f"{launch.function}: {math.prod(launch.grid):,} programs, of which {_PROGRAMS:,} are read")
    for ids in product(*map(range, launch.grid)):
        program, hashes = _program(launch, ids), list[bytes]()
        for number, node in enumerate(program.nodes):
            parts = [hashes[each] for each in program.inputs(number)]
            own = node[:2] if parts else (*node, launch.values.get(node[1]) if node[0] == "operand" else None)
            text = repr((own, sorted(parts) if node[0] in COMMUTES else parts))
            hashes.append(sha256(text.encode()).digest())
        found |= {address: hashes[number] for address, number in program.stored.items()}
    return found


def _split(address: int) -> tuple[int, int]:
    return address >> OPERAND, address & (1 << OPERAND) - 1


class Sum(NamedTuple):
    """Holds a sum: the addresses that each of its terms reads, and its additions as in `Order`."""

    format: str
    terms: list[list[int]]
    additions: list[tuple[int, int]]
    zeros: bool
    products: bool
    depth: int  # the most roundings of a term
    places: list[tuple[str, int]]  # where the deepest term is added, and how often in turn, the last addition first
    results: list[int]  # addresses of the sum itself


class _Facts:
    """Holds facts about each expression: the addresses that name it as a term, and whether it is zero.

    An expression that reads many numbers, such as a maximum, names no term that it is a part of. It stays one of many
    where it is combined with fewer by the step that made both: the last warp may have few numbers and padding.
    """

    def __init__(self, program: Program) -> None:
        self.reads, self.many, self.zero, self.named = list[list[int]](), list[bool](), list[bool](), list[bool]()
        for number, node in enumerate(program.nodes):
            inputs = program.inputs(number)
            own = {node[2]} if node[0] == "memory" else {at for each in inputs for at in self.reads[each]}
            combined = bool(inputs) and all(program.nodes[each][0] == node[0] for each in inputs)
            many = len(own) > _FEW or (combined and any(self.many[each] for each in inputs))
            self.reads.append([] if many else sorted(own))
            self.many.append(many)
            of_zeros = node[0] in _OF_ZEROS and all(self.zero[at] for at in inputs)
            self.zero.append(of_zeros or node[:2] == ("constant", "0.000000e+00"))
            self.named.append(bool(self.reads[-1]) or (node[0] in ADDITIONS and any(self.named[at] for at in inputs)))


def sums_of(program: Program) -> tuple[list[Sum], list[str]]:
    """Returns the sums of a program, each as large as possible, and why others have no order."""
    inner = {each for at, made in enumerate(program.made) if made for each in program.inputs(at)}
    results: dict[int, list[int]] = {}
    for address, number in program.stored.items():
        while program.nodes[number][0] in ("arith.truncf", "arith.extf"):
            number = program.nodes[number][2]
        results.setdefault(number, []).append(address)
    found, refused, facts = list[Sum](), dict[str, None](), _Facts(program)
    for root, made in enumerate(program.made):
        if made and root not in inner:
            try:
                found += _sum(program, root, facts, results.get(root, []))
            except NotUnderstood as why:
                refused[str(why)] = None
    return found, list(refused)


def _sum(program: Program, root: int, facts: _Facts, results: list[int]) -> Iterator[Sum]:
    """Yields the sum that ends with an addition; nothing if fewer than three of its terms read memory.

    Zeros are no terms. Terms that read nothing, or many numbers, have no name: padding makes one, exp(-inf - max).
    """
    nodes, tree, stack = program.nodes, set[int](), [root]
    leaves, zeros, products = dict[tuple[int, int], list[int]](), False, False
    while stack:
        at = stack.pop()
        if at in tree:
            raise NotUnderstood("an addition enters a sum twice, as in a compensated sum")
        tree.add(at)
        for side, each in enumerate(program.inputs(at)):
            step = nodes[each][0]
            if step in ADDITIONS and facts.named[each]:
                stack.append(each)
            elif facts.zero[each]:
                zeros = True
            else:
                leaves[at, side] = [] if step in ADDITIONS else facts.reads[each]
                products |= step in ("arith.mulf", PRODUCT)
    terms, formats = sorted(leaves.values()), {nodes[at][1] for at in tree}
    named = [term for term in terms if term]
    if len(named) < 3 and len(terms) <= _FEW:
        return
    if len(named) < 3 or any(one == two for one, two in pairwise(named)):
        raise NotUnderstood("terms of a sum read the same numbers, or many")
    if len(formats) > 1:
        raise NotUnderstood(f"a sum in several formats: {', '.join(sorted(formats))}")
    value: dict[Any, int] = {key: at for at, key in enumerate(sorted(leaves, key=leaves.__getitem__))}
    additions, deep = list[tuple[int, int]](), [int(products)] * len(terms)
    made = [""] * len(terms)
    for at in sorted(tree):  # an expression has a larger number than its parts
        keys = [(at, side) if (at, side) in value else each for side, each in enumerate(program.inputs(at))]
        parts = [value[key] for key in keys if key in value]
        if len(parts) == 2:
            additions.append((parts[0], parts[1]))
            deep.append(max(deep[part] for part in parts) + 1)
            made.append(program.made[at])
        value[at] = len(deep) - 1 if len(parts) == 2 else parts[0]
    yield Sum(formats.pop(), terms, additions, zeros, products, deep[-1], _along(additions, deep, made), results)


def _along(additions: list[tuple[int, int]], deep: list[int], made: list[str]) -> list[tuple[str, int]]:
    """Returns where the deepest term is added, the last addition first."""
    places, at = list[str](), len(deep) - 1
    while at > len(additions):
        places.append(made[at])
        at = max(additions[at - len(additions) - 1], key=deep.__getitem__)
    return [(place, len(list(group))) for place, group in groupby(places)]
