"""Names, signatures, default dtypes and devices of a namespace."""

import copy
import inspect
import math
import pickle
from typing import Any

import array_api_strict as strict
import numpy as np
import pytest

import fanwise.tensor as ft
from fanwise.tensor import Namespace, namespace
from fanwise.tensor.namespaces.namespace import CONSTANTS, DTYPES, FUNCTIONS, PARTS, VERSION

ENGINES = ["numpy", "torch", "jax"]


@pytest.fixture(scope="module", params=ENGINES)
def xp(request: pytest.FixtureRequest) -> Namespace:
    """A namespace whose engine is loaded before the test begins: loading leaves variables in the environment."""
    result = namespace(request.param)
    result.__array_namespace_info__()
    return result


def parameters_of(function: Any) -> list[tuple[str, Any, Any]]:
    """Names, kinds and defaults; the reference marks some absent arguments by an enumeration member for None."""
    parameters = inspect.signature(function).parameters.values()
    return [(p.name, p.kind, None if type(p.default).__name__ == "Undef" else p.default) for p in parameters]


def test_signatures_are_those_of_the_reference() -> None:
    for name in FUNCTIONS:
        assert (name, parameters_of(getattr(ft, name))) == (name, parameters_of(getattr(strict, name)))
        assert getattr(ft, name).__doc__, name


def test_names_are_those_of_the_reference() -> None:
    public = {name for name in strict.__all__ if callable(getattr(strict, name)) and name[0] != "_"}
    ours = set(PARTS[""])
    not_standard = {"Device", "ArrayAPIStrictFlags", *DTYPES}
    assert ours == {name for name in public if "_strict_flags" not in name} - not_standard
    assert set(PARTS["fft"]) == set(strict.fft.__all__)
    assert set(PARTS["linalg"]) == {*strict.linalg.__all__, "eig", "eigvals"}  # array_api_strict 2.6 lacks these
    assert strict.__array_api_version__ == VERSION


def test_a_namespace_is_one_object_in_every_process(xp: Namespace) -> None:
    assert namespace(xp.engine) is xp
    assert pickle.loads(pickle.dumps(xp)) is xp
    assert pickle.loads(pickle.dumps(xp.linalg)) is xp.linalg
    assert copy.deepcopy(xp) is xp
    assert repr(xp.fft) == f"namespace({xp.engine!r}).fft"
    assert xp.__array_api_version__ == VERSION


def test_a_namespace_lists_what_it_has(xp: Namespace) -> None:
    wanted = {*PARTS[""], "linalg", "fft", *CONSTANTS, *DTYPES, "__array_api_version__"}
    assert wanted - set(dir(xp)) == set()
    for part in ("linalg", "fft"):
        assert set(dir(getattr(xp, part))) - {"__array_api_version__"} == set(PARTS[part])


def test_a_namespace_has_only_names_of_the_standard(xp: Namespace) -> None:
    with pytest.raises(AttributeError, match=r"has no 'gelu'; it has functions of the array API standard 2025.12"):
        _ = xp.gelu
    with pytest.raises(AttributeError, match="'lstsq'"):
        _ = xp.linalg.lstsq
    assert not hasattr(xp, "__wrapped__")


def test_defaults_are_what_creation_makes(xp: Namespace) -> None:
    defaults = xp.__array_namespace_info__().default_dtypes()
    assert defaults["real floating"] == xp.float32 and defaults["complex floating"] == xp.complex64
    assert defaults["integral"] == (xp.int32 if xp.engine == "jax" else xp.int64)
    floats = [xp.asarray(1.0), xp.asarray([[1.0, 2]]), xp.zeros(2), xp.ones((1, 2)), xp.empty(0), xp.eye(2)]
    floats += [xp.full(2, 0.5), xp.arange(1.0), xp.linspace(0, 1, 3)]
    if xp.engine != "tensorflow":
        floats += [xp.fft.fftfreq(4), xp.fft.rfftfreq(4)]
    assert [x.dtype for x in floats] == [xp.float32] * len(floats)
    assert [xp.asarray(x).dtype for x in (1j, [1, 2j])] == [xp.complex64] * 2
    integers = [xp.asarray(1), xp.asarray([[1, 2]]), xp.arange(3), xp.full((), 3)]
    assert [x.dtype for x in integers] == [defaults["integral"]] * 4
    assert xp.asarray([True]).dtype == xp.full(1, False).dtype == xp.bool
    assert xp.argmax(xp.ones(2)).dtype == defaults["indexing"]


