"""The TensorFlow namespace beside array_api_strict: the same values, types and shapes, function by function.

Each test draws arguments and asks both. Where several answers are right (eigenvectors, complex special values) the
property that makes them right is tested instead.
"""

import itertools
import math
import warnings
from collections.abc import Callable
from typing import Any

import array_api_strict as strict
import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from fanwise.tensor.namespaces import namespace
from fanwise.tensor.namespaces.standard import DTYPES, FUNCTIONS, of_two_arrays
from fanwise.testing.late import Late

Array = np.ndarray[Any, Any]  # Any: shapes and dtypes are drawn
xp = Late(lambda: namespace("tensorflow"))
pytestmark = pytest.mark.usefixtures("tensorflow_is_loaded")

SIGNED = ("int8", "int16", "int32", "int64")
UNSIGNED = ("uint8", "uint16", "uint32", "uint64")
INTEGER = SIGNED + UNSIGNED
FLOATS = ("float32", "float64")
COMPLEX = ("complex64", "complex128")
REAL = INTEGER + FLOATS
NUMERIC = REAL + COMPLEX
ALL = ("bool", *NUMERIC)

few = settings(max_examples=12, derandomize=True, database=None, deadline=None)

SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, -0.5, 1.5, 2.5, -2.5, 3.0, 100.0, -1e10, 1e30, 1e-5, math.pi)
NOT_FINITE = (math.inf, -math.inf, math.nan)


def as_numpy(x: Any) -> Any:  # Any: an array of either side, or a tuple of them
    if isinstance(x, tuple):
        return [as_numpy(part) for part in x]
    return np.asarray(x._array) if hasattr(x, "_array") else x.numpy()


def assert_same(ours: Any, theirs: Any, tolerance: float | None = None) -> None:  # Any: as above
    if isinstance(theirs, list):
        assert len(ours) == len(theirs)
        for one, other in zip(ours, theirs, strict=True):
            assert_same(one, other, tolerance)
        return
    assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
    if ours.dtype.kind not in "fc":
        assert (ours == theirs).all(), (ours, theirs)
        return
    if tolerance is None:
        tolerance = 1e-5 if ours.dtype in ("float32", "complex64") else 1e-11
    if ours.dtype.kind == "c":  # part by part: infinity and nan may stand together; digits go by the whole number
        length = np.abs(theirs)
        slack = tolerance * np.where(np.isfinite(length), length, 0) + tolerance * 1e-3
        for one, other in ((ours.real, theirs.real), (ours.imag, theirs.imag)):
            with np.errstate(all="ignore"):
                close = (one == other) | (np.isnan(one) & np.isnan(other)) | (np.abs(one - other) <= slack)
            assert close.all(), (ours[~close], theirs[~close])
        return
    np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance * 1e-3)


def converted(side: Any, argument: Any) -> Any:  # Any: a namespace; numpy arrays and all else
    if isinstance(argument, np.ndarray):
        return side.asarray(argument)
    if isinstance(argument, (list, tuple)) and any(isinstance(one, np.ndarray) for one in argument):
        return [converted(side, one) for one in argument]
    return argument


def check(name: str, *arguments: Any, tolerance: float | None = None, **keywords: Any) -> None:  # Any: as above
    """Both sides give the same; `name` may be "linalg.det"."""
    results: list[Any] = []  # Any: as above
    for side in (xp, strict):
        function: Any = side  # Any: a namespace, its part, then the function
        for part in name.split("."):
            function = getattr(function, part)
        there = [converted(side, one) for one in arguments]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what NumPy says of special values
            result = function(*there, **{key: dtype_of(side, value) for key, value in keywords.items()})
        results.append(as_numpy(tuple(result) if isinstance(result, (list, tuple)) else result))
    assert_same(results[0], results[1], tolerance)


def dtype_of(side: Any, value: Any) -> Any:  # Any: a name of a dtype, an array, or anything else
    return getattr(side, value) if isinstance(value, str) and value in DTYPES else converted(side, value)


def elements(dtype: str, finite: bool = False) -> st.SearchStrategy[Any]:  # Any: numbers of that kind
    if dtype == "bool":
        return st.booleans()
    if dtype in INTEGER:
        limits = np.iinfo(dtype)
        edges = [int(limits.min), int(limits.min) + 1, int(limits.max), int(limits.max) - 1]
        return st.sampled_from([*edges, 0, 1, 2, 3, 7, *([-1, -2, -7] if dtype in SIGNED else [])])
    numbers = st.sampled_from(SPECIAL if finite else SPECIAL + NOT_FINITE)
    return st.builds(complex, numbers, numbers) if dtype in COMPLEX else numbers


