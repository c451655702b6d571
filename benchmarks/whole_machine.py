"""Searches with default settings on all cores: beside a plain script and beside Optuna, by turns in one run.

Part 1, `--part workers`: the same configurations of LeNet (60,000 images are 15 of these trials), of an SVC with 5-fold
cross-validation and of LightGBM, evaluated in a plain loop with the default threads of the libraries, in one plain loop
per core, each in a process of its own, and by a `Tuner`. The time is that from the start of the first evaluation to the
end of the last one. One plain loop per core shows how fast the machine can be when all cores are busy.
Part 2, `--part optuna`: 40 trials of an SVC with 5 folds and of a HistGradientBoosting with 3 folds, `fanwise.search`
and `Study.optimize`, all with default settings. Counted is the whole call. The samplers differ, and so do the
configurations that they choose; some configurations take longer than others.

Every measurement is a program of its own. LightGBM is left out where it is not installed.

    python benchmarks/whole_machine.py [--part workers] [--rounds 3]
"""

import argparse
import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

from measuring import Spread, finish, machine, ratio_of_neighbours, say, scratch_folder, spread, table

TRIALS = 8
OBJECTIVES = """
import os
import time

def lenet(rate):
    import torch
    from torch.nn.functional import cross_entropy
    from fanwise.zoo.models import LeNet
    torch.manual_seed(0)
    images, labels = torch.rand(4000, 1, 28, 28), torch.randint(0, 10, (4000,))
    model = LeNet()
    model(images[:1])
    sgd = torch.optim.SGD(model.parameters(), lr=rate)
    for start in range(0, len(images), 256):
        sgd.zero_grad()
        cross_entropy(model(images[start : start + 256]), labels[start : start + 256]).backward()
        sgd.step()
    return 1.0

def svc(C, gamma):
    from sklearn.datasets import load_digits
    from sklearn.model_selection import cross_val_score
    from sklearn.svm import SVC
    X, y = load_digits(return_X_y=True)
    return 1 - cross_val_score(SVC(C=C, gamma=gamma), X, y, cv=5).mean()

def svc_of_rate(rate):
    return svc(C=1.0, gamma=0.01 * rate)

def boosting(rate, leaves):
    from sklearn.datasets import load_digits
    from sklearn.ensemble import HistGradientBoostingClassifier
    from sklearn.model_selection import cross_val_score
    X, y = load_digits(return_X_y=True)
    model = HistGradientBoostingClassifier(learning_rate=rate, max_leaf_nodes=leaves, max_iter=30)
    return 1 - cross_val_score(model, X[:500], y[:500], cv=3).mean()

def lightgbm(rate):
    import lightgbm
    import numpy as np
    rng = np.random.default_rng(0)
    X = rng.random((20000, 30))
    y = (X[:, 0] + X[:, 1] * X[:, 2] > 0.7).astype(int)
    lightgbm.train({"objective": "binary", "learning_rate": rate, "verbose": -1}, lightgbm.Dataset(X, y), 60)
    return 1.0

def marked(function, rate):
    for call in (lambda: None, lambda: function(rate)):
        call()
        with open(os.environ["MARKS"], "a") as file:
            file.write(f"{time.monotonic()}\\n")
    return rate

def lenet_trial(rate):
    return marked(lenet, rate)

def svc_trial(rate):
    return marked(svc_of_rate, rate)

def lightgbm_trial(rate):
    return marked(lightgbm, rate)
"""
WORKERS_PROGRAM = """
import json, os, sys
import objectives
name, settings = sys.argv[1], json.loads(sys.argv[2])
objective = getattr(objectives, f"{name}_trial")
rates = [0.05 + 0.01 * number for number in range(int(sys.argv[3]))]
if __name__ == "__main__":
    if "plain_loops" in settings:
        loops = settings["plain_loops"]
        for number, core in enumerate(sorted(os.sched_getaffinity(0))[:loops]):
            if os.fork() == 0:
                if loops > 1:
                    os.sched_setaffinity(0, {core})  # the libraries then use one thread
                for rate in rates[number::loops]:
                    objective(rate)
                os._exit(0)
        assert all(os.wait()[1] == 0 for _ in range(loops))
    else:
        from fanwise.tune import FIFO, StoppingCriterion, Tuner, uniform
        fifo = FIFO("random", metric="loss", points_to_evaluate=[{"rate": rate} for rate in rates])
        stop = StoppingCriterion(max_num_trials_started=len(rates))
        Tuner(objective, {"rate": uniform(0, 1)}, fifo, stop, quiet=True, **settings).run()
    marks = [float(line) for line in open(os.environ["MARKS"])]
    assert len(marks) == 2 * len(rates)
    print(json.dumps(max(marks) - min(marks)))
"""
OPTUNA_PROGRAM = """
import json, sys, time
import sklearn.datasets, sklearn.ensemble, sklearn.model_selection, sklearn.svm
import objectives
name, num_jobs = sys.argv[1], json.loads(sys.argv[2])
if __name__ == "__main__":
    if num_jobs is None:
        from fanwise.tune import lograndint, loguniform, search
        began_s = time.monotonic()
        if name == "svc":
            space = {"C": loguniform(1e-2, 1e2), "gamma": loguniform(1e-5, 1e-1)}
        else:
            space = {"rate": loguniform(1e-2, 1), "leaves": lograndint(4, 64)}
        search(getattr(objectives, name), space, metric="error", n_trials=40, quiet=True)
    else:
        import optuna
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        began_s = time.monotonic()
        def objective(trial):
            if name == "svc":
                C = trial.suggest_float("C", 1e-2, 1e2, log=True)
                return objectives.svc(C, trial.suggest_float("gamma", 1e-5, 1e-1, log=True))
            rate = trial.suggest_float("rate", 1e-2, 1, log=True)
            return objectives.boosting(rate, trial.suggest_int("leaves", 4, 64, log=True))
        optuna.create_study().optimize(objective, n_trials=40, n_jobs=num_jobs)
    print(json.dumps(time.monotonic() - began_s))
"""
PLAIN = "plain loop, default threads"
WORKERS = {
    PLAIN: {"plain_loops": 1},
    "two plain loops, one core each": {"plain_loops": 2},
    "Tuner(n_workers=1)": {"n_workers": 1},
    "one worker with one core": {"n_workers": 1, "devices_per_trial": 1},
    "Tuner(n_workers=2)": {"n_workers": 2},
}
LIBRARIES = {"fanwise": None, "Optuna, n_jobs=1": 1, "Optuna, n_jobs=2": 2}


