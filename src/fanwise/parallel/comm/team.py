"""`Team`: the interface through which steps, means and reports communicate with the other processes of a run.

Every collective operation happens inside a function that is passed to `together`. Either all processes complete the
function, or none does. If a process is lost meanwhile, and the team survives that, the others repeat the function and
take over the shards of the lost process.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from ...base.errors import TrialStopped
from ...links.codec import pack_error, unpack_error
from ...pool.reporting import report
from ..optim.sharded import StepOptimizer
from ..step.gradients import Partial, add, divided
from ..step.tree import Node, tree_reduce

T = TypeVar("T")


@dataclass(slots=True)
class Attempt:
    """One attempt of a block. `is_void`: a process was lost during the attempt, so the block must be repeated."""

    is_void: bool = False


class Stateful(Protocol):
    """An object whose state is part of a checkpoint."""

    def state_dict(self) -> Any: ...
    def load_state_dict(self, state_dict: Any, /) -> Any: ...


class Sums(Protocol):
    """Adds the shards of one step over all processes. All methods but `release` are called inside `together`."""

    @property
    def overlap(self) -> Callable[[], AbstractContextManager[None]] | None:
        """A block in which the last backward pass of a step begins to add gradients. None: not supported."""

    def reduce(self, operation: str, nodes: Sequence[Node[Partial]], shards: int, *, mean: bool) -> Partial:
        """Add the nodes of all processes. Blocks until this process has its slice of the summed gradients.

        Return the sums over all shards, without gradients. Call `gather_grads` or `update_slices` afterwards.

        Args:
            operation: as of `Team.gather`, such as "makes step 0 of batch 17".
            nodes: nodes of the shards that this process has executed. They are changed.
            mean: divide the gradients by the count of the losses.
        """

    def gather_grads(self) -> list[Tensor | None]:
        """Return the sums of the gradients. Blocks until all processes call it.

        If `mean` was True, the gradients may lie in memory that all processes read. They are valid until the next
        `reduce`, and changes that this process makes to them are not seen by the others.
        """

    def update_slices(self) -> None:
        """Update this process's slice of the parameters, instead of `gather_grads`. Blocks until all processes have."""

    def release(self, *, is_aborted: bool = False) -> None:
        """Drop references to gradients. Called after each step. `is_aborted`: the step has raised before its sum."""


class Team(Protocol):
    @property
    def index(self) -> int:
        """Index of this process among the members. It decreases when an earlier member is lost."""

    @property
    def size(self) -> int: ...

    def together(self, body: Callable[[], T]) -> T:
        """Call `body` in all processes and return its result. Calls it again if a process was lost meanwhile."""

    def attempt(self) -> AbstractContextManager[Attempt]:
        """Run a block like `together`, except that the caller repeats it while the attempt is void.

        A loss leaves the block without an exception. The caller must then undo the changes of the block.
        """

    def gather(self, operation: str, content: Any) -> list[Any]:
        """Return the contents of all members, by index. Blocks until all members call it. Only inside `together`.

        `operation` is a verb for error messages, such as "gathers". It must be the same in all processes.
        """

    def sums(self, params: Sequence[nn.Parameter], step_optimizer: StepOptimizer) -> Sums:
        """Return the sums of a step with these parameters. May divide its optimizer among the processes."""

    def step_ends(self) -> None:
        """Tell the supervisor that a step has ended. The first step has a longer time limit."""


@dataclass(frozen=True, slots=True)
class Monitor:
    """Functions with which a process tells its supervisor what happens. The defaults are for runs without one.

    Attributes:
        report: makes the report of this number, from 1. Returns after the decision. Raises TrialStopped.
        checkpoint_written: called with the path or URL of a checkpoint that is written.
    """

    report: Callable[[int, Mapping[str, Any]], object] = lambda number, values: report(**values)
    checkpoint_written: Callable[[str], object] = lambda path: None


def report_together(team: Team, monitor: Monitor, number: int, values: Mapping[str, Any]) -> None:
    """Report once for all processes. Blocks until the decision. All raise the error of the report, or TrialStopped."""
    if team.size == 1:
        monitor.report(number, values)
        return

    def body() -> bytes | None:
        error: bytes | None = b""
        if team.index == 0:
            try:
                monitor.report(number, values)
            except TrialStopped:
                error = None
            except Exception as exception:
                error = pack_error(exception)
        first: bytes | None = team.gather("reports", error)[0]
        return first

    error = team.together(body)
    if error is None:
        raise TrialStopped("the tuner stopped this trial")
    if error:
        raise unpack_error(error)


class Alone:
    """The team of a single process."""

    index, size = 0, 1

    def together(self, body: Callable[[], T]) -> T:
        return body()

    @contextmanager
    def attempt(self) -> Iterator[Attempt]:
        yield Attempt()

    def gather(self, operation: str, content: Any) -> list[Any]:
        return [content]

    def sums(self, params: Sequence[nn.Parameter], step_optimizer: StepOptimizer) -> Sums:
        return LocalSums()

    def step_ends(self) -> None: ...


class LocalSums:
    """The `Sums` of a single process."""

    overlap = None

    def __init__(self) -> None:
        self._grads: list[Tensor | None] = []

    def reduce(self, operation: str, nodes: Sequence[Node[Partial]], shards: int, *, mean: bool) -> Partial:
        result = tree_reduce(nodes, shards, add)
        check_total(result)
        if mean:
            divide(result.grads, result.count)
        self._grads = result.grads
        return result

    def gather_grads(self) -> list[Tensor | None]:
        return self._grads

    def update_slices(self) -> None:
        raise AssertionError("the optimizer of a single process is not divided")

    def release(self, *, is_aborted: bool = False) -> None:
        self._grads = []


class NotSame(ValueError):
    """A buffer that must be equal after every shard is not. `index`: index of the buffer."""

    def __init__(self, index: int) -> None:
        super().__init__(f"buffer {index} is not the same after every shard of the batch")
        self.index = index


def check_same_operation(own_rank: int, ranks: Sequence[int], operation: str, operations: Sequence[str]) -> None:
    """Raise RuntimeError if an operation differs from `operation`, which is that of `own_rank`."""
    for rank, peer_operation in zip(ranks, operations, strict=True):
        if peer_operation != operation:
            raise RuntimeError(
                f"the processes of the run do different things: rank {own_rank} {operation}, rank {rank} "
                f"{peer_operation}.\nThe training function must make the same calls of `run` in every process. Use "
                f"run.rank only to decide what is printed, and call run.save in every process."
            )


def check_total(result: Partial) -> None:
    """Raise ValueError if the count is 0, and NotSame if a buffer differs between shards.

    A count on a GPU is not checked, because that would wait for the GPU.
    """
    if not isinstance(result.count, Tensor) and not result.count > 0:
        raise ValueError(
            f"the counts returned by loss_fn sum to {result.count:g} for this batch of {result.samples} samples, so "
            f"its mean loss is undefined"
        )
    for index, update in result.buffers.items():
        if update.rule == "same" and not (update.is_same and update.samples == result.samples):
            raise NotSame(index)


def divide(grads: Sequence[Tensor | None], count: float | Tensor) -> None:
    """Divide each gradient by `count`, in place. A tensor gives the same bits as the number that it holds."""
    present = [grad for grad in grads if grad is not None]
    if not isinstance(count, Tensor):
        if present:
            torch._foreach_div_(present, count)
        return
    for grad in present:
        grad.copy_(divided(grad, count))
