"""Kernels in processes of their own: what one leaves reaches neither the next one nor its judge, and is recorded."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import warm
from verify import backends
from verify.backends import Interpreter
from verify.declare.discovery import load
from verify.declare.requests import ListKernels
from verify.declare.target import Target
from verify.diagnose.requests import ReplayLaw
from verify.errors import KernelError
from verify.measure.kernel import measure_kernel
from verify.measure.requests import Measure
from verify.measure.session import Session, run
from verify.records.record import KernelRun, Printed
from verify.report.present import KernelFacts
from verify.workers import process_tree
from verify.workers.pool import Pool
from verify.workers.process import Worker

pytestmark = pytest.mark.usefixtures("warm")

KERNELS = """
import os, sys, time
import torch, verify

open(__file__ + ".imports", "a").write(f"{os.getpid()}\\n")

print("imported")

def silu(x):
    return torch.where(x == -torch.inf, 0, torch.nn.functional.silu(x.double())).to(x.dtype)

kernel = verify.kernel(op="silu", dtypes=["float16"], gradients=False, max_ulp=1)

@kernel
def patches(x):
    import verify.measure.judge as judging
    real = judging.errors_of
    judging.errors_of = lambda got, value, *rest, **more: real(value.to(got.dtype), value, *rest, **more)
    torch.equal = lambda *tensors: True
    return x * 3

@kernel
def modes(x):
    y = silu(x)
    torch.set_grad_enabled(False); torch.set_default_dtype(torch.float64); torch.set_flush_denormal(True)
    torch.set_num_threads(2); torch.set_float32_matmul_precision("high"); os.chdir("/")
    torch._C._set_deterministic_algorithms(True)  # torch.use_... imports the compiler first, 0.8 s
    return y

@kernel
def prints(x):
    if x.numel() > 1000:
        os.write(1, b"first \\x1b[31mline\\n"); print("last", file=sys.stderr)
    return silu(x)

@kernel
def floods(x):
    os.write(2, b"x" * 200_000)
    return silu(x)

@kernel
def noisy(x):
    for descriptor in range(3, 30):
        try: os.write(descriptor, b'{"event":"reply","id":1,"reply":{}}' * 9)
        except OSError: pass
    return silu(x)

@kernel
def closes(x):
    if x.numel() > 40_000:  # each such call is waited for
        os.closerange(3, 64); time.sleep(600)
    return silu(x)

@kernel
def leaves(x):  # at each call: up to MOST_ENDED processes
    raise SystemExit(7)

@verify.kernel(op="silu", dtypes=["float16", "bfloat16"], gradients=False, max_ulp=1)
def halfway(x):
    return silu(x) if x.dtype == torch.float16 or x.numel() <= 40_000 else os.abort()

@kernel
def wrong(x):
    return x * 3
"""

OWN = """
import os, sys
import verify

kernel = verify.kernel(like=lambda x: x * 2, dtypes=["float16"], gradients=False)

@kernel
def doubles(x):
    assert "sympy" not in sys.modules, "half a second for each process"
    print("mine")
    return x * 2

@kernel
def aborts(x):
    return x * 2 if x.numel() <= 40_000 else os.abort()  # each process imports this file
