"""What travels on the links of rpc: plain messages between agents, and calls and answers, which nobody opens here.

    plain     0, then what `records` makes of it, no pickle          book-keeping; its handler runs where it is read
    message   1 a call or 2 an answer, counts, extra, table of tensors, rows, pickle; big tensors and arrays beside
              3 a call or 4 an answer, pickle; buffers of arrays beside: one without tensors, extra and rows
              5 a call or 6 an answer with loans: how many, their numbers, then as 1 and 2
              7 a call for an actor: its address, then as 1, 3 or 5
                                                                    the user's; opened outside the reading thread

    compose: (metadata, tensors, pickle, buffers) --> Message --link--> Message --> parse

Where there are many buffers they are packed together (`packing`), and the rows say where each lies.

The table has for each tensor its header (`to_wire`) and, when it is small, its bytes: a buffer of its own costs the
receiver more than the copy. One in a device's memory that is lent (`lending`) is a handle there. A sparse tensor goes
as the dense ones it is made of. A dense one that is not contiguous keeps its strides: it goes in the order of its
memory, without what lies between. All but the user's pickle is of fixed structure, and is checked when it is read.
Knows no agent, call or user's type.
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch

from ...base.errors import FanwiseError, WireError
from ...links.link import Link
from ...tensor import from_wire, to_wire
from ...tensor.with_torch.reducing import SPARSE, in_order_of_memory, rebuild_sparse, rebuild_strided
from ..actors.address import ADDRESS_BYTES, Address, pack_address, unpack_address
from ..allow_list.allowing import Allowed
from ..devices.lending import Borrow, Lender, ReceivedLoans
from ..references.orders import GlobalId
from .metadata import Created, created_in
from .packing import PACKED_FROM, pack, size_of_rows, unpack
from .records import book_keeping

Buffer = bytes | bytearray | memoryview
Lend = Callable[[torch.Tensor], bytes | None]

_PLAIN, _CALL, _ANSWER, _BARE_CALL, _BARE_ANSWER, _LENT_CALL, _LENT_ANSWER, _TO_ACTOR = range(8)
_KINDS = [bytes([kind]) for kind in range(8)]
_CALLS, _ANSWERS = (_BARE_CALL, _CALL), (_BARE_ANSWER, _ANSWER)
_BARE = (_BARE_CALL, _BARE_ANSWER)
# The first byte of a call and of an answer that has nothing but its pickle after it.
BARE_CALL, BARE_ANSWER = _BARE
# Tensors, size of extra, size of the table, pieces of memory that belong to tensors, rows: 0 when nothing is packed.
_COUNTS = struct.Struct("<IQQII")
_ENTRY = struct.Struct("<HI")  # size of the header, size of the bytes that follow it, or _BESIDE
_BESIDE, _PARTS, _HANDLE = 0xFFFFFFFF, 0xFFFFFFFE, 0xFFFFFFFD
_LOAN, _NUM_LOANS = struct.Struct("<Q"), struct.Struct("<I")
_IN_TABLE_BYTES = 4096
_known_errors = Allowed(()).loads_error


class Message(NamedTuple):
    """A call or an answer, closed: bytes, and what lies beside them. `name` is for messages to people.

    `loans`: what was lent to make it. `carries`: the references that go with it, and their forks. `received_loans`:
    those that came with it; the one who opens it closes them. `address`: of a call for an actor. `keeps`: references to
    values of the worker that it is for; who made it keeps them until it is answered.
    """

    head: Buffer
    buffers: Sequence[memoryview]
    name: str
    loans: tuple[int, ...] = ()
    carries: tuple[tuple[GlobalId, GlobalId], ...] = ()
    received_loans: ReceivedLoans | None = None
    address: Address | None = None
    keeps: tuple[Any, ...] = ()

    def __repr__(self) -> str:
        return self.name


class Parsed(NamedTuple):
    """What was in a `Message`, nothing of it unpickled."""

    extra: Buffer
    tensors: list[Any]  # Any: torch tensors
    pickle: Buffer
    buffers: Sequence[memoryview]


def speak(link: Link, load_error: Callable[[bytes], Any] | None = None) -> None:  # Any: an error of the peer's
    """From now on this link carries what is described here. Both sides say so before the first word.

    `load_error`: for errors of the user's types; else only Python's own, and those of this library, come as they were.
    """
    link.dumps, link.loads, link.load_error = dumps, loads, load_error or _known_errors


def dumps(value: object) -> tuple[bytes, list[memoryview]]:
    """For a link: a `Message` answer, or a request whose method is one, as it is; all else as plain."""
    if type(value) is tuple and type(value[0]) is Message:
        value = value[0]
    if type(value) is Message:
        return value.head, value.buffers  # type: ignore[return-value]  # what is sent was composed here
    head, buffers = book_keeping.dumps(value)
    return _KINDS[_PLAIN] + head, buffers


def loads(
    head: Buffer,
    buffers: Sequence[memoryview] = (),
    arrived: Callable[[tuple[int, ...]], ReceivedLoans] | None = None,
) -> Any:  # Any: what the peer sent
    """For a link. A request that is `Message` comes as (Message, ()). `arrived`: for messages that come with loans."""
    kind = head[0] if head else -1
    if kind in _CALLS:
        return Message(head, buffers, "a call"), ()
    if kind in _ANSWERS:
        return Message(head, buffers, "an answer")
    if kind == _LENT_CALL:
        return Message(head, buffers, "a call", received_loans=_received_loans(head, arrived)), ()
    if kind == _LENT_ANSWER:
        return Message(head, buffers, "an answer", received_loans=_received_loans(head, arrived))
    if kind == _PLAIN:
        return book_keeping.loads(memoryview(head)[1:], buffers)
    if kind == _TO_ACTOR:
        return _to_actor(memoryview(head)[1:], buffers, arrived)
    raise WireError(f"a message of kind {kind}; both sides must run the same version.")


def _to_actor(
    view: memoryview, buffers: Sequence[memoryview], arrived: Callable[[tuple[int, ...]], ReceivedLoans] | None
) -> tuple[Message, tuple[()]]:
    address, head = unpack_address(view), view[ADDRESS_BYTES:]
    if not head or (head[0] not in _CALLS and head[0] != _LENT_CALL):
        raise WireError("a message for an actor is no call.")
    received = _received_loans(head, arrived) if head[0] == _LENT_CALL else None
    return Message(head, buffers, "a call", received_loans=received, address=address), ()


def addressed(message: Message, address: Address) -> Message:
    """A call that was closed here, for an actor."""
    return message._replace(head=b"".join((_KINDS[_TO_ACTOR], pack_address(address), message.head)), address=address)


def _received_loans(head: Buffer, arrived: Callable[[tuple[int, ...]], ReceivedLoans] | None) -> ReceivedLoans:
    if arrived is None:
        raise WireError("a message with loans came where none can be taken.")
    try:
        return arrived(_loans_of(memoryview(head))[0])
    except struct.error as error:
        raise WireError(f"a message of {len(head)} bytes is cut short: {error}.") from error


def _loans_of(view: memoryview) -> tuple[tuple[int, ...], int]:
    """The loans of a message, and where the rest of it begins."""
    if view[0] < _LENT_CALL:
        return (), 1
    (count,) = _NUM_LOANS.unpack_from(view, 1)
    at = 1 + _NUM_LOANS.size
    return struct.unpack_from(f"<{count}Q", view, at), at + count * _LOAN.size


def compose(
    extra: bytes,
    tensors: Sequence[torch.Tensor],
    pickle: bytes,
    buffers: Sequence[memoryview],
    call: str | None,
    lender: Lender | None = None,
) -> Message:
    """Close a message: a call, by its name, or an answer. Big tensors are not copied: do not change them meanwhile.

    `lender` decides which tensors are lent. When this raises, its loans are the caller's to take back.
    """
    name = "an answer" if call is None else call
    if not tensors and not extra and len(buffers) <= PACKED_FROM:
        return Message(_KINDS[_BARE_ANSWER if call is None else _BARE_CALL] + pickle, buffers, name)
    table: list[Buffer] = []
    beside: list[memoryview] = []
    for number, tensor in enumerate(tensors):
        _put(tensor, table, beside, None if lender is None else partial(lender, number))
    body = b"".join(table)
    memory, rows = [*beside, *buffers], b""
    counts = _COUNTS.pack(len(tensors), len(extra), len(body), len(beside), 0)
    if len(memory) > PACKED_FROM:
        counts = _COUNTS.pack(len(tensors), len(extra), len(body), len(beside), len(memory))
        memory, rows = pack(memory)
    loans = () if lender is None else tuple(lender.loans)
    if not loans:
        kind = _KINDS[_ANSWER if call is None else _CALL]
        return Message(b"".join((kind, counts, extra, body, rows, pickle)), memory, name)
    kind = _KINDS[_LENT_ANSWER if call is None else _LENT_CALL]
    lent = _NUM_LOANS.pack(len(loans)) + struct.pack(f"<{len(loans)}Q", *loans)
    return Message(b"".join((kind, lent, counts, extra, body, rows, pickle)), memory, name, loans)


def is_answer(message: Message) -> bool:
    """Whether this is an answer; else it is a call."""
    return message.head[0] in _ANSWERS or message.head[0] == _LENT_ANSWER


def metadata_of(message: Message) -> Buffer:
    """What goes along with a message that was message here."""
    view = memoryview(message.head)
    if view[0] == _TO_ACTOR:
        view = view[1 + ADDRESS_BYTES :]
    if view[0] in _BARE:
        return b""
    at = _loans_of(view)[1]
    _num_tensors, extra_size, *_ = _COUNTS.unpack_from(view, at)
    at += _COUNTS.size
    return view[at : at + extra_size]


def made_by(message: Message) -> Created | None:
    """The reference whose value a call that came here is to make. Raises `WireError` for what is cut short."""
    head = message.head
    try:
        if head[0] == BARE_CALL or (head[0] == _CALL and not _COUNTS.unpack_from(head, 1)[1]):  # nothing goes along
            return None
        return created_in(metadata_of(message))
    except struct.error as error:
        raise WireError(f"a call of {len(head)} bytes is cut short: {error}.") from error


def parse(message: Message, borrow: Borrow | None = None) -> Parsed:
    """Open a message: the tensors are made, the pickle is left as it is. Raises `WireError` for what is cut short.

    `borrow` makes what was lent: (number of the tensor that it is, or is part of; what the message says) -> a copy.
    """
    view = memoryview(message.head)
    if view[0] in _BARE:
        return Parsed(b"", [], view[1:], message.buffers)
    try:
        at = _loans_of(view)[1]
        num_tensors, extra_size, table_size, num_beside, num_rows = _COUNTS.unpack_from(view, at)
        at += _COUNTS.size
        extra = view[at : at + extra_size]
        at += extra_size
        end = at + table_size
        buffers, data = message.buffers, end
        if num_rows:
            data += size_of_rows(num_rows)
            buffers = unpack(view[end:data], buffers)
        if not num_tensors:
            return Parsed(extra, [], view[data:], buffers)
        table = _Table(view[at:end], iter(buffers[:num_beside]), borrow)
        tensors = [table.take_next() for _ in range(num_tensors)]
    except (struct.error, StopIteration) as error:
        raise WireError(f"a call of {len(view)} bytes is cut short: {error}.") from error
    return Parsed(extra, tensors, view[data:], buffers[num_beside:])


# -- the table of tensors ------------------------------------------------------------------------------------------

_LAYOUTS = list(SPARSE)
_STRIDED = len(_LAYOUTS)
# What is said of one that goes in parts: its layout, flags, number of dimensions; then its shape, and if it is strided
# its strides, and the order of its dimensions in memory.
_ABOUT = struct.Struct("<BBB")
_NEEDS_GRAD, _COALESCED = 1, 2


def _put(tensor: torch.Tensor, table: list[Buffer], beside: list[memoryview], lend: Lend | None) -> None:
    if tensor.layout in SPARSE:
        bare = tensor.detach()
        coalesced = tensor.layout is torch.sparse_coo and bare.is_coalesced()
        flags = (_NEEDS_GRAD if tensor.requires_grad else 0) | (_COALESCED if coalesced else 0)
        about = _ABOUT.pack(_LAYOUTS.index(tensor.layout), flags, tensor.ndim)
        about += struct.pack(f"<{tensor.ndim}q", *tensor.shape)
        table += (_ENTRY.pack(len(about), _PARTS), about)
        for part in SPARSE[tensor.layout]:
            _put(getattr(bare, part)().contiguous(), table, beside, lend)
        return
    if not tensor.is_contiguous() and tensor.layout is torch.strided and not tensor.is_nested:
        _put_strided(tensor, table, beside, lend)
        return
    lent = None if lend is None or tensor.layout is not torch.strided or tensor.is_nested else lend(tensor)
    if lent is not None:
        table += (_ENTRY.pack(len(lent), _HANDLE), lent)
        return
    header, (memory,) = to_wire(tensor)
    if memory.nbytes <= _IN_TABLE_BYTES:
        table += (_ENTRY.pack(len(header), memory.nbytes), header, memory)
    else:
        table += (_ENTRY.pack(len(header), _BESIDE), header)
        beside.append(memory)


def _put_strided(tensor: torch.Tensor, table: list[Buffer], beside: list[memoryview], lend: Lend | None) -> None:
    """Its memory without repetitions and gaps, in order; the strides say how it lay."""
    part, shape, strides, order = in_order_of_memory(tensor)
    ndim = tensor.ndim
    about = _ABOUT.pack(_STRIDED, tensor.requires_grad, ndim)
    about += struct.pack(f"<{2 * ndim}q{ndim}B", *shape, *strides, *order)
    table += (_ENTRY.pack(len(about), _PARTS), about)
    _put(part, table, beside, lend)


class _Table:
    """Reads the table of tensors, one after another."""

    def __init__(self, view: memoryview, beside: Iterator[memoryview], borrow: Borrow | None) -> None:
        self._view = view
        self._beside = beside
        self._borrow = borrow
        self._at = 0
        self._number = -1

    def take_next(self) -> torch.Tensor:
        """The next of the message; `take` is for parts of it too."""
        self._number += 1
        return self.take()

    def take(self) -> torch.Tensor:
        view, at = self._view, self._at
        header_size, size = _ENTRY.unpack_from(view, at)
        at += _ENTRY.size
        self._at = at = at + header_size
        header = view[at - header_size : at]
        if size < _HANDLE:
            self._at = at + size
            # A copy of its own: the bytes of a frame are shared by all that lies in it, and not aligned.
            return _dense(header, bytearray(view[at : at + size]))
        if size == _BESIDE:
            return _dense(header, next(self._beside))
        if size == _PARTS:
            return self._take_parts(header)
        if self._borrow is None:
            raise WireError("a handle of memory came in a message without loans.")
        return self._borrow(self._number, header)

    def _take_part(self) -> torch.Tensor:
        # One that is itself in parts could claim to be of any size, and so keep for hours whoever checks it.
        if _ENTRY.unpack_from(self._view, self._at)[1] == _PARTS:
            raise WireError("a part of a tensor came in parts itself.")
        return self.take()

    def _take_parts(self, about: memoryview) -> torch.Tensor:
        code, flags, ndim = _ABOUT.unpack_from(about)
        if code > _STRIDED:
            raise WireError(f"a tensor of layout {code}; both sides must run the same version.")
        if code == _STRIDED:
            numbers = struct.unpack(f"<{2 * ndim}q{ndim}B", about[_ABOUT.size :])
            shape, strides, order = numbers[:ndim], numbers[ndim : 2 * ndim], numbers[2 * ndim :]
        else:
            shape = struct.unpack(f"<{ndim}q", about[_ABOUT.size :])
        try:
            needs_grad = bool(flags & _NEEDS_GRAD)
            if code == _STRIDED:
                return rebuild_strided(self._take_part(), shape, strides, order, needs_grad)
            layout = _LAYOUTS[code]
            parts = [self._take_part() for _ in SPARSE[layout]]
            return rebuild_sparse(layout, parts, shape, bool(flags & _COALESCED), needs_grad)
        except FanwiseError:
            raise
        except (RuntimeError, ValueError, TypeError, IndexError) as error:
            raise WireError(f"a tensor of shape {shape} came in parts that do not make one: {error}") from error


def _dense(header: memoryview, memory: Buffer) -> torch.Tensor:
    """A tensor, whatever engine the header names: to make an array of another one could load its library."""
    try:
        return from_wire(header, [memory], engine="torch")  # type: ignore[no-any-return]  # that makes a tensor
    except TypeError as error:
        raise WireError(f"a tensor came that torch cannot make: {error}") from error
