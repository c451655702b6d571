"""Adapter from Optuna's samplers to searchers.

Trials are copied to an in-memory study. The study is updated when a trial starts, pauses or ends, not at every report,
so discarded reports never reach it. As in Optuna, the last report is the result of a trial. A trial whose last report
is not finite has failed.

A suggestion is open until its trial starts. At most one suggestion is open. A suggestion that timed out stays open and
is returned again.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, final

from ...base.errors import NotInstalled
from ...base.extras import check_installed
from ..rng import KeyedRandom
from ..space import Space
from ..values import checked_nonnegative, plain_json_or_name
from .searcher import Observation, Searcher, SuggestContext

if TYPE_CHECKING:
    from .with_optuna import OptunaStudy

_GP_SAMPLER = "GPSampler"  # imports torch when it fits its first model
_MAX_TRIES = 3  # number of suggestions to request as long as the sampler repeats configurations


@dataclass(slots=True)
class _Trial:
    """A trial that has not ended."""

    config: Mapping[str, object]
    number: int | None = None  # number in the study, or None if the trial is not in the study
    is_paused: bool = False  # paused in the study
    reports: list[Observation] = field(default_factory=list)

    @property
    def result(self) -> Observation | None:
        """The last report. None if there is no report, or the last one is not finite."""
        last = self.reports[-1] if self.reports else None
        return last if last is not None and all(map(math.isfinite, (*last.losses, *last.violations))) else None


@dataclass(slots=True)
class _OpenSuggestion:
    """A suggestion whose trial has not started. `number`: number of the suggestion in the study."""

    number: int
    trial_id: int
    config: dict[str, object]


@final
class OptunaSearcher(Searcher):
    """Suggests configurations with a sampler of Optuna.

    The sampler knows running, paused and failed trials, several objectives and constraints. If a sampler repeats
    configurations, a random one is suggested instead. The search ends when all configurations were tried.

    When a search is resumed, samplers with internal state compute all earlier suggestions again. The TPE and random
    samplers need only the study.

    Args:
        sampler: name of a sampler in `optuna.samplers`, its class, or a function that constructs one. The class or
            function is called with `seed=` and the options when the search begins. For a sampler without a seed, pass a
            function such as `lambda seed: PartialFixedSampler({"x": 1}, TPESampler(seed=seed))`.
        suggest_timeout_s: seconds that a free worker waits for a suggestion before it gets a random configuration.
            None: no limit.
        options: options of the sampler.

    Raises:
        TypeError: the sampler is an instance, or a seed was passed.
        NotInstalled: raised by `check` if Optuna is missing, or torch for the GPSampler.

    >>> searcher = OptunaSearcher("TPESampler", n_startup_trials=20)
    >>> searcher.describe()["options"]
    {'n_startup_trials': 20}
    """

    def __init__(
        self, sampler: str | Callable[..., Any], *, suggest_timeout_s: float | None = 10.0, **options: Any
    ) -> None:
        if not isinstance(sampler, str) and not callable(sampler):
            raise TypeError(
                f"OptunaSearcher constructs the sampler with the seed of the search; pass the class and the options: "
                f"OptunaSearcher({type(sampler).__name__}, ...); got the instance {sampler!r}"
            )
        if "seed" in options:
            raise TypeError("OptunaSearcher takes no seed; it is derived from the seed of the search, random_seed=...")
        self._sampler = sampler
        self._name = sampler if isinstance(sampler, str) else getattr(sampler, "__name__", type(sampler).__name__)
        self._options = options
        if suggest_timeout_s is not None:
            suggest_timeout_s = checked_nonnegative("suggest_timeout_s", suggest_timeout_s)
        self.suggest_timeout_s = suggest_timeout_s  # type: ignore[misc]  # per instance

    @property
    def libraries(self) -> tuple[str, ...]:
        return ("fanwise", "numpy", "scipy", "optuna", *(["torch"] if self._name == _GP_SAMPLER else []))

    def check(self, space: Space) -> None:
        self._new_study(space, 0)

    def begin(self, space: Space, seed: int) -> None:
        from .encoding import Encoder

        self._study = self._new_study(space, KeyedRandom(f"{seed}/optuna").getrandbits(32))
        self._seed = seed
        self._encoder = Encoder(space)
        self._num_configurations = space.num_configurations
        self._tried_keys: set[bytes] = set()  # keys of suggested and running configurations
        self._num_added = 0  # trials in the study that the sampler did not suggest
        self._open_suggestion: _OpenSuggestion | None = None
        self._trials: dict[int, _Trial] = {}

    def _new_study(self, space: Space, seed: int) -> "OptunaStudy":
        if self._name == _GP_SAMPLER:
            check_installed(f"Optuna's {_GP_SAMPLER} needs", "optuna", "torch", extra="optuna,torch")
        from .with_optuna import OptunaStudy, make_sampler

        with self._error_note():
            return OptunaStudy(space, lambda seed: make_sampler(self._sampler, self._options, seed), seed)

    @contextmanager
    def _error_note(self) -> Iterator[None]:
        """Add a note with the name of the sampler to errors of Optuna."""
        try:
            yield
        except NotInstalled:
            raise
        except Exception as error:
            error.add_note(f"Raised by Optuna's {self._name}, which OptunaSearcher called.")
            raise

    def suggest(self, context: SuggestContext) -> Mapping[str, object] | None:
        with self._error_note():
            self._sync_pending(context.pending)
            if self._open_suggestion is None:
                self._open_suggestion = self._new_suggestion(context)
            if self._open_suggestion is None:
                return None
            self._open_suggestion.trial_id = context.trial_id
            return dict(self._open_suggestion.config)

    def replay_suggestion(self, context: SuggestContext, config: Mapping[str, object] | None) -> None:
        has_state = self._study.has_state
        if has_state:
            self.suggest(context)  # changes the state of the sampler
        else:
            self._sync_pending(context.pending)
        # The configurations differ if another version of Optuna wrote the record.
        if self._open_suggestion is not None and self._open_suggestion.config != config:
            self._study.end(self._open_suggestion.number, "Failed", None)
            self._open_suggestion = None
        if self._open_suggestion is not None:
            self._open_suggestion.trial_id = context.trial_id
        elif config is not None and not has_state:
            self._add_tried(config)
            number = self._study.start_with_config(config)
            self._open_suggestion = _OpenSuggestion(number, context.trial_id, dict(config))

    def _new_suggestion(self, context: SuggestContext) -> _OpenSuggestion | None:
        """Return a suggestion that was not tried before, or None if there is none."""
        from .encoding import seeded_rng

        study = self._study
        study.reseed(KeyedRandom(f"{self._seed}/optuna/{context.number}").getrandbits(32))
        remaining_tries = _MAX_TRIES
        if study.suggests_each_config_once:  # the sampler may repeat configurations that it did not suggest
            remaining_tries += self._num_added
        while remaining_tries and len(self._tried_keys) != self._num_configurations and not study.is_exhausted:
            number, config = study.suggest()
            if self._add_tried(config):
                return _OpenSuggestion(number, context.trial_id, config)
            study.end(number, "Failed", None)
            remaining_tries -= 1
        if study.suggests_each_config_once or study.is_exhausted:
            return None
        row = self._encoder.untried_row(self._tried_keys, seeded_rng(context.random.getrandbits(128)))
        if row is None:
            return None
        config = self._encoder.decode(row)
        self._add_tried(config)
        return _OpenSuggestion(study.start_with_config(config), context.trial_id, config)

    def _add_tried(self, config: Mapping[str, object]) -> bool:
        """Record a configuration as tried. Return False if it was tried before."""
        num_tried = len(self._tried_keys)
        self._tried_keys.update(self._encoder.keys(self._encoder.encode_all([config])))
        return len(self._tried_keys) > num_tried

    def observe(self, observation: Observation) -> None:
        trial = self._trials.get(observation.trial_id)
        if trial is None:
            trial = self._trials[observation.trial_id] = _Trial(dict(observation.config))
            if observation.trial_id >= 0:  # warm-start configurations may be tried again
                self._add_tried(observation.config)
        trial.reports.append(observation)

    def on_rollback(self, trial_id: int, to_iter: int) -> None:
        reports = self._trials[trial_id].reports if trial_id in self._trials else []
        while reports and reports[-1].iter > to_iter:
            reports.pop()

    def on_end(self, trial_id: int, status: str) -> None:
        trial = self._trials.pop(trial_id, None)
        if trial_id < 0 and self._study.suggests_each_config_once:
            return  # the results of a warm start do not affect a grid
        with self._error_note():
            if trial is None:
                if self._open_suggestion is not None and self._open_suggestion.trial_id == trial_id:
                    self._study.end(self._open_suggestion.number, status, None)
                    self._open_suggestion = None
                return
            if trial.number is None:
                suggestion = self._open_suggestion
                if not trial.reports and (suggestion is None or suggestion.config != trial.config):
                    return  # the trial is not in the study and has no result
                trial.number = self._start_in_study(trial.config)
            if trial.is_paused:
                self._study.resume(trial.number)
            self._study.end(trial.number, status, trial.result)

    def _sync_pending(self, pending: Mapping[int, Mapping[str, object]]) -> None:
        """Set the states of the running and paused trials in the study."""
        for trial_id, config in pending.items():
            trial = self._trials.get(trial_id)
            if trial is None:
                trial = self._trials[trial_id] = _Trial(dict(config))
                self._add_tried(config)
            if trial.number is None:
                trial.number = self._start_in_study(trial.config)
            elif trial.is_paused:
                trial.is_paused = False
                self._study.resume(trial.number)
        for trial_id, trial in self._trials.items():
            if trial_id not in pending and trial.result is not None and not trial.is_paused:
                if trial.number is None:
                    trial.number = self._start_in_study(trial.config)
                trial.is_paused = True
                self._study.end(trial.number, "Stopped", trial.result)

    def _start_in_study(self, config: Mapping[str, object]) -> int:
        """Use the open suggestion if it has this configuration, or add a trial. Return its number in the study."""
        suggestion = self._open_suggestion
        if suggestion is not None and suggestion.config == config:
            self._open_suggestion = None
            return suggestion.number
        self._num_added += 1
        return self._study.start_with_config(config)

    def describe(self) -> dict[str, object]:
        options = {name: plain_json_or_name("option", value) for name, value in sorted(self._options.items())}
        return {
            **super().describe(),
            "sampler": self._name,
            "options": options,
            "suggest_timeout_s": self.suggest_timeout_s,
        }
