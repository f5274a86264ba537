"""Launch arguments on the interpreter: what a compiled kernel refuses is refused, what it computes is computed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import types
from collections import namedtuple
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.usefixtures("faithful")
VERSION = tuple(int(part) for part in metadata.version("triton").split(".")[:2])

#: (kernel, arguments after the output) -> what is stored, or None where the launch does not compile.
CASES: list[tuple[str, tuple[Any, ...], int | None]] = [
    ("method_of_argument", (1,), None),
    ("method_of_argument", (2,), 2),
    ("method_of_argument", (0,), 0),
    ("method_of_argument", (-1,), -1),
    ("method_of_argument", (1.0,), 1),
    ("method_of_argument", (True,), 1),
    ("method_of_product", (1,), None),
    ("method_of_product", (2,), 5),
    ("type_of_argument", (1,), None),
    ("type_of_argument", (2,), 5),
    ("method_in_a_device_function", (1,), None),
    ("method_in_a_device_function", (2,), 2),
    ("method_of_tuple_element", ((1, 2),), None),
    ("method_of_tuple_element", ((2, 1),), 2),
    ("method_of_assigned", (1,), 1),
    ("method_of_augmented", (1,), 2),
    ("method_of_returned", (1,), 3 if VERSION < (3, 7) else None),  # from 3.7 a constant may be returned
    ("method_of_returned", (2,), 5),
    ("cast_argument", (1,), 1),
    ("method_of_listed", (1,), 1),
    ("method_of_listed_for_alignment", (1,), None),
    ("method_of_annotated", (1,), 8589934588),
    ("method_of_annotated", (3,), 25769803764),
    ("method_of_default", (), None),
    ("method_of_default", (2,), 2),
    ("method_of_flag", (True,), 21),
    ("method_of_flag", (False,), 10),
    ("method_of_none", (None,), 0),
    ("method_of_none", (1,), None),
]


@pytest.mark.parametrize(("name", "arguments", "want"), CASES)
def test_the_interpreter_takes_arguments_as_a_compiled_kernel(
    name: str, arguments: tuple[Any, ...], want: int | None, k: types.ModuleType
) -> None:
    out = torch.zeros(1, dtype=torch.int64)
    if want is None:
        with pytest.raises(Exception, match="on a GPU this launch does not compile"):
            getattr(k, name)[(1,)](out, *arguments)
    else:
        getattr(k, name)[(1,)](out, *arguments)
    assert out.item() == (want or 0)


def test_tritons_own_frontend_compiles_the_same_launches() -> None:
    clean = {key: value for key, value in os.environ.items() if key != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("frontend.py"))],
        input=json.dumps([(name, arguments) for name, arguments, _ in CASES]),
        env=clean, capture_output=True, text=True, timeout=120,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    said = json.loads(done.stdout)
    assert [s == "ok" for s in said] == [want is not None for _, _, want in CASES]
    assert all("'int' object has no attribute" in s for s in said if s != "ok")


def test_the_message_names_the_argument_and_what_to_do(k: types.ModuleType) -> None:
    with pytest.raises(Exception, match="does not compile") as error:
        k.method_of_argument[(1,)](torch.zeros(1, dtype=torch.int64), n=1)
    assert (
        ".to of n = 1: Triton compiles an int argument of 1 as a constant, which has no .to: on a GPU this launch does "
        "not compile, with other values of n it does. Next: tl.cast(n, ...), an assignment (n_ = n), or "
        "@triton.jit(do_not_specialize=['n'])" in str(error.value).replace("\\", "")
    )


def test_a_named_tuple_stays_one(k: types.ModuleType) -> None:
    sizes = namedtuple("sizes", "rows columns")
    out = torch.zeros(1, dtype=torch.int64)
    k.method_of_tuple_element[(1,)](out, sizes(rows=4, columns=1))
    assert out.item() == 4


@pytest.mark.parametrize(("n", "m"), [(1, 1), (1, 2), (2, 1), (3, 2)])
def test_arithmetic_with_constants_has_the_same_bits(n: int, m: int, k: types.ModuleType) -> None:
    x = torch.arange(10, 26, dtype=torch.int64)
    constants, tensors = torch.zeros(8, dtype=torch.int64), torch.zeros(8, dtype=torch.int64)
    k.numbers[(1,)](x, constants, n, m, BLOCK=8)
    unspecialized = type(k.numbers)(k.numbers.fn, do_not_specialize=["n", "m"])
    unspecialized[(1,)](x, tensors, n, m, BLOCK=8)
    assert torch.equal(constants, tensors) and constants.any()


def test_a_constant_does_not_widen_a_tensor(k: types.ModuleType) -> None:
    x, out = torch.full((4,), 100, dtype=torch.int8), torch.zeros(4, dtype=torch.int64)
    k.bytes_times[(1,)](x, out, 1)
    assert out.tolist() == [-56] * 4  # 8 bits, as a number of Python's takes the tensor's type
    k.bytes_times[(1,)](x, out, 2)
    assert out.tolist() == [300] * 4  # 32 bits, those of the argument
