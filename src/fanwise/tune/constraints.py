"""Constraints: what a report must meet to be a result, such as "latency_ms <= 20".

    "latency_ms <= 20"  --checked_constraints-->  Constraint  --violation(24.0)-->  4.0      in the metric's unit

A report that violates one is infeasible, and ranks behind every report that is not: nowhere is it the best as long as
a feasible one is there. Among the infeasible the one with the smallest `infeasibility` comes first: each violation is
measured by the size of its bound, so that milliseconds and shares can be added. Knows texts and numbers only.
"""

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeAlias, cast, final

from .values import is_number

Relation: TypeAlias = Literal["<=", ">="]

_RIGHT = 'right:  constraints=["latency_ms <= 20", "accuracy >= 0.9"]'
_PARTS = re.compile(r"(?P<left>[^<>=]*)(?P<relation>[<>=]+)(?P<right>[^<>=]*)")


@final
@dataclass(frozen=True, slots=True)
class Constraint:
    """A reported value and the bound that it has to keep.

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
        """How far the value is beyond the bound, in the metric's unit; at most 0 where the constraint is met."""
        return value - self.bound if self.relation == "<=" else self.bound - value


def infeasibility(constraints: Iterable[Constraint], violations: Iterable[float]) -> float:
    """How far a report is from meeting all constraints: 0 if it does, NaN where one of its values is.

    The sum of the violations above 0, each divided by the size of its bound; by 1 where the bound is 0.

    >>> two = checked_constraints(["latency_ms <= 20", "accuracy >= 0.8"])
    >>> infeasibility(two, [5.0, 0.4]), infeasibility(two, [-5.0, 0.0])
    (0.75, 0.0)
    """
    total = 0.0
    for constraint, violation in zip(constraints, violations, strict=True):
        if not violation <= 0.0:
            total += violation / (abs(constraint.bound) or 1.0)
    return total


def violations_of(constraints: Iterable[Constraint], values: Mapping[str, Any]) -> tuple[float, ...]:
    """By how much a report violates each constraint; NaN where it lacks the number."""
    found = [(bound, values.get(bound.metric)) for bound in constraints]
    return tuple([bound.violation(value) if is_number(value) else math.nan for bound, value in found])


def violated(constraints: Iterable[Constraint], values: Mapping[str, Any]) -> dict[str, float]:
    """Which constraints a report violates, as they are written, and by how much. `values`: what it reported.

    >>> violated(checked_constraints(["latency_ms <= 20", "accuracy >= 0.5"]), {"latency_ms": 25, "accuracy": 0.5})
    {'latency_ms <= 20': 5}
    """
    constraints = list(constraints)
    beyond = zip(constraints, violations_of(constraints, values), strict=True)
    return {str(bound): violation for bound, violation in beyond if violation > 0}


def in_words(violations: Mapping[str, float]) -> str:
    """What is violated, for people.

    >>> in_words({"latency_ms <= 20": 5.25})
    'latency_ms <= 20 by 5.25'
    """
    return ", ".join(f"{text} by {violation:.4g}" for text, violation in violations.items())


def checked_constraints(texts: Sequence[str | Constraint]) -> tuple[Constraint, ...]:
    """The constraints that are written so, or TypeError, ValueError.

    >>> checked_constraints(["latency_ms < 20"])
    Traceback (most recent call last):
    ValueError: the constraint 'latency_ms < 20' has '<' where <= or >= must stand.
      right:  constraints=["latency_ms <= 20", "accuracy >= 0.9"]
    """
    if not isinstance(texts, list | tuple) or not all(isinstance(text, str | Constraint) for text in texts):
        raise TypeError(f"constraints must be a list of texts, got {texts!r}.\n  {_RIGHT}")
    constraints = tuple(text if isinstance(text, Constraint) else _parsed(text) for text in texts)
    seen: dict[tuple[str, str], Constraint] = {}
    for constraint in constraints:
        other = seen.setdefault((constraint.metric, constraint.relation), constraint)
        if other is not constraint:
            raise ValueError(f"two constraints bound the same side: '{other}' and '{constraint}'; leave one out")
    return constraints


def _parsed(text: str) -> Constraint:
    found = _PARTS.fullmatch(text)
    if found is None:
        raise ValueError(
            f"the constraint {text!r} is not of the form metric <= number or metric >= number.\n  {_RIGHT}"
        )
    left, relation, right = (found[name].strip() for name in ("left", "relation", "right"))
    if relation not in ("<=", ">="):
        raise ValueError(f"the constraint {text!r} has {relation!r} where <= or >= must stand.\n  {_RIGHT}")
    bound = _number(right)
    if bound is None:
        hint = ""
        if _number(left) is not None and right:
            hint = f" The metric stands on the left: '{right} {'>=' if relation == '<=' else '<='} {left}'."
        raise ValueError(f"the constraint {text!r} must end in a number, got {right!r}.{hint}\n  {_RIGHT}")
    if not left:
        raise ValueError(f"the constraint {text!r} lacks the name of a reported value.\n  {_RIGHT}")
    if not math.isfinite(bound):
        raise ValueError(f"the constraint {text!r} must have a finite bound, got {right!r}")
    return Constraint(left, cast(Relation, relation), bound)


def _number(text: str) -> float | None:
    for kind in (int, float):
        try:
            return kind(text)
        except ValueError:
            continue
    return None


class _HasConstraints(Protocol):
    constraints: tuple[Constraint, ...]


def constraints_of(scheduler: _HasConstraints, given: Sequence[str] = ()) -> tuple[Constraint, ...]:
    """Return the constraints of a search: those of its scheduler, or those given beside a scheduler without any.

    Raises:
        TypeError, ValueError: a constraint is not valid, or the scheduler has its own.
    """
    own = scheduler.constraints
    constraints = checked_constraints(given)
    if own and constraints:
        shown = ", ".join(f"'{constraint}'" for constraint in own)
        raise ValueError(f"constraints were given twice: the scheduler has {shown}. Give all of them in one place")
    return own or constraints
