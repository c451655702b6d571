"""The board as a web application: its pages, what they ask for, live events, commands.

    GET  /, /experiments/NAME, /experiments/NAME/trials/ID      the pages, as they are in page/
    GET  /programs/KEY                                          the page of a training run
    GET  /static/FILE                                           what they load
    GET  /api/experiments                                       what is there and what runs; /api/live: as events
    GET  /api/programs/KEY                                      a training run; .../live: the same as events
    GET  /api/experiments/NAME                                  what is known at once; .../live: all of it, as events
    GET  /api/experiments/NAME/{curves|workers|rungs|parallel|front|importance|trials|trials/ID}
    POST /api/experiments/NAME/commands    {"word": "stop_trial", "args": [3]}: as `fanwise tune stop` says it

A page is the same bytes for everybody: names, configurations and logs come as JSON, and are put in as text. Nothing
here blocks the server: records are read, and searches are told, in threads.
"""

import asyncio
import gzip
import hashlib
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from importlib.resources import files
from typing import Any, TypeVar, final

from ..base.errors import FanwiseError, NotInstalled, RecordError
from ..base.plain_json import json_bytes
from ..tune.runtime.control import send_command
from .callers import Callers
from .guard import Asked, Guard, Refusal, headers
from .watching import Home, NotThere
from .with_plotly import plotly_file

try:
    from anyio.to_thread import run_sync
    from starlette.applications import Starlette
    from starlette.datastructures import Headers, MutableHeaders, QueryParams
    from starlette.middleware.gzip import GZipMiddleware
    from starlette.requests import Request, cookie_parser
    from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
    from starlette.routing import Route
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
except ImportError as error:
    raise NotInstalled("the board needs Starlette. Install it: pip install 'fanwise[board]'.") from error

