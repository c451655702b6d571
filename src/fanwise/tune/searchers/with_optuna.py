"""Optuna distributions of a space, and an in-memory study for the samplers used by `OptunaSearcher`.

Domains are converted to these distributions:

    uniform, loguniform; quniform and finrange if their step is an exact decimal             FloatDistribution
    randint, lograndint, qrandint; finrange with cast_int if its step is an integer          IntDistribution
    choice; a constant is a single category                                                  CategoricalDistribution

A value of another domain is represented by its index, or by a number in [0, 1). The study minimizes losses. Trials are
RUNNING, COMPLETE, PRUNED (stopped or paused) or FAIL (failed, or without a finite last report).
"""

import inspect
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, final

from ...base.errors import NotInstalled
from ...base.nearest import did_you_mean
from ..space import Domain, Space
from ..space.domains import is_finite
from ..space.numeric import Quantized
from ..space.parameters import exists, parents_first
from ..space.scales import below_one
from .searcher import Observation

try:
    import optuna
    from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
    from optuna.trial import TrialState
except ImportError as error:
    raise NotInstalled("OptunaSearcher needs Optuna. Install it: pip install 'fanwise[optuna]'.") from error

# Attribute in which Optuna 2 to 5 store constraint violations. `Trial.set_constraint` of Optuna 5 is not used, because
# it needs the trial returned by `ask`.
_CONSTRAINTS = "constraints"
_EXHAUSTIVE = (optuna.samplers.GridSampler, optuna.samplers.BruteForceSampler)
# Samplers whose only state is the study and their random number generator.
_STATELESS = (optuna.samplers.RandomSampler, optuna.samplers.TPESampler)


def distributions(space: Space) -> dict[str, BaseDistribution]:
    """Return the distribution of every hyperparameter and constant of the space.

    Raises ValueError if a domain or constant cannot be converted. Priors are omitted.

    >>> from fanwise.tune import loguniform
    >>> distributions(Space({"lr": loguniform(0.01, 1), "epochs": 10}))["lr"]
    FloatDistribution(high=1.0, log=True, low=0.01, step=None)
    """
    result: dict[str, BaseDistribution] = {}
    for name, value in space.constants.items():
        if isinstance(value, list | dict):
            problem = f"{value!r} is neither a string, a number nor None"
            raise ValueError(f"the constant {name!r} cannot be converted to an Optuna distribution: {problem}")
        result[name] = CategoricalDistribution((value,))
    for name, domain in space.domains.items():
        distribution = distribution_of(domain)
        if distribution is None:
            raise ValueError(f"{name!r} = {domain!r} cannot be converted to an Optuna distribution")
        result[name] = distribution
    return result


def distribution_of(domain: Domain) -> BaseDistribution | None:
    """Return the Optuna distribution with exactly the values of the domain, or None if Optuna has none."""
    settings: Any = domain.settings()
    if domain.domain_type == "choice":
        return CategoricalDistribution(settings["categories"])
    low, high = settings.get("lower"), settings.get("upper")
    if domain.domain_type in ("uniform", "loguniform"):
        return FloatDistribution(low, high, log=domain.domain_type == "loguniform")
    if domain.domain_type in ("randint", "lograndint"):
        return IntDistribution(low, high, log=domain.domain_type == "lograndint")
    step = _step(domain.domain_type, settings)
    if step is None:
        return None
    if isinstance(low, int):
        return IntDistribution(low, high, step=int(step))
    return FloatDistribution(low, high, step=float(step))


def _step(domain_type: str, settings: Mapping[str, Any]) -> Fraction | None:
    """Return the step of equally spaced values if Optuna can represent it exactly, otherwise None."""
    if domain_type in ("quniform", "qrandint"):
        step = Fraction(repr(settings["q"]))
        return step if (Fraction(repr(settings["upper"])) / step).denominator == 1 else None  # e.g. None for q = 1/3
    if domain_type != "finrange":
        return None
    width = Fraction(repr(settings["upper"])) - Fraction(repr(settings["lower"]))
    step = width / (settings["size"] - 1)
    if settings["cast_int"]:
        return step if step.denominator == 1 else None
    return step if Fraction(repr(float(step))) == step else None


@dataclass(frozen=True, slots=True)
class ParameterMapping:
    """The Optuna distribution of a domain, and conversions between Optuna's parameter and the value of the domain."""

    distribution: BaseDistribution
    to_param: Callable[[object], Any]
    to_value: Callable[[Any], object]


