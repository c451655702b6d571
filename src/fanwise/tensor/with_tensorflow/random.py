"""Random tensors of TensorFlow: exact ones as constants, native ones by its stateless functions."""

from collections.abc import Callable, Sequence
from typing import Any

from ..adapters import Draw
from ..placement import to_device
from ..random.drawing import words_array
from ..random.exact import Array
from . import tf


def default_integer() -> str:
    return "int64"


def check_dtype(name: str) -> None:
    """TensorFlow has them all."""


def adopt(made: Array, device: str | None) -> Any:  # Any, here and below: TensorFlow has no types
    return placed(tf.convert_to_tensor(made), device)


def called(make: Callable[[Sequence[Any]], Array], arrays: list[Any], shape: tuple[int, ...], dtype: str) -> Any:
    made = tf.numpy_function(lambda *numbers: make(numbers), arrays, dtype, stateful=False)
    return tf.ensure_shape(made, shape)


def reordered(x: Any, order: Array) -> Any:
    return tf.gather(x, order)


def native_uniform(draw: Draw, low: float, high: float) -> Any:
    made = tf.random.stateless_uniform(draw.shape, _seed(draw), low, high, dtype=draw.dtype)
    return placed(made, draw.device)


def native_normal(draw: Draw, mean: float, std: float) -> Any:
    made = tf.random.stateless_normal(draw.shape, _seed(draw), mean, std, dtype=draw.dtype)
    return placed(made, draw.device)


def native_integers(draw: Draw, low: int, high: int) -> Any:
    if high > 2**63 - 1:
        raise ValueError(f"TensorFlow's own generator draws below 2**63 - 1, got high={high}; leave native out")
    made = tf.random.stateless_uniform(draw.shape, _seed(draw), low, high, dtype=tf.int64)
    return placed(tf.cast(made, draw.dtype), draw.device)


def native_bernoulli(draw: Draw, p: float) -> Any:
    return placed(tf.random.stateless_uniform(draw.shape, _seed(draw), dtype=tf.float64) < p, draw.device)


def native_permutation(draw: Draw, n: int) -> Any:
    return placed(tf.random.experimental.stateless_shuffle(tf.range(n, dtype=draw.dtype), _seed(draw)), draw.device)


def _seed(draw: Draw) -> Any:
    return tf.bitcast(tf.reshape(words_array(draw.key, "tensorflow"), (2, 2)), tf.int64)


def placed(x: Any, device: str | None) -> Any:
    return x if device is None else to_device(x, device)
