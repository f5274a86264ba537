"""kernels/patch.py: a patched model computes the same function, keeps its parameters, and is undone exactly."""

from __future__ import annotations

import copy
import importlib.util
import re

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn

from kernels import layers, modules
from kernels.patch import from_layer, patch, unpatch
from tests.kernels.public import DEVICE

WIDTH = 64
FAMILIES = {  # of transformers: prefix of its classes, the layers that replace those of a model with two blocks
    "llama": ("Llama", "LlamaForCausalLM", {"LlamaAttention with rope": 2, "SwiGLUMLP": 2, "LlamaRMSNorm": 5}),
    "mistral": ("Mistral", "MistralForCausalLM", {"MistralAttention with rope": 2, "SwiGLUMLP": 2, "LlamaRMSNorm": 5}),
    "qwen3": ("Qwen3", "Qwen3ForCausalLM", {"Qwen3Attention with rope": 2, "SwiGLUMLP": 2, "LlamaRMSNorm": 9}),
    "olmo2": ("Olmo2", "Olmo2ForCausalLM", {"Olmo2Attention with rope": 2, "SwiGLUMLP": 2, "OlmoRMSNorm": 9}),
    "gemma3": (
        "Gemma3Text",
        "Gemma3ForCausalLM",
        {"Gemma3Attention with rope": 2, "GEGLUTanhMLP": 2, "GemmaRMSNorm": 13},
    ),
    "phi": ("Phi", "PhiForCausalLM", {"PhiAttention with rope": 2, "LinearGELUTanh": 2, "Applied": 2, "LayerNorm": 3}),
}


class Norm(nn.Module):
    """An RMS norm of a model: `rule` makes the result of x, weight and xhat."""

    def __init__(self, rule, eps=1e-5):
        super().__init__()
        self.weight, self.rule, self.eps = nn.Parameter(torch.randn(WIDTH)), rule, eps

    def forward(self, x):
        wide = x.float()
        xhat = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
        return self.rule(x, self.weight, xhat)


RULES = {
    "LlamaRMSNorm": lambda x, w, xhat: w * xhat.to(x.dtype),
    "OlmoRMSNorm": lambda x, w, xhat: (w * xhat).to(x.dtype),
    "GemmaRMSNorm": lambda x, w, xhat: (xhat * (1.0 + w.float())).to(x.dtype),
}


class GatedMLP(nn.Module):
    def __init__(self, act):
        super().__init__()
        self.gate_proj, self.up_proj = nn.Linear(WIDTH, 96, bias=False), nn.Linear(WIDTH, 96)
        self.down_proj, self.act_fn = nn.Linear(96, WIDTH), act

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))


class MLP(nn.Module):
    """Two linear layers; `uses` is how often the first one's result is needed."""

    def __init__(self, act, uses=1):
        super().__init__()
        self.fc1, self.act, self.drop = nn.Linear(WIDTH, 96), act, nn.Dropout(0.5)
        self.fc2, self.uses = nn.Linear(96, WIDTH), uses

    def forward(self, x):
        y = self.fc1(x)
        return self.fc2(self.drop(self.act(y)) * (y if self.uses > 1 else 1))


class SquaredReLUActivation(nn.Module):
    def forward(self, x):
        return F.relu(x).square()


def model_of(*inner):
    torch.manual_seed(0)
    return nn.Sequential(*(copy.deepcopy(each) for each in inner)).to(DEVICE)


OURS = model_of(
    *(Norm(rule) for rule in RULES.values()), nn.LayerNorm(WIDTH), GatedMLP(nn.SiLU()), nn.RMSNorm(WIDTH),
    GatedMLP(nn.GELU()), GatedMLP(nn.GELU("tanh")), MLP(nn.GELU()), MLP(SquaredReLUActivation()),
    nn.Linear(WIDTH, WIDTH), nn.GELU("tanh"), nn.Tanh(), nn.GELU(),
)  # fmt: skip


