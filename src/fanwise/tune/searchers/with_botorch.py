"""Gaussian processes out of BoTorch, and the boxes that a Pareto front leaves free.

    features, goodness  --GaussianProcess-->  at any points: mean, and covariance with any others

The model is BoTorch's `SingleTaskGP`, or `MixedSingleTaskGP` where hyperparameters have no order, with the priors that
these have by default: length scales that grow with the number of dimensions (Hvarfner et al., arXiv 2402.02229), little
noise. Its hyperparameters are fitted; after that the process is plain linear algebra on its kernel, in float64 (GPML,
algorithm 2.1), because BoTorch's posteriors keep caches and warn where a matrix is nearly singular.

Nothing here draws random numbers, and the fit starts at the same place each time: the same data, the same process.
`one_thread` is for this thread alone: how many threads torch has in others stays as it is.
"""

# N: trials, Q: points, F: features, S: samples, B: base points, M: objectives, K: boxes

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any, final

import torch
from torch import Tensor

from ...base.errors import NotInstalled

try:
    from botorch.models import MixedSingleTaskGP, SingleTaskGP
    from botorch.models.utils.gpytorch_modules import get_covar_module_with_dim_scaled_prior
    from botorch.optim.closures import get_loss_closure_with_grads
    from botorch.optim.core import scipy_minimize
    from botorch.optim.utils import get_parameters_and_bounds
    from botorch.utils.multi_objective.box_decompositions.non_dominated import FastNondominatedPartitioning
    from gpytorch.mlls import ExactMarginalLogLikelihood
    from linear_operator.utils.errors import NanError, NotPSDError
except ImportError as error:
    raise NotInstalled("Bayesian optimization needs BoTorch. Install it: pip install 'fanwise[bo]'.") from error

_MOST_STEPS = 25  # of L-BFGS: what comes after changes the suggestions less than the noise of one trial
_TOLERANCE = 1e-4
_JITTERS = (0.0, 1e-10, 1e-8, 1e-6, 1e-4)


@contextmanager
def one_thread() -> Iterator[None]:
    """OpenMP, and with it torch, uses one thread for what this thread does inside.

    Matrices of some hundred rows gain nothing from more, the trials need the other CPUs, and the bits of a sum do not
    depend on how many there are. OpenMP keeps this number for each thread by itself.
    """
    with _openmp().limit(limits=1, user_api="openmp"):
        yield


@cache
def _openmp() -> Any:  # threadpoolctl has no types
    from threadpoolctl import ThreadpoolController

    return ThreadpoolController()


@final
class GaussianProcess:
    """What is believed of one outcome, after N trials.

    Args:
        x_NF: features in [0, 1].
        y_N: outcomes, of mean 0 and variance 1.
        choices: the features whose values have no order.
        fitted_to: of which trials the hyperparameters are fitted; None: they stay what the priors expect.

    Raises:
        ArithmeticError: the numbers do not make a process.
    """

    def __init__(self, x_NF: Tensor, y_N: Tensor, *, choices: Sequence[int], fitted_to: Tensor | None) -> None:
        if not bool(y_N.isfinite().all()):
            raise ArithmeticError("the outcomes of a Gaussian process are not finite")
        some = slice(None) if fitted_to is None else fitted_to
        model = _model(x_NF[some], y_N[some], choices)
        if fitted_to is not None:
            _fit(model)
        with torch.no_grad():
            self._kernel: Any = model.covar_module.requires_grad_(False)
            self._mean = model.mean_module.constant.detach()
            self._x_NF = x_NF
            own_NN = self.kernel(x_NF, x_NF)
            own_NN.diagonal().add_(model.likelihood.noise.detach())
            self._root_NN = root_of(own_NN)
            self._weights_N = torch.cholesky_solve((y_N - self._mean)[:, None], self._root_NN)[:, 0]
        if not bool(self._weights_N.isfinite().all()):
            raise ArithmeticError("the weights of a Gaussian process are not finite")

    def kernel(self, a_QF: Tensor, b_QF: Tensor) -> Tensor:
        """The covariance of two sets of points before the first trial, (Qa, Qb)."""
        return self._kernel(a_QF, b_QF).to_dense()  # type: ignore[no-any-return]  # gpytorch has no types

    def variance(self, x_QF: Tensor) -> Tensor:
        """The variance of points before the first trial."""
        return self._kernel(x_QF, x_QF, diag=True)  # type: ignore[no-any-return]  # likewise

    def posterior(self, x_QF: Tensor) -> tuple[Tensor, Tensor]:
        """The mean of points, (Q,), and V, (N, Q): the trials lower the covariance of points a and b by Va' Vb."""
        across_NQ = self.kernel(self._x_NF, x_QF)
        known_NQ = torch.linalg.solve_triangular(self._root_NN, across_NQ, upper=False)
        return self._mean + across_NQ.T @ self._weights_N, known_NQ


