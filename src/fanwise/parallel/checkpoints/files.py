"""Files of checkpoints: one file, replaced as a whole or not at all, which plain `torch.load` reads; also at a URL.

torch.load(path)["model"]             the state_dict of the model, without prefixes
                ["optimizer"]         of the optimizer; "model2", "optimizer2" for a second run.step
                ["step"]              its counts, and gradients of a window that is open
                ["kept"][name]        of what run.keep registered
                ["run"], ["rows"], ["random"]   the plan and the place in the data; reports; torch's random state
                ["random_of_device"]  and that of a GPU, where the training was on one

`Writer` does it in the background:

    training:  write(path, content) -> snapshot -> waiting, one for each path -+      .... goes on ....     wait()
    thread:                                                                    +-> file -> disk -> name -> next one

The thread lives while there is something to write. It is no daemon, so a process that ends normally writes the rest;
one that is killed leaves the old file or the new one. A fork of the process writes nothing.
"""

import logging
import os
import pickle
import tempfile
import threading
import traceback
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from types import TracebackType
from typing import IO, Any

import torch

from ...base.errors import ClosedError
from .places import Place, StrPath, fetch, place_of, put
from .snapshots import snapshot

FORMAT = 1
MOST_WAITING = 2  # snapshots in memory, besides the one that is being written

_log = logging.getLogger(__name__)
# The writers of this process, by id, so that a reader knows what is still to come.
_writers: "weakref.WeakValueDictionary[int, Writer]" = weakref.WeakValueDictionary()


def write(place: Place, content: Mapping[str, Any]) -> None:  # Any: numbers, tensors and state_dicts
    """Blocks until the file is on the disk under its name, or at its URL. What was there before stays until then.

    Raises:
        OSError, CheckpointError: it cannot be written there. What torch raises of an object that it cannot save.
    """
    if isinstance(place, Path):
        _write_here(place, content)
        return
    with tempfile.TemporaryFile(prefix="fanwise-checkpoint-") as file:
        torch.save({"format": FORMAT, **content}, file)
        put(file, place)


def _write_here(path: Path, content: Mapping[str, Any]) -> None:  # Any: as above
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.unfinished")  # of one name, so that a kill leaves no more than one
    try:
        with unfinished.open("wb") as file:
            torch.save({"format": FORMAT, **content}, file)
            file.flush()
            os.fsync(file.fileno())
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read(path: StrPath, weights_only: bool) -> dict[str, Any]:  # Any: as written
    """What `write` wrote. Blocks while a `Writer` of this process has a newer content for that path.

    Raises:
        FileNotFoundError: there is no such file. CheckpointError: a URL whose file system refuses.
        ValueError: it is no checkpoint of a run, or holds objects that only `weights_only=False` loads.
    """
    place = place_of(path)
    for reference in _writers.valuerefs():
        if (writer := reference()) is not None:
            writer.wait_for(place)
    try:
        with _opened(place) as file:
            content = torch.load(file, map_location="cpu", weights_only=weights_only)
    except FileNotFoundError:
        raise
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError) as error:
        raise ValueError(_why_not(path, error)) from error
    if not isinstance(content, dict) or content.get("format") != FORMAT or "run" not in content:
        raise ValueError(f"{path} is no checkpoint that run.save wrote, or one of another version.")
    del content["format"]
    return content


def _opened(place: Place) -> IO[bytes]:
    """At its beginning; what is at a URL comes into a nameless file before, whole, or not at all."""
    if isinstance(place, Path):
        return place.open("rb")
    file = tempfile.TemporaryFile(prefix="fanwise-checkpoint-")
    try:
        fetch(place, file)
    except BaseException:
        file.close()
        raise
    return file


def _why_not(path: StrPath, error: Exception) -> str:
    first_line = str(error).partition("\n")[0]
    if "weights_only" in str(error) or "Weights only" in str(error):
        return (
            f"{path} holds more than tensors and plain values: {first_line}\n"
            f"If you wrote it yourself, run.restore(path, weights_only=False) loads it; that executes what is in it."
        )
    return f"{path} cannot be read as a checkpoint: {first_line}"


