"""What codes and scales of operands mean, and how they lie in memory, against the decoder of quantisers."""

from __future__ import annotations

import math

import pytest
import torch

from verify.ops.graph.shapes import NamedDims
from verify.truth.quantised import Parts, Value, judge, quantised
from verify.truth.quantised.causes import misread
from verify.truth.quantised.encoding import FLOATS
from verify.truth.quantised.operands import drawn, laid, meant, shapes_of, tiled

ENCODINGS = [
    quantised("e4m3", block=(1, 32), scale="e8m0"),
    quantised("e5m2", block=(2, 16), scale="e8m0", rule="rceil"),
    quantised("e2m3", block=(1, 32), scale="e8m0", rule="even"),
    quantised("e2m1", block=(1, 16), scale="e4m3", second="float32", packed="low first", swizzle="128x4"),
    quantised("e2m1", block=(1, 32), scale="e8m0", packed="high first"),
    quantised("e4m3", block=(128, 128), scale="float32"),
    quantised("e4m3fnuz", block=(1, 0), scale="float32"),
    quantised("int8", block=(0, 0), scale="float32"),
    quantised("int4", block=(1, 32), scale="float16", packed="low first"),
    quantised("int4", block=(32, 1), scale="bfloat16"),
    quantised("uint4", block=(1, 32), scale="float16", zero_point="uint4", packed="low first"),
    quantised("uint4", block=(1, 32), scale="bfloat16", zero_point="bfloat16", packed="high first"),
    quantised("int8", block=(1, 0), scale="float32", zero_point="int8"),
    quantised("int4", block=(32, 1), scale="float16", packed="low first by rows"),
    quantised("uint4", block=(16, 2), scale="bfloat16", zero_point="float32", packed="high first by rows"),
]


def numbers(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def parts_of(encoding, made):
    return Parts(**{name: laid(encoding, name, made[name].to(kind_of(encoding, name))) for name in encoding.names})


def kind_of(encoding, name):
    """The dtype in which a case holds a part."""
    kind = {"scales": encoding.scale, "zeros": encoding.zero_point, "second": encoding.second}.get(name, "")
    return FLOATS.get(kind, torch.int64)


@pytest.mark.parametrize("encoding", ENCODINGS, ids=lambda encoding: encoding.words)
def test_what_is_laid_out_decodes_to_what_is_meant(encoding) -> None:
    """Two routes: the steps of the program, and the decoder of a quantiser's bytes."""
    for rows, columns in (
        (4 if encoding.packing is not None and encoding.packing.axis == -2 else 3, 64),
        (130, 160),
        (64, 32),
    ):
        made = drawn(encoding, numbers(rows, columns))
        held = {name: value.to(kind_of(encoding, name)) for name, value in made.items()}
        assert torch.equal(encoding.decode(parts_of(encoding, made), (rows, columns)), meant(encoding, held))


@pytest.mark.parametrize(
    "encoding",
    [each for each in ENCODINGS if each.zero_point or "int" not in each.data.name],
    ids=lambda encoding: encoding.words,
)
def test_numbers_are_quantised_as_the_judge_of_quantisers_wants_it(encoding) -> None:
    x = numbers(64, 160) * 2.0**-3
    found = judge(encoding, Value.of(x), parts_of(encoding, drawn(encoding, x)))
    assert found.wrong == 0 and found.counts["right"] > 0, found.words


def test_integers_reach_their_lowest_code_and_floats_minus_zero() -> None:
    for encoding in ENCODINGS[7:10]:
        made = drawn(encoding, numbers(64, 64) if encoding.block != (0, 0) else -numbers(64, 64).abs())
        lowest = int(min(encoding.data.numbers)) % (1 << encoding.data.bits)
        assert encoding.block == (0, 0) or bool((made["codes"] == lowest).any()), encoding.words
    codes = drawn(ENCODINGS[3], numbers(16, 64))["codes"]
    assert bool((codes == 8).any()), "-0 of e2m1"


def test_numbers_that_are_not_finite_become_nan_where_there_is_one() -> None:
    x = numbers(2, 32)
    x[0, 3], x[1, 5] = math.nan, math.inf
    made = drawn(ENCODINGS[0], x)
    assert torch.isnan(meant(ENCODINGS[0], made)).sum() == 2
    assert meant(ENCODINGS[4], drawn(ENCODINGS[4], x))[0, 3] == 0


def test_each_matrix_of_a_stack_is_quantised_by_itself() -> None:
    for encoding in (ENCODINGS[3], ENCODINGS[5]):
        x = numbers(3, 130, 160)
        whole = drawn(encoding, x)
        alone = [drawn(encoding, each) for each in x]
        for name in encoding.names:
            assert torch.equal(whole[name], torch.stack([each[name] for each in alone]))
        assert torch.equal(meant(encoding, whole), torch.stack([meant(encoding, each) for each in alone]))
    assert torch.equal(drawn(ENCODINGS[6], x[0, 0])["codes"], drawn(ENCODINGS[6], x[0, :1])["codes"][0])


@pytest.mark.parametrize("encoding", ENCODINGS, ids=lambda encoding: encoding.words)
def test_shapes_in_named_dimensions_are_those_of_the_parts(encoding) -> None:
    for tokens, shape in (("n k", (130, 160)), ("e n k", (2, 130, 160))):
        texts = {"w": tokens} | shapes_of(encoding, tuple(tokens.split()))
        named = NamedDims.made(list(texts), {}, texts, [], "")
        assert named is not None
        for name, found in named(shape).items():
            if name != "w":
                assert found == tuple(drawn(encoding, numbers(*shape))[name].shape), name


def test_the_padding_of_tiles_is_nan() -> None:
    line = tiled(torch.zeros(1, 2, dtype=torch.int64), 255)
    assert line.shape == (512,) and int((line == 255).sum()) == 510
    assert torch.isnan(laid(ENCODINGS[3], "scales", torch.zeros(1, 2, dtype=torch.int64)).float()).sum() == 510


@pytest.mark.parametrize("encoding", ENCODINGS, ids=lambda encoding: encoding.words)
def test_every_mistake_changes_the_numbers(encoding) -> None:
    made = drawn(encoding, numbers(130, 160))
    right, words = meant(encoding, made), []
    for text, parts, other in misread(encoding, made):
        assert not torch.equal(meant(other, parts), right), text
        words.append(text)
    assert len(set(words)) == len(words) > 0
    assert any("swapped" in text for text in words) == bool(encoding.packed)
    assert any("tiles" in text for text in words) == bool(encoding.swizzle)
