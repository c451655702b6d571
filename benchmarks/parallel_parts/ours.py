"""The networks of 13.5 and 13.6 with `fanwise.run`: data on the device, evaluation on all devices."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fanwise
from fanwise.parallel import Run

from .tasks import BATCH_SIZE, NETWORKS, Task, Trained, placed


def losses(model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(model(features), labels, reduction="none")


def is_right(model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
    right: Tensor = model(features).argmax(1) == labels
    return right


@dataclass(frozen=True, slots=True)
class Ours:
    """The network of a section, with options of fanwise.run and run.step."""

    section: str
    shards: int = 1
    capture: bool = False
    autocast: torch.dtype | None = None
    channels_last: bool = False

    def __call__(self, task: Task) -> Trained:
        return fanwise.run(lambda run: self._train(run, task), devices=str(task.device), shards=self.shards)

    def _train(self, run: Run, task: Task) -> Trained:
        make, lr = NETWORKS[self.section]
        model = placed(make(), run.device, channels_last=self.channels_last)
        train, test = task.resident()
        optimizer = torch.optim.SGD(model.parameters(), lr)
        step = run.step(model, optimizer, losses, autocast=self.autocast, capture=self.capture)
        epochs = iter(run.epochs(1 + task.epochs))

        def epoch() -> None:
            next(epochs)
            for batch in run.batches(train, BATCH_SIZE):
                step(batch)

        seconds = task.timed(epoch)
        accuracy = run.mean(is_right, model, test) if task.is_real else None
        return Trained(seconds, accuracy, len(task.train_labels))
