"""What a rank and its supervisor say to each other: reports of the rank's job, whose answers may come later.

say   "linked", "out" and "err" with text, "progress" with numbers      nobody waits for an answer
ask   "here", who this is                -> "peers": who all are, when all have come
      "report", numbers                  -> nothing, when it was taken
      "over", whether this is the first  -> "value": whether its result is the one that is wanted
"""

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ...pool.current import CurrentJob
from ..hosts.meeting import PeerInfo


class Talking:
    """The rank's side; `job`: the one that it is."""

    def __init__(self, job: CurrentJob) -> None:
        self._job = job

    def say(self, name: str, *content: Any) -> None:  # Any: plain values
        """Returns at once."""
        self._job.begin_report((name, *content))

    def ask(self, name: str, *content: Any) -> Mapping[str, Any]:  # Any: plain values
        """Blocks until it is answered."""
        return self._job.report((name, *content)).body or {}

    def who_is_where(self, info: PeerInfo) -> Mapping[int, PeerInfo]:
        """Tell who this is; who all are, when all have come."""
        return {each["rank"]: PeerInfo(**each) for each in self.ask("here", asdict(info))["peers"]}


def as_peers(peers: Mapping[int, PeerInfo]) -> dict[str, object]:
    """The answer to "here"."""
    return {"peers": [asdict(info) for info in peers.values()]}
