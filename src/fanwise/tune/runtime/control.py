"""Control of a running search by other processes of the same user, over a Unix socket in the experiment's folder.

    send_command() --command, args--> CommandListener --handle(command, args, answer)--> search --answer(text)--> reply

    <experiment>/control.sock   exists while the search runs; mode 0600, in a folder of mode 0700
                 control.key    32 random bytes of this run, mode 0600

A peer must prove that it has read the key before it can send a message. Messages are plain values and never unpickled.
A killed tuner leaves both files behind. They give no access, and resuming the experiment replaces them.
"""

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import final

from ...base.errors import ClosedError, FanwiseError
from ...links.frames import Limits
from ...links.hub import Hub
from ...links.link import Link, Request
from ...links.plain import Plain
from ...links.transports.unix import UnixListener, dial, new_key
from ..program import ASK_AND_TELL
from ..record.event_file import read_meta
from ..record.overview import Overview, overview_of

_log = logging.getLogger(__name__)

SOCKET_NAME = "control.sock"
KEY_NAME = "control.key"

# Executes a command on the hub's thread. Arguments: the command, its arguments, and a function to call with the answer
# when the command has been recorded.
CommandHandler = Callable[[str, Sequence[object], Callable[[str], None]], None]

_MAX_PATH_BYTES = 100  # Linux allows 107
# Small limits, because commands are short.
_LIMITS = Limits(frame_bytes=1 << 20, buffers=0, mapped_bytes=0, pool_bytes=0)
_ANSWER_TIMEOUT_S = 30.0  # a search answers at once unless its thread is busy

_plain = Plain()


@final
class CommandListener:
    """Listens for commands until `close`. If the file system has no sockets, log a warning and do not listen.

    Args:
        folder: the experiment's folder. The caller must hold the lock of its record.
        handle: executes a command. The text of a TypeError, ValueError or ClosedError is sent to the other process.
    """

    def __init__(self, hub: Hub, folder: Path, handle: CommandHandler) -> None:
        self._folder = folder
        self._handle = handle
        self._links: set[Link] = set()
        self._listener: UnixListener | None = None
        self._exit_stack = ExitStack()
        try:
            _remove_files(folder)
            key = new_key()
            (folder / KEY_NAME).touch(0o600, exist_ok=False)
            (folder / KEY_NAME).write_bytes(key)
            path = self._exit_stack.enter_context(short_path(folder)) / SOCKET_NAME
            self._listener = UnixListener(hub, path, key, on_link=self._on_link, limits=_LIMITS)
        except OSError as error:
            self.close()
            _log.warning("other processes cannot control the search in %s: %s", folder, error)

    def _on_link(self, link: Link) -> None:
        _use_plain_values(link)
        link.handler = self._on_request
        self._links.add(link)
        link.on_ended(lambda link, _ending: self._links.discard(link))

    def _on_request(self, request: Request) -> None:
        try:
            self._handle(request.method, request.args, partial(self._answer, request, True))
        except (TypeError, ValueError, ClosedError) as error:
            self._answer(request, False, str(error))

    def _answer(self, request: Request, is_accepted: bool, text: str) -> None:
        try:
            request.answer((is_accepted, text))
        except FanwiseError as error:
            _log.info("the sender of a command to the search in %s has disconnected: %s", self._folder, error)

    def close(self) -> None:
        """Stop listening, and delete both files. Must be called on the hub's thread, or after it has ended."""
        if self._listener is not None:
            self._listener.close()
        for link in list(self._links):
            link.close("the search is over")
        try:
            _remove_files(self._folder)
        except OSError as error:
            _log.warning("the socket of the search in %s could not be removed: %s", self._folder, error)
        self._exit_stack.close()


def send_command(folder: Path, command: str, *args: object) -> str:
    """Send a command (see `commands`) and block until it has been recorded, for 60 s at most. Return the answer.

    Raises:
        ClosedError: the search is not running, cannot be reached, or was opened with `open_search`.
        ValueError: the search refuses the command.
        RecordError: there is no such experiment.
    """
    meta = read_meta(folder)
    name = meta["name"]
    if meta["objective"] == ASK_AND_TELL:
        raise ClosedError(
            f"the trials of {name!r} are run by a program with the ask-and-tell interface, which takes no "
            f"commands from other processes. Call the methods of open_search(...) in that program."
        )
    check_is_running(folder)
    hub = Hub(name="control")
    try:
        key = (folder / KEY_NAME).read_bytes()
        with short_path(folder) as path:
            link = dial(hub, path / SOCKET_NAME, key, within_s=_ANSWER_TIMEOUT_S)
        _use_plain_values(link)
        link.open()
        is_accepted, text = link.ask(command, *args, within_s=_ANSWER_TIMEOUT_S)
        link.close()
    except (FanwiseError, OSError) as error:
        cause = "if it is running, it runs on another machine; send the command there"
        if check_is_running(folder).state == "running":
            cause = f"it is running but cannot be reached ({error})"
        raise ClosedError(f"the command did not reach the search {name!r}: {cause}.") from error
    finally:
        hub.close()
    if not is_accepted:
        raise ValueError(text)
    return str(text)


def check_is_running(folder: Path) -> Overview:
    """Return the overview of a search that is running, or that may run on another machine.

    Raises:
        ClosedError: the search is not running. The message says how to resume it.
        RecordError: there is no such experiment.
    """
    overview = overview_of(folder)
    name, state = overview.name, overview.state
    if state not in ("finished", "crashed"):
        return overview
    cause = f"it has finished ({overview.reason})" if state == "finished" else "its tuner was killed or has crashed"
    raise ClosedError(f"the search {name!r} is not running: {cause}. Resume it with: fanwise tune resume {name}")


@contextmanager
def short_path(folder: Path) -> Iterator[Path]:
    """Yield a path of the folder that is short enough for a socket in it. The path is valid inside the block."""
    if len(os.fsencode(folder)) + 1 + len(SOCKET_NAME) <= _MAX_PATH_BYTES:
        yield folder
        return
    descriptor = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield Path(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def _use_plain_values(link: Link) -> None:
    """Let the link encode plain values only, so that nothing is unpickled. Must precede the first message."""
    link.dumps, link.loads = _plain.dumps, lambda head, buffers=(): _plain.loads(head, buffers)


def _remove_files(folder: Path) -> None:
    for name in (SOCKET_NAME, KEY_NAME):
        with suppress(FileNotFoundError):
            (folder / name).unlink()
