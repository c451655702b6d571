"""Searches of a real training for some minutes, side by side: fanwise, Optuna, Syne Tune. Also ASHA beside ASHA.

    for each round: for each contestant: peers/live_<library>.py --method ... --marks of each trial and epoch--> tables

Everybody trains the same LeNet on the same digits with the same program (peers/live_training.py), two workers, one
thread each, in an environment of its own; they take turns, round after round. What they did is read from the marks that
the training itself leaves, so it is counted alike for all: from the beginning of the first training, for so many
seconds. Start-up stands apart. `utilization` is the share of the workers' time from the first line of a training, which
imports torch, to its end; one that was killed counts as busy for a whole further epoch (until the end of the search
where it had not finished any) or until another one needs its worker. `epochs` counts the finished ones, `best error` is
that of any epoch so far.

    python benchmarks/searchers_live.py                                         5 minutes each, one round
    python benchmarks/searchers_live.py --seconds 60 --rounds 5 --only "fanwise, ASHA" --only "Syne Tune, ASHA"
"""

import argparse
import math
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
from measuring import finish, machine, say, scratch_folder, spread, table
from trial_overhead import PEERS, NotReady, environment

SLACK_S = 5.0  # programs run longer than what is counted, so that all are at work until its end
END_LIMIT_S = 120.0
PARTS = (0.25, 0.5, 1.0)


@dataclass(frozen=True, slots=True)
class Contestant:
    """A program under peers/, its method, and its environment (none: this interpreter's)."""

    name: str
    program: str
    method: str
    environment: str | None = None


