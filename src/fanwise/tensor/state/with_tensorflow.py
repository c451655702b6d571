"""Cells of TensorFlow: a tf.Variable, assigned to.

What was read before a write stays as it was: TensorFlow copies when both are in use.
"""

from typing import Any

import numpy as np

from ..indexing import with_tensorflow
from ..indexing.host import positions
from ..indexing.places import How
from ..with_tensorflow import tf

_Variable = Any  # TensorFlow has no types.


def held(x: Any, copy: bool) -> _Variable:
    if not tf.executing_eagerly():
        raise ValueError("a State of TensorFlow is made outside of tf.function, once; inside it can be written to")
    return tf.Variable(x, trainable=False)


def value(holder: _Variable) -> Any:
    return tf.convert_to_tensor(holder)


def read(holder: _Variable, index: Any) -> Any:  # Any, here and below: an index or a value of `at`
    return with_tensorflow.read(holder, index)


def write(holder: _Variable, index: Any, value: Any, how: How) -> _Variable:
    known = with_tensorflow.on_host(index)
    if (index is ... or (isinstance(index, slice) and index == slice(None))) and how in ("set", "add", "subtract"):
        _write_everywhere(holder, value, how)
    elif known is None or how in ("multiply", "divide") or not holder.shape.rank:
        holder.assign(with_tensorflow.changed(holder, index, value, how))
    else:
        _write_at(holder, known[0], value, how)
    return holder


def _write_everywhere(holder: _Variable, value: Any, how: How) -> None:
    shape = tuple(holder.shape)
    whole = tf.reshape(with_tensorflow.spread(value, holder.dtype, shape), shape)
    assign = {"set": holder.assign, "add": holder.assign_add, "subtract": holder.assign_sub}[how]
    assign(whole)


def _write_at(holder: _Variable, index: Any, value: Any, how: How) -> None:
    shape = tuple(holder.shape)
    found = positions(shape, index)
    places = np.stack(np.unravel_index(found.reshape(-1), shape), axis=-1)
    named = {"set": "update", "subtract": "sub"}.get(how, how)
    getattr(holder, f"scatter_nd_{named}")(places, with_tensorflow.spread(value, holder.dtype, found.shape))
