"""`run.mean` and `run.sum`: a measure over a data set, every sample counted once.

    data set -> chunks of `batch_size`, in order -> fn(model, *chunk) -> sums and counts -> one division

No sample is repeated, and means are not averaged. Booleans and integers are added as integers, so an accuracy is exact.
Floats are added in float64, chunk by chunk. The result depends on `batch_size`, but not on the devices.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..tensor.random.keys import Key
from .comm.team import Team
from .data.batch import as_arguments
from .data.loader import ShardFetch
from .rng import isolated_generators, seed_generators
from .step.losses import check_rows
from .step.tree import assign

Measure = Callable[..., Any]  # Any: called with the model and the members of a batch; returns one value per sample


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
    """Return the sum of the values of a measure, and their number.

    Each process measures consecutive chunks. The sums of all chunks are added in the order of the data.

    Args:
        chunks: the samples of each call of `fn`.
        fetch: reads chunks, given their numbers.
        watch: called with the finished part of the chunks of this process, and with 1 at the end, also after an error.
    """

    def measure() -> list[tuple[float, float]]:
        own = assign(len(chunks), team.size)[team.index]
        results: list[tuple[float, float]] = []
        try:
            with evaluating(model), torch.no_grad(), closing(fetch(own)) as fetched, isolated_generators(generators):
                for number in own:
                    watch((number - own.start) / len(own))
                    places = chunks[number]
                    fetched.start_batch(number)
                    content = fetched.read(number, 0, places)
                    seed_generators(key.fold_in(places.start), generators)
                    results.append(measured(fn(model, *as_arguments(content)), len(places)))
        finally:
            watch(1)
        return [result for gathered in team.gather("measures", results) for result in gathered]

    values, counts = zip(*team.together(measure), strict=True)
    return sum(values), sum(counts)


def mean(total: float, count: float) -> float:
    """Raise ValueError if the count is 0."""
    if not count > 0:
        raise ValueError(f"the counts that fn returned add up to {count}: their mean is undefined")
    return total / count


def measured(result: Any, samples: int) -> tuple[float, float]:  # Any: returned by the user's function
    """Return the sum of the values of one chunk, and their number. The sum of integers is an integer."""
    if isinstance(result, tuple) and len(result) == 2:
        return _sum(result[0]), _sum(result[1])
    value = _sum(result)
    check_rows(result, samples, "fn got {} samples and returned")
    return value, result.numel()


def _sum(values: Any) -> float:  # Any: returned by the user's function
    if not isinstance(values, Tensor):
        raise TypeError(
            f"fn must return a tensor, one value for each sample, or (values, counts), got {type(values).__name__}.\n"
            f"  right:  lambda m, x, y: m(x).argmax(1) == y"
        )
    if values.is_complex():
        raise TypeError(
            f"fn returned a tensor of {values.dtype}, and means are taken of real values only.\n"
            f"Return its real and imaginary part, or its magnitude, in separate calls: values.real, values.abs()."
        )
    total: float = values.sum(dtype=torch.float64 if values.is_floating_point() else torch.int64).item()
    return total


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Put the model in evaluation mode for the block, and each of its modules back in its mode afterwards."""
    were_training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in were_training:
            module.training = True