"""


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("apart") / "kernels.py"
    path.write_text(KERNELS)
    return path


@pytest.fixture(scope="module")
def worker() -> Iterator[Worker]:
    with Worker("interpreter") as started:
        yield started


@pytest.fixture(scope="module")
def found(worker: Worker, target: Path) -> dict[str, KernelRun]:
    """All of them, one after the other beside one worker, which no kernel ended."""
    own = target.with_name("own.py")
    own.write_text(OWN)
    record = run([str(target), str(own)], Session(pool=Pool.of([worker]), timeout=60), "verify run")
    return {kernel.name: kernel for kernel in record.kernels}


def test_a_kernel_cannot_touch_its_judge_nor_the_next_ones(found: dict[str, KernelRun]) -> None:
    patches = found["patches"]
    assert patches.status == "wrong"  # by a judge that it did not reach
    (left,) = patches.left
    assert (left.kind, left.after) == ("judge", "call") and left.breaks
    assert left.text == "replaced torch.equal, verify.measure.judge.errors_of"
    assert found["wrong"].status == "wrong"


def test_modes_that_a_call_leaves_are_an_error_of_the_kernel(found: dict[str, KernelRun]) -> None:
    modes = found["modes"]
    assert modes.status == "error" and [result.status for result in modes.results] == ["ok"]
    assert modes.message.startswith("it must leave the process as it was; it changed grad mode from True to False; ")
    said = [left.text.rpartition(" from ")[0].removeprefix("changed ") for left in modes.left]
    assert said == [
        "grad mode",
        "torch's default dtype",
        "flushing of subnormals",
        "torch's number of threads",
        "float32 matmul precision",
        "deterministic algorithms",
        "the working directory",
    ]


def test_what_a_kernel_prints_is_kept_with_it(found: dict[str, KernelRun]) -> None:
    assert found["prints"].left == []
    assert found["prints"].printed == Printed(30, "imported\nfirst \x1b[31mline\nlast\n")
    assert KernelFacts(found["prints"]).notes == ["printed 30 bytes: imported"]
    flood = found["floods"].printed
    assert flood is not None and flood.bytes > 400_000 and len(flood.text) < (64 << 10) + 100
    assert f"... {flood.bytes - (64 << 10):,} bytes dropped ..." in flood.text
    assert found["doubles"].printed is not None and "mine" in found["doubles"].printed.text
    assert len(KernelFacts(found["floods"]).notes[0]) < 200


def test_noise_in_its_connection_costs_the_kernel_alone(found: dict[str, KernelRun]) -> None:
    assert found["noisy"].status == "error"
    assert (
        found["noisy"].message
        == "it wrote into the connection of its own process: what arrived is no message of verify"
    )


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("closes", "float16: the process closed its connection to verify and went on; stopped"),
        ("leaves", "float16: the process ended with exit code 7 and no result"),
        ("aborts", "float16: the process died of SIGABRT"),
        ("halfway", "bfloat16: the process died of SIGABRT"),
    ],
)
def test_a_kernel_that_ends_its_process_has_crashed(found: dict[str, KernelRun], name: str, message: str) -> None:
    assert (found[name].status, found[name].message) == ("crashed", message)
    assert [result.dtype for result in found[name].results] == (["float16"] if name == "halfway" else [])


def test_a_definition_of_the_target_takes_two_processes_and_no_more(target: Path) -> None:
    """The kernel's and the judge's; 12 more were once begun for the case that the kernel ends its own."""
    own = target.with_name("counted.py")
    own.write_text(OWN + "open(__file__ + '.pids', 'a').write(f'{os.getpid()} ')\n")
    with Worker("interpreter") as worker:
        assert worker.ask(Measure(f"{own}::doubles"), timeout=60).status == "ok"
        pids = {int(pid) for pid in Path(f"{own}.pids").read_text().split()}
        assert len(pids) == 2
        assert worker._process is not None
        begun = process_tree.living({worker._process.pid}, "no mark")
    assert len(begun) == 3, "the worker, the server and the process of the kernel"


def test_a_definition_of_the_target_is_judged_beside_its_kernel(found: dict[str, KernelRun]) -> None:
    (result,) = found["doubles"].results
    assert result.status == "ok" and result.basis.kind == "exhaustive"


def test_the_same_figures_come_from_one_process(
    found: dict[str, KernelRun], target: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On the backend of the worker, whatever that of these tests is."""
    (kernel,) = load(Target.parse(f"{target}::wrong"))
    backend = Interpreter("cpu", asked="interpreter")
    monkeypatch.setattr(backends, "_ACTIVE", [backend])
    here = measure_kernel(kernel, Measure(f"{target}::wrong"), backend)
    assert here.results == found["wrong"].results


def test_a_verdict_of_a_process_whose_judge_was_replaced_is_none(worker: Worker, target: Path) -> None:
    """Laws compare in the kernel's own process."""
    case = '{"dtype":"float16","dims":[4],"fill":"ones"}'
    with pytest.raises(KernelError, match=r"leave the process as it was; it replaced torch\.equal, verify"):
        worker.ask(ReplayLaw(f"{target}::patches", case, "determinism", False), timeout=60)
    with pytest.raises(KernelError, match="it changed grad mode from True to False; "):
        worker.ask(ReplayLaw(f"{target}::modes", case, "determinism", False), timeout=60)
    replayed = worker.ask(ReplayLaw(f"{target}::prints", case, "determinism", False), timeout=60)
    assert replayed.law.status == "ok"


