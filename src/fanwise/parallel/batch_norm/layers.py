"""Execute a shard whose batch-norm layers use the statistics of the whole batch.

    mean, variance    over the N values of a channel in all shards        one exchange in the forward pass
    y  = w (x - mean) r + b,    r = 1 / sqrt(variance + eps)
    dw = sum dy (x - mean) r,   db = sum dy                               of this shard
    dx = w r (dy - S1 / N - (x - mean) r^2 S2 / N)                        one exchange in the backward pass
         S1 = sum dy, S2 = sum dy (x - mean)                              over all shards

(Ioffe and Szegedy, arXiv 1502.03167, section 3.) As with torch's SyncBatchNorm, every process executes one shard, and
all must call the same layers in the same order, forward and backward. Statistics are added along the tree over the
shards, in float64, so their bits do not depend on which process executes which shard.
"""

# C: channels

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MethodType
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from ...base.errors import WorkerLostError
from ...base.nearest import did_you_mean
from ...tensor.random.keys import Key
from ..comm.team import Team
from ..replica.gradients import Partial
from ..replica.replicas import Replica, ShardWork, noted
from ..shards import Node, TreeSum
from .moments import Moments, along_channels, merge, moments_of, summed, widened

BatchNorm = Literal["shard", "global"]
_KINDS = ("shard", "global")

T = TypeVar("T", Moments, Tensor)


def check_batch_norm(batch_norm: BatchNorm, model: nn.Module, *, shards: int, processes: int) -> None:
    """Raise ValueError for an unknown kind, and for "global" where it cannot be computed.

    It needs one shard per process, and layers that are neither compiled nor scripted.
    """
    if batch_norm not in _KINDS:
        raise ValueError(f"unknown batch_norm={batch_norm!r}{did_you_mean(batch_norm, _KINDS)}")
    if batch_norm == "shard":
        return
    if shards != processes:
        raise ValueError(
            f"batch_norm='global' needs one shard per process, but there are {shards} shards and {processes} "
            f"{'process' if processes == 1 else 'processes'}.\n"
            f"  wrong:  fanwise.run(train, devices={processes}, shards={shards})\n"
            f'  right:  fanwise.run(train, devices={shards}, shards="devices")\n'
            f"  right:  fanwise.run(train, devices=1, shards=1)"
        )
    for name, module in model.named_modules():
        is_compiled = hasattr(module, "_orig_mod") or module._compiled_call_impl is not None
        if is_compiled or isinstance(module, torch.jit.ScriptModule):
            state = "compiled" if is_compiled else "scripted"
            where = repr(name) if name else "the model"
            raise ValueError(
                f"batch_norm='global' cannot replace layers in {where}, which is {state}.\n"
                f"Pass the original model, or use batch_norm='shard'."
            )


class GlobalNormDevice:
    """A device that executes one shard per step, together with the other processes of the team."""

    def __init__(self, replica: Replica, team: Team) -> None:
        self._replica = replica
        self._team = team

    def execute(self, work: Sequence[ShardWork], key: Key, shards: int) -> list[Node[Partial]]:
        if self._team.size != shards:
            raise WorkerLostError(
                f"{shards - self._team.size} of {shards} processes died. The others cannot take over their shards, "
                f"because batch_norm='global' needs one shard per process.\nStart the run again with resume=."
            )
        (shard,) = work
        exchange = _Exchange(self._team, shard.index, shards, self._replica.device)
        value = None
        if not shard.samples:
            exchange.follow()
        elif shards == 1:
            with noted(shard, shards):
                value = self._replica.differentiate(shard, key)
        else:
            # The backward pass stays in this thread, which is the one that may use the team.
            with noted(shard, shards), torch.autograd.set_multithreading_enabled(False):
                with _replaced_layers(self._replica.modules, exchange):
                    value = self._replica.differentiate(shard, key)
                exchange.end()
        return [Node(shard.index, shard.index + 1, value)]


class _Exchange:
    """Adds statistics of one step over the shards of all processes. Each method blocks until all processes call it."""

    def __init__(self, team: Team, shard: int, shards: int, device: torch.device) -> None:
        self.calls = 0  # of layers, forward
        self._places: frozenset[str] = frozenset()  # of the last exchange
        self._team = team
        self._shard = shard
        self._shards = shards
        self._device = device

    def total(self, place: str, value: T | None, add: Callable[[T, T], T]) -> T | None:
        """Return the sum over all shards. None stands for a shard without values.

        Raises:
            ValueError: another shard is at another place of its forward or backward pass.
        """
        tree: TreeSum[T] = TreeSum(self._shards, add)
        for shard, other in sorted(self._gather(place, None if value is None else value.to("cpu")).items()):
            tree.put(Node(shard, shard + 1, None if other is None else other.to(self._device)))
        (root,) = tree.nodes
        return root.value

    def end(self) -> None:
        """Check that the passes of the other shards are over, too."""
        self._gather("at its end", None)

    def follow(self) -> None:
        """Take part in the exchanges of the other processes until their passes are over, without samples."""
        while "at its end" not in self._places:
            self._gather(None, None)

    def _gather(self, place: str | None, value: Any) -> dict[int, Any]:  # Any: moments or a tensor
        contents = self._team.gather("normalizes a batch", (self._shard, place, value))
        places = [(shard, place) for shard, place, _ in contents if place is not None]
        for shard, other in places[1:]:
            if other != places[0][1]:
                raise ValueError(
                    f"batch_norm='global': shard {places[0][0]} is {places[0][1]}, and shard {shard} is {other}.\n"
                    f"All shards must call the same batch-norm layers in the same order, because their statistics are "
                    f"added up. batch_norm='shard' has no such condition."
                )
        self._places = frozenset(place for _, place in places)
        return {shard: other for shard, _, other in contents}


