"""TensorFlow tensors in the exchange.

TensorFlow assumes that its tensors are constant, and aborts the process if the memory of one is not aligned to 64
bytes. A variable gives its value; TensorFlow copies the variable's memory on assignment while the value is in use. The
float8 types can only be copied in: neither NumPy's DLPack nor `tf.bitcast` knows them.
"""

from typing import Any

import numpy as np

from ..adapters import Exported
from ..with_numpy import exchange as of_numpy
from ..with_numpy.exchange import (
    Array,
    Dtype,
    aligned_alias,
    aligned_copy,
    cannot_share,
    in_words,
    is_aligned,
    locked,
    no_such_type,
    why_not_aligned,
)
from . import tf

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
        x = _value_of(x)
    if copy is False and "CPU" not in x.device:
        raise cannot_share("This TensorFlow tensor", f"its memory is on {x.device}")
    return _view(x), "immutable"


def import_memory(exported: Exported, copy: bool | None) -> Any:
    array, kind = exported
    if kind != "private":
        if copy is False:
            return _shared(array)
        if copy or kind == "mutable":
            array = aligned_copy(array)
    return adopt(array)


def adopt(array: Array) -> Any:
    """Return a tensor over memory that never changes. It is copied if it is not aligned."""
    dtype = array.dtype
    if dtype in _BY_DLPACK:
        alias = aligned_alias(array) if array.size else None
        return _from_dlpack((aligned_copy(array) if alias is None else alias).__dlpack__())
    if dtype == _BFLOAT16:
        return tf.raw_ops.Bitcast(input=adopt(in_words(array)), type=tf.bfloat16)
    try:
        tf.as_dtype(dtype)
    except TypeError:
        raise no_such_type("TensorFlow", dtype.name, "x.astype('float32')") from None
    return tf.constant(array)


def copied(x: Any) -> Any:
    """Return a copy on the same device; of a variable's value."""
    x = x.value() if isinstance(x, tf.Variable) else x
    if type(x) is not _EagerTensor:
        return tf.identity(x)  # a traced value has no memory
    if "CPU" not in x.device or x.dtype == tf.string:
        return tf.raw_ops.DeepCopy(x=x)  # which lacks the float8 types on a CPU
    return adopt(aligned_copy(_view(x)))


def addresses_of(x: Any) -> tuple[int, int]:
    if type(x) is not _EagerTensor:
        x = _value_of(x)
    if "CPU" not in x.device:
        raise TypeError(f"TensorFlow does not tell the address of a tensor on {x.device}")
    return of_numpy.addresses_of(_view(x))


def _shared(array: Array) -> Any:
    source = f"An array of shape {array.shape} and dtype {array.dtype}"
    if array.size and array.dtype not in _BY_DLPACK and array.dtype != _BFLOAT16:
        raise cannot_share(source, "TensorFlow copies arrays of this type")
    if array.size and not is_aligned(array):
        raise cannot_share(source, f"{why_not_aligned(array)}, and TensorFlow takes no other (see empty_aligned)")
    return adopt(array)


def _view(x: Any) -> Array:
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
    return locked(array) if array.flags.writeable else array  # types that NumPy lacks come writable


def _value_of(x: Any) -> Any:
    """Return the eager tensor of a variable. Raises TypeError for anything else."""
    if isinstance(x, tf.Variable):
        x = x.value()
    if type(x) is _EagerTensor:
        return x
    if isinstance(x, tf.Tensor):
        raise TypeError(
            f"This tensor of shape {x.shape} has no values yet, because TensorFlow traces a function (tf.function). "
            f"Convert outside of the function, or inside of tf.py_function"
        )
    raise TypeError(f"{type(x).__module__}.{type(x).__qualname__} is no plain tensor. Convert tf.convert_to_tensor(x)")
