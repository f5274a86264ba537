"""SageAttention 1.0.6: attention with queries and keys in INT8. It asks for a GPU.

pip install --no-deps sageattention==1.0.6
verify run examples/public/sage.py
"""

from __future__ import annotations

import functools

from torch.nn import functional

import verify

theirs = functools.partial(
    verify.kernel, requires="sageattention", gradients=False, layouts="contiguous", backends=["cuda"]
)
attention = functools.partial(
    theirs,
    like=functional.scaled_dot_product_attention,
    shapes={"query": "b h s 64", "key": "b h t 64", "value": "b h t 64"},
    dtypes=["float16", "bfloat16"],
    max_noise=300,  # INT8 has 7 bits
    vacuous={"y": "INT8 scores"},
)


@attention()
def sageattn(query, key, value):
    """As it is by default: it subtracts the mean from the caller's keys."""
    from sageattention import sageattn

    return sageattn(query, key, value)


@attention()
def sageattn_rough(query, key, value):
    """Without the mean. Keys beyond the end have a score of 0, and are not masked."""
    from sageattention import sageattn

    return sageattn(query, key, value, smooth_k=False)


@theirs(
    quantise=verify.quantised("int8", block=(64, 0), scale="float32", ties="away", nan="any"),
    where="k in (64, 128)",
    dtypes=["float16", "float32"],
)
def per_block_int8(x):
    """INT8 with a scale for 64 keys."""
    from sageattention.quant_per_block import per_block_int8

    _, _, codes, scales = per_block_int8(x[None, None], x[None, None])
    return codes[0, 0], scales[0, 0]
