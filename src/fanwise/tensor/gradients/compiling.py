"""What is compiled, how often, and what happens when it cannot be.

    leaves --which is fixed?--> (numbers, strings) choose the version; arrays go into it
                                 a new version: traced by the engine, at most MAX_VERSIONS a function

A `Compiler` belongs to one function that a user got from us, and holds all that was compiled for it: when the
function goes, so does this. Once tracing has failed because Python needed the value of an array, that function
is run as it is from then on. Knows leaves and no trees; each engine's file knows its engine.
"""

import sys
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..trees import Leaf
from .calls import GradientEngine, Run

MAX_VERSIONS = 64


@dataclass(slots=True)
class Compiler:
    """The compiled versions of one function, over all shapes of its arguments.

    Args:
        name: of the function, for messages.
        jit: True: a function that cannot be compiled is an error; None: it is run as it is.
    """

    name: str
    jit: bool | None
    max_versions: int = MAX_VERSIONS
    gave_up: bool = False
    num_versions: int = 0

    def runner(self, engine: GradientEngine, leaves: Sequence[Leaf], run: Run) -> Run:
        """`run`, compiled where that can be, for leaves of these types."""
        moving = [place for place, leaf in enumerate(leaves) if engine.is_traced(leaf)]
        fixed = [place for place, leaf in enumerate(leaves) if not engine.is_traced(leaf)]
        versions: dict[object, Run] = {}

        def version_for(leaves: list[Leaf]) -> Run | None:
            key = tuple([_value(leaves[place]) for place in fixed]) if fixed else None
            try:
                version = versions.get(key)
            except TypeError:
                self._check_hashes(leaves, fixed)
                return None
            if version is None and self._has_room():
                version = versions[key] = engine.compiled(_filled_in(run, leaves, moving) if fixed else run)
            return version

        def call(leaves: list[Leaf]) -> tuple[Any, Any]:  # Any: as in Run
            version = None if self.gave_up else version_for(leaves)
            if version is None:
                return run(leaves)
            try:
                return version([leaves[place] for place in moving] if fixed else leaves)
            except Exception as error:
                if not engine.is_not_concrete(error):
                    raise
                if self.jit:
                    error.add_note(
                        f"{self.name} needs the value of an array in Python (if, while, float), so it cannot be "
                        f"compiled. Leave jit=True out, and it is run as it is."
                    )
                    raise
            try:
                result = run(leaves)
            except Exception as error:
                if engine.is_not_concrete(error):
                    error.add_note(
                        f"{self.name} was run as it is, uncompiled, and this value still belongs to the gradient. "
                        f"Where Python needs the number alone, write float(fanwise.tensor.stop_gradient(x))."
                    )
                raise
            self.gave_up = True
            return result

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
                f"that change as arrays, or say jit=False.",
                RuntimeWarning,
                stacklevel=_level_of_caller(),
            )
        return False

    def _check_hashes(self, leaves: Sequence[Leaf], fixed: Sequence[int]) -> None:
        if not self.jit:
            return
        for place in fixed:
            try:
                hash(leaves[place])
            except TypeError:
                raise TypeError(
                    f"{self.name} is compiled for each value of its arguments that are no arrays, and "
                    f"a {type(leaves[place]).__qualname__} has no hash. Pass a tuple or a frozen dataclass, "
                    f"or leave jit=True out."
                ) from None


def _level_of_caller() -> int:
    """How far up the code that called us is, for a warning from our caller."""
    package, frame, level = str(__package__), sys._getframe(1), 1
    while frame.f_back is not None and str(frame.f_globals.get("__name__")).startswith(package):
        frame, level = frame.f_back, level + 1
    return level


def _value(leaf: Leaf) -> object:
    # 0.0 == -0.0 and nan != nan: their text tells them apart, and finds them again.
    return repr(leaf) if isinstance(leaf, (float, complex)) else leaf


def _filled_in(run: Run, leaves: Sequence[Leaf], moving: Sequence[int]) -> Run:
    """`run` as a function of the moving leaves alone."""
    others = list(leaves)
    for place in moving:
        others[place] = None  # do not keep the arrays of the first call

    def of_arrays(arrays: list[Leaf]) -> tuple[Any, Any]:  # Any: as in Run
        whole = list(others)
        for place, array in zip(moving, arrays, strict=True):
            whole[place] = array
        return run(whole)

    return of_arrays
