"""Writing into tensors of torch.

torch gets integers, slices and `...`. For other indices NumPy computes which elements of the flat tensor they select,
because torch gives some of them another meaning (pytorch#157676) and finds a wrong one in a kernel of a GPU.
"""

from typing import Any

import numpy as np
import torch

from ..adapters import How
from ..indexing import Index, check_broadcast, operation, parts_of, positions, positions_to_write

_active_transform = torch._C._functorch.peek_interpreter_stack


def changed(x: torch.Tensor, index: Index, value: Any, how: How) -> torch.Tensor:
    return _written(x.clone(), x, index, value, how) if _is_simple(index) else _scattered(x, index, value, how)


def read(x: torch.Tensor, index: Index) -> torch.Tensor:
    if _is_simple(index):
        return x[index]
    return x.reshape(-1)[torch.from_numpy(positions(tuple(x.shape), _on_host(index))).to(x.device)]


def new_variable(x: torch.Tensor, copy: bool) -> torch.Tensor:
    return x.detach().clone() if copy else x.detach()


def value_of(variable: torch.Tensor) -> torch.Tensor:
    return variable


def assign(variable: torch.Tensor, index: Index, value: Any, how: How) -> torch.Tensor:
    if isinstance(value, torch.Tensor) and value.requires_grad:
        value = value.detach()
    if not _is_simple(index):
        return variable.copy_(_scattered(variable, index, value, how))
    return _written(variable, variable, index, value, how)


def _is_simple(index: Index) -> bool:
    """Return True for integers, slices with a positive step, `...`, and tuples of these."""
    return type(index) is int or all(
        type(part) is int or part is ... or (type(part) is slice and (part.step is None or part.step > 0))
        for part in parts_of(index)
    )


def _written(y: torch.Tensor, x: torch.Tensor, index: Index, value: Any, how: How) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        check_broadcast(tuple(value.shape), tuple(x[index].shape))
    y[index] = value if how == "set" else operation(torch, how)(x[index], _like(x, value))
    return y


def _scattered(x: torch.Tensor, index: Index, value: Any, how: How) -> torch.Tensor:
    value, index = _like(x, value), _on_host(index)
    places, last, shape = positions_to_write(tuple(x.shape), index, tuple(value.shape), how)
    if value.ndim:
        value = value.expand(shape).reshape(-1)
        value = value if last is None else value[torch.from_numpy(last).to(x.device)]
    flat, at = x.reshape(-1), (torch.from_numpy(places).to(x.device),)
    if how in ("add", "subtract"):
        y = flat.index_put(at, value if how == "add" else -value, accumulate=True)
    else:
        y = flat.index_put(at, value if how == "set" else operation(torch, how)(flat[at], value))
    return y.reshape(x.shape)


def _like(x: torch.Tensor, value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value.to(x.dtype)
    return torch.tensor(value, dtype=x.dtype, device=x.device)


def _on_host(index: Index) -> Index:
    if _active_transform() is not None:
        raise TypeError(
            "inside torch.func and torch.vmap an index is of integers and slices with positive steps; write where a "
            "mask is true by fanwise.tensor.where(mask, value, x)"
        )
    parts = [part.numpy(force=True) if isinstance(part, torch.Tensor) else part for part in parts_of(index)]
    parts = [np.asarray(part) if isinstance(part, list) else part for part in parts]
    return tuple(parts) if isinstance(index, tuple) else parts[0]
