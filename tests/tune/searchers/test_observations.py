"""ObservationStore against a naive model that keeps all reports and recomputes the data on request."""

import math
from collections.abc import Callable
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from fanwise.tune.searchers import Observation
from fanwise.tune.searchers.encoding import Encoder
from fanwise.tune.searchers.observations import ObservationStore, TrainingData, best_first, ranks
from fanwise.tune.space import Space, uniform

SPACE = Space({"x": uniform(0, 1)})
LOSSES = st.sampled_from([0.0, 1.0, 2.5, math.inf, -math.inf])
LEVELS = (1.0, 3.0, 9.0)


class Model:
    """Lists of everything."""

    def __init__(self, levels: tuple[float, ...]) -> None:
        self.levels = levels
        self.reports: dict[int, list[tuple[int, float, tuple[float, float]]]] = {}
        self.status: dict[int, str] = {}
        self.known: set[int] = set()  # failed ones whose configuration was given

    def values(self, trial_id: int) -> list[tuple[float, float] | None]:
        """At each level."""
        num_levels = len(self.levels) or 1
        reports = self.reports[trial_id]
        if self.status.get(trial_id) == "Failed":
            return [(math.inf, math.inf) if reports or trial_id in self.known else None] * num_levels
        plain = [(at, losses if all(map(math.isfinite, losses)) else (math.inf, math.inf)) for _, at, losses in reports]
        if not self.levels:
            return [plain[-1][1] if plain else None]
        return [next((losses for at, losses in plain if at >= level), None) for level in self.levels]

    def data(self, enough: int) -> list[tuple[int, float, tuple[float, float]]]:
        table = {trial_id: self.values(trial_id) for trial_id in sorted(self.reports)}
        level = 0
        for k in range(len(self.levels) or 1):
            if sum(math.isfinite(row[k][0]) for row in table.values() if row[k] is not None) >= enough:  # type: ignore[index]
                level = k
        found = [(trial_id, row[level]) for trial_id, row in table.items()]
        return [(trial_id, x(trial_id), got) for trial_id, got in found if got is not None]


def x(trial_id: int) -> float:
    return (trial_id * 0.381966) % 1


class HistoryMachine(RuleBasedStateMachine):
    make: ClassVar[Callable[[Encoder, tuple[float, ...]], ObservationStore]] = (
        ObservationStore  # exchanged for broken ones
    )
    levels: ClassVar[tuple[float, ...]] = ()

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Encoder(SPACE)
        self.history = type(self).make(self.encoder, self.levels)
        self.model = Model(self.levels)

    def living(self, place: int) -> int | None:
        ids = sorted(self.model.reports.keys() - self.model.status.keys())
        return ids[place % len(ids)] if ids else None

    @rule()
    def begin(self) -> None:
        self.model.reports[len(self.model.reports)] = []

    @rule(place=st.integers(0, 9), loss=LOSSES, other=st.sampled_from([5.0, math.inf]), far=st.integers(1, 4))
    def report(self, place: int, loss: float, other: float, far: int) -> None:
        trial_id = self.living(place)
        if trial_id is None:
            return
        reports = self.model.reports[trial_id]
        iter, resource = (reports[-1][0], reports[-1][1]) if reports else (0, 0.0)
        reports.append((iter + 1, resource + far, (loss, other)))
        self.history.observe(Observation(trial_id, {"x": x(trial_id)}, iter + 1, resource + far, (loss, other), {}))

    @rule(place=st.integers(0, 9), to_iter=st.integers(0, 4))
    def rewind(self, place: int, to_iter: int) -> None:
        trial_id = self.living(place)
        if trial_id is not None:
            self.model.reports[trial_id] = [one for one in self.model.reports[trial_id] if one[0] <= to_iter]
            self.history.on_rollback(trial_id, to_iter)

    @rule(place=st.integers(0, 9), status=st.sampled_from(["Completed", "Stopped", "Failed"]), known=st.booleans())
    def end(self, place: int, status: str, known: bool) -> None:
        trial_id = self.living(place)
        if trial_id is not None:
            self.model.status[trial_id] = status
            self.model.known |= {trial_id} if known else set()
            self.history.on_end(trial_id, status, np.array([x(trial_id)]) if known else None)

    @invariant()
    def holds_what_stands(self) -> None:
        for enough in (1, 2, 4):
            data = self.history.data(min_results=enough)
            got = list(
                zip(
                    data.trial_ids_N.tolist(),
                    data.rows_ND[:, 0].tolist(),
                    map(tuple, data.losses_NM.tolist()),
                    strict=True,
                )
            )
            expected = self.model.data(enough)
            assert [(i, losses[0]) for i, _, losses in got] == [(i, losses[0]) for i, _, losses in expected]
            if data.losses_NM.shape[1] == 2:  # known from the first report on
                assert [losses for _, _, losses in got] == [losses for _, _, losses in expected]
            np.testing.assert_allclose([x for _, x, _ in got], [x for _, x, _ in expected], atol=1e-12)
        first = [self.model.values(trial_id)[0] for trial_id in self.model.reports]
        assert self.history.num_results() == sum(one is not None and math.isfinite(one[0]) for one in first)
        alive = {i for i in self.model.reports if i in self.history}
        assert alive.isdisjoint(self.model.status), "a trial that is over still has its reports"


def run(machine: type[HistoryMachine], max_examples: int) -> None:
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=max_examples,
            stateful_step_count=40,
            deadline=None,
            derandomize=True,
            database=None,
            phases=(Phase.generate,),
            suppress_health_check=list(HealthCheck),
        ),
    )


