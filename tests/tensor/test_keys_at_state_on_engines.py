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
    bernoulli,
    device_of,
    devices,
    engine_of,
    integers,
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


def bits(x: Array) -> list[str]:
    """The words of an array in hexadecimal, whichever engine it is of."""
    if engine_of(x) == "torch" and x.dtype == torch.bfloat16:
        return bits(x.view(torch.int16))
    found = np.asarray(x).reshape(-1)
    return [f"{int(word):x}" for word in found.view(f"u{found.itemsize}")]


# The beginnings of uniform(key, 4, -2, 3) and normal(key, 4), of Key(7).fold_in("w").
KEPT = {
    "float32": ("bf4820a0 bfbd7a14 403955b0 402166d8", "be4bc800 3e42594a be311b0d bf618d66"),
    "float64": (
        "bfe90413879a22ee bff7af4236eb4e83 40072ab602833bc4 40042cdb0e5e9b56",
        "bfc978ffff8d5a4c 3fc84b294dd42696 bfc6236193a80f0e bfec31acb1246749",
    ),
    "float16": ("ba41 bdec 41cb 410b", "b25e 3213 b189 bb0c"),
    "bfloat16": ("bf48 bfbd 4039 4021", "be4c 3e42 be31 bf62"),
}


@pytest.mark.parametrize("engine", ENGINES)
def test_the_same_key_draws_the_same_bits_everywhere_and_always(engine: str) -> None:
    key = Key(7).fold_in("w")
    with use(engine), jax.enable_x64(True):
        for dtype, (uniform_bits, normal_bits) in KEPT.items():
            assert bits(uniform(key, 4, -2.0, 3.0, dtype=dtype)) == uniform_bits.split()
            assert bits(normal(key, (2, 2), dtype=dtype)) == normal_bits.split()
        assert bits(integers(key, 2, 0, 2**64, dtype="uint64")) == ["140333ac122f1dba", "338b2047bdbd166a"]
        assert np.asarray(integers(key, 8, -5, 100)).tolist() == [71, 89, 49, 52, 13, 97, 27, 30]
        assert np.asarray(permutation(key, 8)).tolist() == [0, 7, 6, 2, 5, 4, 1, 3]
        assert np.asarray(bernoulli(key, 0.3, 12)).tolist() == [bool(int(c)) for c in "100000010110"]
        found = normal(key, 1)
        assert engine_of(found) == engine and device_of(found) == "cpu"


@pytest.mark.parametrize("engine", ENGINES)
def test_the_shape_of_an_array_is_a_shape_to_draw(engine: str) -> None:
    with use(engine):
        assert tuple(uniform(Key(0), ft.ones((2, 3)).shape).shape) == (2, 3)


def test_jax_set_to_32_bits_has_no_64_bit_numbers() -> None:
    with use("jax"):
        with pytest.raises(TypeError, match=r"set to 32 bits and would silently make float32 of float64"):
            normal(Key(0), 3, dtype="float64")
        assert integers(Key(0), 3, 0, 5).dtype == permutation(Key(0), 3).dtype == np.int32


# -- in compiled code -------------------------------------------------------------------------------------------------

COMPILING = ["jax", "tensorflow"]


