"""Learner: what searchers that learn have in common. Write the model; everything around it is here.

    class Mine(Learner):
        def fit(self, data, chance):            # rows and losses of the trials so far: make a model of them
            ...
        def propose(self, pending_PD, chance):  # rows of configurations, the best first
            return self.encoder.sample(100, chance)

Around the model: a start of evenly spread configurations, until enough trials have a result; no configuration twice
while others are left (of a finite space None comes when all were suggested); a new fit only where there is something
new, and of thousands of trials not at every suggestion; resuming.

What `propose` returns is gone through from the first row to the first that was not tried yet; if all were, a random
one is taken. `self.encoder` (`encoding`) and `self.history` (`history`) are there from `begin` on. Chance comes as a
generator of numpy's, made from the question: take all of it from there, and do not keep it.

Replay and `Tuner.resume` rest on one rule: what `fit` leaves in `self` is a function of its arguments. Then a resumed
search need not think everything over again: `recall` notes on what the model would have been fitted, and only the
last one is.
"""

import abc
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

from ..spaces import Space
from ..values import at_least
from .base import Ask, Observation, Searcher
from .costs import cost_a_unit

if TYPE_CHECKING:
    import numpy as np

    from .encoding import Encoder, Floats, Rows
    from .history import Data, History

_BLOCK = 64  # so many points of Sobol's sequence are made; who needs more to start gets random ones


