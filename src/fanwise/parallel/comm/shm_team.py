"""The team of CPU ranks of one machine, which share memory and survive the loss of a rank.

    together(body) --gather, gather ...--> committed, or repeated by the ranks that are left

Every exchange has a turn, a number that all ranks count up alike. A rank writes into a box, arrives at the turn, and
waits until all members of the view have arrived. When one dies, the supervisor makes the view odd. All ranks
acknowledge that as soon as they see it, and arrive nowhere from then on. Once all have, the last turn at which all
members had arrived is committed. Ranks that had not seen the change complete that turn, because the boxes of the dead
are still there, and everything after it is repeated in the next view.

A box is used for every second turn: a rank that writes into it again has seen all others arrive at the turn between,
and so finish reading it.
"""

import os
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, TypeVar

import torch
from torch import nn

from ...base.errors import TrialStopped
from ...pool.contract import Decision
from ..all_reduce.contract import AllReduce
from ..all_reduce.sums import TeamSums
from ..all_reduce.two_shot import TwoShot
from ..optim.sharded import SliceMemory
from ..optim.step_optimizer import StepOptimizer
from .control_block import FAILED, STOPPED, SUPERVISOR, ControlBlock
from .flat_layout import Layout
from .pipes import MessageSink
from .shared_memory import SharedMemory
from .shm_areas import Areas
from .shm_exact import Direct
from .shm_one_shot import OneShot
from .team import Attempt, OwnSums, Sums, divergence

T = TypeVar("T")

# Number of polls, some 20 us, before a rank sleeps, if each has a CPU. Waking up takes longer.
_POLLS = 40
_CPUS = os.cpu_count() or 1
# Up to this size of the gradients of all ranks together, each rank adds everything instead of its slice: about where
# the two ways took equal time with two ranks.
_ONE_SHOT_BYTES = 1 << 21
_CPU = torch.device("cpu")


class Again(BaseException):
    """The view has changed, so the attempt is repeated.

    Derives from BaseException so that `except Exception` in user code does not swallow it.
    """


class Over(BaseException):
    """The run has failed, or ended, elsewhere."""


