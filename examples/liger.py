"""The Triton kernels of the liger-kernel package, declared as any user would declare somebody else's kernel.

    pip install liger-kernel
    verify run examples/liger.py
    verify bench examples/liger.py

Without the package each of them is skipped and says so. In this package the activated half comes first:
`LigerGELUMulFunction.apply(a, b)` is gelu(a) * b, while the op `geglu_split` is x1 * gelu(x2).

Both gated kernels write their gradients over the tensors that they were given, to save memory: a documented design,
but the tensors belong to the caller here. `..._on_copies` gives them copies, which autograd passes through, so that
the gradients can be measured; the forward pass is measured as it is.
"""

from __future__ import annotations

import verify

TANH = {"approximate": "tanh"}


@verify.kernel(op="geglu_split", params=TANH, gradients=False, peer=True, requires="liger_kernel")
def liger_geglu(x1, x2):
    """GEGLU, tanh form: the forward pass."""
    from liger_kernel.ops.geglu import LigerGELUMulFunction

    return LigerGELUMulFunction.apply(x2, x1)


@verify.kernel(op="geglu_split", params=TANH, peer=True, requires="liger_kernel")
def liger_geglu_on_copies(x1, x2):
    """GEGLU, tanh form, on copies of its inputs: the gradients."""
    from liger_kernel.ops.geglu import LigerGELUMulFunction

    return LigerGELUMulFunction.apply(x2.clone(), x1.clone())


@verify.kernel(op="geglu", params=TANH, peer=True, requires="liger_kernel")
def liger_geglu_packed(x):
    """GEGLU, tanh form, on the halves of one tensor; the kernel makes them contiguous, which copies them."""
    from liger_kernel.ops.geglu import LigerGELUMulFunction

    return LigerGELUMulFunction.apply(*x.chunk(2, -1)[::-1])


@verify.kernel(op="swiglu_split", gradients=False, peer=True, requires="liger_kernel")
def liger_swiglu(x1, x2):
    """SwiGLU: the forward pass."""
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction

    return LigerSiLUMulFunction.apply(x2, x1)


@verify.kernel(op="swiglu_split", peer=True, requires="liger_kernel")
def liger_swiglu_on_copies(x1, x2):
    """SwiGLU on copies of its inputs: the gradients."""
    from liger_kernel.ops.swiglu import LigerSiLUMulFunction

    return LigerSiLUMulFunction.apply(x2.clone(), x1.clone())


@verify.kernel(op="layer_norm", peer=True, requires="liger_kernel")
def liger_layer_norm(x, weight, bias, *, eps):
    """Layer norm."""
    from liger_kernel.ops.layer_norm import LigerLayerNormFunction

    return LigerLayerNormFunction.apply(x, weight, bias, eps)


@verify.kernel(op="rms_norm", peer=True, requires="liger_kernel")
def liger_rms_norm(x, weight, *, eps):
    """RMS norm as Llama has it: only 1/rms in float32, the product with the weight in the tensor's own dtype."""
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    return LigerRMSNormFunction.apply(x, weight, eps, 0.0, "llama", False)


@verify.kernel(op="rms_norm", peer=True, requires="liger_kernel")
def liger_rms_norm_gemma(x, weight, *, eps):
    """RMS norm with everything in float32 and one rounding at the end, as Gemma has it (its offset left at 0)."""
    from liger_kernel.ops.rms_norm import LigerRMSNormFunction

    return LigerRMSNormFunction.apply(x, weight, eps, 0.0, "gemma", False)
