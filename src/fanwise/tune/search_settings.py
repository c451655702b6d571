"""Settings of a search, which are validated when they are created and stored in the record.

Tuner(), search(), open_search(), simulate() --create()--> SearchSettings --new_metadata()--> meta.json
Tuner.resume(), replay_experiment()          <--from_json()-----------------------------------'
"""

import copy
import secrets
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from ..base.version import VERSION
from .callbacks.search_events import SearchStarted
from .constraints import Constraint, checked_constraints, constraints_of
from .core.search_core import SearchCore
from .default_searcher import SearcherChoice, choose_searcher
from .record.event_file import read_meta
from .runtime.checkpoint_store import checked_root
from .schedulers.scheduler import FIFO, Scheduler, checked_seed, seed_of
from .searchers import OPTUNA_PREFIX, SEARCHERS
from .searchers.searcher import Mode, Searcher
from .space import Space, space_from_json, space_to_json
from .stopping import StoppingCriterion, limits_of, max_trials, reference_losses
from .values import checked_bool, checked_int, checked_nonnegative

# Fields that are stored under "settings" in the metadata of the record. The others are top-level keys.
_CORE_OPTIONS = (
    "asynchronous", "trial_timeout_s", "stop_grace_s", "max_equal_failures", "retries", "keep_checkpoints"
)  # fmt: skip
_OPTIONS = (*_CORE_OPTIONS, "devices_per_trial", "divides_machine", "follows_hosts", "checkpoints", "reuse")