def measured_s(folder: Path, program: str, *args: str) -> float:
    """The seconds that a program prints, run in a new folder."""
    folder.mkdir()
    (folder / "objectives.py").write_text(OBJECTIVES)
    (folder / "program.py").write_text(program)
    environment = {**os.environ, "FANWISE_HOME": str(folder / "home"), "MARKS": str(folder / "marks")}
    command = [sys.executable, "program.py", *args]
    done = subprocess.run(command, check=True, env=environment, cwd=folder, stdout=subprocess.PIPE, text=True)
    return float(json.loads(done.stdout.splitlines()[-1]))


def shown(values: list[float], digits: int = 2) -> str:
    found: Spread = spread(values)
    return found.shown(digits)


def main() -> None:
    parser = argparse.ArgumentParser(description="searches with default settings on all cores")
    parser.add_argument("--part", choices=["workers", "optuna"], help="both by default")
    parser.add_argument("--rounds", type=int, default=3)
    args = parser.parse_args()
    facts = machine()
    workloads = ["lenet", "svc", *(["lightgbm"] if importlib.util.find_spec("lightgbm") else [])]
    workers: dict[str, dict[str, list[float]]] = {name: {row: [] for row in WORKERS} for name in workloads}
    libraries: dict[str, dict[str, list[float]]] = {
        name: {row: [] for row in LIBRARIES} for name in ("svc", "boosting")
    }
    with scratch_folder() as folder:
        for number in range(args.rounds):
            say(f"round {number + 1} of {args.rounds}")
            if args.part != "optuna":
                for name, seconds in workers.items():
                    for place, (row, settings) in enumerate(WORKERS.items()):
                        target = folder / f"{number}-{name}-{place}"
                        command = (name, json.dumps(settings), str(TRIALS))
                        seconds[row].append(measured_s(target, WORKERS_PROGRAM, *command))
            if args.part != "workers":
                for name, seconds in libraries.items():
                    for row, num_jobs in LIBRARIES.items():
                        target = folder / f"{number}-{name}-jobs-{num_jobs}"
                        seconds[row].append(measured_s(target, OPTUNA_PROGRAM, name, json.dumps(num_jobs)))
    tables = []
    if args.part != "optuna":
        rows = []
        for name, seconds in workers.items():
            for row, values in seconds.items():
                speed = ratio_of_neighbours(values, seconds[PLAIN])
                rows.append([name, row, shown([value / TRIALS for value in values], 3), speed])
        tables.append(table(["objective", "evaluated by", "s per trial", "times the plain loop's speed"], rows))
    if args.part != "workers":
        tables.append(
            table(
                ["40 trials, default settings", *(f"{row}, s" for row in LIBRARIES)],
                [[name, *map(shown, seconds.values())] for name, seconds in libraries.items()],
            )
        )
    finish("whole_machine", tables, {"workers": workers, "optuna": libraries}, facts=facts)


if __name__ == "__main__":
    main()
