"""Tensors of TensorFlow with some elements changed, by tensor_scatter_nd_* on the flat tensor.

Where shape and index are known, in a tf.function too, NumPy says which elements an index means, so all its ways of
indexing work and everything is checked. Where they are not, TensorFlow's own indexing does, of the numbers 0 to
size - 1 in the tensor's shape; it knows integers, slices, None, `...`, one mask, and one tensor of integers.
"""

import math
from typing import Any, NoReturn

import numpy as np

from ..adapters import How
from ..indexing.host import Index, check_broadcast, is_basic, last_of_each, names_twice, parts_of, positions
from . import tf

_Tensor = Any  # TensorFlow has no types.
_OPS = {"multiply": tf.multiply, "divide": tf.divide, "min": tf.minimum, "max": tf.maximum}


def changed(x: _Tensor, index: Index, value: Any, how: How) -> _Tensor:  # Any: a number or a tensor
    x = tf.convert_to_tensor(x)
    known = _on_host(index) if x.shape.is_fully_defined() else None
    if known is None:
        return _changed_when_it_runs(x, index, value, how)
    shape = tuple(x.shape)
    found = positions(shape, known[0])
    unique = is_basic(known[0]) or not names_twice(found)
    value = _spread(value, x.dtype, found.shape)
    flat = x if len(shape) == 1 else tf.reshape(x, [-1])
    if how == "set" and (last := last_of_each(found)) is not None:
        found, value = found.reshape(-1)[last], tf.gather(value, last)
    places = tf.convert_to_tensor(found.reshape(-1).astype(_bits(math.prod(shape)).as_numpy_dtype))
    y = _scattered(flat, places, value, how, unique)
    return y if len(shape) == 1 else tf.reshape(y, shape)


def read(x: _Tensor, index: Index) -> _Tensor:
    x = tf.convert_to_tensor(x)
    known = _on_host(index) if x.shape.is_fully_defined() else None
    found = _traced_positions(x, index) if known is None else positions(tuple(x.shape), known[0])
    return tf.gather(tf.reshape(x, [-1]), found)


def _spread(value: Any, dtype: Any, shape: tuple[int, ...]) -> _Tensor:  # Any: a number or a tensor; a dtype
    """The value, broadcast to a shape, on one axis.

    Raises:
        ValueError: it does not broadcast.
    """
    if not tf.is_tensor(value):
        check_broadcast(np.shape(value), shape)
        filled = np.broadcast_to(np.asarray(value, dtype.as_numpy_dtype), shape).reshape(-1)
        return tf.convert_to_tensor(filled)
    if value.shape.is_fully_defined():
        check_broadcast(tuple(value.shape), shape)
    return tf.reshape(tf.broadcast_to(tf.cast(value, dtype), shape), [-1])


def write(x: _Tensor, index: Index, value: Any, how: How) -> NoReturn:
    raise ValueError(
        "copy=False asks to write into the tensor, and tensors of TensorFlow cannot be changed; "
        "leave copy out, or keep the tensor in a fanwise.tensor.State"
    )


def _on_host(index: Index) -> tuple[Index] | None:
    """The index with arrays of numpy in place of tensors, in a tuple; None if one of them is traced."""
    parts = []
    for part in parts_of(index):
        if isinstance(part, list):
            part = np.asarray(part)
        elif tf.is_tensor(part):
            part = tf.get_static_value(part)
            if part is None:
                return None
        parts.append(part)
    return (tuple(parts) if isinstance(index, tuple) else parts[0],)


def _scattered(flat: _Tensor, places: _Tensor, value: _Tensor, how: How, unique: bool) -> _Tensor:
    column = places[:, None]
    if how == "add":
        return tf.tensor_scatter_nd_add(flat, column, value)
    if how == "subtract":
        return tf.tensor_scatter_nd_sub(flat, column, value)
    if how == "set" or unique:
        new = value if how == "set" else _OPS[how](tf.gather(flat, places), value)
        return tf.tensor_scatter_nd_update(flat, column, new)
    if how == "min":
        return tf.tensor_scatter_nd_min(flat, column, value)
    if how == "max":
        return tf.tensor_scatter_nd_max(flat, column, value)
    return _OPS[how](flat, tf.math.unsorted_segment_prod(value, places, tf.size(flat)))


def _changed_when_it_runs(x: _Tensor, index: Index, value: Any, how: How) -> _Tensor:
    found = _traced_positions(x, index)
    value = tf.cast(value, x.dtype) if tf.is_tensor(value) else tf.convert_to_tensor(value, x.dtype)
    value = tf.reshape(tf.broadcast_to(value, tf.shape(found)), [-1])
    y = _scattered(tf.reshape(x, [-1]), tf.reshape(found, [-1]), value, how, is_basic(index))
    return tf.ensure_shape(tf.reshape(y, tf.shape(x)), x.shape)


def _bits(size: int | None) -> Any:  # Any: a dtype
    """For positions: 32 bits where they do, for with 64 tf.vectorized_map cannot set elements."""
    return tf.int64 if size is None or size >= 2**31 else tf.int32


def _traced_positions(x: _Tensor, index: Index) -> _Tensor:
    everything = tf.reshape(tf.range(tf.size(x, _bits(x.shape.num_elements()))), tf.shape(x))
    parts = parts_of(index)
    if not any(tf.is_tensor(part) and part.shape.rank != 0 for part in parts):
        return everything[index]
    if len(parts) > 1:
        raise TypeError("an index that TensorFlow is tracing can be one tensor alone, not one part of several")
    (part,) = parts
    if part.dtype == tf.bool:
        return tf.boolean_mask(everything, part)
    length = tf.shape(x, part.dtype)[0]
    in_range = tf.debugging.Assert(tf.reduce_all((part >= -length) & (part < length)), ["index out of range", part])
    with tf.control_dependencies([in_range] if in_range is not None else []):
        return tf.gather(everything, tf.where(part < 0, part + length, part))


# What was read of a variable before it is assigned to stays as it was: TensorFlow copies when both are in use.


def new_variable(x: _Tensor, copy: bool) -> Any:  # Any, here and below: a tf.Variable
    if not tf.executing_eagerly():
        raise ValueError("a State of TensorFlow is made outside of tf.function, once; inside it can be written to")
    return tf.Variable(x, trainable=False)


def value_of(variable: Any) -> _Tensor:
    return tf.convert_to_tensor(variable)


def assign(variable: Any, index: Index, value: Any, how: How) -> Any:
    known = _on_host(index)
    if (index is ... or (isinstance(index, slice) and index == slice(None))) and how in ("set", "add", "subtract"):
        _assign_everywhere(variable, value, how)
    elif known is None or how in ("multiply", "divide") or not variable.shape.rank:
        variable.assign(changed(variable, index, value, how))
    else:
        _assign_at(variable, known[0], value, how)
    return variable


def _assign_everywhere(variable: Any, value: Any, how: How) -> None:
    shape = tuple(variable.shape)
    whole = tf.reshape(_spread(value, variable.dtype, shape), shape)
    assign = {"set": variable.assign, "add": variable.assign_add, "subtract": variable.assign_sub}[how]
    assign(whole)


def _assign_at(variable: Any, index: Index, value: Any, how: How) -> None:
    shape = tuple(variable.shape)
    found = positions(shape, index)
    places = np.stack(np.unravel_index(found.reshape(-1), shape), axis=-1)
    named = {"set": "update", "subtract": "sub"}.get(how, how)
    getattr(variable, f"scatter_nd_{named}")(places, _spread(value, variable.dtype, found.shape))
