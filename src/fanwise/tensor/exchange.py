"""Arrays from one engine to another. Memory is shared only where no one can notice, or where both sides expect it.

    x --export_memory of its engine--> NumPy array over the memory, or a copy --share of the other--> y
    x --to_dlpack------------------> the memory on an accelerator --from_dlpack--------------> y    torch and JAX

Raw DLPack aborts the process when TensorFlow gets unaligned memory, or torch a negative stride; it narrows float64 on
the way into JAX, and lets torch write into constants. So main memory goes through NumPy, and is checked first. On an
accelerator torch and JAX queue work that the other does not see, so a copy is complete when `convert` returns. After
copy=False, wait for one engine before the other writes to the memory or frees it.
"""

import math
from typing import TYPE_CHECKING, Any

from .adapters import exchanges
from .engines import ENGINES, check_engine, current_engine, engine_of
from .gradients import stop_gradient
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
        copy: None shares memory where no one can notice: between NumPy and torch, and out of JAX and TensorFlow into
            NumPy (a read-only view) and each other. False shares, or raises with the reason; then writing to one side
            changes the other, also a JAX array, which JAX assumes constant. True always copies. Copies are aligned to
            64 bytes, and read-only NumPy memory is never made writable.
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
    giver, target = exchanges[source], exchanges.get(engine) or exchanges[check_engine(engine)]
    y = None
    if source == engine:
        y = target.copied(x) if copy else x
    elif source in _BY_DLPACK and engine in _BY_DLPACK:
        accelerator = giver.accelerator_of(x)
        if accelerator and has_device(engine, accelerator):
            device = accelerator if device is None else device
            if canonical(str(device)) != "cpu":
                y = target.from_dlpack(giver.to_dlpack(x, copy), copy)
    if y is None:
        array, kind = giver.export_memory(x, copy)
        if kind != "private":
            reason = target.reason_to_copy(array, kind, copy)
            if copy or reason:
                memory = exchanges["numpy"]
                if copy is False:
                    raise memory.cannot_share(f"An array of shape {array.shape} and dtype {array.dtype}", reason)
                array = memory.aligned_copy(array)
        y = target.share(array)
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


def size(x: Any, /) -> int:
    """Return the number of elements of the array x: 1 for shape (). Works while a function is traced, too.

    Raises:
        TypeError: x is not an array.
        ValueError: the number is not known, because a `tf.function` that takes arrays of any length is traced.

    >>> import numpy
    >>> size(numpy.zeros((3, 4)))
    12
    """
    engine_of(x)
    if None in (shape := tuple(x.shape)):
        raise ValueError(f"the size of an array of shape {shape} is not known yet; use tensorflow.size(x) there")
    return math.prod(shape)


def item(x: Any, /) -> Any:
    """Return the only element of the array x as a bool, int, float or complex number.

    Blocks until it is computed, and copies from an accelerator. No gradient flows through the number.

    Raises:
        TypeError: x is not an array, or it is traced and has no value yet.
        ValueError: x does not have exactly one element.

    >>> import numpy
    >>> item(numpy.asarray([3.5]))
    3.5
    """
    if (count := size(x)) != 1:
        raise ValueError(
            f"item takes an array of one element, got one of shape {tuple(x.shape)}, which has {count}. Choose one: "
            f"item(x[0]); for all of them to_numpy(x).tolist()"
        )
    value = to_numpy(stop_gradient(x)).item()
    return value if isinstance(value, (bool, int, float, complex)) else float(value)  # bfloat16 and float8


def same_memory(x: Any, y: Any) -> bool:
    """Return whether the memory of x and that of y overlap, so that writing to one may change the other.

    Compares the first and the last address of each only.

    Raises:
        TypeError: x or y is not an array, or has no memory (a value inside a traced function, sparse, quantized).
        ValueError: the memory is on an accelerator, is not one piece, or does not hold the values (a conjugate view).

    >>> import numpy
    >>> x = numpy.zeros(4)
    >>> same_memory(x, x[2:]), same_memory(x[:2], x[2:])
    (True, False)
    """
    from numpy.lib.array_utils import byte_bounds

    arrays = [to_numpy(stop_gradient(array), copy=False) for array in (x, y)]
    (start, end), (other_start, other_end) = map(byte_bounds, arrays)
    return all(array.size for array in arrays) and max(start, other_start) < min(end, other_end)
