"""One way to pickle, for links and for calls: pickle 5, with the memory of big buffers beside it.

    dumps             value --> pickle, buffers that share the value's memory: send before changing it
    by_value          a pickler with which what the receiver cannot import travels too (cloudpickle)

What is pickled differently from Python's way is said by reducers: those of copyreg, and those of whoever uses this,
who is asked again when a module has been loaded since, as it may be an engine. Each thread keeps a pickler, for to make
one costs as much as most values need. Nests: what is pickled may pickle.
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

# A buffer smaller than this costs less inside the pickle than beside it.
OUT_OF_BAND_BYTES = 4096

Buffer = bytes | bytearray | memoryview
Reducer = Callable[[Any], Any]  # Any: reducers of any type, as copyreg has them


def _reduce_ordered_dict(value: "OrderedDict[Any, Any]") -> Any:  # Any: as copyreg has it
    """As its own `__reduce__`, which looks for slots each time: a module of torch has a dozen, mostly empty."""
    if value.__dict__:
        return value.__reduce__()
    return (OrderedDict, (), None, None, iter(value.items())) if value else (OrderedDict, ())


class Table(dict[type, Reducer]):
    """Reducers by exact type, and those of all other classes."""

    def __missing__(self, kind: type) -> Reducer:
        if issubclass(kind, BaseException):
            return reduce_error
        if issubclass(kind, type):
            raise KeyError(kind)  # classes are pickled by name
        return class_reducer(kind) or _reduce_as_python_does


# To raise KeyError instead costs twice as much.
_reduce_as_python_does = methodcaller("__reduce_ex__", 5)


class _Kept:
    """A pickler of Python's, and what it fills."""

    __slots__ = ("buffers", "is_busy", "max_buffers", "pickler", "table", "written")

    def __init__(self, table: Table, max_buffers: int) -> None:
        self.buffers: list[memoryview] = []
        self.is_busy = False
        self.max_buffers = max_buffers
        self.table = table
        # A list is quicker than a file: most values are one piece of bytes, which is not copied again.
        self.written: list[Buffer] = []
        file = SimpleNamespace(write=self.written.append)
        self.pickler = pickle.Pickler(file, protocol=5, buffer_callback=self._keep_in_band)
        self.pickler.dispatch_table = table

    def _keep_in_band(self, buffer: pickle.PickleBuffer) -> bool:
        return kept_in_band(buffer, self.buffers, self.max_buffers)


def kept_in_band(buffer: pickle.PickleBuffer, beside: list[memoryview], max_buffers: int) -> bool:
    """Whether a buffer stays in the pickle; else it is added to those beside."""
    view = kept_view(buffer)
    if view.nbytes < OUT_OF_BAND_BYTES or len(beside) == max_buffers:
        return True
    beside.append(view)
    return False


class _Thread(threading.local):
    """What a thread keeps."""

    kept: _Kept | None = None


