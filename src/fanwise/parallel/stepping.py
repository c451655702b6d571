"""`run.step`: one step of training over all shards of a global batch.

    batch -> shards -> devices execute them -> nodes -> tree -> divide by the count -> clip -> optimizer

What a shard raises leaves parameters, buffers and random streams as they were before the step. Gradients are not in
`.grad` after a step, so there is no zero_grad to call and nothing to forget.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from .batches import Batch, batch_of
from .gradients import Partial, add, add_grads
from .plans import Plan
from .replicas import Device, Replica, ShardWork
from .shards import Node, assign, total


@dataclass(slots=True)
class Window:
    """Gradients of the batches since the last update."""

    grads: list[Tensor | None]
    count: float
    batches: int


class Step:
    """One step of training, made by `run.step`. Call it with a batch: of `run.batches`, or a tree of tensors.

    Attributes:
        turns: batches it has seen.
        updates: how often it called the optimizer.
        executions: shards executed, in all: each shard with samples once a batch.
    """

    def __init__(
        self,
        plan: Plan,
        replica: Replica,
        optimizer: torch.optim.Optimizer,
        devices: Sequence[Device],
        *,
        number: int,
        clip_norm: float | None,
        accumulate: int,
    ) -> None:
        self.turns = self.updates = self.executions = 0
        self._plan = plan
        self._replica = replica
        self._optimizer = optimizer
        self._devices = devices
        self._number = number
        self._clip_norm = clip_norm
        self._accumulate = accumulate
        self._window: Window | None = None

    def __call__(self, batch: Any) -> Tensor:  # Any: a Batch, or a tree of tensors
        """Forward, backward and, unless the window of `accumulate` is still open, the update.

        Returns:
            The mean loss of the whole batch, on its device, without axes and without a graph.

        Raises:
            ValueError: no samples, parts of different lengths, or losses that count nothing.
            TypeError: a part of the batch cannot be cut into samples.
            What the model and `loss_fn` raise, with a note on the shard; the step has then changed nothing.
        """
        made = batch_of(batch, self._plan.shards)
        done = self._execute(made)
        self.turns += 1
        self.executions += done.executed
        loss = done.loss / done.count
        self._gather(done)
        if self._window is not None and (self._window.batches >= self._accumulate or made.last):
            self._update(self._window)
        self._plan.progress.used()
        return loss

    def _execute(self, batch: Batch) -> Partial:
        buffers = self._replica.buffers
        self._forget_grads()
        buffers.keep()
        try:
            done = total(self._nodes(batch), len(batch.shards), add)
            if not done.count > 0:
                raise ValueError(f"the losses of this batch, {len(batch)} samples, count {done.count}: nothing to mean")
            buffers.settle(done.buffers, done.samples)
        except BaseException:
            buffers.put_back()
            self._forget_grads()
            raise
        return done

    def _nodes(self, batch: Batch) -> list[Node[Partial]]:
        alone = sum(size > 0 for size in batch.sizes) == 1
        both = zip(batch.shards, batch.sizes, strict=True)
        work = [ShardWork(index, content, size, alone) for index, (content, size) in enumerate(both)]
        key = self._plan.key("step").fold_in(self._number).fold_in(self.turns)
        shares = zip(self._devices, assign(len(work), len(self._devices)), strict=True)
        executed = [device.execute(work[share.start : share.stop], key, len(work)) for device, share in shares]
        return [node for nodes in executed for node in nodes]

    def _gather(self, done: Partial) -> None:
        if self._window is None:
            self._window = Window(done.grads, done.count, 1)
            return
        add_grads(self._window.grads, done.grads)
        self._window.count += done.count
        self._window.batches += 1

    def _update(self, window: Window) -> None:
        self._window = None
        found = [grad for grad in window.grads if grad is not None]
        if found:
            torch._foreach_div_(found, window.count)
        for param, grad in zip(self._replica.params, window.grads, strict=True):
            param.grad = grad
        if self._clip_norm is not None:
            clip_grad_norm_(self._replica.params, self._clip_norm)
        self._optimizer.step()
        self._forget_grads()
        self.updates += 1

    def _forget_grads(self) -> None:
        for param in self._replica.params:
            param.grad = None

    def state_dict(self) -> dict[str, Any]:  # Any: numbers and tensors
        """Its counts, and the gradients of a window that is open."""
        window = self._window
        open_window = (
            None if window is None else {"grads": window.grads, "count": window.count, "batches": window.batches}
        )
        return {"turns": self.turns, "updates": self.updates, "executions": self.executions, "window": open_window}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # Any: numbers and tensors
        """Go on from what `state_dict` gave."""
        self.turns, self.updates, self.executions = state["turns"], state["updates"], state["executions"]
        self._window = None if state["window"] is None else Window(**state["window"])
