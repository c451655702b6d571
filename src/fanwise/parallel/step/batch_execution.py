"""The part that `step(batch)` and `step.shards(batch)` have in common. All processes execute a batch, or none.

    prepare(batch)         checks the step; cuts the batch into shards
    transaction()          restores buffers and gradients if the block raises
      the shards           executed by a replica, or by a loop of the program
      reduce(nodes)        adds over all processes; each process then has its slice of the sum
      gather(total)        gives every process the whole gradients
    record(), finish()     count the batch and report its loss

The remaining processes repeat everything from `transaction` to `gather` when one is lost. They then execute its shards
as well.
"""

import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from torch import Generator, Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer

from ...base.errors import WorkerLostError
from ...tensor.random.keys import Key
from ..comm.team import NotSame, Sums, Team
from ..config import Plan
from ..data.batch import Batch, as_batch, discard_contents
from ..optim.sharded import StepOptimizer
from ..progress import ProgressLine
from ..rng import isolated_generators
from ..validation.arguments import check_equal_shard_sizes, check_optimizer, is_compiled_per_shape
from ..validation.consistency import Verifier
from ..validation.misuse import library_update
from .gradients import Partial, divided
from .loss_scale import LossScale, are_finite, unscale
from .replicas import Execute, Replica, ShardWork
from .tree import Node, assign


class ShardLoopGuard:
    """Rejects calls in the body of a loop over `step.shards(batch)`, which runs once per shard of a process.

    A collective operation would block there, because processes with other numbers of shards do not join it.
    """

    def __init__(self) -> None:
        self.is_open = False  # a loop is in progress

    def check(self, function: str) -> None:
        if self.is_open:
            raise ValueError(
                f"{function} was called in the body of a loop over step.shards(batch). The body runs once per shard of "
                f"this process, so the processes would not call it equally often.\n"
                f"  wrong:  for x, y in step.shards(batch): step.backward(...); step.update()\n"
                f"  right:  for x, y in step.shards(batch): step.backward(...)\n"
                f"          step.update()                                       # after the loop"
            )


