"""The problems of benchmarks/several_objectives.py: optimal configurations lie on the known fronts."""

import math

import pytest
from searchers_parts.two_objectives import PROBLEMS
from several_objectives import BUDGETS, lost_volumes, run_one, tables


@pytest.mark.parametrize("name", [name for name, problem in PROBLEMS.items() if problem.front is not None])
@pytest.mark.parametrize("x1", [0.0, 0.3, 1.0])
def test_optimal_configurations_lie_on_the_front(name: str, x1: float) -> None:
    problem = PROBLEMS[name]
    rest = 0.5 if name == "DTLZ2" else 0.0
    first, second = problem.losses(dict.fromkeys(problem.space, rest) | {"x1": x1})
    assert problem.front is not None
    assert second == pytest.approx(problem.front(first), abs=1e-9)
    assert problem.losses(dict.fromkeys(problem.space, 0.9) | {"x1": x1})[1] >= second


def test_infeasible_trials_have_infinite_losses_and_the_tables_compare_methods() -> None:
    runs = [run_one("SRN", method, 0, max(BUDGETS)) for method in ("random", "sobol")]
    losses = runs[0]["losses"]
    assert len(losses) == max(BUDGETS) and any(math.isinf(a) for a, _ in losses) and any(a < 50 for a, _ in losses)
    assert min(run[-1] for run in lost_volumes(runs).values()) < 1
    assert "mean rank of 2" in tables(runs)[0]
