"""The commands and their options; what they do is in the files beside this one, loaded when a command runs.

An error is one readable paragraph on standard error and exit code 1, wrong usage too; `--debug`, anywhere on the line,
shows the traceback instead. Ctrl-C ends with 130.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from .text import plain_line, plain_text

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Spread deep-learning work over every device you have.",
)
tune = typer.Typer(rich_markup_mode=None, help="Hyperparameter searches.")
app.add_typer(tune, name="tune")

Seconds = Annotated[float, typer.Option(help="Wall-clock seconds of search.", min=1.0)]
Workers = Annotated[int | None, typer.Option(help="Trials at a time. Default: one a device.", min=1)]
Name = Annotated[str, typer.Argument(help="An experiment's name, or its folder. `fanwise tune ls` lists them.")]


@app.callback()
def options(
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Read by `main` before the commands are."""


@app.command()
def demo(
    seconds: Seconds = 60.0,
    workers: Annotated[int, typer.Option(help="Trials at a time.", min=1)] = 2,
    data: Annotated[str, typer.Option(help="digits (needs no download) or fashion-mnist.")] = "digits",
    out: Annotated[Path, typer.Option(help="Folder for the pictures.")] = Path("fanwise-demo"),
) -> None:
    """Search LeNet's learning rate and batch size on real images."""
    from .demo import run_demo

    run_demo(seconds=seconds, workers=workers, data=data, out=out)


@app.command()
def devices() -> None:
    """Show the CPUs, memory and GPUs that a pool would use."""
    from .devices import device_lines

    for line in device_lines():
        typer.echo(line)


@tune.command("run")
def tune_run(
    objective: Annotated[str, typer.Argument(metavar="FILE:FUNCTION", help="The objective, e.g. train.py:train.")],
    space: Annotated[Path, typer.Option(help="YAML file: hyperparameters to domains and constants.")],
    metric: Annotated[str, typer.Option(help="The reported value to optimise.")],
    mode: Annotated[str, typer.Option(help="min or max.")] = "min",
    seconds: Annotated[float | None, typer.Option(help="Stop after this many seconds.")] = None,
    trials: Annotated[int | None, typer.Option(help="Stop after this many trials were started.", min=1)] = None,
    workers: Workers = None,
    devices_per_trial: Annotated[float, typer.Option(help="GPUs (or CPUs) for each trial.")] = 1,
    trial_timeout: Annotated[float | None, typer.Option(help="Seconds that a trial may take.")] = None,
    retries: Annotated[int, typer.Option(help="How often a crashed trial is tried again.", min=0)] = 0,
    seed: Annotated[int | None, typer.Option(help="Master random seed.")] = None,
    name: Annotated[str | None, typer.Option(help="Name of the experiment.")] = None,
    synchronous: Annotated[
        bool, typer.Option("--synchronous", help="Each batch waits for the whole last one.")
    ] = False,
    reuse: Annotated[bool, typer.Option("--reuse", help="Run trials in processes that ran trials before.")] = False,
) -> None:
    """Random search of the hyperparameters of a function in a file."""
    from .searching import Settings, run_search

    run_search(
        Settings(
            objective=objective,
            space=space,
            metric=metric,
            mode=mode,
            seconds=seconds,
            trials=trials,
            workers=workers,
            devices_per_trial=devices_per_trial,
            trial_timeout_s=trial_timeout,
            retries=retries,
            seed=seed,
            name=name,
            asynchronous=not synchronous,
            reuse=reuse,
        )
    )


@tune.command("ls")
def tune_ls() -> None:
    """List the experiments of this user."""
    from .experiments import list_lines

    for line in list_lines():
        typer.echo(line)


@tune.command("show")
def tune_show(
    name: Name,
    trial: Annotated[int | None, typer.Option(help="Show this trial: its failure and its output.")] = None,
) -> None:
    """Show trials and best configuration, also while it runs."""
    from .experiments import show_lines, trial_lines

    for line in show_lines(name) if trial is None else trial_lines(name, trial):
        typer.echo(line)


@tune.command("plot")
def tune_plot(name: Name, out: Annotated[Path, typer.Option(help="Folder for the PNGs.")] = Path(".")) -> None:
    """Draw incumbent, learning curves and workers as PNGs."""
    from .experiments import draw

    for path in draw(name, out):
        typer.echo(plain_line(str(path)))


@tune.command("export")
def tune_export(name: Name, out: Annotated[Path, typer.Option(help="The CSV file to write.")]) -> None:
    """Write all reports of an experiment as CSV."""
    from .experiments import export

    typer.echo(plain_line(str(export(name, out))))


def main() -> None:
    """Run the command line; ends the process with an exit code: 0, 1 after an error, 130 after Ctrl-C."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    if arguments in ([], ["tune"]):
        arguments.append("--help")
    try:
        code = app(args=arguments, standalone_mode=False)
    except (KeyboardInterrupt, typer.Abort):
        typer.echo("interrupted", err=True)
        sys.exit(130)
    except Exception as error:
        if debug:
            raise
        typer.echo(_paragraph(error), err=True)
        sys.exit(1)
    sys.exit(code if isinstance(code, int) else 0)


def _paragraph(error: Exception) -> str:
    """What a person reads of an error. Of one that is not meant for people, also its type and where to look."""
    from ..base.errors import FanwiseError

    format_message = getattr(error, "format_message", None)  # what all errors of wrong usage have, and no others
    if format_message is not None:
        return plain_text(f"error: {format_message()}\nWith --help behind it, each command shows what it takes.")
    text = plain_text(f"error: {error}")
    if isinstance(error, FanwiseError | ValueError | TypeError | OSError):
        return text
    return f"{text}\n({type(error).__name__}; `fanwise --debug ...` shows where it comes from)"