def parameter_mapping(domain: Domain) -> ParameterMapping:
    """Return the mapping of a domain.

    If Optuna has no distribution with the same values, the parameter is the index of the value or, for real-valued
    domains, a number in [0, 1).
    """
    distribution = distribution_of(domain)
    if isinstance(distribution, CategoricalDistribution):
        if len(set(distribution.choices)) == len(distribution.choices):
            return ParameterMapping(distribution, lambda value: value, lambda param: param)
        by_text = {repr(value): value for value in distribution.choices}  # for Optuna, True and 1 are equal
        return ParameterMapping(CategoricalDistribution(tuple(by_text)), repr, by_text.__getitem__)
    if distribution is not None:
        return ParameterMapping(distribution, lambda value: value, domain.normalize)
    if not is_finite(domain):
        return ParameterMapping(FloatDistribution(0.0, 1.0), domain.to_unit, lambda u: domain.from_unit(below_one(u)))
    first, is_log = 0, False
    if isinstance(domain, Quantized) and domain.is_log:  # count from lower / q, so that the log scale is right
        first, is_log = round(Fraction(repr(domain.lower)) / Fraction(repr(domain.q))), True
    return ParameterMapping(
        IntDistribution(first, first + domain.num_values - 1, log=is_log),
        lambda value: first + domain.index_of(value),
        lambda number: domain.value_at(int(number) - first),
    )


class _Storage(optuna.storages.InMemoryStorage):  # type: ignore[misc]  # untyped without Optuna
    """Allows updates of finished trials. A paused trial, which is PRUNED in Optuna, may be resumed."""

    def check_trial_is_updatable(self, trial_id: int, trial_state: TrialState) -> None:
        """Allow every update."""


class _Study(optuna.study.Study):  # type: ignore[misc]  # untyped without Optuna
    """A study whose `stop` also works outside `optimize`. Samplers call `stop`, and Optuna's raises an error there."""

    is_stopped = False

    def stop(self) -> None:
        self.is_stopped = True


@final
class OptunaStudy:
    """The study of one search. `sampler_factory` constructs the sampler from a seed.

    Call `reseed` before each suggestion: it replaces a stateless sampler, so that suggestions depend only on the study
    and the seed.
    """

    def __init__(self, space: Space, sampler_factory: Callable[[int], Any], seed: int) -> None:
        self._space = space
        self._sampler_factory = sampler_factory
        self._sampler = sampler_factory(seed)
        self._mappings = {name: parameter_mapping(domain) for name, domain in space.domains.items()}
        self._names = [name for name in parents_first(space.names, space.conditions) if name in space.domains]
        self._create_study(1)

    def _create_study(self, num_objectives: int) -> None:
        self._num_objectives = num_objectives
        self._storage = _Storage()
        directions = [optuna.study.StudyDirection.MINIMIZE] * num_objectives
        verbosity = optuna.logging.get_verbosity()
        optuna.logging.set_verbosity(max(verbosity, optuna.logging.WARNING))  # a new study logs a message
        try:
            self._study_id = self._storage.create_new_study(directions, "search")
            pruner = optuna.pruners.NopPruner()
            self._study = _Study("search", self._storage, sampler=self._sampler, pruner=pruner)
        finally:
            optuna.logging.set_verbosity(verbosity)

    @property
    def is_exhausted(self) -> bool:
        """True if the sampler has stopped the study, or a grid sampler has tried all configurations."""
        is_grid = isinstance(self._sampler, optuna.samplers.GridSampler)
        return self._study.is_stopped or (is_grid and self._sampler.is_exhausted(self._study))

    @property
    def suggests_each_config_once(self) -> bool:
        return isinstance(self._sampler, _EXHAUSTIVE)

    @property
    def has_state(self) -> bool:
        """True if the sampler may have state besides the study. Always True for user-defined subclasses."""
        return type(self._sampler) not in _STATELESS

    def reseed(self, seed: int) -> None:
        """Replace a stateless sampler by one with this seed."""
        if not self.has_state:
            self._sampler = self._study.sampler = self._sampler_factory(seed)

    def suggest(self) -> tuple[int, dict[str, object]]:
        """Start a trial. Return its number and the configuration that the sampler chose."""
        trial = self._study.ask()
        config: dict[str, object] = {}
        for name in self._names:
            if exists(name, config, self._space.conditions):
                config[name] = self._mappings[name].to_value(self._suggest_param(trial, name))
        return trial.number, self._space.check(config)

    def _suggest_param(self, trial: "optuna.Trial", name: str) -> Any:
        distribution: Any = self._mappings[name].distribution
        if isinstance(distribution, CategoricalDistribution):
            return trial.suggest_categorical(name, distribution.choices)
        suggest: Any = trial.suggest_int if isinstance(distribution, IntDistribution) else trial.suggest_float
        return suggest(name, distribution.low, distribution.high, step=distribution.step, log=distribution.log)

    def start_with_config(self, config: Mapping[str, object]) -> int:
        """Start a trial with a configuration that the sampler did not choose. Return its number."""
        params = {name: self._mappings[name].to_param(config[name]) for name in self._names if name in config}
        self._study.enqueue_trial(params)
        trial = self._study.ask()
        for name in params:
            self._suggest_param(trial, name)
        if hasattr(self._sampler, "get_trial_generation"):  # genetic samplers assign a generation to each trial
            self._sampler.get_trial_generation(self._study, self._storage.get_trial(self._storage_id(trial.number)))
        return int(trial.number)

    def resume(self, number: int) -> None:
        """Resume a paused trial."""
        for state in (TrialState.WAITING, TrialState.RUNNING):  # Optuna accepts RUNNING only after WAITING
            self._storage.set_trial_state_values(self._storage_id(number), state)

    def end(self, number: int, status: str, last_report: Observation | None) -> None:
        """End a trial. `last_report` is None if the trial has no report, or if its last report is not finite."""
        if last_report is None or status == "Failed":
            self._study.tell(number, state=TrialState.FAIL)
            return
        if len(last_report.losses) != self._num_objectives:
            self._set_num_objectives(len(last_report.losses))
        if last_report.violations:
            self._storage.set_trial_system_attr(self._storage_id(number), _CONSTRAINTS, list(last_report.violations))
            self._storage.set_trial_user_attr(self._storage_id(number), _CONSTRAINTS, list(last_report.violations))
        if status == "Completed":
            self._study.tell(number, list(last_report.losses), state=TrialState.COMPLETE)
            return
        if len(last_report.losses) == 1:  # Optuna has no intermediate values of several objectives
            step = max(0, int(last_report.resource))
            self._storage.set_trial_intermediate_value(self._storage_id(number), step, last_report.losses[0])
        self._study.tell(number, state=TrialState.PRUNED)

    def _set_num_objectives(self, num_objectives: int) -> None:
        """Recreate the study with the number of objectives, which is unknown until the first result.

        Existing trials can be copied because none has values yet: each has failed or is still running.
        """
        trials, previous_study = self._storage.get_all_trials(self._study_id), self._study
        attrs = self._storage.get_study_system_attrs(self._study_id)
        self._create_study(num_objectives)
        self._study.is_stopped = previous_study.is_stopped
        for key, value in attrs.items():
            self._storage.set_study_system_attr(self._study_id, key, value)
        for trial in trials:
            self._storage.create_new_trial(self._study_id, template_trial=trial)

    def _storage_id(self, number: int) -> int:
        return int(self._storage.get_trial_id_from_study_id_trial_number(self._study_id, number))


