"""From an address to a pool's engine with hosts: the process that speaks with Ray, the listener, and the wait.

    begin() --> RayProcess --connected--> listener at the node's address --> its hosts join --> returns
                    '--fatal, or a node of other versions, or nobody within start_within_s --> ClusterError

Blocks its caller, off the hub's thread. What can be wrong with a cluster is said here, once, before a job runs.
"""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ...base.errors import ClusterError, NotInstalled
from ...base.text import counted
from ...links.hub import Hub
from ...links.shared_secret import new_secret
from .engine import ClusterEngine
from .hosts import HostFacts
from .ray_process import News, RayProcess
from .settings import ClusterSettings

_log = logging.getLogger(__name__)

_GIVES_UP_S = 5.0

# A cluster that was restarted is found again. The pause before each try is twice the last one.
_FIRST_PAUSE_S = 2.0
_LONGEST_PAUSE_S = 30.0
_LOST_FOR_S = 1800.0


class ClusterStart:
    """See the module. `engine` is there from the beginning; it has hosts when `begin` has returned."""

    def __init__(self, hub: Hub, folder: Path, settings: ClusterSettings, seed: int) -> None:
        self.engine = ClusterEngine(hub, seed=seed, patience_s=settings.start_within_s, on_hosts=self._on_hosts)
        self._hub = hub
        self._folder = folder
        self._settings = settings
        self._news = threading.Condition()
        self._fatal: News | None = None
        self._failed: dict[str, News] = {}
        self._expected: list[str] | None = None
        self._joined: set[str] = set()
        self._called: dict[str, str] = {}  # the node of each host that has ever joined, by the host's key
        self._process: RayProcess | None = None
        self._listener: Any = None  # Any: a TcpListener, whose module loads ssl
        self._secret = new_secret()
        self._lost_s: float | None = None  # when the cluster was lost, and when it was found again
        self._found_s: float | None = None
        self._pause_s = _FIRST_PAUSE_S
        self._reason = ""
        self._closing = threading.Event()
        self._lock = threading.Lock()  # of `_process`, and whether there is another

    def begin(self) -> None:
        """Block until the hosts have joined that the cluster has places for.

        Raises:
            NotInstalled: Ray is not there.
            ClusterError: no cluster, too few resources, other versions; what was tried and what there is.
        """
        until_s = time.monotonic() + self._settings.start_within_s
        self._speak_with_ray()
        # It gives up in time itself where it can; Ray's own first call may take minutes.
        self._wait(lambda: self._expected is not None, until_s + _GIVES_UP_S)
        expected = self._expected or []
        while not self._is_settled(expected) and time.monotonic() < until_s:
            self._wait_news(until_s)
        self._check(expected)

    def _speak_with_ray(self) -> None:
        from .with_ray import versions

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
                self._process = RayProcess(config, self._folder / "ray.log", self._on_news)
                self._process.start()

    def _is_settled(self, expected: Sequence[str]) -> bool:
        self._raise_fatal()
        return bool(expected) and all(key in self._joined or key in self._failed for key in expected)

    def _check(self, expected: Sequence[str]) -> None:
        wrong = [news["text"] for news in self._failed.values() if news["why"] == "versions"]
        if wrong:
            raise ClusterError(
                "not all nodes run the versions of this program:\n"
                + "\n".join(sorted(wrong))
                + "\nInstall the same there, or start the nodes from one image; nothing was started."
            )
        if self._joined:
            return
        told = "; ".join(str(news["text"]) for news in self._failed.values())
        raise ClusterError(
            f"no node of the Ray cluster at {self._settings.address!r} has joined within "
            f"{self._settings.start_within_s:g} s: {told or self._why_nobody(expected)}"
        )

    def _why_nobody(self, expected: Sequence[str]) -> str:
        if not expected:
            return "it has no node with a CPU"
        return (
            f"Ray has not started a host on any of {counted(len(expected), 'node')}. Each asks for all CPUs and GPUs "
            f"of its node: others may hold some, see `ray status`. Ask for less: bundles=[{{'CPU': 1}}]"
        )

    def _wait(self, fact: Callable[[], bool], until_s: float) -> None:
        while not fact():
            self._raise_fatal()
            if time.monotonic() >= until_s:
                assert self._process is not None, "it was started"
                self._raise_for_token()
                said = self._process.last_lines()
                raise ClusterError(
                    f"Ray did not answer within {self._settings.start_within_s:g} s at {self._settings.address!r}"
                    + (f"; last it said:\n{said}" if said else ", and said nothing")
                )
            self._wait_news(until_s)

    def _wait_news(self, until_s: float) -> None:
        with self._news:
            self._news.wait(min(0.2, max(0.0, until_s - time.monotonic())))

    def _raise_fatal(self) -> None:
        fatal = self._fatal
        if fatal is None:
            return
        why, text = fatal.get("why"), fatal["text"]
        if why == "not-installed":
            raise NotInstalled(f"Pool(ray=...) needs Ray. Install it: pip install 'fanwise[ray]' ({text}).")
        if why == "no-cluster":
            self._raise_for_token()
            raise ClusterError(
                f"there is no Ray cluster: {text}\nStart one with `ray start --head`, or give its address: "
                f"Pool(ray='10.0.0.1:6379')"
            )
        if why == "versions":
            raise ClusterError(f"the Ray cluster runs other versions than this program: {text}")
        if why == "too-few":
            raise ClusterError(f"the cluster never had enough within {self._settings.start_within_s:g} s: {text}")
        raise ClusterError(f"the pool cannot begin on its Ray cluster: {text}")

    def _raise_for_token(self) -> None:
        """Ray repeats until its time is over that it was refused, in its log only."""
        if self._process is not None and "Unauthenticated" in self._process.last_lines():
            raise ClusterError(
                f"the Ray cluster at {self._settings.address!r} requires a token. Set RAY_AUTH_MODE=token"
                f" for Ray to take the token of RAY_AUTH_TOKEN or ~/.ray/auth_token; `ray get-auth-token` shows it"
            )

    # -- news, on other threads --------------------------------------------------------------------------------------

    def _on_hosts(self, hosts: tuple[HostFacts, ...]) -> None:
        with self._news:
            self._joined = {host.key for host in hosts}
            self._called |= {host.key: str(host) for host in hosts}
            self._news.notify_all()

    def _on_news(self, news: News) -> None:
        if news["kind"] == "connected":
            news = self._listen(news["address"])
        kind = news["kind"]
        began = self._expected is not None
        with self._news:
            if kind in ("fatal", "gone") and self._fatal is None:
                self._fatal = news
            elif kind == "failed":
                self._failed[news["host"]] = news
            elif kind == "settled":
                self._expected = news["hosts"]
            self._news.notify_all()
        if began and not self._closing.is_set():
            self._on_later_news(news)

    def _on_later_news(self, news: News) -> None:
        """The pool has begun: what goes wrong from now on is logged, and tried again."""
        if news["kind"] == "settled":
            self._found_s = time.monotonic()
            _log.info("the Ray cluster at %r answers again", self._settings.address)
        elif news["kind"] == "failed" and news["why"] in ("versions", "not-started"):
            _log.warning("a node of the cluster is not used: %s", news["text"])
        elif news["kind"] == "failed":
            where = self._called.get(news["host"], news["host"])
            _log.warning("the host on node %s has ended; another is started if the node lives: %s", where, news["text"])
        elif news["kind"] == "fatal":
            self._reason = news["text"]
        elif news["kind"] == "gone":
            self._on_ray_lost(self._reason or news["text"])
            self._reason = ""

    def _on_ray_lost(self, reason: str) -> None:
        """Start another process that speaks with Ray, after a pause; give up when none has succeeded for too long."""
        now_s = time.monotonic()
        if self._found_s is not None and now_s > self._found_s + _LONGEST_PAUSE_S:  # else it comes and goes
            self._lost_s, self._pause_s = None, _FIRST_PAUSE_S
        self._found_s = None
        if self._lost_s is None:
            self._lost_s = now_s
            _log.warning(
                "the connection to the Ray cluster at %r was lost, and with it all hosts; the pool tries to connect "
                "again for %g minutes: %s",
                *(self._settings.address, _LOST_FOR_S / 60, reason),
            )
        if now_s + self._pause_s > self._lost_s + _LOST_FOR_S:
            text = (
                f"the Ray cluster at {self._settings.address!r} has not answered for {_LOST_FOR_S / 60:g} minutes, so "
                f"the pool has given it up. Make a new pool when the cluster is there again. Last reason: {reason}"
            )
            _log.error("%s", text)
            self._hub.call_soon(lambda: self.engine.give_up(text))
            return
        pause_s, self._pause_s = self._pause_s, min(2 * self._pause_s, _LONGEST_PAUSE_S)
        if not self._closing.wait(pause_s):
            try:
                self._speak_with_ray()
            except OSError as error:
                self._on_ray_lost(f"its process cannot be started: {error}")

    def _listen(self, address: str) -> News:
        """Have hosts join at this machine's address, as the cluster names it."""
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
            assert self._process is not None, "it has said something"
            self._process.tell({"host": self._listener.host, "port": self._listener.port, "secret": self._secret})
        return {"kind": "listening"}

    # -- the end -----------------------------------------------------------------------------------------------------

    def leave(self) -> bool:
        """Return False: hosts end with their pool."""
        return False

    def close(self) -> None:
        """End every job, and let the hosts go. On the hub's thread, and does not block."""
        self._closing.set()
        self.engine.close()
        if self._listener is not None:
            self._listener.close()

    def wait_closed(self) -> None:
        """Block until the hosts are gone, and who speaks with Ray. After the engine is closed, off the hub's thread."""
        with self._lock:
            process = self._process
        if process is not None:
            process.close()
