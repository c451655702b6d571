"""`fanwise tune ...`: the commands and their options. What they do is loaded when one runs, see `app`."""

from pathlib import Path
from typing import Annotated

import typer

from ..base.text import printable_line
from .completing import experiments, kinds_of_picture, modes, schedulers, searchers
from .progress import at_work

STATUS = "Exit status: 0 when it came to its end, 1 after an error, 2 for wrong usage, 130 after Ctrl-C."

tune = typer.Typer(
    rich_markup_mode=None,
    help="Run searches, look at them and steer them.",
    epilog="Experiments are kept below $FANWISE_HOME, by default ~/fanwise.",
)

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME",
        help="An experiment's name, or its folder. `fanwise tune ls` lists them.",
        autocompletion=experiments,
    ),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
TrialId = Annotated[int, typer.Option("--trial", metavar="ID", help="The trial.")]
Workers = Annotated[
    int | None,
    typer.Option(metavar="N", help="Trials at a time. Default: one for each GPU, or CPU where there is none.", min=1),
]


@tune.command("run", epilog=STATUS)
def tune_run(
    objective: Annotated[
        str,
        typer.Argument(
            metavar="FILE:FUNCTION",
            help="The objective: train.py:train, package/train.py:train or package.train:train.",
        ),
    ],
    space: Annotated[Path, typer.Option(metavar="FILE", help="YAML file: hyperparameters to domains and constants.")],
    metric: Annotated[
        list[str], typer.Option(metavar="NAME", help="The reported value to optimise; several: once for each.")
    ],
    mode: Annotated[
        list[str] | None,
        typer.Option(metavar="MODE", help="min or max, for all or once for each. Default: min.", autocompletion=modes),
    ] = None,
    constraint: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="What reports must meet: 'latency_ms <= 20'; may be given several times."),
    ] = None,
    searcher: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="What chooses configurations: random, grid, sobol, forest, tpe, bayesopt, "
            "or optuna:TPESampler and others of Optuna. Default: one that suits the search; with another "
            "scheduler than fifo, random.",
            autocompletion=searchers,
        ),
    ] = None,
    scheduler: Annotated[
        str,
        typer.Option(
            metavar="NAME",
            help="Who ends trials early: fifo (nobody), asha, halving, hyperband, bohb, median, pbt, moasha.",
            autocompletion=schedulers,
        ),
    ] = "fifo",
    option: Annotated[
        list[str] | None,
        typer.Option(metavar="KEY=VALUE", help="A setting of searcher or scheduler; may be given several times."),
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="End after so long. This or --trials is needed.")
    ] = None,
    trials: Annotated[int | None, typer.Option(metavar="N", help="End after starting so many trials.", min=1)] = None,
    workers: Workers = None,
    devices_per_trial: Annotated[
        float | None,
        typer.Option(
            metavar="N",
            help="GPUs (or CPUs) per trial; below 1: a share of a GPU. Default: the machine divided by the workers.",
        ),
    ] = None,
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
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Run the trials on a Ray cluster: auto, or its address as 10.0.0.1:6379."),
    ] = None,
    json: AsJson = False,
) -> None:
    """Search the hyperparameters of a function.

    The function takes hyperparameters as arguments and calls fanwise.tune.report(loss=...). The space is a YAML file,
    one line a hyperparameter, each a domain (uniform, loguniform, randint, lograndint, choice, ordinal, finrange) or a
    constant:

    \b
        learning_rate: loguniform(0.01, 1)
        optimizer: choice(["sgd", "adam"])
        max_epochs: 10

    The form {loguniform: [0.01, 1]} does the same.

    Without --searcher and --scheduler every trial runs to its end, and the searcher that is chosen is named in the
    first lines. Schedulers that stop trials early compare their reports; --option hands them what they need, such as
    the name of a reported resource and its maximum.

    \b
    Examples:
        fanwise tune run train.py:train --space space.yaml --metric loss --seconds 60
        fanwise tune run train.py:train --space space.yaml --metric loss --trials 50 \\
            --scheduler asha --option resource_attr=epoch --option max_resource_attr=max_epochs

    Ctrl-C ends the search early, with everything kept and exit status 130; a second one kills what still runs. With
    --json nothing is printed but what `fanwise tune show --json` would print afterwards.
    """
    from .searching import Settings, run_search

    run_search(
        Settings(
            objective=objective,
            space=space,
            metrics=metric,
            modes=mode or ["min"],
            constraints=constraint or [],
            searcher=searcher,
            scheduler=scheduler,
            options=option or [],
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
            ray=ray,
            json=json,
        )
    )


