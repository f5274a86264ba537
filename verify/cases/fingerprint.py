"""The property hash: what exactly a figure is about, so that two figures are compared only if it is the same.

It covers the op with its params and operands, the output, the dtype, the policy, the domains and the cases without
their seed: other random values of the same kind are the same property. Of a PyTorch function (`like=`) it covers every
operator and constant that PyTorch met while the function was traced for the sizes of the cases. It leaves out the
kernel's code and the limit it declares: a changed kernel is what a comparison is for.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable

from verify.cases import Case
from verify.declare.declaration import Kernel

VERSION = 1  # raised when the meaning of a figure changes: every older bound is then incomparable


def fingerprint(kernel: Kernel, output: str, dtype: str, cases: Iterable[Case] = (), space: str = "") -> str:
    """12 hex digits. `space` describes inputs that are not a list of cases, such as a sweep's."""
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
    if kernel.op.meaning is not None:  # a function may branch on sizes
        said["meaning"] = [kernel.op.meaning.identity(dims) for dims in sorted({case.dims for case in cases})]
    text = json.dumps(said, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:12]
