"""The objective of the demo: LeNet on small images, one report an epoch. Imported by the warm process."""

import torch

from ..tune import report
from ..zoo import LeNet, digits, error_rate, fashion_mnist, train_epoch


def train_lenet(learning_rate: float, batch_size: int, max_epochs: int, data: str) -> None:
    """Train LeNet by SGD for `max_epochs`, reporting the validation error after each."""
    images = digits() if data == "digits" else fashion_mnist()
    model = LeNet()
    optimizer = torch.optim.SGD(model.parameters(), learning_rate)
    for epoch in range(1, max_epochs + 1):
        train_epoch(model, optimizer, images.train_images, images.train_labels, batch_size)
        report(epoch=epoch, validation_error=error_rate(model, images.test_images, images.test_labels))
