"""The values that a loss function may return, or a program may pass to `step.backward`.

    losses          one for each sample, or more (tokens): any shape whose first axis is the sample; counts its elements
    losses, counts  their sums are divided: tokens without padding, weights of samples
    one number      the mean over the samples; counts the samples

The gradient of a step is that of (the sum of all losses) / (the sum of all counts) over the global batch, for any
distribution of samples, or tokens, over the shards. It never averages averages of unequal shards.
"""

import logging
from typing import Any, NamedTuple

import torch
from torch import Tensor

_log = logging.getLogger(__name__)


class Wording(NamedTuple):
    """Words for error messages, which depend on where losses come from. `line` is a line of the user's program."""

    must: str
    got: str
    of_samples: str
    line: str


RETURNED = Wording("loss_fn must return", "loss_fn returned", "loss_fn got {} samples and returned", "return {}")
GIVEN = Wording("step.backward takes", "step.backward got", "step.backward got for {} samples", "step.backward({})")


class LossReader:
    """Reads the losses of one step. Warns once if they are means."""

    def __init__(self, wording: Wording = RETURNED) -> None:
        self._wording = wording
        self._has_said = False

    def read(self, result: Any, samples: int) -> tuple[Tensor, float | Tensor]:  # Any: of the user's making
        """Return the summed loss with its graph, and the count.

        Raises:
            TypeError: the losses are no tensor, or the second value cannot be counts.
            ValueError: the first axis of the losses is not the sample.
        """
        counts = None
        if isinstance(result, tuple) and len(result) == 2:
            result, counts = result
        if not isinstance(result, Tensor):
            what = f"tuple of {len(result)}" if isinstance(result, tuple) else type(result).__name__
            line = self._wording.line
            right = line.format('F.cross_entropy(logits, y, reduction="none")')
            raise TypeError(
                f"{self._wording.must} a tensor of losses, or losses and counts, got {what}.\n"
                f"  wrong:  {line.format('loss, logits, hidden')}\n"
                f"  right:  {right}\n"
                f"Measure other values with run.mean(fn, model, data), which evaluates every sample once."
            )
        if counts is not None:
            check_counts(result, counts, self._wording)
            return result.sum(), count_of(counts, self._wording)
        if result.ndim == 0:
            self._say_once()
            return result * samples, samples
        check_rows(result, samples, self._wording.of_samples)
        return result.sum(), result.numel()

    def _say_once(self) -> None:
        if not self._has_said:
            self._has_said = True
            _log.warning(
                "%s one number, which is used as the mean over the samples of its shard. That is correct if every "
                'sample counts the same. With reduction="none" each loss is counted.',
                self._wording.got,
            )


def check_counts(losses: Tensor, counts: Any, wording: Wording) -> None:  # Any: what came with the losses
    """Raise TypeError for a second value that cannot be counts, such as the outputs of the model.

    Counts have no gradient. Counts that are no integers are weights: one number, or one per loss.
    """
    if not isinstance(counts, Tensor):
        return
    is_whole = not (counts.is_floating_point() or counts.is_complex())
    fits = counts.ndim == 0 or counts.shape == losses.shape or (is_whole and losses.ndim > 0)
    if counts.requires_grad or not fits:
        with_gradient = " with a gradient" if counts.requires_grad else ""
        raise TypeError(
            f"{wording.got} two tensors, losses of shape {_shape(losses)} and {counts.dtype} of shape "
            f"{_shape(counts)}{with_gradient}. The second one must be the counts by which the sum of the losses is "
            f"divided.\n"
            f"  wrong:  {wording.line.format('loss, logits')}\n"
            f"  right:  {wording.line.format('losses, number_of_tokens')}\n"
            f"  right:  {wording.line.format('losses')}\n"
            f"Measure other values with run.mean(fn, model, data), which evaluates every sample once."
        )


def _shape(tensor: Tensor) -> str:
    """Return a shape as text, with B for the number of samples, which differs between shards."""
    sizes = ["B", *map(str, tensor.shape[1:])] if tensor.ndim else []
    return f"({', '.join(sizes)}{',' * (len(sizes) == 1)})"


def check_rows(values: Tensor, samples: int, of_samples: str) -> None:
    """Raise ValueError if the first axis is not the sample. `of_samples` is the beginning of the message."""
    if values.ndim == 0 or len(values) != samples:
        raise ValueError(
            f"{of_samples.format(samples)} a tensor of shape {tuple(values.shape)}; its first axis must be "
            f"the sample.\nUse (values, counts) for another number of values."
        )


def count_of(counts: Any, wording: Wording = RETURNED) -> float | Tensor:
    """Return the sum of counts, exact for whole numbers.

    The sum of a tensor on an accelerator stays there, unchecked, so that nothing waits for the device.

    Raises:
        ValueError: it is negative, NaN or no number.
    """
    if isinstance(counts, Tensor):
        total = counts.sum(dtype=torch.float64 if counts.is_floating_point() else torch.int64)
        if total.device.type != "cpu":
            return total
        counts = total.item()
    if isinstance(counts, bool) or not isinstance(counts, int | float) or not counts >= 0:
        raise ValueError(f"{wording.got} losses with counts {counts!r}; they must be numbers of at least 0")
    return counts
