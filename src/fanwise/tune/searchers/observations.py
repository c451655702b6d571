"""Observations of a search as training data for models, and ranking of trials.

Without resource levels, the result of a trial is its last report. With levels, it is the first report at or above the
highest level that enough trials have reached (BOHB, Falkner et al., arXiv 1807.01774, section 3.2).

Failed trials and reports with infinite losses have no result. Their losses are +inf, so that models can avoid their
configurations. Reports that violate constraints are results.

A trial has one slot, an index into all arrays. While a trial may report, its reports are kept, too (each 24 bytes plus
8 per objective), because a rollback may discard any of them.
"""

# N: trials, D: hyperparameters, M: objectives, U: distinct losses

import math
from array import array
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from typing import Any, final

import numpy as np
import numpy.typing as npt
from scipy.special import ndtri

from ..pareto import crowding_distances, non_dominated_sort
from ..values import round_resource
from .encoding import Encoder, Floats, Rows
from .searcher import Observation

_INITIAL_CAPACITY = 64


@final
@dataclass(frozen=True, slots=True, eq=False)
class TrainingData:
    """Training data of a model: one element of each array per trial, ordered by trial id. The arrays are copies.

    Attributes:
        rows_ND: configurations, encoded by `Encoder`.
        losses_NM: losses; +inf without a result.
        infeasibility_N: 0 if all constraints are satisfied; +inf without a result.
    """

    trial_ids_N: npt.NDArray[np.int64]
    rows_ND: Rows
    losses_NM: Floats
    infeasibility_N: Floats

    @property
    def loss_N(self) -> Floats:
        """Losses of the first objective."""
        return self.losses_NM[:, 0]

    @property
    def has_result_N(self) -> npt.NDArray[np.bool_]:
        """True for trials with a result."""
        return np.isfinite(self.losses_NM[:, 0])

    def equals(self, other: "TrainingData") -> bool:
        """Return True if all arrays are equal."""
        pairs = [(getattr(self, item.name), getattr(other, item.name)) for item in fields(self)]
        return all(np.array_equal(a, b, equal_nan=True) for a, b in pairs)


@final
@dataclass(slots=True)
class _ActiveTrial:
    """Reports of a trial that may still report."""

    slot: int
    iters: "array[int]" = field(default_factory=lambda: array("q"))
    resources: "array[float]" = field(default_factory=lambda: array("d"))
    # Losses and infeasibility of each report, one report after another.
    numbers: "array[float]" = field(default_factory=lambda: array("d"))


@final
class ObservationStore:
    """The observations of one search. `levels`: resource levels in increasing order. Empty: use the last reports.

    >>> from fanwise.tune.space import Space, uniform
    >>> store = ObservationStore(Encoder(Space({"x": uniform(0, 1)})))
    >>> store.observe(Observation(7, {"x": 0.25}, 1, 1.0, (3.0,), {}))
    >>> store.observe(Observation(7, {"x": 0.25}, 2, 2.0, (2.0,), {}))
    >>> store.data().rows_ND.tolist(), store.data().loss_N.tolist()
    ([[0.25]], [2.0])
    >>> store.on_rollback(7, to_iter=1)
    >>> store.data().loss_N.tolist()
    [3.0]
    """

    def __init__(self, encoder: Encoder, levels: Sequence[float] = ()) -> None:
        self._encoder = encoder
        self._levels = tuple(map(round_resource, levels)) or None
        self._active_trials: dict[int, _ActiveTrial] = {}
        self._free_slots: list[int] = []
        self._num_slots = 0
        self._ids = np.empty(0, np.int64)
        self._rows = np.empty((0, encoder.num_dims))
        num_levels = 1 if self._levels is None else len(self._levels)
        # Slots x levels x (losses, infeasibility); NaN: no report at the level. One objective until the first report.
        self._values = np.empty((0, num_levels, 2))

    def __contains__(self, trial_id: object) -> bool:
        """Return True if the trial has reported and may report again."""
        return trial_id in self._active_trials

    def num_results(self) -> int:
        """Return the number of trials with a result at the first level."""
        return int(np.isfinite(self._values[: self._num_slots, 0, 0]).sum())

    def observe(self, observation: Observation) -> None:
        active_trial = self._active_trials.get(observation.trial_id)
        if active_trial is None:
            slot = self._add_trial(observation.trial_id, self._encoder.encode(observation.config))
            active_trial = self._active_trials[observation.trial_id] = _ActiveTrial(slot)
        numbers = (*observation.losses, observation.infeasibility)
        if not all(map(math.isfinite, numbers)):
            numbers = (math.inf,) * len(numbers)
        active_trial.iters.append(observation.iter)
        active_trial.resources.append(observation.resource)
        active_trial.numbers.extend(numbers)
        if self._values.shape[2] != len(numbers):  # this is the first report, so all rows are NaN or +inf
            self._values = np.repeat(self._values[:, :, :1], len(numbers), axis=2)
        self._write(active_trial.slot, observation.resource, numbers)

    def on_rollback(self, trial_id: int, to_iter: int) -> None:
        """Discard the reports of the trial after number `to_iter`."""
        active_trial = self._active_trials.get(trial_id)
        if active_trial is None or not active_trial.iters or active_trial.iters[-1] <= to_iter:
            return
        size = self._values.shape[2]
        num_valid = bisect_right(active_trial.iters, to_iter)
        del active_trial.iters[num_valid:], active_trial.resources[num_valid:], active_trial.numbers[num_valid * size :]
        self._values[active_trial.slot] = math.nan
        for index, resource in enumerate(active_trial.resources):
            self._write(active_trial.slot, resource, active_trial.numbers[index * size : (index + 1) * size])

    def on_end(self, trial_id: int, status: str, row: Floats | None = None) -> None:
        """Handle the final end of a trial. `row`: the encoded configuration, in case it failed without a report."""
        active_trial = self._active_trials.pop(trial_id, None)
        if active_trial is not None and not active_trial.iters:  # all of its reports were discarded
            self._free_slots.append(active_trial.slot)
            active_trial = None
        if active_trial is not None:
            slot = active_trial.slot
        elif status == "Failed" and row is not None:
            slot = self._add_trial(trial_id, row)
        else:
            return
        if status == "Failed":
            self._values[slot] = math.inf

    def data(self, *, min_results: int = 1, max_rows: int | None = None) -> TrainingData:
        """Return the training data.

        Args:
            min_results: number of results that a level needs to be used. The highest such level is used, or the first
                level if there is none.
            max_rows: maximum number of trials. A quarter are the best, the others the latest.
        """
        values = self._values[: self._num_slots]
        level_index = 0
        if self._levels is not None:
            counts = np.isfinite(values[:, :, 0]).sum(axis=0)
            level_index = int(max(np.flatnonzero(counts >= min_results), default=0))
        numbers = values[:, level_index]
        slots = np.flatnonzero(~np.isnan(numbers[:, 0]))
        slots = slots[np.argsort(self._ids[slots])]
        if max_rows is not None and len(slots) > max_rows:
            slots = slots[_select_subset(numbers[slots, :-1], numbers[slots, -1], max_rows)]
        return TrainingData(
            trial_ids_N=self._ids[slots],
            rows_ND=self._rows[slots],
            losses_NM=numbers[slots, :-1],
            infeasibility_N=numbers[slots, -1],
        )

    def _add_trial(self, trial_id: int, row: Floats) -> int:
        """Store the row of a trial in a free slot, and return the slot."""
        if self._free_slots:
            slot = self._free_slots.pop()
        else:
            slot = self._num_slots
            self._num_slots += 1
            if slot == len(self._ids):
                size = max(_INITIAL_CAPACITY, 2 * slot)
                self._ids, self._rows = _resize(self._ids, size), _resize(self._rows, size)
                self._values = _resize(self._values, size)
        self._ids[slot] = trial_id
        self._rows[slot] = row
        self._values[slot] = math.nan
        return slot

    def _write(self, slot: int, resource: float, numbers: Sequence[float]) -> None:
        """Store a report as the result at each level that it is the first to reach or, without levels, as the last."""
        if self._levels is None:
            self._values[slot, 0] = numbers
            return
        for level_index in range(bisect_right(self._levels, resource)):
            if math.isnan(self._values[slot, level_index, 0]):
                self._values[slot, level_index] = numbers


