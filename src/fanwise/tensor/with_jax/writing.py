"""Arrays of JAX with some elements changed: `x.at`, after checks of what JAX would clamp or skip.

An index that is not traced is checked on the host. Operations that JAX cannot differentiate are computed by reading and
setting, as no element is selected twice.
"""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..adapters import How
from ..indexing import Index, check_broadcast, operation, parts_of, positions_to_write, selected_shape


def changed(x: jax.Array, index: Index, value: Any, how: How) -> jax.Array:
    index, is_known = _on_host(x.shape, index)
    value = value.astype(x.dtype) if isinstance(value, jax.Array) else jnp.asarray(value, x.dtype)
    if how in ("add", "subtract"):
        if is_known:
            check_broadcast(value.shape, selected_shape(x.shape, index))
        return x.at[index].add(value if how == "add" else -value)
    if not is_known:
        updated: jax.Array = getattr(x.at[index], how)(value)
        return updated
    places, last, shape = positions_to_write(x.shape, index, value.shape, how)
    if last is not None and value.ndim:  # JAX may keep any of the values
        value = jnp.broadcast_to(value, shape).reshape(-1)[last]
        return x.reshape(-1).at[places].set(value).reshape(x.shape)
    return x.at[index].set(value if how == "set" else operation(jnp, how)(x[index], value))


def read(x: jax.Array, index: Index) -> jax.Array:
    part: jax.Array = x[_on_host(x.shape, index)[0]]
    return part


def _on_host(shape: tuple[int, ...], index: Index) -> tuple[Index, bool]:
    """Return the index with lists and known arrays as arrays of NumPy, and whether no part is traced.

    Raise IndexError if it does not fit the shape. Traced integers are assumed to be in range.
    """
    is_traced = [isinstance(part, jax.core.Tracer) for part in parts_of(index)]
    parts = [
        np.asarray(part) if isinstance(part, (list, jax.Array)) and not traced else part
        for part, traced in zip(parts_of(index), is_traced, strict=True)
    ]
    is_mask = any(part.dtype == jnp.bool_ for part, traced in zip(parts, is_traced, strict=True) if traced)
    if not is_mask and not (any(is_traced) and 0 in shape):
        zeros = (np.zeros(p.shape, int) if traced else p for p, traced in zip(parts, is_traced, strict=True))
        selected_shape(shape, tuple(zeros))
    return tuple(parts) if isinstance(index, tuple) else parts[0], not any(is_traced)


def new_variable(x: jax.Array, copy: bool) -> jax.Array:
    return _without_gradient(x)


def value_of(variable: jax.Array) -> jax.Array:
    return variable


def assign(variable: jax.Array, index: Index, value: Any, how: How) -> jax.Array:
    new = changed(variable, index, value, how)
    # A traced array has no value, and the variable would keep it after the function has been traced.
    if isinstance(new, jax.core.Tracer) and not isinstance(variable, jax.core.Tracer):
        raise TypeError(
            "a State from outside a function that JAX traces (jit, grad, vmap) cannot be written to inside it: "
            "pass its value to the function, and write the result into the State outside"
        )
    return _without_gradient(new)


def _without_gradient(x: jax.Array) -> jax.Array:
    return jax.lax.stop_gradient(x) if isinstance(x, jax.core.Tracer) else x
