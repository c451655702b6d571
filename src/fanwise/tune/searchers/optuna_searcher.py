"""Any sampler of Optuna as a searcher.

    trials that run, pause, end  --told before each question-->  a study in memory  -->  sampler  -->  suggestion

The study hears of a trial when it runs, when it pauses and when it is over, not of every report: so a void report is
forgotten here. Its last finite report counts, as in Optuna; a trial without one has failed.

Invariant: at most one suggestion is open, made and not yet seen to run. One that came too late for its worker never
runs: it is suggested again.
"""

import math
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, final

from ...base.errors import NotInstalled
from ..chance import Chance
from ..spaces import Space
from ..values import plain_json, seconds
from .base import Ask, Observation, Searcher

if TYPE_CHECKING:
    from .with_optuna import LastReport, OptunaStudy

_MOST_TRIES = 20  # until what a sampler repeats is drawn at random
_MOST_LISTED = 10_000  # configurations of a space, to find one that is left


@dataclass(slots=True)
class _Trial:
    """A trial that is not over. `number`: in the study; None: it has not heard of it. `course`: finite reports."""

    config: Mapping[str, object]
    number: int | None = None
    is_paused: bool = False
    course: list[tuple[int, "LastReport"]] = field(default_factory=list)


@dataclass(slots=True)
class _Open:
    """A suggestion that has not been seen to run."""

    number: int
    trial_id: int
    config: dict[str, object]


