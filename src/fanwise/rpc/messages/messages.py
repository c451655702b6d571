"""The format of messages on the links of rpc: control messages, and calls and replies, which contain user values.

    control   0, then a message of the typed codec of `records`: no pickle; handled on the reading thread
    message   1 a call or 2 a reply: counts, metadata, tensor table, pickle; large buffers out of band
              3 a call or 4 a reply: pickle; array buffers out of band. No tensors or metadata
              5 a call to an actor: its address, then as 1 or 3
              6 a call or 7 a reply: a value of the typed codec, without pickle, for workers with an allow-list
              deserialized outside the reading thread

    compose: (metadata, tensors, pickle, buffers) --> Message --link--> Message --> parse

The table has the header (`to_wire`) of each tensor and the bytes of a small one, because a buffer costs the receiver
more than a copy. A frame has a limited number of buffers, so further tensors are in the table too. A CUDA tensor may be
a handle of its memory. A sparse tensor is sent as the dense tensors it consists of. A dense one that is not contiguous
keeps its strides and is sent in memory order, without gaps. Everything except the user's pickle and CUDA handles has a
fixed structure and is validated when it is read.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch

from ...base.errors import FanwiseError, WireError
from ...links.link import Link
from ...tensor import from_wire, to_wire
from ...tensor.with_torch.wire import SPARSE, in_order_of_memory, rebuild_sparse, rebuild_strided
from .ids import Created
from .metadata import ADDRESS_BYTES, Address, creation_in, pack_address, unpack_address
from .records import control_codec

Buffer = bytes | bytearray | memoryview
# Shares the memory of a CUDA tensor and returns a handle, or None to send its bytes; and the inverse.
Share = Callable[[torch.Tensor], bytes | None]
OpenHandle = Callable[[memoryview], torch.Tensor]

_CONTROL, _CALL, _REPLY, _BARE_CALL, _BARE_REPLY, _TO_ACTOR, _PLAIN_CALL, _PLAIN_REPLY = range(8)
_KINDS = [bytes([kind]) for kind in range(8)]
_CALLS, _REPLIES = (_BARE_CALL, _CALL, _PLAIN_CALL), (_BARE_REPLY, _REPLY, _PLAIN_REPLY)
# The first bytes of calls and replies that consist of a pickle only, or of a plain value.
BARE_CALL, BARE_REPLY, PLAIN_CALL, PLAIN_REPLY = _BARE_CALL, _BARE_REPLY, _PLAIN_CALL, _PLAIN_REPLY
_WITHOUT_METADATA = (_BARE_CALL, _BARE_REPLY, _PLAIN_CALL, _PLAIN_REPLY)
# Number of tensors, size of metadata, size of the table, number of tensor buffers.
_COUNTS = struct.Struct("<IQQI")
_ENTRY = struct.Struct("<HI")  # size of the header; size of the bytes, or _OUT_OF_BAND, _PARTS, _HANDLE
_OUT_OF_BAND, _PARTS, _HANDLE = 0xFFFFFFFF, 0xFFFFFFFE, 0xFFFFFFFD
_IN_TABLE_BYTES = 4096
_OUT_OF_BAND_MAX = 1024


class Message(NamedTuple):
    """A serialized call or reply: header bytes and out-of-band buffers.

    Attributes:
        name: for error messages.
        address: address of a call to an actor.
        keep_alive: references to values of the callee, which the caller keeps until the reply.
    """

    head: Buffer
    buffers: Sequence[memoryview]
    name: str
    address: Address | None = None
    keep_alive: tuple[Any, ...] = ()

    def __repr__(self) -> str:
        return self.name


class Parsed(NamedTuple):
    """The parts of a `Message`. The pickle is not deserialized."""

    extra: Buffer
    tensors: list[Any]
    pickle: Buffer
    buffers: Sequence[memoryview]


def install_codec(link: Link, load_error: Callable[[bytes], Any] | None = None) -> None:
    """Install the codec of this module on a link, before its first message.

    `load_error` deserializes errors of user types. By default only builtin errors and those of fanwise keep their type.
    """
    link.dumps, link.loads, link.load_error = dumps, loads, load_error


def dumps(value: object) -> tuple[bytes, list[memoryview]]:
    """Encoder for a link: a `Message`, or a request with a `Message` as method, is unchanged; the rest is control."""
    if type(value) is tuple and type(value[0]) is Message:
        value = value[0]
    if type(value) is Message:
        return value.head, value.buffers  # type: ignore[return-value]  # bytes: composed by this process
    head, buffers = control_codec.dumps(value)
    return _KINDS[_CONTROL] + head, buffers


def loads(head: Buffer, buffers: Sequence[memoryview] = ()) -> Any:
    """Decoder for a link. Calls decode to `(Message, ())`."""
    kind = head[0] if head else -1
    if kind in _CALLS:
        return Message(head, buffers, "a call"), ()
    if kind in _REPLIES:
        return Message(head, buffers, "a reply")
    if kind == _CONTROL:
        return control_codec.loads(memoryview(head)[1:], buffers)
    if kind == _TO_ACTOR:
        address, head = unpack_address(memoryview(head)[1:]), memoryview(head)[1 + ADDRESS_BYTES :]
        if not head or head[0] not in (_BARE_CALL, _CALL):
            raise WireError("a message to an actor is not a call.")
        return Message(head, buffers, "a call", address=address), ()
    raise WireError(f"a message of kind {kind}; both sides must run the same version.")


def addressed(message: Message, address: Address) -> Message:
    """Add the address of an actor to a serialized call."""
    return message._replace(head=b"".join((_KINDS[_TO_ACTOR], pack_address(address), message.head)), address=address)


def compose(
    extra: bytes,
    tensors: Sequence[torch.Tensor],
    pickle: bytes,
    buffers: Sequence[memoryview],
    call: str | None,
    share: Share | None = None,
) -> Message:
    """Serialize a call, given its name, or a reply. Large tensors are not copied: do not change them before sending."""
    name = "a reply" if call is None else call
    if not tensors and not extra:
        return Message(_KINDS[_BARE_REPLY if call is None else _BARE_CALL] + pickle, buffers, name)
    table: list[Buffer] = []
    out_of_band: list[memoryview] = []
    for tensor in tensors:
        _write_tensor(tensor, table, out_of_band, share)
    body = b"".join(table)
    counts = _COUNTS.pack(len(tensors), len(extra), len(body), len(out_of_band))
    kind = _KINDS[_REPLY if call is None else _CALL]
    return Message(b"".join((kind, counts, extra, body, pickle)), [*out_of_band, *buffers], name)


def compose_plain(data: bytes, buffers: Sequence[memoryview], call: str | None) -> Message:
    """Create the message of a plain call, given its name, or reply."""
    return Message(_KINDS[_PLAIN_REPLY if call is None else _PLAIN_CALL] + data, buffers, call or "a reply")


def is_reply(message: Message) -> bool:
    """Return True for a reply, False for a call."""
    return message.head[0] in _REPLIES


def metadata_of(message: Message) -> Buffer:
    """Return the metadata of a message."""
    view = memoryview(message.head)
    if view[0] == _TO_ACTOR:
        view = view[1 + ADDRESS_BYTES :]
    if view[0] in _WITHOUT_METADATA:
        return b""
    _num_tensors, extra_size, *_ = _COUNTS.unpack_from(view, 1)
    return view[1 + _COUNTS.size : 1 + _COUNTS.size + extra_size]


def creation_of(message: Message) -> Created | None:
    """Return the reference to the value that a received call creates. Raises WireError if the call is truncated."""
    head = message.head
    try:
        if head[0] in _WITHOUT_METADATA or not _COUNTS.unpack_from(head, 1)[1]:
            return None
        return creation_in(metadata_of(message))
    except struct.error as error:
        raise WireError(f"a call of {len(head)} bytes is truncated: {error}.") from error


def parse(message: Message, open_handle: OpenHandle | None = None) -> Parsed:
    """Create the tensors of a message, without unpickling. Raises WireError if the message is truncated."""
    view = memoryview(message.head)
    if view[0] in _WITHOUT_METADATA:
        return Parsed(b"", [], view[1:], message.buffers)
    try:
        num_tensors, extra_size, table_size, num_out_of_band = _COUNTS.unpack_from(view, 1)
        offset = 1 + _COUNTS.size
        extra = view[offset : offset + extra_size]
        offset += extra_size
        end = offset + table_size
        buffers = message.buffers
        if not num_tensors:
            return Parsed(extra, [], view[end:], buffers)
        table = _Table(view[offset:end], iter(buffers[:num_out_of_band]), open_handle)
        tensors = [table.read() for _ in range(num_tensors)]
    except (struct.error, StopIteration) as error:
        raise WireError(f"a call of {len(view)} bytes is truncated: {error}.") from error
    return Parsed(extra, tensors, view[end:], buffers[num_out_of_band:])


# -- the table of tensors ------------------------------------------------------------------------------------------

_LAYOUTS = list(SPARSE)
_STRIDED = len(_LAYOUTS)
# Header of a tensor in parts: layout, flags, number of dimensions; then its shape, and for a strided tensor its strides
# and the order of its dimensions in memory.
_PARTS_HEADER = struct.Struct("<BBB")
_NEEDS_GRAD, _COALESCED = 1, 2


def _write_tensor(
    tensor: torch.Tensor, table: list[Buffer], out_of_band: list[memoryview], share: Share | None
) -> None:
    if tensor.layout in SPARSE:
        detached = tensor.detach()
        coalesced = tensor.layout is torch.sparse_coo and detached.is_coalesced()
        flags = (_NEEDS_GRAD if tensor.requires_grad else 0) | (_COALESCED if coalesced else 0)
        parts_header = _PARTS_HEADER.pack(_LAYOUTS.index(tensor.layout), flags, tensor.ndim)
        parts_header += struct.pack(f"<{tensor.ndim}q", *tensor.shape)
        table += (_ENTRY.pack(len(parts_header), _PARTS), parts_header)
        for part in SPARSE[tensor.layout]:
            _write_tensor(getattr(detached, part)().contiguous(), table, out_of_band, share)
        return
    if not tensor.is_contiguous() and tensor.layout is torch.strided and not tensor.is_nested:
        _write_strided(tensor, table, out_of_band, share)
        return
    handle = None if share is None or tensor.layout is not torch.strided or tensor.is_nested else share(tensor)
    if handle is not None:
        table += (_ENTRY.pack(len(handle), _HANDLE), handle)
        return
    header, (memory,) = to_wire(tensor)
    if memory.nbytes <= _IN_TABLE_BYTES or len(out_of_band) == _OUT_OF_BAND_MAX:
        table += (_ENTRY.pack(len(header), memory.nbytes), header, memory)
    else:
        table += (_ENTRY.pack(len(header), _OUT_OF_BAND), header)
        out_of_band.append(memory)


def _write_strided(
    tensor: torch.Tensor, table: list[Buffer], out_of_band: list[memoryview], share: Share | None
) -> None:
    """Write the memory of a strided tensor in order, without repetitions and gaps, and its strides."""
    part, shape, strides, order = in_order_of_memory(tensor)
    ndim = tensor.ndim
    parts_header = _PARTS_HEADER.pack(_STRIDED, tensor.requires_grad, ndim)
    parts_header += struct.pack(f"<{2 * ndim}q{ndim}B", *shape, *strides, *order)
    table += (_ENTRY.pack(len(parts_header), _PARTS), parts_header)
    _write_tensor(part, table, out_of_band, share)


class _Table:
    """Reads the tensor table sequentially."""

    def __init__(self, view: memoryview, out_of_band: Iterator[memoryview], open_handle: OpenHandle | None) -> None:
        self._view = view
        self._out_of_band = out_of_band
        self._open_handle = open_handle
        self._offset = 0

    def read(self) -> torch.Tensor:
        view, offset = self._view, self._offset
        header_size, size = _ENTRY.unpack_from(view, offset)
        offset += _ENTRY.size
        self._offset = offset = offset + header_size
        header = view[offset - header_size : offset]
        if size < _HANDLE:
            self._offset = offset + size
            # A copy, because the bytes in a frame are shared and not aligned.
            return _dense(header, bytearray(view[offset : offset + size]))
        if size == _OUT_OF_BAND:
            return _dense(header, next(self._out_of_band))
        if size == _PARTS:
            return self._read_parts(header)
        if self._open_handle is None:
            raise WireError("received the handle of a CUDA tensor, which this worker does not open.")
        return self._open_handle(header)

    def _read_part(self) -> torch.Tensor:
        # Nested parts could claim any size, and checking them would take hours.
        if _ENTRY.unpack_from(self._view, self._offset)[1] == _PARTS:
            raise WireError("received nested parts of a tensor.")
        return self.read()

    def _read_parts(self, parts_header: memoryview) -> torch.Tensor:
        code, flags, ndim = _PARTS_HEADER.unpack_from(parts_header)
        if code > _STRIDED:
            raise WireError(f"a tensor of layout {code}; both sides must run the same version.")
        if code == _STRIDED:
            numbers = struct.unpack(f"<{2 * ndim}q{ndim}B", parts_header[_PARTS_HEADER.size :])
            shape, strides, order = numbers[:ndim], numbers[ndim : 2 * ndim], numbers[2 * ndim :]
        else:
            shape = struct.unpack(f"<{ndim}q", parts_header[_PARTS_HEADER.size :])
        try:
            needs_grad = bool(flags & _NEEDS_GRAD)
            if code == _STRIDED:
                return rebuild_strided(self._read_part(), shape, strides, order, needs_grad)
            layout = _LAYOUTS[code]
            parts = [self._read_part() for _ in SPARSE[layout]]
            return rebuild_sparse(layout, parts, shape, bool(flags & _COALESCED), needs_grad)
        except FanwiseError:
            raise
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise WireError(f"received parts that do not form a tensor of shape {shape}: {error}") from error


def _dense(header: memoryview, memory: Buffer) -> torch.Tensor:
    """Create a torch tensor regardless of the engine in the header, which could import another library."""
    try:
        return from_wire(header, [memory], engine="torch")  # type: ignore[no-any-return]  # a tensor
    except TypeError as error:
        raise WireError(f"received a tensor that torch cannot create: {error}") from error
