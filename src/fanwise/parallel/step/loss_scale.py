"""A scaled loss, so that float16 gradients neither vanish nor overflow. Reduced gradients decide, so all devices agree.

    summed loss --x factor--> backward --> shards added --/ factor--> gradients, finite? --yes--> clip, update, count
                                                                                         --no---> no update, lower scale

The scale follows the rule of `torch.amp.GradScaler`, with its settings and its state_dict: halved when a gradient is
not finite, doubled after 2000 updates in a row that were. GradScaler itself looks at the gradients of an optimizer that
it is given; here they are looked at when they are whole, whoever holds them, and the scale changes from that alone.

A step's loss is a sum over samples, GradScaler's usually a mean. So the factor of a batch is the scale over the batch
size, rounded to a power of two: what gets into float16 is then what it would be there. With powers of two, taking the
factor off again is exact, so gradients of several batches can be added whatever the scale was for each.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

_log = logging.getLogger(__name__)

_LEAST = 2.0**-126  # a smaller scale, and zero, could not be taken off again


class LossScale:
    """The scale of the losses of one step function.

    Args:
        init_scale: to begin with. growth_factor: above 1, what it is multiplied by after `growth_interval` updates in
            a row with finite gradients. backoff_factor: between 0 and 1, what it is multiplied by after others.

    Attributes:
        scale: now. skipped: updates that were not made.

    Raises:
        ValueError: a number out of range.
    """

    def __init__(
        self,
        *,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
    ) -> None:
        if not (init_scale > 0 and math.isfinite(init_scale)):
            raise ValueError(f"init_scale must be above 0 and finite, got {init_scale!r}")
        if not growth_factor > 1:
            raise ValueError(f"growth_factor must be above 1, got {growth_factor!r}")
        if not 0 < backoff_factor < 1:
            raise ValueError(f"backoff_factor must be between 0 and 1, got {backoff_factor!r}")
        if growth_interval < 1:
            raise ValueError(f"growth_interval must be at least 1, got {growth_interval!r}")
        self.scale = _float32(init_scale)
        self.skipped = 0
        self._growth_factor = growth_factor
        self._backoff_factor = backoff_factor
        self._growth_interval = growth_interval
        self._finite_in_a_row = 0

    def factor(self, samples: int) -> float:
        """What the summed losses of a batch of so many samples, over all shards, are multiplied by."""
        return self.scale / float(1 << (samples.bit_length() - 1))

    def update(self, grads: Sequence[Tensor | None]) -> bool:
        """Whether the gradients of an update, whole and without their factor, are finite, so that it is to be made.

        The scale of the next batch follows from it. Waits for the device of the gradients.
        """
        return self.updated(are_finite(grads))

    def updated(self, finite: bool) -> bool:
        """As `update`, where somebody has looked at the gradients already."""
        if finite:
            self._finite_in_a_row += 1
            if self._finite_in_a_row == self._growth_interval:
                self._finite_in_a_row = 0
                grown = _float32(self.scale * self._growth_factor)
                self.scale = grown if math.isfinite(grown) else self.scale
        else:
            self._finite_in_a_row = 0
            self.skipped += 1
            self._say_when_too_low(self.scale)
            self.scale = max(_float32(self.scale * self._backoff_factor), _LEAST)
        return finite

    def _say_when_too_low(self, before: float) -> None:
        if before >= 1 > before * self._backoff_factor:
            _log.warning(
                "the scale of the loss falls below 1, after %d updates that were not made: gradients are not finite "
                "however small the loss is made. Look for NaN in the data and the loss, or use autocast=torch.bfloat16",
                self.skipped,
            )

    def state_dict(self) -> dict[str, Any]:  # Any: numbers
        """As that of `torch.amp.GradScaler`, and `skipped`."""
        return {
            "scale": self.scale,
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._finite_in_a_row,
            "skipped": self.skipped,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:  # Any: numbers
        """Go on from what `state_dict` gave, or that of a GradScaler."""
        self.scale = float(state["scale"])
        self._growth_factor = state["growth_factor"]
        self._backoff_factor = state["backoff_factor"]
        self._growth_interval = state["growth_interval"]
        self._finite_in_a_row = state["_growth_tracker"]
        self.skipped = state.get("skipped", 0)


def take_off(grads: Sequence[Tensor | None], factor: float) -> None:
    """Divide each gradient by the factor that the losses were multiplied by, in place."""
    found = [grad for grad in grads if grad is not None]
    if found:
        torch._foreach_mul_(found, 1 / factor)


def are_finite(grads: Sequence[Tensor | None]) -> bool:
    """Whether no number in them is infinite or NaN; of sparse ones as well."""
    found = [grad.coalesce().values() if grad.is_sparse else grad for grad in grads if grad is not None]
    full = [grad for grad in found if grad.numel()]
    if not full:
        return True
    # The largest magnitude in a tensor is not finite if one number is not, and needs no tensor of its size.
    return bool(torch.stack(torch._foreach_norm(full, math.inf)).isfinite().all())


def _float32(value: float) -> float:
    """Rounded as GradScaler rounds its scale; beyond the range infinity."""
    return float(torch.tensor(value, dtype=torch.float32))
