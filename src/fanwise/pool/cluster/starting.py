"""Connects a pool to a Ray cluster: starts the Ray driver process and the listener, and waits for hosts.

All problems with the cluster are reported here, before a job runs.
"""

import contextlib
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ...base.errors import ClusterError, NotInstalled
from ...base.text import counted
from ...links.hub import Hub
from ...links.shared_secret import new_secret
from ..output import tail
from ..runtime_environment import own_path
from ..settings import ClusterSettings
from .engine import ClusterEngine
from .versions import versions

_log = logging.getLogger(__name__)

_BOOT = (
    "import json, sys; c = json.loads(sys.stdin.readline()); sys.path[:] = c['path']; "
    "from fanwise.pool.cluster import with_ray; with_ray.main(c)"
)
_EXIT_S = 15.0
_ANSWER_S = 5.0
_POLL_S = 0.2

# Pause before a lost cluster is tried again.
_PAUSE_S = 10.0

Event = Mapping[str, Any]


class RayProcess:
    """The Ray driver process, see `with_ray`. Settings and events are lines of JSON on its standard input and output.

    Settings are not passed on the command line or in the environment, because they contain the secret of the pool's
    links.

    Args:
        config: the settings for `with_ray.main`.
        log: file for its standard error, which includes Ray's messages.
        on_event: called with each event, and at the end with `{"kind": "gone", "text": ...}`.
    """

    def __init__(self, config: Mapping[str, object], log: Path, on_event: Callable[[Event], None]) -> None:
        self._log = log
        self._on_event = on_event
        with log.open("ab") as errors:
            self._process = subprocess.Popen(
                [sys.executable, "-P", "-c", _BOOT],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                start_new_session=True,  # Ctrl-C is for the pool, which ends this process
            )
        self.send({"path": own_path(), **config})
        self._thread = threading.Thread(target=self._read, name="fanwise-ray", daemon=True)
        self._thread.start()

    def send(self, values: Mapping[str, object]) -> None:
        """Send a line of JSON. Does nothing if the process has exited."""
        assert self._process.stdin is not None, "asked for a pipe"
        with contextlib.suppress(BrokenPipeError, ValueError):  # ValueError: the pipe is closed
            self._process.stdin.write(json.dumps(dict(values)) + "\n")
            self._process.stdin.flush()

    def _read(self) -> None:
        assert self._process.stdout is not None, "asked for a pipe"
        with self._process.stdout as lines:
            for line in lines:
                with contextlib.suppress(json.JSONDecodeError):  # printed by Ray
                    self._on_event(json.loads(line))
        self._process.wait()
        self._close_stdin()
        text = f"exit code {self._process.returncode}\n{tail(self._log)}".rstrip()
        self._on_event({"kind": "gone", "text": text})

    def _close_stdin(self) -> None:
        assert self._process.stdin is not None, "asked for a pipe"
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.close()

    def close(self) -> None:
        """End the process and all host processes. Blocks until it has exited."""
        self._close_stdin()
        try:
            self._process.wait(_EXIT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
        if threading.current_thread() is not self._thread:
            self._thread.join()


class ClusterStart:
    """The connection of a pool to a cluster; see `backend.Running`. `engine` has hosts when `begin` has returned."""

    def __init__(self, hub: Hub, folder: Path, settings: ClusterSettings, seed: int) -> None:
        where = f"on the Ray cluster {settings.address}"
        self.engine = ClusterEngine(hub, seed=seed, patience_s=settings.start_within_s, description=where)
        self.engine.host_listeners.append(self._on_hosts)
        self._hub = hub
        self._folder = folder
        self._settings = settings
        self._changed = threading.Condition()
        self._fatal: Event | None = None
        self._failed: dict[str, Event] = {}
        self._expected: list[str] | None = None
        self._joined: set[str] = set()
        self._names: dict[str, str] = {}  # the node of each host that has ever joined, by the host's key
        self._process: RayProcess | None = None
        self._listener: Any = None  # a TcpListener, whose module loads ssl
        self._secret = new_secret()
        self._is_lost = False
        self._reason = ""
        self._closing = threading.Event()
        self._lock = threading.Lock()  # guards `_process` and the decision to start another one

    def begin(self) -> None:
        """Block until all hosts have joined for which the cluster has room.

        Raises:
            NotInstalled: Ray is not installed.
            ClusterError: there is no cluster, its resources are too small, or its versions differ.
        """
        until_s = time.monotonic() + self._settings.start_within_s
        self._start_process()
        # The process has the same timeout, but Ray's first call may take minutes.
        self._wait_for_settled(until_s + _ANSWER_S)
        expected = self._expected or []
        while time.monotonic() < until_s:
            self._raise_fatal()
            if expected and all(key in self._joined or key in self._failed for key in expected):
                break
            self._wait(until_s)
        self._check(expected)

    def _start_process(self) -> None:
        settings = self._settings
        config = {
            "address": settings.address,
            "bundles": [dict(bundle) for bundle in settings.bundles],
            "runtime_env": settings.runtime_env,
            "within_s": settings.start_within_s,
            "versions": versions(),
            "folder": str(self._folder),
        }
        with self._lock:
            if not self._closing.is_set():
                self._process = RayProcess(config, self._folder / "ray.log", self._on_event)

    def _check(self, expected: Sequence[str]) -> None:
        wrong = [event["text"] for event in self._failed.values() if event["why"] == "versions"]
        if wrong:
            raise ClusterError(
                "not all nodes run the versions of this program:\n"
                + "\n".join(sorted(wrong))
                + "\nInstall the same there, or start the nodes from one image; nothing was started."
            )
        if self._joined:
            return
        why = "; ".join(str(event["text"]) for event in self._failed.values())
        if not expected:
            why = why or "it has no node with a CPU"
        if not why:
            why = (
                f"Ray has not started a host on any of {counted(len(expected), 'node')}. Each asks for all CPUs and "
                f"GPUs of its node: others may hold some, see `ray status`. Ask for less: bundles=[{{'CPU': 1}}]"
            )
        raise ClusterError(
            f"no node of the Ray cluster at {self._settings.address!r} has joined within "
            f"{self._settings.start_within_s:g} s: {why}"
        )

    def _wait_for_settled(self, until_s: float) -> None:
        while self._expected is None:
            self._raise_fatal()
            if time.monotonic() >= until_s:
                self._raise_for_token()
                output = tail(self._folder / "ray.log")
                raise ClusterError(
                    f"Ray did not answer within {self._settings.start_within_s:g} s at {self._settings.address!r}"
                    + (f"; its last output:\n{output}" if output else ", and printed nothing")
                )
            self._wait(until_s)

    def _wait(self, until_s: float) -> None:
        with self._changed:
            self._changed.wait(min(_POLL_S, max(0.0, until_s - time.monotonic())))

    def _raise_fatal(self) -> None:
        fatal = self._fatal
        if fatal is None:
            return
        text = fatal["text"]
        match fatal.get("why"):
            case "not-installed":
                raise NotInstalled(f"Pool(ray=...) needs Ray. Install it: pip install 'fanwise[ray]' ({text}).")
            case "no-cluster":
                self._raise_for_token()
                raise ClusterError(
                    f"there is no Ray cluster: {text}\nStart one with `ray start --head`, or give its address: "
                    f"Pool(ray='10.0.0.1:6379')"
                )
            case "versions":
                raise ClusterError(f"the Ray cluster runs other versions than this program: {text}")
            case "too-few":
                raise ClusterError(f"the cluster never had enough within {self._settings.start_within_s:g} s: {text}")
        raise ClusterError(f"the pool cannot begin on its Ray cluster: {text}")

    def _raise_for_token(self) -> None:
        """Raise if the cluster requires a token, which Ray reports only in its log until the timeout."""
        if "Unauthenticated" in tail(self._folder / "ray.log"):
            raise ClusterError(
                f"the Ray cluster at {self._settings.address!r} requires a token. Set RAY_AUTH_MODE=token"
                f" for Ray to take the token of RAY_AUTH_TOKEN or ~/.ray/auth_token; `ray get-auth-token` shows it"
            )

    def _on_hosts(self) -> None:
        hosts = self.engine.hosts
        with self._changed:
            self._joined = {host.key for host in hosts}
            self._names |= {host.key: str(host) for host in hosts}
            self._changed.notify_all()

    def _on_event(self, event: Event) -> None:
        if event["kind"] == "connected":
            event = self._listen(event["address"])
        kind = event["kind"]
        has_begun = self._expected is not None
        with self._changed:
            if kind in ("fatal", "gone") and self._fatal is None:
                self._fatal = event
            elif kind == "failed":
                self._failed[event["host"]] = event
            elif kind == "settled":
                self._expected = event["hosts"]
            self._changed.notify_all()
        if has_begun and not self._closing.is_set():
            self._on_later_event(event)

    def _on_later_event(self, event: Event) -> None:
        """Handle an event after `begin`, when failures are logged and start-ups repeated."""
        match event:
            case {"kind": "settled"}:
                self._is_lost = False
                _log.info("the Ray cluster at %r answers again", self._settings.address)
            case {"kind": "failed", "why": "versions" | "not-started"}:
                _log.warning("a node of the cluster is not used: %s", event["text"])
            case {"kind": "failed"}:
                node = self._names.get(event["host"], event["host"])
                _log.warning(
                    "the host on node %s has ended; another is started if the node lives: %s", node, event["text"]
                )
            case {"kind": "fatal"}:
                self._reason = event["text"]
            case {"kind": "gone"}:
                self._on_ray_lost(self._reason or event["text"])
                self._reason = ""

    def _on_ray_lost(self, reason: str) -> None:
        """Start another driver process after a pause, unless the pool is closed meanwhile."""
        if not self._is_lost:
            self._is_lost = True
            _log.warning(
                "the connection to the Ray cluster at %r was lost, and with it all hosts; the pool tries to connect "
                "again: %s",
                *(self._settings.address, reason),
            )
        while not self._closing.wait(_PAUSE_S):
            try:
                return self._start_process()
            except OSError as error:
                _log.warning("the process that connects to Ray cannot be started: %s", error)

    def _listen(self, address: str) -> Event:
        from ...links.security.certificates import Identity
        from ...links.transports.tcp import TcpListener

        if self._listener is None:
            try:
                identity = Identity(self._secret)
                self._listener = TcpListener(self._hub, address, 0, identity, on_link=self.engine.on_link)
            except (OSError, ValueError) as error:
                text = f"this program cannot listen at {address}, where nodes would join: {error}"
                return {"kind": "fatal", "text": text}
        with self._lock:
            assert self._process is not None, "it has sent an event"
            self._process.send({"host": self._listener.host, "port": self._listener.port, "secret": self._secret})
        return {"kind": "listening"}

    def leave(self) -> bool:
        return False

    def close(self) -> None:
        self._closing.set()
        self.engine.close()
        if self._listener is not None:
            self._listener.close()

    def wait_closed(self) -> None:
        with self._lock:
            process = self._process
        if process is not None:
            process.close()
