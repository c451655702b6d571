"""Checks that the loss depends on model and batch alone, and that all processes do the same.

    first batches of a step      all processes have the same batch; a shard of the first one is executed twice
    every n batches, verify=n    also optimizer settings, parameters and buffers are the same

A shard that is executed twice must have the same loss and gradients bit for bit, also on one device. Processes gather
and compare fingerprints before a step.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from ...tensor.random.keys import Key
from ..comm.team import Team
from ..data.batch import Batch
from ..step.replicas import Replica, ShardWork
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


@dataclass(slots=True)
class Verifier:
    """The consistency checks of step `number`.

    Args:
        every: number of batches between comparisons of everything; 0: never.
        can_repeat: whether a shard can be executed separately from the others.
    """

    team: Team
    replica: Replica
    optimizers: Sequence[torch.optim.Optimizer]
    number: int
    every: int
    can_repeat: bool

    def is_due(self, batch_number: int) -> bool:
        """Return whether `check_batch` is to be called before this batch."""
        return batch_number < _FIRST_BATCHES or self._compares_all(batch_number)

    def _compares_all(self, batch_number: int) -> bool:
        return self.every > 0 and batch_number % self.every == 0

    def check_batch(self, batch_number: int, content: Any, batch: Batch) -> None:  # Any: a Batch, or a tree of tensors
        """Compare the batch, and with `verify=` everything, with other processes. Raise ValueError if they differ."""
        if self.team.size == 1:
            return
        facts: dict[str, object] = {_SIZE: len(batch)}
        if content is not batch:
            facts |= batch_fingerprints(content, _BATCH)
        elif batch_number == 0 or self._compares_all(batch_number):
            # All processes read this shard, to compare their data sets.
            first = next(index for index, size in enumerate(batch.sizes) if size)
            facts |= batch_fingerprints(batch.shard(first), _SHARD)
        if self._compares_all(batch_number):
            facts |= self._state()
        self._compare(facts, batch_number)

    def check_end(self, batch_number: int) -> None:
        """Compare the state after the last batch, if `verify=` is set. Raise ValueError if it differs."""
        if self.every:
            self._compare(self._state(), batch_number)

    def _state(self) -> dict[str, object]:
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        return {**optimizer_settings(groups), **module_fingerprints(self.replica.modules)}

    def _compare(self, facts: Facts, batch_number: int) -> None:
        operation = f"compares batch {batch_number} before it makes step {self.number}"
        difference = first_difference(self.team.together(lambda: self.team.gather(operation, facts)))
        if difference is None:
            return
        name, values = difference
        if name.startswith(_BATCH_FACTS):
            raise ValueError(
                f"the processes gave other batches to step {self.number}, first in batch {batch_number}: {name} is "
                f"{values}.\nEvery process calls the step with the whole batch and executes its own shards of it. Give "
                f"each process the whole data set, without a DistributedSampler.\n"
                f"  wrong:  for batch in DataLoader(data, 32, sampler=DistributedSampler(data)): step(batch)\n"
                f"  right:  for batch in run.batches(data, 32): step(batch)"
            )
        raise ValueError(
            f"before batch {batch_number} of step {self.number} {name} is not the same in all processes: "
            f"{values}.\nCode that depends on run.rank, on the time, or on other random numbers than those of the "
            f"global functions of torch, numpy and random has changed it. A smaller verify= finds it sooner."
        )

    def repeats(self, batch_number: int, *, is_first: bool) -> bool:
        """Return whether this process executes a shard of this batch twice. `is_first`: its first batch."""
        is_deterministic = self.replica.device.type == "cpu" or torch.are_deterministic_algorithms_enabled()
        is_due = is_first and self.team.index == 0 and is_deterministic
        return self.can_repeat and (is_due or self._compares_all(batch_number))

    def check_repeats(self, work: ShardWork, key: Key, batch_number: int) -> None:
        """Execute a shard twice. The caller restores buffers. Raise ValueError if the results differ."""
        one, two = (self.replica.differentiate(work, key) for _ in range(2))
        self.check_same([one.loss, *one.grads], [two.loss, *two.grads], index=work.index, batch_number=batch_number)

    def check_same(
        self, one: Sequence[Tensor | None], two: Sequence[Tensor | None], *, index: int, batch_number: int
    ) -> None:
        """Compare loss and gradients of two executions of a shard. Raise ValueError if they differ."""
        place = first_different(one, two)
        if place is None:
            return
        names = {id(param): name for name, param in self.replica.model.named_parameters()}
        param_names = [names.get(id(param), "a removed parameter") for param in self.replica.params]
        result = ["the loss", *(f"the gradient of {name!r}" for name in param_names)][place]
        raise ValueError(
            f"shard {index} of batch {batch_number} of step {self.number} was executed twice, and {result} differs: "
            f"the loss must be a function of model and batch, with random numbers from the global functions of torch, "
            f"numpy or random. This one depends on something else, such as a counter, a running mean, its own random "
            f"generator, the time, or samples that it changes in place, which are not the same in all processes.\n"
            f"  wrong:  calls[0] += 1; return losses / calls[0]\n"
            f"  right:  put it into the batch, or change it between two steps"
        )


def first_different(one: Sequence[Tensor | None], two: Sequence[Tensor | None]) -> int | None:
    """Return the first index at which two lists of tensors differ in a bit, or in a None."""
    for index, (left, right) in enumerate(zip(one, two, strict=True)):
        if left is not right and (left is None or right is None or not have_same_bits(left, right)):
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
