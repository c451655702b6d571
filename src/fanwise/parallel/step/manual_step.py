"""`run.step(model, optimizer)` without a loss function: the program loops over the shards of a batch itself.

    for x, y in step.shards(batch):       each shard of this process
        step.backward(losses)               its gradients are in .grad until the end of the body
                                          after the last shard: gradients are added over all processes
    ...                                   .grad is the gradient of the whole batch, with equal bits in every process
    step.update()                         calls the optimizer; .grad is None again

The generator exchanges gradients after the last shard. If a process is lost during the exchange, the generator yields
the shards that this process takes over, and the body runs again. So a loop changes nothing before it ends. Like
`backward`, a loop adds to `.grad`, so a program may run several loops before an update.

Local variables, closures, iterators and objects that a body changes depend on the shards of this process. As a check,
the first shard of the first batch is yielded twice and must have the same gradients.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from ..comm.team import divide
from ..data.batch import Batch, discard_contents
from ..optim.step_optimizer import StepOptimizer
from ..rng import seed_generators
from ..validation.misuse import library_update
from .batch_execution import BatchExecution
from .gradients import Partial, add, add_grads, check_no_shared_memory
from .loss_scale import are_finite
from .replicas import ShardWork, add_shard_note, scaled
from .tree import Node, TreeSum


@dataclass(slots=True)
class _Current:
    """The shard whose body runs. `loss` is None until `step.backward` is called."""

    work: ShardWork
    loss: Tensor | None = None
    count: float | Tensor = 0


class ManualStep:
    """A step with a loop of the program's own, made by `run.step(model, optimizer)`.

    Attributes:
        batches: number of finished loops.
        updates: number of updates.
        executions: number of executed shards in all processes.

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
        """The mean loss of the whole batch of the last loop, without axes and without a graph.

        Raises:
            ValueError: no loop has finished yet.
        """
        if self._loss is None:
            raise ValueError(
                "step.loss is the mean loss of a finished loop over step.shards(batch), and there is none yet"
            )
        return self._loss

    @property
    def _has_gradients(self) -> bool:
        return any(param.grad is not None for param in self._replica.params)

    # -- a loop ----------------------------------------------------------------------------------------------------

    def shards(self, batch: Any) -> Iterator[Any]:
        """Yield the shards of this process, then exchange gradients. Blocks after the last shard.

        After the loop the gradient of (the sum of all losses) / (the sum of their counts) over the global batch is
        added to `.grad` of each parameter. Within a body, random numbers, buffers and `.grad` belong to its shard
        alone. The body runs again for shards that this process takes over from a lost one. The first shard of the first
        batch is yielded twice, to check that bodies do not influence each other.

        Args:
            batch: a `Batch`, or a tree of tensors.

        Raises:
            ValueError: no samples; a body without `step.backward`, or one that influences later shards; another loop
                has not finished.
            TypeError: a part of the batch cannot be cut into samples.
        """
        execution = self._execution
        self._check_usable()
        made = execution.prepare(batch)
        repeats = execution.take_repeat_check()
        with self._set_aside() as before, execution.guard.loop():
            while True:
                with execution.team.attempt() as attempt:
                    done = yield from self._execute(made, repeats)
                if not attempt.is_void:
                    break
                discard_contents(made)
            divide(done.grads, done.count)
            execution.record(made, done)
            if execution.loss_scale is not None:
                self._is_finite = are_finite(done.grads) and self._is_finite
            add_grads(before, done.grads)
        self._loss = execution.finish(made, done)

    def _check_usable(self) -> None:
        if self._was_left:
            raise ValueError(
                "a loop over step.shards(batch) was left early, by break, return or a caught error. Other processes "
                "wait for its shards.\n"
                "  wrong:  for x, y in step.shards(batch): ...; break\n"
                "  right:  for x, y in step.shards(batch): ...        # to its end, with a smaller batch"
            )

    @contextmanager
    def _set_aside(self) -> Iterator[list[Tensor | None]]:
        """Set the gradients of the parameters aside during the block. Yield them as a list, which may be changed."""
        before = [param.grad for param in self._replica.params]
        try:
            yield before
        except BaseException:
            self._was_left = True
            raise
        finally:
            for param, grad in zip(self._replica.params, before, strict=True):
                param.grad = grad

    def _execute(self, batch: Batch, repeats: bool) -> Generator[Any, None, Partial]:
        """Yield the shards of this process, one of them twice if `repeats`. Return the sums over all shards."""
        execution, shards = self._execution, len(batch.sizes)
        tree: TreeSum[Partial] = TreeSum(shards, add)
        first: tuple[ShardWork, list[Tensor | None]] | None = None
        with execution.transaction():
            with execution.shard_context():
                for index in execution.own_shards(batch):
                    work, value = execution.isolated_work(batch, index), None
                    if work.samples:
                        value = yield from self._body(work)
                        if self._replica.checks_grad_memory:
                            earlier = [node.value.grads for node in tree.nodes if node.value is not None]
                            check_no_shared_memory(value.grads, earlier)
                        if repeats and first is None and execution.team.index == 0:
                            # The sum is made in the memory of the gradients.
                            grads = (None if grad is None else grad.clone() for grad in value.grads)
                            first = work, [value.loss, *grads]
                    tree.put(Node(index, index + 1, value))
                if first is not None:
                    yield from self._check_repeated(*first)
            total = execution.reduce(tree.nodes, batch, mean=False)
            execution.gather(total, mean=False)
            return total

    def _body(self, work: ShardWork) -> Generator[Any, None, Partial]:
        """Yield the content of a shard. Return its gradients."""
        replica, key = self._replica, self._execution.key.fold_in(work.index)
        content = work.read(work.index)
        current = self._current = _Current(work)
        try:
            seed_generators(key, replica.generators)
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
        return replica.collect_result(work, current.loss, current.count)

    def _check_repeated(self, work: ShardWork, first: Sequence[Tensor | None]) -> Generator[Any, None, None]:
        """Yield a shard again. Its loss and gradients must equal those of the first time."""
        again = yield from self._body(work)
        self._execution.verifier.check_same(
            first, [again.loss, *again.grads], index=work.index, batch_number=self.batches
        )

    def backward(self, losses: Tensor, counts: Tensor | float | None = None) -> None:
        """Differentiate the losses of the current shard. Call it in the body of a loop over `step.shards`.

        A second call in one body adds gradients and losses to those of the first. Both need the same counts.

        Args:
            losses: one per sample, or more (the first axis is the sample), or one mean over the samples.
            counts: the sum of all losses of the batch is divided by the sum of all counts, for example of tokens
                without padding. A number, or a tensor that is summed. By default each loss counts once.

        Raises:
            ValueError: called outside of a body; other counts than in the first call; the first axis of the losses is
                not the sample.
            TypeError: the losses are no tensor.
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
        with add_shard_note(work, self._execution.num_shards):
            loss, count = self._replica.reader.read(losses if counts is None else (losses, counts), work.samples)
            if current.loss is not None and count != current.count:
                other = ValueError(
                    "step.backward was called twice for a shard, with different counts, but the gradients of both are "
                    "divided by the same number.\n"
                    "  wrong:  step.backward(of_tokens, tokens); step.backward(of_samples)\n"
                    "  right:  step.backward(of_samples + of_tokens.sum(1) / tokens)     # one loss for each sample"
                )
                other.add_note(f"the counts are {float(current.count):g} and {float(count):g}")
                raise other
            scaled(loss, work).backward()  # type: ignore[no-untyped-call]  # torch has not annotated it
        current.loss = loss.detach() if current.loss is None else current.loss + loss.detach()
        current.count = count

    # -- updates ---------------------------------------------------------------------------------------------------

    def update(self, closure: Callable[[], Any] | None = None) -> None:
        """Call the optimizer with the gradients in `.grad`, then set them to None.

        With float16 and a `loss_scale` the update is skipped if a gradient since the last one was not finite.

        Args:
            closure: for optimizers such as LBFGS, which compute the loss themselves. It sets the gradients to None,
                loops over `step.shards(batch)` and returns `step.loss`.

        Raises:
            ValueError: there are no gradients; or it is called in the body of a loop.
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
                        step_optimizer.step(closure)
                self.updates += 1
        finally:
            self._replica.clear_grads()
        self._execution.team.step_ends()

    def check_end(self) -> None:
        """After the training: raise ValueError for gradients without an update, and if the processes differ."""
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
        """The counts, and gradients that wait for an update."""
        grads = [param.grad for param in self._replica.params] if self._has_gradients else None
        own = {"updates": self.updates, "grads": grads, "finite": self._is_finite}
        return self._execution.state_dict() | own

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._execution.load_state_dict(state)
        self.updates, self._is_finite = state["updates"], state["finite"]
        for param, grad in zip(self._replica.params, state["grads"] or (), strict=bool(state["grads"])):
            param.grad = None if grad is None else grad.to(param.device)
