"""Turns commands of other processes and of the methods of `Tuner` into events of a running search.

    "pause", (3,)  --command_for(state)-->  Command(now_s, "pause", 3) and an answer to the user

    stop                  end the search; a second stop kills the running trials
    stop_trial 3          stop this trial permanently
    pause 3, unpause 3    pause the trial at its next report; undo the pause
    enqueue {"x": 0.1}    use this configuration for the next new trial
    workers 4             run at most 4 trials at a time

Commands are validated here against the state of the search. An invalid command raises TypeError or ValueError.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from ...base.text import counted
from ..core import events
from ..core.events import Event
from ..record.state import SearchState
from ..rng import KeyedRandom
from ..schedulers.scheduler import Status
from ..space import Space, check_partial_config
from ..values import checked_int

# Returns the event of a command for the current `now_s`.
MakeEvent: TypeAlias = Callable[[float], Event]


def command_for(
    command: str, args: Sequence[object], *, state: SearchState, space: Space, seed: int
) -> tuple[MakeEvent, str]:
    """Parse and validate a command. Return its event and the answer to the user.

    Raises TypeError or ValueError if the command is unknown, has invalid arguments, or cannot be executed now.
    """
    match command, list(args):
        case "stop", []:
            effect = f"the search is already ending ({state.stop_reason})" if state.stop_reason else "the search ends"
            answer = "running trials are asked to stop. A second stop kills these trials. All results are kept."
            return lambda now_s: events.Interrupt(now_s, "stopped by hand"), f"{effect}: {answer}"
        case "stop_trial" | "pause" | "unpause", [trial_id]:
            return _trial_command(command, trial_id, state)
        case "enqueue", [config]:
            complete_config = complete_enqueued(config, state, space, seed)
            values = ", ".join(f"{name}={value}" for name, value in complete_config.items())
            return lambda now_s: events.Enqueued(now_s, complete_config), f"the next new trial uses {values}"
        case "workers", [n_workers]:
            number = checked_int("n_workers", n_workers, 1)
            _check_starts_trials("the number of workers", state)
            limit = counted(number, "trial")
            answer = f"at most {limit} at a time from now on; running trials are not interrupted"
            return lambda now_s: events.WorkersChanged(now_s, number), answer
    raise ValueError(
        f"unknown command {command!r} with {counted(len(args), 'argument')}. "
        f"Do both processes run the same version of fanwise?"
    )


def complete_enqueued(config: Any, state: SearchState, space: Space, seed: int) -> dict[str, object]:
    """Return an enqueued configuration with its missing values drawn at random. Equal inputs give equal results.

    Raises TypeError or ValueError if config is not a dict or not in the space, or the search starts no new trials.
    """
    _check_starts_trials("the configuration", state)
    if not isinstance(config, Mapping):
        raise TypeError(f"a configuration must be a dict of hyperparameters, got {config!r}")
    values = sorted(check_partial_config(space, config).items(), key=str)
    return space.complete(config, KeyedRandom(f"{seed}/enqueued/{values!r}"))


def _check_starts_trials(request: str, state: SearchState) -> None:
    if state.stop_reason is not None:
        raise ValueError(f"{request} is refused because no new trials start: {state.stop_reason}")


def _trial_command(command: str, trial_id: Any, state: SearchState) -> tuple[MakeEvent, str]:
    if isinstance(trial_id, bool) or not isinstance(trial_id, int):
        raise TypeError(f"trial_id must be an int, got {trial_id!r} of type {type(trial_id).__name__}")
    status = state.unfinished_status(trial_id)
    if status not in (Status.IN_PROGRESS, Status.PAUSED):
        if 0 <= trial_id < state.num_trials:
            raise ValueError(f"trial {trial_id} is over")
        trials = f"its trials so far are 0 to {state.num_trials - 1}" if state.num_trials else "it has none yet"
        raise ValueError(f"the search has no trial {trial_id}; {trials}")
    is_paused = status is Status.PAUSED
    if command == "stop_trial":
        answer = f"trial {trial_id} is asked to stop"
        return lambda now_s: events.Command(now_s, "stop", trial_id), answer
    if command == "unpause":
        answer = f"trial {trial_id} is running and will not pause"
        if is_paused:
            answer = f"trial {trial_id} may resume when a worker is free, unless the scheduler paused it as well"
        return lambda now_s: events.Command(now_s, "resume", trial_id), answer
    answer = (
        f"trial {trial_id} pauses at its next report and frees its worker. When it is unpaused, it resumes from its "
        f"last checkpoint, or from scratch if it has none."
    )
    if is_paused:
        answer = f"trial {trial_id} is paused and stays paused until it is unpaused"
    return lambda now_s: events.Command(now_s, "pause", trial_id), answer
