"""ResNet-50 cut in two, each half on a worker of its own, trained with micro-batches of MICRO images.

The program of torch's tutorial on pipelines with rpc, with smaller images. Its halves take a lock: with micro-batches
of one image a hundred calls wait for it on each worker at a time.
"""

import os
import threading

import rpc_resnet
import torch
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn

import fanwise.rpc as rpc
from fanwise.rpc import autograd
from fanwise.rpc.optim import DistributedOptimizer

MICRO = 1
BATCHES, BATCH, IMAGE, CLASSES = 3, 120, 64, 1000
THREADS, LR, SEED = 128, 0.05, 1


class Half(nn.Module):
    def __init__(self, which: str) -> None:
        super().__init__()
        torch.manual_seed(SEED)
        self.net = rpc_resnet.front() if which == "front" else rpc_resnet.back(CLASSES)
        self.lock = threading.Lock()

    def forward(self, images: rpc.RRef[Tensor]) -> Tensor:
        here = images.to_here()
        with self.lock:
            out: Tensor = self.net(here)
        return out

    def parameter_rrefs(self) -> list[rpc.RRef[Tensor]]:
        return [rpc.RRef(parameter) for parameter in self.parameters()]


def forward(front: rpc.RRef[Half], back: rpc.RRef[Half], images: Tensor) -> Tensor:
    logits = []
    for part in images.split(MICRO):
        halfway = front.remote().forward(rpc.RRef(part))
        logits.append(back.rpc_async().forward(halfway))
    return torch.cat([future.wait() for future in logits])


def train() -> None:
    front, back = rpc.remote("worker1", Half, args=("front",)), rpc.remote("worker2", Half, args=("back",))
    parameters = [rref for half in (front, back) for rref in half.rpc_sync().parameter_rrefs()]
    optimizer = DistributedOptimizer(torch.optim.SGD, parameters, lr=LR)
    torch.manual_seed(SEED)
    wanted = torch.nn.functional.one_hot(torch.randint(CLASSES, (BATCH,)), CLASSES).float()
    for number in range(BATCHES):
        with autograd.context() as context_id:
            loss = nn.functional.mse_loss(forward(front, back, torch.randn(BATCH, 3, IMAGE, IMAGE)), wanted)
            autograd.backward(context_id, [loss])
            optimizer.step(context_id)
        print(f"batch {number}: loss {loss.item():.4f}", flush=True)


def work(rank: int, meet: str) -> None:
    options = rpc.TensorPipeRpcBackendOptions(init_method=meet, num_worker_threads=THREADS, rpc_timeout=300)
    rpc.init_rpc(f"worker{rank}" if rank else "master", rank=rank, world_size=3, rpc_backend_options=options)
    if rank == 0:
        train()
    rpc.shutdown()


if __name__ == "__main__":
    spawn(work, args=(f"file:///pipeline-{os.getpid()}",), nprocs=3, daemon=True)
