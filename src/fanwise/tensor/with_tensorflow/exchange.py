"""TensorFlow tensors in the exchange.

TensorFlow assumes that its tensors are constant, and aborts the process if the memory of one is not aligned to 64
bytes. A variable gives its value; TensorFlow copies the variable's memory on assignment while the value is in use. The
float8 types can only be copied in: neither NumPy's DLPack nor `tf.bitcast` knows them.
"""

from typing import Any

import numpy as np

from ..adapters import Exported, Kind
from ..placement import canonical
from ..with_numpy.exchange import (
    Array,
    Dtype,
    aligned_alias,
    aligned_copy,
    cannot_share,
    in_words,
    locked,
    no_such_type,
    reason_unaligned,
)
from . import placed_on, tf

with tf.init_scope():  # this file may be imported while TensorFlow traces a function
    _EagerTensor = type(tf.constant(0))
_BY_DLPACK = frozenset(np.dtype(code) for code in "?bhilqBHILQefdFD")
_NEVER_QUANTIZED = frozenset(np.dtype(code) for code in "?lqLQefdFD")
_BFLOAT16: Dtype = np.dtype(tf.bfloat16.as_numpy_dtype)
# Numbers, because looking up a dtype of TensorFlow takes as long as all the rest.
_QUANTIZED = frozenset(dtype.as_datatype_enum for dtype in (tf.qint8, tf.quint8, tf.qint16, tf.quint16, tf.qint32))
_from_dlpack = tf.experimental.dlpack.from_dlpack


def export_memory(x: Any, copy: bool | None) -> Exported:
    """Return a read-only view of the memory, or of a copy if it is not on a CPU."""
    if type(x) is not _EagerTensor:
        x = _eager(x)
    if copy is False and "CPU" not in x.device:
        raise cannot_share("This TensorFlow tensor", f"its memory is on {x.device}")
    try:
        array = np.asarray(x)
    except ValueError:  # a 0-d tensor of a type that NumPy lacks is not converted to an array
        array = np.asarray(tf.reshape(x, (1,))).reshape(())
    # TensorFlow takes half a microsecond to tell its own dtype.
    if array.dtype not in _NEVER_QUANTIZED:
        if x.dtype.as_datatype_enum in _QUANTIZED:
            raise TypeError(f"{x.dtype.name} has no form in other engines. Convert tf.quantization.dequantize(x, ...)")
        if array.dtype.hasobject:
            raise TypeError(f"{x.dtype.name} has no form in other engines. Convert numbers that stand for its values")
    return locked(array) if array.flags.writeable else array, "immutable"  # types that NumPy lacks come writable


def _eager(x: Any) -> Any:
    """Return the value of a variable. Raise TypeError for anything else that has no memory."""
    value = x.value() if isinstance(x, tf.Variable) else x
    if type(value) is _EagerTensor:
        return value
    if isinstance(value, tf.Tensor):
        raise TypeError(
            f"This tensor of shape {value.shape} has no values yet, because TensorFlow traces a function "
            f"(tf.function). Convert outside of the function, or inside of tf.py_function"
        )
    kind = f"{type(value).__module__}.{type(value).__qualname__}"
    raise TypeError(f"{kind} is not a plain tensor. Convert tf.convert_to_tensor(x)")


def reason_to_copy(array: Array, kind: Kind, copy: bool | None) -> str:
    if copy is not False or not array.size:
        return "it may be written to" if kind == "mutable" and copy is None else ""
    if array.dtype not in _BY_DLPACK and array.dtype != _BFLOAT16:
        return "TensorFlow copies arrays of this type"
    return reason_unaligned(array)


def share(array: Array) -> Any:
    """Return a tensor over memory that never changes. It is copied if it is not aligned."""
    dtype = array.dtype
    if dtype in _BY_DLPACK:
        return _from_dlpack(aligned_alias(array).__dlpack__())
    if dtype == _BFLOAT16:
        return tf.raw_ops.Bitcast(input=share(in_words(array)), type=tf.bfloat16)
    try:
        tf.as_dtype(dtype)
    except TypeError:
        raise no_such_type("TensorFlow", dtype.name, "x.astype('float32')") from None
    return tf.constant(array)


adopt = share


def copied(x: Any) -> Any:
    """Return a copy on the same device; of a variable's value."""
    x = x.value() if isinstance(x, tf.Variable) else x
    if type(x) is not _EagerTensor:
        return tf.identity(x)  # a traced value has no memory
    if "CPU" not in x.device or x.dtype == tf.string:
        return tf.raw_ops.DeepCopy(x=x)  # which lacks the float8 types on a CPU
    return share(aligned_copy(export_memory(x, None)[0]))


def devices() -> list[str]:
    return sorted(canonical(device.name) for kind in ("CPU", "GPU") for device in tf.config.list_logical_devices(kind))


def device_of(x: Any) -> str:
    if not tf.executing_eagerly() and isinstance(x, tf.Tensor):
        raise TypeError("a tensor that TensorFlow is tracing has no device yet; ask outside of tf.function")
    return canonical(x.device)  # TensorFlow's names are paths: /job:localhost/replica:0/task:0/device:GPU:0


def move(x: Any, device: str) -> Any:
    if tf.executing_eagerly() and isinstance(x, tf.Tensor) and canonical(x.device) == device:
        return x
    with placed_on(device):
        return tf.identity(x)