def gradients(model, logits):
    upstream = torch.sin(torch.arange(logits.numel(), device=DEVICE) + 1.0).view(logits.shape).to(logits.dtype)
    return torch.autograd.grad(logits, list(model.parameters()), upstream)


def holds(model, call, expected, tolerance=2e-5):
    """Patches a model and takes it back. Checks outputs, gradients, parameters and the report on the way."""
    model.eval()
    before, held = call(model), dict(model.named_parameters())
    wanted, state = gradients(model, before), {name: t.clone() for name, t in model.state_dict().items()}
    report = patch(model)
    counts = {name: list(report.replaced.values()).count(name) for name in report.replaced.values()}
    assert counts == expected and report.left == {}
    after = call(model)
    assert 0 < (after - before).norm() <= tolerance * before.norm()
    for name, got, want in zip(held, gradients(model, after), wanted, strict=True):
        assert (got - want).norm() <= 10 * tolerance * want.norm(), name
        assert got.any() or not want.any()
    assert all(held[name] is parameter for name, parameter in model.named_parameters())
    assert model.state_dict().keys() == state.keys()
    assert all(torch.equal(t, state[name]) for name, t in model.state_dict().items())
    copied = copy.deepcopy(model)  # computes with its own parameters
    unpatch(model)
    assert torch.equal(call(model), before) and not any("forward" in vars(m) for m in model.modules())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert torch.equal(call(copied), after)


@pytest.mark.parametrize("family", FAMILIES)
def test_models_of_transformers_are_patched_and_taken_back(family):
    if importlib.util.find_spec("transformers") is None:
        pytest.skip("transformers is not installed; pip install transformers")
    import transformers

    prefix, name, expected = FAMILIES[family]
    sizes = {"vocab_size": 97, "hidden_size": WIDTH, "intermediate_size": 96, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "max_position_embeddings": 16}
    heads |= {} if family == "phi" else {"head_dim": 16}
    config = getattr(transformers, f"{prefix}Config")(**sizes, **heads, pad_token_id=0, bos_token_id=1, eos_token_id=2)
    torch.manual_seed(0)
    model = getattr(transformers, name)(config).to(DEVICE)
    tokens = torch.randint(3, 97, (1, 5), device=DEVICE)
    holds(model, lambda m: m(tokens).logits, expected)


def test_layers_are_found_by_what_they_compute():
    x = torch.randn(3, WIDTH, device=DEVICE)
    names = [*RULES, "LayerNorm", "SwiGLUMLP", "RMSNorm", "GEGLUMLP", "GEGLUTanhMLP", "LinearGELU"]
    expected = dict.fromkeys([*names, "LinearSquaredReLU", "LinearGELUTanh", "GELU"], 1) | {"Applied": 3}
    holds(copy.deepcopy(OURS), lambda m: m(x), expected)


def test_dtypes_of_results_stay():
    for name, rule in RULES.items():
        model = model_of(Norm(rule))
        x = torch.randn(3, WIDTH, device=DEVICE).bfloat16()
        before = model(x)
        assert patch(model).replaced == {"0": name}
        assert model(x).dtype == before.dtype == (torch.float32 if name == "LlamaRMSNorm" else torch.bfloat16)
        torch.testing.assert_close(model(x), before, rtol=2**-7, atol=0)


class LateEpsNorm(Norm):
    def forward(self, x):
        return self.weight * (x / (x.pow(2).mean(-1, keepdim=True).sqrt() + self.eps))


class ScaledNorm(Norm):
    def forward(self, x, scale):
        return self.rule(x, self.weight, x) * scale


class OnlyInTraining(MLP):
    def forward(self, x):
        return super().forward(x) if self.training else x


