"""What a loss function may return, and what that counts.

    losses          one for each sample, or more (tokens): any shape whose first axis is the sample; counts its elements
    losses, counts  their sums are divided: tokens without padding, weights of samples
    one number      the mean over the samples; counts the samples

The gradient of a step is that of (the sum of all losses) / (the sum of all counts) over the global batch, however its
samples, or tokens, are spread over the shards. Means of means, which differ from that when shards differ, do not occur.
"""

import logging
from typing import Any

import torch
from torch import Tensor

_log = logging.getLogger(__name__)


class LossReader:
    """Reads the results of one loss function; says once that it returns means."""

    def __init__(self) -> None:
        self._has_said = False

    def read(self, result: Any, samples: int) -> tuple[Tensor, float]:  # Any: what the user's function returned
        """The summed loss, with its graph, and what it counts.

        Raises:
            TypeError: the function did not return tensors. ValueError: their first axis is not the samples'.
        """
        counts = None
        if isinstance(result, tuple) and len(result) == 2:
            result, counts = result
        if not isinstance(result, Tensor):
            raise TypeError(
                f"loss_fn must return a tensor of losses, or (losses, counts), got {type(result).__name__}.\n"
                f'  right:  lambda m, x, y: F.cross_entropy(m(x), y, reduction="none")'
            )
        if counts is not None:
            return result.sum(), _count(counts)
        if result.ndim == 0:
            self._say_once()
            return result * samples, samples
        check_rows(result, samples, "loss_fn")
        return result.sum(), result.numel()

    def _say_once(self) -> None:
        if not self._has_said:
            self._has_said = True
            _log.warning(
                "loss_fn returned one number, which is taken for the mean over the samples of its shard. That is right "
                'if every sample counts the same; with reduction="none" each loss is counted by itself.'
            )


def check_rows(values: Tensor, samples: int, function: str) -> None:
    """Raises ValueError if the first axis is not that of the samples."""
    if values.ndim == 0 or len(values) != samples:
        raise ValueError(
            f"{function} got {samples} samples and returned a tensor of shape {tuple(values.shape)}; its first axis "
            f"must be the sample.\nReturn (values, counts) if there is another number of them."
        )


def _count(counts: Any) -> float:  # Any: a number or a tensor
    if isinstance(counts, Tensor):
        counts = counts.sum(dtype=torch.float64 if counts.is_floating_point() else torch.int64).item()
    if isinstance(counts, bool) or not isinstance(counts, int | float) or not counts >= 0:
        raise ValueError(
            f"loss_fn returned (losses, counts) with counts {counts!r}; they must be numbers of at least 0"
        )
    return counts
