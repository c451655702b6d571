"""Lines of text about a search, for the terminal and for `logging`."""

from collections.abc import Callable, Mapping
from typing import Any, final

from ...base.text import counted, printable
from .trials import Trial, TrialRow

_MAX_LINES = 20


@final
class News:
    """Collects up to 20 lines between two calls of `take`, and counts the others.

    Attributes:
        on_line: called as `on_line(line, is_failure)` for every line, also for those that are not collected.
    """

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._num_left_out = 0
        self.on_line: Callable[[str, bool], None] | None = None

    def add(self, make_line: Callable[[], str], *, is_failure: bool = False) -> None:
        """Add a line. `make_line` is slow, so it is called only if the line is collected or passed to `on_line`."""
        is_kept = len(self._lines) < _MAX_LINES
        self._num_left_out += not is_kept
        if not is_kept and self.on_line is None:
            return
        line = printable(make_line())
        if is_kept:
            self._lines.append(line)
        if self.on_line is not None:
            self.on_line(line, is_failure)

    def take(self) -> list[str]:
        """Return the lines since the last call. If there were more than 20, a further line counts the others."""
        lines, self._lines = self._lines, []
        if self._num_left_out:
            lines.append(f"(and {self._num_left_out} more events)")
            self._num_left_out = 0
        return lines


def start_line(trial: Trial, action: Mapping[str, Any]) -> str:
    settings = ", ".join(f"{name}={_format_value(value)}" for name, value in trial.config.items())
    attempt, from_iter = action["attempt"], action.get("from_iter", 0)
    suffix = f" again, attempt {attempt}" if attempt else ""
    if attempt and from_iter:
        suffix += f", from its checkpoint of report {from_iter}"
    if "source" in action:
        suffix += f", a clone of trial {action['source']}"
    if action.get("fallback"):
        suffix += ", drawn at random because the searcher took too long"
    return f"trial {trial.trial_id} scheduled{suffix}: {settings}"


def clone_line(trial_id: int, source: int) -> str:
    return (
        f"trial {source} has saved no checkpoint, so its clone, trial {trial_id}, starts from scratch; save one with "
        f"report(..., checkpoint=save). This warning is shown once."
    )


def end_line(row: TrialRow, metric: str, reason: list[str] | None, *, will_retry: bool) -> str:
    worker_time = "" if row.worker_time_s is None else f", {row.worker_time_s:.1f} s"
    line = f"trial {row.trial_id} {row.status.lower()}"
    if metric in row.values:
        line += f": {metric}={_format_value(row.values[metric])} after {counted(row.iter or 0, 'report')}{worker_time}"
    if reason is not None:
        kind, text = reason
        line += f" ({kind}): {text.partition(chr(10))[0]}"
    return line + (", will be retried" if will_retry else "")


def thread_line(trial_id: int, thread: str) -> str:
    return (
        f"trial {trial_id} left a thread running ({thread}), which keeps its worker busy until it ends. "
        f"Join it before the objective returns, or make it a daemon."
    )


def _format_value(value: object) -> str:
    return f"{value:.5g}" if isinstance(value, float) else str(value).replace("\n", "\\n")
