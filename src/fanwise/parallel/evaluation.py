"""`run.mean`: the mean of a metric over a data set. Every sample is counted once.

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

Metric = Callable[..., Any]  # called as fn(model, *batch); returns one value per sample, or (values, counts)


def mean(
    fn: Metric,
    model: nn.Module,
    chunks: Sequence[range],
    source: PassReader,
    fetch: Callable[[range], Fetch],
    *,
    key: Key,
    team: Team,
    generators: Sequence[torch.Generator],
    on_progress: Callable[[float], None],
) -> float:
    """Return the sum of the values over the sum of the counts. Without counts, each value counts 1.

    Each process evaluates consecutive chunks. The sums of all chunks are added in the order of the data. Blocks until
    all processes call it.

    Args:
        source: reads a chunk in this process if no worker has loaded it.
        fetch: starts the workers for the chunks with these indices.
        on_progress: called with the finished fraction of this process's chunks, and with 1 at the end.
    """

    @torch.no_grad()
    def evaluate_chunks() -> list[tuple[float, float]]:
        own_chunks = assign(len(chunks), team.size)[team.index]
        results: list[tuple[float, float]] = []
        try:
            with evaluation_mode(model), closing(fetch(own_chunks)) as fetcher, isolated_generators(generators):
                for index in own_chunks:
                    on_progress((index - own_chunks.start) / len(own_chunks))
                    samples = chunks[index]
                    fetcher.start_batch(index)
                    content = fetcher.shard(index, 0, partial(source.read, samples))
                    seed_generators(key.fold_in(samples.start), generators)
                    results.append(_sum_and_count_of_chunk(fn(model, *as_arguments(content)), len(samples)))
        finally:
            on_progress(1)
        return [result for peer_results in team.gather("evaluates", results) for result in peer_results]

    values, counts = zip(*team.together(evaluate_chunks), strict=True)
    count = sum(counts)
    if not count > 0:
        raise ValueError(f"the counts returned by fn sum to {count}, so the mean is undefined")
    mean: float = sum(values) / count
    return mean


def _sum_and_count_of_chunk(result: Any, samples: int) -> tuple[float, float]:  # Any: returned by the user's function
    """Return the sum of the values of one chunk and the sum of its counts. The sum of integers is an integer."""
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
            f"fn returned a tensor of {values.dtype}, but a metric must be real.\n"
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
