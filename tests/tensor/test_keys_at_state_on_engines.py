"""Keys, `at`, `State` and devices on all engines: the same bits, and the same meaning as a model in NumPy.

One file for all, because TensorFlow takes long to load. What needs no TensorFlow is in files of its own.
"""

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from late import Late

import fanwise.tensor as ft
from fanwise.tensor import (
    Key,
    State,
    at,
    device_of,
    devices,
    engine_of,
    jit,
    namespace,
    normal,
    permutation,
    to_device,
    uniform,
    use,
    value_and_grad,
)

jax, jnp, tf = Late("jax"), Late("jax.numpy"), Late("tensorflow")
pytestmark = pytest.mark.usefixtures("jax_is_loaded", "tensorflow_is_loaded")

Array = Any  # Any throughout: arrays of all engines
MAKE: dict[str, Callable[[Any], Array]] = {
    "numpy": np.array,
    "torch": lambda x: torch.tensor(np.asarray(x)),
    "jax": lambda x: jnp.asarray(x),
    "tensorflow": lambda x: tf.constant(x),
}
ENGINES = list(MAKE)
# JAX compiles nearly every example.
EXAMPLES = {"numpy": 60, "torch": 60, "jax": 6, "tensorflow": 15}
UFUNCS = {
    "add": np.add,
    "subtract": np.subtract,
    "multiply": np.multiply,
    "divide": np.divide,
    "min": np.minimum,
    "max": np.maximum,
}
SHAPE = (3, 4)
DISTINCT = ("multiply", "divide", "min", "max")  # refused if an element is selected twice


def bits(x: Array) -> list[str]:
    """The words of an array in hexadecimal, whichever engine it is of."""
    result = np.asarray(x).reshape(-1)
    return [f"{int(word):x}" for word in result.view(f"u{result.itemsize}")]


# The beginnings of uniform(key, 4, -2, 3) and normal(key, 4), of Key(7).fold_in("w").
KEPT = {
    "float32": ("bf4820a0 bfbd7a14 403955b0 402166d8", "be4bc800 3e42594a be311b0d bf618d66"),
    "float64": (
        "bfe90413879a22ee bff7af4236eb4e83 40072ab602833bc4 40042cdb0e5e9b56",
        "bfc978ffff8d5a4c 3fc84b294dd42696 bfc6236193a80f0e bfec31acb1246749",
    ),
}


@pytest.mark.parametrize("engine", ENGINES)
def test_the_same_key_draws_the_same_bits_everywhere_and_always(engine: str) -> None:
    key = Key(7).fold_in("w")
    with use(engine), jax.enable_x64(True):
        for dtype, (uniform_bits, normal_bits) in KEPT.items():
            assert bits(uniform(key, 4, -2.0, 3.0, dtype=dtype)) == uniform_bits.split()
            assert bits(normal(key, (2, 2), dtype=dtype)) == normal_bits.split()
        assert np.asarray(permutation(key, 8)).tolist() == [0, 7, 6, 2, 5, 4, 1, 3]
        result = normal(key, 1)
        assert engine_of(result) == engine and device_of(result) == "cpu"


@pytest.mark.parametrize("engine", ENGINES)
def test_the_shape_of_an_array_is_a_shape_to_draw(engine: str) -> None:
    with use(engine):
        assert tuple(uniform(Key(0), ft.ones((2, 3)).shape).shape) == (2, 3)


def test_jax_without_x64_draws_no_64_bit_numbers() -> None:
    with use("jax"):
        with pytest.raises(TypeError, match=r"silently make float32 of float64"):
            normal(Key(0), 3, dtype="float64")
        assert permutation(Key(0), 3).dtype == np.int32


# -- in compiled code -------------------------------------------------------------------------------------------------