@dataclass(frozen=True, slots=True, kw_only=True)
class SearchSettings:
    """The settings of a search. See `Tuner` for the options.

    Args:
        scheduler: a scheduler whose `begin` has not been called. Searches run copies of it; see `copy_scheduler`.
        n_workers: number of trials that run at a time. 0: an ask-and-tell search, whose trials start on request.
        divides_machine: True if `devices_per_trial` was computed from `n_workers`. It is then computed again whenever
            `n_workers` changes.
        follows_hosts: True if `n_workers` is as many as fit on the hosts of the pool, and changes when they do.
        searcher_choice: the searcher that `create` chose. None: the user passed a searcher or scheduler, or the
            settings come from a record.

    Raises TypeError or ValueError if an option has the wrong type or value.
    """

    space: Space
    scheduler: Scheduler
    stop: StoppingCriterion
    seed: int
    n_workers: int
    constraints: tuple[Constraint, ...] = ()
    searcher_choice: SearcherChoice | None = None
    asynchronous: bool = True
    devices_per_trial: int | float = 1
    divides_machine: bool = False
    follows_hosts: bool = False
    checkpoints: str | None = None
    reuse: bool = False
    trial_timeout_s: float | None = None
    stop_grace_s: float = 5.0
    max_equal_failures: int | None = 3
    retries: int = 0
    keep_checkpoints: bool = False

    def __post_init__(self) -> None:
        if self.stop is None:
            raise ValueError("a search needs an end: pass stop=StoppingCriterion(...)")
        if not isinstance(self.stop, StoppingCriterion):
            raise TypeError(f"stop must be a StoppingCriterion, got {self.stop!r}")
        reference_losses(self.stop, self.scheduler.objectives)  # raises if the reference point has other names
        for option in ("asynchronous", "reuse", "keep_checkpoints"):
            checked_bool(option, getattr(self, option))
        object.__setattr__(self, "checkpoints", checked_root(self.checkpoints))
        if self.trial_timeout_s is not None and not checked_nonnegative("trial_timeout_s", self.trial_timeout_s):
            raise ValueError("trial_timeout_s must be above 0; None sets no limit")
        checked_nonnegative("stop_grace_s", self.stop_grace_s)
        if self.max_equal_failures is not None:
            checked_int("max_equal_failures", self.max_equal_failures, 1)
        checked_int("retries", self.retries, 0)
        self.scheduler.check(self.space)

    @classmethod
    def create(
        cls,
        space: Space,
        scheduler: Scheduler | None,
        stop: StoppingCriterion,
        *,
        n_workers: int,
        metric: str | Sequence[str] | None = None,
        mode: Mode | Sequence[Mode] = "min",
        searcher: Searcher | str | None = None,
        points_to_evaluate: Sequence[Mapping[str, object]] | None = None,
        constraints: Sequence[str] = (),
        random_seed: int | None = None,
        default_seed: int | None = None,
        **options: Any,
    ) -> "SearchSettings":
        """Return validated settings. Choose a searcher if neither a scheduler nor a searcher is given.

        Args:
            random_seed: seed of the search. None: the scheduler's seed or, if it has none, `default_seed`.
            default_seed: None: a random seed.

        Raises:
            TypeError: a scheduler and also settings that belong to the scheduler, such as `metric`, are given.
            TypeError, ValueError: a setting has the wrong type or value.
        """
        choice = None
        if scheduler is not None:
            check_scheduler(scheduler)
            if metric is not None or mode != "min" or searcher is not None or points_to_evaluate is not None:
                raise TypeError(
                    "the scheduler has a metric, mode, searcher and points_to_evaluate already: pass metric=, mode=, "
                    "searcher= and points_to_evaluate= to the scheduler only"
                )
        elif metric is None:
            raise TypeError('a search needs the name of the value to optimize, such as metric="loss", or a scheduler')
        else:
            if searcher is None:
                choice = choose_searcher(
                    num_objectives=1 if isinstance(metric, str) else len(metric),
                    has_conditions=bool(space.conditions),
                    max_trials=max_trials(stop) if isinstance(stop, StoppingCriterion) else None,
                    n_workers=max(1, n_workers),
                )
                searcher = choice.name
            scheduler = FIFO(searcher, metric=metric, mode=mode, points_to_evaluate=points_to_evaluate)
        default_seed = secrets.randbits(31) if default_seed is None else default_seed
        return cls(
            space=space,
            scheduler=_copy(scheduler),
            stop=stop,
            seed=seed_of(scheduler, checked_seed(random_seed), default_seed),
            n_workers=n_workers,
            constraints=tuple(constraints_of(scheduler, constraints)),
            searcher_choice=choice,
            **options,
        )

    @classmethod
    def from_json(cls, meta: Mapping[str, Any], scheduler: Scheduler, space: Space | None = None) -> "SearchSettings":
        """Return the settings from the metadata of a record.

        Args:
            meta: JSON from `new_metadata`.
            scheduler: the experiment's scheduler, whose `begin` has not been called.
            space: the experiment's space. None: the recorded space, which has only the names of categories that are
                Python objects (functions, lists, ...).

        Raises ValueError if the scheduler has another random seed than the experiment.
        """
        check_scheduler(scheduler)
        return cls(
            space=space_from_json(meta["space"]) if space is None else space,
            scheduler=_copy(scheduler),
            stop=StoppingCriterion(**meta["stop"]),
            seed=seed_of(scheduler, meta["seed"], meta["seed"]),
            n_workers=meta["n_workers"],
            constraints=tuple(checked_constraints(meta.get("constraints", []))),
            **{name: value for name, value in meta["settings"].items() if name in _OPTIONS},
        )

    def new_metadata(self, name: str, objective: str) -> dict[str, object]:
        """Return the metadata of a new experiment, including the settings. `objective`: name of the function."""
        choice, objectives = self.searcher_choice, self.scheduler.objectives
        return {
            "id": secrets.token_hex(16),
            "name": name,
            "objective": objective,
            "created_s": time.time(),
            "versions": self.versions(),
            "space": space_to_json(self.space),
            "scheduler": self.scheduler.describe(),
            "chosen": None if choice is None else {"searcher": choice.name, "because": choice.reason},
            "metric": objectives[0].metric,
            "mode": objectives[0].mode,
            "objectives": [[objective.metric, objective.mode] for objective in objectives],
            "constraints": list(map(str, self.constraints)),
            "resource_attr": self.scheduler.resource_attr,
            "seed": self.seed,
            "n_workers": self.n_workers,
            "stop": limits_of(self.stop),
            "settings": {name: getattr(self, name) for name in _OPTIONS},
        }

    def start_event(self, name: str, folder: Path, *, is_resumed: bool) -> SearchStarted:
        """Return the event that callbacks receive when the search in this folder starts or is resumed."""
        created_s, objectives = float(read_meta(folder)["created_s"]), self.scheduler.objectives
        return SearchStarted(name, folder, self.space, objectives, self.seed, self.n_workers, is_resumed, created_s)

    def copy_scheduler(self) -> Scheduler:
        return _copy(self.scheduler)

    def new_core(self, scheduler: Scheduler) -> SearchCore:
        """Call `begin` of `scheduler`, a copy from `copy_scheduler`. Return the state machine of a new search."""
        scheduler.begin(self.space, self.seed)
        return SearchCore(
            scheduler,
            self.space,
            self.stop,
            n_workers=self.n_workers,
            constraints=self.constraints,
            seed=self.seed,
            **{name: getattr(self, name) for name in _CORE_OPTIONS},
        )

    def check_equal(self, meta: Mapping[str, Any], *, objective: str, seed: int | None = None) -> None:
        """Raise ValueError, with a list of all differences, unless these settings can continue a recorded search.

        Args:
            meta: metadata of the recorded search.
            objective: name of the objective function.
            seed: the random seed that the user passed. None: do not compare the seed.
        """
        recorded_space, space = meta["space"], space_to_json(self.space)
        names = recorded_space | space
        pairs = {f"{name!r} in the space": (recorded_space.get(name), space.get(name)) for name in names}
        pairs["objective"] = meta["objective"], objective
        pairs["scheduler"] = meta["scheduler"], self.scheduler.describe()
        pairs["constraints"] = meta.get("constraints", []), list(map(str, self.constraints))
        if seed is not None:
            pairs["random seed"] = meta["seed"], seed
        differences = [f"{name}: was {old!r}, is {new!r}" for name, (old, new) in pairs.items() if old != new]
        if differences:
            raise ValueError(
                f"the experiment {meta['name']!r} can only be resumed with the same settings:\n  "
                + "\n  ".join(differences)
                + "\nPass the recorded values, or start a new experiment."
            )

    def versions(self) -> dict[str, str]:
        """Return the versions of installed libraries that may affect the results."""
        versions = {"fanwise": VERSION, "python": sys.version.split()[0]}
        for name in dict.fromkeys(("torch", "numpy", *self.scheduler.searcher.libraries)):
            if name != "fanwise":
                with suppress(PackageNotFoundError):
                    versions[name] = version(name)
        return versions


