"""What is called in place of `F.batch_norm` while shards are normalised together: its formulas, over all shards.

    mean, variance    over the N values of a channel in all shards               one meeting in the forward pass
    y  = w (x - mean) r + b,    r = 1 / sqrt(variance + eps)
    dw = sum dy (x - mean) r,   db = sum dy                                      of this shard
    dx = w r (dy - S1 / N - (x - mean) r^2 S2 / N)                               one meeting in the backward pass
         S1 = sum dy, S2 = sum dy (x - mean)                                     over all shards

(Ioffe and Szegedy, arXiv 1502.03167, section 3.) It is put in place of the function, not of the layers: so it holds
for BatchNorm1d, 2d and 3d, for subclasses, for a layer called several times and for a plain call, each with its own
momentum and mode. What is not in training mode is left to torch.

A shard's output depends on the inputs of all shards, so its backward pass must go through every call that any of them
goes through, and all in the same order. That is what the chain is for, a number without meaning that runs from call to
call: its gradient comes to each call from the one after it, whether or not the loss of this shard depends on the
output. A call that no shard's loss depends on passes no gradient on, and its parameters get none, as in a plain loop.
"""

# C: channels

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from .meetings import Contribution, Place
from .moments import Moments, along_channels, merge, moments_of, summed, widened

Meet = Callable[[Contribution], Any]  # Any: the sum over all shards of what each has brought


class TogetherNormalised(TorchFunctionMode):
    """While it is entered, for one shard, batch normalisation is that of the whole batch.

    Attributes:
        end: of the chain through the calls; None without any. To be differentiated along with the loss.
    """

    def __init__(self, meet: Meet) -> None:
        super().__init__()
        self.end: Tensor | None = None
        self._meet = meet
        self._calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # Any: torch's
        kwargs = kwargs or {}
        if func is F.batch_norm and kwargs["training"]:
            return self._normalised(*args, **kwargs)
        return func(*args, **kwargs)

    def _normalised(
        self,
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
        dtype = widened(x).dtype if weight is None else weight.dtype
        has_gradient = torch.is_grad_enabled() and x.requires_grad
        place = Place("forward", self._calls, x.shape[1], has_gradient)
        self._calls += 1
        brought = Contribution(place, moments_of(x.detach()), merge, lambda whole: _Statistics(whole, eps, dtype))
        whole: _Statistics | None = self._meet(brought)
        if whole is None:  # no shard has a value
            return F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
        if whole.count == 1:
            raise ValueError(f"Expected more than 1 value per channel when training, got input size {list(x.shape)}")
        if running_mean is not None:
            running_mean.lerp_(whole.mean_C.to(running_mean.dtype), momentum)
        if running_var is not None:
            running_var.lerp_(whole.unbiased_variance_C.to(running_var.dtype), momentum)
        apply: Callable[..., tuple[Tensor, Tensor]] = _Normalisation.apply  # torch has not annotated it
        y, end = apply(x, weight, bias, self.end, whole, eps, place, self._meet)
        if has_gradient:
            self.end = end
        return y


class _Statistics:
    """Of all values in one call.

    Attributes:
        count: of the values of a channel. mean_C, variance_C: what they are normalised with.
        unbiased_variance_C: what the running variance is made of.
        inverse_C: r of the formulas, in float64.
    """

    def __init__(self, whole: Moments, eps: float, dtype: torch.dtype) -> None:
        variance_C = whole.squares_C / whole.count
        self.count = whole.count
        self.mean_C = whole.mean_C.to(dtype)
        self.variance_C = variance_C.to(dtype)
        self.unbiased_variance_C = whole.squares_C / (whole.count - 1)
        self.inverse_C = (variance_C + eps).rsqrt()


class _Normalisation(Function):
    """One call, of one shard."""

    @staticmethod
    def forward(
        ctx: Any,  # Any: torch lets a function keep what it needs there
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        chain: Tensor | None,
        whole: _Statistics,
        eps: float,
        place: Place,
        meet: Meet,
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weight)
        ctx.whole, ctx.place, ctx.meet = whole, place, meet
        y = F.batch_norm(x, whole.mean_C, whole.variance_C, weight, bias, training=False, eps=eps)
        return y, whole.inverse_C.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor | None, _chain: Tensor | None) -> tuple[Tensor | None, ...]:  # Any: as above
        x, weight = ctx.saved_tensors
        whole: _Statistics = ctx.whole
        deviation = widened(x) - along_channels(whole.mean_C, x)
        own = None if dy is None else torch.stack([summed(dy), summed(dy * deviation)])
        dx = dw = db = None
        if ctx.needs_input_grad[0]:
            place = Place("backward", ctx.place.call, ctx.place.channels)
            brought = Contribution(place, own, torch.add, lambda sums: _factors(sums, whole, weight, deviation.dtype))
            factors: tuple[Tensor, Tensor, Tensor] | None = ctx.meet(brought)
            dx = None if factors is None else _input_grad(dy, deviation, factors).to(x.dtype)
        if own is not None and ctx.needs_input_grad[1]:
            dw = (own[1] * whole.inverse_C).to(weight.dtype)
        if own is not None and ctx.needs_input_grad[2]:
            db = own[0].to(whole.mean_C.dtype)
        return dx, dw, db, None, None, None, None, None


def _factors(
    sums: Tensor, whole: _Statistics, weight: Tensor | None, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    """What dx is made of: dy times the first, the deviation times the second, and the third."""
    of_dy_C = whole.inverse_C if weight is None else whole.inverse_C * weight
    means = of_dy_C * sums / whole.count
    of_deviation_C = -means[1] * whole.inverse_C.square()
    return of_dy_C.to(dtype), of_deviation_C.to(dtype), -means[0].to(dtype)


def _input_grad(dy: Tensor | None, deviation: Tensor, factors: tuple[Tensor, Tensor, Tensor]) -> Tensor:
    """dx of the formulas, in the memory of `deviation`."""
    of_dy, of_deviation, constant = (along_channels(each_C, deviation) for each_C in factors)
    deviation.mul_(of_deviation).add_(constant)
    return deviation if dy is None else deviation.addcmul_(dy, of_dy)
