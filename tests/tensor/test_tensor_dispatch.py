"""`fanwise.tensor.exp(x)`: functions go to the engine of their arrays, creation to the current engine."""

import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import fanwise.tensor as ft
from fanwise.tensor.namespaces.namespace import CREATION, FUNCTIONS, OF_DTYPES, PARTS

UNTYPED: Any = ft  # for calls that a type checker refuses
NAMES = list(FUNCTIONS)


@pytest.fixture(scope="module")
def jnp() -> Any:  # Any: the namespace of an engine
    """JAX, loaded before the test begins: loading leaves variables in the environment."""
    result = ft.namespace("jax")
    result.__array_namespace_info__()
    return result


def test_a_function_is_created_once_and_can_be_pickled() -> None:
    for space, names in ((ft, PARTS[""]), (ft.linalg, PARTS["linalg"]), (ft.fft, PARTS["fft"])):
        for name in names:
            function = getattr(space, name)
            assert getattr(space, name) is function and pickle.loads(pickle.dumps(function)) is function, name


def test_a_function_goes_to_the_engine_of_its_array(jnp: Any) -> None:
    arrays: list[Any] = [np.ones(3, dtype=np.float32), torch.ones(3), jnp.ones(3)]
    for x in arrays:
        result = ft.add(ft.exp(x), x)
        assert ft.engine_of(result) == ft.engine_of(x)
        assert type(ft.sum(x, axis=0, keepdims=True)) is type(ft.concat([x, x])) is type(x)
        assert [float(value) for value in ft.clip(x, 0.0, 0.5)] == [0.5] * 3


@pytest.mark.parametrize(
    "call",
    [
        lambda x: ft.where(x > 0, 2.0, x),
        lambda x: ft.where(x > 1, x, 2.0),
        lambda x: ft.maximum(2.0, x),
        lambda x: ft.multiply(x, 2),
        lambda x: ft.clip(x, 2.0),
        lambda x: ft.clip(x, min=2.0),
        lambda x: ft.stack((x, ft.add(x, x)))[1],
        lambda x: ft.broadcast_arrays(x, ft.add(x, 1))[1],
        lambda x: ft.meshgrid(ft.add(x, 1), x)[0][0],
        lambda x: ft.linalg.vector_norm(ft.stack([x, x, x, x]), axis=0),
        lambda x: ft.full_like(x, 2.0),
        lambda x: ft.real(ft.fft.ifft(ft.fft.fft(ft.add(x, 1)))),
        lambda x: ft.cumulative_sum(x)[1] * ft.ones_like(x),
        lambda x: ft.expand_dims(ft.add(x, 1), axis=0)[0],
        lambda x: ft.squeeze(ft.add(x, 1)[None], axis=0),
    ],
)
def test_numbers_and_keywords_are_passed_on(call: Any, jnp: Any) -> None:
    for x in (np.ones(3, dtype=np.float32), torch.ones(3), jnp.ones(3)):
        result = call(x)
        assert ft.engine_of(result) == ft.engine_of(x)
        assert [float(value) for value in result] == [2.0] * 3


def test_parameters_and_tensors_are_of_one_engine() -> None:
    weight = torch.nn.Parameter(torch.ones(2))
    assert ft.multiply(weight, torch.ones(2)).requires_grad and ft.multiply(torch.ones(2), weight).requires_grad


def test_creation_uses_the_current_engine() -> None:
    for engine in ("numpy", "torch"):
        with ft.use(engine):
            made = [ft.zeros((2,)), ft.arange(3), ft.asarray([1.0]), ft.linspace(0, 1, 3), ft.eye(2), ft.full(2, 1)]
            made += [ft.fft.fftfreq(4), ft.empty(shape=(2,)), ft.ones(2, dtype=ft.int8, device="cpu")]
            assert {ft.engine_of(x) for x in made} == {engine}
            assert made[2].dtype == ft.float32


