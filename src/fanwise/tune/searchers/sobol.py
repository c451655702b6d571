"""Quasi-random search with Sobol sequences."""

from collections.abc import Mapping
from typing import Any, ClassVar, final

from ..rng import KeyedRandom
from ..space import Space
from .random_search import SeenConfigs
from .searcher import Observation, Searcher, SuggestContext

_BLOCK = 64  # a power of two, at which the sequence is balanced


@final
class SobolSearcher(Searcher):
    """Suggests the points of a scrambled Sobol sequence, which cover the space more evenly than random points.

    Uses Sobol's sequence (1967) with Owen's scrambling from `scipy.stats.qmc`, seeded by the search. The first 2**k
    points are balanced in every hyperparameter, so prefer a power of two as the number of trials. In spaces with up to
    4,096 configurations, none repeats until all were tried.

    >>> from fanwise.tune.space import Space, uniform
    >>> space = Space({"x": uniform(0, 1)})
    >>> searcher = SobolSearcher()
    >>> searcher.begin(space, seed=0)
    >>> sorted(int(4 * searcher.suggest(SuggestContext(k, k, space))["x"]) for k in range(4))
    [0, 1, 2, 3]
    """

    runs_inline: ClassVar[bool] = True
    libraries: ClassVar[tuple[str, ...]] = ("numpy", "scipy")

    def __init__(self) -> None:
        self._sequence: Any = None  # scipy.stats.qmc.Sobol
        self._buffer: list[list[float]] = []  # next points, in reverse order

    def begin(self, space: Space, seed: int) -> None:
        import numpy as np
        from scipy.stats import qmc

        rng = np.random.default_rng(KeyedRandom(f"{seed}/sobol").getrandbits(64))
        # A space of constants has no dimension, but Sobol needs one.
        self._sequence = qmc.Sobol(max(len(space.domains), 1), scramble=True, rng=rng)
        self._seen = SeenConfigs(space)
        self._buffer = []

    def suggest(self, context: SuggestContext) -> Mapping[str, object] | None:
        if not self._buffer:
            self._buffer = self._sequence.random(_BLOCK).tolist()[::-1]
        config = context.space.from_units(self._buffer.pop()[: len(context.space.domains)])
        return self._seen.deduplicate(config, context.pending.values(), context.random)

    def observe(self, observation: Observation) -> None:
        if observation.trial_id >= 0:
            self._seen.add(observation.config)
