"""Messages about unknown names, with the closest known name."""

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
R = TypeVar("R")
Self = TypeVar("Self")

_LEAST_PART = 3  # shorter names are contained in too many others


def nearest(name: object, known: Iterable[str]) -> str | None:
    """Return the known name that is most similar to `name`, contains it or is contained in it, or None.

    >>> nearest("metrics", ["metric", "mode"]), nearest("seed", ["random_seed"]), nearest("x", ["mode"])
    ('metric', 'random_seed', None)
    >>> nearest("random_seed", ["cpus", "seed"])
    'seed'
    """
    names, text = list(known), str(name)
    whole = [candidate for candidate in names if len(text) >= _LEAST_PART and text in candidate]
    parts = [candidate for candidate in names if len(candidate) >= _LEAST_PART and candidate in text]
    near = difflib.get_close_matches(text, names, n=1) or whole or sorted(parts, key=len, reverse=True)
    return near[0] if near else None


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """Return the end of a message about an unknown name: the closest known name, or all names.

    >>> did_you_mean("metrics", ["metric", "mode"])
    "; did you mean 'metric'?"
    >>> did_you_mean("x", ["metric", "mode"])
    "; known: 'metric', 'mode'"
    """
    names = list(known)
    near = nearest(name, names)
    if near is not None:
        return f"; did you mean {near!r}?"
    return f"; known: {', '.join(map(repr, names)) or 'none'}"


def must_be_one_of(name: str, got: object, known: Iterable[str], *, also: str = "") -> str:
    """Return a message about a name that is not in `known`. `also`: a further entry of the list, such as a pattern.

    >>> must_be_one_of("mode", "mim", ["min", "max"])
    "mode must be one of min, max, got 'mim'; did you mean 'min'?"
    """
    names = list(known)
    near = nearest(got, names)
    hint = f"; did you mean {near!r}?" if near is not None else ""
    return f"{name} must be one of {', '.join([*names, also] if also else names)}, got {got!r}{hint}"


def names_nearest_option(method: Callable[Concatenate[Self, P], R]) -> Callable[Concatenate[Self, P], R]:
    """Decorate a method: an unknown keyword raises a TypeError that suggests the closest one.

    Python itself would first complain about the missing required option.

    >>> class Scheduler:
    ...     @names_nearest_option
    ...     def __init__(self, *, metric: str) -> None: ...
    ...     @names_nearest_option
    ...     def draw(self, *, width: int = 80) -> None: ...
    >>> Scheduler(metrics="loss")
    Traceback (most recent call last):
    TypeError: Scheduler has no option 'metrics'; did you mean 'metric'?
    >>> Scheduler(metric="loss").draw(widht=3)
    Traceback (most recent call last):
    TypeError: Scheduler.draw has no option 'widht'; did you mean 'width'?
    """
    known = [name for name in inspect.signature(method).parameters if name != "self"]
    suffix = "" if method.__name__ == "__init__" else f".{method.__name__}"

    @functools.wraps(method)
    def checked(self: Self, /, *args: P.args, **options: P.kwargs) -> R:
        for name in options:
            if name not in known:  # a subclass may pass on other options
                names = known if suffix else [*inspect.signature(type(self)).parameters]
                raise TypeError(f"{type(self).__name__}{suffix} has no option {name!r}{did_you_mean(name, names)}")
        return method(self, *args, **options)

    return checked
