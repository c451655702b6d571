"""A pipe for messages from a rank to its supervisor.

    rank: MessageSender.send("out", "epoch 1\n")    supervisor: MessageReceiver.read() -> [("out", "epoch 1\n"), ...]

The rank opens the pipe through the supervisor's entry in /proc, so only processes of the same user can write to it.
"""

import os
import pickle
import threading
from typing import Any

_LENGTH_BYTES = 8
_READ_BYTES = 1 << 20


class MessageSender:
    """Called from any thread. `path`: attribute `path` of the receiver."""

    def __init__(self, path: str) -> None:
        self._fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        self._lock = threading.RLock()  # reentrant, because a signal handler may print while this thread sends
        self._pid = os.getpid()

    def send(self, *message: Any) -> None:
        """Send a message. Blocks while the pipe is full. Does nothing in a process that the rank has forked."""
        if os.getpid() != self._pid:
            return
        data = pickle.dumps(message, protocol=5)
        with self._lock:
            view = memoryview(len(data).to_bytes(_LENGTH_BYTES, "little") + data)
            while view:
                view = view[os.write(self._fd, view) :]


class MessageReceiver:
    """The supervisor's end of the pipe of one rank. `fd` is readable when there are messages."""

    def __init__(self) -> None:
        self.fd, self._write_fd = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self.path = f"/proc/{os.getpid()}/fd/{self._write_fd}"  # opening it gives a blocking descriptor
        self._data = bytearray()

    def read(self) -> list[tuple[Any, ...]]:
        """Return the messages that have arrived since the last call. Does not block."""
        try:
            while data := os.read(self.fd, _READ_BYTES):
                self._data += data
        except BlockingIOError:
            pass
        messages = []
        while len(self._data) >= _LENGTH_BYTES:
            end = _LENGTH_BYTES + int.from_bytes(self._data[:_LENGTH_BYTES], "little")
            if len(self._data) < end:
                break
            messages.append(pickle.loads(bytes(self._data[_LENGTH_BYTES:end])))
            del self._data[:end]
        return messages

    def close(self) -> None:
        os.close(self.fd)
        os.close(self._write_fd)
