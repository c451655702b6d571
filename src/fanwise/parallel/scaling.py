"""Learning rates for larger batches. Nothing here happens by itself: what a run does with more devices is the same.

    rate = scale_lr(0.2, 1024, 256)                        0.8: the batch is four times as large
    optimizer = torch.optim.SGD(model.parameters(), rate)
    warming = warm_up(optimizer, 5 * len(x) // 1024, start_factor=0.2 / rate)
    run.keep(warming=warming)
    ...
    step(batch); warming.step()                            from 0.2 to 0.8 in the steps of the first five epochs

Rates are for losses that are means over the global batch, as those of `run.step` are.
"""

import math
from typing import Literal

from torch.optim import Optimizer
from torch.optim.lr_scheduler import LambdaLR, LRScheduler, SequentialLR

from ..base.nearest import did_you_mean
from .validation.arguments import whole_number

Rule = Literal["linear", "sqrt", "none"]

_EXPONENTS = {"linear": 1.0, "sqrt": 0.5, "none": 0.0}


def scale_lr(lr: float, batch_size: int, base_batch_size: int, *, rule: Rule = "linear") -> float:
    """The learning rate for another batch size, from one that is right for `base_batch_size`.

    With k = batch_size / base_batch_size:

    - "linear": k lr. k steps at the old rate and one at the new one move the weights alike while the gradient changes
      little (Goyal et al. 2017, arXiv 1706.02677, section 2.1). Early in training it changes much, so warm up.
    - "sqrt": sqrt(k) lr, which keeps the variance of a step (Krizhevsky 2014, arXiv 1404.5997).
    - "none": lr.

    Args:
        lr: above 0. batch_size, base_batch_size: samples of the global batch, over all devices.

    Raises:
        ValueError: a number out of range, or no such rule. TypeError: a batch size is no whole number.

    >>> scale_lr(0.1, 1024, 256)
    0.4
    >>> scale_lr(0.1, 1024, 256, rule="sqrt")
    0.2
    """
    if isinstance(lr, bool) or not isinstance(lr, int | float):
        raise TypeError(f"lr must be a number, got {lr!r}")
    if not (lr > 0 and math.isfinite(lr)):
        raise ValueError(f"lr must be above 0 and finite, got {lr!r}")
    larger = whole_number("batch_size", batch_size, least=1) / whole_number("base_batch_size", base_batch_size, least=1)
    if rule not in _EXPONENTS:
        raise ValueError(f"unknown rule={rule!r}{did_you_mean(rule, tuple(_EXPONENTS))}")
    return float(lr * larger ** _EXPONENTS[rule])


def warm_up(optimizer: Optimizer, steps: int, *, start_factor: float, then: LRScheduler | None = None) -> LRScheduler:
    """A scheduler that raises the rates of an optimizer evenly, from a part of them to the whole.

    Step i of the first `steps` is made at lr (start_factor + (1 - start_factor) i / steps), every later one at lr:
    the gradual warm-up of Goyal et al. 2017, section 2.2, which begins at the rate of the small batch and takes five
    epochs. Call `.step()` on it after every batch, and give it to `run.keep` so that a checkpoint holds it.

    Args:
        optimizer: with the full rates, which may differ between its groups.
        start_factor: from 0 to 1, as `base_lr / scaled_lr`.
        then: another scheduler of the same optimizer, made before this one. It begins when the warm-up is over, and
            counts batches too.

    Returns:
        A torch scheduler, LambdaLR or SequentialLR.

    Raises:
        ValueError: `steps` below 1, `start_factor` out of range, or `then` of another optimizer.
        TypeError: `steps` is no whole number, or `start_factor` no number.
    """
    steps = whole_number("steps", steps, least=1)
    if isinstance(start_factor, bool) or not isinstance(start_factor, int | float):
        raise TypeError(f"start_factor must be a number, got {start_factor!r}")
    if not 0 <= start_factor <= 1:
        raise ValueError(
            f"start_factor must be from 0 to 1, got {start_factor!r}: it is the part of the rate to begin with, as "
            f"base_lr / scaled_lr"
        )
    if then is not None and then.optimizer is not optimizer:
        raise ValueError("then= is a scheduler of another optimizer; make it of the one that is warmed up")
    rising = LambdaLR(optimizer, _Rise(steps, float(start_factor)))
    return rising if then is None else SequentialLR(optimizer, [rising, then], [steps])


class _Rise:
    """The factor of each step. An object, not a function, so that torch puts its numbers into the state_dict."""

    def __init__(self, steps: int, start_factor: float) -> None:
        self.steps = steps
        self.start_factor = start_factor

    def __call__(self, step: int) -> float:
        if step >= self.steps:
            return 1.0
        return self.start_factor + (1 - self.start_factor) * step / self.steps