def small(dtype: str) -> st.SearchStrategy[Any]:  # Any: numbers whose sums and products are exact
    if dtype == "bool":
        return st.booleans()
    whole = st.integers(0 if dtype in UNSIGNED else -5, 5)
    return st.builds(complex, whole, whole) if dtype in COMPLEX else whole


def shapes(min_dims: int = 0, max_dims: int = 3, min_side: int = 0) -> st.SearchStrategy[tuple[int, ...]]:
    return st.lists(st.integers(min_side, 4), min_size=min_dims, max_size=max_dims).map(tuple)


@st.composite
def arrays(
    draw: st.DrawFn,
    dtypes: tuple[str, ...],
    shape: st.SearchStrategy[tuple[int, ...]] | tuple[int, ...] | None = None,
    of: Callable[[str], st.SearchStrategy[Any]] = small,  # Any: numbers
) -> Array:
    dtype = draw(st.sampled_from(dtypes))
    where = shape if isinstance(shape, tuple) else draw(shapes() if shape is None else shape)
    size = math.prod(where)
    numbers = draw(st.lists(of(dtype), min_size=size, max_size=size))
    return np.array(numbers, dtype).reshape(where)


def finite(dtype: str) -> st.SearchStrategy[Any]:  # Any: numbers
    return elements(dtype, finite=True)


@st.composite
def axes(draw: st.DrawFn, ndim: int, allow_none: bool = True) -> int | tuple[int, ...] | None:
    options: list[st.SearchStrategy[Any]] = [st.none()] if allow_none or ndim == 0 else []  # Any: None, ints, tuples
    if ndim:
        one = st.integers(-ndim, ndim - 1)
        options += [one, st.lists(one, unique_by=lambda axis: axis % ndim, max_size=ndim).map(tuple)]
    return draw(st.one_of(options))  # type: ignore[no-any-return]


def grid_of(dtype: str) -> Array:
    """All special values of a type."""
    if dtype == "bool":
        return np.array([False, True])
    if dtype in INTEGER:
        return np.array(elements_of(dtype), dtype)
    real = SPECIAL + NOT_FINITE
    return np.array([complex(a, b) for a in real for b in real] if dtype in COMPLEX else real, dtype)


def elements_of(dtype: str) -> list[int]:
    limits = np.iinfo(dtype)
    wanted = [limits.min, limits.min + 1, limits.max, limits.max - 1, 0, 1, 2, 3, 7, -1, -2, -7, 40, 70]
    return [int(number) for number in wanted if limits.min <= number <= limits.max]


OF_ONE = [name for name, text in FUNCTIONS.items() if text == "(x: _A, /)" and name[:6] not in ("unique", "matrix")]
OF_ONE.remove("nonzero")
OF_TWO = of_two_arrays()
OF_TWO.remove("matmul")
# Complex special values: tested by their own rules below, here only where all parts are finite and not 0.
DELICATE = {
    "exp",
    "expm1",
    "log",
    "log10",
    "log1p",
    "log2",
    "reciprocal",
    "sign",
    "sqrt",
    "divide",
    "pow",
    "square",
    "multiply",
}


def takes(name: str, dtype: str) -> bool:
    x = strict.asarray(np.full(1, 1, dtype))
    try:
        with np.errstate(all="ignore"):
            getattr(strict, name)(*([x] if name in OF_ONE else [x, x]))
    except (TypeError, ValueError):
        return False
    return True


@pytest.mark.parametrize("name", OF_ONE)
def test_function_of_one_array_agrees_on_every_type_and_special_value(name: str) -> None:
    for dtype in ALL:
        x = grid_of(dtype)
        if dtype in COMPLEX and name in DELICATE:
            x = x[np.isfinite(x) & (np.abs(x) < 50)]
            x = x[(x.real != 0) & (x.imag != 0)]
        if not takes(name, dtype):
            with pytest.raises(TypeError, match=r"array of \w+; convert it"):
                getattr(xp, name)(xp.asarray(x))
        else:
            check(name, x, tolerance=1e-3 if dtype in COMPLEX else None)
            if dtype in FLOATS or name not in DELICATE:
                assert_signs_of_zeros(name, x)


