"""The errors that fanwise raises, in one tree. Wrong arguments are TypeError and ValueError instead.

Each class of the tree has a section in docs/errors.md, named by its `anchor`. The text of an error ends with the
command that shows the section, so call sites do not repeat it.

`TrialStopped`, `CallCancelled` and `SearchInterrupted` are not errors and not in the tree.
"""

import re
from typing import ClassVar


class FanwiseError(Exception):
    """Base class of all errors of fanwise.

    Attributes:
        anchor: section of docs/errors.md. Subclasses elsewhere inherit it.
    """

    anchor: ClassVar[str] = "fanwise-error"

    def __init_subclass__(cls, **options: object) -> None:
        super().__init_subclass__(**options)
        if cls.__module__ == __name__:
            cls.anchor = re.sub(r"(?<=[a-z])(?=[A-Z])", "-", cls.__name__.removesuffix("Error")).lower()

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        # The message of a library or a remote process may end without a full stop.
        stop = "" if self.message.endswith((".", "!", "?")) else "."
        return f"{self.message}{stop} See: fanwise explain {self.anchor}"


class NotInstalled(FanwiseError, ImportError):
    """An optional library is not installed. The message names the extra to install."""


class ClosedError(FanwiseError, RuntimeError):
    """The object is closed, or belongs to the process from which this one was forked."""


class DeadlineExceeded(FanwiseError, TimeoutError, RuntimeError):
    """The timeout of the caller expired. The operation may still be running on the other side."""


class CancelledError(FanwiseError):
    """The awaited call was canceled. Its function may still run, and its result is dropped."""


class WindowFullError(FanwiseError, RuntimeError):
    """A call was not sent, because the window of its worker is full and the calling thread must not block."""


class WireError(FanwiseError):
    """Received bytes are truncated, oversized or malformed."""


class AuthenticationError(WireError):
    """The peer did not prove that it knows the secret. None of its data was unpickled."""


class SecretError(FanwiseError):
    """The shared secret of the hosts is missing, too weak, or readable by other users."""


class WorkerLostError(FanwiseError, RuntimeError):
    """A worker process died or became unreachable."""


class OwnerLostError(WorkerLostError):
    """The owner of a remote reference died or left, or no longer has the value."""


class JoinError(FanwiseError, RuntimeError):
    """A worker could not join a group: wrong name, rank or size, or the group is not complete."""


class RemoteError(FanwiseError, RuntimeError):
    """A remote error of a type that cannot be rebuilt here. The text has its type, message and traceback."""


class NotSendableError(FanwiseError, TypeError):
    """An object cannot be sent to a worker. The message has its type and its place in the arguments."""


class LeaseError(FanwiseError):
    """A job requests more CPUs, GPUs or memory than the pool, or the lease of the caller, has in total."""


class ClusterError(FanwiseError, RuntimeError):
    """The cluster is unreachable, too small, or has other versions of Python or fanwise."""


class RecordError(FanwiseError):
    """A folder or file is not the record of an experiment, or was written by another version."""


class DataFileError(FanwiseError):
    """A file of a data set is missing, truncated or invalid. It was not used."""


class CheckpointError(FanwiseError):
    """A checkpoint cannot be written, is missing, or is incomplete."""


class SearchFailedError(FanwiseError):
    """The first trials of a search, or all of them, failed, or its scheduler or searcher did.

    Attributes:
        reason: why the search failed, without advice.
        kind: "equal-failures", "all-failed", "scheduler" or "searcher".
    """

    def __init__(self, message: str, *, reason: str = "", kind: str = "") -> None:
        super().__init__(message)
        self.reason = reason or message
        self.kind = kind


class ExperimentExistsError(FanwiseError, FileExistsError):
    """An experiment of this name exists.

    Attributes:
        path: folder of the existing experiment.
        name: its name.
    """

    def __init__(self, path: object) -> None:
        self.path = str(path)
        self.name = self.path.rpartition("/")[2]
        super().__init__(
            f"the experiment {self.name!r} exists ({self.path}). Choose another name, resume it with "
            f"Tuner.resume({self.name!r}), or delete it"
        )


class SearchInterrupted(KeyboardInterrupt):
    """Ctrl-C ended a search. Its trials were stopped, and all reports are kept.

    Attributes:
        experiment: the results so far. `Tuner.resume(experiment.name).run()` continues the search.
    """

    def __init__(self, message: str, experiment: object) -> None:
        super().__init__(message)
        self.experiment = experiment


class TrialStopped(BaseException):
    """The job is stopped: raised by `report()`, or anywhere in the job by SIGTERM.

    Derives from BaseException so that `except Exception` in an objective does not swallow it. Clean up and re-raise.
    """


class CallCancelled(BaseException):
    """The call that runs this function was canceled. Raised once, by the next blocking operation of fanwise in it.

    Derives from BaseException so that `except Exception` does not swallow it. Clean up and re-raise. The cleanup may
    block and call.
    """
