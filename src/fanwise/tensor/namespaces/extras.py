"""Functions beside the standard, from array-api-extra, under the same dispatch: one_hot, pad, cov, nanmax ...

They are written in functions of the standard, so each computes by the namespace of its arrays' engine, and in its
default dtypes. `array_api_extra` documents them; its argument `xp` is filled in here. It knows no TensorFlow: what it
cannot do there is in `plain_extras.py`.
"""

import inspect
from collections.abc import Callable
from typing import Any

from .dispatch import engine_of_all
from .plain_extras import PLAIN
from .spaces import part_of

# Where the arrays stand among the positional arguments.
_ARRAYS = {
    **dict.fromkeys(("angle", "argpartition", "atleast_nd", "cov", "create_diagonal", "deg2rad", "nan_to_num"), (0,)),
    **dict.fromkeys(("nanmax", "nanmean", "nanmin", "nansum", "nunique", "one_hot", "pad", "partition"), (0,)),
    **dict.fromkeys(("rad2deg", "sinc", "unravel_index"), (0,)),
    **dict.fromkeys(("isclose", "kron", "setdiff1d", "union1d"), (0, 1)),
}
EXTRAS = frozenset(_ARRAYS)


def extra(name: str) -> Callable[..., Any]:  # Any, here and below: arrays of any engine
    """The function of that name of array-api-extra, going to the engine of its arrays."""
    import array_api_extra

    raw = getattr(array_api_extra, name)
    places = _ARRAYS[name]

    def function(*arguments: Any, **keywords: Any) -> Any:
        engine = engine_of_all([arguments[place] for place in places if place < len(arguments)], name)
        if engine == "tensorflow" and name in PLAIN:
            return PLAIN[name](part_of(engine, ""), *arguments, **keywords)
        if name == "cov":
            return _covariance(raw, engine, arguments, keywords)
        return raw(*arguments, xp=part_of(engine, ""), **keywords)

    signature = inspect.signature(raw)
    kept = [each for each in signature.parameters.values() if each.name != "xp"]
    function.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]
    function.__module__ = "fanwise.tensor"
    function.__name__ = function.__qualname__ = name
    function.__doc__ = raw.__doc__
    return function


# Written in the standard's functions cov computes in float64; the engines' own keep to the dtype, but for numpy's.
def _covariance(raw: Callable[..., Any], engine: str, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
    space = part_of(engine, "")
    found = raw(*arguments, xp=space if engine == "tensorflow" else None, **keywords)
    dtype = arguments[0].dtype
    return space.astype(found, dtype, copy=False) if space.isdtype(dtype, "real floating") else found
