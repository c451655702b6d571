"""Functions that make arrays of numbers, shapes and sequences.

Python floats make float32, Python integers int64, Python complex numbers complex64; NumPy arrays keep their type.
A device is named "cpu", "cuda:0", "GPU:0" or as `x.device` says it; None leaves the choice to TensorFlow.
"""

import contextlib
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from ..namespaces.shared import made_of_python_numbers
from ..placement import find_device
from . import tf
from .arguments import Array, as_shape, as_tensor, checked, flat, ints, ndim_of, sizes_of
from .devices import placed_on
from .dtypes import ALL, BOOL, COMPLEX, INTEGER, DType, Tensor, as_dtype, cast, constant, of_number, result_type
from .functions import broadcast_arrays

# Any throughout: TensorFlow has no annotations, and functions take what NumPy can read.

# NumPy makes float64 and complex128 of Python numbers, this layer float32 and complex64.
_NARROW = {"f": np.float32, "c": np.complex64}
_ARRAYS = (tf.Tensor, tf.Variable)
_Device = str | None


def as_device(device: _Device) -> Any:
    """Where tensors are made inside a with block."""
    if device is None:
        return contextlib.nullcontext()
    return placed_on(find_device("tensorflow", device))  # TensorFlow takes the CPU in silence for what is not there


def asarray(obj: Any, /, *, dtype: DType = None, device: _Device = None, copy: bool | None = None) -> Tensor:
    # NumPy's memory is copied, never shared: TensorFlow takes it for constant.
    dtype = None if dtype is None else as_dtype(dtype)
    with as_device(device):
        if isinstance(obj, _ARRAYS):
            x = as_tensor(obj)
            if dtype is not None and dtype != x.dtype:
                if copy is False:
                    raise ValueError(f"asarray(copy=False) cannot make {dtype.name} of {x.dtype.name}")
                return tf.cast(x, dtype)
            return tf.identity(x) if copy or device is not None else x
        if copy is False:
            raise ValueError(f"asarray(copy=False) takes a tensor, got {type(obj).__name__}, which has to be copied")
        if any(isinstance(leaf, _ARRAYS) for leaf in _leaves(obj)):
            return _stacked(obj, dtype or _common_dtype(obj))
        return _of_numbers(obj, dtype)


def _leaves(obj: Any) -> Iterator[Any]:
    if isinstance(obj, (list, tuple)):
        for part in obj:
            yield from _leaves(part)
    else:
        yield obj


def _stacked(obj: Any, dtype: DType) -> Tensor:
    if isinstance(obj, (list, tuple)):
        return tf.stack([_stacked(part, dtype) for part in obj])
    return asarray(obj, dtype=dtype)


def _common_dtype(obj: Any) -> DType:
    """Python numbers among tensors follow their type."""
    return result_type(*(leaf if made_of_python_numbers(leaf) else asarray(leaf) for leaf in _leaves(obj)))


def _of_numbers(obj: Any, dtype: DType | None) -> Tensor:
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


def from_dlpack(x: Any, /, *, device: _Device = None, copy: bool | None = None) -> Tensor:
    if isinstance(x, _ARRAYS):
        return asarray(x, device=device, copy=copy)
    if not hasattr(x, "__dlpack__"):
        raise TypeError(f"from_dlpack takes arrays with __dlpack__, got {type(x).__module__}.{type(x).__qualname__}")
    from ..exchange import convert

    return convert(x, "tensorflow", copy=copy, device=device)


def astype(x: Array, dtype: DType, /, *, copy: bool = True, device: _Device = None) -> Tensor:
    # A tensor cannot change, so `copy` makes no difference.
    x, dtype = checked("astype", x, ALL), as_dtype(dtype)
    if x.dtype in COMPLEX and dtype not in COMPLEX | BOOL:
        raise TypeError(f"{x.dtype.name} does not become {dtype.name}: take fanwise.tensor.real(x), imag(x) or abs(x)")
    with as_device(device):
        x = cast(x, dtype)
        return x if device is None else tf.identity(x)


def full(shape: Any, fill_value: Any, *, dtype: DType = None, device: _Device = None) -> Tensor:
    if isinstance(fill_value, _ARRAYS):
        value = asarray(fill_value, dtype=dtype)
    else:
        value = constant(fill_value, of_number(fill_value) if dtype is None else as_dtype(dtype))
    with as_device(device):
        return tf.fill(as_shape(shape), value)


def full_like(x: Array, /, fill_value: Any, *, dtype: DType = None, device: _Device = None) -> Tensor:
    x = as_tensor(x)
    return full(sizes_of(x), fill_value, dtype=x.dtype if dtype is None else dtype, device=device)


def zeros(shape: Any, *, dtype: DType = None, device: _Device = None) -> Tensor:
    with as_device(device):
        return tf.zeros(as_shape(shape), tf.float32 if dtype is None else as_dtype(dtype))


