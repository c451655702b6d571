"""Every function of the array API standard, without its extensions, on every engine, against array_api_strict.

Inputs are drawn: dtypes, shapes (no axis, no elements), keyword arguments, special values. Dtype, shape and values
must agree. The reference computes in NumPy, so only what the standard leaves open may differ; where an engine differs
though the standard says what it wants, `KNOWN` has the reason. FANWISE_EXAMPLES=100 draws more.
"""

import contextlib
import itertools
import math
import os
import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import array_api_strict as strict
import numpy as np
import pytest

from fanwise.tensor import namespace
from fanwise.tensor.namespaces.standard import FUNCTIONS

# Any, in this file: arrays and dtypes of engines without a common type.
Choice = Callable[[random.Random], Any]
Draw = Callable[[Choice], Any]
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Case = Callable[[Draw, Sequence[str]], Arguments]

EXAMPLES = int(os.environ.get("FANWISE_EXAMPLES", "0"))
# How many inputs are drawn for a function; jax64 is JAX with 64 bits on. JAX compiles for every shape, 30 ms each, so
# it gets few, and only for the functions that we mend: the others are its own.
ENGINES = {"numpy": 12, "torch": 12, "jax": 1, "jax64": 1}

SIGNED = ["int8", "int16", "int32", "int64"]
UNSIGNED = ["uint8", "uint16", "uint32", "uint64"]
INTEGERS = SIGNED + UNSIGNED
REALS = ["float32", "float64"]
COMPLEX = ["complex64", "complex128"]
FLOATS = REALS + COMPLEX
REAL_NUMBERS = INTEGERS + REALS
NUMBERS = REAL_NUMBERS + COMPLEX
EVERY = ["bool", *NUMBERS]
SHAPES = [(), (0,), (3,), (2, 3), (2, 0), (4, 1, 2)]
PAIRS = [((), ()), ((3,), (3,)), ((2, 3), (3,)), ((2, 1), (1, 3)), ((0,), (1,)), ((), (2,))]
SPECIAL = [0.0, -0.0, math.inf, -math.inf, math.nan]


# Choices: not Hypothesis's strategies, which take ten times as long as what is tested, and would shrink nothing here.
def sampled_from(those: Sequence[Any]) -> Choice:
    return lambda chance: chance.choice(those)


def always(that: Any) -> Choice:
    return lambda chance: that


def integers(low: int, high: int) -> Choice:
    return lambda chance: chance.randint(low, high)


def booleans() -> Choice:
    return sampled_from([False, True])


def arrays(dtype: Any, shape: tuple[int, ...], elements: Choice) -> Choice:
    return lambda chance: np.array([elements(chance) for _ in range(math.prod(shape))], dtype).reshape(shape)


def elements(dtype: str, *, special: bool = False, low: float = -9.0, high: float = 9.0) -> Choice:
    kind = np.dtype(dtype).kind
    if kind == "b":
        return booleans()
    if kind in "iu":
        return integers(max(0, math.ceil(low)) if kind == "u" else math.ceil(low), math.floor(high))
    if kind == "c":
        # Away from the axes, where functions have their cuts and engines their own signs of zero.
        parts = [0.5, -1.5, 2.25, -0.75, 3.0]
        return lambda chance: complex(chance.choice(parts), chance.choice(parts))
    first, last = math.ceil(low * 8), math.floor(high * 8)
    often = 0.5 if special else 0.0
    return lambda chance: chance.choice(SPECIAL) if chance.random() < often else chance.randint(first, last) / 8


def array(draw: Draw, dtypes: Sequence[str], shapes: Sequence[tuple[int, ...]] = SHAPES, **how: Any) -> Any:
    dtype = draw(sampled_from(list(dtypes)))
    return draw(arrays(dtype, draw(sampled_from(list(shapes))), elements=elements(dtype, **how)))


def of(dtypes: Sequence[str], have: Sequence[str]) -> list[str]:
    return [dtype for dtype in dtypes if dtype in have]


# Cases: what a function is called with. Arrays are NumPy's here, and become the engine's.
def one(dtypes: Sequence[str], **how: Any) -> Case:
    return lambda draw, have: ((array(draw, of(dtypes, have), **how),), {})


