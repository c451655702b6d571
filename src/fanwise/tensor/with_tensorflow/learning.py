"""Functions of models and losses: those of tf.nn, and tf.einsum."""

from . import tf
from .arguments import as_tensor
from .dtypes import INTEGER, Tensor, cast


def softmax(x: Tensor, axis: int) -> Tensor:
    return tf.nn.softmax(x, axis)


def log_softmax(x: Tensor, axis: int) -> Tensor:
    return tf.nn.log_softmax(x, axis)


def logsumexp(x: Tensor, axes: tuple[int, ...], keepdims: bool) -> Tensor:
    return tf.reduce_logsumexp(x, axes, keepdims)


def relu(x: Tensor) -> Tensor:
    return tf.nn.relu(x)


def cross_entropy(logits: Tensor, labels: Tensor) -> Tensor:
    try:
        return tf.nn.sparse_softmax_cross_entropy_with_logits(tf.cast(labels, tf.int64), as_tensor(logits))
    except tf.errors.InvalidArgumentError as error:  # in a tf.function it stays one; a GPU gives NaN
        raise IndexError(error.message) from error


def einsum(subscripts: str, arrays: list[Tensor]) -> Tensor:
    dtype = arrays[0].dtype
    wide = tf.int64 if dtype in INTEGER and dtype != tf.int32 else dtype  # it has no others; the low bits are right
    return cast(tf.einsum(subscripts, *(cast(as_tensor(x), wide) for x in arrays)), dtype)
