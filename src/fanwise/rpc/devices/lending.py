"""Tensors in a device's memory, between workers of one host: lent, not copied through main memory.

    sender                                                    receiver
      a copy there, kept; its handle in the message       -->   opened where it is known, copied to where it shall be
      lets go of the copy                                 <--   RETURNED: the copies are made
      the bytes, through main memory, and remembers       <--   STAGED, please: that handle cannot be opened

The receiver copies, for what it keeps must not end with the sender, and must not hold the sender's memory. The sender
copies, for what is sent may be changed as soon as the call returns. Which tensors go this way, and who has which loan,
is decided in `loans`. The first message to a worker goes through main memory: it asks what that sees (`Sight`).

A loan ends when its message was opened; when nobody opened it (a late answer), noticed by the end of its
`ReceivedLoans`, in a garbage collection too, so that only appends to a deque; when it never left; when its holder is
lost or has left.
A graceful shutdown waits for all loans.
"""

import logging
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, Protocol

import torch
from torch.futures import Future

from ...base.errors import WireError, WorkerLostError
from ...links.hub import Alarm, Hub
from ...links.link import Link
from ...links.plain import Plain
from .. import agent_protocol
from ..calling.futures import error_of, result_of
from ..worker_info import WorkerInfo, WorkerKey
from .device_memory import DeviceMemory, Handle
from .loans import NOT_KNOWN, Facts, Loans, Sight, why_staged

_log = logging.getLogger("fanwise.rpc")

# How often to look for messages that ended unopened, while there are any.
_LOOK_S = 0.5
# What opening a handle raises when it cannot be.
_CANNOT = (RuntimeError, OSError, LookupError)
_plain = Plain()  # what a message says of a loan; the handle is made of plain values

SIGHT, RETURNED, STAGED = "loans.sight", "loans.returned", "loans.staged"


class Links(Protocol):
    """What is asked of the links to other workers."""

    def get_open(self, id: int) -> Link | None: ...


class Agent(agent_protocol.Agent, Protocol):
    """What is asked of the agent."""

    @property
    def connections(self) -> Links: ...


Borrow = Callable[[int, memoryview], torch.Tensor]


class _Loan(NamedTuple):
    copy: torch.Tensor
    handle: Handle
    uuid: str


