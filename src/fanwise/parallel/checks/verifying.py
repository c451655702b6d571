"""Check that a training depends on model and batch alone, and that the processes of a run agree.

    first batches of a step      the batch is the same in all processes; a shard of the first one is executed twice
    every n batches, verify=n    also settings of the optimizer, parameters and which are frozen, and buffers

A shard that is executed twice must have the same loss and gradients bit for bit, on one device too. What is compared
between processes are small facts (checksums.py), gathered before the step by comparing.py.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from ...tensor.random.keys import Key
from ..comm.team import Team
from ..replica.replicas import Replica, ShardWork
from .checksums import marks_of_modules, marks_of_settings
from .comparing import Comparison


class Verifier:
    """Of one step of a torch model.

    Attributes:
        comparison: with other processes.

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
        self.comparison = Comparison(team, self._state, number=number, every=every)
        self._team = team
        self._replica = replica
        self._optimizers = optimizers
        self._number = number
        self._repeats = repeats

    def repeats(self, batch_number: int, *, is_first: bool) -> bool:
        """Whether this process executes a shard of this batch twice. `is_first`: it has executed no other batch."""
        is_due = is_first and self._team.place == 0 and _is_deterministic(self._replica.device)
        return self._repeats and (is_due or self.comparison.compares_all(batch_number))

    def _state(self) -> dict[str, object]:
        """What a step begins with besides the batch."""
        settings = marks_of_settings([group for each in self._optimizers for group in each.param_groups])
        return {**settings, **marks_of_modules(self._replica.modules)}

    def check_repeats(self, work: ShardWork, key: Key, batch_number: int) -> None:
        """Execute a shard twice. The caller keeps and restores buffers.

        Raises:
            ValueError: loss or gradients differ, so they depend on more than model, samples and key.
        """
        one, two = (self._replica.differentiate(work, key) for _ in range(2))
        self.check_same([one.loss, *one.grads], [two.loss, *two.grads], index=work.index, batch_number=batch_number)

    def check_same(
        self, one: Sequence[Tensor | None], two: Sequence[Tensor | None], *, index: int, batch_number: int
    ) -> None:
        """Compare loss and gradients of two executions of a shard. Raises ValueError as `check_repeats`."""
        known = {id(param): name for name, param in self._replica.model.named_parameters()}
        params = (known.get(id(param), "a parameter that has left it") for param in self._replica.params)
        names = ["the loss", *(f"the gradient of {name!r}" for name in params)]
        different = first_other(one, two)
        if different is not None:
            raise ValueError(
                f"shard {index} of batch {batch_number} of step {self._number} was executed twice, and "
                f"{names[different]} differs: the loss must be a function of model and batch, with random numbers from "
                f"the global functions of torch, numpy or random. This one depends on something else, such as a "
                f"counter, a running mean, a generator of its own, the time, an iterator over other data, or samples "
                f"that it changes in place. On several devices it would differ between the processes.\n"
                f"  wrong:  calls[0] += 1; return losses / calls[0]\n"
                f"  right:  put it into the batch, or change it between two steps"
            )


def _is_deterministic(device: torch.device) -> bool:
    """Whether the same work has the same bits there."""
    return device.type == "cpu" or torch.are_deterministic_algorithms_enabled()


def first_other(one: Sequence[Tensor | None], two: Sequence[Tensor | None]) -> int | None:
    """The first place at which they are not the same, bit by bit."""
    for place, (left, right) in enumerate(zip(one, two, strict=True)):
        if left is None or right is None:
            if left is not right:
                return place
        elif not torch.equal(left.nan_to_num(), right.nan_to_num()):
            return place
    return None
