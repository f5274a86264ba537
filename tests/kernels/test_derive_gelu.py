"""kernels/derive/gelu.py: it reproduces every constant in the kernels, and the constants approximate what they say."""

from __future__ import annotations

import hashlib

import pytest
from flint import arb, ctx

from kernels import geglu
from kernels import gelu_math as kernel
from kernels.derive import gelu as derive


@pytest.fixture(autouse=True)
def _precision():
    old, ctx.prec = ctx.prec, 400
    yield
    ctx.prec = old


# (file, block, comment sign) -> digest of the block that the derivation writes, which takes 10 to 30 s to run
DIGESTS = {
    ("gelu_math.py", "constants", "#"): "998ba02a3296b5aa",
    ("geglu.py", "constants", "#"): "a67d2ecd046e77b5",
    ("gelu.cu", "constants", "//"): "40c4794e549f7fce",
}


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]


@pytest.mark.parametrize("block", DIGESTS, ids=lambda block: f"{block[0]}: {block[1]}")
def test_no_constant_was_edited_since_it_was_derived(block):
    """The quick half: an edit by hand shows here, and that the digests are the derivation's in the slow test."""
    file, name, comment = block
    text = (derive.ROOT / file).read_text()
    start, end = derive.marked(text, name, comment)
    assert digest(text[start:end]) == DIGESTS[block], f"{file}: python -m kernels.derive.gelu --check"


@pytest.mark.slow
def test_files_hold_exactly_what_is_derived():
    derived = derive.wanted()
    assert {(path.name, name, comment): digest(want) for path, name, comment, want in derived} == DIGESTS
    for path, name, comment, want in derived:
        text = path.read_text()
        start, end = derive.marked(text, name, comment)
        assert text[start:end] == want, f"{path.name}: python -m kernels.derive.gelu --write"


def mills(u: arb) -> arb:
    return (u / arb(2).sqrt()).erfc() / 2 * (u * u / 2).exp()


def erf_slope(u: arb) -> arb:
    zero = arb("0.751791524693564457457904947376037")
    return (mills(u) - u / (2 * arb.pi()).sqrt()) / (zero - u)


def exp2(f: arb) -> arb:
    return arb(2) ** f


def exp2_curve(f: arb) -> arb:
    return (arb(2) ** f - 1 - f * arb(2).log()) / (f * f)


def exp_tail(r: arb) -> arb:
    return (r.exp() - 1 - r) / (r * r)


def root(t: arb) -> arb:
    u = (t + 1) / arb(kernel.ROOT_SCALE.value)
    return ((u / arb(2).sqrt()).erfc() / 2).root(128)


def half_root(t: arb) -> arb:
    u = (t + 1) / arb(kernel.HALF_ROOT_SCALE.value)
    return ((u / arb(2).sqrt()).erfc() / 2).root(4)


def polynomial(coefs, v: arb) -> arb:
    total = arb(0)
    for c in reversed(coefs):
        total = total * v + arb(c)
    return total


def worst_error(function, num, den, lo: float, hi: float) -> float:
    """Largest relative error over 300 points that the derivation does not use."""
    points = [lo + (hi - lo) * (i + 0.37) / 300 for i in range(300)]
    error = 0.0
    for p in points:
        v = arb(p)
        error = max(error, abs(float(polynomial(num, v) / polynomial(den, v) / function(v) - 1)))
    return error


CASES = {
    # name: function, numerator, denominator, range, bound on the relative error
    "mills": (mills, "MILLS_NUM", "MILLS_DEN", 0, 24, 2**-26.2),
    "slope": (erf_slope, "SLOPE_NUM", "SLOPE_DEN", 0, 24, 2**-25.9),
    "root": (root, "ROOT", None, -1, 1, 2**-33.6),
    "float16 root": (half_root, "HALF_ROOT", None, -1, 0.46, 2**-20.4),  # beyond, the result is subnormal
    "slope over the denominator of mills": (erf_slope, "MILLS_SLOPE_NUM", "MILLS_DEN", 0, 24, 2**-25.8),
    "curve of 2^f": (exp2_curve, "EXP2_CURVE", None, -0.5, 0.5, 2**-23.9),
    "2^f, 6": (exp2, "EXP2_6", None, -0.5, 0.5, 2**-29.0),
    "2^f, 11": (exp2, "EXP2_11", None, -0.5, 0.5, 2**-53),
    "exp tail": (exp_tail, "EXP_TAIL64", None, -0.3466, 0.3466, 2**-52),
    "bfloat16 mills": (mills, "BF_MILLS_NUM", "BF_MILLS_DEN", 0, 19.4, 2**-20.5),
    "bfloat16 slope over mills": (erf_slope, "BF_MILLS_SLOPE_NUM", "BF_MILLS_DEN", 0, 23.75, 2**-19.5),
    "bfloat16 slope": (erf_slope, "BF_SLOPE_NUM", "BF_SLOPE_DEN", 0, 19.4, 2**-20),
}


def coefficients(name: str) -> tuple[float, ...]:
    """A constant of gelu_math.py or geglu.py; the root's polynomial is held in two parts."""
    if name == "ROOT":
        return (*kernel.ROOT_LOW.value, *kernel.ROOT_HIGH.value)
    return getattr(kernel if hasattr(kernel, name) else geglu, name).value


@pytest.mark.parametrize("case", CASES)
def test_approximations_are_as_good_as_the_kernels_assume(case):
    function, num, den, lo, hi, bound = CASES[case]
    num = coefficients(num)
    den = coefficients(den) if den else (1.0,)
    assert worst_error(function, num, den, lo, hi) <= bound
    # the check can fail: one coefficient off by four times the bound is noticed
    wrong = (num[0] * (1 + 4 * max(bound, 2**-50)), *num[1:])
    assert worst_error(function, wrong, den, lo, hi) > bound


def test_float64_polynomials():
    tau = arb(0)
    for name, low, function, scaled in (
        ("MILLS64", "MILLS64_LO", mills, True),
        ("SLOPE64", "SLOPE64_LO", erf_slope, False),
    ):
        coefs = getattr(kernel, name).value
        for i in range(200):
            u = arb(40 * ((i + 0.41) / 200) ** 2)
            t = 1 / (u + 3)
            tau = t - arb(0.1)
            got = polynomial(coefs, tau) + arb(getattr(kernel, low).value)
            want = function(u) * (u + 3) if scaled else function(u)
            assert abs(float(got / want - 1)) < 2**-54
