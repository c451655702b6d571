"""The team of CPU ranks of one machine. They share memory and survive the loss of a rank.

All ranks number their collective operations alike. In an operation each rank writes into its mailbox, marks that it has
arrived at the sequence number, and waits until all members have arrived.

The supervisor makes the view odd when a rank dies. The other ranks acknowledge the odd view when they see it, and
arrive at no operation from then on. After all have acknowledged, the supervisor commits the last operation at which all
members, also the dead ones, had arrived, and begins the next view. Ranks that had not yet noticed the change complete
the committed operation, because the mailboxes of the dead ranks are still readable. The ranks that are left repeat
everything after it.

Mailboxes alternate: operation n uses mailbox n % 2. Before a rank overwrites a mailbox, all others have arrived at the
operation in between, and so have read the old content.
"""

import os
import pickle
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import nn

from ...base.errors import TrialStopped
from ..optim.sharded import StepOptimizer
from .all_reduce import ExactAllReduce
from .control_block import FAILED, STOPPED, SUPERVISOR, ControlBlock
from .flat_layout import Layout
from .shared_memory import SharedMemory
from .shm_areas import Areas
from .shm_transports import OneShotTransport, TwoShotTransport
from .sums import TeamSums
from .team import Attempt, LocalSums, Sums, check_same_operation

T = TypeVar("T")

# Number of polls, about 20 us, before a rank sleeps. Used if each rank has a CPU, because waking up takes longer.
_POLLS = 40
_CPUS = os.cpu_count() or 1
# Up to this size of the gradients of all ranks together, the one-shot transport is used: about where both took the same
# time with two ranks.
_ONE_SHOT_BYTES = 1 << 21
_CPU = torch.device("cpu")


class MembershipChanged(BaseException):
    """The view has changed, so the attempt must be repeated.

    Derives from BaseException so that `except Exception` in user code does not swallow it.
    """


class RunEnded(BaseException):
    """The run has ended in another process. Derives from BaseException for the same reason."""


