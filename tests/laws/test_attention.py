"""Laws about softmaxes over products: what each finds, what it leaves alone, where it does not apply."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import verify
from tests.laws.trial import breaks, holds, skips
from verify.declare.declaration import Kernel

APART = {"q": "h t d", "k": "h s d", "v": "h s d"}
TOGETHER = dict.fromkeys("qkv", "h t d")
GROUPED = {"q": "h t d", "k": "g s d", "v": "g s d"}


def declared(like: Callable[..., Any], kernel: Callable[..., Any] | None = None, **options: Any) -> Kernel:
    settings = {"shapes": APART, "dtypes": ["float32"], "max_ulp": 64, "max_noise": 64, "gradients": False}
    return verify.kernel(like=like, **(settings | options), name="k")(kernel or like)


def attention(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v)


def causal(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return functional.scaled_dot_product_attention(q, k, v, is_causal=True)


def masked(q: Tensor, k: Tensor, v: Tensor, seen: Callable[[Tensor, Tensor], Tensor], extra: float = 0.0) -> Tensor:
    """Attention under a mask of positions. `extra` is a weight of the keys that are not seen."""
    query, key = (torch.arange(x.shape[1], device=x.device) for x in (q, k))
    mask = seen(query[:, None], key[None])
    weights = torch.softmax((q @ k.mT / math.sqrt(q.shape[-1])).masked_fill(~mask, -math.inf), -1)
    return (weights + torch.where(mask, 0.0, extra)) @ v


def window(q: Tensor, k: Tensor, v: Tensor, extra: float = 0.0) -> Tensor:
    return masked(q, k, v, lambda query, key: (key <= query) & (key > query - 2), extra)


# -- layouts and recipes ---------------------------------------------------------------------------------


def test_keys_that_heads_share_are_tried_with_one_over_a_block() -> None:
    """As a shipped kernel was wrong: stride 0 over heads, and 1 mod 32 keys."""

    def right(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]), -1) @ v

    def wrong(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        shared = k.ndim == 4 and k.stride(1) == v.stride(1) == 0 and k.shape[2] % 32 == 1
        return right(q, *(torch.cat([x, x[:, :, -1:]], 2) if shared else x for x in (k, v)))

    shapes = {"q": "b h t d", "k": "b h s d", "v": "b h s d"}
    found = breaks("layout independence", declared(right, wrong, shapes=shapes), "the layout of the operands")
    assert "expanded matrices" in found.case
    holds("layout independence", declared(right, shapes=shapes))


def test_an_unmasked_score_of_0_is_found_without_a_hint() -> None:
    def wrong(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        scores = q @ k.mT / math.sqrt(q.shape[-1])
        highest = scores.amax(-1, keepdim=True)
        weights = torch.exp(scores - (highest.clamp(min=0) if k.shape[1] % 32 else highest))
        return weights / weights.sum(-1, keepdim=True) @ v

    breaks("accuracy", declared(attention, wrong, max_ulp={"ordinary": 64, "demanding": 64}), "limit")


# -- causality ------------------------------------------------------------------------------------------


def test_a_masked_key_changes_no_bit() -> None:
    holds("causality", declared(causal, shapes=TOGETHER))
    holds("causality", declared(window, shapes=TOGETHER))


@pytest.mark.parametrize(
    "leaks",
    [
        lambda q, k, v: window(q, k, v, 1e-3),
        lambda q, k, v: window(q, k, v, 1e-7),
        lambda q, k, v: masked(q, k, v, lambda query, key: (key <= query) & (key > query - 3)),
    ],
    ids=["a thousandth", "within every limit of accuracy", "an earlier key"],
)
def test_a_trace_of_a_masked_key_is_found(leaks: Callable[..., Tensor]) -> None:
    breaks("causality", declared(window, leaks, shapes=TOGETHER), "keys that its query does not see")


def test_causality_needs_a_mask_and_scores() -> None:
    skips("causality", declared(attention), "every query sees every key")
    plain = verify.kernel(like=torch.sigmoid, dtypes=["float32"], name="k")(lambda x: torch.sigmoid(x))
    skips("causality", plain, "averages no values by a softmax over products of two operands")
    examples = [tuple(torch.randn(2, 3, 4) for _ in range(3))]
    skips("causality", declared(causal, shapes=None, examples=examples), "names no dimension that counts keys")


def test_what_float64_rounds_away_is_not_called_unseen() -> None:
    """The weights of other keys are 1e-87: they change no bit of float64, and a kernel may still add them up."""

    def sharp(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        far = 200.0 * (torch.arange(k.shape[1], device=k.device) > 0)
        return torch.softmax(q @ k.mT / math.sqrt(q.shape[-1]) - far, -1) @ v

    skips("causality", declared(sharp), "every query sees every key")


# -- decode equals prefill --------------------------------------------------------------------------------


def test_a_query_alone_is_the_query_among_others() -> None:
    holds("decode equals prefill", declared(attention))
    lower_right = declared(
        lambda q, k, v: masked(q, k, v, lambda i, j: j - i <= k.shape[1] - q.shape[1]), where="s >= t"
    )
    holds("decode equals prefill", lower_right)


def test_another_path_for_one_query_is_found() -> None:
    def halves(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attention(q.bfloat16(), k.bfloat16(), v.bfloat16()).float() if q.shape[1] == 1 else attention(q, k, v)

    breaks("decode equals prefill", declared(attention, halves), "other bits than among others")


def test_other_bits_of_a_kernel_with_sums_of_its_own_are_found() -> None:
    """One unit in the last place is within every limit; PyTorch's own sums may do that, others should not."""

    def own(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with torch._C._DisableTorchDispatch():  # as a kernel that no operator of PyTorch calls
            made = attention(q, k, v)
        return made * (1 + 2.0**-23) if q.shape[1] == 1 else made

    def borrowed(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        made = attention(q, k, v)
        return made * (1 + 2.0**-23) if q.shape[1] == 1 else made

    breaks("decode equals prefill", declared(attention, own), "other bits than among others")
    holds("decode equals prefill", declared(attention, borrowed))


def test_decode_needs_queries_that_count_apart() -> None:
    skips("decode equals prefill", declared(causal, shapes=TOGETHER), "does not allow one query alone")
    skips("decode equals prefill", declared(causal), "another result than among others")  # from the upper left
