"""`run.step(params, update, loss_fn, state=...)`: a step of training of a model whose parameters are a tree of arrays.

    batch -> shards -> loss and gradient, compiled --> torch tensors: tree, teams, / count  -->  update, compiled
                                                                                               params, state, buffers

Shards, sums, order, failures and resume are those of torch models. Every process makes the whole update, after all have
the gradients; so until then parameters, state and buffers are what they were before the step, and what a shard raises,
or a death, leaves them so.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch

from ...tensor.random.keys import Key
from ..checks.checksums import mark
from ..checks.comparing import Comparison
from ..checks.verifying import first_other
from ..data.arrays import in_torch
from ..data.batches import Batch, batch_of
from ..optimizers.placement import Placement
from ..plans import Plan
from ..progress.line import ProgressLine
from ..replica.gradients import Partial, add
from ..replica.replicas import ShardWork, noted
from ..shards import TreeSum, assign
from ..step.open_loop import OpenLoop
from ..teams.team import NotSame, Stateful, StateHere, Team
from .buffers import settled, why_not_same
from .checking import check_leaves, check_place, check_threads, check_update, other_function
from .engines import Engine, Tree, Update
from .leaves import check_same_tree, held, like_params, restored
from .losses import Loss, LossFn
from .replica import FunctionalReplica

_ON_HOST = torch.device("cpu")


class FunctionalStep:
    """One step of training, made by `run.step`. Call it with a batch: of `run.batches`, or a tree of arrays.

    Attributes:
        batches: that it has seen. updates: the same number. executions: shards executed, in all.
    """

    def __init__(
        self,
        plan: Plan,
        engine: Engine,
        params: Tree,
        update: Update,
        loss_fn: LossFn,
        team: Team,
        state_here: StateHere,
        *,
        state: Tree,
        buffers: Tree,
        device: torch.device,
        devices: int,
        number: int,
        every: int,
        line: ProgressLine,
        loop: OpenLoop,
    ) -> None:
        check_update(update)
        check_leaves(engine, params, "params", floating=True)
        check_leaves(engine, state, "state")
        check_leaves(engine, buffers, "buffers")
        check_place(engine, params, device)
        check_threads(engine, device)
        self.batches = self.updates = self.executions = 0
        self._plan = plan
        self._engine = engine
        self._team = team
        self._state_here = state_here
        self._state = state
        self._update = engine.compiled(update)
        self._device = device
        self._devices = devices
        self._number = number
        self._line = line
        self._loop = loop
        loss = Loss(loss_fn, has_buffers=buffers is not None)
        self._replica = FunctionalReplica(engine, engine.differentiated(loss), params, buffers, device)
        leaves = [engine.to_torch(leaf) for leaf in engine.flatten(params)[0]]
        placement = Placement(like_params(leaves), None, in_parts=False)
        self._sums = team.sums(placement.params, placement)
        self._comparison = Comparison(team, self._facts, number=number, every=every)

    @property
    def params(self) -> Tree:
        """The parameters, as the last step has made them."""
        return self._replica.params

    @property
    def state(self) -> Tree:
        """What update returned second."""
        return self._state

    @property
    def buffers(self) -> Tree:
        """What the shards of the last step have made of them; None without buffers=."""
        return self._replica.buffers

    def __call__(self, batch: Any) -> Any:  # Any: a Batch, or a tree of arrays; an array of the engine
        """Forward, backward and update.

        Returns:
            The mean loss of the whole batch, an array of the engine without axes.

        Raises:
            ValueError: no samples, parts of different lengths, losses that count nothing, buffers on which the shards
                do not agree; loss_fn is another function each time it is traced.
            TypeError: a part of the batch cannot be cut into samples; loss_fn or update return what they should not.
            What `loss_fn` raises, with a note on the shard; the step has then changed nothing.
        """
        self._loop.check("another step")
        self._team.step_begins(self._state_here)
        made = batch_of(batch if isinstance(batch, Batch) else in_torch(batch), self._plan.shards, _ON_HOST)
        if self._comparison.is_due(self.batches):
            self._comparison.check(self.batches, batch, made)
        if self._comparison.compares_all(self.batches):
            self._check_repeats(made)
        done = self._team.together(lambda: self._execute(made))
        self._take(done)
        self.batches += 1
        self.updates += 1
        self.executions += done.executed
        self._sums.settle()
        self._plan.progress.used()
        mean = done.loss / done.count
        self._line.stepped(self._number, len(made), mean)
        like = self._engine.flatten(self.params)[0][0]
        loss = self._engine.from_torch(mean, like)
        self._team.step_ends()
        return loss

    def _execute(self, batch: Batch) -> Partial:
        key, shards = self._key(), len(batch.sizes)
        own = assign(shards, self._team.size)[self._team.place]
        executed: TreeSum[Partial] = TreeSum(shards, add)
        for share in assign(len(own), self._devices):
            work = [self._work(batch, index) for index in own[share.start : share.stop]]
            for node in self._replica.execute(work, key, shards):
                executed.put(node)
        try:
            what = f"makes step {self._number} of batch {self.batches}"
            return self._sums.total(what, executed.nodes, shards, mean=True)
        except NotSame as error:
            raise ValueError(why_not_same(self._engine.paths(self.buffers)[error.place])) from None

    def _take(self, done: Partial) -> None:
        """All have the gradients: new parameters, state and buffers."""
        engine, replica = self._engine, self._replica
        params, spec = engine.flatten(replica.params)
        with engine.placed(self._device):
            grads = [
                engine.from_torch(torch.zeros_like(engine.to_torch(like)) if grad is None else grad, like, shared=True)
                for grad, like in zip(done.grads, params, strict=True)
            ]
            made, state = self._update(engine.unflatten(spec, grads), self._state, replica.params)
            del grads  # they lie in memory that the next step writes
            check_same_tree(engine, made, replica.params, "update returned params")
            check_same_tree(engine, state, self._state, "update returned a state")
            before, buffers_spec = engine.flatten(replica.buffers)
            dtypes = [engine.to_torch(leaf).dtype for leaf in before]
            after = settled(done.buffers, dtypes)
            buffers = [engine.from_torch(value, like) for value, like in zip(after, before, strict=True)]
        replica.params, self._state = made, state
        replica.buffers = engine.unflatten(buffers_spec, buffers)

    def _key(self) -> Key:
        """Of this batch: what its shards draw comes from it."""
        return self._plan.key("step").fold_in(self._number).fold_in(self.batches)

    @staticmethod
    def _work(batch: Batch, index: int) -> ShardWork:
        return ShardWork(index, batch.shard, batch.sizes[index], alone=False)

    # -- what may differ -------------------------------------------------------------------------------------------

    def _facts(self) -> dict[str, object]:
        """What a step begins with besides the batch, for a comparison of processes."""
        trees = {"params": self.params, "state": self._state, "buffers": self.buffers}
        return {
            f"{name}{path}": mark(value) if isinstance(value, torch.Tensor) else value
            for name, tree in trees.items()
            for path, value in held(self._engine, tree).items()
        }

    def _check_repeats(self, batch: Batch) -> None:
        """With verify=: the first shard of this process that has samples has the same gradients twice."""
        own = assign(len(batch.sizes), self._team.size)[self._team.place]
        first = next((index for index in own if batch.sizes[index]), None)
        if first is None:
            return
        work = self._work(batch, first)
        with noted(work, len(batch.sizes)):
            one, two = (self._replica.differentiate(work, self._key()) for _ in range(2))
            if first_other([one.loss, *one.grads], [two.loss, *two.grads]) is not None:
                raise other_function()

    def check_end(self) -> None:
        """The training is over: with verify=, all processes have come to the same. Raises ValueError if not."""
        self._comparison.check_end(self.batches)

    # -- checkpoints -----------------------------------------------------------------------------------------------

    def state_dict(self) -> dict[str, Any]:  # Any: numbers
        """Its counts."""
        return {"batches": self.batches, "updates": self.updates, "executions": self.executions}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # Any: numbers
        """Go on from what `state_dict` gave."""
        self.batches, self.updates, self.executions = state["batches"], state["updates"], state["executions"]

    @property
    def feedback(self) -> Stateful | None:
        """What the sums have not added so far."""
        return self._sums.feedback

    def parts(self) -> dict[str, "Part"]:
        """Its trees, each by itself in a checkpoint, by the kind of name that it has there."""
        replica = self._replica

        def set_params(tree: Tree) -> None:
            replica.params = tree

        def set_state(tree: Tree) -> None:
            self._state = tree

        def set_buffers(tree: Tree) -> None:
            replica.buffers = tree

        return {
            "model": Part(self._engine, "params", lambda: replica.params, set_params),
            "optimizer": Part(self._engine, "state", lambda: self._state, set_state),
            "buffers": Part(self._engine, "buffers", lambda: replica.buffers, set_buffers),
        }


class Part:
    """A tree of a step, as a checkpoint holds it: torch tensors by the paths of the leaves."""

    def __init__(self, engine: Engine, called: str, get: Callable[[], Tree], put: Callable[[Tree], None]) -> None:
        self._engine = engine
        self._called = called
        self._get = get
        self._put = put

    def state_dict(self) -> dict[str, Any]:  # Any: tensors and numbers
        return held(self._engine, self._get())

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # Any: as `state_dict` gives
        self._put(restored(self._engine, self._get(), state, self._called))
