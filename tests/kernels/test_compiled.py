"""Every kernel compiles for GPUs that are not there, in the registers and the shared memory that those have."""

from __future__ import annotations

import pytest

from tests.kernels.compiled import SHARED, Compiled

COMPILE = """
import sys
import torch
from kernels import geglu, gelu, linear_act, linear_tiles, linear_weight, rms_norm, rope
from kernels.layer_norm import operators as norm
from kernels.operators import launcher_of
from tests.kernels.compiled import compiled_for

def call(operator, *args):
    made = {tuple: lambda shape: torch.empty(shape, dtype=dtype)}
    return launcher_of(operator)(*(made.get(type(a), lambda a: a)(a) for a in args))


def chosen(key, configs, launch):
    *others, largest = sorted(configs, key=lambda config: config[0] * config[1])
    for config in others if "all" in sys.argv else ():
        launch(config)
    return largest


linear_tiles.choose = linear_weight.choose = chosen
for arch, name in zip(sys.argv[2::2], sys.argv[3::2]):
    dtype = getattr(torch, name)
    with compiled_for(int(arch)) as made:
        x = (1 << 16,)
        call(gelu._forward, x, "none")
        call(gelu._backward, x, x, "none")
        call(gelu.second, x, x, x, "none")
        for gate in ("none", "silu"):
            call(geglu.gated, x, x, gate, True)
            call(geglu.gated_backward, x, x, x, gate, True)
        heads, angles = (2, 8, 64, 128), (1, 64, 128)
        call(rope._rotate, heads, heads, angles, angles, "model ", True)
        for rows, columns, residual in ((2048, 8192, None), (2048, 4096, None), (64, 32768, None), (2048, 1024, 1)):
            x, v = (rows, columns), (columns,)
            r = residual and x
            stats = call(norm.forward_op, x, r, None, v, v, 1e-5, True)[2]
            call(norm.backward_op, x, r, x, r, None, v, v, stats, 1e-5, True, True, False, True)
            if sys.argv[1] == "all":  # the same kernels without a mean
                stats = call(norm.forward_op, x, r, None, v, None, 1e-5, False)[2]
                call(norm.backward_op, x, r, x, r, None, v, None, stats, 1e-5, True, False, False, False)
        x, v = (64, 256), (256,)  # several rows for each program
        stats = call(norm.forward_op, x, None, None, v, v, 1e-5, True)[2]
        call(norm.backward_op, x, None, x, None, None, v, v, stats, 1e-5, True, True, False, True)
        for columns in (128, 4096) if name != "float64" else ():
            x, v = (2048, columns), (columns,)
            stats = call(norm.forward_op, x, None, None, v, None, 1e-5, False, x)[2]
            call(norm.backward_op, x, None, x, None, None, v, None, stats, 1e-5, True, False, False, False, x)
            for group in (0, 128) if int(arch) >= 89 else ():  # others have no FP8
                call(rms_norm.fp8_op, x, x, v, 1e-5, group)
        x, dy, pre = (1024, 1024), (1024, 4096), (1024, 8192)
        call(linear_act._linear, x, dy[::-1], dy[1:], "gelu", False, False)
        call(linear_act._gradient, dy, dy, "gelu", True, True)
        call(linear_act._linear, x, pre[::-1], pre[1:], "geglu_none", False, False)
        call(linear_act._gradient, dy, pre, "geglu_none", True, True)
        call(linear_weight.weight_gradient, dy, x, False)
        call(linear_weight.weight_gradient, (1 << 18, 256), (1 << 18, 512), False)  # several parts
    for each in made:
        print(arch, name, *each, sep="\\t")
"""
KERNELS = {
    "_gelu_kernel", "_forward_kernel", "_backward_kernel", "forward_kernel", "backward_kernel", "columns_kernel",
    "forward_blocks_kernel", "row_sums_kernel", "_tile_kernel", "_gradient_kernel", "_added_kernel",
    "_weight_kernel", "_rope_kernel",
}  # fmt: skip
OF_FLOAT32 = {"forward_rows_kernel", "backward_rows_kernel", "backward_paired_kernel", "_tiny_kernel"}
# Bytes that may be spilled, where more registers would cost more: by a tile's activation, which runs once for all steps
# of k; by rows that 64 registers hold, so that a quarter more of them are in flight; by second derivatives.
SPILLED = {
    "_tile_kernel": 192, "forward_kernel": 32, "_gelu_kernel": 16, "forward_blocks_kernel": 8, "row_sums_kernel": 8,
    "backward_rows_kernel": 8, "backward_kernel": 8, "forward_rows_kernel": 64,
}  # fmt: skip

QUICK = [(89, "float32")]  # least shared memory, float64 arithmetic
EVERY = [(arch, dtype) for arch in SHARED for dtype in ("bfloat16", "float16", "float32", "float64")]


@pytest.mark.parametrize(
    ("chosen", "tiles"), [(QUICK, "largest"), *(pytest.param([each], "all", marks=pytest.mark.slow) for each in EVERY)]
)
def test_every_kernel_fits(printed, tmp_path, chosen, tiles):
    arguments = [str(word) for each in chosen for word in each]
    rows = [line.split("\t") for line in printed(COMPILE, tmp_path, 300, tiles, *arguments).splitlines()]
    for arch, dtype in chosen:
        made = [
            Compiled(name, options, *map(int, numbers))
            for a, d, name, options, *numbers in rows
            if (int(a), d) == (arch, dtype)
        ]
        assert {each.kernel for each in made} >= KERNELS - ({"forward_kernel"} if dtype == "float64" else set())
        assert {each.kernel for each in made} >= {"float32": OF_FLOAT32, "float64": set()}.get(
            dtype, {"forward_rows_kernel", "backward_rows_kernel"}
        )
        for each in made:
            assert each.spilled <= SPILLED.get(each.kernel, 0), each
            assert each.shared <= SHARED[arch], each
            assert 16 <= each.registers <= 255, each
