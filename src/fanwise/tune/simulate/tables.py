"""Learning curves for simulated trials.

    Table.curve(config)  ->  curve;   curve(1), curve(2), ...  ->  (report, seconds since the previous report)

`CurveTable` has measured curves of some configurations and returns the curve of the nearest one; `FunctionTable`
computes curves. Curves are deterministic, so a retried trial repeats its reports.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol, TypeAlias, final

import numpy as np
import numpy.typing as npt

from ...pool.reporting import plain_metrics
from ..space import Space
from ..values import with_objects

Step: TypeAlias = tuple[Mapping[str, object], float]
Curve: TypeAlias = Callable[[int], Step | None]
"""Iteration 1, 2, ... -> the report and the seconds of training it takes; None: training has ended."""

_Floats: TypeAlias = npt.NDArray[np.float64]


class Table(Protocol):
    """Learning curves over a space, in place of training."""

    @property
    def space(self) -> Space:
        """The search space."""

    def curve(self, config: Mapping[str, object]) -> Curve:
        """Return the learning curve of a configuration."""


@final
class FunctionTable:
    """Learning curves computed by a function.

    Args:
        objective: `objective(config, resource)` returns the reported values and the seconds of training since the
            previous resource. It must be deterministic. The resource is added to the values as `resource_attr`.
        space: the search space, with `max_resource_attr`.
        resource_attr: name of the resource (1, 2, ...) in reports.
        max_resource_attr: name of the constant or hyperparameter with the maximum resource of a trial.

    Raises:
        TypeError: the space is neither a Space nor a dict.
        ValueError: the space has no `max_resource_attr`.

    >>> from fanwise.tune import uniform
    >>> space = {"x": uniform(0, 1), "max_epochs": 2}
    >>> table = FunctionTable(lambda config, epoch: ({"loss": config["x"] / epoch}, 60.0), space)
    >>> curve = table.curve({"x": 0.5, "max_epochs": 2})
    >>> curve(2), curve(3)
    (({'loss': 0.25, 'epoch': 2}, 60.0), None)
    """

    def __init__(
        self,
        objective: Callable[[Mapping[str, object], int], Step],
        space: Space | Mapping[str, object],
        *,
        resource_attr: str = "epoch",
        max_resource_attr: str = "max_epochs",
    ) -> None:
        self.space = space if isinstance(space, Space) else Space(space)
        if max_resource_attr not in self.space.names:
            raise ValueError(
                f"the space has no {max_resource_attr!r}, the maximum resource of a trial; it has "
                f"{', '.join(map(repr, self.space.names))}. Add a constant, for example {max_resource_attr!r}: 27, "
                f"or pass another name as max_resource_attr"
            )
        self._objective = objective
        self._objects = self.space.objects
        self._resource_attr = resource_attr
        self._max_resource_attr = max_resource_attr

    def curve(self, config: Mapping[str, object]) -> Curve:
        objective, resource_attr = self._objective, self._resource_attr
        last: int = config[self._max_resource_attr]  # type: ignore[assignment]  # a number
        objective_config = with_objects(config, self._objects)

        def step(iter: int) -> Step | None:
            if iter > last:
                return None
            values, step_s = objective(objective_config, iter)
            return plain_metrics({**values, resource_attr: iter}), step_s

        return step


@final
class CurveTable:
    """Measured learning curves of C configurations; other configurations get the curve of the nearest one.

    The distance is Euclidean in the units of the domains; different categories of a choice have distance 1. Ties are
    broken by index.

    Args:
        space: the search space; a constant `max_resource_attr` is added if missing.
        configs: hyperparameter -> its C values.
        values: reported value -> array (C, R).
        elapsed_s: array (C, R), seconds of training so far, made monotone; a curve ends before its first NaN.
        resources: the R values of `resource_attr`; None: 1, 2, ..., R.
        resource_attr: name of the resource in reports.
        max_resource_attr: name of the constant or hyperparameter with the maximum resource of a trial.

    Raises:
        ValueError: shapes do not match, or a hyperparameter of the space is missing in `configs`.
    """

    def __init__(
        self,
        space: Space | Mapping[str, object],
        configs: Mapping[str, Sequence[object]],
        values: Mapping[str, npt.ArrayLike],
        elapsed_s: npt.ArrayLike,
        *,
        resources: Sequence[float] | None = None,
        resource_attr: str = "epoch",
        max_resource_attr: str = "max_epochs",
    ) -> None:
        self._elapsed_CR = np.maximum.accumulate(np.asarray(elapsed_s, np.float64), axis=1)
        num_configs, num_reports = self._elapsed_CR.shape
        self._values_CR = {name: np.asarray(table, np.float64) for name, table in values.items()}
        self._resources = list(range(1, num_reports + 1) if resources is None else resources)
        for name, shape in [
            *((name, table.shape) for name, table in self._values_CR.items()),
            *((name, (len(column), num_reports)) for name, column in configs.items()),
            (resource_attr, (num_configs, len(self._resources))),
        ]:
            if shape != (num_configs, num_reports):
                raise ValueError(
                    f"{name!r} is for {shape[0]} configurations and {shape[-1]} reports, "
                    f"but elapsed_s for {num_configs} and {num_reports}"
                )
        space = space if isinstance(space, Space) else Space(space)
        if max_resource_attr not in space.names:
            space = Space({**space.domains, **space.constants, max_resource_attr: self._resources[-1]})
        self.space = space
        self._resource_attr = resource_attr
        self._max_resource_attr = max_resource_attr
        self._nearest = _Nearest(self.space, max_resource_attr, configs)

    def __len__(self) -> int:
        """Number of configurations."""
        return len(self._elapsed_CR)

    def curve(self, config: Mapping[str, object]) -> Curve:
        row = self._nearest.row(config)
        last = config[self._max_resource_attr]
        names, resource_attr, resources = list(self._values_CR), self._resource_attr, self._resources
        columns = [self._values_CR[name][row].tolist() for name in names]
        elapsed_s = [0.0, *self._elapsed_CR[row].tolist()]

        def step(iter: int) -> Step | None:
            if iter >= len(elapsed_s) or resources[iter - 1] > last or elapsed_s[iter] != elapsed_s[iter]:  # type: ignore[operator]  # a number
                return None
            values: dict[str, object] = {name: column[iter - 1] for name, column in zip(names, columns, strict=True)}
            values[resource_attr] = resources[iter - 1]
            return values, elapsed_s[iter] - elapsed_s[iter - 1]

        return step


class _Nearest:
    """Finds the row of the nearest configuration: by lookup if the table contains it, otherwise by distance."""

    # C: configurations of the table

    def __init__(self, space: Space, max_resource_attr: str, configs: Mapping[str, Sequence[object]]) -> None:
        self._domains = {name: domain for name, domain in space.domains.items() if name != max_resource_attr}
        missing = [name for name in self._domains if name not in configs]
        if missing:
            raise ValueError(
                f"the space has {', '.join(map(repr, missing))}, but the configurations of the table only "
                f"{', '.join(map(repr, configs)) or 'nothing'}"
            )
        self._columns = [
            [domain.normalize(value) if isinstance(value, list | dict) else value for value in configs[name]]
            for name, domain in self._domains.items()
        ]
        # A space of constants has one configuration.
        self._rows: dict[tuple[object, ...], int] = {} if self._domains else {(): 0}
        for row, config in enumerate(zip(*self._columns, strict=True)):
            self._rows.setdefault(config, row)
        self._units_C: list[_Floats] = []

    def row(self, config: Mapping[str, object]) -> int:
        values = [config[name] for name in self._domains]
        row = self._rows.get(tuple(values))
        if row is not None:
            return row
        if not self._units_C:
            self._units_C = list(map(self._units, self._domains, self._columns))
        # A fixed order of summation, for bit-identical results.
        distances_C = np.zeros(len(self._columns[0]))
        for domain, value, units_C in zip(self._domains.values(), values, self._units_C, strict=True):
            difference_C = units_C - domain.to_unit(value)
            distances_C += difference_C * difference_C if domain.ordered else difference_C != 0.0
        return int(distances_C.argmin())

    def _units(self, name: str, column: Sequence[object]) -> _Floats:
        domain = self._domains[name]
        outside = [value for value in column if not domain.contains(value)]
        if outside:
            raise ValueError(f"the table has {name} = {outside[0]!r}, which is not in the space's {domain!r}")
        units = {value: domain.to_unit(value) for value in dict.fromkeys(column)}
        return np.array([units[value] for value in column])
