"""The contexts of distributed autograd that this worker takes part in, and what each of them has seen here.

A context is made by `with context()` on one worker and by the first message that carries its id on all others. It keeps
what was sent and received, so the graph lives as long as the context; and the gradients of leaves, by leaf.

Ids: the worker that made it in the upper 16 bits of 64, below them 16 bits of that worker's life and a counter. A
context that was released is not made anew by a message that comes late. Knows no link and runs nothing.
"""

import threading
from collections import OrderedDict
from collections.abc import Sequence
from typing import Protocol

import torch
from torch.autograd.graph import Node

from .failures import Failure
from .functions import Sent
from .parts import Parts

PassId = tuple[int, int]  # who called backward, and a number of its own

WORKER_SHIFT = 48
_LIFE_SHIFT = 32
_LIFE_MASK = 0xFFFF
# Late messages come soon or never.
_RELEASED_KEPT = 4096


class BackwardPass(Protocol):
    """A pass that is under way here, as those who come through the context know it. By any thread; nothing waits."""

    num_received: int

    def gradients(self, message: int, parts: Parts) -> None: ...
    def zeros(self, messages: Sequence[int]) -> None: ...
    def fail(self, failure: Failure) -> None: ...
    def lost(self, worker: int) -> None: ...


class NodesInUse:
    """Of the passes of a context, which may share nodes, one runs some at a time: on as many threads as it likes."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._by: PassId | None = None
        self._num_runs = 0

    def enter(self, who: PassId, *, blocking: bool) -> bool:
        """Begin a run of that pass. False: another pass has one, and this does not wait for its end."""
        with self._changed:
            while self._num_runs and self._by != who:
                if not blocking:
                    return False
                self._changed.wait()
            self._by = who
            self._num_runs += 1
            return True

    def leave(self) -> None:
        """The run is over."""
        with self._changed:
            self._num_runs -= 1
            if not self._num_runs:
                self._changed.notify_all()


class Context:
    """What this worker knows of one context. The names with an underscore are torch's."""

    def __init__(self, id: int) -> None:
        self.id = id
        self.lock = threading.RLock()
        self.in_use = NodesInUse()
        self.sent: dict[int, Sent] = {}
        self.received: dict[int, Node] = {}
        self.senders: dict[int, int] = {}  # of what was received
        self.known: set[int] = set()
        self.passes: dict[PassId, BackwardPass] = {}
        self.over: dict[PassId, int] = {}  # how many messages had been received when the pass began here
        self.released = False
        self._lost: dict[int, tuple[int, str]] = {}  # messages of lost workers: id and name of the worker
        self._place: dict[int, int] = {}  # of each received message in the order of arrival
        self._grads: dict[torch.Tensor, torch.Tensor] = {}

    def accumulate(self, leaf: torch.Tensor, grad: torch.Tensor) -> None:
        """Add to the leaf's gradient. Not in place: the user may hold what is there, and what comes."""
        with self.lock:
            before = self._grads.get(leaf)
            self._grads[leaf] = grad if before is None else before + grad

    def gradients(self) -> dict[torch.Tensor, torch.Tensor]:
        """By leaf."""
        with self.lock:
            return dict(self._grads)

    def not_among(self, first: int, messages: Sequence[int]) -> tuple[int, ...]:
        """Those of the messages that are not among the `first` ones received."""
        with self.lock:
            return tuple(message for message in messages if self._place.get(message, first) >= first)

    def has_received(self, message: int, sender: int, node: Node) -> None:
        """A message with tensors that require grad was opened."""
        with self.lock:
            self._place[message] = len(self.received)
            self.received[message] = node
            self.senders[message] = sender

    def lose(self, worker: int, name: str) -> None:
        """A worker is lost, and with it the gradients of what has been sent there, or came from there, until now.

        Not of what is exchanged with a later worker of the same id.
        """
        with self.lock:
            gone = [message for message, sent in self.sent.items() if sent.to == worker]
            gone += [message for message, sender in self.senders.items() if sender == worker]
            for message in gone:
                self._lost[message] = worker, name
            if not gone:
                self.known.discard(worker)

    def unsent(self, message: int) -> None:
        """A message never left: nothing that was in it takes part in a pass."""
        with self.lock:
            self.sent.pop(message, None)
            self._lost.pop(message, None)

    def lost(self) -> dict[int, str]:
        """The names of lost workers with which gradients cannot be exchanged any more, by their ids."""
        with self.lock:
            return dict(self._lost.values())

    def exchanged_with(self, worker: int) -> bool:
        """Whether gradients may have to go to that worker, or come from it."""
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
            return set(self.known)


class Contexts:
    """All contexts of this worker, by id."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._by_id: dict[int, Context] = {}
        self._released: OrderedDict[int, None] = OrderedDict()
        self._lost: set[int] = set()  # lives of workers, as they stand in the ids of their contexts
        self._made = 0

    def make(self, worker: int, incarnation: int) -> Context:
        """A new one of this worker's own."""
        with self._lock:
            id = worker << WORKER_SHIFT | (incarnation & _LIFE_MASK) << _LIFE_SHIFT | self._made
            self._made += 1
            context = self._by_id[id] = Context(id)
            return context

    def find(self, id: int) -> Context | None:
        """The context, if it is open here."""
        return self._by_id.get(id)

    def get(self, id: int) -> Context:
        """The context. RuntimeError when it is not open here."""
        context = self._by_id.get(id)
        if context is None:
            raise RuntimeError(f"Could not find autograd context with id: {id}")
        return context

    def at_first_sight(self, id: int, me: int) -> Context | None:
        """The context, made if a message brings its id here for the first time.

        None: it was released, or its creator is lost, and nobody would release it.
        """
        context = self._by_id.get(id)
        if context is not None:
            return context
        with self._lock:
            if id in self._released or id >> WORKER_SHIFT == me or id >> _LIFE_SHIFT in self._lost:
                return self._by_id.get(id)
            return self._by_id.setdefault(id, Context(id))

    def lose(self, worker: int, incarnation: int) -> list[Context]:
        """A life of a worker is lost: no context of its own is made here any more. Those that are open."""
        life = worker << WORKER_SHIFT - _LIFE_SHIFT | incarnation & _LIFE_MASK
        with self._lock:
            self._lost.add(life)
            return [context for id, context in self._by_id.items() if id >> _LIFE_SHIFT == life]

    def remove(self, id: int) -> Context | None:
        """Take the context out; None: it was not here."""
        with self._lock:
            self._released[id] = None
            if len(self._released) > _RELEASED_KEPT:
                self._released.popitem(last=False)
            context = self._by_id.pop(id, None)
        if context is not None:
            context.released = True
        return context

    def all(self) -> list[Context]:
        """Those that are open."""
        with self._lock:
            return list(self._by_id.values())
