"""FP8 kernels in Triton: the interpreter and an H200 give the same bits, by digests of them."""

from __future__ import annotations

import hashlib

import pytest
import torch

from examples.fp8_triton import fp8_tokens, product
from verify.backends import Backend

# The interpreter's. The same tests compare a GPU with them where there is one.
PRODUCT = "0b1fa38e7590f724"
TOKENS = {torch.bfloat16: "ff9387408ff65991", torch.float32: "511d05aa3d8e6575"}


def digest(*tensors: torch.Tensor) -> str:
    """The first 16 digits of SHA-256 of the bytes."""
    found = hashlib.sha256()
    for each in tensors:
        found.update(each.cpu().contiguous().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()[:16]


def integers(count: int, seed: int) -> torch.Tensor:
    """Integers from 0 to 65,535 that are the same on every machine."""
    place = torch.arange(count) + seed * 1_000_003
    mixed = place * 2_654_435_761 % 4_294_967_291
    return (mixed * 40_503 % 4_294_967_291) >> 8 & 0xFFFF


def operands() -> list[torch.Tensor]:
    """FP8 codes of all exponents, NaN apart, and scales from 2^-6 to 4."""
    found = []
    for rows, seed in ((96, 1), (160, 2)):
        codes = integers(rows * 384, seed) % 254
        codes = codes + (codes >= 127)  # 7f is NaN, and so is ff
        found.append(codes.to(torch.uint8).view(torch.float8_e4m3fn).reshape(rows, 384))
        shape = (rows, 3) if seed == 1 else (2, 3)
        scales = 1 + integers(shape[0] * shape[1], seed + 2).double() / 65536
        found.append((scales * 2.0 ** -(torch.arange(scales.numel()) % 7)).float().reshape(shape))
    return found


def tokens(dtype: torch.dtype) -> torch.Tensor:
    """Numbers of magnitudes from 2^-20 to 2^20, with a block of zeros."""
    size = integers(64 * 512, 5).double() / 32768 - 1
    x = (size * torch.exp2((integers(64 * 512, 6) % 41 - 20).double())).reshape(64, 512)
    x[3, 128:256] = 0
    return x.to(dtype)


def test_a_product_has_the_bits_of_its_digest(backend: Backend) -> None:
    assert digest(product(*(each.to(backend.device) for each in operands()))) == PRODUCT


@pytest.mark.parametrize("dtype", TOKENS, ids=str)
def test_a_quantiser_has_the_bits_of_its_digest(dtype: torch.dtype, backend: Backend) -> None:
    assert digest(*fp8_tokens(tokens(dtype).to(backend.device))) == TOKENS[dtype]
