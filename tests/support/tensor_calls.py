"""Calls of every public function of fanwise.tensor: sampled arguments, and arguments at special points.

`SAMPLES` draws arguments for each function of the standard. `special_calls` lists calls at points where engines are
known to go wrong: zeros, ties, NaN, infinities, denormals, empty and 0-d arrays, lists of arrays, mixed indices.
Arguments are NumPy arrays; the test converts them to each engine. `REASONS` explains every difference that is allowed.
"""

import itertools
import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

# Any, in this file: arrays and dtypes of engines without a common type.
Choice = Callable[[random.Random], Any]
Draw = Callable[[Choice], Any]
Arguments = tuple[tuple[Any, ...], dict[str, Any]]
Sample = Callable[[Draw, Sequence[str]], Arguments]

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
def one(dtypes: Sequence[str], **how: Any) -> Sample:
    return lambda draw, have: ((array(draw, of(dtypes, have), **how),), {})


def two(dtypes: Sequence[str], *, numbers: bool = True, **how: Any) -> Sample:
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


def reduction(dtypes: Sequence[str], *, empty: bool = True, many: bool = True, **more: Choice) -> Sample:
    def case(draw: Draw, have: Sequence[str]) -> Arguments:
        shapes = SHAPES if empty else [shape for shape in SHAPES if 0 not in shape]
        x = array(draw, of(dtypes, have), shapes, high=5, low=-5)
        keywords = {name: draw(values) for name, values in more.items()}
        return (x,), {"axis": axis_of(draw, x, many=many), "keepdims": draw(booleans()), **keywords}

    return case


def with_axis(dtypes: Sequence[str], *, none: bool = False, many: bool = False, **more: Choice) -> Sample:
    """An array of at least one axis, and one of its axes by keyword."""

    def case(draw: Draw, have: Sequence[str]) -> Arguments:
        x = array(draw, of(dtypes, have), SHAPES[1:], high=5, low=-5)
        keywords = {name: draw(values) for name, values in more.items()}
        return (x,), {"axis": axis_of(draw, x, none=none, many=many), **keywords}

    return case


def fixed(*calls: Arguments) -> Sample:
    """One of these calls; what they need no drawing for."""
    return lambda draw, have: draw(sampled_from(calls))


def call(*arguments: Any, **keywords: Any) -> Arguments:
    return arguments, keywords


def shaped(dtypes: Sequence[str], shape: tuple[int, ...], *rest: Any, **keywords: Any) -> Sample:
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
    dtypes = of(SIGNED, have)
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


DIFFERENCES: Sample = lambda draw, have: (  # noqa: E731
    (array(draw, of(NUMBERS, have), [(3,), (2, 4)]),),
    {"axis": -1, "n": draw(integers(0, 2))},
)
DTYPES = [Dtype(dtype) for dtype in EVERY]

