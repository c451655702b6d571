"""Learning curves for simulated trials.

    Table.curve(config) -> curve;   curve(1), curve(2), ... -> (report, seconds of training since the previous report)

`FunctionTable` computes curves by a function. `CurveTable` has measured curves of some configurations, and returns the
curve of the nearest configuration. Curves are deterministic, so a retried trial repeats its reports.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TypeAlias, final

import numpy as np
import numpy.typing as npt

from ...pool.reporting import plain_metrics
from ..space import Space, object_categories
from ..values import with_objects

if TYPE_CHECKING:
    import pandas as pd

Step: TypeAlias = tuple[Mapping[str, object], float]
Curve: TypeAlias = Callable[[int], Step | None]
"""Maps the number of a report (1, 2, ...) to the report and its seconds of training, or to None at the end."""

_Floats: TypeAlias = npt.NDArray[np.float64]


class Table(Protocol):
    """Learning curves of the configurations of a search space, used instead of training."""

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
            previous resource. The function must be deterministic. The resource is added to the reported values.
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
        self._objects = object_categories(self.space)
        self._resource_attr = resource_attr
        self._max_resource_attr = max_resource_attr

    def curve(self, config: Mapping[str, object]) -> Curve:
        objective, resource_attr = self._objective, self._resource_attr
        max_resource: int = config[self._max_resource_attr]  # type: ignore[assignment]  # a number
        objective_config = with_objects(config, self._objects)

        def step(resource: int) -> Step | None:
            if resource > max_resource:
                return None
            values, step_s = objective(objective_config, resource)
            return plain_metrics({**values, resource_attr: resource}), step_s

        return step


@final
class CurveTable:
    """Measured curves of C configurations with R reports. Other configurations have the curve of the nearest one.

    The distance is Euclidean, with each domain scaled to 0..1. Different categories of a choice have distance 1. If
    several configurations are nearest, the first is used. Suffixes `_CR` and `_C` of names are shapes of arrays.

    Args:
        space: the search space. A constant `max_resource_attr` is added if missing.
        configs: hyperparameter -> its C values.
        values: reported value -> array (C, R).
        elapsed_s: array (C, R) with the seconds of training so far. Decreasing times are replaced by their running
            maximum. The curve ends before the first NaN.
        resources: the R values of `resource_attr`. None: 1, 2, ..., R.
        resource_attr: name of the resource in reports.
        max_resource_attr: name of the constant or hyperparameter with the maximum resource of a trial.

    Raises ValueError if shapes do not match, or a hyperparameter of the space is missing from `configs`.
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
        num_configs, num_reports = shape_CR = self._elapsed_CR.shape
        self._values_CR = {name: np.asarray(array, np.float64) for name, array in values.items()}
        self._resources = list(range(1, num_reports + 1) if resources is None else resources)
        for argument, shape, expected in [
            *((f"values[{name!r}]", array.shape, shape_CR) for name, array in self._values_CR.items()),
            *((f"configs[{name!r}]", (len(column),), (num_configs,)) for name, column in configs.items()),
            ("resources", (len(self._resources),), (num_reports,)),
        ]:
            if shape != expected:
                raise ValueError(
                    f"{argument} has shape {shape}, but elapsed_s has shape {shape_CR}, "
                    f"so the shape of {argument} must be {expected}"
                )
        space = space if isinstance(space, Space) else Space(space)
        if max_resource_attr not in space.names:
            space = Space({**space.domains, **space.constants, max_resource_attr: self._resources[-1]})
        self.space = space
        self._resource_attr = resource_attr
        self._max_resource_attr = max_resource_attr
        self._domains = {name: domain for name, domain in space.domains.items() if name != max_resource_attr}
        missing_names = [name for name in self._domains if name not in configs]
        if missing_names:
            raise ValueError(
                f"the space has {', '.join(map(repr, missing_names))}, but `configs` has only "
                f"{', '.join(map(repr, configs)) or 'nothing'}"
            )
        self._columns = [
            [domain.normalize(value) if isinstance(value, list | dict) else value for value in configs[name]]
            for name, domain in self._domains.items()
        ]
        # A space of constants has one configuration.
        self._indices: dict[tuple[object, ...], int] = {} if self._domains else {(): 0}
        for index, config in enumerate(zip(*self._columns, strict=True)):
            self._indices.setdefault(config, index)
        self._units_C: list[_Floats] = []  # one array per domain, created on first use

    def __len__(self) -> int:
        """Number of configurations."""
        return len(self._elapsed_CR)

    def curve(self, config: Mapping[str, object]) -> Curve:
        index = self._nearest_index(config)
        max_resource: float = config[self._max_resource_attr]  # type: ignore[assignment]  # a number
        names, resource_attr, resources = list(self._values_CR), self._resource_attr, self._resources
        columns = [self._values_CR[name][index].tolist() for name in names]
        elapsed_s = [0.0, *self._elapsed_CR[index].tolist()]

        def step(iter: int) -> Step | None:
            if iter >= len(elapsed_s) or resources[iter - 1] > max_resource or math.isnan(elapsed_s[iter]):
                return None
            values: dict[str, object] = {name: column[iter - 1] for name, column in zip(names, columns, strict=True)}
            values[resource_attr] = resources[iter - 1]
            return values, elapsed_s[iter] - elapsed_s[iter - 1]

        return step

    def _nearest_index(self, config: Mapping[str, object]) -> int:
        values = [config[name] for name in self._domains]
        index = self._indices.get(tuple(values))
        if index is not None:
            return index
        if not self._units_C:
            self._units_C = list(map(self._units, self._domains, self._columns))
        # The domains are added in a fixed order, so that results are bit-identical on every machine.
        distances_C = np.zeros(len(self))
        for domain, value, units_C in zip(self._domains.values(), values, self._units_C, strict=True):
            difference_C = units_C - domain.to_unit(value)
            distances_C += difference_C * difference_C if domain.ordered else difference_C != 0.0
        return int(distances_C.argmin())

    def _units(self, name: str, column: Sequence[object]) -> _Floats:
        domain = self._domains[name]
        invalid_values = [value for value in column if not domain.contains(value)]
        if invalid_values:
            raise ValueError(f"configs[{name!r}] has {invalid_values[0]!r}, which is not in the space's {domain!r}")
        units = {value: domain.to_unit(value) for value in dict.fromkeys(column)}
        return np.array([units[value] for value in column])