class Writer:
    """Writes checkpoints in the background: one at a time, path by path in the order in which they were asked for.

    A content that still waits when a newer one of the same path comes is not written. With `MOST_WAITING` other paths
    waiting, `write` blocks until the disk has caught up, so memory is bounded.

    A checkpoint that cannot be written raises its error, once: in the next `write`, in `write_now`, in `wait`, or at
    the end of a `with` block. If none of them comes, the error is logged when the writer or the process ends.

    Args:
        told: is called with True when there is something to write, and with False when all of it is on the disk.
        written: is called with each path, or URL, when its file is on the disk. Both are called from any thread.
    """

    def __init__(
        self,
        told: Callable[[bool], None] = lambda is_writing: None,
        written: Callable[[str], None] = lambda path: None,
    ) -> None:
        self._told = told
        self._written = written
        self._pid = os.getpid()
        self._changed = threading.Condition()
        self._waiting: dict[Place, Mapping[str, Any]] = {}  # Any: as `write` above
        self._writing: Place | None = None
        self._thread: threading.Thread | None = None
        self._failures: list[BaseException] = []
        weakref.finalize(self, _say_lost, self._failures, self._pid)
        _writers[id(self)] = self

    def write(self, path: StrPath, content: Mapping[str, Any]) -> None:  # Any: numbers, tensors and state_dicts
        """Have this content written. Returns as soon as it is copied; what becomes of it afterwards does not matter.

        Raises:
            What an earlier checkpoint failed with; this one is then not written.
            TypeError: something in it cannot be copied. ClosedError: in a fork of the process.
        """
        self._check_process()
        self._raise_failure()
        place = place_of(path)
        with self._changed:
            self._changed.wait_for(lambda: place in self._waiting or len(self._waiting) < MOST_WAITING)
        copied = snapshot(content)
        with self._changed:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="fanwise-checkpoints", daemon=False)
                thread.start()  # if that fails, nothing was promised; until the lock is free it waits
                self._thread = thread
                self._told(True)
            self._waiting[place] = copied

    def write_now(self, path: StrPath, content: Mapping[str, Any]) -> None:  # Any: as above
        """Write it in this thread, without a copy, after all that waits. Blocks until it is on the disk.

        Raises as `write`, and what writing this one raises.
        """
        self._check_process()
        self.wait()
        self._told(True)
        try:
            place = place_of(path)
            write(place, content)
            self._written(os.fspath(place))
        finally:
            self._told(False)

    def wait(self) -> None:
        """Block until everything is on the disk. Raises what a checkpoint failed with. At once in a fork."""
        self._join()
        self._raise_failure()

    def wait_for(self, path: StrPath) -> None:
        """Block until nothing for this path is under way. Does not raise; at once in a fork."""
        place = place_of(path)
        if os.getpid() == self._pid:
            with self._changed:
                self._changed.wait_for(lambda: place not in self._waiting and place != self._writing)

    def __enter__(self) -> "Writer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Wait; an error that is on its way already is not replaced, but gets a note."""
        if error is None:
            self.wait()
            return
        self._join()
        for failure in self._taken_failures():
            error.add_note(f"besides, a checkpoint failed: {_in_words(failure)}")

    def _join(self) -> None:
        thread = self._thread
        if thread is not None:  # in a fork it counts as ended
            thread.join()

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise ClosedError(
                f"process {os.getpid()} is a fork of process {self._pid}, whose training this is: only that one writes "
                f"its checkpoints"
            )

    def _raise_failure(self) -> None:
        if os.getpid() == self._pid and (failures := self._taken_failures()):
            for other in failures[1:]:
                failures[0].add_note(f"and then: {_in_words(other)}")
            raise failures[0]

    def _taken_failures(self) -> list[BaseException]:
        taken = self._failures[:]
        del self._failures[: len(taken)]
        return taken

    # -- in the thread -----------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while (work := self._next()) is not None:
            try:
                write(*work)
                self._written(os.fspath(work[0]))
            except BaseException as error:
                error.add_note(f"when the checkpoint {work[0]} was written in the background")
                traceback.clear_frames(error.__traceback__)  # they hold the content
                self._failures.append(error)
            del work
        del self  # the traceback of a failure keeps this frame

    def _next(self) -> tuple[Place, Mapping[str, Any]] | None:  # Any: as above
        with self._changed:
            self._writing = next(iter(self._waiting), None)
            # A content keeps the place of the older one that it replaces: else a path could wait for ever.
            work = None if self._writing is None else (self._writing, self._waiting.pop(self._writing))
            if work is None:
                self._thread = None
                self._told(False)
            self._changed.notify_all()
            return work


def _in_words(error: BaseException) -> str:
    return "; ".join([f"{type(error).__name__}: {error}", *getattr(error, "__notes__", [])])


def _say_lost(failures: list[BaseException], pid: int) -> None:
    if os.getpid() == pid:
        for failure in failures:
            _log.error("a checkpoint could not be written: %s", _in_words(failure))
