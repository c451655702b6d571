"""Every public function of fanwise.tensor is right or raises, on every engine: values and derivatives.

The calls are in tests/support/tensor_calls.py. Values are compared with array_api_strict or NumPy, derivatives with
finite differences of these. Where a function has no derivative, the gradient must lie between the derivatives from
the left and from the right. Every difference between engines at a special point is a row of the table in
docs/guides/tensor.md; results that are not right have a reason in `tensor_calls.REASONS`. The table is written with
FANWISE_WRITE_DIFFERENCES=1. `make test` covers NumPy and torch, `make soak` all.
"""

import contextlib
import dataclasses
import functools
import math
import os
import random
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from finite_differences import (
    Bounds,
    first_derivatives,
    flat,
    is_variable,
    lookup,
    mapped,
    parts,
    reference,
    second_derivatives,
    variables,
    weights,
)
from tensor_calls import ELSEWHERE, REASONS, SAMPLES, Call, Dtype, special_calls

import fanwise.tensor as ft

pytestmark = pytest.mark.usefixtures("jax_is_loaded", "tensorflow_is_loaded")

Array = Any  # Any: arrays of all engines
ENGINES = ("numpy", "torch", "jax", "tensorflow")
# `make test` has all calls on these engines, and on JAX and TensorFlow those of functions that need the most care: JAX
# compiles for minutes. `make soak` has all.
QUICK_ENGINES = ("numpy", "torch")
SLOW_ENGINES = ("jax", "tensorflow")
QUICK_DERIVATIVES = "abs clip cumulative_prod hypot pow prod std".split()
QUICK_VALUES = "asarray floor_divide linalg.vector_norm remainder sign sort take".split()
MODES = ("value", "gradient", "second derivative")
CALLS = special_calls()
NAMES = frozenset(dir(ft.namespace("numpy")))


# -- arguments and results ---------------------------------------------------------------------------------------------


def to_engine(x: Any, engine: str) -> Any:
    if isinstance(x, Dtype):
        return getattr(ft, x)
    if x.dtype == np.float64:
        x = x.astype(np.float32)
    if engine == "jax":
        x = x.astype({"int64": "int32", "uint64": "uint32"}.get(str(x.dtype), x.dtype))
    return ft.convert(x, engine, copy=True) if engine != "numpy" else x.copy()


def function_of(name: str, call: Call) -> Callable[..., Any]:
    if call.function is not None:
        return functools.partial(call.function, ft)
    return lookup(ft, name)  # type: ignore[no-any-return]


# -- what an engine does -----------------------------------------------------------------------------------------------

Outcome = list[Any] | str  # NumPy arrays, or the name of the error


def attempt(compute: Callable[[], Sequence[Array]]) -> Outcome:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return [np.asarray(ft.to_numpy(x)) if hasattr(x, "dtype") else np.asarray(x) for x in compute()]
        except Exception as error:
            kinds = (
                IndexError,
                OverflowError,
                ZeroDivisionError,
                TypeError,
                ValueError,
                NotImplementedError,
                RuntimeError,
            )
            return next((kind.__name__ for kind in kinds if isinstance(error, kind)), type(error).__name__)


def outcomes(name: str, call: Call, engine: str, outputs: Sequence[Any]) -> dict[str, Outcome]:
    """What the engine returns in each mode; outputs are those of the reference, split into real and imaginary parts."""
    with ft.use(engine):
        convert = functools.partial(to_engine, engine=engine)
        arguments, keywords = mapped(call.arguments, convert), mapped(call.keywords, convert)
        results = {"value": attempt(lambda: flat(function_of(name, call)(*arguments, **keywords)))}
        inputs = variables(call)
        if engine == "numpy" or not call.order or not inputs or not outputs or isinstance(results["value"], str):
            return results
        xs = [convert(x) for x in inputs]
        cotangents = [convert(w) for w in weights(outputs, 0.0)]
        tangents = [convert(t) for t in weights(inputs, 0.4)]
        modes = derivatives(name, call, engine)
        if engine == "jax":  # compiled as one function: JAX compiles every operation by itself otherwise
            with contextlib.suppress(Exception):
                arrays = compiled(name, call)(xs, cotangents, tangents)
                return results | {mode: attempt(lambda mode=mode: arrays[mode]) for mode in arrays}  # type: ignore[misc]
        return results | {mode: attempt(lambda f=f: f(xs, cotangents, tangents)) for mode, f in modes.items()}  # type: ignore[misc]


