"""The contract of searchers, as checks of any implementation. Loads no pytest.

    def test_my_searcher() -> None:
        check_searcher(lambda: MySearcher(sigma=0.1))

Each check simulates searches in spaces of every kind (`SPACES`): trials start, report, crash and repeat, and end with
every status; losses can be infinite; many trials run before the first report. No check measures how good a searcher is.
`CHECKS` has the checks, for tests that run them one at a time: `check_searcher(MySearcher, [check])`.
"""

import copy
import json
import math
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeAlias

from ..tune.searchers.points import FirstPoints
from ..tune.searchers.searcher import Observation, Searcher, SuggestContext
from ..tune.space import (
    Space,
    choice,
    constant,
    finrange,
    logfinrange,
    logordinal,
    lograndint,
    loguniform,
    ordinal,
    parameter,
    qlograndint,
    qloguniform,
    qrandint,
    quniform,
    randint,
    reverseloguniform,
    space_to_json,
    uniform,
)

Make: TypeAlias = Callable[[], Searcher]
Check: TypeAlias = Callable[[Make, Space], None]

SPACES: Mapping[str, Space] = {
    "one of everything": Space({
        "learning_rate": loguniform(1e-4, 1),
        "max_epochs": 10,
        "momentum": uniform(0, 0.99),
        "batch_size": randint(32, 256),
        "width": lograndint(8, 1024),
        "dropout": finrange(0.0, 0.9, 10),
        "depth": finrange(2, 8, 4, cast_int=True),
        "activation": choice(["relu", "tanh", None]),
        "bias": choice([True, False]),
        "hidden_sizes": constant([64, 64]),
    }),
    "steps and orders": Space({
        "momentum": reverseloguniform(0.9, 0.999),
        "heads": ordinal([1, 2, 4, 8]),
        "size": ordinal(["small", "medium", "large"]),
        "width": logordinal([8, 64, 512]),
        "hidden": logfinrange(16, 128, 4, cast_int=True),
        "dropout": quniform(0.1, 0.5, 0.1),
        "decay": qloguniform(0.1, 10.0, 0.1),
        "batch_size": qrandint(8, 64, 8),
        "warmup": qlograndint(10, 1000, 10),
    }),
    "conditions": Space({
        "nesterov": parameter(choice([True, False]), when={"momentum_kind": ["heavy ball", "weighted"]}),
        "momentum_kind": parameter(choice(["none", "heavy ball", "weighted"]), when={"optimizer": "sgd"}),
        "optimizer": choice(["sgd", "adam"]),
        "beta": parameter(reverseloguniform(0.5, 0.999), when={"optimizer": "adam"}, prior=0.9),
        "learning_rate": parameter(loguniform(1e-4, 1), prior=0.1),
    }),
    "one number": Space({"x": uniform(-1, 1)}),
    "few values and a condition": Space({"x": choice(["a", "b"]), "n": parameter(randint(0, 1), when={"x": "b"})}),
    "few values": Space({"x": choice(["a", "b"]), "n": randint(0, 1)}),
    "one value": Space({"x": choice([0])}),
    "negative numbers": Space({"x": randint(-3, -1), "y": uniform(-5.0, -1.0), "z": finrange(-2.0, 2.0, 5)}),
    "constants only": Space({"max_epochs": 10}),
}  # fmt: skip
_STATUSES = ("Completed", "Stopped", "Failed")
_NUM_STEPS = 60


def check_searcher(make: Make, checks: Sequence[Check] | None = None) -> None:
    """Check that a searcher keeps the contract, in all `SPACES`.

    Args:
        make: creates a searcher. It is called many times.
        checks: a part of `CHECKS`. Default: all of them.

    Raises:
        AssertionError: the searcher violates the contract. Errors of the searcher are raised in their own type. Both
            have a note with the check and the space.

    >>> from fanwise.tune import RandomSearcher
    >>> check_searcher(RandomSearcher, [suggestions_are_configurations_of_the_space])
    """
    for check in CHECKS if checks is None else checks:
        for name, space in SPACES.items():
            try:
                check(make, space)
            except Exception as error:
                error.add_note(f"check {check.__name__} in the space {name!r}: {space!r}")
                raise


@dataclass
class SimulatedTrial:
    """A running trial. `iter`: number of its reports that count."""

    config: Mapping[str, object]
    iter: int = 0
    attempt: int = 0