class SharedMemoryTeam:
    """See the module.

    Args:
        rank: the number of this process for the whole run. ranks: their number at the beginning.
        reduce: "exact", or "fast" for one operand of each process.

    Attributes:
        num_reports: number of reports so far, also by earlier attempts of the run.
    """

    def __init__(
        self,
        memory: SharedMemory,
        control: ControlBlock,
        rank: int,
        ranks: int,
        sender: MessageSink,
        *,
        reduce: str = "exact",
    ) -> None:
        self.rank, self.ranks = rank, ranks
        self.memory = memory
        self._reduce = reduce
        self._control = control
        self._sender = sender
        self._view = 0
        self._members: tuple[int, ...] = ()
        self._next: tuple[int, tuple[int, ...]] | None = None  # the next view and its members
        self._turn = 0
        self._is_within = self._has_stepped = False
        self._area_bytes = self.num_reports = self._num_saves = 0
        self._enter_first_view()

    def _enter_first_view(self) -> None:
        control = self._control
        while True:
            shown, view, members, turn = control.view, control.decided, control.members, control.committed
            # The view may have ended already. The next one then waits for the acknowledgment of this rank.
            if self.rank in members and control.decided == view:
                break
            check_ending(control)
            control.wait_view(shown)
        self._view, self._members, self._turn = view, members, turn

    @property
    def place(self) -> int:
        return self._members.index(self.rank)

    @property
    def size(self) -> int:
        return len(self._members)

    @property
    def members(self) -> tuple[int, ...]:
        """The ranks that take part, by place."""
        return self._members

    @property
    def next_turn(self) -> int:
        """The turn of the next exchange. Memory that is used for every second turn may be written before it."""
        return self._turn + 1

    # -- together --------------------------------------------------------------------------------------------------

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
        self._take_next_view()
        self._is_within = True
        try:
            yield attempt
        except Again:
            # Not further back: others may still read the boxes of the last turn at which all had arrived.
            self._turn = self._control.committed
            attempt.is_void = True
        finally:
            self._is_within = False

    def gather(self, operation: str, content: Any) -> list[Any]:  # Any: anything that can be pickled
        assert self._is_within, "an exchange is part of an attempt"
        slot = self.next_turn % 2
        self._control.put(self.rank, slot, pack((operation, content)))
        self.barrier()
        contents = [unpack(self._control.get(rank, slot)) for rank in self._members]
        error = divergence(self.rank, self._members, operation, [peer_operation for peer_operation, _ in contents])
        if error is not None:
            raise error
        return [content for _, content in contents]

    def barrier(self) -> None:
        """Block until all members make this call. They can then read each other's writes from before it."""
        check_ending(self._control)
        if self._next is not None or self._control.view != self._view:
            self._leave_view()
            raise Again
        self._turn += 1
        self._control.arrive(self.rank, self._view, self._turn)
        for rank in self._members:
            if rank != self.rank and not self._wait_for(rank):
                return

    def _wait_for(self, rank: int) -> bool:
        """Wait until this rank is at our turn. Return False if all had arrived when one of them died."""
        control, turn = self._control, self._turn
        polls = _POLLS if self.size <= _CPUS else 0
        while True:
            view, arrived = control.arrived(rank)
            if view == self._view and arrived >= turn:
                return True
            if polls:
                polls -= 1
                continue
            if control.view != self._view:
                self._leave_view()
                if control.committed >= turn:
                    return False
                raise Again
            check_ending(control)
            control.wait_arrived(rank, arrived)

    def _leave_view(self) -> None:
        """Acknowledge the change of the view and learn the next one, which is entered after the attempt."""
        if self._next is not None:
            return
        control = self._control
        while (view := control.view) % 2:
            if control.agreed(self.rank) != view:
                control.agree(self.rank, view)
                self._sender.say("agreed", view)
            check_ending(control)
            control.wait_view(view)
        self._next = (view, control.members)  # even if it has ended by now: then all acknowledge that, too

    def _take_next_view(self) -> None:
        if self._next is not None:
            self._view, self._members = self._next
            self._next = None

    def look(self) -> None:
        """Raise if an exchange cannot complete, because a member is gone or the run has ended."""
        check_ending(self._control)
        if self._control.view != self._view:
            self._leave_view()
            raise Again

    # -- steps -----------------------------------------------------------------------------------------------------

    def sums(self, params: Sequence[nn.Parameter], placement: StepOptimizer) -> Sums:
        if self.ranks == 1:
            return OwnSums()
        all_reduce, memory = self.all_reduce(params)
        if memory is not None:
            placement.enable_slices(memory)
        return TeamSums(self, all_reduce, placement, _CPU, by_process=self._reduce == "fast")

    def all_reduce(self, params: Sequence[nn.Parameter]) -> tuple[AllReduce, SliceMemory | None]:
        """Return what adds their gradients, and the memory in which each process may update its slice, if any."""
        layout, kind = Layout(params), self.memory.all_reduce
        if kind == "auto":
            kind = "one-shot" if self.ranks * layout.size_bytes <= _ONE_SHOT_BYTES else "two-shot"
        areas = Areas(self, layout, self._area_bytes, versions=2 if kind == "one-shot" else 1)
        self._area_bytes += areas.size_bytes
        return (OneShot(areas), None) if kind == "one-shot" else (TwoShot(Direct(areas)), areas)

    def step_ends(self) -> None:
        if not self._has_stepped:
            self._has_stepped = True
            self._sender.say("stepped")

    # -- reports, checkpoints and the end --------------------------------------------------------------------------

    def report(self, values: Mapping[str, Any]) -> Decision:  # Any: numbers
        self.num_reports += 1
        return self.together(lambda: self._report(values))

    def _report(self, values: Mapping[str, Any]) -> Decision:  # Any: numbers
        answer = None
        if self.place == 0:
            answer = self.ask("report", self.num_reports, dict(values))
        decision: Decision | BaseException = self.gather("reports", answer)[0]
        if isinstance(decision, BaseException):
            raise decision
        return decision

    def ask(self, name: str, number: int, *content: Any) -> Any:  # Any: plain values
        """Send a numbered request to the supervisor and return its answer. Blocks until that is there."""
        control = self._control
        self._sender.say(name, number, *content)
        while (answered := control.answered) < number:
            self.look()
            control.wait_answered(answered)
        return unpack(control.get(SUPERVISOR, number % 2))

    def saved(self) -> None:
        self._num_saves += 1
        self._control.set_saves(self.rank, self._num_saves)

    def set_writing(self, is_writing: bool) -> None:
        self._control.set_writing(self.rank, is_writing)

    def checkpoint_written(self, path: str) -> None:
        self._sender.say("checkpoint", path)

    def finish(self) -> bool:
        """Block until the training function has returned everywhere. Return True if its result here is the run's.

        The other ranks block until the result of the first one has arrived, and then raise `Over`. They return when
        they have become the first, because those before them were lost.
        """
        self.together(lambda: self.gather("has returned", None))
        self._take_next_view()
        control = self._control
        self._control.set_idle(self.rank, self.place != 0)
        # All have returned, so nothing is exchanged anymore: some may know of a change that others have not seen yet.
        while self.place != 0:
            if control.ending:
                raise Over
            if control.view != self._view:
                self._leave_view()
                self._take_next_view()
            else:
                control.wait_view(self._view)
        self._control.set_idle(self.rank, False)
        return True


def check_ending(control: ControlBlock) -> None:
    """Raise `Over` or TrialStopped if the supervisor is ending the run."""
    if control.ending == FAILED:
        raise Over
    if control.ending == STOPPED:
        raise TrialStopped("the run was stopped")


def pack(content: Any) -> bytes:  # Any: anything that can be pickled
    """Encode the content of a box."""
    return pickle.dumps(content, protocol=5)


def unpack(data: bytes) -> Any:  # Any: the content
    """Decode the content of a box."""
    return pickle.loads(data)
