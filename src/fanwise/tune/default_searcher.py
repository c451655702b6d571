"""Chooses the searcher if the user names none. For the measurements see docs/guides/searchers.md.

    several objectives                                       tpe      ranks trials by non-dominated sorting
    a space with conditions                                  tpe      handles conditional hyperparameters
    no more trials than start before the first has a result  sobol    there is nothing to learn from
    otherwise, with scikit-learn                             forest   best mean rank on the tables up to 40 trials
    otherwise                                                tpe      next best without extra dependencies

The choice is recorded like a user's choice, so resume and replay do not depend on later versions of the rule.
"""

from dataclasses import dataclass

GUIDE = "fanwise explain searchers"
MIN_TRIALS = 5  # results before the forest is used; see `ForestSearcher`


@dataclass(frozen=True, slots=True)
class SearcherChoice:
    """The name of a searcher (see `searchers.SEARCHERS`) and why it was chosen."""

    name: str
    reason: str

    def line(self) -> str:
        """Return the text displayed after the name of the searcher's class."""
        return f"chosen because {self.reason} (searcher={self.name!r}; {GUIDE})"


def choose_searcher(
    *,
    num_objectives: int,
    has_conditions: bool,
    max_trials: int | None,
    n_workers: int,
    has_sklearn: bool = True,
) -> SearcherChoice:
    """Choose a searcher by the table of the module. `max_trials`: maximum number of trials; None if unknown."""
    if num_objectives > 1:
        return SearcherChoice("tpe", f"there are {num_objectives} objectives")
    if has_conditions:
        return SearcherChoice("tpe", "the space has conditions")
    if max_trials is not None and max_trials <= max(MIN_TRIALS, n_workers):
        return SearcherChoice("sobol", f"{max_trials} trials or fewer are too few to learn from")
    if not has_sklearn:
        return SearcherChoice("tpe", "forest needs scikit-learn: pip install 'fanwise[forest]'")
    return SearcherChoice("forest", "there is one objective")
