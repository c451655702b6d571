"""The loss of a functional model: how it is called, and what it returned, looked at while it is traced.

    loss_fn(params, *samples)                      losses | (losses, counts)                    as torch models have it
    loss_fn(params, buffers, *samples)             losses, buffers | (losses, counts), buffers  where buffers= is given
    loss_fn(..., key=key)                          where it has a parameter of that name: a key of this shard alone

Shapes are known while it is traced, values are not. As of torch models (`replica/losses.py`) losses are one for each
sample, or more; or one mean.
"""

import inspect
import logging
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

_log = logging.getLogger(__name__)

Tree = Any  # Any: dicts, lists, tuples and whatever an engine has registered, of its arrays
LossFn = Callable[..., Any]  # Any: called as above


class Read(NamedTuple):
    """`summed`: what is differentiated. `counts`: what it counts, an array or a number. `buffers`: or None."""

    summed: Any  # Any: an array that is traced
    counts: Any
    buffers: Any


class Loss:
    """Of one step.

    Args:
        has_buffers: it is called with them and returns them.
    """

    def __init__(self, loss_fn: LossFn, *, has_buffers: bool) -> None:
        self._loss_fn = loss_fn
        self.has_buffers = has_buffers
        self.has_key = _takes_key(loss_fn)
        self._has_said = False

    def read(
        self,
        params: Tree,
        buffers: Tree,
        samples: Sequence[Any],
        key: Any,  # Any: of the engine
        count: int,
        *,
        is_array: Callable[[Any], bool],
        total: Callable[[Any], Any],
    ) -> Read:
        """Call it for a shard of `count` samples.

        Args:
            is_array: whether something is an array of the engine. total: the sum of one.

        Raises:
            TypeError: it did not return arrays. ValueError: their first axis is not the samples'.
        """
        first = (params, buffers) if self.has_buffers else (params,)
        result = self._loss_fn(*first, *samples, **({"key": key} if self.has_key else {}))
        made = None
        if self.has_buffers:
            if not isinstance(result, tuple) or len(result) != 2:
                raise TypeError(
                    f"with buffers= loss_fn must return (losses, buffers) or ((losses, counts), buffers), got "
                    f"{type(result).__name__}.\n"
                    f"  right:  return losses, buffers"
                )
            result, made = result
        losses, counts = result if isinstance(result, tuple) and len(result) == 2 else (result, None)
        if not is_array(losses):
            raise _no_losses(losses)
        shape = tuple(losses.shape)
        if counts is not None:
            if is_array(counts):
                _check_counts(shape, counts)
            return Read(total(losses), counts, made)
        if not shape:
            self._say_once()
            return Read(losses * count, count, made)
        if shape[0] != count:
            raise ValueError(
                f"loss_fn got {count} samples and returned an array of shape {shape}; its first axis must be the "
                f"sample.\nReturn (losses, counts) if there is another number of them."
            )
        return Read(total(losses), math.prod(shape), made)

    def _say_once(self) -> None:
        if not self._has_said:
            self._has_said = True
            _log.warning(
                "loss_fn returned one number, which is taken for the mean over the samples of its shard. That is right "
                "if every sample counts the same; one loss for each sample is counted by itself."
            )


def _takes_key(loss_fn: LossFn) -> bool:
    """Whether it has a parameter of the name `key`."""
    try:
        return "key" in inspect.signature(loss_fn).parameters
    except (TypeError, ValueError):  # of machine code, which does not tell
        return False


def _no_losses(result: object) -> TypeError:
    what = f"tuple of {len(result)}" if isinstance(result, tuple) else type(result).__name__
    return TypeError(
        f"loss_fn must return an array of losses, or (losses, counts), got {what}.\n"
        f"  wrong:  return loss, logits, hidden\n"
        f"  right:  return losses                              # one for each sample\n"
        f"  right:  return losses, buffers                     # with run.step(..., buffers=...)\n"
        f"What is to be measured besides is for run.mean(fn, params, data), which sees every sample once."
    )


def _check_counts(shape: tuple[int, ...], counts: Any) -> None:  # Any: an array that is traced
    """Raises TypeError for a second value that does not look like counts, such as the outputs of the model."""
    is_whole = "int" in str(counts.dtype) or "bool" in str(counts.dtype)
    if not is_whole and tuple(counts.shape) not in ((), shape):
        raise TypeError(
            f"loss_fn returned two arrays, losses of shape {shape} and {counts.dtype} of shape {tuple(counts.shape)}. "
            f"The second one would be the counts that the sum of the losses is divided by, and these are none.\n"
            f"  wrong:  return losses, logits\n"
            f"  right:  return losses, number_of_tokens\n"
            f"  right:  return losses, buffers                     # with run.step(..., buffers=...)"
        )
