"""What a dtype is called and holds, whichever engine it comes from: torch.float32 and numpy.float32 are "float32"."""

import functools
from typing import Any

BOOL, INTEGER, FLOAT, COMPLEX = range(4)

_names: dict[tuple[type, Any], str] = {}
_ranks: dict[tuple[type, Any], int] = {}


def dtype_name(dtype: Any, /) -> str:  # Any: a name, or a dtype object or class of any engine
    """The name of a dtype in the words of the array API standard ("bool", "int64", "bfloat16" ...).

    Args:
        dtype: a name, or a dtype of any engine.

    Raises:
        TypeError: it is none of these.

    >>> dtype_name("float32")
    'float32'
    """
    if isinstance(dtype, str):
        return dtype
    try:
        return _names[type(dtype), dtype]  # the type too: dtypes of two libraries may have one hash
    except (KeyError, TypeError):
        return _look_up(dtype)


def dtype_rank(dtype: Any, /) -> int:  # Any: a dtype of any engine, or its name
    """What a dtype holds: BOOL, INTEGER, FLOAT or COMPLEX. Each holds the values of those before it.

    Raises:
        TypeError: it holds something else, such as objects or text.
    """
    try:
        return _ranks[type(dtype), dtype]
    except (KeyError, TypeError):
        name = dtype_name(dtype)
    for rank, starts in enumerate((("bool",), ("int", "uint"), ("float", "bfloat"), ("complex",))):
        if name.startswith(starts):
            return _ranks.setdefault((type(dtype), dtype), rank)
    raise TypeError(f"expected an array of booleans or numbers, got one of {name}")


def is_inexact(dtype: Any, /) -> bool:  # Any: as above
    """Whether it holds floats or complex numbers, and so has gradients. False of random keys, text and the like."""
    try:
        return dtype_rank(dtype) >= FLOAT
    except TypeError:
        return False


@functools.cache
def limits(name: str, /) -> tuple[int, int]:
    """The least and the greatest number of an integer dtype, by its name.

    >>> limits("int8")
    (-128, 127)
    """
    bits = int(name.lstrip("uint"))
    return (0, 2**bits - 1) if name.startswith("u") else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def _look_up(dtype: Any) -> str:
    module = type(dtype).__module__.partition(".")[0]
    name: Any = None  # Any: whatever has been found under that attribute
    if module == "torch":
        name = str(dtype).removeprefix("torch.")
    elif module == "numpy" or module == "tensorflow":
        name = dtype.name
    elif isinstance(dtype, type):
        name = dtype.__name__.removesuffix("_")
    else:
        # JAX's own scalar types, such as jax.numpy.float32.
        name = getattr(getattr(dtype, "dtype", None), "name", None)
    if not isinstance(name, str):
        raise TypeError(f"expected a dtype or the name of one, got {dtype!r}")
    _names[type(dtype), dtype] = name
    return name