def two(dtypes: Sequence[str], *, numbers: bool = True, **how: Any) -> Case:
    """Two arrays, of one dtype or of two of a kind, or an array and a number."""

    def case(draw: Draw, have: Sequence[str]) -> Arguments:
        first, second = draw(sampled_from(PAIRS))
        x1 = array(draw, of(dtypes, have), [first], **how)
        fits = [d for d in of(dtypes, have) if d == x1.dtype or promotes(d, str(x1.dtype))]
        x2 = array(draw, fits, [second], **how)
        if numbers and draw(integers(0, 3)) == 0:
            number = array(draw, [str(x1.dtype)], [()], **how).item()
            return draw(sampled_from([((x1, number), {}), ((number, x1), {})])), {}
        return (x1, x2), {}

    def flat(draw: Draw, have: Sequence[str]) -> Arguments:
        found, keywords = case(draw, have)
        return (found[0] if isinstance(found[0], tuple) else found), keywords

    return flat


def promotes(one: str, other: str) -> bool:
    """Whether the standard says what the two are together: one kind, or integers that fit a signed one."""
    kinds = {np.dtype(one).kind, np.dtype(other).kind}
    if kinds == {"i", "u"}:
        return "uint64" not in (one, other)
    return len(kinds) == 1 or kinds == {"f", "c"}


def axis_of(draw: Draw, x: Any, *, none: bool = True, many: bool = True) -> Any:
    choices: list[Any] = [None] if none or not x.ndim else []
    choices += [*range(-x.ndim, x.ndim)]
    choices += [(0, -1)] if many and x.ndim > 1 else []
    return draw(sampled_from(choices))


def reduction(dtypes: Sequence[str], *, empty: bool = True, many: bool = True, **more: Choice) -> Case:
    def case(draw: Draw, have: Sequence[str]) -> Arguments:
        shapes = SHAPES if empty else [shape for shape in SHAPES if 0 not in shape]
        x = array(draw, of(dtypes, have), shapes, high=5, low=-5)
        keywords = {name: draw(values) for name, values in more.items()}
        return (x,), {"axis": axis_of(draw, x, many=many), "keepdims": draw(booleans()), **keywords}

    return case


def with_axis(dtypes: Sequence[str], *, none: bool = False, many: bool = False, **more: Choice) -> Case:
    """An array of at least one axis, and one of its axes by keyword."""

    def case(draw: Draw, have: Sequence[str]) -> Arguments:
        x = array(draw, of(dtypes, have), SHAPES[1:], high=5, low=-5)
        keywords = {name: draw(values) for name, values in more.items()}
        return (x,), {"axis": axis_of(draw, x, none=none, many=many), **keywords}

    return case


def fixed(*calls: Arguments) -> Case:
    """One of these calls; what they need no drawing for."""
    return lambda draw, have: draw(sampled_from(calls))


def call(*arguments: Any, **keywords: Any) -> Arguments:
    return arguments, keywords


def shaped(dtypes: Sequence[str], shape: tuple[int, ...], *rest: Any, **keywords: Any) -> Case:
    return lambda draw, have: ((array(draw, of(dtypes, have), [shape]), *rest), keywords)


def sequence(draw: Draw, have: Sequence[str]) -> Arguments:
    dtype = draw(sampled_from(of(EVERY, have)))
    shape = draw(sampled_from(SHAPES[1:]))
    x = [draw(arrays(dtype, shape, elements=elements(dtype))) for _ in range(draw(integers(1, 3)))]
    return (draw(sampled_from([list, tuple]))(x),), {"axis": draw(integers(-len(shape), len(shape) - 1))}


def take(draw: Draw, have: Sequence[str]) -> Arguments:
    x = array(draw, of(EVERY, have), [(3,), (2, 3), (4, 1, 2)])
    axis = axis_of(draw, x, none=x.ndim == 1, many=False)
    length = x.shape[axis or 0]
    places = [draw(integers(0, length - 1)) for _ in range(draw(integers(0, 4)))]
    return (x, np.asarray(places, dtype=index(have))), {"axis": axis}


def take_along(draw: Draw, have: Sequence[str]) -> Arguments:
    x = array(draw, of(EVERY, have), [(3,), (2, 3)])
    axis = draw(sampled_from([-1, x.ndim - 1]))
    chosen = draw(arrays(index(have), (*x.shape[:-1], 2), elements=integers(-3, 2)))
    return (x, chosen), draw(sampled_from([{}, {"axis": axis}]))


