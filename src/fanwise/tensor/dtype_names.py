"""Names and kinds of dtypes of any engine: torch.float32 and numpy.float32 are both "float32"."""

import functools
from typing import Any

BOOL, INTEGER, FLOAT, COMPLEX = range(4)


@functools.lru_cache(maxsize=None, typed=True)  # dtypes of two libraries may have equal hashes
def dtype_name(dtype: Any, /) -> str:
    """Return the array API standard's name of a dtype ("bool", "int64", "bfloat16" ...).

    Args:
        dtype: a name, or a dtype object or class of any engine.

    Raises:
        TypeError: not a dtype.

    >>> dtype_name("float32")
    'float32'
    """
    if isinstance(dtype, str):
        return dtype
    module = type(dtype).__module__.partition(".")[0]
    name: Any
    if module == "torch":
        name = str(dtype).removeprefix("torch.")
    elif module == "numpy" or module == "tensorflow":
        name = dtype.name
    elif isinstance(dtype, type):
        name = dtype.__name__.removesuffix("_")
    else:
        name = getattr(getattr(dtype, "dtype", None), "name", None)  # JAX's scalar types, such as jax.numpy.float32
    if not isinstance(name, str):
        raise TypeError(f"expected a dtype or the name of one, got {dtype!r}")
    return name


@functools.lru_cache(maxsize=None, typed=True)
def dtype_rank(dtype: Any, /) -> int:
    """Return the kind of a dtype: BOOL, INTEGER, FLOAT or COMPLEX. Each holds the values of the kinds before it.

    Raises:
        TypeError: the dtype holds objects, text or the like.
    """
    name = dtype_name(dtype)
    for rank, prefixes in enumerate((("bool",), ("int", "uint"), ("float", "bfloat"), ("complex",))):
        if name.startswith(prefixes):
            return rank
    raise TypeError(f"expected an array of booleans or numbers, got one of {name}")


def is_inexact(dtype: Any, /) -> bool:
    """Return whether a dtype holds floats or complex numbers, and so has gradients."""
    try:
        return dtype_rank(dtype) >= FLOAT
    except TypeError:
        return False


@functools.cache
def limits(name: str, /) -> tuple[int, int]:
    """Return the least and the greatest number of an integer dtype, by its name.

    >>> limits("int8")
    (-128, 127)
    """
    bits = int(name.lstrip("uint"))
    return (0, 2**bits - 1) if name.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
