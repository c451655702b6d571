"""The optimizer of a step, which every process updates as a whole, or each process by slices (sharded.py)."""

from collections.abc import Sequence

from torch import nn
from torch.optim import Optimizer

from ..comm.shm_areas import Areas
from .sharded import ShardedOptimizer, can_be_divided


class StepOptimizer:
    """The optimizer of a step. `allow_slices`: False if the step needs whole gradients."""

    def __init__(self, params: Sequence[nn.Parameter], optimizer: Optimizer, *, allow_slices: bool) -> None:
        self.params = list(params)
        self.optimizer = optimizer
        self.sharded: ShardedOptimizer | None = None
        self._allow_slices = allow_slices

    def enable_slices(self, memory: Areas) -> None:
        """Update by slices from now on, in this shared memory, if the optimizer can be divided."""
        if self._allow_slices and can_be_divided(self.optimizer, self.params):
            self.sharded = ShardedOptimizer(self.optimizer, memory, self.params)

    def unshard(self) -> None:
        """Update the whole optimizer from now on. All processes call it between the same steps."""
        self._allow_slices = False
        if self.sharded is not None:
            self.sharded.end()
            self.sharded = None

    @property
    def can_update_slices(self) -> bool:
        """True if this process can update by slices. All processes exchange this before an update."""
        return self.sharded is not None and not self.sharded.must_end


class StepOptimizers:
    """The optimizers of all steps of a run."""

    def __init__(self) -> None:
        self._by_optimizer: dict[int, list[StepOptimizer]] = {}

    def __contains__(self, optimizer: Optimizer) -> bool:
        return id(optimizer) in self._by_optimizer

    def add(self, params: Sequence[nn.Parameter], optimizer: Optimizer, *, allow_slices: bool) -> StepOptimizer:
        """Return the optimizer for a new step. If several steps have one optimizer, all update it as a whole.

        `allow_slices` is False for clipping, a scaled loss, or a loop of the program over the shards.
        """
        step_optimizers = self._by_optimizer.setdefault(id(optimizer), [])
        for earlier in step_optimizers:
            earlier.unshard()
        new = StepOptimizer(params, optimizer, allow_slices=allow_slices and not step_optimizers)
        step_optimizers.append(new)
        return new
