"""Unknown names: messages that say the nearest known one.

Options of schedulers, hyperparameters of a space and reported metrics are all names that people misspell. Knows only
text; used by every part of tune that looks a name up.
"""

import difflib
import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Concatenate, ParamSpec, TypeVar

P = ParamSpec("P")
Self = TypeVar("Self")


def nearest(name: object, known: Iterable[str]) -> str | None:
    """The known name that looks most like `name`, or of which `name` is a part; None if there is none.

    >>> nearest("metrics", ["metric", "mode"]), nearest("seed", ["random_seed"]), nearest("x", ["mode"])
    ('metric', 'random_seed', None)
    """
    names, text = list(known), str(name)
    parts = [other for other in names if len(text) > 2 and text in other]
    near = difflib.get_close_matches(text, names, n=1) or parts
    return near[0] if near else None


def did_you_mean(name: object, known: Iterable[str]) -> str:
    """The end of a message about an unknown name: the nearest known one, or all of them.

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


def names_nearest_option(init: Callable[Concatenate[Self, P], None]) -> Callable[Concatenate[Self, P], None]:
    """Decorates an `__init__` so that an unknown keyword is a TypeError which names the nearest known one.

    Without it Python complains first of the required option that is then missing.

    >>> class Scheduler:
    ...     @names_nearest_option
    ...     def __init__(self, *, metric: str) -> None: ...
    >>> Scheduler(metrics="loss")
    Traceback (most recent call last):
    TypeError: Scheduler has no option 'metrics'; did you mean 'metric'?
    """
    known = [name for name in inspect.signature(init).parameters if name != "self"]

    @functools.wraps(init)
    def checked(self: Self, /, *args: P.args, **options: P.kwargs) -> None:
        for name in options:
            if name not in known:
                raise TypeError(f"{type(self).__name__} has no option {name!r}{did_you_mean(name, known)}")
        init(self, *args, **options)

    return checked
