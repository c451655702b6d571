"""Searchers: which configuration to try next.

    suggest(Ask: trial_id, space, random)  ->  a configuration
    observe(trial_id, config, loss)            at every report; a smaller loss is always better

A searcher of one's own is a class with these two methods. It knows the space and the losses; it knows nothing of
workers, time, stopping, or whether the user minimises or maximises. Chance comes in with each Ask: a generator made
from the seed and the number of the decision, so that suggestion 17 does not depend on how many numbers the first 16
drew.
"""

import abc
import contextlib
import random
from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from .spaces import Space

# On the object itself, so that a copy of a used one counts as used too.
_USED = "_fanwise_has_served_a_search"


@dataclass(frozen=True, slots=True)
class Ask:
    """What a searcher is told when it has to suggest.

    Args:
        trial_id: the trial that will run the suggestion.
        space: draws, resamples and checks configurations.
        random: chance for this one suggestion. Its `.random()` gives the same numbers in every version of Python;
            its other methods, and a generator of one's own, need not.
    """

    trial_id: int
    space: Space
    random: random.Random


class Searcher(abc.ABC):
    """Base of searchers: implement both methods and hand an instance to `FIFOScheduler`.

    One instance serves one search; a second one is refused. The tuner calls it from one thread.

    >>> class Always(Searcher):
    ...     def suggest(self, ask):
    ...         return {"learning_rate": 0.1}
    ...     def observe(self, trial_id, config, loss):
    ...         print(f"trial {trial_id} reported a loss of {loss}")
    """

    @abc.abstractmethod
    def suggest(self, ask: Ask) -> Mapping[str, object] | None:
        """The configuration for the next trial; constants may be left out.

        None says: nothing now. It is asked again when a worker is free; the search ends when no trial is running.
        """

    @abc.abstractmethod
    def observe(self, trial_id: int, config: Mapping[str, object], loss: float) -> None:
        """A trial reported. `loss` is the metric, with its sign changed when the mode is "max"; never NaN."""


def mark_used(part: object) -> None:
    """A search has begun to ask this scheduler or searcher: what it learns belongs to that search."""
    with contextlib.suppress(AttributeError, TypeError):  # an object with slots has no place for the mark
        object.__setattr__(part, _USED, True)


def refuse_used(part: object, remedy: str) -> None:
    """Raise ValueError if a search has asked `part` before. `remedy` says what to write instead."""
    if getattr(part, _USED, False) is True:
        raise ValueError(
            f"this {type(part).__name__} has already served a search, and would go on where that one ended. {remedy}"
        )


@final
class RandomSearcher(Searcher):
    """Draws every configuration from the space, whatever was observed."""

    def suggest(self, ask: Ask) -> Mapping[str, object]:
        return ask.space.sample(ask.random)

    def observe(self, trial_id: int, config: Mapping[str, object], loss: float) -> None:
        """Nothing to learn from."""
