"""Every public function inside the rest of PyTorch: compilers, fake tensors, transforms, autocast, CUDA graphs."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F  # noqa: N812
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.utils._python_dispatch import TorchDispatchMode

from kernels.geglu import geglu, geglu_split
from kernels.gelu import gelu
from kernels.layer_norm import layer_norm, layer_norm_residual
from kernels.linear_act import linear_act
from kernels.linear_geglu import linear_geglu
from kernels.rms_norm import rms_norm_fp8, rms_norm_gated, rms_norm_residual
from kernels.swiglu import swiglu
from tests.kernels.public import DEVICE, FUNCTIONS, GPU, ROW, VECTOR, drawn, results, same

# One of each family; the law of compiled calls is tried on gelu, geglu and layer_norm (properties/).
COMPILED = ("gelu_backward", "layer_norm_residual_bias", "linear_act saved", "linear_geglu", "rms_norm_gated", "swiglu")


def longer(shapes, rows):
    """The shapes with another number of rows: the first dimension of what has more than the weights' dimensions."""
    return [(rows, *s[1:]) if s[0] in (2, 6) else s for s in shapes]


@pytest.mark.parametrize("name", COMPILED)
def test_one_compiled_program_takes_any_number_of_rows(name):
    from torch._dynamo.testing import CompileCounterWithBackend  # a second, in each process that collects this

    function, shapes = FUNCTIONS[name]
    counter = CompileCounterWithBackend("aot_eager")
    torch._dynamo.reset()
    compiled = torch.compile(lambda *operands: function(*operands), backend=counter, fullgraph=True, dynamic=True)
    programs = []
    for rows in (4, 7):
        leaves = drawn(rows, *longer(shapes, rows))
        assert same(results(compiled, leaves), results(function, leaves))
        programs.append(counter.frame_count)  # Dynamo makes two of a function with a float, and keeps one
    assert len(set(programs)) == 1


class Calls(TorchDispatchMode):
    """Keeps the arguments of calls of custom operators: the first with each choice of operands."""

    def __init__(self):
        super().__init__()
        self.found = {}

    def __torch_dispatch__(self, operator, types, args=(), kwargs=None):
        if operator.namespace not in ("aten", "prim", "prims"):
            form = operator, *(a if isinstance(a, str | bool | None) else type(a) for a in args)
            self.found.setdefault(form, [t.detach().clone() if isinstance(t, torch.Tensor) else t for t in args])
        return operator(*args, **(kwargs or {}))


def test_operators_are_what_they_are_registered_as():
    """Compiled programs below, with their gradients, show the rest of what `opcheck` can try, in seconds for each."""
    with Calls() as calls:
        for function, shapes in FUNCTIONS.values():
            results(function, drawn(0, *shapes))
        rms_norm_fp8(*drawn(0, ROW, VECTOR))
    assert len({operator for operator, *_ in calls.found}) >= 15
    for (operator, *_), args in calls.found.items():
        torch.library.opcheck(operator, args, test_utils=("test_schema", "test_faketensor"))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_fake_tensors_have_the_shapes_strides_and_dtypes_of_results(name):
    function, shapes = FUNCTIONS[name]
    leaves = drawn(0, *shapes, dtype=torch.bfloat16)
    real = results(function, leaves)
    with FakeTensorMode() as mode:
        fakes = results(function, [mode.from_tensor(t) for t in leaves])
    for fake, t in zip(fakes, real, strict=True):
        assert (fake.shape, fake.stride(), fake.dtype, fake.device) == (t.shape, t.stride(), t.dtype, t.device)


