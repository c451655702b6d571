"""Takes about 2 minutes: exercises 1, 2 and 4 of "Dive into Deep Learning" 13.5, in the concise form.

On k devices the batch is k times as large. The table shows the test accuracy, computed on all devices, after as many
epochs for each: a row for each k, a column for each learning rate. docs/book/13.5.md says what one sees in it.
"""

from functools import partial

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fanwise as fw
from fanwise.parallel import Run
from fanwise.zoo import digits

BATCH_SIZE = 16  # on one device
COUNTS = (1, 2, 4)  # of devices: k
RATES = (0.1, 0.2, 0.4, 0.8)
EPOCHS, SEED = 10, 0
USE = "cuda" if torch.cuda.device_count() >= max(COUNTS) else "cpu"
data = digits().standardized()


def lenet() -> nn.Sequential:
    """The network of the chapter, with its initial values: weights of N(0, 0.01), biases of 0."""
    convolutions = [nn.Conv2d(1, 20, 3), nn.ReLU(), nn.AvgPool2d(2), nn.Conv2d(20, 50, 5), nn.ReLU(), nn.AvgPool2d(2)]
    model = nn.Sequential(*convolutions, nn.Flatten(), nn.Linear(800, 128), nn.ReLU(), nn.Linear(128, 10))
    for param in model.parameters():
        nn.init.normal_(param, std=0.01) if param.ndim > 1 else nn.init.zeros_(param)
    return model


def losses(model: nn.Module, X: Tensor, y: Tensor) -> Tensor:
    return cross_entropy(model(X), y, reduction="none")


def is_right(model: nn.Module, X: Tensor, y: Tensor) -> Tensor:
    return model(X).argmax(dim=1) == y


def train(run: Run, batch_size: int, lr: float) -> float:
    model = lenet().to(run.device)
    step = run.step(model, torch.optim.SGD(model.parameters(), lr), losses)
    for _ in run.epochs(EPOCHS):
        for batch in run.batches((data.train_images, data.train_labels), batch_size):
            step(batch)
    return run.mean(is_right, model, (data.test_images, data.test_labels))  # exercise 4: on all devices


def accuracy(num_devices: int, batch_size: int, lr: float) -> float:
    devices = [f"{USE}:{number}" if USE == "cuda" else USE for number in range(num_devices)]
    return fw.run(partial(train, batch_size=batch_size, lr=lr), devices=devices, seed=SEED, progress=False)


if __name__ == "__main__":
    print("k  batch", *(f"  lr {lr}" for lr in RATES))
    for k in COUNTS:  # exercise 1
        print(f"{k}  {k * BATCH_SIZE:5}", end="", flush=True)
        for lr in RATES:  # exercise 2
            print(f"{accuracy(k, k * BATCH_SIZE, lr):9.2f}", end="", flush=True)
        print()
    largest, lr = max(COUNTS) * BATCH_SIZE, RATES[len(RATES) // 2]
    one, most = accuracy(1, largest, lr), accuracy(max(COUNTS), largest, lr)
    print(f"batch {largest} and lr {lr} on 1 device: {one:.2f}, on {max(COUNTS)} devices: {most:.2f}")
