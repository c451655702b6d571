"""Constraints on reported values, such as "latency_ms <= 20".

Reports that violate a constraint are infeasible and rank behind all feasible ones. Infeasible reports are ranked by
`infeasibility_of`, the sum of their violations relative to the bounds.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast, final

from .values import is_number

Relation: TypeAlias = Literal["<=", ">="]

_EXAMPLE = 'right:  constraints=["latency_ms <= 20", "accuracy >= 0.9"]'
_PATTERN = re.compile(r"\s*([^<>=\s][^<>=]*)(<=|>=)([^<>=]+)")


@final
@dataclass(frozen=True, slots=True)
class Constraint:
    """A bound on a reported value.

    >>> latency = Constraint("latency_ms", "<=", 20)
    >>> str(latency), latency.violation(24.0), latency.violation(15.0)
    ('latency_ms <= 20', 4.0, -5.0)
    """

    metric: str
    relation: Relation
    bound: float

    def __str__(self) -> str:
        return f"{self.metric} {self.relation} {self.bound!r}"

    def violation(self, value: float) -> float:
        """Return how far the value is beyond the bound, in the unit of the metric. At most 0 if it is not beyond."""
        return value - self.bound if self.relation == "<=" else self.bound - value


def infeasibility_of(constraints: Iterable[Constraint], violations: Iterable[float]) -> float:
    """Return the sum of the positive violations, each divided by the absolute value of its bound.

    If the bound is 0, the violation itself is added. The sum is NaN if a violation is NaN.

    >>> constraints = checked_constraints(["latency_ms <= 20", "accuracy >= 0.8"])
    >>> infeasibility_of(constraints, [5.0, 0.4]), infeasibility_of(constraints, [-5.0, 0.0])
    (0.75, 0.0)
    """
    total = 0.0
    for constraint, violation in zip(constraints, violations, strict=True):
        if not violation <= 0.0:
            total += violation / (abs(constraint.bound) or 1.0)
    return total


def violations_of(constraints: Iterable[Constraint], values: Mapping[str, Any]) -> tuple[float, ...]:
    """Return the violation of each constraint by the values of a report, NaN if the value is missing."""
    pairs = [(constraint, values.get(constraint.metric)) for constraint in constraints]
    return tuple([constraint.violation(value) if is_number(value) else math.nan for constraint, value in pairs])


def violated_constraints(constraints: Iterable[Constraint], values: Mapping[str, Any]) -> dict[str, float]:
    """Return {constraint as text: violation} for each constraint that a report violates.

    Constraints on missing values are omitted.

    >>> constraints = checked_constraints(["latency_ms <= 20", "accuracy >= 0.5"])
    >>> violated_constraints(constraints, {"latency_ms": 25, "accuracy": 0.5})
    {'latency_ms <= 20': 5}
    """
    violations = {str(constraint): violations_of([constraint], values)[0] for constraint in constraints}
    return {text: violation for text, violation in violations.items() if violation > 0}


def format_violations(violations: Mapping[str, float]) -> str:
    """Format the result of `violated_constraints` for messages.

    >>> format_violations({"latency_ms <= 20": 5.25})
    'latency_ms <= 20 by 5.25'
    """
    return ", ".join(f"{text} by {violation:.4g}" for text, violation in violations.items())


def checked_constraints(constraints: Sequence[str | Constraint]) -> tuple[Constraint, ...]:
    """Parse and validate constraints. Raises TypeError, ValueError.

    >>> checked_constraints(["latency_ms < 20"])
    Traceback (most recent call last):
    ValueError: the constraint 'latency_ms < 20' is not of the form metric <= number or metric >= number.
      right:  constraints=["latency_ms <= 20", "accuracy >= 0.9"]
    """
    is_list = isinstance(constraints, list | tuple)
    if not is_list or not all(isinstance(item, str | Constraint) for item in constraints):
        raise TypeError(f"constraints must be a list of strings, got {constraints!r}.\n  {_EXAMPLE}")
    return tuple(item if isinstance(item, Constraint) else _parse(item) for item in constraints)


def _parse(text: str) -> Constraint:
    match = _PATTERN.fullmatch(text)
    bound = None if match is None else _number(match[3])
    if match is None or bound is None or not math.isfinite(bound):
        form = "metric <= number or metric >= number"
        raise ValueError(f"the constraint {text!r} is not of the form {form}.\n  {_EXAMPLE}")
    return Constraint(match[1].rstrip(), cast(Relation, match[2]), bound)


def _number(text: str) -> float | None:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None


def constraints_of(scheduler: Any, texts: Sequence[str] = ()) -> tuple[Constraint, ...]:
    """Return the constraints of a search: those of the scheduler or, if it has none, those in `texts`.

    Raises TypeError or ValueError if a constraint is invalid, ValueError if the scheduler and `texts` have constraints.
    """
    constraints = checked_constraints(texts)
    if scheduler.constraints and constraints:
        text = ", ".join(f"'{constraint}'" for constraint in scheduler.constraints)
        raise ValueError(f"constraints were given twice: the scheduler has {text}. Pass all of them to the scheduler.")
    return scheduler.constraints or constraints