@pytest.mark.filterwarnings("ignore::UserWarning")  # vmap goes through the batch one by one
@pytest.mark.parametrize("name", FUNCTIONS)
def test_vmap_and_reverse_mode_transforms_give_the_bits_of_plain_calls(name):
    function, shapes = FUNCTIONS[name]

    def gradients(*operands):
        y, pullback = torch.func.vjp(function, *operands)
        return pullback(tuple(t.cos() for t in y) if isinstance(y, tuple) else y.cos())

    batch = [[t.detach() for t in drawn(seed, *shapes)] for seed in range(2)]
    stacked = [torch.stack(ts) for ts in zip(*batch, strict=True)]
    for transformed in (function, gradients):
        got = torch.func.vmap(transformed)(*stacked)
        for place, operands in enumerate(batch):
            want = transformed(*operands)
            got_here, want = (t if isinstance(t, tuple) else (t,) for t in (got, want))
            assert all(torch.equal(g[place], w) for g, w in zip(got_here, want, strict=True))
    leaves = drawn(0, *shapes)
    y = function(*leaves)
    upstream = tuple(t.detach().cos() for t in y) if isinstance(y, tuple) else y.detach().cos()
    assert same(torch.autograd.grad(y, leaves, upstream), gradients(*(t.detach() for t in leaves)))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_forward_mode_is_refused(name):
    function, shapes = FUNCTIONS[name]
    operands = tuple(t.detach() for t in drawn(0, *shapes))
    with pytest.raises(NotImplementedError, match=r"no forward-mode derivatives of it; take reverse mode"):
        torch.func.jvp(function, operands, operands)
    with (
        forward_ad.dual_level(),
        pytest.raises(NotImplementedError, match=r"no forward-mode derivatives of it; take reverse mode"),
    ):
        function(*(forward_ad.make_dual(t, t) for t in operands))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_nothing_given_is_written_to_and_a_graph_can_be_used_twice(name):
    function, shapes = FUNCTIONS[name]
    leaves = drawn(0, *shapes)
    y = function(*leaves)
    outputs = y if isinstance(y, tuple) else (y,)
    dense = [t.detach() for t in drawn(1, *(t.shape for t in outputs))]
    expanded = [torch.ones((), device=DEVICE).expand(t.shape) for t in outputs]
    before = [t.detach().clone() for t in (*leaves, *outputs, *dense, *expanded)]
    for upstream in (dense, expanded):
        first, second = (torch.autograd.grad(outputs, leaves, upstream, retain_graph=True) for _ in range(2))
        assert same(first, second)
    assert all(torch.equal(a, b) for a, b in zip((*leaves, *outputs, *dense, *expanded), before, strict=True))


def test_a_pending_negation_is_seen():
    x = torch.randn(6, 4, dtype=torch.complex64, device=DEVICE).conj().imag
    assert x.is_neg()
    assert torch.equal(gelu(x), gelu(x.resolve_neg()))


@pytest.mark.parametrize("linear", [partial(linear_act, activation="gelu"), linear_geglu], ids=["gelu", "geglu"])
def test_autocast_gives_the_bits_of_operands_that_were_cast(linear):
    x, *parameters = drawn(0, ROW, (16, 32), (16,))
    narrow = [t.bfloat16() for t in parameters]
    with torch.autocast(DEVICE, torch.bfloat16):
        y = linear(x.bfloat16(), *parameters)
    assert torch.equal(y, linear(x.bfloat16(), *narrow))


def test_autocast_is_that_of_the_functions_of_pytorch():
    """gelu and geglu keep the dtype, linear casts to autocast's, layer norm to float32 (PyTorch's on GPUs)."""
    x, weight, bias = drawn(0, ROW, VECTOR, VECTOR, dtype=torch.bfloat16)
    w, b = drawn(1, (16, 32), (16,))
    with torch.autocast(DEVICE, torch.bfloat16):
        assert gelu(x).dtype == F.gelu(x).dtype == geglu(x).dtype == torch.bfloat16
        assert gelu(x.float()).dtype == F.gelu(x.float()).dtype == torch.float32
        assert linear_act(x.float(), w, b).dtype == F.linear(x.float(), w, b).dtype == torch.bfloat16
        y = layer_norm(x, weight, bias)
        assert [t.dtype for t in layer_norm_residual(x, x)] == [torch.bfloat16] * 2
        assert layer_norm(x.double()).dtype == torch.float64
        if GPU:
            assert y.dtype == F.layer_norm(x, (32,), weight, bias).dtype
        gradients = torch.autograd.grad(y.sum(), (x, weight, bias))
    assert torch.equal(y, layer_norm(x.float(), weight.float(), bias.float()))
    assert y.dtype == torch.float32 and {t.dtype for t in gradients} == {torch.bfloat16}


