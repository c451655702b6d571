"""`run.step`: one step of training over all shards of a global batch.

    batch -> shards -> devices execute them -> nodes -> tree -> divide by the count -> clip -> optimizer

What a shard raises leaves parameters, buffers and random streams as they were before the step. Gradients are not in
`.grad` after a step, so there is no zero_grad to call and nothing to forget.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import clip_grad_norm_

from ...tensor.random.keys import Key
from ..checks.checking import check_compiled, check_no_gradients
from ..checks.habits import passing, updating
from ..checks.parts import Parts
from ..checks.traces import Traces
from ..checks.verifying import Verifier
from ..data.batches import Batch, batch_of
from ..optimizers.blocked import BlockedStep, pays
from ..plans import Plan
from ..progress.line import ProgressLine
from ..replica.gradients import Partial, add, add_grads, check_apart
from ..replica.replicas import Device, Replica, ShardWork, noted
from ..shards import Node, TreeSum, assign
from ..teams.team import NotSame, StateHere, Sums, Team, divide
from .loss_scale import LossScale, take_off


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
        team: Team,
        sums: Sums,
        state_here: StateHere,
        *,
        number: int,
        clip_norm: float | None,
        accumulate: int,
        line: ProgressLine,
        loss_scale: LossScale | None = None,
        verifier: Verifier,
    ) -> None:
        self.turns = self.updates = self.executions = 0
        self._plan = plan
        self._replica = replica
        self._optimizer = optimizer
        self._devices = devices
        self._team = team
        self._state_here = state_here
        self._sums = sums
        self._in_blocks = BlockedStep(optimizer) if pays(optimizer, replica.params) else None
        self._loss_scale = loss_scale
        self._number = number
        self._clip_norm = clip_norm
        self._accumulate = accumulate
        self._line = line
        self._verifier = verifier
        self._looked_after = frozenset(map(id, (*replica.params, *replica.others)))
        self._parts = Parts(replica.modules, optimizer)
        self._window: Window | None = None
        self._has_looked = False  # for what the loss leaves behind

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
        self._check_unchanged()
        self._team.step_begins(self._state_here)
        made = batch_of(batch, self._plan.shards, self._replica.device)
        factor = 1.0 if self._loss_scale is None else self._loss_scale.factor(len(made))
        if self._replica.compiled.by_shape:
            check_compiled(made.sizes)
        if self._verifier.is_due(self.turns):
            self._verifier.check(self.turns, batch, made)
        traces = self._traces()
        if self._verifier.repeats(self.turns):
            self._check_repeats(made, factor)
            if traces is not None:
                traces.put_back()
        closes = self._window is None and (self._accumulate == 1 or made.last)
        done = self._team.together(lambda: self._execute(made, factor, mean=closes))
        if traces is not None and self._team.place == 0 and traces.are_left():
            self._check_traces(made, factor, traces)
        if self._loss_scale is not None:
            take_off(done.grads, factor)
        self.turns += 1
        self.executions += done.executed
        if closes and self._sums.updates:
            self.updates += 1
        elif closes:
            self._update(done.grads)
        else:
            self._gather(done, made.last)
        self._sums.settle()
        self._plan.progress.used()
        loss = done.loss / done.count
        self._line.stepped(self._number, len(made), loss)
        self._team.step_ends()
        return loss

    def _check_unchanged(self) -> None:
        """The program has done nothing since the last step that this one would not see.

        Raises:
            ValueError: model or optimizer have got other parameters, or a gradient is there already.
        """
        self._parts.check(self._number)
        if any(param.grad is not None for param in self._replica.params):
            check_no_gradients(self._replica.model)

    def _traces(self) -> Traces | None:
        """What the loss may leave behind, before the first step and those that are compared; None: nobody looks."""
        looks = not self._has_looked or self._verifier.repeats(self.turns)
        self._has_looked = True
        return self._verifier.traces() if looks and self._verifier.can_repeat else None

    def _execute(self, batch: Batch, factor: float, *, mean: bool) -> Partial:
        buffers, attributes = self._replica.buffers, self._replica.attributes
        what = f"makes step {self._number} of batch {self.turns}"
        self._forget_grads()
        buffers.keep()
        self._replica.looks = self._looks()
        attributes.keep(looks=self._replica.looks)
        try:
            with passing(self._looked_after):
                nodes = self._nodes(batch, factor)
            with updating():
                done = self._sums.total(what, nodes, len(batch.sizes), mean=mean)
            buffers.settle(done.buffers, done.samples)
            attributes.settle(done.attributes)
        except BaseException as error:
            buffers.put_back()
            attributes.put_back()
            self._forget_grads()
            if isinstance(error, NotSame):
                raise ValueError(buffers.why_not_same(error.place)) from None
            raise
        for place, grad in done.sparse.items():
            own, mine = done.grads[place], grad / done.count if mean else grad
            done.grads[place] = mine if own is None else own + mine
        return done

    def _looks(self) -> bool:
        """Whether what a shard may have changed is looked for everywhere: first often, then rarely."""
        turn = self.turns
        return turn & (turn - 1) == 0 or self._verifier.is_due(turn)

    def _nodes(self, batch: Batch, factor: float) -> list[Node[Partial]]:
        """What the devices of this process bring: those shards that are its own."""
        # Where there are other processes, they need what its buffers become.
        alone = self._team.size == 1 and sum(size > 0 for size in batch.sizes) == 1
        key, shards = self._key(), len(batch.sizes)
        own = assign(shards, self._team.size)[self._team.place]
        executed: TreeSum[Partial] = TreeSum(shards, add)
        for device, share in zip(self._devices, assign(len(own), len(self._devices)), strict=True):
            mine = own[share.start : share.stop]
            work = [ShardWork(index, batch.shard, batch.sizes[index], alone, factor) for index in mine]
            for node in device.execute(work, key, shards):
                executed.put(node)
        return executed.nodes

    def _key(self) -> Key:
        """Of this batch: what its shards draw comes from it."""
        return self._plan.key("step").fold_in(self._number).fold_in(self.turns)

    def _check_repeats(self, batch: Batch, factor: float) -> None:
        """The first shard of this process that has samples has the same gradients twice."""
        own = assign(len(batch.sizes), self._team.size)[self._team.place]
        first = next((index for index in own if batch.sizes[index]), None)
        if first is not None:
            self._check_twice(batch, first, factor)

    def _check_twice(self, batch: Batch, index: int, factor: float, between: Callable[[], None] | None = None) -> None:
        buffers, attributes = self._replica.buffers, self._replica.attributes
        buffers.keep()
        attributes.keep(looks=True)
        try:
            work = ShardWork(index, batch.shard, batch.sizes[index], False, factor)
            with noted(work, len(batch.sizes)), passing(self._looked_after):
                self._verifier.check_repeats(work, self._key(), self.turns, between)
        finally:
            buffers.put_back()
            attributes.put_back()
            self._forget_grads()

    def _check_traces(self, batch: Batch, factor: float, before: Traces) -> None:
        """The last shard of all has the same gradients with what the loss has left behind, and without it."""
        last = max(index for index, size in enumerate(batch.sizes) if size)
        after = self._verifier.traces()
        try:
            self._check_twice(batch, last, factor, between=before.put_back)
        finally:
            after.put_back()

    def check_end(self) -> None:
        """The training is over: with verify=, all processes have come to the same. Raises ValueError if not."""
        self._verifier.check_end(self.turns)

    def _gather(self, done: Partial, last: bool) -> None:
        """A batch of a window: the update comes with the last of its batches."""
        if self._window is None:
            self._window = Window(done.grads, done.count, 1)
        else:
            if self._replica.looks:
                check_apart(done.grads, [self._window.grads])
            add_grads(self._window.grads, done.grads)
            self._window.count += done.count
            self._window.batches += 1
        if self._window.batches >= self._accumulate or last:
            window, self._window = self._window, None
            divide(window.grads, window.count)
            self._update(window.grads)

    def _update(self, grads: Sequence[Tensor | None]) -> None:
        if self._loss_scale is not None and not self._loss_scale.update(grads):
            return
        for param, grad in zip(self._replica.params, grads, strict=True):
            param.grad = grad
        try:
            if self._clip_norm is not None:
                clip_grad_norm_(self._replica.params, self._clip_norm)
            with updating():
                (self._in_blocks or self._optimizer).step()
        finally:
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
        counts = {"turns": self.turns, "updates": self.updates, "executions": self.executions, "window": open_window}
        return counts if self._loss_scale is None else counts | {"loss_scale": self._loss_scale.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # Any: numbers and tensors
        """Go on from what `state_dict` gave."""
        self.turns, self.updates, self.executions = state["turns"], state["updates"], state["executions"]
        self._window = None if state["window"] is None else Window(**state["window"])
        if self._window is not None:  # a checkpoint is read into main memory
            device = self._replica.device
            self._window.grads = [None if grad is None else grad.to(device) for grad in self._window.grads]
        if self._loss_scale is not None and "loss_scale" in state:
            self._loss_scale.load_state_dict(state["loss_scale"])
