"""Gradients by torch, without a trace in the caller's tensors.

    x --detach, requires_grad--> input --f--> value --autograd.grad--> gradients

A tensor that requires gradients and is a leaf (a Parameter) is its own input: its hooks run, once, and what f uses
of it by another way (a module's own attribute) counts. `autograd.grad` returns gradients and leaves `.grad` alone.
Whether one differentiation runs inside another is kept per thread: inside, inputs stay connected to the outer one
and gradients get a history; outside they have none. `jvp` is torch.func's. Inside a transform of
torch.func, which forbids all that, `torch.func.vjp` does the work.
"""

import threading
from collections.abc import Sequence
from typing import Any

import torch

from ..adapters import Call, NoGradient, Pull, Run
from ..dtype_names import is_inexact
from ..trees import Leaf, with_leaves

_Tensor = torch.Tensor


class _Nesting(threading.local):
    depth = 0


_nesting = _Nesting()
_PROBE = torch.empty(0, requires_grad=True)


def is_real_scalar(x: _Tensor) -> bool:
    return x.ndim == 0 and x.is_floating_point()


def stop_gradient(x: _Tensor) -> _Tensor:
    return x.detach()


def value_and_grad(
    call: Call, wanted: Sequence[int], leaves: list[Leaf], connected: bool | None = None
) -> tuple[Any, Any]:
    """connected: to an outer differentiation; None: found out here."""
    depth = _nesting.depth
    if connected is None:
        if not torch.is_grad_enabled():
            with torch.inference_mode(False), torch.enable_grad():
                return value_and_grad(call, wanted, leaves, connected=False)
        connected = depth > 0
    inputs = _inputs(leaves, wanted, connected)
    if inputs is None:
        return _value_and_grad_in_func(call, wanted, leaves)
    _nesting.depth = depth + 1  # as in `_nested`, without a call of it
    try:
        value, aux, passed = call(leaves)
    finally:
        _nesting.depth = depth
    grads: Sequence[Leaf | None] = (None,) * len(inputs)
    if value.requires_grad:
        # Not materialize_grads: it costs 3 us, used or not.
        grads = torch.autograd.grad(value, inputs, create_graph=connected, allow_unused=True)
    for grad in grads:
        if grad is None or grad._is_zerotensor():
            grads = _with_zeros(inputs, grads)
            break
    if connected:
        return (value, grads, aux), passed
    return (value.detach(), grads, [x.detach() for x in aux] if aux else aux), passed


def _with_zeros(inputs: Sequence[_Tensor], grads: Sequence[Leaf | None]) -> list[_Tensor]:
    """Replace None and torch's ZeroTensor, which has no memory and which few functions accept, by plain zeros."""
    return [
        torch.zeros_like(x) if grad is None or grad._is_zerotensor() else grad
        for x, grad in zip(inputs, grads, strict=True)
    ]


def vjp(call: Call, leaves: list[Leaf], wanted: Sequence[int]) -> tuple[list[Leaf], Any, Pull]:
    if torch.is_grad_enabled():
        return _vjp(call, leaves, wanted, _nesting.depth > 0)
    with torch.inference_mode(False), torch.enable_grad():
        return _vjp(call, leaves, wanted, False)


def _vjp(call: Call, leaves: list[Leaf], wanted: Sequence[int], connected: bool) -> tuple[list[Leaf], Any, Pull]:
    inputs = _inputs(leaves, wanted, connected)
    if inputs is None:
        return _vjp_in_func(call, leaves, wanted)
    _, outputs, passed = _nested(call, leaves)

    def pull(cotangents: list[Leaf | None]) -> list[Leaf]:
        pairs = [(y, ct) for y, ct in zip(outputs, cotangents, strict=True) if ct is not None and y.requires_grad]
        if not pairs:
            return [torch.zeros_like(x) for x in inputs]
        inside = _nesting.depth > 0 and torch.is_grad_enabled()
        ys, cts = zip(*pairs, strict=True)
        grads = torch.autograd.grad(ys, inputs, cts, retain_graph=True, create_graph=inside, materialize_grads=True)
        return _with_zeros(inputs, grads)

    return (outputs if connected else [y.detach() for y in outputs]), passed, pull


