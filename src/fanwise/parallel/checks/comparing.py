"""What processes compare before a step: small facts, of which what differs first is named.

Who makes the facts about a model and its optimizer is the caller's matter; of the batch it is known here.
"""

from collections.abc import Callable
from typing import Any

from ..data.batch import Batch
from ..teams.team import Team
from .agreement import Difference, Facts, first_difference
from .checksums import marks_of_batch

# Batches of each step that are watched closely.
FIRST_BATCHES = 3

# Of a batch, as the facts about it are called.
_SIZE, _BATCH, _SHARD = "the number of samples", "the batch", "the first shard of the batch"


class Comparison:
    """Of one step.

    Args:
        state: what a step begins with besides the batch. number: of the step. every: batches between two times that
            everything is compared; 0: never.
    """

    def __init__(self, team: Team, state: Callable[[], Facts], *, number: int, every: int) -> None:
        self._team = team
        self._state = state
        self._number = number
        self._every = every

    def is_due(self, batch_number: int) -> bool:
        """Whether there is anything to compare before this batch."""
        return batch_number < FIRST_BATCHES or self.compares_all(batch_number)

    def compares_all(self, batch_number: int) -> bool:
        """Whether everything is compared before this batch."""
        return self._every > 0 and batch_number % self._every == 0

    def check(self, batch_number: int, content: Any, batch: Batch) -> None:  # Any: a Batch, or a tree of tensors
        """Before a step: what was given to it, and what it begins with, is the same in all processes.

        Raises:
            ValueError: it is not.
        """
        if self._team.size == 1:
            return  # there is nobody to compare with
        facts: dict[str, object] = {_SIZE: len(batch)}
        if content is not batch:
            facts |= marks_of_batch(content, _BATCH)
        elif batch_number == 0 or self.compares_all(batch_number):
            # Each process reads its own shards; that all have the same data is seen from one shard that all read.
            first = next(index for index, size in enumerate(batch.sizes) if size)
            facts |= marks_of_batch(batch.shard(first), _SHARD)
        if self.compares_all(batch_number):
            facts |= self._state()
        self._compare(facts, batch_number)

    def check_end(self, batch_number: int) -> None:
        """After the last batch: all have come to the same. Raises ValueError if not."""
        if self._every:
            self._compare(self._state(), batch_number)

    def _compare(self, facts: Facts, batch_number: int) -> None:
        what = f"makes step {self._number} of batch {batch_number}, and compares it first"
        different = first_difference(self._team.together(lambda: self._team.gather(what, facts)))
        if different is None:
            return
        if different.name.startswith((_SIZE, _BATCH, _SHARD)):
            raise ValueError(_other_batches(different, self._number, batch_number))
        raise ValueError(
            f"before batch {batch_number} of step {self._number} {different.name} is not the same in all processes: "
            f"{different.said()}.\nSomething has changed it in one process alone: what depends on run.rank, on the "
            f"time, or on numbers that do not come from torch's, numpy's or Python's global streams. A smaller verify= "
            f"finds it nearer to its cause."
        )


def _other_batches(different: Difference, number: int, batch_number: int) -> str:
    return (
        f"the processes gave other batches to step {number}, first in batch {batch_number}: {different.name} is "
        f"{different.said()}.\nEvery process calls the step with the whole batch and executes its own shards of it. A "
        f"DistributedSampler, or a loader that gives each process samples of its own, leaves samples out here; a data "
        f"set or stream that gives others each time it is read, as with a generator of its own, is none to share.\n"
        f"  wrong:  for batch in DataLoader(data, 32, sampler=DistributedSampler(data)): step(batch)\n"
        f"  right:  for batch in run.batches(data, 32): step(batch)"
    )
