"""`run.step(model, optimizer, loss_fn)`: one training step over all shards of a global batch.

    batch -> shards -> forward, backward of each -> tree sum over all processes -> mean -> clip -> optimizer

If a shard raises, parameters, buffers and random generators are as they were before the step. Gradients do not stay in
`.grad`, so there is no `zero_grad` to call.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from ..data.batch import Batch
from ..validation.arguments import check_no_gradients
from .batch_execution import TrainStages
from .cuda_graph import StepGraphs
from .replicas import add_shard_note


class Step:
    """One training step, created by `run.step`. Call it with a batch of `run.batches`, or with a tree of tensors.

    `executions` is the number of executed shards in all processes. Shards without samples are not executed.
    """

    def __init__(self, stages: TrainStages, trainer: TrainStages | StepGraphs) -> None:
        self._stages = stages
        self._execution = stages.execution
        self._replica = stages.execution.replica
        self._trainer = trainer

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
        """The 2-norm of all gradients of the last update before clipping."""
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
        """Execute forward, backward and the update.

        Blocks until all processes have exchanged their gradients. A single process does not wait for a GPU.

        Returns:
            The mean loss of the whole batch: a tensor on the device, without axes and without a graph.

        Raises:
            ValueError: the batch has no samples, parts of different lengths, or counts that sum to 0; the optimizer got
                parameters since the step was created; or the model has gradients.
            TypeError: a part of the batch cannot be cut into samples.
            Errors of the model and of `loss_fn`, with a note on the shard. The step has then changed nothing.
        """
        if any(param.grad is not None for param in self._replica.params):
            check_no_gradients(self._replica.model)
        execution = self._execution
        prepared = execution.prepare(batch)
        if execution.take_repeat_check():
            self._check_repeats(prepared)
        total = self._trainer.train(prepared)
        loss = execution.finish(prepared, total)
        execution.team.step_ends()
        return loss

    def _check_repeats(self, batch: Batch) -> None:
        """Execute the first shard of this process that has samples twice. Both gradients must be the same."""
        first = next((index for index in self._execution.own_shards(batch) if batch.sizes[index]), None)
        if first is None:
            return
        self._replica.buffers.save()
        try:
            work = self._execution.work(batch, first)
            with add_shard_note(work, len(batch.sizes)), self._execution.shard_context():
                self._execution.verifier.check_repeats(work, self._execution.key, self.batches)
        finally:
            self._replica.buffers.restore()
            self._replica.clear_grads()

    def check_end(self) -> None:
        """Raise ValueError if `verify=` is set and the processes differ. Called after the training."""
        self._execution.verifier.check_end(self.batches)

    def state_dict(self) -> dict[str, Any]:
        return self._execution.state_dict() | {"updates": self.updates}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._execution.load_state_dict(state)
        self._stages.updates = state["updates"]
