"""One epoch of plain training, and an exact error rate. No loop object, no callbacks, no device handling.

Images and labels are whole tensors (N images) on the model's device. B is the batch size; the last batch may
be smaller.
"""

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
    """Show the model every image once, in a random order, with cross-entropy loss.

    Args:
        images: of shape (N, ...), N at least 1; `labels` of shape (N,), int64.
        batch_size: images a step, at least 1.
        generator: a CPU generator for the order; torch's global one if None.

    Returns:
        The loss of the epoch: the mean over all images, each at the time it was seen.

    Raises:
        ValueError: `batch_size` below 1, no images, or another number of labels.
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


def error_rate(model: nn.Module, images: Tensor, labels: Tensor, batch_size: int = 1024) -> float:
    """The part of the images that the model gets wrong, counted exactly. Leaves the model's mode as it was.

    Args:
        images: of shape (N, ...), N at least 1; `labels` of shape (N,), int64.
        batch_size: images at a time; has no influence on the result.

    Raises:
        ValueError: `batch_size` below 1, no images, or another number of labels.
    """
    _check(images, labels, batch_size)
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            wrong = [
                (model(part).argmax(dim=1) != wanted).sum()
                for part, wanted in zip(torch.split(images, batch_size), torch.split(labels, batch_size), strict=True)
            ]
    finally:
        model.train(was_training)
    return int(torch.stack(wrong).sum()) / len(images)


def _check(images: Tensor, labels: Tensor, batch_size: int) -> None:
    if batch_size < 1:
        raise ValueError(f"batch_size must be at least 1, got {batch_size!r}")
    if len(images) != len(labels) or not len(images):
        raise ValueError(f"as many labels as images are needed, at least 1: got {len(images)} and {len(labels)}")
