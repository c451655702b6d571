"""The team of a process that a launcher has started on one of several hosts: a loss costs the step, not the run.

    entered(met(...), ...)  all meet -> agree on the plan -> train -> "has returned", or what was raised -> closed

What all do together has turns (turns.py). When a process dies, those that are left do again what was not committed,
with its share of the shards. An error is told to all at once, and raised by each at its next exchange.
"""

import logging
import pickle
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

import torch
from torch import nn

from ...base.errors import TrialStopped
from ...links.codec import pack_error, unpack_error
from ...pool.contract import Decision
from ...pool.reporting import report
from ..all_reduce.contract import AllReduce
from ..all_reduce.sums import TeamSums
from ..config import Plan, Reduce
from ..hangs.stragglers import limit_s
from ..optim.step_optimizer import StepOptimizer
from ..replica.gradients import Partial
from ..shards import Node
from ..teams.agreeing import agreed_seed
from ..teams.layout import Layout
from ..teams.team import Attempt, OwnSums, Sums, different_ways
from .by_hosts import ByHosts
from .in_boxes import InBoxes
from .main_memory import ThroughMainMemory
from .meeting import MeetingResult
from .mesh import Again, Mesh

T = TypeVar("T")

_log = logging.getLogger(__name__)

_CPU = torch.device("cpu")

Tell = Callable[[Mapping[str, Any]], None]  # Any: numbers


def _report(values: Mapping[str, Any]) -> None:  # Any: numbers
    report(**values)


class HostsTeam:
    """See the module.

    Args:
        hosts: of each rank. device: of the gradients. tell: a report, for all; as `report`.
    """

    # Up to so many bytes of gradients, of all processes together, each is told everybody's.
    in_boxes_bytes = 1 << 20

    def __init__(
        self,
        mesh: Mesh,
        hosts: Mapping[int, str],
        reduce: Reduce,
        step_timeout_s: float | None,
        tell: Tell = _report,
        *,
        device: torch.device = _CPU,
    ) -> None:
        self._mesh = mesh
        self._device = device
        self._hosts = hosts
        self._reduce = reduce
        self._step_timeout_s = step_timeout_s
        self._tell = tell
        self._is_within = self._has_stepped = False

    @property
    def place(self) -> int:
        return self._mesh.members.index(self._mesh.rank)

    @property
    def size(self) -> int:
        return len(self._mesh.members)

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
        self._mesh.enter_view()
        self._is_within = True
        try:
            yield made
        except Again:
            made.is_void = True
        finally:
            self._is_within = False

    def exchange(self, content: bytes) -> Sequence[bytes]:
        """What all have given, by place. Blocks until all have. Only inside `together`."""
        assert self._is_within, "exchanges are part of something that can be done again"
        return self._mesh.exchange(content, self._within_s())

    def _within_s(self) -> float | None:
        limit = self._step_timeout_s
        return None if limit is None else limit_s(limit, has_stepped=self._has_stepped)

    @property
    def hosts(self) -> Sequence[str]:
        """Of each process, by place."""
        return [self._hosts[rank] for rank in self._mesh.members]

    def send(self, place: int, what: str, rows: Any) -> None:  # Any: as `ByHosts` sends
        """For another process, before the next turn. Its memory may be changed afterwards."""
        self._mesh.send(self._mesh.members[place], (self._mesh.turn, what), rows)

    def receive(self, place: int, what: str) -> Any:  # Any: as sent
        """What another one has sent. Blocks."""
        return self._mesh.receive(self._mesh.members[place], (self._mesh.turn, what), self._within_s())

    def gather(self, what: str, content: Any) -> list[Any]:  # Any: anything that can be pickled
        said = [pickle.loads(each) for each in self.exchange(pickle.dumps((what, content), protocol=5))]
        error = different_ways(self._mesh.rank, self._mesh.members, what, [its for its, _ in said])
        if error is not None:  # all of them see this, so nobody needs to be told
            raise error
        return [theirs for _, theirs in said]

    # -- steps -----------------------------------------------------------------------------------------------------

    def sums(self, params: Sequence[nn.Parameter], placement: StepOptimizer) -> Sums:
        by_process = self._reduce == "fast"
        return _UntilAlone(
            self, TeamSums(self, self.all_reduce(params), placement, self._device, by_process=by_process)
        )

    def all_reduce(self, params: Sequence[nn.Parameter]) -> AllReduce:
        """What adds their gradients."""
        return self._on_device(self._in_main_memory(params), params)

    def _on_device(self, made: AllReduce, params: Sequence[nn.Parameter]) -> AllReduce:
        if self._device.type == "cpu":
            return made
        return ThroughMainMemory(made, params, self._device)

    def _in_main_memory(self, params: Sequence[nn.Parameter]) -> AllReduce:
        small = len(self._hosts) * Layout(params).size_bytes <= self.in_boxes_bytes
        return InBoxes(self, params) if small else ByHosts(self, params)

    def step_ends(self) -> None:
        self._has_stepped = True

    def report(self, values: Mapping[str, Any]) -> Decision:  # Any: numbers
        """The first process reports to its own job, if it runs one; what comes of it is the same for all."""
        told: list[Decision | bytes] = []

        def reported() -> Decision | bytes:
            if self.place == 0 and not told:
                told.append(_reported(self._tell, values))
            decided: Decision | bytes = self.gather("reports", told[0] if told else None)[0]
            return decided

        decided = self.together(reported)
        if isinstance(decided, bytes):
            raise unpack_error(decided)
        return decided

    def saved(self) -> None:
        pass

    def set_writing(self, is_writing: bool) -> None:
        pass

    # -- beginning and end -----------------------------------------------------------------------------------------

    def agree_on(self, plan: Plan, fixed: frozenset[str]) -> None:
        """Raises ValueError unless all processes were given the same. A seed that nobody gave is that of place 0."""
        own = {"reduce": self._reduce, "step_timeout_s": self._step_timeout_s}
        plan.position.seed = self.together(
            lambda: agreed_seed(plan, fixed, own, lambda facts: self.gather("begins a run", facts))
        )

    def done(self) -> None:
        """The training function has returned here, and in all others when this returns."""
        self.together(lambda: self.gather("has returned", None))


