"""What goes along with a call or an answer beside its values, as bytes of fixed structure. Quiet.

    flags u8, number of forks u32
    context, message        u64 each    autograd's, when the message was sent in a context
    reference, fork         3 i64 each  when the value of the call is to stay where it is made
    window                  u64 each    when the call is for items one by one: how many, and how many bytes of them
    forks                   10 i64 each one for each reference among the values
    places                  UTF-8       the devices of the tensors, by commas, when they are not all on the CPU

Knows what these are made of, and not what they mean.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from ...base.errors import WireError
from ..references.orders import Fork, GlobalId
from ..worker_info import WorkerKey

_HEAD, _CONTEXT, _REMOTE, _FORK = (
    struct.Struct("<BI"),
    struct.Struct("<QQ"),
    struct.Struct("<6q"),
    struct.Struct("<10q"),
)
_WINDOW = struct.Struct("<QQ")
_HAS_CONTEXT, _HAS_REMOTE, _HAS_PLACES, _HAS_WINDOW = 1, 2, 4, 8

Context = tuple[int, int]  # autograd's, and the number of the message
Created = tuple[GlobalId, GlobalId]  # a reference that is to be made, and the caller's fork of it
Buffer = bytes | bytearray | memoryview


class Metadata(NamedTuple):
    """What goes along.

    Attributes:
        context: when the message was sent in one.
        remote: when the value of the call is to stay where it is made.
        forks: of the references among the values, by their places.
        places: the device of each tensor.
        window: when the call is for items one by one: how many may be on the way, and how many bytes of them.
    """

    context: Context | None = None
    remote: Created | None = None
    forks: Sequence[Fork] = ()
    places: Sequence[str] | None = None
    window: tuple[int, int] | None = None


NOTHING = Metadata()  # of a message that has no bytes of it


def pack(along: Metadata) -> bytes:
    """The bytes."""
    context, remote, forks, places, window = along
    flags = (context is not None) | (remote is not None) << 1 | (places is not None) << 2 | (window is not None) << 3
    parts = [_HEAD.pack(flags, len(forks))]
    if context is not None:
        parts.append(_CONTEXT.pack(*context))
    if remote is not None:
        parts.append(_REMOTE.pack(*remote[0], *remote[1]))
    if window is not None:
        parts.append(_WINDOW.pack(*window))
    parts += [_FORK.pack(*rref_id, *fork_id, *owner, *parent) for rref_id, fork_id, owner, parent in forks]
    if places is not None:
        parts.append(",".join(places).encode())
    return b"".join(parts)


def created_in(data: Buffer) -> Created | None:
    """The reference that is to be made, as `unpack` finds it. For reading threads: of forks there may be thousands."""
    if not data:
        return None
    try:
        flags, _ = _HEAD.unpack_from(data)
        if not flags & _HAS_REMOTE:
            return None
        numbers = _REMOTE.unpack_from(data, _HEAD.size + (_CONTEXT.size if flags & _HAS_CONTEXT else 0))
    except struct.error as error:
        raise WireError(f"what goes along with a message, {len(data)} bytes, cannot be read: {error}.") from error
    return GlobalId(*numbers[:3]), GlobalId(*numbers[3:])


def unpack(data: Buffer) -> Metadata:
    """What `pack` was given; nothing of no bytes. Raises WireError for bytes that it does not make."""
    if not data:
        return NOTHING
    try:
        return _unpack(memoryview(data))
    except (struct.error, UnicodeDecodeError) as error:
        raise WireError(f"what goes along with a message, {len(data)} bytes, cannot be read: {error}.") from error


def _unpack(view: memoryview) -> Metadata:
    flags, num_forks = _HEAD.unpack_from(view)
    at = _HEAD.size
    context: Context | None = None
    if flags & _HAS_CONTEXT:
        context, at = _CONTEXT.unpack_from(view, at), at + _CONTEXT.size
    remote: Created | None = None
    if flags & _HAS_REMOTE:
        numbers, at = _REMOTE.unpack_from(view, at), at + _REMOTE.size
        remote = GlobalId(*numbers[:3]), GlobalId(*numbers[3:])
    window: tuple[int, int] | None = None
    if flags & _HAS_WINDOW:
        window, at = _WINDOW.unpack_from(view, at), at + _WINDOW.size
    end = at + num_forks * _FORK.size
    forks = list(_forks(view[at:end]))
    places = str(view[end:], "utf-8").split(",") if flags & _HAS_PLACES else None
    is_whole = end <= len(view) if flags & _HAS_PLACES else end == len(view)
    if not is_whole or flags > _HAS_CONTEXT | _HAS_REMOTE | _HAS_PLACES | _HAS_WINDOW:
        raise WireError(f"what goes along with a message has {len(view)} bytes, flags {flags} and {num_forks} forks.")
    return Metadata(context, remote, forks, places, window)


def _forks(view: memoryview) -> Iterator[Fork]:
    for numbers in _FORK.iter_unpack(view):
        yield Fork(GlobalId(*numbers[:3]), GlobalId(*numbers[3:6]), WorkerKey(*numbers[6:8]), WorkerKey(*numbers[8:]))
