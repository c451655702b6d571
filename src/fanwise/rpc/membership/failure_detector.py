"""Decides when members without a link to the coordinator count as lost. Pure: no link or clock.

    its link was reset        --> may reconnect for RETURN_S; for `heartbeat_s` while its process is seen to run
    it never connected here   --> the previous coordinator died: wait for `heartbeat_s`, or while its process runs

On another host, a reset may mean that the process has ended, or that a device on the way has cut the connection. The
coordinator sees the processes of its own host. A process of another host runs while its host accepts connections at the
process's own port; if that is unknown, only a reconnect shows that it runs.
"""

from dataclasses import dataclass, field
from typing import Literal

RETURN_S = 1.0

# What is known of a process just now; "unknown" also where its port refuses, which a firewall may do.
Sign = Literal["ended", "lives", "unknown"]


@dataclass(frozen=True, slots=True)
class Gone:
    """It counts as lost. `dead`: for certain; else it may be out of reach only."""

    why: str
    dead: bool


@dataclass(slots=True)
class FailureDetector:
    """Since when who is absent, as one coordinator knows it.

    Attributes:
        heartbeat_s: how long who lives may be without a link.
        opened_s: when this coordinator began.
    """

    heartbeat_s: float
    opened_s: float
    _resets: dict[int, tuple[float, str]] = field(default_factory=dict)  # by incarnation: since when, and why

    def reset(self, incarnation: int, now_s: float, why: str) -> None:
        """Its link has ended, as when its process ends."""
        self._resets[incarnation] = now_s, why

    def over(self, incarnation: int) -> None:
        """It has come back, or is a member no more."""
        self._resets.pop(incarnation, None)

    def is_awaited(self, incarnation: int) -> bool:
        """Whether its link was reset, and it may come back."""
        return incarnation in self._resets

    def for_s(self, incarnation: int, now_s: float) -> float:
        """How long it has had no link."""
        return now_s - self._resets.get(incarnation, (self.opened_s, ""))[0]

    def decide(self, incarnation: int, now_s: float, sign: Sign) -> Gone | None:
        """Whether a member without a link counts as lost now; None: it is waited for."""
        since_s, why = self._resets.get(incarnation, (self.opened_s, ""))
        if sign == "ended":
            return Gone(why or "its process has ended", dead=True)
        away_s, was_reset = now_s - since_s, incarnation in self._resets
        if was_reset and sign == "unknown":
            return Gone(why, dead=True) if away_s >= RETURN_S else None
        if away_s < self.heartbeat_s or (not was_reset and sign == "lives"):
            return None
        return Gone(f"it did not come back in {self.heartbeat_s:g} s" + (f" ({why})" if why else ""), dead=False)
