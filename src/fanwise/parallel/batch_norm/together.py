"""A device whose shards normalise their batches together; everything else is as on a `LocalDevice`.

    shard 0   forward --+          +-- forward --+        ...  loss, backward --+          +-- ...
    shard 1             +-- meet --+             +-- meet                       +-- meet --+

All shards of a process are under way at once, so their activations are in memory at once.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from types import MethodType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from ...base.nearest import did_you_mean
from ...tensor.random.keys import Key
from ..replica.gradients import Partial, add
from ..replica.replicas import Replica, ShardWork, noted, partial_of, scaled
from ..rng import MEMORY, stream
from ..shards import Node, TreeSum
from .layers import TogetherNormalised
from .meetings import Gatherer, Meetings
from .own import Gradients, apart
from .relay import Relay
from .surroundings import Surroundings

BatchNorm = Literal["shard", "global"]
_WAYS = ("shard", "global")


class TogetherDevice:
    """All shards of this process, normalised together, and with those of the other processes of `gatherer`."""

    def __init__(self, replica: Replica, gatherer: Gatherer) -> None:
        self._replica = replica
        self._gatherer = gatherer

    def execute(self, work: Sequence[ShardWork], key: Key, shards: int) -> list[Node[Partial]]:
        return differentiate_together(self._replica, work, key, shards, self._gatherer)


def differentiate_together(
    replica: Replica, works: Sequence[ShardWork], key: Key, shards: int, gatherer: Gatherer
) -> list[Node[Partial]]:
    """Forward and backward of consecutive shards whose batch-norm layers see the whole batch.

    Every process of `gatherer` has to call it for a step, also one without shards. Blocks until the shards of all are
    done. What it raises leaves the modules and random states as they were; gradients of parameters stay None.

    Returns:
        The nodes of the tree over `shards` that cover `works`.

    Raises:
        ValueError: the shards do not call the same layers; or one value a channel in the whole batch; or a shard
            draws from numpy's or Python's random numbers.
        What a shard raises, with a note on it. What gathering raises.
    """
    meetings = Meetings(works, shards, gatherer, replica.device)
    full = [work for work in works if work.samples]
    streams = MEMORY.read()
    made = _Shards(replica, full, key, shards, meetings).partials() if full else []
    if shards > 1:
        replica.forget_others()
        if made:  # the modules have the attributes of the first shard
            made[0].attributes = replica.attributes.take()
    partials = iter(made)
    if shards > 1 and (replica.own_generators or MEMORY.read() != streams):
        MEMORY.write(streams)
        raise ValueError(
            "batch_norm='global': the model or loss_fn draws from numpy's or Python's random numbers, or from a "
            "generator of its own, and the shards, which are all under way at once, would draw from it in turns.\n"
            "  wrong:  np.random.rand(), random.random()\n"
            "  right:  torch.rand(()), which has a stream of its own in each shard"
        )
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
        if self._shards == 1:  # nobody to be normalised with: the bits of torch's own layers
            with noted(self._works[0], self._shards):
                return [self._replica.differentiate(self._works[0], self._key)]
        with ExitStack() as stack:
            stack.enter_context(_entering(self._replica.model, lambda: self._modes[self._relay.turn]))
            several = len(self._works) > 1
            contexts = stack.enter_context(apart(self._replica.model, len(self._works))) if several else [_Nothing()]
            self._relay = Relay(contexts, self._partial, self._meetings.meet)
            self._gradients = Gradients(self._replica.params, len(self._works), lambda: self._relay.turn)
            stack.enter_context(self._gradients.taken())
            self._modes = [TogetherNormalised(self._relay.meet) for _ in self._works]
            self._surroundings = Surroundings(self._replica.device)
            return self._relay.run()

    def _partial(self, member: int) -> Partial:
        """All of one shard, by its own thread."""
        work, replica = self._works[member], self._replica
        with (
            noted(work, self._shards),
            self._surroundings.entered(),
            stream(self._key.fold_in(work.index), replica.generators),
        ):
            with self._modes[member]:
                loss, count = replica.loss(work)
            roots, end = [scaled(loss, work)], self._modes[member].end
            torch.autograd.backward(roots if end is None else [*roots, end], [None] if end is None else [None, end * 0])
        changed = replica.buffers.take(work.samples)
        return partial_of(self._gradients.of[member], loss, count, work.samples, changed, {})


class _Nothing:
    """What the only shard of a process needs for itself: there is nobody else."""

    def enter(self) -> None:
        pass

    def leave(self) -> None:
        pass


@contextmanager
def _entering(model: nn.Module, mode: Callable[[], TogetherNormalised]) -> Iterator[None]:
    """In this block each batch-norm layer enters the mode by itself.

    torch switches modes off in a backward pass, where layers are called again when activations are recomputed. And what
    SyncBatchNorm does is what the other layers do, also where there is a process group that it would ask.
    """
    layers = [module for module in model.modules() if isinstance(module, _BatchNorm)]
    before = [layer.__dict__.get("forward") for layer in layers]
    for layer in layers:
        is_sync = type(layer).forward is nn.SyncBatchNorm.forward
        forward = MethodType(_BatchNorm.forward, layer) if is_sync else layer.forward
        layer.__dict__["forward"] = partial(_entered, mode, forward)
    try:
        yield
    finally:
        for layer, own in zip(layers, before, strict=True):
            del layer.__dict__["forward"]
            if own is not None:
                layer.__dict__["forward"] = own


def _entered(
    mode: Callable[[], TogetherNormalised], forward: Callable[..., Tensor], *args: Any, **kwargs: Any
) -> Tensor:  # Any: of the layer
    with mode():
        return forward(*args, **kwargs)


def check_batch_norm(batch_norm: BatchNorm, model: nn.Module) -> None:
    """Raises ValueError for an unknown way, and for "global" where layers cannot wait: compiled or scripted code."""
    if batch_norm not in _WAYS:
        raise ValueError(f"unknown batch_norm={batch_norm!r}{did_you_mean(batch_norm, _WAYS)}")
    if batch_norm == "shard":
        return
    for name, module in model.named_modules():
        is_compiled = hasattr(module, "_orig_mod") or module._compiled_call_impl is not None
        if is_compiled or isinstance(module, torch.jit.ScriptModule):
            what = "compiled" if is_compiled else "scripted"
            raise ValueError(
                f"batch_norm='global': {name or 'the model'!r} is {what}, so its layers cannot wait for other shards.\n"
                f"Give the model itself, or batch_norm='shard'."
            )