def assert_signs_of_zeros(name: str, *arrays: Array) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ours, theirs = (as_numpy(getattr(side, name)(*map(side.asarray, arrays))) for side in (xp, strict))
    parts = [(ours.real, theirs.real), (ours.imag, theirs.imag)] if ours.dtype.kind == "c" else [(ours, theirs)]
    for one, other in parts:
        if one.dtype.kind == "f":
            zeros = (one == 0) & (other == 0)
            assert (np.signbit(one[zeros]) == np.signbit(other[zeros])).all(), arrays


@pytest.mark.parametrize("name", OF_TWO)
def test_function_of_two_arrays_agrees_on_every_type_and_special_value(name: str) -> None:
    for dtype in ALL:
        if not takes(name, dtype):
            x = xp.ones(2, dtype=getattr(xp, dtype))
            with pytest.raises(TypeError, match=r"array of \w+; convert it"):
                getattr(xp, name)(x, x)
            continue
        x1 = x2 = grid_of(dtype)
        if dtype in INTEGER and name in ("floor_divide", "remainder"):
            x2 = x2[x2 != 0]
        if dtype in INTEGER and (name == "pow" or "shift" in name):
            x2 = x2[(x2 >= 0) & (x2 < 100)]
        if dtype in COMPLEX and name in DELICATE:
            x1 = x2 = x1[np.isfinite(x1) & (np.abs(x1) < 5) & (x1.real != 0)][::3]
        if name == "floor_divide" and dtype in FLOATS:  # the standard rounds the quotient; NumPy does not
            assert_same(as_numpy(xp.floor_divide(xp.asarray(x1[:, None]), xp.asarray(x2))), floor_of_quotient(x1, x2))
        else:
            check(name, x1[:, None], x2[None], tolerance=1e-3 if dtype in COMPLEX else None)
            if dtype in FLOATS:
                assert_signs_of_zeros(name, x1[:, None], x2[None])


def floor_of_quotient(x1: Array, x2: Array) -> Array:
    with np.errstate(all="ignore"):
        quotient: Array = np.floor(x1[:, None] / x2)
    return quotient


@pytest.mark.parametrize("name", OF_TWO)
def test_types_mix_as_the_standard_says(name: str) -> None:
    for first in ALL:
        for second in ALL:
            arguments = np.ones((2, 1), first), np.ones(3, second)
            try:
                getattr(strict, name)(*map(strict.asarray, arguments))
            except TypeError:
                with pytest.raises(TypeError):
                    getattr(xp, name)(*map(xp.asarray, arguments))
            else:
                check(name, *arguments)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64", "complex64"])
def test_zeros_of_python_keep_their_sign(dtype: str) -> None:
    x = xp.asarray([1.0], dtype=getattr(xp, dtype))
    for zero in (0.0, -0.0, 0.0, -0.0):
        found = xp.real(xp.multiply(x, zero)) if dtype == "complex64" else xp.multiply(x, zero)
        full = xp.full((1,), zero, dtype=found.dtype)
        assert [bool(each[0]) for each in (xp.signbit(found), xp.signbit(full))] == [math.copysign(1, zero) < 0] * 2


@pytest.mark.parametrize("number", [True, 3, 2**40, 1.5, 1 + 2j], ids=repr)
@pytest.mark.parametrize("name", ["add", "multiply", "equal", "divide", "logical_and", "where"])
def test_python_numbers_follow_the_type_of_the_array(name: str, number: complex) -> None:
    for dtype in ALL:
        before = (np.array([True, False]),) if name == "where" else ()
        for arguments in ((np.ones(2, dtype), number), (number, np.ones(2, dtype))):
            try:
                getattr(strict, name)(*[converted(strict, one) for one in before + arguments])
            except (TypeError, OverflowError) as refused:
                with pytest.raises(type(refused)):
                    getattr(xp, name)(*[converted(xp, one) for one in before + arguments])
            else:
                check(name, *before, *arguments)


@few
@given(st.data())
def test_shapes_broadcast(data: st.DataObject) -> None:
    shape = data.draw(shapes())
    other = tuple(data.draw(st.sampled_from([side, 1])) for side in shape)[data.draw(st.integers(0, len(shape))) :]
    dtype = data.draw(st.sampled_from(ALL))
    x1, x2 = data.draw(arrays((dtype,), shape)), data.draw(arrays((dtype,), other))
    check("equal", x1, x1.ravel()[:1])
    check("broadcast_arrays", x1, x2)
    check("broadcast_to", x2, shape) if np.broadcast_shapes(shape, other) == shape else None
    condition = data.draw(arrays(("bool",), shape))
    check("where", condition, x1, x2)
    check("meshgrid", x1.ravel(), x2.ravel(), indexing=data.draw(st.sampled_from(["xy", "ij"])))