_EVERY_S = 1.0  # between two looks of an open page, at least
_ALIVE_S = 15.0  # something is said at least so often: what lies between may close a silent connection
_COMMAND_BYTES, _COMMAND_S = 1 << 18, 10.0
_WORDS = frozenset({"stop", "stop_trial", "pause", "unpause", "enqueue", "workers"})
_TYPES = {".html": "text/html; charset=utf-8", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
_OF_ANOTHER = Refusal(403, "This board is for programs of another user. With --host it asks for a token instead.")
_LEAVE_THE_TOKEN = '<!doctype html><meta http-equiv="refresh" content="0;url=/"><a href="/">fanwise board</a>'

_Made = TypeVar("_Made")
Answer = Callable[[Request], Awaitable[Response]]


def application(home: Home, guard: Guard, callers: Callers | None, pages: "OpenPages") -> ASGIApp:
    """The application.

    Args:
        home: the experiments it shows.
        guard: asked about each request before anything else is.
        callers: asked about each connection; None: anybody's is taken.
        pages: those that follow live events; to be ended before the server can.

    Raises:
        NotInstalled: a library of the extra `board` is missing.
    """
    board = _Board(home, pages)
    static = _Static()
    routes = [
        Route("/", static.page("index.html")),
        Route("/experiments/{name}", static.page("experiment.html")),
        Route("/experiments/{name}/trials/{trial:int}", static.page("trial.html")),
        Route("/programs/{key}", static.page("program.html")),
        Route("/static/{file}", static.file),
        Route("/api/experiments", board.listing),
        Route("/api/live", board.live_listing),
        Route("/api/programs/{key}", board.program),
        Route("/api/programs/{key}/live", board.live_program),
        Route("/api/experiments/{name}", board.overview),
        Route("/api/experiments/{name}/live", board.live),
        Route("/api/experiments/{name}/trials", board.trials),
        Route("/api/experiments/{name}/trials/{trial:int}", board.trial),
        Route("/api/experiments/{name}/commands", board.command, methods=["POST"]),
        Route("/api/experiments/{name}/{view}", board.view),
    ]
    app = Starlette(
        routes=routes, exception_handlers={NotThere: _not_there, FanwiseError: _failed, ValueError: _refused}
    )
    return _Guarded(GZipMiddleware(app, minimum_size=4_000, compresslevel=4), guard, callers)


@final
class _Guarded:
    """Asks the guard first, and puts the headers on every answer."""

    def __init__(self, app: ASGIApp, guard: Guard, callers: Callers | None) -> None:
        self._app = app
        self._guard = guard
        self._callers = callers
        self._headers = headers()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        cookie = _cookie_name(scope)
        asked = _asked(scope, cookie)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                answered = MutableHeaders(scope=message)
                answered.update(self._headers)
                answered.setdefault("Cache-Control", "no-store")
            await send(message)

        refusal = _OF_ANOTHER if self._is_of_another(scope) else self._guard.refusal(asked)
        answer: ASGIApp = self._app
        if refusal is not None:
            answer = PlainTextResponse(refusal.text + "\n", refusal.status)
        elif self._guard.brings_token(asked):
            # A page of its own and no redirect: a cookie that is only for this site does not follow one from elsewhere.
            response = HTMLResponse(_LEAVE_THE_TOKEN)
            response.set_cookie(cookie, self._guard.session, httponly=True, samesite="strict", path="/")
            answer = response
        await answer(scope, receive, send_with_headers)

    def _is_of_another(self, scope: Scope) -> bool:
        return self._callers is not None and not self._callers.may(tuple(scope["client"]), tuple(scope["server"]))


def _asked(scope: Scope, cookie: str) -> Asked:
    said = Headers(scope=scope)
    return Asked(
        method=scope["method"],
        host=said.get("host"),
        origin=", ".join(said.getlist("origin")) if "origin" in said else None,  # two of them are none of ours
        fetch_site=said.get("sec-fetch-site"),
        content_type=said.get("content-type"),
        cookie=cookie_parser(said.get("cookie", "")).get(cookie),
        token=QueryParams(scope["query_string"]).get("token"),
    )


def _cookie_name(scope: Scope) -> str:
    """With the port: to a browser all boards of a machine are one site."""
    server = scope.get("server")
    return f"fanwise-board-{server[1] if server else 0}"


@final
class _Static:
    """The files that every page is made of, read once."""

    def __init__(self) -> None:
        folder = files(__package__) / "page"
        self._files = {file.name: file.read_bytes() for file in folder.iterdir() if file.is_file()}
        self._files["plotly.min.js"] = plotly_file().read_bytes()
        self._packed = {name: gzip.compress(body, 6) for name, body in self._files.items()}
        self._marks = {name: f'"{hashlib.sha256(body).hexdigest()[:20]}"' for name, body in self._files.items()}

    def page(self, name: str) -> Answer:
        async def answer(request: Request) -> Response:
            return self._answer(request, name)

        return answer

    async def file(self, request: Request) -> Response:
        name = request.path_params["file"]
        return self._answer(request, name) if name in self._files else _text("there is no such file", 404)

    def _answer(self, request: Request, name: str) -> Response:
        told = {"ETag": self._marks[name], "Cache-Control": "no-cache"}  # kept, but asked for again
        if request.headers.get("if-none-match", "").removeprefix("W/") == self._marks[name]:
            return Response(status_code=304, headers=told)
        told["Content-Type"] = _TYPES[name[name.rindex(".") :]]
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return Response(self._files[name], headers=told)
        return Response(self._packed[name], headers={**told, "Content-Encoding": "gzip", "Vary": "Accept-Encoding"})


@final
class OpenPages:
    """The pages that follow live events, which rest between two of them. Of one event loop."""

    def __init__(self) -> None:
        self.is_over = False
        self._resting: set[asyncio.Future[None]] = set()

    async def rest(self, seconds: float) -> None:
        """Until this time has passed, or there is something to see, or all is over."""
        if self.is_over:
            return
        woken = asyncio.get_running_loop().create_future()
        self._resting.add(woken)
        try:
            await asyncio.wait([woken], timeout=seconds)
        finally:
            self._resting.discard(woken)

    def wake(self) -> None:
        """All of them look now."""
        for woken in self._resting:
            if not woken.done():
                woken.set_result(None)

    def end(self) -> None:
        """All of them let go."""
        self.is_over = True
        self.wake()


@final
class _Board:
    """What the pages ask for."""

    def __init__(self, home: Home, pages: OpenPages) -> None:
        self._home = home
        self._pages = pages

    async def listing(self, request: Request) -> Response:
        return _json(await _in_thread(self._listing))

    def _listing(self) -> dict[str, Any]:  # Any: JSON
        return {"home": str(self._home.folder), "experiments": self._home.listing(), "runs": self._home.training_runs()}

    async def live_listing(self, request: Request) -> Response:
        return self._events(self._listing)

    async def program(self, request: Request) -> Response:
        return _json(await _in_thread(self._home.training_run, request.path_params["key"]))

    async def live_program(self, request: Request) -> Response:
        key = request.path_params["key"]
        await _in_thread(self._home.training_run, key)
        return self._events(lambda: self._home.training_run(key))

    async def overview(self, request: Request) -> Response:
        return _json(await _in_thread(self._home.overview, request.path_params["name"]))

    async def live(self, request: Request) -> Response:
        name = request.path_params["name"]
        await _in_thread(self._home.inside, name)
        return self._events(lambda: self._home.watched(name).summary(), lambda: self._home.watched(name).due_s())

    async def view(self, request: Request) -> Response:
        name, view = request.path_params["name"], request.path_params["view"]

        def make() -> bytes:
            watched = self._home.watched(name)
            return json_bytes(watched.importance()) if view == "importance" else watched.view_body(view)

        return _body(await _in_thread(make))

    async def trials(self, request: Request) -> Response:
        name, asked = request.path_params["name"], request.query_params

        def make() -> bytes:
            return json_bytes(
                self._home.watched(name).trials(
                    sort=asked.get("sort", "trial"),
                    descending=asked.get("descending") == "true",
                    status=asked.get("status", ""),
                    text=asked.get("text", ""),
                    offset=_natural(asked.get("offset", "0")),
                )
            )

        return _body(await _in_thread(make))

    async def trial(self, request: Request) -> Response:
        name, trial_id = request.path_params["name"], request.path_params["trial"]
        return _json(await _in_thread(lambda: self._home.watched(name).trial(trial_id)))

    async def command(self, request: Request) -> Response:
        folder = await _in_thread(self._home.inside, request.path_params["name"])
        word, args = _command(await _read(request))
        answer = await _in_thread(send_command, folder, word, *args)
        await _in_thread(lambda: self._home.watched(folder.name).hurry())
        self._pages.wake()
        return _json({"answer": answer})

    def _events(self, make: Callable[[], Mapping[str, Any]], due_s: Callable[[], float] = lambda: 0.0) -> Response:
        """Server-sent events: what `make` returns (Any: JSON), whenever it is something else than before.

        `due_s`: how many seconds it stays the same for, at least.
        """

        def look() -> tuple[bytes, float]:
            return b"data: " + json_bytes(make()) + b"\n\n", due_s()

        async def events() -> AsyncIterator[bytes]:
            last, silent_s = b"", 0.0
            while not self._pages.is_over:
                try:
                    now, still_s = await _in_thread(look)
                except (NotThere, RecordError) as error:
                    yield b"event: gone\ndata: " + json_bytes({"error": str(error)}) + b"\n\n"
                    return
                if now != last or silent_s >= _ALIVE_S:
                    yield now if now != last else b":\n\n"  # a comment
                    last, silent_s = now, 0.0
                rest_s = min(max(_EVERY_S, still_s), _ALIVE_S)
                await self._pages.rest(rest_s)
                silent_s += rest_s

        return StreamingResponse(events(), media_type="text/event-stream")


async def _in_thread(make: Callable[..., _Made], *args: object) -> _Made:
    """What `make` returns. A board that ends does not wait for it: a large record is read for seconds."""
    return await run_sync(partial(make, *args), abandon_on_cancel=True)


async def _read(request: Request) -> bytes:
    """The body of a command, which is a few words."""
    body = b""
    try:
        async with asyncio.timeout(_COMMAND_S):
            async for part in request.stream():
                body += part
                if len(body) > _COMMAND_BYTES:
                    raise ValueError(f"a command has at most {_COMMAND_BYTES} bytes")
    except TimeoutError:
        raise ValueError(f"the command did not come within {_COMMAND_S:g} s") from None
    return body


def _command(body: bytes) -> tuple[str, list[Any]]:  # Any: JSON
    """The word and its arguments. ValueError: it is no command."""
    try:
        said = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("a command is JSON, as {'word': 'stop_trial', 'args': [3]}") from None
    word, args = (said.get("word"), said.get("args", [])) if isinstance(said, dict) else (None, None)
    if word not in _WORDS or not isinstance(args, list):
        raise ValueError(f"a command has a word, one of {', '.join(sorted(_WORDS))}, and a list of args; got {said!r}")
    return word, args


def _natural(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 10 else 0


def _json(value: object) -> Response:
    return _body(json_bytes(value))


def _body(body: bytes) -> Response:
    return Response(body, media_type="application/json")


def _text(text: str, status: int) -> Response:
    return PlainTextResponse(text + "\n", status)


async def _not_there(request: Request, error: Exception) -> Response:
    return Response(json_bytes({"error": str(error)}), 404, media_type="application/json")


async def _failed(request: Request, error: Exception) -> Response:
    return Response(json_bytes({"error": str(error)}), 409, media_type="application/json")


async def _refused(request: Request, error: Exception) -> Response:
    return Response(json_bytes({"error": str(error)}), 400, media_type="application/json")
