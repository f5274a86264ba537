"""Declarations: what is accepted, how it is found, and the exact line for everything else."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.golden import answers
from verify.cases import case_of
from verify.declare.declaration import kernel
from verify.declare.discovery import load
from verify.declare.target import Target
from verify.errors import UsageError
from verify.measure.call import run_kernel


def mine(x):  # type: ignore[no-untyped-def]
    """Says what it does.

    And more.
    """
    return x


@pytest.fixture(autouse=True)
def _clean_imports() -> Iterator[None]:
    modules, path = set(sys.modules), list(sys.path)
    yield
    for name in set(sys.modules) - modules:
        del sys.modules[name]
    sys.path[:] = path


# -- what is declared ---------------------------------------------------------------------------


def test_the_layouts_of_single_operands() -> None:
    item = kernel(op="layer_norm", layouts={"weight": "contiguous", "x": "any"})(lambda x, weight, bias, eps: x)
    assert item.contiguous == ("weight",) and "layouts: any, weight contiguous;" in item.promise


def test_gradients_of_what_is_taken() -> None:
    taken = kernel(op="layer_norm", operands=["x"], gradients=True)(mine)
    assert taken.gradients == ("x",)
    assert kernel(op="gelu", gradients=False)(mine).gradients == ()
    assert kernel(op="gelu", gradients="dx")(mine).gradients == ("x",)


def test_a_kernel_that_takes_any_keyword_receives_every_parameter() -> None:
    assert kernel(op="gelu")(lambda x, **keywords: x).accepted == {"approximate"}
    assert kernel(op="gelu")(lambda x: x).accepted == frozenset()


# -- one line for each mistake ------------------------------------------------------------------


def test_functions_whose_signature_says_nothing_are_taken_as_they_are() -> None:
    class Gelu(torch.autograd.Function):
        pass

    for function in (Gelu.apply, torch.nn.GELU(), torch.nn.functional.gelu, lambda *tensors, **keywords: tensors):
        assert kernel(op="gelu", name="k")(function).op.name == "gelu"


def test_an_argument_with_a_default_is_an_operand_if_shapes_names_it() -> None:
    shapes = {"x": "n d", "w": "d", "bias": "d"}

    def scaled(x: torch.Tensor, w: torch.Tensor, eps: float = 0.0, bias: Any = None) -> Any:
        return x * w + (eps if bias is None else bias)

    declared = kernel(like=lambda x, w, bias: x * w + bias, shapes=shapes, dtypes=["float32"])(scaled)
    assert declared.operands == ("x", "w", "bias")
    made = run_kernel(declared, case_of(declared, "float32", dims=(3, 5)), "cpu")
    x, w, bias = made.inputs.values()
    assert torch.equal(made.results["y"], x * w + bias) and "dbias" in made.results
    del shapes["bias"]
    assert kernel(like=lambda x, w: x * w, shapes=shapes, dtypes=["float32"])(scaled).operands == ("x", "w")


def test_a_kernel_of_integers_alone_is_measured_once() -> None:
    of_ids = functools.partial(kernel, shapes={"ids": "n"}, integers={"ids": "0 <= ids < 9"})
    assert of_ids(like=lambda ids: ids + 1)(lambda ids: ids + 1).dtypes == ("float32",)
    assert of_ids(like=lambda ids: ids / 2)(lambda ids: ids / 2).dtypes == ("float32", "bfloat16", "float16")


def test_a_norm_promises_the_same_as_a_shipped_op_and_as_a_pytorch_function() -> None:
    """Its squares overflow in extreme inputs. An elementwise op has a limit for each input."""
    rows = {"shapes": {"x": "n d", "weight": "d"}}

    def norm(x, weight):  # type: ignore[no-untyped-def]
        return torch.nn.functional.rms_norm(x, x.shape[-1:], weight, 1e-6)

    for made in (kernel(op="rms_norm")(norm), kernel(like=norm, **rows)(norm)):
        assert made.limit_of("float32", "extreme") is None and made.limit_of("float32", "demanding") is not None
    assert kernel(op="rms_norm", max_ulp=2)(norm).limit_of("float32", "extreme") == 2
    assert kernel(op="silu")(torch.nn.functional.silu).limit_of("float32", "extreme") == 4


def test_the_dtypes_of_single_operands_and_outputs() -> None:
    def norm(x, weight, *, eps):  # type: ignore[no-untyped-def]
        return x

    weight = {"weight": torch.float32}
    item = kernel(op="rms_norm", dtypes=["bfloat16", "float32"], operand_dtypes=weight)(norm)
    assert item.mixed("bfloat16") == {"weight": "float32"} and item.mixed("float32") == {}
    assert item.promise.endswith(
        "max ULP scaled: 1 in bfloat16, 8 in float32; extreme inputs: no promise; weight as float32 beside bfloat16"
    )
    assert (item.result_dtype("bfloat16", "y"), item.result_dtype("bfloat16", "dweight")) == ("bfloat16", "float32")
    by_dtype = kernel(op="rms_norm", operand_dtypes={"float16": weight}, output_dtypes={"float16": {"y": "float32"}})(
        norm
    )
    assert (by_dtype.mixed("bfloat16"), by_dtype.mixed("float16")) == ({}, {"weight": "float32", "y": "float32"})


# -- discovery ----------------------------------------------------------------------------------

HEAD = "import torch, verify\n"
TWO = HEAD + (
    "@verify.kernel(op='gelu')\ndef b(x): return x\n"
    "@verify.kernel(op='gelu', dtypes=['float32'])\ndef a(x): return x\n"
    "alias = a\n"
)


def write(folder: Path, text: str, name: str = "accuracy.py") -> str:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / name
    path.write_text(text)
    return str(path)


def names(text: str) -> list[str]:
    return [item.name for item in load(Target.parse(text))]


def declared(text: str, kernel: str = "") -> list[str]:
    """The kernels of a file with this text, or of that name in it."""
    for label in [label for label in sys.modules if label.startswith("verify_target_accuracy_")]:
        del sys.modules[label]
    return names(write(Path(), HEAD + text) + kernel)


def failure(text: str) -> UsageError:
    with pytest.raises(UsageError) as caught:
        load(Target.parse(text))
    return caught.value


def test_kernels_imported_from_another_declaration_are_left_there(tmp_path: Path) -> None:
    write(tmp_path, TWO, "first_of_two.py")
    text = HEAD + ("from first_of_two import a\n@verify.kernel(op='gelu')\ndef c(x): return a(x)\n")
    assert names(write(tmp_path, text, "second_of_two.py")) == ["c"]


def test_a_module_is_found_from_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, TWO, "a_module_of_kernels.py")
    monkeypatch.chdir(tmp_path)
    assert names("a_module_of_kernels::b") == ["b"]
    error = failure("a_module_of_kernel")
    assert error.message == "no module named 'a_module_of_kernel'"
    assert error.hint == "a file is named with its ending: verify run accuracy.py"


def test_a_missing_file_or_kernel(tmp_path: Path) -> None:
    error = failure("no/such/file.py")
    assert error.message == "no such file: no/such/file.py"
    assert error.hint is not None and error.hint.startswith("verify run FILE.py")
    path = write(tmp_path, TWO)
    error = failure(f"{path}::c")
    assert error.message == f"{path} has no kernel 'c'; it declares: b, a"
    assert error.hint == f"verify list {path}"


def test_a_folder_is_no_target_and_its_declarations_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sub").mkdir()
    for folder in (".", "sub", "./sub", str(tmp_path)):
        error = failure(folder)
        assert error.message == f"a target is a Python file or a module; received the folder {folder}"
        assert error.hint is not None and error.hint.startswith("verify run FILE.py")
    write(tmp_path, TWO, "mine.py")
    assert failure(".").hint == "verify run mine.py"
    assert failure("mien.py").hint == "verify run mine.py"


def test_what_a_file_declares_or_how_it_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    answers(Path(__file__).parent / "snapshots" / "files.txt", globals())


REFUSED = HEAD + (
    "@verify.kernel(op='gelu')\ndef good(x): return x\n"
    "@verify.kernel(op='gelo')\ndef bad(x): return good(x)\n"
    "@verify.kernel(op='silu', dtypes=[])\ndef worse(x): return bad(x)\n"
)


def test_a_refused_declaration_leaves_the_other_kernels_of_its_file(tmp_path: Path) -> None:
    path, failed = write(tmp_path, REFUSED), list[UsageError]()
    assert [item.name for item in load(Target.parse(path), failed)] == names(f"{path}::good") == ["good"]
    assert failed[0].message.startswith(f"{path}::bad: no op is named 'gelo' (closest: gelu)")
    assert failed[1].message.startswith(f"{path}::worse: dtypes") and len(failed) == 2
    assert failure(path).message == failure(f"{path}::bad").message == failed[0].message
    used = write(tmp_path, REFUSED + "bad.name\n", "used.py")  # a function, which has no name of a kernel
    assert failure(used).message.startswith(f"{used}: no op is named 'gelo'")


def test_a_package_that_is_not_installed_is_named_with_its_python(tmp_path: Path) -> None:
    error = failure(write(tmp_path, "import no_such_library\n"))
    assert "fails on import: ModuleNotFoundError: No module named 'no_such_library'" in error.message
    assert error.hint is not None and error.hint.startswith(f"install no_such_library for {sys.executable}")
    assert 'requires="no_such_library"' in error.hint


# -- what has to be installed -------------------------------------------------------------------


def test_a_kernel_knows_which_of_its_packages_are_missing() -> None:
    assert kernel(op="gelu")(mine).lacking == ()
    assert kernel(op="gelu", requires="torch")(mine).lacking == ()
    both = kernel(op="gelu", requires=["torch", "nobody_installs_this"])(mine)
    assert both.requires == ("torch", "nobody_installs_this")
    assert both.lacking == ("nobody_installs_this",)


def test_the_range_of_an_integer_operand_is_a_condition_and_its_magnitude_no_promise() -> None:
    def take(weight: torch.Tensor, at: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.embedding(at, weight)

    about = {"like": take, "shapes": {"weight": "v n", "at": "m"}, "dtypes": ["float32"], "gradients": False}
    with pytest.raises(UsageError, match=r"the form low <= at < high; received \(0, 'v'\)") as found:
        kernel(**about, integers={"at": (0, "v")})(take)
    assert found.value.hint == "integers={'at': '0 <= at < v'}, '0 <= at <= t, sum t', 'permutation n' or 'bool'"
    whole = {**about, "integers": {"at": "0 <= at < v"}}
    assert kernel(**whole, largest={"weight": 10.0})(take).largest == {"float32": {"weight": 10.0}}
    with pytest.raises(UsageError, match="or its operands, weight; received 'at'"):
        kernel(**whole, largest={"at": 10.0})(take)
