"""The PTX of single operations for sm_90 under the installed Triton: what one version computes and another does not.

    python benchmarks/compare_ptx.py write ptx-3.6.json       # with one Triton; no GPU is needed
    python benchmarks/compare_ptx.py diff ptx-3.6.json ptx-3.9.json

An operation that does not compile stands there with its error. The order of instructions and the ones that move data
between threads are left out; the constants are kept.
"""

from __future__ import annotations

import importlib.util
import json
import re
import sys
import tempfile
from pathlib import Path

OPERATIONS = {
    "add": "a + b", "sub": "a - b", "mul": "a * b", "div": "a / b", "mod": "a % b", "neg": "-a", "abs": "tl.abs(a)",
    "minimum": "tl.minimum(a, b)", "maximum": "tl.maximum(a, b)",
    "minimum_nan": "tl.minimum(a, b, propagate_nan=tl.PropagateNan.ALL)",
    "maximum_nan": "tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)",
    "clamp": "tl.clamp(a, b, c)", "clamp_nan": "tl.clamp(a, b, c, propagate_nan=tl.PropagateNan.ALL)",
    "fma": "tl.fma(a, b, c)", "where": "tl.where(a < b, a, b)", "le": "(a <= b).to(tl.int32)",
    "ne": "(a != b).to(tl.int32)", "constant": "a * 0.1", "small": "a + tl.full([32], 1e-7, a.dtype)",
    "to_int": "a.to(tl.int32)", "to_uint8": "a.to(tl.uint8)", "to_bf16": "a.to(tl.bfloat16)",
    "to_fp16": "a.to(tl.float16)", "to_fp32": "a.to(tl.float32)", "to_fp64": "a.to(tl.float64)",
    "rtz": "a.to(tl.float16, fp_downcast_rounding='rtz')", "from_int": "a.to(tl.int32).to(a.dtype)",
    "fdiv": "tl.fdiv(a, b)", "fdiv_ieee": "tl.fdiv(a, b, ieee_rounding=True)",
    "fdiv_approx": "tl.fdiv(a, b, approx=True)", "div_rn": "tl.div_rn(a, b)", "sqrt_rn": "tl.sqrt_rn(a)",
    **{f: f"tl.{f}(a)" for f in "exp exp2 log log2 sin cos erf sqrt rsqrt floor ceil sigmoid softmax".split()},
    **{f"libdevice_{f}": f"libdevice.{f}(a)" for f in "exp exp2 erf erfc tanh fast_expf rcp_rn normcdf".split()},
    "sum": "a + tl.sum(a, 0)", "cumsum": "tl.cumsum(a, 0)",
}  # fmt: skip
DTYPES = ("fp32", "fp64", "fp16", "bf16")
MOVES = ("ld.", "st.", "mov.u", "cvta", "bar", "ret", "shl", "shfl", "prmt", "bra", "elect", "and.b32", "or.b32")
KERNEL = """
@triton.jit
def {name}(x, y, z, out):
    i = tl.arange(0, 32)
    a = tl.load(x + i)
    b = tl.load(y + i)
    c = tl.load(z + i)
    tl.store(out + i, {expression})
"""
PRODUCT = """
@triton.jit
def dot(x, y, z, out):
    i = tl.arange(0, 64)[:, None] * 64 + tl.arange(0, 64)[None, :]
    tl.store(out + i, tl.dot(tl.load(x + i), tl.load(y + i), input_precision="ieee"))
"""


def instructions(ptx: str) -> list[str]:
    """The computing instructions, each with the constant that it has, sorted."""
    found = []
    for line in map(str.strip, ptx.splitlines()):
        code = re.sub(r"^@!?%p\d+\s+", "", line)
        match = re.match(r"[a-z][a-z0-9_.:]*", code)
        if match and not code.startswith(MOVES):
            found.append(" ".join([match[0], *re.findall(r"\b0[fd][0-9A-F]+", code)]))
    return sorted(found)


def measured() -> dict[str, list[str]]:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "operations.py"  # Triton reads a kernel's source from its file
        text = "import triton, triton.language as tl\nfrom triton.language.extra import libdevice\n"
        text += "".join(KERNEL.format(name=f"op_{n}", expression=e) for n, e in OPERATIONS.items())
        path.write_text(text + PRODUCT.replace("def dot", "def op_dot"), encoding="utf-8")
        spec = importlib.util.spec_from_file_location(path.stem, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        out = {}
        for name in (*OPERATIONS, "dot"):
            for dtype in DTYPES:
                wide = "fp32" if name == "dot" and dtype != "fp64" else dtype
                types = {"x": f"*{dtype}", "y": f"*{dtype}", "z": f"*{dtype}", "out": f"*{wide}"}
                source = ASTSource(getattr(module, f"op_{name}"), types, {}, {})
                try:
                    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32))
                    out[f"{name} {dtype}"] = instructions(compiled.asm["ptx"])
                except Exception as error:
                    lines = str(error).strip().splitlines() or [type(error).__name__]
                    out[f"{name} {dtype}"] = [f"does not compile: {lines[-1]}"]
        return out


def main() -> int:
    match sys.argv[1:]:
        case ["write", path]:
            Path(path).write_text(json.dumps(measured(), indent=1) + "\n", encoding="utf-8")
        case ["diff", first, second]:
            before, after = (json.loads(Path(p).read_text(encoding="utf-8")) for p in (first, second))
            for key in before:
                if before[key] != after[key]:
                    print(key, f"  {', '.join(before[key])}", f"  {', '.join(after[key])}", sep="\n")
        case _:
            print(__doc__)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
