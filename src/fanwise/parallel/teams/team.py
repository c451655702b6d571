"""The processes of a run, as a step sees them: what they exchange, and which share of the work is this one's.

`Team` is all that steps, means and reports know of other processes. `Alone` is the team of one process. Everything
that concerns all goes through `together`: it is done by all, in the same order, or by none; when a member is lost in
the middle, those that are left do it again, with its share of the work.
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
    """At something that all do together. `is_void`: a process was lost in it, so it is to be made again."""

    is_void: bool = False


class Stateful(Protocol):
    """What a checkpoint holds the state of."""

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
        """Of this process among those that take part, from 0."""
        ...

    @property
    def size(self) -> int:
        """How many processes take part."""
        ...

    def together(self, body: Callable[[], T]) -> T:
        """What `body` returns, which all processes call; again when one of them was lost meanwhile."""
        ...

    def attempt(self) -> AbstractContextManager[Attempt]:
        """As `together`, where what is done is a block and no function. Who enters it enters it again while it is void.

        A loss in the block leaves the block, with everything that it has done undone by itself, and raises nothing.
        """
        ...

    def gather(self, what: str, content: Any) -> list[Any]:  # Any: anything that can be pickled
        """What all processes gave, by place. Blocks until all have. Only inside `together`.

        Args:
            what: this process does, as "measures"; all must do the same.
        """
        ...

    def sums(self, params: Sequence[nn.Parameter], placement: StepOptimizer) -> Sums:
        """For one step, of these parameters, whose optimizer the processes may then have by slices."""
        ...

    def step_ends(self) -> None:
        """A step is done, the update included. From the first one on it is known what a step takes."""
        ...

    def report(self, values: Mapping[str, Any]) -> Decision:  # Any: numbers
        """Report once for all; the decision. Blocks until it is there. May raise TrialStopped by itself."""
        ...

    def saved(self) -> None:
        """This process has come to a checkpoint in its program; what it writes of it itself is under way."""
        ...

    def set_writing(self, is_writing: bool) -> None:
        """Whether this process writes checkpoints now. Called from any thread."""
        ...


class Alone:
    """The team of a process that trains by itself.

    Attributes:
        turns: how much it has done of what several would do together. has_stepped: its first step is done.
        is_idle: it waits for a decision.
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

    def gather(self, what: str, content: Any) -> list[Any]:  # Any: as given
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


class OwnSums:
    """The sums of a single process."""

    def __init__(self) -> None:
        self._grads: list[Tensor | None] = []

    def reduce(self, operation: str, nodes: Sequence[Node[Partial]], shards: int, *, mean: bool) -> Partial:
        result = total(nodes, shards, add)
        check_done(result)
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
    """A buffer that was to be the same after every shard is not. `place`: of the buffer."""

    def __init__(self, place: int) -> None:
        super().__init__(f"buffer {place} is not the same after every shard of the batch")
        self.place = place


def different_ways(own: int, ranks: Sequence[int], what: str, each: Sequence[str]) -> RuntimeError | None:
    """The error of processes that do not all do the same, seen by the one of rank `own`; None: they do."""
    for rank, its in zip(ranks, each, strict=True):
        if its != what:
            return RuntimeError(
                f"the processes of the run do different things: rank {own} {what}, rank {rank} {its}.\n"
                f"The training function must take the same way in every process; run.rank may decide only what is "
                f"printed or written."
            )
    return None


def check_done(done: Partial) -> None:
    """Raise ValueError if the count is 0, and NotSame for a buffer that differs between shards.

    A count on an accelerator is not checked, because that would wait for the device.
    """
    if not isinstance(done.count, Tensor) and not done.count > 0:
        raise ValueError(
            f"the counts returned by loss_fn sum to {done.count:g} for this batch of {done.samples} samples, so its "
            f"mean loss is undefined"
        )
    for place, changed in done.buffers.items():
        if changed.rule == "same" and not (changed.is_same and changed.samples == done.samples):
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
