"""The options of the commands `fanwise tune ...`, which are implemented in other modules of this package."""

import math
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Literal

import typer

from ..base.home import list_experiments
from ..base.text import printable_line
from .console import at_work, print_lines

STATUS = "Exit status: 0, 1 after an error, 2 for wrong usage, 130 after Ctrl-C."


def _complete_experiment(incomplete: str) -> list[str]:
    # An error would print a traceback into the command line that the user types.
    with suppress(OSError, RuntimeError, ValueError):
        return [name for name in list_experiments() if name.startswith(incomplete)]
    return []


def _complete_searcher(incomplete: str) -> list[str]:
    from ..tune.searchers import SEARCHERS

    return [name for name in SEARCHERS if name.startswith(incomplete)]


def _above_zero(value: float | None) -> float | None:
    if value is not None and not 0 < value < math.inf:
        raise typer.BadParameter(f"must be a number above 0, got {value:g}")
    return value


tune = typer.Typer(
    rich_markup_mode=None,
    help="Run, show and control searches.",
    epilog="Experiments are kept below $FANWISE_HOME, by default ~/fanwise.",
)

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="An experiment's name, or its folder. `fanwise tune ls` lists them.",
        autocompletion=_complete_experiment,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
TrialId = Annotated[int, typer.Option("--trial", metavar="ID", help="The trial.")]
Names = Annotated[
    list[str],
    typer.Argument(metavar="NAME...", help="Names or folders of experiments.", autocompletion=_complete_experiment),
]
MaxSeconds = Annotated[
    float | None,
    typer.Option(
        "--seconds", metavar="SECONDS", help="Maximum duration, including earlier runs.", callback=_above_zero
    ),
]
MaxTrials = Annotated[
    int | None,
    typer.Option("--trials", metavar="N", help="Maximum number of trials, including earlier runs.", min=1),
]
Workers = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        help="Number of concurrent trials. Default: as in the last run, or one per GPU, or per CPU without GPUs.",
        min=1,
    ),
]
Ray = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS",
        help="Run the trials on a Ray cluster: auto, or an address like 10.0.0.1:6379. none: on this machine. "
        "Default: as in the last run, or none.",
    ),
]
Listen = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT", help="Address of this machine where other hosts join the search with `fanwise join`."
    ),
]
SecretFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="File with the secret of the hosts. Default: FANWISE_SECRET, or FANWISE_SECRET_FILE."
    ),
]
LocalWorkers = Annotated[
    int | None,
    typer.Option(metavar="N", help="With --listen: CPUs of this machine to use. 0: only hosts that join.", min=0),
]


@tune.command("run", epilog=STATUS)
def tune_run(
    objective: Annotated[
        str,
        typer.Argument(
            metavar="FILE:FUNCTION",
            help="The objective: train.py:train, or package.train:train in a package.",
        ),
    ],
    space: Annotated[Path, typer.Option(metavar="FILE", help="YAML file with the domains of the hyperparameters.")],
    metric: Annotated[
        list[str], typer.Option(metavar="NAME", help="The reported value to optimize. Repeat for several objectives.")
    ],
    mode: Annotated[
        list[str] | None,
        typer.Option(metavar="MODE", help="min or max, once or for each metric. Default: min."),
    ] = None,
    constraint: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="Constraint on reported values, like 'latency_ms <= 20'. Can be repeated."),
    ] = None,
    searcher: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Searcher: random, grid, sobol, gp, forest, tpe, bayesopt, or a sampler of Optuna such as "
            "optuna:TPESampler. Default: chosen for the search; random if a scheduler is given.",
            autocompletion=_complete_searcher,
        ),
    ] = None,
    scheduler: Annotated[
        Literal["fifo", "asha", "halving", "hyperband", "bohb", "median", "pbt", "moasha"],
        typer.Option(
            metavar="NAME",
            help="Scheduler: fifo (no early stopping), asha, halving, hyperband, bohb, median, pbt, moasha.",
        ),
    ] = "fifo",
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="Setting of the searcher or scheduler. Can be repeated."),
    ] = None,
    seconds: MaxSeconds = None,
    trials: MaxTrials = None,
    workers: Workers = None,
    devices_per_trial: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            help="GPUs (or CPUs) per trial. Below 1: a share of a GPU. Default: divide the machine by the workers.",
            callback=_above_zero,
        ),
    ] = None,
    trial_timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Maximum duration of a trial. Default: no limit.", callback=_above_zero),
    ] = None,
    retries: Annotated[int, typer.Option(metavar="N", help="Maximum number of retries of a crashed trial.", min=0)] = 0,
    max_equal_failures: Annotated[
        int, typer.Option(metavar="N", help="End the search if the first N trials all fail alike. 0: never.", min=0)
    ] = 3,
    seed: Annotated[
        int | None,
        typer.Option(metavar="SEED", help="Random seed of the search. Default: random, and printed."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the experiment. Default: name of the function and time.")
    ] = None,
    synchronous: Annotated[
        bool, typer.Option("--synchronous", help="Start trials in batches, each after the previous batch has ended.")
    ] = False,
    reuse: Annotated[bool, typer.Option("--reuse", help="Run several trials in each process, in turn.")] = False,
    ray: Ray = None,
    listen: Listen = None,
    secret_file: SecretFile = None,
    local_workers: LocalWorkers = None,
    json: AsJson = False,
) -> None:
    """Search the hyperparameters of a function.

    The function takes hyperparameters as arguments and calls fanwise.tune.report(loss=...). The space is a YAML file
    with a domain (uniform, loguniform, randint, lograndint, choice, ordinal, finrange) or a constant for each
    hyperparameter:

    \b
        learning_rate: {loguniform: [0.01, 1]}
        optimizer: {choice: [sgd, adam]}
        max_epochs: 10

    --seconds or --trials is required. Without --searcher and --scheduler, all trials run to their end, and the chosen
    searcher is printed. Schedulers that stop trials early compare their reports. Use --option to set the name of a
    reported resource and its maximum.

    \b
    Examples:
        fanwise tune run train.py:train --space space.yaml --metric loss --seconds 60
        fanwise tune run train.py:train --space space.yaml --metric loss --trials 50 \\
            --scheduler asha --option resource_attr=epoch --option max_resource_attr=max_epochs

    Ctrl-C ends the search early and keeps its results; the exit status is 130. A second Ctrl-C kills the running
    trials. With --json, only the output of `fanwise tune show --json` is printed, at the end.
    """
    options = dict(locals())
    from .searching import run_search

    run_search(**options)