def ones(shape: Any, *, dtype: DType = None, device: _Device = None) -> Tensor:
    with as_device(device):
        return tf.ones(as_shape(shape), tf.float32 if dtype is None else as_dtype(dtype))


def zeros_like(x: Array, /, *, dtype: DType = None, device: _Device = None) -> Tensor:
    with as_device(device):
        return tf.zeros_like(as_tensor(x), None if dtype is None else as_dtype(dtype))


def ones_like(x: Array, /, *, dtype: DType = None, device: _Device = None) -> Tensor:
    with as_device(device):
        return tf.ones_like(as_tensor(x), None if dtype is None else as_dtype(dtype))


def arange(start: Any, /, stop: Any = None, step: Any = 1, *, dtype: DType = None, device: _Device = None) -> Tensor:
    if stop is None:
        start, stop = 0, start
    bounds = (start, stop, step)
    if any(isinstance(each, _ARRAYS) for each in bounds):
        return _range_of_tensors(bounds, dtype, device)
    if step == 0:
        raise ValueError("arange needs a step other than 0")
    whole = all(isinstance(each, int) for each in bounds)
    dtype = as_dtype(dtype) if dtype is not None else tf.int64 if whole else tf.float32
    # NumPy counts in int64.
    is_beyond = whole and max(start, stop) >= 2**63
    made = np.array(range(start, stop, step), np.uint64) if is_beyond else np.arange(start, stop, step)
    with as_device(device):
        return tf.constant(made.astype(dtype.as_numpy_dtype))


def _range_of_tensors(bounds: tuple[Any, ...], dtype: DType, device: _Device) -> Tensor:
    """A range whose ends tf.function may know only when it runs."""
    ends = [asarray(each) for each in bounds]
    common = result_type(*ends)
    wide = tf.int64 if common in INTEGER else common
    with as_device(device):
        return tf.cast(tf.range(*(tf.cast(each, wide) for each in ends)), wide if dtype is None else as_dtype(dtype))


def linspace(
    start: Any, stop: Any, /, num: int, *, dtype: DType = None, device: _Device = None, endpoint: bool = True
) -> Tensor:
    if num < 0:
        raise ValueError(f"linspace needs num >= 0, got {num}")
    if dtype is None:
        dtype = tf.complex64 if isinstance(start, complex) or isinstance(stop, complex) else tf.float32
    made = np.linspace(start, stop, num, endpoint=endpoint, dtype=as_dtype(dtype).as_numpy_dtype)
    with as_device(device):
        return tf.constant(made)


def eye(
    n_rows: int, n_cols: int | None = None, /, *, k: int = 0, dtype: DType = None, device: _Device = None
) -> Tensor:
    shape = (n_rows, n_rows if n_cols is None else n_cols)
    with as_device(device):
        ones = tf.broadcast_to(tf.equal(_ahead(*shape), _within_int64(k)), shape)
        return tf.cast(ones, tf.float32 if dtype is None else as_dtype(dtype))


def tril(x: Array, /, *, k: int = 0) -> Tensor:
    x = _matrices("tril", x)
    return tf.where(_ahead(*sizes_of(x)[-2:]) <= _within_int64(k), x, tf.zeros_like(x))


def triu(x: Array, /, *, k: int = 0) -> Tensor:
    x = _matrices("triu", x)
    return tf.where(_ahead(*sizes_of(x)[-2:]) >= _within_int64(k), x, tf.zeros_like(x))


def _matrices(name: str, x: Array) -> Tensor:
    x = checked(name, x, ALL)
    if ndim_of(x) < 2:
        raise ValueError(f"a matrix has two axes or more, got an array of shape {tuple(x.shape)}")
    return x


def _ahead(rows: Any, columns: Any) -> Tensor:
    """For each place of a matrix, how far right of the main diagonal it is."""
    return tf.range(tf.cast(columns, tf.int64)) - tf.range(tf.cast(rows, tf.int64))[:, tf.newaxis]


def _within_int64(k: int) -> int:
    return sorted((-(2**63), k, 2**63 - 1))[1]


def meshgrid(*arrays: Array, indexing: Literal["xy", "ij"] = "xy") -> tuple[Tensor, ...]:
    if indexing not in ("xy", "ij"):
        raise ValueError(f"indexing must be 'xy' or 'ij', got {indexing!r}")
    lines = [flat(checked("meshgrid", x, ALL)) for x in arrays]
    # Each of its own type: tf.meshgrid multiplies with ones, which not every type can.
    places = list(range(len(lines)))
    if indexing == "xy" and len(lines) > 1:
        places[:2] = [1, 0]
    shapes = [[-1 if axis == place else 1 for axis in range(len(lines))] for place in places]
    return broadcast_arrays(*(tf.reshape(x, ints(shape)) for x, shape in zip(lines, shapes, strict=True)))
