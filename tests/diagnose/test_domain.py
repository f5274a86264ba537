"""The domain of a kernel, found by trying it."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import verify
from verify.backends import Interpreter
from verify.diagnose import domain

CPU = Interpreter("cpu")


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(domain, "WIDTHS", (1, 8, 16, 33, 64, 128, 256))
    monkeypatch.setattr(domain, "COUNTS", (1, 2, 7))


def probed(function: Any, avoid: tuple[str, ...] = (), **options: Any) -> tuple[dict[str, list[str]], dict[str, str]]:
    declared = verify.kernel(**{"op": "rms_norm", "operands": ["x"], "max_ulp": 64, **options})(function)
    found = domain.probe(declared, "k.py::k", CPU, lambda text: None, avoid)
    lines: dict[str, list[str]] = {}
    for name, text in found.lines:
        lines.setdefault(name, []).append(text)
    return lines, found.arguments


def probed_as_softmax(function: Any, shape: str, where: str) -> tuple[dict[str, list[str]], dict[str, str]]:
    options: dict[str, Any] = {"shapes": {"x": shape}, "where": where, "dtypes": ["float32"], "gradients": False}
    return probed(function, op=None, operands=None, like=lambda x: x.softmax(-1), **options)


def norm(x: torch.Tensor, *, eps: float) -> torch.Tensor:
    return torch.nn.functional.rms_norm(x, x.shape[-1:], None, eps)


def test_a_kernel_for_everything_needs_no_more_words() -> None:
    lines, arguments = probed(norm, dtypes=["float32", "bfloat16", "float16", "float64"], largest=1e18)
    assert set(arguments) <= {"largest"}, arguments
    assert lines["ranks"] == ["1, 2, 3, 4"] and "refuses" not in lines


def test_a_declared_format_of_8_bits_is_tried_too() -> None:
    def narrow(x: torch.Tensor) -> torch.Tensor:
        if x.dtype != torch.float8_e5m2:
            raise TypeError(f"not {x.dtype}")
        return torch.nn.functional.silu(x.float()).to(x.dtype)

    lines, arguments = probed(narrow, op="silu", dtypes=["float8_e5m2", "float32"], max_ulp=0.51, gradients=False)
    assert lines["dtypes"] == ["float8_e5m2"] and arguments["dtypes"] == "['float8_e5m2']"
    assert lines["ranks"] == ["1, 2, 3, 4"] and any(line.startswith("float32: TypeError") for line in lines["refuses"])


def test_multiples_and_the_widest_row_are_found_to_the_number() -> None:
    def picky(x: torch.Tensor, *, eps: float) -> torch.Tensor:
        if x.shape[-1] % 8 or x.shape[-1] > 200 or x.dtype == torch.float64 or not x.is_contiguous() or x.ndim > 2:
            raise ValueError(f"not {tuple(x.shape)}")
        if x.float().abs().max() > 1e10:
            return torch.zeros_like(x)
        return norm(x, eps=eps)

    lines, arguments = probed(picky)
    assert arguments["where"] == "'n % 8 == 0 and n <= 200 and rank in (1, 2)'"
    assert arguments["layouts"] == "'contiguous'"
    assert arguments["largest"] == "{'float32': 1e+09, 'bfloat16': 1e+09}"
    assert "dtypes" not in arguments, "it takes those that it declares"
    assert any(line.startswith("n = 208: ValueError: not (2, 208)") for line in lines["refuses"])


def test_what_ended_a_process_is_not_tried_again_and_nothing_larger_is() -> None:
    def deadly(x: torch.Tensor, *, eps: float) -> torch.Tensor:
        assert x.shape[-1] < 128, "this would end the process"
        return norm(x, eps=eps)

    avoid = tuple(f"float32 [2, {size}]" for size in (128, 96, 80, 72, 68, 66, 65, 97, 112, 120, 124, 126, 127))
    lines, arguments = probed(deadly, avoid)
    assert arguments["where"].startswith("'n <= ") and int(arguments["where"].split()[-1].strip("'")) < 128
    assert any("its process ends" in line for line in lines["refuses"])


def test_every_trial_is_told_before_it_is_made() -> None:
    told: list[str] = []

    def ends(x: torch.Tensor) -> torch.Tensor:
        assert told, "the process would end, and nobody knew why"
        return torch.softmax(x.float(), -1)

    declared = verify.kernel(op="softmax", gradients=False, dtypes=["bfloat16"])(ends)
    assert domain.probe(declared, "k.py::k", CPU, told.append, ()).arguments["output_dtypes"] == "{'y': 'float32'}"


def test_a_magnitude_is_that_of_the_operands_that_need_it() -> None:
    def halved(x1: torch.Tensor, x2: torch.Tensor) -> torch.Tensor:
        """Right but for the other operand beyond 5000."""
        y = x1.double() * x2.double() * torch.sigmoid(x2.double())
        return torch.where(x1.abs() > 5000, 0, y).to(x1.dtype).masked_fill(x2 == -torch.inf, 0)

    options = {"op": "swiglu_split", "operands": None, "gradients": False, "dtypes": ["float32"]}
    lines, arguments = probed(halved, **options)
    assert arguments["largest"].startswith("{'float32': {'x1': 1000}, 'bfloat16': {'x1': 1000}, "), lines["magnitudes"]
    assert any(line.startswith("float32: x1 up to 1000; at 10000 ") for line in lines["magnitudes"])


def test_what_is_computed_in_a_narrower_dtype_is_not_declared() -> None:
    lines, arguments = probed(lambda x: torch.softmax(x.float(), -1).to(x.dtype), op="softmax", gradients=False)
    assert "float64" in lines["dtypes"][0] and "float64: beyond 64 ULP on ordinary inputs" in lines["magnitudes"]
    assert "dtypes" not in arguments
    naive = lambda x: (x.float().exp() / x.float().exp().sum(-1, keepdim=True)).to(x.dtype)  # noqa: E731
    assert probed(naive, op="softmax", gradients=False)[1]["largest"] == "10", "one number for all dtypes"


def weighted(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
    return (norm(x.double(), eps=eps) * weight.double()).to(x.dtype)


def test_a_float32_weight_is_tried_beside_16_bit_data() -> None:
    options = {"operands": None, "gradients": False, "dtypes": ["float32", "bfloat16", "float16"], "largest": 1e18}
    lines, arguments = probed(weighted, **options)
    assert lines["mixed"] == ["beside bfloat16, float16 weight as float32: taken"]
    assert not {"operand_dtypes", "output_dtypes"} & set(arguments)
    assert lines["gradients"] == ["not requested: gradients=False"]


def test_other_dtypes_that_a_kernel_asks_for_and_returns_are_declared() -> None:
    def picky(x: torch.Tensor, weight: torch.Tensor, *, eps: float) -> torch.Tensor:
        if weight.dtype != torch.float32 or x.dtype == torch.float64:
            raise TypeError("weight must be float32")
        return weighted(x, weight, eps=eps).float()

    options: dict[str, Any] = {"operands": None, "gradients": False, "dtypes": ["float16"]}
    lines, arguments = probed(picky, **options)
    assert arguments["operand_dtypes"] == "{'weight': 'float32'}" and arguments["output_dtypes"] == "{'y': 'float32'}"
    assert lines["returns"] == ["y as float32 beside bfloat16, float16"]
    [refused] = lines["refuses"]
    assert refused.startswith("float64: TypeError: weight must be float32 (")
    said = {
        name: {"weight": "float32"} if name == "operand_dtypes" else {"y": "float32"}
        for name in arguments
        if "_" in name
    }
    assert not set(said) & set(probed(picky, **options, **said)[1]), "what the declaration says is not said again"


def test_each_dimension_of_a_pytorch_function_is_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(domain, "DTYPES", ("float32",))

    def narrow(x: torch.Tensor) -> torch.Tensor:
        if x.shape[-1] > 100:
            raise ValueError("too wide")
        return torch.softmax(x.double(), -1).to(x.dtype)

    lines, arguments = probed_as_softmax(narrow, "n d", "d >= 2")
    assert arguments["where"] == "'d >= 2 and d <= 100'"
    assert "n: 1 to 7, all that were tried" in lines["sizes"]
    assert any(text.startswith("d = 101: ValueError: too wide") for text in lines["refuses"])


def test_a_kernel_that_takes_powers_of_two_is_found_to_and_what_it_makes_of_other_layouts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(domain, "WIDTHS", (2, 4, 24, 64, 256))
    monkeypatch.setattr(domain, "DTYPES", ("float32",))

    def halves(x: torch.Tensor) -> torch.Tensor:
        if x.shape[-1] & (x.shape[-1] - 1):
            raise ValueError("arange's range must be a power of 2")
        flat = x.as_strided(x.shape, torch.empty(x.shape).stride())  # as a kernel without strides reads it
        return flat.double().softmax(-1).to(x.dtype)

    lines, arguments = probed_as_softmax(halves, "n s d", "d % 2 == 0")
    assert arguments["where"] == "'d % 2 == 0 and 65536 % d == 0'"
    assert "d: 2 to 256, powers of two" in lines["sizes"]
    [wrong] = lines["wrong"]
    assert wrong.startswith("beyond 64 ULP where x is transposed, ") and wrong.endswith("; x.contiguous() fixes that")