Derivative = Callable[[list[Array], list[Array], list[Array]], Sequence[Array]]


def derivatives(name: str, call: Call, engine: str) -> dict[str, Derivative]:
    """The derivatives by the variables, for given cotangents and tangents."""
    function = function_of(name, call)
    convert = functools.partial(to_engine, engine=engine)
    tree = mapped([call.arguments, call.keywords], lambda x: x if is_variable(x) else convert(x))

    def differentiated(*values: Array) -> tuple[Array, ...]:
        remaining = iter(values)
        arguments, keywords = mapped(tree, lambda x: next(remaining) if is_variable(x) else x)
        results = []
        for result in flat(function(*arguments, **keywords)):
            if not hasattr(result, "dtype"):
                continue
            if ft.isdtype(result.dtype, "complex floating"):
                results += [ft.real(result), ft.imag(result)]
            else:
                results.append(result if ft.isdtype(result.dtype, "real floating") else ft.astype(result, ft.float32))
        return tuple(results)

    def second(xs: list[Array], cotangents: list[Array], tangents: list[Array]) -> Sequence[Array]:
        def directional(*values: Array) -> Array:
            gradients = ft.vjp(differentiated, *values)[1](tuple(cotangents))
            products = [ft.sum(ft.multiply(g, t)) for g, t in zip(gradients, tangents, strict=True)]
            return functools.reduce(ft.add, products)

        return ft.grad(directional, argnums=tuple(range(len(xs))))(*xs)  # type: ignore[no-any-return]

    modes: dict[str, Derivative] = {
        "gradient": lambda xs, cotangents, _: ft.vjp(differentiated, *xs)[1](tuple(cotangents))
    }
    return modes | ({"second derivative": second} if call.order > 1 else {})


_compiled: dict[Any, Callable[..., Any]] = {}


def compiled(name: str, call: Call) -> Callable[..., Any]:
    """All derivatives as one compiled function; the same one for calls that differ in the values of variables only."""
    # Not id(x) for constants: another array may have it later.
    constants = mapped([call.arguments, call.keywords], lambda x: x.shape if is_variable(x) else repr(x))
    key = (name, call.function, call.order, repr(constants))
    if key not in _compiled:
        modes = derivatives(name, call, "jax")
        _compiled[key] = ft.jit(lambda *given: {mode: tuple(f(*given)) for mode, f in modes.items()})
    return _compiled[key]


# -- verdicts ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Row:
    """One place where the engines differ.

    `kind` is "wrong" (an engine returns what is not right), "refused" (an engine raises where others have a result),
    "choice" (all are right, there is no single derivative) or "undefined" (finite differences tell nothing).
    """

    kind: str
    name: str
    situation: str
    mode: str
    cells: tuple[str, ...]
    wrong: tuple[str, ...] = ()

    def __str__(self) -> str:
        cells = ", ".join(f"{engine}: {cell}" for engine, cell in zip(ENGINES, self.cells, strict=True) if cell)
        return f"{self.kind}: {self.mode} of {self.name}, {self.situation}: {cells}; not right: {list(self.wrong)}"


def near(x: Any, least: Any, most: Any, tolerance: float) -> Any:
    """Whether each number lies in its interval; NaN and infinities must be equal."""
    with np.errstate(all="ignore"):
        slack = tolerance * np.maximum(1.0, np.maximum(np.abs(least), np.abs(most)))
        inside = (x >= least - slack) & (x <= most + slack) & np.isfinite(x)
        same = (x == least) | (np.isnan(x) & np.isnan(least))
    return inside | same


