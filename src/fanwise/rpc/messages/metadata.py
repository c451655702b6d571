"""Metadata of a call or reply, and the address of a call to an actor, in fixed binary formats. Pure.

flags u8, number of forks u32
context, message        u64 each    of autograd, for a message sent in a context
reference, fork         3 i64 each  for a call whose value stays on the callee
forks                   10 i64 each one for each reference among the values
devices                 UTF-8       devices of the tensors, comma-separated, if not all are on the CPU

An address precedes the rest of its message, so a reading thread finds the queue of the actor without deserializing:
actor 3 i64, remaining seconds f64 (0: no limit), concurrency u32.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ...base.errors import WireError
from .ids import Created, Fork, GlobalId, WorkerKey

_HEAD, _CONTEXT, _REMOTE, _FORK, _ADDRESS = map(struct.Struct, ("<BI", "<QQ", "<6q", "<10q", "<3qdI"))
ADDRESS_BYTES = _ADDRESS.size
# `Address.concurrency` is less than this, so it fits into a u32.
CONCURRENCY_LIMIT = 2**32 - 1
_HAS_CONTEXT, _HAS_REMOTE, _HAS_DEVICES = 1, 2, 4

Context = tuple[int, int]  # id of the autograd context, number of the message
Buffer = bytes | bytearray | memoryview


class Metadata(NamedTuple):
    """The metadata of a message.

    Attributes:
        context: autograd context of the message.
        remote: for a call whose value stays on the callee.
        forks: forks of the references among the values, in order.
        devices: device of each tensor.
    """

    context: Context | None = None
    remote: Created | None = None
    forks: Sequence[Fork] = ()
    devices: Sequence[str] | None = None


EMPTY = Metadata()


def pack(metadata: Metadata) -> bytes:
    context, remote, forks, devices = metadata
    flags = (context is not None) | (remote is not None) << 1 | (devices is not None) << 2
    parts = [_HEAD.pack(flags, len(forks))]
    if context is not None:
        parts.append(_CONTEXT.pack(*context))
    if remote is not None:
        parts.append(_REMOTE.pack(*remote[0], *remote[1]))
    parts += [_FORK.pack(*rref_id, *fork_id, *owner, *parent) for rref_id, fork_id, owner, parent in forks]
    if devices is not None:
        parts.append(",".join(devices).encode())
    return b"".join(parts)


def creation_in(data: Buffer) -> Created | None:
    """Return `unpack(data).remote`. For reading threads, because `unpack` also reads thousands of forks."""
    if not data:
        return None
    try:
        flags, _ = _HEAD.unpack_from(data)
        if not flags & _HAS_REMOTE:
            return None
        numbers = _REMOTE.unpack_from(data, _HEAD.size + (_CONTEXT.size if flags & _HAS_CONTEXT else 0))
    except struct.error as error:
        raise WireError(f"invalid metadata of {len(data)} bytes: {error}.") from error
    return GlobalId(*numbers[:3]), GlobalId(*numbers[3:])


def unpack(data: Buffer) -> Metadata:
    """Inverse of `pack`. Empty bytes are empty metadata. Raises WireError for invalid bytes."""
    if not data:
        return EMPTY
    try:
        return _unpack(memoryview(data))
    except (struct.error, UnicodeDecodeError) as error:
        raise WireError(f"invalid metadata of {len(data)} bytes: {error}.") from error


def _unpack(view: memoryview) -> Metadata:
    flags, num_forks = _HEAD.unpack_from(view)
    offset = _HEAD.size
    context: Context | None = None
    if flags & _HAS_CONTEXT:
        context, offset = _CONTEXT.unpack_from(view, offset), offset + _CONTEXT.size
    remote: Created | None = None
    if flags & _HAS_REMOTE:
        numbers, offset = _REMOTE.unpack_from(view, offset), offset + _REMOTE.size
        remote = GlobalId(*numbers[:3]), GlobalId(*numbers[3:])
    end = offset + num_forks * _FORK.size
    forks = list(_forks(view[offset:end]))
    devices = str(view[end:], "utf-8").split(",") if flags & _HAS_DEVICES else None
    is_whole = end <= len(view) if flags & _HAS_DEVICES else end == len(view)
    if not is_whole or flags > _HAS_CONTEXT | _HAS_REMOTE | _HAS_DEVICES:
        raise WireError(f"invalid metadata of {len(view)} bytes, with flags {flags} and {num_forks} forks.")
    return Metadata(context, remote, forks, devices)


def _forks(view: memoryview) -> Iterator[Fork]:
    for numbers in _FORK.iter_unpack(view):
        yield Fork(GlobalId(*numbers[:3]), GlobalId(*numbers[3:6]), WorkerKey(*numbers[6:8]), WorkerKey(*numbers[8:]))


class Address(NamedTuple):
    """The actor that a call is for, and its remaining time. `concurrency` is set in the call that creates the actor."""

    actor: GlobalId
    left_s: float
    concurrency: int = 0


def pack_address(address: Address) -> bytes:
    return _ADDRESS.pack(*address.actor, address.left_s, address.concurrency)


def unpack_address(view: memoryview) -> Address:
    """Inverse of `pack_address`. Raises WireError if the bytes are invalid."""
    try:
        *numbers, left_s, concurrency = _ADDRESS.unpack_from(view)
    except struct.error as error:
        raise WireError(f"the address of a call to an actor is truncated: {error}.") from error
    actor = GlobalId(*numbers)
    if not (actor.is_actor and left_s >= 0):
        raise WireError(f"invalid address of a call: actor {actor}, {left_s} s left.")
    return Address(actor, left_s, concurrency)
