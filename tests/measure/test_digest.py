"""The digest of result bits: it changes with any bit, and with nothing else."""

from __future__ import annotations

import hashlib
import struct

import pytest
import torch

from verify.measure.digest import Digest
from verify.truth import formats
from verify.truth.ulp import from_bits

NAMES = ("bfloat16", "float16", "float32", "float64")


def digest(*tensors: torch.Tensor, name: str) -> str:
    found = Digest(formats.named(name))
    for tensor in tensors:
        found.add(tensor)
    return found.text


@pytest.mark.parametrize("name", NAMES)
def test_any_changed_bit_shows(name: str) -> None:
    fmt = formats.named(name)
    patterns = torch.tensor([0, 1, 3, 5, 7])
    first = digest(from_bits(patterns, fmt), name=name)
    assert len(first) == 16 and int(first, 16) >= 0
    for place in range(5):
        changed = patterns.clone()
        changed[place] ^= 2
        assert digest(from_bits(changed, fmt), name=name) != first
    assert digest(from_bits(patterns, fmt), name=name) == first


@pytest.mark.parametrize("name", NAMES)
def test_every_nan_counts_as_one_and_zeros_have_a_sign(name: str) -> None:
    fmt = formats.named(name)
    sign = -(1 << 63) if fmt.bits == 64 else fmt.sign_bit
    quiet, other, negative = (
        from_bits(torch.tensor([bits]), fmt) for bits in (fmt.nan_bits, fmt.nan_bits | 1, fmt.nan_bits | sign)
    )
    assert torch.isnan(torch.cat([quiet, other, negative])).all()
    assert len({digest(item, name=name) for item in (quiet, other, negative)}) == 1
    zero = from_bits(torch.tensor([0]), fmt)
    assert digest(zero, name=name) != digest(-zero, name=name) != digest(quiet, name=name)


def test_order_shape_format_and_division_into_cases_count_and_layout_does_not() -> None:
    a, b = torch.tensor([1.0, 2.0]), torch.tensor([3.0, 4.0])
    found = {
        digest(a, b, name="float32"),
        digest(b, a, name="float32"),
        digest(torch.cat([a, b]), name="float32"),
        digest(torch.stack([a, b]), name="float32"),
        digest(a.double(), b.double(), name="float64"),
    }
    assert len(found) == 5
    square = torch.arange(6.0).reshape(2, 3)
    assert digest(square.T.contiguous().T, name="float32") == digest(square, name="float32")


def test_a_known_digest_stays() -> None:
    """Records of years may be compared: the definition must not drift."""
    said = b"float32" + b"(3,)" + struct.pack("<3I", 0x3F800000, 0x80000000, 0x7FC00000)
    wanted = hashlib.sha256(said).hexdigest()[:16]
    assert wanted == "203a15ba26f355c3"
    assert digest(torch.tensor([1.0, -0.0, float("nan")]), name="float32") == wanted