def _inputs(leaves: list[Leaf], wanted: Sequence[int], connected: bool) -> list[_Tensor] | None:
    """What f gets in place of the wanted leaves, put there too. None inside a transform of torch.func."""
    # Where nothing is connected, torch.func refuses what follows by itself. Its vmap would sum over the elements.
    if connected and _is_inside_func():
        return None
    inputs: list[_Tensor] = []
    num_own = 0
    for place in wanted:
        x: _Tensor = leaves[place]
        try:
            if not x.requires_grad:
                x = x.detach().requires_grad_()
            elif connected:
                x = x.view_as(x)
            elif x.is_leaf:
                x.requires_grad_()  # it does; torch.func would refuse
                num_own += 1
            else:
                x = x.detach().requires_grad_()
        except RuntimeError:
            if not is_inexact(x.dtype):
                raise NoGradient from None
            if not x.is_inference():
                return None
            x = x.clone().requires_grad_()
        leaves[place] = x
        inputs.append(x)
    if num_own > 1 and len(set(map(id, inputs))) < len(inputs):  # the same Parameter twice is two arguments
        inputs = [x.detach().requires_grad_() for x in inputs]
        for place, x in zip(wanted, inputs, strict=True):
            leaves[place] = x
    return inputs


def _nested(call: Call, leaves: list[Leaf]) -> tuple[Leaf, list[Leaf], Any]:  # Any: passed through
    depth = _nesting.depth
    _nesting.depth = depth + 1
    try:
        return call(leaves)
    finally:
        _nesting.depth = depth


# -- inside a transform of torch.func ----------------------------------------------------------------------------------


def _value_and_grad_in_func(call: Call, wanted: Sequence[int], leaves: list[Leaf]) -> tuple[Any, Any]:
    def of(*inputs: _Tensor) -> tuple[_Tensor, list[_Tensor]]:
        value, aux, passed = _nested(call, with_leaves(leaves, wanted, inputs))
        kept.append(passed)
        return value, aux

    kept: list[Any] = []  # Any: passed through
    value, pull, *aux = torch.func.vjp(of, *[leaves[place] for place in wanted], has_aux=True)
    grads = list(pull(torch.ones_like(value)))
    return (value, grads, aux[0]), kept[-1]


def _vjp_in_func(call: Call, leaves: list[Leaf], wanted: Sequence[int]) -> tuple[list[Leaf], Any, Pull]:
    def of(*inputs: _Tensor) -> tuple[tuple[_Tensor, ...], list[_Tensor]]:
        _, outputs, passed = _nested(call, with_leaves(leaves, wanted, inputs))
        kept.append(passed)
        smooth.extend(is_inexact(y.dtype) for y in outputs)
        others = [y for y in outputs if not is_inexact(y.dtype)]
        return tuple(y for y in outputs if is_inexact(y.dtype)), others

    kept: list[Any] = []  # Any: passed through
    smooth: list[bool] = []
    values, pull_back, *others = torch.func.vjp(of, *[leaves[place] for place in wanted], has_aux=True)

    def pull(cotangents: list[Leaf | None]) -> list[Leaf]:
        cts = [ct for ct, is_smooth in zip(cotangents, smooth, strict=True) if is_smooth]
        whole = tuple(torch.zeros_like(y) if ct is None else ct for y, ct in zip(values, cts, strict=True))
        return list(pull_back(whole))

    each, rest = iter(values), iter(others[0])
    return [next(each) if is_smooth else next(rest) for is_smooth in smooth], kept[-1], pull


# -- by torch.func -----------------------------------------------------------------------------------------------------


def jvp(
    apply: Run, leaves: list[Leaf], wanted: Sequence[int], tangents: list[Leaf]
) -> tuple[list[Leaf], Any, list[Leaf | None]]:
    def of(*inputs: _Tensor) -> tuple[tuple[_Tensor, ...], list[_Tensor]]:
        _, outputs, passed = _nested(lambda leaves: (None, *apply(leaves)), with_leaves(leaves, wanted, inputs))
        kept.append((passed, [is_inexact(y.dtype) for y in outputs]))
        # One more, for torch.func takes no function that returns nothing.
        return (*(y for y in outputs if is_inexact(y.dtype)), inputs[0]), [
            y for y in outputs if not is_inexact(y.dtype)
        ]

    kept: list[tuple[Any, list[bool]]] = []  # Any: passed through
    primals = [leaves[place] for place in wanted]
    connected = _nesting.depth > 0 or _is_inside_func()
    if not connected:
        primals, tangents = [x.detach() for x in primals], [t.detach() for t in tangents]
    values, derivatives, *aux = torch.func.jvp(of, tuple(primals), tuple(tangents), has_aux=True)
    derivatives = _with_zeros(values, derivatives)
    others = aux[0]
    if not connected:
        values, derivatives, others = ([y.detach() for y in each] for each in (values, derivatives, others))
    passed, smooth = kept[-1]
    each, rest, along = iter(values), iter(others), iter(derivatives)
    outputs = [next(each) if is_smooth else next(rest) for is_smooth in smooth]
    return outputs, passed, [next(along) if is_smooth else None for is_smooth in smooth]


def _is_inside_func() -> bool:
    try:
        _PROBE.requires_grad_()  # it does; torch.func refuses all the same
    except RuntimeError:
        return True
    return False
