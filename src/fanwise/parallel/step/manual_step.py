"""`run.step(model, optimizer)` without a loss function: the loop over the shards of a batch is the program's.

    for x, y in step.shards(batch):       this process's shards, one after another, each in surroundings of its own
        step.backward(losses)               its gradients in .grad, until the body is over
                                          at the end of the loop: added over all processes, divided by the count
    ...                                   .grad is that of the whole batch, the same bits in every process
    step.update()                         the optimizer; .grad is None again

The exchange is made by the generator, when it is asked for a shard and there is none left. If a process was lost
meanwhile, it gives the shards that are now this process's instead, and the body runs again: so a loop has changed
nothing until it is over. As `backward` does, a loop adds to what is in .grad: what to do between two loops, and when to
forget gradients, is the program's to say.

What a body leaves in local variables, closures, iterators and objects is that of the shards of this process. In the
first batch the first shard comes a second time, as a check, and has to have the same gradients.
"""

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn

from torch import Tensor

from ..checks.misuse import updating
from ..data.batch import Batch, discard_contents
from ..optim.step_optimizer import StepOptimizer
from ..replica.gradients import Partial, add, add_grads, check_apart
from ..replica.replicas import ShardWork, noted, scaled
from ..rng import begin
from ..shards import Node, TreeSum
from ..teams.team import divide
from .batch_execution import BatchExecution
from .loss_scale import are_finite


@dataclass(slots=True)
class _Current:
    """The shard whose body is at work. `loss`, `count`: of `step.backward`, None before it."""

    work: ShardWork
    loss: Tensor | None = None
    count: float | Tensor = 0


