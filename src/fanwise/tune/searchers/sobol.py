"""Sobol search: configurations that fill the space more evenly than random ones do."""

from collections.abc import Mapping
from typing import Any, ClassVar, final

from ..chance import Chance
from ..spaces import Space
from .base import Ask, Observation, Searcher
from .tried import Tried

_BLOCK = 64  # a power of two: Sobol's sequence is balanced at these


@final
class SobolSearcher(Searcher):
    """Suggests the points of a Sobol sequence in the unit cube of the space, scrambled by the seed of the search.

    The sequence is Sobol's (1967) with Owen's scrambling, from `scipy.stats.qmc`. Any 2**k points from the start are
    balanced in every hyperparameter: take a power of two of trials where it can be had.

    >>> from fanwise.tune.spaces import Space, uniform
    >>> space = Space({"x": uniform(0, 1)})
    >>> searcher = SobolSearcher()
    >>> searcher.begin(space, seed=0)
    >>> sorted(int(4 * searcher.suggest(Ask(k, k, space))["x"]) for k in range(4))
    [0, 1, 2, 3]
    """

    answers_at_once: ClassVar[bool] = True
    libraries: ClassVar[tuple[str, ...]] = ("numpy", "scipy")

    def __init__(self) -> None:
        self._sequence: Any = None  # scipy's, which has no types
        self._ready: list[list[float]] = []  # points that come next, the first one last

    def begin(self, space: Space, seed: int) -> None:
        self._sequence = _sequence(len(space.domains), seed)
        self._tried = Tried(space)
        self._ready = []

    def suggest(self, ask: Ask) -> Mapping[str, object]:
        if not self._ready:
            self._ready = self._sequence.random(_BLOCK).tolist()[::-1]
        config = ask.space.from_units(self._ready.pop()[: len(ask.space.domains)])
        return self._tried.instead(config, ask.pending.values(), ask.random)

    def observe(self, observation: Observation) -> None:
        """The sequence is the same whatever comes out; of a small space none comes twice while others are left."""
        if observation.trial_id >= 0:
            self._tried.note(observation.config)


def _sequence(num_dims: int, seed: int) -> Any:
    import numpy as np  # here: whoever searches otherwise need not load them
    from scipy.stats import qmc

    chance = np.random.default_rng(Chance(f"{seed}/sobol").getrandbits(64))
    # A cube without axes has no sequence; any will do for the constants that such a space consists of.
    return qmc.Sobol(max(num_dims, 1), scramble=True, rng=chance)
