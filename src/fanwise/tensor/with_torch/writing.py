"""Writing into tensors of torch.

First the way that torch has; where it refuses (a negative step, a value under vmap) or finds an error, the way by
positions: NumPy says which elements the index means, or what is wrong with it, and the flat tensor is written to.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ..adapters import How
from ..indexing.host import Index, check_broadcast, is_basic, names_twice, parts_of, positions

_OPS: dict[str, Callable[..., torch.Tensor]] = {
    "add": torch.add,
    "subtract": torch.sub,
    "multiply": torch.mul,
    "divide": torch.div,
    "min": torch.minimum,
    "max": torch.maximum,
}
_IN_PLACE: dict[str, Callable[..., torch.Tensor]] = {
    "add": torch.Tensor.add_,
    "subtract": torch.Tensor.sub_,
    "multiply": torch.Tensor.mul_,
    "divide": torch.Tensor.div_,
}
_REDUCTIONS = {"multiply": "prod", "divide": "prod", "min": "amin", "max": "amax"}


def changed(
    x: torch.Tensor, index: Index, value: Any, how: How
) -> torch.Tensor:  # Any, here and below: a number or tensor
    try:
        if how == "set":
            if not x.is_cpu:
                check_in_range(x, index)
            y = x.clone()
            y[index] = value
            return y
        if is_basic(index):
            y = x.clone()
            y[index] = _combined(x[index], value, how)
            return y
    except (IndexError, RuntimeError, TypeError, ValueError):
        pass
    return _by_positions(x, index, value, how)


def write(x: torch.Tensor, index: Index, value: Any, how: How) -> None:
    try:
        if how == "set":
            # On a CPU torch would write some elements before it comes to the index that is out of range.
            if type(index) is not int and not is_basic(index):
                check_in_range(x, index)
            x[index] = value
            return
        if is_basic(index):
            x[index] = _combined(x[index], value, how)
            return
    except (IndexError, RuntimeError, TypeError, ValueError):
        pass
    x.copy_(_by_positions(x, index, value, how))


def read(x: torch.Tensor, index: Index) -> torch.Tensor:
    try:
        if not x.is_cpu:
            check_in_range(x, index)
        return x[index]
    except (IndexError, RuntimeError, TypeError, ValueError):
        return x.reshape(-1)[torch.from_numpy(positions(tuple(x.shape), _on_host(index))).to(x.device)]


def check_in_range(x: torch.Tensor, index: Index) -> None:
    """Look at arrays of integers in an index, on x's device, and wait for it.

    On a GPU an index out of range is an assertion in a kernel, after which the process cannot use the GPU any more.

    Raises:
        IndexError: one of them is out of range.
    """
    parts = [torch.as_tensor(part) if isinstance(part, (list, np.ndarray)) else part for part in parts_of(index)]
    axes = [_axes_of(part) for part in parts]
    for place, part in enumerate(parts):
        if isinstance(part, torch.Tensor) and part.dtype != torch.bool:
            # The axes that `...` stands for lie before this part if it does.
            axis = sum(axes[:place]) + (x.ndim - sum(axes) if any(part is ... for part in parts[:place]) else 0)
            length = x.shape[axis]
            if bool(((part < -length) | (part >= length)).any()):
                raise IndexError(f"an index is out of bounds for axis {axis} with size {length}")


def _axes_of(part: Any) -> int:  # Any: a part of an index
    if part is None or part is ...:
        return 0
    return part.ndim if isinstance(part, torch.Tensor) and part.dtype == torch.bool else 1


def _combined(part: torch.Tensor, value: Any, how: How) -> torch.Tensor:
    if how in ("min", "max") or isinstance(value, torch.Tensor):
        value = _like(part, value)
    return _OPS[how](part, value)


def _by_positions(x: torch.Tensor, index: Index, value: Any, how: How) -> torch.Tensor:
    found = positions(tuple(x.shape), _on_host(index))
    value = _like(x, value)
    check_broadcast(tuple(value.shape), found.shape)
    value = value.expand(found.shape).reshape(-1)
    flat, places = x.reshape(-1), torch.from_numpy(found.reshape(-1)).to(x.device)
    if how == "set" or not names_twice(found):
        new = value if how == "set" else _OPS[how](flat[places], value)
        y = flat.index_put((places,), new)
    elif how in ("add", "subtract"):
        y = flat.index_put((places,), value if how == "add" else -value, accumulate=True)
    elif how in ("min", "max"):
        y = flat.scatter_reduce(0, places, value, _REDUCTIONS[how])
    else:
        factors = torch.ones_like(flat).scatter_reduce(0, places, value, "prod")
        y = _OPS[how](flat, factors)
    return y.reshape(x.shape)


def _like(x: torch.Tensor, value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value.to(x.dtype)
    return torch.tensor(value, dtype=x.dtype, device=x.device)


def _on_host(index: Index) -> Index:
    try:
        parts = [part.numpy(force=True) if isinstance(part, torch.Tensor) else part for part in parts_of(index)]
    except RuntimeError as error:
        raise TypeError(
            "torch does not know an index that is mapped by vmap, so it cannot be written there; write where a mask "
            "is true, fanwise.tensor.where(mask, value, x)"
        ) from error
    parts = [np.asarray(part) if isinstance(part, list) else part for part in parts]
    return tuple(parts) if isinstance(index, tuple) else parts[0]


def new_variable(x: torch.Tensor, copy: bool) -> torch.Tensor:
    """A tensor that wants no gradient."""
    return x.detach().clone() if copy else x.detach()


def value_of(variable: torch.Tensor) -> torch.Tensor:
    return variable


def assign(variable: torch.Tensor, index: Index, value: Any, how: How) -> torch.Tensor:
    if isinstance(value, torch.Tensor) and value.requires_grad:
        value = value.detach()
    if index is ... and how in _IN_PLACE:
        try:
            return _IN_PLACE[how](variable, value)
        except RuntimeError:
            pass  # it does not broadcast; what follows says so
    write(variable, index, value, how)
    return variable
