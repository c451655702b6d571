"""Searchers: the two methods, and RandomSearcher."""

import doctest
from collections.abc import Mapping
from random import Random

import pytest

from fanwise.tune import searchers
from fanwise.tune.searchers import Ask, RandomSearcher, Searcher
from fanwise.tune.spaces import Space, loguniform, randint

SPACE = Space({"learning_rate": loguniform(1e-2, 1), "batch_size": randint(32, 256), "max_epochs": 10})


def test_the_random_searcher_draws_from_the_space_with_the_asks_chance() -> None:
    suggested = RandomSearcher().suggest(Ask(0, SPACE, Random("0/suggest/0")))
    assert suggested == SPACE.sample(Random("0/suggest/0"))
    assert suggested != RandomSearcher().suggest(Ask(0, SPACE, Random("0/suggest/1")))


def test_the_random_searcher_learns_nothing() -> None:
    searcher = RandomSearcher()
    before = searcher.suggest(Ask(0, SPACE, Random(5)))
    searcher.observe(0, before, 0.1)
    assert searcher.suggest(Ask(1, SPACE, Random(5))) == before


def test_a_searcher_without_both_methods_cannot_be_made() -> None:
    class Half(Searcher):
        def suggest(self, ask: Ask) -> Mapping[str, object]:
            return ask.space.sample(ask.random)

    with pytest.raises(TypeError, match="observe"):
        Half()  # type: ignore[abstract]


def test_the_examples_run() -> None:
    assert doctest.testmod(searchers).failed == 0
