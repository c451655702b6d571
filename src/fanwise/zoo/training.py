"""Plain training steps: an epoch with cross-entropy, an error rate, and the loss of REINFORCE."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


def train_epoch(
    model: nn.Module,
    optimizer: torch.optim.Optimizer,
    images: Tensor,
    labels: Tensor,
    batch_size: int,
    generator: torch.Generator | None = None,
) -> float:
    """Train on every image once, in random order, and return the mean loss over all images.

    Args:
        images: of shape (N, ...), N at least 1, on the device of the model; `labels` of shape (N,), int64.
        batch_size: images per step, at least 1. The last batch may be smaller.
        generator: CPU generator for the order. None: torch's global generator.

    Raises:
        ValueError: `batch_size` is below 1, there are no images, or the number of labels differs.
    """
    _check(images, labels, batch_size)
    model.train()
    total = torch.zeros((), device=images.device)
    order = torch.randperm(len(images), generator=generator).to(images.device)
    for batch in torch.split(order, batch_size):
        loss = cross_entropy(model(images[batch]), labels[batch])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]  # torch has not annotated it
        optimizer.step()
        total += loss.detach() * len(batch)
    return float(total) / len(images)


@torch.no_grad()
def error_rate(model: nn.Module, images: Tensor, labels: Tensor, batch_size: int = 1024) -> float:
    """Return the exact fraction of misclassified images. Arguments and errors as of `train_epoch`."""
    _check(images, labels, batch_size)
    was_training = model.training
    model.eval()
    try:
        batches = zip(torch.split(images, batch_size), torch.split(labels, batch_size), strict=True)
        wrong = [(model(batch).argmax(dim=1) != expected).sum() for batch, expected in batches]
    finally:
        model.train(was_training)
    return int(torch.stack(wrong).sum()) / len(images)


def _check(images: Tensor, labels: Tensor, batch_size: int) -> None:
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size!r}")
    if len(images) != len(labels) or not len(images):
        raise ValueError(f"as many labels as images are needed, at least 1: got {len(images)} and {len(labels)}")


def discounted_returns(rewards: Sequence[float], gamma: float) -> list[float]:
    """Return for each step the sum of its reward and the discounted rewards of later steps.

    >>> discounted_returns([1.0, 1.0, 4.0], 0.5)
    [2.5, 3.0, 4.0]
    """
    returns: list[float] = []
    for reward in reversed(rewards):
        returns.append(reward + gamma * (returns[-1] if returns else 0.0))
    return returns[::-1]


def reinforce_loss(log_probs: Sequence[Sequence[Tensor]], rewards: Sequence[Sequence[float]], gamma: float) -> Tensor:
    """Return the loss of REINFORCE (Williams 1992): the sum of -log_prob times the normalized return of all steps.

    Args:
        log_probs: per episode and step, the log-probability of the chosen action, a scalar with history.
        rewards: per episode and step.
        gamma: discount per step, 0 to 1.

    Raises:
        ValueError: an episode has another number of rewards than of actions.
    """
    if (steps := [len(episode) for episode in log_probs]) != (got := [len(episode) for episode in rewards]):
        raise ValueError(f"episodes of {steps} actions have {got} rewards")
    returns = torch.tensor([value for episode in rewards for value in discounted_returns(episode, gamma)])
    weights = (returns - returns.mean()) / (returns.std(correction=0) + 1e-6)
    return -weights @ torch.stack([log_prob for episode in log_probs for log_prob in episode])