class _UntilAlone:
    """The sums of a step over all processes. The last one that is left adds its own, as one that began alone."""

    def __init__(self, team: HostsTeam, of_all: TeamSums) -> None:
        self._team = team
        self._of_all = of_all
        self._own = OwnSums()
        self.settle = of_all.settle

    def total(self, what: str, nodes: Sequence[Node[Partial]], shards: int, *, mean: bool) -> Partial:
        sums: Sums = self._own if self._team.size == 1 else self._of_all
        return sums.total(what, nodes, shards, mean=mean)


def _reported(tell: Tell, values: Mapping[str, Any]) -> Decision | bytes:  # Any: numbers
    try:
        tell(values)
    except TrialStopped:
        return "STOP"
    except Exception as error:
        return pack_error(error)
    return "CONTINUE"


@contextmanager
def entered(
    meeting: AbstractContextManager[MeetingResult],
    *,
    reduce: Reduce,
    step_timeout_s: float | None = None,
    tell: Tell = _report,
    device: torch.device = _CPU,
) -> Iterator[HostsTeam]:
    """A team for one run, which ends with the block. Raises what the meeting does, when not all come."""
    with meeting as found:
        mesh = found.mesh
        team = HostsTeam(mesh, found.hosts, reduce, step_timeout_s, tell, device=device)
        try:
            yield team
            team.done()
        except GeneratorExit:
            raise
        except BaseException as error:  # whatever ends it here, also sys.exit and ctrl-c, ends it everywhere
            if mesh.tells_failures:
                mesh.fail(pack_error(error))
            raise
