"""Every error fanwise raises on its own account, in one tree.

    FanwiseError
    +-- NotInstalled (ImportError)        an optional library is missing; names the extra to install
    +-- ClosedError (RuntimeError)        you closed it, or you are in a fork of the process that owns it
    +-- DeadlineExceeded (TimeoutError)   the time you gave ran out; the other side may go on
    +-- CancelledError                    the call that you wait for was cancelled
    +-- WindowFullError (RuntimeError)    a worker has no room for another call, and this thread must not wait for it
    +-- WireError                         bytes that cannot be trusted: cut, oversized or malformed
    |   +-- AuthenticationError           the peer did not prove that it holds the key
    +-- SecretError                       the cluster's shared secret is missing, weak or not secret
    +-- WorkerLostError (RuntimeError)    a worker process died or is out of reach
    |   +-- OwnerLostError                the value of a remote reference is gone with its owner
    +-- JoinError (RuntimeError)          a worker was not let into a group: wrong name, rank or size, or nobody there
    +-- RemoteError (RuntimeError)        a remote failure whose own type cannot be rebuilt here
    +-- NotSendableError (TypeError)      an object that cannot travel to a worker; names it
    +-- LeaseError                        more devices or memory asked for than there are
    +-- ClusterError (RuntimeError)       no cluster there, not enough of it, or other versions on its nodes
    +-- RecordError                       not an experiment's record, or one of another version
    +-- DataFileError                     a file of a data set is missing, cut short, or not what its name says
    +-- CheckpointError                   a checkpoint cannot be written or read
    +-- SearchFailedError                 the first trials of a search, or all of them, failed
    +-- ExperimentExistsError (FileExistsError)   an experiment of this name exists

    TrialStopped (BaseException)          not an error: this job was told to end
    CallCancelled (BaseException)         not an error: nobody waits for the call that runs this function
    SearchInterrupted (KeyboardInterrupt) Ctrl-C ended a search, cleanly; carries the experiment

Wrong arguments are TypeError and ValueError. A message says what happened with values, where, and what to do
next; each class of the tree appends the command that shows its section of docs/errors.md: call sites do not repeat it.
Knows nothing of any other layer.
"""

from typing import ClassVar


class FanwiseError(Exception):
    """Base of all errors fanwise raises on its own account."""

    anchor: ClassVar[str] = "fanwise-error"

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message

    def __str__(self) -> str:
        # What a library or a remote process said may end without a full stop.
        stop = "" if self.message.endswith((".", "!", "?")) else "."
        return f"{self.message}{stop} See: fanwise explain {self.anchor}"


class NotInstalled(FanwiseError, ImportError):
    """An optional library is not installed; the message names the extra that brings it."""

    anchor = "not-installed"


class ClosedError(FanwiseError, RuntimeError):
    """What was used is closed, or belongs to the process this one was forked from."""

    anchor = "closed"


class DeadlineExceeded(FanwiseError, TimeoutError, RuntimeError):
    """The time that the caller gave ran out. The other side may still be at work."""

    anchor = "deadline-exceeded"


class CancelledError(FanwiseError):
    """The call that you wait for was cancelled. Its function may still run; nobody hears what it returns."""

    anchor = "cancelled"


class WindowFullError(FanwiseError, RuntimeError):
    """A call was not sent: its worker has no room for it yet, and the calling thread must not wait until it has."""

    anchor = "window-full"


class WireError(FanwiseError):
    """Bytes that cannot be trusted: cut short, oversized, or not of our format."""

    anchor = "wire"


class AuthenticationError(WireError):
    """The peer did not prove that it holds the key. Nothing it sent was unpickled."""

    anchor = "authentication"


class SecretError(FanwiseError):
    """The shared secret of the cluster is missing, too weak, or can be read by others."""

    anchor = "secret"


class WorkerLostError(FanwiseError, RuntimeError):
    """A worker process died, or can no longer be reached."""

    anchor = "worker-lost"


class OwnerLostError(WorkerLostError):
    """The worker that owned the value of a remote reference died or left, or the value is not there any more."""

    anchor = "owner-lost"


class JoinError(FanwiseError, RuntimeError):
    """A worker was not let into a group. The message says what does not fit, or who is missing."""

    anchor = "join"


class RemoteError(FanwiseError, RuntimeError):
    """A remote failure whose own type could not be rebuilt here; the text holds its type, message and traceback."""

    anchor = "remote"


class NotSendableError(FanwiseError, TypeError):
    """An object that cannot be sent to a worker. The message names it and the way to it."""

    anchor = "not-sendable"


class LeaseError(FanwiseError):
    """More CPUs, GPUs or memory asked for than the pool, or the caller's own lease, will ever have."""

    anchor = "lease"


class ClusterError(FanwiseError, RuntimeError):
    """A pool cannot use its cluster: it is not there, has too little of what was asked for, or other versions."""

    anchor = "cluster"


class RecordError(FanwiseError):
    """A folder or file that is not the record of an experiment, or was written by another version."""

    anchor = "record"


class DataFileError(FanwiseError):
    """A file of a data set is missing, cut short, or not what its name says. It was not used."""

    anchor = "data-file"


class CheckpointError(FanwiseError):
    """A trial's checkpoint cannot be written, or is not there, or not whole."""

    anchor = "checkpoint"


class SearchFailedError(FanwiseError):
    """The first trials of a search, or all of them, failed, or its scheduler or searcher did.

    Attributes:
        reason: why the search failed, without advice.
        kind: "equal-failures", "all-failed", "scheduler" or "searcher".
    """

    anchor = "search-failed"

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

    anchor = "experiment-exists"

    def __init__(self, path: object) -> None:
        self.path = str(path)
        self.name = self.path.rpartition("/")[2]
        super().__init__(
            f"the experiment {self.name!r} exists ({self.path}). Choose another name, resume it with "
            f"Tuner.resume({self.name!r}), or delete it"
        )


class SearchInterrupted(KeyboardInterrupt):
    """Ctrl-C ended a search: its trials were stopped, and all that was reported is kept.

    Attributes:
        experiment: what was found until then; `Tuner.resume(experiment.name).run()` goes on.
    """

    def __init__(self, message: str, experiment: object) -> None:
        super().__init__(message)
        self.experiment = experiment


class TrialStopped(BaseException):
    """This job was told to end.

    Raised inside `report()`, or by SIGTERM anywhere else in the job. A BaseException, so that
    `except Exception` in an objective does not swallow it. Clean up and let it pass.
    """


class CallCancelled(BaseException):
    """Nobody waits any more for the call that runs this function.

    Raised once, in the function, by its next wait through fanwise. A BaseException, so that `except Exception` does not
    swallow it. Clean up, which may wait and call, and let it pass.
    """
