"""The CUDA C++ twin of kernels/gelu.py, for comparison. It needs a GPU, and nvcc for the build at its first call."""

from __future__ import annotations

import verify
from kernels import gelu_cuda


@verify.kernel(op="gelu", backends=["cuda"], peer=True)
def cuda_gelu(x):
    """The CUDA kernel, erf form."""
    return gelu_cuda.gelu(x)


@verify.kernel(op="gelu", params={"approximate": "tanh"}, backends=["cuda"], peer=True)
def cuda_gelu_tanh(x):
    """The CUDA kernel, tanh form."""
    return gelu_cuda.gelu(x, approximate="tanh")
