"""Functions of models and losses: torch's own."""

import torch
from torch.nn import functional

softmax = torch.softmax
log_softmax = torch.log_softmax
relu = torch.relu


def logsumexp(x: torch.Tensor, axes: tuple[int, ...], keepdims: bool) -> torch.Tensor:
    return torch.logsumexp(x, axes, keepdims)


def cross_entropy(logits: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    # torch leaves out the examples of one label, -100 where none is named: here it is one that nothing has.
    rows, wanted = logits.reshape(labels.numel(), logits.shape[-1]), labels.reshape(-1).to(torch.int64)
    return functional.cross_entropy(rows, wanted, reduction="none", ignore_index=-(2**63)).reshape(labels.shape)


def einsum(subscripts: str, arrays: list[torch.Tensor]) -> torch.Tensor:
    return torch.einsum(subscripts, *arrays).to(arrays[0].dtype)  # sums of integers alone would be int64
