"""What the sections on several GPUs and on asynchronous search take from the book's own library, written for the tests.

Without GPUs each device is the CPU. The images are the Fashion-MNIST files that the variable FANWISE_DATA points to,
a part of the set, or scikit-learn's digits where there are none.
"""

import time
from collections.abc import Callable, Iterable

import torch
from matplotlib import pyplot as plt
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from fanwise.errors import DataFileError
from fanwise.zoo import LeNet as _LeNet
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


# ---- asynchronous search


def set_figsize(figsize: tuple[float, float] = (3.5, 2.5)) -> None:
    plt.rcParams["figure.figsize"] = figsize


class FashionMNIST:
    def __init__(self, batch_size: int) -> None:
        self._train, self._test = load_data_fashion_mnist(batch_size)

    def get_dataloader(self, train: bool) -> Batches:
        return self._train if train else self._test


class LeNet(nn.Module):
    def __init__(self, lr: float, num_classes: int) -> None:
        super().__init__()
        self.lr = lr
        self.net = _LeNet(num_classes)

    def forward(self, X: Tensor) -> Tensor:
        logits: Tensor = self.net(X)
        return logits

    def apply_init(self, inputs: list[Tensor], init: Callable[[nn.Module], None]) -> None:
        self(*inputs)
        self.net.apply(init)


def init_cnn(module: nn.Module) -> None:
    if isinstance(module, nn.Linear | nn.Conv2d):
        nn.init.xavier_uniform_(module.weight)


class HPOTrainer:
    def __init__(self, max_epochs: int, num_gpus: int) -> None:
        self._max_epochs, self._device = max_epochs, try_gpu() if num_gpus else torch.device("cpu")

    def fit(self, model: LeNet, data: FashionMNIST) -> None:
        self._model, self._data = model.to(self._device), data
        self._optimizer = torch.optim.SGD(model.parameters(), model.lr)
        for _ in range(self._max_epochs):
            self.fit_epoch()

    def fit_epoch(self) -> None:
        for X, y in self._data.get_dataloader(True):
            self._optimizer.zero_grad()
            loss = nn.functional.cross_entropy(self._model(X.to(self._device)), y.to(self._device))
            loss.backward()  # type: ignore[no-untyped-call]  # of torch
            self._optimizer.step()

    def validation_error(self) -> Tensor:
        with torch.no_grad():
            right = [
                self._model(X.to(self._device)).argmax(1) == y.to(self._device)
                for X, y in self._data.get_dataloader(False)
            ]
        return 1 - torch.cat(right).float().mean()
