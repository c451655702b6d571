"""Functions that make arrays of numbers, shapes and sequences.

Python floats make float32, Python integers int64, Python complex numbers complex64; NumPy arrays keep their type.
A device is named "cpu", "cuda:0", "GPU:0" or as `x.device` says it; None leaves the choice to TensorFlow.
"""

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np

from ...namespaces.python_numbers import made_of_python_numbers
from .. import tf
from .arguments import Array, as_shape, as_tensor, flat, ndim_of, one, sizes_of
from .dtypes import (
    ALL,
    COMPLEX,
    DEFAULT_FLOAT,
    INTEGER,
    UNSIGNED,
    DType,
    Tensor,
    as_dtype,
    constant,
    of_scalar,
    result_type,
)

# NumPy makes float64 and complex128 of Python numbers, this namespace float32 and complex64.
_NARROW = {"f": np.float32, "c": np.complex64}
Scalar = complex  # bool, int and float too, as Python's types have it
Shape = Any  # Any: an int, a tuple of ints, or of 0-d tensors while tf.function traces


def as_device(device: str | None) -> Any:  # Any: a context manager
    """Where tensors are made inside a with block."""
    if device is None:
        return contextlib.nullcontext()
    name = str(device)
    return tf.device(name if "/" in name else "/" + name.lower().replace("cuda", "gpu"))


def asarray(
    obj: Any,  # Any: an array, a Python number, nested sequences of them, or what NumPy can read
    /,
    *,
    dtype: DType | None = None,
    device: str | None = None,
    copy: bool | None = None,
) -> Tensor:
    """A tensor of a number, nested lists, a NumPy array or a tensor. NumPy's memory is copied, never shared.

    Raises:
        TypeError: arrays of other engines; convert them with fanwise.tensor.convert.
        ValueError: copy=False, and obj is no tensor.
        OverflowError: an integer outside the range of dtype.
    """
    dtype = None if dtype is None else as_dtype(dtype)
    with as_device(device):
        if isinstance(obj, (tf.Tensor, tf.Variable)):
            x = as_tensor(obj)
            if dtype is not None and dtype != x.dtype:
                if copy is False:
                    raise ValueError(f"asarray(copy=False) cannot make {dtype.name} of {x.dtype.name}")
                return tf.cast(x, dtype)
            return tf.identity(x) if copy or device is not None else x
        if copy is False:
            raise ValueError(f"asarray(copy=False) takes a tensor, got {type(obj).__name__}, which has to be copied")
        if _holds_tensors(obj):
            return _stacked(obj, dtype or _common_dtype(obj))
        return _of_numbers(obj, dtype)


def _leaves(obj: Any) -> Iterator[Any]:  # Any: as for asarray
    if isinstance(obj, (list, tuple)):
        for part in obj:
            yield from _leaves(part)
    else:
        yield obj


def _holds_tensors(obj: Any) -> bool:  # Any: as for asarray
    return any(isinstance(leaf, (tf.Tensor, tf.Variable)) for leaf in _leaves(obj))


def _stacked(obj: Any, dtype: DType) -> Tensor:  # Any: nested sequences with tensors among them
    if isinstance(obj, (list, tuple)):
        return tf.stack([_stacked(part, dtype) for part in obj])
    return asarray(obj, dtype=dtype)


def _common_dtype(obj: Any) -> DType:  # Any: the same
    """Python numbers among tensors follow their type."""
    return result_type(*(leaf if type(leaf) in (bool, int, float, complex) else asarray(leaf) for leaf in _leaves(obj)))


def _of_numbers(obj: Any, dtype: DType | None) -> Tensor:  # Any: nested sequences of numbers, or a NumPy array
    if hasattr(obj, "__dlpack__") and type(obj).__module__.partition(".")[0] != "numpy":
        as_tensor(obj)  # raises: an array of another engine
    ours_to_choose = made_of_python_numbers(obj)
    # With its type given NumPy refuses integers out of range; arrays may lose what the type cannot hold.
    array = np.array(obj, dtype.as_numpy_dtype) if dtype is not None and ours_to_choose else np.array(obj)
    if array.dtype.kind not in "biufcV":
        raise TypeError(f"asarray takes numbers, got {type(obj).__name__} of {array.dtype}")
    if dtype is None and ours_to_choose:
        array = array.astype(_NARROW.get(array.dtype.kind, array.dtype))
    # The array is our own copy: TensorFlow may go on using its memory.
    x = tf.constant(array)
    return x if dtype is None else tf.cast(x, dtype)


def from_dlpack(x: Any, /, *, device: str | None = None, copy: bool | None = None) -> Tensor:  # Any: has __dlpack__
    """A tensor of the array of another library, shared if that is safe; see fanwise.tensor.convert.

    Raises:
        TypeError: x has no `__dlpack__`.
        ValueError: copy=False, and the memory cannot be shared.
    """
    if isinstance(x, (tf.Tensor, tf.Variable)):
        return asarray(x, device=device, copy=copy)
    if not hasattr(x, "__dlpack__"):
        raise TypeError(f"from_dlpack takes arrays with __dlpack__, got {type(x).__module__}.{type(x).__qualname__}")
    from ...exchange import convert

    return convert(x, "tensorflow", copy=copy, device=device)