def index(have: Sequence[str]) -> str:
    return "int64" if "int64" in have else "int32"


def sorted_search(draw: Draw, have: Sequence[str]) -> Arguments:
    dtype = draw(sampled_from(of(REAL_NUMBERS, have)))
    few = elements(dtype, low=-1, high=1)  # so that some are found
    x1 = draw(arrays(dtype, draw(sampled_from([(0,), (4,)])), elements=few))
    x2 = array(draw, [dtype], [(3,), (2, 3), (), (0,)], low=-1, high=1)
    keywords: dict[str, Any] = {"side": draw(sampled_from(["left", "right"]))}
    if draw(booleans()):
        return (x1, x2), keywords | {"sorter": np.argsort(x1, kind="stable").astype(index(have))}
    return (np.sort(x1), x2), keywords


def chosen(draw: Draw, have: Sequence[str]) -> Arguments:
    (x1, x2), _ = two(EVERY, numbers=False)(draw, have)
    shape = np.broadcast_shapes(x1.shape, x2.shape)
    return (draw(arrays("bool", draw(sampled_from([shape, ()])), booleans())), x1, x2), {}


def clip(draw: Draw, have: Sequence[str]) -> Arguments:
    x = array(draw, of(REAL_NUMBERS, have), special=True)
    bounds: list[Any] = []
    for low, high in ((-4, 0), (1, 5)):
        within = elements(str(x.dtype), low=low, high=high)
        as_array = draw(arrays(x.dtype, draw(sampled_from([(), x.shape])), elements=within))
        number = max(0, low) if x.dtype.kind == "u" else draw(integers(low, high))
        kinds = [None, as_array, number if x.dtype.kind in "iu" else float(number)]
        bounds.append(draw(sampled_from(kinds)))
    if draw(booleans()):
        return (x,), dict(zip(("min", "max"), bounds, strict=True))
    return (x, *bounds), {}


def reshape(draw: Draw, have: Sequence[str]) -> Arguments:
    x = array(draw, of(EVERY, have))
    shapes = [(x.size,), (-1,), (1, x.size)] if x.size else [(0, 2), (x.size,)]
    return (x, draw(sampled_from(shapes))), {"copy": draw(sampled_from([None, True]))}


def expand(draw: Draw, have: Sequence[str]) -> Arguments:
    x = array(draw, of(EVERY, have))
    axis = draw(sampled_from([0, -1, x.ndim, (0,), (0, -1), (0, 1)]))
    return ((x, axis), {}) if draw(booleans()) else ((x,), {"axis": axis})


def permute(draw: Draw, have: Sequence[str]) -> Arguments:
    x = array(draw, of(EVERY, have))
    return (x, draw(sampled_from([*itertools.permutations(range(x.ndim))]))), {}


def roll(draw: Draw, have: Sequence[str]) -> Arguments:
    x = array(draw, of(EVERY, have), SHAPES[1:])
    if x.ndim > 1 and draw(booleans()):
        return (x, (1, -2)), {"axis": (0, 1)}
    return (x, draw(integers(-4, 4))), {"axis": axis_of(draw, x, many=False)}


def repeat(draw: Draw, have: Sequence[str]) -> Arguments:
    x = array(draw, of(EVERY, have), [(3,), (2, 3)])
    axis = axis_of(draw, x, many=False)
    length = x.size if axis is None else x.shape[axis]
    dtypes = of([*SIGNED, "uint8"], have)
    each = draw(arrays(draw(sampled_from(dtypes)), (length,), elements=integers(0, 3)))
    return (x, draw(sampled_from([2, 0, each]))), {"axis": axis}


def made(draw: Draw, have: Sequence[str]) -> Arguments:
    return (draw(sampled_from([(2, 0), 3, ()])),), {"dtype": Dtype(draw(sampled_from(have)))}


def astype(draw: Draw, have: Sequence[str]) -> Arguments:
    x = array(draw, of(EVERY, have), low=0)
    to = [d for d in have if not (x.dtype.kind == "c" and np.dtype(d).kind != "c")]
    return (x, Dtype(draw(sampled_from(to)))), {"copy": draw(booleans())}