class Lending:
    """What one worker lends and borrows. `memory` may be replaced before the first message."""

    def __init__(self, agent: Agent, hub: Hub, memory: DeviceMemory) -> None:
        self.memory = memory
        self._agent = agent
        self._hub = hub
        self._lock = threading.Lock()
        self._loans: Loans[_Loan] = Loans()
        self._sights: dict[WorkerKey, Sight | None] = {}
        self._refused: set[tuple[WorkerKey | None, str]] = set()  # (to whom, device); to nobody: None
        self._unopened: deque[tuple[WorkerKey, tuple[int, ...]]] = deque()
        self._received: weakref.WeakSet[ReceivedLoans] = weakref.WeakSet()
        self._alarm = Alarm(hub, self._look)
        self._is_quiet = True
        self._closed = False
        agent.on(SIGHT, self._on_sight)
        agent.on(RETURNED, self._on_returned)
        agent.on(STAGED, self._on_staged)

    @property
    def num_lent(self) -> int:
        """How many loans have not been returned."""
        return len(self._loans)

    # -- sending ---------------------------------------------------------------------------------------------------

    def lender(self, tensors: Sequence[torch.Tensor], to: int, targets: Sequence[str] | None) -> "Lender | None":
        """For one message with these tensors; None: nothing of it can be lent. `targets`: where they shall be there."""
        if not self.memory.holds_any(tensors):
            return None
        return Lender(self, to, targets)

    def lend(self, tensor: torch.Tensor, to: int, target: str | None) -> tuple[int, bytes] | None:
        """Lend a contiguous tensor: the loan, and what the message says of it. None: its bytes go."""
        uuid = self.memory.uuid_of(tensor)
        facts = self._facts(tensor, uuid, to, target)
        why = why_staged(facts)
        if why is not None:
            if why == NOT_KNOWN:
                self._ask_sight(self._key_of(to))
            return None
        try:
            copy, handle = self.memory.lend(tensor)
        except _CANNOT as error:
            if not isinstance(error, torch.OutOfMemoryError):  # another time there may be room
                self._refuse(None, uuid, f"memory of {tensor.device} cannot be handed out: {error}")
            return None
        with self._lock:
            loan = self._loans.lend(_Loan(copy, handle, uuid), self._key_of(to), facts.size_bytes)
        is_parameter = type(tensor) is torch.nn.Parameter
        like = str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), tensor.requires_grad, is_parameter
        return loan, _plain.dumps((loan, uuid, handle, like))[0]

    def _facts(self, tensor: torch.Tensor, uuid: str, to: int, target: str | None) -> Facts:
        group, key = self._agent.group, self._key_of(to)
        member = group.members().get(to)
        return Facts(
            size_bytes=tensor.nbytes,
            uuid=uuid,
            target=target,
            sight=self._sights.get(key),
            is_on_this_host=member is not None and member.host == group.me.host,
            is_this_worker=to == self._agent.info.id,
            lent_bytes=self._loans.total_bytes,
            refused=not {(None, uuid), (key, uuid)}.isdisjoint(self._refused),
        )

    def _key_of(self, id: int) -> WorkerKey:
        member = self._agent.group.members().get(id)
        return WorkerKey(id, 0) if member is None else member.key

    def _ask_sight(self, key: WorkerKey) -> None:
        """Ask that worker what it sees, until it has said so. Nobody waits for it, and no link is made for it."""
        with self._lock:
            if key in self._sights or self._agent.connections.get_open(key.id) is None:
                return
            self._sights[key] = None
        self._agent.request(key.id, SIGHT).add_done_callback(partial(self._seen, key))

    def _seen(self, key: WorkerKey, future: "Future[Any]") -> None:
        error = error_of(future)
        if error is None:
            self._sights[key] = future.value()
        else:
            _log.info("worker %s did not say which devices it sees: %s", key.id, error)
            self._sights.pop(key, None)  # the next tensor for it asks again

    def _refuse(self, key: WorkerKey | None, uuid: str, why: str) -> None:
        """From now on the bytes of what lies there go through main memory. Said once."""
        with self._lock:
            known = (key, uuid) in self._refused
            self._refused.add((key, uuid))
        if not known:
            _log.warning("tensors go through main memory from now on: %s", why)

    def roll_back(self, loans: Sequence[int], to: int) -> None:
        """A message with these never left."""
        with self._lock:
            ended = self._loans.give_back(loans, self._key_of(to))
        self._forsake(ended)

    def gone(self, key: WorkerKey) -> None:
        """A worker was lost, or has left. On the hub's thread."""
        with self._lock:
            ended = self._loans.lose(key)
            self._sights.pop(key, None)
        if ended:
            self._agent.outside(partial(self._forsake, ended))

    def _forsake(self, loans: list[_Loan]) -> None:
        """Nobody will say that these were let go of."""
        for loan in loans:
            try:
                self.memory.reclaim(loan.handle)
            except _CANNOT:
                _log.exception("memory of device %s that was lent may stay in use", loan.uuid)

    def close(self) -> None:
        """This worker ends."""
        with self._lock:
            self._closed = True
            ended = self._loans.end()
        self._alarm.cancel()
        self._forsake(ended)

    # -- what others ask, on a reading thread ----------------------------------------------------------------------

    def _on_sight(self, sender: WorkerInfo) -> "Future[Sight]":
        return self._outside(self.memory.sight)

    def _on_returned(self, sender: WorkerInfo, loans: Sequence[int], were_opened: bool) -> None:
        with self._lock:
            ended = self._loans.give_back(loans, self._key_of(sender.id))
        if not were_opened:
            self._agent.outside(partial(self._forsake, ended))

    def _on_staged(self, sender: WorkerInfo, loan: int, why: str) -> "Future[torch.Tensor]":
        key = self._key_of(sender.id)
        with self._lock:
            lent = self._loans.take(loan, key)
        if lent is None:
            raise LookupError(f"loan {loan} is not, or no longer, one of worker {sender.name}.")
        self._refuse(key, lent.uuid, f"worker {sender.name} could not open memory of device {lent.uuid}: {why}")

        def staged() -> torch.Tensor:
            self._forsake([lent])
            return lent.copy.cpu()

        return self._outside(staged)

    def _outside(self, make: Callable[[], Any]) -> "Future[Any]":
        future: Future[Any] = Future()

        def run() -> None:
            try:
                future.set_result(make())
            except Exception as error:
                future.set_exception(error.with_traceback(None))

        self._agent.answer(run)
        return future

    # -- receiving -------------------------------------------------------------------------------------------------

    def arrived(self, sender: WorkerInfo, loans: tuple[int, ...]) -> "ReceivedLoans":
        """A message with these loans was read. On a reading thread."""
        received = ReceivedLoans(self._unopened, self._key_of(sender.id), loans)
        self._received.add(received)
        self._is_quiet = False
        self._alarm.set(self._hub.clock.now_s() + _LOOK_S)
        return received

    @contextmanager
    def borrowing(
        self, received: "ReceivedLoans", sender: WorkerInfo, place: Callable[[int], torch.device]
    ) -> "Iterator[Borrow]":
        """Around the opening of a message, once: what was lent for it is copied to where it shall be.

        `place`: where its tensors shall be, by their numbers. What is entered makes our own copy of what the message
        says of a tensor, given its number, or of a part of it.
        """
        copies: list[torch.Tensor] = []

        def take(number: int, about: memoryview) -> torch.Tensor:
            loan, uuid, handle, (dtype, shape, requires_grad, is_parameter) = _about(about)
            try:
                view = self.memory.borrow(uuid, handle, (dtype, shape))
            except _CANNOT as error:
                self._check_alive(received.key, sender)
                view = self._staged(sender, loan, f"{type(error).__name__}: {error}")
            copy = view.to(place(number), copy=True)
            copies.append(copy)
            if is_parameter:
                return torch.nn.Parameter(copy, requires_grad=requires_grad)
            return copy.requires_grad_(requires_grad)

        were_opened = False
        try:
            yield take
            were_opened = True
            self.memory.settle(copies)
            self._check_alive(received.key, sender)
        finally:
            if received.close():
                self._return(received.key, received.loans, were_opened=were_opened)

    def _return(self, key: WorkerKey, loans: tuple[int, ...], *, were_opened: bool) -> None:
        """Nothing here refers to these any more. Not `were_opened`: one of them at least was not."""
        if self._key_of(key.id) == key and not self._closed:
            self._agent.request(key.id, RETURNED, loans, were_opened)

    def _staged(self, sender: WorkerInfo, loan: int, why: str) -> torch.Tensor:
        """The bytes of what could not be opened. Blocks."""
        with self._agent.waiting():
            tensor: torch.Tensor = result_of(self._agent.request(sender.id, STAGED, loan, why))
        return tensor

    def _check_alive(self, key: WorkerKey, sender: WorkerInfo) -> None:
        """Raises WorkerLostError when that life of the worker has ended: its memory may have, before it was copied."""
        if self._key_of(key.id) != key:
            raise WorkerLostError(f"worker {sender.name} was lost while its tensors were copied from its device.")

    def _look(self) -> None:
        """Now and then, on the hub's thread: what ended unopened is returned."""
        while self._unopened:
            self._agent.outside(partial(self._return, *self._unopened.popleft(), were_opened=False))
        was_quiet, self._is_quiet = self._is_quiet, len(self._received) == 0
        # Once more when there is none: in a garbage collection one is gone from the set before it ends.
        if not (was_quiet and self._is_quiet) and not self._closed:
            self._alarm.set(self._hub.clock.now_s() + _LOOK_S)


