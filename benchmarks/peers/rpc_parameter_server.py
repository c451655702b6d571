"""A parameter server with ResNet-50, 94 MB, which steps once when it has the gradients of all trainers.

The program of torch's tutorial on functions that answer later: gradients go there and the model comes back, both as
hundreds of tensors, from 256 bytes to 9 MB.
"""

import os
import threading

import rpc_resnet
import torch
from torch import Tensor, nn
from torch.futures import Future
from torch.multiprocessing.spawn import spawn

import fanwise.rpc as rpc

TRAINERS = 5
STEPS = 6
BATCH, IMAGE, CLASSES, LR, SEED = 20, 64, 30, 0.001, 1


class ParameterServer:
    def __init__(self) -> None:
        torch.manual_seed(SEED)
        self.model = nn.Sequential(rpc_resnet.front(), rpc_resnet.back(CLASSES))
        self.optimizer = torch.optim.SGD(self.model.parameters(), LR, momentum=0.9)
        self.lock, self.updated, self.num_there = threading.Lock(), Future[nn.Module](), 0
        for parameter in self.model.parameters():
            parameter.grad = torch.zeros_like(parameter)

    def get_model(self) -> nn.Module:
        return self.model

    @staticmethod
    @rpc.functions.async_execution
    def update_and_fetch(ps: rpc.RRef["ParameterServer"], grads: list[Tensor]) -> Future[nn.Module]:
        self = ps.local_value()
        with self.lock:
            for parameter, grad in zip(self.model.parameters(), grads, strict=True):
                assert parameter.grad is not None
                parameter.grad += grad / TRAINERS
            updated, self.num_there = self.updated, self.num_there + 1
            if self.num_there == TRAINERS:
                self.num_there, self.updated = 0, Future()
                self.optimizer.step()
                self.optimizer.zero_grad(set_to_none=False)
                updated.set_result(self.model)
        return updated


def train(ps: rpc.RRef[ParameterServer], number: int) -> None:
    torch.manual_seed(SEED + number)
    model = ps.rpc_sync().get_model()
    wanted = nn.functional.one_hot(torch.randint(CLASSES, (BATCH,)), CLASSES).float()
    for _ in range(STEPS):
        nn.functional.mse_loss(model(torch.randn(BATCH, 3, IMAGE, IMAGE)), wanted).backward()
        grads = [parameter.grad for parameter in model.parameters()]
        model = rpc.rpc_sync(ps.owner(), ParameterServer.update_and_fetch, args=(ps, grads))


def work(rank: int, meet: str) -> None:
    options = rpc.TensorPipeRpcBackendOptions(init_method=meet, rpc_timeout=300)
    rpc.init_rpc(f"trainer{rank}" if rank else "ps", rank=rank, world_size=1 + TRAINERS, rpc_backend_options=options)
    if rank == 0:
        ps = rpc.RRef(ParameterServer())
        torch.futures.wait_all([rpc.rpc_async(1 + i, train, args=(ps, i)) for i in range(TRAINERS)])
        print(f"{STEPS} steps of {TRAINERS} trainers")
    rpc.shutdown()


if __name__ == "__main__":
    spawn(work, args=(f"file:///ps-{os.getpid()}",), nprocs=1 + TRAINERS, daemon=True)