def as_space(space: Space | Mapping[str, Any]) -> Space:
    """Return the space, or a new Space if the argument is a dict."""
    return space if isinstance(space, Space) else Space(space)


def check_scheduler(scheduler: object) -> None:
    """Raise TypeError unless this is a scheduler."""
    if isinstance(scheduler, type):
        raise TypeError(
            f"the scheduler must be an object, got the class {scheduler.__name__}.\n"
            f"  right:  {scheduler.__name__}(metric=...)"
        )
    if not isinstance(scheduler, Scheduler):
        hint = "Pass a searcher to FIFO(searcher, metric=...)."
        if isinstance(scheduler, str) and (scheduler in SEARCHERS or scheduler.startswith(OPTUNA_PREFIX)):
            hint = f"To name a searcher, write searcher={scheduler!r}."
        raise TypeError(
            f"the scheduler must be a Scheduler, such as ASHA(metric='loss', max_t=81), got {scheduler!r}. {hint}"
        )


def _copy(scheduler: Scheduler) -> Scheduler:
    """Return a deep copy, because users may pass a scheduler to several searches. Raises TypeError if that fails."""
    try:
        return copy.deepcopy(scheduler)
    except Exception as error:  # copying user code may raise any exception
        name = type(scheduler).__name__
        raise TypeError(
            f"a search runs a copy of its scheduler, and {name} cannot be copied ({type(error).__name__}: {error}). "
            f"Create locks, files and the like in begin(), not in __init__."
        ) from error