@pytest.mark.parametrize("name", ["sum", "prod", "max", "min", "mean", "var", "std", "all", "any", "count_nonzero"])
@few
@given(st.data())
def test_reductions_agree(name: str, data: st.DataObject) -> None:
    dtypes = {"max": REAL, "min": REAL, "mean": FLOATS + COMPLEX, "var": FLOATS, "std": FLOATS}.get(name, NUMERIC)
    is_exact = name in ("max", "min", "all", "any", "count_nonzero")
    dtypes = ALL if name in ("all", "any", "count_nonzero") else dtypes
    side = 1 if name in ("max", "min", "mean", "var", "std") else 0
    x = data.draw(arrays(dtypes, shapes(min_side=side), elements if is_exact else small))
    keywords: dict[str, Any] = {"axis": data.draw(axes(x.ndim)), "keepdims": data.draw(st.booleans())}
    if name in ("var", "std"):
        keywords["correction"] = data.draw(st.sampled_from([0.0, 1, 0.5]))
    if name in ("sum", "prod") and x.dtype.kind in "iu":
        keywords["dtype"] = data.draw(st.sampled_from([None, "int64", str(x.dtype)]))
    check(name, x, tolerance=1e-4 if x.dtype in ("float32", "complex64") else None, **keywords)


@few
@given(st.data())
def test_indices_of_extremes_agree(data: st.DataObject) -> None:
    x = data.draw(arrays(REAL, shapes(min_side=1), lambda dtype: elements(dtype, finite=True)))
    axis = data.draw(st.none() | st.integers(-x.ndim, x.ndim - 1) if x.ndim else st.none())
    for name in ("argmax", "argmin"):
        check(name, x, axis=axis, keepdims=data.draw(st.booleans()))


@few
@given(st.data())
def test_running_sums_and_differences_agree(data: st.DataObject) -> None:
    x = data.draw(arrays(NUMERIC, shapes(min_dims=1)))
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    for name in ("cumulative_sum", "cumulative_prod"):
        check(name, x, axis=axis, include_initial=data.draw(st.booleans()))
    check("cumulative_sum", x.ravel())
    assume(x.shape[axis] > 0)
    ends = {name: data.draw(st.sampled_from([None, x])) for name in ("prepend", "append")}
    check("diff", x, axis=axis, n=data.draw(st.integers(0, 3)), **ends)


@few
@given(arrays(REAL, shapes(min_dims=1), elements), st.booleans(), st.data())
def test_sorting_agrees(x: Array, descending: bool, data: st.DataObject) -> None:
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    check("sort", x, axis=axis, descending=descending)
    if not np.isnan(x).any():
        check("argsort", x, axis=axis, descending=descending)


@few
@given(arrays(("float32", "int8"), shapes(min_dims=1, max_dims=1), elements), st.booleans())
def test_sorting_keeps_the_order_of_equal_elements(x: Array, descending: bool) -> None:
    x = np.concatenate([x, x, x])
    order = as_numpy(xp.argsort(xp.asarray(x), descending=descending))
    assert sorted(order) == list(range(len(x)))
    for before, after in itertools.pairwise(order):
        assert before < after or x[before] != x[after]


@few
@given(st.data())
def test_searchsorted_agrees(data: st.DataObject) -> None:
    x = data.draw(arrays(REAL, shapes(1, 1), finite))
    wanted = data.draw(arrays((str(x.dtype),), shapes(), finite))
    side = data.draw(st.sampled_from(["left", "right"]))
    check("searchsorted", np.sort(x), wanted, side=side)
    check("searchsorted", x, wanted, side=side, sorter=np.argsort(x, stable=True))


@pytest.mark.parametrize("name", ["unique_all", "unique_counts", "unique_inverse", "unique_values"])
@few
@given(arrays(ALL, shapes(), elements))
def test_sets_agree(name: str, x: Array) -> None:
    assume(not np.isnan(x).any() or x.dtype.kind != "c")
    check(name, x)


