"""TensorFlow in the collectives: a Variable is written to in place, of a tensor a new one is made."""

from collections.abc import Sequence
from typing import Any

from ...tensor import device_of, to_device
from ...tensor.with_tensorflow import tf
from .engines import Span

_Tensor = Any  # TensorFlow has no types.


def refusal(x: _Tensor) -> str:
    if not tf.executing_eagerly():
        return "is being traced and lies on no device: call this outside of tf.function"
    return ""


def why_fixed(x: _Tensor) -> str:
    return ""


def span(x: _Tensor) -> Span | None:
    return Span("", id(x), id(x) + 1) if isinstance(x, tf.Variable) else None


def dtype(x: _Tensor) -> str:
    name: str = x.dtype.name
    return name


def near(x: _Tensor, like: _Tensor) -> _Tensor:
    return to_device(_value(x), device_of(like))


copied = near  # values are constants


def added(x: _Tensor, y: _Tensor) -> _Tensor:
    with tf.device(x.device):
        return _value(x) + _value(y)


def stored(x: _Tensor, value: _Tensor) -> _Tensor:
    if isinstance(x, tf.Variable):
        if value is not x:
            x.assign(near(value, x))
        return x
    return near(value, x)


def slices(x: _Tensor, ranges: Sequence[range]) -> list[_Tensor]:
    with tf.device(x.device):
        return list(tf.split(tf.reshape(_value(x), [-1]), [len(part) for part in ranges]))


def rebuilt(x: _Tensor, slices: list[_Tensor]) -> _Tensor:
    with tf.device(x.device):
        return stored(x, tf.reshape(tf.concat(slices, axis=0), x.shape))


def rows(x: _Tensor, ranges: Sequence[range]) -> list[_Tensor]:
    with tf.device(x.device):  # slices would land on the first device
        return [x[part.start : part.stop] for part in ranges]


def joined(parts: list[_Tensor]) -> _Tensor:
    with tf.device(parts[0].device):
        return tf.concat([_value(part) for part in parts], axis=0)


def replica(x: _Tensor, device: str) -> _Tensor:
    if not isinstance(x, tf.Variable):
        return to_device(x, device)
    with tf.device("/" + device.replace("cuda", "gpu")):
        return tf.Variable(x.value(), trainable=x.trainable, dtype=x.dtype)


def placed(x: _Tensor, device: str) -> _Tensor:
    return to_device(_value(x), device)


def _value(x: _Tensor) -> _Tensor:
    return x.value() if isinstance(x, tf.Variable) else x
