"""Orders of sums in compiled kernels, found two ways: in TTGIR by layouts, and in PTX thread by thread.

No GPU is needed: Triton compiles the launches of the interpreter for an H100.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
import triton
import triton.language as tl

import verify
from benchmarks import same, sums
from kernels.layer_norm import layer_norm
from kernels.rms_norm import rms_norm
from tests.oracle import summation
from verify import backends
from verify.cases import Case
from verify.cli.explain import lines_of_order
from verify.declare.declaration import Kernel
from verify.diagnose import compiled
from verify.diagnose.compiled import proved
from verify.diagnose.order import orders_of
from verify.diagnose.requests import Order
from verify.diagnose.same import proved as rows_proved
from verify.measure import launches

HERE = backends.select()
NAMED = Order("", "float32", HERE.name, "", "", 0)


@triton.jit
def dot_kernel(x, y, n, BLOCK: tl.constexpr):
    at = tl.arange(0, BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    tl.store(y + at, tl.dot(tl.load(x + at), tl.load(x + at)))


@triton.jit
def atomic_kernel(x, y, n, BLOCK: tl.constexpr):
    tl.atomic_add(y, tl.sum(tl.load(x + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)), 0))


@triton.jit
def counted_kernel(x, y, n, BLOCK: tl.constexpr):
    """Adds as many tiles as the first number says."""
    total = 0.0
    for first in range(tl.load(x).to(tl.int32)):
        total += tl.sum(tl.load(x + first * BLOCK + tl.arange(0, BLOCK)))
    tl.store(y, total)


@triton.jit
def gathered_kernel(x, y, n, BLOCK: tl.constexpr):
    """Adds numbers at places that numbers name."""
    at = tl.load(x + tl.arange(0, BLOCK)).to(tl.int32)
    tl.store(y, tl.sum(tl.load(x + at), 0))


@triton.jit
def compensated_kernel(x, y, n, BLOCK: tl.constexpr):
    """Adds with Kahan's correction."""
    total = tl.zeros([BLOCK], tl.float32)
    lost = tl.zeros([BLOCK], tl.float32)
    for first in range(0, n, BLOCK):
        term = tl.load(x + first + tl.arange(0, BLOCK)) - lost
        larger = total + term
        lost = (larger - total) - term
        total = larger
    tl.store(y + tl.arange(0, BLOCK), total)


@triton.jit
def default_kernel(x, y, n=33, BLOCK: tl.constexpr = 64):
    cols = tl.arange(0, BLOCK)
    tl.store(y, tl.sum(tl.load(x + cols, mask=cols < n, other=0.0), 0))


def of(*calls: Callable[[], Any]) -> list[Order]:
    def call() -> None:
        for each in calls:
            each()

    found = list(proved(NAMED, call, HERE, "benchmarks/sums.py"))
    return [msgspec.json.decode(msgspec.json.encode(each), type=Order) for each in found]


#: Kernels of which no sum has an order, and why.
NO_ORDER = {
    dot_kernel: "tt.dot: the hardware picks the order",
    atomic_kernel: "tt.atomic_rmw: the hardware picks the order",
    counted_kernel: "scf.for: its count depends on data",
    gathered_kernel: "tt.addptr: an address depends on data",
    compensated_kernel: "an addition enters a sum twice, as in a compensated sum",
}


def layouts() -> list[Callable[[], Any]]:
    """Small and large blocks, few and many warps, both dimensions: registers, lanes and warps may hold one element."""
    draw, x = random.Random(0), torch.zeros(64, 300, device=HERE.device)
    calls = []
    for _ in range(12):
        rows, cols = 1 << draw.randint(0, 6), 1 << draw.randint(3, 8)
        how = {"ROWS": rows, "BLOCK": cols, "num_warps": draw.choice([1, 2, 4, 8])}
        launch = draw.choice([sums.rows_kernel, sums.columns_kernel])[(1,)]
        sizes = (draw.randint(3, rows + 3), draw.randint(3, cols))
        calls.append(partial(launch, x, x[0].clone(), *sizes, **how))
    return calls


