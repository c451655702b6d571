"""REINFORCE, the part that needs no environment: from the rewards of episodes to a loss.

    log_probs, rewards of each episode --discounted, normalised over all steps--> loss

Shared by the examples that learn to play. Knows nothing of policies and of who plays.
"""

from collections.abc import Sequence

import torch
from torch import Tensor


def discounted_returns(rewards: Sequence[float], gamma: float) -> list[float]:
    """For each step the reward from there on, later ones multiplied by `gamma` once for each step between.

    >>> discounted_returns([1.0, 1.0, 4.0], 0.5)
    [2.5, 3.0, 4.0]
    """
    returns: list[float] = []
    for reward in reversed(rewards):
        returns.append(reward + gamma * (returns[-1] if returns else 0.0))
    return returns[::-1]


def reinforce_loss(log_probs: Sequence[Sequence[Tensor]], rewards: Sequence[Sequence[float]], gamma: float) -> Tensor:
    """What to minimise (Williams 1992): the sum over all steps of -log_prob times the normalised return.

    Args:
        log_probs: of each episode, for each step, the logarithm of the chance that the chosen action had; scalars.
        rewards: of each episode, for each step, what it brought.
        gamma: how much the reward of the next step counts, 0 to 1.

    Returns:
        A scalar with history.

    Raises:
        ValueError: an episode has more rewards than actions, or fewer.
    """
    if (steps := [len(episode) for episode in log_probs]) != (got := [len(episode) for episode in rewards]):
        raise ValueError(f"episodes of {steps} actions brought {got} rewards")
    returns = torch.tensor([value for episode in rewards for value in discounted_returns(episode, gamma)])
    weights = (returns - returns.mean()) / (returns.std(correction=0) + 1e-6)
    return -weights @ torch.stack([log_prob for episode in log_probs for log_prob in episode])