def test_a_key_is_a_constant_of_compiled_code_with_the_bits_of_uncompiled_code() -> None:
    traced: list[Key] = []

    def draw(key: Key, x: Array) -> Array:
        traced.append(key)
        return x * normal(key.fold_in("noise"), 3)

    with use("jax"):
        compiled, x = jit(draw), ft.ones(3)
        for key in (Key(0), Key(1), Key(0)):
            assert bits(compiled(key, x)) == bits(normal(key.fold_in("noise"), 3))
        assert traced == [Key(0), Key(1)]
        with pytest.raises(TypeError, match="in compiled or mapped functions pass the random numbers as an argument"):
            jit(lambda x: Key(0).fold_in(x))(ft.asarray(1))


# --- at and State --------------------------------------------------------------------------------------------------

INDICES = st.one_of(
    hnp.basic_indices(SHAPE, allow_newaxis=True, allow_ellipsis=True),
    hnp.integer_array_indices(SHAPE, result_shape=hnp.array_shapes(max_dims=2, max_side=3)),
    hnp.arrays(np.bool_, SHAPE),
    hnp.arrays(np.bool_, (SHAPE[0],)),
    st.lists(st.integers(-SHAPE[0], SHAPE[0]), min_size=1, max_size=3),
    st.tuples(st.integers(-4, 4), st.integers(-5, 5)),
    st.tuples(st.slices(SHAPE[0]), st.lists(st.integers(-4, 3), min_size=1, max_size=3)),
)
START = np.arange(1, 13, dtype=np.float32).reshape(SHAPE)


def changed_in_numpy(x: Any, index: Any, value: Any, how: str) -> Any:
    y = x.copy()
    if how == "set":
        y[index] = value
    else:
        UFUNCS[how].at(y, index, np.asarray(value, np.float32))
    return y


@st.composite
def changes(draw: st.DrawFn) -> tuple[Any, Any, str]:
    """An index, a value that broadcasts if the index is in range, and what to do with it."""
    index, how = draw(INDICES), draw(st.sampled_from(["set", *UFUNCS]))
    try:
        selected = np.asarray(START[index])
    except IndexError:
        return index, 2.0, how
    shape = draw(st.sampled_from([(), selected.shape, selected.shape[-1:], (1,) * selected.ndim]))
    names_twice = np.unique(np.arange(12).reshape(SHAPE)[index]).size < selected.size
    if how == "set" and names_twice:
        shape = ()
    if how in DISTINCT and names_twice:
        how = "add"
    sizes = st.sampled_from([0.5, 1.0, 2.0, 4.0])
    value = draw(hnp.arrays(np.float32, shape, elements=sizes)) if shape else draw(sizes)
    return index, value, how


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("index", [3, -4, (0, 4), [0, 3], (slice(None), [4]), np.ones(2, np.bool_)], ids=str)
def test_an_index_out_of_range_is_neither_read_nor_written(engine: str, index: Any) -> None:
    x = MAKE[engine](START)
    state = State(x)
    for act in (
        lambda: at(x)[index].get(),
        lambda: at(x)[index].set(1.0),
        lambda: at(x)[index].add(1.0),
        lambda: state[index],
        lambda: state.__setitem__(index, 1.0),
    ):
        with pytest.raises(IndexError):
            act()
    assert np.array_equal(np.asarray(state.value), START)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("index", [(slice(0, 2), 1), [0, 2, 0]], ids=["a slice", "a row named twice"])
@pytest.mark.parametrize("how", ["set", *UFUNCS])
def test_each_operation_means_what_numpys_means(engine: str, how: str, index: Any) -> None:
    if index == [0, 2, 0] and how in DISTINCT:
        with pytest.raises(ValueError, match=f"selects an element twice; .* not {how}"):
            getattr(at(MAKE[engine](START))[index], how)(4.0)
        return
    # Beside what is drawn below: of the slow engines few examples are, and an operation may not be among them.
    x = MAKE[engine](START)
    result = getattr(at(x)[index], how)(4.0)
    assert np.array_equal(np.asarray(result), changed_in_numpy(START, index, 4.0, how))
    assert np.array_equal(np.asarray(x), START)


