"""The surrogate: what is expected anywhere in a space after some results, and the configurations that follow from it.

    results  --standardised-->  mean 0, variance 1  --GaussianProcess-->  one for each objective and constraint
    anywhere, and near the best  --Gain-->  the best of them  --nearby, twice, with shorter steps-->  proposals

What a configuration is to a process: its row (`encoding`), so logarithmic domains are logarithmic and integers go by
rank. A choice has a kernel of its own, which knows equal from different. What does not exist beside the other values
counts as the middle of its domain or as one more category; the values that it depends on tell the difference. Only
configurations of the space are candidates, so nothing is rounded afterwards, and no gradient is needed.
"""

# N: trials, P: running trials, B: base, Q: candidates, D: hyperparameters, F: features, M: objectives, C: constraints

from typing import final

import numpy as np
import torch
from torch import Tensor

from ..pareto import non_dominated_sort
from .encoding import Encoder, Floats, Rows
from .gains import Gain
from .history import Data
from .nearby import nearby_rows
from .with_botorch import GaussianProcess, one_thread

_FIRST_REACH = (-2.5, -0.5)  # from the best trials: steps of 10**a to 10**b of a domain
_NEXT_REACHES = ((-2.5, -1.0), (-3.0, -1.5))  # then from the best candidates
_NUM_KEPT = 8
_MOST_LISTED = 2048  # of a space with so few configurations all are candidates
_MOST_PENDING = 256  # the latest; with more running trials nothing keeps away from the older ones
_NUM_BASE = (10, 16)  # trials that may be the best: with one objective, and with several
_NUM_SAMPLES = (32, 8)  # with one objective, and with several: each sample has a front of its own
_FAR = 5.0  # times what is usual: outliers
_ALIKE = 1e-13  # of the largest value: what is closer differs by rounding
_MOST_FITTED = 150  # the hyperparameters are fitted to so many trials, evenly from the best to the worst


