"""Writing into tensors of torch.

Integers, slices and `...` go to torch, as do other indices that mean the same as in NumPy. For the rest NumPy computes
which elements of the flat tensor the index selects, and raises if the index is wrong.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ..adapters import How
from ..indexing import (
    Index,
    check_broadcast,
    has_duplicates,
    is_basic,
    last_of_each,
    parts_of,
    positions,
    selected_shape,
)

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
_REDUCTIONS = {"min": "amin", "max": "amax"}


def changed(x: torch.Tensor, index: Index, value: Any, how: How) -> torch.Tensor:
    is_simple, is_tensor = _is_simple(index), isinstance(value, torch.Tensor)
    if is_simple and not is_tensor:
        y = x.clone()
        _write_number(y, index, value, how)
        return y
    if is_tensor and torch._C._functorch.is_batchedtensor(value):  # vmap cannot write it into a plain tensor
        return _by_positions(x, index, value, how)
    if not is_simple:
        if not _means_the_same(index) or not (how == "set" or is_basic(index)):
            return _by_positions(x, index, value, how)
        if how == "set" and is_tensor and not is_basic(index) and not _is_mask(index):
            return _by_positions(x, index, value, how)  # torch has a gradient for values that others overwrite
    _check_place(x, index, value)
    y = x.clone()
    y[index] = value if how == "set" else _OPS[how](x[index], _like(x, value))
    return y


def write(x: torch.Tensor, index: Index, value: Any, how: How) -> None:
    is_simple, is_tensor = _is_simple(index), isinstance(value, torch.Tensor)
    if is_simple and not is_tensor:
        _write_number(x, index, value, how)
        return
    if not is_simple:
        if not _means_the_same(index) or not (how == "set" or is_basic(index)):
            x.copy_(_by_positions(x, index, value, how))
            return
    _check_place(x, index, value)
    x[index] = value if how == "set" else _OPS[how](x[index], _like(x, value))


def read(x: torch.Tensor, index: Index) -> torch.Tensor:
    if not _is_simple(index):
        if not _means_the_same(index):
            places = positions(tuple(x.shape), _on_host(index))
            return x.reshape(-1)[torch.from_numpy(places).to(x.device)]
        _check_place(x, index, None)
    return x[index]


def _is_simple(index: Index) -> bool:
    """Return True for an integer, a slice with a positive step, and `...`."""
    kind = type(index)
    return kind is int or index is ... or (kind is slice and (index.step is None or index.step > 0))


def _check_place(x: torch.Tensor, index: Index, value: Any) -> None:
    """Raise IndexError or ValueError for what torch would find after writing some elements, or in a kernel of a GPU."""
    shape = tuple(x[index].shape) if _is_simple(index) else selected_shape(tuple(x.shape), _on_host(index))
    if isinstance(value, torch.Tensor):
        check_broadcast(tuple(value.shape), shape)


def _write_number(x: torch.Tensor, index: Index, value: Any, how: How) -> None:
    if how == "set":
        x[index] = value
    elif how in _IN_PLACE:
        is_rounded = type(value) is bool or (x.is_floating_point() and x.itemsize < 4)
        _IN_PLACE[how](x[index], _like(x, value) if is_rounded else value)
    else:
        x[index] = _OPS[how](x[index], _like(x, value))


def _means_the_same(index: Index) -> bool:
    """Return True if torch selects the elements that NumPy does, in the same order of axes (pytorch#157676).

    An integer beside an array counts as an array in NumPy, not in torch; torch refuses negative steps; and arrays that
    other parts separate come first in NumPy.
    """
    num_arrays = num_integers = 0
    for part in parts_of(index):
        if type(part) is int:
            num_integers += 1
        elif isinstance(part, torch.Tensor) and part.ndim and part.dtype in (torch.int64, torch.int32, torch.bool):
            num_arrays += 1
        elif not _is_simple(part) and part is not None:
            return False
    return num_arrays == 0 or (num_arrays == 1 and num_integers == 0)


def _is_mask(index: Index) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype == torch.bool


def _by_positions(x: torch.Tensor, index: Index, value: Any, how: How) -> torch.Tensor:
    selected = positions(tuple(x.shape), _on_host(index))
    value = _like(x, value)
    check_broadcast(tuple(value.shape), selected.shape)
    value = value.expand(selected.shape).reshape(-1)
    if how == "set" and (last := last_of_each(selected)) is not None:
        selected, value = selected.reshape(-1)[last], value[torch.from_numpy(last).to(x.device)]
    flat, places = x.reshape(-1), torch.from_numpy(selected.reshape(-1)).to(x.device)
    if how == "set" or not has_duplicates(selected):
        y = flat.index_put((places,), value if how == "set" else _OPS[how](flat[places], value))
    elif how in ("add", "subtract"):
        y = flat.index_put((places,), value if how == "add" else -value, accumulate=True)
    elif how in ("min", "max"):
        y = flat.scatter_reduce(0, places, value, _REDUCTIONS[how])
    else:
        y, remaining = flat, np.arange(selected.size)  # scatter_reduce("prod") has a wrong forward derivative
        while remaining.size:
            _, first = np.unique(selected.reshape(-1)[remaining], return_index=True)
            chosen = torch.from_numpy(remaining[first]).to(x.device)
            y = y.index_put((places[chosen],), _OPS[how](y[places[chosen]], value[chosen]))
            remaining = np.delete(remaining, first)
    return y.reshape(x.shape)


def _like(x: torch.Tensor, value: Any) -> torch.Tensor:
    if isinstance(value, torch.Tensor):
        return value.to(x.dtype)
    return torch.tensor(value, dtype=x.dtype, device=x.device)


def _on_host(index: Index) -> Index:
    parts = [np.asarray(part) if isinstance(part, list) else part for part in parts_of(index)]
    parts = [_to_numpy(part) if isinstance(part, torch.Tensor) else part for part in parts]
    return tuple(parts) if isinstance(index, tuple) else parts[0]


def _to_numpy(part: torch.Tensor) -> Any:
    functorch = torch._C._functorch
    if not functorch.is_functorch_wrapped_tensor(part) and functorch.peek_interpreter_stack() is None:
        return part.numpy(force=True)
    from torch._functorch.pyfunctorch import temporarily_clear_interpreter_stack

    while functorch.is_gradtrackingtensor(part):  # torch.func.jvp and grad wrap indices too
        part = functorch.get_unwrapped(part)
    if functorch.is_batchedtensor(part):
        raise TypeError(
            "torch.func.vmap hides the values of an index that it maps over, so nothing can be written there; write "
            "where a mask is true, fanwise.tensor.where(mask, value, x)"
        )
    with temporarily_clear_interpreter_stack():  # inside a transform `numpy` makes a tensor without memory
        return part.numpy(force=True)


def new_variable(x: torch.Tensor, copy: bool) -> torch.Tensor:
    return x.detach().clone() if copy else x.detach()


def value_of(variable: torch.Tensor) -> torch.Tensor:
    return variable


def assign(variable: torch.Tensor, index: Index, value: Any, how: How) -> torch.Tensor:
    if isinstance(value, torch.Tensor) and value.requires_grad:
        value = value.detach()
    write(variable, index, value, how)
    return variable
