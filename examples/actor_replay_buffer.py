"""Takes about 10 seconds: two players fill a replay buffer, and a learner learns from samples of it.

The buffer is an actor that runs one method at a time, so it needs no lock.
"""

import os
import random
from collections import deque

import torch
from torch.multiprocessing.spawn import spawn

import fanwise.rpc as rpc

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


def play(buffer: "rpc.RRef[ReplayBuffer]", policy: "rpc.RRef[Policy]") -> None:
    while best := policy.rpc_sync().best():
        states = random.choices(range(STATES), k=20)
        actions = [random.randrange(ACTIONS) if random.random() < EXPLORE else best[state] for state in states]
        buffer.rpc_sync().add([(s, a, float(a == s % ACTIONS)) for s, a in zip(states, actions, strict=True)])


def learn() -> None:
    policy = Policy()
    buffer = rpc.remote("buffer", ReplayBuffer, args=(1000,), serial=True)
    games = [rpc.rpc_async(player, play, args=(buffer, rpc.RRef(policy)), timeout=0) for player in WORKERS[2:]]
    for _ in range(STEPS):
        for state, action, reward in buffer.rpc_sync().sample(BATCH):
            policy.values[state, action] += LR * (reward - policy.values[state, action])
    print("learnt:", policy.best())
    policy.is_final = True
    for game in games:
        game.wait()


def work(rank: int) -> None:
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"file:///buffer-{os.getppid()}")  # no file is written
    rpc.init_rpc(WORKERS[rank], rank=rank, world_size=len(WORKERS), rpc_backend_options=options)
    if rank == 0:
        learn()
    rpc.shutdown()


if __name__ == "__main__":
    spawn(work, nprocs=len(WORKERS))
