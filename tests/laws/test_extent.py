"""Where a kernel is wrong: from which size on, and which results of the call are right."""

from __future__ import annotations

import torch
from torch import Tensor

import verify
from verify.backends import select
from verify.laws import registry
from verify.laws.engine import PROFILES, run_law


def test_the_first_wrong_size_and_the_right_results_are_said() -> None:
    def both(x: Tensor) -> tuple[Tensor, Tensor]:
        return x.sum(-1), x * 2

    def kernel(x: Tensor) -> tuple[Tensor, Tensor]:
        total = x.double().sum(-1)
        if x.shape[1] > 128:
            total = total - x[:, 128:].double().sum(-1)
        return total.to(x.dtype), x * 2

    declared = verify.kernel(
        like=both, shapes={"x": "n s"}, outputs=["total", "twice"], dtypes=["float32"], gradients=False, name="k"
    )(kernel)
    found = run_law(registry.get("accuracy"), declared, "float32", select("interpreter"), PROFILES["ci"], "k.py::k")
    assert found.status == "broken"
    assert "wrong from s = 129 on, right up to 128, as far as tried" in found.facts["sizes"]
    assert found.facts["right"] == "twice of the same call"


def test_a_kernel_that_is_wrong_at_every_size_has_no_first_one() -> None:
    declared = verify.kernel(like=torch.cos, shapes={"x": "n s"}, dtypes=["float32"], gradients=False, name="k")(
        lambda x: torch.cos(x) * 1.001
    )
    found = run_law(registry.get("accuracy"), declared, "float32", select("interpreter"), PROFILES["ci"], "k.py::k")
    assert found.status == "broken" and "sizes" not in found.facts and "right" not in found.facts
