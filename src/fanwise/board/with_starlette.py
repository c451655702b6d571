"""The web application of the board: pages, JSON, live events and commands.

    GET  /, /experiments/NAME, /experiments/NAME/trials/ID    pages
    GET  /static/FILE, /plotly/plotly.min.js                  their scripts, styles and images
    GET  /api/experiments                  list of experiments and training runs; as events: /api/live
    GET  /api/experiments/NAME             summary without reading all events; .../live: full summary as events
    GET  /api/experiments/NAME/{curves|workers|rungs|hyperparameters|front|importance|trials|trials/ID}
    POST /api/experiments/NAME/commands    {"word": "stop_trial", "args": [3]}, see `fanwise tune --help`

Pages are the same for all experiments. Their scripts load names, configurations and logs as JSON and insert them as
text. Records are read, and commands are sent, in threads.
"""

import asyncio
import importlib.util
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, final
from urllib.parse import quote

from ..base.errors import FanwiseError, NotInstalled, RecordError
from ..base.plain_json import json_bytes
from ..links.status_files import statuses
from ..tune.runtime.control import send_command
from .experiments import Home, NotFound, training_runs
from .guard import SECURITY_HEADERS, Guard, RequestInfo

try:
    from anyio.to_thread import run_sync
    from starlette.applications import Starlette
    from starlette.datastructures import Headers, MutableHeaders, QueryParams
    from starlette.middleware.gzip import GZipMiddleware
    from starlette.requests import Request, cookie_parser
    from starlette.responses import HTMLResponse, PlainTextResponse, Response, StreamingResponse
    from starlette.routing import Mount, Route
    from starlette.staticfiles import StaticFiles
    from starlette.types import ASGIApp, Message, Receive, Scope, Send
except ImportError as error:
    raise NotInstalled("the board needs Starlette. Install it: pip install 'fanwise[board]'.") from error

_EVENT_INTERVAL_S = 1.0
_KEEP_ALIVE_S = 15.0  # proxies may close connections that are silent for longer
_COMMANDS = frozenset({"stop", "stop_trial", "pause", "unpause", "enqueue", "workers"})
_PAGES = Path(__file__).with_name("page")

_T = TypeVar("_T")


def application(home: Home, guard: Guard) -> ASGIApp:
    """Return the application. The guard checks each request first.

    Raises:
        NotInstalled: a library of the extra `board` is missing.
    """
    handlers = _Handlers(home)
    routes = [
        Route("/", _page("index")),
        Route("/experiments/{name}", _page("experiment")),
        Route("/experiments/{name}/trials/{trial:int}", _page("trial")),
        Mount("/static", StaticFiles(directory=_PAGES)),
        Mount("/plotly", StaticFiles(directory=plotly_folder())),
        Route("/api/experiments", handlers.listing),
        Route("/api/live", handlers.live_listing),
        Route("/api/experiments/{name}", handlers.overview),
        Route("/api/experiments/{name}/live", handlers.live),
        Route("/api/experiments/{name}/trials", handlers.trials),
        Route("/api/experiments/{name}/trials/{trial:int}", handlers.trial),
        Route("/api/experiments/{name}/commands", handlers.command, methods=["POST"]),
        Route("/api/experiments/{name}/{view}", handlers.view),
    ]
    app = Starlette(
        routes=routes,
        exception_handlers={
            NotFound: partial(_error, status=404),
            FanwiseError: partial(_error, status=409),
            ValueError: partial(_error, status=400),
        },
    )
    return _GuardedApp(GZipMiddleware(app, minimum_size=4_000, compresslevel=4), guard)


def plotly_folder() -> Path:
    """Return the folder of plotly.js in the package `plotly`, which is not imported. Raises NotInstalled."""
    spec = importlib.util.find_spec("plotly")
    for folder in (spec.submodule_search_locations or ()) if spec is not None else ():
        if (data := Path(folder) / "package_data").is_dir():
            return data
    raise NotInstalled("the board needs plotly. Install it: pip install 'fanwise[board]'.")


@final
class _GuardedApp:
    """Checks each request with the guard, and adds the security headers to each answer."""

    def __init__(self, app: ASGIApp, guard: Guard) -> None:
        self._app = app
        self._guard = guard

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        server = scope.get("server")
        cookie = f"fanwise-board-{server[1] if server else 0}"  # browsers send cookies to all ports of a host
        request = _request_info(scope, cookie)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(SECURITY_HEADERS)
                is_static = scope["path"].startswith(("/static/", "/plotly/"))
                headers["Cache-Control"] = "no-cache" if is_static else "no-store"  # no-cache: cached, but revalidated
            await send(message)

        answer = self._app
        if refusal := self._guard.refusal(request):
            answer = PlainTextResponse(refusal.text + "\n", refusal.status)
        elif self._guard.has_token(request) and not scope["path"].startswith("/api/"):
            # A page that loads the address without the token. After a redirect from another site, browsers would not
            # send a cookie that is only for this site.
            target = quote("/" + scope["path"].lstrip("/"), safe="/")
            link = f'<a href="{target}">fanwise board</a>'
            response = HTMLResponse(f'<!doctype html><meta http-equiv="refresh" content="0;url={target}">{link}')
            response.set_cookie(cookie, self._guard.session, httponly=True, samesite="strict", path="/")
            answer = response
        await answer(scope, receive, send_with_headers)


