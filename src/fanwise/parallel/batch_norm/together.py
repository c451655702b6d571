"""A device whose shards normalise their batches together; everything else is as on a `LocalDevice`.

    shard 0   forward --+          +-- forward --+        ...  loss, backward --+          +-- ...
    shard 1             +-- meet --+             +-- meet                       +-- meet --+

All shards of a process are under way at once, so their activations are in memory at once.
"""

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from types import MethodType

import torch
from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm

from ...tensor.random.keys import Key
from ..chance import stream
from ..gradients import Partial, add
from ..replicas import Replica, ShardWork
from ..shards import Node, TreeSum
from ..splitting import arguments
from .layers import TogetherNormalised
from .meetings import Exchange, Meetings, OwnProcess
from .own import Gradients, apart
from .relay import Relay
from .surroundings import Surroundings


class TogetherDevice:
    """All shards of this process, normalised together, and with those of the other processes of `exchange`."""

    def __init__(self, replica: Replica, exchange: Exchange | None = None) -> None:
        self._replica = replica
        self._exchange = OwnProcess() if exchange is None else exchange

    def execute(self, work: Sequence[ShardWork], key: Key, shards: int) -> list[Node[Partial]]:
        return differentiate_together(self._replica, work, key, shards, self._exchange)


def differentiate_together(
    replica: Replica, works: Sequence[ShardWork], key: Key, shards: int, exchange: Exchange
) -> list[Node[Partial]]:
    """Forward and backward of consecutive shards whose batch-norm layers see the whole batch.

    Every process of `exchange` has to call it for a step, also one without shards. Blocks until the shards of all are
    done. What it raises leaves the modules and random states as they were; gradients of parameters stay None.

    Returns:
        The nodes of the tree over `shards` that cover `works`.

    Raises:
        ValueError: the shards do not call the same layers; or one value a channel in the whole batch.
        What a shard raises, with a note on it. What the exchange raises.
    """
    meetings = Meetings(works, shards, exchange)
    full = [work for work in works if work.samples]
    partials = iter(_Shards(replica, full, key, shards, meetings).partials() if full else [])
    if full:
        meetings.end()
    else:
        meetings.follow()
    tree: TreeSum[Partial] = TreeSum(shards, add)
    for work in works:
        tree.put(Node(work.index, work.index + 1, next(partials) if work.samples else None))
    return tree.nodes


class _Shards:
    """The shards of one step that have samples, at least one."""

    def __init__(self, replica: Replica, works: Sequence[ShardWork], key: Key, shards: int, meetings: Meetings) -> None:
        self._replica = replica
        self._works = works
        self._key = key
        self._shards = shards
        self._meetings = meetings

    def partials(self) -> list[Partial]:
        if self._works[0].alone:  # nobody to be normalised with: the bits of torch's own layers
            with _noted(self._works[0], self._shards):
                return [self._replica.differentiate(self._works[0], self._key)]
        with ExitStack() as stack:
            stack.enter_context(_without_groups(self._replica.model))
            several = len(self._works) > 1
            baggage = stack.enter_context(apart(self._replica.model, len(self._works))) if several else [_Nothing()]
            self._relay = Relay(baggage, self._partial, self._meetings.meet)
            self._gradients = Gradients(self._replica.params, len(self._works), lambda: self._relay.turn)
            stack.enter_context(self._gradients.taken())
            self._surroundings = Surroundings(self._replica.params[0].device)
            return self._relay.run()

    def _partial(self, member: int) -> Partial:
        """All of one shard, by its own thread."""
        work, replica = self._works[member], self._replica
        with _noted(work, self._shards), self._surroundings.entered(), stream(self._key.fold_in(work.index)):
            with TogetherNormalised(self._relay.meet) as together:
                with replica._precision():
                    result = replica.loss_fn(replica.model, *arguments(work.read(work.index)))
                loss, count = replica.reader.read(result, work.samples)
                roots = [loss] if together.end is None else [loss, together.end]
                seeds = [None] if together.end is None else [None, torch.zeros_like(together.end)]
                # Not loss.backward(): a method of tensors switches the mode off, which a recomputation still needs.
                torch.autograd.backward(roots, seeds)
        changed = replica.buffers.take(work.samples)
        return Partial(self._gradients.of[member], loss.detach(), count, work.samples, changed)


class _Nothing:
    """What the only shard of a process needs for itself: there is nobody else."""

    def enter(self) -> None:
        pass

    def leave(self) -> None:
        pass


@contextmanager
def _noted(work: ShardWork, shards: int) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        error.add_note(f"in shard {work.index} of {shards}, which has {work.samples} samples of the batch")
        raise


@contextmanager
def _without_groups(model: nn.Module) -> Iterator[None]:
    """SyncBatchNorm does what the other layers do, also where there is a process group that it would ask."""
    layers = [module for module in model.modules() if type(module).forward is nn.SyncBatchNorm.forward]
    for layer in layers:
        layer.__dict__["forward"] = MethodType(_BatchNorm.forward, layer)
    try:
        yield
    finally:
        for layer in layers:
            del layer.__dict__["forward"]


def check_layers(model: nn.Module) -> None:
    """Raises ValueError for a model whose batch normalisation cannot be replaced: compiled or scripted code."""
    for name, module in model.named_modules():
        is_compiled = hasattr(module, "_orig_mod") or module._compiled_call_impl is not None
        if is_compiled or isinstance(module, torch.jit.ScriptModule):
            what = "compiled" if is_compiled else "scripted"
            raise ValueError(
                f"batch_norm='global': {name or 'the model'!r} is {what}, so its layers cannot wait for other shards.\n"
                f"Give the model itself, or batch_norm='shard'."
            )
