"""A run as the reports meet it: good, wrong, NaN, raising, crashing, hanging, skipped, hostile.

Worst inputs are true: inputs and truth come from mpmath, `got` is what the described bug returns
there. Counts and the figures of regimes are made up, in the proportions measured on real kernels.
"""

from __future__ import annotations

import functools
import json
import math
import random
import struct

import mpmath
import msgspec

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
    LawRun,
    Number,
    Origin,
    RegimeFigures,
    Result,
    Run,
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
    *error: Number,
) -> Worst:
    """A worst input with its error in ULP and, where there is one, its scaled error."""
    case = json.dumps({"dims": [65536], "dtype": dtype, "layout": "contiguous", "seed": 0, "values": "all"})
    text = truth if isinstance(truth, str) else mpmath.nstr(truth, 30)
    ulp, scaled = (*error, None)[:2]
    return Worst(index, inputs, *got, text, ulp, scaled, Origin(target, case, "y", index[-1] if index else 0))  # type: ignore[arg-type]


def worst_bf16(target: str, bits: int, got: tuple[str, str], error: Number) -> Worst:
    """An input of GELU in bfloat16, by its pattern."""
    return worst(target, "bfloat16", (bits,), {"x": f"{bf16(bits)!r} (0x{bits:04x})"}, got, gelu(bf16(bits)), error)


@functools.cache
def _tail() -> list[tuple[float, int]]:
    """The ten largest errors of the tail, each with its input's bits."""
    truths = [(bits, gelu(bf16(bits))) for bits in range(0xC0C0, 0xC156)]
    found = [(in_ulps(-truth, truth), bits) for bits, truth in truths]
    return sorted(found, key=lambda item: (-abs(item[0]), item[1]))[:10]


def tail_of_eager(target: str) -> list[Worst]:
    """x * 0.5 * (1 + erf) returns -0 where 1 + erf has cancelled: every leading digit is lost."""
    return [worst_bf16(target, bits, ("-0.0", "0x8000"), error) for error, bits in _tail()]


def figures(
    n: int,
    maximum: Number,
    p999: Number,
    mean: float,
    misrounded: int,
    scaled: tuple[Number, Number, Number] | None = None,
    **more: object,
) -> Figures:
    """Figures with nothing open; `scaled` are the maximum, its upper end and the 99.9th percentile."""
    of_scale = dict(zip(("scaled_max", "scaled_upper", "scaled_p999"), scaled or (), strict=False))
    base = Figures(n, maximum, maximum, p999, mean, misrounded, undecided=0, nonfinite=0)
    return _replace(base, **of_scale, **more)


def _replace(struct_: object, **changes: object):  # type: ignore[no-untyped-def]
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


ENDS: tuple[Number, ...] = ("-inf", -13.0, -5.25, -0.5, 0.5, "inf")
REGIMES = ("deep tail", "negative tail", "slope zero", "around zero", "positive")


def gelu_regimes(ours: list[Figures], eager: list[Figures]) -> list[RegimeFigures]:
    rows = zip(REGIMES, ENDS[:-1], ENDS[1:], ours, eager, strict=True)
    return [RegimeFigures(*row) for row in rows]


