"""`batch_norm="global"`: batch normalization with the statistics of the whole batch, like torch's SyncBatchNorm.

    mean, variance    over the N values of a channel in all shards        one exchange in the forward pass
    y  = w (x - mean) r + b,    r = 1 / sqrt(variance + eps)
    dw = sum dy (x - mean) r,   db = sum dy                               of this shard
    dx = w r (dy - S1 / N - (x - mean) r^2 S2 / N)                        one exchange in the backward pass
         S1 = sum dy, S2 = sum dy (x - mean)                              over all shards

(Ioffe and Szegedy, arXiv 1502.03167, section 3.) Each process executes one shard, and all shards must call the same
layers in the same order. Statistics are added in float64, in the order of the tree over the shards.
"""

# The suffix C means one value per channel.

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from types import MethodType
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from ..base.errors import WorkerLostError
from ..tensor.random.keys import Key
from .comm.team import Team
from .step.gradients import Partial
from .step.replicas import Replica, ShardWork, add_shard_note
from .step.tree import Node, TreeSum
from .validation.arguments import check_name

BatchNormMode = Literal["shard", "global"]

_FINISHED = "past its last layer"  # the progress of a shard whose backward pass has ended


def check_batch_norm(batch_norm: BatchNormMode, model: nn.Module, *, shards: int, processes: int) -> None:
    """Raise ValueError for an unknown value, and for "global" where it is not supported."""
    check_name("batch_norm", batch_norm, ("shard", "global"))
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
            raise ValueError(
                f"batch_norm='global' cannot replace layers in {repr(name) if name else 'the model'}, which is "
                f"{'compiled' if is_compiled else 'scripted'}.\nPass the original model, or use batch_norm='shard'."
            )


class GlobalBatchNormDevice:
    """Executes the one shard of this process, and exchanges statistics with the other processes."""

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
        exchange = _Exchange(self._team, shard.index, shards)
        value = None
        if not shard.samples:
            exchange.follow()
        elif shards == 1:
            with add_shard_note(shard, shards):
                value = self._replica.differentiate(shard, key)
        else:
            # The backward pass runs in this thread, because only this thread may use the team.
            with add_shard_note(shard, shards), torch.autograd.set_multithreading_enabled(False):
                with _replaced_layers(self._replica.modules, exchange):
                    value = self._replica.differentiate(shard, key)
                exchange.gather(_FINISHED, None)
        return [Node(shard.index, shard.index + 1, value)]


class _Exchange:
    """The exchanges of one step. `total` and `gather` block until all processes have called one of them.

    A process without samples calls `follow` instead.
    """

    def __init__(self, team: Team, shard: int, shards: int) -> None:
        self.num_calls = 0  # of batch normalization in the forward pass
        self._has_ended = False  # the shards have ended their backward passes
        self._team = team
        self._shard = shard
        self._shards = shards

    def total(self, progress: str, value: Tensor | None, add: Callable[[Tensor, Tensor], Tensor]) -> Tensor | None:
        """Return the sum over all shards, on the CPU. None stands for a shard without values, or no values at all."""
        tree: TreeSum[Tensor] = TreeSum(self._shards, add)
        for shard, shard_value in self.gather(progress, None if value is None else value.cpu()):
            tree.put(Node(shard, shard + 1, shard_value))
        return tree.nodes[0].value

    def follow(self) -> None:
        """Take part without samples until the other shards have ended their passes."""
        while not self._has_ended:
            self.gather(None, None)

    def gather(self, progress: str | None, value: Tensor | None) -> list[tuple[int, Tensor | None]]:
        """Return the values by shard.

        Args:
            progress: where this shard is in its passes. None for a shard without samples.

        Raises:
            ValueError: the shards have different progress.
        """
        contents = self._team.gather("normalizes a batch", (self._shard, progress, value))
        reached = [(shard, progress) for shard, progress, _ in contents if progress is not None]
        for shard, progress in reached:
            if progress != reached[0][1]:
                raise ValueError(
                    f"batch_norm='global': shard {reached[0][0]} is {reached[0][1]}, and shard {shard} is {progress}.\n"
                    f"All shards must call the same batch-norm layers in the same order, because their statistics are "
                    f"added up. batch_norm='shard' does not require that."
                )
        self._has_ended = (reached[0][1] if reached else None) == _FINISHED
        return sorted(((shard, value) for shard, _, value in contents), key=lambda pair: pair[0])


@contextmanager
def _replaced_layers(modules: Mapping[str, nn.Module], exchange: _Exchange) -> Iterator[None]:
    """Let batch-norm layers use global statistics in this block, also when activations are recomputed."""
    layers = {layer for module in modules.values() for layer in module.modules() if isinstance(layer, _BatchNorm)}
    before = {layer: layer.__dict__.get("forward") for layer in layers}
    for layer in layers:
        # SyncBatchNorm would exchange statistics over torch's default process group.
        is_sync = type(layer).forward is nn.SyncBatchNorm.forward
        forward = MethodType(_BatchNorm.forward, layer) if is_sync else layer.forward
        layer.__dict__["forward"] = partial(_forward, exchange, forward)
    try:
        yield
    finally:
        for layer, original in before.items():
            del layer.__dict__["forward"]
            if original is not None:
                layer.__dict__["forward"] = original


