"""TPE, BOHB and searchers by name: the searcher that a scheduler gets, and the reports from which it learns."""

from collections.abc import Mapping

import pytest

from fanwise.tune import (
    ASHA,
    BOHB,
    FIFO,
    MOASHA,
    Hyperband,
    MedianStopping,
    Scheduler,
    StoppingCriterion,
    SuccessiveHalving,
)
from fanwise.tune.searchers import SEARCHERS, ForestSearcher, TPESearcher
from fanwise.tune.simulate import FunctionTable, simulate
from fanwise.tune.space import Space, uniform

SPACE = Space({"x": uniform(0, 1), "y": uniform(0, 1), "max_epochs": 9})


def train(config: Mapping[str, object], epoch: int) -> tuple[dict[str, object], float]:
    """A bowl, reached as epochs go by."""
    x, y = config["x"], config["y"]
    assert isinstance(x, float) and isinstance(y, float)
    return {"loss": (x - 0.3) ** 2 + (y - 0.8) ** 2 + 1 / epoch}, 1.0


def best(scheduler: Scheduler, seed: int) -> float:
    stop = StoppingCriterion(max_wallclock_time=150)
    best_report = simulate(scheduler, FunctionTable(train, SPACE), stop, n_workers=4, seed=seed).best
    assert best_report is not None
    return best_report.value


@pytest.mark.parametrize(
    ("with_model", "without"),
    [
        (FIFO("tpe", metric="loss"), FIFO(metric="loss")),
        (BOHB(metric="loss", resource_attr="epoch", max_t=9), Hyperband(metric="loss", resource_attr="epoch", max_t=9)),
        (
            ASHA(ForestSearcher(num_trees=8), metric="loss", resource_attr="epoch", max_t=9),
            ASHA(metric="loss", resource_attr="epoch", max_t=9),
        ),
    ],
    ids=["tpe", "bohb", "asha"],
)
@pytest.mark.parametrize("num_seeds", [2, pytest.param(12, marks=pytest.mark.soak)])
def test_search_with_a_model_finds_a_better_configuration(
    with_model: Scheduler, without: Scheduler, num_seeds: int
) -> None:
    nearer = sum(best(with_model, seed) < best(without, seed) for seed in range(num_seeds))
    assert nearer >= num_seeds - num_seeds // 6


def test_bohb_has_tpe() -> None:
    searcher = BOHB(metric="loss", max_resource_attr="max_epochs", num_init=7).searcher
    assert isinstance(searcher, TPESearcher)
    assert searcher.num_init == 7


def test_levels_are_counted_down_from_the_maximum() -> None:
    levels = Hyperband(metric="loss", max_t=52).levels(SPACE)
    assert levels == pytest.approx((52 / 27, 52 / 9, 52 / 3, 52))


@pytest.mark.parametrize(
    ("scheduler", "levels"),
    [
        (ASHA("forest", metric="loss", max_t=10), (1, 3, 9, 10)),
        (ASHA("tpe", metric="loss", max_resource_attr="max_epochs", grace_period=2), (2, 6, 9)),
        (Hyperband("forest", metric="loss", max_t=9), (1, 3, 9)),
        (SuccessiveHalving("tpe", metric="loss", max_t=9, grace_period=3), (3, 9)),
        (BOHB(metric="loss", max_resource_attr="max_epochs"), (1, 3, 9)),
        (MedianStopping("tpe", metric="loss"), ()),
        (MOASHA("tpe", metric=["loss", "size"], max_t=9), ()),
        (ASHA(TPESearcher(), metric="loss", max_t=10), ()),
    ],
    ids=["asha", "asha of the space", "hyperband", "halving", "bohb", "median", "moasha", "an object"],
)
def test_searcher_learns_at_the_rung_levels_of_its_scheduler(scheduler: Scheduler, levels: tuple[float, ...]) -> None:
    scheduler.begin(SPACE, seed=0)
    assert scheduler.searcher.levels == levels


@pytest.mark.parametrize("name", sorted(SEARCHERS))
def test_scheduler_takes_a_searcher_by_name(name: str) -> None:
    for scheduler in (ASHA(metric="loss", max_t=9, searcher=name), MedianStopping(metric="loss", searcher=name)):
        assert type(scheduler.searcher) is type(SEARCHERS[name]())
