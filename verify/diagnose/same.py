"""Divides the settings of a kernel into classes of equal bits, for `verify same`.

Settings are the second call, and the settings of `same_bits=` (`verify.laws.bits`). Each is tried on several
inputs. Two values of a setting are in one class if all of their results have the same bits. For two classes there is a
witness: an input and an element that differ.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import groupby, pairwise
from types import MappingProxyType
from typing import Any

import msgspec
import torch
from torch import Tensor

from verify.backends import Backend
from verify.cases import Case
from verify.cases.values import Stream
from verify.declare.declaration import Kernel
from verify.declare.promises import SETTINGS
from verify.diagnose import compiled
from verify.diagnose.requests import SameBits, SettingBits
from verify.errors import KernelError, UsageError
from verify.laws import bits
from verify.laws.engine import PROFILES
from verify.laws.law import Broken, Subject, demand_same
from verify.laws.locality import Rows, separate_rows
from verify.measure.call import Measured, describe, is_fault, run_kernel, run_tensors
from verify.measure.ttgir import NotUnderstood
from verify.truth.ulp import same_bits
from verify.workers.requests import OnProgress

_BOUNDARIES = 64  # numbers of rows that are tried to find where a class ends
_ALL_ROWS = 512  # up to so many numbers of rows are tried between those of a class that has gaps
Given = list[tuple[Case, Measured]]
Calls = Callable[[Case, Measured], Iterable[bits.Compared]]


def settings_of(
    kernel: Kernel,
    backend: Backend,
    dtype: str,
    cases: Sequence[Case],
    progress: OnProgress,
    without: Mapping[str, str] = MappingProxyType({}),
    every: int = bits.EVERY,
) -> SameBits:
    """Returns the classes of each setting of a kernel in one dtype, on cases; [] for the usual ones.

    `progress` gets each value of a setting before its call; values of `without` are not called, for a reason. Each
    number of rows up to `every` is tried.
    """
    subject = subject_of(kernel, backend, dtype)
    dtype, cases = subject.dtype, cases or bits.cases_of(subject)
    given = [(case, run_kernel(kernel, case, backend.device)) for case in cases]
    found, all_rows = [], separate_rows(kernel, cases[0])
    for rows in all_rows:
        found.append(_of_rows(subject, rows, _Differences(_name(rows), given, progress, without, rows), every))
    for name in (*SETTINGS[1:], bits.AGAIN, *kernel.same_bits_as):
        settings = _Differences(name, given, progress, without)
        settings.add(partial(bits.compared, name, subject, all_rows=all_rows))
        found += [settings.found(classes)] if (classes := settings.classes()) else []
    sizes = {name: size for name, size in kernel.op.geometry.sizes_by_name(cases[0].dims).items() if name != "rank"}
    return SameBits(kernel.name, dtype, backend.name, sizes, len(cases), found)


def proved(kernel: Kernel, backend: Backend, case: Case, target: str) -> dict[str, str]:
    """Returns for each setting of rows which numbers of rows give the outputs of all at once, for every input."""
    subject, whole, found = subject_of(kernel, backend, case.dtype), run_kernel(kernel, case, backend.device), {}
    for rows in separate_rows(kernel, case):
        tried = bits.counts(subject, case, rows)
        parts = [rows.pick(whole.inputs, {}, slice(0, count))[0] for count in tried]
        *calls, every = (partial(run_tensors, kernel, given, case.params, {}) for given in (*parts, whole.inputs))
        try:
            same = compiled.store_the_same(calls, every, backend, target)
            held = [count for count, holds in zip(tried, same, strict=True) if holds]
            text = f"the bits of {rows.count:,}: {_spans(held, tried)}" if held else "other code or expressions"
        except (KernelError, NotUnderstood) as why:
            text = f"not known: {why}"
        found[_name(rows)] = text
    return found


def _name(rows: Rows) -> str:
    return f"rows ({rows.dimension})" if rows.dimension else "rows"


def subject_of(kernel: Kernel, backend: Backend, dtype: str) -> Subject:
    """Returns a kernel as a subject, in its first dtype by default."""
    dtype = dtype or kernel.dtypes[0]
    if dtype not in kernel.dtypes:
        raise UsageError(f"{kernel.name} promises {', '.join(kernel.dtypes)}; received the dtype {dtype}")
    if kernel.encoding is not None:
        raise UsageError(f"{kernel.name} returns codes; settings and orders are those of kernels that return numbers")
    return Subject(kernel, dtype, backend, PROFILES["ci"].sizes[backend.scale])


class _Differences:
    """Holds how results in each value of a setting differ from the usual ones: a number for each row of each input.

    The number is the difference of two hashes. Values are in one class if the numbers of their common rows are equal.
    """

    def __init__(
        self, name: str, given: Given, progress: OnProgress, without: Mapping[str, str], rows: Rows | None = None
    ) -> None:
        self._name, self.given, self._progress, self._without, self._rows = name, given, progress, without, rows
        self._same = torch.zeros(rows.count if rows else 1, dtype=torch.int64)
        self._found = dict[Any, list[Tensor]]()
        self._refused, self._undecided, self._witness = dict[str, str](), dict[str, bool](), list[str]()

    def add(self, calls: Calls) -> None:
        """Makes calls for each input, and compares their results with the usual ones."""
        for at, (case, whole) in enumerate(self.given):
            for each in calls(case, whole):
                label = f"{self._name}: {each.setting}"
                if label in self._without or each.setting in self._refused:
                    self._refused.setdefault(each.setting, self._without.get(label, ""))
                    continue
                self._progress(label)
                usual, value = (self._rows.count, each.rows) if self._rows else (each.usual, each.setting)
                try:
                    got = each.call()
                    differences = self._differing(each, got)  # waits for a GPU, which may report its fault here
                except (KernelError, RuntimeError) as why:
                    if is_fault(why) or not isinstance(why, KernelError):
                        raise KernelError(describe(why)) from why
                    self._refused[each.setting] = str(why)
                    self._found.pop(value, None)
                    continue
                if each.hidden:
                    self._undecided[each.setting] = self._undecided.get(each.setting, False) or bool(differences.any())
                    continue
                self._found.setdefault(usual, [self._same] * len(self.given))
                self._found.setdefault(value, [self._same] * len(self.given))[at] = differences
                if differences.any() and not self._witness:
                    self._witness = _witness(case, each, got)

    def found(self, classes: list[list[str]]) -> SettingBits:
        """Returns the classes of the setting, with what else was found."""
        refused = [f"{value}: {why}" for value, why in self._refused.items()]
        undecided = [
            f"{value}, which has other bits" if differs else value for value, differs in self._undecided.items()
        ]
        return SettingBits(self._name, classes, self._witness, refused, undecided, len(self._found))

    def _differing(self, each: bits.Compared, found: bits.Tensors) -> Tensor:
        if same_bits([found[name] for name in each.expected], list(each.expected.values())):
            name, value = next(iter(each.expected.items()))
            return self._same[: value.shape[self._rows.axis(name) or 0] if self._rows else 1]
        return self._hashes(found, each.expected) - self._hashes(each.expected, each.expected)

    def _hashes(self, results: bits.Tensors, names: Iterable[str]) -> Tensor:
        found = torch.zeros(1, dtype=torch.int64)
        for name in names:
            axis, value = self._rows.axis(name) if self._rows else None, bits.bits_beside_nan(results[name])
            lines = value.reshape(1, -1) if axis is None else value.movedim(axis, 0).reshape(value.shape[axis], -1)
            factors = Stream(0, f"hash/{name}", value.device).words(lines.shape[1])
            found = found + (lines * factors).sum(1).cpu()
        return found

    def classes(self) -> list[list[Any]]:
        """Returns the values of each class."""
        found: list[tuple[list[Tensor], list[Any]]] = []
        for value in sorted(self._found, reverse=True) if self._rows else self._found:
            mine = self._found[value]
            for theirs, members in found:
                pairs = zip(theirs, mine, strict=True)
                if all(bool((one[: len(two)] == two[: len(one)]).all()) for one, two in pairs):
                    members.append(value)
                    break
            else:
                found.append((mine, [value]))
        return [members for _, members in found]


def _of_rows(subject: Subject, rows: Rows, found: _Differences, every: int) -> SettingBits:
    """Returns the classes of the numbers of rows. Where two neighbours differ, the numbers between them are tried.

    If a class has gaps, as of multiples of 8, numbers between neighbours of one class may be of others: they are tried.
    """
    case = found.given[0][0]
    tried, further = [rows.count], bits.counts(subject, case, rows, every)
    for _ in range(_BOUNDARIES):
        found.add(partial(bits.by_count, subject, rows, further[::-1]))
        tried = sorted([*tried, *further])
        classes = found.classes()
        of = {count: at for at, members in enumerate(classes) for count in members}
        pairs = list(pairwise(sorted(of)))
        gaps = len(tried) < _ALL_ROWS and sum(of[low] != of[high] for low, high in pairs) >= len(classes)
        middles = ((low + high) // 2 for low, high in pairs if gaps or of[low] != of[high])
        further = [each for each in middles if each not in tried and rows.allowed(subject.kernel, case, each)]
        if not further:
            break
    named = [[_spans(sorted(members), tried)] for members in sorted(classes, key=min)]
    return found.found(named)


def _spans(counts: Sequence[int], tried: Sequence[int]) -> str:
    """Returns numbers as text, such as `1 to 3, 8`; numbers that follow each other among the tried ones are joined."""
    runs = [list(run) for _, run in groupby(counts, key=lambda count: tried.index(count) - counts.index(count))]
    return ", ".join(f"{run[0]:,}" if len(run) == 1 else f"{run[0]:,} to {run[-1]:,}" for run in runs)


def _witness(case: Case, each: bits.Compared, got: bits.Tensors) -> list[str]:
    """Returns the first element that differs, as lines; [] if none does."""
    labels = each.setting, each.usual
    try:
        demand_same(case, got, each.expected, "", labels=labels)
    except Broken as broken:
        lines = (f"{label}: {broken.facts[label]}" for label in labels)
        return [broken.facts["at"], *lines, f"case: {msgspec.json.encode(case).decode()}"]
    return []
