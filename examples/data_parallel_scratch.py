"""Takes about 45 seconds: training on multiple GPUs from scratch, "Dive into Deep Learning" 13.5, and its exercises.

Every device holds all parameters and gets a part of each batch, so k devices make the updates of one. Without GPUs the
CPU plays them all, and nothing gets faster. FANWISE_DATA=<folder> takes the book's Fashion-MNIST, else it is digits.
"""

import os
import time

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, conv2d, cross_entropy, relu

from fanwise.parallel import allreduce, replicate, split_batch
from fanwise.zoo import digits, fashion_mnist

EPOCHS = 10
BATCH_SIZE, LR, SEED = 32, 0.2, 1  # 1,438 images need smaller batches than the book's 60,000
SHAPES = [(20, 1, 3, 3), (20,), (50, 20, 5, 5), (50,), (800, 128), (128,), (128, 10), (10,)]
RUNS = [(k, BATCH_SIZE, LR) for k in (1, 2)] + [(k, k * BATCH_SIZE, lr) for k in (2, 4) for lr in (LR, k * LR)]  # 1, 2
DEVICES = [f"cuda:{k}" if torch.cuda.device_count() > 3 else "cpu" for k in range(4)]
torch.set_num_threads(1)  # for layers this small a second thread costs more than it brings
data = (fashion_mnist(download=False) if "FANWISE_DATA" in os.environ else digits()).standardised()
chance = torch.Generator().manual_seed(SEED)
initial = [torch.randn(shape, generator=chance) * 0.01 if len(shape) > 1 else torch.zeros(shape) for shape in SHAPES]


def lenet(X: Tensor, params: list[Tensor]) -> Tensor:
    w1, b1, w2, b2, w3, b3, w4, b4 = params
    h1 = avg_pool2d(relu(conv2d(X, w1, b1)), 2)
    h2 = avg_pool2d(relu(conv2d(h1, w2, b2)), 2)
    return relu(h2.flatten(1) @ w3 + b3) @ w4 + b4


def get_params(params: list[Tensor], device: str) -> list[Tensor]:
    return [param.requires_grad_() for param in replicate(params, [device])[0]]


def train_batch(X: Tensor, y: Tensor, device_params: list[list[Tensor]], devices: list[str], lr: float) -> None:
    for X_part, y_part, params in zip(*split_batch(X, y, devices), device_params, strict=True):
        cross_entropy(lenet(X_part, params), y_part, reduction="sum").backward()
    for replicas in zip(*device_params, strict=True):
        grads = allreduce([param.grad for param in replicas], "owner")  # exercise 3: device j sums the slice j of all
        for param, grad in zip(replicas, grads, strict=True):
            param.data.sub_(grad, alpha=lr / len(X))  # the size of the whole batch
            param.grad = None


def accuracy(device_params: list[list[Tensor]], devices: list[str]) -> float:  # exercise 4: on all devices
    parts = zip(*split_batch(data.test_images, data.test_labels, devices), device_params, strict=True)
    correct = [(lenet(X, params).argmax(1) == y).sum() for X, y, params in parts]
    return int(allreduce(correct)[0]) / len(data.test_labels)


def train(num_devices: int, batch_size: int, lr: float, epochs: int = EPOCHS) -> Tensor:
    devices, order, timer_s = DEVICES[:num_devices], torch.Generator().manual_seed(SEED), 0.0
    device_params = [get_params(initial, device) for device in devices]
    print(f"train({num_devices}, {batch_size}, {lr}):", end=" ")
    for _ in range(epochs):
        timer_s -= time.perf_counter()
        for batch in torch.randperm(len(data.train_labels), generator=order).split(batch_size):
            train_batch(data.train_images[batch], data.train_labels[batch], device_params, devices, lr)
        assert all(params[0].isfinite().all() for params in device_params), "lower the learning rate"  # waits for GPUs
        timer_s += time.perf_counter()
        print(f"{accuracy(device_params, devices):.2f}", end=" ", flush=True)
    print(f"test acc: {accuracy(device_params, devices):.2f}, {timer_s / epochs:.1f} sec/epoch on {devices}")
    return torch.cat([param.detach().cpu().flatten() for param in device_params[-1]])


b1 = get_params(initial, DEVICES[0])[1]
print("b1 weight:", b1.tolist(), "\nb1 grad:", b1.grad)
twos = [torch.ones((1, 2), device=device) * (number + 1) for number, device in enumerate(DEVICES[:2])]
print("before allreduce:", *twos)
print("after allreduce:", *allreduce(twos))
print("scattered:", *split_batch(torch.arange(20).reshape(4, 5), DEVICES[:2])[0], sep="\n")
one, two = train(1, BATCH_SIZE, LR, epochs=1), train(2, BATCH_SIZE, LR, epochs=1)
print(f"1 and 2 devices differ by {(one - two).abs().max():.0e}, parameters go up to {one.abs().max():.2f}")
for devices_batch_lr in RUNS:
    train(*devices_batch_lr)
