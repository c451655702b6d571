"""Any sampler of Optuna as a searcher.

    trials that run, pause, end  --told before each question-->  a study in memory  -->  sampler  -->  suggestion

The study hears of a trial when it runs, when it pauses and when it is over, not of every report: so a void report is
forgotten here. Its last report counts, as in Optuna; a trial whose last report is not finite has failed.

Invariant: at most one suggestion is open, made and not yet seen to run. One that came too late for its worker never
runs: it is suggested again.
"""

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, final

from ...base.errors import NotInstalled
from ...base.extras import check_installed
from ..chance import Chance
from ..spaces import Space
from ..values import plain_json, seconds
from .base import Ask, Observation, Searcher

if TYPE_CHECKING:
    from .with_optuna import LastReport, OptunaStudy

_WITH_TORCH = "GPSampler"  # imports torch with its first model, not when it is made
_MOST_TRIES = 3  # so often a sampler is asked that repeats itself


@dataclass(slots=True)
class _Trial:
    """A trial that is not over. `number`: in the study; None: it has not heard of it.

    `course`: the reports that stand, each with its iteration; None: not finite.
    """

    config: Mapping[str, object]
    number: int | None = None
    is_paused: bool = False
    course: list[tuple[int, "LastReport | None"]] = field(default_factory=list)

    @property
    def last(self) -> "LastReport | None":
        return self.course[-1][1] if self.course else None


@dataclass(slots=True)
class _Open:
    """A suggestion that has not been seen to run."""

    number: int
    trial_id: int
    config: dict[str, object]


