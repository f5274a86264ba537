"""The experiments that compare the interpreter with a GPU: expressions, argument types and inputs.

Inputs follow from the names alone (fixed seeds), so that a recording holds outputs only.
"""

from __future__ import annotations

import inspect
import re
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

#: Triton type name -> (torch dtype name, unsigned numpy type of the same size)
TYPES: dict[str, tuple[str, Any]] = {
    "fp64": ("float64", np.uint64),
    "fp32": ("float32", np.uint32),
    "fp16": ("float16", np.uint16),
    "bf16": ("bfloat16", np.uint16),
    "fp8e4nv": ("float8_e4m3fn", np.uint8),
    "fp8e5": ("float8_e5m2", np.uint8),
    "int8": ("int8", np.uint8),
    "int16": ("int16", np.uint16),
    "int32": ("int32", np.uint32),
    "int64": ("int64", np.uint64),
    "uint8": ("uint8", np.uint8),
    "uint16": ("uint16", np.uint16),
    "uint32": ("uint32", np.uint32),
    "uint64": ("uint64", np.uint64),
}
#: Triton's name for a float8 type differs from the storage suffix.
TL = {"fp64": "float64", "fp32": "float32", "fp16": "float16", "bf16": "bfloat16"}
TL |= {"fp8e4nv": "float8e4nv", "fp8e5": "float8e5"}


@dataclass(frozen=True)
class Experiment:
    """One expression over `a0`, `a1`, ... and the types of its arguments and result."""

    name: str
    expression: str
    arguments: tuple[str, ...]
    result: str


@dataclass(frozen=True)
class Dot:
    """One tl.dot of a 64 x k and a k x 64 matrix."""

    name: str
    operand: str
    result: str
    k: int
    options: str
    inputs: str


# -- inputs ---------------------------------------------------------------------------------------


