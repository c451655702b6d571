"""Every function of the array API standard, without its extensions, on every engine, against array_api_strict.

Arguments are drawn from `SAMPLES` of tests/support/tensor_calls.py: dtypes, shapes (no axis, no elements), keyword
arguments, special values. Dtype, shape and values must agree. FANWISE_EXAMPLES=100 draws more.
"""

import contextlib
import os
import random
import warnings
from collections.abc import Iterator
from typing import Any

import array_api_strict as strict
import numpy as np
import pytest
from tensor_calls import EVERY, SAMPLES, Dtype

from fanwise.tensor import namespace

EXAMPLES = int(os.environ.get("FANWISE_EXAMPLES", "0"))
# How many arguments are drawn for a function; jax64 is JAX with 64 bits on. JAX compiles for every shape, 30 ms each,
# so it gets few, and only for the functions that are corrected.
ENGINES = {"numpy": 12, "torch": 12, "jax": 1, "jax64": 1}
CORRECTED_ON_JAX = (
    "abs acosh all any arange asarray astype broadcast_arrays clip cumulative_prod cumulative_sum empty eye "
    "floor_divide full full_like hypot linspace meshgrid ones ones_like pow prod remainder sign sort std sum take "
    "take_along_axis var zeros zeros_like"
).split()
PAIRS = [(e, name) for e in ENGINES for name in SAMPLES if EXAMPLES or "jax" not in e or name in CORRECTED_ON_JAX]


@contextlib.contextmanager
def namespace_of(name: str) -> Iterator[Any]:
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        warnings.simplefilter("ignore")  # NumPy's, of infinities and NaN
        if name == "jax64":
            import jax

            stack.enter_context(jax.enable_x64(True))
        yield namespace(name.removesuffix("64"))


def translate(value: Any, space: Any) -> Any:
    if isinstance(value, np.ndarray):
        return space.asarray(value.copy())  # the reference accepts no 0-d results of NumPy
    if isinstance(value, Dtype):
        return getattr(space, value)
    return type(value)(translate(part, space) for part in value) if isinstance(value, (list, tuple)) else value


def result_of(space: Any, name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    named = {key: translate(value, space) for key, value in keywords.items()}
    return getattr(space, name)(*translate(arguments, space), **named)


def compare(result: Any, expected: Any, space: Any, where: str) -> None:
    if isinstance(expected, (tuple, list)):
        assert isinstance(result, tuple), f"{where}: a {type(result).__name__}, expected a tuple"
        for part, other in zip(result, expected, strict=True):
            compare(part, other, space, where)
    elif not hasattr(expected, "dtype"):
        same = name_of(result, space) == name_of(expected, strict) if hasattr(expected, "_np_dtype") else None
        assert result == expected if same is None else same, f"{where}: {result!r}, expected {expected!r}"
    else:
        reference = np.asarray(expected._array)
        assert name_of(result.dtype, space) in dtypes_of(str(reference.dtype), space), f"{where}: {result.dtype}"
        values = result.numpy() if hasattr(result, "numpy") else np.asarray(result)
        assert values.shape == reference.shape, f"{where}: shape {values.shape}, expected {reference.shape}"
        is_single = {str(values.dtype), str(reference.dtype)} & {"float32", "complex64"}
        rtol, atol = (2e-4, 2e-5) if is_single else (1e-9, 1e-11)
        np.testing.assert_allclose(values, reference.astype(values.dtype), rtol=rtol, atol=atol, err_msg=where)


def name_of(dtype: Any, space: Any) -> str:
    return next(name for name in EVERY if hasattr(space, name) and getattr(space, name) == dtype)


def dtypes_of(name: str, space: Any) -> set[str]:
    """The dtypes that stand for the one of the reference: JAX may be set to 32 bits, torch sums up in int64 only."""
    if space.engine == "torch":
        return {name, *({"int64"} if name == "uint64" else set())}
    integral = name_of(space.__array_namespace_info__().default_dtypes()["integral"], space)
    return {name, *({name.replace("64", "32")} if integral == "int32" and "int64" in name else set())}


@pytest.fixture(scope="module")
def engine(request: pytest.FixtureRequest) -> str:
    """An engine, loaded before the test begins: loading leaves variables in the environment."""
    name = str(request.param)
    namespace(name.removesuffix("64")).__array_namespace_info__()
    return name


@pytest.mark.parametrize(("engine", "name"), PAIRS, indirect=["engine"])
def test_a_function_agrees_with_the_reference(engine: str, name: str) -> None:
    with namespace_of(engine) as space:
        types = list(space.__array_namespace_info__().dtypes())
        if space.engine == "torch":  # which stores the larger unsigned integers and computes hardly anything with them
            types = [t for t in types if t not in ("uint16", "uint32", "uint64")]
        for number in range(EXAMPLES or ENGINES[engine]):
            chance = random.Random(f"{engine} {name} {number}")  # the same every time
            arguments, keywords = SAMPLES[name](lambda choice: choice(chance), types)  # noqa: B023  # called at once
            expected = result_of(strict, name, arguments, keywords)
            where = f"{name}(*{arguments}, **{keywords})"
            compare(result_of(space, name, arguments, keywords), expected, space, where)
