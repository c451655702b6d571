# mypy: ignore-errors
# The reason: optuna lives in an environment of its own, which the type checker does not see.
"""searchers_live.py's program for Optuna 5: worker processes that share a journal file, as its documentation advises.

TPE               TPESampler(multivariate=True, constant_liar=True), every trial to its end
TPE, Hyperband    the same with HyperbandPruner(reduction_factor=3), asked after each epoch
"""

import multiprocessing
import os
import time
from pathlib import Path

from live_arguments import MAX_EPOCHS, arguments

METHODS = ("TPE", "TPE, Hyperband")


def open_study(folder, method, seed):
    import optuna
    from optuna.storages.journal import JournalFileBackend

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    pruner = optuna.pruners.NopPruner()
    if method == "TPE, Hyperband":
        pruner = optuna.pruners.HyperbandPruner(1, MAX_EPOCHS, reduction_factor=3)
    return optuna.create_study(
        study_name="live",
        storage=optuna.storages.JournalStorage(JournalFileBackend(str(folder / "journal.log"))),
        sampler=optuna.samplers.TPESampler(multivariate=True, constant_liar=True, seed=seed),
        pruner=pruner,
        load_if_exists=True,
    )


def objective(trial):
    import optuna
    from live_training import train

    last = None

    def told(epoch, error):
        nonlocal last
        last = error
        trial.report(error, epoch)
        if trial.should_prune():
            raise optuna.TrialPruned

    rate = trial.suggest_float("learning_rate", 1e-2, 1, log=True)
    train(rate, trial.suggest_int("batch_size", 32, 256), MAX_EPOCHS, told)
    return last


def work(folder, method, seed, until_s):
    study = open_study(folder, method, seed)
    study.optimize(objective, timeout=until_s - time.monotonic())


def main():
    args = arguments(METHODS)
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    open_study(args.folder, args.method, args.seed)
    until_s = time.monotonic() + args.seconds
    fresh = multiprocessing.get_context("spawn")
    seeds = [args.seed * args.workers + number for number in range(args.workers)]
    workers = [fresh.Process(target=work, args=(args.folder, args.method, seed, until_s)) for seed in seeds]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()


if __name__ == "__main__":
    main()
