"""Ray Tune's published scalability table, replayed: trials that only sleep and report, fanwise beside Ray Tune.

    10,000 trials of 1 s, a result each, on 16 workers          ideal: 625 s
    96 trials of 100 s, 10 results a second each, on 96 workers  ideal: 100 s

The table is in https://docs.ray.io/en/latest/tune/tutorials/tune-scalability.html, with 715 and 168.9 s for Ray Tune.
The workers are processes that sleep, so they need no cores of their own. Each library runs as a program of its own, one
after another: peers/fanwise_sleeping.py and peers/ray_sleeping.py. Wall time is that of the whole search, including the
start of its workers. Ray Tune runs with its default, a new process for each trial as in fanwise, and with
`reuse_actors=True`.

    python benchmarks/sleeping_trials.py [--fraction 0.1] [--rounds 1] [--only NAME ...]
"""

import argparse
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from measuring import finish, machine, say, scratch_folder, spread, table
from trial_overhead import PEERS, NotReady, environment

LIMIT = 20  # a search is stopped after this multiple of its ideal time


@dataclass(frozen=True, slots=True)
class Load:
    """Trials that report `results` times, every `interval_s` seconds."""

    name: str
    trials: int
    workers: int
    results: int
    interval_s: float
    published_percent: float

    @property
    def ideal_s(self) -> float:
        return self.trials * self.results * self.interval_s / self.workers


def loads(fraction: float) -> list[Load]:
    """Return both rows of the table, with a fraction of the trials and of the seconds of a trial respectively."""
    return [
        Load("trials of 1 s", max(16, round(10_000 * fraction)), 16, 1, 1.0, 100 * 625 / 715),
        Load("10 results a second", 96, 96, max(10, round(1000 * fraction)), 0.1, 100 * 100 / 168.9),
    ]


CONTESTANTS = {
    "fanwise": ("fanwise_sleeping.py", None, []),
    "Ray Tune": ("ray_sleeping.py", "ray", []),
    "Ray Tune, reuse": ("ray_sleeping.py", "ray", ["--reuse"]),
}


def measure(name: str, load: Load) -> tuple[str, float]:
    """Return the version and the wall time of one search. Raise NotReady if it fails."""
    program, wanted, switches = CONTESTANTS[name]
    interpreter = environment(wanted) if wanted else Path(sys.executable)
    variables = {key: value for key, value in os.environ.items() if wanted is None or key != "PYTHONPATH"}
    numbers = [f"--{key}={getattr(load, key)}" for key in ("trials", "workers", "results")]
    with scratch_folder() as folder:
        command = [str(interpreter), str(PEERS / program), *numbers, f"--interval-s={load.interval_s}"]
        try:
            done = subprocess.run(
                [*command, f"--folder={folder}", *switches],
                check=False,
                capture_output=True,
                text=True,
                env=variables,
                timeout=LIMIT * load.ideal_s + 60,
            )
        except subprocess.TimeoutExpired as error:
            raise NotReady(f"not done after {error.timeout:.0f} s") from None
    lines = [line for line in done.stdout.splitlines() if line.startswith('{"version"')]
    if done.returncode != 0 or not lines:
        raise NotReady(done.stderr.strip().splitlines()[-1][:200] if done.stderr.strip() else "no output")
    result = json.loads(lines[-1])
    return result["version"], result["wall_s"]


def main() -> None:
    parser = argparse.ArgumentParser(description="Ray Tune's scalability table, fanwise beside Ray Tune")
    parser.add_argument("--fraction", type=float, default=1.0, help="of the trials, and of their length")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--only", action="append", default=[], metavar="NAME", choices=list(CONTESTANTS))
    args = parser.parse_args()
    facts = machine()
    walls_s: dict[tuple[str, str], list[float]] = {}
    versions: dict[str, str] = {}
    troubles: dict[tuple[str, str], str] = {}
    names = args.only or list(CONTESTANTS)
    for _ in range(args.rounds):
        for load in loads(args.fraction):
            for name in names:
                try:
                    versions[name], wall_s = measure(name, load)
                    walls_s.setdefault((load.name, name), []).append(wall_s)
                    say(f"  {load.name}, {name}: {wall_s:.1f} s, ideal {load.ideal_s:.1f} s")
                except (NotReady, OSError) as reason:
                    troubles[load.name, name] = str(reason)
                    say(f"  {load.name}, {name}: {reason}")
    rows = []
    for load in loads(args.fraction):
        for name in names:
            cells = [load.name, f"{load.trials:,}", str(load.workers), name, versions.get(name, "-")]
            if (load.name, name) in walls_s:
                wall = spread(walls_s[load.name, name])
                cells += [f"{load.ideal_s:.1f}", wall.shown(), f"{100 * load.ideal_s / wall.median:.1f}"]
            else:
                cells += [f"{load.ideal_s:.1f}", "-", "-"]
            rows.append([*cells, f"{load.published_percent:.0f}", troubles.get((load.name, name), "")])
    header = ["sleeping trials", "trials", "workers", "", "version", "ideal s", "wall s", "% of ideal"]
    payload = {"fraction": args.fraction, "walls_s": {" | ".join(key): value for key, value in walls_s.items()}}
    shown = table([*header, "Ray Tune, published", "remark"], rows)
    finish("sleeping_trials", [shown], payload, facts=facts)


if __name__ == "__main__":
    main()
