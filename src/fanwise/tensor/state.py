"""`State`: a cell that holds an array and can be written to, also on engines whose arrays cannot.

torch, NumPy   the cell owns a tensor and writes into its memory
TensorFlow     the cell is a tf.Variable, also inside tf.function
JAX            the cell gets a new array; memory is reused only inside jit, where arguments are donated
"""

from typing import Any, NoReturn

from .adapters import How, writers
from .engines import engine_of
from .indexing import check_value

_Array = Any


class State:
    """A cell that holds a copy of the array x.

    `s[i] = v` and `s[:] = v` write; `+=`, `-=`, `*=`, `/=` work on `s` and on `s[i]`. Values are converted to
    the cell's dtype, as in `at`. `s.value` and `s[i]` read. On torch and NumPy they are the memory of the cell and
    change with it, so copy them to keep them. A cell is not an array: pass `s.value` to functions.

    No gradient flows into a cell or through it; `at` has gradients. A copied, pickled or sent cell is independent of
    the original. Not for several threads at once.

    Args:
        x: an array of any engine.
        copy: False lets torch and NumPy write into x itself, which saves memory; do not use x any more.

    Raises:
        TypeError: x is not an array, or, when writing, as `at`.
        ValueError, IndexError: when writing, as `at`.

    >>> import numpy
    >>> s = State(numpy.zeros(3))
    >>> s[1:] = 2.0
    >>> s += 1.0
    >>> s.value
    array([1., 3., 3.])
    """

    __slots__ = ("_variable", "_writer", "engine")

    NO_ARRAY = "a State is a cell, not an array: pass s.value"  # part of the message of `engine_of`
    __array_ufunc__ = None  # NumPy's operators refuse it

    def __init__(self, x: _Array, copy: bool = True) -> None:
        self.engine = engine_of(x)
        self._writer = writers[self.engine]
        self._variable = self._writer.new_variable(x, copy)

    @property
    def value(self) -> _Array:
        """The array that the cell holds, of its engine."""
        return self._writer.value_of(self._variable)

    def __getitem__(self, index: Any) -> _Array:
        return self._writer.read(self._variable, index)

    def __setitem__(self, index: Any, value: Any) -> None:
        self._write(index, value, "set")

    def __iadd__(self, value: Any) -> "State":
        return self._write(..., value, "add")

    def __isub__(self, value: Any) -> "State":
        return self._write(..., value, "subtract")

    def __imul__(self, value: Any) -> "State":
        return self._write(..., value, "multiply")

    def __itruediv__(self, value: Any) -> "State":
        return self._write(..., value, "divide")

    # Python would return True, and NumPy an array of one object.
    def __bool__(self) -> NoReturn:
        raise TypeError(self.NO_ARRAY)

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        raise TypeError(self.NO_ARRAY)

    def _write(self, index: Any, value: Any, how: How) -> "State":
        value = value.value if type(value) is State else value
        check_value(self._variable, value, how)
        self._variable = self._writer.assign(self._variable, index, value, how)
        return self

    def __reduce__(self) -> tuple[type["State"], tuple[_Array]]:
        return State, (self.value,)

    def __repr__(self) -> str:
        return f"State({self.value!r})"
