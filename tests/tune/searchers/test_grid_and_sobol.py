"""GridSearcher and SobolSearcher: which configurations, in which order, and when a grid ends."""

import doctest
import itertools
import subprocess
import sys
import types

import pytest

from fanwise.testing.searcher_contract import begun
from fanwise.tune.core.actions import Action, Finish, Start
from fanwise.tune.core.events import Begin, Ended, Event, Free, Ready, Reported
from fanwise.tune.core.search_core import SearchCore, handle_and_suggest
from fanwise.tune.schedulers import FIFO
from fanwise.tune.searchers import GridSearcher, Searcher, SobolSearcher, SuggestContext, points, random_search
from fanwise.tune.space import Space, choice, finrange, loguniform, randint, uniform
from fanwise.tune.stopping import StoppingCriterion


def suggested(searcher: Searcher, space: Space, number: int) -> list[tuple[object, ...]]:
    """The first suggestions, without constants."""
    configs = [searcher.suggest(SuggestContext(k, k, space)) for k in range(number)]
    return [tuple(config[name] for name in space.domains) for config in configs if config is not None]


@pytest.mark.parametrize(
    ("domain", "num_points", "values"),
    [
        (uniform(0, 1), 3, [0.0, 0.5, 1.0]),
        (loguniform(0.01, 1), 3, [0.01, 0.1, 1.0]),
        (uniform(0, 1), 1, [0.5]),
        (randint(0, 9), 4, [0, 3, 6, 9]),
        (randint(1, 3), 5, [1, 2, 3]),
        (finrange(0.5, 2.0, 4), 9, [0.5, 1.0, 1.5, 2.0]),
        (choice(["a", "b", "c"]), 1, ["a", "b", "c"]),
    ],
)
def test_a_grid_has_evenly_spread_values_and_all_of_what_is_few(
    domain: object, num_points: int, values: list[object]
) -> None:
    space = Space({"x": domain})
    got = [x for (x,) in suggested(begun(lambda: GridSearcher(num_points), space), space, 20)]
    assert got == [pytest.approx(value, rel=1e-12) if isinstance(value, float) else value for value in values]


def test_the_last_hyperparameter_of_the_space_changes_fastest() -> None:
    space = Space({"x": choice([1, 2]), "max_epochs": 3, "y": choice(["a", "b"]), "z": randint(0, 2)})
    got = suggested(begun(GridSearcher, space), space, 100)
    assert got == list(itertools.product([1, 2], "ab", [0, 1, 2]))


def test_numbers_of_points_may_be_given_by_name() -> None:
    space = Space({"x": uniform(0, 1), "y": uniform(0, 1)})
    assert len(suggested(begun(lambda: GridSearcher({"x": 2}), space), space, 100)) == 2 * 5


def test_a_grid_for_what_the_space_has_not_is_refused() -> None:
    with pytest.raises(ValueError, match=r"num_points: 'learnin_rate' is not a hyperparameter; did you mean 'learn"):
        GridSearcher({"learnin_rate": 2}).check(Space({"learning_rate": uniform(0, 1)}))
    with pytest.raises(ValueError, match="num_points must be at least 1, got 0"):
        GridSearcher(0)
    with pytest.raises(TypeError, match=r"num_points\['x'\] must be an int, got 2.5"):
        GridSearcher({"x": 2.5})  # type: ignore[dict-item]


def test_a_grid_search_ends_after_every_configuration_ran_once() -> None:
    space = Space({"x": randint(0, 6), "y": choice(["a", "b"])})
    scheduler = FIFO(GridSearcher(7), metric="loss")
    scheduler.begin(space, 0)
    core = SearchCore(scheduler, space, StoppingCriterion(max_wallclock_time=1e9), n_workers=3)
    actions: list[Action] = []
    events: list[Event] = [Begin(0.0)]
    while events:
        event, seen = events.pop(0), len(actions)
        handle_and_suggest(core, event, scheduler.searcher, lambda event, new: actions.extend(new))
        for action in actions[seen:]:
            if isinstance(action, Start):
                who = (action.trial_id, action.attempt)
                events += [Ready(0.0, *who), Reported(0.0, *who, {"loss": 1.0}), Ended(0.0, *who), Free(0.0, *who)]
    ran = [tuple(action.config.values()) for action in actions if isinstance(action, Start)]
    assert sorted(ran) == sorted(itertools.product(range(7), "ab"))
    assert actions[-1] == Finish("searcher exhausted")


def test_sixteen_points_of_sobol_fill_sixteen_cells_of_every_pair_of_axes() -> None:
    space = Space({name: uniform(0, 1) for name in "abc"})
    points = suggested(begun(SobolSearcher, space, 3), space, 16)
    cells = [{int(16 * float(str(point[axis]))) for point in points} for axis in range(3)]
    assert cells == [set(range(16))] * 3, "each sixteenth of each axis has one point"


def test_each_seed_scrambles_sobols_points_in_its_way() -> None:
    space = Space({"x": uniform(0, 1), "y": randint(0, 9)})
    runs = [suggested(begun(SobolSearcher, space, seed), space, 100) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]
    assert len(set(runs[0])) == 100, "beyond the first block of points there are others"


def test_sobols_points_for_a_seed_stay_what_they_are() -> None:
    space = Space({"x": uniform(0, 1), "y": uniform(0, 1)})
    assert suggested(begun(SobolSearcher, space, 0), space, 2) == [
        (0.1267823288217187, 0.8093738062307239),
        (0.6578089725226164, 0.36123265512287617),
    ]


def test_scipy_is_loaded_by_the_search_and_not_by_the_import() -> None:
    loads = "import fanwise.tune.schedulers, sys; print('scipy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", loads], check=True, capture_output=True, text=True)
    assert done.stdout == "False\n"


def test_the_presets_describe_their_searchers() -> None:
    assert FIFO(GridSearcher(3), metric="loss").describe()["searcher"] == {"name": "GridSearcher", "num_points": 3}
    assert FIFO("sobol", metric="loss").describe()["searcher"] == {"name": "SobolSearcher"}


@pytest.mark.parametrize("module", [points, random_search])
def test_the_examples_run(module: types.ModuleType) -> None:
    result = doctest.testmod(module)
    assert result.failed == 0 < result.attempted
