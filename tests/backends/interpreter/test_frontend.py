"""verify/backends/interpreter/frontend.py: what Triton's frontend remembers is what it would work out again."""

from __future__ import annotations

import itertools
import types
from typing import Any

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.usefixtures("faithful")
SHAPES = ([1], [8], [1, 8], [8, 1], [4, 8])


def types_and_tensors() -> list[str]:
    """Types, equalities and broadcasts of a few shapes and element types, as text."""
    from triton.language import core
    from triton.runtime import interpreter as triton

    semantic = triton.interpreter_semantic
    elements = [core.float32, core.float16, core.int32, core.int1, core.pointer_type(core.float32)]
    blocks = [core.block_type(element, shape) for element in elements for shape in SHAPES]
    told = []
    for dtype in [*elements, *blocks]:
        sides = dtype.get_block_shapes() if dtype.is_block() else [1]
        data = np.zeros(list(sides), triton._get_np_dtype(dtype))
        value = core.tensor(triton.TensorHandle(data, dtype.scalar), dtype)
        told.append(f"{value} {value.type} {value.dtype} {value.shape} {value.numel} {value.handle.data.dtype}")
        if dtype.is_block():
            told.append(f"{dtype.with_element_ty(core.int64)} {dtype.numel} {dtype.mangle()}")
    told += [f"{a} {b} {a == b}" for a, b in itertools.product([*elements, *blocks], repeat=2)]
    for element, (left, right) in itertools.product(elements[:4], itertools.product([None, *SHAPES], repeat=2)):
        told.append(broadcast(semantic, element, left, right))
    return told


def broadcast(semantic: Any, element: Any, *shapes: list[int] | None) -> str:
    from triton.language import core
    from triton.runtime import interpreter as triton

    values = [
        core.tensor(
            triton.TensorHandle(np.zeros(shape or 1, triton._get_np_dtype(element)), element),
            element if shape is None else core.block_type(element, shape),
        )
        for shape in shapes
    ]
    try:
        return " ".join(f"{v.type} {v.handle.data.shape}" for v in semantic.binary_op_type_checking_impl(*values))
    except ValueError as refused:
        return str(refused)


def test_types_and_broadcasts_are_those_of_triton(request: pytest.FixtureRequest) -> None:
    first, again = types_and_tensors(), types_and_tensors()  # made, and remembered
    request.getfixturevalue("shipped")
    assert types_and_tensors() == first == again


def test_a_size_that_is_no_int_is_refused_after_an_equal_one_too() -> None:
    from triton.language import core

    core.block_type(core.float32, [16])
    with pytest.raises(TypeError, match="Shape element 0 must have type"):
        core.block_type(core.float32, [16.0])


def test_types_of_one_name_and_other_elements_are_kept_apart() -> None:
    from triton.language import core

    pointers = [core.pointer_type(core.float32), core.pointer_type(core.float32, address_space=3)]
    made = [core.block_type(pointer, [4]).element_ty.address_space for pointer in pointers]
    assert made == [1, 3]


def test_nothing_stays_behind(request: pytest.FixtureRequest) -> None:
    from verify.backends.interpreter import frontend

    mended = [(owner, name, getattr(owner, name)) for owner, name, _ in frontend.replacements()]
    request.getfixturevalue("shipped")
    assert mended
    for owner, name, function in mended:
        assert getattr(owner, name) is not function, name


def test_an_integer_sum_wraps_and_is_computed_once(k: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """As shipped each is computed in int64 too, for an assertion that a kernel without `debug` never makes."""
    from triton.runtime import interpreter as triton

    sums = []
    method = triton.InterpreterBuilder.create_add
    monkeypatch.setattr(triton.InterpreterBuilder, "create_add", lambda *a: sums.append(1) or method(*a))
    x = torch.full((4,), 2**31 - 1, dtype=torch.int32)
    out = torch.empty_like(x)
    k.arithmetic[(1,)](x, x, out, N=4, OP="add")
    assert out.tolist() == [-2] * 4
    assert len(sums) == 1