def _resize(old: npt.NDArray[Any], size: int) -> npt.NDArray[Any]:
    new = np.empty((size, *old.shape[1:]), old.dtype)
    new[: len(old)] = old
    return new


def _select_subset(losses_NM: Floats, infeasibility_N: Floats, max_rows: int) -> npt.NDArray[np.int64]:
    """Return the indices of the best `max_rows // 4` trials and of the latest others, in increasing order.

    Trials are ranked by infeasibility, then by the sum of their ranks in the objectives.
    """
    ranks_N = losses_NM.argsort(axis=0, kind="stable").argsort(axis=0, kind="stable").sum(axis=1)
    is_kept = np.zeros(len(infeasibility_N), bool)
    is_kept[np.lexsort((ranks_N, infeasibility_N))[: max_rows // 4]] = True
    other_indices = np.flatnonzero(~is_kept)
    is_kept[other_indices[len(other_indices) - (max_rows - max_rows // 4) :]] = True
    return np.flatnonzero(is_kept)


def best_first(data: TrainingData) -> npt.NDArray[np.int64]:
    """Return the indices of the trials, best first. Ties are ordered by id. Trials without a result are last.

    Trials are compared by infeasibility, then by loss. Several objectives are compared as in NSGA-II (Deb et al. 2002,
    section III): by front, then by crowding distance.
    """
    return np.lexsort(_sort_keys(data)[::-1])


def ranks(data: TrainingData) -> Floats:
    """Return the rank of each trial in the order of `best_first`, from 0. Ties share a rank."""
    keys = np.stack(_sort_keys(data), axis=1)
    return np.unique(keys, axis=0, return_inverse=True)[1].reshape(-1).astype(np.float64)


def normal_scores(loss_N: Floats) -> Floats:
    """Replace numbers by normal quantiles of their ranks, which bounds the influence of outliers."""
    _, index_N, count_U = np.unique(loss_N, return_inverse=True, return_counts=True)
    middle_U = np.cumsum(count_U) - count_U / 2
    return np.asarray(ndtri(middle_U[index_N] / len(loss_N)))


def _sort_keys(data: TrainingData) -> list[Floats]:
    """Return the sort keys in order of precedence; smaller is better."""
    if data.losses_NM.shape[1] == 1:
        return [data.infeasibility_N, data.loss_N]
    front_N = np.full(len(data.loss_N), np.inf)
    crowding_N = np.zeros(len(front_N))
    for infeasibility in np.unique(data.infeasibility_N[data.has_result_N]):
        indices = np.flatnonzero(data.has_result_N & (data.infeasibility_N == infeasibility))
        front_N[indices] = non_dominated_sort(data.losses_NM[indices])
        for front in np.unique(front_N[indices]):
            members = indices[front_N[indices] == front]
            crowding_N[members] = crowding_distances(data.losses_NM[members])
    return [data.infeasibility_N, front_N, -crowding_N]
