"""The options of the commands, and `main`. The commands are implemented in the other modules of this package.

An error is printed as one paragraph on standard error. The exit status is then 1, or 2 for wrong usage. `--debug`,
anywhere on the command line, shows the traceback instead. After Ctrl-C the status is 130.
"""

import os
import sys
from pathlib import Path
from typing import Annotated, Literal

import typer

from ..base.home import experiments_folder
from ..base.text import printable, printable_line
from .console import UsageError, at_work, print_lines
from .tune_app import STATUS, AsJson, Ray, SecretFile, tune

app = typer.Typer(
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["--help", "-h"]},
    help="Search the hyperparameters of Python functions on every CPU and GPU of this machine.",
    epilog=f"Try `fanwise demo` first. {STATUS}",
)
app.add_typer(tune, name="tune")

_COMPLETING = "_FANWISE_COMPLETE"  # set by a shell that requests completions

Seconds = Annotated[float, typer.Option(metavar="SECONDS", help="Duration of the search.", min=1.0)]


def _show_version(wanted: bool) -> None:
    if wanted:
        from ..base.version import VERSION

        typer.echo(f"fanwise {VERSION}")
        raise typer.Exit


@app.callback()
def options(
    debug: Annotated[
        bool, typer.Option("--debug", help="Show the traceback of errors. May be anywhere on the command line.")
    ] = False,
    version: Annotated[
        bool, typer.Option("--version", help="Show the version and exit.", callback=_show_version, is_eager=True)
    ] = False,
) -> None:
    """Declare the options for `--help`. `main` removes `--debug` before this is called."""


@app.command(epilog=STATUS)
def demo(
    seconds: Seconds = 60.0,
    workers: Annotated[int, typer.Option(metavar="N", help="Trials at a time.", min=1)] = 2,
    data: Annotated[
        Literal["digits", "fashion-mnist"], typer.Option(help="digits (no download) or fashion-mnist (30 MB download).")
    ] = "digits",
    out: Annotated[Path, typer.Option(metavar="FOLDER", help="Folder for the figures.")] = Path("fanwise-demo"),
    ray: Ray = None,
) -> None:
    """Search LeNet's learning rate and batch size on real images.

    Takes a minute. Shows the trials while they run, then the best configuration and the utilization of the workers, and
    draws figures. Ctrl-C ends the search early and keeps its results. A second Ctrl-C kills the running trials.

    \b
    Example:
        fanwise demo --seconds 30 --workers 4
    """
    from .demo import run_demo

    run_demo(seconds=seconds, workers=workers, data=data, out=out, ray=ray)


@app.command(epilog=STATUS)
def board(
    port: Annotated[
        int, typer.Option(metavar="PORT", help="Port of the board. 0: any free port.", min=0, max=65535)
    ] = 8321,
    host: Annotated[
        str,
        typer.Option(
            metavar="HOST",
            help="Address to listen at. 127.0.0.1: only this machine. 0.0.0.0: all machines that reach this one and "
            "know the token in the printed address.",
        ),
    ] = "127.0.0.1",
) -> None:
    """Show and control all searches on live web pages.

    Shows curves, workers, rungs, trials with their output, and importances. Ctrl-C ends the board, not the searches.

    \b
    Examples:
        fanwise board
        fanwise board --host 0.0.0.0      (for your phone)
    """
    from ..board.guard import is_loopback
    from ..board.serving import open_board
    from ..tune.runtime.board_process import check_board_is_installed

    folder = experiments_folder()
    if folder.is_dir() and not os.access(folder, os.R_OK | os.X_OK):
        raise PermissionError(f"{folder} cannot be read by this user. Set FANWISE_HOME to another folder.")
    check_board_is_installed()
    server = open_board(folder, host=host, port=port)
    typer.echo(f"board of {printable_line(str(folder))}: {server.address}")
    typer.echo("anyone with this address can read and control the searches")
    if not is_loopback(host):
        typer.echo("the connection is not encrypted")
    typer.echo("Ctrl-C ends the board, not the searches")
    server.serve()


@app.command(epilog=STATUS)
def devices(json: AsJson = False) -> None:
    """Show the CPUs, memory and GPUs that a search would use.

    \b
    Example:
        fanwise devices
    """
    from .doctor import device_lines, devices_json

    print_lines([devices_json()] if json else device_lines())