@contextmanager
def _replaced_layers(modules: Mapping[str, nn.Module], exchange: _Exchange) -> Iterator[None]:
    """In this block batch-norm layers normalize with global statistics, also when activations are recomputed."""
    layers = {part for module in modules.values() for part in module.modules() if isinstance(part, _BatchNorm)}
    before = {layer: layer.__dict__.get("forward") for layer in layers}
    forward: Any
    for layer in layers:
        # SyncBatchNorm would exchange statistics over torch's default process group.
        is_sync = type(layer).forward is nn.SyncBatchNorm.forward
        forward = MethodType(_BatchNorm.forward, layer) if is_sync else layer.forward
        layer.__dict__["forward"] = partial(_forward, exchange, forward)
    try:
        yield
    finally:
        for layer, forward in before.items():
            del layer.__dict__["forward"]
            if forward is not None:
                layer.__dict__["forward"] = forward


def _forward(exchange: _Exchange, forward: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    with _GlobalStatistics(exchange):
        return forward(x)


class _GlobalStatistics(TorchFunctionMode):
    """Replaces `F.batch_norm` in training mode. The layer decides about its mode, momentum and running statistics."""

    def __init__(self, exchange: _Exchange) -> None:
        super().__init__()
        self._exchange = exchange

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # Any: torch's
        kwargs = kwargs or {}
        if func is F.batch_norm and kwargs["training"]:
            return _batch_norm(self._exchange, *args, **kwargs)
        return func(*args, **kwargs)


def _batch_norm(
    exchange: _Exchange,
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    *,
    weight: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    eps: float,
) -> Tensor:
    place = f"in call {exchange.calls} of a batch-norm layer, with {x.shape[1]} channels"
    exchange.calls += 1
    whole = exchange.total(f"{place}, forward", moments_of(x.detach()), merge)
    if whole is None:  # no shard has values
        return F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
    if whole.count == 1:
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {list(x.shape)}")
    if running_mean is not None:
        running_mean.lerp_(whole.mean_C.to(running_mean.dtype), momentum)
    if running_var is not None:
        running_var.lerp_((whole.squares_C / (whole.count - 1)).to(running_var.dtype), momentum)
    apply: Callable[..., Tensor] = _Normalization.apply  # torch has not annotated it
    return apply(x, weight, bias, whole, eps, partial(exchange.total, f"{place}, backward"))


class _Normalization(Function):
    @staticmethod
    def forward(
        ctx: Any,  # Any: torch's
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        whole: Moments,
        eps: float,
        total: Callable[..., Tensor],
    ) -> Tensor:
        dtype = widened(x).dtype if weight is None else weight.dtype
        mean_C, variance_C = whole.mean_C.to(dtype), whole.squares_C / whole.count
        ctx.save_for_backward(x, weight)
        ctx.mean_C, ctx.inverse_C, ctx.count, ctx.total = mean_C, (variance_C + eps).rsqrt(), whole.count, total
        return F.batch_norm(x, mean_C, variance_C.to(dtype), weight, bias, training=False, eps=eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:  # Any: torch's
        x, weight = ctx.saved_tensors
        inverse_C = ctx.inverse_C  # r, in float64
        deviation = widened(x) - along_channels(ctx.mean_C, x)
        sums = torch.stack([summed(dy), summed(dy * deviation)])
        dx = dw = db = None
        if ctx.needs_input_grad[0]:
            factor_C = inverse_C if weight is None else inverse_C * weight
            means = factor_C * ctx.total(sums, torch.add) / ctx.count
            factors_C = (factor_C, -means[1] * inverse_C.square(), -means[0])
            of_dy, of_deviation, constant = (along_channels(each_C.to(deviation.dtype), x) for each_C in factors_C)
            dx = deviation.mul_(of_deviation).add_(constant).addcmul_(dy, of_dy).to(x.dtype)
        if ctx.needs_input_grad[1]:
            dw = (sums[1] * inverse_C).to(weight.dtype)
        if ctx.needs_input_grad[2]:
            db = sums[0].to(ctx.mean_C.dtype)
        return dx, dw, db, None, None, None
