"""PyTorch in the place of a kernel: the same problem, as a target like any other."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from verify.cases.plan import plan
from verify.declare.declaration import Kernel
from verify.declare.declaration import kernel as declare
from verify.declare.discovery import load as load_target
from verify.declare.standin import baseline_of, stand_in
from verify.declare.target import Target
from verify.errors import UsageError
from verify.measure.call import run_baseline, run_kernel

F = torch.nn.functional


def kernel(op: str = "gelu", function=F.gelu, **options) -> Kernel:  # type: ignore[no-untyped-def]
    options.setdefault("dtypes", ["float32"])
    return declare(op=op, **options)(function)


@pytest.mark.parametrize(
    ("op", "operands", "outputs"),
    [("layer_norm", ["x", "bias"], ["y"]), ("layer_norm_residual", ["x", "residual"], ["s", "y"])],
)
def test_eager_is_the_ops_baseline_with_the_kernels_signature(op: str, operands: list[str], outputs: list[str]) -> None:
    subject = kernel(op, lambda *_, eps: None, operands=operands, outputs=outputs)
    eager = stand_in(subject, "eager")
    case = plan(eager, "float32", "interpreter", 0)[0].cases[0]
    ours = run_kernel(eager, case, "cpu").results
    theirs = run_baseline(subject, case, "cpu").results
    assert list(ours) == list(theirs) and set(ours) > set(outputs)
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    assert eager.peer and eager.name.endswith("@eager")


def test_what_pytorch_has_no_function_for_is_computed_in_float32_and_rounded_once() -> None:
    narrow = kernel("silu", F.silu, dtypes=["float8_e5m2"])
    found = run_baseline(narrow, plan(narrow, "float8_e5m2", "interpreter", 0)[0].cases[0], "cpu")
    x, y = found.inputs["x"], found.results["y"]
    assert x is not None and x.dtype == y.dtype == torch.float8_e5m2 and x.numel() == 256
    assert torch.equal(y.view(torch.uint8), F.silu(x.float()).to(x.dtype).view(torch.uint8))


def test_a_stand_in_is_a_target(tmp_path: Path) -> None:
    path = tmp_path / "accuracy.py"
    path.write_text("import verify, torch\n\n@verify.kernel(op='gelu')\ndef mine(x):\n    return x\n")
    load = lambda text: load_target(Target.parse(f"{path}::{text}"))  # noqa: E731
    assert [item.name for item in load("mine@eager")] == ["mine@eager"]
    assert load("mine@compile")[0].backends == ("cuda", "cpu")
    with pytest.raises(UsageError, match="a stand-in is KERNEL@eager or KERNEL@compile; received mine@jit"):
        load("mine@jit")
    with pytest.raises(UsageError, match="has no kernel 'other@eager'"):
        load("other@eager")


def test_a_definition_makes_its_positions_beside_its_operands() -> None:
    """PyTorch runs it on the device of the operands; torch.arange(n) would be on the CPU."""

    def placed(x: torch.Tensor) -> torch.Tensor:
        return x + torch.arange(x.shape[-1])

    kernel = declare(like=placed, shapes={"x": "n d"})(placed)
    assert baseline_of(kernel).function(torch.ones(2, 3, device="meta")).device.type == "meta"
