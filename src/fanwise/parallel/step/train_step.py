"""`run.step(model, optimizer, loss_fn)`: one training step over all shards of a global batch.

    batch -> shards -> forward, backward of each -> tree sum over all processes -> mean -> clip -> optimizer

If a shard raises, parameters, buffers and random streams are as before the step. Gradients do not stay in `.grad`, so
there is no `zero_grad` to call.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from ..comm.team import divide
from ..data.batch import Batch, discard_contents
from ..optim.step_optimizer import StepOptimizer
from ..replica.gradients import Partial, add, add_grads, check_apart
from ..replica.replicas import Device, noted
from ..shards import Node, TreeSum, assign
from ..validation.arguments import check_no_gradients
from ..validation.misuse import library_update
from .batch_execution import BatchExecution
from .cuda_graph import LaunchProbe, StepGraphs


@dataclass(slots=True)
class AccumulatedGradients:
    """Summed gradients of the batches since the last update."""

    grads: list[Tensor | None]
    count: float | Tensor
    batches: int


class TrainStages:
    """The stages of a step: forward and backward, reduction, clipping, update.

    Attributes:
        execution: of the batches of this step.
        updates: number of updates.
        grad_norm: the 2-norm of the gradients of the last update, if it was computed.
    """

    def __init__(
        self,
        execution: BatchExecution,
        placement: StepOptimizer,
        devices: Sequence[Device],
        *,
        clip_norm: float | None,
        accumulate: int,
    ) -> None:
        self.execution = execution
        self.updates = 0
        self.clip_norm = clip_norm
        self.grad_norm: Tensor | None = None
        self.accumulated: AccumulatedGradients | None = None
        self._replica = execution.replica
        self._placement = placement
        self._devices = devices
        self._accumulate = accumulate

    def train(self, batch: Batch) -> Partial:
        """Execute all stages for a batch. Return the sums over all shards."""
        execution = self.execution
        is_update = self.accumulated is None and (self._accumulate == 1 or batch.last)
        while True:
            with execution.team.attempt() as attempt, execution.transaction():
                nodes = self._forward_backward(batch)
                total = execution.reduce(nodes, batch, mean=is_update)
                is_sliced = is_update and self._placement.is_sharded
                if is_sliced:
                    execution.update_slices()
                else:
                    execution.gather(total, mean=is_update)
            if not attempt.is_void:
                break
            discard_contents(batch)
        execution.record(batch, total)
        if is_sliced:
            self.updates += 1
        elif is_update:
            self._update(total.grads)
        else:
            self._accumulate_grads(total, batch.last)
        return total

    def _forward_backward(self, batch: Batch) -> list[Node[Partial]]:
        """Execute the shards of this process. Return the nodes of the tree that they form."""
        execution, shards = self.execution, len(batch.sizes)
        tree: TreeSum[Partial] = TreeSum(shards, add)
        with execution.shard_context():
            work = execution.shard_work(batch)
            for device, share in zip(self._devices, assign(len(work), len(self._devices)), strict=True):
                for node in device.execute(work[share.start : share.stop], execution.key, shards):
                    tree.put(node)
        return tree.nodes

    def _accumulate_grads(self, total: Partial, last: bool) -> None:
        """Add the gradients of a batch to those before it. Update after the last of `accumulate` batches."""
        if self.accumulated is None:
            self.accumulated = AccumulatedGradients(total.grads, total.count, 1)
        else:
            if self._replica.is_checked:
                check_apart(total.grads, [self.accumulated.grads])
            add_grads(self.accumulated.grads, total.grads)
            self.accumulated.count = self.accumulated.count + total.count
            self.accumulated.batches += 1
        if self.accumulated.batches >= self._accumulate or last:
            accumulated, self.accumulated = self.accumulated, None
            divide(accumulated.grads, accumulated.count)
            self._update(accumulated.grads)

    def _update(self, grads: Sequence[Tensor | None]) -> None:
        """Clip these mean gradients and call the optimizer, unless a scaled loss has made them infinite."""
        scale = self.execution.loss_scale
        if scale is None or scale.update(grads):
            self.clip_and_step(grads)
            self.updates += 1

    def clip_and_step(self, grads: Sequence[Tensor | None]) -> None:
        """Clip these mean gradients and call the optimizer."""
        for param, grad in zip(self._replica.params, grads, strict=True):
            param.grad = grad
        try:
            if self.clip_norm is not None:
                present = [param.grad for param in self._replica.params if param.grad is not None]
                self.grad_norm = get_total_norm(present)
                if self.clip_norm < math.inf:
                    clip_grads_with_norm_(self._replica.params, self.clip_norm, self.grad_norm)
            with library_update():
                self._placement.step()
        finally:
            self._replica.forget_grads()


class Step:
    """One training step, made by `run.step`. Call it with a batch of `run.batches`, or with a tree of tensors.

    Attributes:
        batches: number of batches seen.
        updates: number of updates.
        executions: number of executed shards in all processes: one per shard with samples and batch.
    """

    def __init__(self, stages: TrainStages, graphs: StepGraphs | None = None) -> None:
        self._stages = stages
        self._execution = stages.execution
        self._replica = stages.execution.replica
        self._graphs = graphs
        self._probe = LaunchProbe(self._replica.device) if graphs is None else None

    @property
    def batches(self) -> int:
        return self._execution.batches

    @property
    def executions(self) -> int:
        return self._execution.executions

    @property
    def updates(self) -> int:
        return self._stages.updates

    @property
    def grad_norm(self) -> Tensor:
        """The 2-norm of all gradients of the last update before clipping, with the same bits on any device.

        Raises:
            ValueError: the step was made without `clip_norm`; or there was no update yet.
        """
        if self._stages.clip_norm is None:
            raise ValueError(
                "step.grad_norm is computed only on request, because every process then needs the whole gradients.\n"
                "  wrong:  step = run.step(model, optimizer, loss_fn)\n"
                "  right:  step = run.step(model, optimizer, loss_fn, clip_norm=math.inf)    # measured, never clipped"
            )
        if self._stages.grad_norm is None:
            raise ValueError("step.grad_norm is that of the last update, and there was none yet")
        return self._stages.grad_norm

    def __call__(self, batch: Any) -> Tensor:
        """Forward, backward and, unless more batches are to be accumulated, the update.

        Returns:
            The mean loss of the whole batch: a tensor on the device, without axes and without a graph. Nothing waits
            for the device.

        Raises:
            ValueError: no samples, parts of different lengths, or counts that sum to 0; the optimizer got parameters
                since the step was made, or the model has gradients.
            TypeError: a part of the batch cannot be cut into samples.
            Errors of the model and of `loss_fn`, with a note on the shard. The step has then changed nothing.
        """
        if any(param.grad is not None for param in self._replica.params):
            check_no_gradients(self._replica.model)
        execution = self._execution
        prepared = execution.prepare(batch)
        if execution.take_repeat_check():
            self._check_repeats(prepared)
        if self._graphs is not None:
            total = self._graphs.train(prepared)
        elif self._probe is not None and self._probe.is_active:
            with self._probe.measured():
                total = self._stages.train(prepared)
        else:
            total = self._stages.train(prepared)
        loss = execution.finish(prepared, total)
        execution.team.step_ends()
        return loss

    def _check_repeats(self, batch: Batch) -> None:
        """Execute the first shard of this process that has samples twice. Its gradients must be the same."""
        first = next((work.index for work in self._execution.shard_work(batch) if work.samples), None)
        if first is None:
            return
        self._replica.buffers.keep()
        try:
            work = self._execution.isolated_work(batch, first)
            with noted(work, len(batch.sizes)), self._execution.shard_context():
                self._execution.verifier.check_repeats(work, self._execution.key, self.batches)
        finally:
            self._replica.buffers.put_back()
            self._replica.forget_grads()

    def check_end(self) -> None:
        """After the training, with `verify=`: raise ValueError if the processes differ."""
        self._execution.verifier.check_end(self.batches)

    def state_dict(self) -> dict[str, Any]:
        """The counts, and accumulated gradients."""
        accumulated = self._stages.accumulated
        window = (
            None
            if accumulated is None
            else {"grads": accumulated.grads, "count": accumulated.count, "batches": accumulated.batches}
        )
        return self._execution.state_dict() | {"updates": self.updates, "window": window}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore what `state_dict` returned."""
        self._execution.load_state_dict(state)
        self._stages.updates = state["updates"]
        accumulated = None if state["window"] is None else AccumulatedGradients(**state["window"])
        if accumulated is not None:  # a checkpoint is read into main memory
            device = self._replica.device
            accumulated.grads = [None if grad is None else grad.to(device) for grad in accumulated.grads]
        self._stages.accumulated = accumulated