@pytest.mark.parametrize("max_examples", [25, pytest.param(500, marks=pytest.mark.soak)])
@pytest.mark.parametrize("levels", [(), LEVELS], ids=["last", "levels"])
def test_store_equals_its_model(levels: tuple[float, ...], max_examples: int) -> None:
    run(type("Machine", (HistoryMachine,), {"levels": levels}), max_examples)


def reported(losses: list[tuple[float, ...]]) -> ObservationStore:
    history = ObservationStore(Encoder(SPACE))
    for trial_id, each in enumerate(losses):
        history.observe(Observation(trial_id, {"x": x(trial_id)}, 1, 1.0, each, {}))
        history.on_end(trial_id, "Completed")
    return history


def test_best_quarter_and_latest_trials_are_kept() -> None:
    history = reported([(float(loss),) for loss in [3, 1, 9, 8, 7, 6, 5, 4, 10, 11]])
    assert history.data(max_rows=8).trial_ids_N.tolist() == [0, 1, 4, 5, 6, 7, 8, 9]
    assert history.data(max_rows=4).trial_ids_N.tolist() == [1, 7, 8, 9]
    assert history.data(max_rows=10).trial_ids_N.tolist() == list(range(10))


def violating(trial_id: int, iter: int, loss: float, violation: float) -> Observation:
    infeasibility = max(violation, 0.0)
    return Observation(trial_id, {"x": x(trial_id)}, iter, iter, (loss,), {}, (violation,), infeasibility)


def test_infeasibility_is_stored_with_losses_and_rolled_back() -> None:
    history = ObservationStore(Encoder(SPACE))
    history.on_end(9, "Failed", np.array([x(9)]))
    for observation in [violating(0, 1, 5.0, 2.0), violating(0, 2, 4.0, 3.5), violating(1, 1, 1.0, -2.0)]:
        history.observe(observation)
    assert history.data().infeasibility_N.tolist() == [3.5, 0.0, math.inf]
    history.on_rollback(0, 1)
    before = history.data()
    assert before.losses_NM.tolist() == [[5.0], [1.0], [math.inf]]
    assert before.infeasibility_N.tolist() == [2.0, 0.0, math.inf]
    history.observe(violating(0, 2, 5.0, 1.0))
    assert not history.data().equals(before), "the loss is the same, the infeasibility is not"
    history.observe(violating(1, 2, 0.0, math.inf))
    assert history.data().losses_NM[1].tolist() == [math.inf], "an infinite violation is no result"


def test_feasible_trials_come_first_in_the_best_quarter() -> None:
    history = ObservationStore(Encoder(SPACE))
    for trial_id, (loss, violation) in enumerate([(1, 9), (2, 0), (3, 4), (0, 5), (7, 6), (8, -1), (5, 7), (6, 8)]):
        history.observe(violating(trial_id, 1, loss, violation))
    assert history.data(max_rows=4).trial_ids_N.tolist() == [1, 5, 6, 7]
    assert history.data(max_rows=7).trial_ids_N.tolist() == [1, 2, 3, 4, 5, 6, 7]


def test_finished_trial_keeps_only_a_row() -> None:
    history = ObservationStore(Encoder(SPACE))
    for trial_id in range(3000):
        for iter in range(1, 4):
            history.observe(Observation(trial_id, {"x": 0.5}, iter, iter, (1.0,), {}))
        history.on_end(trial_id, "Stopped")
    arrays = [value for value in vars(history).values() if isinstance(value, np.ndarray)]
    assert sum(array.nbytes for array in arrays) <= 2 * 3000 * 32
    assert not any(trial_id in history for trial_id in range(3000))


# Ranks of trials.


def training_data(losses: list[tuple[float, ...]], infeasibility: list[float] | None = None) -> TrainingData:
    num = len(losses)
    return TrainingData(
        np.arange(num),
        np.zeros((num, 1)),
        np.array(losses, float),
        np.array([0.0] * num if infeasibility is None else infeasibility),
    )


def test_trials_of_one_objective_are_ranked_by_loss() -> None:
    found = training_data([(3.0,), (1.0,), (3.0,), (2.0,)])
    assert best_first(found).tolist() == [1, 3, 0, 2]
    assert ranks(found).tolist() == [2, 0, 2, 1]


def test_trials_are_ranked_by_violation_first_and_without_a_result_last() -> None:
    found = training_data([(1.0,), (9.0,), (5.0,), (math.inf,)], [2.0, 0.0, 1.0, math.inf])
    assert best_first(found).tolist() == [1, 2, 0, 3]
    assert ranks(found).tolist() == [2, 0, 1, 3]


def test_trials_of_several_objectives_are_ranked_by_front_and_distance() -> None:
    found = training_data([(0, 4), (1, 2), (1.1, 1.9), (4, 0), (4, 4), (math.inf, math.inf)], [0.0] * 5 + [math.inf])
    assert best_first(found).tolist() == [0, 3, 2, 1, 4, 5]
    assert ranks(found).tolist() == [0, 3, 2, 0, 4, 5] or ranks(found).tolist() == [0, 2, 1, 0, 3, 4]


def test_infeasible_trial_dominates_no_feasible_one() -> None:
    """The first dominates the second, but not the third, which neither of the others dominates."""
    found = training_data([(0, 3), (1, 4), (4, 1)], [1.0, 0.0, 0.0])
    assert ranks(found).tolist() == [1, 0, 0]
