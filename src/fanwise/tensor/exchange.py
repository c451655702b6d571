"""Arrays from one engine to another. Memory is shared only where no one can notice, or where both sides expect it.

    x --export_memory of its engine--> NumPy array over the memory --import_memory of the other--> y
    x --to_dlpack------------------> the memory on an accelerator --from_dlpack--------------> y    torch and JAX

With copy=None:

    to:            numpy              torch               jax, tensorflow
    from numpy     x itself           shared; a copy if   a copy: x may be written to
                                      read-only
    from torch     shared             x itself            a copy: x may be written to
    from jax, tf   read-only view     a copy: torch has   shared
                                      no read-only

copy=False shares in all of these, or raises with the reason: writing to one side then changes the other, also a JAX
array, which JAX assumes constant. Only read-only NumPy memory is never made writable. Copies are aligned to 64 bytes.

Raw DLPack aborts the process when TensorFlow gets unaligned memory, or torch a negative stride; it narrows float64 on
the way into JAX, and lets torch write into constants. So main memory goes through NumPy, and is checked first. On an
accelerator torch and JAX queue work that the other does not see, so a copy is complete when `convert` returns. After
copy=False, wait for one engine before the other writes to the memory or frees it.
"""

import math
from typing import TYPE_CHECKING, Any, cast

from .adapters import DLPackExchange, exchanges
from .buffers import aligned_buffer
from .engines import ENGINES, check_engine, current_engine, engine_of
from .placement import canonical, has_device, to_device

if TYPE_CHECKING:
    import numpy

    Array = numpy.ndarray[Any, Any]

_BY_DLPACK = frozenset(name for name, engine in ENGINES.items() if engine.dlpack)


def convert(x: Any, engine: str, copy: bool | None = None, device: object = None) -> Any:
    """Return the array x as one of another engine: the same shape, dtype and values, bit for bit.

    An array of `engine` itself is returned unchanged. Memory that the other engine cannot use safely (not aligned,
    negative strides, another byte order) is copied.

    Args:
        x: an array of any engine, a Parameter or a Variable (its value).
        engine: "torch", "jax", "tensorflow" or "numpy".
        copy: None shares memory where no one can notice; the table is at the top of this module. False shares, or
            raises; then writing to one side changes the other. True always copies.
        device: device of the result, by a name as `devices` lists them. Default: between torch and JAX the accelerator
            of x, if both can use it; otherwise the CPU, for JAX its default device. Blocks until a copy from or to an
            accelerator is complete.

    Raises:
        TypeError: x is not an array, has no memory to share (sparse, quantized, strings, a value inside a traced
            function), or requires grad; or the engine lacks the dtype, also JAX without 64-bit mode.
        ValueError: unknown engine or device; copy=False, but a copy is needed; a JAX array that was deleted.
        NotInstalled: the engine is not installed; the message names the extra.

    >>> import numpy, torch
    >>> x = numpy.zeros(3)
    >>> y = convert(x, "torch")
    >>> y[0] = 7  # torch and NumPy share
    >>> x
    array([7., 0., 0.])
    """
    source = engine_of(x)
    target = exchanges.get(engine) or exchanges[check_engine(engine)]
    y = None
    if source == engine:
        y = target.copied(x) if copy else x
    elif source in _BY_DLPACK and engine in _BY_DLPACK:
        giver: Any = exchanges[source]
        accelerator = giver.accelerator_of(x)
        if accelerator and has_device(engine, accelerator):
            device = accelerator if device is None else device
            if canonical(str(device)) != "cpu":
                y = cast(DLPackExchange, target).from_dlpack(giver.to_dlpack(x, copy), copy)
    if y is None:
        y = target.import_memory(exchanges[source].export_memory(x, copy), copy)
    if device is None:
        return y
    moved = to_device(y, device)
    if copy is False and moved is not y:
        raise ValueError(f"This array of {engine} cannot be shared: it has to be moved to {device}. Leave copy out.")
    return moved


def to_numpy(x: Any, copy: bool | None = None) -> "Array":
    """Return the array x as a NumPy array: `convert(x, "numpy", copy)`, except that a NumPy scalar becomes an array.

    bfloat16 and the float8 types become those of ml_dtypes.

    Raises:
        TypeError, ValueError: as `convert`.

    >>> import torch
    >>> to_numpy(torch.arange(3))
    array([0, 1, 2])
    """
    import numpy as np

    return np.asanyarray(convert(x, "numpy", copy))


def from_numpy(x: "Array", engine: str | None = None, copy: bool | None = None) -> Any:
    """Return the NumPy array x as an array of `engine`, or of the current one: `convert(x, engine, copy)`.

    Raises:
        TypeError: x is not a NumPy array, or the engine lacks its dtype.
        ValueError, NotInstalled: as `convert`.
    """
    if engine_of(x) != "numpy":
        raise TypeError(f"from_numpy takes numpy arrays, got one of {engine_of(x)}; use fanwise.tensor.convert")
    return convert(x, current_engine() if engine is None else engine, copy)


def empty_aligned(shape: int | tuple[int, ...], dtype: Any = "float32") -> "Array":
    """Return a new NumPy array of zeros that starts at a multiple of 64 bytes, in C order.

    Every engine can adopt it without a copy: `convert(x, "jax", copy=False)`. One in four of NumPy's own arrays is
    aligned like this, by chance. The dtype may be the name of a type of ml_dtypes, such as "bfloat16".

    Raises:
        ValueError: a length is negative.
        TypeError: not a dtype, or one of Python objects.

    >>> empty_aligned((2, 3), "int32")
    array([[0, 0, 0],
           [0, 0, 0]], dtype=int32)
    """
    import numpy as np

    from .with_numpy.exchange import dtype_named

    kind = dtype_named(dtype)
    if kind.hasobject:
        raise TypeError(f"dtype {kind} holds references to Python objects, which have no memory to share")
    lengths = (shape,) if isinstance(shape, int) else tuple(shape)
    if min(lengths, default=0) < 0:
        raise ValueError(f"lengths must be at least 0, got shape {lengths}")
    buffer = aligned_buffer(math.prod(lengths) * kind.itemsize)
    array: Array = np.frombuffer(buffer, np.uint8).view(kind).reshape(lengths)
    return array


def same_memory(x: Any, y: Any) -> bool:
    """Return whether the memory of x and that of y overlap, so that writing to one may change the other.

    Compares the first and the last address of each only.

    Raises:
        TypeError: x or y is not an array, or has no memory (a value inside a traced function, sparse, quantized), or
            its engine does not tell the address.

    >>> import numpy
    >>> x = numpy.zeros(4)
    >>> same_memory(x, x[2:]), same_memory(x[:2], x[2:])
    (True, False)
    """
    (start, end), (other_start, other_end) = (exchanges[engine_of(array)].addresses_of(array) for array in (x, y))
    return max(start, other_start) < min(end, other_end)
