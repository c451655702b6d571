"""What the section on several GPUs takes from the book's own library, written for this test.

Without GPUs each device is the CPU. The images are the Fashion-MNIST files that the variable FANWISE_DATA points to,
a part of the set, or scikit-learn's digits where there are none.
"""

import time
from collections.abc import Callable, Iterable

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from fanwise.errors import DataFileError
from fanwise.zoo import digits, fashion_mnist

Batches = Iterable[tuple[Tensor, Tensor]]


def try_gpu(number: int = 0) -> torch.device:
    return torch.device(f"cuda:{number}" if torch.cuda.device_count() > number else "cpu")


def load_data_fashion_mnist(batch_size: int) -> tuple[Batches, Batches]:
    try:
        data = fashion_mnist(download=False)
    except DataFileError:
        data = digits()
    shuffled = torch.Generator().manual_seed(1)
    train, test = (
        TensorDataset(data.train_images, data.train_labels),
        TensorDataset(data.test_images, data.test_labels),
    )
    return DataLoader(train, batch_size, shuffle=True, generator=shuffled), DataLoader(test, batch_size)


def sgd(params: list[Tensor], lr: float, batch_size: int) -> None:
    with torch.no_grad():
        for param in params:
            assert param.grad is not None
            param -= lr * param.grad / batch_size
            param.grad.zero_()


def evaluate_accuracy_gpu(net: Callable[[Tensor], Tensor], batches: Batches, device: torch.device) -> float:
    with torch.no_grad():
        right = [net(X.to(device)).argmax(1).cpu() == y for X, y in batches]
    return float(torch.cat(right).float().mean())


class Timer:
    def __init__(self) -> None:
        self.times: list[float] = []

    def start(self) -> None:
        self._begin = time.perf_counter()

    def stop(self) -> None:
        self.times.append(time.perf_counter() - self._begin)

    def avg(self) -> float:
        return sum(self.times) / len(self.times)


class Animator:
    def __init__(self, x_label: str, legend: str, xlim: list[float]) -> None:
        self.Y: list[list[float]] = [[]]

    def add(self, x: float, values: tuple[float, ...]) -> None:
        for line, value in zip(self.Y, values, strict=True):
            line.append(value)
