"""A run as the reports meet it: good, wrong, NaN, raising, crashing, hanging, skipped, hostile.

Worst inputs are true: inputs and truth come from mpmath, `got` is what the described bug returns
there. Counts and the figures of regimes are made up, in the proportions measured on real kernels.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import random
import struct
from collections.abc import Iterator

import mpmath

from verify.records.record import (
    SCHEMA,
    Basis,
    ClassFigures,
    Curve,
    Figures,
    Gap,
    Hard,
    Histogram,
    KernelRun,
    Kill,
    LawRun,
    Number,
    Origin,
    RegimeFigures,
    Result,
    Run,
    SelfTest,
    SpecialValue,
    Speed,
    Stage,
    Worst,
)

HOSTILE_NAME = "<script>alert(1)</script>[bold]a|b`c`\x1b[31m\u202e@octocat #1"
HOSTILE_MESSAGE = (
    "RuntimeError: </script><img src=x onerror=alert(2)> [/bold][red]x[/red]\n"
    "\x1b]0;owned\x07\x1b[2J second line | `tick` ```fence``` @octocat see #42 and https://example.com/"
)
LONG_NAME = "acme.models.transformer.feed_forward.fused_gelu_with_bias_and_dropout_v2"
EVERY_BF16 = Basis("exhaustive", 65_536)
EVERY_F32 = Basis("exhaustive", 1 << 32)
SEEN = Basis("observed", 1_048_576, 0)


def bf16(bits: int) -> float:
    """The number behind a bfloat16 pattern."""
    value: float = struct.unpack("<f", struct.pack("<I", bits << 16))[0]
    return value


def gelu(x: float) -> mpmath.mpf:
    """The exact value, in the form that does not cancel."""
    with mpmath.workprec(200):
        return mpmath.mpf(x) * mpmath.erfc(-mpmath.mpf(x) / mpmath.sqrt(2)) / 2


def in_ulps(error: mpmath.mpf, truth: mpmath.mpf, mantissa_bits: int = 7, emin: int = -126) -> float:
    """An error in units of the spacing around the truth."""
    exponent = max(mpmath.frexp(truth)[1] - 1, emin) - mantissa_bits
    return float(mpmath.ldexp(error, -exponent))


def worst(
    target: str,
    dtype: str,
    index: tuple[int, ...],
    inputs: dict[str, str],
    got: tuple[str, str],
    truth: mpmath.mpf | str,
    ulp: Number,
    scaled: Number | None = None,
) -> Worst:
    case = json.dumps({"dims": [65536], "dtype": dtype, "layout": "contiguous", "seed": 0, "values": "all"})
    text = truth if isinstance(truth, str) else mpmath.nstr(truth, 30)
    flat = index[-1] if index else 0
    return Worst(index, inputs, got[0], got[1], text, ulp, scaled, Origin(target, case, "y", flat))


@functools.cache
def _tail() -> list[tuple[float, int, mpmath.mpf]]:
    """The ten largest errors of the tail, each with its input's bits and the truth."""
    truths = [(bits, gelu(bf16(bits))) for bits in range(0xC0C0, 0xC156)]
    found = [(in_ulps(-truth, truth), bits, truth) for bits, truth in truths]
    return sorted(found, key=lambda item: (-abs(item[0]), item[1]))[:10]


def tail_of_eager(target: str) -> list[Worst]:
    """x * 0.5 * (1 + erf) returns -0 where 1 + erf has cancelled: every leading digit is lost."""
    return [
        worst(
            target,
            "bfloat16",
            (bits,),
            {"x": f"{bf16(bits)!r} (0x{bits:04x})"},
            ("-0.0", "0x8000"),
            truth,
            error,
        )
        for error, bits, truth in _tail()
    ]


def figures(n: int, maximum: Number, p999: Number, mean: float, misrounded: int, **more: object) -> Figures:
    base = Figures(
        n=n,
        max_ulp=maximum,
        max_upper=maximum,
        p999=p999,
        mean=mean,
        misrounded=misrounded,
        undecided=0,
        nonfinite=0,
    )
    return _replace(base, **more)


