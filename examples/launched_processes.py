"""Takes about 3 seconds: the same program alone, and in processes that somebody else has started.

    python examples/launched_processes.py
    torchrun --standalone --nproc-per-node 2 examples/launched_processes.py
    srun --ntasks 2 python examples/launched_processes.py            mpirun -n 2 python examples/launched_processes.py

Each process is one device of `fanwise.run`, and the model has the same bits, however many there are. Between two runs
they are a group of `fanwise.rpc`, which meets where the launcher says.
"""

import torch
from torch import nn

import fanwise as fw
from fanwise import rpc
from fanwise.parallel import Run, from_environment

SAMPLES, FEATURES = 64, 8
here = from_environment()


def train(run: Run) -> float:
    x = torch.randn(SAMPLES, FEATURES)
    model = nn.Linear(FEATURES, 1)
    step = run.step(model, torch.optim.SGD(model.parameters(), 0.1), lambda m, x: (m(x).squeeze(1) - x.sum(1)) ** 2)
    for _ in run.epochs(3):
        for batch in run.batches(x, 16):
            loss = step(batch)
    run.print(f"{run.world_size} processes, loss {float(loss):.6f}")
    return float(loss)


def whose_host(rank: int) -> str:
    return f"process {rank} is on {here.host}"


def main() -> None:
    fw.run(train, progress=False)
    if here.world_size == 1:
        return
    options = rpc.TensorPipeRpcBackendOptions(init_method=here.init_method)
    rpc.init_rpc(f"worker{here.rank}", rank=here.rank, world_size=here.world_size, rpc_backend_options=options)
    if here.rank == 0:
        for rank in range(here.world_size):
            print(rpc.rpc_sync(f"worker{rank}", whose_host, args=(rank,)))
    rpc.shutdown()


if __name__ == "__main__":
    main()