@pytest.mark.gpu
@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_captured_step_gives_the_bits_of_a_plain_one(name):
    """Captured when the form was never seen, when it was seen once, and when it is repeated from a plan."""
    from kernels import plans

    function, shapes = FUNCTIONS[name]
    expected = results(function, drawn(1, *shapes))
    for calls in (0, 1, 3):
        plans.forget()
        leaves, stream = drawn(0, *shapes), torch.cuda.Stream()
        with torch.cuda.stream(stream):
            for _ in range(calls):
                results(function, leaves)
        stream.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            captured = results(function, leaves)
        with torch.no_grad():
            for leaf, t in zip(leaves, drawn(1, *shapes), strict=True):
                leaf.copy_(t)
        graph.replay()
        torch.cuda.synchronize()
        assert same(captured, expected)


def decoder(x, r, w, both, down, gate):
    """A block with an operator of each family."""
    y, s = rms_norm_residual(x, r, w, contract="model")
    h = swiglu(y @ both.t(), inplace=True)  # a compiled program overwrites nothing of its own accord
    y, s = layer_norm_residual(linear_act(h, down, activation="gelu"), s, w)
    y = rms_norm_gated(y, gate, w) + geglu_split(y, s, contract="model")
    return gelu(linear_geglu(y, both, None)), s


def test_a_block_of_every_family_is_one_graph_forward_and_backward():
    shapes = [(6, 64), (6, 64), (64,), (128, 64), (64, 64), (6, 64)]
    leaves = drawn(3, *shapes, dtype=torch.bfloat16)
    torch._dynamo.reset()
    compiled = torch.compile(decoder, fullgraph=True, backend="aot_eager")
    assert same(results(compiled, leaves), results(decoder, leaves))


VISIBLE = """
import torch
from torch._dynamo.backends.common import aot_autograd
from torch._functorch.partitioners import default_partition
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from kernels import operators
from kernels.layer_norm import layer_norm_residual
from kernels.rms_norm import rms_norm

class Driver:
    get_current_device = staticmethod(lambda: 0)
    get_current_stream = staticmethod(lambda device: 0)
    get_current_target = staticmethod(lambda: GPUTarget("cuda", 90, 32))

driver.set_active(Driver())

def block(x, r, w):
    y, s = layer_norm_residual(x * 2, r, w)
    return rms_norm(torch.nn.functional.silu(y) * s, w)

def partition(joint, inputs, **how):
    names = [str(node.target) for node in joint.graph.nodes]
    launches = [node for node in joint.graph.nodes if "triton_kernel_wrapper" in str(node.target)]
    print(sum("verify_kernels" in name for name in names), len(launches))
    print(*sorted({name for node in launches for name in node.kwargs["tensors_to_clone"]}))
    return default_partition(joint, inputs, **how)

class Seen(Exception):
    pass

def stop(program, inputs):
    raise Seen

x, r = (torch.randn(64, 256, dtype=torch.bfloat16, requires_grad=True) for _ in range(2))
w = torch.ones(256, dtype=torch.bfloat16, requires_grad=True)
for shown in (False, True):
    torch._dynamo.reset()
    operators.show_launches(shown)
    try:
        torch.compile(block, fullgraph=True, backend=aot_autograd(fw_compiler=stop, partition_fn=partition))(x, r, w)
    except Exception as problem:
        assert "Seen" in repr(problem) or "Seen" in str(problem), problem
"""


def test_a_compiler_sees_the_launches_of_norms_if_it_is_shown_them(printed, tmp_path):
    """Only results are written: of an operand that Triton's analysis took for one, the program would make a copy."""
    opaque, _, launches, written = printed(VISIBLE, tmp_path, 120).splitlines()
    assert opaque == "4 0" and launches == "0 6"
    results = {"dx_ptr", "hard_ptr", "dw_ptr", "part_ptr", "s_ptr", "stats_ptr", "suspect_ptr", "sums_ptr", "y_ptr"}
    assert set(written.split()) <= results, written
