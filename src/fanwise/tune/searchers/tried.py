"""What was tried in a small space, so that searchers which draw their configurations do not draw one twice.

A random draw of a space of a few dozen configurations repeats itself soon, and a trial that repeats another one says
nothing new. In large spaces that hardly happens, and nothing is kept, but in their small branches: where a condition
leaves out what could vary, as {"optimizer": "none"} beside all of {"optimizer": "sgd", "momentum": ...}. When all were
tried they may repeat themselves: a search ends by its limits.
"""

import math
from collections.abc import Iterable, Mapping
from itertools import islice

from ..chance import Chance
from ..spaces import Space

_MOST_KEPT = 4096  # configurations of a space
_MOST_DRAWS = 20  # for one that is not in a small branch that was tried


class Tried:
    """The configurations of a space that were suggested, run or have reported; of a large one, in small branches."""

    def __init__(self, space: Space) -> None:
        size = space.num_configurations
        self._size = size if size is not None and size <= _MOST_KEPT else 0
        self._names = tuple(space.domains)
        self._space = space
        self._has_conditions = bool(space.conditions)
        self._keys: set[tuple[str, ...]] = set()

    def note(self, config: Mapping[str, object]) -> None:
        """This one is tried."""
        if self._size or (self._has_conditions and self._is_of_small_branch(config)):
            self._keys.add(self._key(config))

    def instead(
        self, config: dict[str, object], pending: Iterable[Mapping[str, object]], chance: Chance
    ) -> dict[str, object]:
        """This configuration, or where it was tried a random one that was not. It counts as tried from now on."""
        if not self._size:
            return self._of_branches(config, pending, chance)
        if len(self._keys) >= self._size:
            return config
        self._keys.update(map(self._key, pending))
        if self._key(config) in self._keys and len(self._keys) < self._size:
            config = self._untried(chance.randrange(self._size))
        self._keys.add(self._key(config))
        return config

    def _of_branches(
        self, config: dict[str, object], pending: Iterable[Mapping[str, object]], chance: Chance
    ) -> dict[str, object]:
        """The same in a large space."""
        if not self._has_conditions:
            return config
        for one in pending:
            self.note(one)
        for _ in range(_MOST_DRAWS):
            if self._key(config) not in self._keys:
                break
            config = self._space.sample(chance)
        self.note(config)
        return config

    def _is_of_small_branch(self, config: Mapping[str, object]) -> bool:
        """Whether the hyperparameters that exist in this configuration have few values together."""
        if len(self._keys) >= _MOST_KEPT:
            return False
        sizes = (domain.num_values for name, domain in self._space.domains.items() if name in config)
        return math.prod(math.inf if size is None else size for size in sizes) <= _MOST_KEPT

    def _untried(self, start: int) -> dict[str, object]:
        sizes = {name: domain.num_values or 1 for name, domain in self._space.domains.items()}
        for part in (slice(start, None), slice(0, start)):
            for config in islice(self._space.grid(sizes), part.start, part.stop):
                if self._key(config) not in self._keys:
                    return config
        raise AssertionError("fewer were tried than there are")

    def _key(self, config: Mapping[str, object]) -> tuple[str, ...]:
        return tuple([repr(config[name]) if name in config else "" for name in self._names])
