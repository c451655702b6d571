"""Gradients by torch, without a trace in the caller's tensors.

A leaf tensor that requires gradients (a Parameter) is its own input: its hooks run once, and indirect uses count. Other
inputs are detached. Inside another differentiation (a depth per thread) inputs stay connected to the outer one and
gradients get a history. Inside a transform of torch.func, which forbids requires_grad, `torch.func.vjp` is used.
"""

import threading
from collections.abc import Sequence
from typing import Any

import torch

from ..adapters import Call, Pullback
from ..trees import Leaf, with_leaves

_Tensor = torch.Tensor
_Result = tuple[list[Leaf], list[Leaf], Any, Pullback]


class _Nesting(threading.local):
    depth = 0


_nesting = _Nesting()
_PROBE = torch.empty(0, requires_grad=True)


def stop_gradient(x: _Tensor) -> _Tensor:
    return x.detach()


def value_and_grad(
    call: Call, leaves: list[Leaf], wanted: Sequence[int], connected: bool | None = None
) -> tuple[list[Leaf], list[Leaf], Any, Sequence[Leaf]]:
    """connected: to an outer differentiation; None to find out."""
    # Not by `vjp`, whose lists and pullback take as long as the multiplication of small matrices.
    if connected is None:
        if not torch.is_grad_enabled():
            with torch.inference_mode(False), torch.enable_grad():
                return value_and_grad(call, leaves, wanted, False)
        connected = _nesting.depth > 0
    inputs = _inputs(leaves, wanted, connected)
    if inputs is None:
        outputs, auxiliary, static, pull = _vjp_in_func(call, leaves, wanted)
        return outputs, auxiliary, static, pull([torch.ones_like(outputs[0])])
    (value,), auxiliary, static = _nested(call, leaves)
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


def vjp(call: Call, leaves: list[Leaf], wanted: Sequence[int], connected: bool | None = None) -> _Result:
    if connected is None:
        if not torch.is_grad_enabled():
            with torch.inference_mode(False), torch.enable_grad():
                return vjp(call, leaves, wanted, False)
        connected = _nesting.depth > 0
    inputs = _inputs(leaves, wanted, connected)
    if inputs is None:
        return _vjp_in_func(call, leaves, wanted)
    outputs, auxiliary, static = _nested(call, leaves)

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


def _with_zeros(inputs: Sequence[_Tensor], grads: Sequence[Leaf | None]) -> list[_Tensor]:
    """Replace None and torch's ZeroTensor, which has no memory and which few functions accept, by plain zeros."""
    return [
        torch.zeros_like(x) if grad is None or grad._is_zerotensor() else grad
        for x, grad in zip(inputs, grads, strict=True)
    ]


def _inputs(leaves: list[Leaf], wanted: Sequence[int], connected: bool) -> list[_Tensor] | None:
    """Put what f gets into the wanted places and return it; None inside a transform of torch.func."""
    # If nothing is connected, torch.func itself refuses requires_grad. Its vmap would sum over the elements.
    if connected and _is_inside_func():
        return None
    inputs: list[_Tensor] = []
    own_inputs: set[int] = set()
    for place in wanted:
        x: _Tensor = leaves[place]
        try:
            if connected and x.requires_grad:
                x = x.view_as(x)
            elif x.requires_grad and x.is_leaf and id(x) not in own_inputs:
                own_inputs.add(id(x))
                x.requires_grad_()  # a no-op that torch.func refuses
            else:  # also for the same Parameter again, which is another argument
                x = x.detach().requires_grad_()
        except RuntimeError:
            if not x.is_inference():
                return None
            x = x.clone().requires_grad_()
        leaves[place] = x
        inputs.append(x)
    return inputs


def _nested(call: Call, leaves: list[Leaf]) -> tuple[list[Leaf], list[Leaf], Any]:
    _nesting.depth += 1
    try:
        return call(leaves)
    finally:
        _nesting.depth -= 1


def _vjp_in_func(call: Call, leaves: list[Leaf], wanted: Sequence[int]) -> _Result:
    def of(*inputs: _Tensor) -> tuple[tuple[_Tensor, ...], list[_Tensor]]:
        outputs, auxiliary, static = _nested(call, with_leaves(leaves, wanted, inputs))
        statics.append(static)
        return tuple(outputs), auxiliary

    statics: list[Any] = []
    outputs, pull_back, *aux = torch.func.vjp(of, *[leaves[place] for place in wanted], has_aux=True)

    def pull(cotangents: Sequence[Leaf | None]) -> list[Leaf]:
        cts = [torch.zeros_like(y) if ct is None else ct for y, ct in zip(outputs, cotangents, strict=True)]
        return list(pull_back(tuple(cts)))

    return list(outputs), aux[0], statics[-1], pull


def jvp(
    call: Call, leaves: list[Leaf], wanted: Sequence[int], tangents: list[Leaf]
) -> tuple[list[Leaf], list[Leaf], Any, list[Leaf]]:
    def of(*inputs: _Tensor) -> tuple[tuple[_Tensor, ...], list[_Tensor]]:
        outputs, auxiliary, static = _nested(call, with_leaves(leaves, wanted, inputs))
        statics.append(static)
        return (*outputs, inputs[0]), auxiliary  # one more, because torch.func refuses a function without outputs

    statics: list[Any] = []
    primals = [leaves[place] for place in wanted]
    connected = _nesting.depth > 0 or _is_inside_func()
    if not connected:
        primals, tangents = [x.detach() for x in primals], [t.detach() for t in tangents]
    values, derivatives, *aux = torch.func.jvp(of, tuple(primals), tuple(tangents), has_aux=True)
    outputs, along, auxiliary = list(values[:-1]), _with_zeros(values, derivatives)[:-1], list(aux[0])
    if not connected:
        outputs, along, auxiliary = ([y.detach() for y in arrays] for arrays in (outputs, along, auxiliary))
    return outputs, auxiliary, statics[-1], along


def _is_inside_func() -> bool:
    try:
        _PROBE.requires_grad_()  # a no-op that torch.func refuses
    except RuntimeError:
        return True
    return False