class Dtype(str):
    """The name of a dtype, where the function takes a dtype."""


DIFFERENCES: Case = lambda draw, have: (  # noqa: E731
    (array(draw, of(NUMBERS, have), [(3,), (2, 4)]),),
    {"axis": -1, "n": draw(integers(0, 2))},
)
DTYPES = [Dtype(dtype) for dtype in EVERY]

CASES: dict[str, Case] = {
    **dict.fromkeys("acos asin atanh".split(), one(REALS, low=-1, high=1)),
    **dict.fromkeys("acosh".split(), one(FLOATS, low=1)),
    **dict.fromkeys("asinh atan cos exp sin sinh tan tanh cosh expm1".split(), one(FLOATS, special=True)),
    **dict.fromkeys("log log10 log2 sqrt".split(), one(FLOATS, low=0, special=True)),
    "log1p": one(FLOATS, low=0, special=True),
    "reciprocal": one(FLOATS, low=1),
    **dict.fromkeys("abs isfinite isinf isnan negative positive round square".split(), one(NUMBERS, special=True)),
    "sign": one(NUMBERS, special=True),
    **dict.fromkeys("ceil floor trunc".split(), one(REAL_NUMBERS, special=True)),
    "signbit": one(REALS, special=True),
    "bitwise_invert": one(["bool", *INTEGERS]),
    "logical_not": one(["bool"]),
    **dict.fromkeys("conj imag".split(), one(COMPLEX)),
    "real": one(COMPLEX),
    **dict.fromkeys("add subtract multiply".split(), two(NUMBERS, low=0)),
    **dict.fromkeys("equal not_equal".split(), two(EVERY, special=True)),
    **dict.fromkeys("greater greater_equal less less_equal".split(), two(REAL_NUMBERS, special=True)),
    **dict.fromkeys("maximum minimum".split(), two(REAL_NUMBERS)),
    **dict.fromkeys("atan2 copysign nextafter".split(), two(REALS, special=True)),
    **dict.fromkeys("hypot logaddexp".split(), two(REALS)),
    "divide": two(FLOATS, low=1),
    **dict.fromkeys("floor_divide remainder".split(), two(REAL_NUMBERS, low=1)),
    "pow": two(INTEGERS + REALS, low=0, high=2),
    **dict.fromkeys("bitwise_and bitwise_or bitwise_xor".split(), two(["bool", *INTEGERS])),
    **dict.fromkeys("bitwise_left_shift bitwise_right_shift".split(), two(INTEGERS, low=0, high=3)),
    **dict.fromkeys("logical_and logical_or logical_xor".split(), two(["bool"])),
    **dict.fromkeys("all any count_nonzero".split(), reduction(EVERY)),
    **dict.fromkeys("argmax argmin".split(), reduction(REAL_NUMBERS, empty=False, many=False)),
    **dict.fromkeys("max min".split(), reduction(REAL_NUMBERS, empty=False)),
    "mean": reduction(FLOATS, empty=False),
    **dict.fromkeys("prod sum".split(), reduction(NUMBERS)),
    **dict.fromkeys("std var".split(), reduction(REALS, empty=False, correction=sampled_from([0.0, 0, 0.5]))),
    **dict.fromkeys("cumulative_prod cumulative_sum".split(), with_axis(NUMBERS, include_initial=booleans())),
    **dict.fromkeys("argsort sort".split(), with_axis(REAL_NUMBERS, descending=booleans(), stable=always(True))),
    "diff": DIFFERENCES,
    "flip": with_axis(EVERY, none=True, many=True),
    "unstack": with_axis(EVERY),
    **dict.fromkeys("concat stack".split(), sequence),
    "take": take,
    "take_along_axis": take_along,
    "searchsorted": sorted_search,
    "isin": two(INTEGERS, numbers=False),
    "where": chosen,
    "clip": clip,
    "reshape": reshape,
    "expand_dims": expand,
    "permute_dims": permute,
    "roll": roll,
    "repeat": repeat,
    "astype": astype,
    "tile": shaped(EVERY, (2, 3), (2, 1)),
    "squeeze": shaped(EVERY, (4, 1, 2), 1),
    "moveaxis": shaped(EVERY, (4, 1, 2), 0, -1),
    "broadcast_to": shaped(EVERY, (2, 1), (4, 2, 3)),
    "nonzero": shaped(EVERY, (2, 3)),
    **dict.fromkeys("tril triu".split(), shaped(EVERY, (3, 4), k=1)),
    "matrix_transpose": shaped(EVERY, (4, 1, 2)),
    **dict.fromkeys("unique_values unique_counts unique_inverse unique_all".split(), one(["bool", *REAL_NUMBERS])),
    "broadcast_arrays": two(EVERY, numbers=False),
    "meshgrid": lambda draw, have: (
        tuple(array(draw, ["float32"], [(2,)]) for _ in range(2)),
        {"indexing": draw(sampled_from(["xy", "ij"]))},
    ),
    "result_type": two(NUMBERS, numbers=False),
    "can_cast": lambda draw, have: (tuple(Dtype(draw(sampled_from(of(SIGNED, have)))) for _ in range(2)), {}),
    "isdtype": lambda draw, have: (
        (Dtype(draw(sampled_from(have))), draw(sampled_from(["bool", "integral", ("real floating", "numeric")]))),
        {},
    ),
    "broadcast_shapes": fixed(call((2, 1), (3,)), call(), call((0,), (1,)), call((), (4, 1))),
    "arange": fixed(
        call(4, dtype=Dtype("int32")), call(2, 8, 3), call(5, 1, -2), call(3, 3), call(0.5, 2, dtype=Dtype("float32"))
    ),
    "eye": fixed(call(3, dtype=Dtype("int32")), call(2, 4, k=1, dtype=Dtype("float32")), call(0, dtype=Dtype("bool"))),
    "full": fixed(
        call((2, 3), 7), call((), True), call(4, 1.5, dtype=Dtype("float32")), call((0,), 1, dtype=Dtype("int8"))
    ),
    "linspace": fixed(
        call(0, 1, 5, dtype=Dtype("float32")),
        call(2.0, -1.0, num=4, endpoint=False, dtype=Dtype("float32")),
        call(1, 1, 1, dtype=Dtype("float32")),
        call(0, 1, 0, dtype=Dtype("float32")),
        call(5, 0, 6, dtype=Dtype("int32")),
        call(-5, 6, 11, endpoint=False, dtype=Dtype("int8")),
    ),
    **dict.fromkeys("ones zeros".split(), made),
    "empty": fixed(call((0, 2), dtype=Dtype("int8"))),
    **dict.fromkeys("zeros_like ones_like".split(), one(EVERY)),
    "empty_like": shaped(EVERY, (0, 2)),
    "full_like": shaped(NUMBERS, (2, 3), 2),
    "asarray": fixed(
        call([[1, 2], [3, 4]]),
        call(True),
        call([], dtype=Dtype("float32")),
        call([1, 2.5], dtype=Dtype("float32"), copy=True),
    ),
    "matmul": lambda draw, have: (
        (array(draw, ["float32"], [(2, 3)]), array(draw, of(REALS, have), [(3,), (3, 2), (2, 3, 1)])),
        {},
    ),
    "tensordot": lambda draw, have: (
        tuple(array(draw, ["float32"], [(3, 2)]) for _ in range(2)),
        {"axes": draw(sampled_from([0, 2, ((0,), (0,))]))},
    ),
    "vecdot": lambda draw, have: (
        tuple(array(draw, ["float32", "complex64"], [(2, 3)]) for _ in range(2)),
        {"axis": draw(sampled_from([-1, -2]))},
    ),
}

