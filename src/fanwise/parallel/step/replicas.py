"""Forward and backward of the shards that a process executes in a step.

    ShardWork (index, content, samples) --forward, loss, backward--> Partial --tree--> nodes of the executed shards

Each shard starts without gradients, with the buffers from before the step, and with random generators that are seeded
for the shard. Operations of a GPU are only queued: a step of a single process does not wait for them.
"""

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...tensor.random.keys import Key
from ..data.batch import Content, as_arguments
from ..rng import generators_of, seed_generators
from .buffers import Buffers
from .gradients import BufferUpdate, Partial, add
from .losses import LossReader
from .tree import Node, TreeSum

_CPU = torch.device("cpu")

LossFn = Callable[..., Any]  # called with the model and the items of a batch; see losses.py for the result


@dataclass(frozen=True, slots=True)
class ShardWork:
    """One shard of a step. A shard without samples is not executed."""

    index: int
    read: Callable[[int], Content | None]  # returns the content of a shard, given its index
    samples: int
    is_only_shard: bool  # no other shard of the batch has samples, so the buffers may change in place
    factor: float | Tensor = 1.0  # multiplies the summed loss before the backward pass


# Executes consecutive shards and returns the nodes of the tree that they form: (work, key of the batch, num_shards).
Execute = Callable[[Sequence[ShardWork], Key, int], list[Node[Partial]]]


class Replica:
    """The model of a process with its loss function. The arguments are those of `Run.step`.

    `modules` are the model, named "", and other modules that the loss calls, by their names in messages. `params` are
    the parameters of the model, `other_params` those of the other modules.
    """

    def __init__(
        self,
        model: nn.Module,
        loss_fn: LossFn | None = None,
        *,
        also: Sequence[nn.Module] = (),
        autocast: torch.dtype | None = None,
        mean_buffers: Sequence[str] = (),
        device: torch.device = _CPU,
    ) -> None:
        self.model = model
        self.loss_fn = loss_fn
        self.device = device
        self.generators = generators_of(device)
        self.params = list(model.parameters())
        source = ("step.backward got", "step.backward({})") if loss_fn is None else ("loss_fn returned", "return {}")
        self.reader = LossReader(*source)
        self._autocast = autocast
        self._mean_buffers = mean_buffers
        self.modules: Mapping[str, nn.Module] = {"": model}
        self.add_modules({f"also[{number}]": module for number, module in enumerate(also)})

    def add_modules(self, modules: Mapping[str, nn.Module]) -> None:
        parts = {id(part) for module in self.modules.values() for part in module.modules()}
        new = {name: module for name, module in modules.items() if id(module) not in parts}
        self.modules = {**self.modules, **new}
        own = set(self.params)
        params = [param for module in self.modules.values() for param in module.parameters()]
        self.other_params = [param for param in dict.fromkeys(params) if param not in own]
        self.buffers = Buffers(self.modules, self._mean_buffers)

    def execute(self, work: Sequence[ShardWork], key: Key, shards: int) -> list[Node[Partial]]:
        """Execute consecutive shards of a batch of `shards`. Return the nodes of the tree that they form."""
        tree: TreeSum[Partial] = TreeSum(shards, add)
        for shard in work:
            with add_shard_note(shard, shards):
                value = self.differentiate(shard, key) if shard.samples else None
            tree.put(Node(shard.index, shard.index + 1, value))
        return tree.nodes

    def execute_overlapping(
        self, overlap: Callable[[], AbstractContextManager[None]], work: Sequence[ShardWork], key: Key, shards: int
    ) -> list[Node[Partial]]:
        """Execute shards like `execute`, the last backward pass in a block of `overlap`. Return one node.

        The last backward pass adds to the gradients of the other shards, so its gradients are those of all shards.
        """
        nonempty = [shard for shard in work if shard.samples]
        if not nonempty:
            return self.execute(work, key, shards)
        *others, last = nonempty
        values = [node.value for node in self.execute(others, key, shards) if node.value is not None]
        sums = functools.reduce(add, values) if values else None
        if sums is not None:
            for param, grad in zip(self.params, sums.grads, strict=True):
                # A CUDA graph of the model may write the next gradient to the memory of this one.
                param.grad = grad if grad is None or len(values) > 1 else grad.clone()
            sums.grads = [None] * len(self.params)
        with add_shard_note(last, shards), overlap():
            result = self.differentiate(last, key)
        return [Node(work[0].index, work[-1].index + 1, result if sums is None else add(sums, result))]

    def differentiate(self, work: ShardWork, key: Key) -> Partial:
        """Execute forward and backward of a shard. The parameters have no gradients afterwards."""
        seed_generators(key.fold_in(work.index), self.generators)
        loss, count = self.loss(work)
        scale_loss(loss, work).backward()  # type: ignore[no-untyped-call]  # torch has not annotated it
        return self.collect_result(work, loss, count)

    def differentiate_concurrently(self, work: ShardWork) -> Partial:
        """Execute forward and backward of a shard while other shards run on other streams.

        Changes neither `.grad` nor buffers: the shard uses copies of the buffers that earlier steps have changed. The
        caller seeds the random generators.
        """
        with self.buffers.copied():
            loss, count = self.loss(work)
            trained = [param for param in self.params if param.requires_grad]
            trained_grads = iter(torch.autograd.grad(scale_loss(loss, work), trained, allow_unused=True))
            grads = [next(trained_grads) if param.requires_grad else None for param in self.params]
            changed = self.buffers.collect(work.samples)
        if any(grad is not None and grad.is_sparse for grad in grads):
            raise TypeError("a gradient is sparse; make the layer with sparse=False")
        return _partial(grads, loss, count, work.samples, changed)

    def collect_result(self, work: ShardWork, loss: Tensor, count: float | Tensor) -> Partial:
        """Return the result of the shard that was just executed.

        Clear the gradients, and restore the buffers unless the batch has no other shard with samples.
        """
        grads: list[Tensor | None] = []
        for param in self.params:
            grads.append(param.grad)
            param.grad = None
        for param in self.other_params:
            param.grad = None
        changed = {} if work.is_only_shard else self.buffers.collect_and_restore(work.samples)
        return _partial(grads, loss, count, work.samples, changed)

    def clear_grads(self) -> None:
        for param in self.params:
            param.grad = None

    def loss(self, work: ShardWork) -> tuple[Tensor, float | Tensor]:
        """Return the summed loss of a shard with its graph, and the count."""
        assert self.loss_fn is not None, "only a step with a loss function calls this"
        arguments = as_arguments(work.read(work.index))
        if self._autocast is None:
            return self.reader.read(self.loss_fn(self.model, *arguments), work.samples)
        with torch.autocast(self.device.type, self._autocast):
            result = self.loss_fn(self.model, *arguments)
        return self.reader.read(result, work.samples)


