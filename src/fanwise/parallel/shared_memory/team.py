"""One of several processes of a run that share memory: who takes part, what all exchange, what is done again.

    together(body) --gather, gather ...--> committed, or again from its beginning with those that are left

Each exchange has a turn, a number that counts up alike in all processes. A process puts its content into a box, arrives
at the turn, and waits until all members have. When one of them dies, the supervisor makes the view odd; everybody
agrees as soon as it looks there, and from then on arrives nowhere. So the supervisor sees a picture that stands
still: the last turn that all members of the view had arrived at is committed. Whoever had not yet noticed finishes it,
for the boxes of the dead are still there; whatever comes after it is done again, in the next view.

A box is used for every other turn. Whoever writes into it has seen all arrive at the turn between, and so leave it.
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
from ..teams.layout import Layout
from ..teams.team import Attempt, Sums, different_ways
from ..torch_distributed.backend import BackendAllReduce
from .areas import Areas
from .control_block import FAILED, STOPPED, SUPERVISOR, ControlBlock
from .direct import Direct
from .memory import SharedMemory
from .one_shot import OneShot
from .pipes import MessageSink
from .rank_groups import RankGroups
from .staging import Staged

T = TypeVar("T")

# Before a process sleeps it looks this often, some 20 us, where each has a CPU: to be woken takes longer.
_LOOKS = 40
_CPUS = os.cpu_count() or 1
# Up to so many bytes of gradients, in all processes together, each adds the whole instead of a slice: about where two
# processes were as quick one way as the other.
_ONE_SHOT_BYTES = 1 << 21


class Again(BaseException):
    """The view has changed: what was being done together begins again. No Exception, so that user code lets it pass."""


class Over(BaseException):
    """The run has failed elsewhere: this process has nothing more to say."""


class SharedMemoryTeam:
    """The team of a process that trains with others.

    Args:
        rank: the number of this process for the whole run. ranks: how many there are at its beginning.
        reduce: "exact", or "fast" for one operand per process.
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
        self._next: tuple[int, tuple[int, ...]] | None = None
        self._turn = 0
        self._is_within = False
        self._has_stepped = False
        self._bytes_asked = self._requests = self._saves = 0
        self._enter_first_view()

    def _enter_first_view(self) -> None:
        control = self._control
        while True:
            shown, view, members, turn = control.view, control.decided, control.members, control.committed
            # It may be over already, and then waits for this process to agree: until then nothing here changes.
            if self.rank in members and control.decided == view:
                break
            self._look_for_the_end()
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
    def view(self) -> int:
        """That this process is in."""
        return self._view

    @property
    def next_turn(self) -> int:
        """Of the next exchange. Whatever is used for every other turn may be written before it, as a box is."""
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
        made = Attempt()
        if self._is_within:
            yield made
            return
        self._take_next_view()
        self._is_within = True
        try:
            yield made
        except Again:
            # Not further back: somebody may still read what was said at the last turn that all had come to.
            self._turn = self._control.committed
            made.is_void = True
        finally:
            self._is_within = False

    def gather(self, what: str, content: Any) -> list[Any]:  # Any: anything that can be pickled
        assert self._is_within, "exchanges are part of something that can be done again"
        slot = self.next_turn % 2
        self._control.put(self.rank, slot, pack((what, content)))
        self.barrier()
        said = [pickle.loads(self._control.get(rank, slot)) for rank in self._members]
        if (error := different_ways(self.rank, self._members, what, [its for its, _ in said])) is not None:
            raise error
        return [content for _, content in said]

    def barrier(self) -> None:
        """Block until all members have come here. What each wrote before can be read after."""
        self._look_for_the_end()
        if self._next is not None or self._control.view != self._view:
            self._leave_view()
            raise Again
        self._turn += 1
        self._control.arrive(self.rank, self._view, self._turn)
        for rank in self._members:
            if rank != self.rank and not self._wait_for(rank):
                return

    def _wait_for(self, rank: int) -> bool:
        """Until this rank is at our turn, too. False: that needs no waiting any more, all had come when one died."""
        control, turn = self._control, self._turn
        looks = _LOOKS if self.size <= _CPUS else 0
        while True:
            view, its_turn = control.arrived(rank)
            if view == self._view and its_turn >= turn:
                return True
            if looks:
                looks -= 1
                continue
            if control.view != self._view:
                self._leave_view()
                if control.committed >= turn:
                    return False
                raise Again
            self._look_for_the_end()
            control.wait_arrived(rank, its_turn)

    def _leave_view(self) -> None:
        """Agree to the change, and learn what comes next. It is entered when what is being done is over."""
        if self._next is not None:
            return
        control = self._control
        while (view := control.view) % 2:
            if control.agreed(self.rank) != view:
                control.agree(self.rank, view)
                self._sender.say("agreed", view)
            self._look_for_the_end()
            control.wait_view(view)
        self._next = (view, control.members)  # this view, though it may be over by now: then all agree to that, too

    def _take_next_view(self) -> None:
        if self._next is not None:
            self._view, self._members = self._next
            self._next = None

    def look(self) -> None:
        """Raise what ends an exchange that cannot be finished: a member is gone, or the run is over."""
        self._look_for_the_end()
        if self._control.view != self._view:
            self._leave_view()
            raise Again

    def _look_for_the_end(self) -> None:
        ending = self._control.ending
        if ending == FAILED:
            raise Over
        if ending == STOPPED:
            raise TrialStopped("the run was stopped")

    # -- steps -----------------------------------------------------------------------------------------------------

    def sums(self, params: Sequence[nn.Parameter], placement: StepOptimizer) -> Sums:
        made, memory = self.all_reduce(params)
        if memory is not None:
            placement.enable_slices(memory)
        device = params[0].device if params else torch.device("cpu")
        return TeamSums(self, made, placement, device, by_process=self._reduce == "fast")

    def all_reduce(self, params: Sequence[nn.Parameter]) -> tuple[AllReduce, SliceMemory | None]:
        """What adds their gradients; where each process adds a slice in memory of all, it may update it there."""
        layout, how = Layout(params), self.memory.all_reduce
        on_cpu = all(param.device.type == "cpu" for param in params)
        if how == "auto":
            how = "one-shot" if on_cpu and self.ranks * layout.size_bytes <= _ONE_SHOT_BYTES else "two-shot"
        if how == "back end":
            assert self._reduce == "fast", "each process brings one node"
            return BackendAllReduce(RankGroups(self, params[0].device), params, params[0].device), None
        areas = Areas(self, layout, self._bytes_asked, versions=2 if how == "one-shot" else 1)
        self._bytes_asked += areas.size_bytes
        if how == "one-shot":
            return OneShot(areas), None
        if on_cpu and how == "two-shot":
            return TwoShot(Direct(areas)), areas
        return TwoShot(Staged(areas, params[0].device)), None

    def step_ends(self) -> None:
        if not self._has_stepped:
            self._has_stepped = True
            self._sender.say("stepped")

    # -- the end, and reports --------------------------------------------------------------------------------------

    def report(self, values: Mapping[str, Any]) -> Decision:  # Any: numbers
        self._requests += 1
        return self.together(lambda: self._report(values))

    def _report(self, values: Mapping[str, Any]) -> Decision:  # Any: numbers
        decision = None
        if self.place == 0:
            decision = self.ask("report", self._requests, dict(values))
        found: Decision | BaseException = self.gather("reports", decision)[0]
        if isinstance(found, BaseException):
            raise found
        return found

    def ask(self, *message: Any) -> Any:  # Any: plain values
        """Say something to the supervisor, its number second, and wait for the answer."""
        control = self._control
        self._sender.say(*message)
        while (seen := control.answered) < message[1]:
            self.look()
            control.wait_answered(seen)
        return pickle.loads(control.get(SUPERVISOR, message[1] % 2))

    def saved(self) -> None:
        self._saves += 1
        self._control.set_saves(self.rank, self._saves)

    def set_writing(self, is_writing: bool) -> None:
        self._control.set_writing(self.rank, is_writing)

    def done(self) -> bool:
        """The training function has returned here. Whether this process is the one whose result counts."""
        self.together(lambda: self.gather("has returned", None))
        self._take_next_view()
        return self.place == 0

    def wait_for_end(self) -> None:
        """Block until the result of another is there: raises Over. Returns when this one has become the first.

        All have returned by now, so no more is exchanged: some may know of a change that others have not yet seen.
        """
        control = self._control
        with self._idle():
            while self.place != 0:
                if control.ending:
                    raise Over
                if control.view != self._view:
                    self._leave_view()
                    self._take_next_view()
                else:
                    control.wait_view(self._view)

    @contextmanager
    def _idle(self) -> Iterator[None]:
        """It is others that have something to do in this block. What it raises ends the process."""
        self._control.set_idle(self.rank, True)
        yield
        self._control.set_idle(self.rank, False)


def pack(content: Any) -> bytes:  # Any: anything that can be pickled
    """For a box."""
    return pickle.dumps(content, protocol=5)
