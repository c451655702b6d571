"""What a namespace says of itself: its names, their signatures, its dtypes, devices, limits and defaults."""

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
from fanwise.tensor.namespaces.standard import CONSTANTS, DTYPES, EXTRA_DTYPES, FUNCTIONS, PARTS, VERSION

Parameter = inspect.Parameter
ENGINES = ["numpy", "torch", "jax"]
# What TensorFlow has of the extensions; its namespace says so of the rest.
ON_TENSORFLOW = {"linalg": {"matmul", "matrix_transpose", "tensordot", "vecdot", "vector_norm"}, "fft": {"fft", "ifft"}}


@pytest.fixture(scope="module", params=ENGINES)
def xp(request: pytest.FixtureRequest) -> Namespace:
    """A namespace whose engine is loaded before the test begins: loading leaves variables in the environment."""
    found = namespace(request.param)
    found.__array_namespace_info__()
    return found


def signature_of(text: str) -> inspect.Signature:
    """By Python itself, which makes nothing of the types."""
    around: dict[str, Any] = {}
    exec(f"from __future__ import annotations\ndef function{text}: pass", around)
    return inspect.signature(around["function"])


def plain(signature: inspect.Signature) -> list[tuple[str, Any, Any]]:
    """Names, kinds and defaults; the reference marks some absent arguments by an enumeration member for None."""
    rows = [(each.name, each.kind, each.default) for each in signature.parameters.values()]
    return [(name, kind, None if type(default).__name__ == "Undef" else default) for name, kind, default in rows]


def test_the_table_of_names_is_that_of_the_reference() -> None:
    public = {name for name in strict.__all__ if callable(getattr(strict, name)) and name[0] != "_"}
    ours = set(PARTS[""])
    not_standard = {"Device", "ArrayAPIStrictFlags", *DTYPES}
    assert ours == {name for name in public if "_strict_flags" not in name} - not_standard
    assert set(PARTS["fft"]) == set(strict.fft.__all__)
    assert set(PARTS["linalg"]) == {*strict.linalg.__all__, "eig", "eigvals"}  # array_api_strict 2.6 lacks these
    assert strict.__array_api_version__ == VERSION


def test_the_table_of_signatures_is_that_of_the_reference() -> None:
    for name, text in FUNCTIONS.items():
        wanted = plain(inspect.signature(getattr(strict, name)))
        assert (name, plain(signature_of(text))) == (name, wanted)


def differences(found: inspect.Signature, wanted: inspect.Signature) -> list[str]:
    """What a call in the standard's spelling would stumble over."""
    wrong = []
    parameters = list(found.parameters.values())
    any_number = any(each.kind is Parameter.VAR_POSITIONAL for each in parameters)
    anything = any(each.kind is Parameter.VAR_KEYWORD for each in parameters)
    for place, each in enumerate(wanted.parameters.values()):
        if each.kind is Parameter.KEYWORD_ONLY:
            there = found.parameters.get(each.name)
            if there is None and not anything:
                wrong.append(f"no {each.name}=")
            # Some libraries have a mark of their own, or None, where the standard names the default.
            elif there is not None and isinstance(there.default, (bool, int, str)) and there.default != each.default:
                wrong.append(f"{each.name}={there.default!r}, wanted {each.default!r}")
            continue
        there = parameters[place] if place < len(parameters) else None
        if each.kind is Parameter.POSITIONAL_ONLY and any_number:
            continue
        if there is None or there.kind in (Parameter.KEYWORD_ONLY, Parameter.VAR_KEYWORD):
            wrong.append(f"no {each.name} in place {place}")
        elif each.kind is Parameter.VAR_POSITIONAL and there.kind is not Parameter.VAR_POSITIONAL:
            wrong.append(f"no *{each.name}")
        elif each.kind is Parameter.POSITIONAL_OR_KEYWORD and (there.name, there.kind) != (each.name, each.kind):
            wrong.append(f"{there.name} in the place of {each.name}, or not by keyword")
    return wrong


def test_functions_take_the_standard_arguments(xp: Namespace) -> None:
    wrong = {}
    for name, text in FUNCTIONS.items():
        try:
            found = inspect.signature(getattr(xp, name))
        except ValueError:
            continue  # a function in C; the tests of values call it
        wrong[name] = differences(found, signature_of(text))
    assert {name: complaints for name, complaints in wrong.items() if complaints} == {}


def test_a_wrong_signature_is_seen() -> None:
    wanted = signature_of("(x, /, axis, *arrays, keepdims=False)")
    assert differences(signature_of("(a, axis, *more, keepdims=False)"), wanted) == []
    assert len(differences(signature_of("(x, dim, *more, keepdims=False)"), wanted)) == 1
    assert len(differences(signature_of("(x, axis, *more, keepdims=True)"), wanted)) == 1
    assert len(differences(signature_of("(x, axis, *more)"), wanted)) == 1
    assert len(differences(signature_of("(x, *, axis, keepdims)"), wanted)) == 2


