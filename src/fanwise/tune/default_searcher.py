"""Chooses a searcher if the user names none. See docs/guides/searchers.md for the benchmarks.

    search                                       choice   reason
    several objectives                           tpe      best mean rank without extra dependencies in the benchmarks
    a space with conditions                      tpe      handles conditional hyperparameters
    at most 5 trials, or at most one per worker  sobol    a model would have too few results, or none
    otherwise                                    gp       best mean rank, least mean regret from 40 trials on

The choice is recorded as if the user had named the searcher, so resume and replay do not depend on later versions of
this rule.
"""

from dataclasses import dataclass

NUM_INIT = 5  # default `num_init` of `GPSearcher` and `ForestSearcher`


@dataclass(frozen=True, slots=True)
class SearcherChoice:
    """The name of a searcher (see `searchers.SEARCHERS`) and the reason for its choice."""

    name: str
    reason: str

    def line(self) -> str:
        """Return the reason as text. The tuner prints it after the description of the scheduler."""
        return f"chosen because {self.reason} (searcher={self.name!r}; fanwise explain searchers)"


def choose_searcher(
    *, num_objectives: int, has_conditions: bool, max_trials: int | None, n_workers: int
) -> SearcherChoice:
    """Choose a searcher by the table above. `max_trials`: maximum number of trials, or None if unknown."""
    if num_objectives > 1:
        return SearcherChoice("tpe", f"there are {num_objectives} objectives")
    if has_conditions:
        return SearcherChoice("tpe", "the space has conditions")
    if max_trials is not None and max_trials <= max(NUM_INIT, n_workers):
        return SearcherChoice("sobol", f"{max_trials} trials or fewer are too few to learn from")
    return SearcherChoice("gp", "there is one objective")
