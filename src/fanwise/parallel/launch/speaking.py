"""What a rank does in the name of the whole run: it prints, and reports, once for all processes.

Standard output and error go to the supervisor while a rank is the first, and else to where they went before.
"""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TextIO

from ...pool.contract import Decision, Reply
from ...pool.current import CurrentJob


class OutputSink(Protocol):
    """Takes what is printed to the supervisor."""

    def say(self, name: str, *content: Any) -> None: ...  # Any: plain values


class ReportingTeam(Protocol):
    """What reporting needs of a team."""

    @property
    def place(self) -> int: ...

    def report(self, values: Mapping[str, Any]) -> Decision: ...  # Any: numbers


class ReportingJob(CurrentJob):
    """The current job of a rank: what it reports is the run's, and is decided for all ranks together."""

    def __init__(self, job: CurrentJob, team: ReportingTeam) -> None:
        self.__dict__.update(job.__dict__)
        self._team = team

    def report(self, values: object, *, checkpoint: str | None = None) -> Reply:
        assert isinstance(values, Mapping), "metrics by name"
        return Reply(self._team.report(values))

    def begin_report(self, values: object) -> "_Replied":
        return _Replied(self.report(values))


@dataclass(frozen=True, slots=True)
class _Replied:
    """What all have decided together is there at once."""

    what: Reply

    def reply(self, within_s: float) -> Reply:
        return self.what


class Forwarding(io.TextIOBase):
    """Standard output or error of a rank. `name`: "out" or "err"."""

    def __init__(self, before: TextIO, name: str, team: ReportingTeam, sender: OutputSink) -> None:
        self._before = before
        self._name = name
        self._team = team
        self._sender = sender
        self._line = ""

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._before.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a plain attribute there
        return self._before.encoding

    def write(self, text: str) -> int:
        if self._team.place != 0:
            return self._before.write(text)
        self._line += text
        if "\n" in text or len(self._line) > 4096:
            self.flush()
        return len(text)

    def flush(self) -> None:
        line, self._line = self._line, ""
        if line:
            self._sender.say(self._name, line)
        self._before.flush()
