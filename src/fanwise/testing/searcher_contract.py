"""What every searcher promises, as checks that any implementation can run. Loads no pytest.

    @pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__)
    def test_my_searcher_keeps_the_contract(check: Check) -> None:
        check(lambda: MySearcher(sigma=0.1))

A check makes searchers and plays searches with them in spaces of every kind (`SPACES`): trials start, report, crash
and repeat, end in every way; losses may be infinite; many trials run before the first report. It says nothing of how
good a searcher is.
"""

import copy
import json
import math
import random
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
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
Check: TypeAlias = Callable[[Make], None]

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
    "few values and a condition": Space({
        "x": choice(["a", "b"]),
        "n": parameter(randint(0, 1), when={"x": "b"}),
    }),
    "few values": Space({"x": choice(["a", "b"]), "n": randint(0, 1)}),
    "one value": Space({"x": choice([0])}),
    "negative numbers": Space({"x": randint(-3, -1), "y": uniform(-5.0, -1.0), "z": finrange(-2.0, 2.0, 5)}),
    "constants only": Space({"max_epochs": 10}),
}  # fmt: skip
_STATUSES = ("Completed", "Stopped", "Failed")
_NUM_STEPS = 60


@dataclass
class _Trial:
    config: Mapping[str, object]
    iter: int = 0
    attempt: int = 0


@dataclass
class Play:
    """A search around one searcher, step by step; the same seed takes the same steps, whatever is suggested.

    Args:
        searcher: began already.
        tells_void: False leaves out the reports that are void soon after, with nothing between: it must not matter.
        spoils: empties the configurations that the searcher returned, as their owner may.
        recalls: passes these suggestions to `replay_suggestion` first, as when an experiment is resumed.
    """

    searcher: Searcher
    space: Space
    seed: int = 0
    tells_void: bool = True
    spoils: bool = False
    recalls: Sequence[Mapping[str, object] | None] = ()
    suggestions: list[dict[str, object] | None] = field(default_factory=list)
    trials: dict[int, _Trial] = field(default_factory=dict)
    num_trials: int = 0

    def __post_init__(self) -> None:
        self.chance = random.Random(f"{self.seed}/play")

    def go_on(self, num_steps: int = _NUM_STEPS) -> list[dict[str, object] | None]:
        for _ in range(num_steps):
            self.step()
        return self.suggestions

    def step(self) -> None:
        what, which = self.chance.random(), self.chance.random()
        trial_id = sorted(self.trials)[int(which * len(self.trials))] if self.trials else None
        if trial_id is None or what < 0.3:
            self.suggest()
        elif what < 0.7:
            self.report(trial_id)
        elif what < 0.8:
            self.end(trial_id, _STATUSES[int(self.chance.random() * 3)])
        elif what < 0.9:
            self.crash(trial_id)
        else:
            self.rewind(trial_id, int(self.chance.random() * (self.trials[trial_id].iter + 1)))

    def suggest(self) -> None:
        """Ask, and start a trial: with the space's own choice where the searcher has nothing."""
        number = len(self.suggestions)
        pending = MappingProxyType({trial_id: trial.config for trial_id, trial in self.trials.items()})
        ask = SuggestContext(number, self.num_trials, self.space, seed=self.seed, pending=pending, now_s=float(number))
        if number < len(self.recalls):
            suggested = self.recalls[number]
            self.searcher.replay_suggestion(ask, suggested)
        else:
            suggested = self.searcher.suggest(ask)
        self.suggestions.append(None if suggested is None else dict(suggested))
        if suggested is None:
            config = self.space.sample(random.Random(f"{self.seed}/own/{number}"))
        else:
            assert isinstance(suggested, Mapping), f"suggest() returned {suggested!r}"
            config = self.space.check(suggested)
        if self.spoils and isinstance(suggested, dict):
            suggested.clear()
        self.trials[self.num_trials] = _Trial(config)
        self.num_trials += 1

    def report(self, trial_id: int, *, good_by: float = 0.0) -> None:
        trial = self.trials[trial_id]
        trial.iter += 1
        self.searcher.observe(observed(trial_id, trial.config, trial.iter, self.loss(trial_id) - good_by))

    def loss(self, trial_id: int) -> float:
        """Now and then an infinite one."""
        trial = self.trials[trial_id]
        u = random.Random(f"{self.seed}/{trial_id}/{trial.attempt}/{trial.iter}").random()
        return math.inf if u < 0.08 else u

    def crash(self, trial_id: int) -> None:
        """The trial reports very good losses, crashes, and goes on from where it was before."""
        trial = self.trials[trial_id]
        num_void, trial.attempt = 1 + int(self.chance.random() * 3), trial.attempt + 1
        if self.tells_void:
            stands = trial.iter
            for _ in range(num_void):
                self.report(trial_id, good_by=1000.0)
            self.rewind(trial_id, stands)

    def rewind(self, trial_id: int, to_iter: int) -> None:
        self.trials[trial_id].iter = to_iter
        self.searcher.on_rollback(trial_id, to_iter)

    def end(self, trial_id: int, status: str) -> None:
        del self.trials[trial_id]
        self.searcher.on_end(trial_id, status)


