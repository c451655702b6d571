"""Gradients of TensorFlow only: variables, tapes and traced functions."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from late import Late

from fanwise.tensor import grad, vjp

jnp, tf = Late("jax.numpy"), Late("tensorflow")
pytestmark = pytest.mark.usefixtures("jax_is_loaded", "tensorflow_is_loaded")
Array = Any  # Any: of any engine


@pytest.fixture(scope="module", autouse=True)
def torch_keeps_what_it_compiles_here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Its compiler, which torch.func loads, else adds the variable to the environment in the middle of a test."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path_factory.mktemp("torch")))
        yield


# -- TensorFlow --------------------------------------------------------------------------------------------------------


def test_a_variable_is_passed_itself_and_indirect_uses_count() -> None:
    w = tf.Variable([1.0, 2.0])

    def f(variables: list[Array], x: Array) -> Array:
        assert isinstance(variables[0], tf.Variable)
        return tf.reduce_sum(w * w * x)

    df = grad(f)
    assert np.allclose(df([w], tf.constant(2.0))[0], [4.0, 8.0])
    w.assign([3.0, 4.0])
    assert np.allclose(df([w], tf.constant(2.0))[0], [12.0, 16.0])


def test_indexed_slices_become_a_tensor() -> None:
    table = tf.ones((3, 2))
    result = grad(lambda table: tf.reduce_sum(tf.gather(table, [2, 2])))(table)
    assert isinstance(result, tf.Tensor) and np.allclose(result, [[0, 0], [0, 0], [2, 2]])


def test_gradients_work_inside_tapes_and_tf_function() -> None:
    x = tf.constant([1.0, 2.0])

    def cubes(x: Array) -> Array:
        return tf.reduce_sum(x**3)

    assert np.allclose(tf.function(grad(cubes))(x), [3.0, 12.0])
    assert np.allclose(tf.function(lambda x: vjp(lambda x: x**3, x)[1](x)[0])(x), [3.0, 24.0])
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = grad(cubes)(x)
    assert np.allclose(tape.gradient(y, x), [6.0, 12.0])


def test_gradients_work_with_unknown_shapes() -> None:
    f = tf.function(grad(lambda x: tf.reduce_sum(x * x)), input_signature=[tf.TensorSpec(None, tf.float32)])
    assert np.allclose(f(tf.constant([1.0, 2.0])), [2.0, 4.0])
