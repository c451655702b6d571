"""`optuna_sampler`: a searcher of ours, for a study of Optuna."""

import secrets
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ..opening import space_of
from ..schedulers.settings import checked_seed
from ..searchers.base import Searcher
from ..searchers.by_name import searcher_of
from ..spaces import Space

if TYPE_CHECKING:
    from .with_optuna import SearcherSampler


def optuna_sampler(
    searcher: Searcher | str,
    space: Space | Mapping[str, Any] | None = None,  # Any: domains and constants
    *,
    seed: int | None = None,
) -> "SearcherSampler":
    """A sampler for `optuna.create_study(sampler=...)` that suggests what a searcher chooses.

    The searcher is told of everything in the study, also of what others have chosen or what was there before: of trials
    that run, that were pruned or failed, of intermediate values, several objectives and constraints. It is asked by one
    thread at a time, so `study.optimize(n_jobs=4)` may be used; while it thinks, the others wait. Its chance is made
    from the seed and the number of the trial.

    When the searcher has nothing more in the space that was given, the study is stopped: the trial that had asked is
    pruned, and a loop of ask and tell gets `optuna.TrialPruned` from `trial.suggest_...`.

    Args:
        searcher: one of ours, one of your own, or a name as in `ASHA(searcher="tpe")`. The sampler runs a copy, which
            begins anew with each study. To go on exactly, pickle the sampler beside the study.
        space: of what the objective asks for, with the same names and bounds; conditions, priors and constants may be
            in it. None: as with Optuna's own samplers, what all completed trials have asked for in the same way. Until
            one is complete, and for whatever else an objective asks, values are drawn at random.
        seed: None: a new one for each sampler.

    Raises:
        TypeError: no searcher.
        ValueError: no searcher of this name, or it does not fit the space; or a hyperparameter of the space has no
            counterpart in Optuna: the message names it.
        NotInstalled: Optuna is not there.

    >>> import optuna
    >>> from fanwise.tune import uniform
    >>> optuna.logging.set_verbosity(optuna.logging.WARNING)
    >>> study = optuna.create_study(sampler=optuna_sampler("tpe", {"x": uniform(-1, 1)}, seed=0))
    >>> study.optimize(lambda trial: trial.suggest_float("x", -1, 1) ** 2, n_trials=30)
    >>> study.best_value < 0.01
    True
    """
    found = searcher_of(searcher)
    if not isinstance(found, Searcher):
        raise TypeError(
            f"optuna_sampler takes a searcher, got {searcher!r} of type {type(searcher).__name__}.\n"
            f'  right:  optuna_sampler("tpe")\n'
            f"  right:  optuna_sampler(CQRSearcher())"
        )
    from .with_optuna import SearcherSampler

    given = checked_seed(seed, "seed")
    number = secrets.randbits(31) if given is None else given
    return SearcherSampler(found, None if space is None else space_of(space), number)
