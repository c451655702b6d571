"""The table of differences in docs/guides/tensor.md agrees with the engines. This test computes the table.

`FANWISE_WRITE_DIFFERENCES=1 pytest tests/docs/test_differences.py` writes it anew. Every function of one or two arrays
and every reduction is called with every kind of type, mixed kinds and Python numbers, and there are some calls besides
where engines are known to part. Calls that all engines refuse are left out.
"""

import os
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fanwise.tensor as ft
from fanwise.tensor.namespaces.namespace import FUNCTIONS, of_two_arrays

pytestmark = pytest.mark.usefixtures("jax_is_loaded")

ENGINES = ("numpy", "torch", "jax")
GUIDE = Path(__file__).resolve().parents[2] / "docs" / "guides" / "tensor.md"
BEGIN, END = "<!-- made by tests/docs/test_differences.py -->\n", "<!-- end of what it makes -->\n"

Array = Any  # Any: of whatever engine
Calls = dict[tuple[str, str], Callable[[], Any]]  # by what it is called with, and the name of the function

KINDS: dict[str, Callable[[], Array]] = {
    "bool": lambda: ft.asarray([True, False]),
    "int": lambda: ft.asarray([3, -2]),
    "uint8": lambda: ft.asarray([3, 2], dtype=ft.uint8),
    "float32": lambda: ft.asarray([1.5, -2.0]),
    "complex64": lambda: ft.asarray([1.0 + 2.0j, 0.5]),
}
PAIRS = [*((kind, kind) for kind in KINDS), ("int", "float32"), ("uint8", "int"), ("bool", "int")]
# A Python number beside an array: one of its kind, one of the next kind, one that it does not hold.
NUMBERS = [("int", 2), ("float32", 2.5), ("bool", 2), ("int", 2.5), ("float32", 1j), ("uint8", 300)]
OF_ONE = [name for name, text in FUNCTIONS.items() if text == "(x: _A, /)"]
REDUCTIONS = [name for name, text in FUNCTIONS.items() if re.match(r"\(\s*x: _A, /, \*", text) and "axis" in text]
OF_TWO = of_two_arrays()


def called(name: str, *arguments: Any) -> Callable[[], Any]:
    """A call of a function of ft, whose arguments are made by the current engine, by their kinds, or are as given."""
    return lambda: getattr(ft, name)(*(KINDS[each]() if isinstance(each, str) else each for each in arguments))


def matrix() -> Calls:
    calls: Calls = {(kind, name): called(name, kind) for name in (*OF_ONE, *REDUCTIONS) for kind in KINDS}
    calls |= {(f"{one}, {other}", name): called(name, one, other) for name in OF_TWO for one, other in PAIRS}
    return calls | {
        (f"{kind}, {number}", name): called(name, kind, number) for name in OF_TWO for kind, number in NUMBERS
    }


def read_before_a_write() -> Array:
    s = ft.State(ft.asarray([1.0, 2.0]))
    r = s[0:2]
    s[0] = 7.0
    return r


def others() -> Calls:
    """Calls that stand for themselves: the first part is empty."""
    ints, bytes_ = KINDS["int"], KINDS["uint8"]
    calls: dict[str, Callable[[], Any]] = {
        "asarray([-1], dtype=uint8)": lambda: ft.asarray([-1], dtype=ft.uint8),
        "full(2, -1, dtype=uint8)": lambda: ft.full((2,), -1, dtype=ft.uint8),
        "full_like(uint8, 300)": lambda: ft.full_like(bytes_(), 300),
        "where(bool, uint8, 300)": lambda: ft.where(KINDS["bool"](), bytes_(), 300),
        "clip(uint8, -1, 300)": lambda: ft.clip(bytes_(), -1, 300),
        "take(x, [5]) of 2 elements": lambda: ft.take(ints(), ft.asarray([5])),
        "take_along_axis(x, [5]) of 2 elements": lambda: ft.take_along_axis(ints(), ft.asarray([5])),
        "sum of no elements": lambda: ft.sum(ft.zeros(0)),
        "max of no elements": lambda: ft.max(ft.zeros(0)),
        "mean of no elements": lambda: ft.mean(ft.zeros(0)),
        "sum(x, axis=3)": lambda: ft.sum(ints(), axis=3),
        "reshape(x, (3,)) of 2 elements": lambda: ft.reshape(ints(), (3,)),
        "concat([int, float32])": lambda: ft.concat([ints(), KINDS["float32"]()]),
        "stack of shapes (2,) and (3,)": lambda: ft.stack([ft.zeros(2), ft.zeros(3)]),
        "floor_divide(int, 0)": lambda: ft.floor_divide(ints(), 0),
        "remainder(int, 0)": lambda: ft.remainder(ints(), 0),
        "divide(float32, 0.0)": lambda: ft.divide(KINDS["float32"](), 0.0),
        "bitwise_left_shift(int, 70)": lambda: ft.bitwise_left_shift(ints(), 70),
        "equal of shapes (2,) and (3,)": lambda: ft.equal(ft.zeros(2), ft.zeros(3)),
        "`x == y` of shapes (2,) and (3,)": lambda: ft.zeros(2) == ft.zeros(3),
        "matmul(matrix, vector)": lambda: ft.matmul(ft.ones((2, 2)), ft.ones(2)),
        "`matrix @ vector`": lambda: ft.ones((2, 2)) @ ft.ones(2),
        "`int / int`": lambda: ints() / ints(),
        "`int + float32`": lambda: ints() + KINDS["float32"](),
        "`int + 2.5`": lambda: ints() + 2.5,
        "`x[5]` of 2 elements": lambda: ints()[5],
        "`float([3.5])`": lambda: float(ft.asarray([3.5])),
        "`r = s[0:2]; s[0] = 7` (State): r": read_before_a_write,
        "`at(x)[5].get()` of 2 elements": lambda: ft.at(ints())[5].get(),
    }
    return {("", name): call for name, call in calls.items()}