def test_a_namespace_is_one_object_in_every_process(xp: Namespace) -> None:
    assert namespace(xp.engine) is xp
    assert pickle.loads(pickle.dumps(xp)) is xp
    assert pickle.loads(pickle.dumps(xp.linalg)) is xp.linalg
    assert copy.deepcopy(xp) is xp
    assert xp == Namespace(xp.engine) and hash(xp) == hash(Namespace(xp.engine))
    assert xp not in (Namespace("numpy" if xp.engine != "numpy" else "torch"), xp.linalg, xp.engine)
    assert repr(xp.fft) == f"namespace({xp.engine!r}).fft"
    assert xp.__array_api_version__ == VERSION


def test_a_namespace_lists_what_it_has(xp: Namespace) -> None:
    wanted = {*PARTS[""], "linalg", "fft", *CONSTANTS, *DTYPES, "__array_api_version__"}
    assert wanted - set(dir(xp)) == set()
    for part in ("linalg", "fft"):
        assert set(dir(getattr(xp, part))) - {"__array_api_version__"} == set(PARTS[part])


def test_what_is_not_in_the_standard_is_not_in_a_namespace(xp: Namespace) -> None:
    with pytest.raises(AttributeError, match=r"no 'gelu': it is not in the standard 2025.12"):
        _ = xp.gelu
    with pytest.raises(AttributeError, match="'lstsq'"):
        _ = xp.linalg.lstsq
    assert not hasattr(xp, "__wrapped__")


def test_constants_are_numbers(xp: Namespace) -> None:
    assert (xp.e, xp.pi, xp.inf, xp.newaxis) == (math.e, math.pi, math.inf, None)
    assert math.isnan(xp.nan)


def test_defaults_are_what_creation_makes(xp: Namespace) -> None:
    defaults = xp.__array_namespace_info__().default_dtypes()
    assert defaults["real floating"] == xp.float32 and defaults["complex floating"] == xp.complex64
    assert defaults["integral"] == (xp.int32 if xp.engine == "jax" else xp.int64)
    floats = [xp.asarray(1.0), xp.asarray([[1.0, 2]]), xp.zeros(2), xp.ones((1, 2)), xp.empty(0), xp.eye(2)]
    floats += [xp.full(2, 0.5), xp.arange(1.0), xp.linspace(0, 1, 3)]
    assert [x.dtype for x in floats] == [xp.float32] * len(floats)
    assert [xp.asarray(x).dtype for x in (1j, [1, 2j])] == [xp.complex64] * 2
    integers = [xp.asarray(1), xp.asarray([[1, 2]]), xp.arange(3), xp.full((), 3)]
    assert [x.dtype for x in integers] == [defaults["integral"]] * 4
    assert xp.asarray([True]).dtype == xp.full(1, False).dtype == xp.bool
    assert xp.argmax(xp.ones(2)).dtype == defaults["indexing"]


def test_numbers_of_numpy_keep_their_dtype(xp: Namespace) -> None:
    dtypes = ["float16", "float32", "int8", "bool"] + (["float64"] if xp.engine != "jax" else [])
    for name in dtypes:
        assert xp.asarray(np.ones(2, dtype=name)).dtype == getattr(xp, name)


def test_dtypes_are_told_by_kind(xp: Namespace) -> None:
    info = xp.__array_namespace_info__()
    assert info.dtypes()["float32"] == xp.float32
    assert set(info.dtypes(kind=("bool", "complex floating"))) <= {"bool", "complex64", "complex128"}
    assert all(
        xp.isdtype(dtype, kind) for kind in ("integral", "real floating") for dtype in info.dtypes(kind=kind).values()
    )
    with pytest.raises(ValueError, match="kind must be one of"):
        info.dtypes(kind="floating")
    assert info.capabilities()["boolean indexing"] is True


def test_the_default_device_comes_first_and_has_a_name(xp: Namespace) -> None:
    info = xp.__array_namespace_info__()
    assert type(info.devices()) is list
    assert info.default_device() == info.devices()[0]
    assert xp.zeros(2, device="cpu").shape == xp.zeros(2, device=info.default_device()).shape == (2,)
    with pytest.raises((ValueError, RuntimeError), match=r"nowhere|device"):
        xp.zeros(2, device="nowhere")


@pytest.mark.parametrize("name", ["float32", "float64", "complex64", "complex128", *EXTRA_DTYPES])
def test_limits_of_floats_are_python_numbers(xp: Namespace, name: str) -> None:
    if name == "bfloat16" and xp.engine == "numpy":
        return  # NumPy has it from another library, and knows no limits of it
    found = xp.finfo(getattr(xp, name))
    assert [type(getattr(found, field)) for field in ("eps", "max", "min", "smallest_normal")] == [float] * 4
    assert type(found.bits) is int
    part = {"complex64": "float32", "complex128": "float64"}.get(name, name)
    assert found.dtype == getattr(xp, part) and not isinstance(found.dtype, str)
    if part in ("float32", "float64"):
        assert (found.eps, found.max) == (float(np.finfo(part).eps), float(np.finfo(part).max))
        assert found.smallest_normal == float(np.finfo(part).smallest_normal)


