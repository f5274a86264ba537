"""Patched models beside eager PyTorch's and Liger's: the wall time of a Llama's step, the bits of logits, and losses.

    python -m kernels.bench.llama                        all parts
    python -m kernels.bench.llama --only models --steps 200

step     wall time of a step, forward and backward, of LlamaForCausalLM with a loss, Python included: 24 layers, 2,048
         wide, bfloat16, 1 x 512 and 8 x 2,048 tokens. "patched" is patch(model), "liger" the patch of liger_kernel with
         its RMS norm, SwiGLU and rotary embedding. The loss is PyTorch's in all three. Contenders take turns; a figure
         is the median over rounds in milliseconds, and "patched over" has the ratios of "patched" to the others.
         `logits` has the error of the logits from the eager model's in float32: the norm of the difference over theirs
rope     microseconds of that Llama's rotary embedding alone, forward and in a step, in CUDA graphs that take turns;
         "copy" is a copy of queries and keys
models   five small models in bfloat16, each in a process of its own. `logits` of eager and of the patched models: the
         error as above, the distance from eager's logits (norm of the difference over theirs), and the share of them
         with eager's bits. "model, eager norms" leaves the norms as they are: no sum has another order. `losses` of a
         training on random tokens, every tenth, and `apart`, the largest difference of such a loss from eager's;
         "float32" is the eager model in float32, as a measure of what bfloat16 does

The JSON is printed, and written to $OUT/llama.json. Needs a GPU and transformers, 4 or 5; step and rope need Liger.
"""

from __future__ import annotations

import argparse
import copy
import json
import multiprocessing
import sys
from functools import partial
from typing import Any

import torch
import transformers
from torch import Tensor

from kernels.bench import block, everything, report
from kernels.patch import patch, unpatch
from kernels.rope import rope

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES = ((1, 512), (8, 2048))
SIZES = {
    "vocab_size": 32000, "hidden_size": 2048, "intermediate_size": 5632, "num_hidden_layers": 24,
    "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "max_position_embeddings": 2048,
}  # fmt: skip
SMALL = SIZES | {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2, "num_attention_heads": 8}


def model_of(family: str, sizes: dict[str, int]) -> Any:
    """Returns a model with random weights, the same in each call."""
    special = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2}
    config = getattr(transformers, f"{family}{'Text' * (family == 'Gemma3')}Config")(**sizes, **special)
    torch.manual_seed(0)
    return getattr(transformers, f"{family}ForCausalLM")(config).to(DEVICE)


def liger(model: Any) -> None:
    from liger_kernel.transformers import apply_liger_kernel_to_llama

    apply_liger_kernel_to_llama(rope=True, cross_entropy=False, fused_linear_cross_entropy=False, model=model)


def contenders(failed: dict[str, str]) -> dict[str, tuple[Any, float]]:
    """Returns contender -> its step as a function of tokens, and its logits' error. Names failures in `failed`."""
    exact, found = model_of("Llama", SIZES), {}
    module = sys.modules[type(exact).__module__]
    rotary, tokens = module.apply_rotary_pos_emb, torch.randint(3, SIZES["vocab_size"], SHAPES[0], device="cuda")
    with torch.no_grad():
        wanted = exact(tokens).logits
    for name, change in (("eager", id), ("patched", patch), ("liger", liger)):
        try:
            model = copy.deepcopy(exact.bfloat16())
            change(model)
            own, module.apply_rotary_pos_emb = module.apply_rotary_pos_emb, rotary  # Liger replaces it for all models

            def call(tokens: Tensor, gradients: bool = True, model: Any = model, own: Any = own) -> Any:
                module.apply_rotary_pos_emb = own
                result = model(tokens, labels=tokens, use_cache=False)
                module.apply_rotary_pos_emb = rotary
                return torch.autograd.grad(result.loss, list(model.parameters())) if gradients else result.logits

            with torch.no_grad():
                found[name] = call, block.error(call(tokens, False).float(), wanted)
        except Exception as problem:
            failed[name] = block.reason(problem)
    return found


