"""The sizes of public models: what dimensions take them, what tensor parallelism leaves of them, and what they find."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional

import verify
from tests.measure.test_kernel import few_cases
from verify import backends
from verify.cases.models import modelled
from verify.declare.declaration import Kernel
from verify.declare.models import FORMS, MODELS, models_of, named_by
from verify.errors import UsageError
from verify.measure.kernel import measure_kernel
from verify.measure.requests import Measure


def declared(like: Callable[..., Any], shapes: Mapping[str, str], spoil: Any = lambda y, *_: y, **more: Any) -> Kernel:
    def kernel(*operands: Tensor) -> Tensor:
        made: Tensor = spoil(like(*operands).clone(), *operands)
        return made

    kernel.__signature__ = inspect.signature(like)  # type: ignore[attr-defined]
    said = {"dtypes": ["bfloat16"], "gradients": False, "name": "k"}
    return verify.kernel(like=like, shapes=shapes, **{**said, **more})(kernel)


def double(x: Tensor) -> Tensor:
    return 2 * x


def test_dimensions_take_sizes_by_their_names_and_no_others() -> None:
    names = ["num_tokens", "d_model", "E", "n_experts", "Intermediate_Size"]
    assert named_by(names, {}) == {
        "num_tokens": "tokens", "d_model": "hidden", "n_experts": "experts", "Intermediate_Size": "expert_intermediate"
    }  # fmt: skip
    assert named_by(["intermediate"], {}) == {"intermediate": "intermediate"}
    for letter in "abcdefghijklmnopqrstuvwxyz":
        assert named_by([letter], {}) == {}, "a letter is never guessed"
    forms = [name.replace("_", "") for role, names in FORMS.items() for name in (role, *names)]
    assert len(forms) == len(set(forms))


def test_a_name_without_a_size_is_a_gap_that_lists_the_names() -> None:
    plan = modelled(declared(double, {"x": "tokens d"}), "bfloat16", ("qwen3-8b",), "small", 0)
    assert not plan.groups and plan.impossible.startswith("not measured at the sizes of a model: d has no size in a")
    assert "hidden" in plan.impossible and "sizes={'d': 'hidden'} names one" in plan.impossible
    examples = verify.kernel(like=double, examples=[(torch.ones(3),)], dtypes=["bfloat16"], name="k")(double)
    assert "examples=" in modelled(examples, "bfloat16", ("qwen3-8b",), "small", 0).impossible


def test_conditions_decide_and_may_name_a_dimension() -> None:
    def sizes(shapes: str, model: str = "qwen3-8b", **more: Any) -> list[tuple[int, ...]]:
        plan = modelled(declared(double, {"x": shapes}, **more), "bfloat16", (model,), "small", 0)
        return [case.dims for group in plan.groups for case in group.cases][::2]

    assert sizes("tokens d", sizes={"d": "heads * head_dim"}) == [(3, 4096), (17, 2048), (1, 1024), (7, 512)]
    assert sizes("tokens d hidden", where="d == hidden") == [(3, 4096, 4096), (1, 4096, 4096)]
    assert sizes("tokens hidden half", where="half == hidden // 2")[0] == (3, 4096, 2048)
    assert [dims[0] for dims in sizes("tokens hidden", where="tokens % 8 == 0")] == [8, 24]
    plan = modelled(
        declared(double, {"x": "tokens hidden"}, where="hidden <= 1024"), "bfloat16", ("qwen3-8b",), "small", 0
    )
    assert not plan.groups and plan.notes == ("bfloat16: qwen3-8b: where= allows no hidden = 4096",)


def test_each_size_is_tried_once_and_says_where_else() -> None:
    kernel = declared(double, {"x": "tokens hidden"}, dtypes=["float32", "bfloat16"])
    names = models_of("models", ("llama-3-8b", "mistral-7b", "llama-3-8b"))
    assert not modelled(kernel, "float32", names, "small", 0).groups, "the dtype of the models is bfloat16"
    plan = modelled(kernel, "bfloat16", names, "small", 0)
    assert [group.label for group in plan.groups] == [" (llama-3-8b)"]
    assert plan.notes == ("bfloat16: mistral-7b: the same sizes as llama-3-8b",)
    only = declared(double, {"x": "tokens hidden"}, dtypes=["float32"])
    assert modelled(only, "float32", names, "small", 0).groups, "the first dtype, if the kernel lacks the model's"
    experts = modelled(declared(double, {"x": "tokens experts"}), "bfloat16", names, "small", 0)
    assert experts.notes[0] == "bfloat16: llama-3-8b: it has no experts" and not experts.groups


def _half(y: Tensor, at: Any, wrong: bool) -> Tensor:
    if wrong:
        y[at] = 0
    return y


def head_norm(q: Tensor) -> Tensor:
    return functional.rms_norm(q.float(), q.shape[-1:], eps=1e-6).to(q.dtype)


def swiglu(x: Tensor, gate: Tensor) -> Tensor:
    return (x.float() * functional.silu(gate.float())).to(x.dtype)


def grouped(q: Tensor, k: Tensor) -> Tensor:
    return (q.float() * k.float().repeat_interleave(q.shape[1] // k.shape[1], 1)).to(q.dtype)


def best_experts(logits: Tensor) -> Tensor:
    return torch.topk(logits.float(), 4, -1).values.to(logits.dtype)


# Kernels that are wrong at the sizes of one model: 96 elements of a head in a block of 128, a tail of 32 beyond blocks
# of 64 as 11,008 shared by 8 GPUs leaves it, 7 heads for each head of keys, 256 experts, and 896 columns.
TWINS = {
    "phi-3-mini": declared(
        head_norm,
        {"q": "tokens heads head_dim"},
        lambda y, q: _half(y, (..., slice(64, None)), q.shape[-1] == 96),
    ),
    "llama-2-7b": declared(
        swiglu,
        {"x": "tokens intermediate", "gate": "tokens intermediate"},
        lambda y, *_: _half(y, (..., slice(-32, None)), y.shape[-1] % 64 == 32 and y.shape[-1] > 512),
    ),
    "qwen2.5-7b": declared(
        grouped,
        {"q": "tokens heads head_dim", "k": "tokens kv_heads head_dim"},
        lambda y, q, k: _half(y, (slice(None), -1), q.shape[1] // k.shape[1] == 7),
        where="heads % kv_heads == 0",
    ),
    "deepseek-v3": declared(
        best_experts,
        {"logits": "tokens experts"},
        lambda y, logits: _half(y, (..., -1), logits.shape[-1] == 256),
        where="experts >= 4",
    ),
    "qwen2.5-0.5b": declared(
        head_norm, {"q": "tokens hidden"}, lambda y, q: _half(y, (..., slice(512, None)), q.shape[-1] == 896)
    ),
}


@pytest.mark.parametrize("model", TWINS)
def test_a_kernel_that_is_wrong_at_a_models_sizes_is_found_there_alone(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    few_cases(monkeypatch)
    found = measure_kernel(TWINS[model], Measure("k.py::k", models=(model,)), backends.select())
    statuses = {result.output: result.status for result in found.results}
    assert statuses == {"y": "ok", f"y ({model})": "wrong"} and found.status == "wrong"


def test_a_declaration_may_ask_for_models(monkeypatch: pytest.MonkeyPatch) -> None:
    few_cases(monkeypatch)
    kernel = declared(double, {"x": "n d"}, sizes={"model": ["gpt2", "qwen3-8b"], "n": "tokens", "d": "hidden"})
    assert kernel.models == ("gpt2", "qwen3-8b") and kernel.sizes == {"n": "tokens", "d": "hidden"}
    run = measure_kernel(kernel, Measure("k.py::k"), backends.select())
    assert [result.output for result in run.results] == ["y", "y (gpt2)", "y (qwen3-8b)"] and run.status == "ok"
    assert len(declared(double, {"x": "tokens hidden"}, sizes="all").models) == len(MODELS)
    declare = verify.kernel(op="rms_norm", dtypes=["bfloat16"], sizes={"n": "hidden", "model": "gpt2"}, name="k")
    norm = declare(lambda x, weight: x)
    [group] = modelled(norm, "bfloat16", norm.models, "small", 0).groups
    assert {case.dims[1] for case in group.cases} == {768}
    assert "; at the sizes of gpt2" in norm.promise


@pytest.mark.parametrize(
    ("sizes", "text"),
    [
        ("qwen3-mo", r"sizes is one of qwen3-moe, .*, or all; received 'qwen3-mo' \(closest: qwen3-moe\)"),
        ({"e": "hidden"}, "sizes is about its dimensions, n, d; received 'e'"),
        ({"d": "hiden"}, r"sizes= is made of tokens, .*; received 'hiden' \(closest: hidden\)"),
        ({"d": "hidden +"}, r"received 'hidden \+'"),
        ({"d": 4}, "received 4"),
        ({"n": "tokens", "model": "gpt2"}, "d has no size in a model; these names have: tokens, batch"),
    ],
)
def test_sizes_that_cannot_be_read_are_refused(sizes: Any, text: str) -> None:
    with pytest.raises(UsageError, match=text):
        declared(double, {"x": "n d"}, sizes=sizes)
