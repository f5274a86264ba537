"""Finds by trying which rules a quantiser follows: the layout, the scale, ties, overflow, zeros."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable

from verify.backends import Backend
from verify.cases import Case
from verify.cases.blocks import block_cases
from verify.declare.declaration import Kernel
from verify.diagnose.requests import Probed
from verify.measure.call import Measured, run_kernel
from verify.measure.quantiser import QuantiserJudging, parts_of
from verify.truth.formats import named
from verify.truth.quantised import Encoding, causes, followed, judge

_CASES = 4  # number of cases of each kind


def rules(kernel: Kernel, encoding: Encoding, target: str, backend: Backend, progress: Callable[[str], None]) -> Probed:
    """Returns the rules of a quantiser in its first dtype, and the arguments of a matching declaration."""
    dtype = kernel.dtypes[0]
    judging = QuantiserJudging(
        kernel, encoding, dtype, target, 0, backend.name, lambda case: run_kernel(kernel, case, backend.device)
    )
    tried = []
    cases = block_cases(encoding, named(dtype), kernel.allows)
    for kind in ("rounding", "scales"):
        for planned in itertools.islice((each for each in cases if each.kind == kind), _CASES):
            progress(f"{kernel.name} {dtype}, {planned.fill}")
            measured = judging.call(case := judging.case(planned))
            assert measured is not None
            tried.append((judging.value(case, measured), parts_of(measured)))
    progress(f"{kernel.name} {dtype}, rules")
    found = followed(encoding, tried)
    lines = [("dtypes", dtype)]
    if not found:
        why = next(filter(None, (causes(encoding, *each) for each in tried)), [])
        lines += [("rules", "none that verify knows"), ("declared", "; ".join(why) or "no block is wrong")]
    for each in found:
        lines += [("scales", f"{each.rule}{f' by {each.by}' if each.by else ''}"), ("ties", each.ties)]
        lines += [("beyond", each.overflow), ("zeros", each.zero), ("layout", each.words)]
    told = ("ties", "overflow", "packed", "swizzle", "rule", *(["by"] if any(each.by for each in found) else []))
    other = [each for each in found if any(getattr(each, name) != getattr(encoding, name) for name in told)]
    first = dataclasses.replace(other[0], zero=encoding.zero) if other and len(other) == len(found) else None
    return Probed(kernel.name, lines, {} if first is None else {"quantise": first.declaration})


def on_case(kernel: Kernel, encoding: Encoding, target: str, backend: Backend, case: Case, measured: Measured) -> str:
    """Returns the verdict on the blocks of one case as text, with causes and facts.

    An example is `6 blocks: 5 right, 1 wrong: ties go up, ...; block [0, 0], ...`.
    """
    judging = QuantiserJudging(kernel, encoding, case.dtype, target, 0, backend.name, lambda case: measured)
    value, parts = judging.value(case, measured), parts_of(measured)
    found = judge(encoding, value, parts)
    facts = [f"{name} {text}" for name, text in found.facts().items()]
    return found.words + "".join(f"; {each}" for each in (*causes(encoding, value, parts, found), *facts))
