"""Compiled versions of a function. Arrays, keys and, on JAX, floats are arguments; each other value has a version."""

import warnings
from collections.abc import Sequence
from typing import Any, cast

from ..adapters import CompilingDifferentiator, Run
from ..random.drawing import words_array
from ..random.keys import Key, key_of_words
from ..trees import Leaf
from .calls import Arguments, load

WARN_AT_VERSIONS = 64
_ARRAY, _KEY = object(), object()


class Compiler:
    """Runs one function compiled. Its versions live as long as the compiler.

    Args:
        name: name of the function, for messages.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.versions: dict[object, Run] = {}

    def __call__(self, arguments: Arguments, leaves: Sequence[Leaf], run: Run) -> tuple[Any, Any]:
        """Return run(leaves). `run` must not hold the leaves, and must be the same for equal arguments.

        Raises:
            TypeError: an argument to build in cannot be hashed.
        """
        engine = cast(CompilingDifferentiator, load(arguments.engine))
        marks = [
            _KEY if type(leaf) is Key else _ARRAY if engine.is_traced(leaf) else (type(leaf), _hashable(leaf))
            for leaf in leaves
        ]
        key = (arguments, *marks)
        try:
            version = self.versions.get(key)
        except TypeError as error:
            error.add_note(f"{self.name} is compiled for each value of its arguments that are not arrays.")
            raise
        if version is None:
            version = self.versions[key] = engine.compiled(_of_arrays(run, marks, leaves))
            if len(self.versions) == WARN_AT_VERSIONS:
                warnings.warn(
                    f"{self.name} has been compiled for {WARN_AT_VERSIONS} different values of its "
                    f"arguments. Pass numbers that change as arrays, fanwise.tensor.asarray(step), or leave jit out.",
                    RuntimeWarning,
                    stacklevel=4,
                )
        arrays = [
            leaf if mark is _ARRAY else words_array(leaf, arguments.engine)
            for leaf, mark in zip(leaves, marks, strict=True)
            if mark is _ARRAY or mark is _KEY
        ]
        return version(arrays)


def _hashable(leaf: Leaf) -> object:
    # Their texts tell 0.0 from -0.0, and find nan again.
    return repr(leaf) if isinstance(leaf, (float, complex)) else leaf


def _of_arrays(run: Run, marks: Sequence[object], leaves: Sequence[Leaf]) -> Run:
    """Return `run` as a function of the arrays and the words of the keys only."""
    constants = [None if mark is _ARRAY or mark is _KEY else leaf for mark, leaf in zip(marks, leaves, strict=True)]

    def of_arrays(arrays: list[Leaf]) -> tuple[Any, Any]:
        remaining = iter(arrays)
        return run(
            [
                next(remaining) if mark is _ARRAY else key_of_words(next(remaining)) if mark is _KEY else constant
                for mark, constant in zip(marks, constants, strict=True)
            ]
        )

    return of_arrays