def shown(arrays: Sequence[Any]) -> str:
    """One number, or the kind of numbers that arrays have."""
    values = np.concatenate([np.zeros(0), *(np.asarray(x, dtype=np.float64).ravel() for x in arrays)])
    if values.size == 1:
        return f"{values[0] + 0.0 if values[0] else values[0]:.3g}"
    if not values.size:
        return "no elements"
    if np.isnan(values).any():
        return "NaN"
    return "infinite" if np.isinf(values).any() else "0" if not values.any() else "numbers"


def checked(name: str, call: Call, engines: Sequence[str]) -> Iterator[Row]:
    """The rows of the table of differences that one call adds."""
    inputs = variables(call)
    try:
        expected: Outcome = reference(name, call, [x.astype(np.float32) for x in inputs])
    except Exception as error:
        if call.reference is None and not isinstance(error, np.linalg.LinAlgError):
            raise  # the table has a call that the standard does not have
        expected = type(error).__name__
    outputs = [] if isinstance(expected, str) else parts(expected)
    outcome_by_engine = {engine: outcomes(name, call, engine, outputs) for engine in engines}
    if isinstance(expected, str):
        values = {engine: result["value"] for engine, result in outcome_by_engine.items()}
        wrong = tuple(engine for engine, value in values.items() if not isinstance(value, str))
        if wrong:
            yield Row("wrong", name, call.situation, "value", cells_of(values), wrong)
        return
    bounds = {"value": Bounds(outputs, outputs)}
    if inputs and outputs and call.order:
        doubles = parts(reference(name, call, inputs))
        bounds["gradient"] = first_derivatives(name, call, inputs, doubles)
        if call.order > 1:
            bounds["second derivative"] = second_derivatives(name, call, inputs, doubles, bounds["gradient"])
    for mode in MODES:
        results = {engine: outcome_by_engine[engine][mode] for engine in engines if mode in outcome_by_engine[engine]}
        if results:
            yield from compared(name, call, mode, results, bounds[mode])


def cells_of(results: dict[str, Outcome]) -> tuple[str, ...]:
    texts = {engine: result if isinstance(result, str) else shown(parts(result)) for engine, result in results.items()}
    return tuple(texts.get(engine, "") for engine in ENGINES)


def compared(name: str, call: Call, mode: str, results: dict[str, Outcome], bounds: Bounds) -> Iterator[Row]:
    """The rows of one mode: of each element for functions that work by element, else of the whole result."""
    raising = tuple(engine for engine, result in results.items() if isinstance(result, str))
    if raising:
        yield Row("refused", name, call.situation, mode, cells_of(results), raising)
    arrays = {engine: parts(result) for engine, result in results.items() if not isinstance(result, str)}
    forms = {engine: form(x, mode) for engine, x in arrays.items()}
    misshapen = tuple(engine for engine in arrays if forms[engine] != form(bounds.least, mode))
    if misshapen:
        forms |= {engine: result for engine, result in results.items() if isinstance(result, str)}
        shapes = tuple(forms.get(engine, "") for engine in ENGINES)
        yield Row("wrong", name, call.situation, f"{mode}, shape or type", shapes, misshapen)
        return
    tolerance = 1e-4 if mode == "value" else 5e-3
    rows: list[Row] = []
    for n in range(len(bounds.least)):
        least, most = (np.asarray(bound[n], dtype=np.float64) for bound in (bounds.least, bounds.most))
        numbers = {engine: np.asarray(x[n], dtype=np.float64) for engine, x in arrays.items()}
        known = np.ones(least.shape, bool) if mode == "value" else np.isfinite(least) & (np.abs(least) < 1e30)
        bad = {engine: known & ~near(x, least, most, tolerance) for engine, x in numbers.items()}
        if (
            mode == "value"
            and call.elementwise
            and name not in SIGN_OF_ZERO_IS_OPEN
            and bounds.least[n].dtype.kind == "f"
        ):
            for engine, x in numbers.items():
                bad[engine] |= (x == 0) & (least == 0) & (np.signbit(x) != np.signbit(least))
        one = next(iter(numbers.values()), least)
        parted = [~near(x, one, one, 2 * tolerance) for x in numbers.values()]
        differs = functools.reduce(np.logical_or, [*parted, *bad.values()], np.zeros(least.shape, bool))
        for place in np.argwhere(differs):
            at = tuple(place)
            wrong = tuple(engine for engine in numbers if bad[engine][at])
            kind = "wrong" if wrong else "choice" if known[at] else "undefined"
            weight = weights(bounds.least, 0.0)[n][at] if mode == "gradient" else 1.0
            texts = {e: shown([x[at] / weight] if call.elementwise else arrays[e]) for e, x in numbers.items()}
            texts |= {engine: result for engine, result in results.items() if isinstance(result, str)}
            cells = tuple(texts.get(engine, "") for engine in ENGINES)
            rows.append(Row(kind, name, situation_of(call, mode, n, at), mode, cells, wrong))
    if call.elementwise:
        yield from rows
    elif rows:
        worst = min(rows, key=lambda row: ("wrong", "choice", "undefined").index(row.kind))
        wrong = tuple(engine for engine in arrays if any(engine in row.wrong for row in rows))
        yield dataclasses.replace(worst, wrong=wrong)


