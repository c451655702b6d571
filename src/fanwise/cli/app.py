"""The commands and their options; what they do is in the files beside this one, loaded when a command runs.

An error is one readable paragraph on standard error and exit status 1, wrong usage too; `--debug`, anywhere on the
line, shows the traceback instead. After Ctrl-C the status is 130, also when the search ended in order and is kept.
"""

import sys
from pathlib import Path
from typing import Annotated

import typer

from ..base.nearest import nearest
from ..base.text import printable, printable_line

_STATUS = "Exit status: 0 when it came to its end, 1 after an error, 130 after Ctrl-C."

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Search the hyperparameters of Python functions on every CPU and GPU of this machine.",
    epilog=f"Try `fanwise demo` first. {_STATUS}",
)
tune = typer.Typer(
    rich_markup_mode=None,
    help="Run searches of hyperparameters, and look at them.",
    epilog="Experiments are kept below $FANWISE_HOME, by default ~/fanwise.",
)
app.add_typer(tune, name="tune")

Seconds = Annotated[float, typer.Option(metavar="SECONDS", help="How long to search.", min=1.0)]
Name = Annotated[
    str, typer.Argument(metavar="NAME", help="An experiment's name, or its folder. `fanwise tune ls` lists them.")
]


def _show_version(wanted: bool) -> None:
    if wanted:
        from ..base.version import VERSION

        typer.echo(f"fanwise {VERSION}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of an error; may stand anywhere on the line.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """`main` takes `--debug` out of the line before this is called."""


@app.command(epilog=_STATUS)
def demo(
    seconds: Seconds = 60.0,
    workers: Annotated[int, typer.Option(metavar="N", help="Trials at a time.", min=1)] = 2,
    data: Annotated[
        str, typer.Option(metavar="DATA", help="digits (needs no download) or fashion-mnist (downloads 30 MB).")
    ] = "digits",
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the pictures go.")] = Path("fanwise-demo"),
) -> None:
    """Search LeNet's learning rate and batch size on real images.

    Takes a minute. Shows the trials as they run, then the best configuration and how busy the workers were, and draws
    three pictures. Ctrl-C ends it early, with everything kept; a second one kills what still runs.
    """
    from .demo import run_demo

    run_demo(seconds=seconds, workers=workers, data=data, out=out)


@app.command()
def devices() -> None:
    """Show the CPUs, memory and GPUs that a search would use."""
    from .devices import device_lines

    for line in device_lines():
        typer.echo(line)


@app.command()
def secret(
    file: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Write it to this new file, which only you may read.")
    ] = None,
) -> None:
    """Make the secret by which the processes of several hosts know each other.

    Give it to all of them, in FANWISE_SECRET or in a file that FANWISE_SECRET_FILE names, and to nobody else: whoever
    holds it may run code in them.
    """
    from .secret import secret_line

    typer.echo(secret_line(file))


@tune.command("run", epilog=_STATUS)
def tune_run(
    objective: Annotated[
        str,
        typer.Argument(
            metavar="FILE:FUNCTION",
            help="The objective: train.py:train, package/train.py:train or package.train:train.",
        ),
    ],
    space: Annotated[Path, typer.Option(metavar="FILE", help="YAML file: hyperparameters to domains and constants.")],
    metric: Annotated[str, typer.Option(metavar="NAME", help="The reported value to optimise.")],
    mode: Annotated[str, typer.Option(metavar="MODE", help="min or max.")] = "min",
    seconds: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="End after so long. This or --trials is needed.")
    ] = None,
    trials: Annotated[int | None, typer.Option(metavar="N", help="End after starting so many trials.", min=1)] = None,
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Trials at a time. Default: one for each GPU, or CPU where there is none.", min=1
        ),
    ] = None,
    devices_per_trial: Annotated[
        float, typer.Option(metavar="N", help="GPUs (or CPUs) for each trial; below 1: a share of a GPU.")
    ] = 1,
    trial_timeout: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="How long a trial may take. Default: no limit.")
    ] = None,
    retries: Annotated[int, typer.Option(metavar="N", help="How often a crashed trial is tried again.", min=0)] = 0,
    seed: Annotated[
        int | None, typer.Option(metavar="SEED", help="Master random seed. Default: drawn, and printed.")
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of the experiment. Default: the function's name and the time.")
    ] = None,
    synchronous: Annotated[
        bool, typer.Option("--synchronous", help="Each batch of trials waits for the whole last one.")
    ] = False,
    reuse: Annotated[bool, typer.Option("--reuse", help="Run trials in processes that ran trials before.")] = False,
) -> None:
    """Random search of the hyperparameters of a function.

    The function takes hyperparameters as arguments and calls fanwise.tune.report(loss=...). The space is a YAML file,
    one line a hyperparameter, each a domain (uniform, loguniform, randint, lograndint, choice, finrange) or a constant:

    \b
        learning_rate: {loguniform: [0.01, 1]}
        max_epochs: 10

    \b
    Example:
        fanwise tune run train.py:train --space space.yaml --metric loss --seconds 60

    Ctrl-C ends the search early, with everything kept and exit status 130; a second one kills what still runs.
    """
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
    """List your experiments: state, number of trials, best value.

    \b
    The state is one of
      running     its tuner is at work
      finished    it came to its end: a limit, an error, or Ctrl-C
      broken-off  its tuner was killed or crashed; what was reported is kept
      unknown     not finished, and it runs on another machine if it does
    """
    from .experiments import list_lines

    for line in list_lines():
        typer.echo(line)


@tune.command("show")
def tune_show(
    name: Name,
    trial: Annotated[
        int | None, typer.Option(metavar="ID", help="Show this trial: its configuration, failure and output.")
    ] = None,
) -> None:
    """Show state, trials and best configuration, also while it runs."""
    from .experiments import show_lines, trial_lines

    for line in show_lines(name) if trial is None else trial_lines(name, trial):
        typer.echo(line)


@tune.command("plot")
def tune_plot(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="An experiment, or several to compare.")],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the pictures go; made if need be.")] = Path("."),
    kind: Annotated[str, typer.Option("--format", metavar="KIND", help="png, svg or pdf.")] = "png",
) -> None:
    """Draw an experiment: best value so far, learning curves, workers, hyperparameters, rungs, Pareto front.

    Several experiments are drawn into one picture of the best value so far, and one of their workers.
    """
    from .experiments import draw

    for path in draw(names, out, kind):
        typer.echo(printable_line(str(path)))


@tune.command("export")
def tune_export(
    name: Name,
    out: Annotated[Path, typer.Option(metavar="FILE", help="The CSV file to write, in a folder that is there.")],
) -> None:
    """Write all reports of an experiment as CSV."""
    from .experiments import export

    typer.echo(printable_line(str(export(name, out))))


def main() -> None:
    """Run the command line; ends the process with an exit status: 0, 1 after an error, 130 after Ctrl-C."""
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
        message = _unknown_option(error) or format_message()
        return printable(f"error: {message}\nWith --help behind it, each command shows what it takes.")
    text = printable(f"error: {error}")
    if isinstance(error, FanwiseError | ValueError | TypeError | OSError):
        return text
    return f"{text}\n({type(error).__name__}; `fanwise --debug ...` shows where it comes from)"


def _unknown_option(error: Exception) -> str | None:
    """An unknown option and the one that was meant, in the form in which unknown commands are told."""
    option = getattr(error, "option_name", None)
    near = nearest(option, getattr(error, "possibilities", None) or ()) if option else None
    return f"No such option {option!r}. Did you mean {near!r}?" if near else None
