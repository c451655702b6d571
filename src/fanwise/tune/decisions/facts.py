"""What can happen in a search. Each fact has one time; facts are what the record keeps and what replay hands in again.

    Begin                       the search begins                Tick        time has passed
    Suggested                   the searcher has answered        Interrupt   somebody wants the search to end
    Ready, Reported, Ended,     of one attempt of a trial        Command     somebody wants something of one trial
      Free                                                       Enqueued    somebody wants a configuration tried
                                                                 Workers     somebody changes the number of workers
    Asked                       somebody offers to run one       Resumed     what ran is gone, the search goes on
                                trial, beside the workers
    Earlier                     a trial of an earlier search, before this one begins

Plain frozen values of JSON parts; `now_s` is seconds since the search began, without the time it was not running.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Literal, TypeAlias

from ...base.frozen import frozen
from ...pool.contract import OutcomeKind


@frozen
class Outcome:
    """How one attempt's process ended. `text` starts with the line that a person should read first.

    `threads`: what the objective left running when it ended, a line for each: its name and where it is.
    """

    kind: OutcomeKind
    text: str = ""
    traceback: str = ""
    last_output: str = ""
    threads: tuple[str, ...] = ()


@frozen
class Earlier:
    """A trial of an earlier search, of which the searcher is told before `Begin`.

    Args:
        trial_id: below 0; of those that are told the last one has -1.
        config: complete, of this space.
        reports: the values that it reported, in their order; each has all numbers that this search needs.
        status: how it ended.
    """

    now_s: float
    trial_id: int
    config: Mapping[str, object]
    reports: Sequence[Mapping[str, object]]
    status: str


@frozen
class Begin:
    """The search begins."""

    now_s: float


@frozen
class Suggested:
    """The searcher's answer to question `number`; None: nothing now. `seen`: the last fact it had been told of."""

    now_s: float
    number: int
    config: Mapping[str, object] | None
    seen: int = 0
    error: str | None = None


@frozen
class Ready:
    """The objective is about to begin in the worker."""

    now_s: float
    trial_id: int
    attempt: int
    pid: int = 0
    process_started_s: float = 0.0
    how: str = ""


@frozen
class Reported:
    """A trial waits for the answer to its report. `checkpoint`: the name of what it saved with it."""

    now_s: float
    trial_id: int
    attempt: int
    values: Mapping[str, object]
    worker_time_s: float = 0.0
    checkpoint: str | None = None


@frozen
class Ended:
    """The attempt's process ended. Its slot stays busy until Free. `objective_s`: seconds inside the objective."""

    now_s: float
    trial_id: int
    attempt: int
    outcome: Outcome = field(default_factory=lambda: Outcome("returned"))
    objective_s: float | None = None


@frozen
class Free:
    """The attempt's process tree is reaped and its lease came back: the slot may be used again."""

    now_s: float
    trial_id: int
    attempt: int


@frozen
class Tick:
    """Time has passed: time-outs, ends of grace, the end of the search."""

    now_s: float


@frozen
class Interrupt:
    """The search is to end: Ctrl-C or `stop()`. The first stops all trials gently; the second kills them."""

    now_s: float
    who: str = "interrupted"


@frozen
class Command:
    """A person's command about one trial: pause it at its next report, go on with it, or stop it."""

    now_s: float
    what: Literal["pause", "resume", "stop"]
    trial_id: int


@frozen
class Enqueued:
    """A person's configuration, complete and of the space, for the next new trial."""

    now_s: float
    config: Mapping[str, object]


@frozen
class Workers:
    """The number of trials that may run at a time changes. Running trials are left alone."""

    now_s: float
    n_workers: int


@frozen
class Asked:
    """A program with a loop of its own offers to run one trial now. If none is to run, the offer is withdrawn."""

    now_s: float


@frozen
class Resumed:
    """A new process goes on with the search: nothing runs. What ran, or was stopped with the search, runs again.

    Another number of workers or stopping criterion holds before anything starts; None leaves it as it was. `versions`:
    of the libraries that the new process has; None: as before, or not known.
    """

    now_s: float
    n_workers: int | None = None
    stop: Mapping[str, object] | None = None
    versions: Mapping[str, str] | None = None


Fact: TypeAlias = (
    Earlier
    | Begin
    | Suggested
    | Ready
    | Reported
    | Ended
    | Free
    | Tick
    | Interrupt
    | Command
    | Enqueued
    | Workers
    | Asked
    | Resumed
)
