"""Random arrays of JAX: exact ones put on a device, native ones by jax.random with a key of its default kind.

What is put is an array that nobody else has, so it does not matter that JAX keeps the memory where it can.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..adapters import Draw
from ..placement import to_device
from ..random.drawing import words_array
from ..random.exact import Array


def default_integer() -> str:
    return "int64" if _wide() else "int32"


def check_dtype(name: str) -> None:
    if name in ("float64", "int64", "uint64") and not _wide():
        raise ValueError(
            f"JAX is set to 32 bits, and {name} is asked for; "
            f"call jax.config.update('jax_enable_x64', True) first, or ask for {name.replace('64', '32')}"
        )


def adopt(made: Array, device: str | None) -> jax.Array:
    return placed(jnp.asarray(made), device)


def called(make: Callable[[Sequence[Any]], Array], arrays: list[jax.Array], shape: tuple[int, ...], dtype: str) -> Any:
    like = jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))  # type: ignore[no-untyped-call]
    return jax.pure_callback(lambda *numbers: make(numbers), like, *arrays, vmap_method="sequential")


def reordered(x: jax.Array, order: Array) -> jax.Array:
    return jnp.take(x, order, axis=0)


def native_uniform(draw: Draw, low: float, high: float) -> jax.Array:
    return placed(jax.random.uniform(_key(draw), draw.shape, draw.dtype, low, high), draw.device)


def native_normal(draw: Draw, mean: float, std: float) -> jax.Array:
    made = jax.random.normal(_key(draw), draw.shape, draw.dtype)
    return placed(made * jnp.asarray(std, draw.dtype) + jnp.asarray(mean, draw.dtype), draw.device)


def native_integers(draw: Draw, low: int, high: int) -> jax.Array:
    least, end = np.iinfo(draw.dtype).min, np.iinfo(draw.dtype).max
    if (low, high) == (least, end + 1):
        return placed(jax.random.bits(_key(draw), draw.shape, _unsigned(draw)).view(draw.dtype), draw.device)
    return placed(jax.random.randint(_key(draw), draw.shape, low, high, draw.dtype), draw.device)


def native_bernoulli(draw: Draw, p: float) -> jax.Array:
    return placed(jax.random.bernoulli(_key(draw), p, draw.shape), draw.device)


def native_permutation(draw: Draw, n: int) -> jax.Array:
    return placed(jax.random.permutation(_key(draw), n), draw.device)


def _key(draw: Draw) -> Any:  # Any: JAX's typed keys have no type
    kind = jax.random.key(0)
    words = words_array(draw.key, "jax")
    return jax.random.wrap_key_data(words[: jax.random.key_data(kind).size], impl=jax.random.key_impl(kind))


def _unsigned(draw: Draw) -> str:
    return "uint" + draw.dtype.removeprefix("u").removeprefix("int")


def placed(x: jax.Array, device: str | None) -> jax.Array:
    return x if device is None else to_device(x, device)


def _wide() -> bool:
    # In force here: jax.enable_x64 sets it for a thread and a block.
    return jnp.result_type(float) == np.float64
