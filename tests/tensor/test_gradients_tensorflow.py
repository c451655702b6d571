"""What gradients promise of TensorFlow alone, and one backward pass through parts in three engines."""

import logging
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from fanwise.tensor import as_torch_function, grad, jit, value_and_grad, vjp
from fanwise.testing.late import Late

jnp, tf = Late("jax.numpy"), Late("tensorflow")
pytestmark = pytest.mark.usefixtures("jax_is_loaded", "tensorflow_is_loaded")
Array = Any  # Any: of whatever engine


@pytest.fixture(scope="module", autouse=True)
def torch_keeps_what_it_compiles_here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Its compiler, which torch.func loads, else adds the variable to the environment in the middle of a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("torch")))
        yield


# -- TensorFlow --------------------------------------------------------------------------------------------------------


def test_a_variable_reaches_f_itself_and_what_a_model_uses_of_it_counts() -> None:
    w = tf.Variable([1.0, 2.0])

    def f(variables: list[Array], x: Array) -> Array:
        assert isinstance(variables[0], tf.Variable)
        return tf.reduce_sum(w * w * x)

    df = grad(f)
    assert np.allclose(df([w], tf.constant(2.0))[0], [4.0, 8.0])
    w.assign([3.0, 4.0])
    assert np.allclose(df([w], tf.constant(2.0))[0], [12.0, 16.0])


def test_a_gradient_by_rows_comes_as_a_tensor() -> None:
    table = tf.ones((3, 2))
    for compiled in (False, True):
        found = grad(lambda table: tf.reduce_sum(tf.gather(table, [2, 2])), jit=compiled)(table)
        assert isinstance(found, tf.Tensor) and np.allclose(found, [[0, 0], [0, 0], [2, 2]])


def test_tapes_and_tf_function_may_be_around_it() -> None:
    x = tf.constant([1.0, 2.0])

    def cubes(x: Array) -> Array:
        return tf.reduce_sum(x**3)

    assert np.allclose(tf.function(grad(cubes))(x), [3.0, 12.0])
    assert np.allclose(tf.function(lambda x: vjp(lambda x: x**3, x)[1](x)[0])(x), [3.0, 24.0])
    scaled = jit(lambda x, n: {"x": x * n, "size": str(x.shape)})
    assert [scaled(tf.ones(n), 3)["size"] for n in (1, 2)] == ["(1,)", "(2,)"]
    for autograph in (False, True):
        around = tf.function(lambda x: scaled(x, 3)["x"], autograph=autograph)
        assert np.allclose(around(x[:1]), [3.0]) and np.allclose(around(x), [3.0, 6.0])
    for compiled in (False, True):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = grad(cubes, jit=compiled)(x)
        assert np.allclose(tape.gradient(y, x), [6.0, 12.0])


def test_a_shape_that_is_not_known_while_tracing_is_no_obstacle() -> None:
    f = tf.function(grad(lambda x: tf.reduce_sum(x * x)), input_signature=[tf.TensorSpec(None, tf.float32)])
    assert np.allclose(f(tf.constant([1.0, 2.0])), [2.0, 4.0])


