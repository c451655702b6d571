"""`size` and `item`: Python numbers of arrays, on every engine."""

from typing import Any

import pytest
import torch
from late import Late

import fanwise.tensor as ft

jax, tf = Late("jax"), Late("tensorflow")
pytestmark = pytest.mark.usefixtures("jax_is_loaded", "tensorflow_is_loaded")
Array = Any  # Any: of any engine


@pytest.fixture(params=("numpy", "torch", "jax", "tensorflow"), autouse=True)
def engine(request: pytest.FixtureRequest) -> Any:
    with ft.use(request.param):
        yield request.param


def test_the_size_of_an_array_is_a_python_integer() -> None:
    sizes = [ft.size(ft.zeros(shape)) for shape in ((), (3, 4), (2, 0), (5,))]
    assert sizes == [1, 12, 0, 5] and {type(size) for size in sizes} == {int}


def test_the_item_of_an_array_is_the_python_number_of_its_dtype() -> None:
    items = [ft.item(ft.asarray(value)) for value in (True, 3, 2.5, 1j, [[7]])]
    assert items == [True, 3, 2.5, 1j, 7]
    assert [type(item) for item in items] == [bool, int, float, complex, int]
    brain = ft.item(ft.astype(ft.asarray([1.5]), ft.bfloat16))
    assert brain == 1.5 and type(brain) is float


@pytest.mark.parametrize("shape", [(3,), (0,), (1, 2)])
def test_an_array_of_several_elements_or_none_has_no_item(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"takes an array of one element, got one of shape \(") as failed:
        ft.item(ft.zeros(shape))
    assert f"which has {ft.size(ft.zeros(shape))}." in str(failed.value)


@pytest.mark.parametrize("function", [ft.size, ft.item])
def test_size_and_item_refuse_other_objects(function: Any) -> None:
    with pytest.raises(TypeError, match=r"expected an array of .*, got builtins\.list"):
        function([1.0])


def test_a_loss_has_an_item_while_it_is_differentiated(engine: str) -> None:
    if engine == "torch":
        assert ft.item(torch.nn.Parameter(torch.ones(1)) * 2) == 2.0
        value, grad = ft.value_and_grad(lambda x: x * ft.item(x))(torch.tensor(3.0))
        assert (value.item(), grad.item()) == (9.0, 3.0)  # no gradient flows through the number
    elif engine == "tensorflow":
        assert ft.item(tf.Variable([2.0])) == 2.0


def test_traced_arrays_have_a_size_but_no_item(engine: str) -> None:
    if engine not in ("jax", "tensorflow"):
        return
    compiled = jax.jit if engine == "jax" else tf.function
    assert ft.item(compiled(lambda x: x[0] * ft.size(x))(ft.ones((3,)))) == 3.0
    with pytest.raises(TypeError, match="has no values yet"):
        compiled(lambda x: x * ft.item(x))(ft.ones(()))


def test_an_unknown_size_in_tensorflow_is_an_error(engine: str) -> None:
    if engine == "tensorflow":
        traced = tf.function(lambda x: x * ft.size(x), input_signature=[tf.TensorSpec([None])])
        with pytest.raises(ValueError, match=r"shape \(None,\) .*; use tensorflow\.size\(x\) there"):
            traced(ft.ones((3,)))
