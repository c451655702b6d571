"""Does random search scale? An objective that sleeps one second: 4n trials on 4 workers beside n trials on 1 worker.

If nothing is lost between trials, both searches take the same wall time. The objective uses no processor, so more
workers than cores are fair. Wall times are those of `Tuner.run`, start and end of the pool included.

    python benchmarks/random_search_scaling.py [--size small | full]     full: 100 trials a worker, about 4 minutes
"""

import argparse
import os
import time

from measuring import finish, machine, say, scratch_folder, table

from fanwise.tune import FIFO, StoppingCriterion, Tuner, load_experiment, report, uniform

TRIALS_A_WORKER = {"small": 10, "full": 100}
SLEEP_S = 1.0


def objective(x: float) -> None:
    time.sleep(SLEEP_S)
    report(loss=x)


def wall_s(n_workers: int, num_trials: int) -> float:
    """Seconds that a search of `num_trials` trials takes.

    Raises:
        RuntimeError: not all of the trials were completed.
    """
    with scratch_folder() as folder:
        os.environ["FANWISE_HOME"] = str(folder)
        began_s = time.monotonic()
        Tuner(
            objective,
            {"x": uniform(0, 1)},
            FIFO(metric="loss", mode="min", random_seed=1),
            StoppingCriterion(max_num_trials_started=num_trials),
            n_workers=n_workers,
            name="scaling",
            quiet=True,
        ).run()
        elapsed_s = time.monotonic() - began_s
        statuses = load_experiment("scaling").trials["status"]
    if list(statuses) != ["Completed"] * num_trials:
        raise RuntimeError(f"wanted {num_trials} completed trials, got {statuses.value_counts().to_dict()}")
    return elapsed_s


def main() -> None:
    parser = argparse.ArgumentParser(description="wall time of 4n one-second trials on 4 workers beside n on 1")
    parser.add_argument("--size", choices=sorted(TRIALS_A_WORKER), default="small")
    args = parser.parse_args()
    trials = TRIALS_A_WORKER[args.size]
    facts = machine()
    measured: dict[int, float] = {}
    for n_workers in (1, 4):
        measured[n_workers] = wall_s(n_workers, n_workers * trials)
        say(f"  {n_workers} worker(s): {measured[n_workers]:.2f} s")
    rows = [
        [str(n), str(n * trials), f"{measured[n]:.2f}", f"{measured[n] / measured[1]:.4f}"] for n in sorted(measured)
    ]
    shown = table(["workers", "one-second trials", "wall s", "ratio to 1 worker"], rows)
    finish("random_search_scaling", [shown], {"wall_s": measured, "trials_a_worker": trials}, facts=facts)


if __name__ == "__main__":
    main()