@few
@given(arrays(("float32", "complex64"), (6,), elements))
def test_every_nan_is_unique(x: Array) -> None:
    values, indices, inverse, counts = map(as_numpy, xp.unique_all(xp.asarray(x)))
    np.testing.assert_array_equal(values[inverse], x)
    np.testing.assert_array_equal(values, x[indices])
    assert counts.sum() == x.size
    assert np.isnan(values).sum() == np.isnan(x).sum()


@few
@given(st.data())
def test_isin_agrees(data: st.DataObject) -> None:
    x1 = data.draw(arrays(ALL, None, elements))
    x2 = data.draw(arrays((str(x1.dtype),), None, elements))
    invert = data.draw(st.booleans())
    ours = as_numpy(xp.isin(xp.asarray(x1), xp.asarray(x2), invert=invert))
    np.testing.assert_array_equal(ours, np.isin(x1, x2, invert=invert))


def test_nan_is_in_nothing() -> None:
    x = xp.asarray([math.nan, 1.0, -0.0])
    assert as_numpy(xp.isin(x, xp.asarray([0.0, math.nan]))).tolist() == [False, False, True]
    z = xp.astype(x, xp.complex64)
    assert as_numpy(xp.isin(z, z)).tolist() == [False, True, True]


def test_complex_powers_of_zero_and_to_zero_have_values() -> None:
    base = xp.asarray([0j, 0j, 2 + 1j, 0j])
    power = xp.asarray([0j, 2 + 1j, 0j, -1 + 0j])
    result = as_numpy(xp.pow(base, power))
    assert result[:3].tolist() == [1, 0, 1] and np.isnan(result[3])


@few
@given(st.data())
def test_rearranging_agrees(data: st.DataObject) -> None:
    x = data.draw(arrays(ALL, shapes(), elements))
    axis = data.draw(axes(x.ndim))
    check("flip", x, axis=axis)
    check("permute_dims", x, tuple(data.draw(st.permutations(range(x.ndim)))))
    check("reshape", x, (-1,) if x.size else (0, 3))
    check("tile", x, data.draw(shapes(0, 4)))
    check("repeat", x, data.draw(st.integers(0, 3)))
    shift = data.draw(st.integers(-9, 9))
    check("roll", x, shift)
    new = data.draw(st.integers(-x.ndim - 1, x.ndim))
    check("expand_dims", x, axis=new)
    expanded = np.expand_dims(x, new)
    check("squeeze", expanded, new)
    check("squeeze", expanded, ())
    if x.ndim:
        one = data.draw(st.integers(-x.ndim, x.ndim - 1))
        check("unstack", x, axis=one)
        check("roll", x, (shift, 10**18 + 1), axis=(one, one))
        check("repeat", x, np.arange(x.shape[one]), axis=one)
        check("moveaxis", x, one, data.draw(st.integers(-x.ndim, x.ndim - 1)))
        check("moveaxis", x, (one, (one + 1) % x.ndim), (0, -1)) if x.ndim > 1 else None


@few
@given(st.data())
def test_joining_agrees_and_mixes_types(data: st.DataObject) -> None:
    x1 = data.draw(arrays(ALL, shapes(min_dims=1), elements))
    partner = data.draw(st.sampled_from(NUMERIC))
    try:
        strict.result_type(getattr(strict, str(x1.dtype)), getattr(strict, partner))
    except TypeError:
        partner = str(x1.dtype)
    x2 = data.draw(arrays((partner,), x1.shape, elements))
    axis = data.draw(st.integers(-x1.ndim, x1.ndim - 1))
    check("concat", [x1, x2, x1], axis=axis)
    check("concat", [x1, x2[..., :1]], axis=None)
    check("stack", [x1, x2], axis=axis)


@few
@given(st.data())
def test_picking_agrees(data: st.DataObject) -> None:
    x = data.draw(arrays(ALL, shapes(min_dims=1, min_side=1), elements))
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    index = st.integers(-x.shape[axis], x.shape[axis] - 1)
    dtype = data.draw(st.sampled_from(SIGNED))
    check("take", x, np.array(data.draw(st.lists(index, max_size=5)), dtype), axis=axis)
    shape = (*x.shape[:axis], data.draw(st.integers(0, 5)), *(x.shape[axis:][1:]))
    size = math.prod(shape)
    indices = np.array(data.draw(st.lists(index, min_size=size, max_size=size)), "int64").reshape(shape)
    check("take_along_axis", x, indices, axis=axis)
    check("nonzero", x)


