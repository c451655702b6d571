"""What the result of a run depends on, besides the program and its data: the plan. Stored in every checkpoint.

On how many devices it is executed is not part of it.
"""

import functools
from dataclasses import dataclass
from typing import Any, Literal

from ..tensor.random.keys import Key
from .data.order import Progress

Reduce = Literal["exact", "fast"]  # how gradients are added


@dataclass(slots=True)
class Plan:
    """Shards of each global batch, threads of each device, the seed, and the place in the data.

    `reduce` is None if nobody has given it: the run then takes that of its checkpoint.
    """

    shards: int
    threads: int
    progress: Progress
    reduce: Reduce | None = None

    @property
    def seed(self) -> int:
        return self.progress.seed

    def key(self, what: str) -> Key:
        """Where the random numbers of one part of the run come from."""
        return _key(self.seed, what)

    def state(self) -> dict[str, Any]:  # Any: numbers, and lists and dicts of them
        place = self.progress.state()
        reduce = self.reduce or "exact"
        return {"shards": self.shards, "threads": self.threads, "seed": self.seed, "place": place, "reduce": reduce}


@functools.lru_cache(maxsize=16)  # a step asks each time
def _key(seed: int, what: str) -> Key:
    return Key(seed).fold_in(what)
