"""Devices of TensorFlow, which names them by a path: /job:localhost/replica:0/task:0/device:GPU:0."""

from typing import Any

from ..placement import canonical
from . import tf


def names() -> list[str]:
    return sorted(canonical(device.name) for kind in ("CPU", "GPU") for device in tf.config.list_logical_devices(kind))


def device_of(x: Any) -> str:
    if not tf.executing_eagerly() and isinstance(x, tf.Tensor):
        raise TypeError("a tensor that TensorFlow is tracing has no device yet; ask outside of tf.function")
    return canonical(x.device)


def move(x: Any, device: str) -> Any:
    if tf.executing_eagerly() and isinstance(x, tf.Tensor) and canonical(x.device) == device:
        return x
    with placed_on(device):
        return tf.identity(x)


def placed_on(device: str) -> Any:
    return tf.device("/" + device.replace("cuda", "gpu"))
