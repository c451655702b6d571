"""The HTTP server of the board: one process and one thread, on a socket that is already listening.

A connection is closed if the head of a request does not arrive within a few seconds. Otherwise a client without the
token could occupy all connections.
"""

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, cast, final

from ..base.errors import JoinError, NotInstalled
from ..links.status_files import ask_for_statuses
from .experiments import Home
from .guard import Guard
from .with_starlette import application

try:
    import uvicorn
    from uvicorn.protocols.http.h11_impl import H11Protocol
except ImportError as error:
    raise NotInstalled("the board needs uvicorn. Install it: pip install 'fanwise[board]'.") from error

REQUEST_TIMEOUT_S = 10.0  # from the connection, or from the previous answer, to the end of the head of a request
_App = Callable[..., Awaitable[None]]  # an ASGI application
_WEBSOCKET_WARNINGS = ("Unsupported upgrade request", "No supported WebSocket library")


@final
class Server:
    """Serves the experiments of one folder. Raises NotInstalled if a library of the extra `board` is missing."""

    def __init__(self, home: Home, guard: Guard, *, request_timeout_s: float = REQUEST_TIMEOUT_S) -> None:
        self._connections: dict[object, _TimedProtocol] = {}
        protocol = partial(_TimedProtocol, self._connections, request_timeout_s)
        self._server = uvicorn.Server(
            uvicorn.Config(
                _without_timeout(application(home, guard), self._connections),
                http=cast(Any, protocol),  # annotated as a class, but only called
                ws="none",
                loop="asyncio",
                lifespan="off",
                log_level="warning",
                access_log=False,  # addresses contain the token
                server_header=False,
                proxy_headers=False,  # connections are found by their real addresses
                timeout_graceful_shutdown=1,
            )
        )

    def serve(self, listener: socket.socket) -> None:
        """Serve until `end` is called or Ctrl-C. Training runs of this user write their status from now on."""
        try:
            ask_for_statuses()
        except (JoinError, OSError) as error:
            logging.getLogger(__name__).warning("training runs are not shown: %s", error)
        log = logging.getLogger("uvicorn.error")
        log.addFilter(self._is_relevant)
        try:
            asyncio.run(self._serve(listener))
        finally:
            log.removeFilter(self._is_relevant)

    async def _serve(self, listener: socket.socket) -> None:
        await self._server.serve(sockets=[listener])
        # uvicorn leaves connections open whose answers were not complete in time.
        for connection in list(self._connections.values()):
            connection.abort()
        await asyncio.sleep(0)

    def _is_relevant(self, record: logging.LogRecord) -> bool:
        """Return False for messages about canceled answers at the end, and for advice to install WebSockets."""
        return not self._server.should_exit and not record.getMessage().startswith(_WEBSOCKET_WARNINGS)

    def end(self) -> None:
        """Make `serve` return within about a second. Can be called from any thread."""
        self._server.should_exit = True


@final
class _TimedProtocol(H11Protocol):
    """A connection that is closed if the head of a request does not arrive in time.

    Args:
        connections: {address of the client: protocol} of all open connections.
        settings: arguments of uvicorn's protocol.
    """

    def __init__(self, connections: "dict[object, _TimedProtocol]", timeout_s: float, **settings: Any) -> None:
        super().__init__(**settings)
        self._connections = connections
        self._timeout_s = timeout_s

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._transport = transport
        self._address = tuple((transport.get_extra_info("peername") or ())[:2])  # as in ASGI scopes
        self._connections[self._address] = self
        self.start_timer()
        super().connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.stop_timer()
        self._connections.pop(self._address, None)
        super().connection_lost(exc)

    def start_timer(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self._timeout_s, self._transport.close)

    def stop_timer(self) -> None:
        self._timer.cancel()

    def abort(self) -> None:
        """Close the connection without sending the rest of the answer."""
        self._transport.abort()


def _without_timeout(app: _App, connections: dict[object, _TimedProtocol]) -> _App:
    """Return the application with the timers of connections stopped while it answers."""

    async def answer(scope: Any, receive: Any, send: Any) -> None:
        connection = connections.get(tuple(scope.get("client") or ()))
        if connection is not None:
            connection.stop_timer()
        await app(scope, receive, send)
        if connection is not None and tuple(scope["client"]) in connections:
            connection.start_timer()

    return answer
