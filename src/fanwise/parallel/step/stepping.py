"""`run.step(model, optimizer, loss_fn)`: one step of training over all shards of a global batch.

    batch -> shards -> devices execute them -> nodes -> tree -> divide by the count -> clip -> optimizer

What a shard raises leaves parameters, buffers and random streams as they were before the step. Gradients are not in
`.grad` after a step, so there is no zero_grad to call and nothing to forget.
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
from .execution import Execution


@dataclass(slots=True)
class Window:
    """Gradients of the batches since the last update."""

    grads: list[Tensor | None]
    count: float
    batches: int


class Step:
    """One step of training, made by `run.step`. Call it with a batch: of `run.batches`, or a tree of tensors.

    Attributes:
        batches: that it has seen.
        updates: how often it called the optimizer.
        executions: shards executed, in all: each shard with samples once a batch.
    """

    def __init__(
        self,
        execution: Execution,
        placement: StepOptimizer,
        devices: Sequence[Device],
        *,
        clip_norm: float | None,
        accumulate: int,
    ) -> None:
        self.updates = 0
        self._execution = execution
        self._replica = execution.replica
        self._placement = placement
        self._devices = devices
        self._clip_norm = clip_norm
        self._accumulate = accumulate
        self._window: Window | None = None
        self._grad_norm: Tensor | None = None

    @property
    def batches(self) -> int:
        return self._execution.batches

    @property
    def executions(self) -> int:
        return self._execution.executions

    @property
    def grad_norm(self) -> Tensor:
        """The 2-norm of all gradients of the last update, before they were clipped: the same bits on any device.

        Raises:
            ValueError: nobody asked for it, by `clip_norm`; or there was no update yet.
        """
        if self._clip_norm is None:
            raise ValueError(
                "step.grad_norm is measured where gradients are whole in every process, which costs something, so it "
                "is to be asked for.\n"
                "  wrong:  step = run.step(model, optimizer, loss_fn)\n"
                "  right:  step = run.step(model, optimizer, loss_fn, clip_norm=math.inf)    # measured, never clipped"
            )
        if self._grad_norm is None:
            raise ValueError("step.grad_norm is that of the last update, and there was none yet")
        return self._grad_norm

    def __call__(self, batch: Any) -> Tensor:  # Any: a Batch, or a tree of tensors
        """Forward, backward and, unless the window of `accumulate` is still open, the update.

        Returns:
            The mean loss of the whole batch, on its device, without axes and without a graph.

        Raises:
            ValueError: no samples, parts of different lengths, or losses that count nothing; the model has got layers
                or parameters since the step was made, or it has gradients.
            TypeError: a part of the batch cannot be cut into samples.
            What the model and `loss_fn` raise, with a note on the shard; the step has then changed nothing.
        """
        if any(param.grad is not None for param in self._replica.params):
            check_no_gradients(self._replica.model)
        execution = self._execution
        made = execution.opened(batch)
        if execution.repeats():
            self._check_repeats(made)
        closes = self._window is None and (self._accumulate == 1 or made.last)
        while True:
            with execution.team.attempt() as attempt:
                done = self._execute(made, mean=closes)
            if not attempt.is_void:
                break
            discard_contents(made)
        execution.executed(made, done)
        if closes and self._placement.is_sharded:
            self.updates += 1
        elif closes:
            self._update(done.grads)
        else:
            self._gather(done, made.last)
        loss = execution.closed(made, done)
        execution.team.step_ends()
        return loss

    def _execute(self, batch: Batch, *, mean: bool) -> Partial:
        with self._execution.begun():
            with self._execution.passing():
                nodes = self._nodes(batch)
            return self._execution.total(nodes, batch, mean=mean)

    def _nodes(self, batch: Batch) -> list[Node[Partial]]:
        """What the devices of this process bring: those shards that are its own."""
        key, shards, work = self._execution.key, len(batch.sizes), self._execution.work(batch)
        executed: TreeSum[Partial] = TreeSum(shards, add)
        for device, share in zip(self._devices, assign(len(work), len(self._devices)), strict=True):
            for node in device.execute(work[share.start : share.stop], key, shards):
                executed.put(node)
        return executed.nodes

    # -- shards executed twice -------------------------------------------------------------------------------------

    def _check_repeats(self, batch: Batch) -> None:
        """The first shard of this process that has samples has the same gradients twice."""
        first = next((work.index for work in self._execution.work(batch) if work.samples), None)
        if first is None:
            return
        self._replica.buffers.keep()
        try:
            work = self._execution.by_itself(batch, first)
            with noted(work, len(batch.sizes)), self._execution.passing():
                self._execution.verifier.check_repeats(work, self._execution.key, self.batches)
        finally:
            self._replica.buffers.put_back()
            self._replica.forget_grads()

    def check_end(self) -> None:
        """The training is over: with verify=, all processes have come to the same. Raises ValueError if not."""
        self._execution.verifier.check_end(self.batches)

    # -- updates ---------------------------------------------------------------------------------------------------

    def _gather(self, done: Partial, last: bool) -> None:
        """A batch of a window: the update comes with the last of its batches."""
        if self._window is None:
            self._window = Window(done.grads, done.count, 1)
        else:
            if self._replica.is_checked:
                check_apart(done.grads, [self._window.grads])
            add_grads(self._window.grads, done.grads)
            self._window.count += done.count
            self._window.batches += 1
        if self._window.batches >= self._accumulate or last:
            window, self._window = self._window, None
            divide(window.grads, window.count)
            self._update(window.grads)

    def _update(self, grads: Sequence[Tensor | None]) -> None:
        scale = self._execution.loss_scale
        if scale is not None and not scale.update(grads):
            return
        for param, grad in zip(self._replica.params, grads, strict=True):
            param.grad = grad
        try:
            if self._clip_norm is not None:
                self._clip(self._clip_norm)
            with library_update():
                self._placement.step()
        finally:
            self._replica.forget_grads()
        self.updates += 1

    def _clip(self, clip_norm: float) -> None:
        self._grad_norm = get_total_norm([param.grad for param in self._replica.params if param.grad is not None])
        if clip_norm < math.inf:
            clip_grads_with_norm_(self._replica.params, clip_norm, self._grad_norm)

    def state_dict(self) -> dict[str, Any]:  # Any: numbers and tensors
        """Its counts, and the gradients of a window that is open."""
        window = self._window
        open_window = (
            None if window is None else {"grads": window.grads, "count": window.count, "batches": window.batches}
        )
        return self._execution.state_dict() | {"updates": self.updates, "window": open_window}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # Any: numbers and tensors
        """Go on from what `state_dict` gave."""
        self._execution.load_state_dict(state)
        self.updates = state["updates"]
        self._window = None if state["window"] is None else Window(**state["window"])
        if self._window is not None:  # a checkpoint is read into main memory
            device = self._replica.device
            self._window.grads = [None if grad is None else grad.to(device) for grad in self._window.grads]
