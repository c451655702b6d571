"""A device at work: it executes shards of a step on its replica of the model.

    ShardWork (index, content, samples) --forward, loss, backward--> Partial --tree--> nodes for the shards it executed

`Device` is all that a step knows of devices. `LocalDevice` is a device of this process. Devices that share a memory, as
all CPU devices of one process do, share the model too and take turns: a copy would hold the same numbers. A GPU is the
only device of its process; what it is asked for is queued, and no step of one process waits for it. What must not be
shared - gradients, buffers that change, the stream of random numbers - begins anew with each shard.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from ...tensor.random.keys import Key
from ..data.batch import Content, as_arguments
from ..rng import begin, generators_of
from ..shards import Node, TreeSum
from .buffers import Buffers
from .gradients import Changed, Partial, add, check_apart
from .losses import GIVEN, RETURNED, LossReader

_CPU = torch.device("cpu")

LossFn = Callable[..., Any]  # Any: called with the model and the members of a batch; see losses.py for the result


@dataclass(frozen=True, slots=True)
class ShardWork:
    """One shard of a step. Without samples it is not executed.

    `read` gives its content. `alone`: no other shard of the batch has samples, so what the model's buffers become is
    the result. `factor`: what the summed loss is multiplied by before it is differentiated.
    """

    index: int
    read: Callable[[int], Content | None]
    samples: int
    alone: bool
    factor: float | Tensor = 1.0


class Device(Protocol):
    """Executes shards."""

    def execute(self, work: Sequence[ShardWork], key: Key, shards: int) -> list[Node[Partial]]:
        """The nodes of the tree over `shards` that cover `work`, which are consecutive shards.

        Args:
            key: of this step; each shard draws from the key that its index gives.
        """
        ...


class Replica:
    """The model in the memory of a process, and what is needed to differentiate its loss.

    Args:
        loss_fn: None if the program has a loop of its own. also: modules that the loss calls besides the model.
        mean_buffers: names of buffers that the mean over the shards is right for.

    Attributes:
        modules: the model, whose name is "", and others that shards use, by their names in messages.
        params: the parameters of the model. others: those of the other modules. used: ids of all of them.
        dropped: ids of parameters in `others` that had a gradient after a shard.
        generators: of torch, that operators on this device draw from.
        is_checked: whether the gradients of two shards are checked for the same memory.
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
        self.dropped: set[int] = set()
        self.reader = LossReader(GIVEN if loss_fn is None else RETURNED)
        self.is_checked = False
        self._autocast = autocast
        self._mean_buffers = mean_buffers
        self.modules: Mapping[str, nn.Module] = {"": model}
        self.look_after({f"also[{number}]": module for number, module in enumerate(also)})

    def look_after(self, modules: Mapping[str, nn.Module]) -> None:
        """Shards may use these modules, too. They are added to those that are known."""
        parts = {id(part) for module in self.modules.values() for part in module.modules()}
        new = {name: module for name, module in modules.items() if id(module) not in parts}
        self.modules = {**self.modules, **new}
        own = set(self.params)
        params = [param for module in self.modules.values() for param in module.parameters()]
        self.others = [param for param in dict.fromkeys(params) if param not in own]
        self.used = frozenset(map(id, params))
        self.buffers = Buffers(self.modules, self._mean_buffers)

    def differentiate(self, work: ShardWork, key: Key) -> Partial:
        """Forward and backward of one shard. The gradients are moved out of the parameters."""
        begin(key.fold_in(work.index), self.generators)
        loss, count = self.loss(work)
        scaled(loss, work).backward()  # type: ignore[no-untyped-call]  # torch has not annotated it
        return self.taken(work, loss, count)

    def differentiate_apart(self, work: ShardWork) -> Partial:
        """As `differentiate`, for shards that run at the same time: with buffers of their own, and nothing in `.grad`.

        The caller seeds the random numbers. Buffers are those that earlier steps have changed.

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
        """What a shard brings that was just executed, moved out of the parameters; modules are as before it."""
        grads: list[Tensor | None] = []
        for param in self.params:
            grads.append(param.grad)
            param.grad = None
        self.forget_others()
        changed = {} if work.alone else self.buffers.take(work.samples)
        return _partial(grads, loss, count, work.samples, changed)

    def forget_grads(self) -> None:
        """Those of the parameters of the step."""
        for param in self.params:
            param.grad = None

    def forget_others(self) -> None:
        """Gradients that the loss has left in modules which this step does not train."""
        for param in self.others:
            if param.grad is not None:
                param.grad = None
                self.dropped.add(id(param))

    def loss(self, work: ShardWork) -> tuple[Tensor, float | Tensor]:
        """The summed loss of one shard, with its graph, and what it counts."""
        content = work.read(work.index)
        assert content is not None, "a shard without samples is not executed"
        assert self.loss_fn is not None, "the loop is the program's"
        with self._precision():
            result = self.loss_fn(self.model, *as_arguments(content))
        return self.reader.read(result, work.samples)

    def _precision(self) -> "torch.autocast | nullcontext[None]":
        if self._autocast is None:
            return nullcontext()
        return torch.autocast(self.device.type, self._autocast)


class LocalDevice:
    """A device of this process."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica

    def execute(self, work: Sequence[ShardWork], key: Key, shards: int) -> list[Node[Partial]]:
        tree: TreeSum[Partial] = TreeSum(shards, add)
        for each in work:
            with noted(each, shards):
                value = self._replica.differentiate(each, key) if each.samples else None
                if self._replica.is_checked and value is not None:
                    check_apart(value.grads, [node.value.grads for node in tree.nodes if node.value is not None])
            tree.put(Node(each.index, each.index + 1, value))
        return tree.nodes


def _partial(
    grads: list[Tensor | None], loss: Tensor, count: float | Tensor, samples: int, buffers: dict[int, Changed]
) -> Partial:
    """What one shard brings. Sparse gradients go apart: they are added and exchanged in another way."""
    sparse = {place: grad for place, grad in enumerate(grads) if grad is not None and grad.is_sparse}
    for place in sparse:
        grads[place] = None
    return Partial(grads, loss.detach(), count, samples, buffers, sparse=sparse)


def scaled(loss: Tensor, work: ShardWork) -> Tensor:
    """What is differentiated. Without a factor the loss itself: its graph stays what it was."""
    return loss if not isinstance(work.factor, Tensor) and work.factor == 1 else loss * work.factor


@contextmanager
def noted(work: ShardWork, shards: int) -> Iterator[None]:
    """What is raised in this block says which shard it was."""
    try:
        yield
    except Exception as error:
        if "does not have a deterministic implementation" in str(error):
            error.add_note(
                'fanwise.run(..., reduce="fast") allows such operators; results then differ from run to run in their '
                "last bits, on one device too. Another operator may have a deterministic form."
            )
        error.add_note(f"in shard {work.index} of {shards}, which has {work.samples} samples of the batch")
        if shards > 1 and "more than 1 value per channel" in str(error):
            error.add_note(
                "Batch normalisation is by shard, and this one is too small for it. Leave a small last batch out "
                "(drop_last=True), give fewer shards= (1: the whole batch), or batch_norm='global'."
            )
        raise
