"""Sends commands to a search that runs in another process of this user."""

from pathlib import Path

from ...base.errors import ClosedError, FanwiseError
from ...links import Hub, dial
from ..program import ASKED
from ..record.overview import overview_of
from ..record.reading import read_meta
from .control_socket import KEY_NAME, SOCKET_NAME, near, speak

# A search answers at once unless its thread is busy.
_WITHIN_S = 30.0


def ask_search(folder: Path, word: str, *args: object, within_s: float = _WITHIN_S) -> str:
    """Send a command (see `commands`) and block until it is on record. Return the answer.

    Raises:
        ClosedError: the search is not running, runs on another machine, or was opened with `open_search`.
        ValueError: the search refuses the command.
        RecordError: there is no such experiment.
    """
    overview = overview_of(folder)
    if read_meta(folder)["objective"] == ASKED:
        raise ClosedError(
            f"the trials of {overview.name!r} are asked for by a program, which takes no commands from other processes "
            f"and has no workers: call the methods of open_search(...) in that program."
        )
    if overview.state in ("finished", "broken-off"):
        raise ClosedError(not_running(overview.name, overview.state, overview.reason))
    hub = Hub(name="remote")
    try:
        key = (folder / KEY_NAME).read_bytes()
        with near(folder) as place:
            link = dial(hub, place / SOCKET_NAME, key, within_s=within_s)
        speak(link)
        link.open()
        is_done, text = link.ask(word, *args, within_s=within_s)
        link.close()
    except (FanwiseError, OSError) as error:
        overview = overview_of(folder)
        if overview.state in ("finished", "broken-off"):
            raise ClosedError(not_running(overview.name, overview.state, overview.reason)) from error
        where = "it runs on another machine, if it does: give the command there"
        if overview.state == "running":
            where = f"it runs, and cannot be reached ({error})"
        raise ClosedError(f"the search {overview.name!r} was not told: {where}.") from error
    finally:
        hub.close()
    if not is_done:
        raise ValueError(text)
    return str(text)


def not_running(name: str, state: str, reason: str | None) -> str:
    """Return the message that a search does not run, with advice."""
    how = f"it has finished ({reason})" if state == "finished" else "its tuner was killed or has crashed"
    return f"the search {name!r} does not run: {how}. Go on with it: fanwise tune resume {name}"
