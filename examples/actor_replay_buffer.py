"""Takes about 10 seconds: players fill a replay buffer and a learner learns from it; they find each other by name.

The buffer is an actor: it is called in turns and needs no lock. Its worker is killed in the middle. Whoever started
that process starts it again; the buffer is made again there, and everybody goes on with the reference they have.
"""

import os
import random
import signal
from collections import deque
from contextlib import suppress

import torch
from torch.multiprocessing.spawn import spawn

import fanwise.rpc as rpc
from fanwise.errors import WorkerLostError

WORKERS = ["learner", "buffer", "player1", "player2"]
STEPS = 1000
STATES, ACTIONS, BATCH, LR, EXPLORE = 12, 4, 64, 0.2, 0.3


class ReplayBuffer:
    def __init__(self, capacity: int) -> None:
        self.seen = deque[tuple[int, int, float]](maxlen=capacity)  # state, action, reward

    def add(self, episode: list[tuple[int, int, float]]) -> None:
        self.seen.extend(episode)

    def sample(self, size: int) -> list[tuple[int, int, float]]:
        return random.sample(self.seen, size) if len(self.seen) >= size else []


class Policy:
    def __init__(self) -> None:
        self.values, self.is_final = torch.zeros(STATES, ACTIONS), False

    def best(self) -> list[int]:
        return [] if self.is_final else [int(action) for action in self.values.argmax(dim=1)]


def play() -> None:
    buffer, policy = rpc.lookup("replay-buffer"), rpc.lookup("policy")
    while best := policy.rpc_sync().best():
        states = random.choices(range(STATES), k=20)
        actions = [random.randrange(ACTIONS) if random.random() < EXPLORE else best[state] for state in states]
        with suppress(WorkerLostError):  # an episode is lost with the buffer
            buffer.rpc_sync().add([(s, a, float(a == s % ACTIONS)) for s, a in zip(states, actions, strict=True)])


def learn() -> None:
    policy, buffer = Policy(), rpc.remote("buffer", ReplayBuffer, args=(1000,), serial=True, restart=1)
    rpc.register("replay-buffer", buffer)
    rpc.register("policy", policy)
    for step in range(STEPS):
        if step == STEPS // 2:
            os.kill(next(worker.pid for worker in rpc.workers() if worker.name == "buffer"), signal.SIGKILL)
        with suppress(WorkerLostError):  # this call; the next one waits until the buffer is made again
            for state, action, reward in buffer.rpc_sync().sample(BATCH):
                policy.values[state, action] += LR * (reward - policy.values[state, action])
    print("learnt:", policy.best())
    policy.is_final = True


def work(index: int, first: int) -> None:
    rank = first + index
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file:///buffer-{os.getppid()}")  # no file is written
    rpc.init_rpc(WORKERS[rank], rank=rank, world_size=len(WORKERS), rpc_backend_options=options)
    (learn, rpc.get_worker_info, play, play)[rank]()
    rpc.shutdown()


if __name__ == "__main__":
    group = spawn(work, args=(0,), nprocs=len(WORKERS), daemon=True, join=False)
    group.processes[1].join()
    spawn(work, args=(1,), nprocs=1, daemon=True)
    for process in group.processes:
        process.join()