def test_devices_are_given_by_name_or_as_the_engines_own(xp: Namespace) -> None:
    info = xp.__array_namespace_info__()
    assert xp.zeros(2, device="cpu").shape == xp.zeros(2, device=info.default_device()).shape == (2,)
    with pytest.raises((ValueError, RuntimeError), match=r"nowhere|device"):
        xp.zeros(2, device="nowhere")


def test_the_extensions_are_the_engines_own(xp: Namespace) -> None:
    x = xp.asarray([[3.0, 4.0], [0.0, 2.0]])
    assert np.asarray(ft.linalg.vector_norm(x, axis=1)).tolist() == [5.0, 2.0]
    assert np.asarray(ft.linalg.matmul(x, x)).tolist() == [[9.0, 20.0], [0.0, 4.0]]
    assert np.asarray(xp.abs(ft.fft.fft(x))).tolist() == [[7.0, 1.0], [2.0, 2.0]]
    assert np.allclose(np.asarray(ft.fft.ifft(ft.fft.fft(x, axis=0), axis=0)), np.asarray(x))
    assert np.allclose(np.asarray(ft.linalg.solve(x, x)), np.eye(2)) and float(ft.linalg.det(x)) == pytest.approx(6)


def test_a_list_of_arrays_becomes_one_array(xp: Namespace) -> None:
    x = xp.reshape(xp.arange(6), (2, 3))
    again = xp.asarray(xp.unstack(x), dtype=xp.float32)
    assert again.dtype == xp.float32 and again.shape == (2, 3) and bool(xp.all(again == xp.astype(x, xp.float32)))
    nested = xp.asarray([[xp.ones(2), xp.zeros(2)]])
    assert nested.dtype == xp.float32 and nested.shape == (1, 2, 2)


def test_complex_numbers_are_true_by_both_parts(xp: Namespace) -> None:
    x = xp.asarray([1j, 0, 2.0])
    for result in (xp.any(x, axis=()), xp.all(x, axis=())):
        assert [bool(result[i]) for i in range(3)] == [True, False, True]
    assert bool(xp.all(x[:1])) and bool(xp.any(x[:2])) and not bool(xp.any(x[1:2]))


def test_from_dlpack_takes_numpy_arrays(xp: Namespace) -> None:
    x = xp.from_dlpack(np.arange(16, dtype=np.float32))
    assert x.dtype == xp.float32 and float(xp.sum(x)) == 120.0
    backwards = xp.asarray(np.arange(3, dtype=np.float32)[::-1])
    assert [float(value) for value in backwards] == [2.0, 1.0, 0.0]


@pytest.mark.parametrize("wrong", [3, -4])
def test_an_index_out_of_range_is_an_error(xp: Namespace, wrong: int) -> None:
    x = xp.asarray([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    inside, outside = (ft.from_numpy(np.asarray(places, np.int32), xp.engine) for places in ([0, -1], [0, wrong]))
    assert np.asarray(xp.take(x, inside, axis=1)).tolist() == [[1.0, 3.0], [4.0, 6.0]]
    assert np.asarray(xp.take_along_axis(x, inside[None, :], axis=1)).tolist() == [[1.0, 3.0], [4.0, 6.0]]
    assert np.asarray(xp.take_along_axis(x, inside[:, None], axis=-1)).tolist() == [[1.0], [6.0]]
    with pytest.raises(IndexError, match=r"out of (range|bounds)"):
        xp.take(x, outside, axis=1)
    with pytest.raises((IndexError, RuntimeError), match=r"out of (range|bounds)"):
        xp.take_along_axis(x, outside[None, :], axis=-1)


def test_a_traced_index_of_jax_is_not_checked() -> None:
    jax = pytest.importorskip("jax")
    xp = namespace("jax")
    x = xp.asarray([1.0, 2.0])
    taken = jax.jit(lambda places: xp.take(x, places))(xp.asarray([0, 5]))
    assert float(taken[0]) == 1.0 and math.isnan(float(taken[1]))
