"""The fused route against the torch route and against exact values, in the interpreter; on a GPU all of it."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch

from tests.search.sweep import subjects
from verify import ops
from verify.backends import Cuda, Interpreter, architecture
from verify.declare.declaration import Kernel
from verify.errors import KernelError, TruthError
from verify.measure.tally import BINS, Tally
from verify.ops.op import Problem
from verify.records.record import value_of
from verify.search.sweep import fused, layout, table
from verify.search.sweep import reference as sweep_reference
from verify.search.sweep.certify import certify_fused
from verify.search.sweep.checking import check
from verify.search.sweep.partial import Part, Partial
from verify.search.sweep.reference import distances, reference_of
from verify.search.sweep.scope import space_of
from verify.search.sweep.space import CHUNK, Space, key_of_value
from verify.search.sweep.table import table_for
from verify.truth import certificate
from verify.truth.ulp import Policy

KIND = "cpu" if not torch.cuda.is_available() else architecture("cuda")
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HERE = (Cuda if DEVICE == "cuda" else Interpreter)(DEVICE)
FUSED, TORCH = f"fused {KIND}", f"torch {KIND}"


def both(kernel: Kernel, space: Space) -> tuple[Partial, Partial]:
    chunks = (0, space.chunks)
    return check(kernel, space, chunks, HERE, route=FUSED), check(kernel, space, chunks, HERE, route=TORCH)


def around(value: float, dtype: str, before: int, after: int, **options: object) -> Space:
    space = space_of(subjects.good, "k", dtype)
    key = key_of_value(space.format, value)
    return space_of(subjects.good, "k", dtype, bounds=(key - before, key + after), **options)  # type: ignore[arg-type]


def same_counts(a: Tally, b: Tally) -> None:
    """All counts, and the mean and the bins up to elements whose error the references see on both sides of an edge."""
    assert (a.n, a.misrounded, a.undecided, a.nonfinite, a.nan) == (b.n, b.misrounded, b.undecided, b.nonfinite, b.nan)
    assert abs(a.capped_sum - b.capped_sum) <= 1 + a.n // 1000
    # errors below 2^-24 ulp: the torch route cannot tell their sign, so both halves of the first bin are one
    moved: Counter[int] = Counter()
    for counts, sign in ((a.counts, 1), (b.counts, -1)):
        for index, count in counts:
            moved[index % BINS and index] += sign * count
    assert sum(map(abs, moved.values())) <= 2 + a.n // 1000


def same(a: Part, b: Part, *, leaders: bool = True) -> None:
    assert a.regimes.keys() == b.regimes.keys()
    for name, tally in a.regimes.items():
        same_counts(tally, b.regimes[name])
        if leaders:
            assert [(i.place, i.bits) for i in tally.leaders] == [(i.place, i.bits) for i in b.regimes[name].leaders]
    assert [(item.bin, item.count) for item in a.curve] == [(item.bin, item.count) for item in b.curve]
    for ours, theirs in zip(a.curve, b.curve, strict=True):
        assert value_of(ours.ulp) == pytest.approx(value_of(theirs.ulp), rel=1e-6, abs=1e-6)


def same_parts(kernel: Kernel, space: Space, *, leaders: bool = True) -> None:
    fused_part, torch_part = both(kernel, space)
    assert fused_part.parts.keys() == torch_part.parts.keys() >= {"y"}
    for name in fused_part.parts:
        same(fused_part.parts[name], torch_part.parts[name], leaders=leaders)


@pytest.mark.parametrize(
    ("kernel", "value"),
    [("good", -1.5), ("naive", -5.0), ("good", 0.125), ("naive", -14.0)],
    ids=["negative", "tail that is wrong", "border of the table", "underflow"],
)
def test_float32_equals_the_torch_route(kernel: str, value: float) -> None:
    same_parts(getattr(subjects, kernel), around(value, "float32", 900, 1100))


def test_infinite_and_nan_inputs_equal_the_torch_route() -> None:
    for value in (-math.inf, math.inf):
        same_parts(subjects.good, around(value, "float32", 700, 700), leaders=False)


def test_subnormal_ties_are_decided_without_exact_arithmetic() -> None:
    """Half of an odd subnormal is a tie but for x^2: the torch route has to ask mpmath for each, the fused none."""
    space = around(0.0, "float32", 200, 200, results=("y",))
    fused_part, torch_part = both(subjects.good, space)
    assert fused_part.parts["y"].escalated == 0 < torch_part.parts["y"].escalated
    same_counts(*(part.parts["y"].regimes["around zero: extreme"] for part in (fused_part, torch_part)))


@pytest.mark.slow
@pytest.mark.parametrize(("kernel", "dtype", "value"), [("geglu", "bfloat16", 1.5), ("split", "float16", -5.0)])
def test_pairs_equal_the_torch_route(kernel: str, dtype: str, value: float) -> None:
    subject = getattr(subjects, kernel)
    same_parts(subject, space_of(subject, "k", dtype, bounds=(value, value)))


def test_a_truth_just_below_a_power_of_two_keeps_its_distance() -> None:
    """gelu(-2^-60) is -2^-61 + 2^-120 / sqrt(2 pi): nearer to -2^-61 than float64 can tell, and not equal to it."""
    fmt = space_of(subjects.good, "k", "float32").format
    key = key_of_value(fmt, -(2.0**-60))
    space = space_of(subjects.good, "k", "float32", bounds=(key, key + 1), results=("y",))
    (leader,) = check(subjects.good, space, 0, HERE, route=FUSED).parts["y"].regimes["around zero: demanding"].leaders
    ulp = 2.0 ** (-62 - 23)
    assert value_of(leader.upper) == pytest.approx(2.0**-120 / math.sqrt(2 * math.pi) / ulp, rel=1e-9)


def test_the_size_of_a_tile_changes_no_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sums of a unit are kept for each lane of a tile: tiles of 4096 and of 256 keep different ones."""
    space = around(1.0, "float32", 300, 600)
    whole = check(subjects.naive, space, 0, HERE, route=FUSED).encode()
    monkeypatch.setitem(fused._TILE, DEVICE, {"BLOCK": 256, "num_warps": 4})
    assert check(subjects.naive, space, 0, HERE, route=FUSED).encode() == whole


