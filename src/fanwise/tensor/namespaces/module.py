"""What `fanwise.tensor.<name>` means for a name of the standard: the module's `__getattr__` asks here.

    function            -> made once, and kept by the module under its name
    linalg, fft         -> the same
    float32, bool ...   -> the current engine's dtype; asked anew each time, as __array_namespace_info__ is
    pi, inf, newaxis    -> numbers

A name that is none of these raises AttributeError before anything is loaded.
"""

from collections.abc import Iterable
from typing import Any

from ..engines import current_engine
from .dispatch import dispatcher, extension
from .spaces import part_of
from .standard import CONSTANTS, DTYPES, EXTRA_DTYPES, PARTS, VERSION

_DTYPES = {*DTYPES, *EXTRA_DTYPES}
_EXTENSIONS = {part for part in PARTS if part}
NAMES = frozenset({*PARTS[""], *_EXTENSIONS, *_DTYPES, *CONSTANTS})


def attribute(name: str, kept: dict[str, Any], others: Iterable[str]) -> Any:  # Any: functions, dtypes of engines
    """What the name means; kept in `kept`, the module's own dict, where it means the same for ever.

    `others`: what the module has beside these names, for whoever mistypes one.

    Raises:
        AttributeError: the name is none of the standard.
    """
    if name in _DTYPES or name == "__array_namespace_info__":
        return getattr(part_of(current_engine(), ""), name)
    if name == "__array_api_version__":
        return VERSION
    if name not in NAMES:
        raise AttributeError(f"module 'fanwise.tensor' has no attribute {name!r}{_hint(name, others)}")
    if name in CONSTANTS:
        return CONSTANTS[name]
    kept[name] = extension(name) if name in _EXTENSIONS else dispatcher(name)
    return kept[name]


def _hint(name: str, others: Iterable[str]) -> str:
    if name.startswith("_"):
        return ""
    from ...base.nearest import nearest

    near = nearest(name, sorted({*NAMES, *others}))
    return f"; did you mean {near!r}?" if near else ""