@final
class OptunaSearcher(Searcher):
    """Suggests what a sampler of Optuna chooses.

    The sampler is made when the search begins, with a seed made from the search's. It hears of trials that run, are
    paused or failed, of several objectives and of constraints. Nothing is suggested twice: what the sampler repeats is
    drawn at random instead; when everything was tried, and when the sampler of a grid has come to its end, the search
    ends.

    When a search is resumed, samplers that have a memory of their own are asked again for every suggestion made before,
    so that they stand where they stood; TPE and random ones are only told.

    Args:
        sampler: the name of a sampler in `optuna.samplers`, its class, or a function that makes one; is called with
            `seed=` and the options.
        budget_s: seconds a free worker waits for a suggestion before it gets a random configuration; None: for ever,
            and reports wait too.
        options: of the sampler.

    Raises:
        TypeError: a sampler instead of its class, or a seed, which is the search's.
        NotInstalled: when the search is checked: Optuna is missing, or torch for the GPSampler.

    >>> searcher = OptunaSearcher("TPESampler", n_startup_trials=20)
    >>> searcher.describe()["options"]
    {'n_startup_trials': 20}
    """

    budget_s: ClassVar[float | None] = None
    libraries: ClassVar[tuple[str, ...]] = ("fanwise", "numpy", "scipy", "optuna")

    def __init__(
        self,
        sampler: str | Callable[..., Any],  # Any: an optuna.samplers.BaseSampler, checked alike without Optuna
        *,
        budget_s: float | None = 10.0,
        **options: Any,  # Any: the sampler's
    ) -> None:
        if not isinstance(sampler, str) and not callable(sampler):
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
        if self.name == _WITH_TORCH:
            self.libraries = (*type(self).libraries, "torch")  # type: ignore[misc]  # as above
        self._study: OptunaStudy | None = None

    def check(self, space: Space) -> None:
        with _naming(self.name):
            self._new_study(space, 0)

    def begin(self, space: Space, seed: int) -> None:
        with _naming(self.name):
            self._study = self._new_study(space, Chance(f"{seed}/optuna").getrandbits(32))
        self._seed = seed
        from .encoding import Encoder

        self._encoder = Encoder(space)
        self._num_configurations = space.num_configurations
        self._used: set[bytes] = set()  # keys of what was suggested, or has run
        self._num_added = 0
        self._open: _Open | None = None
        self._trials: dict[int, _Trial] = {}

    def _new_study(self, space: Space, seed: int) -> "OptunaStudy":
        if self.name == _WITH_TORCH:
            check_installed(f"Optuna's {_WITH_TORCH} needs", "optuna", "torch", extra="optuna,torch")
        from .with_optuna import OptunaStudy, made

        return OptunaStudy(space, partial(made, self.sampler, self.options), seed)

    @property
    def name(self) -> str:
        """Of the sampler's class, or of what makes it."""
        made_by = self.sampler
        return made_by if isinstance(made_by, str) else getattr(made_by, "__name__", type(made_by).__name__)

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
        """A sampler without a memory is told; another one is asked again, and what it has suggested then counts."""
        study = self._running_study
        if study.has_memory:
            suggested = self.suggest(ask)
        else:
            with _naming(self.name):
                self._hear(ask.pending)
            suggested = None if self._open is None else self._open.config
        if suggested != config and self._open is not None:  # it was another library then
            study.end(self._open.number, "Failed", None)
            self._open = None
        if self._open is not None:
            self._open.trial_id = ask.trial_id
        elif config is not None and not study.has_memory:
            self._use(config)
            self._open = _Open(study.add(config), ask.trial_id, dict(config))

    def _new_suggestion(self, ask: Ask) -> _Open | None:
        """One that was not tried yet; None: there is none."""
        study = self._running_study
        study.reseed(Chance(f"{self._seed}/optuna/{ask.number}").getrandbits(32))
        tries = _MOST_TRIES
        if study.is_exhaustive:  # it knows of what others have chosen only when it has chosen that too
            tries += self._num_added
        while tries and len(self._used) != self._num_configurations and not study.is_exhausted:
            number, config = study.suggest()
            if self._use(config):
                return _Open(number, ask.trial_id, config)
            study.end(number, "Failed", None)
            tries -= 1
        if study.is_exhaustive or study.is_exhausted:
            return None
        from .encoding import generator

        row = self._encoder.unused(self._used, generator(ask))
        if row is None:
            return None
        config = self._encoder.config(row)
        self._use(config)
        return _Open(study.add(config), ask.trial_id, config)

    def _use(self, config: Mapping[str, object]) -> bool:
        """Note that it was tried. Whether it was not before."""
        before = len(self._used)
        self._used.update(self._encoder.keys(self._encoder.rows([config])))
        return len(self._used) > before

    # -- facts -----------------------------------------------------------------------------------------------------

    def observe(self, observation: Observation) -> None:
        trial = self._trials.get(observation.trial_id)
        if trial is None:
            trial = self._trials[observation.trial_id] = _Trial(dict(observation.config))
            if observation.trial_id >= 0:  # what was tried in an earlier search may be tried in this one
                self._use(observation.config)
        trial.course.append((observation.iter, _last_report(observation)))

    def on_rewind(self, trial_id: int, to_iter: int) -> None:
        course = self._trials[trial_id].course if trial_id in self._trials else []
        while course and course[-1][0] > to_iter:
            course.pop()

    def on_end(self, trial_id: int, status: str) -> None:
        trial = self._trials.pop(trial_id, None)
        if trial_id < 0 and self._running_study.is_exhaustive:
            return  # a grid is searched whatever came out before
        with _naming(self.name):
            number = self._number_of(trial_id, trial)
            if number is None:
                return
            if trial is not None and trial.is_paused:
                self._running_study.go_on(number)
            self._running_study.end(number, status, None if trial is None else trial.last)

    def _number_of(self, trial_id: int, trial: _Trial | None) -> int | None:
        """The number in the study of a trial that is over; None: it never heard of it, and has nothing to hear."""
        if trial is not None and trial.number is not None:
            return trial.number
        opened = self._open
        if opened is not None and (opened.trial_id == trial_id if trial is None else opened.config == trial.config):
            self._open = None
            return opened.number
        return self._add(trial.config) if trial is not None and trial.course else None

    def _hear(self, pending: Mapping[int, Mapping[str, object]]) -> None:
        """Bring the study to what runs now."""
        study = self._running_study
        for trial_id, config in pending.items():
            trial = self._trials.get(trial_id)
            if trial is None:
                trial = self._trials[trial_id] = _Trial(dict(config))
                self._use(config)
            if trial.number is None:
                trial.number = self._started(trial.config)
            elif trial.is_paused:
                trial.is_paused = False
                study.go_on(trial.number)
        for trial_id, trial in self._trials.items():
            if trial_id not in pending and trial.last is not None and not trial.is_paused:
                if trial.number is None:
                    trial.number = self._started(trial.config)
                trial.is_paused = True
                study.pause(trial.number, trial.last)

    def _started(self, config: Mapping[str, object]) -> int:
        """The number of a trial that the study has not seen to run: the open suggestion, or somebody else's choice."""
        opened = self._open
        if opened is not None and opened.config == config:
            self._open = None
            return opened.number
        return self._add(config)

    def _add(self, config: Mapping[str, object]) -> int:
        self._num_added += 1
        return self._running_study.add(config)

    @property
    def _running_study(self) -> "OptunaStudy":
        assert self._study is not None, "begin() comes first"
        return self._study

    def describe(self) -> dict[str, object]:
        options = {name: _described(value) for name, value in sorted(self.options.items())}
        return {"name": "OptunaSearcher", "sampler": self.name, "options": options, "budget_s": self.budget_s}


def sampler_options(sampler: str) -> list[str]:
    """The names of the options of a sampler of Optuna.

    Raises:
        ValueError: there is no sampler of this name.
        NotInstalled: Optuna is not there.
    """
    from .with_optuna import options_of

    return options_of(sampler)


def _last_report(observation: Observation) -> "LastReport | None":
    from .with_optuna import LastReport

    if not all(map(math.isfinite, (*observation.losses, *observation.violations))):
        return None
    return LastReport(observation.resource, observation.losses, observation.violations)


def _described(value: object) -> object:
    """A setting for the record: itself, where JSON keeps it, else what it is called."""
    try:
        return plain_json("option", list(value) if isinstance(value, tuple) else value)
    except (TypeError, ValueError):
        return getattr(value, "__qualname__", type(value).__qualname__)


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