SAMPLES: dict[str, Sample] = {
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


# -- special points ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Call:
    """One call at a special point.

    Attributes:
        situation: what is special about the arguments; printed in the table of differences.
        arguments: positional arguments. Arrays of float64 become float32.
        keywords: keyword arguments.
        function: what is called with a namespace and the arguments; None: the function of the entry's name.
        reference: the same with NumPy arrays; None: array_api_strict's function of the entry's name.
        elementwise: every element is a point of its own, and the derivative is diagonal.
        order: the highest derivative that is compared.
    """

    situation: str
    arguments: tuple[Any, ...]
    keywords: dict[str, Any] = field(default_factory=dict)
    function: Callable[..., Any] | None = None
    reference: Callable[..., Any] | None = None
    elementwise: bool = False
    order: int = 2


def point(situation: str, *arguments: Any, **keywords: Any) -> Call:
    """A call of the function itself, with lists of floats as arrays."""
    return Call(situation, arguments, keywords)


def elementwise(situation: str, *arguments: Any) -> Call:
    return Call(situation, arguments, elementwise=True)


def composed(
    situation: str, function: Callable[..., Any], reference: Callable[..., Any], *arguments: Any, order: int = 2
) -> Call:
    return Call(situation, arguments, function=function, reference=reference, order=order)


def floats(*values: Any) -> Any:
    return np.asarray(values, dtype=np.float64)


def whole(*values: Any) -> Any:
    return np.asarray(values, dtype=np.int64)


POINTS = floats(0.0, -0.0, 1.0, -1.0, 0.5, -2.5, 1e-40, 1e-3, math.inf, -math.inf, math.nan, 30.0)
_FEW = (0.0, -0.0, 1.0, -2.0, 0.5, math.inf, -math.inf, math.nan)
FIRST, SECOND = floats(*[a for a in _FEW for _ in _FEW]), floats(*[b for _ in _FEW for b in _FEW])
WHOLE_FIRST = whole(*[a for a in (-7, -1, 0, 1, 6) for _ in range(4)])
WHOLE_SECOND = whole(*[b for _ in range(5) for b in (-3, -1, 1, 2)])
ROWS = {
    "different numbers": floats(1.5, -2.0, 0.5),
    "equal numbers": floats(2.0, 2.0, 2.0),
    "two greatest": floats(3.0, 3.0, 1.0),
    "two least": floats(1.0, 3.0, 1.0),
    "one zero": floats(2.0, 0.0, 3.0),
    "two zeros": floats(0.0, 2.0, 0.0),
    "zeros": floats(0.0, 0.0, 0.0),
    "zeros of both signs": floats(0.0, -0.0, 0.0),
    "a NaN": floats(1.0, math.nan, 3.0),
    "an infinity": floats(1.0, math.inf, 2.0),
    "both infinities": floats(math.inf, 1.0, -math.inf),
    "denormals": floats(1e-40, 3e-40, 2e-40),
}
MATRICES = {
    "regular": floats([2.0, 1.0], [-1.0, 3.0]),
    "singular": floats([1.0, 2.0], [2.0, 4.0]),
    "zeros": floats([0.0, 0.0], [0.0, 0.0]),
    "identity": floats([1.0, 0.0], [0.0, 1.0]),
    "with a NaN": floats([1.0, math.nan], [0.0, 1.0]),
}

ONE_ARRAY = (
    "abs acos acosh asin asinh atan atanh ceil conj cos cosh exp expm1 floor isfinite isinf isnan log log10 log1p "
    "log2 negative positive real reciprocal round sign signbit sin sinh sqrt square tan tanh trunc"
).split()
TWO_ARRAYS = (
    "add atan2 copysign divide equal floor_divide greater greater_equal hypot less less_equal logaddexp maximum "
    "minimum multiply nextafter not_equal pow remainder subtract"
).split()
TWO_WHOLE = (
    "add bitwise_and bitwise_or bitwise_xor equal floor_divide greater greater_equal less less_equal maximum minimum "
    "multiply not_equal remainder subtract"
).split()


def _over_one_axis(name: str, *, empty: bool = True, **keywords: Any) -> list[Call]:
    """Rows, arrays with an empty axis, and an array of no axes."""
    calls = [point(situation, row, axis=0, **keywords) for situation, row in ROWS.items()]
    if empty:
        calls.append(point("axis without elements", np.ones((2, 0)), axis=1, **keywords))
    calls.append(point("result without elements", np.ones((0, 2)), axis=1, **keywords))
    return calls


def _reduced(name: str, *, empty: bool = True, **keywords: Any) -> list[Call]:
    no_axes = [
        point("no axes", np.asarray(2.0), **keywords),
        point("all axes", floats([1.0, 2.0], [2.0, 0.0]), **keywords),
    ]
    return [*_over_one_axis(name, empty=empty, **keywords), *no_axes]


def _refused(*arguments: Any) -> Any:
    """The reference of what the standard does not allow: every engine must raise."""
    raise TypeError("not in the standard")


def _deviation(x: Any, axis: Any, correction: float, power: float) -> Any:
    """var or std as the standard defines it: NaN where N - correction is not positive."""
    count = x.size if axis is None else x.shape[axis]
    total = np.sum((x - np.mean(x, axis=axis, keepdims=True)) ** 2, axis=axis)
    return (total / (count - correction)) ** power if count > correction else np.full_like(total, np.nan)


def _deviations(name: str, power: float) -> list[Call]:
    calls = _reduced(name, empty=False)
    for correction in (1, 2, 5):
        situation = f"2 numbers, correction={correction}"
        function = lambda xp, x, c=correction: getattr(xp, name)(x, axis=0, correction=c)  # noqa: E731
        reference = lambda x, c=correction: _deviation(x, 0, c, power)  # noqa: E731
        calls.append(composed(situation, function, reference, floats(1.0, 2.5)))
    of_nothing = lambda xp, x: getattr(xp, name)(x, axis=1)  # noqa: E731
    nan = lambda x: np.full(2, np.nan)  # noqa: E731
    return [*calls, composed("axis without elements", of_nothing, nan, np.ones((2, 0)))]


def _of_matrix(function: Callable[..., Any], reference: Callable[..., Any], *, order: int = 2) -> list[Call]:
    return [composed(situation, function, reference, matrix, order=order) for situation, matrix in MATRICES.items()]


def _symmetric(x: Any) -> Any:
    return np.matmul(x, np.swapaxes(x, -1, -2)) + np.eye(2)


def _xp_symmetric(xp: Any, x: Any) -> Any:
    return xp.add(xp.matmul(x, xp.matrix_transpose(x)), xp.astype(xp.eye(2), x.dtype))


# Indices as NumPy takes them; each is applied to an array of the shape (2, 3, 2).
CUBE = np.arange(12.0).reshape(2, 3, 2) / 4 - 1
INDICES: dict[str, Any] = {
    "[1]": 1,
    "[-1, ..., 0]": (-1, ..., 0),
    "[:, ::-2]": (slice(None), slice(None, None, -2)),
    "[0, :, array]": (0, slice(None), whole(0, 1)),
    "[array, :, 0]": (whole(1, 0), slice(None), 0),
    "[array, :, array]": (whole(1, 0), slice(None), whole(0, 1)),
    "[:, array, 0]": (slice(None), whole(2, 0), 0),
    "[0, array]": (0, whole(2, 0)),
    "[None, 0, :, array]": (None, 0, slice(None), whole(1, 0)),
    "[array, None, array]": (whole(1, 0), None, whole(0, 2)),
    "[0, :, list]": (0, slice(None), [0, 1]),
    "[repeated]": whole(1, 0, 1),
    "[:, repeated]": (slice(None), whole(2, 2, 0, 2)),
    "[0, :, repeated]": (0, slice(None), whole(1, 1)),
    "[negative and positive repeated]": whole(1, -1),
    "[array of no axes]": np.asarray(1, dtype=np.int64),
    "[no elements]": whole(),
    "[2-d array]": (slice(None), whole([0, 2], [2, 1])),
    "[mask]": (whole(0, 1, 0, 1, 1, 0, 0, 1, 0, 0, 1, 1) > 0).reshape(2, 3, 2),
    "[mask, array]": (whole(1, 0) > 0, whole(0, 0)),
    "[:, mask of 1 axis]": (slice(None), whole(1, 0, 1) > 0),
    "[0:0]": slice(0, 0),
    "[...]": ...,
    "[True]": True,
    "[out of range]": 2,
    "[array out of range]": whole(0, 2),
    "[:, array out of range]": (slice(None), whole(0, -4)),
    "[too many]": (0, 0, 0, 0),
}
UPDATES: dict[str, Callable[[Any, Any, Any], None]] = {
    "set": lambda x, index, value: x.__setitem__(index, value),
    "add": np.add.at,
    "subtract": np.subtract.at,
    "multiply": np.multiply.at,
    "divide": np.divide.at,
    "min": np.minimum.at,
    "max": np.maximum.at,
}


def _updated(how: str, x: Any, index: Any, value: Any) -> Any:
    places = np.arange(x.size).reshape(x.shape)[index]
    if how not in ("set", "add", "subtract") and np.unique(places).size < np.size(places):
        raise ValueError("an element is selected twice")
    result = x.copy()
    UPDATES[how](result, index, value)
    return result


def _at_calls(how: str) -> list[Call]:
    """Get or change what each index selects, with values of the selected shape, of one element and of too many axes."""
    if how == "get":
        return [
            composed(name, lambda xp, x, i: xp.at(x)[i].get(), lambda x, i: x[i], CUBE, index)
            for name, index in INDICES.items()
        ]
    function = lambda xp, x, i, v: getattr(xp.at(x)[i], how)(v)  # noqa: E731
    reference = lambda x, i, v: _updated(how, x, i, v)  # noqa: E731
    calls = []
    for name, index in INDICES.items():
        try:
            shape = CUBE[index].shape
        except IndexError:
            shape = ()
        value = (np.arange(math.prod(shape)) * 0.75 + 0.5).reshape(shape)
        calls.append(composed(name, function, reference, CUBE, index, value))
    calls.append(composed("[array], one value", function, reference, CUBE, whole(1, 1), np.asarray(0.5)))
    calls.append(composed("[array], a row", function, reference, CUBE, whole(1, 1), floats(0.5, 3.0)))
    calls.append(composed("[0], a NaN", function, reference, CUBE, 0, np.asarray(math.nan), order=0))
    calls.append(composed("[0, 0], a value with more axes", function, reference, CUBE, (0, 0), np.ones((1, 2))))
    calls.append(composed("[0], a value of another shape", function, reference, CUBE, 0, np.ones(3)))
    return calls


def _state(how: str) -> list[Call]:
    def function(xp: Any, x: Any, index: Any, value: Any) -> Any:
        state = xp.State(x)
        if how == "get":
            return state[index]
        state[index] = value if how == "set" else state[index] + value
        return state.value

    def reference(x: Any, index: Any, value: Any) -> Any:
        if how == "get":
            return x[index]
        return _updated("set", x, index, value if how == "set" else x[index] + value)

    return [
        composed(f"State: {how}, {name}", function, reference, CUBE, index, np.asarray(2.0), order=0)
        for name, index in INDICES.items()
    ]


def _lists(xp: Any, x: Any, y: Any) -> Any:
    return xp.asarray([x, y])


def _asarray_calls() -> list[Call]:
    numbers: dict[str, Any] = {
        "2**64": 2**64,
        "2**63": 2**63,
        "-(2**63) - 1": -(2**63) - 1,
        "None": None,
        "text": "a",
        "[1, None]": [1, None],
        "[[1], [1, 2]]": [[1], [1, 2]],
        "object": object(),
        "bytes": b"a",
        "[True, 2]": [True, 2],
        "[True, 2.5]": [True, 2.5],
        "[]": [],
        "NaN": math.nan,
        "1e300": 1e300,
        "set": {1, 2},
        "dict": {1: 2},
    }

    def number(value: Any) -> Any:
        result = np.asarray(value)
        if result.dtype.kind not in "biufc" or result.dtype == np.uint64:
            raise TypeError("no array of numbers")
        return result.astype(np.float32) if result.dtype == np.float64 else result

    return [
        *(composed(name, lambda xp, v=v: xp.asarray(v), lambda v=v: number(v)) for name, v in numbers.items()),
        composed("list of arrays of no axes", _lists, lambda x, y: np.stack([x, y]), np.asarray(2.0), np.asarray(5.0)),
        composed("list of arrays of one element", _lists, lambda x, y: np.stack([x, y]), floats(2.0), floats(5.0)),
        composed("list of arrays", _lists, lambda x, y: np.stack([x, y]), floats(2.0, 1.0), floats(5.0, 0.0)),
        composed("list of arrays without elements", _lists, lambda x, y: np.stack([x, y]), floats(), floats()),
        composed(
            "list of lists of arrays",
            lambda xp, x, y: xp.asarray([[x, y], [y, x]]),
            lambda x, y: np.asarray([[x, y], [y, x]]),
            np.asarray(2.0),
            np.asarray(5.0),
        ),
        composed(
            "tuple of an array and a number",
            lambda xp, x: xp.asarray((x, 3.0)),
            lambda x: np.stack([x, 3.0]),
            np.asarray(2.0),
        ),
        composed(
            "list of arrays of two shapes", _lists, lambda x, y: np.asarray([x, y]), floats(2.0), floats(5.0, 0.0)
        ),
        composed(
            "list of arrays of two types",
            lambda xp, x, y: xp.asarray([x, y]),
            lambda x, y: np.stack([x, y.astype(x.dtype)]),
            floats(2.5),
            whole(5),
        ),
        composed(
            "elements computed from an array",
            lambda xp, x: xp.asarray([x[0] ** 2, 3 * x[1]]),
            lambda x: np.stack([x[0] ** 2, 3 * x[1]]),
            floats(2.0, 5.0),
        ),
        composed("an array", lambda xp, x: xp.asarray(x), lambda x: x.copy(), floats(2.0, 5.0)),
        composed("an array, copy=True", lambda xp, x: xp.asarray(x, copy=True), lambda x: x.copy(), floats(2.0, 5.0)),
        composed(
            "an array, another type and back",
            lambda xp, x: xp.asarray(xp.asarray(x, dtype=xp.float16), dtype=xp.float32),
            lambda x: x.copy(),
            floats(2.0, 5.0),
        ),
    ]


def special_calls() -> dict[str, list[Call]]:
    """The calls at special points, by the function's public name below fanwise.tensor."""
    calls: dict[str, list[Call]] = {}
    for name in ONE_ARRAY:
        calls[name] = [elementwise("x", POINTS)]
    as_complex = lambda xp, x: xp.imag(xp.astype(x, xp.complex64))  # noqa: E731
    calls["imag"] = [
        Call("x", (POINTS,), function=as_complex, reference=lambda x: np.zeros(x.shape, x.dtype), elementwise=True)
    ]
    for name in TWO_ARRAYS:
        calls[name] = [
            elementwise("x1, x2", FIRST, SECOND),
            *(elementwise(f"x, {number}", POINTS, number) for number in (0.0, 1.0, 2.0)),
            *(elementwise(f"{number}, x", number, POINTS) for number in (0.0, 1.0)),
        ]
    for name in TWO_WHOLE:
        calls.setdefault(name, []).append(elementwise("integers", WHOLE_FIRST, WHOLE_SECOND))
    for name in ("bitwise_left_shift", "bitwise_right_shift"):
        calls[name] = [elementwise("integers", whole(-7, -1, 0, 1, 6), whole(0, 1, 2, 30, 3))]
    calls["pow"].append(elementwise("integers", whole(-2, 0, 3, 0), whole(3, 0, 2, 2)))
    calls["bitwise_invert"] = [elementwise("integers", whole(-7, -1, 0, 1, 6))]
    truth = [a > 0 for a in (whole(0, 0, 1, 1), whole(0, 1, 0, 1))]
    calls |= {name: [elementwise("booleans", *truth)] for name in ("logical_and", "logical_or", "logical_xor")}
    calls["logical_not"] = [elementwise("booleans", truth[0])]
    for name in ("bitwise_and", "bitwise_or", "bitwise_xor"):
        calls[name].append(elementwise("booleans", *truth))

    calls |= {name: _reduced(name) for name in ("all", "any", "count_nonzero", "sum", "prod")}
    calls |= {name: _reduced(name, empty=False) for name in ("mean", "max", "min", "argmax", "argmin")}
    for name in ("max", "min", "argmax", "argmin"):
        refused = lambda xp, x, n=name: getattr(xp, n)(x, axis=1)  # noqa: E731
        calls[name].append(
            composed("axis without elements", refused, lambda x, n=name: getattr(np, n)(x, axis=1), np.ones((2, 0)))
        )
    nan_mean = lambda x: np.full(2, np.nan)  # noqa: E731
    calls["mean"].append(composed("axis without elements", lambda xp, x: xp.mean(x, axis=1), nan_mean, np.ones((2, 0))))
    calls |= {"std": _deviations("std", 0.5), "var": _deviations("var", 1.0)}
    for name in ("cumulative_prod", "cumulative_sum"):
        initial = [
            point(f"{situation}, include_initial", row, axis=0, include_initial=True) for situation, row in ROWS.items()
        ]
        calls[name] = [*_over_one_axis(name), *initial[:7]]
    for name in ("sort", "argsort"):
        calls[name] = _over_one_axis(name)
        calls[name] += [
            point(f"{situation}, descending", row, axis=0, descending=True) for situation, row in ROWS.items()
        ]
    calls["diff"] = [point(situation, row) for situation, row in ROWS.items()]
    calls["diff"] += [
        point("prepend and append", ROWS["one zero"], prepend=floats(1.0), append=floats(2.0, 5.0)),
        point("n=2", ROWS["one zero"], n=2),
        point("one element", floats(1.0)),
        point("n greater than the length", floats(1.0, 2.0), n=3),
    ]
    for name in ("unique_all", "unique_counts", "unique_inverse", "unique_values"):
        calls[name] = [Call(situation, (row,), order=0) for situation, row in ROWS.items()]
        calls[name].append(Call("no elements", (floats(),), order=0))
    calls["searchsorted"] = [
        Call("ties", (floats(1.0, 1.0, 2.0), floats(0.0, 1.0, 2.0, 3.0)), {"side": side}, order=0)
        for side in ("left", "right")
    ]
    calls["searchsorted"] += [
        Call("no elements", (floats(), floats(1.0)), order=0),
        Call("NaN and infinities", (floats(-math.inf, 1.0, math.inf), floats(-math.inf, math.inf, math.nan)), order=0),
    ]
    calls["isin"] = [
        composed(
            "NaN and zeros",
            lambda xp, a, b: xp.isin(a, b),
            np.isin,
            floats(0.0, math.nan, 1.0),
            floats(-0.0, math.nan),
            order=0,
        )
    ]
    calls["nonzero"] = [Call(situation, (row,), order=0) for situation, row in ROWS.items()]

    calls["clip"] = [
        elementwise("x, 0.0, 1.0", POINTS, 0.0, 1.0),
        elementwise("x, min, max", POINTS, np.zeros(12), np.ones(12)),
        Call("min=0.5", (POINTS,), {"min": 0.5}, elementwise=True),
        Call("max=0.5", (POINTS,), {"max": 0.5}, elementwise=True),
        composed("no bounds", lambda xp, x: xp.clip(x), lambda x: x.copy(), floats(1.0, 2.0)),
        composed(
            "min=NaN", lambda xp, x: xp.clip(x, math.nan, None), lambda x: np.clip(x, math.nan, None), floats(1.0, 2.0)
        ),
    ]
    condition = whole(1, 0) > 0
    calls["where"] = [
        point("two arrays", condition, floats(1.0, 2.0), floats(3.0, 4.0)),
        point("NaN not chosen", condition, floats(1.0, math.nan), floats(math.nan, 4.0)),
        point("x, 0.0", condition, floats(1.0, 2.0), 0.0),
        point("broadcast", condition, np.asarray(2.0), floats([1.0, 2.0], [3.0, 4.0])),
    ]
    calls["take"] = [
        point("repeated", CUBE, whole(1, 0, 1), axis=0),
        point("negative", CUBE, whole(-1, -2), axis=1),
        point("no elements", CUBE, whole(), axis=1),
        composed(
            "out of range", lambda xp, x, i: xp.take(x, i, axis=0), lambda x, i: np.take(x, i, axis=0), CUBE, whole(2)
        ),
        composed(
            "below the range",
            lambda xp, x, i: xp.take(x, i, axis=1),
            lambda x, i: np.take(x, i, axis=1),
            CUBE,
            whole(-4),
        ),
        composed("index of no axes", lambda xp, x, i: xp.take(x, i, axis=1), _refused, CUBE, np.asarray(1)),
        composed("index of 2 axes", lambda xp, x, i: xp.take(x, i, axis=1), _refused, CUBE, whole([0, 1], [2, 2])),
    ]
    along = lambda xp, x, i: xp.take_along_axis(x, i, axis=1)  # noqa: E731
    np_along = lambda x, i: np.take_along_axis(x, i, axis=1)  # noqa: E731
    calls["take_along_axis"] = [
        composed(situation, along, np_along, floats([1.0, 2.0], [3.0, 4.0]), index)
        for situation, index in (
            ("repeated", whole([0, 0, 1], [1, 1, 1])),
            ("negative", whole([-1], [-2])),
            ("broadcast", whole([0, 1])),
            ("no elements", np.ones((2, 0), dtype=np.int64)),
            ("out of range", whole([2], [0])),
        )
    ]
    x, y = floats([1.0, 2.0], [3.0, 0.0]), floats([0.0, -1.0], [5.0, 2.0])
    calls["concat"] = [
        point("arrays", [x, y], axis=1),
        point("axis=None", [x, y], axis=None),
        point("tuple", (x, y)),
        point("the same array twice", [x, x]),
        point("one without elements", [x, np.ones((0, 2))]),
        point("only one", [x]),
        composed("no arrays", lambda xp: xp.concat([]), lambda: np.concatenate([])),
        composed(
            "arrays of no axes", lambda xp, a: xp.concat([a, a]), lambda a: np.concatenate([a, a]), np.asarray(1.0)
        ),
    ]
    calls["stack"] = [
        point("arrays", [x, y], axis=-1),
        point("arrays of no axes", [np.asarray(1.0), np.asarray(2.0)]),
        point("without elements", [floats(), floats()]),
        composed(
            "arrays of two shapes",
            lambda xp, a, b: xp.stack([a, b]),
            lambda a, b: np.stack([a, b]),
            floats(1.0),
            floats(1.0, 2.0),
        ),
    ]
    calls["unstack"] = [
        point("a matrix", x, axis=1),
        point("without elements", np.ones((0, 2))),
        point("arrays without elements", np.ones((2, 0))),
    ]
    calls["meshgrid"] = [
        point("two arrays", floats(1.0, 2.0), floats(3.0, 4.0, 5.0)),
        point("one without elements", floats(1.0), floats()),
    ]
    calls["broadcast_arrays"] = [
        point("three", x, floats(1.0, 2.0), np.asarray(3.0)),
        point("without elements", np.ones((1, 0)), np.ones((2, 1))),
    ]
    calls["broadcast_to"] = [point("a row", floats(1.0, 2.0), (2, 2)), point("no elements", np.ones((1, 1)), (0, 3))]
    calls["reshape"] = [
        point("-1", CUBE, (-1,)),
        point("no elements", np.ones((0, 3)), (3, 0)),
        point("no axes", floats(2.0), ()),
    ]
    calls["roll"] = [
        point("all axes", x, 3),
        point("no elements", floats(), 1),
        point("negative", x, (-1, 1), axis=(0, 1)),
    ]
    calls["repeat"] = [
        point("an array of counts", floats(1.0, 2.0), whole(0, 3)),
        point("0", x, 0),
        point("axis=1", x, 2, axis=1),
        point("no elements", floats(), 2),
    ]
    calls["tile"] = [point("more axes", x, (2, 1, 2)), point("0", x, (0, 1)), point("fewer axes", x, (2,))]
    calls["flip"] = [point("all axes", CUBE), point("no elements", np.ones((0, 2)))]
    calls |= {
        name: [
            point("k=-1", x, k=-1),
            point("NaN", floats([1.0, math.nan], [math.nan, 1.0])),
            point("no elements", np.ones((0, 2))),
        ]
        for name in ("tril", "triu")
    }
    calls["expand_dims"] = [point("(0, -1)", x, (0, -1)), point("no axes", np.asarray(1.0), 0)]
    calls["squeeze"] = [
        point("(0, 2)", np.ones((1, 2, 1)), (0, 2)),
        composed("axis of 2 elements", lambda xp, a: xp.squeeze(a, 0), lambda a: np.squeeze(a, 0), x),
    ]
    calls["permute_dims"] = [point("three axes", CUBE, (2, 0, 1)), point("no axes", np.asarray(1.0), ())]
    calls["moveaxis"] = [point("two axes", CUBE, (0, 1), (2, 0))]
    calls["matrix_transpose"] = [point("a stack", CUBE)]
    calls["astype"] = [
        composed(
            "float32 to float16 and back",
            lambda xp, a: xp.astype(xp.astype(a, xp.float16), xp.float32),
            lambda a: a.copy(),
            floats(1.5, 2.0),
        ),
        composed(
            "to an integer", lambda xp, a: xp.astype(a, xp.int32), lambda a: a.astype(np.int32), floats(1.7, -1.7, 0.0)
        ),
        composed(
            "to a boolean",
            lambda xp, a: xp.astype(a, xp.bool),
            lambda a: a.astype(bool),
            floats(0.0, -0.0, math.nan, 1e-3),
        ),
    ]

    calls["matmul"] = [point(s, m, y) for s, m in MATRICES.items()]
    calls["matmul"] += [
        point("no elements", np.ones((2, 0)), np.ones((0, 3))),
        point("two vectors", floats(1.0, 2.0), floats(0.0, 3.0)),
        point("a stack and a vector", CUBE, floats(1.0, 0.0)),
    ]
    calls["tensordot"] = [
        point("axes=1", x, y, axes=1),
        point("axes=0", x, floats(1.0, 2.0), axes=0),
        point("no elements", np.ones((2, 0)), np.ones((0, 2)), axes=1),
    ]
    calls["vecdot"] = [
        point("rows", x, y),
        point("no elements", np.ones((2, 0)), np.ones((2, 0))),
        point("broadcast", x, floats(1.0, 2.0)),
    ]

    # -- creation functions that are given arrays
    calls["asarray"] = _asarray_calls()
    three = np.asarray(3.0)
    calls["full"] = [
        composed("an array as the value", lambda xp, v: xp.full((2,), v), lambda v: np.full(2, v), three),
        composed("-1 as uint8", lambda xp: xp.full((2,), -1, dtype=xp.uint8), lambda: np.full(2, -1, dtype=np.uint8)),
        composed("no elements", lambda xp: xp.full((0, 2), 1.0), lambda: np.ones((0, 2))),
        composed("no axes", lambda xp: xp.full((), math.nan), lambda: np.full((), math.nan)),
    ]
    calls["full_like"] = [
        composed(
            "an array as the value", lambda xp, a, v: xp.full_like(a, v), lambda a, v: np.full(a.shape, v), x, three
        ),
        composed(
            "300 as uint8",
            lambda xp: xp.full_like(xp.zeros(2, dtype=xp.uint8), 300),
            lambda: np.full(2, 300, dtype=np.uint8),
        ),
        composed("no elements", lambda xp, a: xp.full_like(a, 1.0), lambda a: np.full_like(a, 1.0), floats()),
    ]
    calls["arange"] = [
        composed(
            "an array as the end", lambda xp, v: xp.arange(v), lambda v: np.arange(int(v)) * (v / v), three, order=0
        ),
        composed("an array as the start", lambda xp, v: xp.arange(v, 6.0), lambda v: v + np.arange(3.0), three),
        composed("an array as the step", lambda xp, v: xp.arange(0.0, 6.5, v), lambda v: v * np.arange(3.0), three),
        composed("empty", lambda xp: xp.arange(3.0, 3.0), lambda: np.ones(0)),
        composed("step 0", lambda xp: xp.arange(0.0, 1.0, 0.0), lambda: np.arange(0.0, 1.0, 0.0)),
    ]
    calls["linspace"] = [
        composed("an array as the end", lambda xp, v: xp.linspace(0.0, v, 3), lambda v: np.linspace(0.0, v, 3), three),
        composed(
            "an array as the start",
            lambda xp, v: xp.linspace(v, 0.0, 4, endpoint=False),
            lambda v: np.linspace(v, 0.0, 4, endpoint=False),
            three,
        ),
        composed("one number", lambda xp, v: xp.linspace(v, 1.0, 1), lambda v: np.linspace(v, 1.0, 1), three),
        composed("no numbers", lambda xp, v: xp.linspace(v, 1.0, 0), lambda v: np.linspace(v, 1.0, 0), three),
    ]
    for name, value in (("ones_like", 1.0), ("zeros_like", 0.0)):
        like = lambda xp, a, n=name: getattr(xp, n)(a)  # noqa: E731
        calls[name] = [
            composed(s, like, lambda a, v=value: np.full(a.shape, v), a)
            for s, a in (("NaN", floats(math.nan)), ("no elements", floats()))
        ]
    calls["eye"] = [
        composed("no elements", lambda xp: xp.eye(0), lambda: np.eye(0)),
        composed("2 x 3, k=1", lambda xp: xp.eye(2, 3, k=1), lambda: np.eye(2, 3, k=1)),
    ]
    calls["ones"] = [
        composed("no axes", lambda xp: xp.ones(()), lambda: np.ones(())),
        composed("(2, 0)", lambda xp: xp.ones((2, 0)), lambda: np.ones((2, 0))),
    ]
    calls["zeros"] = [
        composed("no axes", lambda xp: xp.zeros(()), lambda: np.zeros(())),
        composed("(2, 0)", lambda xp: xp.zeros((2, 0)), lambda: np.zeros((2, 0))),
    ]

    # -- beyond the standard
    for how in ("get", *UPDATES):
        calls[f"at.{how}"] = _at_calls(how)
    for how in ("get", "set", "add"):
        calls[f"State.{how}"] = _state(how)
    calls["stop_gradient"] = [composed("x * x", lambda xp, a: xp.stop_gradient(a) * a, lambda a: a * a, x, order=0)]

    # -- linalg and fft
    symmetric = {
        "cholesky": lambda xp, a: xp.linalg.cholesky(a),
        "eigvalsh": lambda xp, a: xp.linalg.eigvalsh(a),
        "eigh": lambda xp, a: (xp.linalg.eigh(a)[0], xp.abs(xp.linalg.eigh(a)[1])),
    }
    references = {
        "cholesky": np.linalg.cholesky,
        "eigvalsh": np.linalg.eigvalsh,
        "eigh": lambda a: (np.linalg.eigh(a)[0], np.abs(np.linalg.eigh(a)[1])),
    }
    for name, function in symmetric.items():
        calls[f"linalg.{name}"] = _of_matrix(
            lambda xp, a, f=function: f(xp, _xp_symmetric(xp, a)),
            lambda a, f=references[name]: f(_symmetric(a)),
            order=1 if name == "eigh" else 2,
        )
    for name in (
        "det",
        "inv",
        "matrix_rank",
        "pinv",
        "slogdet",
        "svdvals",
        "trace",
        "diagonal",
        "matrix_norm",
        "matrix_transpose",
    ):
        calls[f"linalg.{name}"] = [point(s, m) for s, m in MATRICES.items()]
    calls["linalg.matrix_norm"] += [
        point(f"ord={o}, {s}", m, ord=o) for o in (1, 2, -2, math.inf, "nuc") for s, m in MATRICES.items()
    ]
    calls["linalg.matrix_power"] = [point(f"{n}, {s}", m, n) for n in (0, 1, 3, -1) for s, m in MATRICES.items()]
    calls["linalg.solve"] = [point(s, m, y) for s, m in MATRICES.items()] + [
        point("a vector", MATRICES["regular"], floats(1.0, 2.0))
    ]
    calls["linalg.matmul"] = [point(s, m, y) for s, m in MATRICES.items()]
    calls["linalg.tensordot"] = [point("axes=1", x, y, axes=1)]
    calls["linalg.vecdot"] = [point("rows", x, y)]
    calls["linalg.outer"] = [point(s, row, floats(0.0, 2.0)) for s, row in ROWS.items()]
    calls["linalg.cross"] = [point(s, row, ROWS["one zero"]) for s, row in ROWS.items()]
    calls["linalg.vector_norm"] = [
        point(f"ord={o}, {s}", row, ord=o) for o in (2, 1, 0, 3, math.inf, -math.inf) for s, row in ROWS.items()
    ]
    calls["linalg.vector_norm"] += [
        point("no elements", floats()),
        point("axis without elements", np.ones((2, 0)), axis=1),
        point("no axes", np.asarray(0.0)),
    ]
    calls["linalg.qr"] = _of_matrix(
        lambda xp, a: tuple(xp.abs(p) for p in xp.linalg.qr(a)),
        lambda a: tuple(np.abs(p) for p in np.linalg.qr(a)),
        order=1,
    )
    calls["linalg.svd"] = _of_matrix(
        lambda xp, a: tuple(xp.abs(p) for p in xp.linalg.svd(a)),
        lambda a: tuple(np.abs(p) for p in np.linalg.svd(a)),
        order=1,
    )
    calls["linalg.eig"] = _of_matrix(
        lambda xp, a: xp.linalg.eig(xp.astype(a, xp.complex64))[0],
        lambda a: np.linalg.eig(a)[0].astype(complex),
        order=0,
    )
    calls["linalg.eigvals"] = _of_matrix(
        lambda xp, a: xp.linalg.eigvals(a), lambda a: np.linalg.eigvals(a).astype(complex), order=0
    )
    finite = {situation: row for situation, row in ROWS.items() if np.isfinite(row).all()}
    for name in ("fft", "ifft", "fftn", "ifftn", "fftshift", "ifftshift", "hfft", "irfft", "irfftn"):
        of_complex = lambda xp, a, n=name: getattr(xp.fft, n)(xp.astype(a, xp.complex64))  # noqa: E731
        reference = lambda a, n=name: getattr(np.fft, n)(a + 0j)  # noqa: E731
        calls[f"fft.{name}"] = [composed(s, of_complex, reference, row) for s, row in finite.items()]
    for name in ("rfft", "rfftn", "ihfft"):
        calls[f"fft.{name}"] = [point(s, row) for s, row in finite.items()]
    calls["fft.fftfreq"] = [composed("5", lambda xp: xp.fft.fftfreq(5, d=0.5), lambda: np.fft.fftfreq(5, d=0.5))]
    calls["fft.rfftfreq"] = [composed("5", lambda xp: xp.fft.rfftfreq(5, d=0.5), lambda: np.fft.rfftfreq(5, d=0.5))]
    return calls


# -- differences that are allowed --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reason:
    """Why some engines may return what is not right: regular expressions of the calls, and the engines."""

    text: str
    names: str
    situations: str = ""
    modes: str = ""
    engines: frozenset[str] = frozenset()


DIFFERENTIABLE = frozenset(("torch", "jax", "tensorflow"))
EVERY_ENGINE = DIFFERENTIABLE | {"numpy"}
_FACTORS = r"linalg\.(eigh|eigvalsh|matrix_norm|pinv|qr|slogdet|svd|svdvals)"
_RAISING = (
    r"linalg\.(cholesky|eig|eigh|eigvals|eigvalsh|inv|matrix_norm|matrix_power|matrix_rank|pinv|solve|svd|svdvals)"
)
REASONS = [
    Reason(
        "denormal numbers count as 0 on JAX and TensorFlow, and their products are 0 everywhere",
        ".*",
        "1e-40|denormals",
        engines=DIFFERENTIABLE,
    ),
    Reason(
        "no single derivative: a step from one number to the next",
        "nextafter",
        engines=frozenset(("torch",)),
        modes="gradient|second",
    ),
    Reason(
        "no single derivative: singular, or equal eigenvalues",
        _FACTORS,
        "zeros|singular|identity",
        "gradient|second",
        DIFFERENTIABLE,
    ),
    Reason("NaN as the derivative of atan2 of an infinity", "atan2", "inf", "grad|sec", frozenset(("torch", "jax"))),
    Reason("a NaN in a matrix: an error, NaN or any number", r"linalg\..*", "NaN", engines=EVERY_ENGINE),
    Reason(
        "JAX does not raise, and returns NaN or infinities", _RAISING, "singular|zeros", "value", frozenset(("jax",))
    ),
]

# Public names that have tests of their own, in tests/tensor.
ELSEWHERE = {
    **dict.fromkeys(("broadcast_shapes", "can_cast", "isdtype", "result_type"), "test_standard_values.py"),
    **dict.fromkeys(("empty", "empty_like"), "test_standard_values.py"),
    **dict.fromkeys(("from_dlpack", "Namespace", "namespace"), "test_standard_names.py"),
    **dict.fromkeys(("current_engine", "engine_of", "finfo", "iinfo", "use"), "test_tensor_dispatch.py"),
    "register_engine": "../examples/conftest.py",
    **dict.fromkeys(("device_of", "devices", "to_device"), "test_same_beyond_the_standard.py"),
    **dict.fromkeys(("grad", "jit", "value_and_grad", "vjp"), "test_gradients.py"),
    **dict.fromkeys(("convert", "from_numpy", "to_numpy", "item"), "test_right_or_error.py"),
    **dict.fromkeys(("normal", "permutation", "uniform"), "test_right_or_error.py"),
    **dict.fromkeys(("Key",), "test_keys.py"),
    "size": "test_elements.py",
    "same_memory": "test_tensor_exchange.py",
    "aligned_buffer": "test_buffers.py",
    **dict.fromkeys(("from_wire", "is_array", "to_wire"), "test_wire.py"),
}
