"""How exceptions are pickled: by class, arguments, attributes and cause, without calling their constructor again.

Python calls the class with `error.args`, which fails where a constructor takes other arguments than it passes on, and
leaves out slots and `__cause__`. A class with a `__reduce__` of its own is pickled by that.
"""

import copyreg
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any

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
