"""`batch_norm="global"`: batch normalization with the statistics of the whole batch, like torch's SyncBatchNorm.

    mean, variance    over the N values of a channel in all shards        one collective operation in the forward pass
    y  = w (x - mean) r + b,    r = 1 / sqrt(variance + eps)
    dw = sum dy (x - mean) r,   db = sum dy                               of this shard
    dx = w r (dy - S1 / N - (x - mean) r^2 S2 / N)                        one collective operation in the backward pass
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
from .validation.arguments import check_one_of

BatchNormMode = Literal["shard", "global"]


def check_batch_norm(batch_norm: BatchNormMode, model: nn.Module, *, shards: int, processes: int) -> None:
    """Raise ValueError for an unknown value. Refuse "global" if a process has several shards or a layer is compiled."""
    check_one_of("batch_norm", batch_norm, ("shard", "global"))
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


def execute_globally(
    replica: Replica, team: Team, work: Sequence[ShardWork], key: Key, shards: int
) -> list[Node[Partial]]:
    """Execute the one shard of this process, with statistics over the shards of all processes.

    Blocks until all processes call it.
    """
    if team.size != shards:
        raise WorkerLostError(
            f"{shards - team.size} of {shards} processes died. The others cannot take over their shards, because "
            f"batch_norm='global' needs one shard per process.\nStart the run again with resume=."
        )
    (shard,) = work
    if not shard.samples:
        raise ValueError(
            "batch_norm='global' needs at least one sample per process, and this batch has fewer. Use "
            "drop_last=True to leave out a small last batch."
        )
    with add_shard_note(shard, shards):
        if shards == 1:
            return [Node(0, 1, replica.differentiate(shard, key))]
        # The backward pass runs in this thread, because only this thread may use the team.
        with torch.autograd.set_multithreading_enabled(False), _replaced_layers(replica.modules, _ShardSums(team)):
            return [Node(shard.index, shard.index + 1, replica.differentiate(shard, key))]


class _ShardSums:
    """Adds values of all shards in one forward and backward pass."""

    def __init__(self, team: Team) -> None:
        self.num_calls = 0  # of batch normalization in the forward pass
        self._team = team

    def total(self, call: str, value: Tensor | None, add: Callable[[Tensor, Tensor], Tensor]) -> Tensor | None:
        """Return the sum over all shards, on the CPU. Blocks until all processes call it.

        `call` describes the call of a layer, which must be the same in all processes. `value` is None if this shard has
        no values for the layer.
        """
        tree: TreeSum[Tensor] = TreeSum(self._team.size, add)
        values = self._team.gather(f"normalizes {call}", None if value is None else value.cpu())
        for shard, shard_value in enumerate(values):
            tree.put(Node(shard, shard + 1, shard_value))
        return tree.nodes[0].value


@contextmanager
def _replaced_layers(modules: Mapping[str, nn.Module], shard_sums: _ShardSums) -> Iterator[None]:
    """Let batch-norm layers use global statistics in this block, also when activations are recomputed."""
    layers = {layer for module in modules.values() for layer in module.modules() if isinstance(layer, _BatchNorm)}
    before = {layer: layer.__dict__.get("forward") for layer in layers}
    for layer in layers:
        # SyncBatchNorm would add statistics over torch's default process group.
        is_sync = type(layer).forward is nn.SyncBatchNorm.forward
        forward = MethodType(_BatchNorm.forward, layer) if is_sync else layer.forward
        layer.__dict__["forward"] = partial(_forward, shard_sums, forward)
    try:
        yield
    finally:
        for layer, original in before.items():
            del layer.__dict__["forward"]
            if original is not None:
                layer.__dict__["forward"] = original


def _forward(shard_sums: _ShardSums, forward: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    with _GlobalStatistics(shard_sums):
        return forward(x)


class _GlobalStatistics(TorchFunctionMode):
    """Replaces `F.batch_norm` in training mode. A layer still determines its momentum and counts its calls."""

    def __init__(self, shard_sums: _ShardSums) -> None:
        super().__init__()
        self._shard_sums = shard_sums

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.batch_norm and kwargs["training"]:
            return _batch_norm(self._shard_sums, *args, **kwargs)
        return func(*args, **kwargs)


def _batch_norm(
    shard_sums: _ShardSums, x: Tensor, running_mean: Tensor | None, running_var: Tensor | None, **options: Any
) -> Tensor:
    call = f"call {shard_sums.num_calls} of a batch-norm layer, with {x.shape[1]} channels"
    shard_sums.num_calls += 1
    moments = shard_sums.total(f"{call}, forward", moments_of(x.detach()), merge)
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
    total = partial(shard_sums.total, f"{call}, backward", add=torch.add)
    return apply(x, options["weight"], options["bias"], mean_C, squares_C / count, count, options["eps"], total)


class _Normalization(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Any, bias: Any, *statistics: Any) -> Tensor:
        mean_C, variance_C, count, eps, total = statistics
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
