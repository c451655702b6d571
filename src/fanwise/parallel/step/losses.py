"""The values that a loss function may return, or a program may pass to `step.backward`.

    losses          one for each sample, or more (tokens): any shape whose first axis is the sample. Each counts 1.
    losses, counts  the sum of the losses is divided by the sum of the counts: tokens without padding, weights
    one number      the mean over the samples of the shard. Each sample counts 1.

The gradient of a step is that of (the sum of all losses) / (the sum of all counts) over the global batch, for any
distribution of samples or tokens over the shards. It is never a mean of the means of unequal shards.
"""

import logging
from typing import Any

import torch
from torch import Tensor

_log = logging.getLogger(__name__)

_EVALUATION_HINT = "Measure other values with run.mean(fn, model, data), which evaluates every sample once."


class LossReader:
    """Reads the losses of one step. Warns once if a loss is one number.

    Args:
        got: begins error messages, such as "loss_fn returned".
        line: line of the user's program in error messages, such as "return {}".
    """

    def __init__(self, got: str, line: str) -> None:
        self._got, self._line = got, line
        self._has_warned = False

    def read(self, result: Any, samples: int) -> tuple[Tensor, float | Tensor]:  # Any: from user code
        """Return the summed loss with its graph, and the count."""
        got, line, counts = self._got, self._line, None
        if isinstance(result, tuple) and len(result) == 2:
            result, counts = result
        if not isinstance(result, Tensor):
            kind = f"a tuple of {len(result)}" if isinstance(result, tuple) else f"a {type(result).__name__}"
            raise TypeError(
                f"{got} {kind}. It must be a tensor of losses, or losses and counts.\n"
                f"  wrong:  {line.format('loss, logits, hidden')}\n"
                f"  right:  {line.format('F.cross_entropy(logits, y, reduction=' + repr('none') + ')')}\n"
                f"{_EVALUATION_HINT}"
            )
        if counts is not None:
            self._check_counts(result, counts)
            return result.sum(), self._sum_of(counts)
        if result.ndim == 0:
            if not self._has_warned:
                self._has_warned = True
                _log.warning(
                    "%s one number, which is used as the mean over the samples of its shard. That is correct if every "
                    'sample counts the same. With reduction="none" each loss is counted.',
                    got,
                )
            return result * samples, samples
        check_rows(result, samples, got)
        return result.sum(), result.numel()

    def _check_counts(self, losses: Tensor, counts: Any) -> None:  # Any: from user code
        """Raise TypeError for a second value that cannot be counts, such as the outputs of the model.

        Counts have no gradient. Counts that are not integers are weights: one number, or one per loss.
        """
        if not isinstance(counts, Tensor):
            return
        got, line = self._got, self._line
        is_whole = not (counts.is_floating_point() or counts.is_complex())
        fits = counts.ndim == 0 or counts.shape == losses.shape or (is_whole and losses.ndim > 0)
        if counts.requires_grad or not fits:
            raise TypeError(
                f"{got} two tensors, losses of shape {tuple(losses.shape)} and {counts.dtype} of shape "
                f"{tuple(counts.shape)}{' with a gradient' if counts.requires_grad else ''}. The second one must be "
                f"the counts. The sum of the losses is divided by their sum.\n"
                f"  wrong:  {line.format('loss, logits')}\n"
                f"  right:  {line.format('losses, number_of_tokens')}\n"
                f"  right:  {line.format('losses')}\n"
                f"{_EVALUATION_HINT}"
            )

    def _sum_of(self, counts: Any) -> float | Tensor:  # Any: from user code
        """Return the sum of the counts, exact for whole numbers.

        A sum on an accelerator stays there unchecked, so that nothing waits for the device.
        """
        if isinstance(counts, Tensor):
            total = counts.sum(dtype=torch.float64 if counts.is_floating_point() else torch.int64)
            if total.device.type != "cpu":
                return total
            counts = total.item()
        if isinstance(counts, bool) or not isinstance(counts, int | float) or not counts >= 0:
            raise ValueError(f"{self._got} losses with counts {counts!r}; counts must be numbers of at least 0")
        return counts


def check_rows(values: Tensor, samples: int, got: str) -> None:
    """Raise ValueError if the first axis is not the sample. `got` names the source of the values in the message."""
    if values.ndim == 0 or len(values) != samples:
        raise ValueError(
            f"{got} a tensor of shape {tuple(values.shape)} for {samples} samples; its first axis must be the sample.\n"
            f"Use (values, counts) for another number of values."
        )
