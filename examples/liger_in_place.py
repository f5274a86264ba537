"""The liger-kernel functions as they are by default, where they write gradients over tensors that the caller still has.

    verify run examples/liger_in_place.py

That saves memory and is documented for RMS norm (`in_place=True`); a caller who reads the tensor again, or runs
backward twice, gets something else. `verify` reports it as a broken contract. See examples/liger.py for the
numerics.
"""

from __future__ import annotations

import verify


@verify.kernel(op="geglu_split", params={"approximate": "tanh"}, peer=True, requires="liger_kernel")
def liger_geglu_in_place(x1, x2):
    """GEGLU: dx1 and dx2 are written over x1 and x2."""
    from liger_kernel.ops.geglu import LigerGELUMulFunction

    return LigerGELUMulFunction.apply(x2, x1)


@verify.kernel(op="swiglu_split", peer=True, requires="liger_kernel")
def liger_swiglu_in_place(x1, x2):
    """SwiGLU: dx1 and dx2 are written over x1 and x2."""
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction

    return LigerSiLUMulFunction.apply(x2, x1)


@verify.kernel(op="rms_norm", peer=True, requires="liger_kernel")
def liger_rms_norm_in_place(x, weight, *, eps):
    """RMS norm: dx is written over the gradient that arrives."""
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    return LigerRMSNormFunction.apply(x, weight, eps)
