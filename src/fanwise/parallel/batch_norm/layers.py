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

from .meetings import Brought, Place
from .moments import Moments, merge, moments_of, spread, summed, widened

Meet = Callable[[Brought], Any]  # Any: the sum over all shards of what each has brought


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
        has_gradient = torch.is_grad_enabled() and x.requires_grad
        place = Place("forward", self._calls, x.shape[1], has_gradient)
        self._calls += 1
        whole: Moments | None = self._meet(Brought(place, moments_of(x.detach()), merge))
        if whole is None:  # no shard has a value
            return F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
        if whole.count == 1:
            raise ValueError(f"Expected more than 1 value per channel when training, got input size {list(x.shape)}")
        if running_mean is not None:
            _follow(running_mean, whole.mean_C, momentum)
        if running_var is not None:
            _follow(running_var, whole.unbiased_variance_C, momentum)
        apply: Callable[..., tuple[Tensor, Tensor]] = _Normalisation.apply  # torch has not annotated it
        y, end = apply(x, weight, bias, self.end, whole, eps, place, self._meet)
        if has_gradient:
            self.end = end
        return y


def _follow(running_C: Tensor, found_C: Tensor, momentum: float) -> None:
    running_C.copy_((1 - momentum) * running_C.double() + momentum * found_C)


class _Normalisation(Function):
    """One call, of one shard."""

    @staticmethod
    def forward(
        ctx: Any,  # Any: torch lets a function keep what it needs there
        x: Tensor,
        weight: Tensor | None,
        bias: Tensor | None,
        chain: Tensor | None,
        whole: Moments,
        eps: float,
        place: Place,
        meet: Meet,
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weight)
        ctx.whole, ctx.eps, ctx.place, ctx.meet = whole, eps, place, meet
        dtype = widened(x).dtype if weight is None else weight.dtype
        mean_C, variance_C = whole.mean_C.to(dtype), whole.variance_C.to(dtype)
        y = F.batch_norm(x, mean_C, variance_C, weight, bias, training=False, eps=eps)
        return y, whole.mean_C.new_zeros(())

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor | None, _chain: Tensor | None) -> tuple[Tensor | None, ...]:  # Any: as above
        x, weight = ctx.saved_tensors
        whole: Moments = ctx.whole
        deviation = widened(x) - spread(whole.mean_C, x).to(widened(x).dtype)
        own = None if dy is None else torch.stack([summed(dy), summed(widened(dy) * deviation)])
        inverse_C = (whole.variance_C + ctx.eps).rsqrt()
        dx = dw = db = None
        if ctx.needs_input_grad[0]:
            place = Place("backward", ctx.place.call, ctx.place.channels)
            of_all = ctx.meet(Brought(place, own, torch.add))
            dx = None if of_all is None else _input_grad(dy, deviation, of_all / whole.count, inverse_C, weight)
        if own is not None and ctx.needs_input_grad[1]:
            dw = (own[1] * inverse_C).to(weight.dtype)
        if own is not None and ctx.needs_input_grad[2]:
            db = own[0].to(weight.dtype)
        return (None if dx is None else dx.to(x.dtype)), dw, db, None, None, None, None, None


def _input_grad(
    dy: Tensor | None, deviation: Tensor, means: Tensor, inverse_C: Tensor, weight: Tensor | None
) -> Tensor:
    """dx of the formula above, in the memory of `deviation`. `means`: S1 / N and S2 / N."""
    scale_C = inverse_C if weight is None else inverse_C * weight
    deviation *= _as(-scale_C * inverse_C.square() * means[1], deviation)
    deviation -= _as(scale_C * means[0], deviation)
    return deviation if dy is None else deviation.addcmul_(widened(dy), _as(scale_C, deviation))


def _as(values_C: Tensor, x: Tensor) -> Tensor:
    return spread(values_C, x).to(x.dtype)