def _replace(struct_: object, **changes: object):  # type: ignore[no-untyped-def]
    import msgspec

    return msgspec.structs.replace(struct_, **changes)


def histogram(n: int, octaves: int, *, lean: float = 1.0, decay: float = 0.25) -> Histogram:
    """Signed octave bins up to 2^octaves, as the tally writes them, with counts that fall off."""
    tops = [math.ldexp(1.0, k) for k in range(-4, octaves + 1)]
    edges: list[Number] = [-top for top in reversed(tops)] + [0.0] + list(tops)
    inner = [0.12, 0.12, 0.26, 0.5]

    def side(weight: float) -> list[int]:
        shares = [*inner, *(0.02 * decay**k for k in range(len(tops) - len(inner)))]
        return [round(n * weight * share / 2) for share in shares[: len(tops)]]

    counts = list(reversed(side(1.0))) + side(lean)
    counts[counts.index(max(counts))] += n - sum(counts)
    return Histogram(edges, counts)


def gelu_regimes(n: int, ours: list[Figures], eager: list[Figures]) -> list[RegimeFigures]:
    names: list[tuple[str, Number, Number]] = [
        ("deep tail", "-inf", -13.0),
        ("negative tail", -13.0, -5.25),
        ("slope zero", -5.25, -0.5),
        ("around zero", -0.5, 0.5),
        ("positive", 0.5, "inf"),
    ]
    return [
        RegimeFigures(name, low, high, mine, theirs)
        for (name, low, high), mine, theirs in zip(names, ours, eager, strict=True)
    ]