ERRORS = (IndexError, OverflowError, ZeroDivisionError, TypeError, ValueError, NotImplementedError, RuntimeError)


def outcome(call: Callable[[], Any]) -> tuple[str, str]:
    """The dtype and the values, of several arrays those of the first; or the kind of error, and nothing."""
    try:
        found = call()
        if isinstance(found, (tuple, list)):
            found = found[0]
        if not hasattr(found, "dtype"):
            return type(found).__name__, str(found)
        values = np.asarray(ft.to_numpy(found))
    except Exception as error:
        return next((kind.__name__ for kind in ERRORS if isinstance(error, kind)), type(error).__name__), ""
    dtype = str(found.dtype).removeprefix("torch.").removeprefix("<dtype: '").removesuffix("'>")
    if ft.engine_of(found) == "jax":  # set to 32 bits
        dtype = dtype.replace("int32", "int64")
    rounded = np.round(values.astype(complex if values.dtype.kind == "c" else float), 2) + 0  # no -0
    return dtype, str(rounded.tolist())


def cells(found: list[tuple[str, str]]) -> tuple[str, ...] | None:
    """Return the cells of a row, or None if all engines agree or none has a result."""
    results = [each for each in found if each[1]]
    if not results or len(set(found)) == 1:
        return None
    if len({values for _, values in results}) == 1 or len({dtype for dtype, _ in results}) > 1:
        return tuple(dtype for dtype, _ in found)  # the types, or the errors, tell the difference
    return tuple(f"{dtype} {values}".strip() for dtype, values in found)


def table() -> str:
    calls = {**matrix(), **others()}
    found: dict[tuple[str, str], list[tuple[str, str]]] = {which: [] for which in calls}
    for engine in ENGINES:
        with ft.use(engine), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # numpy's, of infinities
            for which, call in calls.items():
                found[which].append(outcome(call))
    names: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (arguments, name), outcomes in found.items():
        if (row := cells(outcomes)) is not None:
            names.setdefault((arguments, row), []).append(name)
    together: dict[tuple[str, tuple[str, ...]], list[str]] = {}
    for (arguments, row), alike in names.items():
        together.setdefault((", ".join(alike), row), []).append(f"({arguments})" if arguments else "")
    lines = [f"| call | {' | '.join(ENGINES)} |", "|---|---|---|---|"]
    for (alike_names, row), arguments_of in together.items():
        call_text = f"{alike_names} {' '.join(arguments_of)}".strip()
        lines.append(f"| {call_text} | {' | '.join(row)} |")
    return "\n".join(lines) + "\n"


def test_the_guide_has_the_table_of_what_the_engines_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # torch.func sets it else
    made, page = table(), GUIDE.read_text()
    before, rest = page.split(BEGIN)
    printed, after = rest.split(END)
    if os.environ.get("FANWISE_WRITE_DIFFERENCES"):
        GUIDE.write_text(f"{before}{BEGIN}{made}{END}{after}")
    else:
        assert printed == made, "the engines do otherwise now; FANWISE_WRITE_DIFFERENCES=1 writes the table anew"
