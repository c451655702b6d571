"""The team of processes that share a process group of torch.distributed. The loss of one ends the run of all.

launchers   joined(world, ...)   an error of one process is raised by all
ranks of a supervisor   opened(world, ...)   errors are the supervisor's to collect
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, Protocol, TypeVar

import torch
from torch import nn

from ...base.errors import TrialStopped, WorkerLostError
from ...links.codec import pack_error, unpack_error
from ...pool.contract import Decision
from ...pool.reporting import report
from ..config import Plan
from ..optim.step_optimizer import StepOptimizer
from ..process_settings import comparable_settings
from ..validation.fingerprints import first_difference
from .all_reduce import AllReduce, TwoShot
from .exact import GroupTransport
from .fast import FastAllReduce
from .neighbors import Neighbors, process_info
from .sums import TeamSums
from .team import Attempt, Sums, divergence
from .torch_group import TorchBackend, TorchGroup, World

T = TypeVar("T")

# Time for which a process waits for the others to hear of its error before it raises it.
_TELL_S = 10.0

_FAILS = "has failed"
_RETURNS = "has returned"
_LEAVES = "leaves the run"


class Monitor(Protocol):
    """The interface of a supervisor to a process. The methods return at once, except `report`."""

    def report(self, number: int, values: Mapping[str, Any]) -> None:  # Any: numbers
        """Make a report for all processes. Blocks until it is decided. Raises TrialStopped if the run is to stop."""

    def exchange(self, number: int) -> None:
        """This process comes to an exchange."""

    def step_ends(self) -> None: ...
    def saved(self) -> None: ...
    def set_writing(self, is_writing: bool) -> None: ...
    def checkpoint_written(self, path: str) -> None: ...


class NoMonitor:
    """The `Monitor` of processes that a launcher has started: only reports go anywhere, to the job of the process."""

    def report(self, number: int, values: Mapping[str, Any]) -> None:  # Any: numbers
        report(**values)

    def exchange(self, number: int) -> None: ...
    def step_ends(self) -> None: ...
    def saved(self) -> None: ...
    def set_writing(self, is_writing: bool) -> None: ...
    def checkpoint_written(self, path: str) -> None: ...


class TorchTeam:
    """See the module. `device`: of this process. `reduce`: "exact" or "fast"."""

    def __init__(
        self,
        group: TorchGroup,
        device: torch.device,
        reduce: str,
        step_timeout_s: float | None = None,
        monitor: Monitor | None = None,
    ) -> None:
        self.device = device
        self.place, self.size = group.place, group.size
        self.members = tuple(range(group.size))
        self.num_reports = 0
        self._group = group
        self._reduce = reduce
        self._step_timeout_s = step_timeout_s
        self._monitor: Monitor = NoMonitor() if monitor is None else monitor
        self._end: BaseException | None = None
        self.saved = self._monitor.saved
        self.set_writing = self._monitor.set_writing
        self.checkpoint_written = self._monitor.checkpoint_written

    @property
    def is_broken(self) -> bool:
        """An exchange has failed."""
        return self._group.is_broken

    def together(self, body: Callable[[], T]) -> T:
        return body()

    def attempt(self) -> AbstractContextManager[Attempt]:
        return nullcontext(Attempt())

    def gather(self, operation: str, content: Any) -> list[Any]:  # Any: anything that can be pickled
        if self._end is not None:
            raise self._end
        contents = self._group.gather((operation, content))
        for place, (peer_operation, packed) in enumerate(contents):
            if peer_operation == _FAILS:
                self._end = unpack_error(packed)
                self._end.add_note(f"raised in process {place} of {self.size}")
                raise self._end
        self._end = divergence(
            self.place, range(self.size), operation, [peer_operation for peer_operation, _ in contents]
        )
        if self._end is not None:  # all processes raise this, so nobody needs to be told
            raise self._end
        return [content for _, content in contents]

    def sums(self, params: Sequence[nn.Parameter], step_optimizer: StepOptimizer) -> Sums:
        return TeamSums(self, self.all_reduce(params), step_optimizer, self.device, by_process=self._reduce == "fast")

    def all_reduce(self, params: Sequence[nn.Parameter]) -> AllReduce:
        if self._reduce == "fast":
            return FastAllReduce(self._group, params, self.device)
        return TwoShot(GroupTransport(self._group, params, self.device))

    def step_ends(self) -> None:
        self._group.has_stepped = True
        self._monitor.step_ends()

    def report(self, values: Mapping[str, Any]) -> Decision:  # Any: numbers
        """The process at place 0 reports. All get its decision, or raise its error."""
        self.num_reports += 1
        outcome: Decision | bytes = "CONTINUE"
        if self.place == 0:
            try:
                self._monitor.report(self.num_reports, values)
            except TrialStopped:
                outcome = "STOP"
            except Exception as error:
                outcome = pack_error(error)
        decision: Decision | bytes = self.gather("reports", outcome)[0]
        if isinstance(decision, bytes):
            raise unpack_error(decision)
        return decision

    # -- beginning and end -----------------------------------------------------------------------------------------

    def agree_on(self, plan: Plan, fixed: frozenset[str]) -> None:
        """Use the seed of place 0 if none was given. `fixed`: names of arguments that the user gave.

        Raises:
            ValueError: the processes were given different arguments or settings of torch.
        """
        arguments = {name: getattr(plan, name) for name in sorted({"shards", "threads"} | fixed)}
        arguments |= {"reduce": self._reduce, "step_timeout_s": self._step_timeout_s}
        contents = self.gather("begins a run", (arguments | comparable_settings(), plan.seed))
        different = first_difference([facts for facts, _ in contents])
        if different is not None:
            raise ValueError(
                f"the processes were given different runs: {different[0]} is {different[1]}.\n"
                f"Call fanwise.run with the same arguments in all, and make torch's settings the same before."
            )
        plan.position.seed = contents[0][1]
        self.limit_exchanges()

    def limit_exchanges(self) -> None:
        """Let exchanges that take longer than `step_timeout_s` fail, and name the late processes."""
        if self._step_timeout_s is not None:
            processes = self.gather("says where it is", process_info())
            self._group.limit_exchanges(Neighbors(self.place, processes), self._step_timeout_s)

    def finish(self) -> bool:
        """Block until the training function has returned everywhere. Return True if its result here is the run's."""
        self.gather(_RETURNS, None)
        return self.place == 0

    def send_error(self, error: BaseException, within_s: float) -> None:
        """Have the others raise this error. Blocks until they know, or for this time."""
        if self._end is None and not self._group.is_broken:
            with suppress(WorkerLostError):
                self._group.gather((_FAILS, pack_error(error)), within_s)

    def leave(self, within_s: float) -> None:
        """Block until the others, who know of an error, have written their checkpoints, or for this time."""
        if not self._group.is_broken:
            with suppress(WorkerLostError):
                self._group.gather((_LEAVES, None), within_s)


