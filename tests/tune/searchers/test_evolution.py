"""EvolutionSearcher against an obvious model: the population is worked out from the whole history at every question."""

from collections.abc import Callable
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule, run_state_machine_as_test

from fanwise.testing.searcher_contract import begun, observed
from fanwise.tune.chance import Chance
from fanwise.tune.schedulers import RegularizedEvolution
from fanwise.tune.searchers import Ask, EvolutionSearcher, Observation, Searcher
from fanwise.tune.searchers.courses import Course, Rank
from fanwise.tune.spaces import Space, choice, randint

SPACE = Space({"x": randint(0, 10**6), "y": randint(0, 10**6), "kind": choice(["a", "b"])})
STATUSES = ("Completed", "Stopped", "Failed")
LOSSES = st.sampled_from([0.1, 0.2, 0.2, 0.3, 0.5, 0.9, float("inf"), float("-inf")])


class Model:
    """Keeps everything for ever."""

    def __init__(self) -> None:
        self.configs: dict[int, dict[str, object]] = {}
        self.reports: dict[int, list[float]] = {}
        self.status: dict[int, str] = {}
        self.running: set[int] = set()

    def fitness(self, trial_id: int) -> float | None:
        return min((loss for loss in self.reports[trial_id] if abs(loss) < float("inf")), default=None)

    def population(self, size: int) -> list[tuple[float, int]]:
        members = [
            (fitness, trial_id)
            for trial_id in sorted(self.configs, reverse=True)
            if (fitness := self.fitness(trial_id)) is not None
            and self.status.get(trial_id) != "Failed"
            and (trial_id in self.status or trial_id not in self.running)
        ]
        return members[:size]

    def parent(self, rng: Chance, size: int, sample_size: int) -> dict[str, object] | None:
        population = self.population(size)
        if len(population) < size:
            return None
        return self.configs[min(rng.choice(population) for _ in range(sample_size))[1]]


class EvolutionMachine(RuleBasedStateMachine):
    make: ClassVar[Callable[[], Searcher]] = lambda: EvolutionSearcher(3, 2)  # exchanged for broken ones

    def __init__(self) -> None:
        super().__init__()
        self.searcher = begun(type(self).make, SPACE)
        self.model = Model()
        self.number = 0

    def one(self, place: int, among: list[int]) -> int | None:
        return among[place % len(among)] if among else None

    @rule()
    def suggest(self) -> None:
        model, trial_id = self.model, len(self.model.configs)
        pending = {trial: model.configs[trial] for trial in sorted(model.running)}
        got = self.searcher.suggest(Ask(self.number, trial_id, SPACE, pending=pending))
        rng = Chance(f"0/suggest/{self.number}")
        parent = model.parent(rng, 3, 2)
        self.number += 1
        assert got is not None
        if parent is None:
            assert got == SPACE.sample(Chance(f"0/suggest/{self.number - 1}"))
        else:
            assert sum(got[name] != parent[name] for name in parent) == 1, f"{got} is no child of {parent}"
            assert got not in pending.values()
        model.configs[trial_id] = dict(got)
        model.reports[trial_id] = []
        model.running.add(trial_id)

    @rule(place=st.integers(0, 20), loss=LOSSES)
    def report(self, place: int, loss: float) -> None:
        trial_id = self.one(place, sorted(self.model.running - self.model.status.keys()))
        if trial_id is not None:
            reports = self.model.reports[trial_id]
            reports.append(loss)
            self.searcher.observe(observed(trial_id, self.model.configs[trial_id], len(reports), loss))

    @rule(place=st.integers(0, 20), to_iter=st.integers(0, 3))
    def rewind(self, place: int, to_iter: int) -> None:
        trial_id = self.one(place, sorted(self.model.running - self.model.status.keys()))
        if trial_id is not None and to_iter < len(self.model.reports[trial_id]):
            del self.model.reports[trial_id][to_iter:]
            self.searcher.on_rewind(trial_id, to_iter)

    @rule(place=st.integers(0, 20))
    def pause(self, place: int) -> None:
        trial_id = self.one(place, sorted(self.model.running))
        if trial_id is not None:
            self.model.running.remove(trial_id)

    @rule(place=st.integers(0, 20))
    def resume(self, place: int) -> None:
        trial_id = self.one(place, sorted(self.model.configs.keys() - self.model.running - self.model.status.keys()))
        if trial_id is not None:
            self.model.running.add(trial_id)

    @rule(place=st.integers(0, 20), status=st.sampled_from(STATUSES))
    def end(self, place: int, status: str) -> None:
        trial_id = self.one(place, sorted(self.model.configs.keys() - self.model.status.keys()))
        if trial_id is not None:
            self.model.status[trial_id] = status
            self.searcher.on_end(trial_id, status)

    @rule(
        num=st.integers(1, 4),
        void=st.lists(LOSSES, max_size=1),
        losses=st.lists(LOSSES, min_size=1, max_size=3),
        status=st.sampled_from(("Completed", *STATUSES)),
    )
    def trials_run_through(self, num: int, void: list[float], losses: list[float], status: str) -> None:
        """Whole trials at once, so that populations fill; each begins again after a first attempt, which is void."""
        for _ in range(num):
            trial_id = len(self.model.configs)
            self.suggest()
            config = self.model.configs[trial_id]
            for iter, loss in enumerate(void, 1):
                self.searcher.observe(observed(trial_id, config, iter, loss))
            self.searcher.on_rewind(trial_id, 0)
            for iter, loss in enumerate(losses, 1):
                self.searcher.observe(observed(trial_id, config, iter, loss))
            self.model.reports[trial_id] += losses
            self.model.status[trial_id] = status
            self.searcher.on_end(trial_id, status)
            self.model.running.remove(trial_id)


