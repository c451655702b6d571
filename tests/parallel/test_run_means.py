"""`run.mean`: each sample once, exact counts, and the model as it was."""

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import fanwise
from fanwise.parallel import Run


@given(
    rights=st.lists(st.booleans(), min_size=1, max_size=60), batch_size=st.integers(1, 70), devices=st.integers(1, 5)
)
def test_an_accuracy_is_the_exact_count(rights: list[bool], batch_size: int, devices: int) -> None:
    def train(run: Run) -> float:
        return run.mean(lambda m, right: right, nn.Linear(1, 1), torch.tensor(rights), batch_size=batch_size)

    assert fanwise.run(train, devices=devices, processes=1) == sum(rights) / len(rights)


def test_values_that_are_no_real_tensor_are_refused_by_what_they_are() -> None:
    with pytest.raises(TypeError, match=r"(?s)fn returned a tensor of torch.complex64, .*values.abs\(\)"):
        fanwise.here().mean(lambda m, x: x, nn.Linear(1, 1), torch.ones(3, dtype=torch.complex64))
    with pytest.raises(TypeError, match=r"fn must return a tensor, .* got list"):
        fanwise.here().mean(lambda m, x: [1], nn.Linear(1, 1), torch.ones(3))


def test_the_mean_of_floats_is_added_in_float64() -> None:
    values = torch.full((3000,), 0.1)
    found = fanwise.here().mean(lambda m, x: x, nn.Linear(1, 1), values, batch_size=7)
    assert abs(found - float(values[0])) < 1e-12


def test_tokens_are_divided_by_their_count() -> None:
    right = torch.tensor([[1, 1, 0], [1, 0, 0]])
    mask = torch.tensor([[1, 1, 1], [1, 0, 0]])
    found = fanwise.here().mean(lambda m, r, k: (r * k, k), nn.Linear(1, 1), (right, mask), batch_size=1)
    assert found == 3 / 4
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
    ("measure", "error", "said"),
    [
        (lambda m, x: x.mean(), ValueError, r"fn got 3 samples and returned a tensor of shape \(\)"),
        (lambda m, x: x[:2], ValueError, r"fn got 3 samples and returned a tensor of shape \(2,\)"),
        (lambda m, x: 0.5, TypeError, "fn must return a tensor.*got float"),
        (lambda m, x: (x, x * 0), ValueError, "add up to 0.0: their mean is undefined"),
    ],
    ids=["mean", "other rows", "number", "no counts"],
)
def test_what_is_no_value_a_sample_is_refused(measure: Any, error: type[Exception], said: str) -> None:  # Any: wrong
    with pytest.raises(error, match=said):
        fanwise.here().mean(measure, nn.Linear(1, 1), torch.rand(3))
