"""Checks that the loss depends on model and batch alone, and that all processes do the same.

    first batches of a step      all processes have the same batch; a shard of the first one is executed twice
    every n batches, verify=n    also optimizer settings, parameters and buffers are the same

A shard that is executed twice must have the same loss and gradients bit for bit, also on one device. Processes gather
and compare fingerprints before a step.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ...tensor.random.keys import Key
from ..comm.team import Team
from ..data.batch import Batch
from ..replica.replicas import Replica, ShardWork
from .fingerprints import (
    Facts,
    batch_fingerprints,
    first_difference,
    have_same_bits,
    module_fingerprints,
    optimizer_settings,
)

_FIRST_BATCHES = 3  # of each step are compared
_BATCH_FACTS = _SIZE, _BATCH, _SHARD = "the number of samples", "the batch", "the first shard of the batch"


class Verifier:
    """The consistency checks of step `number`.

    Args:
        every: compare everything every so many batches; 0: never.
        can_repeat: whether a shard can be executed separately from the others.
    """

    def __init__(
        self,
        team: Team,
        replica: Replica,
        optimizers: Sequence[torch.optim.Optimizer],
        *,
        number: int,
        every: int,
        can_repeat: bool,
    ) -> None:
        self._team = team
        self._replica = replica
        self._optimizers = optimizers
        self._number = number
        self._every = every
        self._can_repeat = can_repeat

    # -- between processes -----------------------------------------------------------------------------------------

    def is_due(self, batch_number: int) -> bool:
        """Return whether `check_batch` is to be called before this batch."""
        return batch_number < _FIRST_BATCHES or self._compares_all(batch_number)

    def _compares_all(self, batch_number: int) -> bool:
        return self._every > 0 and batch_number % self._every == 0

    def check_batch(self, batch_number: int, content: Any, batch: Batch) -> None:  # Any: a Batch, or a tree of tensors
        """Compare the batch, and with `verify=` everything, with other processes. Raise ValueError if they differ."""
        if self._team.size == 1:
            return
        facts: dict[str, object] = {_SIZE: len(batch)}
        if content is not batch:
            facts |= batch_fingerprints(content, _BATCH)
        elif batch_number == 0 or self._compares_all(batch_number):
            # Each process reads other shards of its data set. All read this one, to compare the data sets.
            first = next(index for index, size in enumerate(batch.sizes) if size)
            facts |= batch_fingerprints(batch.shard(first), _SHARD)
        if self._compares_all(batch_number):
            facts |= self._state()
        self._compare(facts, batch_number)

    def check_end(self, batch_number: int) -> None:
        """With `verify=`, compare the state after the last batch. Raises ValueError if it differs."""
        if self._every:
            self._compare(self._state(), batch_number)

    def _state(self) -> dict[str, object]:
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        return {**optimizer_settings(groups), **module_fingerprints(self._replica.modules)}

    def _compare(self, facts: Facts, batch_number: int) -> None:
        operation = f"makes step {self._number} of batch {batch_number}, and compares it first"
        difference = first_difference(self._team.together(lambda: self._team.gather(operation, facts)))
        if difference is None:
            return
        name, values = difference
        if name.startswith(_BATCH_FACTS):
            raise ValueError(
                f"the processes gave other batches to step {self._number}, first in batch {batch_number}: {name} is "
                f"{values}.\nEvery process calls the step with the whole batch and executes its own shards of it. A "
                f"data set must give the same samples each time it is read, so none with a DistributedSampler.\n"
                f"  wrong:  for batch in DataLoader(data, 32, sampler=DistributedSampler(data)): step(batch)\n"
                f"  right:  for batch in run.batches(data, 32): step(batch)"
            )
        raise ValueError(
            f"before batch {batch_number} of step {self._number} {name} is not the same in all processes: "
            f"{values}.\nCode that depends on run.rank, on the time, or on other random numbers than those of the "
            f"global functions of torch, numpy and random has changed it. A smaller verify= finds it sooner."
        )

    # -- a shard executed twice ------------------------------------------------------------------------------------

    def repeats(self, batch_number: int, *, is_first: bool) -> bool:
        """Return whether this process executes a shard of this batch twice. `is_first`: its first batch."""
        is_deterministic = self._replica.device.type == "cpu" or torch.are_deterministic_algorithms_enabled()
        is_due = is_first and self._team.place == 0 and is_deterministic
        return self._can_repeat and (is_due or self._compares_all(batch_number))

    def check_repeats(self, work: ShardWork, key: Key, batch_number: int) -> None:
        """Execute a shard twice. The caller restores buffers. Raises ValueError if the results differ."""
        one, two = (self._replica.differentiate(work, key) for _ in range(2))
        self.check_same([one.loss, *one.grads], [two.loss, *two.grads], index=work.index, batch_number=batch_number)

    def check_same(
        self, one: Sequence[Tensor | None], two: Sequence[Tensor | None], *, index: int, batch_number: int
    ) -> None:
        """Compare loss and gradients of two executions of a shard. Raises ValueError if they differ."""
        place = first_different(one, two)
        if place is None:
            return
        names = {id(param): name for name, param in self._replica.model.named_parameters()}
        param_names = [names.get(id(param), "a removed parameter") for param in self._replica.params]
        result = ["the loss", *(f"the gradient of {name!r}" for name in param_names)][place]
        raise ValueError(
            f"shard {index} of batch {batch_number} of step {self._number} was executed twice, and {result} differs: "
            f"the loss must be a function of model and batch, with random numbers from the global functions of torch, "
            f"numpy or random. This one depends on something else, such as a counter, a running mean, its own random "
            f"generator, the time, or samples that it changes in place, which are not the same in all processes.\n"
            f"  wrong:  calls[0] += 1; return losses / calls[0]\n"
            f"  right:  put it into the batch, or change it between two steps"
        )


def first_different(one: Sequence[Tensor | None], two: Sequence[Tensor | None]) -> int | None:
    """The first index at which two lists of tensors differ in a bit, or in a None."""
    for index, (left, right) in enumerate(zip(one, two, strict=True)):
        if left is None or right is None:
            if left is not right:
                return index
        elif not have_same_bits(left, right):
            return index
    return None


def check_same_model(team: Team, modules: Mapping[str, nn.Module]) -> None:
    """Raise ValueError unless the modules have the same parameters and buffers in all processes."""
    if team.size == 1:
        return
    own = module_fingerprints(modules)
    difference = first_difference(team.together(lambda: team.gather("makes a step of a model", own)))
    if difference is not None:
        raise ValueError(
            f"the model differs between the processes, first in {difference[0]!r}: {difference[1]}.\n"
            f"Make it in the training function, in the same way in every process."
        )
