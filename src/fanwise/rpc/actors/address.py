"""The address of a call for an actor, as bytes of fixed structure. Quiet.

    actor           3 i64   its reference; the last number is below zero
    left_s          f64     seconds until the caller gives up; 0: never
    concurrency     u32     of the call that makes the actor: how many of its calls may run at a time; of others 0

It stands before the rest of the message, so that a reading thread finds the queue without opening anything.
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
    """Where a call waits, and how long. `concurrency`: of the call that makes the actor."""

    actor: GlobalId
    left_s: float
    concurrency: int = 0


def is_actor(rref_id: GlobalId) -> bool:
    """Whether calls of the methods of this value wait for their turns."""
    return rref_id.local_id < 0


def pack_address(address: Address) -> bytes:
    """The bytes."""
    return _ADDRESS.pack(*address.actor, address.left_s, address.concurrency)


def unpack_address(view: memoryview) -> Address:
    """What `pack_address` was given. Raises WireError for bytes that it does not make."""
    try:
        *numbers, left_s, concurrency = _ADDRESS.unpack_from(view)
    except struct.error as error:
        raise WireError(f"the address of a call for an actor is cut short: {error}.") from error
    actor = GlobalId(*numbers)
    if not (is_actor(actor) and left_s >= 0):
        raise WireError(f"a call is for an actor {actor} with {left_s} s left.")
    return Address(actor, left_s, concurrency)
