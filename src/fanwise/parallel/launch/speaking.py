"""Output and reports of a rank, which are those of the whole run.

The standard output and error of the first rank go to the supervisor. Those of the others stay where they are.
"""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol, TextIO

from ...pool.contract import Decision, Reply
from ...pool.current import CurrentJob


class OutputSink(Protocol):
    """Sends messages to the supervisor."""

    def say(self, name: str, *content: Any) -> None: ...  # Any: what can be pickled


class ReportingTeam(Protocol):
    """What reports need of a team."""

    @property
    def place(self) -> int: ...

    def report(self, values: Mapping[str, Any]) -> Decision: ...  # Any: numbers


class ReportingJob(CurrentJob):
    """The current job of a rank. Its reports are made once for all ranks, which get the same decision."""

    def __init__(self, job: CurrentJob, team: ReportingTeam) -> None:
        self.__dict__.update(job.__dict__)
        self._team = team

    def report(self, values: object, *, checkpoint: str | None = None) -> Reply:
        assert isinstance(values, Mapping), "metrics by name"
        return Reply(self._team.report(values))

    def begin_report(self, values: object) -> "_Reported":
        return _Reported(self.report(values))


@dataclass(frozen=True, slots=True)
class _Reported:
    """A report that is decided already."""

    decision: Reply

    def reply(self, within_s: float) -> Reply:
        return self.decision


class Forwarding(io.TextIOBase):
    """Standard output or error of a rank. `name`: "out" or "err"."""

    def __init__(self, original: TextIO, name: str, team: ReportingTeam, sender: OutputSink) -> None:
        self._original = original
        self._name = name
        self._team = team
        self._sender = sender
        self._line = ""

    def writable(self) -> bool:
        return True

    def fileno(self) -> int:
        return self._original.fileno()

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a plain attribute there
        return self._original.encoding

    def write(self, text: str) -> int:
        if self._team.place != 0:
            return self._original.write(text)
        self._line += text
        if "\n" in text or len(self._line) > 4096:
            self.flush()
        return len(text)

    def flush(self) -> None:
        line, self._line = self._line, ""
        if line:
            self._sender.say(self._name, line)
        self._original.flush()
