"""The gain of a candidate against sums over many draws, and the processes against BoTorch's own posterior."""

import math
from collections.abc import Sequence

import mpmath
import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from fanwise.tune.hypervolume import volume

pytest.importorskip("botorch")

from botorch.models import MixedSingleTaskGP, SingleTaskGP

from fanwise.tune.searchers import gains
from fanwise.tune.searchers.gains import Gain
from fanwise.tune.searchers.surrogate import goodness, violation
from fanwise.tune.searchers.with_botorch import GaussianProcess, free_boxes, root_of


def points(count: int, *, seed: int = 0) -> Tensor:
    return torch.from_numpy(np.random.default_rng(seed).random((count, 3)))


def process(seed: int, count: int = 12) -> GaussianProcess:
    y_N = torch.from_numpy(np.random.default_rng(seed).standard_normal(count))
    return GaussianProcess(points(count), (y_N - y_N.mean()) / y_N.std(), choices=(), fitted_to=None)


def drawn(process: GaussianProcess, x_QF: Tensor, count: int, seed: int) -> "npt.NDArray[np.float64]":
    """Joint values of points, (count, Q)."""
    with torch.no_grad():
        mean_Q, known_NQ = process.posterior(x_QF)
        root_QQ = root_of(process.kernel(x_QF, x_QF) - known_NQ.T @ known_NQ)
        draws = torch.from_numpy(np.random.default_rng(seed).standard_normal((count, len(x_QF))))
        return (mean_Q + draws @ root_QQ.T).numpy()


def close(found: "npt.NDArray[np.float64]", expected: "npt.NDArray[np.float64]") -> None:
    """Where the gain is no rare event: of such ones a few thousand draws say little."""
    is_usual = expected > 0.03
    assert is_usual.sum() >= 3
    np.testing.assert_allclose(found[is_usual], expected[is_usual], rtol=0.08)


