"""The tuner's end: other processes of this user say what they want of the search that runs here.

    link --request(word, args)--> hear(word, args, answer) --> ...on record... --> answer(told) --> link

Who has not proved to hold the key of this run says nothing that is looked at (`links.unix`), and what one says who has
is plain values. Lives on the hub's thread of the search.
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
from .sockets import SOCKET_NAME, clear, near, speak, write_key

_log = logging.getLogger(__name__)

Hear = Callable[[str, Sequence[object], Callable[[str], None]], None]

# A command is a few words.
_LIMITS = Limits(frame_bytes=1 << 20, buffers=0, mapped_bytes=0, pool_bytes=0)
# How often it is looked whether the hub still runs.
_CHECK_S = 0.25


@final
class CommandListener:
    """Listens until `close`. A search that cannot listen - its file system has no sockets - goes on and says so.

    Args:
        folder: of the experiment, whose record the caller holds.
        hear: is told a word and its arguments, and calls `answer` with a sentence when it is on record; raises
            TypeError or ValueError, which the other process is told. On the hub's thread.
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
        """Listen no more, and remove socket and key. Blocks for a turn of the hub; not on the hub's thread."""
        listener, self._listener = self._listener, None
        if listener is not None:
            closed = threading.Event()
            self._hub.call_soon(partial(self._close, listener, closed))
            while not closed.wait(_CHECK_S):
                try:
                    self._hub.check_usable()
                except FanwiseError:  # it has closed the listener and the links with itself
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
