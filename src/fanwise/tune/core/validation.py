"""Validates the return values of schedulers and searchers and the reports of objectives."""

import math
from collections.abc import Mapping, Sequence

from ...base.nearest import nearest
from ..constraints import Constraint
from ..schedulers.scheduler import Decision
from ..searchers.searcher import Objective
from ..space import Space
from ..values import is_number


class Refused(Exception):
    """Raised for an invalid return value. `cause` is the exception that the user receives."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


def checked_decision(decision: object, scheduler: str, trial_id: int) -> Decision:
    """Validate a decision about a report. Raise Refused if it is invalid."""
    if isinstance(decision, str) and decision in Decision.__members__:
        return Decision(decision)
    allowed = ", ".join(f"Decision.{member.name}" for member in Decision)
    raise Refused(
        TypeError(f"{scheduler}.on_report() for trial {trial_id} must return one of {allowed}, got {decision!r}")
    )


def checked_config(config: object, space: Space, origin: str, trial_id: int) -> dict[str, object]:
    """Validate a configuration and return it as plain Python values. Raise Refused if it is invalid.

    `origin`: the method that returned it, for the message.
    """
    if not isinstance(config, Mapping):
        raise Refused(TypeError(f"{origin} for trial {trial_id} must be a dict of hyperparameters, got {config!r}"))
    try:
        return space.check(config)
    except (TypeError, ValueError) as error:
        raise Refused(ValueError(f"{origin} for trial {trial_id} gave {dict(config)!r}: {error}")) from None


def problem_with(
    values: Mapping[str, object],
    objectives: Sequence[Objective],
    resource: str | None,
    constraints: Sequence[Constraint] = (),
) -> str | None:
    """Return the problem with the reported values, or None.

    Every report must contain the metrics and the constrained values, because any report can become the best one.
    """
    for objective in objectives:
        value = values.get(objective.metric)
        if type(value) is not float and type(value) is not int:
            return _problem(values, objective.metric, f"the scheduler's metric {objective.metric!r}")
    for constraint in constraints:
        value = values.get(constraint.metric)
        if type(value) is not float and type(value) is not int:
            label = f"{constraint.metric!r} of the constraint '{constraint}'"
            return _problem(values, constraint.metric, label, "report it, or change the constraint")
    if resource is not None:
        value = values.get(resource)
        if (type(value) is not float and type(value) is not int) or math.isnan(value):
            return _problem(values, resource, f"the scheduler's resource_attr {resource!r}", role="the resource")
    return None


def _problem(
    values: Mapping[str, object],
    name: str,
    label: str,
    fallback_hint: str = "report it under this name, or pass another name to the scheduler",
    *,
    role: str = "the metric",
) -> str | None:
    if name not in values:
        names = ", ".join(map(repr, values)) or "nothing"
        closest = nearest(name, values)
        hint = f"did you mean {closest!r}?" if closest else fallback_hint
        return f"the objective reported {names}, but not {label}; {hint}"
    value = values[name]
    if is_number(value) and not math.isnan(value):
        return None
    kind = type(value).__name__
    return f"{role} {name!r} must be a number, got {value!r} of type {kind}"