@few
@given(arrays(ALL, shapes(min_dims=2), elements), st.integers(-9, 9) | st.just(10**12))
def test_triangles_agree(x: Array, k: int) -> None:
    for name in ("tril", "triu"):
        check(name, x, k=k)
    check("matrix_transpose", x)


@few
@given(st.data())
def test_creation_agrees(data: st.DataObject) -> None:
    dtype, shape = data.draw(st.sampled_from(ALL)), data.draw(shapes())
    for name in ("zeros", "ones"):
        check(name, shape, dtype=dtype)
    fill = data.draw(small(dtype))
    check("full", shape, fill, dtype=dtype)
    x = data.draw(arrays(ALL, shape))
    check("full_like", x, fill, dtype=dtype)
    check("zeros_like", x)
    check("ones_like", x, dtype=dtype)
    check(
        "eye", data.draw(st.integers(0, 4)), data.draw(st.integers(0, 4)), k=data.draw(st.integers(-5, 5)), dtype=dtype
    )
    assert xp.empty(shape).dtype == xp.float32 and tuple(xp.empty_like(xp.asarray(x)).shape) == shape


@few
@given(st.data())
def test_ranges_agree(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(NUMERIC))
    whole = st.integers(0, 100) if dtype in UNSIGNED else st.integers(-100, 100)
    start, stop = data.draw(whole), data.draw(whole)
    num, endpoint = data.draw(st.integers(0, 9)), data.draw(st.booleans())
    if dtype in REAL:
        check(
            "arange",
            start,
            stop,
            data.draw(st.sampled_from([1, 3, 10] + ([-2] if dtype in SIGNED else []))),
            dtype=dtype,
        )
    if dtype in FLOATS:
        check("arange", start / 4, stop / 3, 0.3, dtype=dtype)
    check("linspace", start, stop, num, dtype=dtype, endpoint=endpoint, tolerance=1e-6)


def test_ranges_reach_the_ends_of_their_types() -> None:
    check("arange", 2**64 - 3, 2**64 - 1, dtype="uint64")
    check("arange", -(2**63), -(2**63) + 3, dtype="int64")
    check("linspace", 0, 127, 3, dtype="int8")
    assert xp.arange(3).dtype == xp.int64 and xp.arange(3.0).dtype == xp.float32


@pytest.mark.parametrize(
    ("obj", "dtype"),
    [
        (True, "bool"),
        (3, "int64"),
        (1.5, "float32"),
        (1j, "complex64"),
        ([1, 2.5], "float32"),
        ([[1], [2]], "int64"),
        ([], "float32"),
        (np.float64(1.5), "float64"),
        (np.ones(2, "uint16"), "uint16"),
        ([np.float64(1.5)], "float64"),
        (2**63, "uint64"),
    ],
    ids=repr,
)
def test_asarray_chooses_the_type(obj: Any, dtype: str) -> None:  # Any: what asarray takes
    x = xp.asarray(obj)
    assert x.dtype == getattr(xp, dtype)
    np.testing.assert_array_equal(as_numpy(x), np.asarray(obj))


def test_asarray_stacks_tensors_in_lists_and_copies_numpy() -> None:
    first = np.arange(64, dtype="float32")
    x = xp.asarray(first)
    first[0] = 7.0
    assert float(x[0]) == 0.0
    assert as_numpy(xp.asarray([[x[1], 5.0], [2, x[3]]])).tolist() == [[1.0, 5.0], [2.0, 3.0]]
    assert xp.asarray([x[1], x[2]], dtype=xp.int8).dtype == xp.int8
    assert xp.asarray(x, copy=False) is x
    assert as_numpy(xp.from_dlpack(np.arange(3))).tolist() == [0, 1, 2]


@pytest.mark.parametrize("name", ["bool", *NUMERIC])
def test_facts_about_types_agree(name: str) -> None:
    dtype = getattr(xp, name)
    for other in ALL:
        theirs = getattr(strict, name), getattr(strict, other)
        ours = dtype, getattr(xp, other)
        assert xp.can_cast(*ours) == strict.can_cast(*theirs)
        assert xp.isdtype(*ours) == strict.isdtype(*theirs)
    kinds = ("bool", "signed integer", "unsigned integer", "integral", "real floating", "complex floating", "numeric")
    for kind in kinds:
        assert xp.isdtype(dtype, (kind, "bool")) == strict.isdtype(getattr(strict, name), (kind, "bool"))
        listed = xp.__array_namespace_info__().dtypes(kind=kind)
        assert (name in listed) == strict.isdtype(getattr(strict, name), kind)
    if name in INTEGER:
        facts, expected = xp.iinfo(dtype), np.iinfo(name)
        assert (facts.bits, facts.min, facts.max, facts.dtype) == (expected.bits, expected.min, expected.max, dtype)
    if name in FLOATS + COMPLEX:
        numbers, limits = xp.finfo(dtype), np.finfo(name)
        assert (numbers.eps, numbers.max, numbers.smallest_normal) == (limits.eps, limits.max, limits.smallest_normal)


