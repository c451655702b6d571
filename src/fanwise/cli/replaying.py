"""The command `fanwise tune replay`."""

from collections.abc import Iterator
from dataclasses import fields

from ..base.plain_json import json_text
from ..base.text import counted, printable_line
from ..tune.experiment import replay_experiment
from ..tune.record.replay import ReplayResult

_MAX_SHOWN = 5


def replay(name: str, *, json: bool) -> tuple[list[str], bool]:
    """Return the result of a replay as lines or JSON, and whether all decisions are the same."""
    result = replay_experiment(name)
    lines = [_json_of(result)] if json else list(_lines_of(result, name))
    return lines, not result.num_differences


def _lines_of(result: ReplayResult, name: str) -> Iterator[str]:
    """Yield the first differences."""
    compared = (
        f"{counted(result.num_events, 'event')}, {counted(result.num_actions, 'action')} and "
        f"{counted(result.num_suggestions, 'suggestion')} of {printable_line(name)}"
    )
    differ = f"{counted(result.num_differences, 'event')} differ" if result.num_differences else "all the same"
    yield f"{compared}: {differ}"
    if result.version_changes:
        changes = [f"{library} was {old} and is {new}" for library, (old, new) in result.version_changes.items()]
        yield printable_line(f"suggestions were taken from the record: {', '.join(changes)}")
    for difference in result.differences[:_MAX_SHOWN]:
        yield f"event {difference.seq}, {type(difference.event).__name__} at {difference.event.now_s:.3f} s"
        yield f"  recorded  {printable_line(repr(difference.recorded))}"
        yield f"  replayed  {printable_line(repr(difference.replayed))}"
    if result.num_differences > _MAX_SHOWN:
        yield f"(and {result.num_differences - _MAX_SHOWN} more, which may be caused by these)"


def _json_of(result: ReplayResult) -> str:
    differences = [
        {
            "event": difference.seq,
            "now_s": difference.event.now_s,
            "type": type(difference.event).__name__,
            "recorded": repr(difference.recorded),
            "replayed": repr(difference.replayed),
        }
        for difference in result.differences
    ]
    return json_text(
        {field.name: getattr(result, field.name) for field in fields(result)} | {"differences": differences}
    )
