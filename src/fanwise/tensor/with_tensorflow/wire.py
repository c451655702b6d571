"""TensorFlow arrays on the wire, by way of numpy, which sees their memory.

Loaded when the first of them is sent or received. What arrives adopts a buffer that is writable and aligned to 64
bytes, and takes it for constant: whoever received the buffer must not use it for anything else.
float8 types are copied once more: TensorFlow adopts no memory of them.
"""

from typing import Any

from ..placement import to_device
from ..wire.header import WireHeader
from ..with_numpy.wire import DTYPE_BY_CODE, constant_over, encode_constant
from .exchange import adopt, check_type, export_memory


def encode(x: Any) -> tuple[bytes, memoryview]:  # Any: tf.Tensor
    """Header and memory of an array; a read-only view of it when it is on a CPU."""
    return encode_constant(x, "tensorflow", export_memory)


def decode(header: WireHeader, buffer: memoryview, device: Any) -> Any:  # Any: a name or None; tf.Tensor
    """The array over `buffer`, on `device` if one is given."""
    check_type(DTYPE_BY_CODE[header.dtype.code])
    x = adopt(constant_over(header, buffer))
    return x if device is None else to_device(x, device)
