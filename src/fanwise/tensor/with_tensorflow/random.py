"""Random tensors of TensorFlow: constants, of arrays that numpy has made."""

from collections.abc import Callable, Sequence
from typing import Any

from ..placement import to_device
from ..random.exact import Array
from . import tf


def default_integer() -> str:
    return "int64"


def check_dtype(name: str) -> None:
    """TensorFlow has them all."""


def adopt(made: Array, device: str | None) -> Any:  # Any, here and below: TensorFlow has no types
    x = tf.convert_to_tensor(made)
    return x if device is None else to_device(x, device)


def called(make: Callable[[Sequence[Any]], Array], arrays: list[Any], shape: tuple[int, ...], dtype: str) -> Any:
    made = tf.numpy_function(lambda *numbers: make(numbers), arrays, dtype, stateful=False)
    return tf.ensure_shape(made, shape)