HOOKED = MLP(nn.GELU())
HOOKED.fc1.register_forward_hook(lambda module, args, result: None)
SHARED = nn.GELU()
GATE_AND_ACT = {"0": "no down_proj.* with SiLU or GELU", "0.act_fn": "squared ReLU alone has no kernel here"}
STAY = {  # what is not replaced, the layers that are, and the reason at the path of each that is not
    "another formula": (LateEpsNorm(None), {}, {"0": "LateEpsNorm computes no RMS norm of Llama, OLMo or Gemma"}),
    "other arguments": (ScaledNorm(None), {}, {"0": "ScaledNorm cannot be tried: TypeError: .* 'scale'"}),
    "another norm": (nn.BatchNorm1d(3), {}, {"0": "BatchNorm1d is no RMS norm with a weight"}),
    "another gate": (GatedMLP(nn.Sigmoid()), {}, {}),
    "squared gate": (GatedMLP(SquaredReLUActivation()), {}, GATE_AND_ACT),
    "SiLU": (MLP(nn.SiLU()), {}, {"0.act": "SiLU alone has no kernel here"}),
    "unknown": (MLP(nn.ReLU()), {}, {}),
    "used twice": (MLP(nn.GELU(), uses=2), {"0.act": "GELU"}, {}),
    "not used in the trial": (OnlyInTraining(nn.GELU()), {"0.act": "GELU"}, {}),
    "hooked": (HOOKED, {"0.act": "GELU"}, {}),
    "shared": (nn.Sequential(MLP(SHARED), MLP(SHARED)), {"0.0.act": "GELU"}, {}),
}


@pytest.mark.parametrize("case", STAY)
def test_what_stays_is_named_with_the_reason(case):
    layer, replaced, left = STAY[case]
    model = model_of(layer)
    report = patch(model)
    assert report.replaced == replaced and report.left.keys() == left.keys()
    for path, reason in left.items():
        assert re.search(reason, report.left[path])
    others = {"another gate": "Sigmoid", "unknown": "ReLU"}
    assert others.get(case, "") in str(report).splitlines()[-1]


def test_a_forward_of_somebody_else_stays():
    model = model_of(nn.LayerNorm(WIDTH))
    model[0].forward = lambda x: 2 * x
    assert patch(model).left == {"0": "something else has replaced its forward"}
    unpatch(model)
    assert model(torch.ones(2, WIDTH, device=DEVICE)).unique().item() == 2


def test_a_layer_of_its_own_shares_the_parameters():
    x = torch.randn(3, WIDTH, device=DEVICE)
    for layer in OURS[:8]:
        made = from_layer(layer)
        assert type(made).forward is not type(layer).forward and "forward" not in vars(layer)
        assert [id(p) for p in made.parameters()] == [id(p) for p in layer.parameters()]
        torch.testing.assert_close(made(x), layer(x), rtol=1e-5, atol=1e-5)
    with pytest.raises(TypeError, match="from_layer: Tanh cannot be replaced: it is no norm, gated MLP or activation"):
        from_layer(nn.Tanh())


def test_a_patched_model_compiles_as_one_graph():
    model, x = model_of(OURS[2], OURS[8]).eval(), torch.randn(2, WIDTH, device=DEVICE)
    patch(model)
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), model(x))
    assert all(g.any() for g in torch.autograd.grad(compiled(x).square().sum(), list(model.parameters())))


def test_layers_have_the_form_of_the_hub():
    members = {*dir(nn.Module), "__annotations__", "can_torch_compile"}
    for layer in layers.ALL:
        assert layer.__init__ is nn.Module.__init__ and set(dir(layer)) <= members, layer
        assert getattr(layers, layer.__name__) is layer


