"""Gradients by torch, without a trace in the caller's tensors.

A leaf tensor that requires gradients (a Parameter) is its own input: its hooks run once, and indirect uses count. Other
inputs are detached. Inside another differentiation (a depth per thread) inputs stay connected to the outer one and
gradients get a history.
"""

import threading
from collections.abc import Sequence
from typing import Any

import torch

from ..adapters import Call, Pullback
from ..trees import Leaf

_Tensor = torch.Tensor


class _Nesting(threading.local):
    depth = 0


_nesting = _Nesting()
_active_transform = torch._C._functorch.peek_interpreter_stack


def stop_gradient(x: _Tensor) -> _Tensor:
    return x.detach()


def value_and_grad(
    call: Call, leaves: list[Leaf], wanted: Sequence[int]
) -> tuple[list[Leaf], list[Leaf], Any, Sequence[Leaf]]:
    # Not by `vjp`, whose lists and pullback take as long as the multiplication of small matrices.
    inputs, connected, ((value,), auxiliary, static) = _called(call, leaves, wanted)
    grads: Sequence[Leaf | None] = (None,) * len(inputs)
    if value.requires_grad:
        grads = torch.autograd.grad(value, inputs, create_graph=connected, allow_unused=True)
    for grad in grads:
        if grad is None or grad._is_zerotensor():
            grads = _with_zeros(inputs, grads)
            break
    if connected:
        return [value], auxiliary, static, grads
    return [value.detach()], [y.detach() for y in auxiliary] if auxiliary else auxiliary, static, grads


def vjp(call: Call, leaves: list[Leaf], wanted: Sequence[int]) -> tuple[list[Leaf], list[Leaf], Any, Pullback]:
    inputs, connected, (outputs, auxiliary, static) = _called(call, leaves, wanted)

    def pull(cotangents: Sequence[Leaf | None]) -> list[Leaf]:
        pairs = [(y, ct) for y, ct in zip(outputs, cotangents, strict=True) if ct is not None and y.requires_grad]
        if not pairs:
            return [torch.zeros_like(x) for x in inputs]
        nested = _nesting.depth > 0 and torch.is_grad_enabled()
        ys, cts = zip(*pairs, strict=True)
        # materialize_grads is not used: it takes 3 us.
        grads = torch.autograd.grad(ys, inputs, cts, retain_graph=True, create_graph=nested, allow_unused=True)
        return _with_zeros(inputs, grads)

    if connected:
        return outputs, auxiliary, static, pull
    return [y.detach() for y in outputs], [y.detach() for y in auxiliary], static, pull


def _called(
    call: Call, leaves: list[Leaf], wanted: Sequence[int], connected: bool | None = None
) -> tuple[list[_Tensor], bool, tuple[list[Leaf], list[Leaf], Any]]:
    """Return the inputs, whether they are connected to an outer differentiation, and the result of the call."""
    if connected is None:
        if _active_transform() is not None:  # torch.func.vmap would sum the gradients of all elements
            raise TypeError("fanwise.tensor does not differentiate inside torch.func; use torch.func.grad or vjp there")
        if not torch.is_grad_enabled():
            with torch.inference_mode(False), torch.enable_grad():
                return _called(call, leaves, wanted, False)
        connected = _nesting.depth > 0
    inputs: list[_Tensor] = []
    parameters: set[int] = set()
    for place in wanted:
        x: _Tensor = leaves[place]
        if connected and x.requires_grad:
            x = x.view_as(x)
        elif (
            not x.requires_grad or not x.is_leaf or id(x) in parameters
        ):  # the same Parameter again is another argument
            x = (x.clone() if x.is_inference() else x.detach()).requires_grad_()
        else:
            parameters.add(id(x))
        leaves[place] = x
        inputs.append(x)
    _nesting.depth += 1
    try:
        return inputs, connected, call(leaves)
    finally:
        _nesting.depth -= 1


def _with_zeros(inputs: Sequence[_Tensor], grads: Sequence[Leaf | None]) -> list[_Tensor]:
    """Replace None and torch's ZeroTensor, which has no memory and which few functions accept, by plain zeros."""
    return [
        torch.zeros_like(x) if grad is None or grad._is_zerotensor() else grad
        for x, grad in zip(inputs, grads, strict=True)
    ]
