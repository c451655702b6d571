"""Checkpoint files, which are replaced as a whole and can be read with `torch.load`.

torch.load(path)["model"]             state_dict of the model
                ["optimizer"]         of the optimizer; "model2", "optimizer2" for a second run.step
                ["step"]              counts of the step, and accumulated gradients
                ["kept"][name]        state_dict of an object of run.keep
                ["run"], ["rows"]     settings and position in the data; reports
                ["random"]            random state of torch; "random_of_device": that of a GPU

A `Writer` writes one checkpoint at a time in a background thread. The thread is not a daemon, so a process that ends
normally completes its last checkpoint. If the process is killed, either the old file or the new file exists.
"""

import copy
import logging
import os
import pickle
import tempfile
import threading
import traceback
import weakref
from collections import OrderedDict
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import torch
from torch import Tensor

from ...base.errors import ClosedError
from .location import Location, StrPath, download, location_of, upload

FORMAT = 1

_CONSTANTS = (int, float, complex, bool, str, bytes, type(None), torch.dtype, torch.device, torch.Size)

_log = logging.getLogger(__name__)
_writers: "weakref.WeakSet[Writer]" = weakref.WeakSet()  # of this process


def write(location: Location, content: Mapping[str, Any]) -> None:
    """Write a checkpoint. Blocks until it has replaced the file, or the object at the URL.

    Raises:
        OSError, CheckpointError: it cannot be written there. Errors of torch for an object that cannot be saved.
    """
    if isinstance(location, Path):
        _write_file(location, content)
        return
    with tempfile.TemporaryFile(prefix="fanwise-checkpoint-") as file:
        torch.save({"format": FORMAT, **content}, file)
        upload(file, location)


def _write_file(path: Path, content: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.unfinished")  # always the same name, so kills leave at most one file
    try:
        with unfinished.open("wb") as file:
            torch.save({"format": FORMAT, **content}, file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    folder = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def read(path: StrPath, weights_only: bool) -> dict[str, Any]:
    """Return the content of a checkpoint. Blocks while this process writes one.

    Raises:
        FileNotFoundError: there is no such file. CheckpointError: the file system of the URL refuses.
        ValueError: it is not a checkpoint of a run, or needs `weights_only=False`.
    """
    for writer in list(_writers):
        writer.join()
    try:
        with _open(location_of(path)) as file:
            content = torch.load(file, map_location="cpu", weights_only=weights_only)
    except FileNotFoundError:
        raise
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise ValueError(_explain(path, error)) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT or "run" not in content:
        raise ValueError(f"{path} was not written by run.save, or by another version of fanwise")
    del content["format"]
    return content


def _open(location: Location) -> IO[bytes]:
    if isinstance(location, Path):
        return location.open("rb")
    file = tempfile.TemporaryFile(prefix="fanwise-checkpoint-")
    try:
        download(location, file)
    except BaseException:
        file.close()
        raise
    return file


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

    If a checkpoint cannot be written, its error is raised once, by the next `write` or `wait`, or at the end of
    the `with` block. If none of them is called, the error is logged. A fork of the process cannot write.

    Args:
        on_change: called with True before a checkpoint is written, and with False after it.
        on_written: called with its path or URL when a checkpoint is written. Both are called from any thread.
    """

    def __init__(
        self,
        on_change: Callable[[bool], None] = lambda is_writing: None,
        on_written: Callable[[str], None] = lambda path: None,
    ) -> None:
        self._on_change = on_change
        self._on_written = on_written
        self._pid = os.getpid()
        self._thread: threading.Thread | None = None
        self._errors: list[BaseException] = []  # of the last checkpoint: at most one
        weakref.finalize(self, _log_errors, self._errors, self._pid)
        _writers.add(self)

    def write(self, path: StrPath, content: Mapping[str, Any]) -> None:
        """Copy the content and start to write it. Blocks until the previous checkpoint is written.

        Raises:
            The error of the previous checkpoint; this one is then not written.
            TypeError: the content cannot be copied. ClosedError: in a fork of the process.
        """
        if os.getpid() != self._pid:
            raise ClosedError(
                f"process {os.getpid()} is a fork of process {self._pid}, which trains: only process {self._pid} can "
                f"write checkpoints"
            )
        location = location_of(path)  # a relative path belongs to the current folder
        self.wait()
        snapshot = take_snapshot(content)
        arguments = (location, snapshot, self._errors, self._on_change, self._on_written)
        thread = threading.Thread(target=_write_in_background, args=arguments, name="fanwise-checkpoint", daemon=False)
        self._on_change(True)
        try:
            thread.start()
        except BaseException:
            self._on_change(False)
            raise
        self._thread = thread

    def wait(self) -> None:
        """Block until the last checkpoint is written. Raises its error. Returns at once in a fork."""
        self.join()
        if self._errors and os.getpid() == self._pid:
            raise self._errors.pop()

    def join(self) -> None:
        """Block until the last checkpoint is written."""
        if (thread := self._thread) is not None:  # in a fork, the thread has ended
            thread.join()

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
            error.add_note(f"a checkpoint could not be written either: {_describe(self._errors.pop())}")


def _write_in_background(
    location: Location,
    content: Mapping[str, Any],
    errors: list[BaseException],
    on_change: Callable[[bool], None],
    on_written: Callable[[str], None],
) -> None:
    try:
        write(location, content)
        on_written(os.fspath(location))
    except BaseException as error:
        error.add_note(f"while the checkpoint {location} was written in the background")
        traceback.clear_frames(error.__traceback__)  # they refer to the content
        errors.append(error)
    finally:
        del content
        on_change(False)


def _describe(error: BaseException) -> str:
    return "; ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])])


def _log_errors(errors: list[BaseException], pid: int) -> None:
    if os.getpid() == pid:
        for error in errors:
            _log.error("a checkpoint could not be written: %s", _describe(error))


def take_snapshot(state: Any) -> Any:
    """Return a copy of nested containers. Blocks until tensors of other devices are in main memory.

    Only the elements that a tensor shows are copied. A tensor that occurs twice, such as tied weights, is copied once.

    Raises:
        TypeError, or an error of the object: an object cannot be copied.
    """
    return _copy(state, {})


def _copy(value: Any, copies: dict[tuple[object, ...], Tensor]) -> Any:
    if isinstance(value, Tensor):
        return _copy_tensor(value, copies)
    kind = type(value)
    if kind in _CONSTANTS:
        return value
    if kind is dict:
        return {name: _copy(member, copies) for name, member in value.items()}
    if kind is OrderedDict:
        copied = OrderedDict((name, _copy(member, copies)) for name, member in value.items())
        vars(copied).update(copy.deepcopy(vars(value)))  # the state_dict of a module has its versions there
        return copied
    if kind is list or kind is tuple:
        return kind(_copy(member, copies) for member in value)
    return copy.deepcopy(value)


def _copy_tensor(tensor: Tensor, copies: dict[tuple[object, ...], Tensor]) -> Tensor:
    if tensor.layout != torch.strided:
        return tensor.detach().to("cpu", copy=True)
    # The memory stays allocated until the snapshot is complete, so an address identifies a tensor.
    view = (tensor.data_ptr(), tensor.device, tensor.dtype, tensor.shape, tensor.stride())
    if view not in copies or not tensor.numel():
        copies[view] = tensor.detach().to("cpu", copy=True)
    return copies[view]