# The standard leaves the sign of a zero open where both arguments are zeros.
SIGN_OF_ZERO_IS_OPEN = {"clip", "maximum", "minimum"}


def form(arrays: Sequence[Any], mode: str) -> str:
    """Shapes, and for values the kinds of types."""
    kinds = {"b": "bool", "i": "int", "u": "int", "f": "float", "c": "complex"}
    return " ".join(f"{kinds[x.dtype.kind] if mode == 'value' else ''}{x.shape}" for x in map(np.asarray, arrays))


def situation_of(call: Call, mode: str, n: int, place: tuple[int, ...]) -> str:
    if not call.elementwise:
        return call.situation
    numbers = [x[place] if isinstance(x, np.ndarray) else x for x in (*call.arguments, *call.keywords.values())]
    by = f" by argument {n + 1}" if mode in ("gradient", "second derivative") and len(variables(call)) > 1 else ""
    return f"({', '.join(f'{x:g}' for x in numbers)}){by}"


def explained(row: Row) -> str | None:
    """Why the engines differ; None if no reason is known."""
    for reason in REASONS:
        if (
            re.fullmatch(reason.names, row.name)
            and re.search(reason.situations, row.situation)
            and re.match(reason.modes, row.mode)
        ):
            if set(row.wrong) <= reason.engines:
                return reason.text
    return {"refused": "raises", "choice": "no single derivative", "undefined": "infinite or no derivative"}.get(
        row.kind
    )


@functools.cache
def rows_of(name: str, engines: tuple[str, ...]) -> list[Row]:
    available = [engine for engine in engines if provides(engine, name)]
    return [row for call in CALLS[name] for row in checked(name, call, available)]


def provides(engine: str, name: str) -> bool:
    """Whether the engine has that function; functions beside the standard are there on every engine."""
    space: Any = ft.namespace(engine)
    if name.partition(".")[0] not in NAMES:
        return True
    for part in name.split("."):
        space = getattr(space, part, None)
    return space is not None


# -- the tests ---------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module", autouse=True)
def quick_compilation(jax_is_loaded: None) -> Iterator[None]:
    """JAX compiles in half of the time without optimizations."""
    import jax

    config: Any = jax.config  # without types
    config.update("jax_disable_most_optimizations", True)
    yield
    config.update("jax_disable_most_optimizations", False)
    _compiled.clear()