def _request_info(scope: Scope, cookie: str) -> RequestInfo:
    headers = Headers(scope=scope)
    return RequestInfo(
        method=scope["method"],
        host=headers.get("host"),
        origin=", ".join(headers.getlist("origin")) if "origin" in headers else None,  # two are refused
        fetch_site=headers.get("sec-fetch-site"),
        content_type=headers.get("content-type"),
        cookie=cookie_parser(headers.get("cookie", "")).get(cookie),
        token=QueryParams(scope["query_string"]).get("token"),
    )


def _page(name: str) -> Callable[[Request], Awaitable[Response]]:
    frame, body = (_PAGES.joinpath(file).read_text(encoding="utf-8") for file in ("frame.html", f"{name}.html"))
    page = frame.replace("NAME", name).replace("BODY", body)

    async def answer(request: Request) -> Response:
        return HTMLResponse(page)

    return answer


@final
class _Handlers:
    """The handlers of the paths below /api."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._command_sent = asyncio.Event()  # replaced after each command

    async def listing(self, request: Request) -> Response:
        return _json(await _in_thread(self._listing))

    def _listing(self) -> dict[str, Any]:
        return {"home": str(self._home.folder), "experiments": self._home.listing(), "runs": training_runs(statuses())}

    async def live_listing(self, request: Request) -> Response:
        return self._events(self._listing)

    async def overview(self, request: Request) -> Response:
        return _json(await _in_thread(self._home.overview, request.path_params["name"]))

    async def live(self, request: Request) -> Response:
        name = request.path_params["name"]
        await _in_thread(self._home.folder_of, name)
        return self._events(
            lambda: self._home.experiment(name).summary(), lambda: self._home.experiment(name).refresh_delay_s()
        )

    async def view(self, request: Request) -> Response:
        name, view = request.path_params["name"], request.path_params["view"]
        return _json_body(await _in_thread(lambda: self._home.experiment(name).view(view)))

    async def trials(self, request: Request) -> Response:
        name, query = request.path_params["name"], request.query_params
        offset = query.get("offset", "0")
        arguments: dict[str, Any] = {
            "sort": query.get("sort", "trial"),
            "descending": query.get("descending") == "true",
            "status": query.get("status", ""),
            "text": query.get("text", ""),
            "offset": int(offset) if offset.isascii() and offset.isdigit() and len(offset) < 10 else 0,
        }
        return _json(await _in_thread(lambda: self._home.experiment(name).trials(**arguments)))

    async def trial(self, request: Request) -> Response:
        name, trial_id = request.path_params["name"], request.path_params["trial"]
        return _json(await _in_thread(lambda: self._home.experiment(name).trial(trial_id)))

    async def command(self, request: Request) -> Response:
        folder = await _in_thread(self._home.folder_of, request.path_params["name"])
        word, args = _parse_command(await request.body())
        answer = await _in_thread(send_command, folder, word, *args)
        await _in_thread(lambda: self._home.experiment(folder.name).refresh_soon())
        self._command_sent.set()
        self._command_sent = asyncio.Event()
        return _json({"answer": answer})

    def _events(
        self, make: Callable[[], Mapping[str, Any]], delay_s: Callable[[], float] = lambda: 0.0
    ) -> StreamingResponse:
        """Return server-sent events with the values of `make`, one whenever the value changes.

        `delay_s`: returns the time until the value can change.
        """

        def next_event() -> tuple[bytes, float]:
            return b"data: " + json_bytes(make()) + b"\n\n", delay_s()

        async def events() -> AsyncIterator[bytes]:
            last, silent_s = b"", 0.0
            while True:
                try:
                    event, unchanged_s = await _in_thread(next_event)
                except (NotFound, RecordError) as error:
                    yield b"event: gone\ndata: " + json_bytes({"error": str(error)}) + b"\n\n"
                    return
                if event != last or silent_s >= _KEEP_ALIVE_S:
                    yield event if event != last else b":\n\n"  # a comment
                    last, silent_s = event, 0.0
                pause_s = min(max(_EVENT_INTERVAL_S, unchanged_s), _KEEP_ALIVE_S)
                try:
                    await asyncio.wait_for(self._command_sent.wait(), pause_s)
                except TimeoutError:
                    silent_s += pause_s

        return StreamingResponse(events(), media_type="text/event-stream")


async def _in_thread(function: Callable[..., _T], *args: object) -> _T:
    """Call the function in a thread. When the board ends, it does not wait for the function."""
    return await run_sync(partial(function, *args), abandon_on_cancel=True)


def _parse_command(body: bytes) -> tuple[str, list[Any]]:
    """Return the word and the arguments of a command. Raises ValueError."""
    try:
        command = json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("a command is JSON, for example {'word': 'stop_trial', 'args': [3]}") from None
    word, args = (command.get("word"), command.get("args", [])) if isinstance(command, dict) else (None, None)
    if word not in _COMMANDS or not isinstance(args, list):
        words = ", ".join(sorted(_COMMANDS))
        raise ValueError(f"a command has a word, one of {words}, and a list of args; got {command!r}")
    return word, args


def _json(value: object) -> Response:
    return _json_body(json_bytes(value))


def _json_body(body: bytes) -> Response:
    return Response(body, media_type="application/json")


async def _error(request: Request, error: Exception, *, status: int) -> Response:
    return Response(json_bytes({"error": str(error)}), status, media_type="application/json")
