"""Scaled losses, so that float16 gradients neither vanish nor overflow.

    summed loss --x factor--> backward --> shards added --/ factor--> gradients, finite? --yes--> clip, update, count
                                                                                         --no---> no update, lower scale

The scale follows the rule of `torch.amp.GradScaler` and has its settings and `state_dict`: it is halved when a gradient
is not finite, and doubled after 2000 finite updates in a row. The reduced gradients decide, so all processes agree.

The loss of a step is a sum over samples, that of GradScaler usually a mean. So the factor of a batch is the scale
divided by the batch size, rounded to a power of two, and float16 numbers have the magnitude that they have with
GradScaler. Dividing by a power of two is exact, so gradients of batches with different scales can be added.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

_log = logging.getLogger(__name__)

_LEAST = 2.0**-126  # the gradients could not be divided by a smaller scale


class LossScale:
    """The scale of the losses of one step.

    Args:
        init_scale: the initial scale.
        growth_factor: above 1; multiplies the scale after `growth_interval` updates in a row with finite gradients.
        backoff_factor: between 0 and 1; multiplies the scale after gradients that are not finite.
        growth_interval: a number of updates.

    Attributes:
        scale: the current scale.
        skipped: number of skipped updates.

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
        """Return the factor of the summed losses of a batch with this number of samples."""
        return self.scale / float(1 << (samples.bit_length() - 1))

    def adjust(self, finite: bool) -> bool:
        """Adjust the scale to whether the gradients are finite. Return `finite`."""
        if finite:
            self._finite_in_a_row += 1
            if self._finite_in_a_row == self._growth_interval:
                self._finite_in_a_row = 0
                grown = _float32(self.scale * self._growth_factor)
                self.scale = grown if math.isfinite(grown) else self.scale
        else:
            self._finite_in_a_row = 0
            self.skipped += 1
            self._warn_if_too_low(self.scale)
            self.scale = max(_float32(self.scale * self._backoff_factor), _LEAST)
        return finite

    def _warn_if_too_low(self, before: float) -> None:
        if before >= 1 > before * self._backoff_factor:
            _log.warning(
                "the scale of the loss fell below 1 after %d skipped updates: the gradients are not finite even for a "
                "small loss. Look for NaN in the data and the loss, or use autocast=torch.bfloat16",
                self.skipped,
            )

    def state_dict(self) -> dict[str, Any]:
        """The entries of `torch.amp.GradScaler.state_dict`, and `skipped`."""
        return {
            "scale": self.scale,
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._finite_in_a_row,
            "skipped": self.skipped,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.scale = float(state["scale"])
        self._growth_factor = state["growth_factor"]
        self._backoff_factor = state["backoff_factor"]
        self._growth_interval = state["growth_interval"]
        self._finite_in_a_row = state["_growth_tracker"]
        self.skipped = state.get("skipped", 0)


def unscale(grads: Sequence[Tensor | None], factor: float) -> None:
    """Divide each gradient by the factor of the losses, in place."""
    found = [grad for grad in grads if grad is not None]
    if found:
        torch._foreach_mul_(found, 1 / factor)


def are_finite(grads: Sequence[Tensor | None]) -> bool:
    """Return whether no number in these gradients is infinite or NaN."""
    values = [grad.coalesce().values() if grad.is_sparse else grad for grad in grads if grad is not None]
    nonempty = [value for value in values if value.numel()]
    if not nonempty:
        return True
    # The maximum norm is not finite if one number is not. It needs no temporary tensor of the same size.
    return bool(torch.stack(torch._foreach_norm(nonempty, math.inf)).isfinite().all())


def _float32(value: float) -> float:
    """Round to float32, in which GradScaler keeps its scale."""
    return float(torch.tensor(value, dtype=torch.float32))
