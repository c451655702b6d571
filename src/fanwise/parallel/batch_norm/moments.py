"""Statistics of a channel that can be merged: number of values, mean and sum of squared deviations.

    part a: n, m, s    part b: n, m, s    d = m_b - m_a    n = n_a + n_b
    m = m_a + d n_b / n        s = s_a + s_b + d^2 n_a n_b / n

(Chan, Golub, LeVeque: Updating Formulae and a Pairwise Algorithm for Computing Sample Variances, 1979.) Nothing
cancels here when the mean is large against the deviation, as it does in sums of squares. All is in float64.
"""

# C: channels

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Moments:
    """Number, mean and sum of squared deviations of the values of each channel."""

    count: int
    mean_C: Tensor
    squares_C: Tensor

    def to(self, device: str | torch.device) -> "Moments":
        """Return a copy on this device, or itself if it is there."""
        return Moments(self.count, self.mean_C.to(device), self.squares_C.to(device))


def moments_of(x: Tensor) -> Moments | None:
    """Return the moments of a tensor whose second axis is the channel. None if it has no values."""
    count = values_a_channel(x)
    if count == 0:
        return None
    wide = widened(x)
    mean_C = summed(wide) / count
    # Deviations from the rounded mean need no copy in float64. The last term corrects the rounding.
    rounded_C = mean_C.to(wide.dtype)
    squares_C = summed((wide - along_channels(rounded_C, x)).square_()) - count * (mean_C - rounded_C).square()
    return Moments(count, mean_C, squares_C.clamp_(min=0))


def merge(left: Moments, right: Moments) -> Moments:
    """Return the moments of the values of both."""
    count = left.count + right.count
    between_C = right.mean_C - left.mean_C
    mean_C = left.mean_C + between_C * (right.count / count)
    squares_C = left.squares_C + right.squares_C + between_C.square() * (left.count * right.count / count)
    return Moments(count, mean_C, squares_C)


def values_a_channel(x: Tensor) -> int:
    """Return the number of values per channel."""
    return x.numel() // x.shape[1] if x.shape[1] else 0


def summed(x: Tensor) -> Tensor:
    """Return the sum of each channel, in float64."""
    return x.sum([axis for axis in range(x.ndim) if axis != 1], dtype=torch.float64)


def along_channels(values_C: Tensor, x: Tensor) -> Tensor:
    """Return one value per channel in a shape that broadcasts with `x`."""
    return values_C.view([1, -1] + [1] * (x.ndim - 2))


def widened(x: Tensor) -> Tensor:
    """Return a 16-bit tensor in float32, and others unchanged."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