def test_a_contract_reaches_the_functions(monkeypatch):
    seen = []
    for module, name in ((layers, "rms_norm"), (layers, "gelu"), (modules, "layer_norm"), (modules, "rms_norm")):
        monkeypatch.setattr(module, name, lambda x, *vectors, n=name, **options: seen.append((n, options)) or x)
    model, x = model_of(*OURS[:4], OURS[5], OURS[-1]), torch.randn(3, WIDTH, device=DEVICE)
    torchs = {"convention": "olmo"}
    wanted = [("rms_norm", {}), ("rms_norm", torchs), ("rms_norm", {"convention": "gemma"})]
    wanted += [("layer_norm", {}), ("rms_norm", torchs), ("gelu", {})]
    for contract, passed in (("model", {"contract": "model"}), ("once", {})):
        patch(model, contract=contract)
        model(x)
        for options in (options for _, options in seen):
            options.pop("eps", None)
        assert seen == [(name, passed and passed | more) for name, more in wanted]
        seen.clear()
        mlp = from_layer(OURS[4], contract=contract)
        layers._mlp(lambda up, gate, **options: seen.append(options) or up)(mlp, x)
        assert seen.pop() == passed
    with pytest.raises(ValueError, match='Norm: contract must be "once" or "model", got .twice.'):
        patch(model, contract="twice")
    assert not any("forward" in vars(module) for module in model.modules())
    assert modules.GELU(contract="model").contract == "model" and modules.SwiGLU(contract="model").contract == "model"
    assert "contract" not in vars(modules.LayerNorm(4)) and modules.LinearGELU(4, 4, contract="model").bias is not None


class SteppedGELU(nn.Module):
    """GELU of the tanh form that rounds after each operation."""

    def forward(self, x):
        return 0.5 * x * (1 + torch.tanh(0.7978845608 * (x + 0.044715 * x * x * x)))


def test_the_models_contract_gives_the_bits_of_the_layers():
    model = model_of(*OURS[:3], *OURS[4:8]).bfloat16()
    x = torch.randn(5, WIDTH, device=DEVICE).bfloat16()
    before = model(x)
    once, other = (patch(model, contract=contract) and model(x) != before for contract in ("once", "model"))
    assert once.any() and other.float().mean() <= 0.002  # sums of a norm have another order


def test_an_activation_with_other_bits_than_torchs_has_no_contract_of_the_model():
    model = model_of(SteppedGELU())
    assert patch(model).replaced == {"0": "GELUTanh"}
    assert "SteppedGELU has other bits than torch's tanh GELU" in patch(model, contract="model").left["0"]


def rotate_half(x):
    first, second = x.chunk(2, -1)
    return torch.cat((-second, first), -1)


def apply_rotary_pos_emb(q, k, cos, sin, unsqueeze_dim=1):
    """Llama's function; tests put others in its place."""
    cos, sin = cos.unsqueeze(unsqueeze_dim), sin.unsqueeze(unsqueeze_dim)
    return q * cos + rotate_half(q) * sin, k * cos + rotate_half(k) * sin


def olmo(q, k, cos, sin, llama=apply_rotary_pos_emb):
    return tuple(y.to(x.dtype) for x, y in zip((q, k), llama(q, k, cos, sin), strict=True))


def first_numbers(q, k, cos, sin, llama=apply_rotary_pos_emb):
    """Phi-3's: numbers without an angle stay."""
    r = cos.shape[-1]
    turned = llama(q[..., :r], k[..., :r], cos, sin)
    return tuple(torch.cat((y, x[..., r:]), -1) for x, y in zip((q, k), turned, strict=True))


class Attention(nn.Module):
    """What is left of an attention: queries and keys of `x`, turned by `angles`, and their scores."""

    def __init__(self, turned=16, **options):
        super().__init__()
        self.q_proj, self.turned, self.options = nn.Linear(WIDTH, WIDTH), turned, options

    def forward(self, x, *, heads=4):
        q = self.q_proj(x).view(*x.shape[:2], heads, -1)
        k, angles = q[:, :, :2] * 2, torch.arange(x.shape[1] * self.turned, device=x.device).view(1, -1, self.turned)
        if not self.options:
            q, k = q.transpose(1, 2), k.transpose(1, 2)
        angles = angles.to(torch.float32 if x.dtype == torch.bfloat16 and self.turned == 8 else x.dtype)
        q, k = apply_rotary_pos_emb(q, k, angles.cos(), angles.sin(), **self.options)
        return torch.cat((q, k), 2 if self.options else 1)


