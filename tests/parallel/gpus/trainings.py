"""Functions that the training programs of this folder share."""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy


def losses(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(x).float(), y, reduction="none")


def is_correct(model: nn.Module, x: Tensor, y: Tensor) -> Tensor:
    correct: Tensor = model(x).argmax(1) == y
    return correct


def capturable_adamw(params: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, 0.01, capturable=True)


def sgd(params: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(params, 0.05, momentum=0.9)