OF_JAX_ITSELF = set(CASES) - {
    *(
        "all any arange asarray astype broadcast_arrays clip cumulative_prod cumulative_sum empty expand_dims eye"
    ).split(),
    *("eye full full_like linspace meshgrid ones ones_like pow prod searchsorted sum zeros zeros_like").split(),
    *("acosh floor_divide remainder sign").split(),
}

# Names compared in tests of their own in test_standard_names.py, and why.
ELSEWHERE = {
    **dict.fromkeys(("finfo", "iinfo"), "they return no arrays"),
    "from_dlpack": "it takes arrays of another engine",
}


@contextlib.contextmanager
def engine(name: str) -> Iterator[Any]:
    """The namespace of an engine, as it is set by that name of a test."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(warnings.catch_warnings())
        # NumPy warns of the infinities and NaN that these tests are about; TensorFlow of its own imports.
        warnings.simplefilter("ignore")
        if name == "jax64":
            import jax

            stack.enter_context(jax.enable_x64(True))
        yield namespace(name.removesuffix("64"))


def translate(value: Any, space: Any) -> Any:
    if isinstance(value, np.ndarray):
        # The reference has no asarray for 0-d results of NumPy: it gets an array of its own.
        return space.asarray(value.copy())
    if isinstance(value, Dtype):
        return getattr(space, value)
    return type(value)(translate(each, space) for each in value) if isinstance(value, (list, tuple)) else value


def called(space: Any, name: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    positional = [translate(each, space) for each in arguments]
    named = {key: translate(each, space) for key, each in keywords.items()}
    return getattr(space, name)(*positional, **named)


def compare(found: Any, wanted: Any, space: Any, where: str) -> None:
    if isinstance(wanted, (tuple, list)):
        assert isinstance(found, tuple), f"{where}: a {type(found).__name__}, wanted a tuple"
        assert getattr(found, "_fields", None) in (None, getattr(wanted, "_fields", None)), where
        assert len(found) == len(wanted), where
        for each, other in zip(found, wanted, strict=True):
            compare(each, other, space, where)
        return
    if not hasattr(wanted, "dtype"):
        same = name_of(found, space) == name_of(wanted, strict) if hasattr(wanted, "_np_dtype") else found == wanted
        assert same, f"{where}: {found!r}, wanted {wanted!r}"
        return
    as_numpy = np.asarray(wanted._array)
    assert_dtype(found, as_numpy, space, where)
    values = to_numpy(found)
    assert values.shape == as_numpy.shape, f"{where}: shape {values.shape}, wanted {as_numpy.shape}"
    single = {np.dtype("float32"), np.dtype("complex64")}
    rtol, atol = (2e-4, 2e-5) if values.dtype in single or as_numpy.dtype in single else (1e-9, 1e-11)
    np.testing.assert_allclose(values, as_numpy.astype(values.dtype), rtol=rtol, atol=atol, err_msg=where)


def name_of(dtype: Any, space: Any) -> str:
    return next(name for name in EVERY if hasattr(space, name) and getattr(space, name) == dtype)


def assert_dtype(found: Any, wanted: Any, space: Any, where: str) -> None:
    name = str(wanted.dtype)
    defaults = space.__array_namespace_info__().default_dtypes()
    expected = {name}
    if name_of(defaults["integral"], space) == "int32":
        expected |= {"int64": {"int32"}, "uint64": {"uint32"}}.get(name, set())
    if "uint64" not in space.__array_namespace_info__().dtypes():
        expected |= {"uint64": {"int64"}}.get(name, set())
    assert name_of(found.dtype, space) in expected, f"{where}: {found.dtype}, wanted {name}"


def to_numpy(x: Any) -> Any:
    return x.numpy() if hasattr(x, "numpy") else np.asarray(x)


def pairs() -> list[tuple[str, str]]:
    every = [(where, name) for where in ENGINES for name in FUNCTIONS if name not in ELSEWHERE]
    return [(w, name) for w, name in every if EXAMPLES or not w.startswith("jax") or name not in OF_JAX_ITSELF]


@pytest.fixture(scope="module")
def where(request: pytest.FixtureRequest) -> str:
    """An engine, loaded before the test begins: loading leaves variables in the environment."""
    name = str(request.param)
    namespace(name.removesuffix("64")).__array_namespace_info__()
    return name


@pytest.mark.parametrize(("where", "name"), pairs(), indirect=["where"])
def test_a_function_agrees_with_the_reference(where: str, name: str) -> None:
    with engine(where) as space:
        have = list(space.__array_namespace_info__().dtypes())
        for number in range(EXAMPLES or ENGINES[where]):
            chance = random.Random(f"{where} {name} {number}")  # the same every time
            arguments, keywords = CASES[name](lambda choice: choice(chance), have)  # noqa: B023  # called at once
            wanted = called(strict, name, arguments, keywords)
            described = f"{name}(*{arguments}, **{keywords})"
            compare(called(space, name, arguments, keywords), wanted, space, described)
