"""Wall time of a no-op trial (three reports, `import torch` inside the objective), two workers: fanwise and its peers.

    for each round: for each contestant: peers/<name>_noop.py in its own interpreter --one JSON line--> tables

Every contestant runs as a program of its own, one after another, round after round, so that a slow minute of the
machine hits all of them. Peers live in virtual environments under `.bench-envs/`, made here from the pins in
`peers/<name>.txt` and used again until the pins change. A peer that cannot be installed or fails stays in the table
with the reason.

The number is a steady rate: the time between the begin of a trial a quarter into the run and the begin of the last one,
over the number of trials begun in between. So what is paid once (start of the pool, first import of torch in a process
that is kept) is not in it; the cold start has a table of its own, and the whole run a column.

    python benchmarks/trial_overhead.py [--rounds 3] [--quick] [--only NAME ...]
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path

from measuring import ROOT, finish, machine, say, scratch_folder, spread, table

PEERS = Path(__file__).resolve().parent / "peers"
ENVIRONMENTS = ROOT / ".bench-envs"
RUN_LIMIT_S = 300.0
BASELINE = "fanwise, fork"


@dataclass(frozen=True, slots=True)
class Contestant:
    """One row: a program under peers/, its switches, and the environment it needs (none: this interpreter's)."""

    name: str
    program: str
    trials: int
    environment: str | None = None
    switches: tuple[str, ...] = ()
    note: str = ""


CONTESTANTS = (
    Contestant("bare fork", "bare_fork_noop.py", 1000, note="the floor: fork, three round trips, exit; no library"),
    Contestant(BASELINE, "fanwise_noop.py", 600, note="a fresh process a trial"),
    Contestant("fanwise, reuse", "fanwise_noop.py", 2000, switches=("--reuse",), note="processes are kept"),
    Contestant("Optuna, sqlite", "optuna_noop.py", 600, "optuna", note="no isolation: trials run in the worker itself"),
    Contestant("Optuna, journal", "optuna_noop.py", 2000, "optuna", ("--journal",), "no isolation, as above"),
    Contestant("Ray Tune", "ray_noop.py", 40, "ray", note="a fresh process a trial"),
    Contestant("Ray Tune, reuse", "ray_noop.py", 400, "ray", ("--reuse",), "reuse_actors=True: processes are kept"),
    Contestant("Syne Tune", "syne_tune_noop.py", 8, "syne_tune", note="defaults: polls every 5 s"),
    Contestant("Syne Tune, fast poll", "syne_tune_noop.py", 16, "syne_tune", ("--poll-fast",), "sleep_time=0.1"),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """The line a peer program prints. Lists have one entry a trial; `begins_s` counts from the start of the tuner."""

    peer: str
    version: str
    trials: int
    wall_s: float
    first_trial_s: float
    pids: list[int]
    starts: list[float]
    begins_s: list[float]

    def ms_a_trial(self) -> float:
        """The steady rate. An even number of trials is left out in front, because two workers may go in step."""
        skipped = max(2, self.trials // 4 // 2 * 2)
        return (self.begins_s[-1] - self.begins_s[skipped - 1]) / (self.trials - skipped) * 1e3

    def num_processes(self) -> int:
        """How many different processes the trials ran in: pids may repeat, pid and start time together do not."""
        return len(set(zip(self.pids, self.starts, strict=True)))


@dataclass(slots=True)
class Row:
    """What a contestant has shown so far. `trouble` is why it has no number, or fewer than there were rounds."""

    contestant: Contestant
    interpreter: Path | None = None
    runs: list[Measured] = field(default_factory=list)
    trouble: str = ""


class NotReady(Exception):
    """A contestant cannot be measured; the text says why."""


def environment(name: str) -> Path:
    """The interpreter of a peer's environment, which is made if it is missing or its pins have changed."""
    pins = (PEERS / f"{name}.txt").read_text()
    folder = ENVIRONMENTS / name
    stamp, python = folder / "installed-pins.txt", folder / "bin" / "python"
    if stamp.exists() and stamp.read_text() == pins:
        return python
    say(f"making the environment of {name} (this downloads; minutes)")
    shutil.rmtree(folder, ignore_errors=True)
    torch_pins = [line for line in pins.splitlines() if line.startswith("torch==")]
    _installing([sys.executable, "-m", "venv", str(folder)])
    # torch first and alone, where a peer needs it: later packages must not choose another build.
    for pin in torch_pins:
        _installing([str(python), "-m", "pip", "install", "--quiet", pin])
    _installing([str(python), "-m", "pip", "install", "--quiet", "-r", str(PEERS / f"{name}.txt")])
    stamp.write_text(pins)
    return python


def _installing(command: Sequence[str]) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    if done.returncode != 0:
        raise NotReady(f"not installed: {_last_line(done.stderr)}")


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else "no output"


def measure(row: Row, trials: int) -> Measured:
    """One run of one contestant in a folder of its own. Raises NotReady when it fails."""
    program = str(PEERS / row.contestant.program)
    with scratch_folder() as folder:
        command = [str(row.interpreter), program, "--trials", str(trials), "--folder", str(folder)]
        try:
            # In the scratch folder, because some peers write files into the current one.
            done = subprocess.run(
                [*command, *row.contestant.switches],
                check=False,
                capture_output=True,
                text=True,
                cwd=folder,
                env=_variables(row),
                timeout=RUN_LIMIT_S,
            )
        except subprocess.TimeoutExpired:
            raise NotReady(f"failed: not done after {RUN_LIMIT_S:.0f} s") from None
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"peer"')]
    if done.returncode != 0 or not lines:
        kind = "not installed" if "ModuleNotFoundError" in done.stderr else "failed"
        raise NotReady(f"{kind}: {_last_line(done.stderr)}")
    return Measured(**json.loads(lines[-1]))


def _variables(row: Row) -> dict[str, str]:
    """What a program finds in its environment. PYTHONPATH becomes absolute, for it runs in a scratch folder; peers do
    not get it, because it may name folders with other versions of what they use."""
    variables = dict(os.environ)
    folders = variables.pop("PYTHONPATH", "")
    if folders and row.contestant.environment is None:
        variables["PYTHONPATH"] = os.pathsep.join(os.path.abspath(folder) for folder in folders.split(os.pathsep))
    return variables


def prepare(contestants: Sequence[Contestant]) -> list[Row]:
    """A row for each contestant, with its interpreter or the reason why there is none."""
    rows = []
    for contestant in contestants:
        row = Row(contestant)
        try:
            wanted = contestant.environment
            row.interpreter = environment(wanted) if wanted else Path(sys.executable)
        except (NotReady, OSError) as reason:
            row.trouble = str(reason)
        rows.append(row)
    return rows


def run_round(rows: Sequence[Row], *, quick: bool) -> None:
    """Every contestant once. One that has failed is not tried again."""
    for row in rows:
        if row.trouble:
            continue
        trials = max(4, row.contestant.trials // 10 * 2) if quick else row.contestant.trials
        try:
            row.runs.append(measure(row, trials))
            say(f"  {row.contestant.name}: {row.runs[-1].ms_a_trial():.1f} ms a trial")
        except NotReady as reason:
            row.trouble = str(reason)
            say(f"  {row.contestant.name}: {reason}")


def overhead_table(rows: Sequence[Row]) -> str:
    """The main table: ms a trial, beside fanwise with a fresh process a trial."""
    baseline = next((_ms(row) for row in rows if row.contestant.name == BASELINE and row.runs), None)
    return table(
        ["no-op trial, two workers", "version", "ms a trial", "ratio", "trials", "processes", "whole run s", "remark"],
        [_cells(row, baseline) for row in rows],
    )


def _ms(row: Row) -> float:
    return spread([one.ms_a_trial() for one in row.runs]).median


def _cells(row: Row, baseline_ms: float | None) -> list[str]:
    remark = "; ".join(part for part in (row.contestant.note, row.trouble) if part)
    if not row.runs:
        return [row.contestant.name, "-", "-", "-", "-", "-", "-", remark]
    last = row.runs[-1]
    return [
        row.contestant.name,
        last.version,
        spread([one.ms_a_trial() for one in row.runs]).shown(),
        f"{_ms(row) / baseline_ms:.2f}" if baseline_ms else "-",
        str(last.trials),
        str(last.num_processes()),
        spread([one.wall_s for one in row.runs]).shown(),
        remark,
    ]


def cold_start_table(rows: Sequence[Row]) -> str:
    """From the start of the tuner or pool until the first objective began; importing the library is not in it."""
    shown = [row for row in rows if row.runs]
    return table(
        ["cold start", "s until the first trial began"],
        [[row.contestant.name, spread([one.first_trial_s for one in row.runs]).shown(2)] for row in shown],
    )


def chosen(names: Sequence[str]) -> list[Contestant]:
    """The contestants whose name begins with one of `names` (capitals do not matter); all when there are none."""
    found = [one for one in CONTESTANTS if not names or any(one.name.lower().startswith(n.lower()) for n in names)]
    if not found:
        raise SystemExit(f"--only {' '.join(names)} fits none of: {'; '.join(one.name for one in CONTESTANTS)}")
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="wall time of a no-op trial, fanwise and its peers")
    parser.add_argument("--rounds", type=int, default=3, help="how often every contestant runs")
    parser.add_argument("--quick", action="store_true", help="one round, a fifth of the trials")
    parser.add_argument("--only", action="append", default=[], metavar="NAME", help="begin of a row's name; may repeat")
    args = parser.parse_args()
    facts = machine()
    rows = prepare(chosen(args.only))
    rounds = 1 if args.quick else args.rounds
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        run_round(rows, quick=args.quick)
    payload = {
        "rows": [{"name": r.contestant.name, "trouble": r.trouble, "runs": [asdict(m) for m in r.runs]} for r in rows]
    }
    finish("trial_overhead", [overhead_table(rows), cold_start_table(rows)], payload, facts=facts)


if __name__ == "__main__":
    main()
