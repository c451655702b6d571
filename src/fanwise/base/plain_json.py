"""JSON for programs. NaN and infinities, which JSON does not have, are written as null."""

import json
import math
from collections.abc import Mapping
from typing import Any


def json_text(value: object) -> str:
    """Return indented JSON in ASCII, without control characters for a terminal."""
    return json.dumps(_finite(value), indent=2, allow_nan=False)


def json_bytes(value: object) -> bytes:
    """Return compact JSON."""
    return json.dumps(_finite(value), separators=(",", ":"), allow_nan=False).encode()


def attributes(value: object, *names: str) -> dict[str, Any]:
    """Return the named attributes of an object, as the fields of a JSON object."""
    return {name: getattr(value, name) for name in names}


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value
