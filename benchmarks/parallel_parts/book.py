"""The programs of "Dive into Deep Learning" 13.5 and 13.6 for one device, in our words: what they do, step by step.

    scratch    parameters by hand; a batch: parts to devices, summed loss, backward, allreduce of every parameter by
               itself, update by hand divided by the size of the batch, wait for the device
    concise    a ResNet-18 in DataParallel, torch's SGD and the mean of the loss
    resident   the network of a section with the data on the device, and torch's SGD; optionally as one CUDA graph

Both read PIL images through four loader processes that are started anew for each epoch, within the time of the epoch,
and test on the first device alone. `scratch_resident` is `scratch` without that: the data lie on the device, so the
difference is the loader's.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, conv2d, cross_entropy, relu
from torch.utils.data import DataLoader, Dataset

from .tasks import BATCH_SIZE, NETWORKS, Task, Trained, placed

LOADER_WORKERS = 4
Batches = Iterable[Sequence[Tensor]]
Logits = Callable[[Tensor], Tensor]


class Pictures(Dataset[tuple[Tensor, int]]):
    """Bytes, by way of a PIL image, to floats from 0 to 1: what the book's data set does with each sample."""

    def __init__(self, images: Tensor, labels: Tensor) -> None:
        self._images = images
        self._labels = labels

    def __len__(self) -> int:
        return len(self._images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        picture = np.array(Image.fromarray(self._images[index].numpy()))
        return torch.from_numpy(picture).unsqueeze(0).float().div_(255), int(self._labels[index])


def loader(images: Tensor, labels: Tensor, *, shuffle: bool) -> Batches:
    return DataLoader(Pictures(images, labels), BATCH_SIZE, shuffle=shuffle, num_workers=LOADER_WORKERS)


class Resident:
    """Batches of data that lie on the device, in a new order each time."""

    def __init__(self, features: Tensor, labels: Tensor) -> None:
        self._features = features
        self._labels = labels

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        order = torch.randperm(len(self._labels), device=self._labels.device)
        for start in range(0, len(order), BATCH_SIZE):
            chosen = order[start : start + BATCH_SIZE]
            yield self._features[chosen], self._labels[chosen]


# -- 13.5 --------------------------------------------------------------------------------------------------------------


def lenet(features: Tensor, params: list[Tensor]) -> Tensor:
    w1, b1, w2, b2, w3, b3, w4, b4 = params
    h1 = avg_pool2d(relu(conv2d(features, w1, b1)), 2)
    h2 = avg_pool2d(relu(conv2d(h1, w2, b2)), 2)
    return relu(h2.flatten(1) @ w3 + b3) @ w4 + b4


def initial(device: torch.device) -> list[Tensor]:
    shapes = ((20, 1, 3, 3), (20,), (50, 20, 5, 5), (50,), (800, 128), (128,), (128, 10), (10,))
    values = [torch.randn(shape) * 0.01 if len(shape) > 1 else torch.zeros(shape) for shape in shapes]
    return [value.to(device).requires_grad_() for value in values]


def allreduce(parts: list[Tensor]) -> None:
    """All to the first, one after the other, and back."""
    for part in parts[1:]:
        parts[0] += part.to(parts[0].device)
    for part in parts[1:]:
        part.copy_(parts[0])


def train_batch(features: Tensor, labels: Tensor, replicas: list[list[Tensor]], task: Task, lr: float) -> None:
    devices = [task.device] * len(replicas)
    feature_parts = [part.to(device) for part, device in zip(features.chunk(len(devices)), devices, strict=True)]
    label_parts = [part.to(device) for part, device in zip(labels.chunk(len(devices)), devices, strict=True)]
    losses = [
        cross_entropy(lenet(x, params), y, reduction="none").sum()
        for x, y, params in zip(feature_parts, label_parts, replicas, strict=True)
    ]
    for loss in losses:
        loss.backward()  # type: ignore[no-untyped-call]  # torch's
    with torch.no_grad():
        for each in zip(*replicas, strict=True):
            allreduce([param.grad for param in each if param.grad is not None])
        for params in replicas:
            for param in params:
                assert param.grad is not None
                param -= lr * param.grad / len(features)
                param.grad.zero_()


def scratch(task: Task) -> Trained:
    """13.5 as it stands."""
    test = loader(task.test_images, task.test_labels, shuffle=False)
    return _scratch(task, loader(task.train_images, task.train_labels, shuffle=True), test)


def scratch_resident(task: Task) -> Trained:
    """13.5 with data on the device."""
    train, test = task.resident()
    return _scratch(task, Resident(*train), Resident(*test))


def _scratch(task: Task, train: Batches, test: Batches) -> Trained:
    replicas, lr = [initial(task.device)], NETWORKS["13.5"][1]

    def epoch() -> None:
        for features, labels in train:
            train_batch(features, labels, replicas, task, lr)
            task.wait()

    seconds = task.timed(epoch)
    return Trained(seconds, accuracy(task, lambda x: lenet(x, replicas[0]), test), len(task.train_labels))


# -- 13.6 --------------------------------------------------------------------------------------------------------------


def concise(task: Task) -> Trained:
    """13.6 as it stands."""
    make, lr = NETWORKS["13.6"]
    model = make().to(task.device)
    called = nn.DataParallel(model, device_ids=[task.device]) if task.device.type == "cuda" else model
    optimizer, mean_loss = torch.optim.SGD(called.parameters(), lr), nn.CrossEntropyLoss()
    train = loader(task.train_images, task.train_labels, shuffle=True)

    def epoch() -> None:
        called.train()
        for features, labels in train:
            optimizer.zero_grad()
            mean_loss(called(features.to(task.device)), labels.to(task.device)).backward()
            optimizer.step()

    seconds = task.timed(epoch)
    called.eval()
    test = loader(task.test_images, task.test_labels, shuffle=False)
    return Trained(seconds, accuracy(task, called, test), len(task.train_labels))


# -- loops with the data on the device ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class EagerLoop:
    """A plain loop over data on the device."""

    section: str
    autocast: torch.dtype | None = None
    channels_last: bool = False

    def __call__(self, task: Task) -> Trained:
        make, lr = NETWORKS[self.section]
        model = placed(make(), task.device, channels_last=self.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), lr)
        train, test = task.resident()

        def epoch() -> None:
            model.train()
            for features, labels in Resident(*train):
                optimizer.zero_grad()
                with torch.autocast(task.device.type, self.autocast, enabled=self.autocast is not None):
                    loss = cross_entropy(model(features), labels)
                loss.backward()  # type: ignore[no-untyped-call]  # torch's
                optimizer.step()

        seconds = task.timed(epoch)
        model.eval()
        return Trained(seconds, accuracy(task, model, Resident(*test)), len(task.train_labels))


