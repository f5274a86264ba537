"""Runs one program of a compiled Triton kernel on symbols: its TTGIR, Triton's program for a GPU, with layouts.

Integers and pointers have values, so loops, masks and addresses are those of the launch. A float is an expression: a
number of memory, a constant, or a step on other expressions. A layout says which thread holds which element, so a
reduction adds in a known order: the registers of a thread one after the other, then lanes 16, 8, 4, 2, 1 apart, then
warps. Decisions by data, and orders that the hardware picks (tt.dot, tt.atomic_rmw), are refused by name.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]
# The dtype of an array is its kind: expressions by their number, pointers as operand << 48 | byte.
EXPRESSION, POINTER, OPERAND = np.dtype(np.uint32), np.dtype(np.uint64), 48
ADDITIONS, PRODUCT = frozenset({"arith.addf", "arith.subf"}), "product that is not rounded"
COMMUTES = {PRODUCT} | {f"arith.{name}" for name in ("addf", "mulf", "maxnumf", "minnumf", "maximumf", "minimumf")}
_LEAVES = {"memory", "constant", "integer", "operand", "undefined"}
_BYTES = {"f64": 8, "i64": 8, "f32": 4, "i32": 4, "f16": 2, "bf16": 2, "i16": 2, "i8": 1, "i1": 1}
_LOCATION = re.compile(r"\s*\bloc\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")
_OP = re.compile(r'(?:(%[^ :=]+(?:, %[^ :=]+)*)(?::(\d+))? = )?"?([a-z_]+\.[a-z_.0-9]+)"?(.*)')
_VALUE = re.compile(r"%[\w$.-]+(?:#\d+)?")
_TEXT = re.compile(r'"[^"]*"')
_TYPE = re.compile(r"tensor<((?:\d+x)*)(!tt\.ptr<\w+>|\w+)(?:, (.*))?>|(!tt\.ptr<\w+>|\w+)")
_INTEGERS: dict[str, Callable[..., Any]] = {
    "addi": np.add, "subi": np.subtract, "muli": np.multiply, "andi": np.bitwise_and, "ori": np.bitwise_or,
    "xori": np.bitwise_xor, "maxsi": np.maximum, "minsi": np.minimum, "shli": np.left_shift, "shrsi": np.right_shift,
    "divsi": lambda a, b: np.sign(a) * np.sign(b) * (np.abs(a) // np.abs(b)), "remsi": np.fmod,
    "extsi": lambda a: -a.astype(np.int64) if a.dtype == bool else a, "trunci": lambda a: a,
    "extui": lambda a: a if (a >= 0).all() else refuse("arith.extui of a negative number"), "index_cast": lambda a: a,
    "eq": np.equal, "ne": np.not_equal, "slt": np.less, "sle": np.less_equal, "sgt": np.greater,
    "sge": np.greater_equal,
}  # fmt: skip
_BLOCK = "the beginning of a block"
_NOTHING = {_BLOCK, "gpu.barrier", "llvm.intr.assume", "tt.assert"}
_STEPS = re.compile(
    r"arith\.(?!constant)\w+|math\.\w+|tt\.(fp_to_fp|precise_\w+|clampf|extern_elementwise|bitcast|elementwise_inline_asm)"
)


class NotUnderstood(Exception):
    """Raised with what the program has that gives no order."""


class Op(NamedTuple):
    """Holds an operation: its results, its name, what follows the name, the regions in its braces, and its place."""

    results: list[str]
    name: str
    text: str
    regions: list[Region]
    place: str

    @property
    def operands(self) -> list[str]:
        """Returns the names before the types."""
        return _VALUE.findall(_TEXT.sub("", self.text).split(" : ")[0])

    def fact(self, pattern: str) -> str:
        """Returns what a pattern of one group finds in the text."""
        found = re.search(pattern, self.text)
        return found[1] if found else refuse(f"{self.name}{self.text}")


_MOVES: dict[str, Callable[[Op, list[Array], list[int]], Array]] = {
    "tt.splat": lambda op, given, shape: np.broadcast_to(given[0], shape),
    "tt.broadcast": lambda op, given, shape: np.broadcast_to(given[0], shape),
    "tt.expand_dims": lambda op, given, shape: given[0].reshape(shape),
    "ttg.convert_layout": lambda op, given, shape: given[0],
    "tt.join": lambda op, given, shape: np.stack(given, -1),
    "tt.trans": lambda op, given, shape: given[0].transpose(_numbers(op.fact(r"array<i32: ([\d, ]+)>"))),
    "tt.make_range": lambda op, given, shape: np.arange(shape[0]) + int(op.fact(r"start = (\d+)")),
}


def _numbers(text: str) -> list[int]:
    return [int(each) for each in re.findall(r"-?\d+", text)]


class Region(NamedTuple):
    """Holds the operations between braces, and the names of their arguments."""

    receives: list[str]
    ops: list[Op]


def refuse(why: str) -> Any:
    """Raises NotUnderstood."""
    raise NotUnderstood(why)


def _parsed(lines: Iterator[str]) -> tuple[Region, str]:
    """Returns the region that the lines begin with, and the line that ends it."""
    region = Region([], [])
    for whole in lines:
        line = _LOCATION.sub("", whole)
        if line.startswith("}"):
            return region, line
        if line.startswith("^bb") and not region.ops:
            region.receives.extend(_VALUE.findall(line))
            continue
        if line.startswith("^bb"):
            region.ops.append(Op([], _BLOCK, line, [], ""))
            continue
        matched = _OP.match(line) or refuse(f"the line {line}")
        result, count, name, text = matched.groups()
        regions, end = list[Region](), text
        while end.endswith("{"):
            inner, end = _parsed(lines)
            regions.append(inner)
        text += end.lstrip("})") if regions else ""
        names = [] if not result else [f"{result}#{at}" for at in range(int(count))] if count else result.split(", ")
        region.ops.append(Op(names, name, text, regions, whole[len(line) :]))
    return region, ""


def _type(text: str) -> tuple[list[int], str, str]:
    """Returns shape, element and layout of the last type of a text."""
    last = re.split(" -> | to ", text)[-1].rsplit(" : ", 1)[-1].strip("() ")
    last = last[last.rfind(", tensor<") + 2 if ", tensor<" in last else 0 :]
    found = _TYPE.fullmatch(last) or _TYPE.fullmatch(last.split(", ")[-1]) or refuse(f"the type {last}")
    return [int(each) for each in (found[1] or "").split("x")[:-1]], found[2] or found[4], found[3] or ""


# -- layouts --------------------------------------------------------------------------------------

Bases = list[list[tuple[int, ...]]]  # what each bit of register, lane and warp adds to the coordinates


def bases_of(layout: str, aliases: Mapping[str, str], shape: Sequence[int]) -> Bases:
    """Returns a layout of a shape as bits of register, lane and warp, each with the coordinates that it adds."""
    layout = aliases.get(layout, layout)
    if sliced := re.fullmatch(r"#ttg\.slice<\{dim = (\d+), parent = (.*)\}>", layout):
        dim = int(sliced[1])
        whole = bases_of(sliced[2], aliases, [*shape[:dim], 1, *shape[dim:]])
        return [[(*bit[:dim], *bit[dim + 1 :]) for bit in bits] for bits in whole]
    lists = dict(re.findall(r"(\w+) = (\[(?:\[[\d, ]*\](?:, )?|[\d, ]+)*\])", layout))
    if layout.startswith("#ttg.linear<"):
        parts = [re.findall(r"\[[\d, ]+\]", lists[name]) for name in ("register", "lane", "warp")]
        return [[tuple(_numbers(bit)) for bit in part] for part in parts]
    if not layout.startswith("#ttg.blocked<"):
        raise NotUnderstood(f"a reduction in the layout {layout}")
    *levels, order = (_numbers(lists[name]) for name in ("sizePerThread", "threadsPerWarp", "warpsPerCTA", "order"))
    step, bits = [1] * len(shape), Bases()

    def added(to: list[tuple[int, ...]], dim: int, size: int) -> None:
        while size > 1:  # a step beyond the shape is none: threads hold the same element
            inside = step[dim] if step[dim] < shape[dim] else 0
            to.append(tuple(inside if at == dim else 0 for at in range(len(shape))))
            step[dim], size = 2 * step[dim], size // 2

    for level in levels:
        bits.append([])
        for dim in order:
            added(bits[-1], dim, level[dim])
    for dim in order:  # the tile is repeated, in more registers
        added(bits[0], dim, shape[dim] // step[dim])
    return bits


def _places(bits: Bases, rank: int) -> tuple[Array, ...]:
    """Returns for each dimension the coordinate of every register, lane and warp."""
    found = list[Array]()
    for dim in range(rank):
        parts = []
        for side, each in enumerate(bits):
            count, place = np.arange(1 << len(each)), np.zeros(1 << len(each), np.int64)
            for at, bit in enumerate(each):
                place ^= (count >> at & 1) * bit[dim]
            parts.append(place.reshape([-1 if at == side else 1 for at in range(3)]))
        found.append(parts[0] ^ parts[1] ^ parts[2])
    return tuple(found)


# -- a program on symbols -------------------------------------------------------------------------


class Program:
    """Runs one program of a launch.

    `nodes` are its expressions as (step, fact, inputs), `made` says where an addition of a sum is made, and `stored`
    has the expressions in memory.
    """

    def __init__(self, ttgir: str, values: Mapping[str, Any], ids: Sequence[int], grid: Sequence[int]) -> None:
        function = r"tt\.func public @\w+\((.*)\) attributes \{.*\n((?:.*\n)*?)  \}(?: loc\(.*\))?\n"
        whole = re.search(function, ttgir) or refuse("no public function, or a cluster of several blocks")
        self._demand(ttgir)
        self.aliases = dict(re.findall(r"^(#\w+) = (#ttg\..*)$", ttgir, re.M))
        self.nodes, self.made = list[tuple[Any, ...]](), list[str]()
        self.stored: dict[int, int] = {}
        self._numbers: dict[tuple[Any, ...], int] = {}
        self.branches = False  # True: data choose between branches
        self._at, self._ids, self._grid = "", ids, grid
        self._carried = set[int]()  # what a loop has from its last turn
        types = re.findall(r"%([\w$.]+): (!tt\.ptr<\w+>|\w+)", whole[1])
        self.operands = [name for name, _ in types]
        names = dict[str, Array]()
        for at, (name, kind) in enumerate(types):
            if kind.startswith("!tt.ptr"):
                names[f"%{name}"] = np.array(at << OPERAND, POINTER)
            elif kind.startswith("i"):
                names[f"%{name}"] = np.array(int(values[name]), bool if kind == "i1" else np.int64)
            else:
                names[f"%{name}"] = self.node("operand", name, np.array(at))
        self._run(_parsed(line.strip() for line in whole[2].splitlines())[0], names)

    def _demand(self, ttgir: str) -> None:
        if '"ttg.num-ctas" = 1 ' not in ttgir:
            raise NotUnderstood("a cluster of several blocks")
        if picked := re.search(r"tt\.dot\w*|ttng\.\w*(?:dot|mma)\w*|tt\.atomic_\w+", ttgir):
            raise NotUnderstood(f"{picked[0]}: the hardware picks the order")

    def node(self, op: str, fact: str, *inputs: Array) -> Array:
        """Returns the expressions of a step on arrays: of expressions, or for a leaf of what tells it from others."""
        wide = np.broadcast_arrays(*inputs)
        out = np.empty(wide[0].shape, EXPRESSION)
        places, ordered = out.reshape(-1), op not in COMMUTES
        for at, key in enumerate(zip(*(each.reshape(-1).tolist() for each in wide), strict=True)):
            full = (op, fact, *(key if ordered else sorted(key)))
            number = self._numbers.get(full)
            if number is None:
                number = self._numbers[full] = len(self.nodes)
                self.nodes.append(full)
                self.made.append(self._place(full))
            places[at] = number
        return out

    def _place(self, node: tuple[Any, ...]) -> str:
        """Returns where an addition of a sum is made; "" for a step of an element."""
        if node[0] not in ADDITIONS:
            return ""
        in_turn = any(each in self._carried or self.made[each] == "loop" for each in node[2:])
        return self._at if self._at != "loop" or in_turn else ""

    def inputs(self, number: int) -> tuple[int, ...]:
        """Returns the expressions that an expression is made of."""
        node = self.nodes[number]
        return () if node[0] in _LEAVES else node[2:]

    def _symbols(self, value: Array) -> Array:
        return value if value.dtype == EXPRESSION else self.node("integer", "", value)

    def _known(self, value: Array, what: str) -> Array:
        return value if value.dtype != EXPRESSION else refuse(f"{what} depends on data")

    # -- operations

    def _run(self, region: Region, names: dict[str, Array]) -> list[Array]:
        """Runs a region; returns its results."""
        at = 0
        while at < len(region.ops):
            op, at = region.ops[at], at + 1
            if op.name in ("scf.yield", "tt.reduce.return", "tt.return"):
                return [names[each] for each in op.operands]
            if op.name in ("cf.br", "cf.cond_br"):
                at = self._jump(op, region, names)
            elif op.regions:
                names.update(zip(op.results, self._regions(op, names), strict=False))
            elif op.name not in _NOTHING:
                found = self._one(op, [names[each] for each in op.operands])
                names.update(dict.fromkeys(op.results, found))
        return []

    def _jump(self, op: Op, region: Region, names: dict[str, Array]) -> int:
        """Returns where in a region a jump goes on, for example after an early return of others."""
        targets = re.findall(r"(\^bb\d+)(?:\(([^:]*):[^)]*\))?", op.text)
        chosen = op.name == "cf.br" or self._chosen(names[op.operands[0]])
        label, given = targets[0 if chosen else 1]
        [at] = [at for at, each in enumerate(region.ops) if each.name == _BLOCK and re.match(rf"\{label}\b", each.text)]
        receives = _VALUE.findall(region.ops[at].text.split("//")[0])
        names.update(zip(receives, [names[each] for each in _VALUE.findall(given)], strict=True))
        return at + 1

    def _chosen(self, condition: Array) -> bool:
        return bool(self._known(condition, "cf.cond_br: its condition"))

    def _regions(self, op: Op, names: dict[str, Array]) -> list[Array]:
        """Runs a reduction, a branch or a loop."""
        if op.name == "tt.reduce":
            return self._reduce(op, [names[each] for each in _VALUE.findall(op.text.split(")")[0])])
        if op.name == "scf.if":
            chosen = names[op.operands[0]]
            if chosen.dtype == EXPRESSION:
                return self._both(op.regions, chosen, names)
            which = op.regions[0 if chosen.item() else 1 :][:1]
            return self._run(which[0], names) if which else []
        if op.name != "scf.for" or "unsigned" in op.text:
            raise NotUnderstood(f"{op.name}: no order is known through it")
        counter, *limits = _VALUE.findall(op.text)[:4]
        receives, carried = re.findall(r"(%[\w$.-]+) = %", op.text)[1:], re.findall(r"= (%[\w$.#-]+)", op.text)[1:]
        values = [names[each] for each in carried]
        before = self._at, self._carried
        for count in range(*(int(self._known(names[each], "scf.for: its count")) for each in limits)):
            self._at = "loop"
            self._carried = {at for value in values if value.dtype == EXPRESSION for at in value.reshape(-1).tolist()}
            inner = names | dict(zip(receives, values, strict=True)) | {counter: np.array(count, np.int64)}
            values = self._run(op.regions[0], inner)
        self._at, self._carried = before
        return values

    def _both(self, regions: list[Region], chosen: Array, names: dict[str, Array]) -> list[Array]:
        """Runs both branches of a choice of data; each value is a choice between two expressions."""
        before, self.branches = self.stored, True
        found, stored = list[list[Array]](), list[dict[int, int]]()
        for each in (*regions, Region([], []))[:2]:
            self.stored = dict(before)
            found.append(self._run(each, dict(names)))
            stored.append(self.stored)
        absent = int(self.node("undefined", "", np.array(0)))
        for address in stored[0].keys() | stored[1].keys():
            one, two = (np.array(each.get(address, absent), EXPRESSION) for each in stored)
            self.stored[address] = int(one if one == two else self.node("scf.if", "", chosen, one, two))
        return [self.node("scf.if", "", chosen, *map(self._symbols, each)) for each in zip(*found, strict=False)]

    def _one(self, op: Op, given: list[Array]) -> Array:
        dialect, _, name = op.name.partition(".")
        shape, element, _ = _type(op.text) if " : " in op.text else ([], "", "")
        if method := getattr(self, f"_{dialect}_{name}", None):
            found: Array = method(op, given, shape, element)
            return found
        if name in ("get_program_id", "get_num_programs"):
            of = self._ids if name == "get_program_id" else self._grid
            return np.array(of["xyz".index(op.text.split()[0])], np.int64)
        if op.name in _MOVES:
            return _MOVES[op.name](op, given, shape)
        symbolic = any(each.dtype == EXPRESSION for each in given)
        kind = op.text.split(",")[0].strip() if name == "cmpi" else name
        if kind in _INTEGERS and not symbolic:
            return self.wrapped(_INTEGERS[kind](*given), "i1" if name == "cmpi" else element)
        if not _STEPS.fullmatch(op.name) or not (symbolic or element[0] in "fb" or "f" in name):
            raise NotUnderstood(f"{op.name}: no order is known through it")
        if op.name == "math.fma":
            product = self.node(PRODUCT, element, *map(self._symbols, given[:2]))
            return self.node("arith.addf", element, product, self._symbols(given[2]))
        fact = element if op.name in ADDITIONS else f"{_VALUE.sub('', op.text.split(' : ')[0])} {element}"
        return self.node(op.name, fact, *map(self._symbols, given))

    def _arith_constant(self, op: Op, given: list[Array], shape: list[int], element: str) -> Array:
        value = op.text.split(" : ")[0].strip().removeprefix("dense<").removesuffix(">")
        if value in ("true", "false"):
            return np.full(shape, value == "true")
        if element.startswith("i"):
            return np.full(shape, int(value), np.int64)
        return np.broadcast_to(self.node("constant", value, np.array(0)), shape)

    def _arith_select(self, op: Op, given: list[Array], shape: list[int], element: str) -> Array:
        if EXPRESSION in (given[0].dtype, given[1].dtype, given[2].dtype):
            given[1:] = map(self._symbols, given[1:])
        return np.where(*given) if given[0].dtype != EXPRESSION else self.node(op.name, "", *given)

    def _tt_reshape(self, op: Op, given: list[Array], shape: list[int], element: str) -> Array:
        (old, _, layout), (_, _, other) = _type(op.text.split(" -> ")[0]), _type(op.text)
        if "allow_reorder" not in op.text or (old, layout) == (shape, other):
            return given[0].reshape(shape)
        one, two = bases_of(layout, self.aliases, old), bases_of(other, self.aliases, shape)
        if [len(each) for each in one] != [len(each) for each in two]:
            raise NotUnderstood("tt.reshape: it moves elements between threads")
        out = np.empty(shape, given[0].dtype)  # each thread keeps its registers, whatever their coordinates are
        out[_places(two, len(shape))] = given[0][_places(one, len(old))]
        return out

    def _tt_addptr(self, op: Op, given: list[Array], shape: list[int], element: str) -> Array:
        offset = self._known(given[1], "tt.addptr: an address") * _BYTES[op.fact(r"!tt\.ptr<(\w+)>")]
        moved: Array = (given[0].astype(np.int64) + offset).astype(POINTER)
        return moved

    def _tt_load(self, op: Op, given: list[Array], shape: list[int], element: str) -> Array:
        mask = self._known(given[1], "tt.load: its mask") if len(given) > 1 else np.array(True)
        if any(address in self.stored for address in given[0][np.broadcast_to(mask, given[0].shape)].tolist()):
            raise NotUnderstood("tt.load: it reads what the kernel wrote")
        other = self._symbols(given[2]) if len(given) > 2 else self.node("undefined", "", np.array(0))
        found: Array = np.where(mask, self.node("memory", op.fact(r"!tt\.ptr<(\w+)>"), given[0]), other)
        return found

    def _tt_store(self, op: Op, given: list[Array], shape: list[int], element: str) -> Array:
        mask = self._known(given[2], "tt.store: its mask") if len(given) > 2 else np.array(True)
        address, value, mask = np.broadcast_arrays(given[0], self._symbols(given[1]), mask)
        self.stored |= dict(zip(address[mask].tolist(), value[mask].tolist(), strict=True))
        return value

    def wrapped(self, value: Any, element: str) -> Array:
        """Returns integers wrapped to their width."""
        if element in ("i1", "i64", "index"):
            return np.asarray(value).astype(bool if element == "i1" else np.int64)
        half = 1 << int(element[1:]) - 1
        return np.asarray((np.asarray(value).astype(np.int64) + half) % (2 * half) - half)

    def _reduce(self, op: Op, given: list[Array]) -> list[Array]:
        """Reduces as the threads do: their registers, then lanes, then warps."""
        axis, (shape, _, layout) = int(op.fact(r"axis = (\d+)")), _type(op.text.rsplit(" -> ", 1)[0])
        bits = bases_of(layout, self.aliases, shape)
        bits[0] = [bit for bit in bits[0] if any(bit)]  # other registers hold the same elements
        places = _places(bits, len(shape))
        parts = [self._symbols(each)[places] for each in given]
        along = [[bool(bit[axis]) for bit in each] for each in bits]
        before = self._at

        def combined(one: list[Array], two: list[Array], where: str) -> list[Array]:
            self._at = where
            found = self._run(op.regions[0], dict(zip(op.regions[0].receives, [*one, *two], strict=True)))
            return [np.broadcast_to(self._symbols(each), one[0].shape) for each in found]

        kept: dict[int, list[Array]] = {}
        for register in range(len(parts[0])):
            others = sum(1 << at for at, moves in enumerate(along[0]) if not moves and register >> at & 1)
            mine = [each[register] for each in parts]
            kept[others] = combined(kept[others], mine, "thread") if others in kept else mine
        parts = [np.stack([kept[each][at] for each in sorted(kept)]) for at in range(len(given))]
        for side, where in ((1, "lanes"), (2, "warps")):
            for at in reversed([at for at, moves in enumerate(along[side]) if moves]):
                other = np.arange(parts[0].shape[side]) ^ (1 << at)
                parts = combined(parts, [each.take(other, side) for each in parts], where)
        self._at = before
        rest = tuple(each[sorted(kept)].reshape(-1)[::-1] for at, each in enumerate(places) if at != axis)
        found = [np.zeros([size for at, size in enumerate(shape) if at != axis], EXPRESSION) for _ in parts]
        for out, each in zip(found, parts, strict=True):  # of equal elements the first thread's is written last
            out[rest if rest else ...] = each.reshape(-1)[::-1] if rest else each[0, 0, 0]
        return found
