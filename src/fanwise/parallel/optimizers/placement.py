"""Who updates what of an optimizer: decided here, and written down here, for every step of a run.

    whole    each process all of it, by the optimizer itself
    slices   each process its slice, with the state in memory that all share               sharded.py

An optimizer has one state, so steps that share it and cannot share its slices take it whole. It becomes whole, in all
processes in the same step, when somebody looks into it, or wants all gradients at once; see sharded.py.
"""

from collections.abc import Callable, Sequence
from operator import is_
from typing import Any, Literal

from torch import Tensor, nn
from torch.optim import Optimizer

from ..comm.flat_layout import Bucket
from .elementwise import is_elementwise
from .sharded import ShardedOptimizer, SliceMemory

# Where a process has the state of its slices, and whether they end; None: it has none.
Said = tuple[int | None, bool] | None


class Placement:
    """Of the optimizer of a step.

    Args:
        in_parts: it may be updated by slices.
    """

    def __init__(self, params: Sequence[nn.Parameter], optimizer: Optimizer, *, in_parts: bool) -> None:
        self.params = list(params)
        self._optimizer = optimizer
        self._in_parts = in_parts
        self._sharded: ShardedOptimizer | None = None

    @property
    def optimizer(self) -> Optimizer:
        return self._optimizer

    @property
    def how(self) -> Literal["whole", "slices"]:
        return "whole" if self._sharded is None else "slices"

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # Any: what the optimizer takes
        """Update all of it here, by the gradients that the parameters have, or that `closure` makes."""
        self._optimizer.step(closure)

    # -- slices ----------------------------------------------------------------------------------------------------

    def share(self, memory: SliceMemory) -> None:
        """All processes see this memory, and each can update its slice there: from now on they do, if it may be."""
        if self._in_parts and is_elementwise(self._optimizer, self.params):
            self._sharded = ShardedOptimizer(self._optimizer, memory, self.params)

    def make_whole(self) -> None:
        """Another step needs the optimizer. All say so between the same steps."""
        if self._sharded is not None:
            self._sharded.end()
            self._sharded = None

    def said(self) -> Said:
        """What the others are to know before they update."""
        return None if self._sharded is None else (self._sharded.version, self._sharded.ends)

    def heard(self, said: Sequence[Said], *, is_sparse: bool) -> None:
        """What all have said. When one of them cannot go on by slices, or a gradient is sparse, then none does."""
        if is_sparse or any(each is None or each[1] for each in said):
            self.make_whole()
        elif self._sharded is not None:
            self._sharded.begin([each[0] for each in said if each is not None])

    def update(self, reached: Sequence[bool], buckets: Sequence[Bucket], grad_of: Callable[[Bucket], Tensor]) -> None:
        """Our slice, by these gradients. Nothing has happened yet: the others may not come so far."""
        assert self._sharded is not None, "it is updated by slices"
        self._sharded.update(buckets, reached, grad_of)

    def commit(self, reached: Sequence[bool]) -> None:
        """All have updated their slices: these are the parameters now."""
        assert self._sharded is not None, "it is updated by slices"
        self._sharded.commit(reached)


class Placements:
    """Of all optimizers of a run."""

    def __init__(self) -> None:
        self._by_optimizer: dict[int, list[Placement]] = {}

    def __contains__(self, optimizer: Optimizer) -> bool:
        """Whether a step updates it."""
        return id(optimizer) in self._by_optimizer

    def of(self, params: Sequence[nn.Parameter], optimizer: Optimizer, *, in_parts: bool) -> Placement:
        """For a new step; that of an earlier one, if both can have the same slices.

        Args:
            in_parts: not with clipping, windows of several batches, a scaled loss, or a loop of the program's own: all
                need whole gradients.
        """
        earlier = self._by_optimizer.setdefault(id(optimizer), [])
        for placement in earlier:
            is_same = len(placement.params) == len(params) and all(map(is_, placement.params, params))
            if in_parts and placement.how == "slices" and is_same:
                return placement
        for placement in earlier:
            placement.make_whole()
        made = Placement(params, optimizer, in_parts=in_parts and not earlier)
        earlier.append(made)
        return made