def _parts(maxima: list[Number], misrounded: list[int], n: int = 65_536) -> list[Figures]:
    return [
        figures(n // 5 + (0 if at else n % 5), top, top if isinstance(top, str) else top * 0.8, 0.25, bad)
        for at, (top, bad) in enumerate(zip(maxima, misrounded, strict=True))
    ]


def result(dtype: str, status: str, of: Figures, **more: object) -> Result:
    """A result of GELU on all inputs of 16 bits, unless `more` says otherwise."""
    said: dict[str, object] = {
        "output": "y", "basis": EVERY_BF16, "gate": "plain", "limit": 4.0, "certificate": "gelu-erf-1",
        "regimes": [], "baseline_name": "torch.nn.functional.gelu",
    }  # fmt: skip
    return Result(dtype=dtype, status=status, figures=of, **said | more)  # type: ignore[arg-type]


def kernel(name: str, status: str, promise: str, results: list[Result], seconds: float, **more: object) -> KernelRun:
    said: dict[str, object] = {"target": f"accuracy.py::{name}", "op": "gelu", "params": {"approximate": "none"}}
    given = said | more
    return KernelRun(name=name, status=status, promise=promise, results=results, seconds=seconds, **given)  # type: ignore[arg-type]


def good_kernel() -> KernelRun:
    y = result(
        "bfloat16",
        "ok",
        figures(65_536, 0.49987, 0.4991, 0.2498, 0),
        regimes=gelu_regimes(
            _parts([0.4998, 0.49987, 0.49975, 0.4999, 0.4996], [0] * 5),
            _parts([0.5, 254.871, 12.4, 0.51, 0.501], [0, 6800, 2100, 120, 100]),
        ),
        histogram=histogram(65_536, -1),
        worst=[worst_bf16("accuracy.py::gelu_erf", 0xBF2B, ("-0.1689453125", "0xbe2d"), 0.49987)],
        escalated=212,
        baseline=figures(65_536, 254.871, 121.5, 0.61, 9_120),
        baseline_worst=[item for item in tail_of_eager("torch::gelu") if abs(float(item.ulp)) < 254.871][:3],
    )
    f32 = _replace(
        y,
        dtype="float32",
        basis=EVERY_F32,
        figures=figures(1 << 32, 0.8123, 0.6, 0.27, 73_014_444_032 // 100, max_upper=0.8131),
        regimes=[],
        histogram=histogram(1 << 32, 0),
        baseline=figures(1 << 32, 1.6777e7, 3.1e5, 1_711.0, 1_900_000_000),
        escalated=1_841,
    )
    dx = _replace(y, output="dx", figures=figures(65_536, 0.5, 0.4995, 0.251, 0), regimes=[])
    promise = "float32, float16, bfloat16; any layout; gradient of x"
    notes = ["subnormal outputs are kept: no flush to zero was seen"]
    return kernel("gelu_erf", "ok", promise, [y, dx, f32], 3.412, notes=notes)


def eager_kernel() -> KernelRun:
    rows = tail_of_eager("accuracy.py::eager_gelu")
    top = abs(float(rows[0].ulp))
    table = _parts([0.5, top, 12.4, 0.51, 0.501], [0, 6800, 2100, 120, 100])
    y = result(
        "bfloat16",
        "wrong",
        figures(65_536, top, 121.5, 0.61, 9_120),
        regimes=gelu_regimes(table, table),
        histogram=histogram(65_536, 8, lean=0.4, decay=0.55),
        worst=rows,
        escalated=3,
        baseline=figures(65_536, top, 121.5, 0.61, 9_120),
    )
    half = figures(65_536, 2.2479, 1.02, 0.262, 1_420)
    changes = {"regimes": [], "worst": [], "histogram": histogram(65_536, 2, lean=0.8), "baseline": half}
    results = [y, _replace(y, dtype="float16", status="ok", figures=half, **changes)]
    return kernel("eager_gelu", "wrong", "float16, bfloat16; any layout", results, 1.08)


def peer_kernel() -> KernelRun:
    """PyTorch's own kernel beside ours: shown, never judged."""
    eager = eager_kernel()
    results = [_replace(each, baseline=None, baseline_name="", worst=each.worst[:2]) for each in eager.results]
    name = "torch_compiled"
    changed: KernelRun = _replace(eager, name=name, target=f"accuracy.py::{name}", peer=True, results=results)
    return changed


def nan_kernel() -> KernelRun:
    name = "exp_tanh_gelu"
    y = result(
        "bfloat16",
        "wrong",
        figures(65_536, "nan", "inf", 15_967.3, 24_115, nonfinite=15_967),
        regimes=gelu_regimes(
            [
                *_parts([0.5, 201.3, 12.4, 0.51], [0, 4100, 2100, 120]),
                figures(13_107, "nan", "inf", 9_000.0, 13_000, nonfinite=13_000),
            ],
            _parts([0.5, 255.7, 9.0, 0.51, 0.501], [0, 6800, 2100, 120, 100]),
        ),
        histogram=histogram(65_536, 8, lean=0.4, decay=0.5),
        worst=[worst_bf16(f"accuracy.py::{name}", bits, ("nan", "0x7fc0"), "inf") for bits in range(0x4131, 0x413B)],
        escalated=0,
        certificate="exact",
        baseline=figures(65_536, 255.7, 130.0, 0.7, 9_300),
    )
    return kernel(name, "wrong", "bfloat16; contiguous", [y], 0.81, params={"approximate": "tanh"})


def layer_norm_kernel() -> KernelRun:
    """Scaled gates: the plain error of a cancelling sum means little."""
    target = "accuracy.py::layer_norm"
    regimes = [
        RegimeFigures(
            name,
            None,
            None,
            figures(524_288 if name == "randn" else 131_072, plain, plain / 3, 0.4, 900, (top, top, 0.5)),
            figures(131_072, plain * 9, plain, 3.0, 9_000, (bad, bad, 1.0)),
        )
        for name, plain, top, bad in (
            ("randn", 311.0, 0.74, 1.31),
            ("mean 1e4", 2_048.0, 0.91, 1.02e7),
            ("constant row", 4.0, 0.88, 2.1e8),
            ("tiny 1e-20", 12.0, 0.61, 0.93),
            ("huge 1e30", 77.0, 0.95, 1.7e7),
        )
    ]
    inputs = {"x": "10000.0009765625 (0x461c4001)", "weight": "0.98 (0x3f7ae148)", "row mean": "10000.0000128"}
    got, truth = ("-1.3709e-05", "0xb7660000"), "-1.37091839275810297144871937451e-05"
    y = result(
        "float32",
        "ok",
        figures(1_048_576, 2_048.0, 96.0, 0.61, 181_440, (0.949, 0.952, 0.71)),
        basis=SEEN,
        gate="scaled",
        limit=2.0,
        regimes=regimes,
        histogram=histogram(1_048_576, 11, decay=0.45),
        worst=[worst(target, "float32", (17, 3051), inputs, got, truth, 2_048.0, 0.949)],
        escalated=40,
        certificate="layer_norm-1",
        baseline=figures(1_048_576, 9.9e8, 3e7, 60_000.0, 1_000_000, (2.1e8, 2.1e8, 1e7)),
        baseline_name="torch.nn.functional.layer_norm",
    )
    inputs = {"weight": "1.0 (0x3f800000)", "rows": "1,024 elements of dy and x", "x": "1000.25 (0x447a1000)"}
    got, truth = ("12.25", "0x41440000"), "12.2497940063476562500000000001"
    dw = _replace(
        y,
        output="dweight",
        status="wrong",
        figures=figures(4_096, 216.0, 71.0, 2.2, 3_004, (5.5, 5.5, 3.1)),
        basis=Basis("observed", 4_096, 0),
        regimes=[],
        histogram=histogram(4_096, 8, decay=0.6, lean=0.9),
        worst=[worst(target, "float32", (row,), inputs, got, truth, 216.0, 5.5 - row / 8) for row in range(4)],
        baseline=figures(4_096, 9_000.0, 812.0, 30.0, 4_000, (1021.5, 1021.5, 99.0)),
    )
    more = {"op": "layer_norm", "params": {"eps": 1e-05}, "notes": ["row moments are judged in double-double"]}
    promise = "float32; rows contiguous; gradients of x, weight and bias"
    return kernel("layer_norm", "wrong", promise, [y, dw], 12.9, **more)


def long_kernel() -> KernelRun:
    only = _replace(
        good_kernel().results[0],
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
    params = {"approximate": "tanh", "dropout": 0.0, "bias": True}
    more = {"target": f"acme.accuracy::{LONG_NAME}", "op": "gelu_with_a_long_op_name", "params": params}
    return kernel(LONG_NAME, "ok", "bfloat16; contiguous", [only], 72.4, **more)


def hostile_kernel() -> KernelRun:
    target = f"evil.py::{HOSTILE_NAME}"
    inputs, got = {"x<b>": "1.0 (0x3f80) | <i>\n"}, ("</td><script>", "`0x0`")
    only = _replace(
        nan_kernel().results[0],
        figures=figures(65_536, 3e5, 20.0, 2.0, 800),
        regimes=[RegimeFigures("<b>|regime`", None, None, figures(65_536, 3e5, 1.0, 1.0, 1), None)],
        histogram=histogram(65_536, 19, decay=0.5),
        worst=[worst(target, "bfloat16", (0,), inputs, got, "[red]1[/red]", 3e5)],
        baseline=None,
        baseline_name="",
    )
    more = {"target": target, "op": "<op>", "params": {"<p>": "</script>"}, "notes": ["<b>note</b> @octocat"]}
    return kernel(HOSTILE_NAME, "wrong", "<u>everything</u>", [only], 0.5, **more)


FAILURES = (
    (
        "geglu_packed",
        "error",
        "geglu_packed returned shape (128, 64); geglu wants (128, 128) for x of shape (128, 256)",
        "return x1 * gelu(x2) without slicing it again",
    ),
    ("geglu_raises", "error", HOSTILE_MESSAGE, ""),
    (
        "geglu_unsafe",
        "crashed",
        "the worker died with SIGSEGV while running dims [65537], dtype bfloat16",
        "verify run accuracy.py::geglu_unsafe --dims 65537",
    ),
    ("geglu_slow", "timeout", "no result after 120 s; the worker was stopped", "verify run --timeout 600"),
    ("geglu_cuda", "skipped", "needs a CUDA device; this run used the interpreter", "verify doctor"),
)


def failures() -> list[KernelRun]:
    """One kernel of each status that has no figures."""
    return [
        kernel(name, status, "bfloat16", [], 0.2, op="geglu", params={}, message=message, hint=hint)
        for name, status, message, hint in FAILURES
    ]


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
    """A nightly run: laws, speed and stages."""
    stages = [
        Stage("run", "wrong", "1 kernel is wrong", 61.0),
        Stage("sweep", "ok", "", 12.5),
        Stage("hunt", "incomplete", "the budget was spent <i>", 100.0),
    ]
    return make(rich_kernels(), stages=stages)


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
        _replace(templates[k % len(templates)], name=f"kernel_{k:02d}", target=f"accuracy.py::kernel_{k:02d}")
        for k in range(count)
    ]
    return make(kernels)
