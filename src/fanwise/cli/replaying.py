"""The command `fanwise tune replay`."""

from ..base.plain_json import json_text
from ..base.text import counted, printable_line
from ..tune.experiment import replay_experiment
from ..tune.record.replay import Difference

_MAX_SHOWN = 5


def replay_lines(name: str) -> tuple[list[str], bool]:
    """Return lines with the first differences, and whether there is none."""
    replayed = replay_experiment(name)
    compared = (
        f"{counted(replayed.num_events, 'event')}, {counted(replayed.num_actions, 'action')} and "
        f"{counted(replayed.num_suggestions, 'suggestion')} of {printable_line(name)}"
    )
    changes = [
        f"{printable_line(name)} was {printable_line(recorded)} and is {printable_line(current)}"
        for name, (recorded, current) in replayed.version_changes.items()
    ]
    notes = [f"suggestions were taken from the record: {', '.join(changes)}"] if changes else []
    if not replayed.num_differences:
        return [f"{compared}: all the same", *notes], True
    lines = [*notes, f"{compared}: {counted(replayed.num_differences, 'event')} differ"]
    for difference in replayed.differences[:_MAX_SHOWN]:
        lines += _shown(difference)
    if replayed.num_differences > _MAX_SHOWN:
        lines.append(f"(and {replayed.num_differences - _MAX_SHOWN} more, which may be caused by these)")
    return lines, False


def replay_json(name: str) -> tuple[list[str], bool]:
    """Return the result as JSON, and whether there is no difference."""
    replayed = replay_experiment(name)
    body = {
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
    return [json_text(body)], not replayed.num_differences


def _shown(difference: Difference) -> list[str]:
    return [
        f"event {difference.seq}, {type(difference.event).__name__} at {difference.event.now_s:.3f} s",
        f"  recorded  {printable_line(repr(difference.recorded))}",
        f"  replayed  {printable_line(repr(difference.replayed))}",
    ]