def test_split_spans_give_the_same_bytes() -> None:
    space = around(2.0, "float32", 1500, 1500)
    assert space.chunks == 2
    whole = check(subjects.good, space, (0, 2), HERE, route=FUSED)
    first, second = (check(subjects.good, space, number, HERE, route=FUSED) for number in (0, 1))
    assert second.merge(first).encode() == whole.encode()


def test_a_span_that_ends_early_gives_the_bytes_of_what_it_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two slabs of one chunk each; the time is over during the first, or never."""
    monkeypatch.setattr(layout, "SLAB", CHUNK)
    key = (space_of(subjects.good, "k", "float32").format.sign_bit + 0x3F800000) // CHUNK * CHUNK
    space = space_of(subjects.good, "k", "float32", bounds=(key - 700, key + 300), baseline=True, hardest=2)
    whole = check(subjects.good, space, (0, 2), HERE, route=FUSED)
    first = check(subjects.good, space, (0, 2), HERE, route=FUSED, seconds=0.0)
    assert first.chunks == [(0, 1)]
    assert first.encode() == check(subjects.good, space, 0, HERE, route=FUSED).encode()
    assert first.merge(check(subjects.good, space, 1, HERE, route=FUSED)).encode() == whole.encode()
    assert check(subjects.good, space, (0, 2), HERE, route=FUSED, seconds=1e6).encode() == whole.encode()


def test_a_changed_input_is_noticed() -> None:
    space = around(1.0, "float32", 500, 500, results=("y",))
    with pytest.raises(KernelError, match="its inputs; x differs"):
        check(subjects.in_place, space, (0, space.chunks), HERE, route=FUSED)


def test_who_is_judged_by_this_route() -> None:
    import dataclasses

    def supported(kernel: Kernel, dtype: str) -> bool:
        return fused.supports(kernel, space_of(kernel, "k", dtype))

    assert supported(subjects.good, "float32") and supported(subjects.silu, "float32")
    assert supported(subjects.geglu, "bfloat16") and supported(subjects.split, "float16")
    assert not supported(subjects.good, "bfloat16"), "65,536 inputs are not worth a kernel"
    saturating = dataclasses.replace(subjects.good, policy=Policy(overflow="saturate"))
    assert not supported(saturating, "float32")
    other = dataclasses.replace(subjects.good, op=dataclasses.replace(ops.get("gelu")))
    assert not supported(other, "float32"), "an op of the same name need not be the same op"


# -- the table ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("slope", [False, True])
def test_the_reference_is_within_its_certificate(slope: bool) -> None:
    """At inputs that the certificate has not seen."""
    reference = reference_of("gelu", {"approximate": "tanh"}, slope, "float32", DEVICE)
    assert "fused" in reference.sentence
    fmt = space_of(subjects.good, "k", "float32").format
    generator = torch.Generator().manual_seed(99)
    keys = torch.randint(key_of_value(fmt, -20.0), key_of_value(fmt, 20.0), (150,), generator=generator)
    assert max(distances(reference, keys)) <= float(reference.units) * 2.0**53 / 4


def test_a_wrong_table_stops_the_sweep(monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_for("gelu", "none", False)
    rows = table.rows.copy()
    rows[1:-1, 3] *= 1 + 2.0**-40  # a relative error of 1e-12 in every cell
    monkeypatch.setattr(sweep_reference, "table_for", lambda *_: type(table)(rows, table.first))
    space = around(-2.0, "float32", 500, 500, results=("y",))
    with pytest.raises(TruthError, match="the fused reference of gelu is .* units from the exact value, beyond"):
        check(subjects.good, space, (0, space.chunks), HERE, route=FUSED)


def test_the_table_ends_where_nothing_shows() -> None:
    table = table_for("gelu", "none", False)
    op = ops.get("gelu")
    edge = float(table.rows[-2, 0])
    point = op.points(Problem({"x": torch.tensor([-edge], dtype=torch.float64)}, op.resolve({})), "y", [0])[0]
    assert abs(Fraction(float(point.mp(100)))) < Fraction(1, 1 << 330)
    assert table.rows[-1, 3] == -(2.0**-345)


def test_the_shipped_certificate_covers_every_curve() -> None:
    known = {(e.op, str(e.params), e.result, e.device): e for e in certificate.load(certificate.shipped_path()).entries}
    for device in ("fused cpu", "fused sm_90"):
        for curve, forms in (("gelu", ("none", "tanh")), ("silu", ("",))):
            for form in forms:
                params = {"approximate": form} if form else {}
                for result in ("y", "dx"):
                    entry = known[(curve, str(params), result, device)]
                    assert 0 < entry.units <= 8 and entry.n > 5000
    same_bits = [known[(e[0], e[1], e[2], "fused cpu")].units for e in known if e[3] == "fused sm_90"]
    assert same_bits == [entry.units for key, entry in known.items() if key[3] == "fused sm_90"]


@pytest.mark.slow
def test_certifying_again_gives_the_shipped_figures() -> None:
    shipped = {
        (e.op, str(e.params), e.result, e.device): e.units for e in certificate.load(certificate.shipped_path()).entries
    }
    for entry in certify_fused(["swiglu"], device=DEVICE):
        assert entry.units == shipped[(entry.op, str(entry.params), entry.result, entry.device)]


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_on_a_gpu_whole_rows_of_pairs_equal_the_torch_route(dtype: str) -> None:
    same_parts(subjects.geglu, space_of(subjects.geglu, "k", dtype, bounds=(0.5, 0.75)))


@pytest.mark.gpu
@pytest.mark.parametrize("value", [-4.0, 0.5, 3.0])
def test_on_a_gpu_float32_ranges_equal_the_torch_route(value: float) -> None:
    same_parts(subjects.good, around(value, "float32", 1 << 21, 1 << 21), leaders=False)


def test_a_table_is_kept_and_a_damaged_one_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    made: list[str] = []
    rows = np.arange(3.0 * table.WIDTH).reshape(3, -1)
    monkeypatch.setattr(table, "_made", lambda curve, *rest: made.append(curve) or table.Table(rows, table._FIRST))
    fresh = table_for.__wrapped__
    folder = tmp_path / "verify" / "tables"
    folder.mkdir(parents=True)
    (folder / "gelu-none-slope-older").touch()
    for _ in range(2):
        assert (fresh("gelu", "none", True).rows == rows).all() and made == ["gelu"]
    (kept,) = folder.iterdir()
    data = bytearray(kept.read_bytes())
    data[-3] ^= 1
    kept.write_bytes(data)
    assert (fresh("gelu", "none", True).rows == rows).all() and made == ["gelu", "gelu"]
