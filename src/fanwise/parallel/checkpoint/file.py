"""Checkpoint files, which are replaced as a whole and can be read with `torch.load`.

torch.load(path)["model"]               state_dict of the model; "model2" for a second run.step
                ["optimizer"]           state_dict of the optimizer; "optimizer2" for a second run.step
                ["step"]                counts of the step, and gradients that wait for step.update
                ["kept"][name]          state_dict of an object of run.keep
                ["run"]                 settings, and position in the data
                ["rows"]                reported values
                ["random"]              random state of torch on the CPU
                ["random_of_device"]    random state of torch on the GPU

A `Writer` serializes a checkpoint at once and writes the bytes in a background thread. The thread is not a daemon, so a
process that ends normally completes its last checkpoint. If the process is killed, the file is either the old one or
the new one.
"""

import io
import logging
import os
import pickle
import threading
import traceback
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

import torch
from torch import Tensor

from .location import Location, StrPath, download, location_of, upload

FORMAT = 1

_log = logging.getLogger(__name__)
_writers: "weakref.WeakSet[Writer]" = weakref.WeakSet()  # of this process


def serialize(content: Mapping[str, Any]) -> memoryview:
    """Return the bytes of a checkpoint. Blocks until tensors of other devices are in main memory."""
    buffer = io.BytesIO()
    torch.save({"format": FORMAT, **_in_main_memory(dict(content))}, buffer)
    return buffer.getbuffer()


def _in_main_memory(value: Any) -> Any:
    """Copy tensors of other devices in nested containers, so that a machine without such a device can load them."""
    if isinstance(value, Tensor):
        tensor = value.detach().cpu()
        is_view = tensor.layout is torch.strided and tensor.untyped_storage().nbytes() > tensor.nbytes
        return tensor.clone() if is_view else tensor  # torch.save would write the whole storage of a view
    if type(value) in (dict, OrderedDict):
        copied = type(value)((name, _in_main_memory(member)) for name, member in value.items())
        if type(value) is OrderedDict:
            vars(copied).update(vars(value))  # the state_dict of a module has version numbers in `_metadata`
        return copied
    if type(value) in (list, tuple):
        return type(value)(map(_in_main_memory, value))
    return value


def write_checkpoint(location: Location, data: memoryview) -> None:
    """Write a serialized checkpoint. Blocks until the bytes have replaced the file, or the object at the URL."""
    if not isinstance(location, Path):
        upload(data, location)
        return
    location.parent.mkdir(parents=True, exist_ok=True)
    unfinished = location.with_name(f".{location.name}.unfinished")  # always one name, so kills leave at most one file
    try:
        with unfinished.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(location)
    finally:
        unfinished.unlink(missing_ok=True)
    folder = os.open(location.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read_checkpoint(path: StrPath, weights_only: bool) -> dict[str, Any]:
    """Return the content of a checkpoint. Blocks while a `Writer` of this process writes one."""
    for writer in list(_writers):
        writer.join()
    location = location_of(path)
    try:
        with location.open("rb") if isinstance(location, Path) else io.BytesIO(download(location)) as file:
            content = torch.load(file, map_location="cpu", weights_only=weights_only)
    except FileNotFoundError:
        raise
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise ValueError(_explain(path, error)) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT or "run" not in content:
        raise ValueError(f"{path} was not written by run.save, or was written by an incompatible version of fanwise")
    del content["format"]
    return content


def _explain(path: StrPath, error: Exception) -> str:
    first_line = str(error).partition("\n")[0]
    if "weights_only" in str(error) or "Weights only" in str(error):
        return (
            f"{path} contains more than tensors and plain values: {first_line}\n"
            f"If you trust the file, run.restore(path, weights_only=False) loads it, which executes code in the file."
        )
    return f"{path} cannot be read as a checkpoint: {first_line}"


class Writer:
    """Writes checkpoints in the background, one at a time.

    If a checkpoint cannot be written, its error is raised once: by the next `start` or `wait`, or at the end of the
    `with` block. If none of these follows, the error is logged.

    Args:
        on_writing_changed: called with True before a checkpoint is written, and with False afterwards, in any thread.
        on_written: called in the background with the path or URL of a checkpoint that is written.
    """

    def __init__(
        self,
        on_writing_changed: Callable[[bool], None] = lambda is_writing: None,
        on_written: Callable[[str], None] = lambda path: None,
    ) -> None:
        self._on_writing_changed = on_writing_changed
        self._on_written = on_written
        self._thread: threading.Thread | None = None
        self._errors: list[BaseException] = []  # of the last checkpoint: at most one
        weakref.finalize(self, _log_errors, self._errors, os.getpid())
        _writers.add(self)

    def start(self, path: StrPath, content: Mapping[str, Any]) -> None:
        """Serialize the content and start to write it. Blocks until the previous checkpoint is written.

        If that one has failed, its error is raised, and this one is not written.
        """
        location = location_of(path)  # a relative path belongs to the current folder
        self.wait()
        self._on_writing_changed(True)  # a run that fails while the content is serialized waits for it, too
        try:
            arguments = (location, serialize(content), self._errors, self._on_writing_changed, self._on_written)
            thread = threading.Thread(
                target=_write_in_background, args=arguments, name="fanwise-checkpoint", daemon=False
            )
            thread.start()
        except BaseException:
            self._on_writing_changed(False)
            raise
        self._thread = thread

    def wait(self) -> None:
        """Block until the last checkpoint is written. Raise its error."""
        self.join()
        if self._errors:
            raise self._errors.pop()

    def join(self) -> None:
        """Block until the last checkpoint is written, without raising its error."""
        if self._thread is not None:
            self._thread.join()

    def __enter__(self) -> "Writer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait. If the block raises, an error of the checkpoint becomes a note."""
        if error is None:
            self.wait()
            return
        self.join()
        while self._errors:
            error.add_note(f"in addition, a checkpoint could not be written: {_describe(self._errors.pop())}")


def _write_in_background(
    location: Location,
    data: memoryview,
    errors: list[BaseException],
    on_writing_changed: Callable[[bool], None],
    on_written: Callable[[str], None],
) -> None:
    try:
        write_checkpoint(location, data)
        on_written(os.fspath(location))
    except BaseException as error:
        error.add_note(f"while the checkpoint {location} was written in the background")
        traceback.clear_frames(error.__traceback__)  # they refer to the data
        errors.append(error)
    finally:
        del data
        on_writing_changed(False)


def _describe(error: BaseException) -> str:
    return "; ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])])


def _log_errors(errors: list[BaseException], pid: int) -> None:
    if os.getpid() == pid:
        for error in errors:
            _log.error("a checkpoint could not be written: %s", _describe(error))