def graph_by_hand(task: Task) -> Trained:
    """The network of 13.5 as one CUDA graph of a whole step, which leaves out the last, smaller batch."""
    make, lr = NETWORKS["13.5"]
    model = make().to(task.device)
    optimizer = torch.optim.SGD(model.parameters(), lr)
    (features, labels), test = task.resident()
    chosen = torch.arange(BATCH_SIZE, device=task.device)

    def step() -> None:
        optimizer.zero_grad()
        cross_entropy(model(features[chosen]), labels[chosen]).backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    stream = torch.cuda.Stream()  # type: ignore[no-untyped-call]  # torch's
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        step()

    def epoch() -> None:
        order = torch.randperm(len(labels), device=task.device)
        for start in range(0, len(order) - BATCH_SIZE + 1, BATCH_SIZE):
            chosen.copy_(order[start : start + BATCH_SIZE])
            graph.replay()

    seconds = task.timed(epoch)
    return Trained(seconds, accuracy(task, model, Resident(*test)), len(labels) - len(labels) % BATCH_SIZE)


def accuracy(task: Task, logits: Logits, batches: Batches) -> float | None:
    if not task.is_real:
        return None
    right = 0
    with torch.no_grad():
        for features, labels in batches:
            right += int((logits(features.to(task.device)).argmax(1) == labels.to(task.device)).sum())
    return right / len(task.test_labels)
