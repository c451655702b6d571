"""Constraints on reported values, such as "latency_ms <= 20".

Reports that violate a constraint are infeasible and rank behind all feasible ones. Infeasible reports are ranked by
`infeasibility`, the sum of the violations relative to their bounds.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias, cast, final

from .values import is_number

Relation: TypeAlias = Literal["<=", ">="]

_EXAMPLE = 'right:  constraints=["latency_ms <= 20", "accuracy >= 0.9"]'
_FORM = re.compile(r"\s*([^<>=\s][^<>=]*)(<=|>=)([^<>=]+)")


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
        """Return the excess over the bound in the unit of the metric, at most 0 if the constraint is satisfied."""
        return value - self.bound if self.relation == "<=" else self.bound - value


def infeasibility_of(constraints: Iterable[Constraint], violations: Iterable[float]) -> float:
    """Return the sum of the positive violations, each divided by the absolute value of its bound.

    A violation of a bound of 0 is not divided. The sum is NaN if a violation is NaN.

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
    """Return the violation of each constraint by a report, NaN if the value is missing."""
    pairs = [(constraint, values.get(constraint.metric)) for constraint in constraints]
    return tuple([constraint.violation(value) if is_number(value) else math.nan for constraint, value in pairs])


def violated_constraints(constraints: Iterable[Constraint], values: Mapping[str, Any]) -> dict[str, float]:
    """Return text of a violated constraint -> violation by the report.

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


def checked_constraints(texts: Sequence[str | Constraint]) -> tuple[Constraint, ...]:
    """Parse and validate constraints. Raises TypeError, ValueError.

    >>> checked_constraints(["latency_ms < 20"])
    Traceback (most recent call last):
    ValueError: the constraint 'latency_ms < 20' is not of the form metric <= number or metric >= number.
      right:  constraints=["latency_ms <= 20", "accuracy >= 0.9"]
    """
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str | Constraint) for text in texts):
        raise TypeError(f"constraints must be a list of texts, got {texts!r}.\n  {_EXAMPLE}")
    return tuple(text if isinstance(text, Constraint) else _parse(text) for text in texts)


def _parse(text: str) -> Constraint:
    match = _FORM.fullmatch(text)
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
    """Return the constraints of a search, which are the scheduler's or `texts`.

    Raises TypeError or ValueError if a constraint is invalid or if both have constraints.
    """
    constraints = checked_constraints(texts)
    if scheduler.constraints and constraints:
        names = ", ".join(f"'{constraint}'" for constraint in scheduler.constraints)
        raise ValueError(f"constraints were given twice: the scheduler has {names}. Pass all of them in one place")
    return scheduler.constraints or constraints
