"""Output for programs: JSON that any reader takes. What has no JSON form - NaN, infinities - is null."""

import json
import math
from collections.abc import Mapping


def json_text(value: object) -> str:
    """The value as indented JSON, ASCII only, so that nothing of it drives a terminal."""
    return json.dumps(_finite(value), indent=2, allow_nan=False)


def json_bytes(value: object) -> bytes:
    """The same without spaces, for a page that asks again and again."""
    return json.dumps(_finite(value), separators=(",", ":"), allow_nan=False).encode()


def _finite(value: object) -> object:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(key): _finite(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(inner) for inner in value]
    return value
