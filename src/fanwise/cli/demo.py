"""`fanwise demo`: the main job, from an empty machine to pictures of a search in about a minute.

    settings -> Tuner.run() (its table is what one watches) -> best configuration, utilization, start-up -> PNGs

This process imports neither torch nor the network: the objective is a small function that travels by value, and what it
imports is found and loaded by the workers' warm process.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import typer

from ..base.extras import check_installed
from ..base.text import counted, printable_line
from ..pool import Pool
from ..tune import FIFO, Experiment, StoppingCriterion, Tuner, loguniform, randint
from .drawing import draw
from .experiments import folder_for_output, pool_on, run_tuner, shown_config, utilization_of
from .usage import UsageError

DATA = ("digits", "fashion-mnist")
# So that a trial takes some 4 to 8 seconds on one thread, and one sees trials end and begin. An epoch of Fashion-MNIST
# has 42 times the images.
MAX_EPOCHS = {"digits": 25, "fashion-mnist": 2}

# Where most trials learn: elsewhere LeNet's sigmoids stay at chance for all epochs, and most of the picture with them.
# Of 20 trials on the digits in here all came below an error of 0.5 and 17 below 0.2; of 14 with learning rates from
# 0.01 to 1 and 32 to 256 images a batch 6 and 5 did. The book's space is that of the examples.
LEARNING_RATES, BATCH_SIZES = (0.05, 0.4), (32, 128)


def run_demo(*, seconds: float, workers: int, data: str, out: Path, ray: str | None = None) -> None:
    """Search, then print the best configuration, the utilization and the paths of the pictures.

    Raises:
        UsageError: no such data. Nothing was started.
        NotInstalled: torch or scikit-learn is not there: `fanwise[demo]`. Nothing was started.
        ValueError: `out` cannot be a folder of pictures. Nothing was started.
        typer.Exit: with 130, after all of it, when Ctrl-C ended the search.
    """
    began_s = time.monotonic()
    if data not in DATA:
        raise UsageError(f"--data must be one of {', '.join(DATA)}, got {data!r}")
    check_installed("the demo needs", "torch", *(["sklearn"] if data == "digits" else []), extra="demo")
    folder_for_output(out)
    if data == "fashion-mnist":
        from ..zoo import fashion_mnist

        fashion_mnist()  # here, not in every worker: downloads with a progress bar when it is not there yet
    with pool_on(ray) as pool:
        experiment, status = _searched(seconds=seconds, workers=workers, data=data, pool=pool)
    pictures = draw([experiment.path], out)
    typer.echo()
    for line in _summary(experiment, workers):
        typer.echo(line)
    for path in pictures:
        typer.echo(f"picture              {printable_line(str(path))}")
    typer.echo(f"results              {experiment.path}")
    typer.echo(f"all in all           {time.monotonic() - began_s:.1f} s")
    typer.echo(_NEXT.format(name=printable_line(experiment.name)))
    if status:
        raise typer.Exit(status)


def _searched(*, seconds: float, workers: int, data: str, pool: Pool | None) -> tuple[Experiment, int]:
    tuner = Tuner(
        _objective(),
        {
            "learning_rate": loguniform(*LEARNING_RATES),
            "batch_size": randint(*BATCH_SIZES),
            "max_epochs": MAX_EPOCHS[data],
            "data": data,
        },
        FIFO(
            metric="validation_error",
            mode="min",
            points_to_evaluate=[{"learning_rate": 0.1, "batch_size": 128}],
        ),
        StoppingCriterion(max_wallclock_time=seconds),
        n_workers=workers,
        print_update_interval=min(30.0, seconds / 3),
        pool=pool,
    )
    return run_tuner(tuner)


_NEXT = """
next: all of it again, in words     fanwise tune show {name}
      more trials of the same       fanwise tune resume {name} --seconds 120
      a function of your own        fanwise tune run train.py:train --space space.yaml --metric loss --seconds 60
      the same in ten lines         fanwise explain quickstart"""


def _objective() -> Callable[[float, int, int, str], None]:
    """A function of no module, so that it travels by value and torch is loaded where it is called."""

    def train_lenet(learning_rate: float, batch_size: int, max_epochs: int, data: str) -> None:
        from fanwise.cli.demo_objective import train

        train(learning_rate, batch_size, max_epochs, data)

    return train_lenet


def _summary(experiment: Experiment, workers: int) -> Iterator[str]:
    best, first_s = experiment.best, experiment.search_data().first_objective_s
    if best is not None:
        yield f"best configuration   {shown_config(best.config)}"
        yield f"validation error     {best.value:.4f} (trial {best.trial_id}, epoch {best.iter})"
    utilization = utilization_of(experiment)
    if utilization is not None and first_s is not None:
        whose = counted(workers, "worker")
        yield f"worker utilization   {utilization} of {whose}, from the first that was ready to the stop"
        yield f"start-up             {first_s:.1f} s until the first worker was ready"
