"""Processor time of a search over 40 numbers with fanwise: see benchmarks/suggestion_time.py.

`--how memory` is a simulated search; `--how record` is an ask-and-tell search, which writes every trial to the disk.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Mapping
from typing import Any

from fanwise.tune import FIFO, StoppingCriterion, open_search, uniform
from fanwise.tune.searchers import OptunaSearcher, Searcher, TPESearcher
from fanwise.tune.simulate import FunctionTable, simulate

SPACE = {f"x{d}": uniform(0, 1) for d in range(40)}
METRICS = ["a", "b"]


def objective(config: Mapping[str, Any]) -> dict[str, float]:
    values = [config[name] for name in SPACE]
    return {"a": sum((value - 0.3) ** 2 for value in values), "b": sum((value - 0.6) ** 2 for value in values)}


def search(how: str, sampler: str, objectives: int, trials: int) -> None:
    # TPE is the library's own; other samplers are Optuna's.
    searcher: Searcher = TPESearcher() if sampler == "TPESampler" else OptunaSearcher(sampler)
    scheduler = FIFO(searcher, metric=METRICS[:objectives], random_seed=0)
    stop = StoppingCriterion(max_num_trials_completed=trials)
    if how == "memory":
        table = FunctionTable(lambda config, epoch: (objective(config), 1.0), {**SPACE, "max_epochs": 1})
        simulate(scheduler, table, stop, n_workers=1)
        return
    with tempfile.TemporaryDirectory() as folder:
        os.environ["FANWISE_HOME"] = folder
        with open_search(SPACE, scheduler, stop=stop) as asked:
            while (trial := asked.ask()) is not None:
                asked.tell(trial.trial_id, objective(trial.config))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--how", choices=["memory", "record"])
    parser.add_argument("--sampler")
    parser.add_argument("--objectives", type=int)
    parser.add_argument("--trials", type=int)
    args = parser.parse_args()
    search(args.how, args.sampler, args.objectives, 60)  # imports
    begin_s = time.process_time()
    search(args.how, args.sampler, args.objectives, args.trials)
    print(json.dumps({"cpu_s": time.process_time() - begin_s}))


if __name__ == "__main__":
    main()
