"""searchers_live.py's program for fanwise: one search of so many seconds with `--method`.

default         no searcher is named: the library chooses
ASHA, forest    trials are stopped early, and the searcher that it would choose learns from them
ASHA, reuse     trials are stopped early, and the processes that ran them are used again
"""

import os
from collections.abc import Callable
from pathlib import Path

from live_arguments import MAX_EPOCHS, arguments
from live_training import train  # here, so that the warm process sees what it will import; Syne Tune wants it inside

from fanwise.tune import ASHA, FIFO, Scheduler, StoppingCriterion, Tuner, loguniform, randint, report

METRIC = "error"
SCHEDULERS: dict[str, Callable[[int], Scheduler | None]] = {
    "default": lambda seed: None,
    "random": lambda seed: FIFO(metric=METRIC, random_seed=seed),
    "ASHA": lambda seed: asha("random", seed),
    "ASHA, reuse": lambda seed: asha("random", seed),
    "ASHA, forest": lambda seed: asha("forest", seed),
}


def asha(searcher: str, seed: int) -> Scheduler:
    return ASHA(metric=METRIC, resource_attr="epoch", max_t=MAX_EPOCHS, searcher=searcher, random_seed=seed)


def objective(learning_rate: float, batch_size: int, max_epochs: int) -> None:
    def told(epoch: int, error: float) -> None:
        report(epoch=epoch, error=error)

    train(learning_rate, batch_size, max_epochs, told)


def main() -> None:
    args = arguments(SCHEDULERS)
    os.environ["FANWISE_HOME"] = str(args.folder)
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")]))
    scheduler = SCHEDULERS[args.method](args.seed)
    Tuner(
        objective,
        {"learning_rate": loguniform(1e-2, 1), "batch_size": randint(32, 256), "max_epochs": MAX_EPOCHS},
        scheduler,
        StoppingCriterion(max_wallclock_time=args.seconds),
        metric=METRIC if scheduler is None else None,
        random_seed=args.seed,
        n_workers=args.workers,
        reuse=args.method == "ASHA, reuse",
        name="live",
        quiet=True,
    ).run()


if __name__ == "__main__":
    main()
