"""The server of the board: one process, one thread, on a socket that is listening already."""

import logging
import socket
from typing import final

from ..base.errors import JoinError, NotInstalled
from ..links.status_files import ask_for_statuses
from .callers import Callers
from .guard import Guard
from .watching import Home
from .with_starlette import application

try:
    import uvicorn
except ImportError as error:
    raise NotInstalled("the board needs uvicorn. Install it: pip install 'fanwise[board]'.") from error


@final
class Server:
    """Serves one home. Raises NotInstalled: a library of the extra `board` is missing."""

    def __init__(self, home: Home, guard: Guard, callers: Callers | None) -> None:
        self._server: uvicorn.Server
        app = application(home, guard, callers, is_ending=lambda: self._server.should_exit)
        self._server = uvicorn.Server(
            uvicorn.Config(
                app,
                http="h11",
                ws="none",
                loop="asyncio",
                lifespan="off",
                log_level="warning",
                access_log=False,  # addresses hold the token
                server_header=False,
                timeout_graceful_shutdown=1,
            )
        )

    def serve(self, listening: socket.socket) -> None:
        """Answer until `end` is called, or Ctrl-C. Blocks. From now on programs of this user say what they do."""
        try:
            ask_for_statuses()
        except (JoinError, OSError) as error:
            logging.getLogger(__name__).warning("trainings and groups of workers are not shown: %s", error)
        log = logging.getLogger("uvicorn.error")
        log.addFilter(self._is_worth_saying)
        try:
            self._server.run(sockets=[listening])
        finally:
            log.removeFilter(self._is_worth_saying)

    def _is_worth_saying(self, record: logging.LogRecord) -> bool:
        """That an answer was cut off by the end of the board is no news."""
        return not self._server.should_exit

    def end(self) -> None:
        """Make `serve` return within a second or two; from any thread."""
        self._server.should_exit = True
