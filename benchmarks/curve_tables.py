"""Readers of two public tables of learning curves: LCBench and FCNet, each as .npz files."""

from pathlib import Path
from typing import Any

import numpy as np

from fanwise.tune import choice, lograndint, loguniform, randint, uniform
from fanwise.tune.simulate import CurveTable

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
_FCNET_TRAINING_S = 100.0  # the data set has no times


def lcbench_curves(path: Path) -> CurveTable:
    """Return learning curves of LCBench (Zimmer et al. 2021): `val_accuracy` in percent for 52 epochs.

    The file has the arrays `hyperparameters` (7 names), `configs` (C, 7), `val_accuracy` and `elapsed_s` (C, 52) for
    C configurations.
    """
    with np.load(path) as arrays:
        columns = {
            str(name): [int(value) if name in _LCBENCH_INTS else float(value) for value in column]
            for name, column in zip(arrays["hyperparameters"], arrays["configs"].T, strict=True)
        }
        return CurveTable(_LCBENCH, columns, {"val_accuracy": arrays["val_accuracy"]}, arrays["elapsed_s"])


def fcnet_final(path: Path) -> CurveTable:
    """Return the final errors of the 62,208 configurations of FCNet (Klein and Hutter 2019).

    Each configuration has one report at epoch 100, `val_mse`, the mean of four trainings. The file has the arrays
    `hyperparameters` (9 names), `config_index` (C, 9) and `val_mse` (C, 4) for C configurations.
    """
    with np.load(path) as arrays:
        columns = {
            str(name): [_FCNET[str(name)][index] for index in column.tolist()]
            for name, column in zip(arrays["hyperparameters"], arrays["config_index"].T, strict=True)
        }
        errors = arrays["val_mse"].astype(np.float64).mean(axis=1)
    space = {name: choice(values) for name, values in _FCNET.items()}
    elapsed_s = np.full((len(errors), 1), _FCNET_TRAINING_S)
    return CurveTable(space, columns, {"val_mse": errors[:, None]}, elapsed_s, resources=[_FCNET_EPOCHS])