def test_dtypes_are_those_of_the_current_engine() -> None:
    assert ft.float32 is torch.float32 and ft.bfloat16 is torch.bfloat16
    with ft.use("numpy"):
        assert str(ft.float32) == "float32" and str(ft.bool) == "bool"
    assert ft.bool is torch.bool
    assert (ft.pi, ft.newaxis) == (np.pi, None)


def test_asarray_converts_arrays_of_other_engines(jnp: Any) -> None:
    x = ft.asarray(jnp.asarray([1, 2]))
    assert isinstance(x, torch.Tensor) and x.tolist() == [1, 2]
    assert ft.asarray(np.ones(2), dtype=torch.float32).dtype == torch.float32
    own = torch.ones(2)
    assert ft.asarray(own) is own
    with ft.use("numpy"):
        assert ft.asarray(torch.ones(2)).tolist() == [1.0, 1.0]


MIXED = [
    lambda x, y: ft.add(x, y),
    lambda x, y: ft.where(x > 0, x, y),
    lambda x, y: ft.clip(x, y),
    lambda x, y: ft.clip(x, max=y),
    lambda x, y: ft.broadcast_arrays(x, y),
    lambda x, y: ft.result_type(x, y),
    lambda x, y: ft.linalg.vecdot(x, y),
    lambda x, y: ft.take(x, y),
    lambda x, y: ft.diff(x, prepend=y),
]


@pytest.mark.parametrize("call", MIXED)
def test_an_error_names_both_engines_of_a_call(call: Any) -> None:
    for x, y in ((torch.ones(2), np.ones(2)), (np.ones(2), torch.ones(2))):
        with pytest.raises(TypeError) as caught:
            call(x, y)
        assert "got arrays of numpy and torch, and takes those of one engine" in str(caught.value)
        assert f"fanwise.tensor.convert(x, {ft.engine_of(x)!r})" in str(caught.value)
        with pytest.raises(TypeError):
            UNTYPED.concat([x, y])


@pytest.mark.parametrize(
    "call", [lambda: UNTYPED.exp([1.0]), lambda: UNTYPED.exp("x"), lambda: UNTYPED.concat([[1.0], [2.0]])]
)
def test_an_argument_that_is_not_an_array_is_an_error_with_a_remedy(call: Any) -> None:
    with pytest.raises(TypeError, match=r"expected an array of torch.*fanwise\.tensor\.asarray"):
        call()


def test_numbers_alone_are_an_error() -> None:
    with pytest.raises(TypeError, match="add takes arrays, and got none"):
        ft.add(1.0, 2.0)


def test_arguments_are_checked_before_any_engine_sees_them() -> None:
    with pytest.raises(TypeError, match="keyword"):
        UNTYPED.sum(torch.ones(2), dim=0)
    with pytest.raises(TypeError, match="positional"):
        UNTYPED.sum(torch.ones(2), 0)


def test_array_classes_of_user_code_work_and_are_not_kept_alive() -> None:
    class Mine(np.ndarray):
        pass

    assert ft.exp(np.zeros(2).view(Mine)).tolist() == [1.0, 1.0]
    assert Mine not in UNTYPED.exp.__globals__["direct"]


def test_calls_with_dtypes_alone_use_their_library() -> None:
    assert ft.finfo(torch.float32).bits == 32
    assert ft.iinfo(np.dtype("int8")).max == 127
    assert ft.isdtype(torch.int8, "integral") and ft.isdtype(dtype=torch.int8, kind="signed integer")
    assert ft.result_type(torch.ones(1), torch.float64) is torch.float64
    assert ft.can_cast(torch.int8, torch.int16) and not ft.can_cast(torch.int16, torch.int8)
    assert ft.isdtype(np.float32, "real floating")
    assert OF_DTYPES & CREATION == set()


