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
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from kernels.plans import CHANGES, Form, Known, Plan, Planned, form_of

_thread = threading.local()  # .known: plan and form of the call whose autograd Function is running
_transforms, _modes = torch._C._are_functorch_transforms_active, torch._C._len_torch_dispatch_stack
_tracing = torch._C._get_tracing_state


def _differentiates() -> bool:
    """True if forward mode or a transform of torch.func is active that needs derivatives of a function."""
    if not _transforms():
        return forward_ad._current_level >= 0
    functorch = torch._C._functorch
    return functorch.peek_interpreter_stack().key() != functorch.TransformType.Functionalize


class Operator:
    """An operator: its launcher with plans, PyTorch's registered operator, and an autograd Function if it has one."""

    __name__: str

    def __init__(self, name: str, launcher: Any) -> None:
        self.launcher = Planned(launcher)
        schema = torch.library.infer_schema(launcher, mutates_args=())
        self._definition = torch.library.custom_op(name, self._filled(self.launcher), mutates_args=(), schema=schema)
        self.registered = self._definition._opoverload
        self.function: type[torch.autograd.Function] | None = None
        functools.update_wrapper(self, launcher)

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

    def register_autograd(self, backward: Any, setup_context: Any) -> None:
        """Registers the derivatives, for the registered operator and for plain calls."""
        self._definition.register_autograd(backward, setup_context=setup_context)

        def forward(*args: Any) -> Any:
            known: Any = getattr(_thread, "known", None)
            _thread.known = None
            if known is None:
                return self.registered(*args)
            plan, form = known
            return self.launcher.by(plan, form, args)

        def jvp(ctx: Any, *tangents: Any) -> Any:
            raise NotImplementedError(
                f"{self.__name__}: there are no forward-mode derivatives of it; take reverse mode "
                "(backward, torch.func.grad, vjp, jacrev)"
            )

        members = {"forward": forward, "setup_context": setup_context, "backward": backward, "jvp": jvp}
        self.function = type(
            self.__name__,
            (torch.autograd.Function,),
            {name: staticmethod(member) for name, member in members.items()} | {"generate_vmap_rule": True},
        )
        # torch.autograd.Function.apply also binds the arguments to forward's signature, which takes 20 microseconds
        self._apply = super(torch.autograd.Function, self.function).apply  # type: ignore[misc]
        # the engine calls `apply` of a node, which looks `backward` up at each call
        self.function._backward_cls.apply = backward  # type: ignore[attr-defined]

    def __call__(self, *args: Any) -> Any:
        return self.checked(None, *args)

    def checked(self, check: Any, *args: Any) -> Any:
        """Calls the operator. Calls check(*args) first, unless a plan shows that this form passed before.

        Args:
            check: raises if the arguments break a rule; None: nothing is checked
        """
        if is_compiling():
            if check is not None:
                check(*args)
            return self.registered(*args)
        plan: Any
        form: Form | None
        known = self.launcher.known.get(args[0].shape) if type(args[0]) is Tensor else None
        addresses = None if known is None or forward_ad._current_level >= 0 else known.addresses(args)
        if known is not None and addresses is not None:
            plan, form = known.plan, ((), addresses, known.differentiable and torch.is_grad_enabled())
        else:
            form = form_of(args)
            plan = None if form is None else self.launcher.plans.get(form[0])
            if check is not None and type(plan) is not Plan:
                check(*args)
            if _transforms() or _modes() or _tracing() or forward_ad._current_level >= 0:
                return self.function.apply(*args) if self.function and _differentiates() else self.registered(*args)
            if type(plan) is Plan and type(args[0]) is Tensor and (known is None or known.changes < CHANGES):
                self.launcher.known[args[0].shape] = Known(plan, args, known)
        if form is None or (form[2] and self.function is None):
            return self.registered(*args)
        if form[2]:
            _thread.known = plan, form
            try:
                return self._apply(*args)
            finally:
                _thread.known = None
        return self.launcher.by(plan, form, args)


def launcher_of(of: Operator) -> Any:
    """Returns the undecorated launcher of an operator, for a launcher that calls several."""
    return of.launcher.launcher


def operator(name: str) -> Any:
    """Returns a decorator that makes an Operator of a launcher; `name` is "namespace::name"."""
    return functools.partial(Operator, name)