@final
class OptunaSearcher(Searcher):
    """Suggests what a sampler of Optuna chooses.

    The sampler is made when the search begins, with a seed made from the search's. It hears of failed and paused
    trials, of trials that run, of several objectives and of constraints. In a space that can be counted nothing is
    suggested twice while anything is left, and samplers of grids end the search when they have tried everything.

    A resumed search asks the sampler again for every suggestion made before, so that it stands where it stood.

    Args:
        sampler: the class of a sampler, or a function that makes one; is called with `seed=` and the options.
        budget_s: seconds a free worker waits for a suggestion before it gets a random configuration; None: for ever,
            and reports wait too.
        options: of the sampler.

    Raises:
        TypeError: a sampler instead of its class, or a seed, which is the search's.
        NotInstalled: when the search is checked: Optuna is not there.

    >>> from optuna.samplers import NSGAIISampler, TPESampler
    >>> searcher = OptunaSearcher(TPESampler, n_startup_trials=20)
    >>> scheduler = FIFOScheduler(OptunaSearcher(NSGAIISampler), metric=["error", "seconds"])
    """

    budget_s: ClassVar[float | None] = None

    def __init__(
        self,
        sampler: Callable[..., Any],  # Any: an optuna.samplers.BaseSampler, checked alike without Optuna
        *,
        budget_s: float | None = 10.0,
        **options: Any,  # Any: the sampler's
    ) -> None:
        if not callable(sampler):
            name = type(sampler).__name__
            raise TypeError(
                f"OptunaSearcher takes the class of a sampler and its options, and makes the sampler when the search "
                f"begins, with its seed; got {sampler!r}.\n"
                f"  wrong:  OptunaSearcher({name}(...))\n"
                f"  right:  OptunaSearcher({name}, ...)"
            )
        if "seed" in options:
            raise TypeError("OptunaSearcher has no seed of its own: it is made from the search's, random_seed=...")
        self.sampler = sampler
        self.options = options
        self.budget_s = None if budget_s is None else seconds("budget_s", budget_s)  # type: ignore[misc]  # one's own
        self._study: OptunaStudy | None = None

    def check(self, space: Space) -> None:
        with _naming(self.name):
            self._new_study(space, 0)

    def begin(self, space: Space, seed: int) -> None:
        with _naming(self.name):
            self._study = self._new_study(space, Chance(f"{seed}/optuna").getrandbits(32))
        self._is_countable = space.num_configurations is not None
        self._tried: set[Hashable] = set()
        self._num_added = 0
        self._open: _Open | None = None
        self._trials: dict[int, _Trial] = {}

    def _new_study(self, space: Space, seed: int) -> "OptunaStudy":
        from .with_optuna import OptunaStudy, made

        return OptunaStudy(space, made(self.sampler, self.options, seed))

    @property
    def name(self) -> str:
        """Of the sampler's class, or of what makes it."""
        return getattr(self.sampler, "__name__", type(self.sampler).__name__)

    # -- questions -------------------------------------------------------------------------------------------------

    def suggest(self, ask: Ask) -> Mapping[str, object] | None:
        with _naming(self.name):
            self._hear(ask.pending)
            if self._open is None:
                self._open = self._new_suggestion(ask)
            if self._open is None:
                return None
            self._open.trial_id = ask.trial_id
            return dict(self._open.config)

    def recall(self, ask: Ask, config: Mapping[str, object] | None) -> None:
        suggested = self.suggest(ask)
        if suggested != config and self._open is not None:  # it was another library then: what ran is what counts
            self._running_study.end(self._open.number, "Failed", None)
            self._open = None

    def _new_suggestion(self, ask: Ask) -> _Open | None:
        """One that was not tried, if the space can be counted and there is one."""
        study = self._running_study
        for _ in range(_MOST_TRIES + self._num_added):
            if study.is_exhausted:
                return None
            number, config = study.suggest()
            if self._is_new(config):
                return _Open(number, ask.trial_id, config)
            if not study.is_exhaustive and len(self._tried) == ask.space.num_configurations:
                return _Open(number, ask.trial_id, config)
            study.end(number, "Failed", None)
        if study.is_exhaustive:
            return None
        config = _untried(ask, self._tried)
        self._is_new(config)
        return _Open(study.add(config), ask.trial_id, config)

    def _is_new(self, config: Mapping[str, object]) -> bool:
        """Whether it was not tried before; now it is."""
        if not self._is_countable and not self._running_study.is_exhaustive:
            return True
        key, before = _key(config), len(self._tried)
        self._tried.add(key)
        return len(self._tried) > before

    # -- facts -----------------------------------------------------------------------------------------------------

    def observe(self, observation: Observation) -> None:
        trial = self._trials.get(observation.trial_id)
        if trial is None:
            trial = self._trials[observation.trial_id] = _Trial(dict(observation.config))
        if all(map(math.isfinite, observation.losses)):
            from .with_optuna import LastReport

            trial.course.append((observation.iter, LastReport(observation.resource, observation.losses)))

    def on_rewind(self, trial_id: int, to_iter: int) -> None:
        course = self._trials[trial_id].course if trial_id in self._trials else []
        while course and course[-1][0] > to_iter:
            course.pop()

    def on_end(self, trial_id: int, status: str) -> None:
        trial = self._trials.pop(trial_id, None)
        with _naming(self.name):
            number = self._number_of(trial_id, trial)
            if number is None:
                return
            if trial is not None and trial.is_paused:
                self._running_study.go_on(number)
            self._running_study.end(number, status, trial.course[-1][1] if trial is not None and trial.course else None)

    def _number_of(self, trial_id: int, trial: _Trial | None) -> int | None:
        """The number in the study of a trial that is over; None: it never heard of it, and has nothing to hear."""
        if trial is not None and trial.number is not None:
            return trial.number
        opened = self._open
        if opened is not None and (opened.trial_id == trial_id if trial is None else opened.config == trial.config):
            self._open = None
            return opened.number
        return None if trial is None or not trial.course else self._add(trial.config)

    def _hear(self, pending: Mapping[int, Mapping[str, object]]) -> None:
        """Bring the study to what runs now."""
        study = self._running_study
        for trial_id, config in pending.items():
            trial = self._trials.get(trial_id)
            if trial is None:
                trial = self._trials[trial_id] = _Trial(dict(config))
            if trial.number is None:
                trial.number = self._started(trial.config)
            elif trial.is_paused:
                trial.is_paused = False
                study.go_on(trial.number)
        for trial_id, trial in self._trials.items():
            if trial_id not in pending and trial.course and not trial.is_paused:
                if trial.number is None:
                    trial.number = self._started(trial.config)
                trial.is_paused = True
                study.pause(trial.number, trial.course[-1][1])

    def _started(self, config: Mapping[str, object]) -> int:
        """The number of a trial that the study has not seen to run: the open suggestion, or somebody else's choice."""
        opened = self._open
        if opened is not None and opened.config == config:
            self._open = None
            return opened.number
        return self._add(config)

    def _add(self, config: Mapping[str, object]) -> int:
        self._num_added += 1
        self._is_new(config)
        return self._running_study.add(config)

    @property
    def _running_study(self) -> "OptunaStudy":
        assert self._study is not None, "begin() comes first"
        return self._study

    def describe(self) -> dict[str, object]:
        options = {name: _described(value) for name, value in sorted(self.options.items())}
        return {"name": "OptunaSearcher", "sampler": self.name, "options": options, "budget_s": self.budget_s}


def _described(value: object) -> object:
    """A setting for the record: itself, where JSON keeps it, else what it is called."""
    try:
        return plain_json("option", list(value) if isinstance(value, tuple) else value)
    except (TypeError, ValueError):
        return getattr(value, "__qualname__", type(value).__qualname__)


def _key(config: Mapping[str, object]) -> Hashable:
    return repr(sorted(config.items()))


def _untried(ask: Ask, tried: Collection[Hashable]) -> dict[str, object]:
    """A configuration at random that was not tried; one that was, where none is found."""
    config = ask.space.sample(ask.random)
    for _ in range(_MOST_TRIES):
        if _key(config) not in tried:
            return config
        config = ask.space.sample(ask.random)
    number = ask.space.num_configurations
    if number is not None and number <= _MOST_LISTED:
        left = [config for config in ask.space.grid(number) if _key(config) not in tried]
        config = ask.random.choice(left) if left else config
    return config


@contextmanager
def _naming(sampler: str) -> Iterator[None]:
    """What Optuna raises says who was asked."""
    try:
        yield
    except NotInstalled:
        raise
    except Exception as error:
        error.add_note(f"Optuna's {sampler} raised this, asked by OptunaSearcher.")
        raise
