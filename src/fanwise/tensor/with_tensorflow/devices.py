"""Devices of TensorFlow, which writes them as parts of a path: /job:localhost/replica:0/task:0/device:GPU:0."""

from typing import Any

from ..placement import canonical
from . import tf


def names() -> list[str]:
    return sorted(
        _name(device.name) for device in tf.config.list_logical_devices() if device.device_type in ("CPU", "GPU")
    )


def device_of(x: Any) -> str:  # Any, here and below: TensorFlow has no types
    if not tf.executing_eagerly() and isinstance(x, tf.Tensor):
        raise TypeError("a tensor that TensorFlow is tracing has no device yet; ask outside of tf.function")
    return _name(x.device)


def move(x: Any, device: str) -> Any:
    if tf.executing_eagerly() and isinstance(x, tf.Tensor) and _name(x.device) == device:
        return x
    with placed_on(device):
        return tf.identity(x)


def placed_on(device: str) -> Any:
    """Tensors made in a with block of this lie on the device, whose full name it is."""
    return tf.device("/" + device.replace("cuda", "gpu"))


def _name(path: str) -> str:
    return canonical(path.rpartition("device:")[2])