def _partial(
    grads: list[Tensor | None], loss: Tensor, count: float | Tensor, samples: int, buffers: dict[int, BufferUpdate]
) -> Partial:
    """Return the result of a shard. Move sparse gradients to `sparse`, because they are added differently."""
    sparse = {index: grad for index, grad in enumerate(grads) if grad is not None and grad.is_sparse}
    for index in sparse:
        grads[index] = None
    return Partial(grads, loss.detach(), count, samples, buffers, sparse=sparse)


def scale_loss(loss: Tensor, work: ShardWork) -> Tensor:
    """Return the loss times the factor of the shard. A factor of 1 adds no operation."""
    return loss if not isinstance(work.factor, Tensor) and work.factor == 1 else loss * work.factor


@contextmanager
def add_shard_note(work: ShardWork, shards: int) -> Iterator[None]:
    """Add a note on the shard to errors that are raised in the block."""
    try:
        yield
    except Exception as error:
        if "does not have a deterministic implementation" in str(error):
            error.add_note(
                'fanwise.run(..., reduce="fast") allows such operators. The last bits of the result then differ from '
                "run to run, even on one device. Another operator may be deterministic."
            )
        error.add_note(
            f"in shard {work.index} of {shards}, with {work.samples} sample{'s' * (work.samples != 1)} of the batch"
        )
        if shards > 1 and "more than 1 value per channel" in str(error):
            error.add_note(
                "Batch normalization uses the statistics of a shard, and this one is too small. Use drop_last=True to "
                "leave out a small last batch, fewer shards=, or batch_norm='global'."
            )
        raise
