"""The team of processes that share a process group of torch.distributed. The loss of one process ends the run of all.

open_team    for ranks of a supervisor, which collects the errors of all ranks
join_team    for processes of a launcher: if one process fails, all raise its error
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from typing import Any, TypeVar

import torch
from torch import nn

from ...base.errors import WorkerLostError
from ...links.codec import pack_error, unpack_error
from ..config import Plan
from ..optim.sharded import StepOptimizer
from ..process_settings import comparable_settings
from ..validation.fingerprints import first_difference
from .all_reduce import AllReduce, ExactAllReduce
from .group_reduce import FastAllReduce, GroupTransport
from .sums import TeamSums
from .team import Attempt, Sums, check_same_operation
from .torch_group import TorchBackend, TorchGroup, World

T = TypeVar("T")

# Time in which the other processes must receive an error.
_LEAVING_S = 10.0

_FAILS = "has failed"
_RETURNS = "has returned"


class TorchTeam:
    """See the module. `reduce`: "exact" or "fast"."""

    def __init__(
        self,
        group: TorchGroup,
        device: torch.device,
        reduce: str,
        step_timeout_s: float | None = None,
        on_first_step: Callable[[], None] | None = None,
    ) -> None:
        self.device = device
        self.index, self.size = group.index, group.size
        self.members = tuple(range(group.size))
        self._group = group
        self._reduce = reduce
        self._step_timeout_s = step_timeout_s
        self._on_first_step = on_first_step
        self._error: BaseException | None = None  # all processes raise this error

    def together(self, body: Callable[[], T]) -> T:
        return body()

    def attempt(self) -> AbstractContextManager[Attempt]:
        return nullcontext(Attempt())

    def gather(self, operation: str, content: Any) -> list[Any]:
        if self._error is not None:
            raise self._error
        contents = self._group.gather((operation, content))
        for index, (peer_operation, packed) in enumerate(contents):
            if peer_operation == _FAILS:
                self._error = unpack_error(packed)
                self._error.add_note(f"raised in process {index} of {self.size}")
                raise self._error
        try:
            check_same_operation(
                self.index, self.members, operation, [peer_operation for peer_operation, _ in contents]
            )
        except RuntimeError as error:
            self._error = error
            raise
        return [content for _, content in contents]

    def sums(self, params: Sequence[nn.Parameter], step_optimizer: StepOptimizer) -> Sums:
        is_fast = self._reduce == "fast"
        return TeamSums(self, self.all_reduce(params), step_optimizer, self.device, is_fast=is_fast)

    def all_reduce(self, params: Sequence[nn.Parameter]) -> AllReduce:
        if self._reduce == "fast":
            return FastAllReduce(self._group, params, self.device)
        return ExactAllReduce(GroupTransport(self._group, params, self.device))

    def step_ends(self) -> None:
        if not self._group.has_stepped:
            self._group.has_stepped = True
            if self._on_first_step is not None:
                self._on_first_step()

    def agree_on(self, plan: Plan, explicit_settings: frozenset[str]) -> None:
        """Check that all processes have the same plan and settings of torch. Use the seed of process 0.

        The seed must be the same everywhere only if `explicit_settings` includes it.
        """
        arguments = {name: getattr(plan, name) for name in sorted({"shards", "threads"} | explicit_settings)}
        arguments |= {"reduce": self._reduce, "step_timeout_s": self._step_timeout_s}
        contents = self.gather("begins a run", (arguments | comparable_settings(), plan.seed))
        different = first_difference([facts for facts, _ in contents])
        if different is not None:
            raise ValueError(
                f"the processes were given different runs: {different[0]} is {different[1]}.\n"
                f"Call fanwise.run with the same arguments, and with the same settings of torch, in all processes."
            )
        plan.position.seed = contents[0][1]
        self.limit_operations()

    def limit_operations(self) -> None:
        """Make later exchanges fail that take longer than `step_timeout_s`."""
        if self._step_timeout_s is not None:
            self._group.limit_operations(self._step_timeout_s)

    def finish(self) -> bool:
        """Block until the training function has returned in all processes. Return True in process 0."""
        self.gather(_RETURNS, None)
        return self.index == 0

    def send_error(self, error: BaseException, within_s: float) -> None:
        """Make the other processes raise this error. Blocks until they have received it, for `within_s` at most."""
        if self._error is None and not self._group.is_broken:
            with suppress(WorkerLostError):
                self._group.gather((_FAILS, pack_error(error)), within_s)


@contextmanager
def open_team(
    world: World,
    device: torch.device,
    *,
    reduce: str,
    backend: TorchBackend | None = None,
    step_timeout_s: float | None = None,
    on_operation: Callable[[int], None] | None = None,
    on_first_step: Callable[[], None] | None = None,
) -> Iterator[TorchTeam]:
    """Connect the processes of a run, and close the connections at the end of the block.

    `step_timeout_s` applies after `limit_operations`. `on_operation`: see `TorchGroup`.
    """
    with torch.cuda.device(device) if device.type == "cuda" else nullcontext():
        group = TorchGroup(world, device, backend, on_operation)
        try:
            yield TorchTeam(group, device, reduce, step_timeout_s, on_first_step)
        finally:
            group.close()


@contextmanager
def join_team(
    world: World,
    device: torch.device,
    *,
    reduce: str,
    step_timeout_s: float | None = None,
    leaving_s: float = _LEAVING_S,
) -> Iterator[TorchTeam]:
    """Connect processes that a launcher has started. If the block raises in one process, it raises in all.

    A launcher ends all processes as soon as one has failed. So the process that has failed waits until all others have
    received its error, for at most `leaving_s`, before it raises.
    """
    with open_team(world, device, reduce=reduce, step_timeout_s=step_timeout_s) as team:
        try:
            yield team
            team.finish()
        except GeneratorExit:
            raise
        except BaseException as error:  # also SystemExit and KeyboardInterrupt
            team.send_error(error, leaving_s)
            raise