@tune.command("resume", epilog=STATUS)
def tune_resume(
    name: Name,
    objective: Annotated[
        str | None, typer.Option(metavar="FILE:FUNCTION", help="The objective, where it cannot be loaded as it was.")
    ] = None,
    workers: Annotated[
        int | None, typer.Option(metavar="N", help="Trials at a time. Default: as before.", min=1)
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(metavar="SECONDS", help="Another limit: of the search, with what it ran before.")
    ] = None,
    trials: Annotated[
        int | None, typer.Option(metavar="N", help="Another limit: trials started, with those of before.", min=1)
    ] = None,
    ray: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS",
            help="Run the trials on a Ray cluster: auto, or its address; none: on this machine. Default: as before.",
        ),
    ] = None,
    json: AsJson = False,
) -> None:
    """Go on here with a search that has ended or was killed.

    What ran goes on from its last checkpoint, or without one from scratch. One that came to its end goes on when it
    gets another limit. One whose trials ran on a Ray cluster goes on there.

    \b
    Example:
        fanwise tune resume lenet --trials 200
    """
    from .steering import resume_search

    resume_search(name, objective=objective, workers=workers, seconds=seconds, trials=trials, ray=ray, json=json)


@tune.command("ls", epilog=STATUS)
def tune_ls(json: AsJson = False) -> None:
    """List your experiments: state, number of trials, best value.

    \b
    The state is one of
      running     its tuner is at work
      finished    it came to its end: a limit, an error, or Ctrl-C
      broken-off  its tuner was killed or crashed; what was reported is kept
      unknown     not finished, and it runs on another machine if it does

    \b
    Example:
        fanwise tune ls --json
    """
    from .listing import list_json, list_lines

    with at_work("reading"):
        lines = [list_json()] if json else list(list_lines())
    for line in lines:
        typer.echo(line)