@pytest.mark.parametrize("engine", COMPILING)
def test_a_compiled_loss_draws_anew_from_each_key_and_step_and_is_compiled_once(engine: str) -> None:
    traced: list[int] = []

    def loss(w: Array, key: Key, step: Any) -> Array:
        traced.append(1)
        drop, noise = key.split()
        keep = bernoulli(drop.fold_in("dropout").fold_in(step), 0.5, (40,))
        return ft.sum(w * ft.astype(keep, w.dtype) * normal(noise, (40,)))

    with use(engine):
        w = ft.ones(40)
        compiled, plain = value_and_grad(loss, jit=True), value_and_grad(loss)
        seen = set()
        for step in range(100):
            # A key that was passed in as it is, and one that is passed in again with another step.
            key = Key(step // 2).fold_in("epoch")
            _, gradient = compiled(w, key, ft.asarray(step - 50))
            seen.add(tuple(np.asarray(gradient).tolist()))
            if step % 20 == 0:
                assert len(traced) == 1, "it was compiled again"
                assert np.array_equal(gradient, plain(w, key, step - 50)[1])  # but for the sign of zeros
                del traced[1:]
        assert len(traced) == 1 and len(seen) == 100


DRAWS: dict[str, Callable[[Key], Array]] = {
    "uniform": lambda key: uniform(key, (2, 3), -2.0, 3.0),
    "normal": lambda key: normal(key, 50, 1.0, 2.0),
    "normal of 16 bits": lambda key: normal(key, 4, dtype="bfloat16"),
    "one number": lambda key: normal(key),
    "integers": lambda key: integers(key, 5, -5, 100),
    "integers of 8 bits": lambda key: integers(key, 5, 0, 256, dtype="uint8"),
    "bernoulli": lambda key: bernoulli(key, 0.3, 12),
    "permutation": lambda key: permutation(key, 8),
    "shuffled": lambda key: ft.take(ft.reshape(ft.arange(12.0), (6, 2)), permutation(key, 6), axis=0),
    "on a device": lambda key: normal(key, 3, device="cpu"),
}


@pytest.mark.parametrize("engine", COMPILING)
def test_whatever_is_drawn_in_compiled_code_has_the_bits_of_the_same_draw_outside(engine: str) -> None:
    def draw_all(key: Key, step: Any) -> dict[str, Array]:
        return {name: draw(key.fold_in(name).fold_in(step)) for name, draw in DRAWS.items()}

    with use(engine):
        compiled = jit(draw_all)
        for seed, step in ((0, 2**31 - 1), (-7, -3)):
            found, expected = compiled(Key(seed), ft.asarray(step, dtype=ft.int32)), draw_all(Key(seed), step)
            for name in DRAWS:
                assert found[name].dtype == expected[name].dtype and found[name].shape == expected[name].shape, name
                assert bits(found[name]) == bits(expected[name]), name


@pytest.mark.parametrize("engine", COMPILING)
def test_keys_go_into_compiled_code_through_it_and_out_of_it(engine: str) -> None:
    def derived(key: Key, step: Any) -> dict[str, Any]:
        inner = jit(lambda key: key.fold_in(b"inner"))(key)
        return {"split": key.split(3), "steps": [key.fold_in(step), inner], "seed": Key(step), "as it is": key}

    with use(engine):
        found = jit(derived)(Key(3), ft.asarray(7))
        assert found == derived(Key(3), 7)
        again = pickle.loads(pickle.dumps(found["steps"][0]))
        assert again == Key(3).fold_in(7) and hash(again) == hash(Key(3).fold_in(7))


def test_steps_are_traced_by_the_engines_own_ways_of_compiling() -> None:
    expected = [np.asarray(normal(Key(0).fold_in(step), 3, engine="numpy")) for step in range(3)]
    with use("jax"):
        one = jax.jit(lambda step: normal(Key(0).fold_in(step), 3))
        assert all(np.array_equal(one(step), expected[step]) for step in range(3)) and one._cache_size() == 1
        assert np.array_equal(jax.vmap(one)(jnp.arange(3)), expected)
        _, scanned = jax.lax.scan(lambda carry, step: (carry, one(step)), 0, jnp.arange(3))
        assert np.array_equal(scanned, expected)
        assert np.array_equal(jax.jit(lambda x: x + normal(Key(0), 3))(0.0), normal(Key(0), 3))  # a constant of it
    with use("tensorflow"):
        same = tf.function(lambda step: normal(Key(0).fold_in(step), 3), autograph=False)
        assert all(np.array_equal(same(tf.constant(step)), expected[step]) for step in range(3))
        assert same.experimental_get_tracing_count() == 1


@pytest.mark.parametrize("engine", COMPILING)
def test_what_a_key_of_compiled_code_cannot_do_is_said(engine: str) -> None:
    def compiled(f: Callable[[Key, Array], object]) -> None:
        with use(engine):
            jit(f)(Key(0), ft.asarray([0.5]))

    with pytest.raises(TypeError, match=r"its words are not known there\. Draw numbers from it"):
        compiled(lambda key, x: key.words)
    with pytest.raises(TypeError, match=r"folded into a key must be one integer, got a traced array of .*float32"):
        compiled(lambda key, x: key.fold_in(x))
    with pytest.raises(
        TypeError, match=rf"numbers of torch cannot be drawn from .* traced array of {engine}\. Pass en"
    ):
        compiled(lambda key, x: normal(key, 3, engine="torch"))
    seen: list[str] = []
    compiled(lambda key, x: [seen.append(repr(key))])  # type: ignore[func-returns-value]
    assert seen == ["<Key of compiled code>"]


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
    sizes = st.sampled_from([0.5, 1.0, 2.0, 4.0])
    value = draw(hnp.arrays(np.float32, shape, elements=sizes)) if shape else draw(sizes)
    return index, value, how


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("index", [3, -4, (0, 4), [0, 3], (slice(None), [4]), np.ones(2, np.bool_)], ids=str)
def test_what_is_out_of_range_is_neither_read_nor_written(engine: str, index: Any) -> None:
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
    # Beside what is drawn below: of the slow engines few examples are, and an operation may not be among them.
    x = MAKE[engine](START)
    found = getattr(at(x)[index], how)(4.0)
    assert np.array_equal(np.asarray(found), changed_in_numpy(START, index, 4.0, how))
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
        found = getattr(place, how)(value_there)
        assert engine_of(found) == engine and np.array_equal(np.asarray(found), expected)
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
        assert state.shape == SHAPE and engine_of(state.value) == engine
        assert state.in_place == (engine != "jax")

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
def test_what_does_not_fit_is_refused_alike(engine: str) -> None:
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
    with pytest.raises(TypeError, match=r"the float 1.5 does not fit into an array of int"):
        at(whole)[0].set(1.5)
    bytes_ = make(np.zeros(3, np.uint8))
    for number, write in (
        (-1, lambda: at(bytes_)[0].set(-1)),
        (256, lambda: at(bytes_)[[0, 0]].add(256)),
        (-2, lambda: State(bytes_).__setitem__(0, -2)),
    ):
        with pytest.raises(OverflowError, match=f"^{number} does not fit into an array of uint8, which holds 0 to 255"):
            write()
    assert np.asarray(at(bytes_)[[0, 0]].subtract(1)).tolist() == [254, 0, 0]
    with pytest.raises(TypeError, match=r"an array of float32 does not fit into an array of int"):
        State(whole)[0] = make(np.float32(1.0))
    with pytest.raises(TypeError, match=r"divide has no meaning for an array of int"):
        at(whole)[0].divide(2)
    with pytest.raises(TypeError, match=r"add has no meaning for an array of bool"):
        at(make(np.array([True])))[0].add(True)
    with pytest.raises(TypeError, match="must be a number or an array of"):
        at(x)[0].set("1")
    with pytest.raises(AttributeError, match=r"at\(x\) has no 'set'; index it first: at\(x\)\[\.\.\.\]\.set\("):
        at(x).set(1.0)  # type: ignore[attr-defined]
    foreign = MAKE["numpy" if engine == "torch" else "torch"](START)
    with pytest.raises(TypeError, match=r"convert one of them, for example fanwise.tensor.convert\(value, '"):
        at(x)[...].set(foreign)
    if engine in ("jax", "tensorflow"):
        with pytest.raises(ValueError, match="cannot be changed"):
            at(x)[0].set(1.0, copy=False)
    else:
        assert at(x)[0].set(1.0, copy=False) is x and float(x[0, 1]) == 1.0


def test_gradients_flow_through_at_alike() -> None:
    x, v = np.array([1.0, 2.0, 3.0, 4.0], np.float32), np.array([2.5, 3.5], np.float32)
    for how in ("set", *UFUNCS):
        for index in (slice(None, None, -2), [0, 2], [1, 1], np.array([True, False, True, False])):
            if isinstance(index, list) and index == [1, 1] and how in ("set", "multiply", "divide"):
                continue  # which one is set is not said; JAX has no gradient of the others

            def loss(x: Array, v: Array, how: str = how, index: Any = index) -> Array:
                return (getattr(at(x)[index], how)(v) ** 2).sum()

            X, V = torch.tensor(x, requires_grad=True), torch.tensor(v, requires_grad=True)
            loss(X, V).backward()
            in_jax = jax.grad(loss, (0, 1))(jnp.asarray(x), jnp.asarray(v))
            a, b = tf.constant(x), tf.constant(v)
            with tf.GradientTape() as tape:
                tape.watch([a, b])
                squares = tf.reduce_sum(getattr(at(a)[index], how)(b) ** 2)
            for found in (in_jax, tape.gradient(squares, [a, b])):
                assert X.grad is not None and V.grad is not None
                assert np.allclose(found[0], X.grad) and np.allclose(found[1], V.grad), (how, index)


def test_at_is_traced_by_jax() -> None:
    x = jnp.asarray(START)
    assert np.array_equal(jax.jit(lambda x, i: at(x)[0, i].set(0.0))(x, 2), x.at[0, 2].set(0.0))
    assert np.array_equal(jax.jit(lambda x, i: at(x)[i].multiply(2.0))(x, jnp.array([1, 1])), x.at[1].multiply(4.0))
    mask = x > 5
    assert np.array_equal(jax.jit(lambda x, m: at(x)[m].max(7.0))(x, mask), jnp.where(mask, jnp.maximum(x, 7), x))
    assert np.array_equal(jax.vmap(lambda x, i: at(x)[i].add(2.0))(x, jnp.arange(3))[1], x.at[1, 1].add(2.0)[1])
    with pytest.raises(IndexError, match="index 3 is out of bounds for axis 0 with size 3"):
        jax.jit(lambda x, i: at(x)[3, i].set(0.0))(x, 2)
    with pytest.raises(IndexError, match="does not fit the first axes"):
        jax.jit(lambda x, m: at(x)[m].set(0.0))(x, jnp.array([True, False]))


def test_in_a_function_of_tensorflow_shape_and_index_must_be_known() -> None:
    def traced(f: Callable[..., Array], *kinds: Any) -> Any:
        return tf.function(f, autograph=False, input_signature=kinds)

    fixed, number = tf.TensorSpec(SHAPE, tf.float32), tf.TensorSpec([], tf.int32)
    found = traced(lambda x, v: at(x)[1, 1:].add(v), fixed, tf.TensorSpec([], tf.float32))(tf.constant(START), 3.0)
    assert np.array_equal(found, changed_in_numpy(START, (1, slice(1, None)), 3.0, "add"))
    with pytest.raises(IndexError, match="out of bounds"):
        traced(lambda x: at(x)[5].set(0.0), fixed)(tf.constant(START))
    for function, kinds in (
        (lambda x, i: at(x)[i].set(0.0), (fixed, number)),
        (lambda x: at(x)[0].get(), (tf.TensorSpec([None, 4], tf.float32),)),
    ):
        with pytest.raises(TypeError, match="the shape of the tensor and the index must be known"):
            traced(function, *kinds).get_concrete_function()


def test_a_state_of_jax_does_not_keep_what_is_traced() -> None:
    state = State(jnp.zeros(2))
    with pytest.raises(TypeError, match="a State of known numbers cannot be written to in a function that JAX traces"):
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
    with pytest.raises(ValueError, match=rf"^{engine} has no device 'cuda:99' here, it has cpu"):
        to_device(x, "cuda:99")
    with use(engine):
        assert devices() == devices(engine)


def test_what_is_traced_has_no_device_but_can_be_moved() -> None:
    with pytest.raises(TypeError, match="JAX is tracing has no device"):
        jax.jit(device_of)(jnp.ones(2))
    with pytest.raises(TypeError, match="TensorFlow is tracing has no device"):
        tf.function(device_of, autograph=False)(tf.ones(2))
    assert jax.jit(lambda x: to_device(x, "cpu") + 1)(jnp.ones(2)).tolist() == [2.0, 2.0]
    assert tf.function(lambda x: to_device(x, "cpu") + 1, autograph=False)(tf.ones(2)).numpy().tolist() == [2.0, 2.0]
    assert device_of(tf.Variable([1.0])) == "cpu"
