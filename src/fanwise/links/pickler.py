"""Pickling for links and remote calls: pickle 5, with large buffers beside the pickle.

    dumps       value --> pickle, and buffers that share the value's memory: send them before it changes
    by_value    class of cloudpickle picklers, for functions and classes that the receiver cannot import

Reducers are those of copyreg, those of the caller, and `reduce_error` for exceptions. The caller's reducers are
requested again when modules were loaded since, because one may be an engine. Each thread reuses one pickler, because
creating one costs as much as pickling most values. Pickling may nest.
"""

import copyreg
import io
import pickle
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from operator import methodcaller
from types import GetSetDescriptorType, MemberDescriptorType, SimpleNamespace
from typing import Any

from ..tensor.wire import class_reducer, kept_view

# A smaller buffer costs less inside the pickle.
OUT_OF_BAND_BYTES = 4096

Buffer = bytes | bytearray | memoryview
Reducer = Callable[[Any], Any]


def _reduce_ordered_dict(value: "OrderedDict[Any, Any]") -> Any:
    """As its own `__reduce__`, which looks for slots each time: a torch module has a dozen, mostly empty."""
    if value.__dict__:
        return value.__reduce__()
    return (OrderedDict, (), None, None, iter(value.items())) if value else (OrderedDict, ())


class Table(dict[type, Reducer]):
    """Reducers by exact type, and the default for all other classes."""

    def __missing__(self, kind: type) -> Reducer:
        if issubclass(kind, BaseException):
            return reduce_error
        if issubclass(kind, type):
            raise KeyError(kind)  # classes are pickled by name
        return class_reducer(kind) or _reduce_as_python_does


# Raising KeyError instead takes twice as long.
_reduce_as_python_does = methodcaller("__reduce_ex__", 5)


class _ThreadPickler:
    """A reusable pickler, its output and its out-of-band buffers."""

    __slots__ = ("buffers", "is_busy", "pickler", "table", "written")

    def __init__(self, table: Table, max_buffers: int) -> None:
        self.buffers: list[memoryview] = []
        self.is_busy = False
        self.table = table
        # Faster than a file: most pickles are written in one piece, which is not copied again.
        self.written: list[Buffer] = []
        file = SimpleNamespace(write=self.written.append)
        self.pickler = pickle.Pickler(file, protocol=5, buffer_callback=_collector(self.buffers, max_buffers))
        self.pickler.dispatch_table = table


def _collector(buffers: list[memoryview], max_buffers: int) -> Callable[[pickle.PickleBuffer], bool]:
    """Return a `buffer_callback` that appends large buffers to `buffers`, and keeps the others in the pickle."""

    def stays_in_band(buffer: pickle.PickleBuffer) -> bool:
        view = kept_view(buffer)
        if view.nbytes < OUT_OF_BAND_BYTES or len(buffers) == max_buffers:
            return True
        buffers.append(view)
        return False

    return stays_in_band


class _Thread(threading.local):
    pickler: _ThreadPickler | None = None


