"""`gym` as the tutorial knew it, over gymnasium: there is `seed()`, `reset()` gives a state, `step()` four values.

The reward that CartPole has to reach is lower, so that a program ends after seconds.
"""

from types import SimpleNamespace
from typing import Any

import gymnasium

SOLVED = 15.0  # a policy that chooses at random holds the pole for about 22 steps


class _Environment:
    def __init__(self, name: str) -> None:
        self._env = gymnasium.make(name)
        self._seed: int | None = None
        self.spec = SimpleNamespace(reward_threshold=SOLVED)

    def seed(self, seed: int) -> None:
        self._seed = seed

    def reset(self) -> Any:
        state, _ = self._env.reset(seed=self._seed)
        self._seed = None
        return state

    def step(self, action: int) -> tuple[Any, float, bool, dict[str, Any]]:
        state, reward, fell, timed_out, more = self._env.step(action)
        return state, float(reward), fell or timed_out, more


make = _Environment
