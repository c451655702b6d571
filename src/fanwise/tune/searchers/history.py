"""History: what a searcher has seen, one row a trial, ready for a model. A state machine without chance.

    observe(Observation), on_rewind(trial, iter), on_end(trial, status)   -->   data(): rows and what came out

Without resource levels a model learns from each trial's last report, at whatever resource. With levels it learns from
each trial's first report at or beyond the highest level that enough trials have reached (BOHB: Falkner et al., arXiv
1807.01774, section 3.2).

What counts as a result: a report of finite numbers. An infinite loss is a report without a result, and a trial that
failed has none either, whatever it reported before: both stand in the data with +inf, so that a model can keep away
from there. A report that violates a constraint is a result, and its violations stand beside its losses. A trial that
failed without a report is kept if its row is given. Reports that a rewind has made void leave no trace: the data is
the same as if they had never come.

Memory: a trial that is over is one row of numbers. One that may still report has its reports too, 24 bytes and 8 for
each objective and constraint, because a rewind may go back to any of them.
"""

# N: trials, D: hyperparameters, L: levels, M: objectives, C: constraints

import math
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, final

import numpy as np
import numpy.typing as npt

from ..values import rounded_resource
from .base import Observation
from .encoding import Encoder, Floats, Rows

_FIRST_SIZE = 64


@final
@dataclass(frozen=True, slots=True, eq=False)
class Data:
    """What a model learns from: a copy, in the order of the trials' ids.

    Attributes:
        trial_ids_N: of which trials.
        rows_ND: their configurations (`encoding`).
        losses_NM: what came out, finite; +inf where there is no result.
        violations_NC: by how much each constraint is violated, at most 0 where it is met; +inf: there is no result.
        infeasibility_N: all of that in one number, 0 where every constraint is met; +inf where there is no result.
        is_over_N: whether the trial is over; what others reported may not be their last word.
        level: the resource level that it is about; None: each trial's last report.
        costs_N: what a unit of resource cost, where the searcher asks; of who has no result the greatest of all.
    """

    trial_ids_N: npt.NDArray[np.int64]
    rows_ND: Rows
    losses_NM: Floats
    violations_NC: Floats
    infeasibility_N: Floats
    is_over_N: npt.NDArray[np.bool_]
    level: float | None
    costs_N: Floats | None = None

    @property
    def loss_N(self) -> Floats:
        """The first objective."""
        return self.losses_NM[:, 0]

    @property
    def has_result_N(self) -> npt.NDArray[np.bool_]:
        """Whether there is a result."""
        return np.isfinite(self.losses_NM[:, 0])

    def equals(self, other: "Data") -> bool:
        """Whether a model of the other is one of this."""
        return (
            self.level == other.level
            and np.array_equal(self.trial_ids_N, other.trial_ids_N)
            and np.array_equal(self.rows_ND, other.rows_ND, equal_nan=True)
            and np.array_equal(self.losses_NM, other.losses_NM)
            and np.array_equal(self.violations_NC, other.violations_NC)
            and np.array_equal(self.is_over_N, other.is_over_N)
            and (self.costs_N is other.costs_N or np.array_equal(self.costs_N, other.costs_N))  # type: ignore[arg-type]
        )

    def filled(self) -> Floats:
        """The losses, with the worst result of each objective where there is none, (N, M): for models of numbers."""
        has_result = self.has_result_N
        worst_M = self.losses_NM[has_result].max(axis=0, initial=-np.inf)
        return np.where(has_result[:, None], self.losses_NM, np.where(np.isfinite(worst_M), worst_M, 0.0))


@final
@dataclass(slots=True)
class _Living:
    """The standing reports of a trial that may go on."""

    slot: int
    iters: "array[int]" = field(default_factory=lambda: array("q"))
    resources: "array[float]" = field(default_factory=lambda: array("d"))
    numbers: "array[float]" = field(default_factory=lambda: array("d"))  # M + 1 + C for each report


