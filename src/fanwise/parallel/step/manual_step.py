"""`run.step(model, optimizer)` without a loss function: the program loops over the shards of a batch itself.

    for x, y in step.shards(batch):       each shard of this process
        step.backward(losses)               its gradients are in .grad until the end of the body
                                          after the last shard: gradients are added over all processes
    ...                                   .grad is the gradient of the whole batch, with equal bits in every process
    step.update()                         calls the optimizer; .grad is None again

Like `backward`, a loop adds to `.grad`, so a program may run several loops before an update. Variables and objects that
a body changes depend on the shards of this process, so they must not affect later losses.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..comm.team import divide
from ..data.batch import Batch, discard_contents
from ..optim.sharded import StepOptimizer
from ..rng import seed_generators
from ..validation.misuse import library_update
from .batch_execution import BatchExecution
from .gradients import Partial, add, add_grads
from .loss_scale import are_finite
from .replicas import ShardWork, add_shard_note, scale_loss
from .tree import Node, TreeSum


@dataclass(slots=True)
class _Current:
    """The shard whose body runs. `loss` is None until `step.backward` is called."""

    work: ShardWork
    loss: Tensor | None = None
    count: float | Tensor = 0


class ManualStep:
    """A step whose loop over the shards is part of the program, created by `run.step(model, optimizer)`.

    `batches` is the number of finished loops, `executions` the number of executed shards in all processes.

    >>> import torch
    >>> from fanwise import here
    >>> run = here(shards=2); model = torch.nn.Linear(2, 1)
    >>> step = run.step(model, torch.optim.SGD(model.parameters(), 0.1))
    >>> for x in step.shards(torch.ones(4, 2)):
    ...     step.backward(model(x).square())
    >>> norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    >>> step.update()
    """

    def __init__(self, execution: BatchExecution, step_optimizers: Sequence[StepOptimizer]) -> None:
        self.updates = 0
        self._execution = execution
        self._replica = execution.replica
        self._step_optimizers = step_optimizers
        self._current: _Current | None = None
        self._loss: Tensor | None = None
        self._is_finite = True  # all gradients since the last update
        self._was_left = False

    @property
    def batches(self) -> int:
        return self._execution.batches

    @property
    def executions(self) -> int:
        return self._execution.executions

    @property
    def loss(self) -> Tensor:
        """The mean loss of the whole batch of the last loop: a tensor without axes and without a graph."""
        if self._loss is None:
            raise ValueError("step.loss is the mean loss of a finished loop over step.shards(batch), and there is none")
        return self._loss

    @property
    def _has_gradients(self) -> bool:
        return any(param.grad is not None for param in self._replica.params)

    def shards(self, batch: Any) -> Iterator[Any]:
        """Yield the shards of this process, then exchange gradients. Blocks after the last shard.

        After the loop, the gradient of (the sum of all losses) / (the sum of their counts) over the global batch is
        added to `.grad` of each parameter. Within a body, random generators, buffers and `.grad` belong to its shard
        alone. If a process is lost, the loop yields all shards of this process again, and shards of the lost one. The
        first shard of the first batch is yielded twice, to check that bodies do not influence each other.

        Args:
            batch: a `Batch`, or a tree of tensors.

        Raises:
            ValueError: the batch has no samples; a body did not call `step.backward`; the two executions of the first
                shard differ; or another loop is in progress or was left early.
        """
        execution = self._execution
        self._check_usable()
        prepared = execution.prepare(batch)
        is_repeated = execution.take_repeat_check()
        with self._loop() as grads_before:
            while True:
                with execution.team.attempt() as attempt:
                    total = yield from self._execute(prepared, is_repeated)
                if not attempt.is_void:
                    break
                discard_contents(prepared)
            divide(total.grads, total.count)
            execution.record(prepared, total)
            if execution.loss_scale is not None:
                self._is_finite = are_finite(total.grads) and self._is_finite
            add_grads(grads_before, total.grads)
        self._loss = execution.finish(prepared, total)

    def _check_usable(self) -> None:
        if self._was_left:
            raise ValueError(
                "a loop over step.shards(batch) was left early, by break, return or a caught error. Other processes "
                "may wait for its shards, so this step cannot be used any more.\n"
                "  wrong:  for x, y in step.shards(batch): ...; break\n"
                "  right:  for x, y in step.shards(batch): ...        # to its end, with a smaller batch"
            )

    @contextmanager
    def _loop(self) -> Iterator[list[Tensor | None]]:
        """Set the gradients of the parameters aside during a loop. Yield them in a list, to which the loop adds."""
        grads = [param.grad for param in self._replica.params]
        self._execution.guard.is_open = True
        try:
            yield grads
        except BaseException:
            self._was_left = True
            raise
        finally:
            self._execution.guard.is_open = False
            for param, grad in zip(self._replica.params, grads, strict=True):
                param.grad = grad

    def _execute(self, batch: Batch, is_repeated: bool) -> Generator[Any, None, Partial]:
        """Yield the shards of this process, the first one twice if `is_repeated`. Return the sums over all shards."""
        execution, shards = self._execution, len(batch.sizes)
        tree: TreeSum[Partial] = TreeSum(shards, add)
        first: tuple[ShardWork, list[Tensor | None]] | None = None
        with execution.transaction():
            with execution.shard_context():
                for index in execution.own_shards(batch):
                    work, value = execution.work(batch, index), None
                    if work.samples:
                        value = yield from self._body(work)
                        if is_repeated and first is None and execution.team.index == 0:
                            # The memory of the gradients will hold the sum.
                            grads = (None if grad is None else grad.clone() for grad in value.grads)
                            first = work, [value.loss, *grads]
                    tree.put(Node(index, index + 1, value))
                if first is not None:
                    yield from self._check_repeated(*first)
            total = execution.reduce(tree.nodes, batch, mean=False)
            execution.gather(total, mean=False)
            return total

    def _body(self, work: ShardWork) -> Generator[Any, None, Partial]:
        """Yield the content of a shard. Return the sums that `step.backward` has computed in the body."""
        content = work.read(work.index)
        current = self._current = _Current(work)
        try:
            seed_generators(self._execution.key.fold_in(work.index), self._replica.generators)
            yield content
        finally:
            self._current = None
        if current.loss is None:
            raise ValueError(
                "a body of the loop over step.shards(batch) ended without step.backward, so its shard would be missing "
                "from the gradient.\n"
                "  wrong:  for x, y in step.shards(batch): losses = ...; losses.mean().backward()\n"
                "  right:  for x, y in step.shards(batch): losses = ...; step.backward(losses)\n"
                "  right:  step.backward(losses, 0)          # a shard that counts nothing"
            )
        return self._replica.collect_result(work, current.loss, current.count)

    def _check_repeated(self, work: ShardWork, first: Sequence[Tensor | None]) -> Generator[Any, None, None]:
        second = yield from self._body(work)
        self._execution.verifier.check_same(
            first, [second.loss, *second.grads], index=work.index, batch_number=self.batches
        )

    def backward(self, losses: Tensor, counts: Tensor | float | None = None) -> None:
        """Differentiate the losses of the current shard. Call it in the body of a loop over `step.shards`.

        A second call in one body adds its gradients and losses to those of the first. Both need the same counts.

        Args:
            losses: one per sample, or more (the first axis is the sample), or one mean over the samples.
            counts: the sum of all losses of the batch is divided by the sum of all counts, for example the number of
                tokens without padding. A number, or a tensor that is summed. By default each loss counts 1.
        """
        current = self._current
        if current is None:
            raise ValueError(
                "step.backward must be called in the body of a loop over step.shards(batch) of the same step.\n"
                "  wrong:  for x, y in step.shards(batch): losses = ...\n"
                "          step.backward(losses)\n"
                "  right:  for x, y in step.shards(batch): losses = ...; step.backward(losses)"
            )
        work = current.work
        with add_shard_note(work, self._execution.plan.shards):
            loss, count = self._replica.reader.read(losses if counts is None else (losses, counts), work.samples)
            if current.loss is not None and count != current.count:
                different = ValueError(
                    "step.backward was called twice for a shard, with different counts, but the gradients of both "
                    "calls are divided by the same number.\n"
                    "  wrong:  step.backward(of_tokens, tokens); step.backward(of_samples)\n"
                    "  right:  step.backward(of_samples + of_tokens.sum(1) / tokens)     # one loss for each sample"
                )
                different.add_note(f"the counts are {float(current.count):g} and {float(count):g}")
                raise different
            scale_loss(loss, work).backward()  # type: ignore[no-untyped-call]  # torch has not annotated it
        current.loss = loss.detach() if current.loss is None else current.loss + loss.detach()
        current.count = count

    def update(self, closure: Callable[[], Any] | None = None) -> None:
        """Call the optimizer with the gradients in `.grad`, then set them to None.

        The update is skipped if there is a `loss_scale` and a gradient since the last update was not finite.

        Args:
            closure: for optimizers such as LBFGS, which ask for the loss several times. The function sets the gradients
                to None, loops over `step.shards(batch)` and returns `step.loss`.
        """
        self._check_usable()
        self._execution.guard.check("step.update()")
        if closure is None and not self._has_gradients:
            raise ValueError(
                "step.update() needs gradients, but no parameter has one. An update sets them to None, like "
                "zero_grad().\n"
                "  wrong:  step.update(); step.update()\n"
                "  right:  for x, y in step.shards(batch): step.backward(...)\n"
                "          step.update()"
            )
        is_finite, self._is_finite = self._is_finite, True
        scale = self._execution.loss_scale
        try:
            if scale is None or scale.adjust(is_finite):
                for step_optimizer in self._step_optimizers:
                    with library_update():
                        step_optimizer.optimizer.step(closure)
                self.updates += 1
        finally:
            self._replica.clear_grads()
        self._execution.team.step_ends()

    def check_end(self) -> None:
        """Raise ValueError if no update has used the gradients or, with `verify=`, if the processes differ."""
        self._check_usable()
        if self._has_gradients and not self.updates:
            raise ValueError(
                f"the training function finished {self.batches} loops over step.shards(batch) without an update.\n"
                f"  wrong:  for x, y in step.shards(batch): step.backward(...)\n"
                f"  right:  for x, y in step.shards(batch): step.backward(...)\n"
                f"          step.update()"
            )
        self._execution.verifier.check_end(self.batches)

    def state_dict(self) -> dict[str, Any]:
        """Return the counts, and the gradients that wait for an update."""
        grads = [param.grad for param in self._replica.params] if self._has_gradients else None
        own = {"updates": self.updates, "grads": grads, "finite": self._is_finite}
        return self._execution.state_dict() | own

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._execution.load_state_dict(state)
        self.updates, self._is_finite = state["updates"], state["finite"]
        for param, grad in zip(self._replica.params, state["grads"] or (), strict=bool(state["grads"])):
            param.grad = None if grad is None else grad.to(param.device)