def run(machine: type[EvolutionMachine], max_examples: int) -> None:
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
def test_evolution_does_what_its_history_says(max_examples: int) -> None:
    run(EvolutionMachine, max_examples)


class KeepsVoid(EvolutionSearcher):  # type: ignore[misc]  # a mutant
    def on_rewind(self, trial_id: int, to_iter: int) -> None: ...


class KeepsFailed(EvolutionSearcher):  # type: ignore[misc]
    def on_end(self, trial_id: int, status: str) -> None:
        super().on_end(trial_id, "Completed")


class NeverOld(EvolutionSearcher):  # type: ignore[misc]
    """The worst dies instead of the oldest."""

    def on_end(self, trial_id: int, status: str) -> None:
        super().on_end(trial_id, status)
        self._over.sort(key=lambda trial_id: -(self._courses[trial_id].rank or (0.0, 0.0))[1])


class TakesRunning(EvolutionSearcher):  # type: ignore[misc]
    def suggest(self, ask: Ask) -> object:  # type: ignore[override]
        return super().suggest(Ask(ask.number, ask.trial_id, ask.space))


class LastReport(EvolutionSearcher):  # type: ignore[misc]
    """A member is as good as its last report."""

    def observe(self, observation: Observation) -> None:
        self._courses.pop(observation.trial_id, None)
        if observation.trial_id in self._living:
            self._living.remove(observation.trial_id)
        super().observe(observation)


class WorstParent(EvolutionSearcher):  # type: ignore[misc]
    def _population(self, pending: object) -> list[tuple[Rank, int]]:
        members = super()._population(pending)  # type: ignore[arg-type]
        return [((-beyond, -loss), trial_id) for (beyond, loss), trial_id in members]


MUTANTS = [KeepsVoid, KeepsFailed, NeverOld, TakesRunning, LastReport, WorstParent]


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_broken_evolution_is_caught(mutant: Callable[[int, int], Searcher]) -> None:
    class Machine(EvolutionMachine):
        make = lambda: mutant(3, 2)  # noqa: E731

    with pytest.raises((AssertionError, LookupError)):
        run(Machine, 400)


def test_the_oldest_leaves_however_good_it_is() -> None:
    searcher = begun(lambda: EvolutionSearcher(2, 2), SPACE)
    for trial_id, loss in enumerate([0.001, 0.5, 0.6]):
        searcher.observe(observed(trial_id, {"x": trial_id, "y": trial_id, "kind": "a"}, 1, loss))
        searcher.on_end(trial_id, "Completed")
    children = [searcher.suggest(Ask(number, 3, SPACE)) for number in range(50)]
    parents = {config["x"] for config in children if config} | {config["y"] for config in children if config}
    assert 0 not in parents and {1, 2} <= parents


def test_a_child_is_neither_its_parent_nor_what_runs_now() -> None:
    small = Space({"x": randint(0, 1), "y": randint(0, 1)})
    searcher = begun(lambda: EvolutionSearcher(1, 1), small)
    searcher.observe(observed(0, {"x": 0, "y": 0}, 1, 0.5))
    searcher.on_end(0, "Completed")
    for number in range(50):
        got = searcher.suggest(Ask(number, 2, small, pending={1: {"x": 0, "y": 1}}))
        assert got not in ({"x": 0, "y": 0}, {"x": 0, "y": 1})


def test_a_finished_trial_leaves_nothing_but_its_place_in_the_population() -> None:
    searcher = EvolutionSearcher(5, 2)
    searcher.begin(SPACE, 0)
    for trial_id in range(1000):
        for iter in range(1, 4):
            searcher.observe(observed(trial_id, {"x": 1, "y": 1, "kind": "a"}, iter, 1.0 / iter))
        searcher.on_end(trial_id, STATUSES[trial_id % 3])
    assert len(searcher._courses) == len(searcher._over) == 5 and not searcher._living


def test_a_course_is_rewound_to_any_iteration() -> None:
    losses = [0.5, 0.6, 0.4, float("inf"), 0.3, 0.35]
    for to_iter in range(len(losses) + 1):
        course = Course({})
        for iter, loss in enumerate(losses, 1):
            course.observe(observed(0, {}, iter, loss))
        course.rewind(to_iter)
        best = min(losses[:to_iter], default=None)
        assert course.rank == (None if best is None else (0.0, best))


def test_wrong_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match="sample_size=11 must not be above population_size=10"):
        RegularizedEvolution(metric="loss", population_size=10, sample_size=11)
    with pytest.raises(ValueError, match="population_size must be at least 1, got 0"):
        RegularizedEvolution(metric="loss", population_size=0)
    described = RegularizedEvolution(metric="loss").describe()
    assert described["searcher"] == {"name": "EvolutionSearcher", "population_size": 100, "sample_size": 10}
