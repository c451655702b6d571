# mypy: allow-untyped-calls
# The reason: torch leaves some of its functions without annotations.
"""What all contestants of searchers_live.py train, and the marks that they leave: the same program for every library.

    train(...)  --a line each: begin, every epoch, end-->  marks.txt        report(epoch, error) is the library's own

LeNet on scikit-learn's digits, out of the file digits.npz that the benchmark has written, with one thread. A mark
has a number that no two trials share, what happened, the moment on the monotonic clock (one for all processes of a
Linux machine) and the validation error. Only torch and numpy are used: this file runs in the environments of all peers.
"""

import os
import secrets
import time
from collections.abc import Callable
from typing import Any

FOLDER_VARIABLE = "FANWISE_BENCH_FOLDER"


def train(learning_rate: float, batch_size: int, max_epochs: int, report: Callable[[int, float], None]) -> None:
    """Train LeNet; `report` is called after each epoch with its number, 1, 2, ..., and the validation error."""
    trial = secrets.token_hex(8)
    _mark(trial, "begin")
    try:
        import numpy as np
        import torch

        torch.set_num_threads(1)
        with np.load(os.path.join(os.environ[FOLDER_VARIABLE], "digits.npz")) as arrays:
            train_x, train_y, test_x, test_y = (torch.from_numpy(arrays[name]) for name in arrays.files)
        model = _lenet(torch)
        optimizer = torch.optim.SGD(model.parameters(), learning_rate)
        for epoch in range(1, max_epochs + 1):
            model.train()
            for batch in torch.randperm(len(train_x)).split(batch_size):
                optimizer.zero_grad()
                torch.nn.functional.cross_entropy(model(train_x[batch]), train_y[batch]).backward()
                optimizer.step()
            model.eval()
            with torch.no_grad():
                error = (model(test_x).argmax(dim=1) != test_y).float().mean().item()
            _mark(trial, "epoch", error)
            report(epoch, error)
    finally:
        _mark(trial, "end")


def _lenet(torch: Any) -> Any:  # Any: the module, which is imported late
    nn = torch.nn
    model = nn.Sequential(
        nn.Conv2d(1, 6, 5, padding=2),
        nn.Sigmoid(),
        nn.AvgPool2d(2),
        nn.Conv2d(6, 16, 5),
        nn.Sigmoid(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(16 * 5 * 5, 120),
        nn.Sigmoid(),
        nn.Linear(120, 84),
        nn.Sigmoid(),
        nn.Linear(84, 10),
    )
    for layer in model:
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight)
    return model


def _mark(trial: str, what: str, error: float = float("nan")) -> None:
    """One short write in append mode, so that lines of two trials never mix."""
    line = f"{trial} {what} {time.monotonic()} {error}\n"
    fd = os.open(os.path.join(os.environ[FOLDER_VARIABLE], "marks.txt"), os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(fd, line.encode())
    finally:
        os.close(fd)
