"""What a tuner takes of a core when 500 workers report once a second, each report answered after its commit.

    this process --starts--> the search (this file again, with --search), in a process of its own
        |  when all workers have reported: processor time of that process and reports in its record, now and later
        +- 500 trials, a process and a link each, which sleep or compute, and report

The workers' own time is not counted: on a cluster it is spent on other machines. The thread that syncs the record and
the one that draws the table are parts of the tuner's process, and counted. Where trials only sleep the cores do, too,
and what the tuner needs is in no cache when one wakes up; trials that compute keep them awake.

    python benchmarks/tuner_cpu.py [--workers 500] [--seconds 30] [--rounds 3]
"""

import argparse
import os
import pty
import random
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from measuring import finish, machine, say, scratch_folder, spread, table

NAME = "cpu"
EVERY_S = 1.0
WANTED_PERCENT = 10.0
START_WITHIN_S = 240.0
# Of two cores 500 trials that compute take nine parts in ten.
COMPUTING_S = 0.0036


@dataclass(frozen=True, slots=True)
class Kind:
    """A search that is measured. `screen`: it draws its table on a terminal. `computing_s`: between two reports."""

    title: str
    scheduler: str
    screen: bool = False
    computing_s: float = 0.0


KINDS = [
    Kind("random search, trials sleep, no table", "random"),
    Kind("random search, trials sleep, table on a terminal", "random", screen=True),
    Kind("ASHA, trials sleep, no table", "asha"),
    Kind("random search, trials compute, no table", "random", computing_s=COMPUTING_S),
    Kind("ASHA, trials compute, no table", "asha", computing_s=COMPUTING_S),
]


def objective(x: float, max_epochs: int, computing_s: float) -> None:
    """A report a second, from a moment of its own on."""
    import numpy as np

    from fanwise.tune import report

    matrix = np.ones((64, 64))
    time.sleep(random.random() * EVERY_S)
    next_s = time.monotonic()
    for epoch in range(1, max_epochs + 1):
        report(loss=x + 1 / epoch, epoch=epoch)
        until_s = time.thread_time() + computing_s
        while time.thread_time() < until_s:
            matrix = matrix @ matrix / 64
        next_s += EVERY_S
        time.sleep(max(0.0, next_s - time.monotonic()))


def search(folder: Path, scheduler: str, n_workers: int, *, screen: bool, computing_s: float) -> None:
    """The measured process."""
    from fanwise.tune import FIFO, StoppingCriterion, Tuner, uniform
    from fanwise.tune.schedulers import ASHA

    os.environ["FANWISE_HOME"] = str(folder)
    chosen = (
        FIFO(metric="loss", random_seed=1)
        if scheduler == "random"
        # The first level is far away: the same reports as of random search, and each is looked at.
        else ASHA(metric="loss", resource_attr="epoch", max_resource_attr="max_epochs", grace_period=600, random_seed=1)
    )
    Tuner(
        objective,
        {"x": uniform(0, 1), "max_epochs": 3600, "computing_s": computing_s},
        chosen,
        StoppingCriterion(max_wallclock_time=3600),
        n_workers=n_workers,
        devices_per_trial=0,
        name=NAME,
        quiet=not screen,
    ).run()


def processor_s(pid: int) -> float:
    """Processor time of a process, all of its threads, without its children."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def num_reports(folder: Path) -> int:
    """Reports in the record so far."""
    from fanwise.tune.record.event_file import iter_events

    return sum(1 for _ in iter_events(folder / NAME, kinds=("report",)))


@contextmanager
def running(kind: Kind, n_workers: int, folder: Path) -> Iterator["subprocess.Popen[bytes]"]:
    """The search in a process of its own; what it draws goes to a terminal that somebody reads, if it draws."""
    ours, theirs = pty.openpty()
    with suppress(OSError):
        os.set_blocking(ours, True)
    command = [sys.executable, __file__, "--search", str(folder), "--scheduler", kind.scheduler]
    command += ["--workers", str(n_workers), *(["--screen"] if kind.screen else [])]
    command += ["--computing", str(kind.computing_s)]
    child = subprocess.Popen(command, stdout=theirs if kind.screen else subprocess.DEVNULL, stdin=subprocess.DEVNULL)
    os.close(theirs)
    threading.Thread(target=drain, args=(ours,), daemon=True).start()
    try:
        yield child
    finally:
        child.terminate()
        child.wait()


def drain(terminal: int) -> None:
    """Read what is drawn, as a terminal does."""
    with suppress(OSError):
        while os.read(terminal, 1 << 16):
            pass
    os.close(terminal)


def measured(kind: Kind, n_workers: int, seconds: float) -> tuple[float, float]:
    """Percent of a core that the tuner took, and reports a second that came in meanwhile.

    Raises:
        RuntimeError: the search ended, or not all workers have begun in time.
    """
    with scratch_folder() as folder, running(kind, n_workers, folder) as child:
        wait_for_all(child, folder, n_workers)
        began_s, spent_s, reports = time.monotonic(), processor_s(child.pid), num_reports(folder)
        time.sleep(seconds)
        took_s, spent_s, reports = (
            time.monotonic() - began_s,
            processor_s(child.pid) - spent_s,
            num_reports(folder) - reports,
        )
        if child.poll() is not None:
            raise RuntimeError(f"the search ended with exit status {child.returncode}")
    return 100 * spent_s / took_s, reports / took_s


def wait_for_all(child: "subprocess.Popen[bytes]", folder: Path, n_workers: int) -> None:
    """Until every worker has reported; see `measured`."""
    from fanwise.base.errors import RecordError

    until_s = time.monotonic() + START_WITHIN_S
    while time.monotonic() < until_s:
        if child.poll() is not None:
            raise RuntimeError(f"the search ended with exit status {child.returncode}")
        with suppress(RecordError):
            if num_reported(folder) >= n_workers:
                return
        time.sleep(1.0)
    raise RuntimeError(f"after {START_WITHIN_S:g} s {num_reported(folder)} of {n_workers} workers have reported")


def num_reported(folder: Path) -> int:
    """Trials that have reported."""
    from fanwise.tune.record.event_file import iter_events

    return len({event.trial_id for event in iter_events(folder / NAME, kinds=("report",))})


def main() -> None:
    parser = argparse.ArgumentParser(description="what a tuner takes of a core at a report a second from each worker")
    parser.add_argument("--workers", type=int, default=500)
    parser.add_argument("--seconds", type=float, default=30.0, help="how long the tuner is watched")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--kinds", type=int, default=len(KINDS), help="only the first so many searches")
    parser.add_argument("--search", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--scheduler", help=argparse.SUPPRESS)
    parser.add_argument("--screen", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--computing", type=float, default=0.0, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.search is not None:
        search(args.search, args.scheduler, args.workers, screen=args.screen, computing_s=args.computing)
        return
    facts, payload, rows = machine(), dict[str, object](), []
    for kind in KINDS[: args.kinds]:
        found = [measured(kind, args.workers, args.seconds) for _ in range(args.rounds)]
        payload[kind.title] = found
        percents, rates = zip(*found, strict=True)
        row = [kind.title, spread(percents).shown(1), f"<= {WANTED_PERCENT:g}", spread(rates).shown(0)]
        rows.append(row)
        say(f"  {row}")
    header = [f"{args.workers} workers, a report a second each", "% of a core", "wanted", "reports/s"]
    finish("tuner_cpu", [table(header, rows)], payload, facts=facts)


if __name__ == "__main__":
    main()
