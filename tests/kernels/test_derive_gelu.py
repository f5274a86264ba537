"""kernels/derive/gelu.py reproduces every constant in the kernels, which tests of the kernels find right."""

from __future__ import annotations

import hashlib

import pytest

from kernels.derive import gelu as derive

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
