"""The loss of REINFORCE is that of the formula."""

import pytest
import torch

from fanwise.zoo import discounted_returns, reinforce_loss


def test_a_return_is_the_reward_and_what_comes_later_discounted() -> None:
    assert discounted_returns([1.0, 1.0, 4.0], 0.5) == [2.5, 3.0, 4.0]
    assert discounted_returns([], 0.5) == []


def test_the_loss_weighs_each_step_by_its_normalised_return() -> None:
    log_probs = [torch.tensor(-0.5, requires_grad=True), torch.tensor(-1.0, requires_grad=True)]
    loss = reinforce_loss([log_probs], [[1.0, 3.0]], gamma=0.0)
    assert loss.item() == pytest.approx(-0.5 + 1.0, abs=1e-4)  # the weights are -1 and 1
    loss.backward()  # type: ignore[no-untyped-call]  # torch's
    assert [value.grad is not None and round(value.grad.item(), 3) for value in log_probs] == [1.0, -1.0]


def test_returns_do_not_cross_from_one_episode_to_the_next() -> None:
    log_probs = torch.zeros(4, requires_grad=True)
    reinforce_loss([list(log_probs[:2]), list(log_probs[2:])], [[0.0, 1.0], [0.0, 1.0]], gamma=1.0).backward()  # type: ignore[no-untyped-call]  # torch's
    assert log_probs.grad is not None
    assert log_probs.grad.tolist() == [0.0, 0.0, 0.0, 0.0]  # all returns are 1, so no step is better than another


def test_an_episode_with_other_numbers_of_actions_and_rewards_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^episodes of \[1\] actions have \[2\] rewards$"):
        reinforce_loss([[torch.zeros(())]], [[1.0, 2.0]], gamma=0.9)