@final
class Surrogate:
    """Gaussian processes of all objectives and constraints.

    Args:
        encoder: of the space, which has a hyperparameter.
        data: the results.
        num_candidates: half of them are all over the space, a quarter near the best trials, the others near the best
            of these.
        is_fitted: False leaves the hyperparameters of the processes where their priors expect them.

    Raises:
        ArithmeticError: the numbers do not make a process.
    """

    def __init__(self, encoder: Encoder, data: Data, *, num_candidates: int, is_fitted: bool = True) -> None:
        self._encoder = encoder
        self._num_candidates = num_candidates
        self._choices = [d for d, is_choice in enumerate(encoder.is_choice_D) if is_choice]
        x_NF = self._features(data.rows_ND)
        self._objectives: list[GaussianProcess] = []
        self._constraints: list[GaussianProcess] = []
        self._bounds: list[float] = []
        with one_thread():
            for losses_N in data.losses_NM.T:
                self._objectives.append(self._process(x_NF, goodness(losses_N), is_fitted))
            has_result_N = data.has_result_N
            for violations_N in data.violations_NC.T:
                values_N, bound = violation(violations_N[has_result_N])
                self._constraints.append(self._process(x_NF[has_result_N], values_N, is_fitted))
                self._bounds.append(bound)
            self._base_BD, self._reference_M = self._best(data.rows_ND, x_NF)

    def proposals(self, pending_PD: Rows, chance: np.random.Generator) -> Rows:
        """Configurations, the one that is expected to gain most first.

        Args:
            pending_PD: of the running trials.
            chance: draws the candidates, and what the base may be worth.

        Raises:
            ArithmeticError: the numbers do not make a distribution.
        """
        base_BD = np.concatenate([self._base_BD, pending_PD[-_MOST_PENDING:]])
        with one_thread(), torch.no_grad():
            gain = Gain(
                self._objectives,
                self._constraints,
                self._bounds,
                base_BF=self._features(base_BD),
                reference_M=self._reference_M,
                num_samples=_NUM_SAMPLES[min(len(self._objectives), len(_NUM_SAMPLES)) - 1],
                chance=chance,
            )

            def best(rows: Rows, most: int | None = None) -> Rows:
                order = np.argsort(-gain(self._features(rows)).numpy(), kind="stable")
                return rows[order[:most]]

            count = self._encoder.space.num_configurations
            everything = self._encoder.all_rows() if count is not None and count <= _MOST_LISTED else None
            if everything is not None:
                return best(everything)
            eighth = -(-self._num_candidates // 8)
            anywhere = self._encoder.sample(4 * eighth, chance)
            rows = np.concatenate([anywhere, self._steps(self._base_BD, 2 * eighth, _FIRST_REACH, chance)])
            for reach in _NEXT_REACHES:
                kept = best(rows, _NUM_KEPT)
                rows = np.concatenate([kept, self._steps(kept, eighth, reach, chance)])
            return best(rows)

    def _steps(self, rows: Rows, num: int, reach: tuple[float, float], chance: np.random.Generator) -> Rows:
        """So many steps from some of the rows."""
        centers = rows[chance.integers(len(rows), size=num)]
        return nearby_rows(self._encoder, centers, 10.0 ** chance.uniform(*reach, num), chance)

    def _features(self, rows: Rows) -> Tensor:
        return torch.from_numpy(self._encoder.features(rows, one_hot=False, activity=False))

    def _process(self, x_NF: Tensor, values_N: Floats, is_fitted: bool) -> GaussianProcess:
        order = np.argsort(-values_N, kind="stable")
        few = order[np.linspace(0, len(order) - 1, min(len(order), _MOST_FITTED)).round().astype(int)]
        is_fitted = is_fitted and bool(values_N.any())  # where all are alike there is nothing to fit
        return GaussianProcess(
            x_NF,
            torch.from_numpy(values_N),
            choices=self._choices,
            fitted_to=torch.from_numpy(few) if is_fitted else None,
        )

    def _best(self, rows_ND: Rows, x_NF: Tensor) -> tuple[Rows, Tensor]:
        """The trials that may be best, as the processes see them; and what a gain must be better than."""
        with torch.no_grad():
            means_NM = torch.stack([process.posterior(x_NF)[0] for process in self._objectives], dim=1).numpy()
            is_feasible_N = np.ones(len(rows_ND), bool)
            for process, bound in zip(self._constraints, self._bounds, strict=True):
                is_feasible_N &= process.posterior(x_NF)[0].numpy() <= bound
        num_objectives = means_NM.shape[1]
        one_by_one_N = np.argsort(np.argsort(-means_NM[:, 0], kind="stable"))
        fronts_N = np.array(non_dominated_sort(-means_NM)) if num_objectives > 1 else one_by_one_N
        order = np.lexsort((-means_NM.sum(axis=1), fronts_N, ~is_feasible_N))
        front_NM = means_NM[order[fronts_N[order] == fronts_N[order[0]]]]
        worst_M = front_NM.min(axis=0)
        # A narrow front says little of how far it will reach: then as if it had the width of one deviation.
        width_M = np.maximum(front_NM.max(axis=0) - worst_M, 1.0)
        num_base = _NUM_BASE[min(num_objectives, len(_NUM_BASE)) - 1]
        return rows_ND[order[:num_base]], torch.from_numpy(worst_M - 0.1 * width_M)


def goodness(losses_N: Floats) -> Floats:
    """Losses as goodness of mean 0 and variance 1; one that is far off does not flatten the others.

    A loss above the median counts at most so much above it as five times the distance from there to the best quarter.
    No result, an infinite loss, counts like the worst one.
    """
    finite_N = losses_N[np.isfinite(losses_N)]
    quarter, median = np.quantile(finite_N, [0.25, 0.5], method="lower").tolist()
    worst = float(finite_N.max())
    if quarter < median:
        worst = min(worst, median + _FAR * (median - quarter))
    mean, scale, capped_N = _scale(np.minimum(losses_N, worst))
    return (mean - capped_N) / scale


def violation(violations_N: Floats) -> tuple[Floats, float]:
    """Violations with mean 0 and variance 1, and what 0 has become. How far they are beyond the usual is cut off."""
    far = _FAR * (float(np.median(np.abs(violations_N))) or 1.0)
    mean, scale, clipped_N = _scale(np.clip(violations_N, -far, far))
    return (clipped_N - mean) / scale, -mean / scale


def _scale(values_N: Floats) -> tuple[float, float, Floats]:
    """Mean, standard deviation, and the values; all in a unit in which no sum overflows.

    Where the values are all alike, they are the mean, and the deviation is 1.
    """
    unit = float(np.abs(values_N).max()) or 1.0
    values_N = values_N / unit
    mean, deviation = float(values_N.mean()), float(values_N.std())
    if deviation <= _ALIKE:
        return mean, 1.0, np.full_like(values_N, mean)
    return mean, deviation, values_N
