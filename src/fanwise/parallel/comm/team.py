"""`Team`: the interface through which steps, means and reports see the other processes of a run.

Every exchange is part of a function that is passed to `together`. All processes complete it, or none does. If a process
is lost in it, and the team survives that, the others repeat it and take over the share of the lost one.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import torch
from torch import Tensor, nn

from ...pool.contract import Decision
from ...pool.reporting import report
from ..optim.step_optimizer import StepOptimizer
from ..replica.gradients import Partial, add, divided
from ..shards import Node, total

T = TypeVar("T")


@dataclass(slots=True)
class Attempt:
    """One attempt of a block. `is_void`: a process was lost during it, so it must be repeated."""

    is_void: bool = False


class Stateful(Protocol):
    """An object whose state is part of a checkpoint."""

    def state_dict(self) -> Any: ...  # Any: of its own making

    def load_state_dict(self, state_dict: Any, /) -> Any: ...  # Any: as state_dict gives


class Sums(Protocol):
    """Adds the shards of one step over all processes. Call it only inside `together` or `attempt`."""

    def reduce(self, operation: str, nodes: Sequence[Node[Partial]], shards: int, *, mean: bool) -> Partial:
        """Add the nodes of all processes. Blocks until this process has its slice of the gradients.

        Then call `gather` for the whole gradients, or `update_slices`.

        Args:
            operation: of this process, as "makes step 0 of batch 17"; it must be the same in all processes.
            nodes: of the shards that this process executed. They are used up.
            mean: divide the gradients by the count.

        Returns:
            The sums over all shards, without gradients.

        Raises:
            ValueError: the counts of the losses sum to 0.
        """
        ...

    def gather(self) -> list[Tensor | None]:
        """Return the whole sum of the gradients. Blocks until every process has it.

        With `mean` they may lie in memory that all processes read: they are valid until the next `reduce`, and what is
        written into them stays in this process.
        """
        ...

    def update_slices(self) -> None:
        """Update the slice of the parameters that this process owns, instead of `gather`. Blocks until all have."""
        ...

    def settle(self) -> None:
        """Release the gradients of the last `reduce`."""
        ...


class Team(Protocol):
    """See the module."""

    @property
    def place(self) -> int:
        """The position of this process among those that take part, from 0."""
        ...

    @property
    def size(self) -> int:
        """The number of processes that take part."""
        ...

    def together(self, body: Callable[[], T]) -> T:
        """Call `body` in all processes, again if one of them was lost during it, and return its result."""
        ...

    def attempt(self) -> AbstractContextManager[Attempt]:
        """Run a block as one attempt. The caller runs it again while the attempt is void.

        A loss leaves the block without an exception. The block must undo its changes in that case.
        """
        ...

    def gather(self, operation: str, content: Any) -> list[Any]:  # Any: anything that can be pickled
        """Return the contents of all processes, by place. Blocks until all have given theirs. Only inside `together`.

        Args:
            operation: as "measures". It must be the same in all processes.
        """
        ...

    def sums(self, params: Sequence[nn.Parameter], placement: StepOptimizer) -> Sums:
        """Return the sums of one step with these parameters. Its optimizer may then be divided among the processes."""
        ...

    def step_ends(self) -> None:
        """Note that a step has ended. The first one may take longer than those after it."""
        ...

    def report(self, values: Mapping[str, Any]) -> Decision:  # Any: numbers
        """Report once for all processes and return the decision. Blocks until it is made. May raise TrialStopped."""
        ...

    def saved(self) -> None:
        """Note that this process has called `run.save`, whether it writes the file itself or not."""
        ...

    def set_writing(self, is_writing: bool) -> None:
        """Note whether this process is writing checkpoints. Called from any thread."""
        ...

    def checkpoint_written(self, path: str) -> None:
        """Note that the checkpoint is on the disk. Called from any thread."""
        ...


class Alone:
    """The team of a single process.

    Attributes:
        turns: number of completed blocks. has_stepped: the first step has ended. is_idle: waiting for a decision.
    """

    place, size = 0, 1

    def __init__(self) -> None:
        self.turns = 0
        self.has_stepped = self.is_idle = False

    def together(self, body: Callable[[], T]) -> T:
        result = body()
        self.turns += 1
        return result

    @contextmanager
    def attempt(self) -> Iterator[Attempt]:
        yield Attempt()
        self.turns += 1

    def gather(self, operation: str, content: Any) -> list[Any]:  # Any: as given
        return [content]

    def sums(self, params: Sequence[nn.Parameter], placement: StepOptimizer) -> Sums:
        return OwnSums()

    def step_ends(self) -> None:
        self.has_stepped = True

    def report(self, values: Mapping[str, Any]) -> Decision:  # Any: numbers
        self.is_idle = True
        try:
            report(**values)
        finally:
            self.is_idle = False
            self.turns += 1
        return "CONTINUE"

    def saved(self) -> None:
        pass

    def set_writing(self, is_writing: bool) -> None:
        pass

    def checkpoint_written(self, path: str) -> None:
        pass


class OwnSums:
    """The sums of a single process."""

    def __init__(self) -> None:
        self._grads: list[Tensor | None] = []

    def reduce(self, operation: str, nodes: Sequence[Node[Partial]], shards: int, *, mean: bool) -> Partial:
        result = total(nodes, shards, add)
        check_total(result)
        if mean:
            divide(result.grads, result.count)
        self._grads = result.grads
        return result

    def gather(self) -> list[Tensor | None]:
        return self._grads

    def update_slices(self) -> None:
        raise AssertionError("a single process owns all slices")

    def settle(self) -> None:
        self._grads = []


class NotSame(ValueError):
    """A buffer that must be equal after every shard is not. `place`: its index."""

    def __init__(self, place: int) -> None:
        super().__init__(f"buffer {place} is not the same after every shard of the batch")
        self.place = place


def divergence(own: int, ranks: Sequence[int], operation: str, operations: Sequence[str]) -> RuntimeError | None:
    """Return the error for rank `own` if the operations of the ranks differ from its own."""
    for rank, peer_operation in zip(ranks, operations, strict=True):
        if peer_operation != operation:
            return RuntimeError(
                f"the processes of the run do different things: rank {own} {operation}, rank {rank} {peer_operation}.\n"
                f"The training function must take the same way in every process; run.rank may decide only what is "
                f"printed or written."
            )
    return None


def check_total(result: Partial) -> None:
    """Raise ValueError if the count is 0, and NotSame for a buffer that differs between shards.

    A count on an accelerator is not checked, because that would wait for the device.
    """
    if not isinstance(result.count, Tensor) and not result.count > 0:
        raise ValueError(
            f"the counts returned by loss_fn sum to {result.count:g} for this batch of {result.samples} samples, so "
            f"its mean loss is undefined"
        )
    for place, changed in result.buffers.items():
        if changed.rule == "same" and not (changed.is_same and changed.samples == result.samples):
            raise NotSame(place)


def divide(grads: Sequence[Tensor | None], count: float | Tensor) -> None:
    """Divide each gradient by `count`, in place. A tensor gives the bits of the number that it holds."""
    present = [grad for grad in grads if grad is not None]
    if not isinstance(count, Tensor):
        if present:
            torch._foreach_div_(present, count)
        return
    for grad in present:
        grad.copy_(divided(grad, count))
