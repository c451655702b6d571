"""A search as a study of Optuna in memory, for a sampler of Optuna to choose in.

    configuration  --Coordinate.param-->  parameter of Optuna  --Coordinate.value-->  configuration
    New trial -> RUNNING    Completed -> COMPLETE    Stopped, paused -> PRUNED    Failed, no finite report -> FAIL

The study minimises losses: modes were dealt with before. A hyperparameter whose domain has no counterpart in Optuna is
shown to the sampler as a number that stands for its value: the index of a countable one, else its place in [0, 1).
A hyperparameter that exists only beside certain values is asked for only beside these.

Knows nothing of trial ids, of which trials run, or of what was tried before: `OptunaSearcher` does.
"""

import inspect
import logging
import math
import re
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, final

from ...base.errors import NotInstalled
from ...base.nearest import did_you_mean
from ..spaces import Space
from ..spaces.conditions import exists, parents_first
from ..spaces.domains import Domain

try:
    import optuna
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
    from optuna.trial import TrialState

    from ..spaces.with_optuna import distribution_of
except ImportError as error:
    raise NotInstalled("OptunaSearcher needs Optuna. Install it: pip install 'fanwise[optuna]'.") from error

# Where Optuna keeps how far a trial violates its constraints, from version 2 to 5: above 0 is violated. Version 5 has
# `Trial.set_constraint`, which writes the same place in another form and needs the trial that `ask` gave out.
_CONSTRAINTS = "constraints"
_SAMPLERS = "optuna.samplers"  # whose loggers these are
_WHICH = re.compile(r"`[^`]*` in Trial#\d+|[Tt]rial ?#?\d+")
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_EXHAUSTIVE = (optuna.samplers.GridSampler, optuna.samplers.BruteForceSampler)
# All that these know is in the study, but for the chance that they draw. (A GPSampler keeps what it has fitted.)
_WITHOUT_MEMORY = (optuna.samplers.RandomSampler, optuna.samplers.TPESampler)


@dataclass(frozen=True, slots=True)
class LastReport:
    """What a trial reported last, all of it finite."""

    resource: float
    losses: tuple[float, ...]
    violations: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Coordinate:
    """How Optuna sees one hyperparameter: a distribution of it, and what stands for which value there."""

    distribution: BaseDistribution
    param: Callable[[object], Any]  # Any: a category, int or float of Optuna
    value: Callable[[Any], object]


def coordinate(domain: Domain) -> Coordinate:
    """The counterpart of a domain, or numbers that stand for its values."""
    same = distribution_of(domain)
    if isinstance(same, CategoricalDistribution):
        if len(set(same.choices)) == len(same.choices):
            return Coordinate(same, lambda value: value, lambda param: param)
        by_text = {repr(value): value for value in same.choices}  # True and 1 are one category to Optuna
        return Coordinate(CategoricalDistribution(tuple(by_text)), repr, by_text.__getitem__)
    if same is not None:
        return Coordinate(same, lambda value: value, domain.plain)
    if domain.num_values is None:
        return Coordinate(FloatDistribution(0.0, 1.0), domain.to_unit, lambda u: domain.from_unit(min(u, _BELOW_ONE)))
    finite: Any = domain  # Any: a FiniteDomain, which has these two methods
    first = _first_multiple(domain)
    numbers = IntDistribution(first, first + domain.num_values - 1, log=domain.made_by.startswith("qlog"))
    return Coordinate(
        numbers, lambda value: first + finite.index_of(value), lambda number: finite.value_at(int(number) - first)
    )


_BELOW_ONE = math.nextafter(1.0, 0.0)


def _first_multiple(domain: Domain) -> int:
    """Multiples on a logarithmic scale are counted as such, all others from 0."""
    if not domain.made_by.startswith("qlog"):
        return 0
    settings: Any = domain.settings()  # Any: numbers
    return round(Fraction(repr(settings["lower"])) / Fraction(repr(settings["q"])))


class _Storage(optuna.storages.InMemoryStorage):  # type: ignore[misc]  # checked alike without Optuna
    """Lets a trial go on that was paused: Optuna's trials end once."""

    def check_trial_is_updatable(self, trial_id: int, trial_state: TrialState) -> None:
        """All are."""


class _Study(optuna.study.Study):  # type: ignore[misc]  # checked alike without Optuna
    """Notes when the sampler ends it; Optuna's own can be ended inside `optimize` only."""

    is_over = False

    def stop(self) -> None:
        self.is_over = True


