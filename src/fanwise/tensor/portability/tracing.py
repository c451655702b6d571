"""The lines of a function as they run, with the arrays that its variables hold after each.

Only frames of the file that the function stands in are watched, and of these each array's values are kept, as numpy,
up to a size. A debugger's or a coverage tool's own trace function is put back afterwards.
"""

import linecache
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType, TracebackType
from typing import Any

from ..engines import is_array_type

_KEPT_ELEMENTS_MAX = 100_000
_STEPS_MAX = 10_000


@dataclass(frozen=True, slots=True)
class Step:
    """A line that has run: where, and its frame's arrays after it, by name."""

    place: tuple[str, int]
    arrays: dict[str, Any]  # Any: arrays of an engine, which may have been changed in place: so copies

    @property
    def text(self) -> str:
        """The line, for a message: file, number, and what stands there."""
        return described(*self.place)


def described(file: str, line: int) -> str:
    """A line for a message."""
    return f"{file}:{line} `{linecache.getline(file, line).strip()}`"


class Traced:
    """While it is entered, the lines of f and of functions in the same file are kept in `steps`."""

    def __init__(self, f: Callable[..., Any]) -> None:  # Any: the user's
        code = getattr(getattr(f, "__wrapped__", f), "__code__", None)
        self._file = code.co_filename if code is not None else None
        self.steps: list[Step] = []
        self._before: Any = None  # Any: another trace function

    def __enter__(self) -> "Traced":
        self._before = sys.gettrace()
        if self._file is not None:
            sys.settrace(self._call)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        sys.settrace(self._before)

    def _call(self, frame: FrameType, event: str, arg: object) -> Any:  # Any: a trace function, or None
        if frame.f_code.co_filename != self._file:
            return None
        line = frame.f_lineno

        def local(frame: FrameType, event: str, arg: object) -> Any:  # Any: itself
            nonlocal line
            if len(self.steps) < _STEPS_MAX and event in ("line", "return"):
                if frame.f_lineno != line or event == "return":
                    self.steps.append(Step((frame.f_code.co_filename, line), _arrays_of(frame.f_locals, arg)))
                line = frame.f_lineno
            return local

        return local


def _arrays_of(variables: dict[str, Any], returned: object) -> dict[str, Any]:  # Any: the user's
    kept = {name: copy for name, value in variables.items() if (copy := _copy(value)) is not None}
    copy = _copy(returned)
    return kept if copy is None else {**kept, "return": copy}


def _copy(value: Any) -> Any:  # Any: of any type; a numpy array or None
    from .comparing import plain

    try:
        found = plain(value) if is_array_type(type(value)) else None
    except Exception:  # an array that has no values here, as one that is traced by its engine
        return None
    return None if found is None or found[1].size > _KEPT_ELEMENTS_MAX else found[1]


def line_of(error: BaseException, steps: list[Step]) -> str:
    """The line of the user's file in which an error was raised; the last one that ran, if its traceback has none."""
    files = {step.place[0] for step in steps}
    frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename in files]
    if frames:
        return described(frames[-1].filename, frames[-1].lineno or 0)
    return steps[-1].text if steps else "its call"
