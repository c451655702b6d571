"""Gains: how much better things are expected to be after one more trial, as a logarithm.

    base: the best trials and the running ones  --samples-->  what they are worth, S times: a front each
    candidate, given a sample                   ---------->   how far it is expected beyond that front
                                                              the mean over the samples ranks the candidates

The best so far is not known, because trials are noisy and some still run; so it is sampled. With one objective the
gain is the noisy expected improvement (Letham et al., arXiv 1706.07094), with several the noisy expected hypervolume
improvement (Daulton et al., arXiv 2105.08195), in logarithms, so that it does not vanish (Ament et al., arXiv
2310.20708). Given a sample, candidates are normal and the gain is exact: in each box of what the front leaves free it
is a product, over the objectives, of differences of two expected improvements. A constraint multiplies it by the
probability that it is met.

BoTorch has acquisition functions for this. They draw from torch's global generator, or set it and put it back, which is
a race between threads; the ones for several objectives compile C++ when they are first used; and with many running
trials they get slow, because they sample the candidate, too.
"""

# S: samples, B: base points, Q: candidates, F: features, M: objectives, C: constraints, K: boxes

import math
from collections.abc import Sequence
from typing import final

import numpy as np
import torch
from torch import Tensor

from .with_botorch import GaussianProcess, free_boxes, root_of

_LEAST_VARIANCE = 1e-12
_MOST_AT_ONCE = 2**22  # numbers in an array


@final
class _Sampled:
    """One process, sampled at the base points: candidates given the samples."""

    def __init__(self, process: GaussianProcess, base_BF: Tensor, draws_SB: Tensor) -> None:
        self._process = process
        self._base_BF = base_BF
        self._draws_SB = draws_SB
        mean_B, self._known_NB = process.posterior(base_BF)
        covariance_BB = process.kernel(base_BF, base_BF) - self._known_NB.T @ self._known_NB
        self._root_BB = root_of(covariance_BB)
        self.values_SB = mean_B + draws_SB @ self._root_BB.T

    def given(self, x_QF: Tensor) -> tuple[Tensor, Tensor]:
        """Mean, (S, Q), and standard deviation, (Q,), of candidates given the samples."""
        mean_Q, known_NQ = self._process.posterior(x_QF)
        across_BQ = self._process.kernel(self._base_BF, x_QF) - self._known_NB.T @ known_NQ
        explained_BQ = torch.linalg.solve_triangular(self._root_BB, across_BQ, upper=False)
        variance_Q = self._process.variance(x_QF) - known_NQ.square().sum(0) - explained_BQ.square().sum(0)
        return mean_Q + self._draws_SB @ explained_BQ, variance_Q.clamp_min(_LEAST_VARIANCE).sqrt()


@final
class Gain:
    """The logarithm of the expected gain of candidates.

    Args:
        objectives: one process for each; large is good.
        constraints: one process for each.
        bounds: up to which value each constraint is met.
        base_BF: the points that may be the best, and those that run.
        reference_M: with several objectives: what is not better than this in each gains nothing.
        num_samples: S, an even number.
        chance: draws.
    """

    def __init__(
        self,
        objectives: Sequence[GaussianProcess],
        constraints: Sequence[GaussianProcess],
        bounds: Sequence[float],
        *,
        base_BF: Tensor,
        reference_M: Tensor,
        num_samples: int,
        chance: np.random.Generator,
    ) -> None:
        def sampled(process: GaussianProcess) -> _Sampled:
            half_SB = torch.from_numpy(chance.standard_normal((num_samples // 2, len(base_BF))))
            return _Sampled(process, base_BF, torch.cat([half_SB, -half_SB]))

        self._objectives = list(map(sampled, objectives))
        self._constraints = list(zip(map(sampled, constraints), bounds, strict=True))
        values_SBM = torch.stack([one.values_SB for one in self._objectives], dim=2)
        is_feasible_SB = torch.ones(values_SBM.shape[:2], dtype=torch.bool)
        for one, bound in self._constraints:
            is_feasible_SB &= one.values_SB <= bound
        if len(objectives) > 1:
            self._lower_SKM, self._upper_SKM = free_boxes(values_SBM, is_feasible_SB, reference_M)
        else:
            # Where nothing is feasible, everything that is gains: more than any other sample has it.
            worst = values_SBM.min() - 1.0
            self._lower_SKM = torch.where(is_feasible_SB[:, :, None], values_SBM, worst).amax(dim=1, keepdim=True)
            self._upper_SKM = torch.full_like(self._lower_SKM, math.inf)

    def __call__(self, x_QF: Tensor) -> Tensor:
        """Of each candidate."""
        at_once = max(_MOST_AT_ONCE // self._lower_SKM[:, :, 0].numel(), 1)
        return torch.cat([self._gain(part) for part in torch.split(x_QF, at_once)])

    def _gain(self, x_QF: Tensor) -> Tensor:
        in_boxes_SKQ = torch.zeros(1, dtype=torch.float64)
        for m, one in enumerate(self._objectives):
            mean_SQ, deviation_Q = one.given(x_QF)
            above_SKQ = _log_improvement(mean_SQ[:, None, :] - self._lower_SKM[:, :, m, None], deviation_Q)
            beyond_SKQ = _log_improvement(mean_SQ[:, None, :] - self._upper_SKM[:, :, m, None], deviation_Q)
            in_boxes_SKQ = in_boxes_SKQ + above_SKQ + torch.log1p(-torch.exp((beyond_SKQ - above_SKQ).clamp_max(0.0)))
        gain_SQ = torch.logsumexp(in_boxes_SKQ, dim=1)
        for constraint, bound in self._constraints:
            mean_SQ, deviation_Q = constraint.given(x_QF)
            gain_SQ = gain_SQ + torch.special.log_ndtr((bound - mean_SQ) / deviation_Q)
        return torch.logsumexp(gain_SQ, dim=0) - math.log(len(gain_SQ))


def _log_improvement(mean: Tensor, deviation: Tensor) -> Tensor:
    """log E[max(N(mean, deviation^2), 0)]; -inf for a mean of -inf (arXiv 2310.20708, equation 9)."""
    z = mean / deviation
    near = z.clamp_min(-1.0)
    density = torch.exp(-0.5 * near.square()) / math.sqrt(2.0 * math.pi)
    # Far below zero both terms of the sum above are tiny and nearly cancel; their ratio has a function of its own.
    far = z.clamp(-1e6, -1.0)
    ratio = math.sqrt(math.pi / 2.0) * torch.special.erfcx(-far / math.sqrt(2.0))
    tail = -0.5 * (z.square() + math.log(2.0 * math.pi)) + torch.log1p(far * ratio)
    return torch.where(z < -1.0, tail, torch.log(density + near * torch.special.ndtr(near))) + deviation.log()