class Pickler:
    """See the module. Made once; by any thread.

    Args:
        reducers: beside copyreg's; and whether these are all. If not, as a module is being loaded, it is asked again.
        max_buffers: what is more stays in the pickle.
    """

    def __init__(
        self, reducers: Callable[[], tuple[Mapping[type, Reducer], bool]], *, max_buffers: int = sys.maxsize
    ) -> None:
        self._reducers = reducers
        self._max_buffers = max_buffers
        self._table = Table()
        self._made_of = self._modules_seen = -1
        self._by_value: Any = None  # Any: a class of pickler, with this table
        self._thread = _Thread()

    def dumps(self, value: object) -> tuple[bytes, list[memoryview]]:
        """The pickle, and what lies beside it. Raises what pickling raises."""
        if self._made_of != len(copyreg.dispatch_table) or self._modules_seen != len(sys.modules):
            self._look_again()
        kept = self._thread.kept
        if kept is None or kept.is_busy or kept.table is not self._table:
            kept = self._new()
        written, buffers = kept.written, kept.buffers
        kept.is_busy = True
        try:
            kept.pickler.dump(value)
            data = bytes(written[0]) if len(written) == 1 else b"".join(written)
            return data, buffers.copy() if buffers else []
        finally:
            kept.pickler.clear_memo()
            written.clear()
            buffers.clear()
            kept.is_busy = False

    def dumps_by_value(self, value: object) -> tuple[bytes, list[memoryview]]:
        """As `dumps`; classes and functions that the receiver cannot import travel with the value."""
        buffers: list[memoryview] = []
        stream = io.BytesIO()
        self.by_value(
            stream, protocol=5, buffer_callback=lambda buffer: kept_in_band(buffer, buffers, self._max_buffers)
        ).dump(value)
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
    def by_value(self) -> Any:  # Any: a class of pickler
        """cloudpickle's pickler, with these reducers."""
        table = self.table
        if self._by_value is None:
            import cloudpickle

            # A class of its own: it reads its table when it is made, and an attribute set later changes nothing.
            mine = Table({**cloudpickle.Pickler.dispatch_table, **table})
            self._by_value = type("Pickler", (cloudpickle.Pickler,), {"dispatch_table": mine})
        return self._by_value

    @property
    def table(self) -> Table:
        """All reducers, as of now."""
        if self._made_of != len(copyreg.dispatch_table) or self._modules_seen != len(sys.modules):
            self._look_again()
        return self._table

    def forget(self) -> None:
        """The reducers are others now."""
        self._made_of = -1

    def _look_again(self) -> None:
        made_of, seen = len(copyreg.dispatch_table), len(sys.modules)
        reducers, are_all = self._reducers()
        table = Table({OrderedDict: _reduce_ordered_dict, **copyreg.dispatch_table, **reducers})
        if table != self._table:
            self._table, self._by_value = table, None
        self._made_of, self._modules_seen = (made_of, seen) if are_all else (-1, -1)

    def _new(self) -> _Kept:
        kept, before = _Kept(self._table, self._max_buffers), self._thread.kept
        if before is None or not before.is_busy:
            self._thread.kept = kept
        return kept


# -- exceptions --------------------------------------------------------------------------------------------------------

_HEAP_TYPE = 1 << 9  # Py_TPFLAGS_HEAPTYPE
Parts = tuple[type[BaseException], tuple[Any, ...], dict[str, Any], BaseException | None]  # Any: the error's own


def reduce_error(error: BaseException) -> Any:  # Any: as copyreg has it
    """For every class of exceptions."""
    kind, base = type(error), _builtin_base(type(error))
    has_own_way = kind.__reduce__ is not base.__reduce__ or kind.__reduce_ex__ is not base.__reduce_ex__
    has_constructor = kind.__init__ is not base.__init__ or kind.__new__ is not base.__new__
    if has_own_way or not (has_constructor or error.__cause__ is not None or copyreg._slotnames(kind)):  # type: ignore[attr-defined]  # no stub
        return error.__reduce_ex__(5)
    return rebuild_error, parts_of_error(error)


def parts_of_error(error: BaseException) -> Parts:
    """What `rebuild_error` takes, whatever the class says about pickling."""
    kind = type(error)
    reduced: Any = _builtin_base(kind).__reduce__(error)  # Any: (class, arguments) or (class, arguments, attributes)
    attributes = dict(reduced[2] or {}) if len(reduced) > 2 else {}
    for slot in copyreg._slotnames(kind):  # type: ignore[attr-defined]  # no stub
        if hasattr(error, slot):
            attributes[slot] = getattr(error, slot)
    return kind, reduced[1], attributes, error.__cause__


def rebuild_error(
    kind: type[BaseException],
    args: tuple[object, ...],
    attributes: dict[str, Any],  # Any: the error's own
    cause: BaseException | None = None,
) -> BaseException:
    """The error again. Runs the constructor of the built-in class that it derives from, and none of Python."""
    base = _builtin_base(kind)
    error: BaseException = base.__new__(kind, *args)
    base.__init__(error, *args)
    for name, value in attributes.items():
        place = getattr(kind, name, None)
        if isinstance(place, MemberDescriptorType | GetSetDescriptorType):
            place.__set__(error, value)
        else:
            error.__dict__[name] = value
    if cause is not None:
        object.__setattr__(error, "__cause__", cause)  # its class may be a frozen dataclass
    return error


def _builtin_base(kind: type[BaseException]) -> type[BaseException]:
    """The nearest class that is not made by a class statement: it holds what is not an attribute."""
    return next(base for base in kind.__mro__ if not base.__flags__ & _HEAP_TYPE)
