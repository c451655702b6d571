"""Detects that all trials of a search fail alike, which suggests a bug in the program rather than bad configurations.

Messages are compared without their numbers, so "boom 0.16" and "boom 0.92" are alike.
"""

import re
from collections import Counter
from typing import final

from ...base.tracebacks import before_traceback
from .actions import Reason

_NUMBER = re.compile(r"[-+]?(?:0x[0-9a-f]+|\d+(?:\.\d+)?(?:e[-+]?\d+)?)", re.IGNORECASE)
_MAX_REASONS = 100
_ADVICE = "Fix the objective, or set max_equal_failures=None to continue after any failure."


def equality_key(reason: Reason) -> tuple[str, str]:
    """Return a key that is equal for reasons of the same kind whose first lines differ only in numbers."""
    return reason.kind, _NUMBER.sub("#", reason.text.partition("\n")[0])


@final
class Failures:
    """Counts the outcome of each trial when it first pauses or finishes. A pause counts as a success.

    Args:
        max_equal: the search fails if the first `max_equal` outcomes are failures and all alike. None: never.
    """

    def __init__(self, max_equal: int | None) -> None:
        self._max_equal = max_equal
        self._num_outcomes = 0
        self._num_failed = 0
        self._reasons: Counter[tuple[str, str]] = Counter()
        self._examples: dict[tuple[str, str], Reason] = {}

    def add(self, reason: Reason | None, *, has_reported: bool) -> str | None:
        """Count the outcome of a trial. Return the error message if the search should fail now, or None.

        `reason`: why the trial failed, or None if it did not. A timeout after a report does not count as a failure.
        """
        self._num_outcomes += 1
        if reason is None or (reason.kind == "time-out" and has_reported):
            return None
        self._num_failed += 1
        key = equality_key(reason)
        if key in self._reasons or len(self._reasons) < _MAX_REASONS:
            self._reasons[key] += 1
            self._examples.setdefault(key, reason)
        if self._num_outcomes == self._max_equal and self._reasons[key] == self._max_equal:
            summary = f"the first {self._max_equal} trials to finish all failed alike"
            if self._max_equal == 1:
                summary = "the first trial to finish failed"
            return f"{_text(summary, reason)}\n{_ADVICE}"
        return None

    def all_failed(self, num_started: int) -> str | None:
        """Return the error message if all started trials of a finished search failed. None also without `max_equal`."""
        if self._max_equal is None or not num_started or self._num_failed < num_started:
            return None
        key, count = self._reasons.most_common(1)[0]
        trials = "the only trial" if num_started == 1 else f"all {num_started} trials"
        share = "" if count == num_started else f"; {count} of them alike"
        return _text(f"{trials} failed{share}", self._examples[key])


def _text(summary: str, reason: Reason) -> str:
    text = f"{summary} ({reason.kind}): {reason.text}"
    if reason.traceback:
        text += f"\n{reason.traceback.rstrip()}"
    if output := before_traceback(reason.traceback, reason.last_output):
        text += f"\nlast output:\n{output}"
    return text
