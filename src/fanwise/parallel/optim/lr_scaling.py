"""Learning rates for larger batches. A run never changes a learning rate by itself."""

import math
from typing import Literal

from ...base.nearest import did_you_mean
from ..validation.arguments import whole_number

Rule = Literal["linear", "sqrt"]

_EXPONENTS = {"linear": 1.0, "sqrt": 0.5}


def scale_lr(lr: float, batch_size: int, base_batch_size: int, *, rule: Rule = "linear") -> float:
    """Return the learning rate for another batch size, for losses that are means over the batch.

    With k = batch_size / base_batch_size:

    - "linear": k lr. One step at this rate changes the weights like k steps at `lr`, if the gradient changes little in
      the meantime (Goyal et al. 2017, arXiv 1706.02677, section 2.1). It changes much early in training, so increase
      the rate gradually over the first epochs, for example with `torch.optim.lr_scheduler.LinearLR`.
    - "sqrt": sqrt(k) lr, which keeps the variance of a step (Krizhevsky 2014, arXiv 1404.5997).

    Args:
        lr: learning rate for `base_batch_size`, above 0.
        batch_size, base_batch_size: number of samples of the global batch, over all devices.

    Raises:
        ValueError: a number is out of range, or the rule is unknown. TypeError: a batch size is not a whole number.

    >>> scale_lr(0.1, 1024, 256)
    0.4
    >>> scale_lr(0.1, 1024, 256, rule="sqrt")
    0.2
    """
    if isinstance(lr, bool) or not isinstance(lr, int | float):
        raise TypeError(f"lr must be a number, got {lr!r}")
    if not (lr > 0 and math.isfinite(lr)):
        raise ValueError(f"lr must be above 0 and finite, got {lr!r}")
    ratio = whole_number("batch_size", batch_size, least=1) / whole_number("base_batch_size", base_batch_size, least=1)
    if rule not in _EXPONENTS:
        raise ValueError(f"unknown rule={rule!r}{did_you_mean(rule, tuple(_EXPONENTS))}")
    return float(lr * ratio ** _EXPONENTS[rule])
