"""The parts of TensorFlow, and `tf`: TensorFlow, imported without warnings of deprecations inside of it."""

import warnings
from typing import Any

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import tensorflow as tf

__all__ = ["placed_on", "tf"]


def placed_on(device: str) -> Any:
    return tf.device("/" + device.replace("cuda", "gpu"))
