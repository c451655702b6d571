"""`run.mean`, `run.report` and `run.print` on one device."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import fanwise
from fanwise.parallel import Run


@given(rights=st.lists(st.booleans(), min_size=1, max_size=60), batch_size=st.integers(1, 70))
def test_an_accuracy_is_the_exact_count(rights: list[bool], batch_size: int) -> None:
    def train(run: Run) -> float:
        return run.mean(lambda m, right: right, nn.Linear(1, 1), torch.tensor(rights), batch_size=batch_size)

    assert fanwise.run(train, devices=1) == sum(rights) / len(rights)


def test_the_mean_of_floats_is_added_in_float64() -> None:
    values = torch.full((3000,), 0.1)
    actual = fanwise.here().mean(lambda m, x: x, nn.Linear(1, 1), values, batch_size=7)
    assert abs(actual - float(values[0])) < 1e-12


def test_tokens_are_divided_by_their_count() -> None:
    right = torch.tensor([[1, 1, 0], [1, 0, 0]])
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    actual = fanwise.here().mean(lambda m, r, k: (r * k, k), nn.Linear(1, 1), (right, mask), batch_size=1)
    assert actual == 3 / 4
    assert fanwise.here().mean(lambda m, r: r, nn.Linear(1, 1), right) == 3 / 6


def test_the_model_evaluates_without_gradients_and_is_left_as_it_was() -> None:
    model = nn.Sequential(nn.Dropout(0.5), nn.BatchNorm1d(2), nn.Linear(2, 1))
    model[1].eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    seen: list[tuple[bool, bool]] = []

    def measure(m: nn.Module, x: Tensor) -> Tensor:
        out: Tensor = m(x)
        seen.append((m.training, out.requires_grad))
        return out[:, 0]

    fanwise.here().mean(measure, model, torch.rand(5, 2))
    assert seen == [(False, False)]
    assert [module.training for module in model.modules()] == [True, True, False, True]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_a_measure_that_fails_leaves_the_mode_as_it_was() -> None:
    model = nn.Linear(1, 1)
    with pytest.raises(ZeroDivisionError):
        fanwise.here().mean(lambda m, x: x / 0 if False else 1 // 0, model, torch.rand(3, 1))
    assert model.training


@pytest.mark.parametrize(
    ("measure", "error", "message"),
    [
        (lambda m, x: x.mean(), ValueError, r"fn returned a tensor of shape \(\) for 3 samples"),
        (lambda m, x: x[:2], ValueError, r"fn returned a tensor of shape \(2,\) for 3 samples"),
        (
            lambda m, x: x.to(torch.complex64),
            TypeError,
            r"(?s)returned a tensor of torch.complex64, .*values.abs",
        ),
        (lambda m, x: 0.5, TypeError, "fn must return a tensor.*got float"),
        (lambda m, x: (x, x * 0), ValueError, "sum to 0.0, so the mean is undefined"),
    ],
    ids=["mean", "other rows", "complex", "number", "no counts"],
)
def test_results_that_are_not_one_value_per_sample_are_refused(
    measure: Any, error: type[Exception], message: str
) -> None:  # Any: wrong
    with pytest.raises(error, match=message):
        fanwise.here().mean(measure, nn.Linear(1, 1), torch.rand(3))


# -- reports and output -----------------------------------------------------------------------------------------------


def test_reports_outside_a_trial_are_kept_as_plain_numbers() -> None:
    run = fanwise.here()
    run.report(epoch=1, loss=torch.tensor(0.5))
    run.report(epoch=2, loss=0.25)
    assert run.rows == [{"epoch": 1, "loss": 0.5}, {"epoch": 2, "loss": 0.25}]
    with pytest.raises(TypeError, match="must be a number"):
        run.report(loss=[1, 2])
    assert len(run.rows) == 2
