"""A trial on a node of a Ray cluster beside one of this machine, and beside Ray Tune, in one run.

Three tables:
* no-op trials, two workers, as in `trial_overhead`: what a trial takes whose objective does nothing;
* the gap on a worker in these runs: from the beginning of a trial that does nothing to that of the next one on the same
  worker, half of them and 95 in 100 below;
* utilization: the share of the workers' time inside objectives of a known length, on a local pool and on a Ray pool of
  one node, by turns.

    python benchmarks/cluster.py [--rounds 3] [--quick] [--prepare]
"""

import argparse
import os
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict

import numpy as np
from measuring import finish, machine, say, spread, table
from trial_overhead import BASELINE, Contestant, Measured, Row, overhead_table, prepare, run_round

from fanwise import Pool
from fanwise.tune import FIFO, StoppingCriterion, Tuner, uniform

import support_path  # noqa: F401  # isort: skip
from with_ray import ENVIRONMENT, RayCluster  # isort: skip

CONTESTANTS = (
    Contestant(BASELINE, "fanwise_noop.py", 600, note="this machine, a fresh process a trial"),
    Contestant("fanwise, Ray pool", "fanwise_noop.py", 600, switches=("--ray",), note="one node, as above"),
    Contestant("fanwise, Ray pool, reuse", "fanwise_noop.py", 2000, None, ("--ray", "--reuse"), "processes are kept"),
    Contestant("Ray Tune", "ray_noop.py", 40, "ray", note="a fresh process a trial"),
    Contestant("Ray Tune, reuse", "ray_noop.py", 400, "ray", ("--reuse",), "reuse_actors=True: processes are kept"),
)
TRIAL_S, TRIALS, WORKERS = 1.0, 40, 2


def objective(x: float) -> float:
    """Takes a known time, without taking a CPU from the other worker or the tuner."""
    time.sleep(TRIAL_S)
    return x


def utilization(pool: Pool, trials: int) -> float:
    """Of one search of trials of `TRIAL_S`, in percent."""
    experiment = Tuner(
        objective,
        {"x": uniform(0, 1)},
        FIFO(metric="loss", mode="min", random_seed=1),
        StoppingCriterion(max_num_trials_started=trials),
        n_workers=WORKERS,
        quiet=True,
        pool=pool,
    ).run()
    assert experiment.utilization is not None, "trials have run"
    return 100.0 * experiment.utilization


def utilizations(rounds: int, trials: int) -> dict[str, list[float]]:
    """Both pools by turns, each search in a pool that has run before."""
    found: dict[str, list[float]] = {"this machine": [], "Ray pool": []}
    os.environ.update(ENVIRONMENT)
    with RayCluster(cpus=WORKERS) as cluster, Pool(cpus=WORKERS) as local, Pool(ray=cluster.address) as far:
        pools = {"this machine": local, "Ray pool": far}
        for pool in pools.values():
            for job in [pool.submit(objective, 0.0) for _ in range(WORKERS)]:
                job.result()
        for _ in range(rounds):
            for name, pool in pools.items():
                found[name].append(utilization(pool, trials))
                say(f"  utilization, {name}: {found[name][-1]:.2f} %")
    return found


def utilization_table(found: dict[str, list[float]]) -> str:
    return table(
        [f"{WORKERS} workers, trials of {TRIAL_S:g} s", "utilization %"],
        [[name, spread(values).shown(2)] for name, values in found.items()],
    )


def gaps_ms(run: Measured) -> list[float]:
    """Of each worker. Two that do nothing go in step: what begins next but one begins on the same worker."""
    begins_s = sorted(run.begins_s)[max(2, run.trials // 4) :]
    return [1e3 * (later - earlier) for earlier, later in zip(begins_s, begins_s[WORKERS:], strict=False)]


def gap_table(rows: Sequence[Row]) -> str:
    found = [(row.contestant.name, [gap for run in row.runs for gap in gaps_ms(run)]) for row in rows if row.runs]
    return table(
        ["gap on a worker", "p50 ms", "p95 ms"],
        [[name, *(f"{np.percentile(gaps, part):.1f}" for part in (50, 95))] for name, gaps in found],
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="trials on a Ray pool, on this machine, and with Ray Tune")
    parser.add_argument("--rounds", type=int, default=3, help="how often everything runs")
    parser.add_argument("--quick", action="store_true", help="one round, a fifth of the trials")
    parser.add_argument(
        "--prepare", action="store_true", help="make the environments of the peers, and measure nothing"
    )
    args = parser.parse_args(arguments)
    rounds = 1 if args.quick else args.rounds
    rows = prepare(CONTESTANTS)
    if args.prepare:
        return
    for number in range(rounds):
        say(f"round {number + 1} of {rounds}")
        run_round(rows, quick=args.quick)
    with tempfile.TemporaryDirectory() as home:
        os.environ["FANWISE_HOME"] = home
        found = utilizations(rounds, TRIALS // 5 if args.quick else TRIALS)
    payload = {
        "rows": [{"name": r.contestant.name, "trouble": r.trouble, "runs": [asdict(m) for m in r.runs]} for r in rows],
        "utilization": found,
    }
    tables = [overhead_table(rows), gap_table(rows), utilization_table(found)]
    finish("cluster", tables, payload, facts=machine())


if __name__ == "__main__":
    main()
