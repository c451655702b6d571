"""Further checks of fanwise's own searchers: constraints, earlier searches, finite spaces and pending trials."""

import json
import math
import random
from collections.abc import Callable, Mapping, Sequence

from fanwise.testing.searcher_checks import (
    CHECKS,
    SPACES,
    Check,
    Make,
    SearcherSimulation,
    global_random_state_is_not_used,
    losses_can_all_be_equal_or_infinite,
    observation,
    one_result_is_enough_to_continue,
    replayed_suggestions_restore_the_state,
    rolled_back_reports_have_no_effect,
    same_seed_and_reports_give_the_same_suggestions,
    started,
    suggestions_are_configurations_of_the_space,
)
from fanwise.tune.searchers.searcher import Observation, SuggestContext
from fanwise.tune.space import Space, uniform

_STATUSES = ("Completed", "Stopped", "Failed")


def exhausted_searcher_can_be_asked_again(make: Make, space: Space) -> None:
    if space.num_configurations is not None:
        search = SearcherSimulation(make, space)
        for trial_id in range(60):
            search.suggest()
            search.report(trial_id)
            search.end(trial_id, "Completed")


def trials_of_an_earlier_search_can_come_first(make: Make, space: Space) -> None:
    """Such trials have negative ids, and are observed before the first suggestion."""
    suggestions = []
    for _ in range(2):
        search = SearcherSimulation(make, space)
        for trial_id, status in zip(range(-6, 0), _STATUSES * 2, strict=True):
            config = space.sample(random.Random(f"earlier/{trial_id}"))
            for iter in (1, 2):
                search.searcher.observe(observation(trial_id, config, iter, trial_id / iter))
            search.searcher.on_end(trial_id, status)
        suggestions.append(search.run(30))
    assert suggestions[0] == suggestions[1], "equal trials led to other suggestions"
    first = SearcherSimulation(make, space).run(1)[0]
    assert (suggestions[0][0] is None) == (first is None), "configurations of the earlier search are excluded"


def constraints_can_be_violated(make: Make, space: Space) -> None:
    """By some trials, by all, and by an infinite amount. The first report has no violation."""
    for excesses in ((0.0, 0.5, 2.0), (0.5, 0.5, 3.0), (math.inf, 1.0, math.inf)):
        search = SearcherSimulation(make, space)
        for trial_id in range(15):
            search.suggest()
            config, excess, loss = search.trials[trial_id].config, excesses[trial_id % 3], 0.1 * trial_id
            values = {"loss": loss, "size": 20 * (1 + excess)}
            search.searcher.observe(Observation(trial_id, config, 1, 1.0, (loss,), values, (20 * excess,), excess))
            search.end(trial_id, "Completed")


CHECKS_OF_OURS: Sequence[Check] = (
    *CHECKS,
    exhausted_searcher_can_be_asked_again,
    trials_of_an_earlier_search_can_come_first,
    constraints_can_be_violated,
)
# The checks that depend on the model. The others depend on `tune.searchers.model_based`, and take long with slow
# searchers.
CHECKS_OF_A_MODEL: Sequence[Check] = (
    suggestions_are_configurations_of_the_space,
    same_seed_and_reports_give_the_same_suggestions,
    rolled_back_reports_have_no_effect,
    losses_can_all_be_equal_or_infinite,
    one_result_is_enough_to_continue,
    replayed_suggestions_restore_the_state,
    global_random_state_is_not_used,
    constraints_can_be_violated,
)


def no_configuration_is_repeated_while_others_are_left(make: Make) -> None:
    """Also if one trial comes from elsewhere, and if trials fail before they report."""
    for name in ("few values", "few values and a condition"):
        space = SPACES[name]
        for seed, status in enumerate(("Completed", "Failed", "Completed", "Failed")):
            search = SearcherSimulation(make, space, seed)
            seen = [space.sample(random.Random(f"{seed}/others"))] if status == "Completed" else []
            for config in seen:
                search.start(config)
                search.report(0)
                search.end(0, "Completed")
            for trial_id in range(len(seen), space.num_configurations or 0):
                search.suggest()
                config = search.suggestions[-1] or {}
                assert config not in seen, f"{config!r} is repeated, although others are left: {seen!r}"
                seen.append(config)
                if status == "Completed":
                    search.report(trial_id)
                search.end(trial_id, status)


def finite_space_is_searched_completely(make: Make) -> None:
    """Each configuration is suggested once, then None: also if trials fail, or one comes from elsewhere."""
    for name in ("few values", "few values and a condition", "one value", "constants only"):
        space = SPACES[name]
        for status, num_others in (("Completed", 0), ("Failed", 0), ("Completed", 1)):
            search = SearcherSimulation(make, space)
            for trial_id in range(num_others):
                search.start(space.sample(random.Random("0/others")))
                search.report(trial_id)
                search.end(trial_id, "Completed")
            num_left = (space.num_configurations or 0) - num_others
            for trial_id in range(num_others, num_others + num_left + 3):
                search.suggest()
                if status == "Completed":
                    search.report(trial_id)
                search.end(trial_id, status)
            first, rest = search.suggestions[:num_left], search.suggestions[num_left:]
            texts = {json.dumps(config, sort_keys=True) for config in first}
            assert None not in first, f"{name}: None, although configurations are left of {num_left}"
            assert len(texts) == num_left, f"{name}: repeated, although others were left: {first!r}"
            assert rest == [None] * 3, f"{name}: all were suggested, and then {rest!r}"


def pending_trials_are_apart(make: Make) -> None:
    """Sixteen suggestions before the first report are further apart than if the searcher did not know of the others.

    Compares the mean distance to the nearest other suggestion, over a few searches of a plane.
    """
    informed, uninformed = (_mean_distance(make, has_pending=has_pending) for has_pending in (True, False))
    assert informed > 1.2 * uninformed, f"mean distance {informed:.4f}, and {uninformed:.4f} without pending trials"


MODEL_CHECKS: Sequence[Callable[[Make], None]] = (finite_space_is_searched_completely, pending_trials_are_apart)


def _mean_distance(make: Make, *, has_pending: bool) -> float:
    space = Space({"x": uniform(0, 1), "y": uniform(0, 1)})
    distances = []
    for seed in range(3):
        searcher = started(make, space, seed)
        points: list[tuple[float, float]] = []
        pending: dict[int, Mapping[str, object]] = {}
        for number in range(40 + 16):
            config = searcher.suggest(
                SuggestContext(number, number, space, seed=seed, pending=dict(pending) if has_pending else {})
            )
            assert config is not None
            x, y = config["x"], config["y"]
            assert isinstance(x, float) and isinstance(y, float)
            if number < 40:
                loss = (x - 0.3) ** 2 + (y - 0.6) ** 2
                searcher.observe(Observation(number, config, 1, 1.0, (loss,), {"loss": loss}))
                searcher.on_end(number, "Completed")
            else:
                pending[number] = dict(config)
                points.append((x, y))
        assert len(set(points)) == 16 or not has_pending, "two pending trials have the same configuration"
        distances += [min(math.dist(one, other) for other in points if other is not one) for one in points]
    return sum(distances) / len(distances)