@tune.command("show", epilog=STATUS)
def tune_show(
    name: Name,
    trial: Annotated[
        int | None,
        typer.Option(metavar="ID", help="Show this trial: configuration, reports, times, checkpoint, output, failure."),
    ] = None,
    all_trials: Annotated[bool, typer.Option("--all", help="List every trial, not the latest only.")] = False,
    json: AsJson = False,
) -> None:
    """Show state, trials and best configuration, also while it runs.

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
    for line in lines:
        typer.echo(line)


@tune.command("watch", epilog=STATUS)
def tune_watch(name: Name) -> None:
    """Watch a search that runs in another terminal.

    Until it ends, or Ctrl-C ends the watching, but not the search.

    \b
    Example:
        fanwise tune watch lenet
    """
    from .steering import watch_search

    watch_search(name)


@tune.command("stop", epilog=STATUS)
def tune_stop(
    name: Name,
    trial: Annotated[
        int | None, typer.Option(metavar="ID", help="End this trial only, for good; the search goes on.")
    ] = None,
) -> None:
    """End a search that runs in another terminal.

    Its trials are told to stop, and everything is kept. Stopped once more, it kills what still runs.

    \b
    Examples:
        fanwise tune stop lenet
        fanwise tune stop lenet --trial 3
    """
    from .steering import tell_search

    typer.echo(tell_search(name, "stop") if trial is None else tell_search(name, "stop_trial", trial))


@tune.command("pause", epilog=STATUS)
def tune_pause(name: Name, trial: TrialId) -> None:
    """Pause a trial of a running search.

    At its next report it gives its worker to others, and keeps its last checkpoint to go on from.

    \b
    Example:
        fanwise tune pause lenet --trial 3
    """
    from .steering import tell_search

    typer.echo(tell_search(name, "pause", trial))


@tune.command("unpause", epilog=STATUS)
def tune_unpause(name: Name, trial: TrialId) -> None:
    """Let a paused trial of a running search go on.

    It does when a worker is free, from its last checkpoint, or without one from scratch.

    \b
    Example:
        fanwise tune unpause lenet --trial 3
    """
    from .steering import tell_search

    typer.echo(tell_search(name, "unpause", trial))


@tune.command("enqueue", epilog=STATUS)
def tune_enqueue(
    name: Name,
    settings: Annotated[
        list[str], typer.Argument(metavar="KEY=VALUE...", help="Hyperparameters; those left out are drawn at random.")
    ],
) -> None:
    """Have a running search try a configuration of yours next.

    \b
    Example:
        fanwise tune enqueue lenet learning_rate=0.1 batch_size=64
    """
    from .steering import enqueue

    typer.echo(enqueue(name, settings))


@tune.command("workers", epilog=STATUS)
def tune_workers(
    name: Name,
    number: Annotated[int, typer.Argument(metavar="N", help="Trials at a time, at least 1.", min=1)],
) -> None:
    """Change the number of workers of a running search.

    Running trials end normally. With fewer workers no trial starts until fewer than N run. With more, new trials start
    at once; those that the pool has no devices for wait until it has.

    \b
    Example:
        fanwise tune workers lenet 4
    """
    from .steering import tell_search

    typer.echo(tell_search(name, "workers", number))


@tune.command("rm", epilog=STATUS)
def tune_rm(
    names: Annotated[
        list[str], typer.Argument(metavar="NAME", help="Experiments, by name or folder.", autocompletion=experiments)
    ],
    yes: Annotated[bool, typer.Option("--yes", help="Do not ask.")] = False,
) -> None:
    """Delete experiments, after asking; not one that runs.

    Their checkpoints are deleted too, wherever they are, but no other files.

    \b
    Example:
        fanwise tune rm lenet
    """
    from .steering import remove

    remove(names, sure=yes)


@tune.command("plot", epilog=STATUS)
def tune_plot(
    names: Annotated[
        list[str],
        typer.Argument(metavar="NAME", help="An experiment, or several to compare.", autocompletion=experiments),
    ],
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the pictures go; made if need be.")] = Path("."),
    kind: Annotated[
        str, typer.Option("--format", metavar="KIND", help="png, svg or pdf.", autocompletion=kinds_of_picture)
    ] = "png",
) -> None:
    """Draw an experiment, or compare several.

    The best value so far, learning curves, workers, and rungs, importances or a Pareto front if there are any.
    Several experiments are drawn into one picture of the best value so far, and one of their workers.

    \b
    Examples:
        fanwise tune plot lenet --out pictures
        fanwise tune plot lenet lenet-asha
    """
    from .drawing import draw

    with at_work("drawing"):
        paths = draw(names, out, kind)
    for path in paths:
        typer.echo(printable_line(str(path)))


@tune.command("importance", epilog=STATUS)
def tune_importance(
    name: Name,
    metric: Annotated[
        str | None, typer.Option(metavar="NAME", help="One of several objectives. Default: the first.")
    ] = None,
    json: AsJson = False,
) -> None:
    """Show how much each hyperparameter matters.

    With the correlation of what the model behind it predicts and what came out: near 0 the figures say nothing.

    \b
    Example:
        fanwise tune importance lenet
    """
    from .importance import importance_json, importance_lines

    with at_work("fitting a model"):
        lines = [importance_json(name, metric)] if json else list(importance_lines(name, metric))
    for line in lines:
        typer.echo(line)


@tune.command("export", epilog=STATUS)
def tune_export(
    name: Name,
    out: Annotated[
        Path,
        typer.Option(
            metavar="FILE", help="The file to write: .csv, .json, .parquet or .sqlite, in an existing folder."
        ),
    ],
) -> None:
    """Write all reports as CSV or JSON.

    \b
    Example:
        fanwise tune export lenet --out lenet.csv
    """
    from .experiments import export

    with at_work("writing"):
        path = export(name, out)
    typer.echo(printable_line(str(path)))


@tune.command("replay", epilog="Exit status: 0 when every decision is the same, 1 when not.")
def tune_replay(name: Name, json: AsJson = False) -> None:
    """Decide every step of an experiment again, and compare.

    From its record, bit for bit, and without running a trial; also of one that was killed and resumed. A difference
    means that scheduler or searcher have changed, or use chance or a clock of their own; resuming depends on that they
    do not.

    \b
    Example:
        fanwise tune replay lenet
    """
    from .replaying import replay_json, replay_lines

    with at_work("deciding again"):
        lines, is_same = replay_json(name) if json else replay_lines(name)
    for line in lines:
        typer.echo(line)
    if not is_same:
        raise typer.Exit(1)
