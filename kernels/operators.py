"""Custom operators that a plain call goes past.

    @operator("namespace::name")
    def name(x: Tensor, flag: bool) -> Tensor: ...        allocates and launches; absent results of a tuple are None
    name.register_fake(...)                               the same without memory
    name.register_autograd(backward, setup_context)       as for torch.library.custom_op

torch.library's dispatch costs tens of microseconds a call. So a call with nothing but dense tensors on the kernels'
device runs the launcher, where a gradient is wanted inside a torch.autograd.Function of the same two functions. The
registered operator is called by what looks at operators: compilers and their fake tensors, dispatch modes, transforms
of torch.func, tensor subclasses, tensors with a pending negation. There an absent result is an empty tensor.

Forward-mode derivatives are refused: the registered operator would return tangents of zero without a word.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.nn import Parameter

from kernels.launch import INTERPRETED


def _is_plain(args: tuple) -> bool:
    """Whether all tensors have memory that a kernel can be given as it is."""
    for arg in args:
        if isinstance(arg, Tensor):
            kind = type(arg)
            if kind is not Tensor and kind is not Parameter:
                return False
            here = arg.is_cpu if INTERPRETED and not arg.is_cuda else arg.is_cuda
            if not here or arg.is_neg() or arg.layout is not torch.strided:
                return False
    return not (
        torch._C._len_torch_dispatch_stack()
        or torch._C._are_functorch_transforms_active()
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
        self.launcher = launcher
        schema = torch.library.infer_schema(getattr(launcher, "__wrapped__", launcher), mutates_args=())
        self._definition = torch.library.custom_op(name, self._filled(launcher), mutates_args=(), schema=schema)
        self.registered = self._definition._opoverload
        self.function: type[torch.autograd.Function]
        functools.update_wrapper(self, launcher, updated=())

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
        operator = self

        def forward(*args: Any) -> Any:
            return operator.launcher(*args) if _is_plain(args) else operator.registered(*args)

        def jvp(ctx: Any, *tangents: Any) -> Any:
            raise NotImplementedError(
                f"{operator.__name__}: there are no forward-mode derivatives of it; take reverse mode "
                "(backward, torch.func.grad, vjp, jacrev)"
            )

        members = {"forward": forward, "setup_context": setup_context, "backward": backward, "jvp": jvp}
        self.function = type(
            self.__name__,
            (torch.autograd.Function,),
            {name: staticmethod(member) for name, member in members.items()} | {"generate_vmap_rule": True},
        )
        # torch.autograd.Function.apply matches the arguments with forward's signature, which takes ten microseconds
        self._apply = super(torch.autograd.Function, self.function).apply

    def __call__(self, *args: Any) -> Any:
        if torch.compiler.is_compiling():
            return self.registered(*args)
        if _differentiates():
            return self.function.apply(*args)
        if not _is_plain(args):
            return self.registered(*args)
        if torch.is_grad_enabled() and any(isinstance(arg, Tensor) and arg.requires_grad for arg in args):
            return self._apply(*args)
        return self.launcher(*args)


def operator(name: str) -> Any:
    return functools.partial(Operator, name)
