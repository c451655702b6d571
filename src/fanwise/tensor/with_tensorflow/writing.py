"""Tensors of TensorFlow with some elements changed, by tensor_scatter_nd_* on the flat tensor.

NumPy computes which elements an index selects, so the shape and the index must be known, in a tf.function too.
"""

import math
from typing import Any, NoReturn

import numpy as np

from ..adapters import How
from ..indexing import Index, check_broadcast, has_duplicates, last_of_each, parts_of, positions
from . import tf

_Tensor = Any
_OPS = {
    "add": tf.add,
    "subtract": tf.subtract,
    "multiply": tf.multiply,
    "divide": tf.divide,
    "min": tf.minimum,
    "max": tf.maximum,
}


def changed(x: _Tensor, index: Index, value: Any, how: How) -> _Tensor:
    x = tf.convert_to_tensor(x)
    shape = tuple(x.shape)
    if index is ... or (isinstance(index, slice) and index == slice(None)):
        value = tf.reshape(_broadcast(value, x.dtype, shape), shape)
        return value if how == "set" else _OPS[how](x, value)
    selected = positions(shape, _on_host(x, index))
    value = _broadcast(value, x.dtype, selected.shape)
    if how == "set" and (last := last_of_each(selected)) is not None:
        selected, value = selected.reshape(-1)[last], tf.gather(value, last)
    size = math.prod(shape)
    # 32 bits if possible, because tf.vectorized_map cannot set elements with 64.
    places = tf.constant(selected.reshape(-1, 1).astype(np.int32 if size < 2**31 else np.int64))
    flat = tf.reshape(x, [-1])
    if how in ("add", "subtract"):
        y = {"add": tf.tensor_scatter_nd_add, "subtract": tf.tensor_scatter_nd_sub}[how](flat, places, value)
    elif how == "set" or not has_duplicates(selected):
        y = tf.tensor_scatter_nd_update(
            flat, places, value if how == "set" else _OPS[how](tf.gather_nd(flat, places), value)
        )
    elif how in ("min", "max"):
        y = {"min": tf.tensor_scatter_nd_min, "max": tf.tensor_scatter_nd_max}[how](flat, places, value)
    else:
        y = _OPS[how](flat, tf.math.unsorted_segment_prod(value, places[:, 0], size))
    return tf.reshape(y, shape)


def read(x: _Tensor, index: Index) -> _Tensor:
    x = tf.convert_to_tensor(x)
    return tf.gather(tf.reshape(x, [-1]), positions(tuple(x.shape), _on_host(x, index)))


def write(x: _Tensor, index: Index, value: Any, how: How) -> NoReturn:
    raise ValueError("tensors of TensorFlow cannot be changed: leave copy=False out, or use a fanwise.tensor.State")


def _broadcast(value: Any, dtype: Any, shape: tuple[int, ...]) -> _Tensor:
    """Return the value broadcast to a shape, on one axis.

    Raises:
        ValueError: it does not broadcast.
    """
    if tf.is_tensor(value):
        check_broadcast(tuple(value.shape), shape)
        return tf.reshape(tf.broadcast_to(tf.cast(value, dtype), shape), [-1])
    check_broadcast(np.shape(value), shape)
    return tf.constant(np.broadcast_to(np.asarray(value, dtype.as_numpy_dtype), shape).reshape(-1))


def _on_host(x: _Tensor, index: Index) -> Index:
    """Return the index with arrays of NumPy in place of tensors and lists.

    Raises:
        TypeError: the shape of x or an index is not known, because TensorFlow traces it.
    """
    parts = [tf.get_static_value(part) if tf.is_tensor(part) else part for part in parts_of(index)]
    is_unknown = any(known is None is not part for known, part in zip(parts, parts_of(index), strict=True))
    if is_unknown or not x.shape.is_fully_defined():
        raise TypeError("inside tf.function the shape of the tensor and the index must be known; use tf.where")
    parts = [np.asarray(part) if isinstance(part, list) else part for part in parts]
    return tuple(parts) if isinstance(index, tuple) else parts[0]


def new_variable(x: _Tensor, copy: bool) -> Any:
    if not tf.executing_eagerly():
        raise ValueError("a State of TensorFlow is made outside of tf.function, once; inside it can be written to")
    return tf.Variable(x, trainable=False)


def value_of(variable: Any) -> _Tensor:
    return tf.convert_to_tensor(variable)


def assign(variable: Any, index: Index, value: Any, how: How) -> Any:
    variable.assign(changed(variable, index, value, how))
    return variable
