"""Writing into tensors of torch.

torch's own indexing is used where it means what NumPy's does. Elsewhere NumPy computes which elements of the flat
tensor the index selects, and raises if the index is wrong; then those elements are written to.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from ..adapters import How
from ..indexing.host import Index, check_broadcast, is_basic, last_of_each, names_twice, parts_of, positions

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


def changed(
    x: torch.Tensor, index: Index, value: Any, how: How
) -> torch.Tensor:  # Any, here and below: a number or tensor
    if not _means_the_same(x, index) or _is_batched(value) or not (how == "set" or is_basic(index)):
        return _by_positions(x, index, value, how)
    if type(index) is not int:  # torch checks a single number itself
        check_in_range(x, index)
    if isinstance(value, torch.Tensor):
        if how == "set" and not is_basic(index) and not _is_mask(index):
            return _by_positions(x, index, value, how)  # torch has a gradient for values that others overwrite
        check_broadcast(tuple(value.shape), tuple(x[index].shape))
    y = x.clone()
    y[index] = value if how == "set" else _combined(x[index], value, how)
    return y


def write(x: torch.Tensor, index: Index, value: Any, how: How) -> None:
    if not _means_the_same(x, index) or not (how == "set" or is_basic(index)):
        x.copy_(_by_positions(x, index, value, how))
        return
    # On a CPU torch would write some elements before it finds the index that is out of range.
    if type(index) is not int:
        check_in_range(x, index)
    if isinstance(value, torch.Tensor) and value.ndim:
        check_broadcast(tuple(value.shape), tuple(x[index].shape))
    x[index] = value if how == "set" else _combined(x[index], value, how)


def read(x: torch.Tensor, index: Index) -> torch.Tensor:
    if _means_the_same(x, index):
        check_in_range(x, index)
        return x[index]
    found = positions(tuple(x.shape), _on_host(index))
    return x.reshape(-1)[torch.from_numpy(found).to(x.device)]


def _means_the_same(x: torch.Tensor, index: Index) -> bool:
    """Return True if torch selects the elements that NumPy does, in the same order of axes (pytorch#157676).

    An integer beside an array counts as an array in NumPy, not in torch; torch refuses negative steps; and arrays that
    other parts separate come first in NumPy.
    """
    if type(index) is int or index is ...:
        return True
    num_arrays = 0
    for part in parts_of(index):
        if isinstance(part, slice):
            if part.step is not None and part.step < 0:
                return False
        elif isinstance(part, torch.Tensor) and part.ndim and part.dtype in (torch.int64, torch.int32, torch.bool):
            num_arrays += 1
        elif type(part) is not int and part is not None and part is not ...:
            return False
    has_integers = any(type(part) is int for part in parts_of(index))
    return num_arrays == 0 or (num_arrays == 1 and not has_integers)


def _is_mask(index: Index) -> bool:
    return isinstance(index, torch.Tensor) and index.dtype == torch.bool


def _is_batched(value: Any) -> bool:
    """Return True for a tensor inside torch.func.vmap, which cannot be written into a plain tensor."""
    return isinstance(value, torch.Tensor) and torch._C._functorch.is_batchedtensor(value)


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
    if how == "set" and (last := last_of_each(found)) is not None:
        found, value = found.reshape(-1)[last], value[torch.from_numpy(last).to(x.device)]
    flat, places = x.reshape(-1), torch.from_numpy(found.reshape(-1)).to(x.device)
    if how == "set" or not names_twice(found):
        new = value if how == "set" else _OPS[how](flat[places], value)
        y = flat.index_put((places,), new)
    elif how in ("add", "subtract"):
        y = flat.index_put((places,), value if how == "add" else -value, accumulate=True)
    elif how in ("min", "max"):
        y = flat.scatter_reduce(0, places, value, _REDUCTIONS[how])
    else:
        y, remaining = flat, np.arange(found.size)  # scatter_reduce("prod") has a wrong forward derivative
        while remaining.size:
            _, first = np.unique(found.reshape(-1)[remaining], return_index=True)
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
    """A tensor that wants no gradient."""
    return x.detach().clone() if copy else x.detach()


def value_of(variable: torch.Tensor) -> torch.Tensor:
    return variable


def assign(variable: torch.Tensor, index: Index, value: Any, how: How) -> torch.Tensor:
    if isinstance(value, torch.Tensor) and value.requires_grad:
        value = value.detach()
    if index is ... and how in _IN_PLACE:
        if isinstance(value, torch.Tensor) and value.ndim:
            check_broadcast(tuple(value.shape), tuple(variable.shape))
        return _IN_PLACE[how](variable, value)
    write(variable, index, value, how)
    return variable
