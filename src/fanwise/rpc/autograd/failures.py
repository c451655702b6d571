"""Why a backward pass failed, in a form that travels to the worker that called `backward`, and is raised there.

The error comes back in its own type and, because that is what programs written for torch catch, always as a
RuntimeError too; its text says on which worker it was raised: "Error on Node 2: ...".
"""

from collections.abc import Callable
from typing import Any, NamedTuple, cast

from ...base.errors import FanwiseError
from ...links.codec import load_error, pack_error, unpack_error


class Failure(NamedTuple):
    """What was raised on worker `worker`."""

    worker: int
    packed: bytes

    @staticmethod
    def of(worker: int, error: BaseException) -> "Failure":
        """For an error that was raised on `worker`, where this is called."""
        return Failure(worker, pack_error(error))

    def error(self, load: Callable[[bytes], Any] | None = load_error) -> BaseException:
        """What `backward` raises. `load`: as in `unpack_error`."""
        original = unpack_error(self.packed, load)
        if isinstance(original, FanwiseError) and isinstance(original, RuntimeError):
            return original  # a lost worker: the text says which, and it is not the fault of worker `self.worker`
        raised = _renamed(original, f"Error on Node {self.worker}: {original}")
        for note in getattr(original, "__notes__", ()):
            raised.add_note(note)
        return raised


def _renamed(original: BaseException, text: str) -> BaseException:
    """An error with this text that is caught by whoever catches the original, or RuntimeError."""
    kind = type(original)
    if kind in (Exception, RuntimeError):
        return RuntimeError(text)
    bases = (kind,) if issubclass(kind, RuntimeError) else (kind, RuntimeError)
    # The user's class may take any arguments and have any text: ours goes around both.
    members = {
        "__init__": lambda self, *_args: None,
        "__str__": lambda self: text,
        "__module__": kind.__module__,
        "__qualname__": kind.__qualname__,
    }
    try:
        named = type(kind.__name__, bases, members)
        raised = cast(BaseException, named.__new__(named, text))
        raised.__dict__.update(original.__dict__)
        raised.__dict__.pop("__notes__", None)
    except Exception:
        return RuntimeError(f"{text} ({kind.__name__})")
    raised.__cause__ = original
    return raised
