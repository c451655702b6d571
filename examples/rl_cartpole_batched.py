"""Takes about 1 minute: rl_cartpole.py with one call a step, for reward and action, made by all together."""

import os
import threading

import gymnasium  # pip install 'fanwise[rl]'
import torch
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn

import fanwise.rpc as rpc  # in the tutorial: import torch.distributed.rpc as rpc
from fanwise.zoo import reinforce_loss

OBSERVERS = 2
EPISODES = 100
GAMMA, LR, SEED, LOG_INTERVAL = 0.99, 1e-2, 1, 10


def play(number: int, agent: rpc.RRef["Agent"], episode: int) -> None:
    env, reward = gymnasium.make("CartPole-v1"), 0.0
    state: Tensor | None = torch.from_numpy(env.reset(seed=SEED + episode * OBSERVERS + number)[0])
    while (action := agent.rpc_sync().step(number, reward, state)) >= 0:
        array, gain, fell, timed_out, _ = env.step(action)
        state, reward = None if fell or timed_out else torch.from_numpy(array), float(gain)


class Agent:
    def __init__(self, policy: nn.Module) -> None:
        self.policy, self.playing, self.lock = policy, OBSERVERS, threading.Lock()
        self.log_probs: list[list[Tensor]] = [[] for _ in range(OBSERVERS)]
        self.rewards: list[list[float]] = [[] for _ in range(OBSERVERS)]
        self.asked: dict[int, tuple[Tensor, torch.futures.Future[int]]] = {}

    @rpc.functions.async_execution
    def step(self, number: int, reward: float, state: Tensor | None) -> torch.futures.Future[int]:
        answer = torch.futures.Future[int]()
        with self.lock:
            self.rewards[number].append(reward)
            if state is not None:
                self.asked[number] = state, answer
            else:
                self.playing -= 1
                answer.set_result(-1)
            if self.asked and len(self.asked) == self.playing:  # then the policy sees all states at once
                (states, answers), numbers, self.asked = zip(*self.asked.values(), strict=True), [*self.asked], {}
                chances = torch.distributions.Categorical(logits=self.policy(torch.stack(states)))
                actions = chances.sample()
                for i, log_prob in enumerate(chances.log_prob(actions)):
                    self.log_probs[numbers[i]].append(log_prob)
                    answers[i].set_result(int(actions[i]))
        return answer  # the call is answered when this is done; meanwhile it holds no thread


def train() -> None:
    policy = nn.Sequential(nn.Linear(4, 128), nn.Dropout(0.6), nn.ReLU(), nn.Linear(128, 2))
    optimizer = torch.optim.Adam(policy.parameters(), LR)
    for episode in range(1, EPISODES + 1):
        rref = rpc.RRef(agent := Agent(policy))
        torch.futures.wait_all([rpc.rpc_async(i + 1, play, (i, rref, episode), timeout=0) for i in range(OBSERVERS)])
        optimizer.zero_grad()
        reinforce_loss(agent.log_probs, [each[1:] for each in agent.rewards], GAMMA).backward()
        optimizer.step()
        if episode % LOG_INTERVAL == 0:
            rewards, calls = [sum(each) for each in agent.rewards], sum(map(len, agent.rewards))
            print(f"Episode {episode}\tRewards: {rewards}\tCalls: {calls}", flush=True)


def work(rank: int, meet: str) -> None:
    torch.manual_seed(SEED)
    options = rpc.TensorPipeRpcBackendOptions(init_method=meet)
    rpc.init_rpc(f"obs{rank}" if rank else "agent", rank=rank, world_size=1 + OBSERVERS, rpc_backend_options=options)
    if rank == 0:
        train()
    rpc.shutdown()


if __name__ == "__main__":
    spawn(work, args=(f"file:///cartpole-{os.getpid()}",), nprocs=1 + OBSERVERS, daemon=True)  # no file is written