def _model(x_NF: Tensor, y_N: Tensor, choices: Sequence[int]) -> Any:  # Any: gpytorch has no types
    if choices:
        return MixedSingleTaskGP(x_NF, y_N[:, None], cat_dims=list(choices), outcome_transform=None)
    # The default's own kernel, but named: then BoTorch does not warn where a part of the trials is not standardised.
    kernel = get_covar_module_with_dim_scaled_prior(ard_num_dims=x_NF.shape[1])
    return SingleTaskGP(x_NF, y_N[:, None], covar_module=kernel, outcome_transform=None)


def _fit(model: Any) -> None:
    """Maximise the marginal likelihood times the priors. Whatever L-BFGS has reached when it gives up is taken."""
    mll = ExactMarginalLogLikelihood(model.likelihood, model)
    mll.train()
    parameters, bounds = get_parameters_and_bounds(mll)
    closure = get_loss_closure_with_grads(mll, parameters)
    try:
        result = scipy_minimize(closure, parameters, bounds, options={"maxiter": _MOST_STEPS, "ftol": _TOLERANCE})
    except (NanError, NotPSDError) as error:
        raise ArithmeticError(f"the fit of a Gaussian process failed: {error}") from error
    mll.eval()
    if not math.isfinite(result.fval):
        raise ArithmeticError(f"the fit of a Gaussian process ended at {result.fval}")


def root_of(matrix: Tensor) -> Tensor:
    """The Cholesky factor, with as little added to the diagonal as is needed.

    Raises:
        ArithmeticError: the matrix is far from positive definite.
    """
    for jitter in _JITTERS:
        root, failed = torch.linalg.cholesky_ex(matrix + jitter * torch.eye(len(matrix), dtype=matrix.dtype))
        if not int(failed):
            return root  # type: ignore[no-any-return]  # cholesky_ex has no types
    raise ArithmeticError("a covariance is not positive definite")


def free_boxes(values_SBM: Tensor, is_feasible_SB: Tensor, reference_M: Tensor) -> tuple[Tensor, Tensor]:
    """What no point of a sample reaches, as boxes that do not overlap: lower and upper corners, (S, K, M) each.

    Args:
        values_SBM: of the base points; large is good.
        is_feasible_SB: those that are not do not count.
        reference_M: what is not better than this in every objective gains nothing.
    """
    each = [
        FastNondominatedPartitioning(reference_M, values_BM[is_feasible_B]).get_hypercell_bounds()
        for values_BM, is_feasible_B in zip(values_SBM, is_feasible_SB, strict=True)
    ]
    most = max(bounds.shape[1] for bounds in each)
    # Where a sample has fewer boxes, the others have no width.
    padded = torch.stack([torch.nn.functional.pad(bounds, (0, 0, 0, most - bounds.shape[1])) for bounds in each])
    return padded[:, 0], padded[:, 1]