def timed() -> dict[str, Any]:
    """Returns milliseconds of a step of each contender by shape, their ratios, and the errors of the logits."""
    found: dict[str, Any] = {"failed": {}}
    calls = contenders(found["failed"])
    found["logits"] = {name: error for name, (_, error) in calls.items()}
    for shape in SHAPES:
        tokens = torch.randint(3, SIZES["vocab_size"], shape, device="cuda")
        steps = {name: partial(call, tokens) for name, (call, _) in calls.items()}
        us = report.turns(
            steps, 9, partial(block.timed, steps=max(1, 4096 // tokens.numel())), skip=1
        )  # which compiles
        ms = {name: t / 1e3 for name, t in us.items()}
        ratios = {name: ms["patched"] / t for name, t in ms.items() if name != "patched"}
        found["x".join(map(str, shape))] = {"ms": ms, "patched over": ratios}
    return found


def rotary() -> dict[str, Any]:
    """Returns microseconds of the rotary embedding of each contender, by shape and pass."""
    from liger_kernel.ops.rope import LigerRopeFunction
    from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

    contenders = {
        "eager": apply_rotary_pos_emb, "compile": torch.compile(apply_rotary_pos_emb), "liger": LigerRopeFunction.apply,
        "ours": rope, "ours, model": partial(rope, contract="model"),
    }  # fmt: skip
    heads, found = [SIZES["num_attention_heads"], SIZES["num_key_value_heads"]], {"failed": {}}

    def step(function: Any, q: Tensor, k: Tensor, *others: Tensor) -> Any:
        leaves = q.detach().requires_grad_(), k.detach().requires_grad_()
        return torch.autograd.grad(function(*leaves, *others[:2]), leaves, others[2:])

    for shape in SHAPES:
        q, k, *upstream = (block.waves(*shape, n, SIZES["head_dim"]).bfloat16().transpose(1, 2) for n in heads * 2)
        whole, angles = torch.cat((q, k), 1), 9 * block.waves(1, shape[1], SIZES["head_dim"])
        operands = q, k, angles.cos().bfloat16(), angles.sin().bfloat16()  # Liger turns q and k in place
        forward = {name: partial(function, *operands) for name, function in contenders.items()}
        steps = {name: partial(step, function, *operands, *upstream) for name, function in contenders.items()}
        calls = {"forward": forward | {"copy": whole.clone}, "step": steps}
        us = {which: everything.graph_times(each, 10, found["failed"]) for which, each in calls.items()}
        found["x".join(map(str, shape))] = us
    return found


FAMILIES = ("Llama", "Qwen3", "Gemma3", "Mistral", "Olmo2")
CONTRACTS: dict[str, dict[str, Any]] = {"eager": {}, "once": {"contract": "once"}, "model": {"contract": "model"}}


def drawn(family: str) -> tuple[Any, Tensor]:
    """Returns a small model in bfloat16 and tokens, the same in each call."""
    model = model_of(family, SMALL).bfloat16()
    return model, torch.randint(3, SMALL["vocab_size"], (4, 128), device=model.device)


def logits(family: str) -> dict[str, dict[str, float]]:
    """Returns error, distance from eager's and share of eager's bits, of the logits of each contender."""
    model, tokens = drawn(family)
    found: dict[str, Tensor] = {}
    with torch.no_grad():
        exact = copy.deepcopy(model).float()(tokens).logits
        for name, how in CONTRACTS.items():
            if how:
                patch(model, **how)
            found[name] = model(tokens).logits
        for module in model.modules():
            if "Norm" in type(module).__name__:
                unpatch(module)
        found["model, eager norms"] = model(tokens).logits
    eager = found["eager"]
    return {
        name: {
            "error": block.error(each, exact.double()),
            "from eager": block.error(each, eager.double()),
            "equal": (each == eager).double().mean().item(),
        }
        for name, each in found.items()
    }


def losses(family: str, steps: int, name: str) -> list[float]:
    """Returns the losses of a training on random tokens."""
    model, made = drawn(family)[0], []
    if name == "float32":
        model = model.float()
    elif CONTRACTS[name]:
        patch(model, **CONTRACTS[name])
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in range(steps):
        tokens = torch.randint(3, 64, (4, 128), device=model.device)
        made.append(model(tokens, labels=tokens).loss)
        optimiser.zero_grad()
        made[-1].backward()
        optimiser.step()
    return torch.stack(made).float().tolist()


def family_of(family: str, steps: int) -> dict[str, Any]:
    """Returns the part "models" of a family."""
    found = {name: losses(family, steps, name) for name in (*CONTRACTS, "float32")}
    apart = {n: max(abs(a - b) for a, b in zip(each, found["eager"], strict=True)) for n, each in found.items()}
    del apart["eager"]
    return {"logits": logits(family), "apart": apart, "losses": {name: each[::10] for name, each in found.items()}}


def models(steps: int) -> dict[str, Any]:
    """Returns the logits and losses of each family."""
    with multiprocessing.get_context("spawn").Pool(len(FAMILIES)) as pool:
        return dict(zip(FAMILIES, pool.starmap(family_of, [(family, steps) for family in FAMILIES]), strict=True))


def main() -> None:
    parts = {"rope": rotary, "step": timed, "models": models}
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=parts, default=list(parts), help="parts; default: all")
    parser.add_argument("--steps", type=int, default=200, help="of a training of five small models")
    options = parser.parse_args()
    about = {"device": report.device("kernels.bench.llama"), "transformers": transformers.__version__}
    found = about | {n: parts[n](*(options.steps,) * (n == "models")) for n in options.only}
    report.save(None, "llama", **found)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
