"""What is compiled, how often, and what happens when it cannot be.

    leaves --which is fixed?--> (numbers, strings) choose the version; arrays, and the words of keys, go into it
                                 a new version: traced by the engine, at most MAX_VERSIONS a function

A `Compiler` belongs to one function that a user got from us, and holds all that was compiled for it: when the
function goes, so does this. Knows leaves and no trees; each engine's file knows its engine.
"""

import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..adapters import CompilingDifferentiator, Run
from ..random.keys import Key, key_of_words
from ..trees import Leaf

MAX_VERSIONS = 64


@dataclass(slots=True)
class Compiler:
    """The compiled versions of one function, over all shapes of its arguments.

    Args:
        name: of the function, for messages.
    """

    name: str
    max_versions: int = MAX_VERSIONS
    num_versions: int = 0

    def runner(self, engine: CompilingDifferentiator, leaves: Sequence[Leaf], run: Run) -> Run:
        """`run`, compiled for leaves of these types."""
        keys = [place for place, leaf in enumerate(leaves) if type(leaf) is Key]
        moving = [place for place, leaf in enumerate(leaves) if type(leaf) is Key or engine.is_traced(leaf)]
        fixed = [place for place in range(len(leaves)) if place not in set(moving)]
        versions: dict[object, Run] = {}

        def version_for(leaves: list[Leaf]) -> Run | None:
            key = tuple([_value(leaves[place]) for place in fixed]) if fixed else None
            try:
                version = versions.get(key)
            except TypeError:
                raise self._no_hash(leaves, fixed) from None
            if version is None and self._has_room():
                filled_in = _filled_in(run, leaves, moving, keys) if fixed or keys else run
                version = versions[key] = engine.compiled(filled_in)
            return version

        def call(leaves: list[Leaf]) -> tuple[Any, Any]:  # Any: as in Run
            version = version_for(leaves)
            if version is None:
                return run(leaves)
            if keys:
                leaves = list(leaves)
                for place in keys:
                    leaves[place] = engine.words_of_key(leaves[place])
            try:
                return version([leaves[place] for place in moving] if fixed else leaves)
            except Exception as error:
                if engine.is_not_concrete(error):
                    error.add_note(
                        f"{self.name} needs the value of an array in Python (if, while, float), so it cannot be "
                        f"compiled. Without jit it is run as it is."
                    )
                raise

        return call

    def _has_room(self) -> bool:
        if self.num_versions < self.max_versions:
            self.num_versions += 1
            return True
        if self.num_versions == self.max_versions:
            self.num_versions += 1  # say it once
            warnings.warn(
                f"{self.name} has been compiled for {self.max_versions} different shapes of trees, numbers and strings "
                f"in its arguments; what is new from now on is run without compiling, which is slow. Pass numbers "
                f"that change as arrays, fanwise.tensor.asarray(step), or leave jit out.",
                RuntimeWarning,
                stacklevel=_level_of_caller(),
            )
        return False

    def _no_hash(self, leaves: Sequence[Leaf], fixed: Sequence[int]) -> TypeError:
        kind = next(type(leaves[place]) for place in fixed if not _has_hash(leaves[place]))
        return TypeError(
            f"{self.name} is compiled for each value of its arguments that are no arrays, and "
            f"a {kind.__qualname__} has no hash. Pass a tuple or a frozen dataclass, or leave jit=True out."
        )


def _level_of_caller() -> int:
    """How far up the code that called us is, for a warning from our caller."""
    package, frame, level = str(__package__), sys._getframe(1), 1
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(package):
        frame, level = frame.f_back, level + 1
    return level


def _value(leaf: Leaf) -> object:
    # 0.0 == -0.0 and nan != nan: their text tells them apart, and finds them again.
    return repr(leaf) if isinstance(leaf, (float, complex)) else leaf


def _has_hash(leaf: Leaf) -> bool:
    try:
        hash(leaf)
    except TypeError:
        return False
    return True


def _filled_in(run: Run, leaves: Sequence[Leaf], moving: Sequence[int], keys: Sequence[int]) -> Run:
    """`run` as a function of the moving leaves alone; instead of keys it takes arrays of their words."""
    others = list(leaves)
    for place in moving:
        others[place] = None  # do not keep the arrays of the first call

    def of_arrays(arrays: list[Leaf]) -> tuple[Any, Any]:  # Any: as in Run
        whole = list(others)
        for place, array in zip(moving, arrays, strict=True):
            whole[place] = array
        for place in keys:
            whole[place] = key_of_words(whole[place])
        return run(whole)

    return of_arrays
