"""The objective of the demo: LeNet on small images, with one report per epoch. Imported only in the workers.

Pixels are standardized and the optimizer has momentum, because LeNet's sigmoids learn slowly at first. With pixels from
0 to 1 and plain SGD, as in the book, a learning rate of 0.1 with batches of 128 images is still at chance level on the
digits after 20 epochs.
"""

import torch

from ..tune import report
from ..zoo import LeNet, digits, error_rate, fashion_mnist, train_epoch

MOMENTUM = 0.8


def train(learning_rate: float, batch_size: int, max_epochs: int, data: str) -> None:
    """Train LeNet for `max_epochs`, and report the validation error (0 to 1) after each epoch.

    Args:
        data: "digits" or "fashion-mnist".
    """
    images = (digits() if data == "digits" else fashion_mnist()).standardised()
    model = LeNet()
    optimizer = torch.optim.SGD(model.parameters(), learning_rate, MOMENTUM)
    for epoch in range(1, max_epochs + 1):
        train_epoch(model, optimizer, images.train_images, images.train_labels, batch_size)
        report(epoch=epoch, validation_error=error_rate(model, images.test_images, images.test_labels))