CONTESTANTS = (
    Contestant("fanwise, random", "live_fanwise.py", "random"),
    Contestant("fanwise, default", "live_fanwise.py", "default"),
    Contestant("fanwise, ASHA", "live_fanwise.py", "ASHA"),
    Contestant("fanwise, ASHA, reuse", "live_fanwise.py", "ASHA, reuse"),
    Contestant("fanwise, ASHA, forest", "live_fanwise.py", "ASHA, forest"),
    Contestant("Optuna, TPE", "live_optuna.py", "TPE", "optuna"),
    Contestant("Optuna, TPE, Hyperband", "live_optuna.py", "TPE, Hyperband", "optuna"),
    Contestant("Syne Tune, CQR", "live_syne_tune.py", "CQR", "syne_tune"),
    Contestant("Syne Tune, ASHA", "live_syne_tune.py", "ASHA", "syne_tune"),
    Contestant("Syne Tune, ASHACQR", "live_syne_tune.py", "ASHACQR", "syne_tune"),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """One run. `errors`: the best error after each of PARTS of the time; NaN where no epoch was finished."""

    startup_s: float
    utilization: float
    trials: int
    epochs: int
    errors: Sequence[float]


@dataclass(slots=True)
class Row:
    """What a contestant has shown so far. `trouble` is why it has fewer runs than there were rounds."""

    contestant: Contestant
    interpreter: Path | None = None
    runs: list[Measured] = field(default_factory=list)
    trouble: str = ""


def counted(lines: Sequence[str], *, started_s: float, seconds: float, workers: int) -> Measured:
    """What the marks of a run say.

    Args:
        lines: "trial what moment error", as `live_training` writes them.
        started_s: the moment at which the program was started.
        seconds: counted from the first mark.

    Raises:
        NotReady: there are none.
    """
    marks = sorted((float(moment), trial, what, float(error)) for trial, what, moment, error in map(str.split, lines))
    if not marks:
        raise NotReady("failed: no training began")
    began_s = marks[0][0]
    until_s = began_s + seconds
    first: dict[str, float] = {}
    last: dict[str, float] = {}
    for moment, trial, _, _ in marks:
        first.setdefault(trial, moment)
        last[trial] = moment
    ended = {trial for _, trial, what, _ in marks if what == "end"}
    gaps = {trial: later - earlier for trial, earlier, later in _neighbours(marks)}
    changes: list[tuple[float, int]] = []
    for trial, at_s in first.items():
        # Who was killed had begun another epoch, and may have been anywhere in it; before the first one no scheduler
        # stops a trial, so it ran until the end of the search.
        end_s = last[trial] if trial in ended else last[trial] + gaps.get(trial, seconds)
        changes += [(at_s, 1), (max(at_s, end_s), -1)]
    busy_s = _busy_s(changes, until_s, workers)
    epochs = [(moment - began_s, error) for moment, _, what, error in marks if what == "epoch" and moment <= until_s]
    best = [min((error for at_s, error in epochs if at_s <= part * seconds), default=float("nan")) for part in PARTS]
    num_trials = sum(moment <= until_s for moment in first.values())
    return Measured(began_s - started_s, busy_s / (workers * seconds), num_trials, len(epochs), best)


def _busy_s(changes: Sequence[tuple[float, int]], until_s: float, workers: int) -> float:
    """The workers' time until then in which trainings ran. More than all of them are never busy, though who was
    killed is counted a little longer than that."""
    busy_s, running, before_s = 0.0, 0, -math.inf
    for moment, change in sorted(changes):
        at_s = min(moment, until_s)
        busy_s += min(running, workers) * (at_s - before_s) if running else 0.0
        running, before_s = running + change, at_s
    return busy_s


def _neighbours(marks: Sequence[tuple[float, str, str, float]]) -> Iterator[tuple[str, float, float]]:
    """Each mark with the one before it of the same trial: trial, earlier moment, later moment."""
    before: dict[str, float] = {}
    for moment, trial, _, _ in marks:
        if trial in before:
            yield trial, before[trial], moment
        before[trial] = moment


def measure(row: Row, args: argparse.Namespace, seed: int, data: Path) -> Measured:
    """One run of one contestant in a folder of its own. Blocks for its seconds. Raises NotReady when it fails."""
    one = row.contestant
    with scratch_folder() as folder:
        settings = {"method": one.method, "seconds": args.seconds + SLACK_S, "workers": args.workers, "seed": seed}
        command = [str(row.interpreter), str(PEERS / one.program), "--folder", str(folder)]
        command += [word for name, value in settings.items() for word in (f"--{name}", str(value))]
        marks = folder / "marks.txt"
        marks.touch()
        shutil.copy(data, folder)
        variables = {name: value for name, value in os.environ.items() if name != "PYTHONPATH" or not one.environment}
        variables["OMP_NUM_THREADS"] = "1"
        started_s = time.monotonic()
        try:
            limit_s = args.seconds + SLACK_S + END_LIMIT_S
            done = subprocess.run(
                command, check=False, capture_output=True, text=True, cwd=folder, env=variables, timeout=limit_s
            )
        except subprocess.TimeoutExpired:
            raise NotReady(f"failed: not done {END_LIMIT_S:.0f} s after its time") from None
        if done.returncode != 0:
            said = done.stderr.strip().splitlines()
            raise NotReady(f"failed: {said[-1][:200] if said else 'it said nothing'}")
        lines = marks.read_text().splitlines()
        return counted(lines, started_s=started_s, seconds=args.seconds, workers=args.workers)


def write_data(path: Path) -> None:
    """The digits, as arrays that need nothing but numpy."""
    from fanwise.zoo import digits

    data = digits().standardized()
    np.savez(
        path,
        train_x=data.train_images.numpy(),
        train_y=data.train_labels.numpy(),
        test_x=data.test_images.numpy(),
        test_y=data.test_labels.numpy(),
    )


def shown(rows: Sequence[Row], seconds: float) -> str:
    """The table: medians of the rounds, with the least and the greatest."""
    header = ["contestant", "start-up s", "utilization", "trials", "epochs"]
    header += [f"best error, {part * seconds:.0f} s" for part in PARTS] + ["rounds", "remark"]
    cells = []
    for row in rows:
        of = row.runs
        if not of:
            cells.append([row.contestant.name, *["-"] * (len(header) - 2), row.trouble])
            continue
        line = [spread([run.startup_s for run in of]).shown(1), spread([run.utilization for run in of]).shown(3)]
        line += [spread([float(run.trials) for run in of]).shown(0), spread([float(run.epochs) for run in of]).shown(0)]
        line += [_error([run.errors[part] for run in of]) for part in range(len(PARTS))]
        cells.append([row.contestant.name, *line, str(len(of)), row.trouble])
    return table(header, cells)


def _error(errors: Sequence[float]) -> str:
    """A run that had finished no epoch so early is as bad as can be: all images wrong."""
    return spread([1.0 if error != error else error for error in errors]).shown(4)


def prepared(names: Sequence[str]) -> list[Row]:
    """A row for each contestant that is wanted, with its interpreter or the reason why there is none."""
    rows = [Row(one) for one in CONTESTANTS if not names or one.name in names]
    for row in rows:
        try:
            wanted = row.contestant.environment
            row.interpreter = environment(wanted) if wanted else Path(sys.executable)
        except (NotReady, OSError) as reason:
            row.trouble = str(reason)
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description="searches of a real training, side by side")
    parser.add_argument("--seconds", type=float, default=300.0, help="of each run, counted from its first training")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--quick", action="store_true", help="one round of 10 s")
    names = [one.name for one in CONTESTANTS]
    parser.add_argument("--only", action="append", default=[], metavar="NAME", choices=names, help="may repeat")
    args = parser.parse_args()
    if args.quick:
        args.seconds, args.rounds = 10.0, 1
    facts: Mapping[str, str] = machine()
    rows = prepared(args.only)
    with scratch_folder() as folder:
        data = folder / "digits.npz"
        write_data(data)
        for number in range(args.rounds):
            say(f"round {number + 1} of {args.rounds}")
            for row in rows if number % 2 == 0 else rows[::-1]:
                if row.trouble:
                    continue
                try:
                    row.runs.append(measure(row, args, number, data))
                    say(f"  {row.contestant.name}: {row.runs[-1]}")
                except NotReady as reason:
                    row.trouble = str(reason)
                    say(f"  {row.contestant.name}: {reason}")
    payload = {
        "seconds": args.seconds,
        "workers": args.workers,
        "rows": [{"name": r.contestant.name, "trouble": r.trouble, "runs": [asdict(m) for m in r.runs]} for r in rows],
    }
    finish("searchers_live", [shown(rows, args.seconds)], payload, facts=facts)


if __name__ == "__main__":
    main()