@pytest.fixture(scope="module")
def orders() -> dict[str, list[Order]]:
    """Orders by kernel and format. One process compiles all launches."""
    x, zeros = torch.randn(8, 1000, device=HERE.device), torch.zeros(1024, device=HERE.device)
    narrow = x[:2, :300].bfloat16()
    weight = narrow[0].contiguous()
    found: dict[str, list[Order]] = {}
    tried = (
        *(lambda kernel=each: kernel(x) for each in (sums.row_sum, sums.rows_sum, sums.lanes_sum, sums.tiles_sum)),
        *(lambda kernel=each: kernel(x) for each in (sums.softmax, sums.norm)),
        lambda: sums.columns_sum(x[:, :70].T.contiguous()),
        lambda: sums.row_kernel[(8,)](x.half(), x[:, 0].half().contiguous(), 1000, BLOCK=1024, num_warps=1),
        lambda: default_kernel[lambda meta: (meta["BLOCK"] // 64,)](x, x[0].clone()),
        lambda: layer_norm(narrow.contiguous(), weight, weight),
        lambda: rms_norm(x[:2], x[0]),
        *(partial(kernel[(1,)], zeros, zeros.clone(), 96, BLOCK=32) for kernel in NO_ORDER),
        *layouts(),
    )
    for each in of(*tried):
        found.setdefault(f"{each.kernel} {each.kind}".strip(), []).append(each)
    return found


def checked(order: Order) -> str:
    return summation.checked(msgspec.to_builtins(order))


def test_the_ptx_adds_as_the_layouts_say(orders: dict[str, list[Order]]) -> None:
    known = [each for found in orders.values() for each in found if not each.unknown]
    assert len(known) >= 20 and {"row_kernel f16", "forward_kernel f64", "norm_kernel f32"} <= orders.keys()
    for each in known:
        assert f"at most {each.depth} roundings" in checked(each)


def test_an_order_is_said_in_words_of_a_kernel(orders: dict[str, list[Order]]) -> None:
    words = {name: found[0].words[0] for name, found in orders.items() if found[0].words}
    lanes, threads = (
        "a butterfly over 32 lanes, then a butterfly over {} warps",
        "{} numbers of a thread in turn, then ",
    )
    assert words["row_kernel f32"] == threads.format(4) + lanes.format(8)
    assert words["rows_kernel f32"] == threads.format(8) + lanes.format(4)
    assert words["lanes_kernel f32"] == "2 turns of a loop, then " + threads.format(4) + lanes.format(4)
    assert words["tiles_kernel f32"] == threads.format(8) + lanes.format(2) + ", then 2 turns of a loop"
    assert "lanes" not in words["columns_kernel f32"] and "turns of a loop" in words["columns_kernel f32"]
    assert {len(orders[name]) for name in ("row_kernel f32", "softmax_kernel f32")} == {1}
    assert orders["default_kernel f32"][0].terms == 33
    assert orders["rows_kernel f32"][0].rows == 8 and orders["row_kernel f32"][0].result == "y"
    text = "\n".join(lines_of_order(orders["row_kernel f32"][0]))
    assert "1 sum of 1,000 terms of x, added in f32" in text and "at most 11 roundings, |error| <= 6.6e-07" in text
    text = "\n".join(line for each in orders["forward_kernel f64"] for line in lines_of_order(each))
    assert "without overflow or an underflowing product, where data choose this branch:" in text


def simulated(row: np.ndarray, block: int, warps: int) -> np.float32:
    """Adds a row as threads of the layout `[1], [32], [warps]` do, one array for each step."""
    padded = np.zeros(-(-len(row) // block) * block, np.float32)
    padded[: len(row)] = row
    tiles = padded.reshape(-1, block)
    total = np.zeros(block, np.float32)
    for tile in tiles:
        total = total + tile
    of_threads = total.reshape(-1, 32 * warps)
    each = of_threads[0]
    for numbers in of_threads[1:]:
        each = each + numbers
    while len(each) > warps:  # lanes 16 apart first, so lane by lane is halved within each warp
        each = each.reshape(warps, 2, -1).sum(1, dtype=np.float32).reshape(-1)
    while len(each) > 1:
        each = each[: len(each) // 2] + each[len(each) // 2 :]
    return each[0]


def evaluated(order: Order, terms: np.ndarray) -> np.float32:
    """Adds terms in an order."""
    parts = list(terms)
    for one, two in order.additions:
        parts.append(parts[one] + parts[two])
    return parts[-1]


def test_the_order_gives_the_bits_of_threads_and_its_bound_holds(orders: dict[str, list[Order]]) -> None:
    [order] = orders["lanes_kernel f32"]
    assert order.proof is not None
    draw = np.random.default_rng(0)
    for _ in range(200):
        row = (draw.standard_normal(1000) * np.exp2(draw.integers(-8, 9, 1000))).astype(np.float32)
        got = evaluated(order, row)
        assert got.tobytes() == simulated(row, 512, 4).tobytes()
        exact, size = (sum(map(Fraction, each.tolist())) for each in (row, np.abs(row)))
        assert abs(Fraction(float(got)) - exact) <= Fraction(order.proof.bound) * size


def changed(order: Order, change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
    made = copy.deepcopy(msgspec.to_builtins(order))
    change(made)
    return made


def swapped(made: dict[str, Any]) -> None:
    """Exchanges two terms of one thread with those of another."""
    terms = made["proof"]["sums"][0]["terms"]
    terms[0], terms[1] = terms[1], terms[0]


def chained(made: dict[str, Any]) -> None:
    """Adds one term after the other."""
    count = made["terms"]
    made["additions"] = [(0, 1), *((count + at, at + 2) for at in range(count - 2))]
    made["depth"] = count - 1
    made["proof"]["bound"] = 1.0


def nearer(made: dict[str, Any]) -> None:
    """Shuffles lanes 4 apart in place of 16."""
    made["proof"]["ptx"] = made["proof"]["ptx"].replace(", 16, 31, -1", ", 4, 31, -1")


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (swapped, "does not add the 1,000 terms"),
        (chained, "does not add the 1,000 terms"),
        (lambda made: made["additions"].pop(), "roundings give the bound"),
        (lambda made: made["additions"].insert(1, made["additions"][0]), "added twice"),
        (lambda made: made.update(depth=10), "11 roundings give the bound"),
        (lambda made: made["proof"].update(bound=6.5e-7), "11 roundings give the bound 6.56e-07, not 6.5e-07"),
        (lambda made: made["proof"].update(zeros=False), "does not add"),
        (lambda made: made["proof"]["values"].__setitem__(2, 999), "does not add"),
        (
            lambda made: made["proof"]["sums"][0].update(results=[(1, 4)]),
            "the result at byte 4 of operand 1 is no such sum",
        ),
        (nearer, "does not add"),
    ],
)
def test_a_certificate_that_claims_more_is_refused(
    orders: dict[str, list[Order]], change: Callable[[dict[str, Any]], None], why: str
) -> None:
    with pytest.raises(summation.Refused, match=why):
        summation.checked(changed(orders["row_kernel f32"][0], change))


def test_the_file_of_a_command_is_checked(orders: dict[str, list[Order]], tmp_path: Any, capsys: Any) -> None:
    path = tmp_path / "order.json"
    path.write_bytes(msgspec.json.encode([NAMED, *orders["norm_kernel f32"]]))
    assert summation.main(iter([str(path)])) == 0
    assert "norm_kernel: 1 sums of 1,000 terms" in capsys.readouterr().out
    path.write_bytes(msgspec.json.encode([changed(orders["row_kernel f32"][0], swapped)]))
    assert summation.main(iter([str(path)])) == 1
    assert "not proved: the PTX does not add" in capsys.readouterr().out


def test_a_file_of_the_folder_is_not_executed_in_place_of_a_module_of_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "copy.py").write_text("open('executed', 'w').close()\nfrom shutil import copy\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launches, "_compiler", launches._compiler.__wrapped__)  # a new process, in this folder
    [order] = proved(NAMED, lambda: sums.row_sum(torch.ones(1, 64, device=HERE.device)), HERE, str(sums.__file__))
    assert order.proof is not None and not (tmp_path / "executed").exists()


def test_a_probed_order_of_exponentials_is_the_compiled_one() -> None:
    """The last warp has 8 of 40 exponentials, and padding, which the compiled order adds too."""
    [order] = of(lambda: sums.softmax(torch.zeros(4, 40, device=HERE.device)))
    assert order.proof is not None and "1 sums of 56 terms" in checked(order)
    named = [bool(term) for term in order.proof.sums[0].terms]

    def softmax(x: torch.Tensor) -> torch.Tensor:
        powers = (x - x.amax(1, keepdim=True)).exp()
        columns = iter(powers.unbind(1))
        parts = [next(columns) if each else torch.zeros_like(x[:, 0]) for each in named]
        for one, two in order.additions:
            parts.append(parts[one] + parts[two])
        return powers / parts[-1][:, None]

    shapes, dtypes = {"x": "m n"}, ["float32"]
    kernel = verify.kernel(like=lambda x: x.softmax(-1), shapes=shapes, dtypes=dtypes, gradients=False)(softmax)
    case = Case(dtype="float32", dims=(40, 40), fill="randn").to_json()
    [probed] = orders_of(kernel, HERE, "float32", case, lambda text: None)
    assert (probed.kind, probed.explained) == ("exponentials", 1)
    assert same.parts_of(probed) == same.parts_of(order)


def test_what_has_no_order_is_refused_by_name(orders: dict[str, list[Order]]) -> None:
    by_kernel = {each.kernel: each for found in orders.values() for each in found if each.unknown}
    found = [by_kernel[kernel.fn.__name__] for kernel in NO_ORDER]
    assert [each.unknown for each in found] == list(NO_ORDER.values())
    text = "\n".join(line for each in found for line in lines_of_order(each))
    assert "dot_kernel float32, as compiled: not known\n  tt.dot: the hardware picks" in text


def test_a_text_that_is_not_read_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = compiled.Launch("new_kernel", {}, [1, 1, 1], "a tt.reduce of another form", "", "")
    monkeypatch.setattr(compiled, "launches_of", lambda *given: [[launch]])
    assert [each.unknown for each in of()] == ["no public function, or a cluster of several blocks"]
    text = 'module {"ttg.num-ctas" = 1 : i32} {\n  tt.func public @k() attributes {} {\n    tt.reduce %x\n  }\n}\n'
    monkeypatch.setattr(compiled, "launches_of", lambda *given: [[launch._replace(ttgir=text)]])
    assert [each.unknown for each in of()] == ["its TTGIR is not read: KeyError: '%x'"]


@triton.jit
def scaled_kernel(x, y, n, scale, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    total = tl.sum(tl.load(x + tl.program_id(0) * n + cols, mask=cols < n, other=0.0), 0)
    tl.store(y + tl.program_id(0), total * scale)


def scaled(x: torch.Tensor, *, scale: float = 1.0, block: int = 128) -> torch.Tensor:
    y = x.new_empty(len(x))
    scaled_kernel[(len(x),)](x, y, x.shape[1], scale, BLOCK=block)
    return y


ROW_SUM = {"like": lambda x: x.sum(-1), "shapes": {"x": "m n"}, "dtypes": ["float32"], "gradients": False}


@verify.kernel(**ROW_SUM)
def one_order(x):
    return scaled(x)


@verify.kernel(**ROW_SUM)
def larger_block(x):
    return scaled(x, block=512 if len(x) < 4 else 128)


@verify.kernel(**ROW_SUM)
def other_factor(x):
    return scaled(x, scale=1.0 + 2.0**-20 * (len(x) < 4))


@verify.kernel(**ROW_SUM)
def summed_twice(x):
    return scaled(x) + 0.0 * x.sum(-1)


@pytest.mark.parametrize(
    ("kernel", "text"),
    [
        (one_order, "the bits of 17: 1 to 16"),
        (larger_block, "the bits of 17: 4 to 16"),
        (other_factor, "the bits of 17: 4 to 16"),
        (
            summed_twice,
            "not known: summed_twice raised NotUnderstood: it calls aten.sum.dim_IntList beside its launches",
        ),
        (sums.tiles_sum, "the bits of 17: 1 to 16"),
        (sums.norm, "the bits of 17: 1 to 16"),
        (sums.rows_sum, "the bits of 17: 2 to 15"),  # Triton compiles other code for 1 row, and for multiples of 16
        (sums.product, "not known: tt.dot: the hardware picks the order"),
    ],
)
def test_numbers_of_rows_have_one_order_for_every_input(kernel: Kernel, text: str) -> None:
    dims = (17, 100) if len(kernel.op.geometry.dims) == 2 else (17, 100, 16)
    case = Case(dtype="float32", dims=dims[: len(kernel.op.geometry.dims)], fill="randn")
    target = kernel.file if kernel.file and "sums" in kernel.file else __file__
    assert rows_proved(kernel, HERE, case, target)["rows (m)"].startswith(text)
