"""verify/backends/interpreter/frontend.py: what Triton's frontend remembers is what it would work out again."""

from __future__ import annotations

import functools
import gc
import itertools
import types
from typing import Any

import numpy as np
import pytest
import torch

pytestmark = pytest.mark.usefixtures("faithful")
ELEMENTS = ("float64", "float32", "float16", "bfloat16", "int64", "int32", "int8", "uint32", "int1")
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
        told.append(f"{value.type} {value.dtype} {value.shape} {value.numel} {value.handle.data.dtype}")
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


def test_what_equal_types_share_outlives_the_first_of_them() -> None:
    """Python 3.13 cleared it: what lies in the dict that an object is born with is looked for in that object alone."""
    from triton.language import core

    for make in (lambda: core.block_type(core.float32, [64, 2]), lambda: core.pointer_type(core.float32)):
        first = make()
        first.itself = first  # as what is remembered of a type holds the type
        second = make()
        del first
        gc.collect()
        assert second.element_ty is core.float32 and second.itself == second
    assert list(core.block_type(core.float32, [64, 2]).shape) == [64, 2]


def test_types_and_broadcasts_are_those_of_triton(request: pytest.FixtureRequest) -> None:
    first, again = types_and_tensors(), types_and_tensors()  # made, and remembered
    request.getfixturevalue("shipped")
    assert types_and_tensors() == first == again


NUMBERS = (0, 1, True, -1, 7, 2**31, -(2**31), 2**63, 0.0, -0.0, 0.5, 1.0, 1e-40, 1e300, float("inf"), float("nan"))


def told(values: Any) -> str:
    return " ".join(f"{v.type} {v.handle.dtype} {v.handle.data.dtype} {v.handle.data.tolist()}" for v in values)


def numbers_beside_tensors() -> list[str]:
    """Every number left and right of tensors of every type, as arithmetic, as division, and as the error it is."""
    from triton.language import core
    from triton.runtime import interpreter as triton

    pair = triton.interpreter_semantic.binary_op_type_checking_impl
    lines = []
    for name, shape, number in itertools.product(ELEMENTS, ([], [4]), NUMBERS):
        element = getattr(core, name)
        handle = triton.TensorHandle(np.zeros(shape or [1], triton._get_np_dtype(element)), element)
        tensor = core.tensor(handle, core.block_type(element, shape) if shape else element)
        for left, right, division in itertools.product((tensor, number), (tensor, number), (False, True)):
            if left is not right:
                try:
                    lines.append(told(pair(left, right, div_or_mod=division)))
                except (TypeError, ValueError, OverflowError) as refused:
                    lines.append(f"{type(refused)} {refused}")
    return lines


def casts() -> list[str]:
    """Awkward values of every type, scalar and block, cast to every type."""
    from triton.language import core
    from triton.runtime import interpreter as triton

    lines = []
    for source, target, block in itertools.product(ELEMENTS, ELEMENTS, (False, True)):
        element = getattr(core, source)
        dtype = triton._get_np_dtype(element)
        bits = np.arange(8, dtype=np.uint64) * np.uint64(0x1F3D5B79F1357A9D)
        data = bits.view(np.uint8).reshape(-1)[: 8 * dtype.itemsize].view(dtype)
        data = (data.view(np.uint8) % 2 == 1) if source == "int1" else data[: 8 if block else 1]
        handle = triton.TensorHandle(data, element)
        value = core.tensor(handle, core.block_type(element, [8]) if block else element)
        lines.append(f"{source} {target} {told([triton.interpreter_semantic.cast(value, getattr(core, target))])}")
    return lines


