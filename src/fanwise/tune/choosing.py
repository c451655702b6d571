"""Which searcher a search gets that names none. The rule is `chosen_searcher`; the figures: docs/guides/searchers.md.

    several objectives                                       tpe      ranks trials by fronts
    a space with conditions                                  tpe      its densities know what exists beside what
    no more trials than start before the first has a result  sobol    a model would know nothing yet
    everything else, with scikit-learn                       forest   the best mean rank on the tables to 40 trainings
    and without                                              tpe      the next best of those that need nothing more

Of a finite space all three take every configuration at most once, or fill it evenly.

What was chosen is part of the record, as if it had been named: a search that is resumed or replayed does not choose
again, whatever the rule of a later version is.
"""

from dataclasses import dataclass

GUIDE = "fanwise explain searchers"
FEWEST = 5  # trials with a result, from which on the forest says where to look; see `ForestSearcher`


@dataclass(frozen=True, slots=True)
class Chosen:
    """A searcher by its name (`searchers.by_name`), and the reason in a few words."""

    name: str
    reason: str

    def line(self) -> str:
        """For the screen, behind the name of the searcher's class."""
        return f"chosen because {self.reason} (searcher={self.name!r}; {GUIDE})"


def chosen_searcher(
    *,
    num_objectives: int,
    has_conditions: bool,
    most_trials: int | None,
    n_workers: int,
    has_forests: bool = True,
) -> Chosen:
    """The rule.

    Args:
        num_objectives: that the search optimises.
        has_conditions: some hyperparameters exist only beside certain values of others.
        most_trials: that it may start; None: nobody knows.
        n_workers: trials at a time.
        has_forests: scikit-learn is installed.
    """
    if num_objectives > 1:
        return Chosen("tpe", f"there are {num_objectives} objectives")
    if has_conditions:
        return Chosen("tpe", "the space has conditions")
    blind = max(FEWEST, n_workers)
    if most_trials is not None and most_trials <= blind:
        return Chosen("sobol", f"{most_trials} trials or fewer are too few to learn from")
    if not has_forests:
        return Chosen("tpe", "forest needs scikit-learn: pip install 'fanwise[forest]'")
    return Chosen("forest", "there is one objective")