@contextmanager
def opened(
    world: World,
    device: torch.device,
    *,
    reduce: str,
    backend: TorchBackend | None = None,
    step_timeout_s: float | None = None,
    monitor: Monitor | None = None,
) -> Iterator[TorchTeam]:
    """A team for one run, whose connections are closed at the end of the block.

    Raises:
        WorkerLostError: not all processes came.
    """
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        group = TorchGroup(world, device, backend)
        try:
            if monitor is not None:
                group.on_exchange(monitor.exchange)
            yield TorchTeam(group, device, reduce, step_timeout_s, monitor)
        finally:
            group.close()


@contextmanager
def joined(
    world: World,
    device: torch.device,
    *,
    reduce: str,
    step_timeout_s: float | None = None,
    tell_s: float = _TELL_S,
) -> Iterator[TorchTeam]:
    """The same for processes without a supervisor, which all raise the error of one.

    A launcher ends all processes as soon as one has failed, so they wait for each other before they raise it.

    Args:
        step_timeout_s: limit of an exchange once the processes have agreed on a plan.
        tell_s: how long to wait for the others to hear of an error, and again for their checkpoints.
    """
    with opened(world, device, reduce=reduce, step_timeout_s=step_timeout_s) as team:
        try:
            yield team
            team.finish()
        except GeneratorExit:
            raise
        except BaseException as error:  # also sys.exit and ctrl-c
            team.send_error(error, tell_s)
            team.leave(tell_s)
            raise
