"""TensorFlow tensors in the exchange.

TensorFlow takes its tensors for constants, and ends the process when the memory of one does not begin at a multiple of
64 bytes: everything is looked at before it is handed over. A variable gives its value; TensorFlow copies the variable's
memory when it is assigned to while the value is still in use, so that the value stays as it is.

The float8 types can only be copied in: DLPack of numpy does not know them, and `tf.bitcast` neither.
"""

from typing import Any

import numpy as np

from ..adapters import Exported, Layout
from ..exchange.refusals import cannot_share, no_such_type
from ..with_numpy.exchange import (
    Array,
    Dtype,
    aligned_alias,
    aligned_copy,
    in_words,
    is_aligned,
    layout_of_array,
    locked,
    why_not_aligned,
)
from . import tf

# Any throughout: TensorFlow has no annotations.
with tf.init_scope():  # this file may be loaded while TensorFlow traces a function
    _EagerTensor = type(tf.constant(0))
_BY_DLPACK = frozenset(np.dtype(code) for code in "?bhilqBHILQefdFD")
_NEVER_QUANTIZED = frozenset(np.dtype(code) for code in "?lqLQefdFD")
_BFLOAT16: Dtype = np.dtype(tf.bfloat16.as_numpy_dtype)
_known: set[Dtype] = {*_BY_DLPACK, _BFLOAT16}  # and what was asked for since: TensorFlow takes long to tell
# By number: to look up a type of TensorFlow takes as long as all the rest.
_QUANTIZED = frozenset(dtype.as_datatype_enum for dtype in (tf.qint8, tf.quint8, tf.qint16, tf.quint16, tf.qint32))
_from_dlpack = tf.experimental.dlpack.from_dlpack


def export_memory(x: Any, copy: bool | None) -> Exported:
    """A read-only view of the tensor's memory, or of a copy when it is not on a CPU."""
    if type(x) is not _EagerTensor:
        x = _value_of(x)
    if copy is False and "CPU" not in x.device:
        raise cannot_share("This TensorFlow tensor", f"its memory is on {x.device}")
    return _seen(x), "immutable"


def import_memory(exported: Exported, copy: bool | None) -> Any:
    """A tensor over the array's memory where that may be."""
    array, kind = exported
    if kind == "private" or (kind == "immutable" and copy is None):
        return adopt(array)
    check_type(array.dtype)
    if copy is False:
        return _shared(array)
    return _from_dlpack(aligned_copy(array).__dlpack__()) if array.dtype in _BY_DLPACK else tf.constant(array)


def copied(x: Any) -> Any:
    """A copy on the same device; of a variable's value. What has no values yet has no memory to copy either."""
    x = x.value() if isinstance(x, tf.Variable) else x
    if type(x) is not _EagerTensor:
        return tf.identity(x)
    if "CPU" not in x.device or x.dtype == tf.string:
        return tf.raw_ops.DeepCopy(x=x)
    return adopt(aligned_copy(_seen(x)))


def layout_of(x: Any) -> Layout:
    """Where its elements lie."""
    if type(x) is not _EagerTensor:
        x = _value_of(x)
    if "CPU" not in x.device:
        raise TypeError(f"TensorFlow does not tell where the memory of a tensor on {x.device} is")
    return layout_of_array(_seen(x))


def adopt(array: Array) -> Any:
    """A tensor over memory that nobody will ever change. Copied if it does not lie as TensorFlow needs it.

    Raises TypeError as `check_type` does.
    """
    dtype = array.dtype
    if dtype in _BY_DLPACK:
        alias = aligned_alias(array) if array.size else None
        return _from_dlpack((aligned_copy(array) if alias is None else alias).__dlpack__())
    if dtype == _BFLOAT16:
        return tf.raw_ops.Bitcast(input=adopt(in_words(array)), type=tf.bfloat16)
    check_type(dtype)
    return tf.constant(array)


def check_type(dtype: Dtype) -> None:
    """Raises TypeError if TensorFlow has no such element type."""
    if dtype in _known:
        return
    try:
        tf.as_dtype(dtype)
        _known.add(dtype)
    except TypeError:
        raise no_such_type("TensorFlow", dtype.name, "x.astype('float32')") from None


def _shared(array: Array) -> Any:
    what = f"An array of shape {array.shape} and dtype {array.dtype}"
    if not array.size:
        return adopt(array)
    if array.dtype not in _BY_DLPACK and array.dtype != _BFLOAT16:
        raise cannot_share(what, "TensorFlow copies arrays of this type")
    if not is_aligned(array):
        raise cannot_share(what, f"{why_not_aligned(array)}, and TensorFlow takes no other (see empty_aligned)")
    return adopt(array)


def _seen(x: Any) -> Array:
    try:
        array = np.asarray(x)
    except ValueError:  # a single number of a type that numpy lacks comes as no array
        array = np.asarray(tf.reshape(x, (1,))).reshape(())
    # TensorFlow takes half a microsecond to tell its own type.
    if array.dtype not in _NEVER_QUANTIZED and (array.dtype.hasobject or x.dtype.as_datatype_enum in _QUANTIZED):
        raise TypeError(f"A TensorFlow tensor of type {x.dtype.name} has no form in other engines. {_way_out(x.dtype)}")
    # What numpy itself has no type for comes as an array that can be written to.
    return locked(array) if array.flags.writeable else array


def _value_of(x: Any) -> Any:
    """The tensor to look at in the place of x. Raises TypeError when there is none."""
    if isinstance(x, tf.Variable):
        x = x.value()
    if type(x) is _EagerTensor:
        return x
    if isinstance(x, tf.Tensor):
        raise TypeError(
            f"This tensor stands for one of shape {x.shape} while TensorFlow traces a function (tf.function): it has "
            f"no values yet. Convert outside of the function, or inside of tf.py_function"
        )
    raise TypeError(f"{type(x).__module__}.{type(x).__qualname__} is no plain tensor. Convert tf.convert_to_tensor(x)")


def _way_out(dtype: Any) -> str:
    if dtype.as_datatype_enum in _QUANTIZED:
        return "Convert tf.quantization.dequantize(x, ...), or tf.bitcast(x, tf.int8) and its range."
    return "Convert numbers that stand for what is in it."
