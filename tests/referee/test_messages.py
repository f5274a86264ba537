"""The messages of the judge and a solution, and the files that its process closes."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import msgspec
import pytest
import torch

from verify.errors import InternalError
from verify.measure.requests import Form
from verify.measure.tensors import bytes_in, bytes_of, form_of, tensor_of, view_of
from verify.referee.messages import Answer, Build, Built, Call, Entry, template_of, value_of
from verify.workers.channel import Channel
from verify.workers.sandbox import starter


def test_an_object_of_the_parent_closes_no_file_of_a_solution(tmp_path: Path) -> None:
    """A fork has its parent's objects. One that closes its file at the end may not close what CUDA opened since."""
    read, write = os.pipe()
    secret = (tmp_path / "secret").open("w+")
    pid = os.fork()
    if not pid:
        try:
            starter._close_all_but(write)
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
    with pytest.raises(ValueError, match="8 bytes|no tensor"):
        tensor_of(Form("y", "torch.float32", shape), bytes(8))


def test_tensors_for_a_solution_arrive_as_they_were() -> None:
    tensors = [
        torch.arange(10.0),
        torch.empty(0, 3),
        torch.tensor(2, dtype=torch.int16),
        torch.arange(6.0).view(2, 3).t(),
    ]
    forms = [form_of(f"x{place}", each) for place, each in enumerate(tensors)]
    ours, theirs = Channel.pair()
    ours.send(msgspec.json.encode(Call(1, tuple(forms))), map(view_of, tensors))
    asked = msgspec.json.decode(theirs.receive(), type=Call)
    back = [tensor_of(form, theirs.fill(bytes_in(form))) for form in asked.tensors]
    assert all(torch.equal(*pair) for pair in zip(back, tensors, strict=True))


def test_an_answer_to_a_call_is_no_module_without_parameters() -> None:
    build = Build("solution.py", Entry((), {}), "cpu")
    with pytest.raises(InternalError, match="no reply to it"):
        build.read(msgspec.json.encode(Answer(0)))
    assert build.read(msgspec.json.encode(Built())) == Built()


def test_a_single_number_of_any_stride_goes_there_and_comes_back() -> None:
    """The median of one row is a column of its sorted numbers."""
    number = torch.arange(257, dtype=torch.int32).reshape(1, 257)[:, 128]
    assert number.is_contiguous() and number.stride() == (257,)
    assert tensor_of(form_of("y", number), bytes_of(number)).tolist() == [128]
