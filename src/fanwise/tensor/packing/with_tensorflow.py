"""Trees of TensorFlow tensors in one buffer."""

from typing import Any

from ..with_tensorflow import tf
from .layout import PackedLeaf, PackSpec, as_python, gaps

_Tensor = Any  # TensorFlow has no types.


def gathered(leaves: list[Any], spec: PackSpec, out: _Tensor | None) -> _Tensor:  # Any: tensors and numbers
    if out is not None and not isinstance(out, tf.Variable):
        raise ValueError("tensors of TensorFlow cannot be written to: give a tf.Variable as out, or leave it away")
    parts = [tf.zeros([0], spec.dtype)]
    for leaf, gap in zip(leaves, gaps(spec.leaves, spec.size), strict=True):
        tensor = tf.cast(leaf, spec.dtype) if tf.is_tensor(leaf) else tf.convert_to_tensor(leaf, spec.dtype)
        parts += [tf.reshape(tensor, [-1]), tf.zeros([gap], spec.dtype)]
    buffer = tf.concat(parts, axis=0)
    return buffer if out is None else _assigned(out, buffer)


def taken_out(buffer: _Tensor, leaves: tuple[PackedLeaf, ...]) -> list[Any]:
    buffer = tf.convert_to_tensor(buffer)
    return [_taken_out(buffer, leaf) for leaf in leaves]


def _taken_out(buffer: _Tensor, leaf: PackedLeaf) -> Any:
    part = tf.reshape(buffer[leaf.offset : leaf.offset + leaf.size], leaf.shape)
    if leaf.number:
        return as_python(part.numpy().item(), leaf.number) if tf.executing_eagerly() else part
    return tf.cast(part, leaf.dtype)


def _assigned(variable: Any, buffer: _Tensor) -> Any:
    variable.assign(buffer)
    return variable
