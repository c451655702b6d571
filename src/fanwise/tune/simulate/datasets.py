"""Tables of learning curves from files, data frames and recorded experiments."""

from collections.abc import Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from ...base.errors import DataFileError
from ..experiment import load_experiment
from ..space import Space, choice, lograndint, loguniform, randint, uniform
from .tables import CurveTable

if TYPE_CHECKING:
    import pandas as pd

_LCBENCH = {
    "batch_size": lograndint(16, 512),
    "learning_rate": loguniform(1e-4, 1e-1),
    "momentum": uniform(0.1, 0.99),
    "weight_decay": uniform(1e-5, 1e-1),
    "num_layers": randint(1, 5),
    "max_units": lograndint(64, 1024),
    "max_dropout": uniform(0.0, 1.0),
}
_LCBENCH_INTS = ("batch_size", "num_layers", "max_units")
_WIDTHS = [16, 32, 64, 128, 256, 512]
_FCNET: dict[str, list[Any]] = {
    "activation_fn_1": ["relu", "tanh"],
    "activation_fn_2": ["relu", "tanh"],
    "batch_size": [8, 16, 32, 64],
    "dropout_1": [0.0, 0.3, 0.6],
    "dropout_2": [0.0, 0.3, 0.6],
    "init_lr": [5e-4, 1e-3, 5e-3, 1e-2, 5e-2, 1e-1],
    "lr_schedule": ["cosine", "const"],
    "n_units_1": _WIDTHS,
    "n_units_2": _WIDTHS,
}
_FCNET_EPOCHS = 100


def lcbench_curves(path: str | PathLike[str], *, space: Mapping[str, object] | Space | None = None) -> CurveTable:
    """Return learning curves of LCBench (Zimmer et al. 2021): `val_accuracy` in percent for 52 epochs.

    Args:
        path: an .npz file with `hyperparameters` (7 names), `configs` (C, 7), `val_accuracy` and `elapsed_s` (C, 52).
        space: search space; None: the space of LCBench with `max_epochs` = 52.

    Raises:
        DataFileError: the file is missing or lacks an array.
    """
    arrays = _read(path, ("hyperparameters", "configs", "val_accuracy", "elapsed_s"))
    names = [str(name) for name in arrays["hyperparameters"]]
    columns = {
        name: [int(value) if name in _LCBENCH_INTS else float(value) for value in column]
        for name, column in zip(names, arrays["configs"].T, strict=True)
    }
    space = _LCBENCH if space is None else space
    return CurveTable(space, columns, {"val_accuracy": arrays["val_accuracy"]}, arrays["elapsed_s"])


def fcnet_final(path: str | PathLike[str], *, repetition: int | None = None, training_s: float = 100.0) -> CurveTable:
    """Return final errors of FCNet (Klein and Hutter 2019), 62,208 configurations: one report, `val_mse`, at epoch 100.

    Args:
        path: an .npz file with `hyperparameters` (9 names), `config_index` (C, 9) and `val_mse` (C, 4).
        repetition: index of the training, 0 to 3; None: mean of the four.
        training_s: virtual seconds of a training; the data set has no times.

    Raises:
        DataFileError: the file is missing or lacks an array.
    """
    arrays = _read(path, ("hyperparameters", "config_index", "val_mse"))
    columns = {
        str(name): [_FCNET[str(name)][index] for index in column.tolist()]
        for name, column in zip(arrays["hyperparameters"], arrays["config_index"].T, strict=True)
    }
    errors = arrays["val_mse"].astype(np.float64)
    final = errors.mean(axis=1) if repetition is None else errors[:, repetition]
    space = {name: choice(values) for name, values in _FCNET.items()}
    elapsed_s = np.full((len(final), 1), training_s)
    return CurveTable(space, columns, {"val_mse": final[:, None]}, elapsed_s, resources=[_FCNET_EPOCHS])


def _read(path: str | PathLike[str], names: Sequence[str]) -> dict[str, npt.NDArray[Any]]:
    file = Path(path)
    if not file.is_file():
        raise DataFileError(f"{file} does not exist.\nPass an .npz file with the arrays {', '.join(names)}.")
    try:
        with np.load(file) as arrays:
            return {name: arrays[name] for name in names}
    except (KeyError, ValueError, OSError) as error:
        raise DataFileError(
            f"{file} cannot be read as a table of learning curves: {error}\n"
            f"An .npz file with the arrays {', '.join(names)} was expected."
        ) from error


