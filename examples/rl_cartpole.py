"""Takes about 3 minutes: observers play CartPole-v1; one agent, which learns from all of them, chooses every action.

REINFORCE as in PyTorch's tutorial: `run_episode` of all observers at a time, each calling the agent back twice a step.
"""

import os

import gymnasium  # pip install 'fanwise[rl]'
import torch
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn

import fanwise.rpc as rpc  # in the tutorial: import torch.distributed.rpc as rpc
from fanwise.zoo import reinforce_loss

OBSERVERS = 2
SOLVED = 475.0  # running reward; an episode has at most 500 steps
GAMMA, LR, SEED, LOG_INTERVAL = 0.99, 1e-2, 1, 10


class Observer:
    def __init__(self, number: int) -> None:
        self.number, self.env = number, gymnasium.make("CartPole-v1")
        self.env.reset(seed=SEED + number)

    def run_episode(self, agent: rpc.RRef["Agent"]) -> None:
        state, ended = self.env.reset()[0], False
        while not ended:
            action = agent.rpc_sync().select_action(self.number, torch.from_numpy(state))
            state, reward, fell, timed_out, _ = self.env.step(action)
            agent.rpc_sync().report_reward(self.number, float(reward))
            ended = fell or timed_out


class Agent:
    def __init__(self, policy: nn.Module) -> None:
        self.policy = policy
        self.log_probs: list[list[Tensor]] = [[] for _ in range(OBSERVERS)]
        self.rewards: list[list[float]] = [[] for _ in range(OBSERVERS)]

    def select_action(self, number: int, state: Tensor) -> int:
        chances = torch.distributions.Categorical(logits=self.policy(state))
        action = chances.sample()
        self.log_probs[number].append(chances.log_prob(action))
        return int(action)

    def report_reward(self, number: int, reward: float) -> None:
        self.rewards[number].append(reward)


def train() -> None:
    policy = nn.Sequential(nn.Linear(4, 128), nn.Dropout(0.6), nn.ReLU(), nn.Linear(128, 2))
    optimizer, episode, steps, running_reward = torch.optim.Adam(policy.parameters(), LR), 0, 0, 0.0
    observers = [rpc.remote(f"obs{i + 1}", Observer, args=(i,)) for i in range(OBSERVERS)]
    while running_reward <= SOLVED:
        agent, episode = Agent(policy), episode + 1
        torch.futures.wait_all([each.rpc_async(timeout=0).run_episode(rpc.RRef(agent)) for each in observers])
        optimizer.zero_grad()
        reinforce_loss(agent.log_probs, agent.rewards, GAMMA).backward()
        optimizer.step()
        last, steps = min(map(sum, agent.rewards)), steps + sum(map(len, agent.rewards))
        running_reward = 0.05 * last + 0.95 * running_reward
        if episode % LOG_INTERVAL == 0:
            print(f"Episode {episode}\tLast reward: {last:.2f}\tAverage reward: {running_reward:.2f}", flush=True)
    print(f"Solved! Running reward is now {running_reward:.2f}: {episode} episodes, {steps} steps, {2 * steps} calls")


def work(rank: int, meet: str) -> None:
    torch.manual_seed(SEED)
    options = rpc.TensorPipeRpcBackendOptions(init_method=meet)
    rpc.init_rpc(f"obs{rank}" if rank else "agent", rank=rank, world_size=1 + OBSERVERS, rpc_backend_options=options)
    if rank == 0:
        train()
    rpc.shutdown()


if __name__ == "__main__":
    spawn(work, args=(f"file:///cartpole-{os.getpid()}",), nprocs=1 + OBSERVERS, daemon=True)  # no file is written