def test_many_functions_do_not_make_tensorflow_complain(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("tensorflow")
    logger.addHandler(caplog.handler)
    try:
        for _ in range(8):
            grad(lambda x: x * x, jit=True)(tf.constant(1.0))
    finally:
        logger.removeHandler(caplog.handler)
    assert caplog.records == []


# -- three engines in one backward pass --------------------------------------------------------------------------------


def part(xp: Any) -> Callable[[Array, Array], Array]:  # Any: functions of an engine
    return lambda x, w: xp.tanh(x @ w)


@pytest.fixture
def tensors() -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(1)
    shapes = ((5, 4), (4, 3), (3, 3), (3, 2))
    return [torch.randn(shape, generator=generator, requires_grad=True) for shape in shapes]


def chained(parts: list[Callable[[Array, Array], Array]], tensors: list[torch.Tensor]) -> torch.Tensor:
    x, *weights = tensors
    for each, w in zip(parts, weights, strict=True):
        x = each(x, w)
    return (x * x).sum()


def mixed_parts(compiled: bool) -> list[Callable[[Array, Array], Array]]:
    in_jax, in_tensorflow = (
        as_torch_function(jit(part(xp)) if compiled else part(xp), xp.__name__.split(".")[0]) for xp in (jnp, tf)
    )
    return [part(torch), in_jax, in_tensorflow]


@pytest.mark.parametrize("compiled", [True, False], ids=["compiled", "as it is"])
def test_one_backward_goes_through_torch_jax_and_tensorflow(tensors: list[torch.Tensor], compiled: bool) -> None:
    expected = torch.autograd.grad(chained([part(torch)] * 3, tensors), tensors)
    parts = mixed_parts(compiled)
    for _ in range(2):
        for x in tensors:
            x.grad = None
        chained(parts, tensors).backward()  # type: ignore[no-untyped-call]  # torch's
        for x, want in zip(tensors, expected, strict=True):
            assert x.grad is not None and torch.allclose(x.grad, want, rtol=1e-5, atol=1e-5)


def test_second_derivatives_go_through_all_three(tensors: list[torch.Tensor]) -> None:
    def penalty(parts: list[Callable[[Array, Array], Array]]) -> list[torch.Tensor]:
        slopes = torch.autograd.grad(chained(parts, tensors), tensors, create_graph=True)
        return list(torch.autograd.grad(sum((slope**2).sum() for slope in slopes), tensors))  # type: ignore[arg-type]  # not 0

    for found, want in zip(penalty(mixed_parts(True)), penalty([part(torch)] * 3), strict=True):
        assert torch.allclose(found, want, rtol=1e-4, atol=1e-4)


def test_cotangents_are_carried_by_hand_through_all_three(tensors: list[torch.Tensor]) -> None:
    x, u, v, w = [each.detach() for each in tensors]
    y, back_torch = vjp(part(torch), x, u)
    z, back_jax = vjp(part(jnp), jnp.asarray(y.numpy()), jnp.asarray(v.numpy()))
    out, back_tensorflow = vjp(part(tf), tf.constant(np.asarray(z)), tf.constant(w.numpy()))
    to_z, to_w = back_tensorflow(2 * out)
    to_y, to_v = back_jax(jnp.asarray(to_z.numpy()))
    to_x, to_u = back_torch(torch.tensor(np.asarray(to_y)))
    expected = torch.autograd.grad(chained([part(torch)] * 3, tensors), tensors)
    for found, want in zip((to_x, to_u, to_v, to_w), expected, strict=True):
        assert np.allclose(np.asarray(found), want.numpy(), rtol=1e-5, atol=1e-5)


# -- as_torch_function -------------------------------------------------------------------------------------------------


@pytest.fixture(params=["jax", "tensorflow"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_trees_numbers_and_integers_go_through_and_come_back(engine: str) -> None:
    from fanwise.tensor import namespace

    xp = namespace(engine)

    def f(tree: dict[str, Array], power: int, *, name: str) -> dict[str, object]:
        rows = xp.take(tree["table"], tree["index"], axis=0)
        return {"y": xp.sum(rows, axis=1) ** power, "top": xp.argmax(rows[0]), "name": name, "one": xp.ones(1)}

    layer = as_torch_function(f, engine)
    table = torch.tensor([[1.0, 2.0], [3.0, 4.0]], requires_grad=True)
    index = torch.tensor([1, 1], dtype=torch.int32)
    for _ in range(2):
        out = layer({"table": table, "index": index}, 2, name="n")
        assert out["name"] == "n" and int(out["top"]) == 1 and not out["top"].requires_grad
        (slope,) = torch.autograd.grad(out["y"].sum(), table)
        assert torch.equal(slope, torch.tensor([[0.0, 0.0], [28.0, 28.0]]))
    with torch.no_grad():
        plain = layer({"table": table, "index": index}, 2, name="n")
    assert torch.equal(plain["y"], out["y"].detach()) and not plain["y"].requires_grad
    assert not layer({"table": table.detach(), "index": index}, 2, name="n")["y"].requires_grad


def test_creation_functions_inside_make_arrays_of_the_part(engine: str) -> None:
    import fanwise.tensor as ft

    def f(x: Array) -> Array:
        assert ft.engine_of(ft.zeros(2)) == engine
        return x * 2

    assert torch.equal(as_torch_function(f, engine)(torch.ones(2)), torch.full((2,), 2.0))
    assert ft.current_engine() == "torch"


def squared(x: Array) -> Array:
    return x * x


def test_a_part_can_be_pickled_if_its_function_can(engine: str) -> None:
    layer = as_torch_function(squared, engine)
    x = torch.tensor(3.0, requires_grad=True)
    layer(x)  # what a call leaves behind stays behind
    again = pickle.loads(pickle.dumps(layer))
    again(x).backward()
    assert x.grad == 6.0 and repr(again) == repr(layer) == f"<squared of {engine} as a function of torch tensors>"
    with pytest.raises((pickle.PicklingError, AttributeError), match="lambda"):
        pickle.dumps(as_torch_function(lambda x: x, engine))


def test_control_flow_on_values_works_in_a_part(engine: str) -> None:
    layer = as_torch_function(lambda x: x * 2 if x > 0 else x * 3, engine)
    for start, slope in ((1.0, 2.0), (-1.0, 3.0)):
        x = torch.tensor(start, requires_grad=True)
        layer(x).backward()
        assert x.grad == slope


def test_torchs_rules_hold_for_a_part(engine: str) -> None:
    layer = as_torch_function(lambda x: x * x, engine)
    x = torch.tensor([1.0, 2.0], requires_grad=True)
    y = layer(x)
    y.sum().backward(retain_graph=True)
    y.sum().backward()
    assert x.grad is not None and torch.equal(x.grad, torch.tensor([4.0, 8.0]))  # torch accumulates, as always
    with pytest.raises(RuntimeError, match="second time"):
        y.sum().backward()
    y = layer(x)
    with torch.no_grad():
        x += 1
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        y.sum().backward()
    z = torch.tensor([1.0, 2.0])
    assert torch.equal(torch.func.grad(lambda z: layer(z).sum())(z), 2 * z)
    assert torch.equal(grad(lambda z: layer(z).sum())(z), 2 * z)
    value, hessian = value_and_grad(lambda z: grad(lambda z: layer(z).sum())(z).sum())(z)
    assert value == 6.0 and torch.equal(hessian, torch.full((2,), 2.0))


def test_what_a_part_cannot_do_is_said() -> None:
    with pytest.raises(TypeError, match="numpy has no gradients"):
        as_torch_function(lambda x: x, "numpy")
    with pytest.raises(ValueError, match=r"must be one of .*, got 'jx'"):
        as_torch_function(lambda x: x, "jx")
    with pytest.raises(TypeError, match="takes torch tensors, got arrays of jax"):
        as_torch_function(lambda x: x, "tensorflow")(jnp.ones(2))
    assert as_torch_function(torch.sin, "torch") is torch.sin
