"""Whether the trials of a search fail for one common reason: then it is the program, not the configurations.

Numbers in a message do not count: "boom 0.16" and "boom 0.92" are one reason.
"""

import re
from collections import Counter
from typing import final

from ..tracebacks import before_traceback
from .orders import Reason

_NUMBER = re.compile(r"[-+]?(?:0x[0-9a-f]+|\d+(?:\.\d+)?(?:e[-+]?\d+)?)", re.IGNORECASE)
_MOST_REASONS = 100
ADVICE = "Repair the objective; or set max_equal_failures=None to go on whatever happens."


def alike(reason: Reason) -> tuple[str, str]:
    """What two reasons share that are the same but for numbers."""
    return reason.kind, _NUMBER.sub("#", reason.text.partition("\n")[0])


@final
class Failures:
    """Counts how the trials of a search turned out: each once, when it first pauses or finishes.

    A trial that pauses has reported: the program works, whatever becomes of the trial later.

    Args:
        max_equal: so many trials that turn out first and all fail alike are a failure of the search. None: nothing is.
    """

    def __init__(self, max_equal: int | None) -> None:
        self._max_equal = max_equal
        self._num_known = 0
        self._failed = 0
        self._reasons: Counter[tuple[str, str]] = Counter()
        self._examples: dict[tuple[str, str], Reason] = {}

    def add(self, reason: Reason | None, *, has_reported: bool) -> str | None:
        """A trial has paused or finished; None: it did not fail. Returns why the search should fail now, or None.

        A trial that reported and took too long is no sign that the program is wrong.
        """
        self._num_known += 1
        if reason is None or (reason.kind == "time-out" and has_reported):
            return None
        self._failed += 1
        key = alike(reason)
        if key in self._reasons or len(self._reasons) < _MOST_REASONS:
            self._reasons[key] += 1
            self._examples.setdefault(key, reason)
        if self._num_known == self._max_equal and self._reasons[key] == self._max_equal:
            alike_text = f"the first {self._max_equal} trials to finish all failed alike"
            text = _text("the first trial to finish failed" if self._max_equal == 1 else alike_text, reason)
            return f"{text}\n{ADVICE}"
        return None

    def all_failed(self, num_started: int) -> str | None:
        """What to tell at the end of a search in which each trial that was started failed; None: one did not."""
        if self._max_equal is None or not num_started or self._failed < num_started:
            return None
        key, count = self._reasons.most_common(1)[0]
        how_many = "the only trial" if num_started == 1 else f"all {num_started} trials"
        often = "" if count == num_started else f"; the commonest reason, {count} times,"
        return _text(f"{how_many} failed{often}", self._examples[key])


def _text(what: str, reason: Reason) -> str:
    """The failure, its traceback, and what the trial had printed besides."""
    text = f"{what} ({reason.kind}): {reason.text}"
    if reason.traceback:
        text += f"\n{reason.traceback.rstrip()}"
    if said := before_traceback(reason.traceback, reason.last_output):
        text += f"\nlast output:\n{said}"
    return text