class BatchExecution:
    """Executes the batches of one step. `number`: index of the step in its run."""

    def __init__(
        self,
        plan: Plan,
        replica: Replica,
        optimizers: Sequence[Optimizer],
        team: Team,
        sums: Sums,
        *,
        number: int,
        progress_line: ProgressLine,
        verifier: Verifier,
        guard: ShardLoopGuard,
        loss_scale: LossScale | None = None,
    ) -> None:
        self.batches = self.executions = 0
        self.replica = replica
        self.team = team
        self.sums = sums
        self.number = number
        self.verifier = verifier
        self.loss_scale = loss_scale
        self.guard = guard
        self.plan = plan
        self._optimizers = optimizers
        self._optimized = self._optimized_params()
        self._progress_line = progress_line
        self._is_first_batch = True
        self._is_reduced = False  # the gradients of the current attempt have been added over all processes
        self._is_compiled_per_shape = any(map(is_compiled_per_shape, replica.modules.values()))

    def prepare(self, content: Any) -> Batch:
        """Check the step and return the batch, cut into shards. Raises errors as documented at `Step.__call__`."""
        self.guard.check("a step of the run")
        self._check_optimizers()
        batch = as_batch(content, self.plan.shards, self.replica.device)
        if self._is_compiled_per_shape:
            check_equal_shard_sizes(batch.sizes)
        if self.verifier.is_due(self.batches):
            self.verifier.check_batch(self.batches, content, batch)
        return batch

    def _optimized_params(self) -> list[Tensor]:
        return [
            param for optimizer in self._optimizers for group in optimizer.param_groups for param in group["params"]
        ]

    def _check_optimizers(self) -> None:
        """Raise ValueError if an optimizer got parameters that the model did not have at run.step."""
        params = self._optimized_params()
        if len(params) == len(self._optimized) and all(map(operator.is_, params, self._optimized)):
            return
        for optimizer in self._optimizers:
            check_optimizer(optimizer, self.replica.params, allow_closure=True)
        self._optimized = params

    def take_repeat_check(self) -> bool:
        """Return True if this process executes a shard of this batch twice as a check. Called once per batch."""
        is_first_batch, self._is_first_batch = self._is_first_batch, False
        return self.verifier.is_repeat_due(self.batches, is_first_batch=is_first_batch)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Execute shards in this block. If the block raises, buffers and gradients are as they were before."""
        buffers = self.replica.buffers
        self.replica.clear_grads()
        buffers.save()
        self._is_reduced = False
        try:
            yield
        except BaseException as error:
            buffers.restore()
            self.replica.clear_grads()
            with suppress(RuntimeError, WorkerLostError):  # of a broken group, where `error` is the cause
                self.sums.release(is_aborted=not self._is_reduced)
            if isinstance(error, NotSame):
                raise ValueError(buffers.explain_difference(error.index)) from None
            raise

    @contextmanager
    def shard_context(self, *, generators: Sequence[Generator] | None = None) -> Iterator[None]:
        """Restore random generators, and gradients of modules that this step does not train, after the block."""
        if generators is None:
            generators = self.replica.generators
        other_grads = [(param, param.grad) for param in self.replica.other_params]
        for param, _ in other_grads:
            param.grad = None
        try:
            with isolated_generators(generators):
                yield
        finally:
            for param, grad in other_grads:
                param.grad = grad

    def shard_work(self, batch: Batch) -> list[ShardWork]:
        """Return the shards of this process, including those without samples."""
        # Other processes need the buffers of this shard, even if it is the only one with samples.
        is_only = self.team.size == 1 and sum(size > 0 for size in batch.sizes) == 1
        return [self.work(batch, index, is_only=is_only) for index in self.own_shards(batch)]

    def work(self, batch: Batch, index: int, *, is_only: bool = False) -> ShardWork:
        return ShardWork(index, batch.shard, batch.sizes[index], is_only, self.loss_factor(batch))

    def own_shards(self, batch: Batch) -> range:
        return assign(len(batch.sizes), self.team.size)[self.team.index]

    def loss_factor(self, batch: Batch) -> float:
        """Return the factor of the summed losses before the backward pass."""
        return 1.0 if self.loss_scale is None else self.loss_scale.factor(len(batch))

    @property
    def key(self) -> Key:
        """The random key of this batch, from which its shards derive theirs."""
        return self.plan.key("step").fold_in(self.number).fold_in(self.batches)

    def reduce(self, nodes: Sequence[Node[Partial]], batch: Batch, *, mean: bool) -> Partial:
        """Add the shards of all processes and store the combined buffers. Call this inside `transaction`.

        The result has no gradients yet. Call `gather` or `update_slices` next. `mean`: divide them by the count.
        """
        operation = f"makes step {self.number} of batch {self.batches}"
        total = self.sums.reduce(operation, nodes, len(batch.sizes), mean=mean)
        self._is_reduced = True
        self.replica.buffers.commit(total.buffers, total.samples)
        return total

    def gather(self, total: Partial, *, mean: bool) -> None:
        """Put the whole gradients into `total`. They are valid until the next `reduce`. Blocks until all call it."""
        total.grads = self.sums.gather_grads()
        for index, sparse_grad in total.sparse.items():
            dense, grad = total.grads[index], divided(sparse_grad, total.count) if mean else sparse_grad
            total.grads[index] = grad if dense is None else dense + grad

    def update_slices(self) -> None:
        """Update this process's slice of the parameters, then fetch the other slices. Call this instead of `gather`."""
        with library_update():
            self.sums.update_slices()

    def record(self, batch: Batch, total: Partial) -> None:
        """Count the batch, and divide the gradients by the factor of the losses."""
        if self.loss_scale is not None:
            unscale(total.grads, self.loss_factor(batch))
        self.batches += 1
        self.executions += total.executed

    def finish(self, batch: Batch, total: Partial) -> Tensor:
        """Release the gradients and return the mean loss of the batch."""
        self.sums.release()
        self.plan.position.mark_used()
        loss = divided(total.loss, total.count)
        self._progress_line.record_step(self.number, len(batch), loss)
        return loss

    def state_dict(self) -> dict[str, Any]:
        counts = {"batches": self.batches, "executions": self.executions}
        return counts if self.loss_scale is None else counts | {"loss_scale": self.loss_scale.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.batches, self.executions = state["batches"], state["executions"]
        if self.loss_scale is not None and "loss_scale" in state:
            self.loss_scale.load_state_dict(state["loss_scale"])


class TrainStages:
    """The stages of a step: forward and backward, reduction, clipping, update."""

    def __init__(
        self, execution: BatchExecution, step_optimizer: StepOptimizer, execute: Execute, *, clip_norm: float | None
    ) -> None:
        self.execution = execution
        self.updates = 0
        self.clip_norm = clip_norm
        self.grad_norm: Tensor | None = None  # of the last update, before clipping
        self._replica = execution.replica
        self._step_optimizer = step_optimizer
        self._execute = execute

    def train(self, batch: Batch) -> Partial:
        """Execute all stages for a batch. Return the sums over all shards. Repeat them if a process is lost."""
        execution = self.execution
        while True:
            with execution.team.attempt() as attempt, execution.transaction():
                nodes = self._forward_backward(batch)
                total = execution.reduce(nodes, batch, mean=True)
                is_sliced = self._step_optimizer.sharded is not None
                if is_sliced:
                    execution.update_slices()
                else:
                    execution.gather(total, mean=True)
            if not attempt.is_void:
                break
            discard_contents(batch)
        execution.record(batch, total)
        scale = execution.loss_scale
        if is_sliced:
            self.updates += 1
        elif scale is None or scale.adjust(are_finite(total.grads)):
            self.clip_and_step(total.grads)
            self.updates += 1
        return total

    def _forward_backward(self, batch: Batch) -> list[Node[Partial]]:
        execution = self.execution
        with execution.shard_context():
            return self._execute(execution.shard_work(batch), execution.key, len(batch.sizes))

    def clip_and_step(self, grads: Sequence[Tensor | None]) -> None:
        for param, grad in zip(self._replica.params, grads, strict=True):
            param.grad = grad
        try:
            if self.clip_norm is not None:
                present = [param.grad for param in self._replica.params if param.grad is not None]
                self.grad_norm = get_total_norm(present)
                if self.clip_norm < math.inf:
                    clip_grads_with_norm_(self._replica.params, self.clip_norm, self.grad_norm)
            with library_update():
                self._step_optimizer.optimizer.step()
        finally:
            self._replica.clear_grads()
