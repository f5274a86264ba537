"""Drift over depth: the error of single calls and the derivative of a layer predict that of a stack."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import verify
from tests.cli.here import said
from verify import backends
from verify.diagnose.drift import drift_of
from verify.diagnose.requests import Drift
from verify.errors import UsageError

WITHIN = 0.2


def cut(y: Tensor) -> Tensor:
    """Cuts off the digits that bfloat16 has no room for."""
    return (y.view(torch.int32) & -65536).view(torch.float32).bfloat16()


def add_norm(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    h = x + r
    return functional.rms_norm(h, h.shape[-1:], w, 1e-6), h


def fused(store: Any) -> Any:
    def kernel(x: Tensor, r: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
        h = x.float() + r.float()
        return functional.rms_norm(h, h.shape[-1:], w.float(), 1e-6).bfloat16(), store(h)

    return kernel


FUSED: dict[str, Any] = {"like": add_norm, "shapes": {"x": "t d", "r": "t d", "w": "d"}, "outputs": ["y", "h"]}
GATED: dict[str, Any] = {"like": lambda g, u: functional.silu(g) * u}


def drift(function: Any, layers: int = 72, **options: Any) -> Drift:
    kernel = verify.kernel(dtypes=["bfloat16"], gradients=False, name="k", **options)(function)
    return drift_of(kernel, backends.select(), "", layers, lambda text: None)


def test_stores_that_cut_off_digits_lose_a_tenth_of_a_stream_in_72_layers() -> None:
    found = drift(fused(cut), **FUSED)
    assert (found.result, found.stream, found.carries) == ("h", "x", True)
    assert -0.0025 < found.call[0] < -0.001 and -0.11 < found.measured[0] < -0.07
    for predicted, measured in zip(found.predicted, found.measured, strict=True):
        assert abs(predicted - measured) <= WITHIN * abs(measured), found


@pytest.mark.parametrize(
    ("function", "options", "added"),
    [
        (fused(lambda h: h.bfloat16()), FUSED, False),
        (lambda g, u: (functional.silu(g.float()) * u.float()).bfloat16(), GATED, True),
    ],
)
def test_rounding_to_nearest_leaves_noise_alone(function: Any, options: Any, added: bool) -> None:
    found = drift(function, **options)
    assert found.carries is not added
    assert abs(found.measured[0]) < 0.001 and abs(found.predicted[0]) < 0.001
    assert abs(found.predicted[1] - found.measured[1]) <= WITHIN * found.measured[1], found
    assert found.measured[1] > 3 * found.call[1]


def test_the_command_prints_one_call_the_prediction_and_the_measurement(tmp_path: Path) -> None:
    (tmp_path / "accuracy.py").write_text(
        "import verify\n\n\n@verify.kernel(like=lambda x, r: x + r, dtypes=['bfloat16'], gradients=False)\n"
        "def add(x, r):\n    return x + r\n"
    )
    shown = said("drift", "accuracy.py::add", "--layers", "5", cwd=tmp_path)
    lines = shown.stdout.splitlines()
    assert lines[0] == "add bfloat16: y carries x, 4,096 numbers, 5 layers"
    assert lines[1].split() == ["share", "of", "the", "stream", "one", "call", "predicted", "measured"]
    assert [line.split()[0] for line in lines[2:4]] == ["mean", "deviation"] and max(map(len, lines)) <= 80


def test_what_is_no_layer_is_refused() -> None:
    with pytest.raises(UsageError, match="no result in the shape of an operand"):
        drift(lambda x: x.sum(-1), like=lambda x: x.sum(-1), shapes={"x": "r n"})
    with pytest.raises(UsageError, match="one layer or more"):
        drift(lambda g, u: g * u, layers=0, like=lambda g, u: g * u)
    with pytest.raises(UsageError, match="not finite after layer"):
        drift(lambda x: x * 3e38, like=lambda x: x * 3e38)
