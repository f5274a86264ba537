"""The limits of a process, and the messages that it may send."""

from __future__ import annotations

import itertools
import os
import socket
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe
from pathlib import Path

import pytest
import torch

from verify.referee import messages, runner, sandbox
from verify.referee.host import SolutionProcess
from verify.referee.messages import Build, Call, Entry, Form, bytes_of, form_of, template_of, tensor_of, value_of

MIB = 1 << 20


def within(folder: Path, work: Callable[[], object] | None = None) -> str:
    """Returns what `work` returns or raises in a process with all limits; without it the limits that hold."""
    read, write = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            isolated, _ = sandbox.isolate()
            ends = "its processes end with it" in isolated
            held, _ = sandbox.confine([str(folder)], sandbox.folders_to_read(), 256 * MIB, namespaces=ends)
            text = "; ".join(held) if work is None else str(work())
        except BaseException as error:
            text = type(error).__name__
        os.write(write, text.encode())
        os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    with open(read, "rb") as pipe:
        return pipe.read().decode()


def test_a_process_writes_below_its_folder_alone(tmp_path: Path) -> None:
    inside, outside = tmp_path / "scratch", tmp_path / "outside.txt"
    inside.mkdir()
    assert within(inside, lambda: (inside / "a.txt").write_text("ab")) == "2"
    if "scratch folder alone" not in within(inside):
        pytest.skip("this kernel has no landlock")
    assert within(inside, lambda: outside.write_text("ab")) == "PermissionError"
    assert within(inside, lambda: os.listdir(tmp_path)) == "PermissionError"
    assert within(inside, lambda: open("/dev/null", "w").close()) == "None"


def test_a_process_names_its_threads_and_writes_nothing_else_of_the_kernel(tmp_path: Path) -> None:
    """CUDA does so at its start."""
    if "scratch folder alone" not in within(tmp_path):
        pytest.skip("this kernel has no landlock")
    mine = "/proc/self/task/{}/comm"

    def named(number: int) -> str:
        Path(mine.format(number)).write_text("mine")
        return Path(mine.format(number)).read_text().strip()

    def of_another_thread() -> str:
        with ThreadPoolExecutor(1) as pool:
            return named(pool.submit(threading.get_native_id).result())

    assert within(tmp_path, lambda: named(threading.get_native_id())) == "mine"
    assert within(tmp_path, of_another_thread) == "mine"
    for path in ("/proc/sys/kernel/core_pattern", "/proc/self/comm", "/proc/self/oom_score_adj"):
        assert within(tmp_path, lambda path=path: os.open(path, os.O_RDWR)) == "PermissionError", path


def test_an_object_of_the_parent_closes_no_file_of_a_solution(tmp_path: Path) -> None:
    """A fork has its parent's objects. One that closes its file at the end may not close what CUDA opened since."""
    read, write = os.pipe()
    secret = (tmp_path / "secret").open("w+")
    pid = os.fork()
    if not pid:
        try:
            runner._close_all_but(write)
            opened = [os.open("/dev/zero", os.O_RDONLY) for _ in range(64)]
            before = os.readlink(f"/proc/self/fd/{secret.fileno()}")
            secret.close()
            os.write(write, f"{before} {all(os.read(each, 1) for each in opened)}".encode())
        finally:
            os._exit(0)
    os.close(write)
    os.waitpid(pid, 0)
    secret.close()
    with open(read, "rb") as pipe:
        assert pipe.read().decode() == "/dev/null True"


def test_a_process_has_no_network_and_reaches_no_other(tmp_path: Path) -> None:
    if "no sockets" not in within(tmp_path):
        pytest.skip("this kernel has no seccomp")
    assert within(tmp_path, lambda: socket.socket(socket.AF_INET)) == "PermissionError"
    assert within(tmp_path, lambda: len(socket.socketpair())) == "2"


def test_a_process_has_a_limit_of_memory(tmp_path: Path) -> None:
    assert within(tmp_path, lambda: len(bytearray(8 * MIB))) == str(8 * MIB)
    assert within(tmp_path, lambda: len(bytearray(1024 * MIB))) == "MemoryError"


def test_new_memory_holds_a_pattern(tmp_path: Path) -> None:
    values = within(tmp_path, lambda: set(torch.empty(1000, dtype=torch.uint8).tolist()))
    assert values == str({sandbox.NEVER_WRITTEN}) or not sys.platform.startswith("linux")


def test_a_value_with_tensors_goes_there_and_comes_back() -> None:
    value = [torch.ones(2, 3), {"scale": 0.5, "at": (torch.tensor([1, 2]), None)}, torch.bfloat16]
    template, tensors = template_of(value, (f"x{n}" for n in itertools.count()))
    back = {name: tensor_of(form_of(name, tensor), bytes_of(tensor)) for name, tensor in tensors.items()}
    found = value_of(template, back)
    assert torch.equal(found[0], value[0]) and torch.equal(found[1]["at"][0], torch.tensor([1, 2]))  # type: ignore[call-overload,index,arg-type]
    assert (found[1]["scale"], found[1]["at"][1], found[2]) == (0.5, None, torch.bfloat16)
    with pytest.raises(TypeError, match="object is no tensor"):
        template_of([object()], iter("a"))


@pytest.mark.parametrize("shape", [(3,), (-1, -2)])
def test_bytes_that_do_not_fit_their_form_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="y has 8 bytes"):
        tensor_of(Form("y", "torch.float32", shape), bytes(8))


def test_tensors_for_a_solution_arrive_in_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "PIECE", 12)
    tensors = [torch.arange(10.0), torch.empty(0, 3), torch.tensor(2, dtype=torch.int16), torch.arange(6.0)]
    forms = [form_of(f"x{place}", each) for place, each in enumerate(tensors)]
    ours, theirs = Pipe()
    messages.send(ours, Call(1, tuple(forms)), tensors, most=12)
    sent = [theirs.recv_bytes() for _ in range(1 + 4 + 1 + 1 + 2)]
    assert not theirs.poll() and max(map(len, sent[1:])) == 12
    for each in sent[1:]:
        ours.send_bytes(each)
    back = messages.receive_tensors(theirs, forms)
    assert all(torch.equal(*pair) for pair in zip(back, tensors, strict=True)) and not theirs.poll()


def test_beside_a_gpu_the_process_is_a_new_interpreter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No fork may use a GPU that its parent used."""
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    (tmp_path / "solution.py").write_text("import os\ndef solve(x):\n    return x + len(os.environ.get('HOME'))\n")
    process = SolutionProcess()
    entry = Entry(("solve",), {"tuple": [{"tensor": "x"}]})
    build = Build(str(tmp_path), str(tmp_path), "solution.py", entry, "cpu", 256 * MIB, sandbox.folders_to_read())
    try:
        process.ask(build, (), 60.0)
        x = torch.arange(3.0)
        head, bits = process.ask(Call(7, (form_of("x", x),)), (x,), 60.0)
        assert b'"number":7' in head
        found = tensor_of(Form("y", "torch.float32", (3,)), bits)
        assert torch.equal(found, x + len(str(tmp_path)))
    finally:
        process.stop()
