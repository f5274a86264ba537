"""Roundings: a kernel rounds to 16 bits where its declaration says, and nowhere else.

`rounds="as like"` promises the roundings of the PyTorch function of `like=`: eager PyTorch stores the result of each of
its operators in the dtype of the case. `rounds="once"` promises none before the results. If the promised contract does
not hold, the message says if the other one does; `verify contract` finds the contract of any kernel.

Details:

The law is tried without a profile, too. How a kernel computes between two roundings is free: the order of a sum,
contraction, the library of its functions, within 8 times the noise of a step in float32. So the promise allows a set of
numbers for each element, and in 16 bits most sets have one number. In float32, each set has several. PyTorch's own bits
on the same device keep `rounds="as like"` too. An element that follows from a decision about such numbers is not
judged, such as the k-th of computed scores. A promise of which no element is judged is broken. All inputs are ordinary.
"""

from __future__ import annotations

import dataclasses
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from verify.cases import Case, problem_of
from verify.cases.strategies import CaseSpace
from verify.declare.promises import AS_LIKE, ONCE
from verify.laws import batch
from verify.laws.law import Broken, Subject, law, place, plain_cases, show
from verify.measure.call import run_baseline, run_kernel, sent_all
from verify.ops.graph.contract import PLAIN, Allowed, Contract, Way
from verify.ops.graph.program import Program
from verify.ops.graph.rounding import Rounding
from verify.ops.graph.spans import Span
from verify.ops.graph.steps import Run
from verify.truth.ulp import bits_of

_RULES = {AS_LIKE: "eager PyTorch's roundings do", ONCE: "one rounding at the end does"}
_contracts: dict[tuple[Any, ...], str] = {}  # (function, op, promise, dtype) -> its contract in words
_WAYS = (PLAIN, (True, False), (False, True), (True, True))


@dataclass(frozen=True)
class _Results:
    """Holds the results of a case with their program."""

    program: Program
    run: Run
    format: Rounding
    results: Mapping[str, Tensor]
    theirs: Mapping[str, Tensor]  # PyTorch's

    @classmethod
    def of(cls, subject: Subject, case: Case) -> _Results:
        kernel, device = subject.kernel, subject.backend.device
        measured = run_kernel(kernel, case, device)
        theirs = sent_all(run_baseline(kernel, case, device, measured).results, "cpu")
        results = {name: value.cpu() for name, value in measured.results.items() if name not in kernel.op.integers}
        inputs, upstream = sent_all(measured.inputs, "cpu"), sent_all(measured.upstream, "cpu")
        program, run = kernel.op.program(problem_of(kernel.op, case, inputs, upstream, tuple(results)))
        format = Rounding.of(run, products=getattr(kernel.op.meaning, "products", "float32"))
        return cls(program, run, format, results, theirs)

    def stored(self, promise: str) -> Contract:
        """Returns the contract of a promise."""
        return self.program.stored if promise == AS_LIKE else {}

    def sets(self, promise: str, names: Sequence[str], way: Way = PLAIN) -> dict[str, Span]:
        """Returns the least and the greatest allowed number of each element."""
        with torch.no_grad(), self.program.refusing():
            found = Allowed(self.program, self.run, names, self.stored(promise), self.format, way).spans()
        kinds = {name: self.results[name].dtype for name in found}
        return {name: Span(span.lo.to(kinds[name]), span.hi.to(kinds[name])) for name, span in found.items()}

    def broken(self, promise: str) -> dict[str, Tensor]:
        """Returns masks of the elements that no way to keep a promise allows, of the results that have any."""
        found, names = dict[str, Tensor](), list(self.results)
        for way in _WAYS if self.stored(promise) else _WAYS[:1]:
            for name, span in self.sets(promise, names, way).items():
                got, theirs = self.results[name], self.theirs.get(name)
                wrong = ~((span.lo <= got) & (got <= span.hi)) & _is_judged(span)
                if promise == AS_LIKE and theirs is not None and theirs.dtype == got.dtype:
                    wrong &= (bits_of(got) != bits_of(theirs)).reshape(got.shape)
                found[name] = found.get(name, wrong) & wrong
            names = [name for name in names if bool(found[name].any())]
            if not names:
                break
        return {name: found[name] for name in names}


def _is_judged(span: Span) -> Tensor:
    """True where a set has a limit."""
    return ~(torch.isnan(span.lo) | ((span.lo == -math.inf) & (span.hi == math.inf)))


def _space(subject: Subject) -> CaseSpace:
    """Returns cases of ordinary values: for others kernels of the same contract take forms that lose digits."""
    return dataclasses.replace(batch.space_of_rows(subject), fill=(subject.kernel.op.geometry.fill,))


@law(
    "roundings",
    _space,
    applies=lambda subject: None if subject.kernel.rounds else "the kernel does not promise where it rounds",
    examples=plain_cases,
    share=0.5,
    nearest=True,
)
def roundings(subject: Subject, case: Case) -> None:
    """Numbers are rounded to 16 bits where the declaration says."""
    promised, found = subject.kernel.rounds, _Results.of(subject, case)
    rule, wrong = f"rounds={promised!r} is not kept", found.broken(promised)
    if not wrong:
        sets = found.sets(promised, list(found.results)).values()
        if sets and not any(bool(_is_judged(each).any()) for each in sets):
            raise Broken(f"{rule}: no element can be judged, all follow from computed decisions", case, {})
        return
    name, mask = next(iter(wrong.items()))
    got, index = found.results[name], int(torch.nonzero(mask.reshape(-1))[0])
    span = found.sets(promised, [name])[name]
    low, high = (show(end, index) for end in (span.lo, span.hi))
    facts = {
        "at": f"{name} {place(got, index)}, {int(mask.sum()):,} in all",
        "got": show(got, index),
        "allowed": low if low == high else f"{low} to {high}",
        "contract": _contract_of(subject, found),
    }
    if subject.target:
        facts["more"] = f"verify contract like {shlex.quote(subject.target)}"
    raise Broken(f"{rule}: {_RULES[promised]} not give this result", case, facts, result=name, index=index)


def _contract_of(subject: Subject, found: _Results) -> str:
    """Returns the other contract with a name, if the kernel keeps it; found once for each kernel and dtype.

    A case of many elements decides, because both contracts explain most single elements.
    """
    kernel = subject.kernel
    key = kernel.function, kernel.op.name, kernel.rounds, subject.dtype
    if key not in _contracts:
        other = ONCE if kernel.rounds == AS_LIKE else AS_LIKE
        plain = _Results.of(subject, max(plain_cases(subject, _space(subject)), key=lambda case: math.prod(case.dims)))
        found = plain if plain.broken(kernel.rounds) else found
        keeps = found.broken(other).keys().isdisjoint(found.broken(kernel.rounds))
        _contracts[key] = other if keeps else f"neither {AS_LIKE!r} nor {ONCE!r}"
    return _contracts[key]


LAWS = (roundings,)