@dataclass
class SearcherSimulation:
    """A search with one searcher. The steps depend only on the seed, not on the suggestions.

    Args:
        make: creates the searcher.
        reports_before_crash: False omits the reports that a crash rolls back, which must not matter.
        clears_returned: clear the configurations that the searcher returned.
        replayed: suggestions that are passed to `replay_suggestion` first, as when an experiment is resumed.
    """

    make: Make
    space: Space
    seed: int = 0
    reports_before_crash: bool = True
    clears_returned: bool = False
    replayed: Sequence[Mapping[str, object] | None] = ()
    suggestions: list[dict[str, object] | None] = field(default_factory=list)
    trials: dict[int, SimulatedTrial] = field(default_factory=dict)
    num_trials: int = 0

    def __post_init__(self) -> None:
        self.rng = random.Random(f"{self.seed}/play")
        self.searcher = started(self.make, self.space, self.seed)

    def run(self, num_steps: int = _NUM_STEPS) -> list[dict[str, object] | None]:
        """Return all suggestions so far."""
        for _ in range(num_steps):
            self.step()
        return self.suggestions

    def step(self) -> None:
        u, position = self.rng.random(), self.rng.random()
        trial_id = sorted(self.trials)[int(position * len(self.trials))] if self.trials else None
        if trial_id is None or u < 0.3:
            self.suggest()
        elif u < 0.7:
            self.report(trial_id)
        elif u < 0.8:
            self.end(trial_id, _STATUSES[int(self.rng.random() * 3)])
        elif u < 0.9:
            self.crash(trial_id)
        else:
            self.roll_back(trial_id, int(self.rng.random() * (self.trials[trial_id].iter + 1)))

    def suggest(self) -> None:
        """Start a trial, with a random configuration if the searcher has none."""
        number = len(self.suggestions)
        pending = MappingProxyType({trial_id: trial.config for trial_id, trial in self.trials.items()})
        ask = SuggestContext(number, self.num_trials, self.space, seed=self.seed, pending=pending, now_s=float(number))
        if number < len(self.replayed):
            suggested = self.replayed[number]
            self.searcher.replay_suggestion(ask, suggested)
        else:
            suggested = self.searcher.suggest(ask)
        self.suggestions.append(None if suggested is None else dict(suggested))
        if suggested is None:
            config = self.space.sample(random.Random(f"{self.seed}/own/{number}"))
        else:
            assert isinstance(suggested, Mapping), f"suggest() returned {suggested!r}"
            config = self.space.check(suggested)
        if self.clears_returned and isinstance(suggested, dict):
            suggested.clear()
        self.start(config)

    def start(self, config: Mapping[str, object]) -> None:
        self.trials[self.num_trials] = SimulatedTrial(config)
        self.num_trials += 1

    def report(self, trial_id: int, *, better_by: float = 0.0) -> None:
        trial = self.trials[trial_id]
        u = random.Random(f"{self.seed}/{trial_id}/{trial.attempt}/{trial.iter + 1}").random()
        self.observe(trial_id, (math.inf if u < 0.08 else u) - better_by)

    def observe(self, trial_id: int, loss: float) -> None:
        trial = self.trials[trial_id]
        trial.iter += 1
        self.searcher.observe(observation(trial_id, trial.config, trial.iter, loss))

    def crash(self, trial_id: int) -> None:
        """Let a trial report very good losses, crash and resume from its state before them."""
        trial = self.trials[trial_id]
        num_lost, trial.attempt = 1 + int(self.rng.random() * 3), trial.attempt + 1
        if self.reports_before_crash:
            iter = trial.iter
            for _ in range(num_lost):
                self.report(trial_id, better_by=1000.0)
            self.roll_back(trial_id, iter)

    def roll_back(self, trial_id: int, to_iter: int) -> None:
        self.trials[trial_id].iter = to_iter
        self.searcher.on_rollback(trial_id, to_iter)

    def end(self, trial_id: int, status: str) -> None:
        del self.trials[trial_id]
        self.searcher.on_end(trial_id, status)


def observation(trial_id: int, config: Mapping[str, object], iter: int, loss: float) -> Observation:
    """Return a report of two objectives. The second is worse where the first is better."""
    second = -loss if math.isfinite(loss) else 0.0
    return Observation(trial_id, config, iter, float(iter), (loss, second), {"loss": loss, "size": second})


def started(make: Make, space: Space, seed: int = 0) -> Searcher:
    """Return a new searcher after `check` and `begin`."""
    searcher = make()
    searcher.check(space)
    searcher.begin(space, seed)
    return searcher


def suggestions_are_configurations_of_the_space(make: Make, space: Space) -> None:
    for config in SearcherSimulation(make, space).run():
        if config is not None:
            checked = space.check(config)
            assert {name: checked[name] for name in config} == config, f"{config!r} has values of other types"


def many_trials_can_start_before_the_first_report(make: Make, space: Space) -> None:
    search = SearcherSimulation(make, space)
    for _ in range(100):
        search.suggest()
    search.run(30)


def same_seed_and_reports_give_the_same_suggestions(make: Make, space: Space) -> None:
    for seed in (0, -7, 2**70):
        assert SearcherSimulation(make, space, seed).run() == SearcherSimulation(make, space, seed).run()


