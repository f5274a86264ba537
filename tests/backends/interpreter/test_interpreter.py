"""Real kernels through the interpreter, mended and as shipped."""

from __future__ import annotations

import types
from collections.abc import Callable
from importlib import metadata

import numpy as np
import pytest
import torch

from verify.errors import UsageError

pytestmark = pytest.mark.usefixtures("faithful")
VERSION = tuple(int(part) for part in metadata.version("triton").split(".")[:2])


def run(kernel: object, *tensors: torch.Tensor, **options: object) -> torch.Tensor:
    """Launch one program with the last tensor as the output, which is returned."""
    kernel[(1,)](*tensors, **options)  # type: ignore[index]
    return tensors[-1]


def pair(dtype: torch.dtype, n: int = 256, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(n, generator=g).to(dtype) for _ in range(2))  # type: ignore[return-value]


# -- the assertions that the shipped interpreter fails (see the negative control) ------------------


def check_cast(k: types.ModuleType) -> None:
    x = torch.cat([torch.randn(4000), torch.tensor([1.0 + 2.0**-8, 1.0 + 3 * 2.0**-8] * 48)])
    got = run(k.cast, x, torch.empty(4096, dtype=torch.bfloat16), N=4096)
    assert torch.equal(got, x.bfloat16())


def check_fma(k: types.ModuleType) -> None:
    x = 1 + torch.arange(64) * 2.0**-20
    got = run(k.fused, x, x, -(x * x), torch.empty(64), N=64)
    exact = (x.double() * x.double() - (x * x).double()).float()
    assert torch.equal(got, exact) and (got != 0).any()


def check_bfloat16_add(k: types.ModuleType) -> None:
    x, y = pair(torch.bfloat16)
    assert torch.equal(run(k.arithmetic, x, y, torch.empty_like(x), N=256, OP="add"), x + y)


def check_bfloat16_compare(k: types.ModuleType) -> None:
    x = torch.tensor([1.0, -1.0, -2.0, 0.0, -0.0, float("nan"), 3.0, -3.0]).bfloat16()
    y = torch.tensor([2.0, -2.0, 1.0, -0.0, 0.0, 1.0, float("nan"), -3.0]).bfloat16()
    want = sum(
        w * f(x, y).int()
        for w, f in zip((1, 2, 4, 8, 16, 32), (torch.lt, torch.le, torch.eq, torch.ne, torch.gt, torch.ge), strict=True)
    )
    assert run(k.compare, x, y, torch.empty(8, dtype=torch.int32), N=8).tolist() == want.tolist()


def check_minimum(k: types.ModuleType) -> None:
    x = torch.tensor([float("nan"), 1.0, 0.0, -0.0])
    y = torch.tensor([2.0, float("nan"), -0.0, 0.0])
    got = run(k.arithmetic, x, y, torch.empty(4), N=4, OP="minimum")
    assert got.tolist() == [2.0, 1.0, 0.0, 0.0] and torch.signbit(got).tolist() == [False, False, True, True]


def check_dot(k: types.ModuleType) -> None:
    a, b = pair(torch.bfloat16, 16 * 32)
    got = run(k.product, a, b, torch.zeros(256), M=16, N=16, K=32, PRECISION="ieee").view(16, 16)
    want = a.view(16, 32).double() @ b.view(32, 16).double()
    assert (got - want).abs().max() < 1e-5


def check_libdevice(k: types.ModuleType) -> None:
    x = torch.linspace(-3, 3, 64)
    got = run(k.special, x, torch.empty(64), N=64, F="erf")
    assert torch.equal(got, torch.erf(x.double()).float())


def check_bfloat16_sum(k: types.ModuleType) -> None:
    x = torch.ones(4, 64, dtype=torch.bfloat16)
    assert run(k.reduction, x, torch.empty(4), M=4, N=64, OP="sum").tolist() == [64.0] * 4


def check_assembly(k: types.ModuleType) -> None:
    x = 1 + torch.arange(64) * 2.0**-20
    got = run(k.assembly_fma, x, x, torch.zeros(64), torch.empty(64), N=64)
    assert got.abs().max() == 0  # fma with 0 is the rounded product
    got = run(k.assembly_fma, x, x, torch.full((64,), 1e-3), torch.empty(64), N=64)
    assert (got - 1e-3).abs().max() < 2e-7 and (got > 0).all()


def check_constants(k: types.ModuleType) -> None:
    got = run(k.constants, torch.empty(8, dtype=torch.bfloat16))
    assert got.view(torch.int16).tolist() == [0x3DCD] * 4 + [0] * 4  # 1e-7 is lost by the compiler's "%f"


def check_float_argument(k: types.ModuleType) -> None:
    s = 1 + 2.0**-13 + 2.0**-30  # in float32 the last term is lost, and one bit of the square
    got = run(k.float_argument, torch.empty(4), s=s, N=4)
    assert got.tolist() == [float(np.float32(s) * np.float32(s)) - 1] * 4


