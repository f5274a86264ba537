"""Kernel files of public packages, unchanged, in a folder: python -m benchmarks.kernel_files .kernels SOURCE...

vLLM and SGLang cannot be imported without a hundred other packages. Their Triton kernels need few of these. From each
SOURCE, a wheel or a folder with the files of a repository, this copies the files of `TAKEN` as they are. A module that
they import and that is not copied becomes a stub: its attributes are false, empty and callable, and its decorators
return what they decorate. `SAID` lists what a stub must say.

    PYTHONPATH=.kernels verify run examples/public/vllm_kernels.py

Where the packages are installed, the declarations work without the folder.
"""

from __future__ import annotations

import argparse
import ast
import fnmatch
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path

TAKEN = (
    "vllm/model_executor/determinism/batch_invariant*.py",
    "vllm/model_executor/kernels/mhc/triton.py",
    "vllm/model_executor/layers/fused_moe/moe_fused_mul_sum.py",
    "vllm/model_executor/warmup/jit_warmup*.py",
    "vllm/model_executor/layers/lightning_attn.py",
    "vllm/model_executor/layers/mamba/ops/causal_conv1d.py",
    "vllm/model_executor/layers/mamba/ops/mamba_ssm.py",
    "vllm/model_executor/layers/mamba/ops/triton_helpers.py",
    "vllm/model_executor/layers/quantization/awq_triton.py",
    "vllm/model_executor/layers/quantization/compressed_tensors/triton_scaled_mm.py",
    "vllm/model_executor/layers/quantization/utils/fp8_utils.py",
    "vllm/model_executor/layers/quantization/utils/int8_utils.py",
    "vllm/model_executor/layers/quantization/utils/mxfp8_utils.py",
    "vllm/kernels/triton/activation.py",
    "vllm/lora/ops/triton_ops/kernel_utils.py",
    "vllm/lora/ops/triton_ops/lora_shrink_op.py",
    "vllm/lora/ops/triton_ops/lora_kernel_metadata.py",
    "vllm/lora/ops/triton_ops/utils.py",
    "vllm/third_party/triton_kernels/*.py",
    "vllm/third_party/triton_kernels/swiglu_details/*.py",
    "vllm/third_party/triton_kernels/numerics_details/*.py",
    "vllm/triton_utils/__init__.py",
    "vllm/triton_utils/allocation.py",
    "vllm/triton_utils/tensor_descriptor.py",
    "vllm/utils/math_utils.py",
    "vllm/v1/attention/ops/triton_*attention*.py",
    "vllm/v1/attention/ops/triton_merge_attn_states.py",
    "vllm/v1/attention/ops/triton_reshape_and_cache_flash.py",
    "vllm/v1/kv_cache_interface.py",
    "vllm/v1/pool/flash_maxsim/*.py",
    "vllm/v1/sample/ops/topk_topp_triton.py",
    "vllm/v1/worker/gpu/sample/logprob.py",
    "vllm/v1/worker/gpu/sample/min_p.py",
    "vllm/v1/worker/gpu/sample/penalties.py",
    "sglang/kernels/ops/attention/decode_attention.py",
    "sglang/kernels/ops/attention/linear/fused_gdn_gating.py",
    "sglang/kernels/ops/attention/merge_state.py",
    "sglang/kernels/ops/attention/prefill_attention.py",
    "sglang/kernels/ops/attention/score_mod.py",
    "sglang/kernels/ops/diffusion/norm/*onepass_triton.py",
    "sglang/kernels/ops/diffusion/norm/group_norm_silu_triton.py",
    "sglang/kernels/ops/elementwise/elementwise.py",
    "sglang/kernels/ops/layernorm/fused_rmsnorm.py",
    "sglang/kernels/ops/moe/moe_fused_gate.py",
    "sglang/kernels/ops/quantization/int8_kernel.py",
    "sglang/kernels/ops/sampling/renorm_triton.py",
    "sglang/kernels/ops/sampling/temperature_softmax.py",
    "sglang/srt/batch_invariant_ops/batch_invariant_ops.py",
    "sglang/srt/layers/logsumexp.py",
    "flashinfer/triton/*.py",
    "flashinfer/triton/kernels/*.py",
    "mamba_ssm/ops/triton/*.py",
    "mamba_ssm/utils/*.py",
    "causal_conv1d/causal_conv1d_varlen.py",
    "deep_gemm/utils/math.py",
    "inference/kernel.py",
    "bitsandbytes/backends/triton/kernels_*.py",
    "unsloth/kernels/fp8.py",
    "unsloth/kernels/indexing.py",
    "einops/*",
)
#: Folders under other names, so that no package seems to be installed of which only a few kernels are here.
MOVED = {
    "inference/": "deepseek_v3/",
    "vllm/third_party/triton_kernels/": "triton_kernels/",
    "bitsandbytes/backends/triton/": "bitsandbytes_triton/",
    "unsloth/kernels/": "unsloth_fp8/",
}
STUBBED = {"unsloth_zoo"}  # other packages that a file imports and does not need
#: What a stub says: the module, then the lines.
SAID = {
    "flashinfer.utils": "get_compute_capability = lambda _: (9, 0)\n",
    "sglang.kernels.ops.diffusion.common.platform": "select_impl = lambda kernel, **_: kernel\n",
    "vllm.config.cache": "get_kv_cache_dtype_handler = lambda _: None\n",
    "vllm.envs": "VLLM_TUNED_CONFIG_FOLDER = None\n",
    "vllm.platforms": """
import torch
class _Platform(_stubs.Nothing):
    fp8_dtype = staticmethod(lambda: torch.float8_e4m3fn)
current_platform = _Platform()
""",
    "vllm.model_executor.layers.quantization.utils.quant_utils": "get_fp8_min_max = lambda: (-448.0, 448.0)\n",
    "vllm.triton_utils.importing": "HAS_TRITON = True\n",
    "vllm.utils.platform_utils": "num_compute_units = lambda *_: 132\nget_device_name_as_file_name = lambda: ''\n",
    "vllm.utils.torch_utils": "is_torch_equal_or_newer = lambda *_: True\n",
    "vllm.v1.attention.backends.utils": "NULL_BLOCK_ID, PAD_SLOT_ID = 0, -1\n",
}
STUBS = '''"""Modules that are not here: false, empty, callable."""

import importlib


class Nothing:
    def __call__(self, *given, **named):
        return given[0] if len(given) == 1 and callable(given[0]) and not named else self

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return self

    def __getitem__(self, key):
        return self

    def __setitem__(self, key, value):
        pass

    def __iter__(self):
        return iter(())

    def __enter__(self):
        return self

    def __exit__(self, *_):
        pass

    def __mro_entries__(self, bases):
        return ()

    def __or__(self, other):
        return other

    __ror__ = __or__
    __bool__ = __contains__ = __lt__ = __le__ = __gt__ = __ge__ = lambda *_: False
    __len__ = __index__ = __int__ = lambda *_: 0


def of(module):
    def attribute(name):
        if name.startswith("__"):
            raise AttributeError(name)
        try:
            return importlib.import_module(f"{module}.{name}")
        except ModuleNotFoundError:
            return Nothing()

    return attribute
'''


