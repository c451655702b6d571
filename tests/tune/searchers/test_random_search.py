"""Searchers: the two methods, and RandomSearcher."""

from collections.abc import Mapping

import pytest

from fanwise.tune.rng import KeyedRandom
from fanwise.tune.searchers import RandomSearcher, Searcher, SuggestContext
from fanwise.tune.space import Space, choice, loguniform, parameter, randint, uniform

SPACE = Space({"learning_rate": loguniform(1e-2, 1), "batch_size": randint(32, 256), "max_epochs": 10})


def test_the_random_searcher_draws_from_the_space_with_the_asks_chance() -> None:
    suggested = RandomSearcher().suggest(SuggestContext(0, 0, SPACE))
    assert suggested == SPACE.sample(KeyedRandom("0/suggest/0"))
    assert suggested != RandomSearcher().suggest(SuggestContext(1, 0, SPACE))
    assert suggested != RandomSearcher().suggest(SuggestContext(0, 0, SPACE, seed=1))
    assert suggested != RandomSearcher().suggest(SuggestContext(0, 0, SPACE, purpose="next"))


def test_a_branch_in_which_nothing_varies_is_tried_once() -> None:
    space = Space(
        {"optimizer": choice(["none", "sgd"]), "momentum": parameter(uniform(0, 1), when={"optimizer": "sgd"})}
    )
    searcher = RandomSearcher()
    searcher.begin(space, 0)
    found = [searcher.suggest(SuggestContext(number, number, space)) for number in range(25)]
    assert len({str(config) for config in found}) == 25


def test_a_searcher_without_both_methods_cannot_be_made() -> None:
    class Half(Searcher):
        def suggest(self, ask: SuggestContext) -> Mapping[str, object]:
            return ask.space.sample(ask.random)

    with pytest.raises(TypeError, match="observe"):
        Half()  # type: ignore[abstract]