@few
@given(arrays(ALL, None, small), st.sampled_from(ALL))
def test_astype_agrees(x: Array, dtype: str) -> None:
    if x.dtype.kind == "c" and dtype not in (*COMPLEX, "bool"):
        with pytest.raises(TypeError, match="does not become"):
            xp.astype(xp.asarray(x), getattr(xp, dtype))
        return
    if x.dtype.kind == "f" and dtype in UNSIGNED:
        x = np.abs(x)
    ours = as_numpy(xp.astype(xp.asarray(x), getattr(xp, dtype)))
    assert_same(ours, x.astype(dtype))
    assert as_numpy(xp.astype(xp.asarray([math.nan, 0.0]), xp.bool)).tolist() == [True, False]


@few
@given(arrays(FLOATS, (3,), elements), st.sampled_from([None, -1.5, 1, 2.5]), st.sampled_from([None, 2, 3.0, math.inf]))
def test_clip_agrees(x: Array, low: float | None, high: float | None) -> None:
    if low is None or high is None or low <= high:
        check("clip", x, low, high)
    check("clip", x, np.asarray(-1.0, x.dtype), np.full(3, 2.0, x.dtype))
    whole = np.array([-128, -3, 0, 5, 127], "int8")
    assert as_numpy(xp.clip(xp.asarray(whole), -1000, 4)).tolist() == [-128, -3, 0, 4, 4]


@few
@given(st.data())
def test_products_agree(data: st.DataObject) -> None:
    dtype = data.draw(st.sampled_from(NUMERIC))
    rows, inner, columns = (data.draw(st.integers(0, 3)) for _ in range(3))
    stack = data.draw(shapes(0, 2))
    x1 = data.draw(arrays((dtype,), (*stack, rows, inner)))
    x2 = data.draw(arrays((dtype,), (*stack[1:], inner, columns)))
    vector = data.draw(arrays((dtype,), (inner,)))
    check("matmul", x1, x2)
    check("matmul", vector, x2)
    check("matmul", x1, vector)
    check("matmul", vector, vector)
    check("vecdot", x1, vector)
    check("vecdot", np.swapaxes(x1, -1, -2), vector[:, None], axis=-2)
    check("tensordot", x1, x2, axes=([-1], [-2]))
    check("tensordot", x1, x1, axes=data.draw(st.just(0)))
    check("tensordot", x1, x1, axes=(list(range(x1.ndim)), list(range(x1.ndim))))


@few
@given(st.data())
def test_vector_norms_agree(data: st.DataObject) -> None:
    x = data.draw(arrays(FLOATS + COMPLEX, shapes(min_side=1)))
    axis = data.draw(axes(x.ndim))
    assume(axis != ())
    for order in (2, 1, 0, math.inf, -math.inf, 3.5):
        check("linalg.vector_norm", x, axis=axis, keepdims=data.draw(st.booleans()), ord=order, tolerance=1e-4)


@few
@given(st.data())
def test_fourier_transforms_agree(data: st.DataObject) -> None:
    x = data.draw(arrays(FLOATS, shapes(min_dims=1, min_side=2)))
    z = x + 1j * x[::-1]
    axis = data.draw(st.integers(-x.ndim, x.ndim - 1))
    keywords: dict[str, Any] = {"norm": data.draw(st.sampled_from(["backward", "ortho", "forward"])), "tolerance": 1e-4}
    n = data.draw(st.none() | st.integers(1, 7))
    for name in ("fft", "ifft"):
        for each in (x, z):
            check(f"fft.{name}", each.astype(z.dtype), n=n, axis=axis, **keywords)
    assert_same(as_numpy(xp.fft.fft(xp.asarray(x))), as_numpy(xp.fft.fft(xp.asarray(x.astype(z.dtype)))))