@final
class History:
    """What was observed of the trials of one search.

    Args:
        encoder: makes rows of their configurations.
        levels: resource levels in increasing order; empty: learn from last reports.

    >>> from fanwise.tune.spaces import Space, uniform
    >>> history = History(Encoder(Space({"x": uniform(0, 1)})))
    >>> history.observe(Observation(7, {"x": 0.25}, 1, 1.0, (3.0,), {}))
    >>> history.observe(Observation(7, {"x": 0.25}, 2, 2.0, (2.0,), {}))
    >>> history.data().rows_ND.tolist(), history.data().loss_N.tolist()
    ([[0.25]], [2.0])
    >>> history.on_rewind(7, to_iter=1)
    >>> history.data().loss_N.tolist()
    [3.0]
    """

    def __init__(self, encoder: Encoder, levels: Sequence[float] = ()) -> None:
        self._encoder = encoder
        # Rounded like the resources of observations.
        self._levels = tuple(map(rounded_resource, levels)) or None
        self._living: dict[int, _Living] = {}
        self._free: list[int] = []  # slots that nobody has
        self._num_slots = 0  # that were ever used
        self._ids = np.empty(0, np.int64)
        self._rows = np.empty((0, encoder.num_dims))
        num_levels = 1 if self._levels is None else len(self._levels)
        self._num_objectives = 1  # until the first report
        # The losses, the infeasibility, the violations; NaN: did not report there.
        self._values = np.empty((0, num_levels, 2))
        self._is_over = np.empty(0, bool)

    def __contains__(self, trial_id: object) -> bool:
        """Whether the trial has reported and may go on."""
        return trial_id in self._living

    def num_results(self) -> int:
        """The number of trials with a result at the first level, where most have one."""
        return int(np.isfinite(self._values[: self._num_slots, 0, 0]).sum())

    def observe(self, observation: Observation) -> None:
        """A trial reported."""
        living = self._living.get(observation.trial_id)
        if living is None:
            slot = self._enter(observation.trial_id, self._encoder.encode(observation.config))
            living = self._living[observation.trial_id] = _Living(slot)
        numbers = (*observation.losses, observation.infeasibility, *observation.violations)
        if not all(map(math.isfinite, numbers)):
            numbers = (math.inf,) * len(numbers)
        living.iters.append(observation.iter)
        living.resources.append(observation.resource)
        living.numbers.extend(numbers)
        self._num_objectives = len(observation.losses)
        self._make_room(len(numbers))
        self._write(living.slot, observation.resource, numbers)

    def on_rewind(self, trial_id: int, to_iter: int) -> None:
        """The reports of the trial after iteration `to_iter` are void."""
        living = self._living.get(trial_id)
        if living is None or not living.iters or living.iters[-1] <= to_iter:
            return
        size = self._values.shape[2]
        stand = bisect_right(living.iters, to_iter)
        del living.iters[stand:], living.resources[stand:], living.numbers[stand * size :]
        self._values[living.slot] = math.nan
        for place, resource in enumerate(living.resources):
            self._write(living.slot, resource, living.numbers[place * size : (place + 1) * size])

    def on_end(self, trial_id: int, status: str, row: Floats | None = None) -> None:
        """The trial is over for good.

        Args:
            status: "Completed", "Stopped" or "Failed".
            row: of its configuration, for a trial that may not have reported.
        """
        living = self._living.pop(trial_id, None)
        if living is not None and not living.iters:  # as if it had never been told of
            self._free.append(living.slot)
            living = None
        if living is not None:
            slot = living.slot
        elif status == "Failed" and row is not None:
            slot = self._enter(trial_id, row)
        else:
            return
        self._is_over[slot] = True
        if status == "Failed":
            self._values[slot] = math.inf

    def data(self, *, enough: int = 1, limit: int | None = None, with_costs: bool = False) -> Data:
        """Return the data to learn from.

        Args:
            enough: number of results that a level needs. If no level has them, the first one is used.
            limit: maximum number of trials: a quarter are the best, the others the latest.
            with_costs: the last loss of every observation is the cost of a unit of resource. It becomes `costs_N`, and
                does not count when the best trials are chosen.
        """
        values = self._values[: self._num_slots]
        level = 0
        if self._levels is not None:
            counts = np.isfinite(values[:, :, 0]).sum(axis=0)
            level = int(max(np.flatnonzero(counts >= enough), default=0))
        numbers = values[:, level]
        slots = np.flatnonzero(~np.isnan(numbers[:, 0]))
        slots = slots[np.argsort(self._ids[slots])]
        if limit is not None and len(slots) > limit:
            losses_NM = numbers[slots, : self._num_objectives - with_costs]
            slots = slots[_most_telling(losses_NM, numbers[slots, self._num_objectives], limit)]
        data = Data(
            trial_ids_N=self._ids[slots],
            rows_ND=self._rows[slots],
            losses_NM=numbers[slots, : self._num_objectives],
            violations_NC=numbers[slots, self._num_objectives + 1 :],
            infeasibility_N=numbers[slots, self._num_objectives],
            is_over_N=self._is_over[slots],
            level=None if self._levels is None else self._levels[level],
        )
        if with_costs:
            return replace(data, losses_NM=data.losses_NM[:, :-1], costs_N=data.filled()[:, -1])
        return data

    def _enter(self, trial_id: int, row: Floats) -> int:
        """A slot for a trial, without a value yet."""
        if self._free:
            slot = self._free.pop()
        else:
            slot = self._num_slots
            self._num_slots += 1
            if slot == len(self._ids):
                self._grow(max(_FIRST_SIZE, 2 * slot))
        self._ids[slot] = trial_id
        self._rows[slot] = row
        self._is_over[slot] = False
        self._values[slot] = math.nan
        return slot

    def _grow(self, size: int) -> None:
        self._ids = _longer(self._ids, size)
        self._rows = _longer(self._rows, size)
        self._is_over = _longer(self._is_over, size)
        self._values = _longer(self._values, size)

    def _make_room(self, num_numbers: int) -> None:
        """Before the first report there is nothing but trials without a result: they have none of more objectives."""
        if self._values.shape[2] != num_numbers:
            self._values = np.repeat(self._values[:, :, :1], num_numbers, axis=2)

    def _write(self, slot: int, resource: float, numbers: Sequence[float]) -> None:
        """The next report of a trial that stands."""
        if self._levels is None:
            self._values[slot, 0] = numbers
            return
        for level in range(bisect_right(self._levels, resource)):
            if math.isnan(self._values[slot, level, 0]):
                self._values[slot, level] = numbers


def _longer(old: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    new = np.empty((size, *old.shape[1:]), old.dtype)
    new[: len(old)] = old
    return new


def _most_telling(losses_NM: Floats, infeasibility_N: Floats, limit: int) -> npt.NDArray[np.int64]:
    """Return the places of the best quarter and of the latest others, in order.

    Trials are ranked by infeasibility first, and then by the sum of their ranks in each objective.
    """
    ranks_N = losses_NM.argsort(axis=0, kind="stable").argsort(axis=0, kind="stable").sum(axis=1)
    is_kept = np.zeros(len(infeasibility_N), bool)
    is_kept[np.lexsort((ranks_N, infeasibility_N))[: limit // 4]] = True
    others = np.flatnonzero(~is_kept)
    is_kept[others[len(others) - (limit - limit // 4) :]] = True
    return np.flatnonzero(is_kept)
