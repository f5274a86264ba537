"""verify: measures how wrong a GPU kernel is at worst, and on which input.

    import verify

    @verify.kernel(op="gelu", dtypes=["bfloat16", "float32"])
    def my_gelu(x):
        return fast_gelu(x)

`verify run accuracy.py` measures the kernel against the exact real-valued answer. The names below are the public
interface. Each is imported at its first use, so that `verify --help` does not wait for torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from verify.api import CompletedGate as CompletedGate
    from verify.api import CompletedJudgement as CompletedJudgement
    from verify.api import CompletedRun as CompletedRun
    from verify.api import gate as gate
    from verify.api import hunt as hunt
    from verify.api import judge as judge
    from verify.api import load as load
    from verify.api import run as run
    from verify.api import sweep as sweep
    from verify.cases import Case as Case
    from verify.declare.captured import capture as capture
    from verify.declare.declaration import Kernel as Kernel
    from verify.declare.declaration import kernel as kernel
    from verify.diagnose.contracts import contract as contract
    from verify.errors import KernelError as KernelError
    from verify.errors import TruthError as TruthError
    from verify.errors import UsageError as UsageError
    from verify.errors import VerifyError as VerifyError
    from verify.laws.suite import laws_for as laws_for
    from verify.measure.assertions import assert_close as assert_close
    from verify.measure.assertions import close_to as close_to
    from verify.ops.graph.relative import relative_rms as relative_rms
    from verify.ops.graph.rounded import rounds as rounds
    from verify.ops.philox import philox as philox
    from verify.ops.philox import philox_uniform as philox_uniform
    from verify.records.record import Run as Run
    from verify.session import Session as Session
    from verify.truth.quantised.encoding import quantised as quantised
    from verify.truth.ulp import Policy as Policy

__version__ = "0.1.0"

# By module, the public names that it defines.
_DEFINED = {
    "verify.api": "CompletedGate CompletedJudgement CompletedRun gate hunt judge load run sweep",
    "verify.cases": "Case",
    "verify.declare.captured": "capture",
    "verify.declare.declaration": "Kernel kernel",
    "verify.diagnose.contracts": "contract",
    "verify.errors": "KernelError TruthError UsageError VerifyError",
    "verify.laws.suite": "laws_for",
    "verify.measure.assertions": "assert_close close_to",
    "verify.ops.graph.relative": "relative_rms",
    "verify.ops.graph.rounded": "rounds",
    "verify.ops.philox": "philox philox_uniform",
    "verify.records.record": "Run",
    "verify.session": "Session",
    "verify.truth.quantised.encoding": "quantised",
    "verify.truth.ulp": "Policy",
}
_HOME = {name: module for module, names in _DEFINED.items() for name in names.split()}

__all__ = ["__version__", *_HOME]  # noqa: PLE0604


def __getattr__(name: str) -> Any:
    if name in _HOME:
        value = getattr(import_module(_HOME[name]), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'verify' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
