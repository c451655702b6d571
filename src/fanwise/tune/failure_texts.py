"""What is told of a search whose first trials all failed alike. Knows only text."""

from .orders import Reason


def equal_failures_text(limit: int, reason: Reason) -> str:
    """The message of a SearchFailedError: the failure, its traceback, and what the trial had printed besides."""
    text = f"the first {limit} trials to finish all failed alike ({reason.kind}): {reason.text}"
    if reason.traceback:
        text += f"\n{reason.traceback.rstrip()}"
    if said := _without(reason.traceback, reason.last_output):
        text += f"\nlast output:\n{said}"
    return text + "\nRepair the objective; or set max_equal_failures=None to go on whatever happens."


def _without(traceback: str, output: str) -> str:
    """The output without the traceback at its end: Python prints it there as well, and there it may be cut short."""
    known, said = set(traceback.splitlines()), output.rstrip().splitlines()
    while said and said[-1] in known:
        said.pop()
    return "\n".join(said)