def patterns(dtype: str, seed: int, n: int) -> np.ndarray:
    """n bit patterns of a type: specials, all exponents, subnormals and ordinary magnitudes."""
    unsigned = TYPES[dtype][1]
    rng = np.random.default_rng([seed, n, sum(map(ord, dtype))])
    bits = np.dtype(unsigned).itemsize * 8
    noise = rng.integers(0, 2**bits, n, dtype=unsigned)
    if dtype in ("fp64", "fp32"):
        f = np.float64 if dtype == "fp64" else np.float32
        tiny = np.finfo(f).tiny
        parts = [
            special(dtype),
            rng.uniform(-10, 10, n // 6).astype(f),
            rng.uniform(-110, 110, n // 6).astype(f),
            (rng.uniform(-2, 2, n // 10) * tiny).astype(f),
            rng.uniform(0, 1, n // 8).astype(f),
            rng.uniform(-160, 160, n // 10).astype(f),
            (1.0 + rng.integers(-64, 64, n // 16) * np.finfo(f).eps / 2).astype(f),
            rng.integers(-300, 300, n // 16).astype(f) * f(0.5),
        ]
        ordered = np.concatenate([p.view(unsigned) for p in parts])
        return np.concatenate([ordered, noise])[:n]
    if dtype in ("fp16", "bf16"):
        return np.concatenate([special(dtype), noise])[:n]
    if dtype.startswith("fp8"):
        return np.concatenate([np.arange(256, dtype=unsigned), noise])[:n]
    edges = [0, 1, 2**bits - 1, 2 ** (bits - 1), 2 ** (bits - 1) - 1, 2 ** (bits - 1) + 1]
    small = rng.integers(0, min(2**bits, 4096), n // 4).astype(unsigned)
    shifted = noise[: n // 2] >> rng.integers(0, bits, n // 2).astype(unsigned)
    return np.concatenate([np.array(edges, dtype=unsigned), small, shifted, noise])[:n]


def special(dtype: str) -> np.ndarray:
    """Zeros, units, limits, subnormals, infinities and NaN, as values (fp32, fp64) or patterns."""
    if dtype == "fp16":
        return np.array([0, 0x8000, 0x3C00, 0xBC00, 1, 0x8001, 0x3FF, 0x400, 0x7BFF, 0xFBFF, 0x7C00, 0xFC00, 0x7E00])
    if dtype == "bf16":
        return np.array([0, 0x8000, 0x3F80, 0xBF80, 1, 0x8001, 0x7F, 0x80, 0x7F7F, 0xFF7F, 0x7F80, 0xFF80, 0x7FC0])
    f = np.float64 if dtype == "fp64" else np.float32
    i = np.finfo(f)
    values = [0.0, -0.0, 1.0, -1.0, 0.5, -2.5, i.smallest_subnormal, -i.smallest_subnormal, i.tiny, -i.tiny]
    values += [i.max, i.min, np.inf, -np.inf, np.nan]
    return np.array(values, dtype=f)


def arguments(experiment: Experiment) -> list[np.ndarray]:
    """Patterns for each argument: a grid of specials first, so that they meet, then independent draws."""
    n, seed = 4096, zlib.crc32(experiment.name.encode())
    columns = [patterns(t, seed + 17 * i, n) for i, t in enumerate(experiment.arguments)]
    count = len(columns)
    if count > 1:
        side = {2: 40, 3: 12, 4: 6}[count]
        grids = np.meshgrid(*[np.arange(side)] * count, indexing="ij")
        columns = [np.concatenate([c[g.ravel()], c])[:n] for c, g in zip(columns, grids, strict=True)]
    if "float32_halfway" in experiment.name:  # the cast experiments: all neighbours of ties of the target
        columns = [halfway(experiment.arguments[0], experiment.result, columns[0])]
    return [c.astype(TYPES[t][1]) for c, t in zip(columns, experiment.arguments, strict=True)]


def halfway(source: str, target: str, fill: np.ndarray) -> np.ndarray:
    """Patterns of the source just below, at and above ties of a narrower target."""
    unsigned = TYPES[source][1]
    drop = {"fp64": 52, "fp32": 23}[source] - {"fp32": 23, "bf16": 7, "fp16": 10, "fp8e4nv": 3, "fp8e5": 2}[target]
    f = np.float64 if source == "fp64" else np.float32
    rng = np.random.default_rng(5)
    centre = {"fp8e4nv": (-11, 10), "fp8e5": (-18, 17), "fp16": (-26, 17)}.get(target, (-152, 129))
    values = np.ldexp(rng.uniform(1, 2, 1024), rng.integers(*centre, 1024)).clip(-3e38, 3e38).astype(f)
    values *= rng.choice(np.array([-1, 1], f), 1024)
    base = (values.view(unsigned) >> unsigned(drop) << unsigned(drop)) | unsigned(1 << (drop - 1))
    return np.concatenate([base - unsigned(1), base, base + unsigned(1), fill])[:4096]


# -- experiments ----------------------------------------------------------------------------------


Add = Callable[..., None]  # name, expression, dtypes of the arguments, dtype of the result


def experiments() -> list[Experiment]:
    """Every elementwise experiment whose result is defined to the bit."""
    out: list[Experiment] = []

    def add(name: str, expression: str, args: str, result: str) -> None:
        out.append(Experiment(name, expression, tuple(args.split()), result))

    add_casts(add)
    add_arithmetic(add)
    add_functions(add)
    out += libdevice_experiments()
    out += assembly_experiments()
    return out


def add_casts(add: Add) -> None:
    """Conversions between formats, roundings included."""
    for source, targets in {
        "fp64": "fp32 fp16 bf16",
        "fp32": "fp64 fp16 bf16 fp8e4nv fp8e5",
        "fp16": "fp64 fp32 bf16 fp8e4nv fp8e5",
        "bf16": "fp64 fp32 fp16 fp8e4nv fp8e5",
        "fp8e4nv": "fp32 fp16 bf16",
        "fp8e5": "fp32 fp16 bf16",
    }.items():
        for target in targets.split():
            add(f"cast {source} {target}", f"a0.to(tl.{TL[target]})", source, target)
            narrows = TYPES[source][1]().itemsize > TYPES[target][1]().itemsize
            if source in ("fp64", "fp32") and narrows:
                add(f"cast float32_halfway {source} {target}", f"a0.to(tl.{TL[target]})", source, target)
    for target in ("bf16", "fp16", "fp8e5"):
        expression = f"a0.to(tl.{TL[target]}, fp_downcast_rounding='rtz')"
        add(f"cast rtz fp32 {target}", expression, "fp32", target)
        add(f"cast rtz float32_halfway fp32 {target}", expression, "fp32", target)
    integers = [t for t in TYPES if "int" in t]
    for source in ("fp64", "fp32", "fp16", "bf16"):
        for target in integers:
            add(f"cast {source} {target}", f"a0.to(tl.{target})", source, target)
            add(f"cast {target} {source}", f"a0.to(tl.{TL[source]})", target, source)


def add_arithmetic(add: Add) -> None:
    """Operators and comparisons."""
    add("fp64 /", "a0 / a1", "fp64 fp64", "fp64")
    for dtype in ("fp32", "fp64", "fp16", "bf16"):
        two, three = f"{dtype} {dtype}", f"{dtype} {dtype} {dtype}"
        for symbol in "+-*":
            add(f"{dtype} {symbol}", f"a0 {symbol} a1", two, dtype)
        wide = dtype if dtype in ("fp32", "fp64") else "fp32"
        add(f"{dtype} %", "a0 % a1", two, wide)
        add(f"{dtype} neg", "-a0", dtype, dtype)
        add(f"{dtype} abs", "tl.abs(a0)", dtype, dtype)
        for op in ("<", "<=", ">", ">=", "==", "!="):
            add(f"{dtype} {op}", f"(a0 {op} a1).to(tl.int8)", two, "int8")
        for nan in ("NONE", "ALL"):
            option = f", propagate_nan=tl.PropagateNan.{nan}"
            add(f"{dtype} minimum {nan}", f"tl.minimum(a0, a1{option})", two, dtype)
            add(f"{dtype} maximum {nan}", f"tl.maximum(a0, a1{option})", two, dtype)
            add(f"{dtype} clamp {nan}", f"tl.clamp(a0, a1, a2{option})", three, dtype)
        add(f"{dtype} fma", "tl.fma(a0, a1, a2)", three, dtype)
        add(f"{dtype} where", "tl.where(a0 > a1, a0, a2)", three, dtype)
        if dtype in ("bf16", "fp16"):
            for constant in ("0.1", "1e-7", "65519.9", "3.0000001", "-1.00390625"):
                add(f"{dtype} * {constant}", f"a0 * {constant}", dtype, dtype)


def add_functions(add: Add) -> None:
    """Functions of one or two numbers that Triton has itself."""
    for dtype in ("fp32", "fp64"):
        for f in ("floor", "ceil"):
            add(f"tl.{f} {dtype}", f"tl.{f}(a0)", dtype, dtype)
    add("tl.sqrt fp64", "tl.sqrt(a0)", "fp64", "fp64")
    add("tl.sqrt_rn", "tl.sqrt_rn(a0)", "fp32", "fp32")
    add("tl.div_rn", "tl.div_rn(a0, a1)", "fp32 fp32", "fp32")


#: libdevice functions whose result IEEE arithmetic or integer arithmetic fixes to the bit.
EXACT_LIBDEVICE = {
    *"abs floor ceil trunc rint nearbyint round llrint llround saturatef copysign fma isnan isinf".split(),
    *"finitef isfinited signbit ffs clz popc brev byte_perm mulhi ldexp scalbn".split(),
    *"ilogb logb fdim nextafter fmod int_as_float float_as_int uint_as_float".split(),
    *"float_as_uint longlong_as_double double_as_longlong hiloint2double double2loint".split(),
    *"double2hiint sqrt_rn rcp_rn div_rn add_rn mul_rn sub_rn fma_rn rsqrt_rn".split(),
}


def libdevice_experiments() -> list[Experiment]:
    """One experiment per overload of an exact function that triton.language.extra.cuda.libdevice lists."""
    from triton.language.extra.cuda import libdevice

    out = []
    source = " ".join(inspect.getsource(libdevice).split()).replace("@core.extern ", "@core.extern\n")
    for body in re.split(r"@core\.extern\n", source)[1:]:
        name = body[4 : body.index("(")]
        pattern = r"\(((?:core\.dtype\(\"\w+\"\),? ?)+)\): \(\"(\w+)\", core\.dtype\(\"(\w+)\"\)\)"
        for match in re.finditer(pattern, body):
            types = re.findall(r"dtype\(\"(\w+)\"\)", match.group(1))
            call = ", ".join(f"a{i}" for i in range(len(types)))
            exact = name in EXACT_LIBDEVICE or name.endswith("_rz") or ("2" in name and name[-3:-1] == "_r")
            if exact and match.group(2) != "__nv_rsqrt":
                out.append(Experiment(match.group(2), f"libdevice.{name}({call})", tuple(types), match.group(3)))
    return out


def assembly_experiments() -> list[Experiment]:
    """Inline PTX: the instructions with one defined result."""
    out = []
    exact = {
        "fma.rn.f32": 3, "fma.rz.f32": 3, "fma.rn.sat.f32": 3,
        "fma.rn.ftz.f32": 3, "add.rn.f32": 2, "sub.rz.f32": 2,
        "min.f32": 2, "max.f32": 2, "min.NaN.f32": 2, "max.NaN.f32": 2, "div.rn.f32": 2, "sqrt.rn.f32": 1,
        "rcp.rn.f32": 1, "cvt.rni.f32.f32": 1, "abs.f32": 1, "neg.f32": 1, "copysign.f32": 2,
        "min.xorsign.abs.f32": 2,
    }  # fmt: skip
    for instruction, count in exact.items():
        operands = ", ".join(f"${i}" for i in range(count + 1))
        args = ", ".join(f"a{i}" for i in range(count))
        call = (
            f"tl.inline_asm_elementwise('{instruction} {operands};', '=f{',f' * count}', [{args}], "
            f"dtype=tl.float32, is_pure=True, pack=1)"
        )
        out.append(Experiment(f"asm {instruction}", call, ("fp32",) * count, "fp32"))
    for name, dtype in (("f16x2", "float16"), ("bf16x2", "bfloat16")):
        short = "fp16" if name == "f16x2" else "bf16"
        call = (
            f"tl.inline_asm_elementwise('fma.rn.{name} $0, $1, $2, $3;', '=r,r,r,r', [a0, a1, a2], "
            f"dtype=tl.{dtype}, is_pure=True, pack=2)"
        )
        out.append(Experiment(f"asm fma.rn.{name}", call, (short, short, short), short))
    return out


def dots() -> list[Dot]:
    """tl.dot in every operand type."""
    out = []
    for inputs in ("normal", "spread", "cancel", "wide"):
        for k in (16, 32, 64, 128):
            for operand, result, options in (
                ("fp32", "fp32", "input_precision='ieee'"),
                ("fp32", "fp32", "input_precision='tf32'"),
                ("fp32", "fp32", "input_precision='tf32x3'"),
                ("bf16", "fp32", ""),
                ("fp16", "fp32", ""),
                ("fp16", "fp16", "out_dtype=tl.float16"),
                ("fp64", "fp64", "out_dtype=tl.float64"),
                ("fp8e4nv", "fp32", ""),
                ("fp8e5", "fp32", ""),
            ):
                if k == 16 and operand.startswith("fp8"):
                    continue
                name = f"dot {operand} {result} k={k} {options} {inputs}"
                out.append(Dot(name, operand, result, k, options, inputs))
    return out


def matrices(dot: Dot) -> tuple[Any, Any, Any]:
    """The two operands and the accumulator as torch tensors on the CPU."""
    import torch

    g = torch.Generator().manual_seed(dot.k)
    a = torch.randn(64, dot.k, generator=g, dtype=torch.float64)
    b = torch.randn(dot.k, 64, generator=g, dtype=torch.float64)
    c = torch.zeros(64, 64, dtype=torch.float64)
    if dot.inputs in ("spread", "wide"):  # small terms meet large ones, and an accumulator of either kind
        reach = 4 if dot.inputs == "spread" or dot.operand.startswith("fp8") else 10
        a *= torch.exp2(torch.randint(-reach, reach + 1, a.shape, generator=g).double())
        b *= torch.exp2(torch.randint(-reach, reach + 1, b.shape, generator=g).double())
        c = torch.randn(64, 64, generator=g, dtype=torch.float64)
        c *= torch.exp2(torch.randint(-8, 12 if dot.result == "fp16" else 24, c.shape, generator=g).double())
    if dot.inputs == "cancel":  # pairs of terms that cancel but for their last bits
        a[:, 1::2] = -a[:, 0::2]
        b[1::2] = b[0::2] * (1 + torch.exp2(torch.tensor(-6.0)).double())
    dtype = getattr(torch, TYPES[dot.operand][0])
    return a.to(dtype), b.to(dtype), c.to(getattr(torch, TYPES[dot.result][0]))


def tensor(bits: np.ndarray, dtype: str, device: str) -> Any:
    """A torch tensor with these bit patterns."""
    import torch

    signed = bits.view(f"i{bits.dtype.itemsize}")
    return torch.from_numpy(signed.copy()).view(getattr(torch, TYPES[dtype][0])).to(device)
