"""Takes about 10 seconds: an RNN on two workers; embedding and decoder on a parameter server, the LSTM on the trainer.

The second program of PyTorch's tutorial on remote calls, with its sizes. Backward goes through both workers, and each
one's optimizer steps what lives there. There is no zero_grad: each context has gradients of its own.
"""

import os

import torch
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn

import fanwise.rpc as rpc  # in the tutorial: import torch.distributed.rpc as rpc
from fanwise.rpc import autograd  # and: import torch.distributed.autograd as autograd
from fanwise.rpc.optim import DistributedOptimizer  # and: from torch.distributed.optim import DistributedOptimizer

EPOCHS = 10
BATCHES, BATCH, N_TOKEN, N_INP, N_HID, N_INDICES, N_LAYERS, LR = 5, 5, 10, 2, 3, 3, 4, 0.05


class EmbeddingTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.device = "cuda" if torch.cuda.is_available() else "cpu"  # between workers, tensors are on the CPU
        self.table, self.drop = nn.Embedding(N_TOKEN, N_INP).to(self.device), nn.Dropout(0.5)
        nn.init.uniform_(self.table.weight, -0.1, 0.1)

    def forward(self, indices: Tensor) -> Tensor:
        return self.drop(self.table(indices.to(self.device))).cpu()


class Decoder(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Dropout(0.5), linear := nn.Linear(N_HID, N_TOKEN))
        nn.init.uniform_(linear.weight, -0.1, 0.1)


def parameter_rrefs(module: rpc.RRef[nn.Module]) -> list[rpc.RRef[Tensor]]:
    return [rpc.RRef(parameter) for parameter in module.local_value().parameters()]


class RNNModel:
    def __init__(self) -> None:
        self.embedding, self.decoder = rpc.remote("ps", EmbeddingTable), rpc.remote("ps", Decoder)
        self.lstm = nn.LSTM(N_INP, N_HID, N_LAYERS)

    def forward(self, indices: Tensor) -> Tensor:
        output, _ = self.lstm(self.embedding.rpc_sync().forward(indices))
        return self.decoder.rpc_sync().forward(output)

    def parameter_rrefs(self) -> list[rpc.RRef[Tensor]]:
        remote = [rpc.rpc_sync("ps", parameter_rrefs, args=(each,)) for each in (self.embedding, self.decoder)]
        return [*remote[0], *remote[1], *map(rpc.RRef, self.lstm.parameters())]


def train() -> None:
    model = RNNModel()
    optimizer = DistributedOptimizer(torch.optim.SGD, model.parameter_rrefs(), lr=LR)
    for epoch in range(EPOCHS):
        for _ in range(BATCHES):
            indices, target = torch.randint(N_TOKEN, (N_INDICES, BATCH)), torch.randint(N_TOKEN, (N_INDICES * BATCH,))
            with autograd.context() as context_id:
                loss = nn.functional.cross_entropy(model.forward(indices).flatten(0, 1), target)
                autograd.backward(context_id, [loss])
                optimizer.step(context_id)
        print(f"Training epoch {epoch}: loss {loss.item():.3f}", flush=True)


def work(rank: int, meet: str) -> None:
    options = rpc.TensorPipeRpcBackendOptions(init_method=meet)
    rpc.init_rpc(["trainer", "ps"][rank], rank=rank, world_size=2, rpc_backend_options=options)
    if rank == 0:
        train()
    rpc.shutdown()


if __name__ == "__main__":
    spawn(work, args=(f"file:///rnn-{os.getpid()}",), nprocs=2, daemon=True)  # no file is written