def from_frame(
    frame: "pd.DataFrame",
    space: Space | Mapping[str, object],
    *,
    metrics: str | Sequence[str],
    resource_attr: str,
    elapsed_attr: str,
    max_resource_attr: str = "max_epochs",
) -> CurveTable:
    """Return learning curves from a data frame with one row per report.

    Rows with equal hyperparameters form a curve, which ends at the first missing resource. If several rows of a curve
    have the same resource, the last is used. Configurations without a row for the smallest resource are omitted.

    Args:
        frame: a pandas data frame with a column for each hyperparameter of the space.
        space: the search space.
        metrics: name of the column with the metric, or several names.
        resource_attr: name of the column with the resource, e.g. "epoch".
        elapsed_attr: name of the column with the seconds of training so far.
        max_resource_attr: name of the constant or hyperparameter with the maximum resource of a trial. If missing, a
            constant with the largest resource is added to the space.

    Raises ValueError if a column is missing, or the frame has no rows.
    """
    space = space if isinstance(space, Space) else Space(space)
    hyperparameters = [name for name in space.domains if name != max_resource_attr]
    names = [metrics] if isinstance(metrics, str) else list(metrics)
    required_names = (*hyperparameters, *names, resource_attr, elapsed_attr)
    missing_names = [name for name in required_names if name not in frame.columns]
    if missing_names or frame.empty:
        columns_text = ", ".join(map(repr, frame.columns)) or "none"
        missing_text = f"has no column {', '.join(map(repr, missing_names))}; its columns are {columns_text}"
        raise ValueError(f"the data frame {missing_text if missing_names else 'has no rows'}")
    resources, column_indices = np.unique(frame[resource_attr].to_numpy(), return_inverse=True)
    rows: dict[tuple[object, ...], int] = {}
    configs = list(zip(*(frame[name].tolist() for name in hyperparameters), strict=True))
    row_indices = [rows.setdefault(config, len(rows)) for config in configs]
    arrays = {}
    for name in [*names, elapsed_attr]:
        arrays[name] = np.full((len(rows), len(resources)), np.nan)
        arrays[name][row_indices, column_indices] = frame[name].to_numpy(np.float64)
    has_first_report = ~np.isnan(arrays[elapsed_attr][:, 0])
    valid_configs = [config for config, is_valid in zip(rows, has_first_report, strict=True) if is_valid]
    return CurveTable(
        space,
        {name: [config[i] for config in valid_configs] for i, name in enumerate(hyperparameters)},
        {name: arrays[name][has_first_report] for name in names},
        arrays[elapsed_attr][has_first_report],
        resources=resources.tolist(),
        resource_attr=resource_attr,
        max_resource_attr=max_resource_attr,
    )