@final
class OptunaStudy:
    """The study behind one search. Its trials have numbers, 0, 1, ...

    A sampler without a memory of its own is made anew for each suggestion, with a seed for it: then suggestions depend
    on what is in the study and on nothing else, and a search that goes on need not ask for those of before.

    Args:
        make: makes a sampler with a seed.
        seed: of a sampler with a memory.
    """

    def __init__(self, space: Space, make: "Callable[[int], optuna.samplers.BaseSampler]", seed: int) -> None:
        self._space = space
        self._make = make
        self._sampler = make(seed)
        self._said = _Once()
        self._coordinates = {name: coordinate(domain) for name, domain in space.domains.items()}
        self._names = [name for name in parents_first(space.names, space.conditions) if name in space.domains]
        self._open(1)

    def _open(self, num_objectives: int) -> None:
        self._num_objectives = num_objectives
        self._storage = _Storage()
        with _unsaid():
            directions = [optuna.study.StudyDirection.MINIMIZE] * num_objectives
            self._study_id = self._storage.create_new_study(directions, "search")
            pruner = optuna.pruners.NopPruner()
            self._study = _Study("search", self._storage, sampler=self._sampler, pruner=pruner)

    @property
    def is_exhausted(self) -> bool:
        """Whether the sampler has tried everything, as samplers of grids say."""
        if isinstance(self._sampler, optuna.samplers.GridSampler) and self._sampler.is_exhausted(self._study):
            return True
        return self._study.is_over

    @property
    def is_exhaustive(self) -> bool:
        """Whether the sampler tries everything once; what it repeats, it has tried."""
        return isinstance(self._sampler, _EXHAUSTIVE)

    @property
    def has_memory(self) -> bool:
        """Whether the sampler remembers what it has suggested. A class derived from one without may have a memory."""
        return type(self._sampler) not in _WITHOUT_MEMORY

    def reseed(self, seed: int) -> None:
        """The next suggestions draw their chance from here on, unless the sampler has a memory."""
        if not self.has_memory:
            self._sampler = self._study.sampler = self._make(seed)

    def suggest(self) -> tuple[int, dict[str, object]]:
        """A new trial that runs: its number, and the configuration that the sampler chooses."""
        with _said_once(self._said):
            trial = self._study.ask()
            config = dict[str, object]()
            for name in self._names:
                if exists(name, config, self._space.conditions):
                    config[name] = self._coordinates[name].value(self._param(trial, name))
        return trial.number, self._space.check(config)

    def _param(self, trial: "optuna.Trial", name: str) -> Any:  # Any: a parameter of Optuna
        asked: Any = self._coordinates[name].distribution  # Any: one of three, whose attributes differ
        if isinstance(asked, CategoricalDistribution):
            return trial.suggest_categorical(name, asked.choices)
        suggest_number: Any = trial.suggest_int if isinstance(asked, IntDistribution) else trial.suggest_float
        return suggest_number(name, asked.low, asked.high, step=asked.step, log=asked.log)

    def add(self, config: Mapping[str, object]) -> int:
        """A new trial that runs, whose configuration somebody else has chosen; its number."""
        params = {name: self._coordinates[name].param(config[name]) for name in self._names if name in config}
        with _said_once(self._said):
            self._study.enqueue_trial(params)
            trial = self._study.ask()
            for name in params:
                self._param(trial, name)
        if hasattr(self._sampler, "get_trial_generation"):  # genetic ones: it belongs to a generation all the same
            self._sampler.get_trial_generation(self._study, self._frozen(trial.number))
        return int(trial.number)

    def pause(self, number: int, last: LastReport) -> None:
        """It does not run, and may go on."""
        self.end(number, "Stopped", last)

    def go_on(self, number: int) -> None:
        """It runs again."""
        for state in (TrialState.WAITING, TrialState.RUNNING):  # Optuna knows no other way to RUNNING
            self._storage.set_trial_state_values(self._id(number), state)

    def end(self, number: int, status: str, last: LastReport | None) -> None:
        """It is over. `last`: None where nothing finite was reported."""
        if last is None or status == "Failed":
            self._study.tell(number, state=TrialState.FAIL)
            return
        if len(last.losses) != self._num_objectives:
            self._grow(len(last.losses))
        if last.violations:
            self._storage.set_trial_system_attr(self._id(number), _CONSTRAINTS, list(last.violations))
            self._storage.set_trial_user_attr(self._id(number), _CONSTRAINTS, list(last.violations))
        if status == "Completed":
            self._study.tell(number, list(last.losses), state=TrialState.COMPLETE)
            return
        if len(last.losses) == 1:  # Optuna has no curves of several objectives
            self._storage.set_trial_intermediate_value(self._id(number), max(0, int(last.resource)), last.losses[0])
        self._study.tell(number, state=TrialState.PRUNED)

    def _grow(self, num_objectives: int) -> None:
        """The first report tells how many objectives there are. Nothing was told before it but failures."""
        trials, before = self._storage.get_all_trials(self._study_id), self._study
        attrs = self._storage.get_study_system_attrs(self._study_id)
        self._open(num_objectives)
        self._study.is_over = before.is_over
        for key, value in attrs.items():
            self._storage.set_study_system_attr(self._study_id, key, value)
        for trial in trials:
            self._storage.create_new_trial(self._study_id, template_trial=trial)

    def _id(self, number: int) -> int:
        return int(self._storage.get_trial_id_from_study_id_trial_number(self._study_id, number))

    def _frozen(self, number: int) -> "optuna.trial.FrozenTrial":
        return self._storage.get_trial(self._id(number))


