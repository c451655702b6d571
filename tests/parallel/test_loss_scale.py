"""Scaled losses: the rule of torch's GradScaler, decided from gradients that are whole."""

import logging
import math
from typing import Any

import pytest
import torch
import torch._dynamo  # the first optimizer loads it, which changes the environment
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from fanwise.parallel.step.loss_scale import LossScale, are_finite, unscale

FINITE = [torch.ones(3), None]
INFINITE = [torch.ones(3), torch.tensor([[1.0, math.inf]])]


class Torchs:
    """torch's own scaler, driven by an optimizer of one number."""

    def __init__(self, **settings: Any) -> None:  # Any: numbers
        self.scaler = torch.amp.GradScaler("cpu", **settings)
        self.optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(()))], 1.0)

    def update(self, finite: bool) -> float:
        param = self.optimizer.param_groups[0]["params"][0]
        param.grad = torch.tensor(1.0 if finite else math.nan)
        self.scaler.scale(torch.zeros(()))
        self.scaler.unscale_(self.optimizer)
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return self.scaler.get_scale()


@given(
    finite=st.lists(st.booleans(), max_size=60),
    init_scale=st.sampled_from([2.0**16, 3.0, 2.0**126, 1e-3]),
    growth_factor=st.sampled_from([2.0, 1.5]),
    backoff_factor=st.sampled_from([0.5, 0.3]),
    growth_interval=st.integers(1, 4),
)
def test_the_scale_is_that_of_torch_after_any_updates(finite: list[bool], **settings: Any) -> None:  # Any: numbers
    ours, theirs = LossScale(), Torchs(**settings)
    ours.load_state_dict(theirs.scaler.state_dict())
    for each in finite:
        assert ours.adjust(are_finite(FINITE if each else INFINITE)) == each
        assert ours.scale == theirs.update(each)
    assert ours.skipped == finite.count(False)
    if finite:
        state = theirs.scaler.state_dict()
        assert {name: ours.state_dict()[name] for name in state} == state


def test_the_state_can_be_exchanged_with_a_grad_scaler() -> None:
    settings: dict[str, Any] = {"init_scale": 8.0, "growth_interval": 3}  # Any: numbers
    theirs = Torchs(**settings)
    theirs.update(True)
    theirs.update(True)
    ours = LossScale()
    ours.load_state_dict(theirs.scaler.state_dict())
    again = LossScale()
    again.load_state_dict(ours.state_dict())
    assert again.adjust(True)
    assert again.scale == 16.0
    back = Torchs()
    back.scaler.load_state_dict(ours.state_dict())
    assert back.update(True) == 16.0


@pytest.mark.parametrize("init_scale", [0.0, math.inf])
def test_a_scale_out_of_range_is_refused(init_scale: float) -> None:
    with pytest.raises(ValueError, match=f"init_scale must be above 0 and finite, got {init_scale}"):
        LossScale(init_scale=init_scale)


@pytest.mark.parametrize("samples", [1, 2, 3, 63, 64, 100])
def test_the_factor_of_a_batch_is_the_scale_of_its_mean_within_a_power_of_two(samples: int) -> None:
    scale = LossScale()
    assert scale.scale / samples <= scale.factor(samples) < 2 * scale.scale / samples
    assert math.frexp(scale.factor(samples))[0] == 0.5  # a power of two


def test_taking_the_factor_off_is_exact_and_leaves_what_is_none() -> None:
    before = torch.randn(100, generator=torch.Generator().manual_seed(0))
    factor = LossScale().factor(100)
    grads = [before * factor, None]
    unscale(grads, factor)
    assert grads[0] is not None and torch.equal(grads[0], before)
    unscale([None], factor)


def sparse(value: float) -> Tensor:
    places = torch.tensor([[0, 0]])
    return torch.sparse_coo_tensor(places, torch.tensor([1.0, value]), (2,), check_invariants=True)


@pytest.mark.parametrize(
    ("grads", "finite"),
    [
        ([], True),
        ([None], True),
        ([torch.empty(0)], True),
        ([torch.zeros(2), torch.full((2, 2), 3e38)], True),
        ([torch.zeros(2), torch.tensor([0.0, math.nan])], False),
        ([torch.tensor([0.0, -math.inf]), torch.zeros(2)], False),
        ([torch.zeros(2, dtype=torch.float64), torch.tensor([math.inf], dtype=torch.complex64)], False),
        ([sparse(1.0)], True),
        ([sparse(math.inf)], False),
    ],
    ids=["nothing", "none", "empty", "large", "nan", "infinite", "complex", "sparse", "infinite-sparse"],
)
def test_one_number_that_is_not_finite_is_seen(grads: list[Tensor | None], finite: bool) -> None:
    assert are_finite(grads) == finite


def test_a_scale_that_falls_below_one_is_said_once_and_stays_above_zero(caplog: pytest.LogCaptureFixture) -> None:
    scale = LossScale(init_scale=2.0)
    with caplog.at_level(logging.WARNING):
        for _ in range(200):
            scale.adjust(False)
    assert [record.getMessage()[:70] for record in caplog.records] == [
        "the scale of the loss fell below 1 after 2 skipped updates: the gradie"
    ]
    assert 0 < scale.scale < 1e-30
    assert math.isfinite(1 / scale.factor(1))