def loaded(code: str) -> set[str]:
    """The engines that an interpreter has loaded after some code."""
    show = "import sys\nprint(*{name.partition('.')[0] for name in sys.modules})"
    done = subprocess.run([sys.executable, "-c", f"{code}\n{show}"], check=True, capture_output=True, text=True)
    return set(done.stdout.split()) & {"numpy", "torch", "jax", "tensorflow", "array_api_compat"}


def test_no_engine_is_loaded_before_one_is_named_or_has_an_array() -> None:
    look = "ft.exp, ft.linalg.solve, ft.fft.fft, ft.pi, dir(ft), hasattr(ft, 'x')"
    assert loaded(f"import fanwise.tensor as ft\n{look}") == set()
    assert loaded("import fanwise.tensor as ft\nwith ft.use('numpy'): ft.zeros(3)") == {"numpy", "array_api_compat"}


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match=r"module 'fanwise\.tensor' has no attribute 'gelu'"):
        _ = UNTYPED.gelu
    for name, meant in {"concats": "concat", "expp": "exp", "value_and_gradd": "value_and_grad"}.items():
        with pytest.raises(AttributeError, match=rf"no attribute '{name}'; did you mean '{meant}'\?"):
            getattr(ft, name)
    assert "Any" not in dir(ft)
    with pytest.raises(AttributeError, match="lstsq"):
        _ = UNTYPED.linalg.lstsq
    assert {"exp", "linalg", "float32", "pi", "use"} <= set(dir(ft))
    assert "solve" in dir(ft.linalg)
    assert pickle.loads(pickle.dumps(ft.linalg.solve)) is ft.linalg.solve


def test_jax_refuses_64_bits_that_are_off(jnp: Any) -> None:
    calls: list[Callable[[], Any]] = [
        lambda: jnp.zeros(3, dtype=jnp.float64),
        lambda: jnp.asarray(np.ones(3)),
        lambda: jnp.asarray([np.float64(1.0)]),
        lambda: jnp.asarray([1.0], dtype=jnp.float64),
        lambda: jnp.astype(jnp.ones(3), jnp.int64),
        lambda: jnp.sum(jnp.ones(3), dtype=jnp.float64),
        lambda: jnp.zeros_like(jnp.ones(3), dtype=jnp.complex128),
        lambda: jnp.from_dlpack(np.ones(3)),
        lambda: jnp.from_dlpack(torch.ones(3, dtype=torch.float64)),
        lambda: jnp.cumulative_sum(jnp.ones(3), dtype=jnp.float64),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=r"silently make.*Ask for (float|int|complex)\d+.*jax_enable_x64"):
            call()


def test_jax_has_64_bits_when_they_are_on(jnp: Any) -> None:
    import jax

    with jax.enable_x64(True):
        assert jnp.zeros(3, dtype=jnp.float64).dtype == jnp.float64
        assert jnp.asarray(np.ones(2)).dtype == jnp.float64
        assert (jnp.asarray(1.0).dtype, jnp.arange(1.0).dtype, jnp.asarray(1).dtype) == ("float32", "float32", "int64")
        assert jnp.__array_namespace_info__().default_dtypes()["integral"] == jnp.int64


def test_functions_can_be_traced_and_differentiated(jnp: Any) -> None:
    import jax

    def f(x: Any) -> Any:
        return ft.sum(ft.clip(ft.multiply(ft.exp(x), ft.sign(x)), 0.0, 100.0))

    x = jnp.asarray([1.0, 2.0])
    assert jax.jit(f)(x) == pytest.approx(float(f(x)))
    assert jax.grad(f)(x).tolist() == pytest.approx(ft.exp(x).tolist())
    y = torch.asarray([1.0, 2.0], requires_grad=True)
    f(y).backward()
    assert y.grad is not None and y.grad.tolist() == pytest.approx(ft.exp(x).tolist())
    assert torch.func.vmap(f)(torch.ones(3, 2)).shape == (3,)