@pytest.mark.parametrize("function", [apply_rotary_pos_emb, olmo, first_numbers], ids=["llama", "olmo", "part"])
@pytest.mark.parametrize("contract", ["model", "once"])
def test_the_rotary_embedding_of_one_model_is_replaced(monkeypatch, function, contract):
    """Other models of its module keep theirs, and dtypes of results stay: Llama's are those of the wider operands."""
    monkeypatch.setitem(globals(), "apply_rotary_pos_emb", function)
    x = torch.randn(2, 5, WIDTH, device=DEVICE)
    layer = Attention(8 if function is first_numbers else 16)
    model, other = model_of(layer), model_of(layer)
    for dtype in (torch.bfloat16, torch.float32):
        model, other, x = model.to(dtype), other.to(dtype), x.to(dtype)
        want = other(x)
        assert patch(model, contract=contract).replaced == {"0": "Attention with rope"}
        copied, got = copy.deepcopy(model), model(x)
        exact = contract == "model" and want.dtype == torch.bfloat16
        assert (
            torch.equal(got, want) if exact else 0 < (got - want).norm() <= 2 * torch.finfo(got.dtype).eps * want.norm()
        )
        assert got.dtype == want.dtype and torch.equal(other(x), want) and torch.equal(copied(x), got)
        unpatch(model)
        assert torch.equal(model(x), want) and "forward" not in vars(model[0])


def test_a_layer_of_its_own_has_the_rotary_embedding():
    layer, x = model_of(Attention())[0], torch.randn(2, 5, WIDTH, device=DEVICE)
    made = from_layer(layer)
    assert isinstance(made, Attention) and made.q_proj is layer.q_proj
    assert 0 < (made(x) - layer(x)).norm() <= 1e-6 * layer(x).norm()


def test_heads_elsewhere_are_turned_by_the_function_of_the_model():
    model, x = model_of(Attention(unsqueeze_dim=2)), torch.randn(2, 5, WIDTH, device=DEVICE)
    want = model(x)
    assert patch(model).replaced == {"0": "Attention with rope"}
    assert torch.equal(model(x), want)


def test_an_attention_that_computes_something_else_stays(monkeypatch):
    def last_numbers(q, k, cos, sin, llama=apply_rotary_pos_emb):
        r = q.shape[-1] - cos.shape[-1]
        turned = llama(q[..., r:], k[..., r:], cos, sin)
        return tuple(torch.cat((x[..., :r], y), -1) for x, y in zip((q, k), turned, strict=True))

    functions = {
        "cannot be tried: TypeError: .* 'position'": lambda q, k, cos, sin, position: (q, k),
        "cannot be tried: ValueError": lambda q, k, cos, sin: (q, k, cos),
        "neither Llama's nor OLMo's": lambda q, k, cos, sin, llama=apply_rotary_pos_emb: llama(q, k, sin, cos),
        "neither Llama's nor OLMo's$": last_numbers,
        "neither .*": lambda q, k, cos, sin: (q, k),
    }
    for reason, function in functions.items():
        monkeypatch.setitem(globals(), "apply_rotary_pos_emb", function)
        report = patch(model_of(Attention()))
        assert not report.replaced and re.search(reason, report.left["0"])

    class Decorated(Attention):
        forward = torch.no_grad()(Attention.forward)

    assert patch(model_of(Decorated())).left == {"0": "Decorated has a decorated forward"}


def test_a_patched_attention_compiles_as_one_graph():
    model, x = model_of(Attention()), torch.randn(2, 5, WIDTH, device=DEVICE)
    patch(model)
    torch._dynamo.reset()
    compiled = torch.compile(model, fullgraph=True, backend="aot_eager")
    assert torch.equal(compiled(x), model(x))
    grads = [torch.autograd.grad(f(x).square().sum(), list(model.parameters())) for f in (compiled, model)]
    assert all(map(torch.equal, *grads))
