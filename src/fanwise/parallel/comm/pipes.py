"""What a rank says to the supervisor: messages on a pipe, in order, also from several threads.

    rank: MessageSender.say("out", "epoch 1\n")     supervisor: MessageReceiver.read() -> [("out", "epoch 1\n"), ...]

The pipe is opened through the supervisor's entry in /proc, as the memory is, so nobody but the same user can write to
it. A message is whole or it is not there. What a rank is told comes by the control block, not by a pipe.
"""

import os
import pickle
import threading
from typing import Any, Protocol

_LENGTH_BYTES = 8
_READ_BYTES = 1 << 20


class MessageSink(Protocol):
    """Takes the messages of a rank, in order. Implemented by `MessageSender` and by simulated runs."""

    def say(self, *message: Any) -> None: ...


class MessageSender:
    """The end of a rank."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        self._lock = threading.RLock()  # again in the same thread: a signal's handler may print
        self._pid = os.getpid()

    def say(self, *message: Any) -> None:  # Any: what can be pickled
        """Blocks while the pipe is full. In a fork of the rank nothing is said."""
        if os.getpid() != self._pid:
            return
        data = pickle.dumps(message, protocol=5)
        with self._lock:
            view = memoryview(len(data).to_bytes(_LENGTH_BYTES, "little") + data)
            while view:
                view = view[os.write(self._fd, view) :]


class MessageReceiver:
    """The supervisor's end, for one rank. `path` is what its sender opens."""

    def __init__(self) -> None:
        self.fd, self._speaking = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        # A rank that opens it gets a blocking end of its own.
        self.path = f"/proc/{os.getpid()}/fd/{self._speaking}"
        self._heard = bytearray()

    def read(self) -> list[tuple[Any, ...]]:  # Any: what was said
        """What has come since the last time. Does not block."""
        while True:
            try:
                data = os.read(self.fd, _READ_BYTES)
            except BlockingIOError:
                break
            if not data:
                break
            self._heard += data
        return self._messages()

    def _messages(self) -> list[tuple[Any, ...]]:  # Any: what was said
        found = []
        while len(self._heard) >= _LENGTH_BYTES:
            end = _LENGTH_BYTES + int.from_bytes(self._heard[:_LENGTH_BYTES], "little")
            if len(self._heard) < end:
                break
            found.append(pickle.loads(bytes(self._heard[_LENGTH_BYTES:end])))
            del self._heard[:end]
        return found

    def close(self) -> None:
        os.close(self.fd)
        os.close(self._speaking)
