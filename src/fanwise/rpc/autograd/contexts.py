"""The autograd contexts of this worker: the messages sent and received in each, and the gradients of leaves.

A context is created by `with context()` on one worker, and by the first message with its id on all others. It holds
the send and receive functions of its messages, so the graph lives as long as the context.

An id has 16 bits for the worker that created the context, 16 for the incarnation of that worker, and a 32-bit counter.
Late messages do not recreate a released context.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch
from torch.autograd.graph import Node

from .functions import Sent

if TYPE_CHECKING:
    from .backward_pass import BackwardPass

PassId = tuple[int, int]  # the worker that called `backward`, and a number

WORKER_SHIFT = 48
_INCARNATION_SHIFT = 32
_INCARNATION_MASK = 0xFFFF
_MAX_RELEASED_IDS = 4096


class PassLock:
    """A lock that several threads of one backward pass may hold. Passes of a context may share nodes."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._holder: PassId | None = None
        self._count = 0

    def acquire(self, pass_id: PassId, *, blocking: bool) -> bool:
        """Return False if another pass holds the lock and `blocking` is not set."""
        with self._changed:
            while self._count and self._holder != pass_id:
                if not blocking:
                    return False
                self._changed.wait()
            self._holder = pass_id
            self._count += 1
            return True

    def release(self) -> None:
        with self._changed:
            self._count -= 1
            if not self._count:
                self._changed.notify_all()


class Context:
    """The part of one context on this worker. The methods with an underscore have torch's names.

    Attributes:
        sent: the messages sent with tensors that require grad.
        received, senders: the nodes of the messages received with such tensors, and their senders.
        known_workers: the workers to which messages were sent, or from which they came.
        passes: the backward passes in progress on this worker.
        finished_passes: for each finished pass, how many messages had been received when it began here.
    """

    def __init__(self, id: int) -> None:
        self.id = id
        self.lock = threading.RLock()
        self.pass_lock = PassLock()
        self.sent: dict[int, Sent] = {}
        self.received: dict[int, Node] = {}
        self.senders: dict[int, int] = {}
        self.known_workers: set[int] = set()
        self.passes: dict[PassId, BackwardPass] = {}
        self.finished_passes: dict[PassId, int] = {}
        self.is_released = False
        self._lost: dict[int, tuple[int, str]] = {}  # messages exchanged with lost workers: id and name of the worker
        self._arrival_index: dict[int, int] = {}
        self._grads: dict[torch.Tensor, torch.Tensor] = {}

    def accumulate(self, leaf: torch.Tensor, grad: torch.Tensor) -> None:
        """Add to the gradient of a leaf. Not in place, because the user may hold both gradients."""
        with self.lock:
            total = self._grads.get(leaf)
            self._grads[leaf] = grad if total is None else total + grad

    def gradients(self) -> dict[torch.Tensor, torch.Tensor]:
        with self.lock:
            return dict(self._grads)

    def add_received(self, message: int, sender: int, node: Node) -> None:
        with self.lock:
            self._arrival_index[message] = len(self.received)
            self.received[message] = node
            self.senders[message] = sender

    def not_received(self, messages: Sequence[int], num_received: int) -> tuple[int, ...]:
        """Return those of `messages` that are not among the first `num_received` of this worker."""
        with self.lock:
            return tuple(
                message for message in messages if self._arrival_index.get(message, num_received) >= num_received
            )

    def remove_sent(self, message: int) -> None:
        """Forget a message that was serialized and not sent."""
        with self.lock:
            self.sent.pop(message, None)
            self._lost.pop(message, None)

    def on_worker_lost(self, worker: int, name: str) -> None:
        """Mark the messages exchanged with a worker until now as lost. A later worker may have the same id."""
        with self.lock:
            lost = [message for message, sent in self.sent.items() if sent.to == worker]
            lost += [message for message, sender in self.senders.items() if sender == worker]
            self._lost.update(dict.fromkeys(lost, (worker, name)))
            if not lost:
                self.known_workers.discard(worker)

    def lost_workers(self) -> dict[int, str]:
        """Return the names, by id, of lost workers that exchanged tensors with this one."""
        with self.lock:
            return dict(self._lost.values())

    def has_exchanged_with(self, worker: int) -> bool:
        """Return True if gradients may have to be sent to that worker, or received from it."""
        with self.lock:
            return worker in self.senders.values() or any(sent.to == worker for sent in self.sent.values())

    def _context_id(self) -> int:
        return self.id

    def _send_functions(self) -> dict[int, Node]:
        with self.lock:
            return {message: sent.node for message, sent in self.sent.items()}

    def _recv_functions(self) -> dict[int, Node]:
        with self.lock:
            return dict(self.received)

    def _known_worker_ids(self) -> set[int]:
        with self.lock:
            return set(self.known_workers)


class Contexts:
    """The contexts that are open on this worker, by id."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_id: dict[int, Context] = {}
        self._released: OrderedDict[int, None] = OrderedDict()
        self._lost_creators: set[int] = set()  # upper 32 bits of the ids of their contexts
        self._num_created = 0

    def create(self, worker: int, incarnation: int) -> Context:
        """Create a context of this worker."""
        with self._lock:
            id = _creator(worker, incarnation) << _INCARNATION_SHIFT | self._num_created
            self._num_created += 1
            context = self._by_id[id] = Context(id)
            return context

    def find(self, id: int) -> Context | None:
        return self._by_id.get(id)

    def get(self, id: int) -> Context:
        """Return the context. Raises RuntimeError if it is not open here."""
        context = self._by_id.get(id)
        if context is None:
            raise RuntimeError(f"Could not find autograd context with id: {id}")
        return context

    def get_or_create(self, id: int, me: int) -> Context | None:
        """Return the context of a received message. None if it was released, or its creator is lost."""
        context = self._by_id.get(id)
        if context is not None:
            return context
        with self._lock:
            if id in self._released or id >> WORKER_SHIFT == me or id >> _INCARNATION_SHIFT in self._lost_creators:
                return self._by_id.get(id)
            return self._by_id.setdefault(id, Context(id))

    def on_worker_lost(self, worker: int, incarnation: int) -> list[Context]:
        """Refuse further contexts of a lost worker, and return the open ones."""
        creator = _creator(worker, incarnation)
        with self._lock:
            self._lost_creators.add(creator)
            return [context for id, context in self._by_id.items() if id >> _INCARNATION_SHIFT == creator]

    def remove(self, id: int) -> Context | None:
        """Remove a context, so that messages do not recreate it. Return None if it is not open here."""
        with self._lock:
            self._released[id] = None
            if len(self._released) > _MAX_RELEASED_IDS:
                self._released.popitem(last=False)
            context = self._by_id.pop(id, None)
        if context is not None:
            context.is_released = True
        return context

    def all(self) -> list[Context]:
        with self._lock:
            return list(self._by_id.values())


def _creator(worker: int, incarnation: int) -> int:
    return worker << WORKER_SHIFT - _INCARNATION_SHIFT | incarnation & _INCARNATION_MASK
