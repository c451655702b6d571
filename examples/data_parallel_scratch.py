"""Takes about 30 seconds: training on multiple GPUs from scratch, "Dive into Deep Learning" 13.5, cell by cell.

docs/book/13.5.md has the book's cells beside these lines. With fewer GPUs than asked for, the CPU plays them, in turn.
"""

import time

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, conv2d, cross_entropy, relu

from fanwise.errors import DataFileError
from fanwise.parallel import allreduce, replicate, split_batch
from fanwise.zoo import digits, fashion_mnist

EPOCHS, SEED = 10, 1
SHAPES = [(20, 1, 3, 3), (20,), (50, 20, 5, 5), (50,), (800, 128), (128,), (128, 10), (10,)]
torch.set_num_threads(1)  # for layers this small a second thread costs more than it brings
chance = torch.Generator().manual_seed(SEED)
params = [torch.randn(shape, generator=chance) * 0.01 if len(shape) > 1 else torch.zeros(shape) for shape in SHAPES]
try:
    data, batch_size = fashion_mnist(download=False), 256
except DataFileError as missing:
    data, batch_size = digits().standardized(), 16  # 1,438 images: smaller batches than of 60,000, for as many steps
    print("Trained on digits.", missing)


def lenet(X: Tensor, params: list[Tensor]) -> Tensor:
    w1, b1, w2, b2, w3, b3, w4, b4 = params
    h1 = avg_pool2d(relu(conv2d(X, w1, b1)), 2)
    h2 = avg_pool2d(relu(conv2d(h1, w2, b2)), 2)
    return relu(h2.flatten(1) @ w3 + b3) @ w4 + b4


def gpus(count: int) -> list[str]:
    return [f"cuda:{number}" for number in range(count)] if torch.cuda.device_count() >= count else ["cpu"] * count


def get_params(params: list[Tensor], device: str) -> list[Tensor]:
    return [param.requires_grad_() for param in replicate(params, [device])[0]]


def train_batch(X: Tensor, y: Tensor, device_params: list[list[Tensor]], devices: list[str], lr: float) -> None:
    for X_part, y_part, replica in zip(*split_batch(X, y, devices), device_params, strict=True):
        cross_entropy(lenet(X_part, replica), y_part, reduction="sum").backward()
    for copies in zip(*device_params, strict=True):
        allreduce([param.grad for param in copies], "owner")  # exercise 3; without "owner" device 0 adds all
        for param in copies:
            param.data.sub_(param.grad / len(X), alpha=lr)  # the size of the whole batch
            param.grad = None


@torch.no_grad()
def accuracy(device_params: list[list[Tensor]], devices: list[str]) -> float:  # exercise 4: on all devices
    parts = zip(*split_batch(data.test_images, data.test_labels, devices), device_params, strict=True)
    return int(allreduce([(lenet(X, p).argmax(1) == y).sum() for X, y, p in parts])[0]) / len(data.test_labels)


def train(num_gpus: int, batch_size: int, lr: float) -> None:
    devices, order, timer_s = gpus(num_gpus), torch.Generator().manual_seed(SEED), 0.0
    device_params = [get_params(params, device) for device in devices]
    for _ in range(EPOCHS):
        timer_s -= time.perf_counter()
        for batch in torch.randperm(len(data.train_labels), generator=order).split(batch_size):
            train_batch(data.train_images[batch], data.train_labels[batch], device_params, devices, lr)
        _ = [replica[0].tolist() for replica in device_params]  # waits for the GPUs
        timer_s += time.perf_counter()
        print(f"{accuracy(device_params, devices):.2f}", end=" ", flush=True)
    print(f"test acc: {accuracy(device_params, devices):.2f}, {timer_s / EPOCHS:.1f} sec/epoch on {devices}")


b1 = get_params(params, gpus(1)[0])[1]
print(f"b1 weight: {b1.tolist()}\nb1 grad: {b1.grad}")
twos = [torch.ones((1, 2), device=device) * (number + 1) for number, device in enumerate(gpus(2))]
print("before allreduce:", *twos)
print("after allreduce:", *allreduce(twos))
print("scattered:", *split_batch(torch.arange(20).reshape(4, 5), gpus(2))[0], sep="\n")
train(num_gpus=1, batch_size=batch_size, lr=0.2)
train(num_gpus=2, batch_size=batch_size, lr=0.2)
