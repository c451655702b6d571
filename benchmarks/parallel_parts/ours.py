"""The networks of 13.5 and 13.6 with `fanwise.run`: data on the device, evaluation on all devices."""

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

import fanwise
from fanwise.parallel import Run

from .tasks import BATCH_SIZE, NETWORKS, Task, Trained


def losses(model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
    return cross_entropy(model(features), labels, reduction="none")


def is_right(model: nn.Module, features: Tensor, labels: Tensor) -> Tensor:
    right: Tensor = model(features).argmax(1) == labels
    return right


@dataclass(frozen=True, slots=True)
class Ours:
    """A section's network. `graphs`: forward and backward are CUDA graphs, so every batch has the same size."""

    section: str
    graphs: bool = False
    autocast: torch.dtype | None = None

    def __call__(self, task: Task) -> Trained:
        return fanwise.run(lambda run: self._train(run, task), devices=str(task.device), shards=1)

    def _train(self, run: Run, task: Task) -> Trained:
        make, lr = NETWORKS[self.section]
        model = make().to(run.device)
        train, test = task.resident()
        if self.graphs:
            torch.cuda.make_graphed_callables(model, (train[0][:BATCH_SIZE],))
        optimizer = torch.optim.SGD(model.parameters(), lr)
        step = run.step(model, optimizer, losses, autocast=self.autocast)
        epochs = iter(run.epochs(1 + task.epochs))

        def epoch() -> None:
            next(epochs)
            for batch in run.batches(train, BATCH_SIZE, drop_last=self.graphs):
                step(batch)

        seconds = task.timed(epoch)
        accuracy = run.mean(is_right, model, test) if task.is_real else None
        samples = len(task.train_labels)
        return Trained(seconds, accuracy, samples - samples % BATCH_SIZE if self.graphs else samples)
