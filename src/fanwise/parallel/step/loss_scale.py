"""Scaled losses, so that float16 gradients neither vanish nor overflow.

    summed loss --x factor--> backward --> shards added --/ factor--> gradients, finite? --yes--> clip, update
                                                                                         --no---> no update, lower scale

The scale follows the rule of `torch.amp.GradScaler` and has the same `state_dict`: it is halved when a gradient is not
finite, and doubled after 2000 updates in a row with finite gradients. The decision is based on the reduced gradients,
so all processes agree.

The loss of a step is a sum over samples, but with GradScaler it is usually a mean. So the factor of a batch is the
scale divided by the batch size, rounded to a power of two. Then float16 numbers have the same magnitude as with
GradScaler. Dividing by a power of two is exact, so gradients of batches with different factors can be added.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

_log = logging.getLogger(__name__)

_LEAST = 2.0**-126  # gradients could not be divided by a smaller scale


class LossScale:
    """The scale of the losses of one step. `load_state_dict` takes other settings from a `torch.amp.GradScaler`.

    Attributes:
        skipped: number of skipped updates.
    """

    def __init__(self, *, init_scale: float = 2.0**16) -> None:
        if not (init_scale > 0 and math.isfinite(init_scale)):
            raise ValueError(f"init_scale must be above 0 and finite, got {init_scale!r}")
        self.scale = _float32(init_scale)
        self.skipped = 0
        self._growth_factor, self._backoff_factor, self._growth_interval = 2.0, 0.5, 2000
        self._finite_in_a_row = 0

    def factor(self, samples: int) -> float:
        """Return the factor of the summed losses of a batch with this number of samples."""
        return self.scale / float(1 << (samples.bit_length() - 1))

    def adjust(self, finite: bool) -> bool:
        """Adjust the scale before an update, which is skipped if the gradients are not finite. Return `finite`."""
        before = self.scale
        if finite:
            self._finite_in_a_row += 1
            if self._finite_in_a_row == self._growth_interval:
                self._finite_in_a_row = 0
                grown = _float32(before * self._growth_factor)
                self.scale = grown if math.isfinite(grown) else before
            return True
        self._finite_in_a_row = 0
        self.skipped += 1
        self.scale = max(_float32(before * self._backoff_factor), _LEAST)
        if before >= 1 > self.scale:
            _log.warning(
                "the scale of the loss fell below 1 after %d skipped updates: the gradients are not finite even for a "
                "small loss. Look for NaN in the data and the loss, or use autocast=torch.bfloat16",
                self.skipped,
            )
        return False

    def state_dict(self) -> dict[str, Any]:
        """Return the entries of `torch.amp.GradScaler.state_dict`, and `skipped`."""
        return {
            "scale": self.scale,
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._finite_in_a_row,
            "skipped": self.skipped,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of a LossScale or of a `torch.amp.GradScaler`."""
        self.scale = _float32(state["scale"])  # before the first update, GradScaler has it as float64
        self._growth_factor = state["growth_factor"]
        self._backoff_factor = state["backoff_factor"]
        self._growth_interval = state["growth_interval"]
        self._finite_in_a_row = state["_growth_tracker"]
        self.skipped = state.get("skipped", 0)


def unscale(grads: Sequence[Tensor | None], factor: float) -> None:
    """Divide each gradient by the factor of the losses, in place."""
    present = [grad for grad in grads if grad is not None]
    if present:
        torch._foreach_mul_(present, 1 / factor)


def are_finite(grads: Sequence[Tensor | None]) -> bool:
    """Return True if no number in these gradients is infinite or NaN. Waits for the device."""
    values = [grad.coalesce().values() if grad.is_sparse else grad for grad in grads if grad is not None]
    nonempty = [value for value in values if value.numel()]
    if not nonempty:
        return True
    # The maximum norm is not finite if one number is not. It needs no temporary tensor of the same size.
    return bool(torch.stack(torch._foreach_norm(nonempty, math.inf)).isfinite().all())


def _float32(value: float) -> float:
    return float(torch.tensor(value, dtype=torch.float32))
