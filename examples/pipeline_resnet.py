"""Takes about 30 seconds: a small ResNet cut in two, each half on a worker of its own, trained with micro-batches.

    master --micro-batches--> worker 1: front half --> worker 2: back half --logits--> master: loss, backward, step

While the back half works on one micro-batch, the front half works on the next. The images are scikit-learn's digits.
"""

import os
import time

import torch
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn

import fanwise.rpc as rpc  # in the tutorial: import torch.distributed.rpc as rpc
from fanwise.rpc import autograd
from fanwise.rpc.optim import DistributedOptimizer
from fanwise.zoo import Residual, digits

EPOCHS = 3
BATCH, MICRO_BATCHES, LR, SEED = 64, 4, 0.1, 1


class Half(nn.Module):
    def __init__(self, which: str) -> None:
        super().__init__()
        torch.manual_seed(SEED)
        torch.set_num_threads(1)
        front = [nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), Residual(16, 16), Residual(16, 32, 2)]
        back = [Residual(32, 32), Residual(32, 64, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)]
        self.net = nn.Sequential(*(front if which == "front" else back))

    def forward(self, images: rpc.RRef[Tensor]) -> Tensor:
        return self.net(images.to_here())

    def parameter_rrefs(self) -> list[rpc.RRef[Tensor]]:
        return [rpc.RRef(parameter) for parameter in self.parameters()]


class Pipeline:
    def __init__(self) -> None:
        self.front = rpc.remote("worker1", Half, args=("front",))
        self.back = rpc.remote("worker2", Half, args=("back",))

    def forward(self, images: Tensor) -> Tensor:
        logits = []
        for part in images.chunk(MICRO_BATCHES):  # only references pass here: worker 2 fetches from worker 1
            halfway = self.front.remote().forward(rpc.RRef(part))
            logits.append(self.back.rpc_async().forward(halfway))
        return torch.cat(torch.futures.wait_all(logits))


def train() -> None:
    data, pipeline = digits().standardized(), Pipeline()
    parameters = [rref for half in (pipeline.front, pipeline.back) for rref in half.rpc_sync().parameter_rrefs()]
    optimizer, begun = DistributedOptimizer(torch.optim.SGD, parameters, lr=LR), time.perf_counter()
    for epoch in range(1, EPOCHS + 1):
        for rows in torch.randperm(len(data.train_labels)).split(BATCH):
            with autograd.context() as context_id:
                logits = pipeline.forward(data.train_images[rows])
                autograd.backward(context_id, [nn.functional.cross_entropy(logits, data.train_labels[rows])])
                optimizer.step(context_id)
        wrong = (pipeline.forward(data.test_images).argmax(1) != data.test_labels).float().mean()
        print(f"Epoch {epoch}: test error {wrong:.3f}, {time.perf_counter() - begun:.1f} s", flush=True)


def work(rank: int, meet: str) -> None:
    options = rpc.TensorPipeRpcBackendOptions(init_method=meet)
    rpc.init_rpc(f"worker{rank}" if rank else "master", rank=rank, world_size=3, rpc_backend_options=options)
    if rank == 0:
        train()
    rpc.shutdown()


if __name__ == "__main__":
    spawn(work, args=(f"file:///resnet-{os.getpid()}",), nprocs=3, daemon=True)  # no file is written