def full(shape: Shape, fill_value: Scalar, *, dtype: DType | None = None, device: str | None = None) -> Tensor:
    """An array of one number everywhere; its type is that number's if dtype is None."""
    if isinstance(fill_value, (tf.Tensor, tf.Variable)):
        value = asarray(fill_value, dtype=dtype)
    else:
        value = constant(fill_value, of_scalar(fill_value) if dtype is None else as_dtype(dtype))
    with as_device(device):
        return tf.fill(as_shape(shape), value)


def full_like(x: Array, /, fill_value: Scalar, *, dtype: DType | None = None, device: str | None = None) -> Tensor:
    """An array of one number everywhere, with x's shape, and its type unless another is given."""
    x = as_tensor(x)
    return full(sizes_of(x), fill_value, dtype=x.dtype if dtype is None else dtype, device=device)


def zeros(shape: Shape, *, dtype: DType | None = None, device: str | None = None) -> Tensor:
    """An array of zeros, float32 if dtype is None."""
    with as_device(device):
        return tf.zeros(as_shape(shape), DEFAULT_FLOAT if dtype is None else as_dtype(dtype))


def zeros_like(x: Array, /, *, dtype: DType | None = None, device: str | None = None) -> Tensor:
    """An array of zeros, with x's shape, and its type unless another is given."""
    with as_device(device):
        return tf.zeros_like(as_tensor(x), None if dtype is None else as_dtype(dtype))


def ones(shape: Shape, *, dtype: DType | None = None, device: str | None = None) -> Tensor:
    """An array of ones, float32 if dtype is None."""
    with as_device(device):
        return tf.ones(as_shape(shape), DEFAULT_FLOAT if dtype is None else as_dtype(dtype))


def ones_like(x: Array, /, *, dtype: DType | None = None, device: str | None = None) -> Tensor:
    """An array of ones, with x's shape, and its type unless another is given."""
    with as_device(device):
        return tf.ones_like(as_tensor(x), None if dtype is None else as_dtype(dtype))


def empty(shape: Shape, *, dtype: DType | None = None, device: str | None = None) -> Tensor:
    """An array whose contents are not promised; here zeros, since tensors cannot be filled later."""
    return zeros(shape, dtype=dtype, device=device)


def empty_like(x: Array, /, *, dtype: DType | None = None, device: str | None = None) -> Tensor:
    """An array whose contents are not promised, with x's shape, and its type unless another is given."""
    return zeros_like(x, dtype=dtype, device=device)


def arange(
    start: float,
    /,
    stop: float | None = None,
    step: float = 1,
    *,
    dtype: DType | None = None,
    device: str | None = None,
) -> Tensor:
    """start, start + step, ... up to, not including, stop; or 0, 1, ... up to start, if it is alone.

    Integers make int64, floats float32, if dtype is None.

    Raises:
        ValueError: step is 0.
    """
    if stop is None:
        start, stop = 0, start
    bounds = (start, stop, step)
    if any(isinstance(one, (tf.Tensor, tf.Variable)) for one in bounds):
        return _symbolic_range(bounds, dtype, device)
    if step == 0:
        raise ValueError("arange needs a step other than 0")
    whole = all(isinstance(one, int) for one in bounds)
    dtype = as_dtype(dtype) if dtype is not None else tf.int64 if whole else DEFAULT_FLOAT
    with as_device(device):
        if whole:
            count = len(range(int(start), int(stop), int(step)))
            # Modulo 2**64, so that the range of uint64 is reached too.
            first, stride = (_wrapped(int(one)) for one in (start, step))
            values = tf.range(count, dtype=tf.int64) * tf.constant(stride, tf.int64) + tf.constant(first, tf.int64)
            return tf.cast(tf.cast(values, tf.uint64), dtype) if dtype in UNSIGNED else tf.cast(values, dtype)
        count = max(math.ceil((stop - start) / step), 0)
        return tf.cast(tf.range(count, dtype=tf.float64) * float(step) + float(start), dtype)


def _wrapped(number: int) -> int:
    return (number + 2**63) % 2**64 - 2**63


def _symbolic_range(bounds: tuple[Any, ...], dtype: DType | None, device: str | None) -> Tensor:  # Any: 0-d or numbers
    """A range whose ends tf.function knows only when it runs."""
    first, last, step = (asarray(one) for one in bounds)
    common = result_type(first, last, step)
    wide = tf.int64 if common in INTEGER else common
    with as_device(device):
        values = tf.range(tf.cast(first, wide), tf.cast(last, wide), tf.cast(step, wide))
        return tf.cast(values, (tf.int64 if common in INTEGER else common) if dtype is None else as_dtype(dtype))


