"""Forward and backward of the shards of a step on a device.

    ShardWork (index, content, samples) --forward, loss, backward--> Partial --tree--> nodes of the executed shards

CPU devices of one process take turns and share the model. A GPU is the only device of its process: its operations are
queued, and no step of a single process waits for them. Gradients, changing buffers and random numbers start anew with
each shard.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...tensor.random.keys import Key
from ..data.batch import Content, as_arguments
from ..rng import begin, generators_of
from .buffers import Buffers
from .gradients import Changed, Partial, add, check_apart
from .losses import GIVEN, RETURNED, LossReader
from .tree import Node, TreeSum

_CPU = torch.device("cpu")

LossFn = Callable[..., Any]  # Any: called with the model and the members of a batch; see losses.py for the result


@dataclass(frozen=True, slots=True)
class ShardWork:
    """One shard of a step. A shard without samples is not executed.

    Attributes:
        read: returns the content of a shard, given its index.
        alone: no other shard of the batch has samples, so the buffers may change in place.
        factor: multiplies the summed loss before it is differentiated.
    """

    index: int
    read: Callable[[int], Content | None]
    samples: int
    alone: bool
    factor: float | Tensor = 1.0


# Executes consecutive shards and returns the nodes of the tree that they form: (work, key of the batch, shards).
Execute = Callable[[Sequence[ShardWork], Key, int], list[Node[Partial]]]


class Replica:
    """The model of a process with its loss function.

    Args:
        loss_fn: None if the program loops over the shards itself.
        also: modules that the loss calls besides the model.
        mean_buffers: names of buffers that become the mean over the shards.

    Attributes:
        modules: the model, named "", and other modules that shards use, by their names in messages.
        params: the parameters of the model.
        others: the parameters of the other modules.
        generators: torch's random generators of this device.
        is_checked: check that no two shards write their gradients to the same memory.
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
        self.reader = LossReader(GIVEN if loss_fn is None else RETURNED)
        self.is_checked = False
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
        self.others = [param for param in dict.fromkeys(params) if param not in own]
        self.buffers = Buffers(self.modules, self._mean_buffers)

    def execute(self, work: Sequence[ShardWork], key: Key, shards: int) -> list[Node[Partial]]:
        """Execute consecutive shards. Return the nodes of the tree over `shards` that they form.

        Args:
            key: of this batch; each shard derives its own.
        """
        tree: TreeSum[Partial] = TreeSum(shards, add)
        for each in work:
            with noted(each, shards):
                value = self.differentiate(each, key) if each.samples else None
                if self.is_checked and value is not None:
                    check_apart(value.grads, [node.value.grads for node in tree.nodes if node.value is not None])
            tree.put(Node(each.index, each.index + 1, value))
        return tree.nodes

    def differentiate(self, work: ShardWork, key: Key) -> Partial:
        """Execute forward and backward of a shard. The gradients are taken out of the parameters."""
        begin(key.fold_in(work.index), self.generators)
        loss, count = self.loss(work)
        scaled(loss, work).backward()  # type: ignore[no-untyped-call]  # torch has not annotated it
        return self.taken(work, loss, count)

    def differentiate_apart(self, work: ShardWork) -> Partial:
        """Execute forward and backward of a shard that runs at the same time as others.

        It changes neither `.grad` nor buffers: it has copies of those buffers that earlier steps have changed. The
        caller seeds the random numbers.

        Raises:
            TypeError: a gradient is sparse.
        """
        with self.buffers.copied():
            loss, count = self.loss(work)
            trained = [param for param in self.params if param.requires_grad]
            found = iter(torch.autograd.grad(scaled(loss, work), trained, allow_unused=True))
            grads = [next(found) if param.requires_grad else None for param in self.params]
            changed = self.buffers.collect(work.samples)
        if any(grad is not None and grad.is_sparse for grad in grads):
            raise TypeError("a gradient is sparse; make the layer with sparse=False")
        return _partial(grads, loss, count, work.samples, changed)

    def taken(self, work: ShardWork, loss: Tensor, count: float | Tensor) -> Partial:
        """Return the result of the shard that was just executed. Restore gradients and buffers."""
        grads: list[Tensor | None] = []
        for param in self.params:
            grads.append(param.grad)
            param.grad = None
        self.forget_others()
        changed = {} if work.alone else self.buffers.take(work.samples)
        return _partial(grads, loss, count, work.samples, changed)

    def forget_grads(self) -> None:
        for param in self.params:
            param.grad = None

    def forget_others(self) -> None:
        """Set gradients in modules that this step does not train to None."""
        for param in self.others:
            param.grad = None

    def loss(self, work: ShardWork) -> tuple[Tensor, float | Tensor]:
        """Return the summed loss of a shard with its graph, and the count."""
        content = work.read(work.index)
        assert content is not None, "a shard without samples is not executed"
        assert self.loss_fn is not None, "the program loops over the shards itself"
        with self._precision():
            result = self.loss_fn(self.model, *as_arguments(content))
        return self.reader.read(result, work.samples)

    def _precision(self) -> "torch.autocast | nullcontext[None]":
        if self._autocast is None:
            return nullcontext()
        return torch.autocast(self.device.type, self._autocast)


def _partial(
    grads: list[Tensor | None], loss: Tensor, count: float | Tensor, samples: int, buffers: dict[int, Changed]
) -> Partial:
    """Return the result of a shard. Sparse gradients are kept apart, because they are added differently."""
    sparse = {place: grad for place, grad in enumerate(grads) if grad is not None and grad.is_sparse}
    for place in sparse:
        grads[place] = None
    return Partial(grads, loss.detach(), count, samples, buffers, sparse=sparse)


def scaled(loss: Tensor, work: ShardWork) -> Tensor:
    """Return the loss times the factor of the shard. A factor of 1 adds no operation."""
    return loss if not isinstance(work.factor, Tensor) and work.factor == 1 else loss * work.factor


@contextmanager
def noted(work: ShardWork, shards: int) -> Iterator[None]:
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