@app.command(epilog="Exit status: 0 if no problem was found, 1 otherwise, 2 for wrong usage.")
def doctor(json: AsJson = False) -> None:
    """Check this machine for problems, and suggest solutions.

    Checks Python, torch, GPUs, NCCL, shared memory, the folder of the experiments and its file system, Ray, and whether
    a worker starts. Takes a few seconds and changes nothing. Each line begins with ok, note (works with limitations) or
    wrong (will fail).

    \b
    Example:
        fanwise doctor
    """
    from .doctor import findings, findings_json, lines_of

    results, remaining = [], findings()
    while True:
        with at_work("checking"):
            finding = next(remaining, None)
        if finding is None:
            break
        results.append(finding)
        if not json:
            print_lines(lines_of(finding))
    if json:
        typer.echo(findings_json(results))
    if any(finding.state == "wrong" for finding in results):
        raise typer.Exit(1)


@app.command(epilog=STATUS)
def explain(
    topic: Annotated[
        str | None,
        typer.Argument(metavar="TOPIC", help="Topic of an error message, or a guide. Default: list them."),
    ] = None,
) -> None:
    """Explain an error and its solution, or show a guide.

    \b
    Examples:
        fanwise explain
        fanwise explain worker-lost
        fanwise explain searchers
    """
    from .explain import explained, show, topic_lines

    if topic is not None:
        show(explained(topic))
    else:
        print_lines(topic_lines())


@app.command(epilog=STATUS)
def secret(
    file: Annotated[
        Path | None, typer.Option(metavar="PATH", help="Write the secret to this new file, which only you can read.")
    ] = None,
) -> None:
    """Create a secret for searches on several hosts.

    The hosts authenticate each other with it. Set FANWISE_SECRET to it on all hosts, or FANWISE_SECRET_FILE to a file
    that contains it. A process that knows it can run code on these hosts.

    \b
    Example:
        fanwise secret --file ~/.fanwise-secret
    """
    from ..links.shared_secret import FILE_VARIABLE, new_secret, write_secret

    if file is None:
        typer.echo(new_secret())
        return
    try:
        write_secret(file)
    except FileExistsError as error:
        raise FileExistsError(
            f"{file} exists and was not changed, because processes may use its secret.\n"
            f"Choose another path, or remove the file first."
        ) from error
    except OSError as error:
        raise OSError(
            f"the secret cannot be written to {str(file)!r}: {error.strerror}. Name a new file in a folder of yours."
        ) from error
    shown = printable_line(str(file.absolute()))
    typer.echo(f"wrote {shown}; copy it to every host and set {FILE_VARIABLE} to its path there")


@app.command(epilog=f"{STATUS[:-1]}, 143 after SIGTERM.")
def join(
    address: Annotated[str, typer.Argument(metavar="HOST:PORT", help="Where the pool of the search listens.")],
    secret_file: SecretFile = None,
    workers: Annotated[
        int | None,
        typer.Option(metavar="N", help="CPUs to contribute: as many trials of one CPU run here. Default: all.", min=1),
    ] = None,
    gpus: Annotated[
        str | None,
        typer.Option(metavar="LIST", help="GPUs to contribute, such as 0,1, as in CUDA_VISIBLE_DEVICES. Default: all."),
    ] = None,
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of this host in the search. Default: its host name.")
    ] = None,
) -> None:
    """Join a search of another host, and run trials of it here.

    The search must listen: `fanwise tune run --listen`, or Pool(listen=...) in Python. Both hosts need the same secret
    and the same versions of Python, fanwise and torch. Waits up to a minute for the search to begin. Ctrl-C ends the
    trials that run here; with retries, the search resumes them elsewhere from their checkpoints.

    \b
    Example:
        fanwise join 10.0.0.1:7070 --secret-file ~/.fanwise-secret
    """
    from .join import join as join_search

    join_search(address, secret_file=secret_file, workers=workers, gpus=gpus, name=name)


def main() -> None:
    """Run the command and exit: status 0, 1 after an error, 2 for wrong usage, 130 after Ctrl-C."""
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
    """Return an error as text for the user. Unexpected errors include their type."""
    from ..base.errors import FanwiseError

    format_message = getattr(error, "format_message", None)  # exists for usage errors only
    if format_message is not None:
        message = format_message().replace("Value error, ", "")  # a prefix that typer adds
        return printable(f"error: {message}\nRun the command with --help to see its options.")
    text = printable(f"error: {_describe_os_error(error) or error}")
    if isinstance(error, FanwiseError | ValueError | TypeError | OSError):
        return text
    return f"{text}\n({type(error).__name__}; `fanwise --debug ...` shows the traceback)"


def _describe_os_error(error: Exception) -> str | None:
    """Return a message for an error of the operating system, or None if the error has a message of its own."""
    if not isinstance(error, OSError) or error.filename is None or error.strerror is None:
        return None
    text = f"{error.filename}: {error.strerror}."
    if isinstance(error, PermissionError):
        text += " Set FANWISE_HOME to use another folder for experiments."
    return text
