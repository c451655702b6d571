"""The commands and their options; what they do is in the files beside this one, loaded when a command runs.

An error is one readable paragraph on standard error and exit status 1, or 2 for wrong usage; `--debug`, anywhere on the
line, shows the traceback instead. After Ctrl-C the status is 130, also when the search ended in order and is kept.
"""

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from ..base.nearest import nearest
from ..base.text import printable
from .tune_app import STATUS, AsJson, tune
from .usage import UsageError

app = typer.Typer(
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["--help", "-h"]},
    help="Search the hyperparameters of Python functions on every CPU and GPU of this machine.",
    epilog=f"Try `fanwise demo` first. {STATUS}",
)
app.add_typer(tune, name="tune")

_COMPLETING = "_FANWISE_COMPLETE"  # set by a shell that wants to know how a line may go on

Seconds = Annotated[float, typer.Option(metavar="SECONDS", help="How long to search.", min=1.0)]


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


@app.command(epilog=STATUS)
def demo(
    seconds: Seconds = 60.0,
    workers: Annotated[int, typer.Option(metavar="N", help="Trials at a time.", min=1)] = 2,
    data: Annotated[
        str, typer.Option(metavar="DATA", help="digits (needs no download) or fashion-mnist (downloads 30 MB).")
    ] = "digits",
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Where the pictures go.")] = Path("fanwise-demo"),
    ray: Annotated[
        str | None,
        typer.Option(metavar="ADDRESS", help="Run the trials on a Ray cluster: auto, or its address as 10.0.0.1:6379."),
    ] = None,
) -> None:
    """Search LeNet's learning rate and batch size on real images.

    Takes a minute. Shows the trials as they run, then the best configuration and how busy the workers were, and draws
    pictures of it. Ctrl-C ends it early, with everything kept; a second one kills what still runs.

    \b
    Example:
        fanwise demo --seconds 30 --workers 4
    """
    from .demo import run_demo

    run_demo(seconds=seconds, workers=workers, data=data, out=out, ray=ray)


@app.command(epilog=STATUS)
def board(
    port: Annotated[
        int, typer.Option(metavar="PORT", help="Where to listen; 0: any that is free.", min=0, max=65535)
    ] = 8321,
    host: Annotated[
        str,
        typer.Option(
            metavar="HOST",
            help="Who can reach it: 127.0.0.1 is this machine alone; 0.0.0.0 is everybody, who then need the token "
            "that is printed in the address.",
        ),
    ] = "127.0.0.1",
    home: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="The folder of the experiments. Default: $FANWISE_HOME, else ~/fanwise."),
    ] = None,
) -> None:
    """Show all experiments as live web pages, and steer what runs.

    Curves, workers, rungs, trials with their output, importances. Blocks until Ctrl-C, which ends no search.

    \b
    Examples:
        fanwise board
        fanwise board --port 0 --home ~/fanwise
        fanwise board --host 0.0.0.0      (to look from your phone)
    """
    from .board import serve_board

    serve_board(host=host, port=port, home=home)


@app.command(epilog=STATUS)
def devices(json: AsJson = False) -> None:
    """Show the CPUs, memory and GPUs that a search would use.

    \b
    Example:
        fanwise devices
    """
    from .devices import device_lines, devices_json

    if json:
        typer.echo(devices_json())
        return
    for line in device_lines():
        typer.echo(line)


@app.command(epilog="Exit status: 0 when nothing is wrong, 1 when something is, 2 for wrong usage.")
def doctor(json: AsJson = False) -> None:
    """Look for what is missing on this machine, and say what to do.

    Python, torch, GPUs, NCCL, shared memory, the folder of the experiments and its file system, Ray, and whether a
    worker starts. Takes some seconds, and changes nothing. A line begins with ok, with note for what works with less,
    or with wrong for what will fail.

    \b
    Example:
        fanwise doctor
    """
    from .doctor import as_json, findings, lines_of
    from .progress import at_work

    found = []
    left = findings()
    while True:
        with at_work("looking"):
            finding = next(left, None)
        if finding is None:
            break
        found.append(finding)
        if not json:
            for line in lines_of(finding):
                typer.echo(line)
    if json:
        typer.echo(as_json(found))
    if any(finding.state == "wrong" for finding in found):
        raise typer.Exit(1)


@app.command(epilog=STATUS)
def explain(
    topic: Annotated[
        str | None, typer.Argument(metavar="TOPIC", help="As an error names it, or a guide; without it: the list.")
    ] = None,
) -> None:
    """Show what an error means and what to do about it, or a guide.

    \b
    Examples:
        fanwise explain
        fanwise explain worker-lost
        fanwise explain searchers
    """
    from .explain import explained, show, topic_lines

    if topic is not None:
        show(explained(topic))
        return
    for line in topic_lines():
        typer.echo(line)


@app.command(epilog=STATUS)
def secret(
    file: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Write it to this new file, which only you may read.")
    ] = None,
) -> None:
    """Make the secret by which several hosts know each other.

    Give it to all of them, in FANWISE_SECRET or in a file that FANWISE_SECRET_FILE names, and to nobody else: whoever
    holds it may run code in them.

    \b
    Example:
        fanwise secret --file ~/.fanwise-secret
    """
    from .secret import secret_line

    typer.echo(secret_line(file))


def main() -> None:
    """Run the command line; ends the process with 0, 1 after an error, 2 for wrong usage, 130 after Ctrl-C."""
    arguments = [argument for argument in sys.argv[1:] if argument != "--debug"]
    debug = len(arguments) < len(sys.argv) - 1
    if arguments in ([], ["tune"]) and _COMPLETING not in os.environ:
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
        sys.exit(2 if isinstance(error, UsageError) or hasattr(error, "format_message") else 1)
    sys.exit(code if isinstance(code, int) else 0)


def _paragraph(error: Exception) -> str:
    """What a person reads of an error. Of one that is not meant for people, also its type and where to look."""
    from ..base.errors import FanwiseError

    format_message = getattr(error, "format_message", None)  # what all errors of wrong usage have, and no others
    if format_message is not None:
        message = _unknown_option(error) or format_message()
        return printable(f"error: {message}\nWhat a command takes is shown with --help after its name.")
    text = printable(f"error: {_of_the_system(error) or error}")
    if isinstance(error, FanwiseError | ValueError | TypeError | OSError):
        return text
    return f"{text}\n({type(error).__name__}; `fanwise --debug ...` shows where it comes from)"


def _of_the_system(error: Exception) -> str | None:
    """What the system refused, with the place first and what to do; None for what is worded already."""
    if not isinstance(error, OSError) or error.filename is None or error.strerror is None:
        return None
    text = f"{error.filename}: {error.strerror}."
    if isinstance(error, PermissionError):
        text += " This user may not read or write there. FANWISE_HOME names another folder for experiments."
    return text


def _unknown_option(error: Exception) -> str | None:
    """An unknown option and the one that was meant, in the form in which unknown commands are told."""
    option = getattr(error, "option_name", None)
    near = nearest(option, getattr(error, "possibilities", None) or ()) if option else None
    return f"No such option {option!r}. Did you mean {near!r}?" if near else None
