"""The loss of classifiers, and the comparison of tensors bit by bit."""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    """Return the loss of each sample in float32, shape (B,)."""
    return cross_entropy(model(x).float(), y, reduction="none")


def same(left: Iterable[Tensor], right: Iterable[Tensor]) -> bool:
    return all(torch.equal(*pair) for pair in zip(left, right, strict=True))
