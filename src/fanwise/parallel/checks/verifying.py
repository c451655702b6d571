"""What the processes of a run compare, so that what differs between them is said before it spoils a training.

    first batches of a step      the batch: somebody may bring a loader that gives each process samples of its own
    the first step               whether what the loss leaves behind outside of modules changes gradients (traces.py)
    every n batches, verify=n    batch, settings of the optimizer, parameters and which are frozen, buffers, attributes;
                                 whether a shard that is executed twice has the same gradients, on one device too; and
                                 again what the loss leaves behind

All that is compared are small facts (checksums.py), by comparing.py; what differs first is found by agreement.py. They
are gathered before the step, so nobody has computed anything from them yet.
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ...tensor.random.keys import Key
from ..inspecting.reached import Root
from ..replica.replicas import Replica, ShardWork
from ..teams.team import Team
from .checksums import marks_of_modules, marks_of_settings
from .comparing import Comparison
from .traces import Traces


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
        self._replica = replica
        self._optimizers = optimizers
        self._number = number
        self._repeats = repeats

    @property
    def can_repeat(self) -> bool:
        """Whether a shard can be executed by itself, and has the same bits each time."""
        return self._repeats and _is_deterministic(self._replica.device)

    def traces(self, root: Root) -> Traces:
        """What the loss, or the function of a loop, may leave behind outside of modules, as it is now."""
        return Traces((root, self._replica.model))

    def repeats(self, batch_number: int) -> bool:
        """Whether a shard of this batch is to be executed twice."""
        return self._repeats and self.comparison.compares_all(batch_number)

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
        different = first_other(one, two)
        if different is not None:
            raise ValueError(
                f"before batch {batch_number} of step {self._number} shard {index} was executed twice, and "
                f"{names[different]} is not the same: it depends on something besides model, samples and the random "
                f"numbers of torch, numpy and Python, such as a counter in a closure, the time, a generator without a "
                f"seed, an iterator over other data, or samples that it changes in place. On several devices it would "
                f"be another one in each process.\n"
                f"  wrong:  calls[0] += 1; return losses / calls[0]\n"
                f"  right:  give it with the batch, or keep it in an attribute of the model"
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