def observed(trial_id: int, config: Mapping[str, object], iter: int, loss: float) -> Observation:
    """A report of two objectives, the second one worse where the first is better."""
    second = -loss if math.isfinite(loss) else 0.0
    return Observation(trial_id, config, iter, float(iter), (loss, second), {"loss": loss, "size": second})


def begun(make: Make, space: Space, seed: int = 0) -> Searcher:
    searcher = make()
    searcher.check(space)
    searcher.begin(space, seed)
    return searcher


@contextmanager
def _in(name: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        error.add_note(f"in the space {name!r}: {SPACES[name]!r}")
        raise


def _played(make: Make, space: Space, seed: int = 0, **how: Any) -> list[dict[str, object] | None]:
    return Play(begun(make, space, seed), space, seed, **how).go_on()


def suggestions_are_configurations_of_the_space(make: Make) -> None:
    for name, space in SPACES.items():
        with _in(name):
            for config in _played(make, space):
                if config is not None:
                    checked = space.check(config)
                    assert {name: checked[name] for name in config} == config, f"{config!r} is not in plain values"


def a_hundred_trials_may_run_before_the_first_report(make: Make) -> None:
    for name, space in SPACES.items():
        with _in(name):
            play = Play(begun(make, space), space)
            for _ in range(100):
                play.suggest()
            play.go_on(30)


def the_same_seed_and_reports_give_the_same_suggestions(make: Make) -> None:
    for name, space in SPACES.items():
        with _in(name):
            for seed in (0, -7, 2**70):
                assert _played(make, space, seed) == _played(make, space, seed)


def a_copy_goes_on_as_the_original_does(make: Make) -> None:
    for name, space in SPACES.items():
        with _in(name):
            whole = _played(make, space)
            play = Play(begun(make, space), space)
            play.go_on(_NUM_STEPS // 2)
            copied = copy.deepcopy(play)
            play.go_on(7)
            assert copied.go_on(_NUM_STEPS - _NUM_STEPS // 2) == whole, "the copy went another way"


def begin_begins_afresh(make: Make) -> None:
    for name, space in SPACES.items():
        with _in(name):
            searcher = begun(make, space, 5)
            Play(searcher, space, 5).go_on()
            searcher.begin(space, 0)
            assert Play(searcher, space).go_on() == _played(make, space), "something was left of the search before"


def check_changes_nothing(make: Make) -> None:
    for name, space in SPACES.items():
        with _in(name):
            play = Play(begun(make, space), space)
            play.go_on(_NUM_STEPS // 2)
            play.searcher.check(SPACES["one number"])
            assert play.go_on(_NUM_STEPS - _NUM_STEPS // 2) == _played(make, space)


def a_description_is_json_and_stays_the_same(make: Make) -> None:
    described = make().describe()
    assert isinstance(described.get("name"), str), f"there is no name in {described!r}"
    assert json.loads(json.dumps(described, allow_nan=False)) == described
    for name, space in SPACES.items():
        with _in(name):
            searcher = begun(make, space)
            Play(searcher, space).go_on()
            assert searcher.describe() == described, "it describes the search instead of the settings"


def what_it_is_given_stays_as_it_is(make: Make) -> None:
    for name, space in SPACES.items():
        with _in(name):
            before = space_to_json(space)
            play = Play(begun(make, space), space)
            for _ in range(_NUM_STEPS):
                kept = copy.deepcopy({trial_id: trial.config for trial_id, trial in play.trials.items()})
                play.step()
                now = {trial_id: trial.config for trial_id, trial in play.trials.items() if trial_id in kept}
                assert now == {trial_id: kept[trial_id] for trial_id in now}, "a running configuration was changed"
            assert space_to_json(space) == before


def what_it_returned_may_be_changed(make: Make) -> None:
    for name, space in SPACES.items():
        with _in(name):
            assert _played(make, space, spoils=True) == _played(make, space)


def void_reports_are_forgotten(make: Make, *, num_seeds: int = 3) -> None:
    for name, space in SPACES.items():
        with _in(name):
            for seed in range(num_seeds):
                told, untold = _played(make, space, seed), _played(make, space, seed, tells_void=False)
                assert told == untold, "reports that on_rollback made void had an effect"


def ends_of_trials_that_never_reported_are_no_trouble(make: Make) -> None:
    for name, space in SPACES.items():
        with _in(name):
            play = Play(begun(make, space), space)
            for status in _STATUSES * 4:
                play.suggest()
                play.rewind(play.num_trials - 1, 0)
                play.end(play.num_trials - 1, status)
            play.go_on(30)


def losses_may_all_be_infinite(make: Make) -> None:
    for name, space in SPACES.items():
        with _in(name):
            play = Play(begun(make, space), space)
            for trial_id in range(20):
                play.suggest()
                play.searcher.observe(observed(trial_id, play.trials[trial_id].config, 1, math.inf))
                play.end(trial_id, "Completed")


def whoever_has_nothing_may_be_asked_again(make: Make) -> None:
    for name in ("few values", "few values and a condition", "one value", "constants only"):
        with _in(name):
            play = Play(begun(make, SPACES[name]), SPACES[name])
            for trial_id in range(60):
                play.suggest()
                play.report(trial_id)
                play.end(trial_id, "Completed")


def recall_leads_to_where_suggest_did(make: Make) -> None:
    for name, space in SPACES.items():
        with _in(name):
            whole = _played(make, space)
            assert _played(make, space, recalls=whole[: len(whole) // 2]) == whole


def trials_of_an_earlier_search_come_first(make: Make) -> None:
    """A warm start: they have ids below 0, and the searcher hears of them before its first question."""
    for name, space in SPACES.items():
        with _in(name):
            played = []
            for _ in range(2):
                play = Play(begun(make, space), space)
                for trial_id, status in zip(range(-6, 0), _STATUSES * 2, strict=True):
                    config = space.sample(random.Random(f"earlier/{trial_id}"))
                    for iter in (1, 2):
                        play.searcher.observe(observed(trial_id, config, iter, trial_id / iter))
                    play.searcher.on_end(trial_id, status)
                played.append(play.go_on(_NUM_STEPS // 2))
            assert played[0] == played[1], "the same trials led to other suggestions"
            cold = Play(begun(make, space), space).go_on(1)
            assert (played[0][0] is None) == (cold[0] is None), "what was tried there may be tried in this search too"


def it_draws_no_global_chance(make: Make) -> None:
    _played(make, next(iter(SPACES.values())))  # libraries that are loaded late may draw while they load
    numpy: Any = sys.modules.get("numpy")
    for name, space in SPACES.items():
        with _in(name):
            before = random.getstate(), None if numpy is None else numpy.random.get_state()[1].tolist()
            _played(make, space)
            after = random.getstate(), None if numpy is None else numpy.random.get_state()[1].tolist()
            assert before == after, "random numbers come from the SuggestContext, or from a generator of one's own"


def trials_may_all_come_out_alike(make: Make) -> None:
    """A constant metric, and trials that all fail, with a report before and without."""
    for name, space in SPACES.items():
        with _in(name):
            for status, reports in (("Completed", 1), ("Failed", 1), ("Failed", 0)):
                play = Play(begun(make, space), space)
                for trial_id in range(25):
                    play.suggest()
                    if reports:
                        play.searcher.observe(observed(trial_id, play.trials[trial_id].config, 1, 0.5))
                    play.end(trial_id, status)


def one_trial_with_a_result_is_no_trouble(make: Make) -> None:
    for name, space in SPACES.items():
        with _in(name):
            play = Play(begun(make, space), space)
            play.suggest()
            play.searcher.observe(observed(0, play.trials[0].config, 1, 0.5))
            play.end(0, "Completed")
            for _ in range(20):
                play.suggest()


def what_others_chose_is_learnt_from(make: Make) -> None:
    """Points to evaluate, and trials that somebody else has put in between."""
    for name, space in SPACES.items():
        with _in(name):
            points: list[dict[str, object]] = [{}, space.sample(random.Random("0/point")), {}]
            searcher = FirstPoints(points, make())
            searcher.begin(space, 0)
            play = Play(searcher, space)
            for _ in range(4):
                play.go_on(25)
                play.trials[play.num_trials] = _Trial(space.sample(random.Random(f"0/{play.num_trials}")))
                play.num_trials += 1


def constraints_may_be_violated(make: Make) -> None:
    """By some, by all and beyond any measure: a report without a violation, then others; each with its own size."""
    for name, space in SPACES.items():
        with _in(name):
            for beyond in ((0.0, 0.5, 2.0), (0.5, 0.5, 3.0), (math.inf, 1.0, math.inf)):
                play = Play(begun(make, space), space)
                for trial_id in range(15):
                    play.suggest()
                    config, size = play.trials[trial_id].config, beyond[trial_id % 3]
                    values = {"loss": 0.1 * trial_id, "size": 20 * (1 + size)}
                    play.searcher.observe(
                        Observation(trial_id, config, 1, 1.0, (0.1 * trial_id,), values, (20 * size,), size)
                    )
                    play.end(trial_id, "Completed")


CHECKS: Sequence[Check] = (
    suggestions_are_configurations_of_the_space,
    a_hundred_trials_may_run_before_the_first_report,
    the_same_seed_and_reports_give_the_same_suggestions,
    a_copy_goes_on_as_the_original_does,
    begin_begins_afresh,
    check_changes_nothing,
    a_description_is_json_and_stays_the_same,
    what_it_is_given_stays_as_it_is,
    what_it_returned_may_be_changed,
    void_reports_are_forgotten,
    ends_of_trials_that_never_reported_are_no_trouble,
    losses_may_all_be_infinite,
    trials_may_all_come_out_alike,
    one_trial_with_a_result_is_no_trouble,
    what_others_chose_is_learnt_from,
    whoever_has_nothing_may_be_asked_again,
    recall_leads_to_where_suggest_did,
    trials_of_an_earlier_search_come_first,
    it_draws_no_global_chance,
    constraints_may_be_violated,
)

# Checks of the model, not of `tune.searchers.model_based`: for searchers that think,
# for a check makes hundreds of suggestions. The others are for the long tests.
CHECKS_OF_A_MODEL: Sequence[Check] = (
    suggestions_are_configurations_of_the_space,
    the_same_seed_and_reports_give_the_same_suggestions,
    void_reports_are_forgotten,
    losses_may_all_be_infinite,
    trials_may_all_come_out_alike,
    one_trial_with_a_result_is_no_trouble,
    recall_leads_to_where_suggest_did,
    it_draws_no_global_chance,
    constraints_may_be_violated,
)


def none_comes_twice_while_others_are_left(make: Make) -> None:
    """In a space of few configurations, with one of somebody else's, and with trials that fail before they report."""
    for name in ("few values", "few values and a condition"):
        with _in(name):
            space = SPACES[name]
            for seed, status in enumerate(("Completed", "Failed", "Completed", "Failed")):
                play = Play(begun(make, space, seed), space, seed)
                seen = [space.sample(random.Random(f"{seed}/others"))] if status == "Completed" else []
                for config in seen:
                    play.trials[0] = _Trial(config)
                    play.num_trials = 1
                    play.report(0)
                    play.end(0, "Completed")
                for trial_id in range(len(seen), space.num_configurations or 0):
                    play.suggest()
                    config = play.suggestions[-1] or {}
                    assert config not in seen, f"{config!r} comes twice, although others are left: {seen!r}"
                    seen.append(config)
                    if status == "Completed":
                        play.report(trial_id)
                    play.end(trial_id, status)


def of_a_finite_space_every_configuration_comes_once(make: Make) -> None:
    """And then None: also where trials fail, and where somebody else has chosen some."""
    for name in ("few values", "few values and a condition", "one value", "constants only"):
        with _in(name):
            space = SPACES[name]
            for status, by_others in (("Completed", 0), ("Failed", 0), ("Completed", 1)):
                play = Play(begun(make, space), space)
                for trial_id in range(by_others):
                    play.trials[trial_id] = _Trial(space.sample(random.Random("0/others")))
                    play.num_trials += 1
                    play.report(trial_id)
                    play.end(trial_id, "Completed")
                left = (space.num_configurations or 0) - by_others
                for trial_id in range(by_others, by_others + left + 3):
                    play.suggest()
                    if status == "Completed":
                        play.report(trial_id)
                    play.end(trial_id, status)
                first, rest = play.suggestions[:left], play.suggestions[left:]
                texts = {json.dumps(config, sort_keys=True) for config in first}
                assert None not in first, f"None, although of {left} configurations only some had been suggested"
                assert len(texts) == left, f"twice, although others were left: {first!r}"
                assert rest == [None] * 3, f"all were suggested, and then {rest!r}"


def many_that_ask_at_once_get_configurations_apart(make: Make) -> None:
    """Sixteen ask before the first of them reports: apart from each other, more than if the running ones were not told.

    By the distance of each to the nearest other, in the mean of a few searches of a plane.
    """
    told, untold = (_nearest_of_sixteen(make, tells=tells) for tells in (True, False))
    assert told > 1.2 * untold, f"the nearest other is {told:.4f} away, and {untold:.4f} if what runs is not told"


def _nearest_of_sixteen(make: Make, *, tells: bool) -> float:
    space = Space({"x": uniform(0, 1), "y": uniform(0, 1)})
    distances = []
    for seed in range(3):
        searcher = begun(make, space, seed)
        points: list[tuple[float, float]] = []
        pending: dict[int, Mapping[str, object]] = {}
        for number in range(40 + 16):
            config = searcher.suggest(
                SuggestContext(number, number, space, seed=seed, pending=dict(pending) if tells else {})
            )
            assert config is not None
            x, y = _number(config["x"]), _number(config["y"])
            if number < 40:
                loss = (x - 0.3) ** 2 + (y - 0.6) ** 2
                searcher.observe(Observation(number, config, 1, 1.0, (loss,), {"loss": loss}))
                searcher.on_end(number, "Completed")
            else:
                pending[number] = dict(config)
                points.append((x, y))
        assert len(set(points)) == 16 or not tells, "two that asked at once got the same configuration"
        distances += [min(math.dist(one, other) for other in points if other is not one) for one in points]
    return sum(distances) / len(distances)


def _number(value: object) -> float:
    assert isinstance(value, float)
    return value


MODEL_CHECKS: Sequence[Check] = (
    of_a_finite_space_every_configuration_comes_once,
    many_that_ask_at_once_get_configurations_apart,
)
"""What searchers with a model promise besides."""
