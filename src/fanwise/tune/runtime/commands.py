"""Converts the commands of other processes to a running search into events.

    "pause", (3,)  --command_for(state)-->  Command(now_s, "pause", 3) and a sentence that answers the user

    stop                  end the search; a second stop kills the running trials
    stop_trial 3          stop this trial permanently
    pause 3, unpause 3    pause the trial at its next report; let it resume
    enqueue {"x": 0.1}    use this configuration for the next new trial
    workers 4             run at most 4 trials at a time

Commands are validated here against the state of the search. An invalid one raises a ValueError for the user.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ...base.text import counted
from ..core import events
from ..core.events import Event
from ..record.state import SearchState
from ..rng import KeyedRandom
from ..schedulers.scheduler import Status
from ..space import Space, check_part
from ..values import checked_int


@dataclass(frozen=True, slots=True)
class UserCommand:
    """A valid command. `make` makes the event from the time, and `answer` is the reply to the user."""

    make: Callable[[float], Event]
    answer: str


def command_for(word: str, args: Sequence[object], *, state: SearchState, space: Space, seed: int) -> UserCommand:
    """Parse and validate a command.

    Raises:
        TypeError, ValueError: the command is unknown, has invalid arguments, or cannot be executed now.
    """
    match word, list(args):
        case "stop", []:
            return _stop(state)
        case "stop_trial", [int(trial_id)]:
            return _stop_trial(trial_id, state)
        case "pause", [int(trial_id)]:
            return _pause(trial_id, state)
        case "unpause", [int(trial_id)]:
            return _unpause(trial_id, state)
        case "enqueue", [config]:
            return _enqueue(config, state, space, seed)
        case "workers", [n_workers]:
            return _workers(n_workers, state)
    raise ValueError(
        f"unknown command {word!r} with {len(args)} arguments. Do both processes run the same version of fanwise?"
    )


def completed(config: Mapping[str, object], space: Space, seed: int) -> dict[str, object]:
    """Return the configuration with its missing values drawn at random. Equal inputs give equal results.

    Raises:
        TypeError, ValueError: config is not a dict or not in the space.
    """
    if not isinstance(config, Mapping):
        raise TypeError(f"a configuration must be a dict of hyperparameters, got {config!r}")
    return space.complete(
        config, KeyedRandom(f"{seed}/enqueued/{sorted(check_part(space, config).items(), key=str)!r}")
    )


def check_may_enqueue(state: SearchState) -> None:
    """Raise ValueError if the search starts no new trials any more."""
    _check_starts_trials("the configuration", state)


def _check_starts_trials(request: str, state: SearchState) -> None:
    if state.reason is not None:
        raise ValueError(f"{request} is refused because no new trials start: {state.reason}")


def _stop(state: SearchState) -> UserCommand:
    ends = f"the search is already ending ({state.reason})" if state.reason else "the search ends"
    return UserCommand(
        lambda now_s: events.Interrupt(now_s, "stopped by hand"),
        f"{ends}: running trials are asked to stop, and all results are kept. A second stop kills them.",
    )


def _stop_trial(trial_id: int, state: SearchState) -> UserCommand:
    _living(trial_id, state)
    return UserCommand(_command("stop", trial_id), f"trial {trial_id} is asked to stop")


def _pause(trial_id: int, state: SearchState) -> UserCommand:
    if _living(trial_id, state) is Status.PAUSED:
        return UserCommand(
            _command("pause", trial_id), f"trial {trial_id} is paused and stays paused until it is unpaused"
        )
    return UserCommand(
        _command("pause", trial_id),
        f"trial {trial_id} pauses at its next report and frees its worker. When it is unpaused, it resumes from its "
        f"last checkpoint, or from scratch if it has none.",
    )


def _unpause(trial_id: int, state: SearchState) -> UserCommand:
    if _living(trial_id, state) is Status.PAUSED:
        answer = f"trial {trial_id} may resume: it does when a worker is free and the scheduler resumes it"
    else:
        answer = f"trial {trial_id} is running and will not pause"
    return UserCommand(_command("resume", trial_id), answer)


def _enqueue(config: Any, state: SearchState, space: Space, seed: int) -> UserCommand:
    check_may_enqueue(state)
    whole = completed(config, space, seed)
    shown = ", ".join(f"{name}={value}" for name, value in whole.items())
    return UserCommand(lambda now_s: events.Enqueued(now_s, whole), f"the next new trial uses {shown}")


def _workers(n_workers: object, state: SearchState) -> UserCommand:
    number = checked_int("n_workers", n_workers, 1)
    _check_starts_trials("the number of workers", state)
    return UserCommand(
        lambda now_s: events.Workers(now_s, number),
        f"at most {counted(number, 'trial')} at a time from now on; running trials are not interrupted",
    )


def _command(what: Literal["pause", "resume", "stop"], trial_id: int) -> Callable[[float], Event]:
    return lambda now_s: events.Command(now_s, what, trial_id)


def _living(trial_id: int, state: SearchState) -> Status:
    """Return the status of an unfinished trial, or raise ValueError."""
    status = state.living_status(trial_id)
    if status in (Status.IN_PROGRESS, Status.PAUSED):
        return status
    check_is_trial(trial_id, state.num_trials)
    raise ValueError(f"trial {trial_id} is over")


def check_is_trial(trial_id: int, num_trials: int) -> None:
    """Raise ValueError for a trial that has not started."""
    if 0 <= trial_id < num_trials:
        return
    known = f"its trials so far are 0 to {num_trials - 1}" if num_trials else "it has none yet"
    raise ValueError(f"the search has no trial {trial_id}; {known}")
