# mypy: ignore-errors
# The reason: syne_tune lives in an environment of its own, which the type checker does not see.
"""searchers_live.py's program for Syne Tune 0.16: its Python back end, which looks for results every 0.1 s.

ASHA, ASHACQR    max_t=25 epochs, reduction factor 3, grace period 1: its defaults, and those of fanwise
CQR              every trial runs to its end
"""

import os
from pathlib import Path

from live_arguments import MAX_EPOCHS, arguments

METHODS = ("ASHA", "ASHACQR", "CQR")


def objective(learning_rate, batch_size, max_epochs):
    from live_training import train
    from syne_tune import Reporter

    report = Reporter()

    def told(epoch, error):
        report(epoch=epoch, error=error)

    train(learning_rate, batch_size, max_epochs, told)


def main():
    args = arguments(METHODS)
    os.environ["SYNETUNE_FOLDER"] = str(args.folder)
    os.environ["PYTHONPATH"] = str(Path(__file__).parent)  # a trial's interpreter starts elsewhere

    from syne_tune import StoppingCriterion, Tuner
    from syne_tune.backend import PythonBackend
    from syne_tune.config_space import loguniform, randint
    from syne_tune.optimizer import baselines

    space = {"learning_rate": loguniform(1e-2, 1), "batch_size": randint(32, 256), "max_epochs": MAX_EPOCHS}
    settings = {"metric": "error", "do_minimize": True, "random_seed": args.seed}
    if args.method != "CQR":
        settings |= {"time_attr": "epoch", "max_t": MAX_EPOCHS}
    Tuner(
        PythonBackend(tune_function=objective, config_space=space),
        getattr(baselines, args.method)(space, **settings),
        StoppingCriterion(max_wallclock_time=args.seconds),
        n_workers=args.workers,
        sleep_time=0.1,
        print_update_interval=1e6,
        tuner_name="live",
    ).run()


if __name__ == "__main__":
    main()