@pytest.fixture(autouse=True)
def no_cache_folder_of_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """torch.func sets this variable if it is not set."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))


def check_rows(rows: Sequence[Row]) -> None:
    unexplained = [str(row) for row in rows if explained(row) is None]
    assert not unexplained, "\n".join(unexplained[:20])


@pytest.mark.parametrize("name", CALLS)
def test_a_function_is_right_or_raises_at_special_points(name: str) -> None:
    check_rows(rows_of(name, QUICK_ENGINES))


@pytest.mark.parametrize("name", [*QUICK_DERIVATIVES, *QUICK_VALUES])
@pytest.mark.parametrize("engine", SLOW_ENGINES)
def test_jax_and_tensorflow_are_right_or_raise_at_special_points(engine: str, name: str) -> None:
    calls = CALLS[name] if name in QUICK_DERIVATIVES else [dataclasses.replace(call, order=0) for call in CALLS[name]]
    if provides(engine, name):
        check_rows([row for call in calls for row in checked(name, call, (engine,))])


@pytest.mark.soak
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("engine", SLOW_ENGINES)
def test_a_function_is_right_or_raises_at_special_points_on_slow_engines(engine: str, name: str) -> None:
    check_rows(rows_of(name, (engine,)))


# Their results are no arrays, or in an order of their own.
WITHOUT_DERIVATIVES = {
    *("broadcast_shapes", "can_cast", "isdtype", "result_type", "nextafter"),
    *("unique_all", "unique_counts", "unique_inverse", "unique_values"),
}


def sampled(name: str, number: int, types: Sequence[str]) -> Call | None:
    """A call with arguments drawn at random; None if the function has none of these types."""
    chance = random.Random(f"{name} {number}")  # the same every time
    try:
        arguments, keywords = SAMPLES[name](lambda choice: choice(chance), types)
    except IndexError:
        return None
    doubles = lambda x: x.astype(np.float64) if isinstance(x, np.ndarray) and x.dtype == np.float32 else x  # noqa: E731
    return Call(f"sample {number}: {arguments}, {keywords}", mapped(arguments, doubles), mapped(keywords, doubles))


def check_samples(name: str, engines: Sequence[str], number: int) -> None:
    """Samples may be at a point without a derivative; there only the bounds hold, and engines may differ."""
    calls = [call for n in range(number) if (call := sampled(name, n, ("float32",))) is not None]
    check_rows([row for call in calls for row in checked(name, call, engines) if row.kind != "undefined"])


@pytest.mark.parametrize("name", sorted(set(SAMPLES) - WITHOUT_DERIVATIVES))
def test_derivatives_at_samples_are_right(name: str) -> None:
    check_samples(name, QUICK_ENGINES, 4)


@pytest.mark.soak
@pytest.mark.parametrize("name", sorted(set(SAMPLES) - WITHOUT_DERIVATIVES))
def test_derivatives_at_many_samples_are_right_on_all_engines(name: str) -> None:
    for engine in ENGINES:
        if provides(engine, name):
            check_samples(name, (engine,), 30)


def test_every_public_function_has_calls_or_a_test_of_its_own() -> None:
    parts_of_standard = [(f"{part}.", getattr(ft.namespace("numpy"), part)) for part in ("linalg", "fft")]
    functions = {
        name for name in dir(ft) if callable(getattr(ft, name)) and not isinstance(getattr(ft, name), type(ft.float32))
    }
    for prefix, part in parts_of_standard:
        functions |= {prefix + name for name in dir(part) if not name.startswith("_")}
    covered = {name if name.startswith(("linalg.", "fft.")) else name.partition(".")[0] for name in CALLS}
    assert functions - covered - set(ELSEWHERE) == set(), "tests/support/tensor_calls.py has no calls of these"
    assert (covered | set(ELSEWHERE)) - functions == set(), "these are no longer public"
    missing = [file for file in set(ELSEWHERE.values()) if not (Path(__file__).parent / file).is_file()]
    assert not missing


# -- exchange and keys -------------------------------------------------------------------------------------------------

BITS: dict[str, Any] = {
    "float32": np.asarray([0.0, -0.0, 1e-40, math.inf, -math.inf, math.nan, 3.4e38], dtype=np.float32),
    "float16": np.asarray([0.0, -0.0, 6e-8, math.inf, math.nan, 65504.0], dtype=np.float16),
    "complex64": np.asarray([complex(math.nan, -0.0), complex(1e-40, math.inf), 1 - 2j], dtype=np.complex64),
    "int32": np.asarray([0, -1, 2**31 - 1, -(2**31)], dtype=np.int32),
    "uint8": np.asarray([0, 255], dtype=np.uint8),
    "bool": np.asarray([True, False]),
    "no elements": np.ones((2, 0), dtype=np.float32),
    "no axes": np.asarray(-0.0, dtype=np.float32),
    "steps": np.arange(12, dtype=np.float32).reshape(3, 4)[::-1, ::2],
    "broadcast": np.broadcast_to(np.asarray(1e-40, dtype=np.float32), (2, 3)),
}


def same_bits(x: Any, y: Any) -> bool:
    return (
        x.shape == y.shape
        and x.dtype == y.dtype
        and np.ascontiguousarray(x).tobytes() == np.ascontiguousarray(y).tobytes()
    )


@pytest.mark.parametrize("content", BITS)
@pytest.mark.parametrize("engine", ENGINES)
def test_exchange_keeps_every_bit(engine: str, content: str) -> None:
    array = BITS[content]
    x = ft.convert(array, engine)
    assert same_bits(ft.to_numpy(x), array)
    for other in ENGINES:
        assert same_bits(ft.to_numpy(ft.convert(x, other)), array)
        assert same_bits(ft.to_numpy(ft.convert(x, other, copy=True)), array)
    header, buffers = ft.to_wire(x)
    assert same_bits(ft.to_numpy(ft.from_wire(header, buffers)), array)
    assert same_bits(ft.to_numpy(ft.from_numpy(array, engine)), array)
    if array.size == 1:
        assert same_bits(np.asarray(ft.item(x), dtype=array.dtype), array.reshape(()))


@pytest.mark.parametrize("shape", [(), 0, (2, 0), (1,), (3, 5)])
def test_keys_draw_the_same_bits_in_every_shape(shape: Any) -> None:
    draws: dict[str, Callable[[str], Array]] = {
        "normal": lambda engine: ft.normal(ft.Key(3), shape, 1.0, 0.0, engine=engine),
        "uniform": lambda engine: ft.uniform(ft.Key(3), shape, -2.0, 2.0, engine=engine),
        "permutation": lambda engine: ft.astype(
            ft.permutation(ft.Key(3), len(np.shape(shape)) + 1, engine=engine), ft.namespace(engine).int32
        ),
    }
    for name, draw in draws.items():
        arrays = {engine: ft.to_numpy(draw(engine)) for engine in ENGINES}
        assert all(same_bits(x, arrays["numpy"]) for x in arrays.values()), name


# -- the table ---------------------------------------------------------------------------------------------------------

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "design" / "tensor.md"
BEGIN, END = "<!-- begin: written by tests/tensor/test_right_or_error.py -->\n", "<!-- end -->\n"


def table() -> str:
    """Rows with the same reason, mode and cells are one row."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in (row for name in CALLS for row in rows_of(name, QUICK_ENGINES)):
        reason = explained(row) or "unexplained"
        kinds = tuple(
            cell
            if row.kind == "choice" or cell.endswith("Error")
            else re.sub(r"^-?[\d.e+-]+$|^numbers$|^0$", "finite", cell)
            for cell in row.cells[: len(QUICK_ENGINES)]
        )
        groups.setdefault((reason, row.mode, kinds), []).append(row)
    lines = [
        "| functions | where | " + " | ".join(QUICK_ENGINES) + " | why |",
        "|---|---|" + "---|" * len(QUICK_ENGINES) + "---|",
    ]
    for (reason, mode, cells), rows in sorted(groups.items()):
        names = ", ".join(dict.fromkeys(row.name for row in rows))
        places = list(dict.fromkeys(row.situation for row in rows))
        where = "; ".join(places[:2]) + (f"; {len(places) - 2} more" if len(places) > 2 else "")
        lines.append(f"| {names} | {mode}: {where} | {' | '.join(cell or '-' for cell in cells)} | {reason} |")
    return "\n".join(lines) + "\n"


def test_the_guide_has_the_table_of_differences() -> None:
    page = GUIDE.read_text()
    before, rest = page.split(BEGIN)
    printed, after = rest.split(END, 1)
    if os.environ.get("FANWISE_WRITE_DIFFERENCES"):
        GUIDE.write_text(f"{before}{BEGIN}{table()}{END}{after}")
    else:
        assert printed == table(), "the engines differ in another way now; FANWISE_WRITE_DIFFERENCES=1 writes the table"
