"""Arrays of JAX with some elements changed: `x.at`, after checks of what JAX would clamp or skip.

An index that is not traced is checked on the host. Operations that JAX can differentiate only where no element is
selected twice are computed by reading and setting if that is known, and by a choice under a mask.
"""

from collections.abc import Callable
from typing import Any, NoReturn

import jax
import jax.numpy as jnp
import numpy as np

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

_OPS: dict[str, Callable[[jax.Array, jax.Array], jax.Array]] = {
    "add": jnp.add,
    "subtract": jnp.subtract,
    "multiply": jnp.multiply,
    "divide": jnp.divide,
    "min": jnp.minimum,
    "max": jnp.maximum,
}


def changed(x: jax.Array, index: Index, value: Any, how: How) -> jax.Array:
    index, is_known = _on_host(index)
    value = value.astype(x.dtype) if isinstance(value, jax.Array) else jnp.asarray(value, x.dtype)
    if not is_known and isinstance(index, jax.Array) and index.dtype == jnp.bool_ and not value.ndim:
        return _changed_under_mask(x, index, value, how)
    place = _checked_shape(x.shape, index, is_known)
    if place is not None:
        check_broadcast(value.shape, place)
    needs_places = how not in ("add", "subtract") and (how != "set" or value.ndim)
    places = positions(x.shape, index) if needs_places and is_known and not is_basic(index) else None
    if how == "set":
        if places is not None and (last := last_of_each(places)) is not None:
            value = jnp.broadcast_to(value, places.shape).reshape(-1)[last]  # JAX may keep any of the values
            return x.reshape(-1).at[places.reshape(-1)[last]].set(value).reshape(x.shape)
        return x.at[index].set(value)
    if how in ("add", "subtract"):
        return x.at[index].add(value if how == "add" else -value)
    if is_basic(index) or (places is not None and not has_duplicates(places)):
        return x.at[index].set(_OPS[how](x[index], value))
    updated: jax.Array = getattr(x.at[index], how)(value)
    return updated


def write(x: jax.Array, index: Index, value: Any, how: How) -> NoReturn:
    raise ValueError("copy=False asks to write into the array, and arrays of JAX cannot be changed; leave copy out")


def read(x: jax.Array, index: Index) -> jax.Array:
    index, is_known = _on_host(index)
    _checked_shape(x.shape, index, is_known)
    part: jax.Array = x[index]
    return part


def _changed_under_mask(x: jax.Array, mask: jax.Array, value: jax.Array, how: How) -> jax.Array:
    """Change elements where a traced mask is true, so that shapes do not depend on it."""
    if mask.shape != x.shape[: mask.ndim]:
        raise IndexError(f"a mask of shape {mask.shape} does not fit the first axes of an array of shape {x.shape}")
    mask = mask.reshape(mask.shape + (1,) * (x.ndim - mask.ndim))
    return jnp.where(mask, value if how == "set" else _OPS[how](x, value), x)


def _on_host(index: Index) -> tuple[Index, bool]:
    """Return the index with lists and known arrays as arrays of NumPy, and whether no part is traced."""
    is_traced = [isinstance(part, jax.core.Tracer) for part in parts_of(index)]
    parts = [
        np.asarray(part) if isinstance(part, (list, jax.Array)) and not traced else part
        for part, traced in zip(parts_of(index), is_traced, strict=True)
    ]
    return tuple(parts) if isinstance(index, tuple) else parts[0], not any(is_traced)


def _checked_shape(shape: tuple[int, ...], index: Index, is_known: bool) -> tuple[int, ...] | None:
    """Return the shape of the place; None if a mask is traced. Traced integers are taken to be in range."""
    parts = parts_of(index)
    if is_known:
        return selected_shape(shape, index)
    if 0 in shape or any(isinstance(part, jax.core.Tracer) and part.dtype == jnp.bool_ for part in parts):
        return None
    in_range = [np.zeros(part.shape, int) if isinstance(part, jax.core.Tracer) else part for part in parts]
    return selected_shape(shape, tuple(in_range))


def new_variable(x: jax.Array, copy: bool) -> jax.Array:
    return _without_gradient(x)


def value_of(variable: jax.Array) -> jax.Array:
    return variable


def assign(variable: jax.Array, index: Index, value: Any, how: How) -> jax.Array:
    new = changed(variable, index, value, how)
    # A traced array has no value, and the variable would keep it after the function has been traced.
    if isinstance(new, jax.core.Tracer) and not isinstance(variable, jax.core.Tracer):
        raise TypeError(
            "a State of known numbers cannot be written to in a function that JAX traces (jit, grad, vmap): "
            "give its value to the function, and write what the function returns"
        )
    return _without_gradient(new)


def _without_gradient(x: jax.Array) -> jax.Array:
    return jax.lax.stop_gradient(x) if isinstance(x, jax.core.Tracer) else x
