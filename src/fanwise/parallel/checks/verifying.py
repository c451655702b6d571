"""What the processes of a run compare, so that what differs between them is said before it spoils a training.

    first batches of a step      the batch: somebody may bring a loader that gives each process samples of its own
    the first step               whether what the loss leaves behind outside of modules changes gradients (traces.py)
    every n batches, verify=n    batch, settings of the optimizer, parameters and which are frozen, buffers, attributes;
                                 whether a shard that is executed twice has the same gradients, on one device too; and
                                 again what the loss leaves behind

All that is compared are small facts (checksums.py); what differs first is found by agreement.py. They are gathered
before the step, so nobody has computed anything from them yet.
"""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ...tensor.random.keys import Key
from ..data.batches import Batch
from ..inspecting.reached import Root
from ..replica.replicas import Replica, ShardWork
from ..teams.team import Team
from .agreement import Difference, Facts, first_difference
from .checksums import marks_of_batch, marks_of_modules, marks_of_settings
from .traces import Traces

# Batches of each step that are watched closely.
FIRST_BATCHES = 3

# Of a batch, as the facts about it are called.
_SIZE, _BATCH, _SHARD = "the number of samples", "the batch", "the first shard of the batch"


class Verifier:
    """Of one step.

    Args:
        number: of the step. every: batches between two times that everything is compared; 0: never. repeats: whether a
            shard can be executed by itself.
    """

    def __init__(
        self,
        team: Team,
        replica: Replica,
        optimizers: Sequence[torch.optim.Optimizer],
        *,
        number: int,
        every: int,
        repeats: bool,
    ) -> None:
        self._team = team
        self._replica = replica
        self._optimizers = optimizers
        self._number = number
        self._every = every
        self._repeats = repeats

    @property
    def can_repeat(self) -> bool:
        """Whether a shard can be executed by itself, and has the same bits each time."""
        return self._repeats and _is_deterministic(self._replica.device)

    def traces(self, root: Root) -> Traces:
        """What the loss, or the function of a loop, may leave behind outside of modules, as it is now."""
        return Traces((root, self._replica.model))

    def is_due(self, batch_number: int) -> bool:
        """Whether there is anything to compare before this batch."""
        return batch_number < FIRST_BATCHES or self._compares_all(batch_number)

    def repeats(self, batch_number: int) -> bool:
        """Whether a shard of this batch is to be executed twice."""
        return self._repeats and self._compares_all(batch_number)

    def _compares_all(self, batch_number: int) -> bool:
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
        elif batch_number == 0 or self._compares_all(batch_number):
            # Each process reads its own shards; that all have the same data is seen from one shard that all read.
            first = next(index for index, size in enumerate(batch.sizes) if size)
            facts |= marks_of_batch(batch.shard(first), _SHARD)
        if self._compares_all(batch_number):
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

    def _state(self) -> dict[str, object]:
        """What a step begins with besides the batch."""
        settings = marks_of_settings([group for each in self._optimizers for group in each.param_groups])
        return {**settings, **marks_of_modules(self._replica.modules), **self._replica.attributes.marks()}

    def check_repeats(
        self, work: ShardWork, key: Key, batch_number: int, between: Callable[[], None] | None = None
    ) -> None:
        """A shard that is executed twice has the same loss and gradients.

        Inside a step: buffers and attributes are the caller's to keep and put back. `between`: done before the second.

        Raises:
            ValueError: it has not, so its result depends on more than model, samples and key.
        """
        one = self._replica.differentiate(work, key)
        if between is not None:
            between()
        two = self._replica.differentiate(work, key)
        self.check_same([one.loss, *one.grads], [two.loss, *two.grads], index=work.index, batch_number=batch_number)

    def check_same(
        self, one: Sequence[Tensor | None], two: Sequence[Tensor | None], *, index: int, batch_number: int
    ) -> None:
        """A shard was executed twice: its loss and gradients, of each time. Raises ValueError as `check_repeats`."""
        known = {id(param): name for name, param in self._replica.model.named_parameters()}
        params = (known.get(id(param), "a parameter that has left it") for param in self._replica.params)
        names = ["the loss", *(f"the gradient of {name!r}" for name in params)]
        different = _first_other(one, two)
        if different is not None:
            raise ValueError(
                f"before batch {batch_number} of step {self._number} shard {index} was executed twice, and "
                f"{names[different]} is not the same: it depends on something besides model, samples and the random "
                f"numbers of torch, numpy and Python, such as a counter in a closure, the time, or a generator without "
                f"a seed. On several devices it would be another one in each process.\n"
                f"  wrong:  calls[0] += 1; return losses / calls[0]\n"
                f"  right:  give it with the batch, or keep it in an attribute of the model"
            )


def _is_deterministic(device: torch.device) -> bool:
    """Whether the same work has the same bits there."""
    return device.type == "cpu" or torch.are_deterministic_algorithms_enabled()


def _first_other(one: Sequence[Tensor | None], two: Sequence[Tensor | None]) -> int | None:
    """The first place at which they are not the same, bit by bit."""
    for place, (left, right) in enumerate(zip(one, two, strict=True)):
        if left is None or right is None:
            if left is not right:
                return place
        elif not torch.equal(left.nan_to_num(), right.nan_to_num()):
            return place
    return None


def _other_batches(different: Difference, number: int, batch_number: int) -> str:
    return (
        f"the processes gave other batches to step {number}, first in batch {batch_number}: {different.name} is "
        f"{different.said()}.\nEvery process calls the step with the whole batch and executes its own shards of it. A "
        f"DistributedSampler, or a loader that gives each process samples of its own, leaves samples out here.\n"
        f"  wrong:  for batch in DataLoader(data, 32, sampler=DistributedSampler(data)): step(batch)\n"
        f"  right:  for batch in run.batches(data, 32): step(batch)"
    )
