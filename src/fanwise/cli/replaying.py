"""What `fanwise tune replay` prints."""

from ..base.plain_json import json_text
from ..base.text import counted, printable_line
from ..tune.core.replay import Difference
from ..tune.experiment_replay import replay_experiment

_MOST_SHOWN = 5


def replay_lines(name: str) -> tuple[list[str], bool]:
    """What was compared and where it differs first, and whether all is the same."""
    replayed = replay_experiment(name)
    compared = (
        f"{counted(replayed.num_events, 'event')}, {counted(replayed.num_actions, 'action')} and "
        f"{counted(replayed.num_suggestions, 'suggestion')} of {printable_line(name)}"
    )
    others = [
        f"{printable_line(name)} was {printable_line(then)} and is {printable_line(now)}"
        for name, (then, now) in replayed.version_changes.items()
    ]
    taken = [f"the suggestions are those of the record: {', '.join(others)}"] if others else []
    if not replayed.num_differences:
        return [f"{compared}: all the same", *taken], True
    lines = [*taken, f"{compared}: {counted(replayed.num_differences, 'event')} came out otherwise"]
    for difference in replayed.differences[:_MOST_SHOWN]:
        lines += _shown(difference)
    if replayed.num_differences > _MOST_SHOWN:
        lines.append(f"(and {replayed.num_differences - _MOST_SHOWN} more, which may follow from these)")
    return lines, False


def replay_json(name: str) -> tuple[list[str], bool]:
    """The same for programs."""
    replayed = replay_experiment(name)
    found = {
        "num_events": replayed.num_events,
        "num_actions": replayed.num_actions,
        "num_suggestions": replayed.num_suggestions,
        "num_differences": replayed.num_differences,
        "version_changes": replayed.version_changes,
        "differences": [
            {
                "event": difference.seq,
                "now_s": difference.event.now_s,
                "what": type(difference.event).__name__,
                "recorded": repr(difference.recorded),
                "replayed": repr(difference.replayed),
            }
            for difference in replayed.differences
        ],
    }
    return [json_text(found)], not replayed.num_differences


def _shown(difference: Difference) -> list[str]:
    what = type(difference.event).__name__
    return [
        f"event {difference.seq}, {what} at {difference.event.now_s:.3f} s",
        f"  recorded  {printable_line(repr(difference.recorded))}",
        f"  replayed  {printable_line(repr(difference.replayed))}",
    ]
