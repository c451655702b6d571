"""What `fanwise.tensor.<name>` means for a name of the standard: the module's `__getattr__` asks here.

    function            -> made once, and kept by the module under its name
    linalg, fft         -> the same
    float32, bool ...   -> the current engine's dtype; asked anew each time, as __array_namespace_info__ is
    pi, inf, newaxis    -> numbers

A name that is none of these raises AttributeError before anything is loaded.
"""

from typing import Any

from ..engines import current_engine
from .dispatch import dispatcher, extension
from .spaces import part_of
from .standard import CONSTANTS, DTYPES, EXTRA_DTYPES, PARTS

_DTYPES = {*DTYPES, *EXTRA_DTYPES}
_EXTENSIONS = {part for part in PARTS if part}
NAMES = frozenset({*PARTS[""], *_EXTENSIONS, *_DTYPES, *CONSTANTS})


def attribute(name: str, kept: dict[str, Any]) -> Any:  # Any: functions, numbers and dtypes of engines
    """What the name means; kept in `kept`, the module's own dict, where it means the same for ever.

    Raises:
        AttributeError: the name is none of the standard.
    """
    if name in _DTYPES or name == "__array_namespace_info__":
        return getattr(part_of(current_engine(), ""), name)
    if name not in NAMES:
        raise AttributeError(f"module 'fanwise.tensor' has no attribute {name!r}{_hint(name, kept)}")
    if name in CONSTANTS:
        return CONSTANTS[name]
    kept[name] = extension(name) if name in _EXTENSIONS else dispatcher(name)
    return kept[name]


def _hint(name: str, kept: dict[str, Any]) -> str:  # Any: as above
    if name.startswith("_"):
        return ""
    from ...base.nearest import nearest
    from .other_names import OTHER_NAMES

    public = (other for other, value in kept.items() if other[0] != "_" and callable(value))
    near = OTHER_NAMES.get(name) or nearest(name, sorted({*NAMES, *public}))
    return f"; did you mean {near!r}?" if near else ""
