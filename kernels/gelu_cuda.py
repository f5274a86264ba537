"""GELU in CUDA C++ (gelu.cu in this folder), compiled at the first call; the signature of gelu.py.

    gelu(x)                      x Phi(x)
    gelu(x, approximate="tanh")  x S(2 sqrt(2/pi) (x + 0.044715 x^3)), S the logistic function

The numerics equal gelu_math.py's: the same operations in the same order. derive/gelu.py writes the coefficients into
both. float16 and bfloat16 are correctly rounded, float32 is within 0.8 ULP, float64 within 1.8, function
and derivative.

Launches are checked, indices have 64 bits, and loads have 16 bytes if the pointers allow it. The first call needs nvcc
and a C++ compiler. The build is stored with PyTorch's other extensions. Differentiable twice, like gelu.py.
"""

from __future__ import annotations

import fcntl
import functools
import hashlib
import importlib.util
import os
import shutil
import sys
from pathlib import Path
from types import ModuleType

import torch

from .checks import check_approximate, check_dtype
from .gelu_autograd import operators_of
from .layouts import dense_like

_DECLARATIONS = """
void gelu_launch(const at::Tensor& dy, const at::Tensor& x, at::Tensor& y, bool tanh, bool backward);
void gelu_second_launch(const at::Tensor& g, const at::Tensor& dy, const at::Tensor& x, at::Tensor& out, bool tanh);
"""


_NAME = "precise_gelu_cuda"
# -fmad=false: only fused multiply-adds written in the source are fused, so the bits do not depend on the compiler
_FLAGS = ["-O3", "-fmad=false"]


@functools.cache
def _library() -> ModuleType:
    """Returns the compiled extension. One process builds it for each source, PyTorch and kind of GPU; the others load
    it.

    PyTorch alone would run ninja in every process. ninja builds for a minute if the toolkit's files seem newer than the
    build.
    """
    from torch.utils import cpp_extension

    source = Path(__file__).with_name("gelu.cu").read_text()
    about = (source, _DECLARATIONS, _FLAGS, sys.version, torch.__version__, torch.cuda.get_device_capability())
    root = os.environ.get("TORCH_EXTENSIONS_DIR") or cpp_extension.get_default_build_root()
    folder = Path(root) / f"{_NAME}_{hashlib.sha256(repr(about).encode()).hexdigest()[:16]}"
    folder.mkdir(parents=True, exist_ok=True)
    built = folder / "built"
    with (folder / "waiting").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)  # released when this process has built it, or ends
        if built.exists():
            return _loaded(folder / f"{_NAME}.so")
        (folder / "lock").unlink(missing_ok=True)  # left by a stopped build; PyTorch would wait for it for ever
        library = _build(source, folder)
        built.touch()
    return library


def _build(source: str, folder: Path) -> ModuleType:
    """Compiles gelu.cu in `folder`. Raises RuntimeError if there is no nvcc."""
    from torch.utils import cpp_extension

    nvcc = Path(cpp_extension.CUDA_HOME or "/nonexistent") / "bin" / "nvcc"
    if not (nvcc.exists() or shutil.which("nvcc")):
        raise RuntimeError(
            "gelu_cuda: nvcc is needed to build gelu.cu, and none was found on PATH or under CUDA_HOME "
            f"({cpp_extension.CUDA_HOME}); install the CUDA toolkit, or use kernels.gelu (Triton)"
        )
    return cpp_extension.load_inline(
        name=_NAME,
        cpp_sources=_DECLARATIONS,
        cuda_sources=source,
        functions=["gelu_launch", "gelu_second_launch"],
        extra_cuda_cflags=_FLAGS,
        build_directory=str(folder),
    )


def _loaded(path: Path) -> ModuleType:
    """Imports a compiled extension from its file."""
    spec = importlib.util.spec_from_file_location(_NAME, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"gelu_cuda: {path} is no library; remove {path.parent}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _launch(x: torch.Tensor, approximate: str, *gradients: torch.Tensor) -> torch.Tensor:
    """Returns the derivative of GELU of the order len(gradients), times these gradients: dy, g."""
    out = torch.empty_like(x)  # the layout that torch's elementwise operators give
    operands = [dense_like(t, out) for t in (*gradients[::-1], x)]  # copies those with gaps or overlap
    if len(gradients) == 2:
        _library().gelu_second_launch(*operands, out, approximate == "tanh")
    else:
        _library().gelu_launch(operands[0], operands[-1], out, approximate == "tanh", len(gradients) == 1)
    return out


_forward, *_ = operators_of("precise_gelu_cuda", _launch)


def gelu(x: torch.Tensor, approximate: str = "none") -> torch.Tensor:
    """Returns GELU of x, elementwise, with the signature and layout rules of torch.nn.functional.gelu."""
    check_approximate("gelu", approximate)
    check_dtype("gelu", "x", x)
    if not x.is_cuda and x.device.type != "meta":
        raise ValueError(
            f"gelu_cuda: x must be on a CUDA device, got {x.device}; move it with x.cuda(), or "
            "use kernels.gelu (Triton) with TRITON_INTERPRET=1"
        )
    return _forward(x, approximate)