def made(make: str | Callable[..., Any], options: Mapping[str, Any], seed: int) -> "optuna.samplers.BaseSampler":
    """The sampler that `make(seed=..., **options)` makes; `make` may be its name.

    Raises:
        TypeError: `make` takes no seed or not these options, or makes something else.
        ValueError: there is no sampler of this name.
    """
    maker, name = (_named(make), make) if isinstance(make, str) else (make, getattr(make, "__name__", repr(make)))
    accepted = inspect.signature(maker).parameters
    if not any(key == "seed" or one.kind is inspect.Parameter.VAR_KEYWORD for key, one in accepted.items()):
        raise TypeError(
            f"{name} takes no seed, so the search could not be repeated; hand in a function that does.\n"
            f"  for example:  OptunaSearcher(lambda seed: PartialFixedSampler({{'x': 1}}, TPESampler(seed=seed)))"
        )
    needed = [key for key, one in accepted.items() if one.default is one.empty and one.kind in _BY_NAME]
    if missing := [key for key in needed if key not in options and key != "seed"]:
        raise TypeError(f"{name} needs a value for {', '.join(missing)}: OptunaSearcher({name!r}, {missing[0]}=...)")
    more = dict(options)
    if "constraints_func" in accepted and "constraints_func" not in more and not _has_constraints_of_its_own():
        more["constraints_func"] = _violations
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)  # whoever names a sampler wants it
        sampler = maker(seed=seed, **more)
    if not isinstance(sampler, optuna.samplers.BaseSampler):
        raise TypeError(f"{name} must make a sampler of Optuna, but made {sampler!r}")
    return sampler


def options_of(sampler: str) -> list[str]:
    """The names of the options of a sampler. ValueError: there is none of this name."""
    return [name for name in inspect.signature(_named(sampler)).parameters if name != "seed"]


def _named(name: str) -> Callable[..., Any]:
    known = [known for known in optuna.samplers.__all__ if known.endswith("Sampler")]
    if name not in known:
        raise ValueError(f"optuna.samplers has no {name!r}{did_you_mean(name, known)}")
    made_by: Callable[..., Any] = getattr(optuna.samplers, name)
    return made_by


def _has_constraints_of_its_own() -> bool:
    """From Optuna 5 on samplers look for constraints by themselves."""
    return hasattr(optuna.trial.Trial, "set_constraint")


def _violations(trial: "optuna.trial.FrozenTrial") -> Sequence[float]:
    return tuple(trial.user_attrs.get(_CONSTRAINTS, ()))


class _Once(logging.Filter):
    """Lets a message through once, whichever parameter and trial of Optuna it is about."""

    def __init__(self) -> None:
        super().__init__()
        self._said: set[str] = set()

    def filter(self, record: logging.LogRecord) -> bool:
        text = _WHICH.sub("", record.getMessage())
        is_new = text not in self._said
        self._said.add(text)
        return is_new


@contextmanager
def _said_once(once: _Once) -> Iterator[None]:
    """What samplers say of every parameter of every trial is said once a search."""
    loggers = [logging.getLogger(name) for name in list(logging.root.manager.loggerDict) if name.startswith(_SAMPLERS)]
    for logger in loggers:
        logger.addFilter(once)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeFilter(once)


@contextmanager
def _unsaid() -> Iterator[None]:
    """Optuna tells of every study that is made: here it is a part of a search."""
    verbosity = optuna.logging.get_verbosity()
    optuna.logging.set_verbosity(max(verbosity, optuna.logging.WARNING))
    try:
        yield
    finally:
        optuna.logging.set_verbosity(verbosity)
