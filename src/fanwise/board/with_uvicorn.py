"""The server of the board: one process, one thread, on a socket that is listening already.

Who connects and does not say within some seconds what is wanted is hung up on: whoever can reach the board, also
without its token, could hold all of its connections else.
"""

import asyncio
import logging
import socket
from typing import Any, cast, final

from ..base.errors import JoinError, NotInstalled
from ..links.status_files import ask_for_statuses
from .callers import Callers
from .guard import Guard
from .watching import Home
from .with_starlette import OpenPages, application

try:
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError as error:
    raise NotInstalled("the board needs uvicorn. Install it: pip install 'fanwise[board]'.") from error

REQUEST_S = 10.0  # from the first byte of a request, or from the connection, until all its headers are here
_NO_NEWS = ("Unsupported upgrade request", "No supported WebSocket library")  # the board has none, and says so to none


@final
class Server:
    """Serves one home. Raises NotInstalled: a library of the extra `board` is missing."""

    def __init__(self, home: Home, guard: Guard, callers: Callers | None, *, request_s: float = REQUEST_S) -> None:
        self._open: set[_Hurried] = set()

        def connection(**settings: Any) -> asyncio.Protocol:  # Any: uvicorn's own
            return _Hurried(H11Protocol(**settings), request_s, self._open)

        pages = OpenPages()
        self._server = _Server(
            uvicorn.Config(
                application(home, guard, callers, pages),
                http=cast(Any, connection),  # a class is asked for, and called
                ws="none",
                loop="asyncio",
                lifespan="off",
                log_level="warning",
                access_log=False,  # addresses hold the token
                server_header=False,
                timeout_graceful_shutdown=1,
            ),
            pages,
        )

    def serve(self, listening: socket.socket) -> None:
        """Answer until `end` is called, or Ctrl-C. Blocks. From now on programs of this user say what they do."""
        try:
            ask_for_statuses()
        except (JoinError, OSError) as error:
            logging.getLogger(__name__).warning("training runs are not shown: %s", error)
        log = logging.getLogger("uvicorn.error")
        log.addFilter(self._is_worth_saying)
        try:
            asyncio.run(self._serve(listening))
        finally:
            log.removeFilter(self._is_worth_saying)

    async def _serve(self, listening: socket.socket) -> None:
        await self._server.serve(sockets=[listening])
        # What was being answered after uvicorn's patience is left open by it.
        for connection in list(self._open):
            connection.abort()
        await asyncio.sleep(0)

    def _is_worth_saying(self, record: logging.LogRecord) -> bool:
        """That an answer was cut off by the end of the board is no news."""
        return not self._server.should_exit and not record.getMessage().startswith(_NO_NEWS)

    def end(self) -> None:
        """Make `serve` return within a second or two; from any thread."""
        self._server.should_exit = True


@final
class _Server(uvicorn.Server):
    """Lets the open pages go before it waits for all that is being answered."""

    def __init__(self, config: uvicorn.Config, pages: OpenPages) -> None:
        super().__init__(config)
        self._pages = pages

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._pages.end()
        await super().shutdown(sockets)


@final
class _Hurried(asyncio.Protocol):
    """A connection that is closed when it begins a request and does not finish its head in time."""

    def __init__(self, inner: H11Protocol, request_s: float, known: "set[_Hurried]") -> None:
        self._inner = inner
        self._known = known
        self._request_s = request_s
        self._timer: asyncio.TimerHandle | None = None
        self._begun: object = None  # the last request whose head has come
        self.pause_writing, self.resume_writing = inner.pause_writing, inner.resume_writing  # type: ignore[method-assign]
        self.eof_received = inner.eof_received  # type: ignore[method-assign]

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._known.add(self)
        self._inner.connection_made(cast(asyncio.Transport, transport))
        self._wait()

    def data_received(self, data: bytes) -> None:
        self._inner.data_received(data)
        cycle = self._inner.cycle
        if cycle is not self._begun:
            self._begun = cycle
            self._end_wait()
        elif cycle is None or cycle.response_complete:
            self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._known.discard(self)
        self._end_wait()
        self._inner.connection_lost(exc)

    def abort(self) -> None:
        """Close it now."""
        self._inner.transport.abort()

    def _wait(self) -> None:
        if self._timer is None:
            self._timer = self._inner.loop.call_later(self._request_s, self._inner.transport.close)

    def _end_wait(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
