"""Custom operators that a plain call goes past.

    @operator("namespace::name")
    def name(x: Tensor, flag: bool) -> Tensor: ...        allocates and launches; absent results of a tuple are None
    name.register_fake(...)                               the same without memory
    name.register_autograd(backward, setup_context)       as for torch.library.custom_op

    name(x, flag)
    name.checked(check, x, flag)                          after check(x, flag), unless this form of arguments has a plan

torch.library's dispatch costs tens of microseconds a call. So a call with nothing but dense tensors on the kernels'
device runs the launcher, from a plan (plans.py), where a gradient is wanted inside a torch.autograd.Function of the
same two functions. The registered operator is called by what looks at operators: compilers and their fake tensors,
dispatch modes, transforms of torch.func, tensor subclasses, tensors with a pending negation. There an absent result is
an empty tensor.

Forward-mode derivatives are refused: the registered operator would return tangents of zero without a word.
"""

from __future__ import annotations

import functools
import threading
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.compiler import is_compiling

from kernels.plans import Form, Planned, form_of

_thread = threading.local()  # form: that of the arguments whose Function is being applied


def _is_watched() -> bool:
    """Whether operators are traced, transformed or handed to a mode."""
    return (
        torch._C._are_functorch_transforms_active()
        or torch._C._len_torch_dispatch_stack()
        or torch._C._get_tracing_state()
    )


def _differentiates() -> bool:
    """Whether a transform of torch.func or forward mode is at work that needs the derivatives of a function."""
    if not torch._C._are_functorch_transforms_active():
        return forward_ad._current_level >= 0
    functorch = torch._C._functorch
    return functorch.peek_interpreter_stack().key() != functorch.TransformType.Functionalize


class Operator:
    def __init__(self, name: str, launcher: Any) -> None:
        self.launcher = Planned(launcher)
        schema = torch.library.infer_schema(launcher, mutates_args=())
        self._definition = torch.library.custom_op(name, self._filled(self.launcher), mutates_args=(), schema=schema)
        self.registered = self._definition._opoverload
        self.function: type[torch.autograd.Function] | None = None
        functools.update_wrapper(self, launcher)

    @staticmethod
    def _filled(launcher: Any) -> Any:
        def registered(*args: Any) -> Any:
            results = launcher(*args)
            if isinstance(results, tuple):
                like = next(arg for arg in args if isinstance(arg, Tensor))
                return tuple(like.new_empty((0,)) if t is None else t for t in results)
            return results

        return registered

    def register_fake(self, fake: Any) -> Any:
        self._definition.register_fake(self._filled(fake))
        return fake

    def register_autograd(self, backward: Any, setup_context: Any) -> None:
        self._definition.register_autograd(backward, setup_context=setup_context)

        def forward(*args: Any) -> Any:
            form, _thread.form = getattr(_thread, "form", None), None
            return self.registered(*args) if form is None else self.launcher.repeated(form, args)

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
        # torch.autograd.Function.apply matches the arguments with forward's signature, which takes twenty microseconds
        self._apply = super(torch.autograd.Function, self.function).apply

    def __call__(self, *args: Any) -> Any:
        return self.checked(None, *args)

    def checked(self, check: Any, *args: Any) -> Any:
        if is_compiling():
            if check is not None:
                check(*args)
            return self.registered(*args)
        form: Form | None = form_of(args)
        if check is not None and (form is None or not self.launcher.knows(form)):
            check(*args)
        if _is_watched() or forward_ad._current_level >= 0:
            return self.function.apply(*args) if self.function and _differentiates() else self.registered(*args)
        if form is None or (form[2] and self.function is None):
            return self.registered(*args)
        if form[2]:
            _thread.form = form
            try:
                return self._apply(*args)
            finally:
                _thread.form = None
        return self.launcher.repeated(form, args)


def operator(name: str) -> Any:
    return functools.partial(Operator, name)
