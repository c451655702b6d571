"""The parts of JAX; `adapters.py` lists their functions."""

from typing import Any

import jax
import numpy as np

config: Any = jax.config  # without annotations
NARROW = {np.dtype("f8"): "float32", np.dtype("i8"): "int32", np.dtype("u8"): "uint32", np.dtype("c16"): "complex64"}


def check_width(dtype: np.dtype[Any]) -> None:
    """Raise TypeError for a dtype of 64 bits, which JAX would silently narrow, unless `jax_enable_x64` is on."""
    if dtype in NARROW and not config.jax_enable_x64:
        raise TypeError(
            f"JAX would silently make {NARROW[dtype]} of {dtype.name}, because jax_enable_x64 is off. Ask for "
            f"{NARROW[dtype]} (of an existing array: x.astype({NARROW[dtype]!r})), or call "
            f"jax.config.update('jax_enable_x64', True) at the start of the program"
        )