def test_negative_strides_are_copied_for_torch() -> None:
    xp = ft.namespace("torch")
    backwards = np.arange(3.0)[::-1]
    for take_over in (xp.asarray, xp.from_dlpack):
        assert take_over(backwards).tolist() == [2.0, 1.0, 0.0]
        with pytest.raises(ValueError, match="negative stride"):
            take_over(backwards, copy=False)


def test_bounds_that_the_type_cannot_hold_are_refused(jnp: Any) -> None:
    for xp in (ft.namespace("numpy"), ft.namespace("torch"), jnp):
        x = xp.asarray([-100, 0, 100], dtype=xp.int8)
        bounds = xp.asarray([-10, 5, 50], dtype=xp.int8)
        assert xp.clip(x, bounds, None).tolist() == [-10, 5, 100]
        assert xp.clip(x, None, bounds).dtype == xp.int8
        assert xp.clip(x, None, None).tolist() == [-100, 0, 100]
        assert bounds.tolist() == [-10, 5, 50], "the bounds are not written to"
        with pytest.raises(OverflowError, match="1000 does not fit"):
            xp.clip(x, -1000, 1000)
        with pytest.raises(TypeError, match="clip takes bounds of the array's dtype"):
            xp.clip(x, xp.asarray([1, 2, 3], dtype=xp.int32))
        with pytest.raises(TypeError, match="clip takes integers"):
            xp.clip(x, 0.5)


def test_nan_differs_from_nan_in_torch_too() -> None:
    xp = ft.namespace("torch")
    x = xp.asarray([[np.nan, 2.0], [1.0, np.nan], [2.0, 1.0]])
    assert xp.unique_counts(x).counts.tolist() == [2, 2, 1, 1]


def test_a_dtype_is_refused_where_the_standard_has_none_and_taken_beside_other_arguments() -> None:
    with pytest.raises(TypeError, match="from_dlpack takes no keyword 'dtype'"):
        UNTYPED.from_dlpack(np.ones(2), dtype=np.float32)
    with ft.use("numpy"):
        assert ft.eye(2, 3, dtype=ft.int8).dtype == ft.full(shape=2, fill_value=1, dtype=ft.int8).dtype == ft.int8
        assert ft.zeros(2, dtype=ft.int8).dtype == ft.zeros(2, dtype=ft.int8, device="cpu").dtype == ft.int8
        assert ft.sum(np.ones((2, 3)), axis=0, keepdims=True).shape == (1, 3)
        assert ft.sum(np.ones((2, 3)), keepdims=True).shape == (1, 1)


def test_an_array_of_another_engine_in_a_refused_call_does_not_change_later_calls() -> None:
    with pytest.raises(TypeError):
        UNTYPED.reshape(torch.ones(2), np.asarray([2, 1]))
    assert ft.reshape(np.ones(2), (2, 1)).shape == (2, 1)


def test_floor_divide_of_torch_checks_and_promotes_as_divide_does() -> None:
    with pytest.raises(OverflowError):
        ft.floor_divide(torch.tensor([200], dtype=torch.uint8), 300)
    quotient = ft.floor_divide(torch.ones(1), torch.tensor(2.0, dtype=torch.float64))
    assert quotient.dtype == ft.divide(torch.ones(1), torch.tensor(2.0, dtype=torch.float64)).dtype


@pytest.mark.parametrize("matrix", [torch.ones(2, 2), 1e-30 * torch.eye(2)], ids=["singular", "underflow"])
def test_derivatives_of_det_are_refused_where_torch_has_wrong_ones(matrix: torch.Tensor) -> None:
    assert ft.linalg.det(matrix) == 0
    with pytest.raises(ValueError, match="use slogdet"):
        ft.grad(ft.linalg.det)(matrix)
    assert ft.grad(ft.linalg.det)(torch.eye(2)).tolist() == [[1, 0], [0, 1]]
