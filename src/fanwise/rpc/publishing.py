"""A worker says what it does, once a second, as long as a board of this user looks (`links.status_files`).

metrics --a thread of its own--> rates.said --> the status file of this worker

The thread runs only while a board looks, and is none of those that carry calls: a slow disk delays nothing but the next
status. While none looks, the hub's thread checks for one, once a second.
"""

import threading
import time
from collections import deque
from typing import Any, final

from ..base.errors import FanwiseError
from ..links.status_files import EVERY_S, StatusFile
from .agent import Agent
from .measuring import metrics_of
from .rates import said

_MOST_POINTS = 240  # of the past, in the file
_SHARE = 0.01  # of the time: in a large group it is said less often
_END_S = 5.0


@final
class Publisher:
    """See the module. `group`: the address at which the group has met."""

    def __init__(self, agent: Agent, group: str) -> None:
        self._agent = agent
        self._group = group
        self._file = StatusFile("rpc")
        self._is_over = threading.Event()
        self._thread: threading.Thread | None = None
        agent.later(EVERY_S, self._look)

    def close(self) -> None:
        """Nothing is said any more. Blocks until a status that is being written is written."""
        self._is_over.set()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join(_END_S)
        self._file.close()

    def _look(self) -> None:
        """Start the thread if a board looks; else check again later. On the hub's thread."""
        if self._is_over.is_set():
            return
        if self._file.is_wanted():
            self._thread = threading.Thread(target=self._publish, name="rpc status", daemon=True)
            self._thread.start()
        else:
            self._agent.later(EVERY_S, self._look)

    def _publish(self) -> None:
        before: dict[str, Any] | None = None  # Any: metrics
        before_s, pause_s = 0.0, EVERY_S
        past: deque[list[float]] = deque(maxlen=_MOST_POINTS)
        while not self._is_over.wait(pause_s):
            if not self._file.is_wanted():
                self._agent.later(EVERY_S, self._look)
                return
            now_s = time.monotonic()
            try:
                now = metrics_of(self._agent)
            except FanwiseError:  # it is being closed
                continue
            if before is not None:
                body = said(now, before, now_s - before_s)
                rates = body["a_second"]
                waiting = body["calls_waiting"] + body["actor_calls_waiting"]
                past.append([time.time(), rates["calls_made"], rates["calls_received"], waiting])
                self._file.write({**self._who(), **body, "past": list(past)})
            before, before_s = now, now_s
            pause_s = max(EVERY_S, (time.monotonic() - now_s) / _SHARE)

    def _who(self) -> dict[str, Any]:  # Any: plain values
        agent, group = self._agent, self._agent.group
        return {
            "group": self._group,
            "worker": agent.info.name,
            "rank": agent.info.id,
            "world_size": group.world_size,
            "is_coordinator": group.coordinator == agent.incarnation,
        }
