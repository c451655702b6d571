"""Libraries that a file of tests uses, loaded when one of its tests runs, not when the file is collected.

    tf = Late("tensorflow")                            tf.constant(1.0) loads it, if nothing else has
    xp = Late(lambda: namespace("tensorflow"))         the same for whatever loads at its first use

Every process of a run collects every file, and few of them run a test that needs TensorFlow, which takes seconds to
load. Loading may change the environment, so it belongs into a fixture, before the test begins.
"""

import importlib
from collections.abc import Callable
from typing import Any

# While it collects, pytest asks everything that a file has for these.
_ASKED_AT_COLLECTION = frozenset(("_mock_name", "__bases__", "__test__", "__wrapped__"))

# Any throughout: what the thing has.


class Late:
    """A stand-in for a module, or for what a function returns, which is asked for when something of it is.

    >>> Late("math").floor(2.5)
    2
    """

    def __init__(self, thing: str | Callable[[], Any]) -> None:
        self._load = (lambda: importlib.import_module(thing)) if isinstance(thing, str) else thing

    def __getattr__(self, name: str) -> Any:
        if name in _ASKED_AT_COLLECTION:
            raise AttributeError(name)
        return getattr(self._load(), name)

    def __dir__(self) -> list[str]:
        return dir(self._load())