@pytest.mark.parametrize("engine", ENGINES)
def test_at_means_what_numpy_means(engine: str) -> None:
    make = MAKE[engine]

    @settings(max_examples=EXAMPLES[engine])
    @given(changes())
    def holds(change: tuple[Any, Any, str]) -> None:
        index, value, how = change
        x = make(START)
        place = at(x)[index]
        value_there = value if np.isscalar(value) else make(value)
        try:
            expected = changed_in_numpy(START, index, value, how)
        except IndexError:
            with pytest.raises(IndexError):
                getattr(place, how)(value_there)
            with pytest.raises(IndexError):
                place.get()
            return
        result = getattr(place, how)(value_there)
        assert engine_of(result) == engine and np.array_equal(np.asarray(result), expected)
        assert np.array_equal(np.asarray(x), START)
        assert np.array_equal(np.asarray(place.get()), START[index])

    holds()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_state_means_the_same_on_all_engines(engine: str) -> None:
    make = MAKE[engine]
    operations = {
        "set": None,
        "add": "__iadd__",
        "subtract": "__isub__",
        "multiply": "__imul__",
        "divide": "__itruediv__",
    }

    @settings(max_examples=max(EXAMPLES[engine] // 2, 4))
    @given(st.lists(changes().filter(lambda change: change[2] in operations), max_size=4), st.booleans())
    def holds(steps: list[tuple[Any, Any, str]], in_tensors: bool) -> None:
        x = make(START)
        state, model = State(x), START.copy()
        for index, value, how in steps:
            written = value if np.isscalar(value) else make(value)
            try:
                if how == "set":
                    model[index] = value
                    state[index] = written
                else:
                    # What `+=` on a part means in Python: read, add, write.
                    model[index] = UFUNCS[how](model[index], value)
                    state[index] = make(UFUNCS[how](np.asarray(state[index]), value))
            except IndexError:
                with pytest.raises(IndexError):
                    state[index] = written
            if how != "set":
                name = operations[how]
                assert name is not None
                assert getattr(state, name)(make(np.float32(2.0)) if in_tensors else 2) is state
                model = UFUNCS[how](model, np.float32(2.0))
            assert np.array_equal(np.asarray(state.value), model)
        assert np.array_equal(np.asarray(x), START)
        assert engine_of(state.value) == engine

    holds()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_state_is_not_an_array(engine: str) -> None:
    x = MAKE[engine](START)
    s: Any = State(x)
    for convert in (lambda: ft.sum(s), lambda: ft.add(x, s), lambda: np.asarray(s), lambda: bool(s)):
        with pytest.raises(TypeError, match=r"s\.value"):
            convert()
    for operate in (lambda: s + 1, lambda: x @ s, lambda: s < 1, lambda: float(s)):
        with pytest.raises((TypeError, ValueError)):
            operate()


@pytest.mark.parametrize("engine", ENGINES)
def test_values_that_do_not_fit_are_refused_on_every_engine(engine: str) -> None:
    make = MAKE[engine]
    x, whole = make(START), make(np.arange(3))
    other = make(np.ones(5, np.float32))
    for write in (
        lambda: at(x)[0].set(other),
        lambda: State(x).__setitem__(0, other),
        lambda: State(x).__iadd__(other),
    ):
        with pytest.raises(ValueError, match="broadcast"):
            write()
    with pytest.raises(TypeError, match=r"1.5 does not fit into an array of int"):
        at(whole)[0].set(1.5)
    bytes_ = make(np.zeros(3, np.uint8))
    for number, write in (
        (-1, lambda: at(bytes_)[0].set(-1)),
        (256, lambda: at(bytes_)[[0, 0]].add(256)),
        (-2, lambda: State(bytes_).__setitem__(0, -2)),
    ):
        with pytest.raises(OverflowError, match=f"{number} does not fit into the array's type, which holds 0 to 255"):
            write()
    assert np.asarray(at(bytes_)[[0, 0]].subtract(1)).tolist() == [254, 0, 0]
    with pytest.raises(TypeError, match=r"an array of float32 does not fit into an array of int"):
        State(whole)[0] = make(np.float32(1.0))
    with pytest.raises(TypeError, match=r"divide is not defined for an array of int"):
        at(whole)[0].divide(2)
    with pytest.raises(TypeError, match=r"add is not defined for an array of bool"):
        at(make(np.array([True])))[0].add(True)
    with pytest.raises(TypeError, match="expected an array of"):
        at(x)[0].set("1")
    with pytest.raises(TypeError, match=r"at\(x\) has no index; write at\(x\)\[index\]\.set"):
        at(x).set(1.0)
    with pytest.raises(TypeError, match=r"has an index already"):
        at(x)[0][0]
    foreign = MAKE["numpy" if engine == "torch" else "torch"](START)
    with pytest.raises(TypeError, match=r"convert one of them, for example fanwise.tensor.convert\(value, '"):
        at(x)[...].set(foreign)


def test_gradients_flow_through_at_on_every_engine() -> None:
    x, v = np.array([1.0, 2.0, 3.0, 4.0], np.float32), np.array([2.5, 3.5], np.float32)
    for how in ("set", *UFUNCS):
        for index in (slice(None, None, -2), [0, 2], [1, 1], np.array([True, False, True, False])):
            if isinstance(index, list) and index == [1, 1] and how not in ("add", "subtract"):
                continue

            def loss(x: Array, v: Array, how: str = how, index: Any = index) -> Array:
                return (getattr(at(x)[index], how)(v) ** 2).sum()

            X, V = torch.tensor(x, requires_grad=True), torch.tensor(v, requires_grad=True)
            loss(X, V).backward()
            in_jax = jax.grad(loss, (0, 1))(jnp.asarray(x), jnp.asarray(v))
            a, b = tf.constant(x), tf.constant(v)
            with tf.GradientTape() as tape:
                tape.watch([a, b])
                squares = tf.reduce_sum(getattr(at(a)[index], how)(b) ** 2)
            for result in (in_jax, tape.gradient(squares, [a, b])):
                assert X.grad is not None and V.grad is not None
                assert np.allclose(result[0], X.grad) and np.allclose(result[1], V.grad), (how, index)


def test_at_is_traced_by_jax() -> None:
    x = jnp.asarray(START)
    assert np.array_equal(jax.jit(lambda x, i: at(x)[0, i].set(0.0))(x, 2), x.at[0, 2].set(0.0))
    assert np.array_equal(jax.jit(lambda x, i: at(x)[i].multiply(2.0))(x, jnp.array([1, 1])), x.at[1].multiply(4.0))
    assert np.array_equal(jax.vmap(lambda x, i: at(x)[i].add(2.0))(x, jnp.arange(3))[1], x.at[1, 1].add(2.0)[1])
    with pytest.raises(IndexError, match="index 3 is out of bounds for axis 0 with size 3"):
        jax.jit(lambda x, i: at(x)[3, i].set(0.0))(x, 2)


def test_in_a_function_of_tensorflow_shape_and_index_must_be_known() -> None:
    def traced(f: Callable[..., Array], *kinds: Any) -> Any:
        return tf.function(f, autograph=False, input_signature=kinds)

    fixed, number = tf.TensorSpec(SHAPE, tf.float32), tf.TensorSpec([], tf.int32)
    result = traced(lambda x, v: at(x)[1, 1:].add(v), fixed, tf.TensorSpec([], tf.float32))(tf.constant(START), 3.0)
    assert np.array_equal(result, changed_in_numpy(START, (1, slice(1, None)), 3.0, "add"))
    with pytest.raises(IndexError, match="out of bounds"):
        traced(lambda x: at(x)[5].set(0.0), fixed)(tf.constant(START))
    for function, kinds in (
        (lambda x, i: at(x)[i].set(0.0), (fixed, number)),
        (lambda x: at(x)[0].get(), (tf.TensorSpec([None, 4], tf.float32),)),
    ):
        with pytest.raises(TypeError, match="the shape of the tensor and the index must be known"):
            traced(function, *kinds).get_concrete_function()


def test_a_state_of_jax_does_not_keep_traced_values() -> None:
    state = State(jnp.zeros(2))
    with pytest.raises(TypeError, match="a State from outside a function that JAX traces"):
        jax.jit(lambda v: state.__setitem__(0, v))(1.0)
    assert np.asarray(state.value).tolist() == [0.0, 0.0]

    def inside(v: Array) -> Array:
        cell = State(jnp.zeros(2))
        cell[0] = v
        cell += 1.0
        return (cell.value * v).sum()

    value, slope = jax.jit(jax.value_and_grad(inside))(3.0)
    assert (float(value), float(slope)) == (15.0, 5.0)  # v * (v + 2), with the cell's 5 a constant


def test_a_state_of_tensorflow_is_written_to_inside_a_function() -> None:
    state = State(tf.zeros(3))

    def advanced() -> Array:
        state[1] += 1.0
        state[:] = state.value * 2.0
        return state.value

    step = tf.function(advanced, autograph=False)
    assert [step().numpy().tolist() for _ in range(2)] == [[0.0, 2.0, 0.0], [0.0, 6.0, 0.0]]
    before = state.value
    state[0] = 9.0
    assert before.numpy().tolist() == [0.0, 6.0, 0.0]
    with pytest.raises(ValueError, match=r"made outside of tf\.function"):
        tf.function(lambda: State(tf.zeros(3)).value, autograph=False)()


@pytest.mark.parametrize("engine", ENGINES)
def test_a_copied_state_is_a_cell_of_its_own(engine: str) -> None:
    state = State(MAKE[engine](np.ones(3, np.float32)))
    others: list[State] = [copy.deepcopy(state), copy.copy(state), pickle.loads(pickle.dumps(state))]
    for other in others:
        other[:] += 1.0
        assert np.asarray(other.value).tolist() == [2.0, 2.0, 2.0] and other.engine == engine
        assert np.asarray(state.value).tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize("engine", ENGINES[1:])
def test_a_function_with_a_state_of_its_own_has_gradients(engine: str) -> None:
    def f(x: Array) -> Array:
        cell = State(x)
        cell[0] = 5.0
        return ft_sum(cell.value * x)

    ft_sum, x = namespace(engine).sum, MAKE[engine](np.ones(3, np.float32))
    slope = value_and_grad(f)
    for _ in range(2):  # what the cell holds is a constant
        value, gradient = slope(x)
        assert (float(value), np.asarray(gradient).tolist()) == (7.0, [5.0, 1.0, 1.0])


# --- devices --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", ENGINES)
def test_devices_have_one_kind_of_name(engine: str) -> None:
    x = MAKE[engine](START)
    assert devices(engine)[0] == "cpu" and device_of(x) == "cpu"
    for name in ("cpu", "CPU:0", "cpu:0"):
        assert to_device(x, name) is x
    with pytest.raises(ValueError, match=rf"^{engine} has no device 'cuda:99' in this process; it has cpu"):
        to_device(x, "cuda:99")
    with use(engine):
        assert devices() == devices(engine)


def test_a_traced_array_has_no_device_but_can_be_moved() -> None:
    with pytest.raises(TypeError, match="JAX is tracing has no device"):
        jax.jit(device_of)(jnp.ones(2))
    with pytest.raises(TypeError, match="TensorFlow is tracing has no device"):
        tf.function(device_of, autograph=False)(tf.ones(2))
    assert jax.jit(lambda x: to_device(x, "cpu") + 1)(jnp.ones(2)).tolist() == [2.0, 2.0]
    assert tf.function(lambda x: to_device(x, "cpu") + 1, autograph=False)(tf.ones(2)).numpy().tolist() == [2.0, 2.0]
    assert device_of(tf.Variable([1.0])) == "cpu"