class Learner(Searcher):
    """Base of searchers with a model.

    Args:
        num_init: number of results needed before the model is asked; until then the space is filled evenly. A resource
            level is learned from when it has this many results.
        max_rows: the model is fitted to so many trials at most, a quarter of them the best and the others the latest.
        cost_attr: the name of a reported value that says what the trial has cost so far: then `data.costs_N` is there.
    """

    libraries: ClassVar[tuple[str, ...]] = ("fanwise", "numpy", "scipy")
    # Of thousands of trials one more changes little: a fit serves one suggestion more for so many results.
    results_a_fit: ClassVar[int] = 200

    encoder: "Encoder"
    history: "History"

    def __init__(
        self,
        *,
        num_init: int,
        max_rows: int | None = None,
        cost_attr: str | None = None,
    ) -> None:
        self.num_init = at_least("num_init", num_init, 1)
        self.max_rows = None if max_rows is None else at_least("max_rows", max_rows, 4)
        if cost_attr is not None and not isinstance(cost_attr, str):
            raise TypeError(f"cost_attr must be the name of a reported value or None, got {cost_attr!r}")
        self.cost_attr = cost_attr

    @abc.abstractmethod
    def fit(self, data: "Data", chance: "np.random.Generator") -> None:
        """Make a model of what was observed, from scratch. `data` has at least `num_init` results."""

    @abc.abstractmethod
    def propose(self, pending_PD: "Rows", chance: "np.random.Generator") -> "Rows":
        """Configurations, the best first, out of what was fitted last.

        Args:
            pending_PD: of the running trials that the model knows no result of: keep away from them.
            chance: for this question.
        """

    def begin(self, space: Space, seed: int) -> None:
        from .encoding import Encoder
        from .history import History

        self.encoder = Encoder(space)
        self.history = History(self.encoder, self.levels)
        self._seed = seed
        self._used: set[bytes] = set()
        self._running: dict[int, Floats] = {}  # as of the last question
        self._handed: dict[int, tuple[Floats, bytes]] = {}  # suggested, and not yet seen to run
        self._start: Rows | None = None
        self._num_started = 0
        self._data: Data | None = None
        self._fit_bits = 0
        self._is_fitted = False
        self._num_served = 0

    def suggest(self, ask: Ask) -> Mapping[str, object] | None:
        from .encoding import generator

        if self._take_in(ask):
            chance = generator(ask)
            if not self._is_fitted:
                assert self._data is not None
                self.fit(self._data, _generator(self._fit_bits))
                self._is_fitted = True
            proposed = self.propose(self._pending(), chance)
        else:
            chance = generator(ask)
            proposed = self._next_start()
        row = self._first_unused(proposed, chance)
        if row is None:
            return None
        config = self.encoder.config(row)
        self._hand(ask.trial_id, config)
        return config

    def recall(self, ask: Ask, config: Mapping[str, object] | None) -> None:
        if not self._take_in(ask):
            self._next_start()
        if config is not None:
            self._hand(ask.trial_id, config)

    def observe(self, observation: Observation) -> None:
        if observation.trial_id >= 0 and observation.trial_id not in self.history:
            self._use(self.encoder.encode(observation.config))
        if self.cost_attr is not None:
            rate = cost_a_unit(observation, self.cost_attr)
            observation = replace(observation, losses=(*observation.losses, rate))
        self.history.observe(observation)

    def on_rewind(self, trial_id: int, to_iter: int) -> None:
        self.history.on_rewind(trial_id, to_iter)

    def on_end(self, trial_id: int, status: str) -> None:
        handed = self._handed.pop(trial_id, None)
        row = self._running.get(trial_id, None if handed is None else handed[0])
        if row is not None:
            self._use(row)
        self.history.on_end(trial_id, status, row)

    def describe(self) -> dict[str, object]:
        return {
            "name": type(self).__name__,
            "num_init": self.num_init,
            "max_rows": self.max_rows,
        }

    def _take_in(self, ask: Ask) -> bool:
        """Note what runs and, if it is time, what the model is fitted to from now on. Whether the model is asked."""
        before, self._running = self._running, {}
        for trial_id, config in ask.pending.items():
            row = before.get(trial_id)
            if row is None:
                row = self.encoder.encode(config)
                self._use(row)
                # What was suggested for it; or something else, because that came too late.
                self._handed.pop(trial_id, None)
            self._running[trial_id] = row
        fit_bits = ask.random.getrandbits(128)
        num_results = self.history.num_results()
        if num_results < self.num_init:
            return False
        self._num_served += 1
        if self._data is None or self._num_served > num_results // self.results_a_fit:
            self._num_served = 0
            data = self.history.data(enough=self.num_init, limit=self.max_rows, with_costs=self.cost_attr is not None)
            if self._data is None or not data.equals(self._data):
                self._data, self._fit_bits, self._is_fitted = data, fit_bits, False
        return True

    def _pending(self) -> "Rows":
        """The rows of the running trials that the model has nothing of."""
        import numpy as np

        assert self._data is not None
        known = set(self._data.trial_ids_N.tolist())
        rows = [row for trial_id, row in self._running.items() if trial_id not in known]
        return np.array(rows).reshape(len(rows), self.encoder.num_dims)

    def _use(self, row: "Floats") -> None:
        self._used.update(self.encoder.keys(row[None]))

    def _hand(self, trial_id: int, config: Mapping[str, object]) -> None:
        row = self.encoder.encode(config)
        self._handed[trial_id] = row, self.encoder.keys(row[None])[0]

    def _first_unused(self, rows: "Rows", chance: "np.random.Generator") -> "Floats | None":
        used = self._used.union(key for _, key in self._handed.values()) if self._handed else self._used
        for row, key in zip(rows, self.encoder.keys(rows), strict=True):
            if key not in used:
                return row  # type: ignore[no-any-return]  # numpy's iteration has no types
        return self.encoder.unused(used, chance)

    def _next_start(self) -> "Rows":
        """The next of the points that fill the space evenly; with priors every second one is drawn near them."""
        from .starts import start_rows

        if self._start is None:
            self._start = start_rows(self.encoder, self._seed)
        place = self._num_started
        self._num_started += 1
        return self._start[place : place + 1]


def _generator(bits: int) -> "np.random.Generator":
    import numpy as np

    return np.random.Generator(np.random.PCG64(bits))