class SharedMemoryTeam:
    """See the module. `rank` never changes. `index` is the position among the current members."""

    def __init__(
        self,
        memory: SharedMemory,
        control: ControlBlock,
        rank: int,
        initial_size: int,
        send: Callable[..., None],
        *,
        reduce: str = "exact",
    ) -> None:
        self.rank, self.initial_size = rank, initial_size
        self.memory = memory
        self._reduce = reduce
        self._control = control
        self._send = send
        self._view = 0
        self._members: tuple[int, ...] = ()
        self._next: tuple[int, tuple[int, ...]] | None = None  # the next view and its members
        self._seq = 0
        self._is_within = self._has_stepped = False
        self._area_bytes = 0
        self._enter_first_view()

    def _enter_first_view(self) -> None:
        control = self._control
        while True:
            shown, view, members, seq = control.view, control.decided, control.members, control.committed
            # If this view has already ended, the next one does not begin before this rank acknowledges the end.
            if self.rank in members and control.decided == view:
                break
            check_ending(control)
            control.wait_view(shown)
        self._view, self._members, self._seq = view, members, seq

    @property
    def index(self) -> int:
        return self._members.index(self.rank)

    @property
    def size(self) -> int:
        return len(self._members)

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks that take part, by index."""
        return self._members

    @property
    def next_seq(self) -> int:
        """Sequence number of the next operation. Memory that alternates like the mailboxes may be written before it."""
        return self._seq + 1

    def together(self, body: Callable[[], T]) -> T:
        while True:
            with self.attempt() as attempt:
                result = body()
            if not attempt.is_void:
                return result

    @contextmanager
    def attempt(self) -> Iterator[Attempt]:
        attempt = Attempt()
        if self._is_within:
            yield attempt
            return
        self._enter_next_view()
        self._is_within = True
        try:
            yield attempt
        except MembershipChanged:
            # Not to an earlier operation: other ranks may still read the mailboxes of the committed one.
            self._seq = self._control.committed
            attempt.is_void = True
        finally:
            self._is_within = False

    def gather(self, operation: str, content: Any) -> list[Any]:
        assert self._is_within, "an operation is part of an attempt"
        slot = self.next_seq % 2
        self._control.put(self.rank, slot, pack((operation, content)))
        self.barrier()
        contents = [unpack(self._control.get(rank, slot)) for rank in self._members]
        check_same_operation(self.rank, self._members, operation, [peer_operation for peer_operation, _ in contents])
        return [content for _, content in contents]

    def barrier(self) -> None:
        """Block until all members call it. Earlier writes to shared memory are then visible to all members."""
        self.check_members()
        self._seq += 1
        self._control.arrive(self.rank, self._view, self._seq)
        for rank in self._members:
            if rank != self.rank and not self._wait_for(rank):
                return

    def _wait_for(self, rank: int) -> bool:
        """Wait until the rank arrives at this operation. Return False if a member died after all had arrived."""
        control, seq = self._control, self._seq
        polls = _POLLS if self.size <= _CPUS else 0
        while True:
            view, arrived = control.arrived(rank)
            if view == self._view and arrived >= seq:
                return True
            if polls:
                polls -= 1
                continue
            if control.view != self._view:
                self._leave_view()
                if control.committed >= seq:
                    return False
                raise MembershipChanged
            check_ending(control)
            control.wait_arrived(rank, arrived)

    def _leave_view(self) -> None:
        """Acknowledge the odd view, and wait for the next even one, which the next attempt enters."""
        if self._next is not None:
            return
        control = self._control
        while (view := control.view) % 2:
            if control.acknowledged(self.rank) != view:
                control.acknowledge(self.rank, view)
                self._send("acknowledged", view)
            check_ending(control)
            control.wait_view(view)
        self._next = (view, control.members)  # if this view has ended, too, the next attempt notices it

    def _enter_next_view(self) -> None:
        if self._next is not None:
            self._view, self._members = self._next
            self._next = None

    def check_members(self) -> None:
        """Raise MembershipChanged, RunEnded or TrialStopped if the next operation cannot complete."""
        check_ending(self._control)
        if self._next is not None or self._control.view != self._view:
            self._leave_view()
            raise MembershipChanged

    def sums(self, params: Sequence[nn.Parameter], step_optimizer: StepOptimizer) -> Sums:
        if self.initial_size == 1:
            return LocalSums()
        all_reduce, memory = self.all_reduce(params)
        if memory is not None:
            step_optimizer.enable_slices(memory)
        return TeamSums(self, all_reduce, step_optimizer, _CPU, is_fast=self._reduce == "fast")

    def all_reduce(self, params: Sequence[nn.Parameter]) -> tuple[ExactAllReduce, Areas | None]:
        """Return the all-reduce of a step, and the memory in which each rank may update its slice of the parameters.

        The memory is None for small models, whose gradients are not divided into slices.
        """
        layout, kind = Layout(params), self.memory.all_reduce
        if kind == "auto":
            kind = "one-shot" if self.initial_size * layout.size_bytes <= _ONE_SHOT_BYTES else "two-shot"
        areas = Areas(self, layout, self._area_bytes, versions=2 if kind == "one-shot" else 1)
        self._area_bytes += areas.size_bytes
        if kind == "one-shot":
            return ExactAllReduce(OneShotTransport(areas)), None
        return ExactAllReduce(TwoShotTransport(areas)), areas

    def step_ends(self) -> None:
        if not self._has_stepped:
            self._has_stepped = True
            self._send("stepped")

    def finish(self) -> bool:
        """Block until the training function has returned in all processes. Return True if this is the first member.

        The supervisor takes the result of the first member. The others block until it has the result, and then raise
        `RunEnded`. If earlier members are lost meanwhile, the first of the others returns.
        """
        self.together(lambda: self.gather("has returned", None))
        self._enter_next_view()
        control = self._control
        control.set_idle(self.rank, self.index != 0)
        # No operation follows, so ranks enter new views at different times.
        while self.index != 0:
            if control.ending:
                raise RunEnded
            if control.view != self._view:
                self._leave_view()
                self._enter_next_view()
            else:
                control.wait_view(self._view)
        control.set_idle(self.rank, False)
        return True


def check_ending(control: ControlBlock) -> None:
    """Raise `RunEnded` or TrialStopped if the supervisor ends the run."""
    if control.ending == FAILED:
        raise RunEnded
    if control.ending == STOPPED:
        raise TrialStopped("the run was stopped")


def wait_for_answer(control: ControlBlock, request: int, check: Callable[[], None]) -> Any:
    """Block until the supervisor has answered the request. Return the answer. `check`: raises to stop waiting."""
    while (answered := control.answered) < request:
        check()
        control.wait_answered(answered)
    return unpack(control.get(SUPERVISOR, request % 2))


def pack(content: Any) -> bytes:
    return pickle.dumps(content, protocol=5)


def unpack(data: bytes) -> Any:
    return pickle.loads(data)