def linspace(
    start: Scalar,
    stop: Scalar,
    /,
    num: int,
    *,
    dtype: DType | None = None,
    device: str | None = None,
    endpoint: bool = True,
) -> Tensor:
    """`num` numbers at equal distances from start to stop, which is the last one if `endpoint`.

    Raises:
        ValueError: num is negative.
    """
    if num < 0:
        raise ValueError(f"linspace needs num >= 0, got {num}")
    is_complex = isinstance(start, complex) or isinstance(stop, complex)
    dtype = as_dtype(dtype) if dtype is not None else tf.complex64 if is_complex else DEFAULT_FLOAT
    wide = tf.complex128 if is_complex or dtype in COMPLEX else tf.float64
    with as_device(device):
        places = tf.range(num, dtype=tf.float64)
        gaps = max(num - 1 if endpoint else num, 1)
        part = tf.cast(places / gaps, wide)
        # Not start + part * (stop - start): the difference of two large numbers may be infinite.
        values = constant(start, wide) * (1 - part) + constant(stop, wide) * part
        if dtype in INTEGER and not isinstance(start, complex) and not isinstance(stop, complex):
            # Divided last, so that whole steps stay whole; rounded down as NumPy does.
            values = tf.floor(float(start) + (float(stop) - float(start)) * places / gaps)
        values = tf.cast(values, dtype)
        values = tf.where(places == 0, constant(_as_kind(start, dtype), dtype), values)
        if endpoint and num > 1:
            values = tf.where(places == num - 1, constant(_as_kind(stop, dtype), dtype), values)
        return values


def _as_kind(number: Scalar, dtype: DType) -> Scalar:
    return int(number.real) if dtype in INTEGER else number


def eye(
    n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: DType | None = None, device: str | None = None
) -> Tensor:
    """A matrix of zeros with ones on the diagonal, `k` places to the right of the main one."""
    n_cols = n_rows if n_cols is None else n_cols
    with as_device(device):
        shape = (n_rows, n_cols)
        ahead = tf.range(n_cols, dtype=tf.int64) - tf.range(n_rows, dtype=tf.int64)[:, tf.newaxis]
        ones = tf.broadcast_to(tf.equal(ahead, _within_int64(k)), shape)
        return tf.cast(ones, DEFAULT_FLOAT if dtype is None else as_dtype(dtype))


def _within_int64(k: int) -> int:
    return sorted((-(2**63), k, 2**63 - 1))[1]


def tril(x: Array, /, *, k: int = 0) -> Tensor:
    """Matrices with zeros above the diagonal that is `k` places to the right of the main one."""
    x = one("tril", x, ALL)
    return tf.where(_ahead(x) <= _within_int64(k), x, tf.zeros_like(x))


def triu(x: Array, /, *, k: int = 0) -> Tensor:
    """Matrices with zeros below the diagonal that is `k` places to the right of the main one."""
    x = one("triu", x, ALL)
    return tf.where(_ahead(x) >= _within_int64(k), x, tf.zeros_like(x))


def _ahead(x: Tensor) -> Tensor:
    """For each place of a matrix, how far right of the main diagonal it is."""
    if ndim_of(x) < 2:
        raise ValueError(f"a matrix has two axes or more, got an array of shape {tuple(x.shape)}")
    rows, columns = sizes_of(x)[-2:]
    return tf.range(tf.cast(columns, tf.int64)) - tf.range(tf.cast(rows, tf.int64))[:, tf.newaxis]


def meshgrid(*arrays: Array, indexing: Literal["xy", "ij"] = "xy") -> tuple[Tensor, ...]:
    """For arrays of one axis each, the coordinates of all points of the grid that they span.

    Raises:
        ValueError: indexing is neither "xy" nor "ij", or an array has more than one axis.
    """
    if indexing not in ("xy", "ij"):
        raise ValueError(f"indexing must be 'xy' or 'ij', got {indexing!r}")
    tensors = [one("meshgrid", x, ALL) for x in arrays]
    for x in tensors:
        if ndim_of(x) > 1:
            raise ValueError(f"meshgrid takes arrays of one axis, got shape {tuple(x.shape)}")
    return _grid([flat(x) for x in tensors], swapped=indexing == "xy" and len(tensors) > 1)


def _grid(lines: Sequence[Tensor], *, swapped: bool) -> tuple[Tensor, ...]:
    order = [1, 0, *range(2, len(lines))] if swapped else list(range(len(lines)))
    sizes = [sizes_of(lines[axis])[0] for axis in order]
    grid = []
    for number, x in enumerate(lines):
        shape: list[Any] = [1] * len(lines)  # Any: ints, and 0-d tensors while tf.function traces
        shape[order.index(number)] = sizes[order.index(number)]
        grid.append(tf.broadcast_to(tf.reshape(x, shape), sizes))
    return tuple(grid)
