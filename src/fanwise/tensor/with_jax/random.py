"""Random arrays of JAX, made by numpy and put on a device.

What is put is an array that nobody else has, so it does not matter that JAX keeps the memory where it can.
"""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from ..placement import to_device
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
    x = jnp.asarray(made)
    return x if device is None else to_device(x, device)


def called(make: Callable[[Sequence[Any]], Array], arrays: list[jax.Array], shape: tuple[int, ...], dtype: str) -> Any:
    like = jax.ShapeDtypeStruct(shape, jnp.dtype(dtype))  # type: ignore[no-untyped-call]
    return jax.pure_callback(lambda *numbers: make(numbers), like, *arrays, vmap_method="sequential")


def _wide() -> bool:
    # In force here: jax.enable_x64 sets it for a thread and a block.
    return jnp.result_type(float) == np.float64
