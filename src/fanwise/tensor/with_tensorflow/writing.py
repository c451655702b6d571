"""Tensors of TensorFlow with some elements changed, by tensor_scatter_nd_* on the flat tensor.

NumPy computes which elements an index selects, so the shape and the index must be known, in a tf.function too.
"""

from typing import Any

import numpy as np

from ..adapters import How
from ..indexing import Index, check_broadcast, operation, parts_of, positions, positions_to_write
from . import tf

_Tensor = Any


def changed(x: _Tensor, index: Index, value: Any, how: How) -> _Tensor:
    x = tf.convert_to_tensor(x)
    value = tf.cast(value, x.dtype) if tf.is_tensor(value) else tf.constant(np.asarray(value, x.dtype.as_numpy_dtype))
    shape, value_shape = tuple(x.shape), tuple(value.shape)
    if index is ... or (isinstance(index, slice) and index == slice(None)):
        check_broadcast(value_shape, shape)
        value = tf.broadcast_to(value, shape)
        return value if how == "set" else operation(tf, how)(x, value)
    selected, last, selected_shape = positions_to_write(shape, _on_host(x, index), value_shape, how)
    value = tf.reshape(tf.broadcast_to(value, selected_shape), [-1])
    value = value if last is None else tf.gather(value, last)
    # 32 bits if possible, because tf.vectorized_map cannot set elements with 64.
    places = tf.constant(selected.reshape(-1, 1).astype(np.int32 if selected.max(initial=0) < 2**31 else np.int64))
    flat = tf.reshape(x, [-1])
    if how in ("add", "subtract"):
        y = getattr(tf, f"tensor_scatter_nd_{how[:3]}")(flat, places, value)
    else:
        value = value if how == "set" else operation(tf, how)(tf.gather_nd(flat, places), value)
        y = tf.tensor_scatter_nd_update(flat, places, value)
    return tf.reshape(y, shape)


def read(x: _Tensor, index: Index) -> _Tensor:
    x = tf.convert_to_tensor(x)
    return tf.gather(tf.reshape(x, [-1]), positions(tuple(x.shape), _on_host(x, index)))


def _on_host(x: _Tensor, index: Index) -> Index:
    """Return the index with arrays of NumPy in place of tensors and lists. Raise TypeError for a traced index."""
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
