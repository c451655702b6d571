"""What a loss function may return, or a loop of the program's own give to `step.backward`, and what that counts.

    losses          one for each sample, or more (tokens): any shape whose first axis is the sample; counts its elements
    losses, counts  their sums are divided: tokens without padding, weights of samples
    one number      the mean over the samples; counts the samples

The gradient of a step is that of (the sum of all losses) / (the sum of all counts) over the global batch, however its
samples, or tokens, are spread over the shards. Means of means, which differ from that when shards differ, do not occur.
"""

import logging
from typing import Any, NamedTuple

import torch
from torch import Tensor

_log = logging.getLogger(__name__)


class Wording(NamedTuple):
    """How errors speak of where losses come from. `line`: of the program, that gives them."""

    must: str
    got: str
    of_samples: str
    line: str


RETURNED = Wording("loss_fn must return", "loss_fn returned", "loss_fn got {} samples and returned", "return {}")
GIVEN = Wording("step.backward takes", "step.backward got", "step.backward got for {} samples", "step.backward({})")


class LossReader:
    """Reads the losses of one step; says once that they are means."""

    def __init__(self, wording: Wording = RETURNED) -> None:
        self._wording = wording
        self._has_said = False

    def read(self, result: Any, samples: int) -> tuple[Tensor, float | Tensor]:  # Any: of the user's making
        """The summed loss, with its graph, and what it counts.

        Raises:
            TypeError: they are no tensors, or as counts what is none.
            ValueError: their first axis is not the samples'.
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
                f"What is to be measured besides is for run.mean(fn, model, data), which sees every sample once."
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
                "%s one number, which is taken for the mean over the samples of its shard. That is right "
                'if every sample counts the same; with reduction="none" each loss is counted by itself.',
                self._wording.got,
            )


def check_counts(losses: Tensor, counts: Any, wording: Wording) -> None:  # Any: what came with the losses
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
            f"{wording.got} two tensors, losses of shape {_shape(losses)} and {counts.dtype} of shape "
            f"{_shape(counts)}{with_gradient}. The second one would be the counts that the sum of the losses is "
            f"divided by, and these are none.\n"
            f"  wrong:  {wording.line.format('loss, logits')}\n"
            f"  right:  {wording.line.format('losses, number_of_tokens')}\n"
            f"  right:  {wording.line.format('losses')}\n"
            f"What is to be measured besides is for run.mean(fn, model, data), which sees every sample once."
        )


def _shape(tensor: Tensor) -> str:
    """B: the samples of a shard, of which each has its own number."""
    sizes = ["B", *map(str, tensor.shape[1:])] if tensor.ndim else []
    return f"({', '.join(sizes)}{',' * (len(sizes) == 1)})"


def check_rows(values: Tensor, samples: int, of_samples: str) -> None:
    """Raises ValueError if the first axis is not that of the samples. `of_samples`: who has values of so many."""
    if values.ndim == 0 or len(values) != samples:
        raise ValueError(
            f"{of_samples.format(samples)} a tensor of shape {tuple(values.shape)}; its first axis must be "
            f"the sample.\nGive (values, counts) if there is another number of them."
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