def check_threads(k: types.ModuleType) -> None:
    assert run(k.threads, torch.zeros(2, dtype=torch.int32)).tolist() == [128, 4]
    assert run(k.threads, torch.zeros(2, dtype=torch.int32), num_warps=8).tolist() == [256, 8]


CHECKS: dict[str, Callable[[types.ModuleType], None]] = {
    name.removeprefix("check_"): f for name, f in list(globals().items()) if name.startswith("check_")
}


@pytest.mark.parametrize("name", CHECKS)
def test_faithful(name: str, k: types.ModuleType) -> None:
    CHECKS[name](k)


# -- more of the same, where the shipped interpreter happens to agree ------------------------------


@pytest.mark.parametrize("function", ["erfc", "tanh", "normcdf", "expm1", "tl.erf", "tl.rsqrt", "tl.log", "tl.div_rn"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_functions_in_kernels(function: str, dtype: torch.dtype, k: types.ModuleType) -> None:
    if function == "tl.div_rn" and dtype == torch.float64:
        pytest.skip("tl.div_rn takes float32")
    x = torch.linspace(0.01, 4, 128, dtype=dtype)
    d = x.double()
    want = {
        "erfc": torch.erfc, "tanh": torch.tanh, "normcdf": torch.special.ndtr, "expm1": torch.expm1,
        "tl.erf": torch.erf, "tl.rsqrt": lambda v: 1 / v.sqrt(), "tl.log": torch.log, "tl.div_rn": lambda v: 1 / v,
    }[function](d)  # fmt: skip
    got = run(k.special, x, torch.empty_like(x), N=128, F=function)
    tolerance = 2.0**-24 if dtype == torch.float32 else 2.0**-50
    assert ((got.double() - want).abs() <= want.abs() * tolerance).all()


def test_tl_exp_has_the_error_of_its_two_instructions(k: types.ModuleType) -> None:
    x = torch.linspace(80, 88, 256)
    exact = torch.exp(x.double())
    got = run(k.special, x, torch.empty(256), N=256, F="tl.exp").double()
    ulp = torch.from_numpy(np.spacing(exact.float().numpy())).double()
    assert 50 < ((got - exact).abs() / ulp).max() < 70


def test_reductions(k: types.ModuleType) -> None:
    x = torch.randn(8, 64)
    for op, want in {"sum": x.sum(1), "max": x.amax(1), "min": x.amin(1)}.items():
        got = run(k.reduction, x, torch.empty(8), M=8, N=64, OP=op)
        assert torch.allclose(got, want, atol=1e-5)
    assert torch.equal(
        run(k.reduction, x, torch.empty(8, dtype=torch.int32), M=8, N=64, OP="argmax"), x.argmax(1).int()
    )
    assert torch.equal(run(k.reduction, x, torch.empty(8), M=8, N=64, OP="branching"), x.amax(1))
    small = (x / 64).double()
    got = run(k.reduction, small.float(), torch.empty(8), M=8, N=64, OP="custom").double()
    assert torch.allclose(got, (1 + small).prod(1) - 1, atol=1e-5)


def test_max_ignores_nan_and_minimum_of_bfloat16_is_its_own(k: types.ModuleType) -> None:
    x = torch.randn(2, 16).bfloat16()
    x[0, 3] = float("nan")
    got = run(k.reduction, x, torch.empty(2), M=2, N=16, OP="max")
    assert got.tolist() == [np.nanmax(x[0].float().numpy()), x[1].max().item()]


def test_a_bfloat16_sum_rounds_after_every_addition(k: types.ModuleType) -> None:
    """256 + 1 is 256 in bfloat16, so a tree over 1, 256, 1, 256, ... loses every 1."""
    x = torch.tensor([256.0, 1.0] * 8).bfloat16().view(1, 16)
    assert run(k.reduction, x, torch.empty(1), M=1, N=16, OP="sum").item() == 2048.0


def test_several_tensors_reduce_together(k: types.ModuleType) -> None:
    x = torch.randn(256) + 100
    mean, variance = run(k.moments, x, torch.empty(2), N=256).tolist()
    assert mean == pytest.approx(x.double().mean().item(), rel=1e-6)
    assert variance == pytest.approx(x.double().var(unbiased=False).item(), rel=1e-4)


@pytest.mark.parametrize("reverse", [False, True])
def test_scans(reverse: bool, k: types.ModuleType) -> None:
    def oriented(t: torch.Tensor) -> torch.Tensor:
        return t.flip(0) if reverse else t

    x = torch.rand(128) + 0.5
    for op, f in {"cumsum": torch.cumsum, "cumprod": torch.cumprod, "sum_in_type": torch.cumsum}.items():
        got = run(k.scan, x, torch.empty(128), N=128, OP=op, REVERSE=reverse).double()
        assert torch.allclose(got, oriented(f(oriented(x.double()), 0)), rtol=1e-5)
    ones = torch.ones(64, dtype=torch.bfloat16)
    got = run(k.scan, ones, torch.empty(64), N=64, OP="sum_in_type", REVERSE=reverse)
    assert got.tolist() == oriented(torch.arange(1.0, 65.0)).tolist()


def test_sort(k: types.ModuleType) -> None:
    x = torch.randn(64)
    assert torch.equal(run(k.sorted_descending, x, torch.empty(64), N=64), x.sort(descending=True).values)


def test_an_autotuned_kernel_takes_its_first_configuration(k: types.ModuleType) -> None:
    x, out = torch.randn(100), torch.zeros(101)
    k.tuned[lambda meta: (-(-100 // meta["BLOCK"]),)](x, out, 100)
    assert torch.equal(out[:100], x * 2) and out[100] == 32.0


@pytest.mark.skipif(VERSION >= (3, 9), reason="Triton 3.9 has no block pointers")
@pytest.mark.filterwarnings("ignore:tl.make_block_ptr is deprecated")
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_padding_in_every_type(dtype: torch.dtype, k: types.ModuleType) -> None:
    x = torch.randn(8).to(dtype)
    got = run(k.padded, x, torch.full((16,), 7.0).to(dtype))
    assert torch.equal(got[:6], x[:6]) and torch.equal(got[8:14], x[:6])
    assert got[6:8].isnan().all() and got[14:].tolist() == [0.0, 0.0]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_descriptors_pad_in_every_type(dtype: torch.dtype, k: types.ModuleType) -> None:
    x, out = torch.randn(6).to(dtype), torch.full((16,), 7.0).to(dtype)
    k.padded_descriptor[(1,)](x, out)
    assert torch.equal(out[:6], x) and torch.equal(out[8:14], x)
    assert out[6:8].isnan().all() and out[14:].tolist() == [0.0, 0.0]


@pytest.mark.skipif(VERSION < (3, 9), reason="tl.fdiv has no approx before Triton 3.9")
def test_approximate_division(k: types.ModuleType) -> None:
    x = torch.tensor([1.0, 3.0, 2.0**-130, 1.0])
    y = torch.tensor([3.0, 2.0**127, 1.0, 0.0])
    got = run(k.approximate_division, x, y, torch.empty(4), N=4)
    # div.approx loses the quotient by a divisor beyond 2^126, and keeps subnormals
    assert got.tolist() == [float(np.float32(1) / np.float32(3)), 0.0, 2.0**-130, float("inf")]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_atomics_in_every_type(dtype: torch.dtype, k: types.ModuleType) -> None:
    x = torch.randn(8).to(dtype)
    total, old = torch.ones(4, dtype=dtype), torch.zeros(8, dtype=dtype)
    k.atomic_pairs[(1,)](x, total, old, N=8)
    want = (1 + x[0::2]) + x[1::2]
    assert torch.equal(total[:3], want[:3]) and total[3] == 1.0
    assert old[0] == 1.0 and old[1] == 1 + x[0]


def test_float8_arithmetic_is_refused(k: types.ModuleType) -> None:
    x = torch.ones(8).to(torch.float8_e5m2)
    with pytest.raises(Exception, match=r"\+: Triton compiles no arithmetic on fp8e5.*Next: cast to tl.float16"):
        run(k.arithmetic, x, x, torch.empty(8).to(torch.float8_e5m2), N=8, OP="add")


def test_unknown_symbol_and_instruction_are_named(k: types.ModuleType) -> None:
    x, out = torch.ones(4), torch.empty(4)
    with pytest.raises(Exception, match="no __nv_j0f; it has"):
        run(k.unknown_symbol, x, out)
    with pytest.raises(Exception, match="the interpreter backend has no 'shfl.sync.bfly.b32'"):
        run(k.assembly_unknown, x, out, N=4)


# -- installing -----------------------------------------------------------------------------------


def test_a_triton_without_the_expected_attributes_is_refused(shipped: None, monkeypatch: pytest.MonkeyPatch) -> None:
    from triton.runtime import interpreter as triton_interpreter

    from verify.backends.interpreter import install

    monkeypatch.delattr(triton_interpreter.InterpreterBuilder, "create_fma")
    monkeypatch.delattr(triton_interpreter.ReduceOps, "generic_reduce")
    with pytest.raises(UsageError) as error:
        install.install()
    assert "it corrects the interpreter of Triton 3.6 to 3.9; Triton 3." in error.value.message
    assert "'ReduceOps' has no attribute 'generic_reduce'" in error.value.message
    assert str(error.value.hint).startswith("pip install 'triton>=3.6,<3.10'")
    monkeypatch.undo()
    monkeypatch.delattr(triton_interpreter.InterpreterBuilder, "create_fma")
    with pytest.raises(UsageError, match="'InterpreterBuilder' has no attribute 'create_fma'"):
        install.install()
    assert not install.installed()


@pytest.mark.parametrize("programs", [1, 3])
def test_a_loop_variable_has_a_type_as_in_a_compiled_kernel(k: types.ModuleType, programs: int) -> None:
    out = torch.zeros(4, dtype=torch.int64)
    k.offsets_of_turns[(programs,)](out, 7, STEP=2)
    assert out.tolist() == [turn * 2**31 + turn for turn in range(4)]
