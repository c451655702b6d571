"""Receives commands for a running search from other processes of the same user.

    link --request(word, args)--> hear(word, args, answer) --> record --> answer(text) --> link

Peers must prove that they hold the key of this run before any message is read (`links.unix`). Messages are plain values
and never unpickled. Runs on the hub's thread of the search.
"""

import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import final

from ...base.errors import FanwiseError
from ...links import Hub, Limits, Link, Request, UnixListener, new_key
from .control_socket import SOCKET_NAME, clear, near, speak, write_key

_log = logging.getLogger(__name__)

Hear = Callable[[str, Sequence[object], Callable[[str], None]], None]

# Commands are short.
_LIMITS = Limits(frame_bytes=1 << 20, buffers=0, mapped_bytes=0, pool_bytes=0)
# Seconds between checks that the hub is still running.
_CHECK_S = 0.25


@final
class CommandListener:
    """Listens for commands until `close`. If the file system has no sockets, log a warning and do not listen.

    Args:
        hub: the hub of the search.
        folder: the experiment's folder. The caller must hold the lock of its record.
        hear: called with a word, its arguments and `answer`, on the hub's thread. It calls `answer` with a sentence
            when the command is on record, or raises TypeError or ValueError, which is sent to the other process.
    """

    def __init__(self, hub: Hub, folder: Path, hear: Hear) -> None:
        self._hub = hub
        self._folder = folder
        self._hear = hear
        self._links: set[Link] = set()
        self._listener: UnixListener | None = None
        self._open = ExitStack()
        try:
            clear(folder)
            key = new_key()
            write_key(folder, key)
            place = self._open.enter_context(near(folder)) / SOCKET_NAME
            self._listener = UnixListener(hub, place, key, on_link=self._arrived, limits=_LIMITS)
        except OSError as error:
            self.close()
            _log.warning("the search in %s cannot be steered by other processes: %s", folder, error)

    def _arrived(self, link: Link) -> None:
        speak(link)
        link.handler = self._asked
        self._links.add(link)
        link.on_ended(lambda link, _ending: self._links.discard(link))

    def _asked(self, request: Request) -> None:
        try:
            self._hear(request.method, request.args, partial(self._answer, request, True))
        except (TypeError, ValueError) as error:
            self._answer(request, False, str(error))

    def _answer(self, request: Request, is_done: bool, text: str) -> None:
        try:
            request.answer((is_done, text))
        except FanwiseError as error:
            _log.info("who steered the search in %s has gone: %s", self._folder, error)

    def close(self) -> None:
        """Stop listening and remove socket and key. Blocks for a turn of the hub; must not run on the hub's thread."""
        listener, self._listener = self._listener, None
        if listener is not None:
            closed = threading.Event()
            self._hub.call_soon(partial(self._close, listener, closed))
            while not closed.wait(_CHECK_S):
                try:
                    self._hub.check_usable()
                except FanwiseError:  # the hub has closed the listener and the links
                    break
        try:
            clear(self._folder)
        except OSError as error:
            _log.warning("the socket of the search in %s is left behind: %s", self._folder, error)
        self._open.close()

    def _close(self, listener: UnixListener, closed: threading.Event) -> None:
        try:
            listener.close()
            for link in list(self._links):
                link.close("the search is over")
        finally:
            closed.set()
