"""`fanwise.tensor` where SciPy and scikit-learn take a namespace, `xp=`, with their array API switched on."""

import os
import subprocess
import sys
from typing import Any

import numpy as np
import torch

import fanwise.tensor as ft

# Both in one process, which loads torch once.
PROGRAM = """
import scipy.fft, scipy.signal, torch
import fanwise.tensor as ft

for xp in (ft, ft.namespace("torch")):
    frequencies = scipy.fft.fftfreq(4, xp=xp)
    assert isinstance(frequencies, torch.Tensor) and frequencies.tolist() == [0.0, 0.25, -0.5, -0.25]
    window = scipy.signal.windows.hann(3, xp=xp, device="cpu")
    assert isinstance(window, torch.Tensor) and window.tolist() == [0.0, 1.0, 0.0]
with ft.use("numpy"):
    assert type(scipy.fft.rfftfreq(4, xp=ft)).__module__ == "numpy"
print("SciPy")

# The functions of scikit-learn that take a namespace are those that its estimators are made of.
from sklearn import config_context
from sklearn.preprocessing import StandardScaler
from sklearn.utils import _array_api as functions

for engine in ("numpy", "torch"):
    with ft.use(engine), config_context(array_api_dispatch=True):
        x, weights = ft.asarray([1.0, 2.0, 4.0]), ft.asarray([1.0, 0.0, 1.0])
        for xp in (ft, ft.namespace(engine)):
            space, is_array_api = functions.get_namespace(x, xp=xp)
            assert space is xp and is_array_api
            assert ft.float32 in functions.supported_float_dtypes(xp)
            assert float(functions._average(x, weights=weights, xp=xp)) == 2.5
            assert float(functions._nanmax(x, xp=xp)) == 4.0
            assert ft.engine_of(functions._isin(x, x[:1], xp=xp)) == engine
with ft.use("torch"), config_context(array_api_dispatch=True):
    scaled = StandardScaler().fit_transform(ft.asarray([[1.0], [3.0]]))
    assert isinstance(scaled, torch.Tensor) and scaled.tolist() == [[-1.0], [1.0]]
print("scikit-learn")
"""


def test_libraries_compute_with_a_namespace() -> None:
    # In a process of its own: both look for the switch when they are imported.
    environment = {**os.environ, "SCIPY_ARRAY_API": "1", "FANWISE_ENGINE": "torch"}
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=300, env=environment)
    assert done.stdout.split() == ["SciPy", "scikit-learn"], done.stderr


def test_a_namespace_has_the_attributes_of_the_standard() -> None:
    untyped: Any = ft
    assert untyped.__array_api_version__ == ft.namespace("numpy").__array_api_version__
    for engine, float32 in (("numpy", np.dtype("float32")), ("torch", torch.float32)):
        with ft.use(engine):
            assert untyped.__array_namespace_info__().default_dtypes()["real floating"] == float32
