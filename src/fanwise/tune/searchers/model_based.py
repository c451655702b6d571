"""Base class of searchers with a model. Subclasses implement `fit` and `propose`.

The base class suggests an initial design (a Sobol sequence) until enough trials have a result, avoids configurations
that were tried, refits only when there are new observations, and restores its state when a search is resumed.

The result of `fit` must depend only on its arguments. When a search is resumed, `replay_suggestion` only collects the
training data, and the next suggestion repeats the last fit.
"""

import abc
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar

from ..space import Space
from ..values import checked_int
from .searcher import Observation, Searcher, SuggestContext

if TYPE_CHECKING:
    import numpy as np

    from .encoding import Encoder, Floats, Rows
    from .observations import ObservationStore, TrainingData


class ModelBasedSearcher(Searcher):
    """Base class of searchers with a model.

    Args:
        num_init: number of results that the model needs, and that a resource level needs to be used.
        max_rows: maximum number of trials in the training data. A quarter are the best, the others the latest.

    Attributes:
        encoder: converts between configurations and rows; available after `begin`.
        observations: all observations of the search; available after `begin`.
    """

    # With n results, a fit is used for 1 + n // _results_per_extra_suggestion suggestions.
    _results_per_extra_suggestion: ClassVar[int] = 200

    encoder: "Encoder"
    observations: "ObservationStore"

    def __init__(self, *, num_init: int, max_rows: int | None = None) -> None:
        self.num_init = checked_int("num_init", num_init, 1)
        self.max_rows = None if max_rows is None else checked_int("max_rows", max_rows, 4)

    @property
    def libraries(self) -> tuple[str, ...]:
        return ("fanwise", "numpy", "scipy")

    @abc.abstractmethod
    def fit(self, data: "TrainingData", rng: "np.random.Generator") -> None:
        """Fit the model from scratch. `data` has at least `num_init` results."""

    @abc.abstractmethod
    def propose(self, pending_PD: "Rows", rng: "np.random.Generator") -> "Rows":
        """Return rows of configurations, best first. The first untried one is suggested.

        `pending_PD`: rows of the P running trials that are not in the training data. Do not keep `rng`.
        """

    def begin(self, space: Space, seed: int) -> None:
        from .encoding import Encoder
        from .observations import ObservationStore

        self.encoder = Encoder(space)
        self.observations = ObservationStore(self.encoder, self.levels)
        self._seed = seed
        self._tried_keys: set[bytes] = set()
        self._running_rows: dict[int, Floats] = {}  # rows of the running trials at the last request, by trial id
        self._unstarted_suggestions: dict[int, tuple[Floats, bytes]] = {}  # trial id -> (row, key)
        self._initial_design: Rows | None = None
        self._initial_index = 0  # of the next row of the initial design
        self._data: TrainingData | None = None
        self._fit_seed = 0
        self._is_fitted = False
        self._num_since_fit = 0  # suggestions since the last fit

    def suggest(self, context: SuggestContext) -> Mapping[str, object] | None:
        from .encoding import seeded_rng

        has_model = self._update_data(context)
        rng = seeded_rng(context.random.getrandbits(128))
        if has_model:
            if not self._is_fitted:
                assert self._data is not None
                self.fit(self._data, seeded_rng(self._fit_seed))
                self._is_fitted = True
            rows = self.propose(self._pending_rows(), rng)
        else:
            rows = self._next_initial_row()
        row = self._first_untried(rows, rng)
        if row is None:
            return None
        config = self.encoder.decode(row)
        self._add_suggestion(context.trial_id, config)
        return config

    def replay_suggestion(self, context: SuggestContext, config: Mapping[str, object] | None) -> None:
        if not self._update_data(context):
            self._next_initial_row()  # skip the row that was suggested
        if config is not None:
            self._add_suggestion(context.trial_id, config)

    def observe(self, observation: Observation) -> None:
        if observation.trial_id >= 0 and observation.trial_id not in self.observations:
            self._add_tried(self.encoder.encode(observation.config))
        self.observations.observe(observation)

    def on_rollback(self, trial_id: int, to_iter: int) -> None:
        self.observations.on_rollback(trial_id, to_iter)

    def on_end(self, trial_id: int, status: str) -> None:
        suggestion = self._unstarted_suggestions.pop(trial_id, None)
        row = self._running_rows.get(trial_id, None if suggestion is None else suggestion[0])
        if row is not None:
            self._add_tried(row)
        self.observations.on_end(trial_id, status, row)

    def describe(self) -> dict[str, object]:
        return {**super().describe(), "num_init": self.num_init, "max_rows": self.max_rows}

    def _update_data(self, context: SuggestContext) -> bool:
        """Update the running trials and, if a fit is due, the training data. Return True if the model is used."""
        previous_rows, self._running_rows = self._running_rows, {}
        for trial_id, config in context.pending.items():
            row = previous_rows.get(trial_id)
            if row is None:
                row = self.encoder.encode(config)
                self._add_tried(row)
                # The suggestion is dropped even if it timed out and the trial runs with another configuration.
                self._unstarted_suggestions.pop(trial_id, None)
            self._running_rows[trial_id] = row
        fit_seed = context.random.getrandbits(128)
        num_results = self.observations.num_results()
        if num_results < self.num_init:
            return False
        self._num_since_fit += 1
        if self._data is None or self._num_since_fit > num_results // self._results_per_extra_suggestion:
            self._num_since_fit = 0
            data = self.observations.data(min_results=self.num_init, max_rows=self.max_rows)
            if self._data is None or not data.equals(self._data):
                self._data, self._fit_seed, self._is_fitted = data, fit_seed, False
        return True

    def _pending_rows(self) -> "Rows":
        import numpy as np

        assert self._data is not None
        trial_ids = set(self._data.trial_ids_N.tolist())
        rows = [row for trial_id, row in self._running_rows.items() if trial_id not in trial_ids]
        return np.array(rows).reshape(len(rows), self.encoder.num_dims)

    def _add_tried(self, row: "Floats") -> None:
        self._tried_keys.update(self.encoder.keys(row[None]))

    def _add_suggestion(self, trial_id: int, config: Mapping[str, object]) -> None:
        row = self.encoder.encode(config)
        self._unstarted_suggestions[trial_id] = row, self.encoder.keys(row[None])[0]

    def _first_untried(self, rows: "Rows", rng: "np.random.Generator") -> "Floats | None":
        """Return the first untried row or, if all were tried, another row of the space, or None if there is none."""
        tried_keys = self._tried_keys
        if self._unstarted_suggestions:
            tried_keys = tried_keys.union(key for _, key in self._unstarted_suggestions.values())
        keys = self.encoder.keys(rows)
        index = next((index for index, key in enumerate(keys) if key not in tried_keys), None)
        return self.encoder.untried_row(tried_keys, rng) if index is None else rows[index]

    def _next_initial_row(self) -> "Rows":
        if self._initial_design is None:
            self._initial_design = self.encoder.initial_design(self._seed)
        self._initial_index += 1
        return self._initial_design[self._initial_index - 1 : self._initial_index]