def from_frame(
    frame: "pd.DataFrame",
    *,
    hyperparameters: Sequence[str],
    metrics: str | Sequence[str],
    resource_attr: str,
    elapsed_attr: str,
    space: Mapping[str, object] | Space | None = None,
    max_resource_attr: str = "max_epochs",
) -> CurveTable:
    """Return learning curves from a data frame with one row per report.

    Rows with equal hyperparameters form a curve, which ends at the first missing resource. The last of several rows for
    a resource is used. Configurations without a row for the smallest resource are omitted.

    Args:
        frame: a pandas data frame.
        hyperparameters: columns of the configuration.
        metrics: reported columns, one or several.
        resource_attr: column with the resource, e.g. "epoch".
        elapsed_attr: column with the seconds of training so far.
        space: search space, e.g. with log scales; None: numeric columns become `randint` or `uniform`, others `choice`,
            and constant columns constants.
        max_resource_attr: name of the constant or hyperparameter with the maximum resource of a trial; added to the
            space with the largest resource if missing.

    Raises:
        ValueError: a column is missing, or the frame has no rows.
    """
    required = [*hyperparameters, *([metrics] if isinstance(metrics, str) else metrics), resource_attr, elapsed_attr]
    missing = [name for name in required if name not in frame.columns]
    if missing or frame.empty:
        columns_text = ", ".join(map(repr, frame.columns)) or "none"
        missing_text = f"has no column {', '.join(map(repr, missing))}; its columns are {columns_text}"
        raise ValueError(f"the data frame {missing_text if missing else 'has no rows'}")
    names = required[len(hyperparameters) : -2]
    resources = sorted(frame[resource_attr].unique().tolist())
    index_of = {resource: index for index, resource in enumerate(resources)}
    rows: dict[tuple[object, ...], int] = {}
    configs = list(zip(*(frame[name].tolist() for name in hyperparameters), strict=True))
    row_of = [rows.setdefault(config, len(rows)) for config in configs]
    column_of = [index_of[resource] for resource in frame[resource_attr].tolist()]
    tables = {}
    for name in [*names, elapsed_attr]:
        tables[name] = np.full((len(rows), len(resources)), np.nan)
        tables[name][row_of, column_of] = frame[name].to_numpy(np.float64)
    is_valid = ~np.isnan(tables[elapsed_attr][:, 0])
    valid = [config for config, has_start in zip(rows, is_valid, strict=True) if has_start]
    columns = {name: [config[i] for config in valid] for i, name in enumerate(hyperparameters)}
    return CurveTable(
        _infer_space(columns) if space is None else space,
        columns,
        {name: tables[name][is_valid] for name in names},
        tables[elapsed_attr][is_valid],
        resources=resources,
        resource_attr=resource_attr,
        max_resource_attr=max_resource_attr,
    )


def _infer_space(columns: Mapping[str, Sequence[Any]]) -> dict[str, object]:
    """Return the smallest space that contains the values."""
    space: dict[str, object] = {}
    for name, column in columns.items():
        values = list(dict.fromkeys(column))
        if len(values) == 1:
            space[name] = values[0]
        elif all(type(value) is int for value in values):
            space[name] = randint(min(values), max(values))
        elif all(type(value) in (int, float) for value in values):
            space[name] = uniform(min(values), max(values))
        else:
            space[name] = choice(values)
    return space


def from_experiment(
    name_or_path: str | PathLike[str], *, resource_attr: str = "epoch", max_resource_attr: str = "max_epochs"
) -> CurveTable:
    """Return the trials of a recorded experiment as learning curves over its space.

    A curve ends where the trial ended, so record experiments without early stopping. Cloned trials are omitted, because
    they lack a beginning.

    Args:
        name_or_path: see `load_experiment`.
        resource_attr: reported value with the resource.
        max_resource_attr: name of the constant or hyperparameter with the maximum resource of a trial.

    Raises:
        RecordError: the experiment does not exist.
        ValueError: it has no reports, or none with `resource_attr`.
    """
    experiment = load_experiment(name_or_path)
    space = Space.from_json(experiment.metadata["space"])
    columns = {f"config_{name}": name for name in space.domains if name != max_resource_attr}
    frame = experiment.results
    reported = [name for name in frame.columns if name != "trial_id" and not name.startswith(("st_", "config_"))]
    # The worker time of each attempt starts at 0.
    within = frame.groupby(["trial_id", "st_attempt"])["st_worker_time"].diff().fillna(frame["st_worker_time"])
    curves = frame[[*columns, *reported]].rename(columns=columns)
    return from_frame(
        curves.assign(elapsed_s=within.groupby(frame["trial_id"]).cumsum()),
        hyperparameters=list(columns.values()),
        metrics=[name for name in reported if name != resource_attr and frame[name].dtype.kind in "biuf"],
        resource_attr=resource_attr,
        elapsed_attr="elapsed_s",
        space=space,
        max_resource_attr=max_resource_attr,
    )
