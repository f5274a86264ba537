"""Captured inputs: both formats, what a run makes of them, what a module writes, and files that are refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import verify
from tests.golden import answers
from tests.measure.test_kernel import few_cases
from verify import backends
from verify.cases import Case, inputs_of
from verify.declare.captured import Captured, _safetensors, _written
from verify.declare.declaration import Kernel
from verify.errors import UsageError
from verify.measure.kernel import measure_kernel
from verify.measure.requests import Measure

SHAPES = {"x": "n d", "weight": "d"}


def norm(x: Tensor, weight: Tensor) -> Tensor:
    return functional.rms_norm(x, x.shape[-1:], weight, 1e-6)


def write(path: Path, tensors: Mapping[str, Tensor]) -> Path:
    path.write_bytes(_written(tensors))
    return path


def declared(path: Path, kernel: Callable[..., Any] = norm, **options: Any) -> Kernel:
    settings = {"like": norm, "shapes": SHAPES, "dtypes": ["bfloat16", "float32"], "name": "k"}
    return verify.kernel(inputs=str(path), **{**settings, **options})(lambda x, weight: kernel(x, weight))


@pytest.fixture
def calls(tmp_path: Path) -> Path:
    """Two calls with a weight that they share; activations with a few large columns, as models have them."""
    made = torch.Generator().manual_seed(3)
    x = torch.randn(2, 5, 24, generator=made) * torch.where(torch.arange(24) == 7, 300.0, 0.3)
    tensors = {"0/x": x[0].bfloat16(), "1/x": x[1].bfloat16(), "weight": torch.rand(24, generator=made).bfloat16()}
    return write(tmp_path / "acts.safetensors", {**tensors, "1/dy": torch.ones(5, 24).bfloat16()})


def test_a_file_gives_back_its_bits(tmp_path: Path) -> None:
    tensors = {
        "x": torch.randn(3, 4),
        "i": torch.arange(5),
        "none": torch.empty(0, 2),
        "b": torch.tensor([True, False]),
        "h": torch.randn(2).half(),
        "w": torch.randn(7).bfloat16(),
        "e": torch.randn(3).to(torch.float8_e5m2),
    }
    held = _safetensors(write(tmp_path / "all.safetensors", tensors))
    assert held.keys() == tensors.keys()
    for name, value in tensors.items():
        got = held[name].read()
        assert (got.dtype, got.shape) == (value.dtype, value.shape) == (held[name].dtype, held[name].shape)
        assert got.view(torch.uint8).equal(value.view(torch.uint8))


def test_a_capture_of_no_calls_is_refused(tmp_path: Path) -> None:
    none = verify.capture(nn.Linear(2, 2), str(tmp_path / "a.safetensors"), calls=0)
    with pytest.raises(UsageError, match="a capture has at least one call; received calls=0"), none:
        pass


# -- in a run --------------------------------------------------------------------------------------------


def test_a_run_has_results_of_their_own(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few_cases(monkeypatch, "randn", "captured")
    run = measure_kernel(declared(calls), Measure("k.py::k"), backends.select())
    own = {f"{result.output} {result.dtype}": result for result in run.results if "captured" in result.output}
    assert list(own) == ["y (captured) bfloat16", "dx (captured) bfloat16", "dweight (captured) bfloat16"]
    assert own["y (captured) bfloat16"].figures.n == 2 * 5 * 24
    assert {result.status for result in own.values()} == {"ok"}
    assert len({result.properties for result in run.results}) == len(run.results)


def test_a_kernel_that_is_wrong_on_real_values_alone_is_wrong(calls: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few_cases(monkeypatch, "randn", "captured")

    def wrong(x: Tensor, weight: Tensor) -> Tensor:
        y = norm(x, weight)
        large = x.abs() > 20
        return y * 1.25 if x.shape == (5, 24) and bool(large[:, 7].any()) and not bool(large[:, :7].any()) else y

    run = measure_kernel(declared(calls, wrong, dtypes=["bfloat16"]), Measure("k.py::k"), backends.select())
    found = {result.output: result.status for result in run.results}
    assert found["y (captured)"] == "wrong" and found["y"] == "ok" and run.status == "wrong"
    worst = next(result for result in run.results if result.output == "y (captured)").worst[0]
    case = Case.from_json(worst.origin.case)
    assert case.fill in ("captured 0", "captured 1") and case.dims == (5, 24) and len(worst.origin.case) < 200


@pytest.mark.slow
def test_another_file_is_another_property(calls: Path) -> None:
    first = measure_kernel(declared(calls), Measure("k.py::k", dtypes=("bfloat16",)), backends.select())
    write(calls, {"x": torch.ones(2, 3).bfloat16()})
    second = measure_kernel(declared(calls), Measure("k.py::k", dtypes=("bfloat16",)), backends.select())
    one, other = ({r.output: r.properties for r in run.results} for run in (first, second))
    assert one["y"] == other["y"] and one["y (captured)"] != other["y (captured)"]


def test_operands_that_the_file_does_not_have_are_drawn(tmp_path: Path) -> None:
    x = torch.randn(3, 6)
    kernel = declared(write(tmp_path / "x.safetensors", {"x": x}), dtypes=["float32"])
    given = inputs_of(kernel.op, Case("float32", (3, 6), "captured 0"), "cpu")
    assert given["x"] is not None and given["x"].equal(x)
    assert given["weight"] is not None and given["weight"].shape == (6,) and bool(given["weight"].any())


# -- what a module writes --------------------------------------------------------------------------------


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(6))

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return norm(x * scale, self.weight)


def test_a_module_writes_its_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    few_cases(monkeypatch, "randn", "captured")
    model, path = nn.Sequential(nn.Linear(4, 6), Block()), tmp_path / "block.safetensors"
    given = torch.randn(3, 4)
    with verify.capture(model[1], str(path), calls=2):
        for _ in range(3):
            model(given).sum().backward()
    held = _safetensors(path)
    assert list(held) == ["weight", "0/x", "0/dy", "1/x", "1/dy"]
    assert held["1/x"].read().equal(model[0](given)) and held["0/dy"].read().equal(torch.ones(3, 6))
    kernel = declared(path, dtypes=["float32"])
    run = measure_kernel(kernel, Measure("k.py::k"), backends.select())
    assert [r.output for r in run.results if "captured" in r.output] == [
        "y (captured)", "dx (captured)", "dweight (captured)",
    ]  # fmt: skip
    assert not model[1]._forward_hooks and not model[1]._forward_pre_hooks


def test_a_capture_that_fails_leaves_no_file(tmp_path: Path) -> None:
    block, path = Block(), tmp_path / "block.safetensors"
    with pytest.raises(TypeError), verify.capture(block, str(path)):
        block()
    with pytest.raises(UsageError, match="the module was not called"), verify.capture(block, str(path)):
        pass
    with pytest.raises(UsageError, match=r"to a \.safetensors file"), verify.capture(block, "block.pt"):
        pass
    assert not path.exists() and not block._forward_hooks


# -- files that are refused ------------------------------------------------------------------------------

X, W = torch.ones(2, 3), torch.ones(3)


def held(**tensors: Tensor) -> None:
    """Declares a kernel with a file of captured tensors, whose names have `__` for the slash."""
    declared(
        write(Path.cwd() / "acts.safetensors", {name.replace("__", "/"): value for name, value in tensors.items()})
    )


def test_a_file_that_does_not_fit_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    answers(Path(__file__).parent / "snapshots" / "captured.txt", globals())


def test_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    for name, message in (("acts.pt", "a file that ends in"), ("acts.safetensors", "which does not exist")):
        with pytest.raises(UsageError, match=message):
            declared(tmp_path / name)
    path = write(tmp_path / "acts.safetensors", {"x": X})
    whole = path.read_bytes()
    for broken in (b"", whole[:20], whole[:-1], b"\xff" * 64, (2).to_bytes(8, "little") + b"[]"):
        path.write_bytes(broken)
        with pytest.raises(UsageError, match="is no file of tensors"):
            declared(path)
    with pytest.raises(UsageError, match="an op by name has no use for inputs="):
        verify.kernel(op="gelu", inputs="acts.safetensors")


def test_nan_integers_and_domains_are_looked_at(tmp_path: Path) -> None:
    x = X.clone()
    x[1, 2] = math.nan
    kernel = declared(write(tmp_path / "acts.safetensors", {"x": x}), dtypes=["float32"])
    with pytest.raises(UsageError, match="captured numbers are finite; x of call 0 has nan at 5, 1 in all"):
        inputs_of(kernel.op, Case("float32", (2, 3), "captured 0"), "cpu")
    kernel = declared(write(tmp_path / "acts.safetensors", {"x": -X}), dtypes=["float32"], domain={"x": "0 <= x"})
    with pytest.raises(UsageError, match="the domain 0 <= x; the case has -1 at 0"):
        inputs_of(kernel.op, Case("float32", (2, 3), "captured 0"), "cpu")
    path = write(tmp_path / "ids.safetensors", {"x": X, "ids": torch.tensor([0, 3])})
    taken = verify.kernel(
        like=lambda x, ids: x[:, ids], shapes={"x": "n d", "ids": "m"}, integers={"ids": "0 <= ids < d"},
        dtypes=["float32"], inputs=str(path), name="k",
    )(lambda x, ids: x[:, ids])  # fmt: skip
    with pytest.raises(UsageError, match=r"ids holds whole numbers from 0 to below 3; received others"):
        inputs_of(taken.op, Case("float32", (2, 3, 2), "captured 0"), "cpu")
    with pytest.raises(UsageError, match="has 1 captured calls; the case names 'captured 7'"):
        inputs_of(taken.op, Case("float32", (2, 3, 2), "captured 7"), "cpu")
    assert isinstance(taken.op.captured, Captured)
