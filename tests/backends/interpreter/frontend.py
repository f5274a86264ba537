"""Which kernels of interpreted_kernels.py Triton's own frontend compiles; run in a process that does not interpret.

Reads `[[kernel, arguments], ...]` as JSON from standard input, prints for each "ok" or the error's last line. No GPU
is needed: the program is made for sm_90 up to Triton's own IR, where a constant has been put in the place of an
argument already.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

from triton._C.libtriton import ir
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import CUDABackend
from triton.compiler import ASTSource
from triton.runtime.jit import create_function_from_signature

TARGET = GPUTarget("cuda", 90, 32)
BACKEND = CUDABackend(TARGET)


class Out:
    """A pointer to int64, as far as the launcher looks."""

    dtype = "torch.int64"

    def data_ptr(self) -> int:
        return 0


def verdict(fn: Any, arguments: list[Any]) -> str:
    binder = create_function_from_signature(fn.signature, fn.params, BACKEND)
    bound, specialization, _ = binder(Out(), *arguments)
    options, signature, constants, attributes = fn._pack_args(BACKEND, {}, bound, specialization, {})
    source = ASTSource(fn, signature, constants, attributes)
    context = ir.context()
    ir.load_dialects(context)
    BACKEND.load_dialects(context)
    functions = BACKEND.get_codegen_implementation(options)
    try:
        source.make_ir(TARGET, options, functions, BACKEND.get_module_map(), context)
    except Exception as error:
        cause: BaseException = error
        while cause.__cause__ is not None:  # an error in a device function
            cause = cause.__cause__
        return str(cause).strip().splitlines()[-1]
    return "ok"


def main() -> None:
    path = Path(__file__).with_name("interpreted_kernels.py")
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    cases = json.load(sys.stdin)
    json.dump([verdict(getattr(module, name), [tuple(a) if isinstance(a, list) else a for a in arguments])
               for name, arguments in cases], sys.stdout)  # fmt: skip


if __name__ == "__main__":
    main()
