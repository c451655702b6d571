"""Takes about 20 seconds: trainers send gradients to a parameter server, which steps once when it has those of all.

As in PyTorch's tutorial: the call returns a future (`async_execution`), so who waits for the others holds no thread.
"""

import os
import threading
import time

import torch
from torch import nn
from torch.futures import Future
from torch.multiprocessing.spawn import spawn
from torch.nn.functional import cross_entropy

import fanwise.rpc as rpc  # in the tutorial: import torch.distributed.rpc as rpc
from fanwise.zoo import DropoutMLP, digits, error_rate

TRAINERS = 2
STEPS = 300
BATCH, LR, SEED, LOG_INTERVAL = 64, 0.1, 1, 50


class ParameterServer:
    def __init__(self) -> None:
        torch.manual_seed(SEED)
        self.model, self.lock, self.num_steps = DropoutMLP(128, 128, 0.1, 0.1), threading.Lock(), 0
        self.optimizer = torch.optim.SGD(self.model.parameters(), LR, momentum=0.9)
        self.updated, self.num_waiting = Future[nn.Module](), 0

    def get_model(self) -> nn.Module:
        return self.model

    @staticmethod
    @rpc.functions.async_execution
    def update_and_fetch(ps: rpc.RRef["ParameterServer"], grads: list[torch.Tensor]) -> Future[nn.Module]:
        self = ps.local_value()
        with self.lock:
            for parameter, grad in zip(self.model.parameters(), grads, strict=True):
                parameter.grad = grad / TRAINERS if parameter.grad is None else parameter.grad + grad / TRAINERS
            updated, self.num_waiting = self.updated, self.num_waiting + 1
            if self.num_waiting == TRAINERS:
                self.optimizer.step()
                self.optimizer.zero_grad()
                self.updated, self.num_waiting, self.num_steps = Future(), 0, self.num_steps + 1
                updated.set_result(self.model)
        return updated


def train(ps: rpc.RRef[ParameterServer], number: int) -> None:
    data = digits().standardized()
    model, chance = ps.rpc_sync().get_model(), torch.Generator().manual_seed(SEED)
    for _ in range(STEPS):
        mine = torch.randint(len(data.train_labels), (BATCH,), generator=chance)[number::TRAINERS]
        grads = torch.autograd.grad(
            cross_entropy(model(data.train_images[mine]), data.train_labels[mine]), list(model.parameters())
        )
        model = rpc.rpc_sync(ps.owner(), ParameterServer.update_and_fetch, args=(ps, list(grads)))


def serve() -> None:
    server, data, begun = ParameterServer(), digits().standardized(), time.perf_counter()
    ps = rpc.RRef(server)
    torch.futures.wait_all([rpc.rpc_async(f"trainer{i + 1}", train, args=(ps, i), timeout=0) for i in range(TRAINERS)])
    seconds, wrong = time.perf_counter() - begun, error_rate(server.model, data.test_images, data.test_labels)
    print(f"{server.num_steps} steps of {TRAINERS} trainers in {seconds:.1f} s, test error {wrong:.3f}")


def work(rank: int, meet: str) -> None:
    options = rpc.TensorPipeRpcBackendOptions(init_method=meet)
    rpc.init_rpc(f"trainer{rank}" if rank else "ps", rank=rank, world_size=1 + TRAINERS, rpc_backend_options=options)
    if rank == 0:
        serve()
    rpc.shutdown()


if __name__ == "__main__":
    spawn(work, args=(f"file:///ps-{os.getpid()}",), nprocs=1 + TRAINERS, daemon=True)  # no file is written
