"""libdevice symbols that have one right answer, and the flush-to-zero that Triton compiles them with."""

from __future__ import annotations

import inspect
import re

import numpy as np
import pytest

from verify.backends.interpreter import libdevice
from verify.backends.interpreter.libdevice import lookup
from verify.errors import UsageError

F = np.float32


def test_every_cuda_libdevice_function_is_there_but_bessel_ones_and_directions_of_float64() -> None:
    cuda = pytest.importorskip("triton.language.extra.cuda.libdevice")
    symbols = set(re.findall(r"\"(__nv_\w+)\"", inspect.getsource(cuda)))
    assert len(symbols) > 280
    missing = {s for s in symbols if s not in libdevice.SYMBOLS}
    left_out = r"__nv_((j0|j1|jn|y0|y1|yn|cyl_bessel_i[01])f?|(fma|d(add|sub|mul|div|rcp|sqrt)|u?ll2double)_r[zdu])"
    assert missing == {s for s in symbols if re.fullmatch(left_out, s)}


def test_an_unknown_symbol_is_named_with_the_way_to_add_it() -> None:
    with pytest.raises(UsageError) as error:
        lookup("__nv_besselkf")
    assert "the interpreter backend has no __nv_besselkf" in str(error.value)
    assert "next: add '__nv_besselkf' to SYMBOLS in verify/backends/interpreter/libdevice.py" in str(error.value)