def make_sampler(
    factory: str | Callable[..., Any], options: Mapping[str, Any], seed: int
) -> "optuna.samplers.BaseSampler":
    """Construct a sampler with `factory(seed=..., **options)`. `factory` may be the name of a sampler.

    Raises:
        TypeError: the factory does not accept a seed or the options, or does not return a sampler.
        ValueError: Optuna has no sampler of this name.
    """
    factory_function = _sampler_class(factory) if isinstance(factory, str) else factory
    keywords = dict(options)
    parameters = inspect.signature(factory_function).parameters
    # Samplers of Optuna 5, which added `Trial.set_constraint`, read the constraints from the trials. Earlier samplers
    # need `constraints_func`.
    if "constraints_func" in parameters and not hasattr(optuna.trial.Trial, "set_constraint"):
        keywords.setdefault("constraints_func", _violations)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = factory_function(seed=seed, **keywords)
    if not isinstance(sampler, optuna.samplers.BaseSampler):
        raise TypeError(f"{factory_function!r} must return an Optuna sampler, but returned {sampler!r}")
    return sampler


def sampler_options(name: str) -> list[str]:
    """Return the names of the options of a sampler. Raises ValueError for an unknown sampler."""
    return [option for option in inspect.signature(_sampler_class(name)).parameters if option != "seed"]


def _sampler_class(name: str) -> Callable[..., Any]:
    names = [sampler for sampler in optuna.samplers.__all__ if sampler.endswith("Sampler")]
    if name not in names:
        raise ValueError(f"optuna.samplers has no {name!r}{did_you_mean(name, names)}")
    sampler_class: Callable[..., Any] = getattr(optuna.samplers, name)
    return sampler_class


def _violations(trial: "optuna.trial.FrozenTrial") -> Sequence[float]:
    return tuple(trial.user_attrs.get(_CONSTRAINTS, ()))
