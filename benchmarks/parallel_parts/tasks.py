"""What the programs of benchmarks/parallel_gpu.py train, and what they answer. B: samples of a batch."""

import itertools
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fanwise.zoo import Residual

BATCH_SIZE = 256


@dataclass(frozen=True, slots=True)
class Task:
    """Images of 28 x 28 grey bytes, and how long to train on them.

    Attributes:
        epochs: that are measured; one more comes before them, in which libraries choose their kernels.
        is_real: whether the images show anything, so that an accuracy says something.
    """

    device: torch.device
    epochs: int
    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor
    is_real: bool

    def wait(self) -> None:
        """Until the device has done what was asked of it."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

    def timed(self, epoch: Callable[[], None]) -> list[float]:
        """Seconds of each measured epoch."""
        seconds = []
        for _ in range(1 + self.epochs):
            self.wait()
            begun = time.perf_counter()
            epoch()
            self.wait()
            seconds.append(time.perf_counter() - begun)
        return seconds[1:]

    def resident(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """Images (N, 1, 28, 28) from 0 to 1 and labels, for training and testing, on the device."""
        train = as_pixels(self.train_images.to(self.device)), self.train_labels.to(self.device)
        return train, (as_pixels(self.test_images.to(self.device)), self.test_labels.to(self.device))


@dataclass(frozen=True, slots=True)
class Trained:
    """Seconds of each measured epoch, and the share of test images that were right, None if it says nothing.

    `samples`: of an epoch; fewer than there are when the last batch was left out.
    """

    epochs_s: list[float]
    accuracy: float | None
    samples: int


def as_pixels(images: Tensor) -> Tensor:
    return images.unsqueeze(1).float() / 255


def placed(model: nn.Module, device: torch.device, *, channels_last: bool) -> nn.Module:
    """Move a model to a device and into a memory format."""
    model.to(device)
    if channels_last:
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's
    return model


def resnet18() -> nn.Module:
    """The ResNet-18 of 13.6: for small images, so without stride and pooling at its beginning. 11.2 M parameters."""
    widths = (64, 64, 128, 256, 512)
    blocks = []
    for number, (before, after) in enumerate(itertools.pairwise(widths)):
        blocks += [Residual(before, after, stride=1 if number == 0 else 2), Residual(after, after)]
    net = nn.Sequential(
        *(nn.Conv2d(1, widths[0], kernel_size=3, padding=1), nn.BatchNorm2d(widths[0]), nn.ReLU()),
        *blocks,
        *(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], 10)),
    )
    for module in net.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            nn.init.normal_(module.weight, std=0.01)
    return net


# What a section of the book trains, and its learning rate.
class TwoConvNet(nn.Module):
    """The network of section 13.5. Weights are normal with deviation 0.01, biases zero."""

    def __init__(self, num_classes: int = 10) -> None:
        super().__init__()
        self.net = nn.Sequential(
            *(nn.Conv2d(1, 20, kernel_size=3), nn.ReLU(), nn.AvgPool2d(2)),
            *(nn.Conv2d(20, 50, kernel_size=5), nn.ReLU(), nn.AvgPool2d(2)),
            nn.Flatten(),
            *(nn.Linear(800, 128), nn.ReLU()),
            nn.Linear(128, num_classes),
        )
        for layer in self.net:
            if isinstance(layer, nn.Linear | nn.Conv2d):
                nn.init.normal_(layer.weight, std=0.01)
                assert layer.bias is not None
                nn.init.zeros_(layer.bias)

    def forward(self, images: Tensor) -> Tensor:
        logits: Tensor = self.net(images)
        return logits


NETWORKS: dict[str, tuple[Callable[[], nn.Module], float]] = {"13.5": (TwoConvNet, 0.2), "13.6": (resnet18, 0.1)}
