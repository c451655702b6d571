"""Observers play CartPole, as many steps an episode each; an agent chooses for all at once, or for each alone.

The program of torch's tutorial on functions that answer later. Whatever the agent chooses, there are as many calls.
"""

import os
import threading

import gymnasium
import torch
from torch import Tensor, nn
from torch.futures import Future
from torch.multiprocessing.spawn import spawn

import fanwise.rpc as rpc

TOGETHER = True
OBSERVERS, EPISODES, STEPS = 3, 10, 500
LR, SEED = 1e-2, 543


class Observer:
    def __init__(self, number: int) -> None:
        self.number, self.env = number, gymnasium.make("CartPole-v1")
        self.env.reset(seed=SEED + number)

    def run_episode(self, agent: rpc.RRef["Agent"]) -> Tensor:
        ask = Agent.choose_for_all if TOGETHER else Agent.choose
        state, lived, steps = self.env.reset()[0], 0, torch.zeros(STEPS)
        for step in range(STEPS):
            action = rpc.rpc_sync(agent.owner(), ask, args=(agent, self.number, torch.from_numpy(state)))
            state, _, fell, timed_out, _ = self.env.step(action)
            steps[step] = lived = lived + 1
            if fell or timed_out:
                state, lived = self.env.reset()[0], 0
        return steps


class Agent:
    def __init__(self) -> None:
        torch.manual_seed(SEED)
        self.policy = nn.Sequential(nn.Linear(4, 128), nn.Dropout(0.6), nn.ReLU(), nn.Linear(128, 2))
        self.optimizer = torch.optim.Adam(self.policy.parameters(), LR)
        self.lock, self.states, self.num_asked = threading.Lock(), torch.zeros(OBSERVERS, 4), 0
        self.log_probs: list[list[Tensor]] = [[] for _ in range(OBSERVERS)]
        self.actions = Future[Tensor]()

    @staticmethod
    @rpc.functions.async_execution
    def choose_for_all(agent: rpc.RRef["Agent"], number: int, state: Tensor) -> Future[int]:
        self = agent.local_value()
        with self.lock:
            self.states[number], self.num_asked, actions = state, self.num_asked + 1, self.actions
            mine: Future[int] = actions.then(lambda done: int(done.value()[number]))
            if self.num_asked == OBSERVERS:
                self.num_asked, self.actions = 0, Future()
                chances = torch.distributions.Categorical(logits=self.policy(self.states.clone()))
                chosen = chances.sample()
                for i, log_prob in enumerate(chances.log_prob(chosen)):
                    self.log_probs[i].append(log_prob)
                actions.set_result(chosen)
        return mine

    @staticmethod
    def choose(agent: rpc.RRef["Agent"], number: int, state: Tensor) -> int:
        self = agent.local_value()
        chances = torch.distributions.Categorical(logits=self.policy(state))
        action = chances.sample()
        self.log_probs[number].append(chances.log_prob(action))
        return int(action)


def train() -> None:
    observers = [rpc.remote(f"obs{i + 1}", Observer, args=(i,)) for i in range(OBSERVERS)]
    agent = Agent()
    rref = rpc.RRef(agent)
    for episode in range(EPISODES):
        found = torch.futures.wait_all([each.rpc_async(timeout=0).run_episode(rref) for each in observers])
        log_probs = torch.stack([torch.stack(each) for each in agent.log_probs])
        agent.optimizer.zero_grad()
        (-log_probs * torch.stack(found)).sum().backward()
        agent.optimizer.step()
        agent.log_probs = [[] for _ in range(OBSERVERS)]
        print(f"episode {episode}: a fall every {STEPS / (torch.stack(found) == 1).sum(1).float().mean():.1f} steps")


def work(rank: int, meet: str) -> None:
    options = rpc.TensorPipeRpcBackendOptions(init_method=meet)
    rpc.init_rpc(f"obs{rank}" if rank else "agent", rank=rank, world_size=1 + OBSERVERS, rpc_backend_options=options)
    if rank == 0:
        train()
    rpc.shutdown()


if __name__ == "__main__":
    spawn(work, args=(f"file:///reinforce-{os.getpid()}",), nprocs=1 + OBSERVERS, daemon=True)