def _parts(n: int, maxima: list[Number], misrounded: list[int]) -> list[Figures]:
    return [
        figures(n // 5 + (0 if at else n % 5), top, top if isinstance(top, str) else top * 0.8, 0.25, bad)
        for at, (top, bad) in enumerate(zip(maxima, misrounded, strict=True))
    ]


def good_kernel() -> KernelRun:
    target = "accuracy.py::gelu_erf"
    eager = figures(65_536, 254.871, 121.5, 0.61, 9_120)
    rounded = figures(65_536, 0.49987, 0.4991, 0.2498, 0)
    table = gelu_regimes(
        65_536,
        _parts(65_536, [0.4998, 0.49987, 0.49975, 0.4999, 0.4996], [0] * 5),
        _parts(65_536, [0.5, 254.871, 12.4, 0.51, 0.501], [0, 6800, 2100, 120, 100]),
    )
    near = worst(
        target,
        "bfloat16",
        (0xBF2B,),
        {"x": f"{bf16(0xBF2B)!r} (0xbf2b)"},
        ("-0.1689453125", "0xbe2d"),
        gelu(bf16(0xBF2B)),
        0.49987,
    )
    y = Result(
        output="y",
        dtype="bfloat16",
        basis=EVERY_BF16,
        gate="plain",
        limit=4.0,
        status="ok",
        figures=rounded,
        regimes=table,
        histogram=histogram(65_536, -1),
        worst=[near],
        escalated=212,
        certificate="gelu-erf-1",
        baseline=eager,
        baseline_name="torch.nn.functional.gelu",
        baseline_worst=[item for item in tail_of_eager("torch::gelu") if abs(float(item.ulp)) < 254.871][:3],
    )
    wide = figures(1 << 32, 0.8123, 0.6, 0.27, 73_014_444_032 // 100, max_upper=0.8131)
    f32 = _replace(
        y,
        dtype="float32",
        basis=EVERY_F32,
        figures=wide,
        regimes=[],
        histogram=histogram(1 << 32, 0),
        baseline=figures(1 << 32, 1.6777e7, 3.1e5, 1_711.0, 1_900_000_000),
        escalated=1_841,
    )
    dx = _replace(y, output="dx", figures=figures(65_536, 0.5, 0.4995, 0.251, 0), regimes=[])
    return KernelRun(
        name="gelu_erf",
        target=target,
        op="gelu",
        params={"approximate": "none"},
        promise="float32, float16, bfloat16; any layout; gradient of x",
        status="ok",
        results=[y, dx, f32],
        notes=["subnormal outputs are kept: no flush to zero was seen"],
        seconds=3.412,
    )


def eager_kernel() -> KernelRun:
    target = "accuracy.py::eager_gelu"
    rows = tail_of_eager(target)
    top = abs(rows[0].ulp) if not isinstance(rows[0].ulp, str) else rows[0].ulp
    y = Result(
        output="y",
        dtype="bfloat16",
        basis=EVERY_BF16,
        gate="plain",
        limit=4.0,
        status="wrong",
        figures=figures(65_536, top, 121.5, 0.61, 9_120),
        regimes=gelu_regimes(
            65_536,
            _parts(65_536, [0.5, top, 12.4, 0.51, 0.501], [0, 6800, 2100, 120, 100]),
            _parts(65_536, [0.5, top, 12.4, 0.51, 0.501], [0, 6800, 2100, 120, 100]),
        ),
        histogram=histogram(65_536, 8, lean=0.4, decay=0.55),
        worst=rows,
        escalated=3,
        certificate="gelu-erf-1",
        baseline=figures(65_536, top, 121.5, 0.61, 9_120),
        baseline_name="torch.nn.functional.gelu",
    )
    half = _replace(
        y,
        dtype="float16",
        status="ok",
        figures=figures(65_536, 2.2479, 1.02, 0.262, 1_420),
        regimes=[],
        histogram=histogram(65_536, 2, lean=0.8),
        worst=[],
        baseline=figures(65_536, 2.2479, 1.02, 0.262, 1_420),
    )
    return KernelRun(
        name="eager_gelu",
        target=target,
        op="gelu",
        params={"approximate": "none"},
        promise="float16, bfloat16; any layout",
        status="wrong",
        results=[y, half],
        seconds=1.08,
    )


def peer_kernel() -> KernelRun:
    """PyTorch's own kernel beside ours: shown, never judged."""
    kernel: KernelRun = _replace(
        eager_kernel(),
        name="torch_compiled",
        target="accuracy.py::torch_compiled",
        peer=True,
        results=[
            _replace(result, baseline=None, baseline_name="", worst=result.worst[:2])
            for result in eager_kernel().results
        ],
    )
    return kernel


def nan_kernel() -> KernelRun:
    target = "accuracy.py::exp_tanh_gelu"
    rows = [
        worst(
            target,
            "bfloat16",
            (bits,),
            {"x": f"{bf16(bits)!r} (0x{bits:04x})"},
            ("nan", "0x7fc0"),
            gelu(bf16(bits)),
            "inf",
        )
        for bits in range(0x4131, 0x413B)
    ]
    y = Result(
        output="y",
        dtype="bfloat16",
        basis=EVERY_BF16,
        gate="plain",
        limit=4.0,
        status="wrong",
        figures=figures(65_536, "nan", "inf", 15_967.3, 24_115, nonfinite=15_967),
        regimes=gelu_regimes(
            65_536,
            [
                *_parts(65_536, [0.5, 201.3, 12.4, 0.51], [0, 4100, 2100, 120]),
                figures(13_107, "nan", "inf", 9_000.0, 13_000, nonfinite=13_000),
            ],
            _parts(65_536, [0.5, 255.7, 9.0, 0.51, 0.501], [0, 6800, 2100, 120, 100]),
        ),
        histogram=histogram(65_536, 8, lean=0.4, decay=0.5),
        worst=rows,
        escalated=0,
        certificate="exact",
        baseline=figures(65_536, 255.7, 130.0, 0.7, 9_300),
        baseline_name="torch.nn.functional.gelu",
    )
    return KernelRun(
        name="exp_tanh_gelu",
        target=target,
        op="gelu",
        params={"approximate": "tanh"},
        promise="bfloat16; contiguous",
        status="wrong",
        results=[y],
        seconds=0.81,
    )


def layer_norm_kernel() -> KernelRun:
    """Scaled gates: the plain error of a cancelling sum means little."""
    target = "accuracy.py::layer_norm"
    regimes = [
        RegimeFigures(
            name,
            None,
            None,
            figures(
                524_288 if name == "randn" else 131_072,
                plain,
                plain / 3,
                0.4,
                900,
                scaled_max=top,
                scaled_upper=top,
                scaled_p999=0.5,
            ),
            figures(
                131_072,
                plain * 9,
                plain,
                3.0,
                9_000,
                scaled_max=bad,
                scaled_upper=bad,
                scaled_p999=1.0,
            ),
        )
        for name, plain, top, bad in (
            ("randn", 311.0, 0.74, 1.31),
            ("mean 1e4", 2_048.0, 0.91, 1.02e7),
            ("constant row", 4.0, 0.88, 2.1e8),
            ("tiny 1e-20", 12.0, 0.61, 0.93),
            ("huge 1e30", 77.0, 0.95, 1.7e7),
        )
    ]
    y = Result(
        output="y",
        dtype="float32",
        basis=SEEN,
        gate="scaled",
        limit=2.0,
        status="ok",
        figures=figures(
            1_048_576,
            2_048.0,
            96.0,
            0.61,
            181_440,
            scaled_max=0.949,
            scaled_upper=0.952,
            scaled_p999=0.71,
        ),
        regimes=regimes,
        histogram=histogram(1_048_576, 11, decay=0.45),
        worst=[
            worst(
                target,
                "float32",
                (17, 3051),
                {
                    "x": "10000.0009765625 (0x461c4001)",
                    "weight": "0.98 (0x3f7ae148)",
                    "row mean": "10000.0000128",
                },
                ("-1.3709e-05", "0xb7660000"),
                "-1.37091839275810297144871937451e-05",
                2_048.0,
                0.949,
            )
        ],
        escalated=40,
        certificate="layer_norm-1",
        baseline=figures(
            1_048_576,
            9.9e8,
            3e7,
            60_000.0,
            1_000_000,
            scaled_max=2.1e8,
            scaled_upper=2.1e8,
            scaled_p999=1e7,
        ),
        baseline_name="torch.nn.functional.layer_norm",
    )
    rows = [
        worst(
            target,
            "float32",
            (row,),
            {
                "weight": "1.0 (0x3f800000)",
                "rows": "1,024 elements of dy and x",
                "x": "1000.25 (0x447a1000)",
            },
            ("12.25", "0x41440000"),
            "12.2497940063476562500000000001",
            216.0,
            5.5 - row / 8,
        )
        for row in range(4)
    ]
    dw = _replace(
        y,
        output="dweight",
        status="wrong",
        figures=figures(4_096, 216.0, 71.0, 2.2, 3_004, scaled_max=5.5, scaled_upper=5.5, scaled_p999=3.1),
        basis=Basis("observed", 4_096, 0),
        regimes=[],
        histogram=histogram(4_096, 8, decay=0.6, lean=0.9),
        worst=rows,
        baseline=figures(
            4_096,
            9_000.0,
            812.0,
            30.0,
            4_000,
            scaled_max=1021.5,
            scaled_upper=1021.5,
            scaled_p999=99.0,
        ),
    )
    return KernelRun(
        name="layer_norm",
        target=target,
        op="layer_norm",
        params={"eps": 1e-05},
        promise="float32; rows contiguous; gradients of x, weight and bias",
        status="wrong",
        results=[y, dw],
        notes=["row moments are judged in double-double"],
        seconds=12.9,
    )


def long_kernel() -> KernelRun:
    base = good_kernel().results[0]
    result = _replace(
        base,
        output="grad_of_input_bias",
        figures=figures(65_536, 3.0625, 1.5, 0.31, 5_400),
        histogram=histogram(65_536, 2),
        regimes=[],
        worst=[],
        baseline=None,
        baseline_name="",
        baseline_worst=[],
        basis=Basis("certified", 65_536),
    )
    return KernelRun(
        name=LONG_NAME,
        target=f"acme.accuracy::{LONG_NAME}",
        op="gelu_with_a_long_op_name",
        params={"approximate": "tanh", "dropout": 0.0, "bias": True},
        promise="bfloat16; contiguous",
        status="ok",
        results=[result],
        seconds=72.4,
    )


def hostile_kernel() -> KernelRun:
    target = f"evil.py::{HOSTILE_NAME}"
    base = nan_kernel().results[0]
    row = worst(
        target,
        "bfloat16",
        (0,),
        {"x<b>": "1.0 (0x3f80) | <i>\n"},
        ("</td><script>", "`0x0`"),
        "[red]1[/red]",
        3e5,
    )
    result = _replace(
        base,
        figures=figures(65_536, 3e5, 20.0, 2.0, 800),
        regimes=[RegimeFigures("<b>|regime`", None, None, figures(65_536, 3e5, 1.0, 1.0, 1), None)],
        histogram=histogram(65_536, 19, decay=0.5),
        worst=[row],
        baseline=None,
        baseline_name="",
    )
    return KernelRun(
        name=HOSTILE_NAME,
        target=target,
        op="<op>",
        params={"<p>": "</script>"},
        promise="<u>everything</u>",
        status="wrong",
        results=[result],
        notes=["<b>note</b> @octocat"],
        seconds=0.5,
    )


def failures() -> Iterator[KernelRun]:
    """One kernel of each status that has no figures."""

    def kernel(name: str, status: str, message: str, hint: str) -> KernelRun:
        return KernelRun(
            name=name,
            target=f"accuracy.py::{name}",
            op="geglu",
            params={},
            promise="bfloat16",
            status=status,  # type: ignore[arg-type]
            results=[],
            message=message,
            hint=hint,
            seconds=0.2,
        )

    yield kernel(
        "geglu_packed",
        "error",
        "geglu_packed returned shape (128, 64); geglu wants (128, 128) for x of shape (128, 256)",
        "return x1 * gelu(x2) without slicing it again",
    )
    yield kernel("geglu_raises", "error", HOSTILE_MESSAGE, "")
    yield kernel(
        "geglu_unsafe",
        "crashed",
        "the worker died with SIGSEGV while running dims [65537], dtype bfloat16",
        "verify run accuracy.py::geglu_unsafe --dims 65537",
    )
    yield kernel(
        "geglu_slow",
        "timeout",
        "no result after 120 s; the worker was stopped",
        "verify run --timeout 600",
    )
    yield kernel(
        "geglu_cuda",
        "skipped",
        "needs a CUDA device; this run used the interpreter",
        "verify doctor",
    )


ENVIRONMENT = {
    "python": "3.12.8",
    "platform": "Linux x86_64",
    "torch": "2.11.0",
    "triton": "3.6.0",
    "gpu": {"name": "NVIDIA H200", "arch": "sm_90", "driver": "570.86", "memory_gib": 139.8},
    "flush_to_zero": False,
    "tf32": False,
    "commit": "0a9ec1b26e62",
    "dirty": True,
    "property_hash": None,
}


def curve(tail: list[Number], n: int, *, bins: int = 96) -> Curve:
    """Error against x from -16 to 16 in steps; the negative end has `tail`, PyTorch loses a little more of it."""
    edges: list[Number] = [-16.0 + 32.0 * place / bins for place in range(bins + 1)]
    maxima: list[Number] = [*tail, *([0.5] * (bins - len(tail)))]
    theirs: list[Number] = [255.0 if place < bins // 3 else 0.51 for place in range(bins)]
    inputs = [struct.unpack("<I", struct.pack("<f", float(edge)))[0] >> 16 for edge in edges[:-1]]
    counts = [16] * bins
    counts[-1] = 0
    counts[0] += n - sum(counts)
    maxima[-1] = 0.0
    worst_inputs = [f"0x{bits:04x}" for bits in inputs]
    worst_inputs[-1] = ""
    return Curve("x", edges, counts, maxima, worst_inputs, theirs)


def special(wrong: bool) -> list[SpecialValue]:
    return [
        SpecialValue({"x": "0 (0x0000)"}, "0", "0.0"),
        SpecialValue({"x": "inf (0x7f80)"}, "inf", "inf"),
        SpecialValue(
            {"x": "-inf (0xff80)"},
            "nan" if wrong else "-0",
            "0.0",
            "wrong" if wrong else "ok",
            Origin("accuracy.py::eager", "{}", "y", 9) if wrong else None,
        ),
    ]


def laws() -> list[LawRun]:
    return [
        LawRun("determinism", "bfloat16", "ok", 40),
        LawRun("determinism", "float64", "ok", 40),
        LawRun("layout independence", "bfloat16", "ok", 100),
        LawRun("monotonicity", "bfloat16", "skipped", 0, "the function is not monotone"),
        LawRun("shift", "bfloat16", "skipped", 0, "the function is not monotone"),
        LawRun("gradcheck", "bfloat16", "skipped", 0, "finite differences need float64; this law runs in that dtype"),
        LawRun(
            "gradcheck", "float64", "ok", 50, "", {"worst element": "dx[3]", "analytic": "0.5", "numeric": "0.50001"}
        ),
    ]


def broken_law() -> LawRun:
    return LawRun(
        "batch invariance",
        "bfloat16",
        "broken",
        7,
        "a row changed with its neighbours </script><b>",
        {"row": "3", "alone": "1.5 (0x3fc0)", "among others": "1.25 (0x3fa0)"},
        Origin("accuracy.py::eager_gelu", "{}", law="batch invariance"),
    )


def _below(item: Result, tail: list[Number]) -> list[Number]:
    """The errors that a result can have."""
    return [error for error in tail if float(error) <= float(item.figures.max_upper)]


def rich_kernels() -> list[KernelRun]:
    """Everything that a result and a kernel can have."""
    good, eager, peer = good_kernel(), eager_kernel(), peer_kernel()
    hard = Hard({"x": "1.5 (0x3fc0)"}, "1.39978919860", 0.0001)
    tail: list[Number] = ["inf", 255.0, 200.0, 12.0, 3.0]
    timed = [
        Speed("bfloat16", direction, (8192, 4096), milliseconds, copy)  # type: ignore[arg-type]
        for direction, milliseconds, copy in (("forward", 0.0321, 0.99), ("backward", 0.071, 0.91))
    ]
    slow = [_replace(item, milliseconds=item.milliseconds * 1.7, of_copy=None) for item in timed]
    return [
        _replace(
            good,
            results=[
                _replace(
                    item,
                    curve=curve([], item.figures.n),
                    special=special(False),
                    hardest=[hard],
                    bits="0123456789abcdef",
                )
                for item in good.results
            ],
            laws=laws(),
            speed=timed,
        ),
        _replace(
            eager,
            results=[
                _replace(item, curve=curve(_below(item, tail), item.figures.n), special=special(True))
                for item in eager.results
            ],
            laws=[*laws(), broken_law()],
            speed=slow,
        ),
        _replace(
            peer,
            results=[_replace(item, curve=curve(_below(item, tail), item.figures.n)) for item in peer.results],
            speed=slow[:1],
        ),
        layer_norm_kernel(),
    ]


@functools.cache
def rich() -> Run:
    """A nightly run: laws, speed, self-test and stages."""
    kills = [
        Kill(f"mutant_{name}", family, killed, visible, seen, loose)
        for name, family, killed, visible, seen, loose in (
            ("tail", "gelu", ["accuracy", "special values"], True, False, False),
            ("batch", "layer_norm", ["batch invariance"], True, True, False),
            ("<script>alive", "linear", [], True, False, False),
            ("race", "linear", [], False, False, False),
        )
    ]
    tested = SelfTest("quick", ["accuracy", "batch invariance", "special values", "contract"], kills, 9, ["twin: <b>"])
    stages = [
        Stage("run", "wrong", "1 kernel is wrong", 61.0),
        Stage("sweep", "ok", "", 12.5),
        Stage("hunt", "incomplete", "the budget was spent <i>", 100.0),
    ]
    return make(rich_kernels(), selftest=tested, stages=stages)


def rich_many(count: int) -> Run:
    """A large run with everything: `count` kernels."""
    templates = rich_kernels()[:2]
    return make(
        [
            _replace(templates[k % 2], name=f"kernel_{k:03d}", target=f"accuracy.py::kernel_{k:03d}")
            for k in range(count)
        ]
    )


def night(peers: int) -> Run:
    """Judged kernels beside many peers, stand-ins among them, no two with the same bits."""
    drawn = random.Random(0)
    kernels = []
    for kernel in rich_many(4 + peers).kernels:
        place = len(kernels)
        results = [
            _replace(
                result,
                worst=[_replace(item, truth=f"-3.{drawn.randrange(10**29)}e-5") for item in result.worst],
                status="ok" if place >= 4 else result.status,
            )
            for result in kernel.results
        ]
        target = kernel.target + ("@eager" if place % 3 == 0 else "")
        kernels.append(_replace(kernel, results=results, target=target, peer=place >= 4))
    return make(kernels)


def classed(result: Result) -> Result:
    """The result with its elements in two classes: the worst are ordinary, the others demanding."""
    if result.source != "run" or result.classes or result.figures.n < 2:
        return result
    half = result.figures.n // 2

    def part(of: Figures, n: int, share: float) -> Figures:
        smaller = {
            name: value * share
            for name in ("max_ulp", "max_upper", "scaled_max", "scaled_upper")
            if isinstance(value := getattr(of, name), float)
        }
        counts = {name: min(getattr(of, name), n) for name in ("misrounded", "undecided", "nonfinite")}
        return _replace(of, n=n, **counts, **(smaller if share < 1 else {}))

    beyond = result.status == "wrong" and result.worst and not result.reason.startswith("wrong at")
    reason = (result.reason or "beyond the limit") if beyond else ""
    worst = next(iter(result.worst), None)
    theirs = result.baseline
    return _replace(
        result,
        classes=[
            ClassFigures(
                "ordinary",
                part(result.figures, result.figures.n - half, 1.0),
                result.limit,
                theirs and part(theirs, result.figures.n - half, 1.0),
                worst,
                reason,
            ),
            ClassFigures(
                "demanding",
                part(result.figures, half, 0.5) if not reason else part(result.figures, half, 1e-3),
                result.limit,
                theirs and part(theirs, half, 0.5),
            ),
        ],
    )


def make(kernels: list[KernelRun], **changes: object) -> Run:
    base = Run(
        schema=SCHEMA,
        id="3f9ac07be215",
        created="2026-07-28T09:14:03Z",
        command="verify run accuracy.py --profile default",
        backend="cuda",
        seed=0,
        profile="default",
        environment=ENVIRONMENT,
        kernels=[_replace(kernel, results=[classed(result) for result in kernel.results]) for kernel in kernels],
        seconds=212.7,
    )
    run: Run = _replace(base, **changes)
    return run


@functools.cache
def sample() -> Run:
    """Everything at once: a failing run."""
    return make(
        [
            good_kernel(),
            eager_kernel(),
            peer_kernel(),
            nan_kernel(),
            layer_norm_kernel(),
            long_kernel(),
            hostile_kernel(),
            *failures(),
        ],
        incomplete=[Gap("out of time", "layer_norm float64: the time budget of 200 s ended before its turn")],
    )


@functools.cache
def plain() -> Run:
    """What most runs look like: short names, one thing wrong."""
    return make([good_kernel(), eager_kernel(), nan_kernel()])


@functools.cache
def passing() -> Run:
    return make([good_kernel()])


@functools.cache
def incomplete() -> Run:
    """Nothing wrong, and something did not happen."""
    skipped = [kernel for kernel in failures() if kernel.status == "skipped"]
    return make([good_kernel(), *skipped], incomplete=sample().incomplete)


def empty() -> Run:
    return make([])


def many(count: int = 20) -> Run:
    """A large run: `count` kernels of two results with ten worst inputs each."""
    templates = [eager_kernel(), nan_kernel(), layer_norm_kernel(), good_kernel()]
    kernels = [
        _replace(
            templates[k % len(templates)],
            name=f"kernel_{k:02d}",
            target=f"accuracy.py::kernel_{k:02d}",
        )
        for k in range(count)
    ]
    return make(kernels)


if __name__ == "__main__":
    from pathlib import Path

    from verify.records.files import save

    save(sample(), Path("sample.json"))
    print(dataclasses.is_dataclass(sample()), len(sample().kernels))
