"""Bayesian optimization: a Gaussian process of each outcome, and the configuration that is expected to gain most.

    results  --fit-->  Surrogate  --propose-->  configurations, the one that gains most first

`surrogate` has the model and the candidates, `gains` what they gain, `with_botorch` the processes; all three are loaded
with the first fit. A suggestion is a function of the results, of the trials that run and of the question's chance;
nothing else is kept from one to the next but the surrogate of the last results.
"""

import logging
from typing import TYPE_CHECKING, ClassVar, final

from ...base.extras import check_installed
from ..spaces import Space
from ..values import at_least
from .learner import Learner

if TYPE_CHECKING:
    import numpy as np

    from .encoding import Rows
    from .history import Data, Policy
    from .surrogate import Surrogate

_log = logging.getLogger(__name__)


@final
class BayesianSearcher(Learner):
    """Bayesian optimization with Gaussian processes of BoTorch; needs the extra `bo`.

    One objective or several, and constraints. A trial that runs is counted with what it may come to, so any number of
    workers get different, spread configurations; what it has reported so far is not learnt from, because it may not be
    its last word. A trial that failed counts as one of the worst. Where the numbers do not make a process, its
    hyperparameters stay what their priors expect, and at worst a random configuration is suggested; the log says so,
    once a search.

    Args:
        num_init: so many trials must have a result before there is a model; until then the space is filled evenly.
        learn_from: which reports are learnt from (`searchers.history`); None: each trial's last one.
        max_rows: the processes know so many trials at most, a quarter of them the best and the others the latest.
        num_candidates: among so many configurations a suggestion is the best.

    Raises:
        TypeError, ValueError: an argument that is no int, or too small.
        NotInstalled: BoTorch is not there; the message names the extra.

    >>> from fanwise.tune import FIFOScheduler
    >>> scheduler = FIFOScheduler(BayesianSearcher(), metric="validation_error")
    """

    budget_s: ClassVar[float | None] = 10.0
    libraries: ClassVar[tuple[str, ...]] = (*Learner.libraries, "torch", "gpytorch", "botorch")
    learns_from_running: ClassVar[bool] = False

    def __init__(
        self,
        num_init: int = 8,
        *,
        learn_from: "Policy | None" = None,
        max_rows: int = 500,
        num_candidates: int = 1024,
    ) -> None:
        check_installed("Bayesian optimization needs", "botorch", extra="bo")
        super().__init__(num_init=num_init, learn_from=learn_from, max_rows=max_rows)
        self.num_candidates = at_least("num_candidates", num_candidates, 1)

    def begin(self, space: Space, seed: int) -> None:
        super().begin(space, seed)
        self._surrogate: Surrogate | None = None
        self._has_told = False

    def fit(self, data: "Data", chance: "np.random.Generator") -> None:
        from .surrogate import Surrogate

        self._surrogate = None
        if not self.encoder.num_dims:
            return  # a space of constants: there is nothing to choose
        try:
            self._surrogate = Surrogate(self.encoder, data, num_candidates=self.num_candidates)
        except ArithmeticError as error:
            self._tell(f"{error}; hyperparameters stay what their priors expect")
            try:
                self._surrogate = Surrogate(self.encoder, data, num_candidates=self.num_candidates, is_fitted=False)
            except ArithmeticError as again:
                self._tell(f"{again}; random configurations are suggested")

    def propose(self, pending_PD: "Rows", chance: "np.random.Generator") -> "Rows":
        if self._surrogate is None:
            return self.encoder.sample(1, chance)
        try:
            return self._surrogate.proposals(pending_PD, chance)
        except ArithmeticError as error:
            self._tell(f"{error}; random configurations are suggested")
            return self.encoder.sample(1, chance)

    def describe(self) -> dict[str, object]:
        return {**super().describe(), "num_candidates": self.num_candidates}

    def _tell(self, what: str) -> None:
        if not self._has_told:
            self._has_told = True
            _log.warning("Bayesian optimization goes on with less: %s. This is said once a search.", what)
