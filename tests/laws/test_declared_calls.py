"""Laws call a kernel only as its declaration allows, and put down to it what it does."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

import verify
from tests.laws.trial import attempt
from verify import backends
from verify.cases import Case
from verify.cases.strategies import Sizes
from verify.declare.declaration import Kernel
from verify.laws import registry
from verify.laws.composition import excuse
from verify.laws.engine import PROFILES, run_law
from verify.laws.law import Broken, Subject, plain_case
from verify.laws.locality import independent_rows


def picked(x: Tensor, label: Tensor) -> Tensor:
    return x.gather(-1, label[:, None])[:, 0]


def paged(pages: Tensor, table: Tensor) -> Tensor:
    return pages[table].sum(1)


def summed(x: Tensor, lengths: Tensor, start: Tensor) -> Tensor:
    place = torch.arange(len(x), device=x.device)
    return ((place >= start[:, None]) & (place < (start + lengths)[:, None])).to(x.dtype) @ x


PICKED: dict[str, Any] = {"shapes": {"x": "n v", "label": "n"}, "integers": {"label": "0 <= label < v"}}
PAGED: dict[str, Any] = {"shapes": {"pages": "p d", "table": "b q"}, "integers": {"table": "0 <= table < p"}}
SUMMED: dict[str, Any] = {
    "shapes": {"x": "t", "lengths": "b", "start": "b"},
    "integers": {"lengths": "1 <= lengths <= t, sum t"},
    "derive": {"start": lambda lengths: lengths.cumsum(0) - lengths},
}


def watched(like: Any, said: dict[str, Any], size: int, integers: int, seen: list[str]) -> Kernel:
    """A kernel that notes integers beyond an operand, which would stop a GPU, instead of reading there."""

    def check(*operands: Tensor) -> Tensor:
        if any(each.is_meta or (each.is_floating_point() != (n != integers)) for n, each in enumerate(operands[:2])):
            raise ValueError("operands have memory, and numbers and integers where they belong")
        end = operands[integers].sum() if like is summed else operands[integers].max() + 1
        if operands[integers].numel() and (int(end) > operands[size].shape[-1 if like is picked else 0]):
            seen.append(str([each.shape for each in operands]))
            raise ValueError("integers out of range")
        return like(*operands)

    names = ", ".join(said["shapes"])
    made = eval(f"lambda {names}: check({names})", {"check": check})
    kernel: Kernel = verify.kernel(like=like, dtypes=["float32"], gradients=False, name="k", **said)(made)
    return kernel


@pytest.mark.parametrize("law", ["error contract", "batch invariance", "many rows", "no stale results"])
@pytest.mark.parametrize(
    ("like", "said", "size", "integers"), [(picked, PICKED, 0, 1), (paged, PAGED, 0, 1), (summed, SUMMED, 0, 1)]
)
def test_no_law_makes_integers_that_the_declaration_does_not_allow(
    law: str, like: Any, said: dict[str, Any], size: int, integers: int
) -> None:
    seen = list[str]()
    found = attempt(law, watched(like, said, size, integers, seen))
    assert seen == []
    assert found.status != "broken", (found.message, found.facts)


def test_pages_and_lengths_are_no_independent_rows() -> None:
    """Half of the pages do not hold what the table names, and half of the lengths do not add up to the tokens."""
    for like, said, independent in ((picked, PICKED, {"n"}), (paged, PAGED, {"b", "d"}), (summed, SUMMED, set())):
        kernel = watched(like, said, 0, 1, [])
        subject = Subject(kernel, "float32", verify.backends.select("interpreter"), PROFILES["ci"].sizes["small"])
        dims = tuple(5 + place for place in range(len(kernel.op.geometry.dims)))
        rows = independent_rows(kernel, plain_case(subject, dims))
        assert {each.dimension for each in rows} == independent


@pytest.mark.parametrize("reads", [True, False])
def test_a_kernel_that_reads_a_number_on_the_host_is_excused_where_a_program_fails(reads: bool) -> None:
    """As the laws of CUDA graphs and of torch.compile ask where they fail."""

    def halved(x: Tensor) -> Tensor:
        return x * 0.5 if not reads or x.isfinite().all().item() else x * 0.25 * 2

    def check(subject: Subject, case: Case) -> None:
        excuse(subject, case)
        raise Broken("the kernel cannot be captured in a CUDA graph", case, {})

    kernel = verify.kernel(like=lambda x: x * 0.5, shapes={"x": "n d"}, dtypes=["float32"], gradients=False)(halved)
    law = replace(registry.get("determinism"), check=check)
    found = run_law(law, kernel, "float32", verify.backends.select("interpreter"), PROFILES["quick"])
    reason = "not applicable: the kernel reads a number on the host (_local_scalar_dense)"
    assert (found.status, found.message) == (
        ("skipped", reason) if reads else ("broken", "the kernel cannot be captured in a CUDA graph")
    )


def test_a_fault_of_the_gpu_is_put_down_to_the_kernel_with_its_case() -> None:
    """A GPU reports a misaligned address at some later call, which may be one of verify's own."""

    def check(subject: Subject, case: Any) -> None:
        raise RuntimeError("CUDA error: misaligned address")

    kernel = verify.kernel(like=lambda x: x * 0.5, shapes={"x": "n d"}, dtypes=["float32"], name="k")(lambda x: x * 0.5)
    backend, law = verify.backends.select("interpreter"), replace(registry.get("determinism"), check=check)
    found = run_law(law, kernel, "float32", backend, replace(PROFILES["quick"], examples=0))
    assert (found.status, found.cause) == ("broken", "failed")
    assert "the GPU reports a fault after a call of k" in found.message and "misaligned address" in found.message
    assert found.origin is not None and '"dims"' in found.origin.case


class ReluFromZero(torch.autograd.Function):
    """Has the slope 1 at 0, where PyTorch has 0."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return torch.relu(x)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        return dy * ~(x < 0)


@pytest.mark.parametrize("ties", ["", "as like"])
@pytest.mark.parametrize("law", ["accuracy", "special values"])
def test_another_slope_at_a_kink_breaks_laws_only_if_pytorchs_is_promised(law: str, ties: str) -> None:
    kernel = verify.kernel(like=torch.relu, dtypes=["float32"], ties=ties, name="relu")(lambda x: ReluFromZero.apply(x))
    values = {"x": "00000000" * 13} if law == "accuracy" else {}
    case = Case(dtype="float32", dims=(13,), fill="ones", upstream="ones", values=values)
    subject = Subject(kernel, "float32", backends.select(), Sizes())
    if not ties:
        registry.get(law).check(subject, case)
        return
    with pytest.raises(Broken) as broken:
        registry.get(law).check(subject, case)
    assert (broken.value.facts["got"][:2], broken.value.facts["truth"]) == ("1 ", "0.0")