def read(source: Path) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """Yields the path of each file of a wheel or folder, and what reads it."""
    if source.is_dir():
        for path in source.rglob("*.py"):
            yield path.relative_to(source).as_posix(), path.read_bytes
    else:
        wheel = zipfile.ZipFile(source)
        for name in wheel.namelist():
            yield name, lambda name=name: wheel.read(name)  # type: ignore[misc]


def imported(path: Path, folder: Path) -> Iterator[str]:
    """Yields the modules that a file imports, and the names that it takes from packages."""
    package = path.relative_to(folder).parent.parts
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else ()
            yield ".".join([*above, *([node.module] if node.module else [])])


def stub(folder: Path, module: str, package: bool) -> None:
    """Writes a module whose attributes are nothing, unless it is there."""
    place = folder.joinpath(*module.split("."))
    path = place / "__init__.py" if package or place.is_dir() else place.with_suffix(".py")
    if path.exists() or place.with_suffix(".py").exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"import _stubs\n{SAID.get(module, '')}__getattr__ = _stubs.of(__name__)\n")


def take(folder: Path, sources: list[Path]) -> list[str]:
    """Copies the files of `TAKEN` from the sources and writes the stubs. Returns the patterns that no file matched."""
    left = set(TAKEN)
    for source in sources:
        for name, content in read(source):
            if found := {each for each in TAKEN if fnmatch.fnmatch(name, each)}:
                left -= found
                moved = next((name.replace(old, new, 1) for old, new in MOVED.items() if name.startswith(old)), name)
                path = folder / moved
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content())
    (folder / "_stubs.py").write_text(STUBS)
    copied = [path for path in folder.rglob("*.py") if path.name != "_stubs.py"]
    ours = {path.relative_to(folder).parts[0] for path in copied}
    ours |= STUBBED
    needed = {module for path in copied for module in imported(path, folder) if module.split(".")[0] in ours}
    parents = {".".join(module.split(".")[:depth]) for module in needed for depth in range(1, module.count(".") + 1)}
    here = {".".join(path.relative_to(folder).parent.parts) for path in copied}
    parents |= {".".join(each.split(".")[:depth]) for each in here for depth in range(1, each.count(".") + 2) if each}
    for module in sorted(parents):
        stub(folder, module, package=True)
    for module in sorted(needed - parents):
        stub(folder, module, package=False)
    return sorted(left)


def main() -> None:
    """The command of the docstring."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("sources", type=Path, nargs="+")
    options = parser.parse_args()
    for pattern in take(options.folder, options.sources):
        print(f"no source has {pattern}")


if __name__ == "__main__":
    main()
