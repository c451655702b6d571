"""One batch, executed by all processes or by none: what `step(batch)` and `step.shards(batch)` have in common.

    opened(batch)          nothing has happened that a step would not see; cut into shards
    begun()                what shards change is remembered, and put back when the block raises
      shards                 executed by devices, or by a loop of the program
      total(nodes)           gradients added over all processes; buffers become those of the batch
    executed(), closed()   counted, and shown

All from `begun` to `total` is done again when a process was lost meanwhile, with the shards that are then this one's.
"""

import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor
from torch.optim import Optimizer

from ...tensor.random.keys import Key
from ..comm.team import NotSame, Sums, Team
from ..config import Plan
from ..data.batch import Batch, as_batch
from ..progress import ProgressLine
from ..replica.gradients import Partial
from ..replica.replicas import Replica, ShardWork
from ..rng import kept_streams
from ..shards import Node, assign
from ..validation.arguments import check_compiled, check_optimizer, is_compiled_by_shape
from ..validation.consistency import Verifier
from ..validation.misuse import library_update
from .loss_scale import LossScale, take_off
from .open_loop import OpenLoop


class Execution:
    """Of the batches of one step.

    Attributes:
        batches: that it has seen. executions: shards executed, in all processes.
    """

    def __init__(
        self,
        plan: Plan,
        replica: Replica,
        optimizers: Sequence[Optimizer],
        team: Team,
        sums: Sums,
        *,
        number: int,
        line: ProgressLine,
        verifier: Verifier,
        loop: OpenLoop,
        loss_scale: LossScale | None = None,
    ) -> None:
        self.batches = self.executions = 0
        self.replica = replica
        self.team = team
        self.sums = sums
        self.number = number
        self.verifier = verifier
        self.loss_scale = loss_scale
        self.loop = loop
        self._plan = plan
        self._optimizers = optimizers
        self._optimized = self._optimized_params()
        self._line = line
        self._is_first = True  # no batch was executed here
        self._is_compiled_by_shape = any(map(is_compiled_by_shape, replica.modules.values()))

    # -- before ----------------------------------------------------------------------------------------------------

    def opened(self, batch: Any) -> Batch:  # Any: a Batch, or a tree of tensors
        """The batch, cut.

        Raises:
            ValueError: in the body of a loop; model or optimizer have got other parameters; no samples, or parts of
                different lengths.
            TypeError: a part of the batch cannot be cut into samples.
        """
        self.loop.check("a step of the run")
        self._check_optimizers()
        made = as_batch(batch, self._plan.shards, self.replica.device)
        if self._is_compiled_by_shape:
            check_compiled(made.sizes)
        if self.verifier.is_due(self.batches):
            self.verifier.check_batch(self.batches, batch, made)
        return made

    def _optimized_params(self) -> list[Tensor]:
        return [
            param for optimizer in self._optimizers for group in optimizer.param_groups for param in group["params"]
        ]

    def _check_optimizers(self) -> None:
        """Raise ValueError if an optimizer got parameters that the step does not exchange."""
        now = self._optimized_params()
        if len(now) == len(self._optimized) and all(map(operator.is_, now, self._optimized)):
            return
        for optimizer in self._optimizers:
            check_optimizer(optimizer, self.replica.params, has_closure=True)
        self._optimized = now

    def repeats(self) -> bool:
        """Return whether a shard of this batch is executed twice as a check. Called once per batch."""
        is_first, self._is_first = self._is_first, False
        return self.verifier.repeats(self.batches, is_first=is_first)

    # -- the shards ------------------------------------------------------------------------------------------------

    @contextmanager
    def begun(self) -> Iterator[None]:
        """Shards are executed in this block. When it raises, all is as before it.

        Raises:
            ValueError: a buffer is not the same after every shard.
        """
        buffers = self.replica.buffers
        self.replica.forget_grads()
        buffers.keep()
        self.replica.is_checked = self.verifier.is_due(self.batches)
        try:
            yield
        except BaseException as error:
            buffers.put_back()
            self.replica.forget_grads()
            if isinstance(error, NotSame):
                raise ValueError(buffers.why_not_same(error.place)) from None
            raise

    @contextmanager
    def passing(self) -> Iterator[None]:
        """Shards are executed in this block.

        Random streams, and the gradients of modules that this step does not train, are restored after it.
        """
        others = [(param, param.grad) for param in self.replica.others]
        for param, _ in others:
            param.grad = None
        try:
            with kept_streams(self.replica.generators):
                yield
        finally:
            for param, grad in others:
                param.grad = grad

    def work(self, batch: Batch) -> list[ShardWork]:
        """The shards that are this process's, those without samples too."""
        # Where there are other processes, they need what its buffers become.
        alone = self.team.size == 1 and sum(size > 0 for size in batch.sizes) == 1
        factor = self._factor(batch)
        return [ShardWork(index, batch.shard, batch.sizes[index], alone, factor) for index in self.own(batch)]

    def own(self, batch: Batch) -> range:
        """The shards of this process."""
        return assign(len(batch.sizes), self.team.size)[self.team.place]

    def by_itself(self, batch: Batch, index: int) -> ShardWork:
        """A shard after which buffers are as before it, whatever it is executed for."""
        return ShardWork(index, batch.shard, batch.sizes[index], False, self._factor(batch))

    def _factor(self, batch: Batch) -> float:
        return 1.0 if self.loss_scale is None else self.loss_scale.factor(len(batch))

    @property
    def shards(self) -> int:
        """Of each batch."""
        return self._plan.shards

    @property
    def key(self) -> Key:
        """Of this batch: what its shards draw comes from it."""
        return self._plan.key("step").fold_in(self.number).fold_in(self.batches)

    def total(self, nodes: Sequence[Node[Partial]], batch: Batch, *, mean: bool) -> Partial:
        """What all shards of all processes bring. Inside `begun`. `mean`: the gradients are divided by the count."""
        what = f"makes step {self.number} of batch {self.batches}"
        with library_update():
            done = self.sums.total(what, nodes, len(batch.sizes), mean=mean)
        self.replica.buffers.settle(done.buffers, done.samples)
        for place, grad in done.sparse.items():
            own, mine = done.grads[place], grad / done.count if mean else grad
            done.grads[place] = mine if own is None else own + mine
        return done

    # -- after -----------------------------------------------------------------------------------------------------

    def executed(self, batch: Batch, done: Partial) -> None:
        """By all. The gradients are now without the factor that the losses were multiplied by."""
        if self.loss_scale is not None:
            take_off(done.grads, self._factor(batch))
        self.batches += 1
        self.executions += done.executed

    def closed(self, batch: Batch, done: Partial) -> Tensor:
        """The gradients are needed no more. The mean loss of the batch."""
        self.sums.settle()
        self._plan.position.mark_used()
        loss = done.loss / done.count
        self._line.record_step(self.number, len(batch), loss)
        return loss

    def state_dict(self) -> dict[str, Any]:  # Any: numbers
        """Its counts, and the scale of the loss."""
        counts = {"batches": self.batches, "executions": self.executions}
        return counts if self.loss_scale is None else counts | {"loss_scale": self.loss_scale.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # Any: numbers
        """Go on from what `state_dict` gave."""
        self.batches, self.executions = state["batches"], state["executions"]
        if self.loss_scale is not None and "loss_scale" in state:
            self.loss_scale.load_state_dict(state["loss_scale"])
