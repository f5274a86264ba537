"""Times a Llama with these kernels beside PyTorch's and Liger's layers: the wall time of a step, Python included.

    python -m kernels.bench.llama                   24 layers, 2,048 wide, 1 x 512 and 8 x 2,048 tokens
    python -m kernels.bench.llama --curves 200      also losses of five small models on random tokens

A step is forward and backward of LlamaForCausalLM with a loss, in bfloat16 with random weights. "patched" is
patch(model), "liger" the patch of liger_kernel with its RMS norm, SwiGLU and rotary embedding. The loss is PyTorch's in
all three. Contenders take turns; a figure is the median over rounds in milliseconds, and "patched over" has the
ratios of "patched" to the others. `logits` has the norm of the difference from the eager model's logits in float32
relative to theirs. "rope" has microseconds of that Llama's rotary embedding alone, forward and in a step, in CUDA
graphs that take turns; "copy" is a copy of queries and keys. The JSON is printed, and written to $OUT/llama.json. Needs
a GPU, Liger and transformers, 4 or 5.
"""

from __future__ import annotations

import argparse
import copy
import itertools
import json
import statistics
import sys
from functools import partial
from typing import Any

import torch
import transformers
from torch import Tensor

from kernels.bench import block, everything, report
from kernels.patch import patch
from kernels.rope import rope

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
    return getattr(transformers, f"{family}ForCausalLM")(config).cuda()


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
        times: dict[str, list[float]] = {name: [] for name in calls}
        for turn in range(10):  # the first compiles
            for name in list(calls)[:: 1 if turn % 2 else -1]:
                step = partial(calls[name][0], tokens)
                times[name].append(block.timed(step, max(1, 4096 // tokens.numel())) / 1e3)
        ms = {name: statistics.median(each[1:]) for name, each in times.items()}
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


def curves(steps: int) -> dict[str, list[float]]:
    """Returns twenty losses of a training of each family on random tokens in bfloat16, eager and patched."""
    found = {}
    for family, name in itertools.product(("Llama", "Qwen3", "Gemma3", "Mistral", "Olmo2"), ("eager", "patched")):
        model, losses = model_of(family, SMALL).bfloat16(), []
        if name == "patched":
            patch(model)
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
        for _ in range(steps):
            tokens = torch.randint(3, 64, (4, 128), device="cuda")
            losses.append(model(tokens, labels=tokens).loss)
            optimiser.zero_grad()
            losses[-1].backward()
            optimiser.step()
        found[f"{family} {name}"] = torch.stack(losses[:: max(1, steps // 20)]).tolist()
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--curves", type=int, default=0, metavar="STEPS", help="steps of training of five small models")
    options = parser.parse_args()
    about = {"device": report.device("kernels.bench.llama"), "transformers": transformers.__version__}
    found = about | {"rope": rotary()} | timed() | ({"curves": curves(options.curves)} if options.curves else {})
    report.save(None, "llama", **found)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
