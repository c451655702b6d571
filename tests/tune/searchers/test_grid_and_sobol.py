"""RandomSearcher, GridSearcher and SobolSearcher: their configurations and the order of these."""

import itertools
import subprocess
import sys

import pytest

from fanwise.testing.searcher_checks import started
from fanwise.tune.rng import KeyedRandom
from fanwise.tune.schedulers import FIFO
from fanwise.tune.searchers import (
    GridSearcher,
    RandomSearcher,
    Searcher,
    SobolSearcher,
    SuggestContext,
)
from fanwise.tune.space import Space, choice, finrange, loguniform, parameter, randint, uniform

SPACE = Space({"learning_rate": loguniform(1e-2, 1), "batch_size": randint(32, 256), "max_epochs": 10})


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
def test_grid_has_evenly_spread_values_and_all_values_of_small_domains(
    domain: object, num_points: int, values: list[object]
) -> None:
    space = Space({"x": domain})
    got = [x for (x,) in suggested(started(lambda: GridSearcher(num_points), space), space, 20)]
    assert got == [pytest.approx(value, rel=1e-12) if isinstance(value, float) else value for value in values]


def test_last_hyperparameter_of_a_grid_changes_fastest() -> None:
    space = Space({"x": choice([1, 2]), "max_epochs": 3, "y": choice(["a", "b"]), "z": randint(0, 2)})
    got = suggested(started(GridSearcher, space), space, 100)
    assert got == list(itertools.product([1, 2], "ab", [0, 1, 2]))


def test_number_of_points_may_be_set_for_each_hyperparameter() -> None:
    space = Space({"x": uniform(0, 1), "y": uniform(0, 1)})
    assert len(suggested(started(lambda: GridSearcher({"x": 2}), space), space, 100)) == 2 * 5


def test_grid_refuses_unknown_hyperparameters_and_invalid_numbers_of_points() -> None:
    with pytest.raises(ValueError, match=r"num_points: 'learnin_rate' is not a hyperparameter; did you mean 'learn"):
        GridSearcher({"learnin_rate": 2}).check(Space({"learning_rate": uniform(0, 1)}))
    with pytest.raises(ValueError, match="num_points must be at least 1, got 0"):
        GridSearcher(0)
    with pytest.raises(TypeError, match=r"num_points\['x'\] must be an int, got 2.5"):
        GridSearcher({"x": 2.5})  # type: ignore[dict-item]


def test_sixteen_points_of_sobol_fill_sixteen_cells_of_every_pair_of_axes() -> None:
    space = Space({name: uniform(0, 1) for name in "abc"})
    points = suggested(started(SobolSearcher, space, 3), space, 16)
    cells = [{int(16 * float(str(point[axis]))) for point in points} for axis in range(3)]
    assert cells == [set(range(16))] * 3, "each sixteenth of each axis has one point"


def test_sobol_points_depend_on_the_seed() -> None:
    space = Space({"x": uniform(0, 1), "y": randint(0, 9)})
    runs = [suggested(started(SobolSearcher, space, seed), space, 100) for seed in (1, 1, 2)]
    assert runs[0] == runs[1] != runs[2]
    assert len(set(runs[0])) == 100, "beyond the first block of points there are others"


def test_sobol_points_of_a_seed_never_change() -> None:
    space = Space({"x": uniform(0, 1), "y": uniform(0, 1)})
    assert suggested(started(SobolSearcher, space, 0), space, 2) == [
        (0.1267823288217187, 0.8093738062307239),
        (0.6578089725226164, 0.36123265512287617),
    ]


def test_schedulers_are_imported_without_numpy_and_scipy() -> None:
    program = "import fanwise.tune.schedulers, fanwise.tune.pareto, sys; print({'numpy', 'scipy'} & {*sys.modules})"
    done = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True)
    assert done.stdout == "set()\n"


def test_random_searcher_samples_with_the_generator_of_the_context() -> None:
    suggested = RandomSearcher().suggest(SuggestContext(0, 0, SPACE))
    assert suggested == SPACE.sample(KeyedRandom("0/suggest/0"))
    assert suggested != RandomSearcher().suggest(SuggestContext(1, 0, SPACE))
    assert suggested != RandomSearcher().suggest(SuggestContext(0, 0, SPACE, seed=1))
    assert suggested != RandomSearcher().suggest(SuggestContext(0, 0, SPACE, purpose="next"))


def test_random_searcher_tries_a_constant_branch_once() -> None:
    space = Space(
        {"optimizer": choice(["none", "sgd"]), "momentum": parameter(uniform(0, 1), when={"optimizer": "sgd"})}
    )
    searcher = RandomSearcher()
    searcher.begin(space, 0)
    found = [searcher.suggest(SuggestContext(number, number, space)) for number in range(25)]
    assert len({str(config) for config in found}) == 25


def test_the_presets_describe_their_searchers() -> None:
    assert FIFO(GridSearcher(3), metric="loss").describe()["searcher"] == {"name": "GridSearcher", "num_points": 3}
    assert FIFO("sobol", metric="loss").describe()["searcher"] == {"name": "SobolSearcher"}
