"""Random search, and quasi-random search with Sobol sequences."""

import math
from collections.abc import Mapping
from itertools import islice
from typing import Any, ClassVar, final

from ..rng import KeyedRandom
from ..space import Space
from .searcher import Observation, Searcher, SuggestContext

_MAX_CONFIGS = 4096  # larger spaces rarely repeat a configuration
_MAX_DRAWS = 20  # random draws to find an untried configuration in a small branch
_BLOCK_SIZE = 64  # points that are drawn at a time from a Sobol sequence; a power of two keeps it balanced


@final
class TriedConfigs:
    """Replaces configurations that were already tried, for searchers that sample.

    Only spaces with up to 4,096 configurations are deduplicated, and small conditional branches of larger spaces, such
    as {"optimizer": "none"} next to {"optimizer": "sgd", "momentum": ...}. When all configurations were tried, they may
    repeat.
    """

    def __init__(self, space: Space) -> None:
        size = space.num_configurations
        self._size = size if size is not None and size <= _MAX_CONFIGS else 0  # number of configurations; 0: many
        self._names = tuple(space.domains)
        self._space = space
        self._has_conditions = bool(space.conditions)
        self._keys: set[tuple[str, ...]] = set()

    def add(self, config: Mapping[str, object]) -> None:
        """Record a configuration as tried."""
        if self._size or (self._has_conditions and self._is_in_small_branch(config)):
            self._keys.add(self._key(config))

    def deduplicate(self, config: dict[str, object], context: SuggestContext) -> dict[str, object]:
        """Return `config` or, if it was tried, a random replacement. Record the returned configuration as tried."""
        if len(self._keys) >= (self._size or math.inf) or not (self._size or self._has_conditions):
            return config
        for running_config in context.pending.values():
            self.add(running_config)
        if self._size:
            if self._key(config) in self._keys and len(self._keys) < self._size:
                config = self._find_untried(context.random.randrange(self._size))
        else:
            for _ in range(_MAX_DRAWS):
                if self._key(config) not in self._keys:
                    break
                config = self._space.sample(context.random)
        self.add(config)
        return config

    def _is_in_small_branch(self, config: Mapping[str, object]) -> bool:
        if len(self._keys) >= _MAX_CONFIGS:
            return False
        sizes = (domain.num_values for name, domain in self._space.domains.items() if name in config)
        return math.prod(math.inf if size is None else size for size in sizes) <= _MAX_CONFIGS

    def _find_untried(self, start: int) -> dict[str, object]:
        """Return an untried configuration. Search the grid of the space from index `start` on, and then before it."""
        sizes = {name: domain.num_values or 1 for name, domain in self._space.domains.items()}
        for bounds in ((start, None), (0, start)):
            for config in islice(self._space.grid(sizes), *bounds):
                if self._key(config) not in self._keys:
                    return config
        raise AssertionError("all configurations were tried")

    def _key(self, config: Mapping[str, object]) -> tuple[str, ...]:
        return tuple([repr(config[name]) if name in config else "" for name in self._names])


@final
class RandomSearcher(Searcher):
    """Samples configurations uniformly from the space.

    In spaces with up to 4,096 configurations, no configuration repeats until all were tried.
    """

    runs_inline: ClassVar[bool] = True
    _tried_configs: TriedConfigs | None = None

    def begin(self, space: Space, seed: int) -> None:
        self._tried_configs = TriedConfigs(space)

    def suggest(self, context: SuggestContext) -> Mapping[str, object] | None:
        if self._tried_configs is None:  # a user-defined scheduler might not call `Scheduler.begin`
            self._tried_configs = TriedConfigs(context.space)
        config = context.space.sample(context.random)
        return self._tried_configs.deduplicate(config, context)

    def observe(self, observation: Observation) -> None:
        if self._tried_configs is not None and observation.trial_id >= 0:
            self._tried_configs.add(observation.config)


@final
class SobolSearcher(Searcher):
    """Suggests the points of a scrambled Sobol sequence, which cover the space more evenly than random points.

    The sequence is from `scipy.stats.qmc`, with Owen's scrambling and the seed of the search. The first 2**k points are
    balanced in every hyperparameter, so prefer a power of two as the number of trials. In spaces with up to 4,096
    configurations, no configuration repeats until all were tried.

    >>> from fanwise.tune.space import Space, uniform
    >>> space = Space({"x": uniform(0, 1)})
    >>> searcher = SobolSearcher()
    >>> searcher.begin(space, seed=0)
    >>> sorted(int(4 * searcher.suggest(SuggestContext(k, k, space))["x"]) for k in range(4))
    [0, 1, 2, 3]
    """

    runs_inline: ClassVar[bool] = True

    @property
    def libraries(self) -> tuple[str, ...]:
        return ("numpy", "scipy")

    def begin(self, space: Space, seed: int) -> None:
        import numpy as np
        from scipy.stats import qmc

        rng = np.random.default_rng(KeyedRandom(f"{seed}/sobol").getrandbits(64))
        # A space of constants has no dimension, but Sobol needs one.
        self._sequence: Any = qmc.Sobol(max(len(space.domains), 1), scramble=True, rng=rng)
        self._tried_configs = TriedConfigs(space)
        self._buffer: list[list[float]] = []  # next points, in reverse order

    def suggest(self, context: SuggestContext) -> Mapping[str, object] | None:
        if not self._buffer:
            self._buffer = self._sequence.random(_BLOCK_SIZE).tolist()[::-1]
        config = context.space.from_units(self._buffer.pop()[: len(context.space.domains)])
        return self._tried_configs.deduplicate(config, context)

    def observe(self, observation: Observation) -> None:
        if observation.trial_id >= 0:
            self._tried_configs.add(observation.config)
