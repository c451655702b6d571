"""The sampler of Optuna in which a searcher of ours works.

    study's trials     --courses-->    `Following`  --places-->    parameters of Optuna
    distributions      --places-->     the space of the searcher

    COMPLETE -> Completed    PRUNED -> Stopped    FAIL -> Failed    RUNNING, WAITING -> Running

A value that Optuna's `report` or an objective has left NaN is a loss of infinity. In a study with constraints only what
a trial was at its end is told, when its constraints are known; a trial that sets none violates all, as it does to
Optuna's own samplers.

One searcher works at a time: for one study, one space and one set of constraints. When one of these changes, a fresh
copy begins and is told of all trials again.
"""

import math
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, TypeAlias, final

from ...base.errors import NotInstalled
from ..chance import Chance
from ..searchers.base import Searcher
from ..spaces import Space, choice
from ..spaces.domains import Domain
from .following import Course, Following, Report, Status

try:
    import optuna
    from optuna.distributions import BaseDistribution, CategoricalDistribution
    from optuna.search_space import IntersectionSearchSpace
    from optuna.trial import FrozenTrial, TrialState

    from ..spaces.with_optuna import distribution_of, from_optuna
except ImportError as error:
    raise NotInstalled("optuna_sampler needs Optuna. Install it: pip install 'fanwise[optuna]'.") from error

_STATUSES: Mapping[TrialState, Status] = {
    TrialState.COMPLETE: "Completed",
    TrialState.PRUNED: "Stopped",
    TrialState.FAIL: "Failed",
    TrialState.RUNNING: "Running",
    TrialState.WAITING: "Running",
}


@final
@dataclass(frozen=True, slots=True)
class Place:
    """How a hyperparameter of ours and a parameter of Optuna stand for each other.

    Args:
        choices: of a distribution whose categories a record cannot keep, such as classes: their places stand for them.
    """

    distribution: BaseDistribution
    domain: Domain
    choices: Sequence[Any] | None = None  # Any: whatever an objective asks for

    def value(self, param: Any) -> object:
        """Ours, for one of Optuna. ValueError, TypeError: there is none."""
        return self.domain.plain(param) if self.choices is None else int(self.distribution.to_internal_repr(param))

    def param(self, value: Any) -> Any:
        """Optuna's, for one of ours."""
        return value if self.choices is None else self.choices[value]


Places: TypeAlias = Mapping[str, Place]


def places_of_space(space: Space) -> Places:
    """ValueError: something in the space has no counterpart in Optuna; the message names it."""
    places = dict[str, Place]()
    for name, domain in space.domains.items():
        distribution = distribution_of(domain)
        if distribution is None:
            raise ValueError(
                f"{name!r} cannot be asked for in Optuna: {domain!r} has no counterpart there. Optuna knows uniform, "
                f"loguniform, quniform, randint, lograndint, qrandint and choice."
            )
        places[name] = Place(distribution, domain)
    return places


def place_of(distribution: BaseDistribution) -> Place:
    """Of a distribution with more than one value."""
    try:
        return Place(distribution, from_optuna({"it": distribution}).domains["it"])
    except (TypeError, ValueError):
        if not isinstance(distribution, CategoricalDistribution):
            raise
        return Place(distribution, choice(range(len(distribution.choices))), distribution.choices)


@final
@dataclass(frozen=True, slots=True)
class _Session:
    """A searcher at work, and what it works for: when `about` changes, another one begins."""

    about: tuple[object, ...]
    places: Places
    following: Following


