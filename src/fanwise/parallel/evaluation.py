"""`run.mean` and `run.sum`: a measure over a data set, every sample counted once.

    data set -> chunks of `batch_size`, in order -> fn(model, *chunk) -> sums and counts -> one division

Nothing is padded or repeated, and no mean of means is taken. Booleans and integers are added as integers, so an
accuracy is the exact count over the exact number; floats are added in float64, chunk by chunk. The chunks depend
on `batch_size` alone, and so do the bits of the result.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..tensor.random.keys import Key
from .data.batch import as_arguments
from .data.loader import ShardFetch
from .replica.losses import check_rows
from .rng import begin, kept_streams
from .shards import assign
from .teams.team import Team

Measure = Callable[..., Any]  # Any: called with the model and the members of a batch; returns values a sample


def sums(
    fn: Measure,
    model: nn.Module,
    chunks: Sequence[range],
    fetch: Callable[[range], ShardFetch],
    *,
    key: Key,
    team: Team,
    generators: Sequence[torch.Generator],
    watch: Callable[[float], None],
) -> tuple[float, float]:
    """The sum of what a measure returns, and its count.

    Each process measures consecutive chunks; the sums of all are added in the order of the data.

    Args:
        chunks: the places that each call of `fn` gets. fetch: where those chunks that this process measures come from.
        watch: told which part of its own chunks this process has done, with 1 when it ends, well or not.
    """

    def measure() -> list[list[tuple[float, float]]]:
        mine: list[tuple[float, float]] = []
        own = assign(len(chunks), team.size)[team.place]
        with (
            evaluating(model),
            torch.no_grad(),
            _ending(watch),
            closing(fetch(own)) as fetched,
            kept_streams(generators),
        ):
            for number in own:
                watch((number - own.start) / len(own))
                places = chunks[number]
                fetched.start_batch(number)
                content = fetched.read(number, 0, places)
                begin(key.fold_in(places.start), generators)
                mine.append(measured(fn(model, *as_arguments(content)), len(places)))
        return team.gather("measures", mine)

    each = [found for theirs in team.together(measure) for found in theirs]
    return sum(value for value, _ in each), sum(count for _, count in each)


@contextmanager
def _ending(watch: Callable[[float], None]) -> Iterator[None]:
    try:
        yield
    finally:
        watch(1)


def mean(total: float, count: float) -> float:
    """Raises ValueError if nothing was counted."""
    if not count > 0:
        raise ValueError(f"the counts that fn returned add up to {count}: there is nothing to take the mean of")
    return total / count


def measured(result: Any, samples: int) -> tuple[float, float]:  # Any: what the user's function returned
    """The sum of the values of one chunk, and how many they are: integers if the values are."""
    if isinstance(result, tuple) and len(result) == 2:
        return _sum(result[0]), _sum(result[1])
    value = _sum(result)
    check_rows(result, samples, "fn got {} samples and returned")
    return value, result.numel()


def _sum(values: Any) -> float:  # Any: what the user's function returned
    if not isinstance(values, Tensor):
        raise TypeError(
            f"fn must return a tensor, one value for each sample, or (values, counts), got {type(values).__name__}.\n"
            f"  right:  lambda m, x, y: m(x).argmax(1) == y"
        )
    if values.is_complex():
        raise TypeError(
            f"fn returned a tensor of {values.dtype}, and means are taken of real values only.\n"
            f"Return its real and imaginary part, or its magnitude, in calls of their own: values.real, values.abs()."
        )
    total: float = values.sum(dtype=torch.float64 if values.is_floating_point() else torch.int64).item()
    return total


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode, and each of its modules as it was after."""
    were_training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in were_training:
            module.training = True