def test_a_module_that_patches_when_it_is_imported_is_judged_by_nobody(worker: Worker, tmp_path: Path) -> None:
    path = tmp_path / "patching.py"
    path.write_text(
        "import torch, verify\n"
        "torch.equal = lambda *a: True\n"
        "@verify.kernel(op='silu', dtypes=['float16'], gradients=False)\n"
        "def fine(x): return torch.where(x == -torch.inf, 0, torch.nn.functional.silu(x.double())).to(x.dtype)\n"
    )
    assert worker.ask(ListKernels(str(path)), timeout=60).kernels[0].name == "fine"
    done = worker.ask(Measure(f"{path}::fine"), timeout=60)
    assert (done.status, done.left[0].after) == ("error", "import")
    assert done.message == "it must leave the process as it was; it replaced torch.equal"


def test_the_default_device_of_a_module_is_that_of_its_kernels_alone(worker: Worker, tmp_path: Path) -> None:
    path = tmp_path / "meta.py"
    path.write_text(
        "import torch, verify\n"
        "torch.set_default_device('meta')\n"
        "@verify.kernel(op='silu', dtypes=['float16'], max_ulp=4)\n"
        "def k(x):\n"
        "    assert torch.empty(0).device.type == 'meta'\n"
        "    return x.sigmoid() * torch.where(x == -torch.inf, torch.zeros_like(x), x)\n"
    )
    done = worker.ask(Measure(f"{path}::k"), timeout=60)
    assert {result.output for result in done.results} == {"y", "dx", "dx (random dy)"}
    assert [each.text for each in done.left if each.after == "call"] == []
    assert "changed torch's default device from cpu to meta" in [each.text for each in done.left]


def test_laws_without_a_verdict_cost_no_figures(worker: Worker, target: Path) -> None:
    done = worker.ask(Measure(f"{target}::modes", laws="quick"), timeout=60)
    assert done.status == "error" and [result.status for result in done.results] == ["ok"]
    assert done.message.startswith("while laws were tried: it must leave the process as it was; it changed grad mode")


BEGUN = """
import time
from verify.backends import Cuda
from verify.declare.requests import ListKernels
from verify.errors import UsageError
from verify.measure import apart

import msgspec

apart._import_triton = lambda requested: True
read = lambda text: msgspec.json.decode(text, type=ListKernels)
answer = lambda asked, backend, progress: f"{asked.target} on {backend.name}"
how = apart.RequestHandler(read, answer)

def refuse():
    raise UsageError("no GPU")

try:
    apart.KernelProcesses(None, refuse, how)
except UsageError as error:
    print(error)
time.sleep(0.7)  # a process that lost its parent would end this one now
kernels = apart.KernelProcesses(None, lambda: Cuda("cpu"), how)
begun = kernels._first.pid
asked = msgspec.Raw(msgspec.json.encode(ListKernels("examples/pytorch.py")))
print(bytes(kernels.answer(asked, print)).decode())
print(kernels._kernel.pid == begun, kernels._first)
kernels.stop()
"""


TIMED = """
import os

import msgspec
import torch

from verify.backends import Cuda
from verify.measure import apart
from verify.measure.requests import ListSideEffects, Time

def answer(asked, backend, progress):
    if asked.dtype == "float16":
        torch.set_float32_matmul_precision("high")
    return os.getpid()

read = lambda text: msgspec.json.decode(text, type=Time | ListSideEffects)
handler = apart.RequestHandler(read, answer)
kernels = apart.KernelProcesses(None, lambda: Cuda("cpu"), handler)

def process(kernel, dtype="float32", beside=("a", "b")):
    asked = Time([f"examples/pytorch.py::{kernel}"], dtype, (), (), 1, 0, beside)
    return int(bytes(kernels.answer(msgspec.Raw(msgspec.json.encode(asked)), print)))

first, other, changing, after, again = [process(*each) for each in FIVE]
print(first == other == changing, after == again != first)
print(process("gelu", beside=()) != process("gelu_tanh", beside=()))
kernels.stop()
"""


@pytest.fixture(scope="module")
def printed() -> list[str]:
    """What both programs print, one after the other in a fork of the warm process, whose Triton may interpret."""
    five = [("gelu",), ("gelu_tanh",), ("gelu", "float16"), ("gelu_tanh",), ("gelu",)]
    begin = "from verify.backends import Cuda\nCuda.activate = lambda self: None\n"
    return warm.printed(begin + TIMED.replace("FIVE", repr(five)) + BEGUN).splitlines()
