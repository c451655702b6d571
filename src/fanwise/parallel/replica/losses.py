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
            TypeError: the function did not return tensors, or as counts what is none.
            ValueError: their first axis is not the samples'.
        """
        counts = None
        if isinstance(result, tuple) and len(result) == 2:
            result, counts = result
        if not isinstance(result, Tensor):
            what = f"tuple of {len(result)}" if isinstance(result, tuple) else type(result).__name__
            raise TypeError(
                f"loss_fn must return a tensor of losses, or (losses, counts), got {what}.\n"
                f"  wrong:  return loss, logits, hidden\n"
                f'  right:  return F.cross_entropy(logits, y, reduction="none")\n'
                f"What is to be measured besides is for run.mean(fn, model, data), which sees every sample once."
            )
        if counts is not None:
            check_counts(result, counts)
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


def check_counts(losses: Tensor, counts: Any) -> None:  # Any: what the user's function returned second
    """Raises TypeError for a second value that does not look like counts, such as the outputs of the model.

    Counts have no gradient. Those that are no whole numbers are weights: one number, or one for each loss.
    """
    if not isinstance(counts, Tensor):
        return
    is_whole = not (counts.is_floating_point() or counts.is_complex())
    fits = counts.ndim == 0 or counts.shape == losses.shape or (is_whole and losses.ndim > 0)
    if counts.requires_grad or not fits:
        with_gradient = " with a gradient" if counts.requires_grad else ""
        raise TypeError(
            f"loss_fn returned two tensors, losses of shape {_shape(losses)} and {counts.dtype} of shape "
            f"{_shape(counts)}{with_gradient}. The second one would be the counts that the sum of the losses is "
            f"divided by, and these are none.\n"
            f"  wrong:  return loss, logits\n"
            f"  right:  return losses, number_of_tokens\n"
            f"  right:  return losses\n"
            f"What is to be measured besides is for run.mean(fn, model, data), which sees every sample once."
        )


def _shape(tensor: Tensor) -> str:
    """B: the samples of a shard, of which each has its own number."""
    sizes = ["B", *map(str, tensor.shape[1:])] if tensor.ndim else []
    return f"({', '.join(sizes)}{',' * (len(sizes) == 1)})"


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