def copy_continues_like_the_original(make: Make, space: Space) -> None:
    search = SearcherSimulation(make, space)
    search.run(_NUM_STEPS // 2)
    copied = copy.deepcopy(search)
    search.run(7)
    expected = SearcherSimulation(make, space).run()
    assert copied.run(_NUM_STEPS - _NUM_STEPS // 2) == expected, "the copy gave other suggestions"


def begin_resets_the_searcher(make: Make, space: Space) -> None:
    search = SearcherSimulation(make, space, 5)
    search.run()
    repeated = SearcherSimulation(lambda: search.searcher, space).run()
    assert repeated == SearcherSimulation(make, space).run(), "begin() kept state of the search before"


def check_has_no_side_effects(make: Make, space: Space) -> None:
    search = SearcherSimulation(make, space)
    search.run(_NUM_STEPS // 2)
    search.searcher.check(SPACES["one number"])
    assert search.run(_NUM_STEPS - _NUM_STEPS // 2) == SearcherSimulation(make, space).run()


def description_is_constant_json(make: Make, space: Space) -> None:
    description = make().describe()
    assert isinstance(description.get("name"), str), f"there is no name in {description!r}"
    assert json.loads(json.dumps(description, allow_nan=False)) == description
    search = SearcherSimulation(make, space)
    search.run()
    assert search.searcher.describe() == description, "describe() describes the search instead of the settings"


def arguments_are_not_modified(make: Make, space: Space) -> None:
    before = space_to_json(space)
    search = SearcherSimulation(make, space)
    for _ in range(_NUM_STEPS):
        configs = copy.deepcopy({trial_id: trial.config for trial_id, trial in search.trials.items()})
        search.step()
        current = {trial_id: trial.config for trial_id, trial in search.trials.items() if trial_id in configs}
        assert current == {trial_id: configs[trial_id] for trial_id in current}, "a running configuration was modified"
    assert space_to_json(space) == before


def returned_configurations_can_be_modified(make: Make, space: Space) -> None:
    assert SearcherSimulation(make, space, clears_returned=True).run() == SearcherSimulation(make, space).run()


def rolled_back_reports_have_no_effect(make: Make, space: Space) -> None:
    with_reports, without = SearcherSimulation(make, space), SearcherSimulation(make, space, reports_before_crash=False)
    assert with_reports.run() == without.run(), "reports had an effect after on_rollback"


def trials_can_end_without_reports(make: Make, space: Space) -> None:
    search = SearcherSimulation(make, space)
    for status in _STATUSES * 4:
        search.suggest()
        search.roll_back(search.num_trials - 1, 0)
        search.end(search.num_trials - 1, status)
    search.run(30)


def losses_can_all_be_equal_or_infinite(make: Make, space: Space) -> None:
    for status, loss in (("Completed", math.inf), ("Completed", 0.5), ("Failed", 0.5), ("Failed", None)):
        search = SearcherSimulation(make, space)
        for trial_id in range(25):
            search.suggest()
            if loss is not None:
                search.observe(trial_id, loss)
            search.end(trial_id, status)


def one_result_is_enough_to_continue(make: Make, space: Space) -> None:
    search = SearcherSimulation(make, space)
    search.suggest()
    search.observe(0, 0.5)
    search.end(0, "Completed")
    for _ in range(20):
        search.suggest()


def configurations_can_come_from_elsewhere(make: Make, space: Space) -> None:
    """Add trials by points to evaluate, and by a user."""
    points: list[dict[str, object]] = [{}, space.sample(random.Random("0/point")), {}]
    search = SearcherSimulation(lambda: FirstPoints(points, make()), space)
    for _ in range(4):
        search.run(25)
        search.start(space.sample(random.Random(f"0/{search.num_trials}")))


def replayed_suggestions_restore_the_state(make: Make, space: Space) -> None:
    suggestions = SearcherSimulation(make, space).run()
    replayed = suggestions[: len(suggestions) // 2]
    assert SearcherSimulation(make, space, replayed=replayed).run() == suggestions


def global_random_state_is_not_used(make: Make, space: Space) -> None:
    SearcherSimulation(make, space).run()  # a library may draw numbers when it is imported
    numpy: Any = sys.modules.get("numpy")
    before = random.getstate(), None if numpy is None else numpy.random.get_state()[1].tolist()
    SearcherSimulation(make, space).run()
    after = random.getstate(), None if numpy is None else numpy.random.get_state()[1].tolist()
    assert before == after, "use the random generator of the SuggestContext, or one of your own"


CHECKS: Sequence[Check] = (
    suggestions_are_configurations_of_the_space,
    many_trials_can_start_before_the_first_report,
    same_seed_and_reports_give_the_same_suggestions,
    copy_continues_like_the_original,
    begin_resets_the_searcher,
    check_has_no_side_effects,
    description_is_constant_json,
    arguments_are_not_modified,
    returned_configurations_can_be_modified,
    rolled_back_reports_have_no_effect,
    trials_can_end_without_reports,
    losses_can_all_be_equal_or_infinite,
    one_result_is_enough_to_continue,
    configurations_can_come_from_elsewhere,
    replayed_suggestions_restore_the_state,
    global_random_state_is_not_used,
)