def _about(data: memoryview) -> tuple[int, str, Handle, tuple[torch.dtype, tuple[int, ...], bool, bool]]:
    """What a message says of a tensor that is lent."""
    match _plain.loads(data):
        case (int(loan), str(uuid), tuple(handle), (str(name), tuple(shape), bool(requires_grad), bool(is_parameter))):
            dtype = getattr(torch, name, None)
            if isinstance(dtype, torch.dtype) and all(type(length) is int and length >= 0 for length in shape):
                return loan, uuid, handle, (dtype, shape, requires_grad, is_parameter)
    raise WireError(f"what a message says of memory that is lent, {len(data)} bytes, cannot be read.")


class Lender:
    """Lends the tensors of one message. `loans`: what it has lent."""

    def __init__(self, lending: Lending, to: int, targets: Sequence[str] | None) -> None:
        self._lending = lending
        self._to = to
        self._targets = targets
        self.loans: list[int] = []

    def __call__(self, number: int, tensor: torch.Tensor) -> bytes | None:
        """The part that is contiguous of tensor `number` of the message: what is said of it, or None."""
        target = None if self._targets is None else self._targets[number]
        lent = self._lending.lend(tensor, self._to, target)
        if lent is None:
            return None
        self.loans.append(lent[0])
        return lent[1]

    def roll_back(self) -> None:
        """The message was not finished."""
        self._lending.roll_back(self.loans, self._to)


class ReceivedLoans:
    """Loans that came with a message: to be returned, once, also when nobody opens it."""

    __slots__ = ("__weakref__", "_unopened", "is_open", "key", "loans")

    def __init__(
        self, unopened: deque[tuple[WorkerKey, tuple[int, ...]]], key: WorkerKey, loans: tuple[int, ...]
    ) -> None:
        self._unopened = unopened
        self.key = key
        self.loans = loans
        self.is_open = True

    def close(self) -> bool:
        """False: it was closed already."""
        was_open, self.is_open = self.is_open, False
        return was_open

    def __del__(self) -> None:
        # On any thread, inside any lock: nothing but this.
        if self.is_open:
            self._unopened.append((self.key, self.loans))