@pytest.mark.parametrize("name", ["int8", "int32", "int64", "uint8"])
def test_limits_of_integers_are_python_numbers(xp: Namespace, name: str) -> None:
    found = xp.iinfo(getattr(xp, name))
    limits = np.iinfo(name)
    assert (found.bits, found.min, found.max) == (limits.bits, limits.min, limits.max)
    assert {type(found.bits), type(found.min), type(found.max)} == {int}
    assert found.dtype == getattr(xp, name)


def test_limits_are_told_of_arrays_too(xp: Namespace) -> None:
    assert xp.finfo(xp.ones(2)) == xp.finfo(xp.float32)
    assert xp.iinfo(xp.ones(2, dtype=xp.int8)) == xp.iinfo(xp.int8)


def test_shapes_that_do_not_fit_are_a_value_error(xp: Namespace) -> None:
    with pytest.raises(ValueError, match=r"\(2,\), \(3,\) do not fit together"):
        xp.broadcast_shapes((2,), (3,))


def test_what_is_in_the_extensions_is_the_engines_own(xp: Namespace) -> None:
    x = xp.asarray([[3.0, 4.0], [0.0, 2.0]])
    assert np.asarray(ft.linalg.vector_norm(x, axis=1)).tolist() == [5.0, 2.0]
    assert np.asarray(ft.linalg.matmul(x, x)).tolist() == [[9.0, 20.0], [0.0, 4.0]]
    assert np.asarray(xp.abs(ft.fft.fft(x))).tolist() == [[7.0, 1.0], [2.0, 2.0]]
    assert np.allclose(np.asarray(ft.fft.ifft(ft.fft.fft(x, axis=0), axis=0)), np.asarray(x))
    if xp.engine != "tensorflow":
        assert np.allclose(np.asarray(ft.linalg.solve(x, x)), np.eye(2)) and float(ft.linalg.det(x)) == pytest.approx(6)


def test_a_list_of_arrays_becomes_one_array(xp: Namespace) -> None:
    x = xp.reshape(xp.arange(6), (2, 3))
    again = xp.asarray(xp.unstack(x), dtype=xp.float32)
    assert again.dtype == xp.float32 and again.shape == (2, 3) and bool(xp.all(again == xp.astype(x, xp.float32)))
    nested = xp.asarray([[xp.ones(2), xp.zeros(2)]])
    assert nested.dtype == xp.float32 and nested.shape == (1, 2, 2)


def test_complex_numbers_are_true_by_both_parts(xp: Namespace) -> None:
    x = xp.asarray([1j, 0, 2.0])
    for found in (xp.any(x, axis=()), xp.all(x, axis=())):
        assert [bool(found[i]) for i in range(3)] == [True, False, True]
    assert bool(xp.all(x[:1])) and bool(xp.any(x[:2])) and not bool(xp.any(x[1:2]))


def test_memory_of_numpy_is_taken_over(xp: Namespace) -> None:
    x = xp.from_dlpack(np.arange(16, dtype=np.float32))
    assert x.dtype == xp.float32 and float(xp.sum(x)) == 120.0
    backwards = xp.asarray(np.arange(3, dtype=np.float32)[::-1])
    assert [float(value) for value in backwards] == [2.0, 1.0, 0.0]


@pytest.mark.parametrize("wrong", [3, -4])
def test_an_index_that_is_out_of_range_is_an_error(xp: Namespace, wrong: int) -> None:
    x = xp.asarray([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
    inside, outside = (ft.from_numpy(np.asarray(places, np.int32), xp.engine) for places in ([0, -1], [0, wrong]))
    assert np.asarray(xp.take(x, inside, axis=1)).tolist() == [[1.0, 3.0], [4.0, 6.0]]
    assert np.asarray(xp.take_along_axis(x, inside[None, :], axis=1)).tolist() == [[1.0, 3.0], [4.0, 6.0]]
    assert np.asarray(xp.take_along_axis(x, inside[:, None], axis=-1)).tolist() == [[1.0], [6.0]]
    # TensorFlow has an exception of its own for it.
    with pytest.raises(Exception, match=r"out of (range|bounds)|is not in \[0, 3\)"):
        xp.take(x, outside, axis=1)
    with pytest.raises(Exception, match=r"out of (range|bounds)|is not in \[0, 3\)"):
        xp.take_along_axis(x, outside[None, :], axis=-1)


def test_while_jax_traces_an_index_is_not_looked_at() -> None:
    jax = pytest.importorskip("jax")
    xp = namespace("jax")
    x = xp.asarray([1.0, 2.0])
    taken = jax.jit(lambda places: xp.take(x, places))(xp.asarray([0, 5]))
    assert float(taken[0]) == 1.0 and math.isnan(float(taken[1]))
