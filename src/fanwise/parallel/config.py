"""`Plan`: the settings that determine the result of a run. A checkpoint stores them.

The number of devices is not one of them, because it does not change the result.
"""

import functools
from dataclasses import dataclass
from typing import Any, Literal

from ..tensor.random.keys import Key
from .data.position import DataPosition

Reduce = Literal["exact", "fast"]

# 1, 2, 3 and 4 devices give the same bits, and 1, 2 and 4 devices have equal shares of the work.
DEFAULT_SHARDS = 4


@dataclass(slots=True)
class Plan:
    shards: int  # of each global batch
    threads: int  # of each device
    position: DataPosition  # with the seed
    reduce: Reduce | None = None  # None: the run takes it from its checkpoint, or "exact"

    @property
    def seed(self) -> int:
        return self.position.seed

    def key(self, name: str) -> Key:
        """Return the key from which the part of the run with this name derives its random numbers."""
        return _key(self.seed, name)

    def state(self) -> dict[str, Any]:
        return {
            "shards": self.shards,
            "threads": self.threads,
            "seed": self.seed,
            "position": self.position.state(),
            "reduce": self.reduce or "exact",
        }


@functools.lru_cache(maxsize=16)  # every step calls it
def _key(seed: int, name: str) -> Key:
    return Key(seed).fold_in(name)