@tune.command("resume", epilog=STATUS)
def tune_resume(
    name: Name,
    objective: Annotated[
        str | None,
        typer.Option(metavar="FILE:FUNCTION", help="The objective, if it cannot be loaded as before."),
    ] = None,
    workers: Workers = None,
    seconds: MaxSeconds = None,
    trials: MaxTrials = None,
    ray: Ray = None,
    listen: Listen = None,
    secret_file: SecretFile = None,
    local_workers: LocalWorkers = None,
    json: AsJson = False,
) -> None:
    """Resume a search that has ended or was killed.

    Interrupted trials resume from their last checkpoint, or start again if they have none. A search that has reached a
    limit needs a new one. A search that ran on a Ray cluster runs there again. With --listen, hosts can join.

    \b
    Example:
        fanwise tune resume lenet --trials 200
    """
    options = dict(locals())
    from .steering import resume_search

    resume_search(**options)


@tune.command("ls", epilog=STATUS)
def tune_ls(json: AsJson = False) -> None:
    """List your experiments: state, number of trials, best value.

    \b
    States:
      running     the search is running
      finished    ended by a limit, an error or Ctrl-C
      crashed     its tuner was killed or crashed; all reports are kept
      unknown     not finished; it may be running on another machine

    \b
    Example:
        fanwise tune ls --json
    """
    from .showing import list_json, list_lines

    with at_work("reading"):
        lines = [list_json()] if json else list(list_lines())
    print_lines(lines)


@tune.command("show", epilog=STATUS)
def tune_show(
    name: Name,
    trial: Annotated[
        int | None,
        typer.Option(metavar="ID", help="Show this trial: configuration, reports, times, checkpoint, output, failure."),
    ] = None,
    all_trials: Annotated[bool, typer.Option("--all", help="List all trials, not only the latest.")] = False,
    json: AsJson = False,
) -> None:
    """Show the state, trials and best configuration.

    \b
    Examples:
        fanwise tune show lenet
        fanwise tune show lenet --trial 3
    """
    from .showing import show_json, show_lines, trial_json, trial_lines

    with at_work("reading"):
        if json:
            lines = [show_json(name) if trial is None else trial_json(name, trial)]
        else:
            lines = list(show_lines(name, all_trials=all_trials) if trial is None else trial_lines(name, trial))
    print_lines(lines)


@tune.command("watch", epilog=STATUS)
def tune_watch(name: Name) -> None:
    """Watch a search that runs in another terminal.

    Ctrl-C ends the display, not the search.

    \b
    Example:
        fanwise tune watch lenet
    """
    from .steering import watch_search

    watch_search(name)


@tune.command("stop", epilog=STATUS)
def tune_stop(
    name: Name,
    trial: Annotated[int | None, typer.Option(metavar="ID", help="End only this trial. The search continues.")] = None,
) -> None:
    """End a search that runs in another terminal.

    Its trials are stopped and its results are kept. If the command is repeated, it kills the running trials.

    \b
    Examples:
        fanwise tune stop lenet
        fanwise tune stop lenet --trial 3
    """
    from .steering import command_search

    if trial is None:
        command_search(name, "stop")
    else:
        command_search(name, "stop_trial", trial)


