# mypy: ignore-errors
# The reason: optuna lives in an environment of its own, which the type checker does not see.
"""No-op trials with Optuna 5: two processes that share one storage, a SQLite file or (`--journal`) a journal file.

Optuna starts no workers: its users start processes, each of which runs trial after trial in itself. So there is no
isolation between trials, torch is imported once a process, and the numbers show the storage alone. A report is
`trial.report`, and `trial.should_prune` asks for the decision; the pruner is the one that never prunes, the sampler the
random one.
"""

import multiprocessing
import os
import sys
from pathlib import Path

import marks


def objective(trial):
    marks.mark()
    import torch  # noqa: F401

    x = trial.suggest_float("x", 0, 1)
    for i in range(3):
        trial.report(x + i, step=i)
        trial.should_prune()
    return x


def storage_in(folder, journal):
    import optuna
    from optuna.storages.journal import JournalFileBackend

    if journal:
        return optuna.storages.JournalStorage(JournalFileBackend(str(folder / "journal.log")))
    return f"sqlite:///{folder / 'study.sqlite'}"


def open_study(folder, journal, seed):
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(
        study_name="noop",
        storage=storage_in(folder, journal),
        sampler=optuna.samplers.RandomSampler(seed=seed),
        pruner=optuna.pruners.NopPruner(),
        load_if_exists=True,
    )


def work(folder, journal, seed, num_trials):
    open_study(folder, journal, seed).optimize(objective, n_trials=num_trials)


def main():
    args = marks.arguments("journal")
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)
    import optuna

    run = marks.Run.begin("optuna, journal file" if args.journal else "optuna, sqlite", optuna.__version__, args.folder)
    open_study(args.folder, args.journal, 0)
    fresh = multiprocessing.get_context("spawn")
    workers = [fresh.Process(target=work, args=(args.folder, args.journal, n, args.trials // 2)) for n in (1, 2)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    run.end()
    sys.exit(max(worker.exitcode for worker in workers))


if __name__ == "__main__":
    main()