class ManualStep:
    """A step whose loop over the shards is the program's own, made by `run.step(model, optimizer)`.

    Attributes:
        batches: loops that came to their end. updates: how often it called the optimizer.
        executions: shards executed, in all.

    >>> run = here(shards=2); model = torch.nn.Linear(2, 1)
    >>> step = run.step(model, torch.optim.SGD(model.parameters(), 0.1))
    >>> for x in step.shards(torch.ones(4, 2)):
    ...     step.backward(model(x).square())
    >>> norm = torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    >>> step.update()
    """

    def __init__(self, execution: BatchExecution, placements: Sequence[StepOptimizer]) -> None:
        self.updates = 0
        self._execution = execution
        self._replica = execution.replica
        self._placements = placements
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
            ValueError: there was no loop yet.
        """
        if self._loss is None:
            raise ValueError("step.loss is the mean loss of a batch, and no loop over step.shards(batch) is over yet")
        return self._loss

    @property
    def _has_gradients(self) -> bool:
        return any(param.grad is not None for param in self._replica.params)

    def __call__(self, *batch: object) -> NoReturn:
        """Raises TypeError: this step has no loss function to call."""
        raise TypeError(
            "run.step(model, optimizer) got no loss function, so its step is not called with a batch.\n"
            "  wrong:  step = run.step(model, optimizer); step(batch)\n"
            "  right:  step = run.step(model, optimizer, loss_fn); step(batch)\n"
            "  right:  for x, y in step.shards(batch): step.backward(...)    # a loop of your own\n"
            "          step.update()"
        )

    # -- a loop ----------------------------------------------------------------------------------------------------

    def shards(self, batch: Any) -> Iterator[Any]:  # Any: a Batch, or a tree of tensors; the same
        """This process's shards of a global batch, one after another. At the end gradients are exchanged.

        After the loop `.grad` of each parameter has the gradient of (the sum of all losses) / (the sum of their counts)
        over the global batch added to it. In the loop a body has a shard for itself: random numbers, buffers of
        modules, and `.grad`. It may run again, for a shard that was another process's, which was lost. The first shard
        of the first batch comes twice, to see whether what bodies leave behind matters. Blocks at the end until all
        are there.

        Raises:
            ValueError: no samples; a body without `step.backward`, or that leaves behind what matters to later shards;
                another loop is not over, or was left.
            TypeError: a part of the batch cannot be cut into samples.
        """
        execution = self._execution
        self._check_usable()
        made = execution.prepare(batch)
        repeats = execution.take_repeat_check()
        with self._set_aside() as before, execution.guard.loop():
            while True:
                with execution.team.attempt() as attempt:
                    done = yield from self._executed(made, repeats)
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
                "a loop over step.shards(batch) was left before its end, by break, return or an error that was caught: "
                "shards of its batch are missing, and other processes wait for them.\n"
                "  wrong:  for x, y in step.shards(batch): ...; break\n"
                "  right:  for x, y in step.shards(batch): ...        # to its end; the batch may be a smaller one"
            )

    @contextmanager
    def _set_aside(self) -> Iterator[list[Tensor | None]]:
        """In this block parameters have no gradients but those of a shard; after it those of this list."""
        before = [param.grad for param in self._replica.params]
        try:
            yield before
        except BaseException:
            self._was_left = True
            raise
        finally:
            for param, grad in zip(self._replica.params, before, strict=True):
                param.grad = grad

    def _executed(self, batch: Batch, repeats: bool) -> Generator[Any, None, Partial]:  # Any: of the batch
        """The shards of this process, and what comes of all. `repeats`: one of them comes twice."""
        execution, shards = self._execution, len(batch.sizes)
        tree: TreeSum[Partial] = TreeSum(shards, add)
        first: tuple[ShardWork, list[Tensor | None]] | None = None
        with execution.transaction():
            with execution.shard_context():
                for index in execution.own_shards(batch):
                    work, value = execution.isolated_work(batch, index), None
                    if work.samples:
                        value = yield from self._body(work, shards)
                        if self._replica.is_checked:
                            check_apart(
                                value.grads, [node.value.grads for node in tree.nodes if node.value is not None]
                            )
                        if repeats and first is None and execution.team.place == 0:
                            # The sum is made in the memory of the gradients.
                            grads = (None if grad is None else grad.clone() for grad in value.grads)
                            first = work, [value.loss, *grads]
                    tree.put(Node(index, index + 1, value))
                if first is not None:
                    yield from self._tried_again(*first, shards)
            total = execution.reduce(tree.nodes, batch, mean=False)
            execution.gather(total, mean=False)
            return total

    def _body(self, work: ShardWork, shards: int) -> Generator[Any, None, Partial]:  # Any: of the batch
        replica, own = self._replica, self._execution.key.fold_in(work.index)
        content = work.read(work.index)
        current = self._current = _Current(work)
        try:
            begin(own, replica.generators)
            yield content
        finally:
            self._current = None
        if current.loss is None:
            raise ValueError(
                "a body of the loop over step.shards(batch) has come to its end without step.backward: the shard would "
                "be missing from the gradient.\n"
                "  wrong:  for x, y in step.shards(batch): losses = ...; losses.mean().backward()\n"
                "  right:  for x, y in step.shards(batch): losses = ...; step.backward(losses)\n"
                "  right:  step.backward(losses, 0)          # a shard that counts nothing"
            )
        return replica.taken(work, current.loss, current.count)

    def _tried_again(
        self, work: ShardWork, found: Sequence[Tensor | None], shards: int
    ) -> Generator[Any, None, None]:  # Any: of the batch
        """A shard comes a second time, after what bodies have left behind. `found`: its loss and gradients before."""
        again = yield from self._body(work, shards)
        self._execution.verifier.check_same(
            found, [again.loss, *again.grads], index=work.index, batch_number=self.batches
        )

    def backward(self, losses: Tensor, counts: Tensor | float | None = None) -> None:
        """Differentiate the losses of the shard at hand. In the body of a loop over `step.shards`.

        A second call in one body adds its gradients and losses to the first one's; both have to count the same.

        Args:
            losses: one for each sample, or more (first axis the sample), or one mean over the samples.
            counts: what the sum of the losses is divided by, over the whole batch, as tokens without padding; a number
                or a tensor that is summed. By default each loss counts once.

        Raises:
            ValueError: not in a body; another count than before; losses whose first axis is not the samples'.
            TypeError: what is given are no losses.
        """
        current = self._current
        if current is None:
            raise ValueError(
                "step.backward is called in the body of a loop over step.shards(batch) of the same step, for the shard "
                "at hand; there is none.\n"
                "  wrong:  for x, y in step.shards(batch): losses = ...\n"
                "          step.backward(losses)\n"
                "  right:  for x, y in step.shards(batch): losses = ...; step.backward(losses)"
            )
        work = current.work
        with noted(work, self._execution.num_shards):
            loss, count = self._replica.reader.read(losses if counts is None else (losses, counts), work.samples)
            if current.loss is not None and count != current.count:
                other = ValueError(
                    "step.backward was called twice for a shard, with losses that do not count the same: the gradients "
                    "of both are divided by one number.\n"
                    "  wrong:  step.backward(of_tokens, tokens); step.backward(of_samples)\n"
                    "  right:  step.backward(of_samples + of_tokens.sum(1) / tokens)     # one loss for each sample"
                )
                other.add_note(f"they count {float(current.count):g} and {float(count):g}")
                raise other
            scaled(loss, work).backward()  # type: ignore[no-untyped-call]  # torch has not annotated it
        current.loss = loss.detach() if current.loss is None else current.loss + loss.detach()
        current.count = count

    # -- updates ---------------------------------------------------------------------------------------------------

    def update(self, closure: Callable[[], Any] | None = None) -> None:  # Any: what the optimizer takes
        """Call the optimizer, with what is in `.grad`, and forget the gradients.

        With float16 and a `loss_scale` no update is made when a gradient since the last one was not finite.

        Args:
            closure: of optimizers that call the loss themselves, as LBFGS: forgets gradients, loops over
                `step.shards(batch)` and returns `step.loss`.

        Raises:
            ValueError: there are no gradients; in the body of a loop.
        """
        self._check_usable()
        self._execution.guard.check("step.update()")
        if closure is None and not self._has_gradients:
            raise ValueError(
                "step.update() has nothing to update with: no parameter has a gradient. An update forgets the "
                "gradients, as zero_grad() does.\n"
                "  wrong:  step.update(); step.update()\n"
                "  right:  for x, y in step.shards(batch): step.backward(...)\n"
                "          step.update()"
            )
        is_finite, self._is_finite = self._is_finite, True
        scale = self._execution.loss_scale
        try:
            if scale is None or scale.updated(is_finite):
                for placement in self._placements:
                    with updating():
                        placement.step(closure)
                self.updates += 1
        finally:
            self._replica.forget_grads()
        self._execution.team.step_ends()

    def check_end(self) -> None:
        """The training is over. Raises ValueError for gradients that nobody used, and what `verify=` finds."""
        self._check_usable()
        if self._has_gradients and not self.updates:
            raise ValueError(
                f"the training function has made {self.batches} loops over step.shards(batch), and never an update.\n"
                f"  wrong:  for x, y in step.shards(batch): step.backward(...)\n"
                f"  right:  for x, y in step.shards(batch): step.backward(...)\n"
                f"          step.update()"
            )
        self._execution.verifier.comparison.check_end(self.batches)

    def state_dict(self) -> dict[str, Any]:  # Any: numbers and tensors
        """Its counts, and gradients that wait for an update."""
        grads = [param.grad for param in self._replica.params] if self._has_gradients else None
        own = {"updates": self.updates, "grads": grads, "finite": self._is_finite}
        return self._execution.state_dict() | own

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # Any: numbers and tensors
        """Go on from what `state_dict` gave."""
        self._execution.load_state_dict(state)
        self.updates, self._is_finite = state["updates"], state["finite"]
        for param, grad in zip(self._replica.params, state["grads"] or (), strict=bool(state["grads"])):
            param.grad = None if grad is None else grad.to(param.device)
