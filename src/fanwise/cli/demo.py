"""`fanwise demo`: the main job, from an empty machine to three pictures in about a minute."""

import time
from pathlib import Path

import typer

from ..tune import RandomSearch, StoppingCriterion, Tuner, loguniform, randint
from .demo_objective import train_lenet
from .experiments import draw

DATA = ("digits", "fashion-mnist")
# So that a trial takes a few seconds on one CPU, and one sees trials end and begin.
MAX_EPOCHS = {"digits": 20, "fashion-mnist": 10}


def run_demo(*, seconds: float, workers: int, data: str, out: Path) -> None:
    """Search, then print the best configuration, the utilisation and the paths of the pictures."""
    if data not in DATA:
        raise ValueError(f"--data must be one of {', '.join(DATA)}, got {data!r}")
    if data == "fashion-mnist":
        from ..zoo import fashion_mnist

        fashion_mnist()  # here, not in every worker: downloads with a progress bar when it is not there yet
    tuner = Tuner(
        train_lenet,
        {
            "learning_rate": loguniform(1e-2, 1),
            "batch_size": randint(32, 256),
            "max_epochs": MAX_EPOCHS[data],
            "data": data,
        },
        RandomSearch(
            metric="validation_error",
            mode="min",
            points_to_evaluate=[{"learning_rate": 0.1, "batch_size": 128}],
        ),
        StoppingCriterion(max_wallclock_time=seconds),
        n_workers=workers,
        print_update_interval=min(30.0, seconds / 3),
    )
    began_s = time.monotonic()
    experiment = tuner.run()
    took_s = time.monotonic() - began_s
    best, utilisation = experiment.best, experiment.utilisation
    typer.echo()
    if best is not None:
        typer.echo(f"best configuration   {best.config}")
        typer.echo(f"validation error     {best.value:.4f} (trial {best.trial_id}, epoch {best.iter})")
    if utilisation is not None:
        start_up_s = experiment.search_data().first_ready_s or 0.0
        typer.echo(f"worker utilisation   {utilisation:.1%} of {workers} workers inside the objective")
        typer.echo(f"start-up             {start_up_s:.1f} s until the first worker was ready, of {took_s:.1f} s in all")
    for path in draw(experiment.path, out):
        typer.echo(f"picture              {path}")
    typer.echo(f"results              {experiment.path}")
