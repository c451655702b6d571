"""The command `fanwise demo`: a search of a minute, with its figures.

This process does not import torch.
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import typer

from ..base.extras import check_installed
from ..base.text import counted, printable_line
from ..tune import FIFO, Experiment, StoppingCriterion, Tuner, loguniform, randint
from .console import print_lines, table_lines
from .drawing import draw
from .experiments import folder_for_output, pool_on, run_tuner, shown_config, utilization_of

# A trial takes 4 to 8 seconds on one thread, so that the user sees trials end and start. An epoch of Fashion-MNIST has
# 42 times the images.
MAX_EPOCHS = {"digits": 25, "fashion-mnist": 2}

# Most trials learn with these values: of 20 trials on the digits, all reached an error below 0.5 and 17 below 0.2.
LEARNING_RATES, BATCH_SIZES = (0.05, 0.4), (32, 128)

_NEXT = """
next: show the results again        fanwise tune show {name}
      run more trials               fanwise tune resume {name} --seconds 120
      search your own function      fanwise tune run train.py:train --space space.yaml --metric loss --seconds 60
      the same in Python            fanwise explain quickstart"""


def run_demo(*, seconds: float, workers: int, data: str, out: Path, ray: str | None = None) -> None:
    """Run the search, and print the best configuration, the utilization and the paths of the figures.

    Raises:
        NotInstalled: torch or scikit-learn is not installed. Nothing was started.
        ValueError: the folder `out` cannot be created or written to. Nothing was started.
        typer.Exit: status 130, after the results, if Ctrl-C ended the search.
    """
    began_s = time.monotonic()
    check_installed("the demo needs", "torch", *(["sklearn"] if data == "digits" else []), extra="demo")
    folder_for_output(out)
    if data == "fashion-mnist":
        from ..zoo import fashion_mnist

        fashion_mnist()  # downloads the images once, with a progress bar
    space = {
        "learning_rate": loguniform(*LEARNING_RATES),
        "batch_size": randint(*BATCH_SIZES),
        "max_epochs": MAX_EPOCHS[data],
        "data": data,
    }
    first_config = {"learning_rate": 0.1, "batch_size": 128}
    with pool_on(ray) as pool:
        tuner = Tuner(
            _objective(),
            space,
            FIFO(metric="validation_error", mode="min", points_to_evaluate=[first_config]),
            StoppingCriterion(max_wallclock_time=seconds),
            n_workers=workers,
            print_update_interval=min(30.0, seconds / 3),
            pool=pool,
        )
        experiment, status = run_tuner(tuner)
    rows = list(_summary(experiment, workers))
    rows += [("figure", str(path)) for path in draw([experiment.path], out)]
    rows += [("results", str(experiment.path)), ("total time", f"{time.monotonic() - began_s:.1f} s")]
    print_lines(["", *table_lines(rows), _NEXT.format(name=printable_line(experiment.name))])
    if status:
        raise typer.Exit(status)


def _objective() -> Callable[[float, int, int, str], None]:
    """Return a nested function, which is sent by value and imports torch only in the workers.

    Pixels are standardized and the optimizer has momentum, because LeNet's sigmoids learn slowly at first. With plain
    SGD and pixels from 0 to 1, as in the book, it is still at chance level on the digits after 20 epochs.
    """

    def train_lenet(learning_rate: float, batch_size: int, max_epochs: int, data: str) -> None:
        import torch

        from fanwise.tune import report
        from fanwise.zoo import LeNet, digits, error_rate, fashion_mnist, train_epoch

        images = (digits() if data == "digits" else fashion_mnist()).standardized()
        model = LeNet()
        optimizer = torch.optim.SGD(model.parameters(), learning_rate, momentum=0.8)
        for epoch in range(1, max_epochs + 1):
            train_epoch(model, optimizer, images.train_images, images.train_labels, batch_size)
            report(epoch=epoch, validation_error=error_rate(model, images.test_images, images.test_labels))

    return train_lenet


def _summary(experiment: Experiment, workers: int) -> Iterator[tuple[str, str]]:
    best, first_s = experiment.best, experiment.search_data().startup_s
    if best is not None:
        yield "best configuration", shown_config(best.config)
        yield "validation error", f"{best.value:.4f} (trial {best.trial_id}, epoch {best.iter})"
    utilization = utilization_of(experiment)
    if utilization is not None and first_s is not None:
        yield "worker utilization", f"{utilization} of {counted(workers, 'worker')}, since the first was ready"
        yield "start-up", f"{first_s:.1f} s until the first worker was ready"
