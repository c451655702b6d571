"""The address of a call to an actor, as a fixed-size header.

    actor           3 i64   its reference; the last number is negative
    left_s          f64     seconds until the call times out; 0: no limit
    concurrency     u32     maximum number of concurrent calls, in the call that creates the actor; otherwise 0

The address precedes the rest of the message, so a reading thread finds the queue without deserializing anything.
"""

import struct
from typing import NamedTuple

from ...base.errors import WireError
from ..references.orders import GlobalId

_ADDRESS = struct.Struct("<3qdI")
ADDRESS_BYTES = _ADDRESS.size
# `concurrency` is less than this, so it fits into a u32.
CONCURRENCY_LIMIT = 2**32 - 1


class Address(NamedTuple):
    """The actor that a call is for, and its remaining time. `concurrency` is set in the call that creates the actor."""

    actor: GlobalId
    left_s: float
    concurrency: int = 0


def is_actor(rref_id: GlobalId) -> bool:
    """Return True if method calls of this value are queued."""
    return rref_id.local_id < 0


def pack_address(address: Address) -> bytes:
    return _ADDRESS.pack(*address.actor, address.left_s, address.concurrency)


def unpack_address(view: memoryview) -> Address:
    """Inverse of `pack_address`. Raises WireError if the bytes are invalid."""
    try:
        *numbers, left_s, concurrency = _ADDRESS.unpack_from(view)
    except struct.error as error:
        raise WireError(f"the address of a call to an actor is truncated: {error}.") from error
    actor = GlobalId(*numbers)
    if not (is_actor(actor) and left_s >= 0):
        raise WireError(f"invalid address of a call: actor {actor}, {left_s} s left.")
    return Address(actor, left_s, concurrency)