@tune.command("pause", epilog=STATUS)
def tune_pause(name: Name, trial: TrialId) -> None:
    """Pause a trial of a running search.

    The trial pauses at its next report, and its worker runs other trials. It keeps its last checkpoint.

    \b
    Example:
        fanwise tune pause lenet --trial 3
    """
    from .steering import command_search

    command_search(name, "pause", trial)


@tune.command("unpause", epilog=STATUS)
def tune_unpause(name: Name, trial: TrialId) -> None:
    """Let a paused trial of a running search continue.

    The trial resumes from its last checkpoint when a worker is free. Without a checkpoint it starts again.

    \b
    Example:
        fanwise tune unpause lenet --trial 3
    """
    from .steering import command_search

    command_search(name, "unpause", trial)


@tune.command("enqueue", epilog=STATUS)
def tune_enqueue(
    name: Name,
    settings: Annotated[
        list[str], typer.Argument(metavar="KEY=VALUE...", help="Hyperparameters. The others are drawn at random.")
    ],
) -> None:
    """Let a running search try a given configuration next.

    \b
    Example:
        fanwise tune enqueue lenet learning_rate=0.1 batch_size=64
    """
    from .steering import enqueue

    enqueue(name, settings)


@tune.command("workers", epilog=STATUS)
def tune_workers(
    name: Name,
    number: Annotated[int, typer.Argument(metavar="N", help="Number of concurrent trials, at least 1.", min=1)],
) -> None:
    """Change the number of workers of a running search.

    Running trials end normally. With fewer workers, no trial starts until fewer than N are running. With more workers,
    new trials start as soon as devices are free.

    \b
    Example:
        fanwise tune workers lenet 4
    """
    from .steering import command_search

    command_search(name, "workers", number)


@tune.command("rm", epilog=STATUS)
def tune_rm(
    names: Names,
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete experiments that are not running, after confirmation.

    Checkpoints are deleted, too, also outside of the folder of the experiment. Files of others are kept.

    \b
    Example:
        fanwise tune rm lenet
    """
    from .steering import remove

    remove(names, sure=yes)


@tune.command("plot", epilog=STATUS)
def tune_plot(
    names: Names,
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for the figures.")] = Path("."),
    kind: Annotated[Literal["png", "svg", "pdf"], typer.Option("--format", help="Format of the figures.")] = "png",
) -> None:
    """Draw an experiment, or compare several.

    One experiment: best value so far, learning curves, workers, and if available rungs, importances and the Pareto
    front. Several experiments: best value so far and workers.

    \b
    Examples:
        fanwise tune plot lenet --out pictures
        fanwise tune plot lenet lenet-asha
    """
    from .drawing import draw

    with at_work("drawing"):
        paths = draw(names, out, kind)
    print_lines(printable_line(str(path)) for path in paths)


@tune.command("importance", epilog=STATUS)
def tune_importance(
    name: Name,
    metric: Annotated[
        str | None, typer.Option(metavar="NAME", help="The objective, if there are several. Default: the first.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Show how much each hyperparameter matters.

    Also shows how well the underlying model predicts results. With a correlation near 0, the importances mean nothing.

    \b
    Example:
        fanwise tune importance lenet
    """
    from .showing import importance_json, importance_lines

    with at_work("fitting a model"):
        lines = [importance_json(name, metric)] if json else list(importance_lines(name, metric))
    print_lines(lines)


@tune.command("export", epilog=STATUS)
def tune_export(
    name: Name,
    out: Annotated[
        Path,
        typer.Option(metavar="FILE", help="File to write: .csv, .json, .parquet or .sqlite, in an existing folder."),
    ],
) -> None:
    """Write all reports to a file.

    \b
    Example:
        fanwise tune export lenet --out lenet.csv
    """
    from .experiments import export

    with at_work("writing"):
        path = export(name, out)
    typer.echo(printable_line(str(path)))


@tune.command("report", epilog=STATUS)
def tune_report(
    name: Name,
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="HTML file to write. Default: NAME.html in this folder.")
    ] = None,
) -> None:
    """Write a report to one HTML file.

    It contains the best configuration, figures, the best trials, failures and the environment. The file
    needs neither a server nor a network.

    \b
    Example:
        fanwise tune report lenet --out lenet.html
    """
    from .experiments import write_report

    with at_work("drawing"):
        path = write_report(name, out)
    typer.echo(printable_line(str(path)))


@tune.command("replay", epilog="Exit status: 0 if all decisions are the same, 1 otherwise.")
def tune_replay(name: Name, json: AsJson = False) -> None:
    """Repeat all decisions of an experiment, and compare.

    Runs no trial. A difference means that the scheduler or searcher has changed, or uses a clock or its own randomness.
    Such a search cannot be resumed reliably.

    \b
    Example:
        fanwise tune replay lenet
    """
    from .replaying import replay

    with at_work("replaying"):
        lines, is_same = replay(name, json=json)
    print_lines(lines)
    if not is_same:
        raise typer.Exit(1)
