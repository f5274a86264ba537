"""What a run makes of public kernels, compared with what is true of them."""

from __future__ import annotations

from typing import Any

from benchmarks.public_kernels import found_in, found_table, verdicts
from verify.records.record import SCHEMA, KernelRun, Run


def run(backend: str = "cuda", **statuses: Any) -> Run:
    kernels = [
        KernelRun(name, f"examples/public/vllm_kernels.py::{name}", "like", {}, "", status, [], message=message)
        for name, (status, message) in statuses.items()
    ]
    return Run(SCHEMA, "0" * 12, "2026-01-01T00:00:00Z", "verify run", backend, 0, "", {}, kernels)


def test_verdicts_are_compared_and_the_last_record_of_a_kernel_counts() -> None:
    passes, wrong, raised = ("ok", ""), ("wrong", ""), ("error", "float32: min_p raised KeyError: 'x'")
    first = run(rms_norm=wrong, min_p=raised, mean_dim=wrong, awq_gemm=passes, mxfp8=passes, unknown=wrong)
    words = {name.split("::")[1]: word for name, _, word, _ in found_in([first, run(rms_norm=passes)])}
    assert words == {
        "rms_norm": "right, passes",
        "min_p": "right, no verdict",
        "mean_dim": "fault, named",
        "awq_gemm": "FAULT NOT SEEN",
        "mxfp8": "FAULT NOT SEEN",
    }
    assert {word for *_, word, _ in found_in([run("interpreter", mxfp8=passes)])} == {"right, passes"}
    assert "not named: 8, awq_gemm_triton adds up in float16" in verdicts([first])
    assert "FALSE ALARM\n  vllm_kernels::rms_norm" in verdicts([first])
    assert "| vllm_kernels | 0 of 2 | 1 of 3 | rms_norm: false alarm; min_p: right, no verdict" in found_table([first])
