"""`State`: a cell that holds an array and can be written to, whether or not the engine's arrays can.

    torch, numpy   the cell owns a tensor and writes into its memory
    tensorflow     the cell is a tf.Variable, also inside tf.function
    jax            the cell is given a new array; memory is reused only inside jit, where arguments are donated

The cell stays the same object. Shape, dtype, engine and device stay too: what is written is converted, as in `at`,
whose rules hold here as well. A cell is data: gradients neither flow into it nor through it; where they shall,
use `at`. Not for several threads at once.
"""

from typing import Any, NoReturn

from .adapters import How, writers
from .engines import engine_of
from .indexing.places import check_value

_Array = Any  # An array of whichever engine; they have no type in common.


class State:
    """A cell that holds a copy of the array x.

    `s[i] = v` writes, `s[:] = v` writes everywhere; `+=`, `-=`, `*=`, `/=` work on `s` and on `s[i]`. Reading
    `s.value` or `s[i]` gives what the cell holds now. Where `in_place` is true and arrays can be written to (torch,
    numpy), that is the cell's own memory: it changes with the cell, so copy it to keep it. A cell is no array:
    functions and operators take `s.value`, and say so.

    A cell is data: gradients neither flow into it nor through it; for that there is `at`. A copied, pickled or sent
    cell is one of its own, with the same numbers.

    Args:
        x: an array of any engine.
        copy: False lets torch and numpy write into x itself, which saves the memory; do not use x any more.

    Raises:
        TypeError: x is no array, or, when writing, as `at`.
        ValueError, IndexError: when writing, as `at`.

    >>> import numpy
    >>> s = State(numpy.zeros(3))
    >>> s[1:] = 2.0
    >>> s += 1.0
    >>> s.value
    array([1., 3., 3.])
    """

    __slots__ = ("_variable", "_writer", "engine")

    NO_ARRAY = "a State is a cell, not an array: give what it holds, s.value"  # what `engine_of` says to do
    __array_ufunc__ = None  # numpy's operators leave State to what stands below

    def __init__(self, x: _Array, copy: bool = True) -> None:
        self.engine = engine_of(x)
        self._writer = writers[self.engine]
        self._variable = self._writer.new_variable(x, copy)

    @property
    def value(self) -> _Array:
        """The array that the cell holds now, of its engine."""
        return self._writer.value_of(self._variable)

    @property
    def in_place(self) -> bool:
        """Whether writing keeps the memory: on torch, numpy and TensorFlow; JAX makes a new array each time."""
        return self.engine != "jax"

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape, which never changes."""
        return tuple(self._variable.shape)

    @property
    def dtype(self) -> Any:  # Any: a dtype of the engine
        """The engine's dtype of the array, which never changes."""
        return self._variable.dtype

    def __getitem__(self, index: Any) -> _Array:  # Any, here and below: an index or a value, as `at` takes them
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

    def _is_no_array(self, _: Any, /) -> Any:
        raise TypeError(
            f"State has no arithmetic but `+= -= *= /=`, which write into it; {self.NO_ARRAY}, as in s.value + 1"
        )

    def _is_no_number(self) -> NoReturn:
        raise TypeError(self.NO_ARRAY)

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = _is_no_array
    __pow__ = __rpow__ = __matmul__ = __rmatmul__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _is_no_array
    __lt__ = __le__ = __gt__ = __ge__ = _is_no_array
    __neg__ = __abs__ = __float__ = __int__ = __bool__ = _is_no_number

    def __array__(self, *_: Any, **__: Any) -> NoReturn:
        self._is_no_number()

    def _write(self, index: Any, value: Any, how: How) -> "State":
        if type(value) is State:
            value = value.value
        check_value(self._variable, value, how)
        self._variable = self._writer.assign(self._variable, index, value, how)
        return self

    def __reduce__(self) -> tuple[type["State"], tuple[_Array]]:
        return State, (self.value,)

    def __repr__(self) -> str:
        return f"State({self.value!r})"
