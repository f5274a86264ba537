"""Computes the property hash of a figure. Two figures are compared only if their hashes are equal.

The hash covers the op with its params and operands, the output, the dtype, the policy, the domains and the cases
without their seed. Other random values of the same kind are the same property. For a PyTorch function (`like=`) it
covers every operator and constant of the trace for the sizes of the cases. It excludes the kernel's code and declared
limit, because a comparison is about changes of the kernel.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable

from verify.cases.case import Case
from verify.declare.declaration import Kernel

VERSION = 1  # increased if the meaning of a figure changes; all older bounds then become incomparable


def fingerprint(kernel: Kernel, output: str, dtype: str, cases: Iterable[Case] = (), space: str = "") -> str:
    """Returns 12 hex digits. `space` describes inputs that are not a list of cases, such as a sweep's."""
    cases = list(cases)
    said = {
        "version": VERSION,
        "op": kernel.op.name,
        "params": dict(kernel.params),
        "operands": kernel.operands,
        "output": output,
        "dtype": dtype,
        "policy": dataclasses.asdict(kernel.policy),
        "cases": [{**json.loads(case.to_json()), "seed": 0} for case in cases],
        "space": space,
    }
    if mixed := kernel.mixed(dtype):
        said["dtypes"] = mixed
    if kernel.op.domains:
        said["domain"] = kernel.op.domain_words
    if not kernel.op.meaning.shipped:  # a function may branch on sizes
        said["meaning"] = [kernel.op.meaning.identity(dims) for dims in sorted({case.dims for case in cases})]
    text = json.dumps(said, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
