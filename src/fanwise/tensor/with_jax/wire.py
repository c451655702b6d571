"""JAX arrays on the wire, by way of numpy, which sees their memory.

Loaded when the first of them is sent or received. What arrives adopts a buffer that is writable and aligned to 64
bytes, and takes it for constant: whoever received the buffer must not use it for anything else.
One that was on another device arrives on the default one; whether its type was weak is not kept.
"""

from typing import Any

from ..placement import to_device
from ..wire.header import WireHeader
from ..with_numpy.wire import constant_over, encode_constant
from .exchange import adopt, export_memory


def encode(x: Any) -> tuple[bytes, memoryview]:  # Any: jax.Array
    """Header and memory of an array; a read-only view of it when it is on a CPU."""
    return encode_constant(x, "jax", export_memory)


def decode(header: WireHeader, buffer: memoryview, device: Any) -> Any:  # Any: a name or None; jax.Array
    """The array over `buffer`, on `device` if one is given."""
    x = adopt(constant_over(header, buffer))
    return x if device is None else to_device(x, device)
