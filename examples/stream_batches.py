"""Takes about 10 seconds: a data server shuffles, disturbs and batches digits; trainers stream batches of their own."""

import os
import time
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn

import fanwise.rpc as rpc
from fanwise.zoo import digits

TRAINERS = 2
EPOCHS = 10
BATCH, LR = 64, 0.1
DIGITS = digits()


def batches(trainer: int, epoch: int) -> Iterator[tuple[Tensor, Tensor]]:
    """On the server. It stays at most a window ahead of its trainer."""
    images, labels = DIGITS.train_images, DIGITS.train_labels
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))[trainer::TRAINERS]
    for chosen in order.split(BATCH):
        noisy = images[chosen] + 0.1 * torch.randn_like(images[chosen])  # what takes long is done here, not there
        yield noisy, labels[chosen]


def train(trainer: int) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.LazyLinear(64), nn.ReLU(), nn.Linear(64, 10))
    images, labels = DIGITS.test_images, DIGITS.test_labels
    model(images[:1])
    optimizer = torch.optim.SGD(model.parameters(), LR)
    begun_s, count = time.perf_counter(), 0
    for epoch in range(EPOCHS):
        for batch, target in rpc.stream("server", batches, args=(trainer, epoch), window=8):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(batch), target).backward()
            optimizer.step()
            count += len(batch)
    error = (model(images).argmax(1) != labels).float().mean().item()
    took_s = time.perf_counter() - begun_s
    print(f"Trainer {trainer}: {count} digits in {took_s:.1f} s, test error {error:.3f}", flush=True)


def work(rank: int, meet: str) -> None:
    torch.set_num_threads(1)
    options = rpc.TensorPipeRpcBackendOptions(init_method=meet)
    name = "server" if rank == 0 else f"trainer{rank}"
    rpc.init_rpc(name, rank=rank, world_size=1 + TRAINERS, rpc_backend_options=options)
    if rank:
        train(rank - 1)
    rpc.shutdown()  # the server waits here for the trainers, and serves them meanwhile


if __name__ == "__main__":
    spawn(work, args=(f"file:///stream-batches-{os.getpid()}",), nprocs=1 + TRAINERS, daemon=True)