@pytest.mark.parametrize("work", [numbers_beside_tensors, casts])
def test_what_is_remembered_is_what_is_computed_at_first(
    monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest, work: Any
) -> None:
    """Against Triton's own frontend above our casts and constants: the frontend's functions are put back, no other."""
    from triton.runtime import interpreter as triton

    from verify.backends.interpreter import install

    with np.errstate(all="ignore"):
        first, again = work(), work()
    kind = type(triton.interpreter_semantic)
    saved = [(owner, name, value) for owner, name, value in install._active._saved if owner is kind]
    assert len(saved) >= 4
    for owner, name, original in saved:
        monkeypatch.setattr(owner, name, original)
    with np.errstate(all="ignore"):
        assert work() == first == again


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

    x = torch.full((4,), 2**31 - 1, dtype=torch.int32)
    out = torch.empty_like(x)
    k.arithmetic[(1,)](x, x, out, N=4, OP="add")
    assert out.tolist() == [-2] * 4
    sums = []
    method = triton.InterpreterBuilder.create_add
    monkeypatch.setattr(triton.InterpreterBuilder, "create_add", lambda *a: sums.append(1) or method(*a))
    value = tensor_of("int32", [4], x.numpy())
    assert triton.interpreter_semantic.add(value, value, True).handle.data.tolist() == [-2] * 4
    assert len(sums) == 1


def tensor_of(name: str, shape: list[int], data: Any) -> Any:
    from triton.language import core
    from triton.runtime.interpreter import TensorHandle

    element = getattr(core, name)
    return core.tensor(TensorHandle(data, element), core.block_type(element, shape) if shape else element)


def test_the_short_way_gives_what_the_frontend_gives() -> None:
    """Every operation that has one, on blocks and scalars of every type, numbers, and what is refused."""
    from triton.language import core, math
    from triton.runtime import interpreter as triton

    from verify.backends.interpreter import frontend

    semantic, generator, short = triton.interpreter_semantic, np.random.default_rng(3), set()
    modules = {core.__name__: core, math.__name__: math}

    def outcome(call: Any, *args: Any, **named: Any) -> str:
        try:
            with np.errstate(all="ignore"):
                return told([call(*args, **named)])
        except Exception as refused:
            return f"{type(refused).__name__}: {refused}"

    tensors = []
    names = ("float64", "float32", "bfloat16", "int64", "int32", "uint32", "int1")
    for name, shape in itertools.product(names, ([], [4], [1, 4])):
        stored = triton._get_np_dtype(getattr(core, name))
        values = generator.choice([0.0, 1.0, 2.5, 100.0], shape or [1]).astype(stored)
        if name.startswith("float"):
            values.flat[0] = np.nan
        tensors.append(tensor_of(name, shape, values))
    assert tensors[18].dtype is core.int1
    pointer = core.pointer_type(core.float32)
    for shape in ([], [4]):
        kind = core.block_type(pointer, shape) if shape else pointer
        tensors.append(core.tensor(triton.TensorHandle(np.full(shape or [1], 64, np.uint64), pointer), kind))
    others = [*tensors, 1, 0.5, True, core.constexpr(2), core.constexpr(0.5)]
    for (module, path), made in frontend._DIRECT.items():
        function = functools.reduce(getattr, path.split("."), modules[module])
        direct = frontend.bound(function, semantic)
        if path == "where":
            tried = list(itertools.product(tensors[18:21], tensors, tensors))  # with a truth value
        elif path == "fma":
            tried = [(x, y, z) for x in tensors[:8] for y in tensors[:8] for z in tensors[:8]]
        elif path == "full":
            sides = ([], (), [4], [core.constexpr(2), 2], core.tuple([core.constexpr(4)]), [3])
            kinds = [getattr(core, name) for name in ELEMENTS]
            tried = list(itertools.product(sides, (*NUMBERS, core.constexpr(0.5), tensors[9]), kinds))
        else:
            tried = list(itertools.product(tensors, others))
        for operands in tried:
            given = outcome(function, *operands, _semantic=semantic)
            assert outcome(direct, *operands) == given, (path, given)
            if type(operands[-1]) is not core.tensor:  # a number is remembered from the first time
                assert outcome(direct, *operands) == given, (path, given)
        alone = made(lambda *_, **__: None, semantic.builder)
        short |= {path for operands in tried if alone(*operands) is not None}
    assert short == {path for _, path in frontend._DIRECT} - {"full"}
    asked: list[Any] = []  # a block of one number is made once, and each is a tensor of its own
    full = frontend._filled(lambda *a: asked.append(a) or core.full(*a, _semantic=semantic), semantic.builder)
    one, other = (full((), 0.5, core.float32) for _ in range(2))
    assert len(asked) == 1 and one.handle is not other.handle and not other.handle.data.flags.writeable
