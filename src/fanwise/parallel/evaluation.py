"""`run.mean` and `run.sum`: the mean and sum of a measure over a data set. Every sample is counted once.

    data set -> chunks of `batch_size`, in order -> fn(model, *chunk) -> sums and counts -> one division

Booleans and integers are added as integers, so an accuracy is exact. Floats are added in float64, chunk by chunk. The
last bits of a sum of floats depend on `batch_size`, but not on the number of devices.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..tensor.random.keys import Key
from .comm.team import Team
from .data.batch import as_arguments
from .data.dataset import PassReader
from .data.loader import Fetch
from .rng import isolated_generators, seed_generators
from .step.losses import check_rows
from .step.tree import assign

Measure = Callable[..., Any]  # called with the model and the items of a batch; returns one value per sample


def sums(
    fn: Measure,
    model: nn.Module,
    chunks: Sequence[range],
    source: PassReader,
    fetch: Callable[[range], Fetch],
    *,
    key: Key,
    team: Team,
    generators: Sequence[torch.Generator],
    watch: Callable[[float], None],
) -> tuple[float, float]:
    """Return the sum of the values of a measure, and their number. Blocks until all processes call it.

    Each process measures consecutive chunks. The sums of all chunks are added in the order of the data.

    Args:
        chunks: the samples of each call of `fn`.
        source: reads the samples of a chunk.
        fetch: returns the `Fetch` of the chunks with the given indices.
        watch: called with the fraction of this process's chunks that is finished, and with 1 at the end, also after an
            error.
    """

    def measure() -> list[tuple[float, float]]:
        own = assign(len(chunks), team.size)[team.index]
        results: list[tuple[float, float]] = []
        try:
            with evaluation_mode(model), torch.no_grad(), closing(fetch(own)) as data, isolated_generators(generators):
                for index in own:
                    watch((index - own.start) / len(own))
                    samples = chunks[index]
                    data.start_batch(index)
                    content = data.shard(index, 0, partial(source.read, samples))
                    seed_generators(key.fold_in(samples.start), generators)
                    results.append(_measured(fn(model, *as_arguments(content)), len(samples)))
        finally:
            watch(1)
        return [result for gathered in team.gather("measures", results) for result in gathered]

    values, counts = zip(*team.together(measure), strict=True)
    return sum(values), sum(counts)


def mean(total: float, count: float) -> float:
    """Return the quotient. Raise ValueError unless the count is above 0."""
    if not count > 0:
        raise ValueError(f"the counts returned by fn sum to {count}, so the mean is undefined")
    return total / count


def _measured(result: Any, samples: int) -> tuple[float, float]:  # Any: returned by the user's function
    """Return the sum of the values of one chunk, and their number. The sum of integers is an integer."""
    if isinstance(result, tuple) and len(result) == 2:
        return _sum(result[0]), _sum(result[1])
    value = _sum(result)
    check_rows(result, samples, "fn returned")
    return value, result.numel()


def _sum(values: Any) -> float:  # Any: returned by the user's function
    if not isinstance(values, Tensor):
        raise TypeError(
            f"fn must return a tensor with one value per sample, or (values, counts), got {type(values).__name__}.\n"
            f"  right:  lambda m, x, y: m(x).argmax(1) == y"
        )
    if values.is_complex():
        raise TypeError(
            f"fn returned a tensor of {values.dtype}, but a measure must be real.\n"
            f"Return values.real, values.imag or values.abs()."
        )
    total: float = values.sum(dtype=torch.float64 if values.is_floating_point() else torch.int64).item()
    return total


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Put the model in evaluation mode during the block, and restore the mode of each module afterwards."""
    were_training = [module for module in model.modules() if module.training]
    model.eval()
    try:
        yield
    finally:
        for module in were_training:
            module.training = True
