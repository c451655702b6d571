"""Arrays that a loss hands back besides its losses: every shard begins with the same ones, and one value stays.

Floating-point ones become the mean over the samples, taken in float64, so equal values stay what they are: for batch
normalisation that is what torch models have, too. Others, as counters and states of generators, must be the same after
every shard. The rules are in what `replica.gradients.Changed` carries; teams add it as they do for torch models.
"""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from ..replica.gradients import Changed


def changed(buffers: Sequence[Tensor], samples: int) -> dict[int, Changed]:
    """What a shard of so many samples brings."""
    return {place: _changed(buffer, samples) for place, buffer in enumerate(buffers)}


def _changed(buffer: Tensor, samples: int) -> Changed:
    if buffer.is_floating_point():
        return Changed(buffer.to(torch.float64) * samples, samples, "mean")
    return Changed(buffer.clone(), samples, "same")


def settled(sums: Mapping[int, Changed], dtypes: Sequence[torch.dtype]) -> list[Tensor]:
    """What becomes of them, from the sums over all shards."""
    found = (sums[place] for place in range(len(dtypes)))
    return [
        (each.value / each.samples).to(dtype) if each.rule == "mean" else each.value
        for each, dtype in zip(found, dtypes, strict=True)
    ]


def why_not_same(path: str) -> str:
    """What is wrong with a buffer on which the shards do not agree."""
    return (
        f"buffers{path} is not the same after every shard of the batch, and it is no floating-point array, of which "
        f"the mean over the samples would be taken: what it becomes would depend on the order of the shards.\n"
        f"  right:  what is drawn comes from key, which each shard has for itself\n"
        f"  right:  count samples in update, or between two steps\n"
        f"  right:  fanwise.run(..., shards=1)"
    )