class Pickler:
    """See the module. Thread-safe.

    Args:
        reducers: returns reducers, and whether they are complete. If not, because a module is being loaded, it is
            called again.
        max_buffers: further buffers stay in the pickle.
    """

    def __init__(
        self, reducers: Callable[[], tuple[Mapping[type, Reducer], bool]], *, max_buffers: int = sys.maxsize
    ) -> None:
        self._reducers = reducers
        self._max_buffers = max_buffers
        self._table = Table()
        self._num_copyreg = self._num_modules = -1  # when the table was made
        self._by_value: Any = None
        self._thread = _Thread()

    def dumps(self, value: object) -> tuple[bytes, list[memoryview]]:
        """Return the pickle and its out-of-band buffers. Raises the errors of pickling."""
        if self._num_copyreg != len(copyreg.dispatch_table) or self._num_modules != len(sys.modules):
            self._update_table()
        own = self._thread.pickler
        if own is None or own.is_busy or own.table is not self._table:
            own = self._new_thread_pickler()
        written, buffers = own.written, own.buffers
        own.is_busy = True
        try:
            own.pickler.dump(value)
            data = bytes(written[0]) if len(written) == 1 else b"".join(written)
            return data, buffers.copy() if buffers else []
        finally:
            own.pickler.clear_memo()
            written.clear()
            buffers.clear()
            own.is_busy = False

    def dumps_by_value(self, value: object) -> tuple[bytes, list[memoryview]]:
        """As `dumps`; classes and functions that the receiver cannot import travel with the value."""
        buffers: list[memoryview] = []
        stream = io.BytesIO()
        self.by_value(stream, protocol=5, buffer_callback=_collector(buffers, self._max_buffers)).dump(value)
        return stream.getvalue(), buffers

    def dumps_in_band(self, value: object, *, by_value: bool) -> bytes:
        """As `dumps` or `dumps_by_value`, with everything in the pickle."""
        stream = io.BytesIO()
        if by_value:
            self.by_value(stream, protocol=5).dump(value)
        else:
            pickler = pickle.Pickler(stream, protocol=5)
            pickler.dispatch_table = self.table
            pickler.dump(value)
        return stream.getvalue()

    @property
    def by_value(self) -> Any:
        """The class of cloudpickle's pickler, with these reducers."""
        table = self.table
        if self._by_value is None:
            import cloudpickle

            # A new class, because the table is read when the class is made.
            table = Table({**cloudpickle.Pickler.dispatch_table, **table})
            self._by_value = type("Pickler", (cloudpickle.Pickler,), {"dispatch_table": table})
        return self._by_value

    @property
    def table(self) -> Table:
        """The current reducers."""
        if self._num_copyreg != len(copyreg.dispatch_table) or self._num_modules != len(sys.modules):
            self._update_table()
        return self._table

    def forget(self) -> None:
        """Request the reducers again: they have changed."""
        self._num_copyreg = -1

    def _update_table(self) -> None:
        num_copyreg, num_modules = len(copyreg.dispatch_table), len(sys.modules)
        reducers, are_complete = self._reducers()
        table = Table({OrderedDict: _reduce_ordered_dict, **copyreg.dispatch_table, **reducers})
        if table != self._table:
            self._table, self._by_value = table, None
        self._num_copyreg, self._num_modules = (num_copyreg, num_modules) if are_complete else (-1, -1)

    def _new_thread_pickler(self) -> _ThreadPickler:
        new, previous = _ThreadPickler(self._table, self._max_buffers), self._thread.pickler
        if previous is None or not previous.is_busy:
            self._thread.pickler = new
        return new


# -- exceptions --------------------------------------------------------------------------------------------------------

_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE
Parts = tuple[type[BaseException], tuple[Any, ...], dict[str, Any], BaseException | None]


def reduce_error(error: BaseException) -> Any:
    """Reduce an exception to its class, arguments, attributes and cause, unless the class has its own `__reduce__`.

    Python's way calls the class with `error.args`, which fails if the constructor takes other arguments than it passes
    on, and omits slots and `__cause__`.
    """
    kind, base = type(error), _builtin_base(type(error))
    has_own_reduce = kind.__reduce__ is not base.__reduce__ or kind.__reduce_ex__ is not base.__reduce_ex__
    has_constructor = kind.__init__ is not base.__init__ or kind.__new__ is not base.__new__
    if has_own_reduce or not (has_constructor or error.__cause__ is not None or copyreg._slotnames(kind)):  # type: ignore[attr-defined]  # no stub
        return error.__reduce_ex__(5)
    return rebuild_error, parts_of_error(error)


def parts_of_error(error: BaseException) -> Parts:
    """Return the arguments of `rebuild_error`, even if the class has its own `__reduce__`."""
    kind = type(error)
    reduced: Any = _builtin_base(kind).__reduce__(error)  # (class, arguments) or (class, arguments, attributes)
    attributes = dict(reduced[2] or {}) if len(reduced) > 2 else {}
    for slot in copyreg._slotnames(kind):  # type: ignore[attr-defined]  # no stub
        if hasattr(error, slot):
            attributes[slot] = getattr(error, slot)
    return kind, reduced[1], attributes, error.__cause__


def rebuild_error(
    kind: type[BaseException],
    args: tuple[object, ...],
    attributes: dict[str, Any],
    cause: BaseException | None = None,
) -> BaseException:
    """Create the error without calling constructors that are written in Python."""
    base = _builtin_base(kind)
    error: BaseException = base.__new__(kind, *args)
    base.__init__(error, *args)
    for name, value in attributes.items():
        descriptor = getattr(kind, name, None)
        if isinstance(descriptor, MemberDescriptorType | GetSetDescriptorType):
            descriptor.__set__(error, value)
        else:
            error.__dict__[name] = value
    if cause is not None:
        object.__setattr__(error, "__cause__", cause)  # the class may be a frozen dataclass
    return error


def _builtin_base(kind: type[BaseException]) -> type[BaseException]:
    """Return the nearest base class that is not defined in Python: it holds the data that is not in attributes."""
    return next(base for base in kind.__mro__ if not base.__flags__ & _HEAP_TYPE)