def _forward(exchange: _Exchange, forward: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    with _GlobalStatistics(exchange):
        return forward(x)


class _GlobalStatistics(TorchFunctionMode):
    """Replaces `F.batch_norm` in training mode. A layer still determines its momentum and counts its calls."""

    def __init__(self, exchange: _Exchange) -> None:
        super().__init__()
        self._exchange = exchange

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.batch_norm and kwargs["training"]:
            return _batch_norm(self._exchange, *args, **kwargs)
        return func(*args, **kwargs)


def _batch_norm(
    exchange: _Exchange, x: Tensor, running_mean: Tensor | None, running_var: Tensor | None, **options: Any
) -> Tensor:
    progress = f"in call {exchange.num_calls} of a batch-norm layer, with {x.shape[1]} channels"
    exchange.num_calls += 1
    moments = exchange.total(f"{progress}, forward", moments_of(x.detach()), merge)
    if moments is None:  # no shard has values
        return F.batch_norm(x, running_mean, running_var, **options)
    count = int(moments[0, 0])
    if count == 1:
        raise ValueError(f"Expected more than 1 value per channel when training, got input size {list(x.shape)}")
    _, mean_C, squares_C = moments.to(x.device)
    if running_mean is not None:
        running_mean.lerp_(mean_C.to(running_mean.dtype), options["momentum"])
    if running_var is not None:
        running_var.lerp_((squares_C / (count - 1)).to(running_var.dtype), options["momentum"])
    apply: Callable[..., Tensor] = _Normalization.apply
    total = partial(exchange.total, f"{progress}, backward", add=torch.add)
    return apply(x, options["weight"], options["bias"], mean_C, squares_C / count, count, options["eps"], total)


class _Normalization(Function):
    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Any,
        bias: Any,
        mean_C: Tensor,
        variance_C: Tensor,
        count: int,
        eps: float,
        total: Any,
    ) -> Tensor:
        dtype = _widen(x).dtype if weight is None else weight.dtype
        ctx.save_for_backward(x, weight)
        ctx.mean_C, ctx.inverse_C, ctx.count, ctx.total = mean_C.to(dtype), (variance_C + eps).rsqrt(), count, total
        return F.batch_norm(x, ctx.mean_C, variance_C.to(dtype), weight, bias, training=False, eps=eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        inverse_C = ctx.inverse_C  # r, in float64
        deviation = _widen(x) - _broadcast(ctx.mean_C, x)
        sums = torch.stack([_sum(dy), _sum(dy * deviation)])
        dx = dw = db = None
        if ctx.needs_input_grad[0]:
            factor_C = inverse_C if weight is None else inverse_C * weight
            means = factor_C * ctx.total(sums).to(x.device) / ctx.count
            factors_C = (factor_C, -means[1] * inverse_C.square(), -means[0])
            dy_factor, deviation_factor, constant = (_broadcast(C.to(deviation.dtype), x) for C in factors_C)
            dx = deviation.mul_(deviation_factor).add_(constant).addcmul_(dy, dy_factor).to(x.dtype)
        if ctx.needs_input_grad[1]:
            dw = (sums[1] * inverse_C).to(weight.dtype)
        if ctx.needs_input_grad[2]:
            db = sums[0].to(ctx.mean_C.dtype)
        return dx, dw, db, None, None, None, None, None


def moments_of(x: Tensor) -> Tensor | None:
    """Return count, mean and sum of squared deviations of each channel, in float64. None if there are no values."""
    count = x.numel() // x.shape[1] if x.shape[1] else 0
    if count == 0:
        return None
    wide = _widen(x)
    mean_C = _sum(wide) / count
    # Deviations from the rounded mean need no copy of x in float64. The last term corrects the rounding.
    rounded_C = mean_C.to(wide.dtype)
    squares_C = _sum((wide - _broadcast(rounded_C, x)).square_()) - count * (mean_C - rounded_C).square()
    return torch.stack([torch.full_like(mean_C, count), mean_C, squares_C.clamp_(min=0)])


def merge(left: Tensor, right: Tensor) -> Tensor:
    """Return the moments of the combined values, by the update formula of Chan, Golub and LeVeque (1979)."""
    count = left[0] + right[0]
    difference_C = right[1] - left[1]
    mean_C = left[1] + difference_C * (right[0] / count)
    squares_C = left[2] + right[2] + difference_C.square() * (left[0] * right[0] / count)
    return torch.stack([count, mean_C, squares_C])


def _sum(x: Tensor) -> Tensor:
    return x.sum([axis for axis in range(x.ndim) if axis != 1], dtype=torch.float64)


def _broadcast(values_C: Tensor, x: Tensor) -> Tensor:
    return values_C.view([1, -1] + [1] * (x.ndim - 2))


def _widen(x: Tensor) -> Tensor:
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
