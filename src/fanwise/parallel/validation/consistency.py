"""Checks that the loss depends only on model and batch, and that all processes have the same batches and models.

    first three batches          processes compare the batch; a shard of the first batch is executed twice
    every n batches, verify=n    the same, and processes compare optimizer settings, parameters and buffers

A shard that is executed twice must have the same loss and gradients bit for bit. Processes compare fingerprints before
a step.
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

_FIRST_BATCHES = 3  # number of batches of each step that are compared
_BATCH_FACTS = _SIZE, _BATCH, _SHARD = "the number of samples", "the batch", "the first shard of the batch"


@dataclass(slots=True)
class Verifier:
    team: Team
    replica: Replica
    optimizers: Sequence[torch.optim.Optimizer]
    number: int  # index of the step in its run
    every: int  # the option verify=
    can_repeat: bool  # False if a shard cannot be executed separately from the others

    def is_due(self, batch_number: int) -> bool:
        """Return True if `check_batch` must be called before this batch."""
        return batch_number < _FIRST_BATCHES or self._compares_all(batch_number)

    def _compares_all(self, batch_number: int) -> bool:
        return self.every > 0 and batch_number % self.every == 0

    def check_batch(self, batch_number: int, content: Any, batch: Batch) -> None:  # Any: a Batch, or a tree of tensors
        """Raise ValueError if the batch differs between processes, or with `verify=` models or optimizer settings."""
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
        """Raise ValueError if `verify=` is set and models or optimizer settings differ between processes."""
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
                f"the processes called step {self.number} with different batches, first batch {batch_number}: {name} "
                f"is {values}.\nEvery process calls the step with the whole batch and executes some of its shards. "
                f"Give each process the whole data set, without a DistributedSampler.\n"
                f"  wrong:  for batch in DataLoader(data, 32, sampler=DistributedSampler(data)): step(batch)\n"
                f"  right:  for batch in run.batches(data, 32): step(batch)"
            )
        raise ValueError(
            f"before batch {batch_number} of step {self.number}, {name} is not the same in all processes: {values}.\n"
            f"The program may depend on run.rank, on the time, or on random numbers that do not come from the global "
            f"functions of torch, numpy and random. A smaller verify= detects the difference sooner."
        )

    def is_repeat_due(self, batch_number: int, *, is_first_batch: bool) -> bool:
        """Return True if this process executes a shard of this batch twice.

        `is_first_batch`: it is the first one in this process, even after a resume.
        """
        is_deterministic = self.replica.device.type == "cpu" or torch.are_deterministic_algorithms_enabled()
        is_due = is_first_batch and self.team.index == 0 and is_deterministic
        return self.can_repeat and (is_due or self._compares_all(batch_number))

    def check_repeats(self, work: ShardWork, key: Key, batch_number: int) -> None:
        """Execute a shard twice. Raise ValueError if the results differ. The caller restores the buffers."""
        one, two = (self.replica.differentiate(work, key) for _ in range(2))
        self.check_same([one.loss, *one.grads], [two.loss, *two.grads], index=work.index, batch_number=batch_number)

    def check_same(
        self, one: Sequence[Tensor | None], two: Sequence[Tensor | None], *, index: int, batch_number: int
    ) -> None:
        """Raise ValueError if loss or gradients differ between two executions of a shard."""
        names = {id(param): name for name, param in self.replica.model.named_parameters()}
        param_names = [names.get(id(param), "a removed parameter") for param in self.replica.params]
        results = ["the loss", *(f"the gradient of {name!r}" for name in param_names)]
        triples = zip(results, one, two, strict=True)
        name = next((result for result, left, right in triples if not _are_same(left, right)), None)
        if name is None:
            return
        raise ValueError(
            f"shard {index} of batch {batch_number} of step {self.number} was executed twice, and {name} differs.\n"
            f"The loss must be a function of model and batch, with random numbers from the global functions of torch, "
            f"numpy or random. This loss depends on something else, such as a counter, a running mean, its own random "
            f"generator, the time, or samples that it changes in place.\n"
            f"  wrong:  calls[0] += 1; return losses / calls[0]\n"
            f"  right:  put the value into the batch, or change it between two steps"
        )


def _are_same(left: Tensor | None, right: Tensor | None) -> bool:
    return left is right or (left is not None and right is not None and have_same_bits(left, right))


def check_same_model(team: Team, modules: Mapping[str, nn.Module]) -> None:
    """Raise ValueError unless the modules have the same parameters and buffers in all processes."""
    if team.size == 1:
        return
    own = module_fingerprints(modules)
    difference = first_difference(team.together(lambda: team.gather("makes a step of a model", own)))
    if difference is not None:
        raise ValueError(
            f"the model differs between the processes, first in {difference[0]!r}: {difference[1]}.\n"
            f"Create it in the training function, in the same way in every process."
        )
