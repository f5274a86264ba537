"""What the gate sees: changes for the worse in kernels of five kinds of declarations, and refactorings that pass.

Each kernel is measured once, on few cases and in this process. Its bounds are proposed from that record, also where it
is wrong. Then each change is measured and judged by these bounds, and beside the record of the kernel as it was.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

import verify
from examples.quantisers import mx, mxfp8
from tests.report import pages
from verify.backends import Interpreter
from verify.cases.plan import PLAN_SIZES, plan
from verify.measure import kernel as measuring
from verify.measure.requests import Measure
from verify.records.bounds import changes, committed
from verify.records.bounds.committed import PROMISES, Book
from verify.records.bounds.verdict import judge
from verify.records.compare import compare
from verify.records.record import SCHEMA, Run
from verify.report.terminal.text_page import Terminal

Function = Callable[..., Any]


@dataclass(frozen=True)
class Project:
    """A kernel with its declaration, changes that make it worse, and refactorings that do not."""

    declaration: dict[str, Any]
    kernel: Function
    worse: dict[str, Function]
    same: dict[str, Function] = field(default_factory=dict)
    verdict: str = "ok"  # of the kernel as it is


# -- an elementwise function by like=, wrong in its tail as many first kernels are ------------------------------------


def silu_gate(a: Tensor, b: Tensor) -> Tensor:
    return F.silu(a) * b


def loses_its_tail(a: Tensor, b: Tensor) -> Tensor:
    """exp overflows below -88.7, so the result is 0 where it is not."""
    wide = a.float()
    return torch.where(torch.isfinite(wide), wide / (1 + torch.exp(-wide)), F.silu(wide)).mul(b.float()).to(a.dtype)


def first(y: Tensor, other: Tensor) -> Tensor:
    return torch.cat([other[:1], y[1:]])


def last(y: Tensor, other: Tensor) -> Tensor:
    return torch.cat([y[:-1], other[-1:]])


def toward_zero(y: Tensor) -> Tensor:
    """float32 cut to bfloat16."""
    return (y.float().view(torch.int32) & -65536).view(torch.float32).to(y.dtype)


def block_edge(y: Tensor) -> Tensor:
    """A mask of `< 127` for `< 128`."""
    place = torch.arange(y.numel(), device=y.device).reshape(y.shape)
    return torch.where(place % 128 == 127, 0, y)


TAIL = Project(
    {"like": silu_gate, "dtypes": ["float32"], "gradients": False, "max_ulp": 10.0},
    loses_its_tail,
    {
        "halved": lambda a, b: loses_its_tail(a, b) * 0.5,
        "1% more": lambda a, b: loses_its_tail(a, b) * 1.01,
        "a millionth more": lambda a, b: loses_its_tail(a, b) * (1 + 1e-6),
        "more of the tail lost": lambda a, b: torch.where(a < -5, 0, loses_its_tail(a, b)),
        "an operand dropped": lambda a, b: F.silu(a),
        "stored in bfloat16": lambda a, b: loses_its_tail(a, b).bfloat16().float(),
        "another function": lambda a, b: F.gelu(a) * b,
        "a wrong constant": lambda a, b: a / (1 + torch.exp2(-a * 1.4427)) * b,
        "the first row": lambda a, b: first(loses_its_tail(a, b), loses_its_tail(a, b) * 1.5 + 1e-3),
        "the last row": lambda a, b: last(loses_its_tail(a, b), loses_its_tail(a, b) * 1.5 + 1e-3),
        "a block edge": lambda a, b: block_edge(loses_its_tail(a, b)),
        "NaN at one number": lambda a, b: torch.where(a == 1, torch.nan, loses_its_tail(a, b)),
    },
    {"written otherwise": lambda a, b: (lambda s: loses_its_tail(s, torch.ones_like(b)) * b)(a)},
    "wrong",
)


def gate16(a: Tensor, b: Tensor) -> Tensor:
    return (F.silu(a.double().clamp(min=-700)) * b.double()).to(a.dtype)


SIXTEEN = Project(
    {"like": silu_gate, "dtypes": ["bfloat16"], "gradients": False, "max_ulp": 2.0},
    gate16,
    {
        "halved": lambda a, b: gate16(a, b) * 0.5,
        "truncated": lambda a, b: toward_zero(gate16(a.float(), b.float())).to(a.dtype),
        "rounded twice": lambda a, b: gate16(a, torch.ones_like(b)) * b,
    },
)

# -- an op ------------------------------------------------------------------------------------------------------------


def gelu(x: Tensor) -> Tensor:
    wide = x.double()
    y = wide * 0.5 * torch.special.erfc(wide * -(0.5**0.5))
    return torch.where(wide == -torch.inf, 0.0, y).to(x.dtype)


OP = Project(
    {"op": "gelu", "dtypes": ["float32"], "gradients": False, "max_ulp": 1.0},
    gelu,
    {
        "halved": lambda x: gelu(x) * 0.5,
        "tanh for erf": lambda x: F.gelu(x, approximate="tanh"),
        "a wrong constant": lambda x: gelu(x.double() * 1.0000001).to(x.dtype),
        "a cheaper erf": lambda x: torch.where(x == -torch.inf, 0.0, x * 0.5 * torch.special.erfc(x * -(0.5**0.5))),
        "a tail of zeros": lambda x: torch.where(x < -6, 0, gelu(x)),
    },
    {"factors swapped": lambda x: gelu(x.double()).to(x.dtype)},
)

# -- sums -------------------------------------------------------------------------------------------------------------


def norm(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), w, 1e-6) + b


def mean(x: Tensor) -> Tensor:
    return x.mean(-1, keepdim=True)


def rms(x: Tensor, w: Tensor, b: Tensor, *, eps: float = 1e-6, mean: Function = mean) -> Tensor:
    wide = x.float()
    return (wide * torch.rsqrt(mean(wide * wide) + eps) * w.float() + b.float()).to(x.dtype)


SUMS = Project(
    {"like": norm, "dtypes": ["float32"], "gradients": False, "shapes": {"x": "m n", "w": "n", "b": "n"}},
    rms,
    {
        "halved": lambda x, w, b: rms(x, w, b) * 0.5,
        "the bias dropped": lambda x, w, b: rms(x, w, b * 0),
        "another epsilon": lambda x, w, b: rms(x, w, b, eps=1e-5),
        "a cheaper sum": lambda x, w, b: rms(x, w, b, mean=lambda t: mean(t.bfloat16()).float()),
        "n - 1": lambda x, w, b: rms(x, w, b, mean=lambda t: t.sum(-1, keepdim=True) / max(1, t.shape[-1] - 1)),
        "the last column": lambda x, w, b: last(rms(x, w, b).T, rms(x, w, b).T * 1.1).T,
        "the first row": lambda x, w, b: first(rms(x, w, b), rms(x, w, b) * 1.1),
    },
    {
        "another order": lambda x, w, b: torch.addcmul(
            b, x * torch.rsqrt(x.square().sum(-1, True) / x.shape[-1] + 1e-6), w
        )
    },
)


def linear(**gradients: Function) -> Function:
    """A linear layer, with gradients by name in place of the right ones."""
    right: dict[str, Function] = {
        "x": lambda dy, x, w: dy @ w,
        "w": lambda dy, x, w: dy.T @ x,
        "b": lambda dy, x, w: dy.sum(0),
    }
    used = right | gradients

    class Layer(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
            ctx.save_for_backward(x, w)
            return F.linear(x, w, b)

        @staticmethod
        def backward(ctx: Any, dy: Tensor) -> Any:
            return tuple(used[name](dy, *ctx.saved_tensors) for name in "xwb")

    return Layer.apply


GRADIENTS = Project(
    {"like": F.linear, "dtypes": ["float32"], "shapes": {"input": "m k", "weight": "n k", "bias": "n"}},
    lambda input, weight, bias: linear()(input, weight, bias),
    {
        "dx of zeros": lambda *operands: linear(x=lambda dy, x, w: torch.zeros_like(x))(*operands),
        "dweight halved": lambda *operands: linear(w=lambda dy, x, w: dy.T @ x * 0.5)(*operands),
        "dbias without a row": lambda *operands: linear(b=lambda dy, x, w: dy[1:].sum(0))(*operands),
        "dbias dropped": lambda *operands: linear(b=lambda dy, x, w: None)(*operands),
    },
)

# -- integers ---------------------------------------------------------------------------------------------------------


def argmax(x: Tensor) -> Tensor:
    return x.argmax(-1)


INTEGERS = Project(
    {"like": argmax, "dtypes": ["float32"], "gradients": False, "shapes": {"x": "m n"}},
    argmax,
    {
        "one off": lambda x: argmax(x) + 1,
        "of magnitudes": lambda x: argmax(x.abs()),
        "in bfloat16": lambda x: argmax(x.bfloat16()),
        "without the last column": lambda x: argmax(x[..., : max(1, x.shape[-1] - 1)]),
        "the last row": lambda x: last(argmax(x), argmax(-x)),
    },
    {"by max": lambda x: x.max(-1).indices},
)
WRONG_INTEGERS = Project(
    INTEGERS.declaration,
    INTEGERS.worse["in bfloat16"],
    {"one off": INTEGERS.worse["one off"], "of the opposite": lambda x: argmax(-x.bfloat16())},
    verdict="wrong",
)

# -- a quantiser ------------------------------------------------------------------------------------------------------


QUANTISED = Project(
    {"quantise": mxfp8.encoding, "dtypes": ["bfloat16"]},
    lambda x: mx(x, "e4m3", "floor"),
    {
        "codes halved": lambda x: ((codes := mx(x, "e4m3", "floor"))[0].float().mul(0.5).to(codes[0].dtype), codes[1]),
        "another rounding of scales": lambda x: mx(x, "e4m3", "rceil"),
        "NaN left out of the scale": lambda x: mx(x.nan_to_num(nan=0.0), "e4m3", "floor"),
        "the first row": lambda x: mx(torch.cat([x[:1] * 1.01, x[1:]]), "e4m3", "floor"),
    },
)

PROJECTS = {
    "like": TAIL,
    "16 bits": SIXTEEN,
    "op": OP,
    "sums": SUMS,
    "gradients": GRADIENTS,
    "integers": INTEGERS,
    "wrong integers": WRONG_INTEGERS,
    "quantised": QUANTISED,
}
PLANTED = [(name, change) for name, project in PROJECTS.items() for change in project.worse]
QUICK = {
    "halved",
    "1% more",
    "dbias dropped",
    "a cheaper sum",
    "a tail of zeros",
    "NaN left out of the scale",
    "one off",
}


@pytest.fixture(autouse=True, scope="module")
def few_cases() -> Iterator[None]:
    """Leaves three cases of each group, elementwise ones of 4,096 elements."""

    def few(*given: Any, **options: Any) -> Any:
        return [replace(group, cases=group.cases[:3]) for group in plan(*given, **options)]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measuring, "plan", few)
        for scale, effort in PLAN_SIZES.items():
            patch.setitem(PLAN_SIZES, scale, replace(effort, elements=1 << 12))
        yield


def recorded(declaration: dict[str, Any], function: Function) -> Run:
    kernel = verify.kernel(**declaration, name="kernel")(function)
    found = measuring.measure_kernel(kernel, Measure("a.py::kernel", judges=1), Interpreter("cpu"))
    place = {"arch": "cpu_avx2", "commit": "c" * 40}
    return Run(SCHEMA, "0" * 12, "2026-11-28T10:00:00+00:00", "", "cpu", 0, "default", place, [found])


@cache
def before(name: str) -> tuple[Run, Book]:
    """The record of a project, and the bounds that are proposed from it."""
    project = PROJECTS[name]
    base = recorded(project.declaration, project.kernel)
    assert base.kernels[0].status == project.verdict
    found = changes.propose([base], Book(Path("bounds")))
    book = Book(Path("bounds"), {change.key: change.new for change in found.changes if change.new})
    assert judge([base], book).word == "pass"
    assert project.verdict == "ok" or any(bound.verdict == "wrong" for bound in book.bounds.values())
    return base, book


@pytest.mark.parametrize(
    ("name", "change"), [pytest.param(*each, marks=() if each[1] in QUICK else pytest.mark.slow) for each in PLANTED]
)
def test_a_change_for_the_worse_fails_the_gate_and_the_comparison(name: str, change: str) -> None:
    base, book = before(name)
    head = recorded(PROJECTS[name].declaration, PROJECTS[name].worse[change])
    assert judge([head], book).word == "fail"
    assert judge([head], book, base=[base]).word == "fail"
    assert compare(base, head).exit_code != 0


@pytest.mark.parametrize(("name", "change"), [(name, each) for name in PROJECTS for each in PROJECTS[name].same])
def test_a_harmless_change_passes(name: str, change: str) -> None:
    base, book = before(name)
    head = recorded(PROJECTS[name].declaration, PROJECTS[name].same[change])
    assert judge([head], book, base=[base]).word == "pass"


def test_a_verdict_that_gets_worse_fails_without_any_bound() -> None:
    base, _ = before("like")
    head = recorded(TAIL.declaration, TAIL.worse["halved"])
    found = judge([head], Book(Path("bounds")), base=[base])
    worse = {row.key.regime: row.reason for row in found.rows if row.status == "breached"}
    assert worse["ordinary inputs"] == "its verdict is worse than in the base"
    assert "demanding inputs" not in worse  # wrong before
    assert found.word == "fail" and judge([head], Book(Path("bounds"))).word == "incomplete"


def test_propose_names_the_bounds_of_wrong_results_on_the_screen_and_in_the_file(tmp_path: Path) -> None:
    base, book = before("like")
    found = changes.propose([base], Book(tmp_path))
    (path,) = committed.save(Book(tmp_path), [change.new for change in found.changes if change.new])
    assert committed.load(tmp_path).bounds == book.bounds
    verdicts = {key.regime: bound.verdict for key, bound in book.bounds.items()}
    assert (verdicts["ordinary inputs"], verdicts["demanding inputs"], verdicts["all"]) == ("ok", "wrong", "wrong")
    assert path.read_text().count('verdict = "wrong"') == list(verdicts.values()).count("wrong")
    text = " ".join(pages.of_proposal(found, Terminal(200), written=[str(path)]).split())
    assert re.search(r"✗ of wrong results kernel y float32 \d bounds allow what is wrong: .* on demanding inputs", text)
    assert f"{list(verdicts.values()).count('wrong')} of wrong results; written to" in text


def test_bounds_of_format_2_stay_bounds_of_their_regimes_and_get_classes() -> None:
    base, book = before("op")
    old = {
        key: replace(bound, share=None, typical=None, verdict="")
        for key, bound in book.bounds.items()
        if not key.regime.endswith(" inputs")
    }
    held = Book(Path("bounds"), old)
    judged = judge([base], held)
    assert {row.key for row in judged.rows if row.status == "ok"} == set(old)
    assert {row.key for row in judged.rows if row.status == "new"} == book.bounds.keys() - old.keys()
    found = changes.propose([base], held)
    assert {change.kind for change in found.changes} == {"new"}
    assert {**old, **{change.key: change.new for change in found.changes}} == book.bounds


def test_a_share_that_grew_is_accepted_with_its_reason_and_nothing_else_gets_looser() -> None:
    _, book = before("op")
    head = recorded(OP.declaration, OP.worse["a wrong constant"])
    rows = [row for row in judge([head], book).rows if row.status == "breached"]
    beyond = {row.key: {each.name for each in row.beyond} for row in rows}
    key = next(key for key in beyond if key.regime == "ordinary inputs")
    assert "share" in beyond[key]
    change = changes.accept(str(key), "a shorter constant", [head], book, today="2026-11-28")
    old, new = book.bounds[key], change.new
    assert new is not None and change.kind == "looser" and new.accepted[-1].reason == "a shorter constant"
    looser = {name for name, then, now in zip(PROMISES, old.promise, new.promise, strict=True) if then != now}
    assert looser == beyond[key]
    accepted = Book(book.folder, {**book.bounds, key: new})
    assert {row.key for row in judge([head], accepted).rows if row.status == "breached"} == beyond.keys() - {key}
