"""Divides the settings of a kernel into classes of equal bits, for `verify same`.

Settings are the second call, and the settings of `same_bits=` (`verify.laws.bits`). Each is tried on several
inputs. Two values of a setting are in one class if all of their results have the same bits. For two classes there is a
witness: an input and an element that differ.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import pairwise

import msgspec

from verify.backends import Backend
from verify.cases import Case, case_of
from verify.cases.sizes import work_of
from verify.cases.values import CANCELLING
from verify.declare.declaration import Kernel
from verify.declare.promises import SETTINGS
from verify.diagnose.requests import BitClass, SameBits, SettingBits
from verify.errors import UsageError
from verify.laws import bits, registry
from verify.laws.engine import PROFILES
from verify.laws.law import Broken, Subject, demand_same, plain_case
from verify.laws.locality import Rows, contiguous, separate_rows
from verify.measure.call import Measured, run_kernel
from verify.measure.digest import digests_of
from verify.truth.ulp import same_bits
from verify.workers.requests import OnProgress

_FILLS = ("randn", "spread", "alternating", "mean 1e3", CANCELLING)
_SEEDS = 2
_OTHERS, _WIDEST = 33, 1031  # sizes of a second dimension of rows, and of all other dimensions
_USUAL = "="
_WORK = {"small": 1 << 22, "large": 1 << 32}  # numbers in a program of a case
_BOUNDARIES = 64  # numbers of rows that are tried to find where a class ends
_ALL_ROWS = 512  # up to so many numbers of rows are tried between those of a class that has gaps
Given = list[tuple[Case, Measured]]


def settings_of(
    kernel: Kernel, backend: Backend, dtype: str, text: str, progress: OnProgress, *, later: Sequence[Case] = ()
) -> SameBits:
    """Returns the classes of each setting of a kernel in one dtype, on one case or on several, and on `later` ones."""
    subject = subject_of(kernel, backend, dtype)
    dtype = subject.dtype
    cases = [*([Case.from_json(text)] if text else cases_of(subject)), *later]
    given = [(case, run_kernel(kernel, case, backend.device)) for case in cases]
    found, all_rows = [], separate_rows(kernel, cases[0])
    for rows in all_rows:
        progress(f"{kernel.name} {dtype}, {rows.dimension or 'rows'}")
        found.append(_of_rows(subject, rows, given))
    for name in (*SETTINGS[1:], bits.AGAIN, *kernel.same_bits_as):
        progress(f"{kernel.name} {dtype}, {name}")
        found += _of_setting(subject, name, given, all_rows)
    sizes = {name: size for name, size in kernel.op.geometry.sizes_by_name(cases[0].dims).items() if name != "rank"}
    return SameBits(kernel.name, dtype, backend.name, sizes, len(cases), found)


def subject_of(kernel: Kernel, backend: Backend, dtype: str) -> Subject:
    """Returns a kernel as a subject, in its first dtype by default."""
    dtype = dtype or kernel.dtypes[0]
    if dtype not in kernel.dtypes:
        raise UsageError(f"{kernel.name} promises {', '.join(kernel.dtypes)}; received the dtype {dtype}")
    if kernel.encoding is not None:
        raise UsageError(f"{kernel.name} returns codes; settings and orders are those of kernels that return numbers")
    return Subject(kernel, dtype, backend, PROFILES["ci"].sizes[backend.scale])


def cases_of(subject: Subject) -> list[Case]:
    """Returns cases with many rows and long sums, and values of several kinds."""
    kernel, interpreted = subject.kernel, subject.backend.triton == "interpreted"
    shapes = registry.get("same bits").space(subject).shapes
    plain = plain_case(subject, shapes[0])
    all_rows = [rows.dimension for rows in separate_rows(kernel, plain)]
    names = kernel.op.geometry.dims or ("",) * len(plain.dims)
    dims, work = plain.dims, partial(work_of, kernel.op) if kernel.op.geometry.named else math.prod
    for at, name in enumerate(names):
        if name in all_rows:
            larger = bits.many_rows(subject.backend) if name == all_rows[0] and (name or at == 0) else _OTHERS
        else:
            larger = max((each[at] for each in shapes if at < len(each) and each[at] <= _WIDEST), default=dims[at])
        longer = [(*dims[:at], larger // part, *dims[at + 1 :]) for part in (1, 4, 16) if larger // part > dims[at]]
        fitting = (each for each in longer if kernel.allows(each) and work(each) <= _WORK[subject.backend.scale])
        dims = next(fitting, dims)
    fills = (kernel.op.geometry.fill,) if kernel.op.geometry.by_element else _FILLS
    regimes = [(fill, seed) for seed in range(1 if interpreted else _SEEDS) for fill in fills]
    cases = [
        case_of(kernel, subject.dtype, dims=dims, fill=fill, regime=kernel.op.geometry.regime(fill), seed=seed)
        for fill, seed in regimes
    ]
    return [*cases, *bits.hard_cases(subject, cases[0])]


def _of_rows(subject: Subject, rows: Rows, given: Given) -> SettingBits:
    """Returns the classes of the numbers of rows. Where two neighbours differ, the numbers between them are tried.

    If a class has gaps, as of multiples of 8, numbers between neighbours of one class may be of others: they are tried.
    """
    case = given[0][0]
    tried = sorted({*bits.counts(subject, case, rows), rows.count})
    found = bits.classes(subject, rows, given, tried)
    for _ in range(_BOUNDARIES):
        of = {count: at for at, (members, _) in enumerate(found) for count in members}
        gaps = len(tried) < _ALL_ROWS and sum(of[low] != of[high] for low, high in pairwise(tried)) >= len(found)
        middles = [
            (low + high) // 2
            for low, high in pairwise(tried)
            if (gaps or of[low] != of[high])
            and high - low > 1
            and rows.allowed(subject.kernel, case, (low + high) // 2)
        ]
        if not middles:
            break
        tried = sorted([*tried, *middles])
        found = bits.classes(subject, rows, given, middles, found)
    name = rows.dimension or "rows"
    witness = _between(rows, given, found) if len(found) > 1 else []
    classes = [BitClass([bits.spans(members, tried)], len(members)) for members, _ in found]
    return SettingBits("rows" if name == "rows" else f"rows ({name})", classes, witness)


def _between(rows: Rows, given: Given, found: Sequence[bits.Class]) -> list[str]:
    """Returns an element at which the first two classes differ, as lines."""
    (few, made), (many, others) = found[0], found[1]
    common = slice(0, min(few[-1], many[-1]))
    for (case, _), *both in zip(given, made, others, strict=True):
        one, two = (contiguous(rows.local(each, common)) for each in both)
        if lines := _witness(case, one, two, (f"{few[-1]:,} alone", f"{many[-1]:,}")):
            return lines
    return []


def _of_setting(subject: Subject, name: str, given: Given, all_rows: list[Rows]) -> Iterator[SettingBits]:
    """Yields the classes of one setting; nothing if it has no other value."""
    keys: dict[str, list[str]] = {}
    usual, witness = "", list[str]()
    for at, (case, whole) in enumerate(given):
        for rows in all_rows if name == "position" else [None]:
            for each in bits.compared(name, subject, case, whole, rows):
                expected, got = bits.one_nan(each.expected), bits.one_nan(each.got)
                equal = same_bits(list(expected.values()), [got[result] for result in expected])
                usual = each.usual
                keys.setdefault(each.setting, [_USUAL] * at).append(_USUAL if equal else str(digests_of(got)))
                if not equal and not witness:
                    witness = _witness(case, expected, got, (usual, each.setting))
    groups: dict[tuple[str, ...], list[str]] = {}
    for setting, key in keys.items():
        groups.setdefault(tuple(key), []).append(setting)
    if keys:
        same = groups.pop((_USUAL,) * len(given), [])
        classes = [BitClass([usual, *same], 1 + len(same))]
        yield SettingBits(name, classes + [BitClass(each, len(each)) for each in groups.values()], witness)


def _witness(case: Case, one: bits.Tensors, two: bits.Tensors, labels: tuple[str, str]) -> list[str]:
    """Returns the first element that differs, as lines; [] if none does."""
    try:
        demand_same(case, one, two, "", labels=labels)
    except Broken as broken:
        lines = (f"{label}: {broken.facts[label]}" for label in labels)
        return [broken.facts["at"], *lines, f"case: {msgspec.json.encode(case).decode()}"]
    return []
