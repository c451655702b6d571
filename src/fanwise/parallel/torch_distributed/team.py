"""The team of a process that somebody else has started: all take the same way, and nothing is done again.

    entered(launched, ...)  groups -> agree on the plan -> train -> "has returned", or what was raised -> groups closed

A death is the launcher's matter. An error is told: a process whose training function raises takes part in one more
exchange, in which the others learn of it, and raise the same error in its original type. Then all wait for each other
once more, for what each still writes: a launcher ends all as soon as one has failed.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, TypeVar

import torch
from torch import nn

from ...base.errors import TrialStopped, WorkerLostError
from ...links.codec import pack_error, unpack_error
from ...pool.contract import Decision
from ...pool.reporting import report
from ..all_reduce.contract import AllReduce
from ..all_reduce.sums import TeamSums
from ..all_reduce.two_shot import TwoShot
from ..config import Plan
from ..optim.step_optimizer import StepOptimizer
from ..teams.agreeing import agreed_seed
from ..teams.team import Attempt, Sums, different_ways
from . import neighbours
from .backend import BackendAllReduce
from .groups import Groups
from .launcher import Launched
from .messages import Messages

T = TypeVar("T")

# How long a process whose function has raised waits for the others to hear it, before it raises the error itself.
_TELL_S = 10.0

_FAILS = "has failed"
_RETURNS = "has returned"
_LEAVES = "leaves the run"


class TorchDistributedTeam:
    """See the module. `device`: of this process. `reduce`: "exact" or "fast"."""

    def __init__(self, groups: Groups, device: torch.device, reduce: str, step_timeout_s: float | None = None) -> None:
        self.device = device
        self.place, self.size = groups.place, groups.size
        self._groups = groups
        self._reduce = reduce
        self._step_timeout_s = step_timeout_s
        self._end: BaseException | None = None

    def together(self, body: Callable[[], T]) -> T:
        return body()

    def attempt(self) -> AbstractContextManager[Attempt]:
        return nullcontext(Attempt())

    def gather(self, what: str, content: Any) -> list[Any]:  # Any: anything that can be pickled
        if self._end is not None:
            raise self._end
        said = self._groups.gather((what, content))
        failed = [(place, theirs) for place, (its, theirs) in enumerate(said) if its == _FAILS]
        for place, packed in failed:
            self._end = unpack_error(packed)
            self._end.add_note(f"raised in process {place} of {self.size}")
            raise self._end
        self._end = different_ways(self.place, range(self.size), what, [its for its, _ in said])
        if self._end is not None:  # all of them see this, so nobody needs to be told
            raise self._end
        return [theirs for _, theirs in said]

    def sums(self, params: Sequence[nn.Parameter], placement: StepOptimizer) -> Sums:
        return TeamSums(self, self.all_reduce(params), placement, self.device, by_process=self._reduce == "fast")

    def all_reduce(self, params: Sequence[nn.Parameter]) -> AllReduce:
        """What adds their gradients."""
        if self._reduce == "fast":
            return BackendAllReduce(self._groups, params, self.device)
        return TwoShot(Messages(self._groups, params, self.device))

    def step_ends(self) -> None:
        self._groups.has_stepped = True

    def report(self, values: Mapping[str, Any]) -> Decision:  # Any: numbers
        """The process at place 0 reports to its own job, if it runs one; what comes of it is the same for all."""
        outcome: Decision | bytes = "CONTINUE"
        if self.place == 0:
            try:
                report(**values)
            except TrialStopped:
                outcome = "STOP"
            except Exception as error:
                outcome = pack_error(error)
        decided: Decision | bytes = self.gather("reports", outcome)[0]
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
        plan.position.seed = agreed_seed(plan, fixed, own, lambda facts: self.gather("begins a run", facts))
        if self._step_timeout_s is not None:
            processes = self.gather("says where it is", neighbours.process_info())
            self._groups.watch(neighbours.Neighbours(self.place, processes), self._step_timeout_s)

    def done(self) -> None:
        """The training function has returned here, and in all others when this returns."""
        self.gather(_RETURNS, None)

    def tell(self, error: BaseException, within_s: float) -> None:
        """The training function has raised this here. Blocks until the others know, or for this time."""
        if self._end is None and not self._groups.is_broken:
            with suppress(WorkerLostError):
                self._groups.gather((_FAILS, pack_error(error)), within_s)

    def leave(self, within_s: float) -> None:
        """All know of an error. Blocks until they have nothing more to write, or for this time."""
        if not self._groups.is_broken:
            with suppress(WorkerLostError):
                self._groups.gather((_LEAVES, None), within_s)


@contextmanager
def entered(
    launched: Launched,
    device: torch.device,
    *,
    reduce: str,
    step_timeout_s: float | None = None,
    tell_s: float = _TELL_S,
) -> Iterator[TorchDistributedTeam]:
    """A team for one run, which ends with the block.

    Args:
        step_timeout_s: how long an exchange waits for the others, once they have agreed on a plan.
        tell_s: how long an error waits here for the others to hear of it, and again for what they still write.

    Raises:
        WorkerLostError: not all processes came.
    """
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        groups = Groups(launched, device)
        team = TorchDistributedTeam(groups, device, reduce, step_timeout_s)
        try:
            yield team
            team.done()
        except GeneratorExit:
            raise
        except BaseException as error:  # whatever ends it here, also sys.exit and ctrl-c, ends it everywhere
            team.tell(error, tell_s)
            team.leave(tell_s)
            raise
        finally:
            groups.close()
