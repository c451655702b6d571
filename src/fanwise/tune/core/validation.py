"""Validates the return values of schedulers and searchers and the reports of objectives."""

import math
from collections.abc import Iterable, Mapping
from typing import Literal, NamedTuple

from ...base.nearest import nearest
from ..constraints import Constraint
from ..schedulers.scheduler import Decision
from ..searchers.searcher import Objective
from ..space import Space
from ..values import is_number


class InvalidAnswer(Exception):
    """Raised for an invalid return value. `cause` is the exception that the user receives."""

    def __init__(self, cause: Exception) -> None:
        super().__init__(str(cause))
        self.cause = cause


def checked_decision(decision: object, scheduler: str, trial_id: int) -> Decision:
    """Return a valid decision about a report. Raise InvalidAnswer otherwise."""
    if isinstance(decision, str) and decision in Decision.__members__:
        return Decision(decision)
    allowed = ", ".join(f"Decision.{name}" for name in Decision.__members__)
    text = f"{scheduler}.on_report() for trial {trial_id} must return one of {allowed}, got {decision!r}"
    raise InvalidAnswer(TypeError(text))


def checked_config(config: object, space: Space, origin: str, trial_id: int) -> dict[str, object]:
    """Return the configuration in plain Python values. Raise InvalidAnswer, which names `origin`, if it is invalid."""
    if not isinstance(config, Mapping):
        text = f"{origin} for trial {trial_id} must be a dict of hyperparameters, got {config!r}"
        raise InvalidAnswer(TypeError(text))
    try:
        return space.check(config)
    except (TypeError, ValueError) as error:
        raise InvalidAnswer(ValueError(f"{origin} for trial {trial_id} gave {dict(config)!r}: {error}")) from None


class RequiredValue(NamedTuple):
    """A number that every report must contain. `label` and `hint`: its description and a remedy, for messages."""

    name: str
    role: Literal["metric", "constraint's value", "resource"]
    label: str
    hint: str = "report it under this name, or pass another name to the scheduler"


def required_values(
    objectives: Iterable[Objective], constraints: Iterable[Constraint], resource_attr: str | None
) -> list[RequiredValue]:
    required = [RequiredValue(item.metric, "metric", f"the scheduler's metric {item.metric!r}") for item in objectives]
    for constraint in constraints:
        label = f"{constraint.metric!r} of the constraint '{constraint}'"
        hint = "report it, or change the constraint"
        required.append(RequiredValue(constraint.metric, "constraint's value", label, hint))
    if resource_attr is not None:
        required.append(RequiredValue(resource_attr, "resource", f"the scheduler's resource_attr {resource_attr!r}"))
    return required


def problem_with(values: Mapping[str, object], required: Iterable[RequiredValue]) -> str | None:
    """Return the problem with the reported values, or None."""
    for item in required:
        value = values.get(item.name)
        if (type(value) is float or is_number(value)) and (item.role != "resource" or not math.isnan(value)):
            continue
        if is_number(value):
            return f"the {item.role} {item.name!r} must not be NaN"
        if item.name in values:
            kind = type(value).__name__
            return f"the {item.role} {item.name!r} must be a number, got {value!r} of type {kind}"
        names = ", ".join(map(repr, values)) or "nothing"
        closest = nearest(item.name, values)
        hint = f"did you mean {closest!r}?" if closest else item.hint
        return f"the objective reported {names}, but not {item.label}; {hint}"
    return None
