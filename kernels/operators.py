"""Custom operators for PyTorch, with a fast path for plain calls.

    @operator("namespace::name")
    def name(x: Tensor, flag: bool) -> Tensor: ...        allocates and launches; absent results of a tuple are None
    name.register_fake(...)                               the same without memory
    name.register_autograd(backward, setup_context)       as for torch.library.custom_op

    name(x, flag)
    name.checked(check, x, flag)                          calls check(x, flag) first, unless the form has a plan

torch.library's dispatch costs tens of microseconds a call. A plain call has only dense tensors on the kernels' device
and skips this dispatch. It runs the launcher from a plan (plans.py). If a gradient is needed, it does so inside a
torch.autograd.Function made of the same two functions.

Code that works on operators gets the registered operator: compilers and their fake tensors, dispatch modes, transforms
of torch.func, tensor subclasses and tensors with a pending negation. The registered operator returns an empty tensor
for an absent result.

Forward-mode derivatives raise NotImplementedError, because the registered operator would return zeros for them.

torch.compile sees a registered operator as one opaque node. With `show_launches(True)` it sees the allocations and the
launches of operators made with `visible=True` instead, as of torch.library.triton_op, and Inductor plans their memory
with its own. These are the norms. Inductor compiles a kernel without enable_fp_fusion=False and without descriptors, so
GELU, the gates and the linear layers stay opaque: their bits would change. A visible program is of one number of rows.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.compiler import is_dynamo_compiling

from .launch import INTERPRETED, trace
from .plans import Plan, Planned, form_of, waiting

_transforms, _modes = torch._C._are_functorch_transforms_active, torch._C._len_torch_dispatch_stack
_tracing = torch._C._get_tracing_state
_shown = False


def show_launches(on: bool) -> None:
    """Chooses what programs compiled from now on see of visible operators: their launches, or opaque nodes."""
    global _shown
    _shown = on


def _differentiates() -> bool:
    """True if forward mode or a transform of torch.func is active that needs derivatives of a function."""
    if not _transforms():
        return forward_ad._current_level >= 0
    functorch = torch._C._functorch
    return functorch.peek_interpreter_stack().key() != functorch.TransformType.Functionalize


class Operator:
    """An operator: its launcher with plans, PyTorch's registered operator, and an autograd Function if it has one."""

    __name__: str

    def __init__(self, name: str, launcher: Any, visible: bool = False) -> None:
        self.launcher = Planned(launcher)
        schema = torch.library.infer_schema(launcher, mutates_args=())
        self._definition = torch.library.custom_op(name, self._filled(self.launcher), mutates_args=(), schema=schema)
        self.registered = self._definition._opoverload
        self.known = self.launcher.known
        self._tensors = schema.split("->")[0].count("Tensor")  # arguments; they are the first ones
        self.function: type[torch.autograd.Function] | None = None  # of the registered operator, for transforms
        self._apply: Any = self.registered  # of plain calls that record for a backward pass
        functools.update_wrapper(self, launcher)
        if visible and not INTERPRETED:
            from torch._subclasses.functional_tensor import FunctionalTensorMode

            self._definition.register_torch_dispatch(FunctionalTensorMode, self._decomposed)

    def _decomposed(self, mode: Any, op: Any, types: Any, args: Any, kwargs: Any) -> Any:
        """Lets a compiler trace the launcher, as torch.library.triton_op does, or the operator itself."""
        from torch.export._trace import custom_triton_ops_decomposition_disabled

        if not _shown or custom_triton_ops_decomposition_disabled():
            return mode.__torch_dispatch__(op, types, args, kwargs)
        before = trace(True)
        try:
            with mode:
                return self._filled(self.launcher.launcher)(*args, **(kwargs or {}))
        finally:
            trace(before)

    @staticmethod
    def _filled(launcher: Any) -> Any:
        """Returns `launcher` with an empty tensor for each absent result, as a registered operator needs."""

        def registered(*args: Any) -> Any:
            results = launcher(*args)
            if isinstance(results, tuple):
                like = next(arg for arg in args if isinstance(arg, Tensor))
                return tuple(like.new_empty((0,)) if t is None else t for t in results)
            return results

        return registered

    def register_fake(self, fake: Any) -> Any:
        """Registers the function that returns results without memory, for compilers."""
        self._definition.register_fake(self._filled(fake))
        return fake

    def _save(self, ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs[: self._tensors])
        ctx.values = inputs[self._tensors :]
        if isinstance(output, tuple):
            ctx.set_materialize_grads(False)

    def register_autograd(self, backward: Any, setup_context: Any = None, hidden: int = 0) -> None:
        """Registers the derivatives, for the registered operator and for plain calls.

        Args:
            setup_context: None: ctx.saved_tensors and ctx.values are the arguments, and `backward` of an operator with
                several results gets None for a gradient that is zero
            hidden: number of results, the last ones, that only `backward` reads; a plain call that needs a gradient
                does not return them, and `backward` gets no gradients of them
        """
        setup_context = setup_context or self._save
        self._definition.register_autograd(backward, setup_context=setup_context)

        def plain(ctx: Any, *args: Any) -> Any:
            call, given = waiting.call
            results = call(*given)
            setup_context(ctx, args, results)
            return results[:-hidden] if hidden else results

        def jvp(ctx: Any, *tangents: Any) -> Any:
            raise NotImplementedError(
                f"{self.__name__}: there are no forward-mode derivatives of it; take reverse mode "
                "(backward, torch.func.grad, vjp, jacrev)"
            )

        def function(**members: Any) -> Any:
            members = {name: staticmethod(member) for name, member in members.items()} | {"generate_vmap_rule": True}
            return type(self.__name__, (torch.autograd.Function,), members)

        forward = functools.partial(self.registered)
        self.function = function(forward=forward, setup_context=setup_context, backward=backward, jvp=jvp)
        recording = function(forward=plain, backward=backward)
        # torch.autograd.Function.apply takes microseconds to look at the arguments before it calls this one
        self._apply = super(torch.autograd.Function, recording).apply  # type: ignore[misc]
        # the engine calls `apply` of a node, which looks `backward` up at each call
        recording._backward_cls.apply = backward

    def __call__(self, *args: Any) -> Any:
        return self.checked(None, *args)

    def checked(self, check: Any, *args: Any) -> Any:
        """Calls the operator. Calls check(*args) first, unless a plan shows that this form passed before.

        Args:
            check: raises if the arguments break a rule; None: nothing is checked
        """
        if is_dynamo_compiling():
            if check is not None:
                check(*args)
            return self.registered(*args)
        if type(args[0]) is Tensor and forward_ad._current_level < 0:
            for repeated in self.known.get(args[0].numel(), ()):
                results = repeated(args)
                if results is not None:
                    return results
        return self._unknown(check, args)

    def _unknown(self, check: Any, args: tuple[Any, ...]) -> Any:
        """Does what `checked` does, for a call that is not recognised."""
        form = form_of(args)
        plan = None if form is None else self.launcher.plans.get(form[0])
        if check is not None and type(plan) is not Plan:
            check(*args)
        if _transforms() or _modes() or _tracing() or forward_ad._current_level >= 0:
            return self.function.apply(*args) if self.function and _differentiates() else self.registered(*args)
        if type(plan) is Plan and type(args[0]) is Tensor:
            self.launcher.know(plan, args, self._apply)
        if form is None or (form[2] and self.function is None):
            return self.registered(*args)
        if form[2]:
            waiting.call = self.launcher.by, (plan, form, args)
            try:
                return self._apply(*args)
            finally:
                waiting.call = None  # which keeps no tensor
        return self.launcher.by(plan, form, args)


def launcher_of(of: Operator) -> Any:
    """Returns the undecorated launcher of an operator, for a launcher that calls several."""
    return of.launcher.launcher


def operator(name: str, visible: bool = False) -> Any:
    """Returns a decorator that makes an Operator of a launcher.

    Args:
        name: "namespace::name"
        visible: a compiler may see the launches: see show_launches
    """
    return functools.partial(Operator, name, visible=visible)
