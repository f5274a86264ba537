"""Kernel files of packages that cannot be imported whole: copied as they are, with stubs for the rest."""

from __future__ import annotations

import importlib
import zipfile
from pathlib import Path

import pytest

from benchmarks.kernel_files import take

KERNEL = """
from vllm.platforms import current_platform
from vllm.triton_utils import HAS_TRITON
from vllm.logger import init_logger
from .min_p import scaled
import vllm.envs as envs

@init_logger(name="decorates")
def kernel(x):
    return scaled(x) if not envs.SLOW and HAS_TRITON else None
"""


def test_a_file_is_copied_and_what_it_does_not_need_is_a_stub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    place, wheel, repository = "vllm/v1/worker/gpu/sample", tmp_path / "vllm-0.whl", tmp_path / "repository"
    with zipfile.ZipFile(wheel, "w") as made:
        made.writestr("vllm/__init__.py", "raise ImportError('a hundred packages')")
        made.writestr(f"{place}/logprob.py", KERNEL)
        made.writestr(f"{place}/unused.py", "raise ImportError")
        made.writestr("vllm/triton_utils/__init__.py", "from vllm.triton_utils.importing import HAS_TRITON")
    (repository / place).mkdir(parents=True)
    (repository / place / "min_p.py").write_text("scaled = (2).__mul__")
    folder = tmp_path / "kernels"
    left = take(folder, [wheel, repository])
    assert f"{place}/logprob.py" not in left and "deep_gemm/utils/math.py" in left
    assert (folder / place / "logprob.py").read_text() == KERNEL
    assert not (folder / place / "unused.py").exists()
    monkeypatch.syspath_prepend(folder)
    assert importlib.import_module(f"{place.replace('/', '.')}.logprob").kernel(3) == 6