@final
class SearcherSampler(optuna.samplers.BaseSampler):  # type: ignore[misc]  # checked alike without Optuna
    """Made by `optuna_sampler`. May be pickled between two trials."""

    def __init__(self, searcher: Searcher, space: Space | None, seed: int) -> None:
        self._searcher = searcher
        self._space = space
        self._seed = seed
        self._places = None if space is None else places_of_space(space)
        if space is not None:
            searcher.check(space)
        self._lock = threading.RLock()
        self._in_common: tuple[str, IntersectionSearchSpace] | None = None
        self._session: _Session | None = None
        self._without: set[int] = set()  # trials for which the searcher had nothing

    def infer_relative_search_space(self, study: optuna.Study, trial: FrozenTrial) -> dict[str, BaseDistribution]:
        if self._places is not None:
            return {name: place.distribution for name, place in self._places.items()}
        with self._lock:
            if self._in_common is None or self._in_common[0] != study.study_name:
                self._in_common = study.study_name, IntersectionSearchSpace()
            found = self._in_common[1].calculate(study)
        return {name: distribution for name, distribution in found.items() if not distribution.single()}

    def sample_relative(
        self, study: optuna.Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:  # Any: as above
        if not search_space and self._space is None:
            return {}
        with self._lock, self._naming(trial.number):
            # As `Study` itself has them: under a HyperbandPruner a study shows the trials of one bracket only.
            trials = optuna.Study.get_trials(study, deepcopy=False)
            session = self._session_of(study, trials, search_space)
            config = session.following.suggest(trial.number, _courses(study, trials, session))
        if config is not None:
            places = session.places
            found = {name: places[name].param(value) for name, value in config.items() if name in places}
            return {name: param for name, param in found.items() if name in search_space}
        if self._space is not None:  # else there may be more to a trial than what all had in common
            self._without.add(trial.number)
            with suppress(RuntimeError):  # in a loop of ask and tell there is nothing to be stopped
                study.stop()
        return {}

    def sample_independent(
        self, study: optuna.Study, trial: FrozenTrial, param_name: str, param_distribution: BaseDistribution
    ) -> Any:  # Any: as above
        if trial.number in self._without:
            raise optuna.TrialPruned(f"{type(self._searcher).__name__} has nothing more to suggest: the study is over.")
        place = place_of(param_distribution)
        chance = Chance(f"{self._seed}/independent/{trial.number}/{param_name}")
        return place.param(place.domain.from_unit(chance.random()))

    def _session_of(
        self, study: optuna.Study, trials: Sequence[FrozenTrial], search_space: Mapping[str, BaseDistribution]
    ) -> _Session:
        """The one that goes on, or a new one."""
        constrained = next((names for trial in trials if (names := tuple(_constraints(trial)))), ())
        about = (study.study_name, constrained, None if self._space is not None else dict(search_space))
        if self._session is None or self._session.about != about:
            places, space = self._places, self._space
            if places is None or space is None:
                places = {name: place_of(distribution) for name, distribution in search_space.items()}
                space = Space({name: place.domain for name, place in places.items()})
            self._session = _Session(about, places, Following(self._searcher, space, self._seed))
        return self._session

    @contextmanager
    def _naming(self, number: int) -> Iterator[None]:
        """What the searcher raises says who was asked."""
        try:
            yield
        except Exception as error:
            error.add_note(f"{type(self._searcher).__name__} raised this, asked by Optuna for trial {number}.")
            raise

    def __getstate__(self) -> dict[str, object]:
        with self._lock:
            return {**self.__dict__, "_lock": None}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state, _lock=threading.RLock())


def _courses(study: optuna.Study, trials: Sequence[FrozenTrial], session: _Session) -> Iterator[Course]:
    """Of the trials that the searcher may not have heard all of."""
    signs = [-1.0 if direction.name == "MAXIMIZE" else 1.0 for direction in study.directions]
    constrained: Any = session.about[1]  # Any: names
    for trial in trials:
        if not session.following.is_over(trial.number):
            known = {name: value for name, place in session.places.items() if (value := _known(trial, name, place))}
            reports = _reports(trial, signs, constrained)
            yield Course(trial.number, {name: value[0] for name, value in known.items()}, reports, _status(trial))


def _known(trial: FrozenTrial, name: str, place: Place) -> tuple[object] | None:
    """What the trial has of a hyperparameter; None: nothing so far, or nothing of ours."""
    try:
        return (place.value(trial.params[name]),)
    except (KeyError, TypeError, ValueError):
        return None


def _reports(trial: FrozenTrial, signs: Sequence[float], constrained: Sequence[str]) -> tuple[Report, ...]:
    """Its intermediate values, and the final ones."""
    steps = [] if len(signs) > 1 else sorted(trial.intermediate_values.items())
    found = [Report(float(step), (_loss(signs[0], value),)) for step, value in steps]
    if trial.state == TrialState.COMPLETE:
        last_step = found[-1].step if found else 1.0
        losses = tuple([_loss(sign, value) for sign, value in zip(signs, trial.values, strict=True)])
        found.append(Report(last_step, losses))
    if not constrained:
        return tuple(found)
    if not found or not trial.state.is_finished():
        return ()
    violations = _constraints(trial)
    return (Report(found[-1].step, found[-1].losses, tuple([violations.get(name, math.inf) for name in constrained])),)


def _loss(sign: float, value: float) -> float:
    return sign * value if math.isfinite(value) else math.inf


def _status(trial: FrozenTrial) -> Status:
    return _STATUSES[trial.state]


def _constraints(trial: FrozenTrial) -> Mapping[str, float]:
    """What a trial says of its constraints: `Trial.set_constraint` since Optuna 5, a list of its samplers' before."""
    if hasattr(trial, "constraints"):
        return trial.constraints  # type: ignore[no-any-return]  # Optuna is not looked at
    return {str(place): float(value) for place, value in enumerate(trial.system_attrs.get("constraints") or ())}
