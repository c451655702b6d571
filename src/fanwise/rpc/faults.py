"""Faults on purpose: where a test may drop and delay what an agent sends and serves.

    agent.call  -- drops_call?    --> the call fails at once, as one that was not answered in time
    agent.request -- drops_message? --> the message was not answered; who sent it repeats it
    server      -- delay_s        --> the call rests there before it runs

An agent has none unless its options bring one. Knows no name of torch's; `faulty` translates these.
"""

from collections.abc import Callable
from typing import Any, Protocol


class Faults(Protocol):
    """What goes wrong. Asked by any thread; does not block."""

    def drops_call(self, to: int, function: Callable[..., Any], *, is_remote: bool) -> bool:  # Any: the user's
        """Whether a call to worker `to` is lost. `is_remote`: its value would stay there."""

    def drops_message(self, to: int, method: str, args: tuple[object, ...]) -> bool:
        """Whether this request to worker `to` is lost."""

    def delay_s(self, function: Callable[..., Any], *, is_remote: bool) -> float:  # Any: the user's
        """How long a call that has come rests before it runs, in seconds."""