@pytest.mark.parametrize("choices", [(), (1,)])
def test_a_process_says_what_botorchs_posterior_says(choices: Sequence[int]) -> None:
    x_NF, new_QF = points(20), points(7, seed=1)
    if choices:
        x_NF[:, 1], new_QF[:, 1] = (3 * x_NF[:, 1]).floor(), (3 * new_QF[:, 1]).floor()
    y_N = x_NF.sum(1).sin()
    y_N = (y_N - y_N.mean()) / y_N.std()
    ours = GaussianProcess(x_NF, y_N, choices=choices, fitted_to=None)
    if choices:
        theirs = MixedSingleTaskGP(x_NF, y_N[:, None], cat_dims=list(choices), outcome_transform=None)
    else:
        theirs = SingleTaskGP(x_NF, y_N[:, None], outcome_transform=None)
    with torch.no_grad():
        mean_Q, known_NQ = ours.posterior(new_QF)
        covariance_QQ = ours.kernel(new_QF, new_QF) - known_NQ.T @ known_NQ
        expected = theirs.posterior(new_QF).mvn
        torch.testing.assert_close(mean_Q, expected.mean, rtol=1e-6, atol=1e-6)
        torch.testing.assert_close(covariance_QQ, expected.covariance_matrix, rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(ours.variance(new_QF), ours.kernel(new_QF, new_QF).diagonal())


def test_a_fit_finds_which_feature_matters() -> None:
    x_NF = points(30)
    y_N = (6 * x_NF[:, 0]).sin()
    y_N = (y_N - y_N.mean()) / y_N.std()
    new_QF = points(50, seed=1)
    everything = torch.arange(30)
    errors = []
    for fitted_to in (None, everything):
        one = GaussianProcess(x_NF, y_N, choices=(), fitted_to=fitted_to)
        with torch.no_grad():
            truth_Q = ((6 * new_QF[:, 0]).sin() - (6 * x_NF[:, 0]).sin().mean()) / (6 * x_NF[:, 0]).sin().std()
            errors.append(float((one.posterior(new_QF)[0] - truth_Q).square().mean().sqrt()))
    assert errors[1] < 0.1 < errors[0]


def test_the_gain_is_the_mean_improvement_over_the_best_of_the_base() -> None:
    one, base_BF, new_QF = process(3), points(2, seed=5), points(8, seed=6)
    chance = np.random.default_rng(0)
    with torch.no_grad():
        reference = torch.zeros(1, dtype=torch.float64)
        gain = Gain([one], [], [], base_BF=base_BF, reference_M=reference, num_samples=8000, chance=chance)
        found = gain(new_QF).exp().numpy()
    values = drawn(one, torch.cat([base_BF, new_QF]), 200_000, seed=1)
    expected = np.maximum(values[:, 2:] - values[:, :2].max(axis=1, keepdims=True), 0.0).mean(axis=0)
    close(found, expected)


def test_a_constraint_multiplies_the_gain_by_the_probability_that_it_is_met() -> None:
    one, other, base_BF, new_QF = process(3), process(4), points(3, seed=5), points(8, seed=6)
    bound = 0.3
    chance = np.random.default_rng(0)
    with torch.no_grad():
        reference = torch.zeros(1, dtype=torch.float64)
        gain = Gain([one], [other], [bound], base_BF=base_BF, reference_M=reference, num_samples=8000, chance=chance)
        found = gain(new_QF).exp().numpy()
        # Where no point of the base is feasible the gain is over something worse than all.
        everything = torch.cat([base_BF, new_QF])
        worst = float(gain._objectives[0].values_SB.min()) - 1.0
    values, limits = drawn(one, everything, 200_000, seed=1), drawn(other, everything, 200_000, seed=2)
    best = np.where(limits[:, :3] <= bound, values[:, :3], worst).max(axis=1, keepdims=True)
    expected = (np.maximum(values[:, 3:] - best, 0.0) * (limits[:, 3:] <= bound)).mean(axis=0)
    close(found, expected)


def test_with_two_objectives_the_gain_is_the_mean_growth_of_the_dominated_area() -> None:
    two, base_BF, new_QF = [process(3), process(4)], points(2, seed=5), points(6, seed=6)
    reference = torch.tensor([-1.5, -1.0], dtype=torch.float64)
    chance = np.random.default_rng(0)
    with torch.no_grad():
        gain = Gain(two, [], [], base_BF=base_BF, reference_M=reference, num_samples=2000, chance=chance)
        found = gain(new_QF).exp().numpy()
    everything = torch.cat([base_BF, new_QF])
    losses = -np.stack([drawn(one, everything, 8000, seed=seed) for seed, one in enumerate(two)], axis=2)
    worst = (-reference).tolist()
    before = np.array([volume(each[:2], worst) for each in losses])
    after_Q = [np.array([volume(each[[0, 1, 2 + q]], worst) for each in losses]) for q in range(6)]
    close(found, np.array([(after - before).mean() for after in after_Q]))


def test_running_points_take_the_gain_away_from_where_they_are() -> None:
    one, base_BF = process(3), points(3, seed=5)
    new_QF = points(1, seed=6)
    found = []
    for base in (base_BF, torch.cat([base_BF, new_QF])):
        chance = np.random.default_rng(0)
        with torch.no_grad():
            reference = torch.zeros(1, dtype=torch.float64)
            gain = Gain([one], [], [], base_BF=base, reference_M=reference, num_samples=64, chance=chance)
            found.append(float(gain(new_QF)))
    assert found[1] < found[0] - 5.0


def test_many_candidates_gain_what_each_gains_alone() -> None:
    one, base_BF, new_QF = process(3), points(4, seed=5), points(9, seed=6)
    with torch.no_grad():
        reference = torch.zeros(1, dtype=torch.float64)
        chance = np.random.default_rng(0)
        gain = Gain([one], [], [], base_BF=base_BF, reference_M=reference, num_samples=8, chance=chance)
        together = gain(new_QF)
        torch.testing.assert_close(together, torch.cat([gain(x[None]) for x in new_QF]), rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("z", [5.0, 1.0, 0.0, -0.5, -1.0, -1.0001, -3.0, -10.0, -40.0, -1e3, -1e5])
def test_the_logarithm_of_the_expected_improvement_is_right_far_out(z: float) -> None:
    with mpmath.workdps(60):
        expected = float(mpmath.log(mpmath.npdf(z) + z * mpmath.ncdf(z)))
    found = gains._log_improvement(torch.tensor(2.0 * z, dtype=torch.float64), torch.tensor(2.0, dtype=torch.float64))
    assert float(found) == pytest.approx(expected + math.log(2.0), rel=1e-9)


def test_infeasible_points_leave_their_part_of_the_space_free() -> None:
    values_SBM = torch.tensor([[[1.0, 1.0], [3.0, 3.0]]], dtype=torch.float64)
    reference = torch.zeros(2, dtype=torch.float64)
    for feasible, reached in (([True, True], 9.0), ([True, False], 1.0), ([False, False], 0.0)):
        lower, upper = free_boxes(values_SBM, torch.tensor([feasible]), reference)
        inside = (upper.clamp_max(10.0) - lower).clamp_min(0.0).prod(dim=-1).sum()
        assert float(inside) == pytest.approx(100.0 - reached)


def test_losses_become_goodness_whatever_their_scale() -> None:
    losses = np.array([3.0, 1.0, 2.0, 4.0, math.inf])
    found = goodness(losses)
    assert found.mean() == pytest.approx(0.0, abs=1e-12) and found.std() == pytest.approx(1.0)
    assert np.argsort(-found, kind="stable").tolist() == [1, 2, 0, 3, 4] and found[3] == found[4]
    np.testing.assert_allclose(goodness(1e-7 * losses + 3.0), found, rtol=1e-6)
    assert goodness(np.array([3.0, 1.0, 2.0, 4.0, 1e300]))[:3].std() > 0.3, "the outlier flattens the others"
    assert goodness(np.full(4, 7.7)).tolist() == [0.0] * 4
    assert np.isfinite(goodness(np.array([-1e308, 1e308, 0.0, 1e308]))).all()


def test_of_violations_the_sign_is_kept() -> None:
    violations = np.array([-1.0, -0.1, 0.2, 1.0, 500.0])
    values, bound = violation(violations)
    assert ((values <= bound) == (violations <= 0.0)).all()
    assert values.max() - bound < 6 * (values[2] - bound) / 0.2
    values, bound = violation(np.full(3, -2.0))
    assert values.tolist() == [0.0] * 3 and bound > 0
