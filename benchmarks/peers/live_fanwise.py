"""searchers_live.py's program for fanwise: one search of so many seconds with `--method`."""

import os
from collections.abc import Callable
from pathlib import Path

from live_arguments import MAX_EPOCHS, arguments
from live_training import train  # here, so that the warm process sees what it will import; Syne Tune wants it inside

from fanwise.tune import ASHA, RandomSearch, Scheduler, StoppingCriterion, Tuner, loguniform, randint, report

METRIC = "error"
SCHEDULERS: dict[str, Callable[[int], Scheduler]] = {
    "random": lambda seed: RandomSearch(metric=METRIC, random_seed=seed),
    "ASHA": lambda seed: ASHA(metric=METRIC, resource_attr="epoch", max_t=MAX_EPOCHS, random_seed=seed),
}


def objective(learning_rate: float, batch_size: int, max_epochs: int) -> None:
    def told(epoch: int, error: float) -> None:
        report(epoch=epoch, error=error)

    train(learning_rate, batch_size, max_epochs, told)


def main() -> None:
    args = arguments(SCHEDULERS)
    os.environ["FANWISE_HOME"] = str(args.folder)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    Tuner(
        objective,
        {"learning_rate": loguniform(1e-2, 1), "batch_size": randint(32, 256), "max_epochs": MAX_EPOCHS},
        SCHEDULERS[args.method](args.seed),
        StoppingCriterion(max_wallclock_time=args.seconds),
        n_workers=args.workers,
        name="live",
        quiet=True,
    ).run()


if __name__ == "__main__":
    main()
